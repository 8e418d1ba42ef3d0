"""Converts timestamps between formats (org.apache.kafka.connect.transforms.TimestampConverter)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any, Final

from mm2.config.configdef import AbstractConfig, ConfigDef, ConfigException, Importance, one_of
from mm2.config.configdef import Type as ConfigType
from mm2.config.definitions.values import trim
from mm2.connect.api.transformation import Record
from mm2.connect.data import logical, numbers
from mm2.connect.data.builder import SchemaBuilder
from mm2.connect.data.schema import INT64_SCHEMA, STRING_SCHEMA, Schema, Type
from mm2.connect.data.simple_date_format import DatePatternError, SimpleDateFormat
from mm2.connect.data.struct import Struct
from mm2.connect.errors import ConnectError, DataError
from mm2.connect.transforms.base import (
    PartTransformation,
    RecordPart,
    remembering,
    require_map,
    require_struct_or_none,
    with_replace_null,
)

FIELD: Final = "field"
TARGET_TYPE: Final = "target.type"
FORMAT: Final = "format"
UNIX_PRECISION: Final = "unix.precision"
_PURPOSE: Final = "converting timestamp formats"
#: Units per millisecond.
_PER_MS: Final = {"nanoseconds": 1_000_000, "microseconds": 1000, "milliseconds": 1}
_SCHEMAS: Final = {
    "string": STRING_SCHEMA,
    "unix": INT64_SCHEMA,
    "Date": logical.DATE_SCHEMA,
    "Time": logical.TIME_SCHEMA,
    "Timestamp": logical.TIMESTAMP_SCHEMA,
}
_BY_NAME: Final = {logical.DATE: "Date", logical.TIME: "Time", logical.TIMESTAMP: "Timestamp"}


class TimestampConverter(PartTransformation):
    """Converts a field, or the whole key or value, between text, Unix time, Date, Time and Timestamp; in UTC."""

    CONFIG = with_replace_null(
        ConfigDef()
        .define(
            FIELD,
            ConfigType.STRING,
            "",
            importance=Importance.HIGH,
            doc="The field with the timestamp; empty if the whole key or value is a timestamp.",
        )
        .define(
            TARGET_TYPE,
            ConfigType.STRING,
            validator=one_of(*_SCHEMAS),
            importance=Importance.HIGH,
            doc="The target type: string, unix, Date, Time or Timestamp.",
        )
        .define(
            FORMAT,
            ConfigType.STRING,
            "",
            importance=Importance.MEDIUM,
            doc="Format of text that is read or written, a pattern of <code>java.text.SimpleDateFormat</code>.",
        )
        .define(
            UNIX_PRECISION,
            ConfigType.STRING,
            "milliseconds",
            one_of("nanoseconds", "microseconds", "milliseconds", "seconds"),
            importance=Importance.LOW,
            doc="The unit of Unix time that is read or written. Fractions of a millisecond are lost.",
        )
    )

    def _configured(self, settings: AbstractConfig) -> None:
        self._field = settings.str(FIELD)
        self._target = settings.str(TARGET_TYPE)
        self._precision = settings.str(UNIX_PRECISION)
        self._format = self._compiled(settings.str(FORMAT))
        self._updated_schema: Callable[[Schema], Schema] = remembering(self._updated)

    def _compiled(self, pattern: str) -> SimpleDateFormat | None:
        if not trim(pattern):
            if self._target == "string":
                raise ConfigException(
                    "TimestampConverter requires format option to be specified when using string timestamps"
                )
            return None
        try:
            compiled = SimpleDateFormat(pattern)
        except DatePatternError as error:
            raise ConfigException(FORMAT, pattern, f"not a pattern of SimpleDateFormat: {error}") from error
        if self._target != "string" and not compiled.can_parse:
            raise ConfigException(FORMAT, pattern, "dates with week fields cannot be parsed")
        return compiled

    def apply(self, record: Record) -> Record | None:
        value, schema = self._value_of(record), self._schema_of(record)
        if schema is None:
            return self._changed(record, None, self._schemaless(value))
        if not self._field:
            target = _SCHEMAS[self._target]
            converted = self._converted(value, _source_type(schema))
            return self._changed(record, target.as_optional() if schema.optional else target, converted)
        struct = require_struct_or_none(value, _PURPOSE)
        updated = self._updated_schema(schema)
        return self._changed(record, updated, None if struct is None else self._struct(struct, updated))

    def _schemaless(self, value: Any) -> Any:
        if value is None or not self._field:
            return self._converted(value, None)
        fields = require_map(value, _PURPOSE)
        return {**fields, self._field: self._converted(fields.get(self._field), None)}

    def _struct(self, struct: Struct, updated: Schema) -> Struct:
        result = Struct(updated)
        for field in struct.schema.fields:
            held = self._field_value(struct, field)
            if field.name == self._field:
                held = self._converted(held, _source_type(field.schema))
            result.put(field.name, held)
        return result

    def _updated(self, schema: Schema) -> Schema:
        if schema.type is not Type.STRUCT:
            raise DataError(f"Only Struct objects supported for [{_PURPOSE}], found: {schema.type.value}")
        builder = SchemaBuilder.like(schema, Type.STRUCT)
        target = _SCHEMAS[self._target]
        for field in schema.fields:
            converted = target.as_optional() if field.schema.optional else target
            builder.field(field.name, converted if field.name == self._field else field.schema)
        if schema.optional:
            builder.optional()
        if schema.default is not None:
            builder.default(self._struct(schema.default, builder.build()))
        return builder.build()

    def _converted(self, value: Any, source: str | None) -> Any:
        if value is None:
            return None
        return self._from_ms(self._to_ms(value, _inferred(value) if source is None else source))

    def _to_ms(self, value: Any, source: str) -> int:
        match source, value:
            case "string", str():
                return self._parsed(value)
            case "unix", int() if not isinstance(value, bool):
                return self._unix_ms(value)
            case "Date" | "Time" | "Timestamp", dt.date() | dt.time():
                return logical.ms_of(value)
        raise DataError(f"Expected {source} timestamp, but found {type(value).__name__}")

    def _parsed(self, text: str) -> int:
        if self._format is None:
            raise DataError(f"A text ({text}) can only be read as a timestamp when a format is configured")
        ms = self._format.parse(text)
        if ms is None:
            raise DataError(
                f"Could not parse timestamp: value ({text}) does not match pattern ({self._format.pattern})"
            )
        return ms

    def _unix_ms(self, value: int) -> int:
        if self._precision == "seconds":
            return _saturated(value * 1000)
        return _toward_zero(value, _PER_MS[self._precision])

    def _from_ms(self, ms: int) -> Any:
        match self._target:
            case "string":
                if self._format is None:
                    raise AssertionError("checked when it was configured")
                return self._format.format(ms)
            case "unix":
                if self._precision == "seconds":
                    return _toward_zero(ms, 1000)
                return _saturated(ms * _PER_MS[self._precision])
            case "Date":
                return logical.date_from_days(ms // logical.MS_PER_DAY)
            case "Time":
                return logical.time_from_ms(ms % logical.MS_PER_DAY)
            case _:
                return logical.timestamp_from_ms(ms)


def _saturated(value: int) -> int:
    return min(max(value, numbers.LONG_MIN), numbers.LONG_MAX)


def _toward_zero(value: int, divisor: int) -> int:
    return value // divisor if value >= 0 else -(-value // divisor)


def _source_type(schema: Schema) -> str:
    if schema.name in _BY_NAME:
        return _BY_NAME[schema.name]
    if schema.type is Type.STRING:
        return "string"
    if schema.type is Type.INT64:
        return "unix"
    raise ConnectError(f"Schema {schema} does not correspond to a known timestamp type format")


def _inferred(value: Any) -> str:
    match value:
        case dt.date() | dt.time():
            return "Timestamp"
        case int() if not isinstance(value, bool):
            return "unix"
        case str():
            return "string"
        case _:
            raise DataError(f"TimestampConverter does not support {type(value).__name__} objects as timestamps")


class TimestampConverterKey(TimestampConverter):
    """Converts the key."""

    part = RecordPart.KEY


class TimestampConverterValue(TimestampConverter):
    """Converts the value."""

    part = RecordPart.VALUE
