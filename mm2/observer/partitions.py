"""Builds the views of a flow's partitions from the ledger, the source and this process's copying. No I/O.

Of ten thousand partitions, few change within a second. The view of a partition is therefore cached until one of its
inputs changes, and for a partition at rest (without lag, and nothing copied lately) only these inputs are compared.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mm2.copy.driver.status import PartitionStatus
from mm2.copy.progress.ledger import Ledger, Pause, Pauses, Verified, paused
from mm2.copy.progress.session import LedgerEntry, PartitionCondition
from mm2.copy.states import HEALTHY, LASTING, OTHER_LOG, PartitionState, healthy_state
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import TopicPartition
from mm2.mirror.common.discovery import vanished
from mm2.mirror.groups.target_logs import TargetLoss
from mm2.mirror.notes.preparation import Preparation
from mm2.mirror.notes.promotions import Promotion
from mm2.observer.flow_state import LOSSES_REPORTED_MS
from mm2.observer.polling.end_offsets import EndOffsetHistory
from mm2.observer.polling.timestamps import BatchTimestamp
from mm2.observer.sums import RiskSum
from mm2.observer.views import LossView, PartitionView, Risk, ValueRange
from mm2.reasons import PauseCode, TargetLossCode

#: A partition with lag that has made no progress for this long is stalled, whatever state it reports.
STALLED_S: Final = 30.0
_RATE_OVER_S: Final = 10.0
_READ_AGAIN_S: Final = 10.0
_RATE_GONE: Final = 0.01
_ENTRY_RATE_HOLDS_MS: Final = 30_000
#: States of a partition that a task copies.
_COPIED: Final = frozenset({PartitionState.RUNNING, PartitionState.CATCHING_UP, PartitionState.THROTTLED})
_TURNED: Final = "since mm2 failback the flow in the opposite direction copies this topic"


@dataclass(frozen=True, slots=True)
class PartitionInputs:
    """The inputs at one moment. Times in seconds are of a monotonic clock.

    - ``as_of_s``: the time for which ages are computed; it does not advance while the source does not answer.
    - ``ends``: end offsets, requested at ``ends_at_s``; ``missing``: partitions for which the source returned an error.
    - ``statuses``: what this process copies.
    - ``tasks``: the task of each partition, None if not known; ``failed_tasks``: the errors of failed tasks.
    - ``held``: "paused" or "stopped" if a user has requested this; ``pauses``: those of topics and partitions.
    - ``idle``: why nothing is copied although no user has requested this; "" if something is copied.
    - ``verified``: results of `mm2 verify`.
    - ``left``: records and bytes of partitions that this process no longer copies.
    - ``silent``: why the source does not answer, with the time (ms) of its last answer; "" while it answers.
    - ``preparing``: partitions that no task copies yet (`mm2.mirror.notes.preparation`).
    - ``noted``: end offsets from the ledger's notes (`mm2.mirror.notes.source_answers`), while the source does not answer.
    - ``promotions``: promoted topics (`mm2.mirror.notes.promotions`).
    - ``topic_ids``: ids of the source's topics; ``starts``: log start offsets of the partitions in `Partitions.other_logs`.
    - ``target_losses``: see `mm2.observer.polling.polls.TargetLogsPoll`.
    """

    now_s: float
    now_ms: int
    as_of_s: float
    ledger: Ledger | None
    ends: Mapping[TopicPartition, int]
    ends_at_s: float
    missing: Mapping[TopicPartition, KafkaFailure]
    statuses: Mapping[TopicPartition, PartitionStatus]
    tasks: Mapping[TopicPartition, int] | None
    failed_tasks: Mapping[int, str]
    held: str
    stamps: Mapping[TopicPartition, BatchTimestamp]
    verified: Mapping[TopicPartition, Verified]
    pauses: Pauses = field(default_factory=dict)
    left: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    silent: str = ""
    silent_since_ms: int | None = None
    noted: Mapping[TopicPartition, int] = field(default_factory=dict)
    preparing: Mapping[TopicPartition, Preparation] = field(default_factory=dict)
    promotions: Mapping[str, Promotion] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    target_losses: Mapping[TopicPartition, TargetLoss | None] = field(default_factory=dict)
    idle: str = ""

    @property
    def has_current_ends(self) -> bool:
        """Whether the source has answered, and still does."""
        return self.ends_at_s > 0 and not self.silent

    def is_turned(self, topic: str) -> bool:
        """Whether the flow in the opposite direction copies the topic: records that are added to it come from this flow's target."""
        promotion = self.promotions.get(topic)
        return promotion is not None and promotion.turned

    def is_counted(self, tp: TopicPartition, task: int | None) -> bool:
        """Whether the flow is to copy the partition."""
        is_selected = self.tasks is None or task is not None or tp in self.preparing
        return is_selected and not self.is_turned(tp.topic)


