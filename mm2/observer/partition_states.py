"""The state of a partition and its reason, from the copier's report, the ledger, pauses, tasks and both clusters. Pure.

What stops a partition is found by its copier (`mm2.copy.executor.partition.cursor.Cursor.current_state`). Its report, or the condition that
it left in the ledger, is one of the inputs here.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from mm2.copy.progress.ledger import Pause, paused
from mm2.copy.progress.session import LedgerEntry, PartitionCondition
from mm2.copy.states import HEALTHY, LASTING, PartitionState, healthy_state
from mm2.mirror.common.discovery import vanished
from mm2.mirror.notes.promotions import Promotion
from mm2.observer.partition_inputs import PartitionInputs, PartitionMemory
from mm2.reasons import PauseCode, TargetLossCode

#: States of a partition that a task copies.
_COPIED: Final = frozenset({PartitionState.RUNNING, PartitionState.CATCHING_UP, PartitionState.THROTTLED})
_TURNED: Final = "since mm2 failback the flow in the opposite direction copies this topic"
_UNSELECTED: Final = "no task copies it any more: its topic is not selected"


class Standing(NamedTuple):
    """The state of a partition, its reason, the time (ms) since when, and why it is paused."""

    state: PartitionState
    reason: str = ""
    since_ms: int | None = None
    pause: PauseCode | None = None


def standing_of(
    known: PartitionMemory, inputs: PartitionInputs, task: int | None, lag: int | None, age_s: float | None
) -> Standing:
    """The state as of all inputs. ``age_s`` is that of the oldest record that is not on the target."""
    found = _reported(known, inputs, task, lag)
    if inputs.silent and found.state in HEALTHY:
        # A copier that waits for records does not know yet that none can arrive.
        found = Standing(PartitionState.UNREACHABLE, inputs.silent, inputs.silent_since_ms)
    elif inputs.target_silent and known.fresh_row is None and found.state in HEALTHY:
        # No task can run: its worker has left the group, whose coordinator is on the target.
        found = Standing(PartitionState.UNREACHABLE, inputs.target_silent, inputs.target_silent_since_ms)
    elif inputs.idle and found.state in _COPIED:
        # The last state that its task has written.
        found = Standing(PartitionState.PAUSED, f"nothing is copied: {inputs.idle}", pause=PauseCode.FLOW)
    if found.state is PartitionState.RUNNING:
        found = found._replace(state=healthy_state(None, age_s))
    loss = known.loss
    if loss is None or found.state in LASTING or found.state is PartitionState.DELETED:
        return found  # a condition that the flow has found itself takes precedence over a loss of the target
    state = PartitionState.DELETED if loss.code is TargetLossCode.DELETED else PartitionState.LOST_RANGE
    reason = f"on the target: {loss}"
    return Standing(state, f"{reason}; {found.reason}" if found.reason else reason, None, found.pause)


def _reported(known: PartitionMemory, inputs: PartitionInputs, task: int | None, lag: int | None) -> Standing:
    """The state while both clusters answer and have what they had."""
    tp, entry, row, work = known.tp, known.entry, known.row, inputs.work
    promotion = inputs.promotions.get(tp.topic)
    if promotion is not None and promotion.turned:
        return Standing(PartitionState.PAUSED, _TURNED, promotion.at_ms, PauseCode.TURNED)
    preparation = inputs.preparing.get(tp)
    is_known = entry is None or work.tasks is not None
    if preparation is not None and known.status is None and task is None and is_known and not work.held:
        return Standing(preparation.state, preparation.reason, preparation.since_ms)
    if work.tasks is not None and task is None and not work.held:
        failure = inputs.source.missing.get(tp)
        if vanished(failure):
            return Standing(PartitionState.DELETED, str(failure))
        return Standing(PartitionState.PAUSED, _UNSELECTED, pause=PauseCode.NOT_SELECTED)
    code, pause = _pause(known, promotion, inputs)
    paused_by = None if pause is None else Standing(PartitionState.PAUSED, str(pause), pause.since_ms, code)
    if work.held:
        held = Standing(PartitionState.PAUSED, f"copying is {work.held}", pause=PauseCode.FLOW)
        return _with_condition(paused_by or held, entry)
    if task is not None and task in work.failed:
        return _with_condition(Standing(PartitionState.FAILED, f"task {task} has failed: {work.failed[task]}"), entry)
    # A new micro-batch that has read nothing yet does not know the condition of the partition.
    stopped = preparation if preparation is not None and preparation.state in LASTING else None
    if row is not None and not (row.state in HEALTHY and row.high_watermark < 0 and (_lasting(entry) or stopped)):
        state = PartitionState(row.state)
        is_paused = state is PartitionState.PAUSED or state in LASTING
        return Standing(state, row.reason, row.since_ms if row.since_ms >= 0 else None, code if is_paused else None)
    if paused_by is not None:
        return _with_condition(paused_by, entry)
    condition = stopped if entry is None else entry.condition
    if condition is not None:
        return Standing(PartitionState(condition.state), condition.reason, condition.since_ms)
    return Standing(healthy_state(lag))


def _lasting(entry: LedgerEntry | None) -> PartitionCondition | None:
    """The condition of a partition in the ledger, if it does not end by itself."""
    condition = None if entry is None else entry.condition
    return condition if condition is not None and condition.state in LASTING else None


def _with_condition(standing: Standing, entry: LedgerEntry | None) -> Standing:
    """A partition whose task has failed, or that is paused, keeps the state of a lasting condition: it shows what was lost, or what
    stops the partition again when copying continues.
    """
    condition = _lasting(entry)
    if condition is None:
        return standing
    reason = standing.reason
    if condition.reason not in reason:  # a task fails with the reasons of its partitions
        reason = f"{condition.reason.rstrip('.')}; {reason}"
    return Standing(PartitionState(condition.state), reason, condition.since_ms, standing.pause)


def _pause(
    known: PartitionMemory, promotion: Promotion | None, inputs: PartitionInputs
) -> tuple[PauseCode | None, Pause | None]:
    """Why tasks do not copy the partition; a promotion replaces the pause of a user, as in the tasks."""
    if promotion is not None:
        return PauseCode.PROMOTED, promotion.pause
    pause = paused(inputs.pauses, known.tp) if inputs.pauses else None
    return (None if pause is None else PauseCode.USER), pause
