"""The view of one partition: its figures and its state, from what is known of it. No I/O."""

from __future__ import annotations

from typing import Final

from mm2.copy.states import HEALTHY, OTHER_LOG, PartitionState
from mm2.mirror.common.discovery import vanished
from mm2.mirror.groups.target_logs import TargetLoss
from mm2.mirror.notes.preparation import Preparation
from mm2.observer.partition_inputs import PartitionInputs, PartitionMemory
from mm2.observer.partition_states import standing_of
from mm2.observer.views import PartitionView, ValueRange

_RATE_OVER_S: Final = 10.0
_RATE_GONE: Final = 0.01
_ENTRY_RATE_HOLDS_MS: Final = 30_000


def view_of(
    known: PartitionMemory, inputs: PartitionInputs, record_bytes: float | None, *, has_rates: bool
) -> PartitionView:
    """The view as of these inputs. ``record_bytes``: the size of an average record of the flow in the recent past."""
    tp, entry, status, row = known.tp, known.entry, known.status, known.row
    position, end = _position(known), _end(known, inputs)
    if position != known.position:
        known.position, known.moved_s, known.learned_s = position, inputs.now_s, inputs.now_s
    _measure(known, inputs)
    is_turned = inputs.is_turned(tp.topic)
    lag = None if end is None or position < 0 or is_turned else max(0, end - position)
    if not lag:
        known.behind_s, known.moved_s = None, inputs.now_s
    elif known.behind_s is None:
        known.behind_s = inputs.now_s
    seconds = None if lag is None else _age(known, inputs) if lag else 0.0
    tasks = inputs.work.tasks
    task = status.task if status is not None else None if tasks is None else tasks.get(tp)
    known.loss, known.is_uncompared = _on_target(known, inputs)
    state, reason, since_ms, pause = standing_of(known, inputs, task, lag, seconds)
    is_lag_exact = (
        inputs.has_current_ends
        and (tp in inputs.source.ends or known.fresh_row is not None)
        and tp not in inputs.source.missing
        and not known.is_uncompared
    )
    known.is_of_other_log = not is_turned and (
        _is_cut(known, inputs) or state in OTHER_LOG or known.loss is not None or known.is_replaced(inputs)
    )
    if known.is_of_other_log:
        end, seconds, is_lag_exact = inputs.source.ends.get(tp, end), None, False
        lag = _least_lag(known, inputs, state)
    verified = inputs.verified.get(tp)
    if verified is not None and entry is not None and not verified.is_of(entry.source_id, entry.target_id):
        verified = None  # it was recorded for topics that were recreated since
    remote = status.remote_topic if status is not None else "" if entry is None else entry.remote_topic
    # After a change of the replication policy or a router the mark is that of a topic with another name until copying continues.
    target = -1 if entry is None or entry.remote_topic != remote else entry.mark.target
    if row is not None and row.position >= position:
        target = max(target, row.target_offset)
    if row is not None and row.records:
        record_bytes = row.bytes / row.records
    elif record_bytes is None and tp in inputs.source.stamps:
        record_bytes = inputs.source.stamps[tp].record_bytes  # of those at the position on the source
    note = "" if entry is None else entry.note or entry.origin.note
    if state in HEALTHY and reason:
        note, reason = reason, ""  # not blocking; without a writable ledger it is nowhere else
    records, size = inputs.status.left.get(tp, (0, 0)) if status is None else (status.records, status.bytes)
    preparation = inputs.preparing.get(tp)
    is_prepared = preparation is not None and preparation.state is state
    view = PartitionView(
        tp.topic,
        tp.partition,
        preparation.remote_topic if preparation is not None and is_prepared else remote,
        state,
        reason,
        since_ms,
        position=_known_offset(position),
        source_end=end,
        target_offset=_known_offset(target),
        lag_records=lag,
        lag_bytes=_lag_bytes(lag, record_bytes, is_known=is_lag_exact or not known.is_of_other_log),
        lag_seconds=None if seconds is None else round(seconds, 1),
        records_per_s=round(known.records_per_s, 2) if has_rates else None,
        bytes_per_s=None if known.bytes_per_s is None else round(known.bytes_per_s, 1),
        gaps=row.gaps if row is not None and row.gaps else {} if entry is None else entry.gaps,
        lost_ranges=max(0 if row is None else row.lost, 0 if entry is None else entry.lost_ranges),
        foreign_records=max(0 if row is None else row.foreign, 0 if entry is None else entry.foreign),
        verified_offset=None if verified is None else verified.offset,
        verified_at_ms=None if verified is None else verified.at_ms,
        task=task,
        note=note,
        records=records,
        bytes=size,
        age_ms=None if row is None else _spread(row.age_ms),
        latency_ms=None if row is None else _spread(row.latency_ms),
        unfilled=preparation.unfilled if preparation is not None and is_prepared else 0,
        pause=pause,
        is_counted=inputs.is_counted(tp, task),
        is_lag_exact=is_lag_exact,
    )
    if known.view != view:
        known.view = view
    known.is_at_rest = _is_at_rest(known, view)
    return known.view