class _Standing(NamedTuple):
    """The state of a partition, its reason, and the time (ms) since when."""

    state: PartitionState
    reason: str = ""
    since_ms: int | None = None
    pause: PauseCode | None = None


@dataclass(slots=True)
class _PartitionMemory:
    """The state of one partition that is kept between two snapshots."""

    history: EndOffsetHistory = field(default_factory=EndOffsetHistory)
    version: int = -1
    entry: LedgerEntry | None = None
    written_ms: int = -1
    read_s: float = 0.0
    position: int = -1
    learned_s: float = 0.0  # when the position was first seen
    moved_s: float = 0.0
    behind_s: float | None = None  # since when it has had lag
    counted: tuple[float, int, int, bool] | None = None  # time, records, bytes, and whether they are of this process
    records_per_s: float = 0.0
    bytes_per_s: float | None = None
    made_of: tuple[object, ...] = ()
    view: PartitionView | None = None
    reading: int = 0  # number of the last `PartitionBook.read` that has computed the view
    resting: PartitionView | None = None  # the view, if it does not change before one of its inputs does
    status: PartitionStatus | None = None
    loss: TargetLoss | None = None  # see `PartitionInputs.target_losses`
    is_uncompared: bool = False  # see `Partitions.uncompared`
    asked: int | None = None  # the end offset that the source returned
    is_of_other_log: bool = False  # see `Partitions.other_logs`


@dataclass(frozen=True, slots=True)
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

    views: tuple[PartitionView, ...]
    states: Mapping[PartitionState, int]
    gaps: Mapping[str, int]
    lost_ranges: int
    foreign_records: int
    risk: Risk
    records_per_s: float | None
    bytes_per_s: float | None
    wanted: tuple[tuple[TopicPartition, int], ...]
    stalled: tuple[TopicPartition, ...]
    unbegun: int = 0
    losses: tuple[LossView, ...] = ()
    other_logs: frozenset[TopicPartition] = frozenset()
    target_losses: tuple[tuple[TopicPartition, TargetLoss], ...] = ()
    uncompared: int = 0


