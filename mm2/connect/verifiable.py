"""Connectors for tests of a cluster of workers (org.apache.kafka.connect.tools).

Sources of numbers and of structs, a sink that prints what it receives, and connectors that fail on request.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Final

from mm2 import __version__
from mm2.config.configdef import AbstractConfig, ConfigDef, Importance, Type, non_empty
from mm2.connect.api import (
    Connector,
    OffsetAndMetadata,
    Schema,
    SinkConnector,
    SinkRecord,
    SinkTask,
    SourceConnector,
    SourceRecord,
    SourceTask,
    Task,
    TopicPartition,
)
from mm2.connect.data.builder import SchemaBuilder
from mm2.connect.data.schema import (
    BOOLEAN_SCHEMA,
    FLOAT32_SCHEMA,
    FLOAT64_SCHEMA,
    INT32_SCHEMA,
    INT64_SCHEMA,
    STRING_SCHEMA,
)
from mm2.connect.data.struct import Struct
from mm2.kafka.producer.producer import RecordMetadata

_ID: Final = "id"


def with_id(definition: ConfigDef) -> ConfigDef:
    """The task keys of a connector with these keys."""
    return ConfigDef(definition).define(
        _ID, Type.INT, importance=Importance.HIGH, doc="Number of the task, given by the connector."
    )


class Versioned:
    """Connectors and tasks with the version of this project."""

    def version(self) -> str:
        return __version__


class NumberingConnector(Versioned, Connector):
    """Runs tasks.max tasks and passes each its number (``id``, from 0)."""

    CONFIG: ClassVar[ConfigDef]

    def start(self, props: dict[str, str]) -> None:
        self._props = props

    def stop(self) -> None:
        return

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        return [{**self._props, _ID: str(number)} for number in range(max_tasks)]

    def config(self) -> ConfigDef:
        return self.CONFIG


class Throttler:
    """Limits the records per second; negative: no limit, 0: none (ThroughputThrottler of Java)."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._begun_s = time.monotonic()
        self._stopped = threading.Event()

    def keep(self, records: int) -> None:
        """Wait until ``records`` are within the limit, or until `stop`; at most one second."""
        if self._per_second < 0:
            return
        due_s = 1.0
        if self._per_second > 0:
            due_s = self._begun_s + records / self._per_second - time.monotonic()
        if due_s > 0:
            self._stopped.wait(min(due_s, 1.0))

    def is_ahead(self, records: int) -> bool:
        """Whether one more record would exceed the limit now."""
        if self._per_second <= 0:
            return self._per_second == 0
        return records / self._per_second > time.monotonic() - self._begun_s

    def rest(self) -> None:
        """There are no more records; wait for a while, or until `stop`."""
        self._stopped.wait(1.0)

    def stop(self) -> None:
        """End all waits."""
        self._stopped.set()


def print_event(data: dict[str, Any]) -> None:
    """Print one line of JSON on standard output, where tests read it."""
    sys.stdout.write(json.dumps(data, separators=(",", ":"), default=str) + "\n")
    sys.stdout.flush()


def now_ms() -> int:
    return int(time.time() * 1000)


_TOPIC_CONFIG: Final = ConfigDef().define(
    "topic", Type.STRING, validator=non_empty(), importance=Importance.HIGH, doc="The topic of the records."
)
_THROUGHPUT_CONFIG: Final = ConfigDef().define(
    "throughput",
    Type.LONG,
    -1,
    None,
    Importance.MEDIUM,
    "Maximum number of records per second and task; -1 = unlimited.",
)
_COUNTING_CONFIG: Final = ConfigDef(_TOPIC_CONFIG, _THROUGHPUT_CONFIG).define(
    "complete.record.data",
    Type.BOOLEAN,
    False,
    None,
    Importance.LOW,
    "Values are structs with name, task, topic, time_ms and seqno, not only the number.",
)
_COUNTING_TASK_CONFIG: Final = with_id(_COUNTING_CONFIG)

_COMPLETE: Final = (
    SchemaBuilder.struct()
    .field("name", STRING_SCHEMA)
    .field("task", INT32_SCHEMA)
    .field("topic", STRING_SCHEMA)
    .field("time_ms", INT64_SCHEMA)
    .field("seqno", INT64_SCHEMA)
    .build()
)


