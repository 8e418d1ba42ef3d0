"""A consumer group that advances on the source, and a check that its checkpoints on the target are never too high.

A checkpoint maps the group's source offset `upstream` to the target offset `downstream`, where the group resumes after
a failover. A downstream offset that is too high loses records; one that is too low only repeats records.
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.faults.oracle import Reader, Rows

GROUP = "chaos-group"
_INTERVAL_S = 1.0
_BEHIND = 200


@dataclass(frozen=True)
class Checkpoint:
    """One record of the checkpoints topic."""

    group: str
    topic: str
    partition: int
    upstream: int
    downstream: int


class Committing:
    """Commits offsets slightly behind the end offsets every second until it is stopped."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.commits = 0
        self._topic = topic
        self._partitions = partitions
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": GROUP, "enable.auto.commit": False, "log_level": 0}
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="group", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def halt(self) -> None:
        self._stopping.set()
        self._thread.join(60)

    def _run(self) -> None:
        reached = dict.fromkeys(range(self._partitions), 0)
        while not self._stopping.wait(_INTERVAL_S):
            with suppress(KafkaException):  # an unreachable broker: retried in the next second
                for partition in reached:
                    _, end = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), timeout=5)
                    reached[partition] = max(reached[partition], end - _BEHIND)
                offsets = [TopicPartition(self._topic, partition, offset) for partition, offset in reached.items()]
                self._consumer.commit(offsets=offsets, asynchronous=False)
                self.commits += 1


def checkpoints(bootstrap: str, source_alias: str) -> list[Checkpoint]:
    """All checkpoints that were ever written, in order. Raises KafkaException when the topic is missing."""
    reader = Reader(bootstrap, "read_committed")
    try:
        found = []
        for message in reader.messages(f"{source_alias}.checkpoints.internal", 0):
            key, value = message.key(), message.value()
            if isinstance(key, bytes) and isinstance(value, bytes):
                found.append(parse(key, value))
        return found
    finally:
        reader.close()


def parse(key: bytes, value: bytes) -> Checkpoint:
    """Key: group, topic (strings with a length of 2 bytes), partition 4; value: version 2, upstream 8, downstream 8, …"""
    group, rest = _string(key)
    topic, rest = _string(rest)
    (partition,) = struct.unpack(">i", rest)
    _, upstream, downstream = struct.unpack_from(">hqq", value)
    return Checkpoint(group, topic, partition, upstream, downstream)


def wrong(points: list[Checkpoint], remote_topic: str, partition: int, source: Rows, target: Rows) -> list[str]:
    """Errors of a partition's checkpoints, given its records on both clusters, each once and in order."""
    problems = []
    newest, newest_upstream = -1, -1
    for point in points:
        if (point.group, point.topic, point.partition) != (GROUP, remote_topic, partition):
            continue
        index = bisect_left(source.offsets, point.upstream)
        exact = target.offsets[index] if index < len(target) else (target.offsets[-1] + 1 if len(target) else 0)
        if point.downstream > exact:
            problems.append(
                f"partition {partition}: the checkpoint {point.upstream} -> {point.downstream} skips records, "
                f"{exact} would be right"
            )
        # A deposed coordinator or a delayed commit can set the group's offset back on the source.
        if point.downstream < newest and point.upstream >= newest_upstream:
            problems.append(
                f"partition {partition}: the checkpoint {point.upstream} -> {point.downstream} comes after {newest_upstream} -> {newest}"
            )
        newest, newest_upstream = point.downstream, point.upstream
    return problems


def _string(data: bytes) -> tuple[str, bytes]:
    (length,) = struct.unpack_from(">h", data)
    return data[2 : 2 + length].decode(), data[2 + length :]
