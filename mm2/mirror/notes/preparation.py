"""Why partitions are not copied yet that have no task, as a note in the flow's ledger, for all that observe the flow.

  {"note":["preparing"]}   {"partitions":[["orders",0,"A.orders","PREPARING","offsets before …",1700000000000,250000]]}

Their offsets are preserved and have to be prepared, or the target refuses to create them. The fields are those of `Preparation`. The
leader of the flow writes the note when it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from mm2.codec import decode, encode
from mm2.copy.progress.ledger import Ledger, note_record
from mm2.copy.states import PartitionState
from mm2.kafka.errors import BrokerFailure
from mm2.kafka.producer.producer import Producer
from mm2.kafka.structs import TopicPartition
from mm2.mirror.common.discovery import vanished

_NOTE: Final = "preparing"
#: A note stays small, however many partitions a source has.
_NOTED_PARTITIONS: Final = 200
_TIMEOUT_S: Final = 5.0


class Preparation(NamedTuple):
    """A source partition that no task copies yet, since ``since_ms``. ``unfilled``: offsets before its first record that are still to be
    filled on the target.
    """

    topic: str
    partition: int
    remote_topic: str
    state: PartitionState
    reason: str
    since_ms: int
    unfilled: int = 0


def preparations(ledger: Ledger) -> dict[TopicPartition, Preparation]:
    """Those in the ledger, by source partition, and those that a task has stopped before copying began. An unreadable note has none."""
    found = [
        Preparation(one.topic, one.partition, one.remote_topic, PartitionState(stop.state), stop.reason, stop.since_ms)
        for one in ledger.unbegun()
        if (stop := one.condition) is not None
    ]
    note = ledger.notes(_NOTE).get((), {})
    with suppress(ValueError, TypeError):
        found += decode(list[Preparation], note.get("partitions", []))
    return {TopicPartition(one.topic, one.partition): one for one in found}


def since(before: Preparation | None, now: Preparation) -> Preparation:
    """The earlier one, with its time, unless something has changed."""
    return now if before is None or before._replace(since_ms=now.since_ms) != now else before


def filling(source: TopicPartition, remote: str, at: int, end: int, since_ms: int) -> Preparation:
    """A partition whose offsets before ``end`` are filled, so far before ``at``."""
    reason = (
        f"offsets before the first record are filled on the target: {at:,} of {end:,} ({100 * at // max(1, end)} %)"
    )
    return Preparation(source.topic, source.partition, remote, PartitionState.PREPARING, reason, since_ms, end - at)


class PreparationNote:
    """Keeps the note up to date. Used by one thread."""

    def __init__(self, ledger: Producer, topic: str, losses: Callable[[], int] = lambda: 0) -> None:
        """``topic`` is the ledger, which ``ledger`` writes; ``losses``: how often it was recreated."""
        self._ledger = ledger
        self._topic = topic
        self._losses = losses
        self._written: tuple[int, list[Preparation]] | None = None  # with the losses; None: unknown

    def update(self, waiting: Iterable[Preparation]) -> bool:
        """These partitions are not copied yet. False: the ledger does not exist yet. Raises KafkaFailure."""
        found = sorted(waiting, key=lambda one: (-bool(one.unfilled), one.topic, one.partition))[:_NOTED_PARTITIONS]
        now = (self._losses(), found)
        if now == self._written:
            return True
        value: Mapping[str, Any] | None = {"partitions": encode(found)} if found else None
        try:
            self._ledger.send(self._topic, [note_record(_NOTE, (), value)], 0, timeout_s=_TIMEOUT_S)
        except BrokerFailure as failure:
            if vanished(failure):
                return not found  # it is created by another job of the connector
            raise
        self._written = now
        return True
