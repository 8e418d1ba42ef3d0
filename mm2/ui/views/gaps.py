"""The gaps in the ledger: source offsets that are not on the target, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from mm2.copy.progress.segments import INTENDED, RESET
from mm2.evidence import NO_LOSS, NO_REASON, counted
from mm2.observer.views import FlowView, PartitionView, Snapshot
from mm2.ui.elements.listing import Listing, Query, Shared
from mm2.ui.elements.parts import Browser, Cell, Column, Element, Row, Table, rank_of
from mm2.ui.elements.wording import count

Entry = tuple[str, PartitionView]

#: The meaning of the ledger's reasons.
MEANINGS: Final[Mapping[str, str]] = {
    "compacted": "Removed by compaction on the source: there was a newer record with the same key.",
    "missing": "The source's log has no records at these offsets, although its topic is not compacted.",
    "control": "Transaction markers, which are not records.",
    "aborted": "Records of aborted transactions.",
    "filtered": "Records that the transformations of the flow have dropped.",
    "skipped": "Records that could not be transformed or converted (errors.tolerance is all).",
    "quarantined": "Records that could not be copied; they are in the dead letter topic.",
    "retention": "Records that the source deleted by retention before they were copied.",
    "truncated": "The source log was truncated by an unclean leader election after they were copied. The target has these records, the source has others.",
    RESET: "Records between what was copied and a later position that a user has set.",
    "recreated": "Records that were lost when the topic was deleted and recreated on the source.",
}


def _gaps(entry: Entry) -> int:
    return sum(entry[1].gaps.values())


def _missing(view: PartitionView) -> int:
    return sum(number for reason, number in view.gaps.items() if reason not in INTENDED)


GAPS: Final = Shared[Snapshot, Entry](
    Listing[Entry](
        flow=lambda entry: entry[0],
        text=lambda entry: f"{entry[1].topic}-{entry[1].partition} {' '.join(entry[1].gaps)}",
        kind=lambda entry, kind: bool(entry[1].gaps.get(kind)),
        keys={
            "topic": lambda entry: (entry[1].topic, entry[1].partition),
            "offsets": _gaps,
            "lost": lambda entry: entry[1].lost_ranges,
            "foreign": lambda entry: entry[1].foreign_records,
        },
    ),
    # Missing records first, the largest gaps first.
    lambda snapshot: sorted(
        (
            (flow.name, view)
            for flow in snapshot.flows
            for view in flow.partitions
            if view.lost_ranges or view.foreign_records or any(view.gaps.values())
        ),
        key=lambda row: (-row[1].lost_ranges, -_missing(row[1]), -row[1].foreign_records),
    ),
)
_REASONS: Final = (
    Column("Flow", "head"),
    Column("Reason", "word"),
    Column("Offsets", "number"),
    Column("Meaning", "prose"),
)
_COLUMNS: Final = (
    Column("Topic and partition", "head", "topic"),
    Column("Offsets", "number", "offsets"),
    Column("By reason"),
    Column("Lost ranges", "number", "lost"),
    Column("Foreign records", "number", "foreign"),
)


class GapsView:
    """Gaps by reason, then by partition."""

    def __init__(self, snapshot: Snapshot, wanted: Mapping[str, str]) -> None:
        flows = [flow.name for flow in snapshot.flows]
        self._snapshot = snapshot
        Element("h1", "Gaps")
        self._lead = Element("p", "", "lead")
        Element("h2", "By reason")
        self._reasons = Table(_REASONS, caption="Missing offsets by reason", nothing=nothing(snapshot.flows))
        Element("h2", "By partition")
        kinds = sorted({reason for flow in snapshot.flows for reason in flow.gaps})
        self._browser = Browser(
            _COLUMNS,
            lambda query: GAPS.select(self._snapshot, query),
            _row,
            flow_of=lambda entry: entry[0],
            query=Query.of(wanted, name="reason"),
            kind=("", "reason"),
            noun="partitions",
            caption="Missing offsets by partition",
            nothing="No partition with gaps matches.",
            search="Topic, partition or reason",
            kinds={"": "All reasons", **{reason: reason for reason in kinds}},
            flows=flows,
        )

    def show(self, snapshot: Snapshot) -> None:
        """See View."""
        self._snapshot = snapshot
        self._lead.show(lead(snapshot.flows))
        rows = [
            Row((flow.name, Cell(reason, state=True), count(number), MEANINGS.get(reason, "")))
            for flow in snapshot.flows
            for reason, number in sorted(flow.gaps.items(), key=lambda item: (rank_of(item[0]), -item[1]))
            if number
        ]
        self._reasons.show(rows)
        self._browser.show()


def nothing(flows: Sequence[FlowView]) -> str:
    """What is shown instead of the reasons if there are none."""
    return NO_REASON(is_known=any(flow.is_ledger_read for flow in flows))


def lead(flows: Sequence[FlowView]) -> str:
    """What is listed, what was lost, and of which flows this is not known, or not as of now."""
    lost = sum(flow.lost_ranges for flow in flows)
    unread = [flow for flow in flows if not flow.is_ledger_read]
    is_known = not flows or len(unread) < len(flows)
    known = [NO_LOSS()] if is_known and not any(flow.target_losses for flow in flows) else []
    return " ".join(
        (
            "Offsets of the source without a record on the target, and why.",
            *([f"Lost: {counted(lost, 'range')} that the source had deleted."] if lost else known),
            *(NO_LOSS(is_known=False, flow=flow.name) for flow in unread),
            *(
                f"{flow.target} does not have all records of {flow.name} that were copied to it, in "
                f"{counted(flow.target_losses, 'partition')}: see Partitions."
                for flow in flows
                if flow.target_losses
            ),
            *(
                f"{flow.target} does not respond: the data of {flow.name} is stale."
                for flow in flows
                if flow.target_error and flow.is_ledger_read
            ),
        )
    )


def _row(entry: Entry) -> Row:
    _, view = entry
    return Row(
        (
            f"{view.topic}-{view.partition}",
            count(_gaps(entry)),
            ", ".join(f"{count(number)} {reason}" for reason, number in sorted(view.gaps.items()) if number),
            Cell(count(view.lost_ranges), tone="bad" if view.lost_ranges else ""),
            Cell(count(view.foreign_records), tone="warning" if view.foreign_records else ""),
        )
    )
