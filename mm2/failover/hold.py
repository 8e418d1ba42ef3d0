"""Promotes topics: makes the flow stop copying them, and verifies that it has stopped."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

from mm2.copy.session import LedgerEntry
from mm2.failover.evidence import counted
from mm2.failover.partitions import is_held
from mm2.failover.sides import Sides, now_ms
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import TopicPartition
from mm2.mirror.promotions import Promotion, promoted, withdrawn

#: Tasks read the promotions every second, and need up to eight seconds to finish batches in flight.
CONFIRM_S: Final = 60.0
_LOOK_S: Final = 0.3


def hand_over(sides: Sides, topics: Collection[str], verb: str) -> tuple[list[str], list[str]]:
    """Store promotions of these topics, and wait until the tasks that copy them have stopped: (done, problems).

    Raises KafkaFailure if they cannot be written.
    """
    known, flow = promoted(sides.ledger), str(sides.pair)
    new = [
        Promotion(topic, sides.selection.remote(topic), verb, now_ms())
        for topic in sorted(topics)
        if topic not in known
    ]
    done, problems = [], []
    if new:
        sides.write_ledger([promotion.record() for promotion in new])
        done.append(f"{counted(len(new), 'topic')} handed over: {flow} copies no more of them, also after a restart")
    if already := len(topics) - len(new):
        done.append(f"{counted(already, 'topic')} had been handed over before")
    try:
        workers = sides.workers
        left = _wait(sides, topics, held=True) if workers else []
    except KafkaFailure as failure:
        problems.append(f"whether tasks of {flow} still copy is not known: {failure}")
        return done, problems
    if not workers:
        done.append(f"no process of {flow} runs; one that is started finds out")
    elif left:
        problems.append(
            f"{counted(len(left), 'partition')}, first {left[0]}, not seen to be held after {CONFIRM_S:.0f} s, and {flow} has "
            f"{workers} in its group of workers: stop what copies (Java's MirrorMaker and older versions do not obey), or look at its tasks"
        )
    else:
        done.append(f"all tasks of {flow} have stopped copying them, as they say in the ledger")
    return done, problems


def take_back(sides: Sides, topics: Collection[str]) -> tuple[list[str], list[str]]:
    """Withdraw promotions: the flow copies these topics again.

    (done, problems). Raises KafkaFailure if they cannot be written.
    """
    known = [topic for topic in sorted(topics) if topic in promoted(sides.ledger)]
    if not known:
        return [], []
    sides.write_ledger([withdrawn(topic) for topic in known])
    done = [f"{counted(len(known), 'topic')} taken back: {sides.pair} may copy them again"]
    try:
        left = _wait(sides, known, held=False) if sides.workers else []
    except KafkaFailure as failure:
        return done, [f"whether {sides.pair} copies them again is not known: {failure}"]
    if left:
        return done, [f"{counted(len(left), 'partition')}, first {left[0]}, still held after {CONFIRM_S:.0f} s"]
    return done, []


def _wait(sides: Sides, topics: Collection[str], *, held: bool) -> list[TopicPartition]:
    """The partitions that have not reached the wanted state at the timeout."""
    since_ms = {topic: promotion.at_ms for topic, promotion in promoted(sides.ledger).items()}
    assigned = sides.assigned()
    deadline = time.monotonic() + CONFIRM_S
    while True:
        sides.refresh()
        left = []
        for tp in sides.ledger.partitions():
            entry = sides.ledger.entry(tp) if tp.topic in topics and tp in assigned else None
            if entry is None:
                continue
            if _is_held(entry, since_ms.get(tp.topic)) is not held:
                left.append(tp)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(_LOOK_S)


def _is_held(entry: LedgerEntry, since_ms: int | None) -> bool:
    """Whether the partition is paused by the promotion of that time; by any pause if no time is given."""
    return is_held(entry) and (
        since_ms is None or (entry.condition is not None and entry.condition.since_ms == since_ms)
    )