class PartitionBook:
    """The partitions of one flow.

    Used by one thread. ``rates``: called repeatedly, so records per second can be computed.
    """

    def __init__(self, *, rates: bool = True) -> None:
        self.partitions: frozenset[TopicPartition] = frozenset()  # those of the last views
        self._rates = rates
        self._known: dict[TopicPartition, _PartitionMemory] = {}
        self._order: list[TopicPartition] = []
        self._record_bytes: float | None = None  # of an average record in the recent past
        self._readings = 0
        self._read_s = 0.0
        self._common: tuple[object, ...] = ()
        self._sorted_by: tuple[object, ...] = ()

    def read(self, inputs: PartitionInputs) -> Partitions:
        """Build the current views."""
        self._sort(inputs)
        versions = {} if inputs.ledger is None else inputs.ledger.versions()
        views: list[PartitionView] = []
        wanted: list[tuple[TopicPartition, int]] = []
        stalled: list[TopicPartition] = []
        losses: list[LossView] = []
        other_logs: set[TopicPartition] = set()
        target_losses: list[tuple[TopicPartition, TargetLoss]] = []
        uncompared = 0
        total = _Total()
        common = _common(inputs)
        is_same = common == self._common
        self._readings += 1
        for tp in self._order:
            known = self._known[tp]
            version, status, asked = versions.get(tp, 0), inputs.statuses.get(tp), inputs.ends.get(tp)
            view = known.resting
            has_same_status = status is known.status or status == known.status
            is_at_rest = is_same and version == known.version and asked == known.asked and has_same_status
            if view is None or not is_at_rest:
                if known.reading < self._readings - 1:
                    self._catch_up(known)
                known.reading, known.status, known.asked = self._readings, status, asked
                if version != known.version and inputs.ledger is not None and self._is_due(tp, known, inputs):
                    known.version = version
                    known.read_s = inputs.now_s
                    known.entry = inputs.ledger.entry(tp)
                    known.written_ms = inputs.ledger.written_ms(tp)
                view = self._view(tp, known, inputs)
                known.resting = view if _is_at_rest(known, view) else None
            views.append(view)
            total.add_lost(view)
            if known.entry is not None and known.entry.lost:
                losses += _losses(known.entry, inputs.now_ms - LOSSES_REPORTED_MS)
            if not view.is_counted:
                total.turned += inputs.is_turned(tp.topic)
                continue
            total.add(view)
            preparation = inputs.preparing.get(tp)
            if preparation is not None and view.lag_records is None and view.source_end:
                total.risk.oldest = max(total.risk.oldest, _least_age(preparation, inputs))
            uncompared += known.is_uncompared
            if known.loss is not None:
                target_losses.append((tp, known.loss))
            if known.is_of_other_log:
                other_logs.add(tp)
            elif view.lag_records:
                if known.history.passed(view.position or 0) is None:
                    wanted.append((tp, view.position or 0))
                if view.state in HEALTHY and not inputs.held and inputs.as_of_s - known.moved_s > STALLED_S:
                    stalled.append(tp)
        self._common, self._read_s = common, inputs.now_s
        self._record_bytes = total.record_bytes or self._record_bytes
        found = total.partitions(
            tuple(views),
            tuple(wanted),
            tuple(stalled),
            is_current=inputs.has_current_ends and inputs.ledger is not None,
        )
        losses.sort(key=lambda loss: loss.found_ms, reverse=True)
        found = dataclasses.replace(
            found,
            losses=tuple(losses),
            other_logs=frozenset(other_logs),
            target_losses=tuple(target_losses),
            uncompared=uncompared,
        )
        return found if self._rates else dataclasses.replace(found, records_per_s=None)

    def _catch_up(self, known: _PartitionMemory) -> None:
        """The partition was at rest at the last reading: it had no lag, and nothing was copied until then."""
        known.moved_s = self._read_s
        if known.counted is not None:
            known.counted = (self._read_s, *known.counted[1:])

    @staticmethod
    def _is_due(tp: TopicPartition, known: _PartitionMemory, inputs: PartitionInputs) -> bool:
        """Whether to decode a ledger entry.

        For partitions that this process copies, it reports everything but the note and the losses sooner than the
        ledger.
        """
        status = inputs.statuses.get(tp)
        if known.entry is None or status is None or not status.is_fresh or inputs.now_s - known.read_s > _READ_AGAIN_S:
            return True
        if _is_replaced(tp, known.entry, inputs):
            return True
        return status.row is not None and status.row.lost > known.entry.lost_ranges

    def _sort(self, inputs: PartitionInputs) -> None:
        """Add the partitions that any input contains."""
        changes = None if inputs.ledger is None else inputs.ledger.changes
        sorted_by = changes, inputs.statuses.keys(), inputs.tasks, inputs.preparing
        if sorted_by == self._sorted_by:
            return
        self._sorted_by = sorted_by
        names: set[TopicPartition] = set() if inputs.ledger is None else set(inputs.ledger.partitions())
        names.update(inputs.statuses)
        if inputs.tasks is not None:
            names.update(inputs.tasks)
        names.update(inputs.preparing)
        if len(names) != len(self._known) or not names <= self._known.keys():
            new = functools.partial(_PartitionMemory, moved_s=inputs.now_s, reading=self._readings)
            self._known = {tp: self._known.get(tp) or new() for tp in names}
            self._order = sorted(names)
            self.partitions = frozenset(names)

    def _view(self, tp: TopicPartition, known: _PartitionMemory, inputs: PartitionInputs) -> PartitionView:
        status = inputs.statuses.get(tp)
        entry = known.entry
        position = _position(entry, status)
        end = self._end(tp, known, status, entry, inputs)
        if position != known.position:
            known.position, known.moved_s, known.learned_s = position, inputs.now_s, inputs.now_s
        self._rate(known, status, entry, inputs)
        is_turned = inputs.is_turned(tp.topic)
        lag = None if end is None or position < 0 or is_turned else max(0, end - position)
        if not lag:
            known.behind_s = None
            known.moved_s = inputs.now_s
        elif known.behind_s is None:
            known.behind_s = inputs.now_s
        seconds = None if lag is None else self._age(tp, known, position, inputs) if lag else 0.0
        task = status.task if status is not None else None if inputs.tasks is None else inputs.tasks.get(tp)
        standing = _state(tp, status, entry, lag, task, inputs)
        if inputs.silent and standing.state in HEALTHY:
            # A copier that waits for records does not know yet that none can arrive.
            standing = _Standing(PartitionState.UNREACHABLE, inputs.silent, inputs.silent_since_ms)
        elif inputs.idle and standing.state in _COPIED:
            # The last state that its task has written.
            standing = _Standing(PartitionState.PAUSED, f"nothing is copied: {inputs.idle}", pause=PauseCode.FLOW)
        if standing.state is PartitionState.RUNNING:
            standing = standing._replace(state=healthy_state(None, seconds))
        is_counted = inputs.is_counted(tp, task)
        is_end_current = tp in inputs.ends or (status is not None and status.is_fresh and status.row is not None)
        known.loss, known.is_uncompared = _on_target(tp, entry, status, inputs)
        if known.loss is not None:
            standing = _without_copy(standing, known.loss)
        is_lag_exact = (
            inputs.has_current_ends and is_end_current and tp not in inputs.missing and not known.is_uncompared
        )
        is_cut = _is_cut(tp, known, inputs)
        known.is_of_other_log = not is_turned and (
            is_cut or standing.state in OTHER_LOG or known.loss is not None or _is_replaced(tp, entry, inputs)
        )
        if known.is_of_other_log:
            end, seconds, is_lag_exact = inputs.ends.get(tp, end), None, False
            lag = _least_lag(tp, entry, standing.state, position, inputs)
        verified = inputs.verified.get(tp)
        if verified is not None and entry is not None and not verified.is_of(entry.source_id, entry.target_id):
            verified = None  # it was recorded for topics that were recreated since
        copied = inputs.left.get(tp, (0, 0)) if status is None else (status.records, status.bytes)
        made_of = (
            known.version,
            None if status is None else status.row,
            position,
            end,
            lag,
            None if seconds is None else round(seconds, 1),
            standing,
            is_counted,
            is_lag_exact,
            task,
            known.records_per_s,
            known.bytes_per_s,
            verified,
            self._sampled_bytes(tp, inputs) if lag else None,
            copied,
        )
        if known.view is None or known.made_of != made_of:
            known.made_of = made_of
            known.view = self._made(
                tp,
                known,
                status,
                position,
                end,
                lag,
                seconds,
                standing,
                task,
                verified,
                copied,
                self._sampled_bytes(tp, inputs),
                is_counted=is_counted,
                is_lag_exact=is_lag_exact,
            )
            preparation = inputs.preparing.get(tp)
            if preparation is not None and preparation.state is standing.state:
                known.view = dataclasses.replace(
                    known.view, remote_topic=preparation.remote_topic, unfilled=preparation.unfilled
                )
        return known.view

    def _made(
        self,
        tp: TopicPartition,
        known: _PartitionMemory,
        status: PartitionStatus | None,
        position: int,
        end: int | None,
        lag: int | None,
        seconds: float | None,
        standing: _Standing,
        task: int | None,
        verified: Verified | None,
        copied: tuple[int, int],
        sampled_bytes: float | None,
        *,
        is_counted: bool,
        is_lag_exact: bool,
    ) -> PartitionView:
        entry, row = known.entry, None if status is None else status.row
        remote = status.remote_topic if status is not None else "" if entry is None else entry.remote_topic
        # After a change of the replication policy or a router the mark is that of a topic with another name until copying continues.
        target = -1 if entry is None or entry.remote_topic != remote else entry.mark.target
        if row is not None and row.position >= position:
            target = max(target, row.target_offset)
        own = row.bytes / row.records if row is not None and row.records else sampled_bytes
        gaps = row.gaps if row is not None and row.gaps else {} if entry is None else entry.gaps
        state, reason, since_ms, pause = standing
        note = "" if entry is None else entry.note
        if state in HEALTHY and reason:
            note, reason = reason, ""  # not blocking; without a writable ledger it is nowhere else
        return PartitionView(
            tp.topic,
            tp.partition,
            remote,
            state,
            reason,
            since_ms,
            _known_offset(position),
            end,
            _known_offset(target),
            lag,
            _lag_bytes(lag, own, is_known=is_lag_exact or not known.is_of_other_log),
            None if seconds is None else round(seconds, 1),
            round(known.records_per_s, 2) if self._rates else None,
            None if known.bytes_per_s is None else round(known.bytes_per_s, 1),
            gaps,
            max(0 if row is None else row.lost, 0 if entry is None else entry.lost_ranges),
            max(0 if row is None else row.foreign, 0 if entry is None else entry.foreign),
            None if verified is None else verified.offset,
            None if verified is None else verified.at_ms,
            task,
            note,
            *copied,
            None if row is None else _spread(row.age_ms),
            None if row is None else _spread(row.latency_ms),
            pause=pause,
            is_counted=is_counted,
            is_lag_exact=is_lag_exact,
        )

    def _sampled_bytes(self, tp: TopicPartition, inputs: PartitionInputs) -> float | None:
        """The size of an average record: of those that this process has copied, else of those at the position on the source."""
        stamp = inputs.stamps.get(tp)
        return self._record_bytes if self._record_bytes is not None or stamp is None else stamp.record_bytes

    @staticmethod
    def _end(
        tp: TopicPartition,
        known: _PartitionMemory,
        status: PartitionStatus | None,
        entry: LedgerEntry | None,
        inputs: PartitionInputs,
    ) -> int | None:
        """The source's log end offset: as the source returned it, as the copier received it later, or by the ledger."""
        history = known.history
        asked = inputs.ends.get(tp)
        if asked is not None:
            seen = history.end
            # A lower value is an older answer, unless it was requested later: then the log was truncated.
            if seen is None or asked > seen or (asked < seen and inputs.ends_at_s > history.at_s):
                history.see(inputs.ends_at_s, asked)
        if status is not None and status.is_fresh and status.row is not None:
            end = status.row.high_watermark
            if end > (history.end if history.end is not None else -1):
                history.see(inputs.now_s, end)
        noted = inputs.noted.get(tp, -1)
        if history.end is not None:
            return max(history.end, noted)
        if entry is None or tp in inputs.missing:
            return _known_offset(noted)
        return _known_offset(max(entry.end, noted))

    def _age(self, tp: TopicPartition, known: _PartitionMemory, position: int, inputs: PartitionInputs) -> float | None:
        """Age in seconds of the oldest record that is not on the target; None if not known.

        Computed from the history of end offsets if it reaches back far enough, else from the record's timestamp. If
        that is not a valid time, the age is at least the time since the record was first seen to be missing.
        """
        passed = known.history.passed(position)
        if passed is not None:
            return max(0.0, inputs.as_of_s - passed)
        seen_s = max(0.0, inputs.as_of_s - (known.behind_s or inputs.as_of_s))
        stamp = inputs.stamps.get(tp)
        if stamp is None or position < stamp.first:
            return None  # the position was set back, and the timestamp is that of a newer record
        if stamp.timestamp_ms is None:
            return seen_s
        # A timestamp read for an earlier offset is that of an older record: the age is never underestimated.
        return max(seen_s, (inputs.now_ms - stamp.timestamp_ms) / 1000 - (inputs.now_s - inputs.as_of_s))

    @staticmethod
    def _rate(
        known: _PartitionMemory, status: PartitionStatus | None, entry: LedgerEntry | None, inputs: PartitionInputs
    ) -> None:
        records = status.records if status is not None else 0 if entry is None else entry.mark.records
        size = status.bytes if status is not None else 0
        is_ours = status is not None
        if known.counted is None or known.counted[3] != is_ours:
            known.counted = (inputs.now_s, records, size, is_ours)
        since, then, then_size, _ = known.counted
        passed = inputs.now_s - since
        if passed >= 0.5:
            weight = min(1.0, passed / _RATE_OVER_S)
            # A counter that decreased has restarted.
            gained = max(0, records - then) / passed
            if gained or known.records_per_s:
                known.records_per_s += (gained - known.records_per_s) * weight
                if known.records_per_s < _RATE_GONE:
                    known.records_per_s = 0.0
            if status is not None:
                before = known.bytes_per_s or 0.0
                after = before + (max(0, size - then_size) / passed - before) * weight
                known.bytes_per_s = after if after >= _RATE_GONE else 0.0
            known.counted = (inputs.now_s, records, size, is_ours)
        if status is None:
            holds = entry is not None and inputs.now_ms - known.written_ms < _ENTRY_RATE_HOLDS_MS
            known.bytes_per_s = None if entry is None else float(entry.rate) if holds else 0.0


