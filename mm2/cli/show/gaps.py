"""`mm2 gaps`: source offsets that are not on the target, and the reasons. Exit code 1 if some of them are lost.

The ledger has the gaps. Whether the target still has the rest is not in it, so the logs of the target are read, too.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from mm2.cli.common.flow import EXIT_ERROR, EXIT_NOT_WELL, EXIT_WELL, CommandError, ConfiguredFlow, add_flow
from mm2.cli.common.output import write_document
from mm2.cli.common.tables import number
from mm2.cli.common.verbs import examples
from mm2.copy.progress.ledger import Ledger
from mm2.copy.progress.segments import INTENDED, Gap
from mm2.copy.progress.session import LedgerEntry
from mm2.evidence import GAPS, NO_GAP, counted
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import TopicPartition
from mm2.mirror.common.clients import Side
from mm2.mirror.common.discovery import vanished
from mm2.mirror.groups.target_logs import TargetLoss, target_losses
from mm2.mirror.notes.kept_records import ForeignRun, kept_here
from mm2.mirror.notes.promotions import promoted
from mm2.reasons import TargetLossCode

_SHOWN: Final = 8


@dataclass(frozen=True)
class PartitionGaps:
    """The gaps of one partition: totals by reason since the first copy, and the ranges that are still listed.

    ``on_target``: what the target has lost, None: its log reaches the ledger's position; a failure: this is not known.
    ``kept``: what `mm2 failback` has left on the source only; the user has accepted it.
    """

    entry: LedgerEntry
    ranges: tuple[Gap, ...]
    on_target: TargetLoss | KafkaFailure | None = None
    kept: tuple[ForeignRun, ...] = ()

    @property
    def is_well(self) -> bool:
        """Whether no record that should be on the target is known to be missing there."""
        is_lost = isinstance(self.on_target, TargetLoss)
        return self.entry.gaps.keys() <= INTENDED and not self.entry.lost_ranges and not is_lost

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
            "kept_on_source": self.kept,
            "origin": {"code": self.entry.origin.code, "target": self.entry.origin.target}
            if self.entry.origin.code
            else None,
            "target_loss": {"code": self.on_target.code, "message": self.on_target.message}
            if isinstance(self.on_target, TargetLoss)
            else None,
            "target_error": str(self.on_target) if isinstance(self.on_target, KafkaFailure) else None,
        }


def entries_of(ledger: Ledger, topic: str | None) -> list[LedgerEntry]:
    """The entries of all partitions of the ledger, or of one topic."""
    return [
        entry
        for source in ledger.partitions()
        if topic in {None, source.topic} and (entry := ledger.entry(source)) is not None
    ]


def gaps_of(
    ledger: Ledger,
    topic: str | None,
    on_target: Mapping[TopicPartition, TargetLoss | KafkaFailure | None] | None = None,
) -> list[PartitionGaps]:
    """The gaps of all partitions of the ledger, or of one topic."""
    found, kept = [], kept_here(ledger)
    for entry in entries_of(ledger, topic):
        source = entry.source
        listed = [gap for chunk in ledger.chunks(source) for gap in chunk.gaps]
        # Losses without a total are offsets that the source assigned a second time: after a truncation of the log, or
        # in a topic that was recreated.
        listed += [Gap(lost.first, lost.after, lost.reason) for lost in entry.lost if lost.reason in entry.gaps]
        found.append(PartitionGaps(entry, tuple(merged(listed)), (on_target or {}).get(source), kept.get(source, ())))
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
        description="Source offsets that are not on the target, and why, by the ledger. The logs of the target are compared with its positions: "
        "a remote topic that was deleted, recreated or cut off is reported. Records are not compared; mm2 verify does that. "
        "Exit code: 0 no loss is known, 1 records are lost or copying has stopped, 2 the command failed, or the logs of the target could not be read.",
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
    ledger = flow.ledger()
    # The opposite flow copies these topics; applications use them on the target.
    turned = {topic for topic, one in promoted(ledger).items() if one.turned}
    entries = [entry for entry in entries_of(ledger, options.topic) if entry.topic not in turned]
    with flow.cluster(Side.TARGET) as admin:
        on_target = dict(target_losses(admin, entries))
    at_ms = time.time_ns() // 1_000_000
    gone = _deleted_on_source(flow, [tp for tp, loss in on_target.items() if _is_deleted(loss)])
    on_target |= dict.fromkeys(gone)
    partitions = gaps_of(ledger, options.topic, on_target)
    if options.topic is not None and not partitions:
        raise CommandError(f"The ledger of {flow.pair} has no topic {options.topic}.")
    totals: Counter[str] = Counter()
    for partition in partitions:
        totals.update(partition.entry.gaps)
    if options.json:
        rows = [partition.to_json() for partition in partitions]
        document = {"flow": str(flow.pair), "at_ms": at_ms, "totals": dict(sorted(totals.items())), "partitions": rows}
        write_document(options, document)
    else:
        sys.stdout.writelines(f"{tp}  deleted on both clusters\n" for tp in sorted(gone))
        write_gaps(sys.stdout, flow, partitions, totals, at_ms)
    if not all(partition.is_well for partition in partitions):
        return EXIT_NOT_WELL
    return EXIT_ERROR if any(isinstance(partition.on_target, KafkaFailure) for partition in partitions) else EXIT_WELL


def _is_deleted(loss: TargetLoss | KafkaFailure | None) -> bool:
    return isinstance(loss, TargetLoss) and loss.code is TargetLossCode.DELETED


def _deleted_on_source(flow: ConfiguredFlow, partitions: list[TopicPartition]) -> set[TopicPartition]:
    """Those of which the source reports now that their topics do not exist; none if it does not answer."""
    if not partitions:
        return set()
    try:
        with flow.cluster(Side.SOURCE) as admin:
            topics = admin.describe_topics(sorted({tp.topic for tp in partitions}))
    except KafkaFailure:
        return set()
    return {tp for tp in partitions if vanished(topics[tp.topic])}


def write_gaps(
    out: TextIO, flow: ConfiguredFlow, partitions: list[PartitionGaps], totals: Counter[str], at_ms: int
) -> None:
    """Print the gaps of partitions, and what the target has lost of them."""
    for partition in partitions:
        for reason, count in sorted(partition.entry.gaps.items()):
            ranges = [gap for gap in partition.ranges if gap.reason == reason]
            out.write(f"{partition.entry.source}  {reason}  {number(count)}: {_ranges(ranges, count)}\n")
        out.writelines(
            f"{partition.entry.source}  on {flow.pair.source} only, kept by mm2 failback: {counted(run.records, 'record')}, {run}\n"
            for run in partition.kept
        )
        if note := partition.entry.origin.note:
            out.write(f"{partition.entry.source}  at target offset {number(partition.entry.origin.target)} {note}\n")
        if partition.entry.lost_before:
            out.write(f"{partition.entry.source}  {number(partition.entry.lost_before)} lost ranges before these\n")
        out.writelines(
            f"{partition.entry.source}  found at {_time(lost.at_ms)}: {_range(Gap(lost.first, lost.after, ''))} "
            f"{lost.reason}\n"
            for lost in partition.entry.lost
        )
    lost = [(one, one.on_target) for one in partitions if isinstance(one.on_target, TargetLoss)]
    unread = [one for one in partitions if isinstance(one.on_target, KafkaFailure)]
    for one, loss in lost:
        what = "NOT KNOWN" if loss.code is TargetLossCode.STOPPED else "LOST"
        out.write(f"{one.entry.source}  {what} on {flow.pair.target}: {loss}\n")
    reasons = ", ".join(f"{reason} {number(count)}" for reason, count in sorted(totals.items()))
    lost_ranges = sum(one.entry.lost_ranges for one in partitions)
    if not reasons and lost_ranges:  # of offsets that are not in the totals
        reasons = counted(lost_ranges, "lost range")
    reasons = reasons or NO_GAP(is_known=bool(partitions))
    if lost:
        is_known = any(loss.code is not TargetLossCode.STOPPED for _, loss in lost)
        reasons += f"; {flow.pair.target} {'does not have' if is_known else 'is not known to have'} all records that were copied to it, in {counted(len(lost), 'partition')}"
    elif partitions:
        why = str(unread[0].on_target).rstrip(".") if unread else ""
        values = {
            "target": flow.pair.target,
            "partitions": counted(len(unread), "partition"),
            "why": why,
            "at": _time(at_ms),
        }
        reasons = GAPS(is_known=not unread, reasons=reasons, **values)
    out.write(f"{counted(len(partitions), 'partition')} of {flow.pair}: {reasons}\n")


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
