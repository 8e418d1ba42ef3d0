"""Values as text, values from text, and their conversion to other types (Values of Java).

Text is that of headers (Values.convertToString), or as Java's toString prints a value (`java_text`).
Text that cannot be parsed as another type is a string, unchanged: quotes and brackets stay.
"""

from __future__ import annotations

import base64
import datetime as dt
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from mm2.config.definitions.values import trim
from mm2.connect.data import logical, numbers
from mm2.connect.data.numbers import Float32
from mm2.connect.data.schema import (
    BOOLEAN_SCHEMA,
    FLOAT32_SCHEMA,
    FLOAT64_SCHEMA,
    INT8_SCHEMA,
    INT16_SCHEMA,
    INT32_SCHEMA,
    INT64_SCHEMA,
    NULL,
    STRING_SCHEMA,
    Schema,
    SchemaAndValue,
    Type,
)
from mm2.connect.data.simple_date_format import SimpleDateFormat
from mm2.connect.data.struct import WIDTHS, Struct
from mm2.connect.errors import DataError

DATE_FORMAT: Final = SimpleDateFormat("yyyy-MM-dd")
TIME_FORMAT: Final = SimpleDateFormat("HH:mm:ss.SSS'Z'")
TIMESTAMP_FORMAT: Final = SimpleDateFormat("yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")
_DATE: Final = SimpleDateFormat("EEE MMM dd HH:mm:ss zzz yyyy")

_NUMBER_PATTERN: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,10})?")
_INTEGERS: Final = ((8, INT8_SCHEMA), (16, INT16_SCHEMA), (32, INT32_SCHEMA), (64, INT64_SCHEMA))
#: Number types in order of range: each can hold the values of those before it.
_WIDER: Final = (Type.INT8, Type.INT16, Type.INT32, Type.INT64, Type.FLOAT32, Type.FLOAT64)
_MOMENTS: Final = {
    13: (logical.TIME, TIME_FORMAT),
    24: (logical.TIMESTAMP, TIMESTAMP_FORMAT),
    10: (logical.DATE, DATE_FORMAT),
}
_TRUE: Final = SchemaAndValue(BOOLEAN_SCHEMA, True)
_FALSE: Final = SchemaAndValue(BOOLEAN_SCHEMA, False)


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


def parse_string(text: str | None) -> SchemaAndValue:
    """The value of a text, with its schema. For None and the text null, both are None."""
    if text is None:
        return NULL
    if not text:
        return SchemaAndValue(STRING_SCHEMA, text)
    return _ValuesParser(text).parse(embedded=False)


