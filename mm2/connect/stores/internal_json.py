"""The JSON of Connect's internal topics: JsonConverter without schemas.

Compact, UTF-8, characters up to U+FFFF unescaped; bytes as base64 text, because JSON has no bytes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mm2.connect.api import ConnectError
from mm2.connect.converters.json import JsonConverter
from mm2.connect.stores.java_maps import hash_map_order

#: Same output as Java, including numbers and rare characters.
_CONVERTER: Final = JsonConverter()
_CONVERTER.configure({"schemas.enable": "false"}, is_key=False)

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


def encode(value: Any) -> bytes | None:
    """Serialize a value; None becomes None (a tombstone). Dictionaries keep their order: see :func:`hash_ordered`."""
    if value is None:
        return None
    try:
        return _CONVERTER.from_connect_data("", (), None, value)
    except ConnectError as error:
        raise ConnectError(f"Cannot write {type(value).__name__} as JSON: {error}") from error


def decode(data: bytes | None) -> Any:
    """Parse a value; None and empty input become None. Raises ConnectError when it is not JSON."""
    if not data:
        return None
    try:
        return json.loads(data.decode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise ConnectError(f"Not JSON: {error}") from error


def hash_ordered(value: Any) -> Any:
    """The value with every map, at any depth, in Java's HashMap order, and bytes as base64 text."""
    if isinstance(value, Mapping):
        return {key: hash_ordered(value[key]) for key in hash_map_order(value)}
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [hash_ordered(item) for item in value]
    return value


def require_flat(kind: str, values: Any) -> None:
    """Check that offsets or partitions are a map of strings to primitives (OffsetUtils.validateFormat).

    Raises ConnectError naming the invalid field. None is allowed: it means "no offset".
    """
    if values is None:
        return
    if type(values) is not dict and not isinstance(values, Mapping):
        raise ConnectError(f"A source {kind} must be a map, not {type(values).__name__}")
    for key, value in values.items():
        # Fast path for the most common values, since each record has two such maps.
        if type(key) is str and (type(value) is str or (type(value) is int and _INT64_MIN <= value <= _INT64_MAX)):
            continue
        if not isinstance(key, str):
            raise ConnectError(f"A source {kind} must have string keys only, not {key!r}")
        if value is None or isinstance(value, bool | float | str | bytes):
            continue
        if isinstance(value, int) and _INT64_MIN <= value <= _INT64_MAX:
            continue
        raise ConnectError(f"Field {key!r} of a source {kind} must be a primitive value, not {type(value).__name__}")
