"""Inserts record metadata as fields (org.apache.kafka.connect.transforms.InsertField)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from mm2.config.configdef import AbstractConfig, ConfigDef, ConfigException, Importance, Type
from mm2.connect.api.transformation import Record
from mm2.connect.data import logical
from mm2.connect.data.builder import SchemaBuilder
from mm2.connect.data.record import ConnectRecord
from mm2.connect.data.schema import INT32_SCHEMA, INT64_SCHEMA, STRING_SCHEMA, Schema
from mm2.connect.data.schema import Type as SchemaType
from mm2.connect.data.struct import Struct
from mm2.connect.transforms.part import PartTransformation, RecordPart, remembering, with_replace_null
from mm2.connect.transforms.requirements import require_map, require_sink_record, require_struct

TOPIC_FIELD: Final = "topic.field"
PARTITION_FIELD: Final = "partition.field"
OFFSET_FIELD: Final = "offset.field"
TIMESTAMP_FIELD: Final = "timestamp.field"
STATIC_FIELD: Final = "static.field"
STATIC_VALUE: Final = "static.value"
_PURPOSE: Final = "field insertion"
_SUFFIXES: Final = "A suffix ! makes it a required field, ? an optional one, which it is by default."
_SCHEMAS: Final = {
    TOPIC_FIELD: STRING_SCHEMA,
    PARTITION_FIELD: INT32_SCHEMA,
    OFFSET_FIELD: INT64_SCHEMA,
    TIMESTAMP_FIELD: logical.TIMESTAMP_SCHEMA,
    STATIC_FIELD: STRING_SCHEMA,
}


@dataclass(frozen=True)
class Insertion:
    """One field to insert; the configuration key determines its content."""

    key: str
    name: str
    optional: bool

    @classmethod
    def parse(cls, key: str, spec: str) -> Insertion:
        return cls(key, spec[:-1] if spec.endswith(("?", "!")) else spec, not spec.endswith("!"))

    @property
    def schema(self) -> Schema:
        return _SCHEMAS[self.key].as_optional() if self.optional else _SCHEMAS[self.key]


class InsertField(PartTransformation):
    """Adds fields with topic, partition, offset, timestamp or a fixed text."""

    CONFIG = with_replace_null(
        ConfigDef()
        .define(TOPIC_FIELD, Type.STRING, None, importance=Importance.MEDIUM, doc=f"Field for the topic. {_SUFFIXES}")
        .define(
            PARTITION_FIELD,
            Type.STRING,
            None,
            importance=Importance.MEDIUM,
            doc=f"Field for the partition. {_SUFFIXES}",
        )
        .define(
            OFFSET_FIELD,
            Type.STRING,
            None,
            importance=Importance.MEDIUM,
            doc=f"Field for the offset, with sink connectors only. {_SUFFIXES}",
        )
        .define(
            TIMESTAMP_FIELD,
            Type.STRING,
            None,
            importance=Importance.MEDIUM,
            doc=f"Field for the timestamp. {_SUFFIXES}",
        )
        .define(
            STATIC_FIELD, Type.STRING, None, importance=Importance.MEDIUM, doc=f"Field for a fixed text. {_SUFFIXES}"
        )
        .define(STATIC_VALUE, Type.STRING, None, importance=Importance.MEDIUM, doc="The fixed text.")
    )

    def _configured(self, settings: AbstractConfig) -> None:
        self._insertions = [Insertion.parse(key, spec) for key in _SCHEMAS if (spec := settings.get(key)) is not None]
        self._static: str | None = settings.get(STATIC_VALUE)
        if not self._insertions:
            raise ConfigException("No field insertion configured")
        static = next((each.name for each in self._insertions if each.key == STATIC_FIELD), None)
        if static is not None and self._static is None:
            raise ConfigException(STATIC_VALUE, None, f"No value specified for static field: {static}")
        self._updated_schema: Callable[[Schema], Schema] = remembering(self._updated)

    def apply(self, record: Record) -> Record | None:
        value, schema = self._value_of(record), self._schema_of(record)
        if value is None:
            return record
        if schema is None:
            fields = dict(require_map(value, _PURPOSE))
            for insertion in self._insertions:
                inserted = self._inserted(insertion, record)
                if inserted is not None:
                    fields[insertion.name] = inserted
            return self._changed(record, None, fields)
        return self._with_schema(record, require_struct(value, _PURPOSE))

    def _with_schema(self, record: Record, struct: Struct) -> Record:
        result = Struct(self._updated_schema(struct.schema))
        for field in struct.schema.fields:
            result.put(field.name, self._field_value(struct, field))
        for insertion in self._insertions:
            inserted = self._inserted(insertion, record)
            if inserted is None:
                continue
            is_timestamp = insertion.key == TIMESTAMP_FIELD
            result.put(insertion.name, logical.timestamp_from_ms(inserted) if is_timestamp else inserted)
        return self._changed(record, result.schema, result)

    def _inserted(self, insertion: Insertion, record: ConnectRecord) -> Any:
        match insertion.key:
            case "topic.field":
                return record.topic
            case "partition.field":
                return record.partition
            case "offset.field":
                return require_sink_record(record, _PURPOSE).kafka_offset
            case "timestamp.field":
                return record.timestamp
            case _:
                return self._static

    def _updated(self, schema: Schema) -> Schema:
        builder = SchemaBuilder.like(schema, SchemaType.STRUCT)
        for field in schema.fields:
            builder.field(field.name, field.schema)
        for insertion in self._insertions:
            builder.field(insertion.name, insertion.schema)
        return builder.build()


class InsertFieldKey(InsertField):
    """Inserts into the key."""

    part = RecordPart.KEY


class InsertFieldValue(InsertField):
    """Inserts into the value."""

    part = RecordPart.VALUE
