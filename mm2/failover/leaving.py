"""Whether a source may be left: what is refused, what has to be confirmed, and the wait until everything is copied."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

from mm2.copy.states import PartitionState
from mm2.evidence import counted
from mm2.failover.evidence import FailoverReport, PartitionEvidence, missing_records, target_problems
from mm2.failover.groups import Choice
from mm2.failover.records.foreign import ForeignRuns, foreign_records, kept_notes, where
from mm2.failover.records.partitions import NothingChosen, chosen_partitions, partitions_of, source_ends
from mm2.failover.records.uncopied import Uncopied, uncopied
from mm2.failover.sides import Refused, Sides
from mm2.kafka.errors import KafkaFailure, failures_in
from mm2.kafka.structs import TopicPartition
from mm2.mirror.common.clients import Side
from mm2.mirror.notes.promotions import promoted

_POLL_S: Final = 0.5
_SHOWN: Final = 5

Confirm = Callable[[str, Callable[[], FailoverReport]], None]
"""Called with the reason why a confirmation is needed, and with a function that makes the report of a dry run. Raises Refused if it
is not confirmed.
"""


def reason_to_confirm(sides: Sides) -> str:
    """Why the command has to be confirmed: the source may be running; "" if nothing indicates this. May take seconds."""
    source = sides.pair.source
    if sides.source is not None:
        return f"Cluster {source} answers"
    if sides.is_rejected:
        return f"Cluster {source} may be running ({sides.source_error.rstrip('.')})"
    if sides.is_reached_by_workers():
        return f"Cluster {source} does not answer here, but a process of {sides.pair} has just reached it"
    return ""


def rejection_error(sides: Sides) -> str:
    """Why it is not known whether the source is running, as a message; "" if it is known."""
    if not sides.is_rejected:
        return ""
    return (
        f"Cluster {sides.pair.source} cannot be asked with the security settings of the file, and may be running: "
        f"{sides.source_error.rstrip('.')}"
    )


def refuse_rejected(sides: Sides, *, leave_behind: bool) -> None:
    """Raise Refused if a source that may be running would be handled as one that is down."""
    if not leave_behind and (error := rejection_error(sides)):
        raise Refused(
            f"{error}. Fix these settings, or use --leave-behind if {sides.pair.source} is down or to leave behind what is only there."
        )


@dataclass(frozen=True)
class Before:
    """How far the flow was copied. ``chosen``: the partitions in the ledger. ``new``: those that are not in it. ``left_out``: why
    partitions of the ledger are not among them.
    """

    chosen: Sequence[TopicPartition]
    copied: Sequence[PartitionEvidence]
    new: Uncopied
    left_out: Sequence[str] = ()

    @classmethod
    def of(cls, sides: Sides, choice: Choice) -> Self:
        """As it is now. Raises Refused if nothing is chosen, or KafkaFailure."""
        sides.refresh()
        chosen, deselected = selected_partitions(sides, choice)
        found = partitions_of(sides, chosen)
        gone = {one.source for one in found if _is_gone_everywhere(sides, one)}
        new = uncopied(sides, choice)
        copied, unread = _with_foreign(sides, [one for one in found if one.source not in gone])
        left_out = [
            *_left_out(f"not selected by {sides.pair} any more", deselected),
            *_left_out("deleted on both clusters", {tp.topic for tp in gone}),
            *unread,
            *_foreign_notes(sides, [*copied, *new.partitions]),
        ]
        return cls([one.source for one in copied], copied, new, left_out)

    @property
    def partitions(self) -> list[PartitionEvidence]:
        """All of them."""
        return [*self.copied, *self.new.partitions]

    @property
    def topics(self) -> dict[str, str]:
        """The topics to promote, those of which something was copied, with their remote topics."""
        return {one.topic: one.remote_topic for one in self.copied}

    @property
    def notes(self) -> list[str]:
        """What to know of the partitions."""
        lost = [one for one in self.copied if one.is_gone and (one.end or 0) > one.copied + one.unmarked]
        never = [
            f"{one.source} was deleted on the source, with records from offset {one.copied + one.unmarked} on that were not copied"
            for one in lost[:_SHOWN]
        ]
        more = [f"and {counted(len(lost) - _SHOWN, 'more partition')} like this"] if len(lost) > _SHOWN else []
        return [*self.left_out, *never, *more, *self.new.notes, *([self.new.error] if self.new.error else [])]


def _with_foreign(sides: Sides, partitions: Sequence[PartitionEvidence]) -> tuple[list[PartitionEvidence], list[str]]:
    """The partitions with the records of other producers that no flow copies, and why these are not known."""
    runs: dict[Side, ForeignRuns] = {}
    unknown = []
    turned = _turned(sides, partitions)
    seen = [turned.get(one.source, one) for one in partitions]
    for side in (Side.SOURCE, Side.TARGET):
        try:
            runs[side] = foreign_records(sides, seen if side is Side.SOURCE else partitions, side, turned)
        except KafkaFailure as failure:  # which must not prevent a failover
            runs[side] = {}
            if side is Side.SOURCE:
                seen = list(partitions)
            unknown.append(
                f"whether other producers wrote to the copies on {sides.clients.alias(side)} meanwhile is not known: {failure}"
            )
    found = [
        replace(
            one,
            foreign_on_source=runs[Side.SOURCE].get(one.source, ()),
            foreign_on_target=runs[Side.TARGET].get(one.source, ()),
        )
        for one in seen
    ]
    return found, unknown


def _turned(sides: Sides, partitions: Iterable[PartitionEvidence]) -> dict[TopicPartition, PartitionEvidence]:
    """Those that the opposite flow copies to the source since a failback, as copied up to the end: what is after the last position of
    this flow came from the target, or is foreign.
    """
    return {
        one.source: replace(one, copied=one.end, unmarked=0, tail=None)
        for one in partitions
        if one.source == one.target and one.is_end_current and one.end is not None
        if one.other_log is None and not one.target_error and _is_turned(sides, one.source)
    }


def _is_turned(sides: Sides, source: TopicPartition) -> bool:
    """Whether the opposite flow copies a partition since a failback, as far as its ledger shows."""
    one, back = promoted(sides.ledger).get(source.topic), sides.reverse_ledger
    return one is not None and one.turned and back is not None and back.entry(source) is not None


def _foreign_notes(sides: Sides, partitions: Sequence[PartitionEvidence]) -> list[str]:
    source, target = sides.pair.source, sides.pair.target
    here = {one.source: one.foreign_on_source for one in partitions if one.foreign_on_source}
    there = {one.source: one.foreign_on_target for one in partitions if one.foreign_on_target}
    notes = []
    if here:
        notes.append(
            f"on {source} only, and not copied by {sides.pair}: {where(here)}: other producers wrote them to copies of topics of {target}, or "
            "these topics were created again there"
        )
    if there:
        notes.append(
            f"on {target} only: {where(there)}: other producers wrote them before the last record from {source}, or {source} "
            f"has lost them since; {target}->{source} will not copy them"
        )
    return [*notes, *kept_notes(sides, partitions)]


def selected_partitions(sides: Sides, choice: Choice) -> tuple[list[TopicPartition], set[str]]:
    """The chosen partitions in the ledger, and the topics left out, which the flow does not select any more.

    There may be none if the chosen topics have partitions of which nothing was copied yet. Raises Refused.
    """
    try:
        chosen = chosen_partitions(sides, choice)
    except NothingChosen:
        if not uncopied(sides, choice).partitions:
            raise
        chosen = []
    deselected = {topic for topic in {tp.topic for tp in chosen} if not sides.selection.should_replicate(topic)}
    selected = [tp for tp in chosen if tp.topic not in deselected]
    if deselected and not selected:
        raise Refused(
            f"No chosen topic is selected by {sides.pair} any more; in its ledger: {', '.join(sorted(deselected)[:_SHOWN])}."
        )
    return selected, deselected


def _is_gone_everywhere(sides: Sides, one: PartitionEvidence) -> bool:
    """Whether neither cluster has the partition. Of a source that does not answer, the last state is known."""
    is_gone = one.is_gone or (sides.source is None and one.state == PartitionState.DELETED)
    return is_gone and one.is_remote_gone


def _left_out(reason: str, topics: Collection[str]) -> list[str]:
    if not topics:
        return []
    shown = sorted(topics)[:_SHOWN]
    more = f" and {len(topics) - len(shown):,} more" if len(topics) > len(shown) else ""
    return [f"left out, because {reason}: {', '.join(shown)}{more}"]


def refuse_to_leave_behind(sides: Sides, before: Before) -> None:
    """Raise Refused if a reachable source has records that the target does not have, or if this is unknown."""
    if sides.source is None:
        return
    if error := unknown_error(sides, before):
        raise Refused(f"{error}. Fix the cause, or use --leave-behind to accept that records may be missing.")
    if lost := target_problems(sides.pair.target, before.partitions):
        raise Refused(
            f"{lost[0].rstrip('.')}. Find the cause, or use --leave-behind to continue with the records that are there."
        )
    if found := behind(before.partitions):
        first = next((one for one in found if one.missing_note), found[0])
        note = f"; {first.missing_note}" if first.missing_note else ""
        raise Refused(
            f"Cluster {sides.pair.source} answers and has {missing_records(found).of('record')} that are not on "
            f"{sides.pair.target} yet ({first.source}: {first.next_offset} of {first.end}{note}). Stop its producers and "
            "use --wait SECONDS, or use --leave-behind to leave these records behind."
        )


def refuse_uncopied(sides: Sides, before: Before, choice: Choice) -> None:
    """Raise Refused if nothing of the chosen topics was copied, in either direction."""
    reverse = [] if sides.reverse_ledger is None else sides.reverse_ledger.partitions()
    if any(choice.has_topic(tp.topic) for tp in reverse):
        return  # their groups return to the topics of the target
    if not before.copied and before.new.partitions:
        raise Refused(
            f"Nothing was copied yet of {before.new.partitions[0].topic}: there is no topic on {sides.pair.target} to continue with. "
            "The flow finds new topics after refresh.topics.interval.seconds."
        )


def after_stop(sides: Sides, before: Before, choice: Choice, *, leave_behind: bool) -> tuple[Before, list[str]]:
    """The final state, after copying has been stopped, and problems. Raises KafkaFailure."""
    sides.refresh()
    foreign = {one.source: (one.foreign_on_source, one.foreign_on_target) for one in before.copied}
    # A pause hides when the end offset of a source that does not answer was known.
    known_ms = {one.source: one.end_ms for one in before.copied if not one.is_end_current}
    copied = [
        one if one.is_end_current or one.end_ms is not None else replace(one, end_ms=known_ms.get(one.source))
        for one in partitions_of(sides, before.chosen)
    ]
    turned = _turned(sides, copied)
    copied = [
        replace(turned.get(one.source, one), foreign_on_source=here, foreign_on_target=there)
        for one in copied
        for here, there in [foreign.get(one.source, ((), ()))]
    ]
    after = replace(before, copied=copied, new=uncopied(sides, choice))
    problems = target_problems(sides.pair.target, after.partitions)
    if not leave_behind and sides.source is not None and (late := behind(after.partitions)):
        problems.append(
            f"producers still write to {sides.pair.source}; written after copying was stopped, and not on "
            f"{sides.pair.target}: {missing_records(late).of('record')}"
        )
    return after, problems


def behind(partitions: Iterable[PartitionEvidence]) -> list[PartitionEvidence]:
    """The partitions of which records are, or may be, on the source only."""
    return [one for one in partitions if one.missing]


def unknown_ends_error(sides: Sides, partitions: Iterable[PartitionEvidence]) -> str:
    """The partitions of a reachable source whose end offsets are unknown, as a message; "" if there are none."""
    return _ends_message(sides, {one.source: one.end_error for one in partitions if one.end_error})


def unknown_error(sides: Sides, before: Before) -> str:
    """What is not known of a reachable source, as a message; "" if nothing is missing."""
    return before.new.error or unknown_ends_error(sides, before.partitions)


def _ends_message(sides: Sides, errors: Mapping[TopicPartition, object]) -> str:
    if not errors:
        return ""
    first, error = min((tp, str(error)) for tp, error in errors.items())
    number = "offset" if len(errors) == 1 else "offsets"
    return (
        f"Cluster {sides.pair.source} answers but does not return the end {number} of "
        f"{counted(len(errors), 'partition')} (first {first}: {error.rstrip('.')})"
    )


def _copied_partitions(sides: Sides, choice: Choice) -> list[TopicPartition]:
    """The chosen partitions that the flow copies, and not the opposite one."""
    return [tp for tp in selected_partitions(sides, choice)[0] if not _is_turned(sides, tp)]


def wait_until_copied(sides: Sides, choice: Choice, wait_s: float) -> None:
    """Wait until everything is on the target and the source has not changed between two polls. Raises Refused."""
    chosen = _copied_partitions(sides, choice)
    deadline = time.monotonic() + wait_s
    previous: dict[TopicPartition, int] | None = None
    while True:
        answers = source_ends(sides, chosen)
        ends = {tp: end for tp, end in answers.items() if isinstance(end, int)}
        error = _ends_message(sides, failures_in(answers))
        sides.refresh()
        entries = {tp: sides.ledger.entry(tp) for tp in chosen}
        is_behind = any(entry is not None and ends.get(tp, 0) > entry.mark.source for tp, entry in entries.items())
        is_unchanged = ends == previous
        new = uncopied(sides, choice) if is_unchanged and not is_behind and not error else Uncopied()
        awaited = [one for one in new.partitions if not one.is_never_copied]
        if is_unchanged and not is_behind and not error and not awaited:
            return  # what is not known is refused later
        if time.monotonic() > deadline and (error or previous is not None):
            break  # not after one poll, which does not show whether the source changes
        previous = ends
        time.sleep(_POLL_S)
        chosen = _copied_partitions(sides, choice)
    if error:
        raise Refused(f"{error}. Timed out after {wait_s:g} s, and nothing was changed.")
    # The ledger may be older than the records on the target, and the remaining ones may all be dropped.
    found = behind([*partitions_of(sides, chosen), *awaited]) if is_unchanged else []
    if found or not is_unchanged:
        left = missing_records(found)
        cause = (
            f"{left.of('record')} {'is' if left.exact == 1 else 'are'} left to copy"
            if found
            else "producers still write to it"
        )
        raise Refused(
            f"Timed out after {wait_s:g} s waiting for cluster {sides.pair.source}: {cause}. Nothing was changed."
        )
