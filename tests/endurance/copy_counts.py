"""Counts numbered records in remote topics, by the source topic that they are from. A value is ``<source topic>:<number>``; the number is
the source offset, because a topic has one partition and one producer.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from confluent_kafka import OFFSET_BEGINNING as EARLIEST
from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.support.waiting import PATIENCE

FOREIGN: Final = b"foreign"
_READ_S: Final = 60.0


@dataclass(frozen=True)
class Count:
    """What a remote topic has of one source topic, of the records that were sent: numbers of ``missing`` ones, ``doubled`` records, and
    ``disordered`` ones, which first occur behind a later one. ``foreign`` are the records of other producers in the remote topic.
    """

    missing: tuple[int, ...]
    doubled: int
    disordered: int
    foreign: int

    @property
    def is_whole(self) -> bool:
        return not (self.missing or self.doubled or self.disordered)

    def missing_in(self, first: int, after: int) -> int:
        """The number of missing records with these offsets."""
        return sum(first <= number < after for number in self.missing)

    def __str__(self) -> str:
        return f"{len(self.missing)}/{self.doubled}/{self.disordered}/{self.foreign}"


@dataclass(frozen=True)
class Copy:
    """A remote topic and its source topics, in the order of their names; several of them are a merge. ``by_process``: by the MirrorMaker
    process, whose flow `mm2` reports, not by a connector.
    """

    remote: str
    sources: tuple[str, ...]
    by_process: bool

    @property
    def is_merge(self) -> bool:
        return len(self.sources) > 1

    def counts(self, values: Iterable[bytes | None], sent: Mapping[str, int]) -> dict[str, Count]:
        """The counts by source topic of the remote topic's values, in their order."""
        found: dict[str, list[int]] = {source: [] for source in self.sources}
        foreign = 0
        for value in values:
            source, separator, number = (value or b"").decode().rpartition(":")
            if separator and source in found:
                found[source].append(int(number))
            else:
                foreign += 1
        return {source: count_of(found[source], sent[source], foreign) for source in self.sources}


def count_of(numbers: Sequence[int], sent: int, foreign: int = 0) -> Count:
    """The count of the numbers that were found, in this order, of 0 to ``sent - 1``."""
    times = Counter(numbers)
    highest, disordered = -1, 0
    for number in dict.fromkeys(numbers):
        disordered += number < highest
        highest = max(highest, number)
    missing = tuple(number for number in range(sent) if number not in times)
    return Count(missing, len(numbers) - len(times), disordered, foreign)


def values_of(bootstrap: str, topics: Iterable[str]) -> dict[str, list[bytes | None]]:
    """The values in partition 0 of each topic, up to its end. Raises AssertionError if it is not reached.

    By a new consumer: one that has read a topic before it was deleted and created again may not read it any more.
    """
    found: dict[str, list[bytes | None]] = {topic: [] for topic in topics}
    unread, deadline_s = set(found), time.monotonic() + _READ_S * PATIENCE
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "count",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, EARLIEST) for topic in found])
        while unread:
            assert time.monotonic() < deadline_s, f"{sorted(unread)} could not be read to the end"
            messages = consumer.consume(1000, 0.5)
            if not messages:  # a topic that was deleted meanwhile has no records
                unread &= set(consumer.list_topics(timeout=30).topics)
            for message in messages:
                error, topic = message.error(), message.topic()
                if topic not in unread:
                    assert error is None or topic is not None, error
                elif error is None:
                    found[topic].append(message.value())
                else:
                    assert error.code() in {KafkaError._PARTITION_EOF, KafkaError.UNKNOWN_TOPIC_OR_PART}, error
                    unread.discard(topic)
        return found
    finally:
        consumer.close()
