"""failover A->B: applications move to B. Promotes the topics, and sets each group to its offset there."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from mm2.config.mirrormaker import SourceAndTarget
from mm2.failover.copy_control import stop_copying
from mm2.failover.denials import allow_writes, denials_of, still_denied, to_allow
from mm2.failover.evidence import (
    DONE,
    FailoverReport,
    GroupEvidence,
    Outcome,
    PartitionEvidence,
    counted,
    missing_records,
)
from mm2.failover.groups import Choice, Groups
from mm2.failover.partitions import last_contact_ms, partitions_of, source_ends
from mm2.failover.sides import FlowConfig, Refused, Sides, now_ms
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import TopicPartition
from mm2.mirror.promotions import promoted

VERB: Final = "failover"
_POLL_S: Final = 0.5

Confirm = Callable[[Callable[[], FailoverReport]], None]
"""Called before a reachable source is left, with a function that makes the report of a dry run. Raises Refused if that is not
confirmed.
"""


@dataclass(frozen=True)
class FailoverOptions:
    """The options of the command.

    ``wait_s``: time limit for the flow to finish copying after the producers have stopped; None: do not wait.
    ``leave_behind``: accept that a reachable source has records that the target does not have.

    A reachable source is left with one of them only. Without them, the records on it can be compared, but a producer may
    write the next one after the comparison.
    """

    choice: Choice
    dry_run: bool = False
    wait_s: float | None = None
    leave_behind: bool = False


def failover(config: FlowConfig, options: FailoverOptions, confirm: Confirm) -> FailoverReport:
    """Run the command. Raises Refused or KafkaFailure if nothing was changed."""
    with Sides.opened(config) as sides:
        chosen = chosen_partitions(sides, options.choice)
        if not options.dry_run and sides.source is not None:
            before = partitions_of(sides, chosen)
            _refuse_to_leave_writers(sides, before, options)
            confirm(functools.partial(_dry_run, sides, before, options))
        if options.wait_s is not None:
            _wait_until_copied(sides, chosen, options.wait_s)
        before = partitions_of(sides, chosen)
        if not options.leave_behind and not options.dry_run:
            refuse_to_leave_behind(sides, before)
        if options.dry_run:
            return _dry_run(sides, before, options)
        groups = Groups(sides, options.choice)
        result = _execute(sides, chosen, before, groups, leave_behind=options.leave_behind)
        result.problems += still_denied(sides, {one.topic for one in before}, options.choice)
        return _report(sides, result, groups, dry_run=False)


def _dry_run(sides: Sides, before: list[PartitionEvidence], options: FailoverOptions) -> FailoverReport:
    """What would be done."""
    groups = Groups(sides, options.choice)
    return _report(sides, _preview(sides, before, groups, options), groups, dry_run=True)


def _report(sides: Sides, result: _Result, groups: Groups, *, dry_run: bool) -> FailoverReport:
    done, failed = _group_messages(result.groups)
    return FailoverReport(
        VERB,
        str(sides.pair),
        dry_run,
        now_ms(),
        sides.source_error,
        last_contact_ms(sides),
        result.partitions,
        result.groups,
        done=[*result.done, *done],
        problems=[*result.problems, *_still_promoted(sides), *groups.problems, *failed],
        advice=[*_conditions(sides, dry_run=dry_run), *_advice(sides, result.partitions)],
    )


def _conditions(sides: Sides, *, dry_run: bool) -> list[str]:
    """What the command requires, in the report of a dry run."""
    if not dry_run or sides.source is None:
        return []
    sentence = (
        f"{sides.pair.source} answers: to fail over, stop its producers and use --wait SECONDS, or use --leave-behind to "
        "leave what they still write behind"
    )
    return [sentence]


@dataclass
class _Result:
    """The state after the command, or before it for a dry run, with messages."""

    partitions: list[PartitionEvidence]
    groups: list[GroupEvidence] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def _preview(sides: Sides, before: list[PartitionEvidence], groups: Groups, options: FailoverOptions) -> _Result:
    """What the command would do. Raises KafkaFailure."""
    result = _Result(before, groups.found())
    result.done += to_allow(sides, denials_of(sides, {one.topic for one in before}))
    result.done += _no_groups_message(result.groups)
    if options.wait_s is not None or options.leave_behind:
        return result
    if sides.source is not None and (behind := _behind(before)):
        result.problems.append(
            f"{sides.pair.source} answers and has {missing_records(behind).of('record')} that are not on "
            f"{sides.pair.target}: without --wait or --leave-behind this would be refused"
        )
    if error := unknown_ends_error(sides, before):
        result.problems.append(f"{error}: without --leave-behind this would be refused")
    return result


def _execute(
    sides: Sides,
    chosen: Sequence[TopicPartition],
    before: list[PartitionEvidence],
    groups: Groups,
    *,
    leave_behind: bool,
) -> _Result:
    """Promote the topics, then commit the offsets of the groups. Raises KafkaFailure if nothing was changed."""
    result = _Result(before)
    topics = {one.topic for one in before}
    denials = denials_of(sides, topics)
    result.done, result.problems = stop_copying(sides, topics, VERB)
    allowed, denied = allow_writes(sides, topics, denials)
    result.done += allowed
    result.problems += denied
    try:
        sides.refresh()
        # The final state, since nothing is copied any more.
        result.partitions = [
            replace(one, end_ms=previous.end_ms)
            for one, previous in zip(partitions_of(sides, chosen), before, strict=True)
        ]
        if not leave_behind and sides.source is not None and (late := _behind(result.partitions)):
            result.problems.append(
                f"producers still write to {sides.pair.source}; written after copying was stopped, and not on "
                f"{sides.pair.target}: {missing_records(late).of('record')}"
            )
        result.groups = groups.write(groups.found())
        result.done += _no_groups_message(result.groups)
    except KafkaFailure as failure:
        result.problems.append(f"the offsets of groups may not be committed, run the command again: {failure}")
    return result


def chosen_partitions(sides: Sides, choice: Choice) -> list[TopicPartition]:
    """The chosen partitions in the ledger.

    Raises Refused if there are none, neither copied nor received from the opposite flow.
    """
    chosen = [tp for tp in sides.known_partitions() if choice.has_topic(tp.topic)]
    reverse = [] if sides.reverse_ledger is None else sides.reverse_ledger.partitions()
    if not chosen and not any(choice.has_topic(tp.topic) for tp in reverse):
        known = sorted({tp.topic for tp in sides.known_partitions()})
        some = ", ".join(known[:5]) or "none"
        raise Refused(f"No topic of {sides.pair} matches --topic; topics in its ledger ({len(known)}): {some}.")
    return chosen


def _refuse_to_leave_writers(sides: Sides, partitions: Sequence[PartitionEvidence], options: FailoverOptions) -> None:
    """Raise Refused if a reachable source is to be left without a decision about what its producers still write."""
    if options.leave_behind or options.wait_s is not None:
        return
    refuse_to_leave_behind(sides, partitions)
    raise Refused(
        f"Cluster {sides.pair.source} answers, so its producers may still write: use --dry-run to see what would be done. "
        "To fail over, stop its producers and use --wait SECONDS, or use --leave-behind to leave what they still write behind."
    )


def refuse_to_leave_behind(sides: Sides, partitions: Sequence[PartitionEvidence]) -> None:
    """Raise Refused if a reachable source has records that the target does not have, or if this is unknown."""
    if sides.source is None:
        return
    if error := unknown_ends_error(sides, partitions):
        raise Refused(f"{error}. Fix the cause, or use --leave-behind to accept that records may be missing.")
    if behind := _behind(partitions):
        first = next((one for one in behind if one.tail_note), behind[0])
        note = f"; {first.tail_note}" if first.tail_note else ""
        raise Refused(
            f"Cluster {sides.pair.source} answers and has {missing_records(behind).of('record')} that are not on "
            f"{sides.pair.target} yet ({first.source}: {first.next_offset} of {first.end}{note}). Stop its producers and "
            "use --wait SECONDS, or use --leave-behind to leave these records behind."
        )


def _behind(partitions: Iterable[PartitionEvidence]) -> list[PartitionEvidence]:
    """The partitions of which records are, or may be, on the source only."""
    return [one for one in partitions if one.missing]


def unknown_ends_error(sides: Sides, partitions: Iterable[PartitionEvidence]) -> str:
    """The partitions of a reachable source whose end offsets are unknown, as a message; "" if there are none."""
    return _ends_message(sides, {one.source: one.end_error for one in partitions if one.end_error})


def _ends_message(sides: Sides, errors: Mapping[TopicPartition, object]) -> str:
    if not errors:
        return ""
    first, error = min((tp, str(error)) for tp, error in errors.items())
    number = "offset" if len(errors) == 1 else "offsets"
    return (
        f"Cluster {sides.pair.source} answers but does not return the end {number} of "
        f"{counted(len(errors), 'partition')} (first {first}: {error.rstrip('.')})"
    )


def _still_promoted(sides: Sides) -> list[str]:
    """Topics that the opposite flow promoted on the cluster that applications leave now, and still does not copy."""
    promotions = {} if sides.reverse_ledger is None else promoted(sides.reverse_ledger)
    topics = sorted(topic for topic, one in promotions.items() if one.remote_topic != topic)
    if not topics:
        return []
    reverse = f"{sides.pair.target}->{sides.pair.source}"
    return [
        f"topics still promoted, so {reverse} does not copy them: {', '.join(topics[:5])}; run mm2 failback FILE '{reverse}'"
    ]


def _wait_until_copied(sides: Sides, chosen: Sequence[TopicPartition], wait_s: float) -> None:
    """Wait until everything is on the target and the source has not changed between two polls. Raises Refused."""
    deadline = time.monotonic() + wait_s
    previous: dict[TopicPartition, int] | None = None
    while True:
        answers = source_ends(sides, chosen)
        ends = {tp: end for tp, end in answers.items() if isinstance(end, int)}
        error = _ends_message(sides, {tp: end for tp, end in answers.items() if isinstance(end, KafkaFailure)})
        sides.refresh()
        entries = {tp: sides.ledger.entry(tp) for tp in chosen}
        is_behind = any(entry is not None and ends.get(tp, 0) > entry.mark.source for tp, entry in entries.items())
        is_unchanged = ends == previous
        if is_unchanged and not is_behind and not error:
            return
        if time.monotonic() > deadline and (error or previous is not None):
            break  # not after one poll, which does not show whether the source changes
        previous = ends
        time.sleep(_POLL_S)
    if error:
        raise Refused(f"{error}. Timed out after {wait_s:g} s, and nothing was changed.")
    # The ledger may be older than the records on the target, and the remaining ones may all be dropped.
    behind = _behind(partitions_of(sides, chosen)) if is_unchanged else []
    if behind or not is_unchanged:
        left = missing_records(behind)
        cause = (
            f"{left.of('record')} {'is' if left.exact == 1 else 'are'} left to copy"
            if behind
            else "producers still write to it"
        )
        raise Refused(
            f"Timed out after {wait_s:g} s waiting for cluster {sides.pair.source}: {cause}. Nothing was changed."
        )


def _no_groups_message(rows: Sequence[GroupEvidence]) -> list[str]:
    """A message if there are no groups. A missing table is easily overlooked, and a name in --group easily mistyped."""
    return [] if rows else ["no selected group has committed offsets of these topics"]


def _group_messages(rows: Sequence[GroupEvidence]) -> tuple[list[str], list[str]]:
    """What was done for groups, and what failed."""
    outcomes = Counter(row.outcome for row in rows)
    done = []
    if count := outcomes[Outcome.WRITTEN]:
        groups = len({row.group for row in rows if row.outcome is Outcome.WRITTEN})
        done.append(f"{counted(count, 'offset')} of {counted(groups, 'group')} committed and read back")
    if count := outcomes[Outcome.TO_WRITE]:
        done.append(f"{counted(count, 'offset')} would be committed")
    if count := outcomes[Outcome.ALREADY_COMMITTED] + outcomes[Outcome.AHEAD]:
        done.append(f"{counted(count, 'offset')} unchanged: already committed, or the group is ahead")
    problems = [
        f"group {row.group}, {row.topic}-{row.partition}: {row.outcome}: {row.reason}"
        for row in rows
        if row.outcome not in DONE
    ]
    return done, problems


def way_back_advice(pair: SourceAndTarget, *, is_enabled: bool, has_run: bool = True) -> list[str]:
    """What is missing for the way back: the flow in the opposite direction has to be enabled, and to have run once."""
    reverse = f"{pair.target}->{pair.source}"
    start = f"run a process with --clusters {pair.source}"
    if not is_enabled:
        return [
            (
                f"no enabled flow copies what is written on {pair.target} to {pair.source}: for the way back set {reverse}.enabled = true "
                f"and {start}"
            )
        ]
    return [] if has_run else [f"{reverse} is enabled and has never run, which the way back requires: {start}"]


def _advice(sides: Sides, partitions: Sequence[PartitionEvidence]) -> list[str]:
    source, target = sides.pair.source, sides.pair.target
    same = any(sides.is_same_name(one.topic) for one in partitions)
    renamed = next((one for one in partitions if not sides.is_same_name(one.topic)), None)
    advice = []
    if renamed is not None:
        copied = f", which the flow {target}->{source} copies to {source}" if sides.config.has_reverse else ""
        advice.append(
            f"start consumers on {target}; they read {renamed.remote_topic} (records from {source}) and {renamed.topic} (records "
            f"written on {target}); producers write to {renamed.topic}{copied}"
        )
    if same:
        advice.append(f"start consumers and producers on {target}, with the same topics")
    # Whether it has run is only known if the source answers, which has its ledger.
    has_run = sides.source is None or sides.reverse_ledger is not None
    advice += way_back_advice(sides.pair, is_enabled=sides.config.has_reverse, has_run=has_run)
    advice.append(f"when {source} is available again: mm2 failback FILE '{sides.pair}' --dry-run")
    return advice
