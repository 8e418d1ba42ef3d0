"""Values inferred from text (Values.parseString), including Java's corner cases.

Text that cannot be parsed as another type is a string, unchanged: quotes and brackets stay.
"""

from __future__ import annotations

from typing import Any, Final

from mm2.config.values import trim
from mm2.connect.data import logical, numbers
from mm2.connect.data.errors import DataError
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
from mm2.connect.data.values import DATE_FORMAT, TIME_FORMAT, TIMESTAMP_FORMAT, big_decimal, convert_to

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


def _wider(first: Schema, second: Schema) -> Schema | None:
    if first.type is second.type:
        if first.optional == second.optional:
            return first if first.optional else second
        return first if first == second else None
    if first.type in _WIDER and second.type in _WIDER:
        return first if _WIDER.index(first.type) > _WIDER.index(second.type) else second
    return None


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
                raise DataError(f"A map's key may not be an array or a map here: {tokens.text}")
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


def _date(ms: int) -> SchemaAndValue:
    return SchemaAndValue(logical.DATE_SCHEMA, logical.date_from_days(ms // logical.MS_PER_DAY))


def _time(ms: int) -> SchemaAndValue:
    return SchemaAndValue(logical.TIME_SCHEMA, logical.time_from_ms(ms))


def _timestamp(ms: int) -> SchemaAndValue:
    return SchemaAndValue(logical.TIMESTAMP_SCHEMA, logical.timestamp_from_ms(ms))


_MAKERS: Final = {logical.DATE: _date, logical.TIME: _time, logical.TIMESTAMP: _timestamp}
