"""JSON as Jackson reads and writes it (as configured in Kafka's JsonSerializer and JsonDeserializer).

Numbers are read as int, or as Decimal when they have a decimal point or an exponent; nothing is rounded.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any, Final

from mm2.connect.errors import DataError

MISSING: Final = object()
"""The result of reading only blanks."""

_NAMED: Final = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
_ESCAPED: Final = re.compile(r'[\x00-\x1f"\\\U00010000-\U0010ffff]')
_BLANKS: Final = " \t\r\n"
_LONGEST_NUMBER: Final = 1000
# Matches a string, which is left unchanged, or leading zeros of a number.
_LEADING_ZEROS: Final = re.compile(r'("(?:[^"\\]|\\.)*")|(?<![\w.+])(-?)0+(?=[0-9])', re.ASCII)


def quoted(text: str) -> str:
    """A JSON string. Escapes what must be escaped, and characters above U+FFFF as two surrogates, as Jackson does."""
    return f'"{_ESCAPED.sub(_escape, text) if _ESCAPED.search(text) else text}"'


def _escape(found: re.Match[str]) -> str:
    point = ord(found[0])
    if point > 0xFFFF:
        return f"\\u{0xD7C0 + (point >> 10):04X}\\u{0xDC00 + (point & 0x3FF):04X}"
    return _NAMED.get(found[0]) or f"\\u{point:04X}"


def encoded(text: str) -> bytes:
    """UTF-8 bytes. Raises DataError for an unpaired surrogate, which cannot be encoded."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"Not valid text: it contains the unpaired surrogate {error.object[error.start : error.end]!r}"
        ) from error


def _integer(digits: str) -> int:
    if len(digits) > _LONGEST_NUMBER:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _fraction(text: str) -> Decimal:
    if len(text) > _LONGEST_NUMBER:
        raise ValueError(f"a number of {len(text)} digits")
    return abs(number) if not (number := Decimal(text)) else number


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not valid JSON")


_DECODER: Final = json.JSONDecoder(parse_int=_integer, parse_float=_fraction, parse_constant=_constant)


def read(data: bytes) -> Any:
    """The first JSON value in the bytes, or `MISSING`. As in Jackson, the rest is ignored. Raises DataError."""
    try:
        text = data.decode(json.detect_encoding(data)).lstrip(_BLANKS)
        if not text:
            return MISSING
        try:
            return _first(text)
        except ValueError:
            without = _LEADING_ZEROS.sub(lambda found: found[1] or found[2], text)
            if without == text:
                raise
            return _first(without)
    except (ValueError, RecursionError) as error:
        raise DataError(f"Not JSON: {error}") from error


def _first(text: str) -> Any:
    value, end = _DECODER.raw_decode(text)
    after = text[end : end + 1]
    if after and _runs_on(value, after):
        raise ValueError(f"{after!r} directly after {text[:end][:50]!r}")
    return value


def _runs_on(value: Any, after: str) -> bool:
    """Whether a number or a literal is followed by a character that makes it invalid."""
    if isinstance(value, bool) or value is None:
        return after.isalnum() or after in "_$"
    return isinstance(value, int | Decimal) and after not in _BLANKS