class _Tokens:
    """Tokens of a text, split at unescaped delimiters; blanks can be skipped."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._at = 0
        self._next: str | None = None
        self.previous: str | None = None

    @property
    def position(self) -> int:
        return self._at

    def mark(self) -> int:
        return self._at - len(self._next or "")

    def rewind_to(self, position: int) -> None:
        self._at = position
        self._next = self.previous = None

    def has_next(self) -> bool:
        return self._next is not None or self._at < len(self.text)

    def next(self) -> str:
        if self._next is not None:
            self.previous, self._next = self._next, None
        else:
            self.previous = self._consume()
        return self.previous

    def next_joined(self, count: int) -> str | None:
        """The next tokens as one text; None, without consuming any, when there are fewer."""
        begin = self.mark()
        for _ in range(count):
            if not self.has_next():
                self.rewind_to(begin)
                return None
            self.next()
        return self.text[begin : self._at]

    def can_consume(self, expected: str) -> bool:
        """Consume the next token if it is ``expected``, together with blanks before it."""
        if self._next is None:
            if not self.has_next():
                return False
            self._next = self._consume()
        while not trim(self._next) and self._at < len(self.text):
            self._next = self._consume()
        if trim(self._next) != expected:
            return False
        self._next = None
        return True

    def _consume(self) -> str:
        escaped = False
        start = self._at
        while self._at < len(self.text):
            char = self.text[self._at]
            if char == "\\":
                escaped = not escaped
            else:
                if char in ':,{}[]"' and not escaped:
                    self._at = max(self._at, start + 1)
                    return self.text[start : self._at]
                escaped = False
            self._at += 1
        return self.text[start : self._at]


class _Common:
    """The common schema of all elements so far, if there is one."""

    def __init__(self) -> None:
        self.schema: Schema | None = None
        self._compatible = True

    def merge(self, schema: Schema | None) -> None:
        if schema is None or not self._compatible:
            return
        self.schema = schema if self.schema is None else _wider(self.schema, schema)
        self._compatible = self.schema is not None


class _ValuesParser:
    def __init__(self, text: str) -> None:
        self._tokens = _Tokens(text)

    def parse(self, *, embedded: bool) -> SchemaAndValue:
        tokens = self._tokens
        if not tokens.has_next():
            return NULL
        if embedded and tokens.can_consume('"'):
            return self._quoted()
        for literal, value in (("null", NULL), ("true", _TRUE), ("false", _FALSE)):
            if self._is_literal(literal, embedded=embedded):
                return value
        start = tokens.mark()
        try:
            if tokens.can_consume("["):
                return self._array()
            if tokens.can_consume("{"):
                return self._map()
        except (DataError, RecursionError):
            tokens.rewind_to(start)
        token = tokens.next()
        trimmed = trim(token)
        if not trimmed:
            return SchemaAndValue(STRING_SCHEMA, token)
        return self._token(trimmed, embedded=embedded)

    def _is_literal(self, literal: str, *, embedded: bool) -> bool:
        start = self._tokens.mark()
        if self._tokens.can_consume(literal) and (embedded or not self._tokens.has_next()):
            return True
        self._tokens.rewind_to(start)
        return False

    def _token(self, token: str, *, embedded: bool) -> SchemaAndValue:
        is_digit = token[0].isdecimal()
        if is_digit:
            try:
                moment = self._moment(token)
            except DataError:
                if embedded:
                    raise
                return SchemaAndValue(STRING_SCHEMA, self._tokens.text)
            if moment is not None:
                return moment
        if is_digit or token[0] in "+-":
            try:
                return _number(token)
            except ValueError:
                pass  # a string that begins like a number
        if embedded:
            raise DataError("Failed to parse embedded value")
        return SchemaAndValue(STRING_SCHEMA, self._tokens.text)

    def _moment(self, token: str) -> SchemaAndValue | None:
        """Parse a moment that may span five tokens, because a time contains unescaped colons."""
        position = self._tokens.mark()
        rest = self._tokens.next_joined(4)
        if rest is not None:
            found = _moment_of(token + rest)
            if found is not None:
                return found
        self._tokens.rewind_to(position)
        return _moment_of(token)

    def _quoted(self) -> SchemaAndValue:
        parts: list[str] = []
        while self._tokens.has_next():
            if self._tokens.can_consume('"'):
                break
            parts.append(self._tokens.next())
        content = "".join(parts)
        try:
            moment = _moment_of(content)
        except DataError:
            moment = None
        return moment or SchemaAndValue(STRING_SCHEMA, content)

    def _array(self) -> SchemaAndValue:
        tokens = self._tokens
        values: list[Any] = []
        common = _Common()
        while tokens.has_next():
            if tokens.can_consume("]"):
                if common.schema is None:
                    return SchemaAndValue(Schema(Type.ARRAY), values)
                schema = Schema(Type.ARRAY, value_schema=common.schema)
                return SchemaAndValue(schema, [convert_to(common.schema, value) for value in values])
            if tokens.can_consume(","):
                raise DataError(f"Unable to parse an empty array element: {tokens.text}")
            element = self.parse(embedded=True)
            common.merge(element.schema)
            values.append(element.value)
            here = tokens.mark()
            if tokens.can_consume("]"):
                tokens.rewind_to(here)
            elif not tokens.can_consume(","):
                raise DataError("Array elements missing ',' delimiter")
        raise DataError(f"Array is missing terminating ']': {tokens.text}")

    def _map(self) -> SchemaAndValue:
        tokens = self._tokens
        entries: dict[Any, Any] = {}
        keys, values = _Common(), _Common()
        while tokens.has_next():
            if tokens.can_consume("}"):
                return self._aligned(entries, keys.schema, values.schema)
            if tokens.can_consume(","):
                raise DataError(f"Unable to parse a map entry with no key or value: {tokens.text}")
            key = self.parse(embedded=True)
            if key.value is None:
                raise DataError(f"Map entry may not have a null key: {tokens.text}")
            if not tokens.can_consume(":"):
                raise DataError(f"Map entry is missing ':' at {tokens.position} in {tokens.text}")
            value = self.parse(embedded=True)
            if isinstance(key.value, list | dict):
                raise DataError(f"A map key must not be an array or a map: {tokens.text}")
            entries[key.value] = value.value
            tokens.can_consume(",")
            keys.merge(key.schema)
            values.merge(value.schema)
        raise DataError(f"Map is missing terminating '}}': {tokens.text}")

    @staticmethod
    def _aligned(entries: dict[Any, Any], keys: Schema | None, values: Schema | None) -> SchemaAndValue:
        if keys is None:
            return SchemaAndValue(Schema(Type.MAP), entries)
        schema = Schema(Type.MAP, key_schema=keys, value_schema=values)
        aligned = {
            convert_to(keys, key): value if values is None else convert_to(values, value)
            for key, value in entries.items()
        }
        return SchemaAndValue(schema, aligned)


def _date(ms: int) -> SchemaAndValue:
    return SchemaAndValue(logical.DATE_SCHEMA, logical.date_from_days(ms // logical.MS_PER_DAY))


def _time(ms: int) -> SchemaAndValue:
    return SchemaAndValue(logical.TIME_SCHEMA, logical.time_from_ms(ms))


def _timestamp(ms: int) -> SchemaAndValue:
    return SchemaAndValue(logical.TIMESTAMP_SCHEMA, logical.timestamp_from_ms(ms))


_MAKERS: Final = {logical.DATE: _date, logical.TIME: _time, logical.TIMESTAMP: _timestamp}


def big_decimal(text: str) -> Decimal:
    """Parse a text like Java's BigDecimal. Raises ValueError."""
    if not _NUMBER_PATTERN.fullmatch(text):
        raise ValueError(f"{text!r} is not a number")
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
        parsed = parse_string(value).value
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
                value = parse_string(value).value
            if isinstance(value, list | tuple if to.type is Type.ARRAY else Mapping):
                return value
        case Type.STRUCT:
            if isinstance(value, Struct):
                return value
    raise _cannot(value, to)


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