def least_age(preparation: Preparation, inputs: PartitionInputs) -> float:
    """A new partition that was seen with records has had them for at least so many seconds; 0 for those that are prepared or refused,
    whose records may have been deleted.
    """
    if preparation.state is not PartitionState.PREPARING or preparation.unfilled:
        return 0.0
    return (inputs.now_ms - preparation.since_ms) / 1000 - (inputs.now_s - inputs.as_of_s)


def _is_at_rest(known: PartitionMemory, view: PartitionView) -> bool:
    if view.lag_records != 0 or not view.is_lag_exact or view.unfilled or known.records_per_s or known.bytes_per_s:
        return False
    is_measured = known.bytes_per_s is not None or known.status is None
    # An end offset that differs from the known one, or that is before the position, may prove to be a truncation.
    return is_measured and (known.asked is None or known.position <= known.asked == known.history.end)


def _position(known: PartitionMemory) -> int:
    """The next source offset that is not on the target: as reported by this process's copier, else from the ledger."""
    at = -1 if known.row is None else known.row.position
    is_reported = known.fresh_row is not None and at >= 0
    return at if is_reported or known.entry is None else max(at, known.entry.mark.source)


def _end(known: PartitionMemory, inputs: PartitionInputs) -> int | None:
    """The source's log end offset: as the source returned it, as the copier received it later, or by the ledger."""
    history, source = known.history, inputs.source
    asked = source.ends.get(known.tp)
    if asked is not None:
        seen = history.end
        # A lower value is an older answer, unless it was requested later: then the log was truncated.
        if seen is None or asked > seen or (asked < seen and source.ends_at_s > history.at_s):
            history.see(source.ends_at_s, asked)
    if known.fresh_row is not None:
        end = known.fresh_row.high_watermark
        if end > (history.end if history.end is not None else -1):
            history.see(inputs.now_s, end)
    noted = inputs.noted.get(known.tp, -1)
    if history.end is not None:
        return max(history.end, noted)
    if known.entry is None or known.tp in source.missing:
        return _known_offset(noted)
    return _known_offset(max(known.entry.end, noted))


def _age(known: PartitionMemory, inputs: PartitionInputs) -> float | None:
    """Age in seconds of the oldest record that is not on the target; None if not known.

    Computed from the history of end offsets if it reaches back far enough, else from the record's timestamp. If
    that is not a valid time, the age is at least the time since the record was first seen to be missing.
    """
    passed = known.history.passed(known.position)
    if passed is not None:
        return max(0.0, inputs.as_of_s - passed)
    seen_s = max(0.0, inputs.as_of_s - (known.behind_s or inputs.as_of_s))
    stamp = inputs.source.stamps.get(known.tp)
    if stamp is None or known.position < stamp.first:
        return None  # the position was set back, and the timestamp is that of a newer record
    if stamp.timestamp_ms is None:
        return seen_s
    # A timestamp read for an earlier offset is that of an older record: the age is never underestimated.
    return max(seen_s, (inputs.now_ms - stamp.timestamp_ms) / 1000 - (inputs.now_s - inputs.as_of_s))


