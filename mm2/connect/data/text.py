"""Values as text: for headers (Values.convertToString of Java), and as Java's toString prints them."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from mm2.connect.data import logical, numbers
from mm2.connect.data.numbers import Float32
from mm2.connect.data.schema import Schema, Type
from mm2.connect.data.simple_date_format import SimpleDateFormat
from mm2.connect.data.struct import Struct
from mm2.connect.errors import DataError

DATE_FORMAT: Final = SimpleDateFormat("yyyy-MM-dd")
TIME_FORMAT: Final = SimpleDateFormat("HH:mm:ss.SSS'Z'")
TIMESTAMP_FORMAT: Final = SimpleDateFormat("yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")
_DATE: Final = SimpleDateFormat("EEE MMM dd HH:mm:ss zzz yyyy")


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
    if value is None or type(value) is str:
        return value
    return _text(schema, value, embedded=False)


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


def java_text(schema: Schema | None, value: Any) -> str:
    """Text of a value; the schema distinguishes single-precision from double-precision floats.

    Raises DataError for bytes: Java prints the identity of the array object, which is of no use.
    """
    match value:
        case None:
            return "null"
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | float() | Decimal():
            return number_text(schema, value)
        case list() | tuple():
            items = schema.value_schema if schema is not None else None
            return "[" + ", ".join(java_text(items, item) for item in value) + "]"
        case Mapping():
            keys = schema.key_schema if schema is not None else None
            values = schema.value_schema if schema is not None else None
            return "{" + ", ".join(f"{java_text(keys, k)}={java_text(values, v)}" for k, v in value.items()) + "}"
        case Struct():
            fields = (f"{f.name}={java_text(f.schema, item)}" for f, item in value.items() if item is not None)
            return "Struct{" + ",".join(fields) + "}"
        case dt.date() | dt.time():
            return _DATE.format(logical.ms_of(value))
        case bytes() | bytearray() | memoryview():
            raise DataError("Bytes cannot be converted to text: use ByteArrayConverter, or cast them to string first")
        case _:
            raise DataError(f"A value of {type(value).__name__} cannot be converted to text")
