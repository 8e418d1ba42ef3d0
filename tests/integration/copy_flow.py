"""A copy job between two brokers for tests of the copy engine alone; both clusters are read with confluent-kafka."""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from mm2.copy.driver.engine import CopyEngine, CopyJob
from mm2.copy.progress.ledger import Ledger, Pauses
from mm2.copy.progress.session import Start
from mm2.copy.progress.written_positions import offset_key
from mm2.copy.spec import CopySpec, PartitionProgress, PartitionSpec, SyncsSpec
from mm2.kafka.records.batch import BatchHeader, iter_batches
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import TopicPartition as Mm2TopicPartition
from mm2.sandbox.kafka import LocalKafka
from tests.support.waiting import PATIENCE, wait_until

CONNECTOR = "MirrorSourceConnector"
EARLIEST = -2
#: Factor for the timeouts of `eventually` on a busy machine.
_READING = threading.Lock()


@dataclass(frozen=True)
class Read:
    """One consumed record; ``timestamp`` in ms, of either type, -1 = none."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def content(self) -> tuple[Any, ...]:
        return (self.timestamp, self.key, self.value, self.headers)


@functools.lru_cache(maxsize=4)  # a client that is garbage-collected drops its pending requests
def admin_of(broker: LocalKafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2})


def create(broker: LocalKafka, topic: str, partitions: int = 1, **configs: str) -> None:
    """Create a topic; `__` in a config name stands for `.`."""
    settings = {name.replace("__", "."): value for name, value in configs.items()}
    for done in admin_of(broker).create_topics([NewTopic(topic, partitions, 1, config=settings)]).values():
        done.result(30 * PATIENCE)


def alter(broker: LocalKafka, kind: ResourceType, name: str, key: str, value: str) -> None:
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    for done in (
        admin_of(broker).incremental_alter_configs([ConfigResource(kind, name, incremental_configs=[entry])]).values()
    ):
        done.result(30 * PATIENCE)


def delete_before(broker: LocalKafka, topic: str, offset: int, partition: int = 0) -> None:
    for done in admin_of(broker).delete_records([TopicPartition(topic, partition, offset)]).values():
        done.result(30 * PATIENCE)


def producer_of(broker: LocalKafka, **settings: Any) -> Producer:
    config = {"bootstrap.servers": broker.bootstrap, "message.max.bytes": 4_000_000, "linger.ms": 5, "log_level": 2}
    return Producer(config | {name.replace("__", "."): value for name, value in settings.items()})


def read(broker: LocalKafka, topic: str, partition: int = 0, *, isolation: str = "read_uncommitted") -> list[Read]:
    """All records of the partition up to its current end."""
    return read_all(broker, topic, [partition], isolation=isolation)[partition]


def read_all(
    broker: LocalKafka, topic: str, partitions: Iterable[int], *, isolation: str = "read_uncommitted"
) -> dict[int, list[Read]]:
    """All records of these partitions up to their current ends."""
    with _READING:  # lanes request their start positions concurrently
        return _read_all(_reader(broker.bootstrap, isolation), topic, partitions)


def _read_all(consumer: Consumer, topic: str, partitions: Iterable[int]) -> dict[int, list[Read]]:
    records: dict[int, list[Read]] = {partition: [] for partition in partitions}
    missing = set(records)
    try:
        consumer.assign([TopicPartition(topic, partition, EARLIEST) for partition in records])
        deadline = time.monotonic() + 60
        while missing:
            assert time.monotonic() < deadline, f"{topic} {sorted(missing)} could not be read to the end"
            message = consumer.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if message.topic() != topic:
                continue  # the end of a partition that was assigned before
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                missing.discard(int(message.partition() or 0))
                continue
            headers: Any = message.headers() or []
            key: Any = message.key()
            value: Any = message.value()
            kind, stamp = message.timestamp()
            record = Read(message.offset() or 0, stamp if kind else -1, key, value, tuple(headers))
            records[int(message.partition() or 0)].append(record)
        return records
    finally:
        consumer.unassign()


@functools.lru_cache(maxsize=8)  # half a second each
def _reader(bootstrap: str, isolation: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "fetch.wait.max.ms": 10,  # an empty response marks the end
            "fetch.error.backoff.ms": 10,
            "log_level": 2,
        }
    )


def batches(broker: LocalKafka, topic: str, partition: int = 0) -> list[tuple[BatchHeader, bytes]]:
    """Headers and records blocks of the batches in the broker's log."""
    found = []
    for segment in sorted((broker.folder / "data" / f"{topic}-{partition}").glob("*.log")):
        for view in iter_batches(memoryview(segment.read_bytes())):
            assert view.header is not None
            found.append((view.header, bytes(view.data[61:])))
    return found


