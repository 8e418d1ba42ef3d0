"""Wraps a record part in a single field (org.apache.kafka.connect.transforms.HoistField)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mm2.config.configdef import AbstractConfig, ConfigDef, Importance, Type
from mm2.connect.api.transformation import Record
from mm2.connect.data.builder import SchemaBuilder
from mm2.connect.data.schema import Schema
from mm2.connect.data.struct import Struct
from mm2.connect.transforms.part import PartTransformation, RecordPart, remembering

FIELD: Final = "field"


class HoistField(PartTransformation):
    """The key or value becomes the only field of a struct, or the only entry of a map."""

    CONFIG = ConfigDef().define(
        FIELD, Type.STRING, importance=Importance.MEDIUM, doc="The name of the field that holds it."
    )

    def _configured(self, settings: AbstractConfig) -> None:
        self._field = settings.str(FIELD)
        self._outer: Callable[[Schema], Schema] = remembering(
            lambda schema: SchemaBuilder.struct().field(self._field, schema).build()
        )

    def apply(self, record: Record) -> Record | None:
        value, schema = self._value_of(record), self._schema_of(record)
        if schema is None:
            return self._changed(record, None, {self._field: value})
        struct = Struct(self._outer(schema)).put(self._field, value)
        return self._changed(record, struct.schema, struct)


class HoistFieldKey(HoistField):
    """Wraps the key."""

    part = RecordPart.KEY


class HoistFieldValue(HoistField):
    """Wraps the value."""

    part = RecordPart.VALUE
