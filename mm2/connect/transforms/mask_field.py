"""Masks the content of fields (org.apache.kafka.connect.transforms.MaskField)."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any, Final

from mm2.config.configdef import AbstractConfig, ConfigDef, Importance, distinct, non_empty
from mm2.config.configdef import Type as ConfigType
from mm2.connect.api.transformation import Record
from mm2.connect.data import logical
from mm2.connect.data.numbers import Float32
from mm2.connect.data.schema import Schema, Type
from mm2.connect.data.struct import WIDTHS, Struct
from mm2.connect.data.values import big_decimal, convert_to_double, convert_to_float, convert_to_integer
from mm2.connect.errors import DataError
from mm2.connect.transforms.base import PartTransformation, RecordPart, require_map, require_struct, with_replace_null

FIELDS: Final = "fields"
REPLACEMENT: Final = "replacement"
_PURPOSE: Final = "mask fields"


class MaskField(PartTransformation):
    """Replaces fields by the zero value of their type, or numbers and strings by a replacement."""

    CONFIG = with_replace_null(
        ConfigDef()
        .define(
            FIELDS,
            ConfigType.LIST,
            validator=distinct(empty_allowed=False),
            importance=Importance.HIGH,
            doc="Fields to mask.",
        )
        .define(
            REPLACEMENT,
            ConfigType.STRING,
            None,
            non_empty(),
            importance=Importance.LOW,
            doc="Replacement for the values of all fields; for numbers and strings only.",
        )
    )

    def _configured(self, settings: AbstractConfig) -> None:
        self._fields = settings.list(FIELDS)
        self._replacement: str | None = settings.get(REPLACEMENT)

    def apply(self, record: Record) -> Record | None:
        value, schema = self._value_of(record), self._schema_of(record)
        if schema is None:
            fields = require_map(value, _PURPOSE)
            masked = {name: self._masked(None, fields.get(name)) for name in self._fields}
            return self._changed(record, None, {**fields, **masked})
        struct = require_struct(value, _PURPOSE)
        result = Struct(struct.schema)
        for field in struct.schema.fields:
            held = self._field_value(struct, field)
            result.put(field.name, self._masked(field.schema, held) if field.name in self._fields else held)
        return self._changed(record, schema, result)

    def _masked(self, schema: Schema | None, value: Any) -> Any:
        if value is None:
            return None
        return _zero(value) if self._replacement is None else _replaced(schema, value, self._replacement)


def _zero(value: Any) -> Any:
    match value:
        case bool():
            return False
        case int():
            return 0
        case Float32():
            return Float32(0.0)
        case float():
            return 0.0
        case Decimal():
            return Decimal(0)
        case str():
            return ""
        case dt.datetime():
            return logical.EPOCH
        case dt.date():
            return logical.EPOCH_DAY
        case dt.time():
            return dt.time()
        case list() | tuple():
            return []
        case dict():
            return {}
        case _:
            raise DataError(f"Cannot mask value of type: {type(value).__name__}")


def _replaced(schema: Schema | None, value: Any, replacement: str) -> Any:
    match value:
        case str():
            return replacement
        case int() if not isinstance(value, bool):
            return convert_to_integer(None, replacement, WIDTHS.get(schema.type, 64) if schema is not None else 64)
        case float():
            is_single = isinstance(value, Float32) or (schema is not None and schema.type is Type.FLOAT32)
            return convert_to_float(None, replacement) if is_single else convert_to_double(None, replacement)
        case Decimal():
            try:
                return big_decimal(replacement)
            except ValueError as error:
                raise DataError(f"Unable to convert {replacement} to number") from error
        case _:
            raise DataError(f"Cannot mask value of type {type(value).__name__} with custom replacement.")


class MaskFieldKey(MaskField):
    """Masks fields of the key."""

    part = RecordPart.KEY


class MaskFieldValue(MaskField):
    """Masks fields of the value."""

    part = RecordPart.VALUE
