"""Creates a key from fields of the value (org.apache.kafka.connect.transforms.ValueToKey)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mm2.config.configdef import AbstractConfig, ConfigDef, Importance, Type, distinct
from mm2.connect.api.transformation import Record
from mm2.connect.data.builder import SchemaBuilder
from mm2.connect.data.errors import DataError
from mm2.connect.data.schema import Schema
from mm2.connect.data.struct import Struct
from mm2.connect.transforms.part import PartTransformation, RecordPart, remembering, with_replace_null
from mm2.connect.transforms.requirements import require_map, require_struct

FIELDS: Final = "fields"
_PURPOSE: Final = "copying fields from value to key"


class ValueToKey(PartTransformation):
    """Replaces the key by a struct or map of some fields of the value."""

    part = RecordPart.VALUE
    CONFIG = with_replace_null(
        ConfigDef().define(
            FIELDS,
            Type.LIST,
            validator=distinct(empty_allowed=False),
            importance=Importance.HIGH,
            doc="Fields of the value that make the key.",
        )
    )

    def _configured(self, settings: AbstractConfig) -> None:
        self._fields = settings.list(FIELDS)
        self._key_schema: Callable[[Schema], Schema] = remembering(self._of_fields)

    def apply(self, record: Record) -> Record | None:
        if record.value_schema is None:
            fields = require_map(record.value, _PURPOSE)
            return record.new_record(key_schema=None, key={name: fields.get(name) for name in self._fields})
        value = require_struct(record.value, _PURPOSE)
        key = Struct(self._key_schema(value.schema))
        for field in key.schema.fields:
            key.put(field.name, self._field_value(value, field))
        return record.new_record(key_schema=key.schema, key=key, value_schema=value.schema)

    def _of_fields(self, schema: Schema) -> Schema:
        builder = SchemaBuilder.struct()
        for name in self._fields:
            field = schema.field_named(name)
            if field is None:
                raise DataError(f"Field does not exist: {name}")
            builder.field(name, field.schema)
        return builder.build()