def _common(inputs: PartitionInputs) -> tuple[object, ...]:
    """The inputs on which the view of any partition may depend."""
    return (
        inputs.tasks,
        inputs.failed_tasks,
        inputs.held,
        inputs.pauses,
        inputs.verified,
        inputs.left,
        inputs.missing,
        inputs.silent,
        inputs.silent_since_ms,
        inputs.noted,
        inputs.preparing,
        inputs.promotions,
        inputs.topic_ids,
        inputs.starts,
        inputs.target_losses,
        inputs.idle,
        inputs.has_current_ends,
        inputs.ledger is None,
    )


def _is_at_rest(known: _PartitionMemory, view: PartitionView) -> bool:
    """Whether the view does not change before one of its inputs does."""
    if view.lag_records != 0 or not view.is_lag_exact or view.unfilled or known.records_per_s or known.bytes_per_s:
        return False
    is_measured = known.bytes_per_s is not None or known.status is None
    # An end offset that differs from the known one, or that is before the position, may prove to be a truncation.
    return is_measured and (known.asked is None or known.position <= known.asked == known.history.end)


@dataclass(slots=True)
class _Total:
    """Sums over partitions."""

    states: Counter[PartitionState] = field(default_factory=Counter)
    gaps: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    foreign: int = 0
    risk: RiskSum = field(default_factory=RiskSum)
    records_per_s: float = 0.0
    bytes_per_s: float = 0.0
    copied: int = 0
    copied_bytes: int = 0
    unbegun: int = 0
    turned: int = 0  # not in the sums

    def add(self, view: PartitionView) -> None:
        self.risk.add(view)
        self.states[view.state] += 1
        self.foreign += view.foreign_records
        self.records_per_s += view.records_per_s or 0.0
        self.bytes_per_s += view.bytes_per_s or 0.0
        self.copied += view.records
        self.copied_bytes += view.bytes
        if view.lag_records is None:
            self.unbegun += view.position is None and bool(view.source_end)

    def add_lost(self, view: PartitionView) -> None:
        """Also of a partition that the flow is not to copy any more: what was lost stays lost."""
        if view.gaps:
            self.gaps.update(view.gaps)
        self.lost += view.lost_ranges

    @property
    def record_bytes(self) -> float | None:
        return self.copied_bytes / self.copied if self.copied else None

    def partitions(
        self,
        views: tuple[PartitionView, ...],
        wanted: tuple[tuple[TopicPartition, int], ...],
        stalled: tuple[TopicPartition, ...],
        *,
        is_current: bool,
    ) -> Partitions:
        """``is_current``: the source answers, and the ledger was read."""
        return Partitions(
            views,
            dict(self.states),
            dict(self.gaps),
            self.lost,
            self.foreign,
            self.risk.risk(is_nothing=is_current and len(views) == self.turned),
            round(self.records_per_s, 2),
            round(self.bytes_per_s, 1),
            wanted,
            stalled,
            self.unbegun,
        )


