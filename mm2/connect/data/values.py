"""Conversion of values to text and between types (org.apache.kafka.connect.data.Values).

SimpleHeaderConverter writes with `convert_to_string` and reads with `mm2.connect.data.values_parser`.
"""

from __future__ import annotations

import base64
import datetime as dt
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from mm2.connect.data import logical, numbers
from mm2.connect.data.builder import SchemaBuilder
from mm2.connect.data.errors import DataError
from mm2.connect.data.numbers import Float32
from mm2.connect.data.schema import (
    BOOLEAN_SCHEMA,
    BYTES_SCHEMA,
    FLOAT32_SCHEMA,
    FLOAT64_SCHEMA,
    INT64_SCHEMA,
    STRING_SCHEMA,
    Schema,
    Type,
)
from mm2.connect.data.simple_date_format import SimpleDateFormat
from mm2.connect.data.struct import WIDTHS, Struct

DATE_FORMAT: Final = SimpleDateFormat("yyyy-MM-dd")
TIME_FORMAT: Final = SimpleDateFormat("HH:mm:ss.SSS'Z'")
TIMESTAMP_FORMAT: Final = SimpleDateFormat("yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")

_NUMBER_PATTERN: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,10})?")


def infer_schema(value: Any) -> Schema | None:
    """Infer a value's schema; None when that is not possible. Integers are int64: Python's have no width."""
    match value:
        case str():
            return STRING_SCHEMA
        case bool():
            return BOOLEAN_SCHEMA
        case int():
            return INT64_SCHEMA
        case float():
            return FLOAT32_SCHEMA if isinstance(value, Float32) else FLOAT64_SCHEMA
        case bytes() | bytearray() | memoryview():
            return BYTES_SCHEMA
        case Struct():
            return value.schema
        case list() | tuple():
            items = _common(value)
            return None if items is None else SchemaBuilder.array(items).build()
        case Mapping():
            keys, values = _common(value), _common(value.values())
            return None if keys is None or values is None else SchemaBuilder.map(keys, values).build()
        case _:
            return None


def _common(values: Any) -> Schema | None:
    """The common schema of all values, optional when some are None; None when they differ or there are none."""
    found: Schema | None = None
    optional = False
    for value in values:
        if value is None:
            optional = True
            continue
        schema = infer_schema(value)
        if schema is None or (found is not None and found.type is not schema.type):
            return None
        found = schema
    return found.as_optional() if found is not None and optional else found


def moment_text(value: logical.Moment) -> str:
    """A date, time or timestamp as ISO text; as in Java the number of ms alone determines the format.

    Values before 2 January 1970 are formatted as a time of day, values at midnight as a date.
    """
    ms = logical.ms_of(value)
    if ms < logical.MS_PER_DAY:
        return TIME_FORMAT.format(ms)
    return (DATE_FORMAT if ms % logical.MS_PER_DAY == 0 else TIMESTAMP_FORMAT).format(ms)


def number_text(schema: Schema | None, value: float | Decimal) -> str:
    """A number as Java prints it; the schema shows whether a float is of single precision."""
    if isinstance(value, float):
        if isinstance(value, Float32) or (schema is not None and schema.type is Type.FLOAT32):
            return numbers.single_text(numbers.single(value))
        return numbers.double_text(value)
    return str(value)


def convert_to_string(schema: Schema | None, value: Any) -> str | None:
    """Text of any value; None stays None. Raises DataError when the value has no Connect type."""
    return None if value is None else _text(schema, value, embedded=False)


def _text(schema: Schema | None, value: Any, *, embedded: bool) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float() | Decimal():
            return number_text(schema, value)
        case str():
            return f'"{_escaped(value)}"' if embedded else value
        case bytes() | bytearray() | memoryview():
            encoded = base64.b64encode(value).decode("ascii")
            return f'"{encoded}"' if embedded else encoded
        case list() | tuple():
            items = schema.value_schema if schema is not None else None
            return "[" + ",".join(_text(items, item, embedded=True) for item in value) + "]"
        case Mapping():
            keys = schema.key_schema if schema is not None else None
            values = schema.value_schema if schema is not None else None
            entries = (f"{_text(keys, k, embedded=True)}:{_text(values, v, embedded=True)}" for k, v in value.items())
            return "{" + ",".join(entries) + "}"
        case Struct():
            fields = (
                f"{_text(None, field.name, embedded=True)}:{_text(field.schema, value.get(field.name), embedded=True)}"
                for field in value.schema.fields
            )
            return "{" + ",".join(fields) + "}"
        case dt.date() | dt.time():
            return moment_text(value)
        case _:
            raise DataError(f"Failed to serialize unexpected value type {type(value).__name__}")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _parsed_value(text: str) -> Any:
    from mm2.connect.data.values_parser import parse_string  # noqa: PLC0415 - circular import: the parser needs conversions

    return parse_string(text).value


