"""failover A->B: applications move to B. Promotes the topics, and sets each group to its offset there."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from mm2.evidence import counted
from mm2.failover.copy_control import hand_over, may_be_promoted, on_interrupt
from mm2.failover.denials import denials_of, still_denied, to_allow
from mm2.failover.evidence import (
    DONE,
    FailoverReport,
    GroupEvidence,
    Outcome,
    PartitionEvidence,
    missing_records,
    target_problems,
)
from mm2.failover.groups import Choice, Groups
from mm2.failover.leaving import (
    Before,
    Confirm,
    after_stop,
    behind,
    reason_to_confirm,
    refuse_rejected,
    refuse_to_leave_behind,
    refuse_uncopied,
    rejection_error,
    unknown_error,
    wait_until_copied,
)
from mm2.failover.records.partitions import last_contact_ms
from mm2.failover.sides import FlowConfig, Refused, Sides, now_ms
from mm2.kafka.errors import KafkaFailure
from mm2.mirror.notes.promotions import promoted
from mm2.mirror.plan.way_back import WayBack

VERB: Final = "failover"


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
        before, is_old = Before.of(sides, options.choice), False
        if not options.dry_run:
            refuse_rejected(sides, leave_behind=options.leave_behind)
            if reason := reason_to_confirm(sides):
                _refuse_to_leave_writers(sides, before, options)
                confirm(reason, functools.partial(_dry_run, sides, before, options))
                is_old = True
        if options.wait_s is not None:
            wait_until_copied(sides, options.choice, options.wait_s)
            is_old = True
        if is_old:
            before = Before.of(sides, options.choice)
        if options.dry_run:
            return _dry_run(sides, before, options)
        if not options.leave_behind:
            refuse_to_leave_behind(sides, before)
        refuse_uncopied(sides, before, options.choice)
        groups = Groups(sides, options.choice)
        result = _execute(sides, before, groups, options)
        return _report(sides, result, groups, dry_run=False)


def _dry_run(sides: Sides, before: Before, options: FailoverOptions) -> FailoverReport:
    """What would be done."""
    groups = Groups(sides, options.choice)
    return _report(sides, _preview(sides, before, groups, options), groups, dry_run=True)


def _report(sides: Sides, result: _Result, groups: Groups, *, dry_run: bool) -> FailoverReport:
    done, failed = _group_messages(result.groups)
    way_back = sides.way_back({one.topic: one.remote_topic for one in result.partitions})
    return FailoverReport(
        VERB,
        str(sides.pair),
        dry_run,
        now_ms(),
        sides.source_error,
        last_contact_ms(sides),
        result.partitions,
        result.groups,
        notes=[*result.notes, *groups.notes],
        done=[*result.done, *done],
        problems=[*result.problems, *_still_promoted(sides), *groups.problems, *failed],
        advice=[*_conditions(sides, dry_run=dry_run), *_advice(sides, result.partitions, way_back)],
        way_back=way_back.topics,
    )


def _conditions(sides: Sides, *, dry_run: bool) -> list[str]:
    """What the command requires, in the report of a dry run."""
    if not dry_run:
        return []
    source = sides.pair.source
    if sides.source is not None:
        sentence = (
            f"{source} answers: to fail over, stop its producers and use --wait SECONDS, or use --leave-behind to leave what they "
            "still write behind"
        )
        return [sentence]
    if reason := reason_to_confirm(sides):
        return [f"{reason}: check that it is down; to fail over has to be confirmed"]
    return []


@dataclass
class _Result:
    """The state after the command, or before it for a dry run, with messages."""

    partitions: list[PartitionEvidence]
    groups: list[GroupEvidence] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def _preview(sides: Sides, before: Before, groups: Groups, options: FailoverOptions) -> _Result:
    """What the command would do. Raises KafkaFailure."""
    result = _Result(before.partitions, groups.found(before.partitions), before.notes)
    result.done += to_allow(sides, denials_of(sides, before.topics))
    result.done += _no_groups_message(result.groups)
    result.problems += target_problems(sides.pair.target, before.partitions)
    if options.wait_s is not None or options.leave_behind:
        return result
    if error := rejection_error(sides):
        result.problems.append(f"{error}: without --leave-behind this would be refused")
    if sides.source is not None and (left := behind(before.partitions)):
        result.problems.append(
            f"{sides.pair.source} answers and has {missing_records(left).of('record')} that are not on "
            f"{sides.pair.target}: without --wait or --leave-behind this would be refused"
        )
    if error := unknown_error(sides, before):
        result.problems.append(f"{error}: without --leave-behind this would be refused")
    return result


def _execute(sides: Sides, before: Before, groups: Groups, options: FailoverOptions) -> _Result:
    """Promote the topics, then commit the offsets of the groups. From here on, no failure means that nothing was changed."""
    result = _Result(before.partitions, notes=before.notes)
    topics, denials = before.topics, denials_of(sides, before.topics)
    with on_interrupt(may_be_promoted(sides, topics)):
        result.done, result.problems, is_promoted = hand_over(sides, topics, denials, VERB)
        if not is_promoted:
            return result
        result.problems += still_denied(sides, topics, options.choice)
        try:
            after, late = after_stop(sides, before, options.choice, leave_behind=options.leave_behind)
            result.partitions, result.notes = after.partitions, after.notes
            result.problems += late
            result.groups = groups.write(groups.found(after.partitions))
            result.done += _no_groups_message(result.groups)
        except KafkaFailure as failure:
            result.problems.append(f"the offsets of groups may not be committed, run the command again: {failure}")
    return result


def _refuse_to_leave_writers(sides: Sides, before: Before, options: FailoverOptions) -> None:
    """Raise Refused if a reachable source is to be left without a decision about what its producers still write."""
    if sides.source is None or options.leave_behind or options.wait_s is not None:
        return
    refuse_to_leave_behind(sides, before)
    raise Refused(
        f"Cluster {sides.pair.source} answers, so its producers may still write: use --dry-run to see what would be done. "
        "To fail over, stop its producers and use --wait SECONDS, or use --leave-behind to leave what they still write behind."
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


def _advice(sides: Sides, partitions: Sequence[PartitionEvidence], way_back: WayBack) -> list[str]:
    source, target = sides.pair.source, sides.pair.target
    same = any(sides.is_same_name(one.topic) for one in partitions)
    renamed = {one.topic: one.remote_topic for one in partitions if not sides.is_same_name(one.topic)}
    advice = []
    if renamed:
        topic, remote = next(iter(renamed.items()))
        likewise = f"; {counted(len(renamed) - 1, 'more topic')} likewise" if len(renamed) > 1 else ""
        advice.append(
            f"start consumers on {target}; they read {remote} (records from {source}) and {topic} (records "
            f"written on {target}); producers write to {topic}{likewise}"
        )
    if same:
        advice.append(f"start consumers and producers on {target}, with the same topics")
    advice += way_back.sentences()
    advice.append(f"when {source} is available again: mm2 failback FILE '{sides.pair}' --dry-run")
    return advice
