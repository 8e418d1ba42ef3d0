"""A source of structs, optionally alternating between two schema versions (SchemaSourceConnector and its task)."""

from __future__ import annotations

from typing import Any, Final

from mm2 import __version__
from mm2.config.configdef import AbstractConfig, ConfigDef, Importance, Type, non_empty
from mm2.connect.api import Schema, SourceConnector, SourceRecord, SourceTask, Task
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
from mm2.connect.verifiable.connector import NumberingConnector, with_id
from mm2.connect.verifiable.pace import Throttler, say

_CONFIG: Final = (
    ConfigDef()
    .define("topic", Type.STRING, validator=non_empty(), importance=Importance.HIGH, doc="Where the records go.")
    .define("num.messages", Type.LONG, importance=Importance.HIGH, doc="How many records each task makes.")
    .define(
        "throughput", Type.LONG, -1, None, Importance.MEDIUM, "Most records a second and task; -1 = as many as it can."
    )
    .define("multiple.schema", Type.BOOLEAN, False, None, Importance.LOW, "Every other record has version 2.")
    .define("partition.count", Type.INT, 1, None, Importance.LOW, "Values of the field partitioning are below this.")
)
_TASK_CONFIG: Final = with_id(_CONFIG)


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

    CONFIG = _CONFIG

    def task_class(self) -> type[Task]:
        return SchemaSourceTask


class SchemaSourceTask(SourceTask):
    """Continues after its committed offset ``{"seqno": n}``."""

    def version(self) -> str:
        return __version__

    def start(self, props: dict[str, str]) -> None:
        config = AbstractConfig(_TASK_CONFIG, props)
        self._id, self._topic = config.int("id"), config.str("topic")
        self._most, self._two = config.int("num.messages"), config.bool("multiple.schema")
        self._partitions = max(1, config.int("partition.count"))
        self._partition = {"id": self._id}
        (offset,) = self.context.offset_reader.offsets([self._partition])
        self._next = 0 if offset is None else int(offset["seqno"]) + 1
        self._made = 0
        self._pace = Throttler(config.int("throughput"))

    def poll(self) -> list[SourceRecord] | None:
        if self._made >= self._most:
            self._pace.rest()
            return []
        if self._pace.is_ahead(self._made):
            self._pace.keep(self._made)
            if self._pace.is_ahead(self._made):
                return None
        second = self._two and self._made % 2 == 1
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
        say({"task": self._id, "seqno": self._next})
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
        self._made += 1
        return [record]

    def stop(self) -> None:
        self._pace.stop()
