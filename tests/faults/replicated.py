"""Helpers of the tests on a replicated target: old records, samples of positions and high watermarks, a comparison."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, Self

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from kafka.protocol.admin import AlterPartitionReassignmentsRequest

from mm2.kafka.client.cluster import Cluster
from mm2.kafka.settings.client_settings import ClientSettings
from tests.faults.environment import Addressed, MirrorMaker
from tests.faults.oracle import ClusterTopic, Reader, Rows, judge
from tests.support.cluster import LocalCluster
from tests.support.waiting import PATIENCE, wait_until

MONTH_MS: Final = 30 * 24 * 3600 * 1000
_BEGINNING: Final = -2
_PERSISTS_S: Final = 2.0


class Backfill:
    """Writes numbered records with timestamps of the past, in order, round robin to all partitions of a topic.

    A broker drops the state of a producer by the timestamps of its records (`producer.id.expiration.ms`), so of these
    it keeps none for longer than one expiration check.
    """

    def __init__(self, source: Addressed, topic: str, partitions: int, *, age_ms: int = MONTH_MS) -> None:
        self.sent = 0
        self._topic = topic
        self._partitions = partitions
        self._age_ms = age_ms
        self._refused: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": source.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "log_level": 2,
                "on_delivery": self._delivered,
            }
        )

    def write(self, each: int) -> None:
        """Write that many records to each partition; all are acknowledged when it returns."""
        for _ in range(each):
            for partition in range(self._partitions):
                self._send(partition)
        self._flush()

    @contextmanager
    def flowing(self, rate: float) -> Iterator[None]:
        """Write `rate` records per second inside the `with` block, in small batches; all are acknowledged at its end."""
        stopping = threading.Event()
        thread = threading.Thread(target=self._run, args=(rate, stopping), name="backfill", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            thread.join()
        self._flush()

    def _flush(self) -> None:
        assert self._producer.flush(60) == 0, "the source did not take all records"
        assert not self._refused, self._refused[0]

    def _run(self, rate: float, stopping: threading.Event) -> None:
        began_s, done = time.monotonic(), 0
        while not stopping.wait(0.02):
            due = int((time.monotonic() - began_s) * rate)
            for serial in range(done, due):
                self._send(serial % self._partitions)
            done = due
            self._producer.poll(0)

    def _send(self, partition: int) -> None:
        stamp = time.time_ns() // 1_000_000 - self._age_ms
        self._producer.produce(self._topic, b"%0100d" % self.sent, b"%d" % self.sent, partition, timestamp=stamp)
        self.sent += 1

    def _delivered(self, error: object, _message: Message) -> None:
        if error is not None:
            self._refused.append(str(error))


@dataclass(frozen=True)
class Excess:
    """A committed position above the high watermark of its remote partition."""

    partition: int
    position: int
    high_watermark: int
    at_s: float

    def __str__(self) -> str:
        return f"partition {self.partition}: position {self.position}, high watermark {self.high_watermark}"


@dataclass
class Samples:
    """Result of a `Sampler`: the number of comparisons, the newest values by partition, and every violation."""

    compared: int = 0
    positions: dict[int, int] = field(default_factory=dict)
    high_watermarks: dict[int, int] = field(default_factory=dict)
    excesses: list[Excess] = field(default_factory=list)
    commits: list[tuple[float, int, int]] = field(default_factory=list)
    """(seconds of the monotonic clock, partition, position) of every position that was written, in order."""


class Sampler:
    """Compares committed positions with the high watermarks of the remote topic until it is stopped.

    A position is read first, the high watermark afterwards, and high watermarks only grow under clean elections. A leader
    that was stopped may answer once more with its old high watermark before it learns that another one was elected; so
    only an excess that lasts for `_PERSISTS_S` counts. `records` returns how many records of a source partition precede
    a position; by default as many as there are offsets, which holds for topics without gaps.
    """

    def __init__(
        self,
        target: Addressed,
        alias: str,
        topic: str,
        remote: str,
        partitions: int,
        *,
        interval_s: float = 0.05,
        records: Callable[[int, int], int] = lambda _partition, position: position,
    ) -> None:
        self.seen = Samples()
        self._topic = topic
        self._remote = remote
        self._partitions = partitions
        self._interval_s = interval_s
        self._records = records
        self._offsets_topic = f"mm2-offsets.{alias}.internal"
        self._since_s: dict[int, float] = {}  # when a partition was first seen in excess, while it is
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        common: dict[str, str | int | float | bool] = {"bootstrap.servers": target.bootstrap, "log_level": 0}
        self._admin = AdminClient(common)
        self._consumer = Consumer(
            {**common, "group.id": "sampler", "enable.auto.commit": False, "fetch.wait.max.ms": 10}
        )

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def __enter__(self) -> Self:
        found = self._consumer.list_topics(self._offsets_topic, timeout=30).topics[self._offsets_topic]
        self._consumer.assign([TopicPartition(self._offsets_topic, index, _BEGINNING) for index in found.partitions])
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(30)
        self._consumer.close()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            with suppress(KafkaException, TimeoutError):  # a stopped broker responds later
                self._read_positions()
                self._compare()

    def _read_positions(self) -> None:
        while messages := self._consumer.consume(500, 0.02):
            for message in messages:
                if message.error() is None:
                    self._note(message)

    def _note(self, message: Message) -> None:
        key, value = message.key(), message.value()
        source = json.loads(key or b"[null, {}]")[1]
        if source.get("topic") == self._topic and value is not None:
            partition, position = source["partition"], json.loads(value)["offset"] + 1
            self.seen.positions[partition] = position
            self.seen.commits.append((time.monotonic(), partition, position))

    def _compare(self) -> None:
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        wanted = {TopicPartition(self._remote, partition): latest for partition in self.seen.positions}
        if not wanted:
            return
        sent_s = time.monotonic()
        for tp, answer in self._admin.list_offsets(wanted, request_timeout=2.0).items():
            with suppress(KafkaException):
                self._compare_one(tp.partition, int(answer.result(30 * PATIENCE).offset), sent_s)

    def _compare_one(self, partition: int, high_watermark: int, sent_s: float) -> None:
        if high_watermark < 0:
            return  # librdkafka's "invalid": the partition has no leader at the moment
        self.seen.compared += 1
        self.seen.high_watermarks[partition] = high_watermark
        position = self.seen.positions[partition]
        if self._records(partition, position) <= high_watermark:
            self._since_s.pop(partition, None)
        elif sent_s - self._since_s.setdefault(partition, time.monotonic()) > _PERSISTS_S:
            self.seen.excesses.append(Excess(partition, position, high_watermark, sent_s))


def jumps(source: ClusterTopic, target: ClusterTopic) -> list[str]:
    """Where a remote partition continues after a hole: a record was copied before its predecessor on the source.

    Unlike the lost records, these include holes that were filled later.
    """
    found = []
    readers = Reader(source.bootstrap, "read_uncommitted"), Reader(target.bootstrap, "read_committed")
    try:
        for partition in readers[0].partitions(source.topic):
            wanted, got = (
                Rows.of(reader.messages(side.topic, partition))
                for reader, side in zip(readers, (source, target), strict=True)
            )
            found += [f"partition {partition}, {jump}" for jump in _jumps(wanted, got)]
    finally:
        for reader in readers:
            reader.close()
    return found


def _jumps(wanted: Rows, got: Rows) -> list[str]:
    order: Mapping[int, int] = {digest: index for index, digest in enumerate(wanted.digests)}
    found, newest = [], -1
    for offset, digest in zip(got.offsets, got.digests, strict=True):
        index = order.get(digest, -1)
        if index > newest + 1:
            found.append(f"target offset {offset}: source offset {wanted.offsets[index]} after number {newest}")
        newest = max(newest, index)
    return found


def lead(cluster: LocalCluster, topic: str, partitions: int, order: Sequence[int]) -> None:
    """Make the first of these brokers the leader of all partitions; `order` must list the current replicas."""
    request = AlterPartitionReassignmentsRequest
    rows = request.ReassignableTopic
    reordered = [rows.ReassignablePartition(partition_index=index, replicas=list(order)) for index in range(partitions)]
    client = Cluster(ClientSettings.from_props({"bootstrap.servers": cluster.bootstrap}), name=cluster.name)
    try:
        answer = client.send(
            None,
            request(timeout_ms=20_000, topics=[rows(name=topic, partitions=reordered)]),
            timeout_s=30,
        )
    finally:
        client.close()
    codes = {row.error_code for result in answer.responses for row in result.partitions}
    assert codes == {0}, f"reassignment of {topic}: error codes {codes}"
    cluster.elect({topic: range(partitions)})


class Replica:
    """One topic of a flow: writes its records, samples its committed positions and compares its remote topic."""

    def __init__(
        self,
        source: Addressed,
        target: LocalCluster,
        flow: MirrorMaker,
        topic: str,
        partitions: int,
        *,
        age_ms: int = MONTH_MS,
    ) -> None:
        self.topic = topic
        self.remote = flow.remote(topic)
        self.partitions = partitions
        self.records = Backfill(source, topic, partitions, age_ms=age_ms)
        self.sampler = Sampler(target, flow.alias, topic, self.remote, partitions)
        self._source = ClusterTopic(source.bootstrap, topic)
        self._target = ClusterTopic(target.bootstrap, self.remote)
        self._flow = flow

    @property
    def seen(self) -> Samples:
        return self.sampler.seen

    def await_committed(self, patience_s: float) -> None:
        """Wait until the committed positions cover everything written so far.

        Waiting for the records themselves would make a silent loss look like a slow copy.
        """

        def committed() -> bool:
            assert self.sampler.is_running, "the sampler ended unexpectedly"
            return sum(self.seen.positions.values()) == self.records.sent

        wait_until(committed, patience_s, what=f"commits of {self.topic}", detail=self._flow.tail)

    def assert_whole(self, settle_s: float = 1.0) -> None:
        """Assert that every record was copied once and in order, and no position was ahead of the high watermark."""
        time.sleep(settle_s)  # duplicates may be written after the last commit
        found = self.defects()
        assert not found, found
        assert self.seen.compared, "no position was compared with a high watermark"

    def defects(self) -> str:
        """Describe the defects of the copy as it is now; empty without any."""
        judgment = judge(self._source, self._target)
        assert judgment.source_records == self.records.sent, "the source does not hold what it acknowledged"
        holes, excesses = jumps(self._source, self._target), self.seen.excesses
        if judgment.exactly_once and not holes and not excesses:
            return ""
        counts = f"{self.topic}: {len(judgment.lost)} ranges lost, {len(judgment.doubled)} records doubled, "
        counts += f"{len(judgment.reordered)} reordered, {len(holes)} holes, {len(excesses)} positions ahead"
        shown = [counts, str(judgment), *(f"continued after a hole: {hole}" for hole in holes[:5])]
        return "\n".join([*shown, *(f"ahead of the high watermark: {excess}" for excess in excesses[:5])])
