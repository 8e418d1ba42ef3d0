"""A flow between the two shared brokers for tests that drive connectors and tasks directly, without a worker."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, TypeVar

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from mm2.connect.api import SourceTask, SourceTaskContext, WorkerView
from mm2.mirror.common.connector import MirrorConnector
from mm2.sandbox.kafka import LocalKafka
from tests.support.waiting import PATIENCE, wait_until

_C = TypeVar("_C", bound=MirrorConnector)

#: The first group of a new broker waits for its coordinator.
_COMING = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError._WAIT_COORD,
}


def flow_props(name: str, source: LocalKafka, target: LocalKafka, **props: str) -> dict[str, str]:
    """Properties of one connector of A->B, intervals of a second; `__` in a key stands for `.`."""
    base = {
        "name": name,
        "connector.class": f"org.apache.kafka.connect.mirror.{name}",
        "source.cluster.alias": "A",
        "target.cluster.alias": "B",
        "source.cluster.bootstrap.servers": source.bootstrap,
        "target.cluster.bootstrap.servers": target.bootstrap,
        "enabled": "true",
        "replication.factor": "1",
        "offset-syncs.topic.replication.factor": "1",
        "checkpoints.topic.replication.factor": "1",
        "heartbeats.topic.replication.factor": "1",
        "refresh.topics.interval.seconds": "1",
        "refresh.groups.interval.seconds": "1",
        "sync.topic.configs.interval.seconds": "1",
        "emit.checkpoints.interval.seconds": "1",
    }
    return base | {key.replace("__", "."): value for key, value in props.items()}


def group_of(props: Mapping[str, str]) -> str:
    """The Connect group of the flow in a MirrorMaker process."""
    return f"{props['source.cluster.alias']}-mm2"


class RecordingContext:
    """The context that Connect gives to a connector; records the calls."""

    def __init__(self, group_id: str = "A-mm2", worker_topics: frozenset[str] = frozenset()) -> None:
        self.group_id = group_id
        self.worker_topics = worker_topics
        self.reconfigured = threading.Event()
        self.errors: list[Exception] = []
        self.stored: list[dict[str, str]] = []

    def request_task_reconfiguration(self) -> None:
        self.reconfigured.set()

    def stored_task_configs(self) -> list[dict[str, str]]:
        return self.stored

    def raise_error(self, exc: Exception) -> None:
        self.errors.append(exc)


@contextmanager
def running(
    connector: _C, props: dict[str, str], worker_topics: frozenset[str] = frozenset()
) -> Iterator[tuple[_C, RecordingContext]]:
    context = RecordingContext(group_of(props), worker_topics)
    connector.initialize(context)
    connector.start(props)
    try:
        yield connector, context
    finally:
        started = time.monotonic()
        connector.stop()
        assert time.monotonic() - started < 20 * PATIENCE, "a stop must not hang"


class _NoOffsets:
    def offsets(self, partitions: Any) -> list[dict[str, Any] | None]:
        return [None for _ in partitions]


@contextmanager
def running_task(task: SourceTask, props: dict[str, str]) -> Iterator[SourceTask]:
    worker = WorkerView({}, group_of(props), "mm2-offsets.A.internal", {}, exactly_once=False)
    number = int(props.get("task.index", "0"))
    context = SourceTaskContext(props["name"], number, MappingProxyType(props), _NoOffsets(), worker)
    task.initialize(context)
    task.start(props)
    try:
        yield task
    finally:
        started = time.monotonic()
        task.stop()
        assert time.monotonic() - started < 20 * PATIENCE, "a stop must not hang"


@functools.cache
def admin(broker: LocalKafka) -> AdminClient:
    """A cached admin client: one that is garbage-collected drops its pending requests."""
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})  # silent when brokers end


def allow(broker: LocalKafka, topic: str, *operations: AclOperation) -> None:
    """Allow User:mirror operations on a topic."""
    bindings = [
        AclBinding(
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.LITERAL,
            "User:mirror",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for operation in operations
    ]
    for done in admin(broker).create_acls(bindings).values():
        done.result(30)


def create(broker: LocalKafka, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
    """Create a topic; return when metadata lists it, shortly after the broker's response."""
    for done in admin(broker).create_topics([NewTopic(topic, partitions, 1, config=dict(config or {}))]).values():
        done.result(30 * PATIENCE)
    wait_until(lambda: partitions_of(broker, topic) == partitions, 30, what=f"creation of {topic}")


def partitions_of(broker: LocalKafka, topic: str) -> int:
    """The number of partitions; 0 when the topic does not exist."""
    found = admin(broker).list_topics(timeout=60).topics.get(topic)
    return 0 if found is None or found.error else len(found.partitions)


def config_of(broker: LocalKafka, topic: str, name: str) -> str:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    (answer,) = admin(broker).describe_configs([resource]).values()
    return str(answer.result(30 * PATIENCE)[name].value)


def commit(broker: LocalKafka, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
    """Commit for a group without members, by an independent client."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, "enable.auto.commit": False})
    try:
        wanted = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
        wait_until(lambda: _is_committed(consumer, wanted), 60, what=f"a commit of {group}")
    finally:
        consumer.close()


def _is_committed(consumer: Consumer, wanted: list[TopicPartition]) -> bool:
    """False while the coordinator is not available."""
    try:
        answers = consumer.commit(offsets=wanted, asynchronous=False) or []
    except KafkaException as refused:
        if refused.args[0].code() in _COMING:
            return False
        raise
    for answer in answers:
        assert answer.error is None, answer.error
    return True


def committed(broker: LocalKafka, group: str, topic: str, partition: int = 0) -> int:
    """The committed offset; -1001 without one, or while the coordinator is not available."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    try:
        (answer,) = consumer.committed([TopicPartition(topic, partition)], timeout=60)
        return int(answer.offset)
    except KafkaException as refused:
        if refused.args[0].code() in _COMING:
            return OFFSET_INVALID
        raise
    finally:
        consumer.close()


def write(broker: LocalKafka, topic: str, records: Iterable[tuple[bytes | None, bytes | None]], partition: int) -> None:
    """Produce and wait for the acks, by an independent client."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for key, value in records:
        producer.produce(topic, value, key, partition)
    assert producer.flush(30) == 0


def _end(consumer: Consumer, where: TopicPartition) -> int:
    """The high watermark; waits for the leader of a new partition."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return int(consumer.get_watermark_offsets(where, timeout=60)[1])
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def read_all(broker: LocalKafka, topic: str, partition: int = 0) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values of all current records of a partition, read with an independent client."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader", "enable.auto.commit": False})
    try:
        where = TopicPartition(topic, partition)
        end = _end(consumer, where)
        consumer.assign([TopicPartition(topic, partition, 0)])
        records: list[tuple[bytes | None, bytes | None]] = []
        while max(consumer.position([where])[0].offset, 0) < end:
            message = consumer.poll(5)
            assert message is not None
            assert message.error() is None
            records.append((message.key(), message.value()))
        return records
    finally:
        consumer.close()


def alter(broker: LocalKafka, topic: str, name: str, value: str | None) -> None:
    """Set a config of a topic; None resets it to its default."""
    kind = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    resource = ConfigResource(ResourceType.TOPIC, topic)
    resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=kind))
    for done in admin(broker).incremental_alter_configs([resource]).values():
        done.result(30 * PATIENCE)