def big_decimal(text: str) -> Decimal:
    """Parse a text like Java's BigDecimal. Raises ValueError."""
    if not _NUMBER_PATTERN.fullmatch(text):
        raise ValueError(f"{text!r} is no number")
    return Decimal(text)


def as_long(value: Any, schema: Schema | None) -> int:
    """The number in a value, truncated to 64 bits like a cast in Java. Raises DataError when there is none."""
    match value:
        case bool():
            pass
        case int():
            return numbers.wrap(value, 64)
        case float():
            return numbers.to_integer(value, 64)
        case Decimal():
            return numbers.whole(value)
        case str():
            try:
                return numbers.whole(big_decimal(value))
            except ValueError as error:
                raise DataError(f"Unable to convert {value} to a number") from error
        case dt.date() | dt.time() if schema is not None:
            return logical.to_number(schema, value)
    wanted = "a number" if schema is None else str(schema)
    raise DataError(f"Unable to convert {value} ({type(value).__name__}) to {wanted}")


def as_double(value: Any, schema: Schema | None) -> float:
    """The number in a value. Raises DataError when there is none."""
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return numbers.nearest_double(value)
    if isinstance(value, str):
        try:
            return float(big_decimal(value))
        except ValueError as error:
            raise DataError(f"Unable to convert {value} to a number") from error
    return float(as_long(value, schema))


def convert_to_boolean(schema: Schema | None, value: Any) -> bool | None:
    """True for every number except 0, and for the text true. Raises DataError."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        parsed = _parsed_value(value)
        if isinstance(parsed, bool):
            return parsed
    return as_long(value, schema) != 0


def convert_to_integer(schema: Schema | None, value: Any, bits: int) -> int | None:
    """An integer of this width; higher bits of larger numbers are dropped. Raises DataError."""
    return None if value is None else numbers.wrap(as_long(value, schema), bits)


def convert_to_float(schema: Schema | None, value: Any) -> float | None:
    """A single-precision float. Raises DataError."""
    return None if value is None else Float32(as_double(value, schema))


def convert_to_double(schema: Schema | None, value: Any) -> float | None:
    """A double-precision float. Raises DataError."""
    return None if value is None else as_double(value, schema)


def convert_to(to: Schema, value: Any) -> Any:
    """Convert a value without schema to a schema (Values.convertTo). Raises DataError when that is not possible."""
    if value is None:
        if to.optional:
            return None
        raise DataError("Unable to convert a null value to a schema that requires a value")
    if to.name in {logical.DATE, logical.TIME, logical.TIMESTAMP} and to.type in {Type.INT32, Type.INT64}:
        return _to_moment(to, value)
    match to.type:
        case Type.STRING:
            return convert_to_string(None, value)
        case Type.BOOLEAN:
            return convert_to_boolean(None, value)
        case Type.INT8 | Type.INT16 | Type.INT32 | Type.INT64:
            return convert_to_integer(None, value, WIDTHS[to.type])
        case Type.FLOAT32:
            return convert_to_float(None, value)
        case Type.FLOAT64:
            return convert_to_double(None, value)
        case Type.BYTES:
            return _to_decimal(to, value) if to.name == logical.DECIMAL else _to_bytes(to, value)
        case Type.ARRAY | Type.MAP:
            if isinstance(value, str):
                value = _parsed_value(value)
            if isinstance(value, list | tuple if to.type is Type.ARRAY else Mapping):
                return value
        case Type.STRUCT:
            if isinstance(value, Struct):
                return value
    raise _cannot(value, to)


def _cannot(value: Any, to: Schema) -> DataError:
    return DataError(f"Unable to convert {value} ({type(value).__name__}) to {to}")


def _to_moment(to: Schema, value: Any) -> Any:
    if isinstance(value, str):
        value = _parsed_value(value)
    if isinstance(value, dt.date | dt.time):
        return value
    number = as_long(value, None)
    return logical.from_number(to, number if to.type is Type.INT64 else numbers.wrap(number, 32))


def _to_decimal(to: Schema, value: Any) -> Decimal:
    match value:
        case bytes() | bytearray() | memoryview():
            return logical.decimal_from_bytes(to, bytes(value))
        case Decimal():
            return value
        case bool():
            raise _cannot(value, to)
        case int() | float():
            return Decimal(numbers.double_text(numbers.nearest_double(value)))
        case str():
            try:
                return big_decimal(value)
            except ValueError as error:
                raise _cannot(value, to) from error
        case _:
            raise _cannot(value, to)


def _to_bytes(to: Schema, value: Any) -> bytes:
    match value:
        case bytes() | bytearray() | memoryview():
            return bytes(value)
        case Decimal():
            return logical.decimal_to_bytes(to, value)
        case _:
            raise _cannot(value, to)