def _wider(first: Schema, second: Schema) -> Schema | None:
    if first.type is second.type:
        if first.optional == second.optional:
            return first if first.optional else second
        return first if first == second else None
    if first.type in _WIDER and second.type in _WIDER:
        return first if _WIDER.index(first.type) > _WIDER.index(second.type) else second
    return None


def _number(token: str) -> SchemaAndValue:
    """Raises ValueError when the text is not a number."""
    decimal = big_decimal(token)
    if not decimal or decimal.adjusted() < 400:
        whole = int(decimal) if decimal.adjusted() > -400 else 0
        if whole == decimal:
            for bits, schema in _INTEGERS:
                if numbers.fits(whole, bits):
                    return SchemaAndValue(schema, whole)
    scale = numbers.scale(decimal)
    single, double = numbers.single(decimal), float(decimal)
    if abs(single) != float("inf") and scale != 0:
        return SchemaAndValue(FLOAT32_SCHEMA, Float32(single))
    if abs(double) != float("inf") and scale != 0:
        return SchemaAndValue(FLOAT64_SCHEMA, double)
    return SchemaAndValue(logical.decimal_schema(scale), decimal)


def _moment_of(token: str) -> SchemaAndValue | None:
    """A date, time or timestamp in ISO form; its length determines which.

    Raises DataError when Python's dates cannot represent it.
    """
    token = token.replace("\\:", ":")
    name, form = _MOMENTS.get(len(token), ("", SimpleDateFormat("")))
    ms = form.parse(token) if name else None
    return None if ms is None else _MAKERS[name](ms)


def _cannot(value: Any, to: Schema) -> DataError:
    return DataError(f"Unable to convert {value} ({type(value).__name__}) to {to}")


def _to_moment(to: Schema, value: Any) -> Any:
    if isinstance(value, str):
        value = parse_string(value).value
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