def end_offset(broker: LocalKafka, topic: str, partition: int = 0) -> int:
    reader = _reader(broker.bootstrap, "read_uncommitted")
    deadline = time.monotonic() + 30 * PATIENCE
    while True:
        try:
            return int(reader.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)[1])
        except KafkaException as failure:
            # Metadata of a new topic names a leader before that broker has become the leader, or does not have the topic yet, and
            # librdkafka replaces the handle of a bootstrap server once it knows its id.
            passing = {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError._UNKNOWN_PARTITION, KafkaError._DESTROY_BROKER}
            if failure.args[0].code() not in passing or time.monotonic() > deadline:
                raise
            # librdkafka keeps what it knows of a missing topic for minutes, unless it is asked.
            reader.list_topics(topic, timeout=30)
            time.sleep(0.05)


@dataclass(frozen=True)
class Flow:
    """The topics of one test on both clusters, and copy jobs for them. Remote topics have the source's alias as prefix."""

    engine: CopyEngine
    source: LocalKafka
    target: LocalKafka
    name: str

    @property
    def offsets_topic(self) -> str:
        return f"{self.name}-offsets"

    @property
    def ledger_topic(self) -> str:
        return f"{self.name}-ledger"

    @property
    def syncs_topic(self) -> str:
        return f"{self.name}-syncs"

    def remote(self, topic: str) -> str:
        return f"A.{topic}"

    def topic(
        self,
        suffix: str = "t",
        partitions: int = 1,
        source: Mapping[str, str] | None = None,
        target: Mapping[str, str] | None = None,
    ) -> str:
        """Create a topic and its remote topic, and the internal topics on the first call.

        Without retention: the broker would delete records with old timestamps at its next retention check.
        """
        topic = f"{self.name}-{suffix}"
        create(self.source, topic, partitions, **{"retention__ms": "-1", **(source or {})})
        create(self.target, self.remote(topic), partitions, **{"retention__ms": "-1", **(target or {})})
        if self.offsets_topic not in admin_of(self.target).list_topics(timeout=30).topics:
            create(self.target, self.offsets_topic, 5, cleanup__policy="compact")
            create(self.target, self.ledger_topic, 1, cleanup__policy="compact")
            create(self.source, self.syncs_topic, 1, cleanup__policy="compact")
        return topic

    def compacted_topic(self) -> str:
        """Create a topic of which the source compacts each segment as soon as the next one begins."""
        alter(self.source, ResourceType.BROKER, "1", "log.cleaner.backoff.ms", "100")
        compact = {
            "cleanup__policy": "compact",
            "segment__ms": "200",
            "min__cleanable__dirty__ratio": "0.001",
            "delete__retention__ms": "0",
        }
        return self.topic(source=compact)

    def spec(self, *topics: str, partitions: int = 1, **changes: Any) -> CopySpec:
        settings = {
            name: ClientSettings.from_props({"bootstrap.servers": broker.bootstrap}, client_id=f"copy-{name}")
            for name, broker in (("source", self.source), ("target", self.target))
        }
        parts = tuple(
            PartitionSpec(topic, index, self.remote(topic)) for topic in topics for index in range(partitions)
        )
        spec = CopySpec(
            flow="A->B",
            connector=CONNECTOR,
            task_id=0,
            source_alias="A",
            target_alias="B",
            source=settings["source"],
            target=settings["target"],
            partitions=parts,
            offsets_topic=self.offsets_topic,
            ledger_topic=self.ledger_topic,
            syncs=SyncsSpec(settings["source"], self.syncs_topic, 100),
            lanes=1,
        )
        return replace(spec, **changes)

    @contextmanager
    def copying(
        self,
        spec: CopySpec,
        start: Mapping[Mm2TopicPartition, int | None] | None = None,
        pauses: Callable[[], Pauses] = dict,
        *,
        stop_s: float = 20,
    ) -> Iterator[CopyJob]:
        """Copy from `start`, or from the positions in ledger and offsets topic; `pauses` returns the paused partitions.

        The job has to stop within `stop_s`, which includes reading the positions, up to a minute from a stopped broker.
        """

        def starts(wanted: Iterable[Mm2TopicPartition]) -> dict[Mm2TopicPartition, Start]:
            if start is not None:
                return {tp: Start(start.get(tp), start.get(tp)) for tp in wanted}
            committed, ledger = self.committed(spec), self.ledger()
            return {tp: ledger.start(tp, committed[tp]) for tp in wanted}

        job = self.engine.open(spec, starts, pauses)
        try:
            yield job
        finally:
            assert job.stop(stop_s), "the copying did not stop in time"

    def ledger(self) -> Ledger:
        ledger = Ledger()
        for record in read(self.target, self.ledger_topic):
            ledger.apply(record.key, record.value)
        return ledger

    def committed(self, spec: CopySpec) -> dict[Mm2TopicPartition, int | None]:
        """Next offsets from the offsets topic, looked up by key bytes as Java does."""
        last: dict[bytes | None, bytes | None] = {}
        isolation = "read_uncommitted" if spec.transactions is None else "read_committed"
        for records in read_all(self.target, self.offsets_topic, range(5), isolation=isolation).values():
            last.update((record.key, record.value) for record in records)
        found: dict[Mm2TopicPartition, int | None] = {}
        for part in spec.partitions:
            value = last.get(offset_key(CONNECTOR, "A", part.source))
            found[part.source] = None if value is None else json.loads(value)["offset"] + 1
        return found

    def wait_until_copied(self, job: CopyJob, spec: CopySpec, timeout_s: float = 45.0) -> None:
        """Wait until every partition's position is at the current log end offset of the source."""
        ends = {part.source: end_offset(self.source, *part.source) for part in spec.partitions}

        def done() -> bool:
            rows = rows_of(job)
            return all(tp in rows and rows[tp].position >= end for tp, end in ends.items())

        wait_until(done, timeout_s, detail=lambda: (ends, job.status(), job.progress()))

    def assert_equal(self, topic: str, partition: int = 0, *, isolation: str = "read_uncommitted") -> list[Read]:
        """Assert that both clusters have the same records in the same order; returns the source's."""
        wanted = read(self.source, topic, partition, isolation=isolation)
        got = read(self.target, self.remote(topic), partition, isolation=isolation)
        seen = [record.content for record in got]
        expected = [record.content for record in wanted]
        differs = next((i for i, pair in enumerate(zip(seen, expected, strict=False)) if pair[0] != pair[1]), None)
        where = f"{topic}-{partition}: {len(got)} records instead of {len(wanted)}, the first other one at {differs}"
        assert seen == expected, f"{where}: {str(seen[differs or 0])[:200]} / {str(expected[differs or 0])[:200]}"
        return wanted


def rows_of(job: CopyJob) -> dict[Mm2TopicPartition, PartitionProgress]:
    return {row.source: row for row in job.progress()}


class Traffic:
    """A producer that runs until it is stopped; its values are numbered, and partitions alternate."""

    def __init__(self, broker: LocalKafka, topic: str, partitions: int = 1, per_second: int = 500) -> None:
        self._producer = producer_of(broker, enable__idempotence=True, acks="all")
        self._topic = topic
        self._partitions = partitions
        self._pause_s = 10 / per_second
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sent = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(30)
        assert self._producer.flush(60) == 0

    def _headers(self, number: int) -> list[tuple[str, str | bytes | None]]:
        """Headers of a record."""
        return []

    def _run(self) -> None:
        while not self._stop.wait(self._pause_s):
            for _ in range(10):
                number = self.sent
                self._producer.produce(
                    self._topic, b"%d" % number, b"k", number % self._partitions, headers=self._headers(number)
                )
                self.sent += 1
            self._producer.poll(0)