def _losses(entry: LedgerEntry, since_ms: int) -> list[LossView]:
    return [
        LossView(entry.topic, entry.partition, lost.first, lost.after - 1, lost.reason, lost.at_ms)
        for lost in entry.lost
        if lost.at_ms > since_ms
    ]


def _is_replaced(tp: TopicPartition, entry: LedgerEntry | None, inputs: PartitionInputs) -> bool:
    """Whether the source has another topic of this name than the one that was copied."""
    return entry is not None and entry.is_replaced_by(inputs.topic_ids.get(tp.topic, ""))


def _is_cut(tp: TopicPartition, known: _PartitionMemory, inputs: PartitionInputs) -> bool:
    """Whether the source's log ends before the position: it was truncated, or replaced by another one.

    An end offset that was requested before the position was seen is only older.
    """
    end = inputs.ends.get(tp)
    if end is None or not inputs.has_current_ends or tp in inputs.missing:
        return False
    return end < known.position and inputs.ends_at_s > known.learned_s


def _least_lag(
    tp: TopicPartition, entry: LedgerEntry | None, state: PartitionState, position: int, inputs: PartitionInputs
) -> int | None:
    """At least so many records are not on the target, although the position may be of another log; None: not known.

    Nothing of a recreated topic was copied. In LOST_RANGE, and in a log that ends before the position, the same may apply to records
    before the position: the source may have been truncated. Those from the position on were not copied, as far as retention has left
    them.
    """
    start, end = inputs.starts.get(tp), inputs.ends.get(tp)
    if end is None:
        return None
    is_new = state is PartitionState.RECREATED or _is_replaced(tp, entry, inputs)
    if not is_new and end <= position:
        return 0
    return None if start is None else max(0, end - (start if is_new else max(start, position)))