class _CountingTask(Versioned, SourceTask):
    """Continues after its committed offset ``{"seqno": n}``."""

    CONFIG: ClassVar[ConfigDef]

    def start(self, props: dict[str, str]) -> None:
        self._config = AbstractConfig(self.CONFIG, props)
        self._id, self._topic = self._config.int("id"), self._config.str("topic")
        self._partition = {"id": self._id}
        (offset,) = self.context.offset_reader.offsets([self._partition])
        self._next = self._first = 0 if offset is None else int(offset["seqno"]) + 1
        self._pace = Throttler(self._config.int("throughput"))

    def _is_due(self) -> bool:
        """Whether one more record is within the limit, after waiting for that."""
        sent = self._next - self._first
        if self._pace.is_ahead(sent):
            self._pace.keep(sent)
        return not self._pace.is_ahead(sent)

    def stop(self) -> None:
        self._pace.stop()


class VerifiableSourceConnector(NumberingConnector, SourceConnector):
    """Runs tasks.max tasks, each with its own counter."""

    CONFIG = _COUNTING_CONFIG

    def task_class(self) -> type[Task]:
        return VerifiableSourceTask


class VerifiableSourceTask(_CountingTask):
    """Prints sent and acknowledged records on stdout."""

    CONFIG = _COUNTING_TASK_CONFIG

    def start(self, props: dict[str, str]) -> None:
        super().start(props)
        self._name = props.get("name", "")
        self._complete = self._config.bool("complete.record.data")

    def poll(self) -> list[SourceRecord] | None:
        if not self._is_due():
            return None
        data = self._event(self._next)
        print_event(data)
        record = SourceRecord(
            self._partition,
            {"seqno": self._next},
            self._topic,
            None,
            self._id,
            Struct(_COMPLETE, data) if self._complete else self._next,
            key_schema=INT32_SCHEMA,
            value_schema=_COMPLETE if self._complete else INT64_SCHEMA,
        )
        self._next += 1
        return [record]

    def commit_record(self, record: SourceRecord, metadata: RecordMetadata | None) -> None:
        print_event({**self._event((record.source_offset or {}).get("seqno")), "committed": True})

    def _event(self, number: object) -> dict[str, Any]:
        return {"name": self._name, "task": self._id, "topic": self._topic, "time_ms": now_ms(), "seqno": number}


_SCHEMA_CONFIG: Final = (
    ConfigDef(
        _TOPIC_CONFIG,
        ConfigDef().define("num.messages", Type.LONG, importance=Importance.HIGH, doc="Number of records per task."),
        _THROUGHPUT_CONFIG,
    )
    .define(
        "multiple.schema",
        Type.BOOLEAN,
        False,
        None,
        Importance.LOW,
        "Whether every second record has version 2 of the schema.",
    )
    .define("partition.count", Type.INT, 1, None, Importance.LOW, "Values of the field partitioning are below this.")
)
_SCHEMA_TASK_CONFIG: Final = with_id(_SCHEMA_CONFIG)


def _schema(version: int) -> Schema:
    builder = (
        SchemaBuilder.struct()
        .version(version)
        .name("record")
        .field("boolean", BOOLEAN_SCHEMA)
        .field("int", INT32_SCHEMA)
        .field("long", INT64_SCHEMA)
        .field("float", FLOAT32_SCHEMA)
        .field("double", FLOAT64_SCHEMA)
        .field("partitioning", INT32_SCHEMA)
    )
    if version > 1:
        builder.field("string", SchemaBuilder.string().default("abc").build())
    return builder.field("id", INT32_SCHEMA).field("seqno", INT64_SCHEMA).build()


_FIRST, _SECOND = _schema(1), _schema(2)


class SchemaSourceConnector(NumberingConnector, SourceConnector):
    """Runs tasks.max tasks, each with its own counter."""

    CONFIG = _SCHEMA_CONFIG

    def task_class(self) -> type[Task]:
        return SchemaSourceTask


class SchemaSourceTask(_CountingTask):
    """Returns ``num.messages`` records."""

    CONFIG = _SCHEMA_TASK_CONFIG

    def start(self, props: dict[str, str]) -> None:
        super().start(props)
        self._most, self._two = self._config.int("num.messages"), self._config.bool("multiple.schema")
        self._partitions = max(1, self._config.int("partition.count"))

    def poll(self) -> list[SourceRecord] | None:
        made = self._next - self._first
        if made >= self._most:
            self._pace.rest()
            return []
        if not self._is_due():
            return None
        second = self._two and made % 2 == 1
        schema = _SECOND if second else _FIRST
        values: dict[str, Any] = {
            "boolean": True,
            "int": 12,
            "long": 12,
            "float": 12.2,
            "double": 12.2,
            "partitioning": self._next % self._partitions,
            "id": self._id,
            "seqno": self._next,
        }
        if second:
            values["string"] = "def"
        print_event({"task": self._id, "seqno": self._next})
        record = SourceRecord(
            self._partition,
            {"seqno": self._next},
            self._topic,
            self._id,
            "key",
            Struct(schema, values),
            key_schema=STRING_SCHEMA,
            value_schema=schema,
        )
        self._next += 1
        return [record]


