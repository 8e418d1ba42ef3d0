"""A source that counts (VerifiableSourceConnector and its task): key = task, value = 0, 1, 2 …"""

from __future__ import annotations

from typing import Any, Final

from mm2 import __version__
from mm2.config.configdef import AbstractConfig, ConfigDef, Importance, Type, non_empty
from mm2.connect.api import SourceConnector, SourceRecord, SourceTask, Task
from mm2.connect.data.builder import SchemaBuilder
from mm2.connect.data.schema import INT32_SCHEMA, INT64_SCHEMA, STRING_SCHEMA
from mm2.connect.data.struct import Struct
from mm2.connect.verifiable.connector import NumberingConnector, with_id
from mm2.connect.verifiable.pace import Throttler, now_ms, say
from mm2.kafka.producer import RecordMetadata

_CONFIG: Final = (
    ConfigDef()
    .define("topic", Type.STRING, validator=non_empty(), importance=Importance.HIGH, doc="Where the records go.")
    .define(
        "throughput", Type.LONG, -1, None, Importance.MEDIUM, "Most records a second and task; -1 = as many as it can."
    )
    .define(
        "complete.record.data",
        Type.BOOLEAN,
        False,
        None,
        Importance.LOW,
        "Values are structs with name, task, topic, time_ms and seqno, not only the number.",
    )
)
_TASK_CONFIG: Final = with_id(_CONFIG)

_COMPLETE: Final = (
    SchemaBuilder.struct()
    .field("name", STRING_SCHEMA)
    .field("task", INT32_SCHEMA)
    .field("topic", STRING_SCHEMA)
    .field("time_ms", INT64_SCHEMA)
    .field("seqno", INT64_SCHEMA)
    .build()
)


class VerifiableSourceConnector(NumberingConnector, SourceConnector):
    """Runs tasks.max tasks, each with its own counter."""

    CONFIG = _CONFIG

    def task_class(self) -> type[Task]:
        return VerifiableSourceTask


class VerifiableSourceTask(SourceTask):
    """Continues after its committed offset ``{"seqno": n}``; prints sent and acknowledged records on stdout."""

    def version(self) -> str:
        return __version__

    def start(self, props: dict[str, str]) -> None:
        config = AbstractConfig(_TASK_CONFIG, props)
        self._name = props.get("name", "")
        self._id, self._topic = config.int("id"), config.str("topic")
        self._complete = config.bool("complete.record.data")
        self._partition = {"id": self._id}
        (offset,) = self.context.offset_reader.offsets([self._partition])
        self._next = self._first = 0 if offset is None else int(offset["seqno"]) + 1
        self._pace = Throttler(config.int("throughput"))

    def poll(self) -> list[SourceRecord] | None:
        sent = self._next - self._first
        if self._pace.is_ahead(sent):
            self._pace.keep(sent)
            if self._pace.is_ahead(sent):
                return None
        data: dict[str, Any] = {
            "name": self._name,
            "task": self._id,
            "topic": self._topic,
            "time_ms": now_ms(),
            "seqno": self._next,
        }
        say(data)
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
        say(
            {
                "name": self._name,
                "task": self._id,
                "topic": self._topic,
                "time_ms": now_ms(),
                "seqno": (record.source_offset or {}).get("seqno"),
                "committed": True,
            }
        )

    def stop(self) -> None:
        self._pace.stop()