def _lag_bytes(lag: int | None, record_bytes: float | None, *, is_known: bool) -> int | None:
    """The estimated lag in bytes. ``is_known``: a lag of 0 is not only a lower bound."""
    if lag == 0:
        return 0 if is_known else None
    return None if lag is None or record_bytes is None else int(lag * record_bytes)


def _least_age(preparation: Preparation, inputs: PartitionInputs) -> float:
    """A new partition that was seen with records has had them for at least so many seconds; 0 for those that are prepared or refused,
    whose records may have been deleted.
    """
    if preparation.state is not PartitionState.PREPARING or preparation.unfilled:
        return 0.0
    return (inputs.now_ms - preparation.since_ms) / 1000 - (inputs.now_s - inputs.as_of_s)


def _position(entry: LedgerEntry | None, status: PartitionStatus | None) -> int:
    """The next source offset that is not on the target: as reported by this process's copier, else from the ledger."""
    if status is not None and status.row is not None and status.is_fresh and status.row.position >= 0:
        return status.row.position
    at = -1 if status is None or status.row is None else status.row.position
    return at if entry is None else max(at, entry.mark.source)


def _state(
    tp: TopicPartition,
    status: PartitionStatus | None,
    entry: LedgerEntry | None,
    lag: int | None,
    task: int | None,
    inputs: PartitionInputs,
) -> _Standing:
    promotion = inputs.promotions.get(tp.topic)
    if promotion is not None and promotion.turned:
        return _Standing(PartitionState.PAUSED, _TURNED, promotion.at_ms, PauseCode.TURNED)
    preparation = inputs.preparing.get(tp)
    is_known = entry is None or inputs.tasks is not None
    if preparation is not None and status is None and task is None and is_known and not inputs.held:
        return _Standing(preparation.state, preparation.reason, preparation.since_ms)
    if inputs.tasks is not None and task is None and not inputs.held:
        failure = inputs.missing.get(tp)
        if vanished(failure):
            return _Standing(PartitionState.DELETED, str(failure))
        unselected = "no task copies it any more: its topic is not selected"
        return _Standing(PartitionState.PAUSED, unselected, pause=PauseCode.NOT_SELECTED)
    code, pause = _pause(tp, promotion, inputs)
    paused_by = None if pause is None else _Standing(PartitionState.PAUSED, str(pause), pause.since_ms, code)
    if inputs.held:
        held = _Standing(PartitionState.PAUSED, f"copying is {inputs.held}", pause=PauseCode.FLOW)
        return _with_condition(paused_by or held, entry)
    if task is not None and task in inputs.failed_tasks:
        failed = _Standing(PartitionState.FAILED, f"task {task} has failed: {inputs.failed_tasks[task]}")
        return _with_condition(failed, entry)
    row = None if status is None else status.row
    # A new micro-batch that has read nothing yet does not know the condition of the partition.
    stopped = preparation if preparation is not None and preparation.state in LASTING else None
    if row is not None and not (row.state in HEALTHY and row.high_watermark < 0 and (_lasting(entry) or stopped)):
        state = PartitionState(row.state)
        is_paused = state is PartitionState.PAUSED or state in LASTING
        return _Standing(state, row.reason, _known_offset(row.since_ms), code if is_paused else None)
    if paused_by is not None:
        return _with_condition(paused_by, entry)
    if entry is not None and entry.condition is not None:
        condition = entry.condition
        return _Standing(PartitionState(condition.state), condition.reason, condition.since_ms)
    if entry is None and stopped is not None:
        return _Standing(stopped.state, stopped.reason, stopped.since_ms)
    return _Standing(healthy_state(lag))


