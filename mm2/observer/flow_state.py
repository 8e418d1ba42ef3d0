"""Derives a flow's state and the sentence that describes it. Pure.

The sentence states which data would be lost if the source failed now. It never claims more than is known: an
unreachable source may have accepted records that were not seen. The sentence then states what was missing when the
source last answered.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from mm2.copy.causes import shortened
from mm2.copy.progress.segments import RESET
from mm2.copy.states import HEALTHY, PartitionState
from mm2.evidence import (
    IDLE,
    LAG,
    LOOKED_AT,
    NO_LAG,
    NOT_COPIED_BACK,
    READ,
    RISK,
    UNCOMPARED,
    Evidence,
    counted,
    utc_time,
)
from mm2.observer.partitions import Partitions
from mm2.observer.views import EvidenceView, FlowState, FlowView, LossView, Risk
from mm2.observer.work import Work
from mm2.reasons import PauseCode, TargetLossCode

#: States of a partition that are not an error: it makes progress, or a user has paused or throttled it.
ON_ITS_WAY: Final = HEALTHY | {PartitionState.THROTTLED, PartitionState.PAUSED}
_BEHIND: Final = (PartitionState.CATCHING_UP, PartitionState.THROTTLED, PartitionState.PREPARING)
_PAUSED_BY: Final = {
    PauseCode.USER: "by a user (mm2 resume)",
    PauseCode.FLOW: "with the flow (mm2 resume)",
    PauseCode.PROMOTED: "promoted by mm2 failover or mm2 promote (mm2 failback)",
    PauseCode.TURNED: "copied by the flow in the opposite direction",
    PauseCode.NOT_SELECTED: "not selected any more",
    None: "for an unknown reason",
}


@dataclass(frozen=True, slots=True)
class FlowInputs:
    """What the state and the summary of a flow are derived from.

    - ``seen``: both clusters have answered at least once, and the logs of the target were requested.
    - ``source_error`` and ``target_error``: the errors, with the time of the last answer (None: not known).
    - ``troubles``: other errors that block a part of the flow.
    - ``differences``: what `mm2 verify` has recorded, by kind.
    - ``unknown``: why what would be lost is not known although both clusters answer.
    - ``nothing_selected``: why no topic of the source is selected; "" if one is, or if that is not known.
    - ``pauses``: the number of paused partitions by cause, and ``heartbeats`` that of heartbeats topics among them, which
      are not paused with the topics of applications.
    - ``uncompared_why``: one of the errors because of which logs on the target could not be compared with the ledger.
    - ``came_back``: the number of topics that came from the target under the same name, so that the flow does not copy them.
    - ``kept_records``: what `mm2 failback` has left on the source only.
    - ``unread_work``: why ``work`` is not known; "" if it is.
    """

    source: str
    target: str
    seen: bool
    partitions: Partitions
    work: Work = field(default_factory=Work)
    source_error: str = ""
    source_error_since_ms: int | None = None
    target_error: str = ""
    target_error_since_ms: int | None = None
    troubles: tuple[str, ...] = ()
    differences: Mapping[str, int] = field(default_factory=dict)
    unknown: str = ""
    nothing_selected: str = ""
    pauses: Mapping[PauseCode | None, int] = field(default_factory=dict)
    heartbeats: int = 0
    uncompared_why: str = ""
    came_back: int = 0
    kept_records: int = 0
    unread_work: str = ""


def state_of(inputs: FlowInputs) -> FlowState:
    """The worst state that applies."""
    if inputs.work.idle_reason and not inputs.work.held:
        return FlowState.STOPPED
    if not inputs.seen or (inputs.partitions.risk.least is None and not inputs.partitions.unbegun):
        error = inputs.source_error or inputs.target_error
        return FlowState.DEGRADED if error else FlowState.UNKNOWN
    if inputs.source_error or inputs.target_error:
        return FlowState.DEGRADED
    if inputs.work.held:
        return FlowState.PAUSED
    states = inputs.partitions.states
    if (
        inputs.work.failures
        or inputs.troubles
        or inputs.unread_work
        or inputs.partitions.target_losses
        or any(inputs.differences.values())
        or any(states[state] for state in states if state not in ON_ITS_WAY)
    ):
        return FlowState.DEGRADED
    if inputs.nothing_selected:
        return FlowState.NO_TOPICS
    if 0 < sum(states.values()) - inputs.heartbeats <= states.get(PartitionState.PAUSED, 0):
        return FlowState.PAUSED
    behind = sum(states.get(state, 0) for state in _BEHIND)
    is_begun = inputs.partitions.risk.least is not None
    return FlowState.CATCHING_UP if behind or not is_begun else FlowState.RUNNING


def summary_of(inputs: FlowInputs) -> str:
    """What would be lost, and the circumstances that qualify this."""
    source, target, risk = inputs.source, inputs.target, inputs.partitions.risk
    parts: list[str] = []
    if inputs.work.idle_reason and not inputs.work.held:
        parts.append(IDLE(why=_unended(inputs.work.idle_reason)))
    elif inputs.unread_work:
        parts.append(IDLE(is_known=False, why=_unended(inputs.unread_work)))
    elif inputs.work.held:
        parts.append(f"Copying is {inputs.work.held}.")
    elif inputs.nothing_selected:
        parts.append(f"Nothing is copied: {inputs.nothing_selected}.")
    elif inputs.pauses:
        parts.append(_paused(inputs))
    if inputs.source_error:
        parts.append(_silent(source, inputs.source_error_since_ms))
        if inputs.seen and risk.least is not None:
            parts.append(f"If it died then, you lost {_loss(inputs)}.")
        else:
            parts.append(RISK(is_known=False, why=f": {_unended(inputs.source_error)}"))
    elif not inputs.seen or (risk.least is None and not inputs.partitions.unbegun):
        why = inputs.target_error or inputs.unknown
        parts.append(RISK(is_known=False, why=f": {_unended(why)}" if why else " yet"))
    elif inputs.partitions.target_losses:
        parts.append(RISK(is_known=False, why=f": {_not_on_target(inputs)}"))
    else:
        parts.append(RISK(source=source, records=_loss(inputs)))
    if inputs.partitions.uncompared and inputs.uncompared_why and not inputs.target_error:
        why = _unended(inputs.uncompared_why)
        parts.append(
            UNCOMPARED(
                is_known=False, target=target, partitions=counted(inputs.partitions.uncompared, "partition"), why=why
            )
        )
    if inputs.came_back:
        topics = counted(inputs.came_back, "topic")
        parts.append(NOT_COPIED_BACK(is_known=False, source=source, target=target, topics=topics))
    if inputs.kept_records:
        records = counted(inputs.kept_records, "record")
        parts.append(f"mm2 failback has kept {records} on {source} only (mm2 gaps).")
    if inputs.target_error and (inputs.seen or inputs.source_error):
        parts.append(_silent(target, inputs.target_error_since_ms))
    if any(inputs.differences.values()):
        parts.append(_differs(inputs))
    if inputs.partitions.losses:
        parts.append(_lost(inputs.partitions.losses, source))
    return " ".join(parts)


def _lost(losses: Sequence[LossView], source: str) -> str:
    newest = losses[0]
    offset = f"{newest.first}" if newest.first == newest.last else f"{newest.first} to {newest.last}"
    where = f"{'offset' if newest.first == newest.last else 'offsets'} {offset} of {newest.topic}-{newest.partition}"
    how = {
        "retention": f"deleted on {source} before they were copied",
        "recreated": f"lost when the topic was recreated on {source}",
        "truncated": f"truncated on {source} after they were copied",
        RESET: "left out because the position was set to a later offset",
    }.get(newest.reason, newest.reason)
    found = utc_time(newest.found_ms, "%Y-%m-%d %H:%M UTC")
    if len(losses) > 1:
        offsets = sum(one.last - one.first + 1 for one in losses)
        partitions = len({(one.topic, one.partition) for one in losses})
        of = f" of {partitions} partitions" if partitions > 1 else ""
        where = f"{offsets:,} offsets in {len(losses)} ranges{of}, the newest {where}"
    return f"Permanently lost within the last day: {where}, {how} (found {found}); see mm2 gaps."


def _paused(inputs: FlowInputs) -> str:
    total = sum(inputs.partitions.states.values()) - inputs.heartbeats
    paused = sum(inputs.pauses.values())
    why = ", ".join(f"{number:,} {_PAUSED_BY[code]}" for code, number in inputs.pauses.items())
    verb = "is" if total == 1 else "are"
    return f"{paused:,} of {counted(total, 'partition')} {verb} paused and not copied: {why}."


def _not_on_target(inputs: FlowInputs) -> str:
    place, loss = inputs.partitions.target_losses[0]
    where = (
        f"of {place}"
        if len(inputs.partitions.target_losses) == 1
        else f"of {counted(len(inputs.partitions.target_losses), 'partition')}, first {place}"
    )
    verb = "is not known to have" if loss.code is TargetLossCode.STOPPED else "does not have"
    return f"{inputs.target} {verb} all records {where} that were copied to it: {loss}"


def _differs(inputs: FlowInputs) -> str:
    kinds = ", ".join(f"{number:,} {kind}" for kind, number in inputs.differences.items() if number)
    return f"{inputs.target} differs from {inputs.source}: {kinds}, found by mm2 verify."


def _silent(cluster: str, since_ms: int | None) -> str:
    if since_ms is None:
        return f"{cluster} does not answer."
    return f"{cluster} has not answered since {utc_time(since_ms)}."


def _loss(inputs: FlowInputs) -> str:
    risk, unbegun = inputs.partitions.risk, inputs.partitions.unbegun
    if not unbegun:
        return _records(risk)
    rest = f"{unbegun} partition{'' if unbegun == 1 else 's'} not copied yet"
    return f"{_records(risk)}, and {rest}" if risk.least else f"all records of {rest}"


def _records(risk: Risk) -> str:
    """A number that may be too low is called "at least"."""
    if not risk.least:
        return NO_LAG(is_known=risk.records is not None)
    records = LAG(is_known=risk.records is not None, records=counted(risk.least, "record"))
    if risk.least_seconds is None:
        return f"{records}; the age of the oldest is not known yet"
    age = duration(risk.least_seconds)
    return f"{age if risk.seconds is not None else f'at least {age}'}, {records}"


def looked_at(flow: FlowView, kinds: Collection[Evidence] = tuple(Evidence)) -> str:
    """What the statements about a flow are made of, and when it was read; "" if that is not known."""

    def name(one: EvidenceView) -> str:
        return READ[one.what][0].format(source=flow.source, target=flow.target)

    known = [one for one in flow.evidence if one.what in kinds]
    if not known:
        return ""
    read = ", ".join(f"{name(one)} {_clock(one.at_ms)}" for one in known if one.at_ms is not None)
    unread: dict[str, list[str]] = {}
    for one in known:
        if one.at_ms is None:
            unread.setdefault(_unended(one.error), []).append(name(one))
    reasons = "; ".join(f"{', '.join(names)}{f' ({why})' if why else ''}" for why, names in unread.items())
    return LOOKED_AT(is_known=not unread, read=read or "nothing", unread=reasons)


def duration(seconds: float) -> str:
    """A duration as text: "0.4 seconds", "42 seconds", "12 minutes", "5 hours", "3 days"."""
    if seconds < 10:
        return f"{seconds:.1f} seconds"
    for size, name, up_to in ((1, "second", 120), (60, "minute", 7_200), (3_600, "hour", 172_800)):
        if seconds < up_to:
            return f"{seconds / size:,.0f} {name}s"
    return f"{seconds / 86_400:,.0f} days"


def _clock(at_ms: int) -> str:
    return utc_time(at_ms, "%H:%M:%S UTC")


def _unended(sentence: str) -> str:
    return shortened(sentence.rstrip().removesuffix("."))
