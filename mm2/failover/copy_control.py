"""Stops and resumes the copying of topics by promotions in the ledger, and verifies that tasks have applied them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from mm2.copy.progress.session import LedgerEntry
from mm2.copy.states import LASTS_UNTIL_RESET
from mm2.evidence import counted
from mm2.failover.denials import allow_writes
from mm2.failover.records.partitions import is_paused
from mm2.failover.sides import Refused, Sides, now_ms
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import AclBinding, TopicPartition
from mm2.mirror.notes.promotions import Promotion, promoted, withdrawn

#: Tasks read the promotions every second, and need up to eight seconds to finish batches in flight.
CONFIRM_S: Final = 60.0
_POLL_S: Final = 0.3


@contextmanager
def on_interrupt(sentence: str) -> Iterator[None]:
    """Add to an interrupt by Ctrl-C what may have been done until then."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(sentence) from None


def may_be_promoted(sides: Sides, topics: Collection[str]) -> str:
    """What is known after an interrupt, or a failure to write promotions."""
    return (
        f"{counted(len(topics), 'topic')} of {sides.pair} may be promoted, and no longer copied; run the command again"
    )


def stop_copying(sides: Sides, topics: Collection[str], verb: str) -> tuple[list[str], list[str]]:
    """Store promotions of these topics, and wait until the tasks that copy them have stopped: (done, problems).

    Raises KafkaFailure if it is not known whether they were written, Refused if another command has changed promotions since this one
    began.
    """
    sides.refresh()
    if not sides.is_undisturbed:
        raise Refused(
            f"Another command has changed promotions of {sides.pair} since this one began, and nothing was changed: run it again."
        )
    known, flow = promoted(sides.ledger), str(sides.pair)
    new = [
        Promotion(topic, sides.selection.remote(topic), verb, now_ms())
        for topic in sorted(topics)
        if topic not in known
    ]
    done, problems = [], []
    if new:
        sides.write_ledger([promotion.record() for promotion in new], promotions=len(new))
        done.append(f"{counted(len(new), 'topic')} promoted: {flow} does not copy them any more, also after a restart")
    if already := len(topics) - len(new):
        done.append(f"{counted(already, 'topic')} had already been promoted")
    problems += disturbed(sides)
    try:
        left, workers = _wait(sides, topics, paused=True)
        has_tasks = workers != 0 and any(tp.topic in topics for tp in sides.assigned())
    except KafkaFailure as failure:
        problems.append(f"cannot verify that the tasks of {flow} have stopped copying: {failure}")
        return done, problems
    if workers == 0:
        done.append(f"no process of {flow} is running; the promotion applies when one starts")
    elif left:
        number = _unknown_workers(sides) if workers is None else counted(workers, "worker")
        problems.append(
            f"{counted(len(left), 'partition')}, first {left[0]}, not confirmed as paused after {CONFIRM_S:.0f} s; {flow} has "
            f"{number}: check its tasks, and stop workers that do not support promotions (Java's MirrorMaker and "
            "older versions)"
        )
    elif not has_tasks:
        done.append(f"no task of {flow} is assigned to copy them; the promotion applies when one is")
    else:
        done.append(f"all tasks of {flow} have confirmed in the ledger that they stopped copying them")
    return done, problems


def hand_over(
    sides: Sides, topics: Collection[str], denials: Collection[AclBinding], verb: str
) -> tuple[list[str], list[str], bool]:
    """Stop copying these topics, then delete the ``denials`` of writing to them: (done, problems, whether they are promoted)."""
    try:
        done, problems = stop_copying(sides, topics, verb)
    except KafkaFailure as failure:
        return [], [f"{may_be_promoted(sides, topics)}: {failure}"], False
    allowed, denied = allow_writes(sides, topics, denials)
    return [*done, *allowed], [*problems, *denied], True


def resume_copying(sides: Sides, promotions: Mapping[str, Promotion]) -> tuple[list[str], list[str]]:
    """Withdraw these promotions, by topic, and wait until the flow copies the topics again: (done, problems).

    A later promotion is not withdrawn: this command may have been frozen meanwhile. Raises KafkaFailure if it is not known whether this
    was written.
    """
    sides.refresh()
    now = promoted(sides.ledger)
    known = [topic for topic in sorted(promotions) if topic in now]
    if changed := [topic for topic in known if now[topic] != promotions[topic]]:
        return [], [f"{changed[0]} was promoted again meanwhile, and nothing was changed: run the command again"]
    if not known:
        return [], []
    sides.write_ledger([withdrawn(topic) for topic in known], promotions=len(known))
    done = [f"{counted(len(known), 'topic')} no longer promoted: {sides.pair} resumes copying"]
    problems = disturbed(sides)
    try:
        left, workers = _wait(sides, known, paused=False)
    except KafkaFailure as failure:
        return done, [*problems, f"cannot verify that {sides.pair} has resumed copying: {failure}"]
    if left:
        unknown = "" if workers is not None else f"; {_unknown_workers(sides)}"
        problems.append(
            f"{counted(len(left), 'partition')}, first {left[0]}, still paused after {CONFIRM_S:.0f} s{unknown}"
        )
    return done, problems


def disturbed(sides: Sides) -> list[str]:
    """A problem if another command has changed promotions between the last read before a write and the read after it."""
    if sides.is_undisturbed:
        return []
    sentence = f"another command has changed promotions of {sides.pair} at the same time: see with mm2 status FILE '{sides.pair}' which topics"
    return [f"{sentence} are promoted now, and run the command again if it is still wanted"]


def _wait(sides: Sides, topics: Collection[str], *, paused: bool) -> tuple[list[TopicPartition], int | None]:
    """The partitions that have not reached the wanted state at the timeout, and the number of workers (`Sides.workers`).

    Ends when there is no worker. A killed one leaves the group at the end of its session only.
    """
    workers = sides.workers
    since_ms = {topic: promotion.at_ms for topic, promotion in promoted(sides.ledger).items()}
    assigned = set() if workers == 0 else sides.assigned()
    deadline = time.monotonic() + CONFIRM_S
    while workers != 0:
        sides.refresh()
        left = []
        for tp in sides.ledger.partitions():
            entry = sides.ledger.entry(tp) if tp.topic in topics and tp in assigned else None
            if entry is None:
                continue
            if _is_paused_by(entry, since_ms.get(tp.topic)) is not paused:
                left.append(tp)
        if not left or time.monotonic() > deadline:
            return left, workers
        time.sleep(_POLL_S)
        workers = sides.workers
    return [], 0


def _unknown_workers(sides: Sides) -> str:
    return f"an unknown number of workers ({sides.workers_error.removesuffix('.')})"


def _is_paused_by(entry: LedgerEntry, since_ms: int | None) -> bool:
    """Whether the partition is paused by the promotion of that time; by any pause if no time is given.

    A partition that has stopped until its position is reset copies nothing either, and its task never notes the pause.
    """
    if since_ms is not None and entry.condition is not None and entry.condition.state in LASTS_UNTIL_RESET:
        return True
    return is_paused(entry) and (
        since_ms is None or (entry.condition is not None and entry.condition.since_ms == since_ms)
    )
