"""The partitions of a flow: their views, and sums over them. No I/O.

Of ten thousand partitions, few change within a second. A partition at rest (without lag, and nothing copied lately) keeps its view until
one of its inputs changes.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from mm2.copy.progress.session import LedgerEntry
from mm2.copy.states import HEALTHY, PartitionState
from mm2.kafka.structs import TopicPartition
from mm2.mirror.groups.target_logs import TargetLoss
from mm2.observer.partition_inputs import PartitionInputs, PartitionMemory
from mm2.observer.partition_views import least_age, view_of
from mm2.observer.sums import RiskSum
from mm2.observer.views import LossView, PartitionView, Risk

#: A partition with lag that has made no progress for this long is stalled, whatever state it reports.
STALLED_S: Final = 30.0
#: How long a loss is reported. It cannot be undone, so the report must end: a daily script sees each loss, and a flow
#: does not stay red forever. The ledger, `mm2 gaps` and the metrics keep it.
LOSSES_REPORTED_MS: Final = 24 * 3_600_000
_READ_AGAIN_S: Final = 10.0


@dataclass(slots=True)
class Partitions:
    """All partitions of a flow.

    ``wanted`` are the offsets whose timestamps are needed to know the age of a backlog. ``stalled`` are partitions
    without progress. ``other_logs`` are those whose log start offsets are needed, because their positions are of another log.
    ``unbegun`` is the number of partitions with records but no position yet; their records are in no figure. ``losses`` are those of
    the last day, newest first. ``target_losses``: partitions of which the target does not have what was copied; ``uncompared``: the
    number of those whose logs on the target have not been compared with the ledger.

    Partitions that the flow is not to copy (`PartitionView.is_counted`) are only in ``views``, and what they have lost in ``gaps``,
    ``lost_ranges`` and ``losses``.
    """

    views: list[PartitionView] = field(default_factory=list)
    states: Counter[PartitionState] = field(default_factory=Counter)
    gaps: Counter[str] = field(default_factory=Counter)
    lost_ranges: int = 0
    foreign_records: int = 0
    risk: Risk = field(default_factory=Risk)
    records_per_s: float | None = None
    bytes_per_s: float | None = None
    wanted: list[tuple[TopicPartition, int]] = field(default_factory=list)
    stalled: list[TopicPartition] = field(default_factory=list)
    unbegun: int = 0
    losses: list[LossView] = field(default_factory=list)
    other_logs: set[TopicPartition] = field(default_factory=set)
    target_losses: list[tuple[TopicPartition, TargetLoss]] = field(default_factory=list)
    uncompared: int = 0

    def add(self, view: PartitionView, known: PartitionMemory, inputs: PartitionInputs) -> None:
        """Add a partition that the flow is to copy."""
        self.states[view.state] += 1
        self.foreign_records += view.foreign_records
        if view.lag_records is None:
            self.unbegun += view.position is None and bool(view.source_end)
        self.uncompared += known.is_uncompared
        if known.loss is not None:
            self.target_losses.append((known.tp, known.loss))
        if known.is_of_other_log:
            self.other_logs.add(known.tp)
        elif view.lag_records:
            if known.history.passed(view.position or 0) is None:
                self.wanted.append((known.tp, view.position or 0))
            if view.state in HEALTHY and not inputs.work.held and inputs.as_of_s - known.moved_s > STALLED_S:
                self.stalled.append(known.tp)


class PartitionViews:
    """The partitions of one flow.

    Used by one thread. ``rates``: called repeatedly, so records per second can be computed.
    """

    def __init__(self, *, rates: bool = True) -> None:
        self.partitions: frozenset[TopicPartition] = frozenset()  # those of the last views
        self._rates = rates
        self._known: dict[TopicPartition, PartitionMemory] = {}  # in order
        self._record_bytes: float | None = None  # of an average record in the recent past
        self._readings = 0
        self._read_s = 0.0
        self._common: tuple[object, ...] = ()
        self._sorted_by: tuple[object, ...] = ()

    def read(self, inputs: PartitionInputs) -> Partitions:
        """Build the current views."""
        self._sort(inputs)
        versions = {} if inputs.ledger is None else inputs.ledger.versions()
        found, risk, common = Partitions(), RiskSum(), inputs.common()
        is_same = common == self._common
        self._readings += 1
        for tp, known in self._known.items():
            view = self._view(known, inputs, versions.get(tp, 0), is_same=is_same)
            found.views.append(view)
            # Also of a partition that the flow is not to copy any more: what was lost stays lost.
            if view.gaps:
                found.gaps.update(view.gaps)
            found.lost_ranges += view.lost_ranges
            if known.entry is not None and known.entry.lost:
                found.losses += _losses(known.entry, inputs.now_ms - LOSSES_REPORTED_MS)
            if not view.is_counted:
                continue
            risk.add(view)
            preparation = inputs.preparing.get(tp)
            if preparation is not None and view.lag_records is None and view.source_end:
                risk.oldest = max(risk.oldest, least_age(preparation, inputs))
            found.add(view, known, inputs)
        self._common, self._read_s = common, inputs.now_s
        counted = [view for view in found.views if view.is_counted]
        if copied := sum(view.records for view in counted):
            self._record_bytes = sum(view.bytes for view in counted) / copied
        found.bytes_per_s = round(sum((view.bytes_per_s or 0.0 for view in counted), 0.0), 1)
        if self._rates:
            found.records_per_s = round(sum((view.records_per_s or 0.0 for view in counted), 0.0), 2)
        is_current = inputs.has_current_ends and inputs.ledger is not None
        is_nothing = is_current and all(not one.is_counted and inputs.is_turned(one.topic) for one in found.views)
        found.risk = risk.risk(is_nothing=is_nothing)
        found.losses.sort(key=lambda loss: loss.found_ms, reverse=True)
        return found

    def _view(self, known: PartitionMemory, inputs: PartitionInputs, version: int, *, is_same: bool) -> PartitionView:
        status, asked = inputs.status.partitions.get(known.tp), inputs.source.ends.get(known.tp)
        has_same_status = status is known.status or status == known.status
        is_same = is_same and version == known.version and asked == known.asked and has_same_status
        if is_same and known.is_at_rest and known.view is not None:
            return known.view
        if known.reading < self._readings - 1:
            # It was at rest at the last reading: it had no lag, and nothing was copied until then.
            known.moved_s = self._read_s
            if known.counted is not None:
                known.counted = (self._read_s, *known.counted[1:])
        known.reading, known.status, known.asked = self._readings, status, asked
        if version != known.version and inputs.ledger is not None and _is_due(known, inputs):
            known.version, known.read_s = version, inputs.now_s
            known.entry, known.written_ms = inputs.ledger.entry(known.tp), inputs.ledger.written_ms(known.tp)
        return view_of(known, inputs, self._record_bytes, has_rates=self._rates)

    def _sort(self, inputs: PartitionInputs) -> None:
        """Add the partitions that any input contains."""
        ledger, statuses, tasks = inputs.ledger, inputs.status.partitions, inputs.work.tasks
        sorted_by = None if ledger is None else ledger.changes, statuses.keys(), tasks, inputs.preparing
        if sorted_by == self._sorted_by:
            return
        self._sorted_by = sorted_by
        listed = () if ledger is None else ledger.partitions()
        names = {*listed, *statuses, *(tasks or ()), *inputs.preparing}
        if names != self._known.keys():
            new = functools.partial(PartitionMemory, moved_s=inputs.now_s, reading=self._readings)
            self._known = {tp: self._known.get(tp) or new(tp) for tp in sorted(names)}
            self.partitions = frozenset(names)


def _is_due(known: PartitionMemory, inputs: PartitionInputs) -> bool:
    """Whether to decode a ledger entry.

    For partitions that this process copies, it reports everything but the note and the losses sooner than the
    ledger.
    """
    status = known.status
    if known.entry is None or status is None or not status.is_fresh or inputs.now_s - known.read_s > _READ_AGAIN_S:
        return True
    return known.is_replaced(inputs) or (status.row is not None and status.row.lost > known.entry.lost_ranges)


def _losses(entry: LedgerEntry, since_ms: int) -> list[LossView]:
    return [
        LossView(entry.topic, entry.partition, lost.first, lost.after - 1, lost.reason, lost.at_ms)
        for lost in entry.lost
        if lost.at_ms > since_ms
    ]


def by_topic(views: Iterable[PartitionView]) -> dict[str, list[PartitionView]]:
    """Group by topic, keeping the order."""
    found: dict[str, list[PartitionView]] = {}
    for view in views:
        found.setdefault(view.topic, []).append(view)
    return found
