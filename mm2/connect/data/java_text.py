"""The text that Java's toString returns for a value; StringConverter and Cast write it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from mm2.connect.data import logical
from mm2.connect.data.errors import DataError
from mm2.connect.data.schema import Schema
from mm2.connect.data.simple_date_format import SimpleDateFormat
from mm2.connect.data.struct import Struct
from mm2.connect.data.values import number_text

_DATE: Final = SimpleDateFormat("EEE MMM dd HH:mm:ss zzz yyyy")


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
            told = (f"{f.name}={java_text(f.schema, item)}" for f, item in value.items() if item is not None)
            return "Struct{" + ",".join(told) + "}"
        case dt.date() | dt.time():
            return _DATE.format(logical.ms_of(value))
        case bytes() | bytearray() | memoryview():
            raise DataError("Bytes cannot be told as text: use ByteArrayConverter, or cast them to string first")
        case _:
            raise DataError(f"A value of {type(value).__name__} cannot be told as text")
