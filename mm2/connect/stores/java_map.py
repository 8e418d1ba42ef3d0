"""The iteration order of java.util.HashMap for string keys.

Java Connect serializes maps in the iteration order of its HashMaps, and offsets are looked up by the *bytes* of their
serialized key. Programs that share an offsets topic with Java must write the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

V = TypeVar("V")

_DEFAULT_CAPACITY = 16


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


def in_hash_map_order(values: Mapping[str, V]) -> dict[str, V]:
    """The same map with its keys in HashMap order."""
    return {key: values[key] for key in hash_map_order(values)}
