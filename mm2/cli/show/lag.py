"""`mm2 lag`: the lag of a flow's partitions in records, bytes and seconds, largest first."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from mm2.cli.common.flow import EXIT_ERROR, EXIT_NOT_WELL, EXIT_WELL, CommandError, add_file, add_topics
from mm2.cli.common.output import is_wide, write_document
from mm2.cli.common.tables import at_least, number, records_at_risk, seconds_at_risk, table
from mm2.cli.common.verbs import examples
from mm2.cli.show.status import add_timeout, look
from mm2.evidence import Evidence, counted
from mm2.observer.flow_state import looked_at
from mm2.observer.sums import risk_of
from mm2.observer.views import FlowView, PartitionView, Snapshot

_TOP: Final = 20
_EVIDENCE: Final = (Evidence.SOURCE_LOGS, Evidence.LEDGER, Evidence.TARGET_LOGS)
_THRESHOLD: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|b|kb|mb|gb|)", re.IGNORECASE)
_UNITS: Final[dict[str, tuple[str, float]]] = {
    "": ("lag_records", 1),
    "s": ("lag_seconds", 1),
    "m": ("lag_seconds", 60),
    "h": ("lag_seconds", 3600),
    "b": ("lag_bytes", 1),
    "kb": ("lag_bytes", 10**3),
    "mb": ("lag_bytes", 10**6),
    "gb": ("lag_bytes", 10**9),
}


@dataclass(frozen=True)
class Threshold:
    """The highest accepted lag of a partition; ``field`` is one of PartitionView."""

    field: str
    most: float

    @classmethod
    def of(cls, text: str) -> Threshold:
        """Parse ``1000`` records, ``30s``, ``5m``, ``20MB``. Raises CommandError."""
        match = _THRESHOLD.fullmatch(text.strip())
        if match is None:
            raise CommandError(f"{text!r} is not a lag; write for instance 1000 (records), 30s, 5m or 20MB.")
        field, factor = _UNITS[match[2].lower()]
        return cls(field, float(match[1]) * factor)

    def is_exceeded(self, partition: PartitionView) -> bool:
        """Whether the lag is higher or unknown."""
        value = getattr(partition, self.field)
        return not _is_empty(partition) and (value is None or value > self.most)


def _is_empty(partition: PartitionView) -> bool:
    """Whether the source partition never had a record. Nothing is copied from it, so it has no position and no lag."""
    return partition.lag_records is None and partition.source_end == 0 and partition.is_lag_exact


def add(verbs: Any) -> None:
    """Declare the command and its arguments."""
    parser = verbs.add_parser(
        "lag",
        help="lag of partitions: records, bytes, seconds",
        description="The lag of the partitions of the source, largest first. Seconds are the age of the oldest record "
        "that is not on the target; bytes are estimated from recently copied records. With --topic, the sums are "
        "those of the selected topics. Exit code: 0 all are within the threshold, 1 a partition is not, or its lag is unknown, 2 the command failed.",
        epilog=examples(
            ("largest lags of all flows", "mm2 lag mm2.properties"),
            ("all partitions of one flow", "mm2 lag mm2.properties 'A->B' --top 0"),
            ("in a script: is any lag more than a minute?", "mm2 lag mm2.properties --threshold 1m"),
        ),
    )
    add_file(parser, flow="?", wide=True)
    parser.add_argument(
        "--top",
        metavar="N",
        type=int,
        default=_TOP,
        help=f"number of partitions shown per flow, 0 for all (default: {_TOP})",
    )
    parser.add_argument(
        "--threshold", metavar="LAG", help="the maximum lag of a partition: 1000 (records), 30s, 5m, 20MB"
    )
    add_topics(parser)
    add_timeout(parser)
    parser.set_defaults(run=run)


def run(options: Any) -> int:
    """Run the command; returns the exit code. Raises CommandError, ConfigException or KafkaFailure."""
    threshold = None if options.threshold is None else Threshold.of(options.threshold)
    if options.top < 0:
        raise CommandError(f"--top {options.top}: write how many partitions, or 0 for all.")
    snapshot = _counted(look(options), is_selection=options.topic is not None)
    worst = {flow.name: worst_first(flow.partitions) for flow in snapshot.flows}
    over = {
        flow: [one for one in rows if threshold is not None and threshold.is_exceeded(one)]
        for flow, rows in worst.items()
    }
    if options.json:
        flows = [
            {
                "name": flow.name,
                "records": flow.risk.records,
                "records_at_least": flow.risk.least,
                "bytes": flow.risk.bytes,
                "seconds": flow.risk.seconds,
                "seconds_at_least": flow.risk.least_seconds,
                "evidence": [one for one in flow.evidence if one.what in _EVIDENCE],
                "over_threshold": len(over[flow.name]) if threshold is not None else None,
                "partitions": [_json(one) for one in _first(worst[flow.name], options.top)],
            }
            for flow in snapshot.flows
        ]
        write_document(options, {"at_ms": snapshot.at_ms, "flows": flows})
    else:
        for flow in snapshot.flows:
            _write(
                flow,
                worst[flow.name],
                options.top,
                over[flow.name] if threshold is not None else None,
                options.threshold,
                wide=is_wide(options),
            )
    for flow in snapshot.flows:
        for error in filter(None, (flow.source_error, flow.target_error)):
            sys.stderr.write(f"mm2: {flow.name}: {error}\n")
    if any(flow.target_error for flow in snapshot.flows):
        return EXIT_ERROR
    unknown = any(
        flow.source_error
        or flow.risk.records is None
        or any(one.lag_records is None and not _is_empty(one) for one in flow.partitions)
        for flow in snapshot.flows
    )
    return EXIT_NOT_WELL if unknown or any(over.values()) else EXIT_WELL


def _counted(snapshot: Snapshot, *, is_selection: bool) -> Snapshot:
    """Without the partitions that the flows are not to copy: they have no lag.

    ``is_selection``: it has the partitions of some topics only, and the figures of the flows become those of these topics.
    """
    flows = []
    for flow in snapshot.flows:
        is_observed = flow.partitions or flow.risk.least is not None
        risk = risk_of(flow.partitions) if is_selection and is_observed else flow.risk
        flows.append(replace(flow, partitions=[one for one in flow.partitions if one.is_counted], risk=risk))
    return replace(snapshot, flows=tuple(flows))


def worst_first(partitions: Sequence[PartitionView]) -> list[PartitionView]:
    """Sort by unknown lag first, then by age, by records, those that may have more first, by name."""

    def rank(one: PartitionView) -> tuple[bool, float, int, bool, str, int]:
        known = one.lag_records is not None or _is_empty(one)
        lag = (-(one.lag_seconds or 0.0), -(one.lag_records or 0), one.is_lag_exact)
        return (known, *lag, one.topic, one.partition)

    return sorted(partitions, key=rank)


def _first(partitions: Sequence[PartitionView], top: int) -> Sequence[PartitionView]:
    return partitions[:top] if top else partitions


def _json(one: PartitionView) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "partition": one.partition,
        "records": one.lag_records,
        "is_exact": one.lag_records is not None and one.is_lag_exact,
        "bytes": one.lag_bytes,
        "seconds": one.lag_seconds,
        "state": str(one.state),
    }


def _write(
    flow: FlowView,
    partitions: Sequence[PartitionView],
    top: int,
    over: Sequence[PartitionView] | None,
    threshold: str,
    *,
    wide: bool = False,
) -> None:
    shown = _first(partitions, top)
    if shown:
        rows = [
            (
                f"{one.topic}-{one.partition}",
                at_least(one.lag_records, is_exact=one.is_lag_exact),
                number(one.lag_bytes),
                "-" if one.lag_seconds is None else f"{one.lag_seconds:,.1f}",
                *((number(one.position), number(one.source_end), one.remote_topic or "-") if wide else ()),
                str(one.state),
            )
            for one in shown
        ]
        more = ("POSITION", "SOURCE END", "REMOTE TOPIC") if wide else ()
        table(sys.stdout, ("PARTITION", "RECORDS", "BYTES", "SECONDS", *more, "STATE"), rows)
    left = len(partitions) - len(shown)
    rest = f" ({number(left)} more: --top 0)" if left else ""
    risk = flow.risk
    over_threshold = "" if over is None else f", {number(len(over))} over {threshold}"
    count = f"{counted(len(partitions), 'partition')}{rest}"
    if text := looked_at(flow, _EVIDENCE):
        sys.stdout.write(f"{flow.name}: {text}\n")
    sys.stdout.write(
        f"{flow.name}: {count}, {records_at_risk(risk)} records, {number(risk.bytes)} bytes, {seconds_at_risk(risk)} seconds behind{over_threshold}\n"
    )
