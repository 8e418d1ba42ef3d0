"""`mm2 gaps`: source offsets that are not on the target, and the reasons. Exit code 1 if some of them are lost."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from mm2.cli.flow import EXIT_NOT_WELL, EXIT_WELL, CommandError, ConfiguredFlow, add_flow
from mm2.cli.output import write_document
from mm2.cli.tables import number
from mm2.cli.verbs import examples
from mm2.copy.ledger import Ledger
from mm2.copy.segments import INTENDED, Gap
from mm2.copy.session import LedgerEntry

_SHOWN: Final = 8


@dataclass(frozen=True)
class PartitionGaps:
    """The gaps of one partition: totals by reason since the first copy, and the ranges that are still listed."""

    entry: LedgerEntry
    ranges: tuple[Gap, ...]

    @property
    def is_well(self) -> bool:
        """Whether all records that should be on the target are there."""
        return self.entry.gaps.keys() <= INTENDED and not self.entry.lost_ranges

    def to_json(self) -> dict[str, Any]:
        return {
            "topic": self.entry.topic,
            "partition": self.entry.partition,
            "position": self.entry.mark.source,
            "gaps": dict(sorted(self.entry.gaps.items())),
            "ranges": [{"first": gap.first, "last": gap.after - 1, "reason": gap.reason} for gap in self.ranges],
            "lost": [
                {"first": lost.first, "last": lost.after - 1, "reason": lost.reason, "found_ms": lost.at_ms}
                for lost in self.entry.lost
            ],
            "lost_before": self.entry.lost_before,
        }


def gaps_of(ledger: Ledger, topic: str | None) -> list[PartitionGaps]:
    """The gaps of all partitions of the ledger, or of one topic."""
    found = []
    for source in ledger.partitions():
        entry = ledger.entry(source) if topic in {None, source.topic} else None
        if entry is None:
            continue
        listed = [gap for chunk in ledger.chunks(source) for gap in chunk.gaps]
        # Losses without a total are offsets that the source assigned a second time: after a truncation of the log, or
        # in a topic that was recreated.
        listed += [Gap(lost.first, lost.after, lost.reason) for lost in entry.lost if lost.reason in entry.gaps]
        found.append(PartitionGaps(entry, tuple(merged(listed))))
    return found


def merged(gaps: Iterable[Gap]) -> list[Gap]:
    """The same offsets in as few ranges as possible, each offset once per reason, in order."""
    found: dict[str, list[Gap]] = {}
    for gap in sorted(gaps):
        ranges = found.setdefault(gap.reason, [])
        if ranges and gap.first <= ranges[-1].after:
            ranges[-1] = ranges[-1]._replace(after=max(ranges[-1].after, gap.after))
        else:
            ranges.append(gap)
    return sorted(gap for ranges in found.values() for gap in ranges)


def add(verbs: Any) -> None:
    """Declare the command and its arguments."""
    parser = verbs.add_parser(
        "gaps",
        help="source offsets that are not on the target, and why",
        description="Source offsets that are not on the target, and why. Exit code: 0 all expected records are there, 1 "
        "some are lost, 2 the command failed.",
        epilog=examples(
            ("all topics", "mm2 gaps mm2.properties 'A->B'"),
            ("one topic, for a script", "mm2 gaps mm2.properties 'A->B' --topic orders --json"),
        ),
    )
    add_flow(parser)
    parser.add_argument("--topic", metavar="T", help="only this topic of the source")
    parser.set_defaults(run=run)


def run(options: Any) -> int:
    """Run the command; returns the exit code. Raises CommandError, ConfigException or KafkaFailure."""
    flow = ConfiguredFlow.of(options.config, options.flow)
    partitions = gaps_of(flow.ledger(), options.topic)
    if options.topic is not None and not partitions:
        raise CommandError(f"The ledger of {flow.pair} has no topic {options.topic}.")
    totals: Counter[str] = Counter()
    for partition in partitions:
        totals.update(partition.entry.gaps)
    if options.json:
        rows = [partition.to_json() for partition in partitions]
        document = {"flow": str(flow.pair), "totals": dict(sorted(totals.items())), "partitions": rows}
        write_document(options, document)
    else:
        _write(sys.stdout, flow, partitions, totals)
    return EXIT_WELL if all(partition.is_well for partition in partitions) else EXIT_NOT_WELL


def _write(out: TextIO, flow: ConfiguredFlow, partitions: list[PartitionGaps], totals: Counter[str]) -> None:
    for partition in partitions:
        for reason, count in sorted(partition.entry.gaps.items()):
            ranges = [gap for gap in partition.ranges if gap.reason == reason]
            out.write(f"{partition.entry.source}  {reason}  {number(count)}: {_ranges(ranges, count)}\n")
        if partition.entry.lost_before:
            out.write(f"{partition.entry.source}  {number(partition.entry.lost_before)} lost ranges before these\n")
        out.writelines(
            f"{partition.entry.source}  found at {_time(lost.at_ms)}: {_range(Gap(lost.first, lost.after, ''))} "
            f"{lost.reason}\n"
            for lost in partition.entry.lost
        )
    where = f"{number(len(partitions))} partition{'' if len(partitions) == 1 else 's'} of {flow.pair}"
    shown = ", ".join(f"{reason} {number(count)}" for reason, count in sorted(totals.items()))
    none = "every source offset has its record on the target" if partitions else "nothing has been copied yet"
    out.write(f"{where}: {shown or none}\n")


def _ranges(gaps: list[Gap], count: int) -> str:
    """The newest ranges; older ones only as a number of offsets, since they are no longer listed."""
    shown = gaps[-_SHOWN:]
    before = count - sum(gap.after - gap.first for gap in shown)
    earlier = [f"{number(before)} earlier"] if before > 0 else []
    return ", ".join([*earlier, *map(_range, shown)])


def _range(gap: Gap) -> str:
    return str(gap.first) if gap.after == gap.first + 1 else f"{gap.first}-{gap.after - 1}"


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
