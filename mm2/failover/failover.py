"""failover A->B: applications move to B. Promotes the topics, and sets each group to its offset there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mm2.failover.evidence import DONE, FailoverReport, GroupEvidence, Outcome, PartitionEvidence, counted
from mm2.failover.groups import Choice, Groups
from mm2.failover.hold import hand_over
from mm2.failover.partitions import last_sign_ms, partitions_of, source_ends
from mm2.failover.sides import FlowConfig, Refused, Sides, now_ms
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import TopicPartition
from mm2.mirror.promotions import promoted

VERB: Final = "failover"
_LOOK_S: Final = 0.5


@dataclass(frozen=True)
class FailoverOptions:
    """The options of the command.

    ``wait_s``: time limit for the flow to finish copying after the writers have stopped; None: do not wait.
    ``leave_behind``: accept that a reachable source has records that the target does not have.
    """

    choice: Choice
    dry_run: bool = False
    wait_s: float | None = None
    leave_behind: bool = False


def failover(config: FlowConfig, options: FailoverOptions) -> FailoverReport:
    """Run the command. Raises Refused or KafkaFailure if nothing was changed."""
    with Sides.opened(config) as sides:
        chosen = chosen_partitions(sides, options.choice)
        if options.wait_s is not None:
            _wait_for_nothing_left(sides, chosen, options.wait_s)
        before, sign = partitions_of(sides, chosen), last_sign_ms(sides)
        if not options.leave_behind and not options.dry_run:
            refuse_to_leave_behind(sides, before)
        groups = Groups(sides, options.choice)
        done: list[str] = []
        problems: list[str] = []
        if options.dry_run:
            rows, after = groups.found(), before
            done += _of_nobody(rows)
            if sides.source is not None and (missing := _behind(before)):
                problems.append(
                    f"{sides.pair.source} answers and has {missing} records that are not on {sides.pair.target}: without --wait "
                    "or --leave-behind this would be refused"
                )
            if untold := untold_ends(sides, before):
                problems.append(f"{untold}: without --leave-behind this would be refused")
        else:
            done, problems = hand_over(sides, {one.topic for one in before}, VERB)
            rows, after = [], before
            try:
                sides.refresh()
                # The final state, since nothing is copied any more.
                after = [
                    replace(one, end_ms=was.end_ms)
                    for one, was in zip(partitions_of(sides, chosen), before, strict=True)
                ]
                if not options.leave_behind and sides.source is not None and (late := _behind(after)):
                    problems.append(
                        f"producers still write to {config.pair.source}: not on {config.pair.target} are "
                        f"{counted(late, 'record')} from after copying was stopped"
                    )
                rows = groups.write(groups.found())
                done += _of_nobody(rows)
            except KafkaFailure as failure:
                problems.append(f"no offsets of groups are known to be written, say the same again: {failure}")
        problems += _left_from_before(sides)
        written, failed = _told(rows)
        return FailoverReport(
            VERB,
            str(config.pair),
            options.dry_run,
            now_ms(),
            sides.source_trouble,
            sign,
            after,
            rows,
            done=[*done, *written],
            problems=[*problems, *groups.troubles, *failed],
            advice=_advice(sides, after),
        )


def chosen_partitions(sides: Sides, choice: Choice) -> list[TopicPartition]:
    """The chosen partitions in the ledger.

    Raises Refused if there are none, neither copied nor received from the opposite flow.
    """
    chosen = [tp for tp in sides.known_partitions() if choice.has_topic(tp.topic)]
    home = [] if sides.home_ledger is None else sides.home_ledger.partitions()
    if not chosen and not any(choice.has_topic(tp.topic) for tp in home):
        known = sorted({tp.topic for tp in sides.known_partitions()})
        some = ", ".join(known[:5]) or "none"
        raise Refused(f"No topic of {sides.pair} fits --topic; its ledger knows {len(known)}: {some}.")
    return chosen


def refuse_to_leave_behind(sides: Sides, partitions: Sequence[PartitionEvidence]) -> None:
    """Raise Refused if a reachable source has records that the target does not have, or if this is unknown."""
    if sides.source is None:
        return
    if untold := untold_ends(sides, partitions):
        raise Refused(f"{untold}. Mend that, or leave behind what may be there with --leave-behind.")
    behind = [one for one in partitions if one.missing]
    if behind:
        first = behind[0]
        raise Refused(
            f"Cluster {sides.pair.source} answers and has {_behind(behind)} records that are not on "
            f"{sides.pair.target} yet ({first.source}: {first.copied} of {first.end}). Stop its writers and say --wait SECONDS, or "
            "leave these records behind with --leave-behind."
        )


def _behind(partitions: Iterable[PartitionEvidence]) -> int:
    """The number of records that are known to be on the source only."""
    return sum(one.missing or 0 for one in partitions)


def untold_ends(sides: Sides, partitions: Iterable[PartitionEvidence]) -> str:
    """The partitions of a reachable source whose end offsets are unknown, as a message; "" if there are none."""
    return _silent_about(sides, {one.source: one.untold for one in partitions if one.untold})


def _silent_about(sides: Sides, reasons: Mapping[TopicPartition, object]) -> str:
    if not reasons:
        return ""
    first, why = min((tp, str(reason)) for tp, reason in reasons.items())
    many = f"{counted(len(reasons), 'partition')} {'ends' if len(reasons) == 1 else 'end'}"
    return f"Cluster {sides.pair.source} answers and does not say where {many} (first {first}: {why.rstrip('.')})"


def _left_from_before(sides: Sides) -> list[str]:
    """Topics that the opposite flow promoted on the cluster that applications leave now, and still does not copy."""
    held = {} if sides.home_ledger is None else promoted(sides.home_ledger)
    left = sorted(topic for topic, one in held.items() if one.remote_topic != topic)
    if not left:
        return []
    way = f"{sides.pair.target}->{sides.pair.source}"
    return [
        f"{way} still copies nothing of {', '.join(left[:5])}, which were handed over: say mm2 failback FILE '{way}'"
    ]


def _wait_for_nothing_left(sides: Sides, chosen: Sequence[TopicPartition], wait_s: float) -> None:
    """Wait until everything is on the target and the source has not changed between two polls. Raises Refused."""
    deadline = time.monotonic() + wait_s
    seen: dict[TopicPartition, int] = {}
    while True:
        told = source_ends(sides, chosen)
        ends = {tp: end for tp, end in told.items() if isinstance(end, int)}
        untold = _silent_about(sides, {tp: end for tp, end in told.items() if isinstance(end, KafkaFailure)})
        sides.refresh()
        entries = {tp: sides.ledger.entry(tp) for tp in chosen}
        left = sum(
            max(0, ends[tp] - entry.mark.source) for tp, entry in entries.items() if entry is not None and tp in ends
        )
        still = ends == seen
        if still and not left and not untold:
            return
        if time.monotonic() > deadline:
            if untold:
                raise Refused(f"{untold}. It was waited for {wait_s:g} s, and nothing was changed.")
            why = f"{left} records are left to copy" if still else "it is still being written to"
            raise Refused(f"Cluster {sides.pair.source} was waited for {wait_s:g} s: {why}. Nothing was changed.")
        seen = ends
        time.sleep(_LOOK_S)


def _of_nobody(rows: Sequence[GroupEvidence]) -> list[str]:
    """A message if there are no groups. A missing table is easily overlooked, and a name in --group easily mistyped."""
    return [] if rows else ["no group is chosen that has committed anything of these topics"]


def _told(rows: Sequence[GroupEvidence]) -> tuple[list[str], list[str]]:
    """What was done for groups, and what failed."""
    outcomes = Counter(row.outcome for row in rows)
    done = []
    if count := outcomes[Outcome.WRITTEN]:
        groups = len({row.group for row in rows if row.outcome is Outcome.WRITTEN})
        done.append(
            f"{counted(count, 'offset')} of {counted(groups, 'group')} written, and read back as they were written"
        )
    if count := outcomes[Outcome.TO_WRITE]:
        done.append(f"{counted(count, 'offset')} would be written")
    if count := outcomes[Outcome.THERE] + outcomes[Outcome.AHEAD]:
        done.append(f"{counted(count, 'offset')} there already, or further on")
    problems = [
        f"group {row.group}, {row.topic}-{row.partition}: {row.outcome}: {row.reason}"
        for row in rows
        if row.outcome not in DONE
    ]
    return done, problems


def _advice(sides: Sides, partitions: Sequence[PartitionEvidence]) -> list[str]:
    source, target = sides.pair.source, sides.pair.target
    same = any(sides.is_same_name(one.topic) for one in partitions)
    renamed = next((one for one in partitions if not sides.is_same_name(one.topic)), None)
    advice = []
    if renamed is not None:
        advice.append(
            f"start consumers on {target}; they read {renamed.remote_topic} (records from {source}) and {renamed.topic} (records "
            f"written on {target}); producers write to {renamed.topic}, which the flow {target}->{source} copies to {source}"
        )
    if same:
        advice.append(f"start consumers and producers on {target}, with the same topics")
    advice.append(f"when {source} is available again: mm2 failback FILE '{sides.pair}' --dry-run")
    return advice