def _on_target(
    tp: TopicPartition, entry: LedgerEntry | None, status: PartitionStatus | None, inputs: PartitionInputs
) -> tuple[TargetLoss | None, bool]:
    """What the target has lost of the partition, and whether its log there was not compared although something was copied.

    A remote topic that the flow no longer copies to, because its name has changed, does not matter, nor one of a source topic that was
    deleted too.
    """
    if entry is None or not entry.mark.target or entry.mark.source <= 0:
        return None, False
    if (status is not None and status.remote_topic != entry.remote_topic) or vanished(inputs.missing.get(tp)):
        return None, False
    return inputs.target_losses.get(tp), tp not in inputs.target_losses


def _without_copy(standing: _Standing, loss: TargetLoss) -> _Standing:
    """The standing of a partition whose copy is not on the target; a condition that the flow has found itself takes precedence."""
    if standing.state in LASTING or standing.state is PartitionState.DELETED:
        return standing
    state = PartitionState.DELETED if loss.code is TargetLossCode.DELETED else PartitionState.LOST_RANGE
    reason = f"on the target: {loss}"
    return _Standing(state, f"{reason}; {standing.reason}" if standing.reason else reason, None, standing.pause)


def _lasting(entry: LedgerEntry | None) -> PartitionCondition | None:
    """The condition of a partition in the ledger, if it does not end by itself."""
    condition = None if entry is None else entry.condition
    return condition if condition is not None and condition.state in LASTING else None