_SINK_TASK_CONFIG: Final = with_id(ConfigDef())


class VerifiableSinkConnector(NumberingConnector, SinkConnector):
    """Runs tasks.max tasks."""

    CONFIG = ConfigDef()

    def task_class(self) -> type[Task]:
        return VerifiableSinkTask


class VerifiableSinkTask(Versioned, SinkTask):
    """Prints each record twice: when it is put, and when it is flushed."""

    def start(self, props: dict[str, str]) -> None:
        self._name = props.get("name", "")
        self._id = AbstractConfig(_SINK_TASK_CONFIG, props).int("id")
        self._unflushed: dict[TopicPartition, list[dict[str, Any]]] = {}

    def put(self, records: Collection[SinkRecord]) -> None:
        for record in records:
            data = {
                "name": self._name,
                "task": record.key,
                "sinkTask": self._id,
                "topic": record.topic,
                "time_ms": now_ms(),
                "seqno": record.value,
                "offset": record.kafka_offset,
            }
            print_event(data)
            self._unflushed.setdefault(TopicPartition(record.topic, record.partition), []).append(data)

    def flush(self, current_offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        for tp in current_offsets:
            for data in self._unflushed.pop(tp, ()):
                print_event({**data, "time_ms": now_ms(), "flushed": True})

    def stop(self) -> None:
        return


_CONNECTOR_FAILURE: Final = "connector-failure"
_TASK_FAILURE: Final = "task-failure"
_POLL_MS: Final = 250

MOCK_CONFIG: Final = (
    ConfigDef()
    .define(
        "mock_mode",
        Type.STRING,
        None,
        None,
        Importance.LOW,
        f"{_CONNECTOR_FAILURE} or {_TASK_FAILURE}: what fails. With any other value, nothing fails.",
    )
    .define("delay_ms", Type.LONG, 15_000, None, Importance.LOW, "Time until the failure, in milliseconds.")
)


class MockFailure(RuntimeError):
    """The configured failure."""


class _Mock(Versioned, Connector):
    def start(self, props: dict[str, str]) -> None:
        self._props = props
        self._timer: threading.Timer | None = None
        config = AbstractConfig(MOCK_CONFIG, props)
        if config.get("mock_mode") == _CONNECTOR_FAILURE:
            failure = MockFailure("mock_mode=connector-failure")
            self._timer = threading.Timer(config.int("delay_ms") / 1000, lambda: self.context.raise_error(failure))
            self._timer.daemon = True
            self._timer.start()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        return [dict(self._props)]

    def config(self) -> ConfigDef:
        return MOCK_CONFIG


class MockSourceConnector(_Mock, SourceConnector):
    """Runs one task that returns no records."""

    def task_class(self) -> type[Task]:
        return MockSourceTask


class MockSinkConnector(_Mock, SinkConnector):
    """Runs one task that discards all records."""

    def task_class(self) -> type[Task]:
        return MockSinkTask


class _Fuse:
    """Raises the failure after the configured delay, if a failure is configured."""

    def __init__(self, props: dict[str, str]) -> None:
        config = AbstractConfig(MOCK_CONFIG, props)
        self.is_lit = config.get("mock_mode") == _TASK_FAILURE
        self.delay_ms = config.int("delay_ms")
        self._since_s = time.monotonic()

    def check(self) -> None:
        if self.is_lit and (time.monotonic() - self._since_s) * 1000 > self.delay_ms:
            raise MockFailure("mock_mode=task-failure")


class MockSourceTask(Versioned, SourceTask):
    """Returns no records."""

    def start(self, props: dict[str, str]) -> None:
        self._fuse = _Fuse(props)

    def poll(self) -> list[SourceRecord] | None:
        self._fuse.check()
        return []

    def stop(self) -> None:
        return


class MockSinkTask(Versioned, SinkTask):
    """Discards all records."""

    def start(self, props: dict[str, str]) -> None:
        self._fuse = _Fuse(props)
        self._schedule_check()

    def put(self, records: Collection[SinkRecord]) -> None:
        self._fuse.check()
        self._schedule_check()

    def stop(self) -> None:
        return

    def _schedule_check(self) -> None:
        """Request another call of ``put`` before the delay ends, even without records."""
        if self._fuse.is_lit:
            self.context.timeout(max(1, min(self._fuse.delay_ms, _POLL_MS)))


__all__ = [
    "MockSinkConnector",
    "MockSinkTask",
    "MockSourceConnector",
    "MockSourceTask",
    "SchemaSourceConnector",
    "SchemaSourceTask",
    "VerifiableSinkConnector",
    "VerifiableSinkTask",
    "VerifiableSourceConnector",
    "VerifiableSourceTask",
]
