"""Conversion of values to another type (org.apache.kafka.connect.transforms.Cast)."""

from __future__ import annotations

import base64
import datetime as dt
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from mm2.config.configdef import AbstractConfig, ConfigDef, ConfigException, Importance, parse_type
from mm2.config.configdef import Type as ConfigType
from mm2.config.definitions.validators import Check
from mm2.config.definitions.values import trim
from mm2.connect.api.transformation import Record
from mm2.connect.data import logical, numbers
from mm2.connect.data.builder import SchemaBuilder, infer_schema
from mm2.connect.data.numbers import Float32
from mm2.connect.data.schema import Schema, Type
from mm2.connect.data.struct import WIDTHS, Struct
from mm2.connect.data.values import java_text, moment_text
from mm2.connect.errors import DataError
from mm2.connect.transforms.base import (
    PartTransformation,
    RecordPart,
    remembering,
    require_map,
    require_struct,
    split_pair,
    with_replace_null,
)

SPEC: Final = "spec"
_PURPOSE: Final = "cast types"
_TO: Final = (*WIDTHS, Type.FLOAT32, Type.FLOAT64, Type.BOOLEAN, Type.STRING)
_FROM: Final = (*_TO, Type.BYTES)
_MOMENTS: Final = {logical.DATE, logical.TIME, logical.TIMESTAMP}
_INTEGER: Final = re.compile(r"[+-]?\d+")


def parse_spec(mappings: list[str]) -> dict[str | None, Type]:
    """Target types by field; that of the whole value has the key None. Raises ConfigException."""
    casts: dict[str | None, Type] = {}
    for mapping in mappings:
        parts = split_pair(mapping)
        if len(parts) > 2:
            raise ConfigException(SPEC, mappings, f"Invalid cast: {mapping}")
        casts[None if len(parts) == 1 else trim(parts[0])] = _type_named(trim(parts[-1]))
    if None in casts and len(mappings) > 1:
        raise ConfigException(
            "Cast transformations that specify a type to cast the entire value to may only specify a single cast in "
            "their spec"
        )
    return casts


def _type_named(name: str) -> Type:
    try:
        wanted = Type(name.upper())
    except ValueError:
        raise ConfigException(f"Invalid type found in casting spec: {name}") from None
    if wanted not in _TO:
        raise ConfigException(f"Cast transformation does not support casting to {name}; it does to {_names(_TO)}")
    return wanted


def _names(types: tuple[Type, ...]) -> str:
    return ", ".join(type_.value for type_ in types)


def _check_spec(name: str, value: object) -> None:
    if not isinstance(value, list) or not value:
        raise ConfigException("Must specify at least one field to cast.")
    parse_spec(value)


class Cast(PartTransformation):
    """Converts fields, or the whole key or value, to another type. Values out of range wrap like casts in Java."""

    CONFIG = with_replace_null(
        ConfigDef().define(
            SPEC,
            ConfigType.LIST,
            validator=Check(_check_spec, "list of colon-delimited pairs, e.g. <code>foo:bar,abc:xyz</code>"),
            importance=Importance.HIGH,
            doc="Pairs field:type, or a single type for the whole key or value. Types are int8, int16, int32, int64, "
            "float32, float64, boolean and string; bytes can be cast to string only.",
        )
    )

    def _configured(self, settings: AbstractConfig) -> None:
        self._casts = parse_spec(settings.list(SPEC))
        self._whole = self._casts.get(None)
        self._updated_schema: Callable[[Schema], Schema] = remembering(self._updated)

    def apply(self, record: Record) -> Record | None:
        value, schema = self._value_of(record), self._schema_of(record)
        if value is None:
            return record
        if schema is None:
            return self._changed(record, None, self._schemaless(value))
        updated = self._updated_schema(schema)
        if self._whole is not None:
            return self._changed(record, updated, _cast(schema, value, self._whole))
        return self._changed(record, updated, self._struct(updated, value))

    def _schemaless(self, value: Any) -> Any:
        if self._whole is not None:
            return _cast(None, value, self._whole)
        fields = require_map(value, _PURPOSE)
        return {**fields, **{str(name): _cast(None, fields.get(str(name)), to) for name, to in self._casts.items()}}

    def _struct(self, updated: Schema, value: Any) -> Any:
        struct = require_struct(value, _PURPOSE)
        result = Struct(updated)
        for field in struct.schema.fields:
            given, to = self._field_value(struct, field), self._casts.get(field.name)
            result.put(field.name, given if to is None else _cast(field.schema, given, to))
        return result

    def _updated(self, schema: Schema) -> Schema:
        if self._whole is not None:
            builder = SchemaBuilder.like(schema, self._whole)
        else:
            builder = SchemaBuilder.like(schema, Type.STRUCT)
            for field in schema.fields:
                to = self._casts.get(field.name)
                builder.field(field.name, field.schema if to is None else _field_schema(field.schema, to))
        if schema.optional:
            builder.optional()
        if schema.default is not None:
            builder.default(_cast(schema, schema.default, builder.type))
        return builder.build()


