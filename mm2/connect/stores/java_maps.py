"""Maps as Java writes them: the iteration order of java.util.HashMap, and the offsets file of a standalone worker.

Java Connect serializes maps in the iteration order of its HashMaps, and offsets are looked up by the *bytes* of their
serialized key. Programs that share an offsets topic with Java must write the same order.

The offsets file is a serialized ``HashMap<byte[], byte[]>``. A general reader of Java objects (javaobj-py3) creates any
class that a file names. This module reads and writes a single shape and rejects everything else. The file can be used
by Java and by this project in turn.

==== the stream (Java Object Serialization Specification, 6.4.2) ====
ac ed 00 05                                        magic, version
73 72 <java.util.HashMap, its UID> 03 0002 F loadFactor I threshold 78 70    an object, its class, no superclass
<loadFactor: 4 bytes> <threshold: 4 bytes>
77 08 <buckets: 4 bytes> <size: 4 bytes>           what HashMap.writeObject adds
size times a key and a value, each one of
    75 72 <[B, its UID> 02 0000 78 70 <length: 4 bytes> <bytes>      an array, class described in full: the first one
    75 71 <handle of the class> <length: 4 bytes> <bytes>            an array
    71 <handle of an array seen before>
    70                                                               null
78                                                 the end of the object
======================================================================
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

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


_HEADER = bytes.fromhex("aced0005")
_OBJECT, _ARRAY, _CLASS, _REFERENCE, _NULL, _BLOCK, _END = 0x73, 0x75, 0x72, 0x71, 0x70, 0x77, 0x78
_HASH_MAP = b"\x00\x11java.util.HashMap\x05\x07\xda\xc1\xc3\x16\x60\xd1\x03\x00\x02F\x00\x0aloadFactorI\x00\x09threshold\x78\x70"
_BYTE_ARRAY = b"\x00\x02[B\xac\xf3\x17\xf8\x06\x08\x54\xe0\x02\x00\x00\x78\x70"
_FIRST_HANDLE = 0x7E0000
#: Handles 0 and 1 are those of the class HashMap and of the map.
_ARRAY_CLASS_HANDLE = _FIRST_HANDLE + 2
_INT = struct.Struct(">i")
_LOAD_FACTOR = 0.75


class JavaFileError(ValueError):
    """The data is not a serialized map of byte arrays; the text is the reason, as a part of a sentence."""


def load_map(data: bytes) -> dict[bytes | None, bytes | None]:
    """The map in a file. Raises JavaFileError for any other, truncated or overlong data."""
    return _JavaStreamReader(data).whole_map()


def dump_map(values: Mapping[bytes, bytes]) -> bytes:
    """A map as Java would write it (the order of entries is free; Java's own follows object addresses)."""
    buckets = 16
    while len(values) > buckets * _LOAD_FACTOR:
        buckets *= 2
    out = bytearray(_HEADER)
    out += bytes([_OBJECT, _CLASS]) + _HASH_MAP
    out += struct.pack(">fi", _LOAD_FACTOR, int(buckets * _LOAD_FACTOR))
    out += bytes([_BLOCK, 8]) + struct.pack(">ii", buckets, len(values))
    kind = bytes([_CLASS]) + _BYTE_ARRAY
    for pair in values.items():
        for item in pair:
            out.append(_ARRAY)
            out += kind
            out += _INT.pack(len(item))
            out += item
            kind = bytes([_REFERENCE]) + _INT.pack(_ARRAY_CLASS_HANDLE)
    out.append(_END)
    return bytes(out)


class _JavaStreamReader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._class_known = False
        self._arrays: list[bytes] = []

    def whole_map(self) -> dict[bytes | None, bytes | None]:
        self._expect(_HEADER, "it does not begin as a serialised Java object")
        self._expect(bytes([_OBJECT, _CLASS]) + _HASH_MAP, "the object in it is not a java.util.HashMap")
        self._take(8)
        self._expect(bytes([_BLOCK, 8]), "its map has no size")
        self._int()
        size = self._int()
        if size < 0:
            raise JavaFileError(f"its map has the size {size}")
        values = {}
        for _ in range(size):
            key = self._array()
            values[key] = self._array()
        self._expect(bytes([_END]), "its map does not end where it should")
        if self._at != len(self._data):
            raise JavaFileError(f"{len(self._data) - self._at} bytes follow its end")
        return values

    def _array(self) -> bytes | None:
        (kind,) = self._take(1)
        if kind == _NULL:
            return None
        if kind == _REFERENCE:
            place = self._int() - _ARRAY_CLASS_HANDLE - 1
            if not 0 <= place < len(self._arrays):
                raise JavaFileError(f"it contains an unknown reference at byte {self._at}")
            return self._arrays[place]
        if kind != _ARRAY:
            raise JavaFileError(f"its map contains something other than byte arrays at byte {self._at}")
        if self._class_known:
            self._expect(
                bytes([_REFERENCE]) + _INT.pack(_ARRAY_CLASS_HANDLE),
                "its map contains arrays of another type",
            )
        else:
            self._expect(bytes([_CLASS]) + _BYTE_ARRAY, "its map contains arrays of another type")
            self._class_known = True
        length = self._int()
        if length < 0:
            raise JavaFileError(f"it has an array of {length} bytes at byte {self._at}")
        array = self._take(length)
        self._arrays.append(array)
        return array

    def _int(self) -> int:
        return int(_INT.unpack(self._take(4))[0])

    def _expect(self, wanted: bytes, otherwise: str) -> None:
        if self._take(len(wanted)) != wanted:
            raise JavaFileError(otherwise)

    def _take(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        if len(found) < count:
            raise JavaFileError(f"it is cut off after {len(self._data)} bytes")
        self._at += count
        return found