def _with_condition(standing: _Standing, entry: LedgerEntry | None) -> _Standing:
    """A partition whose task has failed, or that is paused, keeps the state of a lasting condition: it shows what was lost, or what
    stops the partition again when copying continues.
    """
    condition = _lasting(entry)
    if condition is None:
        return standing
    reason = standing.reason
    if condition.reason not in reason:  # a task fails with the reasons of its partitions
        reason = f"{condition.reason.rstrip('.')}; {reason}"
    return _Standing(PartitionState(condition.state), reason, condition.since_ms, standing.pause)


def _pause(
    tp: TopicPartition, promotion: Promotion | None, inputs: PartitionInputs
) -> tuple[PauseCode | None, Pause | None]:
    """Why tasks do not copy the partition; a promotion replaces the pause of a user, as in the tasks."""
    if promotion is not None:
        return PauseCode.PROMOTED, promotion.pause
    pause = paused(inputs.pauses, tp) if inputs.pauses else None
    return (None if pause is None else PauseCode.USER), pause


def _spread(values: list[int] | None) -> ValueRange | None:
    return None if not values else ValueRange(values[0], values[1], values[2], round(values[3] / values[4], 1))


def _known_offset(offset: int) -> int | None:
    return offset if offset >= 0 else None


def by_topic(views: Iterator[PartitionView] | tuple[PartitionView, ...]) -> dict[str, list[PartitionView]]:
    """Group by topic, keeping the order."""
    found: dict[str, list[PartitionView]] = {}
    for view in views:
        found.setdefault(view.topic, []).append(view)
    return found