def _field_schema(schema: Schema, to: Type) -> Schema:
    builder = SchemaBuilder(to)
    if schema.optional:
        builder.optional()
    if schema.default is not None:
        builder.default(_cast(schema, schema.default, to))
    return builder.build()


def _cast(schema: Schema | None, value: Any, to: Type) -> Any:
    if value is None:
        return None
    found = _type_of(schema, value)
    if found not in _FROM:
        raise DataError(
            f"Cast transformation does not support casting from {found.value}; it does from {_names(_FROM)}"
        )
    if to not in _TO:
        raise DataError(f"{to.value} is not supported in the Cast transformation.")
    if to is Type.STRING:
        return _to_string(schema, value)
    if schema is not None and schema.name in _MOMENTS:
        value = logical.to_number(schema, value)
    if isinstance(value, bytes | bytearray | memoryview | dt.date | dt.time):
        raise DataError(f"Unexpected type in Cast transformation: {type(value).__name__}")
    match to:
        case Type.BOOLEAN:
            return _to_boolean(value)
        case Type.FLOAT32 | Type.FLOAT64:
            return _to_float(value, to)
        case _:
            return _to_integer(value, WIDTHS[to])


def _type_of(schema: Schema | None, value: Any) -> Type:
    if schema is not None:
        return schema.type
    if isinstance(value, list | tuple | dict):
        return Type.ARRAY if isinstance(value, list | tuple) else Type.MAP
    inferred = infer_schema(value)
    if inferred is None:
        raise DataError(
            f"Cast transformation was passed a value of type {type(value).__name__}, which is not a Connect type"
        )
    return inferred.type


def _out_of_range(value: Any) -> DataError:
    return DataError(f"Value ({value}) was out of range for requested data type")


def _to_integer(value: Any, bits: int) -> int:
    match value:
        case bool():
            return int(value)
        case int():
            return numbers.wrap(value, bits)
        case float():
            return numbers.to_integer(value, bits)
        case Decimal():
            return numbers.wrap(numbers.whole(value), bits)
        case _:
            if not _INTEGER.fullmatch(value) or len(value) > 1000 or not numbers.fits(int(value), bits):
                raise _out_of_range(value)
            return int(value)


def _to_float(value: Any, to: Type) -> float:
    if isinstance(value, str):
        try:
            value = parse_type("value", value, ConfigType.DOUBLE)
        except ConfigException as error:
            raise _out_of_range(value) from error
    number = Decimal(int(value)) if isinstance(value, bool) else value
    return Float32(number) if to is Type.FLOAT32 else numbers.nearest_double(number)


def _to_boolean(value: Any) -> bool:
    match value:
        case bool():
            return value
        case str():
            return value.lower() == "true"
        case _:
            return _to_integer(value, 64) != 0


def _to_string(schema: Schema | None, value: Any) -> str:
    match value:
        case dt.date() | dt.time():
            return moment_text(value)
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode("ascii")
        case _:
            return java_text(schema, value)


class CastKey(Cast):
    """Converts the key."""

    part = RecordPart.KEY


class CastValue(Cast):
    """Converts the value."""

    part = RecordPart.VALUE
