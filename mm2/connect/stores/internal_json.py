"""The JSON of Connect's internal topics: JsonConverter without schemas, with maps in the order of Java's HashMap.

Compact, UTF-8, characters up to U+FFFF unescaped; bytes as base64 text, because JSON has no bytes.

Java Connect serializes maps in the iteration order of its HashMaps, and offsets are looked up by the *bytes* of their
serialized key. Programs that share an offsets topic with Java must write the same order.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from mm2.connect.api import ConnectError
from mm2.connect.converters.json import JsonConverter

#: Same output as Java, including numbers and rare characters.
_CONVERTER: Final = JsonConverter()
_CONVERTER.configure({"schemas.enable": "false"}, is_key=False)

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
#: Buckets of a new HashMap.
_DEFAULT_CAPACITY = 16


def encode(value: Any) -> bytes | None:
    """Serialize a value; None becomes None (a tombstone). Dictionaries keep their order: see :func:`hash_ordered`."""
    if value is None:
        return None
    try:
        return _CONVERTER.from_connect_data("", (), None, value)
    except ConnectError as error:
        raise ConnectError(f"Cannot write {type(value).__name__} as JSON: {error}") from error


def decode(data: bytes | None) -> Any:
    """Parse a value; None and empty input become None. As in Java, what follows the first value is ignored.

    Raises ConnectError when it is not JSON.
    """
    if not data:
        return None
    try:
        return json.loads(data.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return _CONVERTER.to_connect_data("", (), data).value


def hash_ordered(value: Any) -> Any:
    """The value with every map, at any depth, in Java's HashMap order, and bytes as base64 text."""
    if isinstance(value, Mapping):
        return {key: hash_ordered(value[key]) for key in hash_map_order(value)}
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [hash_ordered(item) for item in value]
    return value


def string_hash(text: str) -> int:
    """``String.hashCode`` as an unsigned 32-bit number; counts UTF-16 code units."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value


def hash_map_order(keys: Iterable[str]) -> list[str]:
    """The keys in the iteration order of a HashMap into which they were inserted in the given order.

    A table starts with 16 buckets and doubles when it is more than three quarters full. Within a bucket the insertion
    order is kept. (Buckets turn into trees only beyond eight collisions, which configurations do not reach.)
    """
    unique = list(dict.fromkeys(keys))
    capacity = _DEFAULT_CAPACITY
    while len(unique) * 4 > capacity * 3:
        capacity *= 2
    mask = capacity - 1

    def bucket(key: str) -> int:
        hashed = string_hash(key)
        return (hashed ^ (hashed >> 16)) & mask

    return sorted(unique, key=bucket)


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