def _measure(known: PartitionMemory, inputs: PartitionInputs) -> None:
    """Update the rates."""
    status, entry, now_s = known.status, known.entry, inputs.now_s
    records = status.records if status is not None else 0 if entry is None else entry.mark.records
    size = status.bytes if status is not None else 0
    counted = (now_s, records, size, status is not None)
    if known.counted is None or known.counted[3] != counted[3]:
        known.counted = counted
    since, then, then_size, _ = known.counted
    passed = now_s - since
    if passed >= 0.5:
        # A counter that decreased has restarted.
        known.records_per_s = _smoothed(known.records_per_s, max(0, records - then) / passed, passed)
        if status is not None:
            known.bytes_per_s = _smoothed(known.bytes_per_s or 0.0, max(0, size - then_size) / passed, passed)
        known.counted = counted
    if status is None:
        holds = entry is not None and inputs.now_ms - known.written_ms < _ENTRY_RATE_HOLDS_MS
        known.bytes_per_s = None if entry is None else float(entry.rate) if holds else 0.0


def _smoothed(before: float, now: float, passed_s: float) -> float:
    after = before + (now - before) * min(1.0, passed_s / _RATE_OVER_S)
    return after if after >= _RATE_GONE else 0.0


def _is_cut(known: PartitionMemory, inputs: PartitionInputs) -> bool:
    """Whether the source's log ends before the position: it was truncated, or replaced by another one.

    An end offset that was requested before the position was seen is only older.
    """
    end = inputs.source.ends.get(known.tp)
    if end is None or not inputs.has_current_ends or known.tp in inputs.source.missing:
        return False
    return end < known.position and inputs.source.ends_at_s > known.learned_s


def _least_lag(known: PartitionMemory, inputs: PartitionInputs, state: PartitionState) -> int | None:
    """At least so many records are not on the target, although the position may be of another log; None: not known.

    Nothing of a recreated topic was copied. In LOST_RANGE, and in a log that ends before the position, the same may apply to records
    before the position: the source may have been truncated. Those from the position on were not copied, as far as retention has left
    them.
    """
    start, end = inputs.source.starts.get(known.tp), inputs.source.ends.get(known.tp)
    if end is None:
        return None
    is_new = state is PartitionState.RECREATED or known.is_replaced(inputs)
    if not is_new and end <= known.position:
        return 0
    return None if start is None else max(0, end - (start if is_new else max(start, known.position)))


def _lag_bytes(lag: int | None, record_bytes: float | None, *, is_known: bool) -> int | None:
    """The estimated lag in bytes. ``is_known``: a lag of 0 is not only a lower bound."""
    if lag == 0:
        return 0 if is_known else None
    return None if lag is None or record_bytes is None else int(lag * record_bytes)


def _on_target(known: PartitionMemory, inputs: PartitionInputs) -> tuple[TargetLoss | None, bool]:
    """What the target has lost of the partition, and whether its log there was not compared although something was copied.

    A remote topic that the flow no longer copies to, because its name has changed, does not matter, nor one of a source topic that was
    deleted too.
    """
    entry, status = known.entry, known.status
    if entry is None or not entry.mark.target or entry.mark.source <= 0:
        return None, False
    if (status is not None and status.remote_topic != entry.remote_topic) or vanished(
        inputs.source.missing.get(known.tp)
    ):
        return None, False
    return inputs.target_losses.get(known.tp), known.tp not in inputs.target_losses


def _spread(values: list[int] | None) -> ValueRange | None:
    return None if not values else ValueRange(values[0], values[1], values[2], round(values[3] / values[4], 1))


def _known_offset(offset: int) -> int | None:
    return offset if offset >= 0 else None
