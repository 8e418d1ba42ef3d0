"""Topics and partitions: their progress, their state, and the reason for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from mm2 import evidence
from mm2.copy.causes import CAUSES_SHOWN, Cause
from mm2.copy.states import WELL, PartitionState
from mm2.evidence import counted
from mm2.observer.views import FlowView, PartitionView, Snapshot
from mm2.ui.elements.listing import Listing, Query, Shared
from mm2.ui.elements.meanings import MEANINGS, meaning_page
from mm2.ui.elements.parts import Browser, Cell, Column, Element, Row, Table, rank_of
from mm2.ui.elements.wording import UNKNOWN, at_least, count, moment, rate, seconds, size

#: A flow's name and one of its partitions.
Entry = tuple[str, PartitionView]
_UNHEALTHY: Final = "unhealthy"
KINDS: Final = {
    "": "All states",
    _UNHEALTHY: "Unhealthy",
    **{state.value: state.value for state in PartitionState},
}


def _is_kind(entry: Entry, kind: str) -> bool:
    view = entry[1]
    return view.is_unhealthy if kind == _UNHEALTHY else view.state == kind


LISTING: Final = Listing[Entry](
    flow=lambda entry: entry[0],
    text=lambda entry: (
        f"{entry[1].topic} {entry[1].topic}-{entry[1].partition} {entry[1].remote_topic} {entry[1].reason}"
    ),
    kind=_is_kind,
    keys={
        "topic": lambda entry: (entry[1].topic, entry[1].partition),
        "state": lambda entry: (-_RANKS[entry[1].state], entry[1].state, entry[1].topic, entry[1].partition),
        "records": lambda entry: entry[1].lag_records,
        "bytes": lambda entry: entry[1].lag_bytes,
        "seconds": lambda entry: entry[1].lag_seconds,
        "rate": lambda entry: entry[1].records_per_s,
        "position": lambda entry: entry[1].position,
        "verified": lambda entry: entry[1].verified_offset,
    },
)
_RANKS: Final[Mapping[str, int]] = {state: rank_of(state) for state in PartitionState}


def _gather(snapshot: Snapshot) -> Sequence[Entry]:
    """Worst states first. Not by lag: rows would change places each second."""
    rows = [(flow.name, view) for flow in snapshot.flows for view in flow.partitions]
    return sorted(rows, key=lambda row: _RANKS[row[1].state])


PARTITIONS: Final = Shared[Snapshot, Entry](LISTING, _gather)
COLUMNS: Final = (
    Column("Topic and partition", "head", "topic"),
    Column("State", "word link", "state"),
    Column("Reason", "prose"),
    Column("Lag", "number", "records"),
    Column("Lag in bytes", "number", "bytes"),
    Column("Lag in time", "number", "seconds"),
    Column("Copied", "number", "rate"),
    Column("Position", "number", "position"),
    Column("Verified up to", "number", "verified"),
)


_CAUSES: Final = (
    Column("Flow", "flow-name"),
    Column("State", "word link"),
    Column("Partitions", "number"),
    Column("First"),
    Column("Reason", "prose"),
    Column("What to do", "prose"),
)


class PartitionsView:
    """The partitions of all flows, or of one."""

    def __init__(self, snapshot: Snapshot, wanted: Mapping[str, str]) -> None:
        flows = [flow.name for flow in snapshot.flows]
        Element("h1", "Partitions")
        self._lead = Element("p", "", "lead")
        self._causes = Table(
            _CAUSES, caption="What stops partitions, and how many", nothing="", rows=CAUSES_SHOWN * len(flows or [""])
        )
        self._snapshot = snapshot
        self._browser = Browser(
            COLUMNS,
            lambda query: PARTITIONS.select(self._snapshot, query),
            row_of,
            flow_of=lambda entry: entry[0],
            query=Query.of(wanted),
            noun="partitions",
            caption="Partitions of the source and their progress",
            nothing="No partition matches.",
            search="Topic, partition or reason",
            kinds=KINDS,
            flows=flows,
        )

    def show(self, snapshot: Snapshot) -> None:
        """See View."""
        self._snapshot = snapshot
        self._lead.show(lead(snapshot.flows))
        self._causes.show([cause_row(flow.name, one) for flow in snapshot.flows for one in flow.causes[:CAUSES_SHOWN]])
        self._browser.show()


def cause_row(flow: str, cause: Cause) -> Row:
    """The row of a cause."""
    meaning = MEANINGS[PartitionState(cause.state)]
    return Row(
        (
            flow,
            Cell(cause.state, state=True, href=meaning_page(cause.state) if meaning.runbook else ""),
            count(cause.partitions),
            str(cause.example),
            Cell(cause.reason, hint=f"since {moment(cause.since_ms)}" if cause.since_ms is not None else ""),
            meaning.do,
        )
    )


def row_of(entry: Entry) -> Row:
    """The row of a partition."""
    _, view = entry
    since = f"since {moment(view.since_ms)}" if view.since_ms is not None else ""
    verified = UNKNOWN if view.verified_offset is None else count(view.verified_offset)
    return Row(
        (
            Cell(f"{view.topic}-{view.partition}", hint=f"to {view.remote_topic}"),
            Cell(view.state, state=True, href=meaning_page(view.state) if MEANINGS[view.state].runbook else ""),
            Cell(". ".join(filter(None, (view.reason, view.note))), hint=since),
            at_least(view.lag_records, is_exact=view.is_lag_exact),
            size(view.lag_bytes),
            seconds(view.lag_seconds),
            rate(view.records_per_s),
            Cell(count(view.position), hint=f"source end offset {count(view.source_end)}"),
            Cell(verified, hint=f"at {moment(view.verified_at_ms)}" if view.verified_at_ms is not None else ""),
        )
    )


def all_healthy(flows: Sequence[FlowView]) -> str:
    """That no partition is unhealthy, as far as this is known."""
    return evidence.HEALTHY(is_known=all(map(_is_read, flows)))


def _is_read(flow: FlowView) -> bool:
    return all(map(flow.has_read, evidence.HEALTHY.evidence)) and not (flow.source_error or flow.target_error)


def lead(flows: Sequence[FlowView]) -> str:
    """The number of partitions, how many are unhealthy, and the flows without data because a cluster does not respond."""
    total = sum(sum(flow.states.values()) for flow in flows)
    unhealthy = sum(number for flow in flows for state, number in flow.states.items() if state not in WELL)
    unreachable = [
        f"{cluster} does not respond: the data of {flow.name} is stale."
        for flow in flows
        for cluster, error in ((flow.source, flow.source_error), (flow.target, flow.target_error))
        if error
    ]
    health = f", {unhealthy:,} unhealthy" if unhealthy else all_healthy(flows) if total else ""
    return " ".join((f"{counted(total, 'partition')}{health}.", *unreachable))
