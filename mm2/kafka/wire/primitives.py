"""Kafka's primitive types for what is encoded or decoded by hand: a reader and functions that write."""

from __future__ import annotations

import struct
from typing import Any, Final

from mm2.kafka.varint import uvarint

INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")


def string(text: str | None, *, compact: bool) -> bytes:
    """STRING, NULLABLE_STRING or their compact forms."""
    if text is None:
        return b"\x00" if compact else b"\xff\xff"
    data = text.encode()
    return (uvarint(len(data) + 1) if compact else INT16.pack(len(data))) + data


def array_head(count: int, *, compact: bool) -> bytes:
    """The length before an array's items."""
    return uvarint(count + 1) if compact else INT32.pack(count)


def request_header(api_key: int, version: int, correlation_id: int, client_id: str, *, flexible: bool) -> bytes:
    """Request header v1, or v2 for flexible versions."""
    data = client_id.encode()
    head = struct.pack(">hhih", api_key, version, correlation_id, len(data)) + data
    return head + b"\x00" if flexible else head


#: Of one structure. Kafka has less than ten; each takes two bytes, so a response of 256 MB could block the loop for a minute.
MOST_TAGS: Final = 1_000


class Reader:
    """Reads primitives from one response frame; struct.error or IndexError past the end."""

    __slots__ = ("at", "view")

    def __init__(self, view: memoryview, at: int = 0) -> None:
        self.view = view
        self.at = at

    def fields(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Several primitives at once."""
        values = layout.unpack_from(self.view, self.at)
        self.at += layout.size
        return values

    def int16(self) -> int:
        (value,) = INT16.unpack_from(self.view, self.at)
        self.at += 2
        return int(value)

    def int32(self) -> int:
        (value,) = INT32.unpack_from(self.view, self.at)
        self.at += 4
        return int(value)

    def int64(self) -> int:
        (value,) = INT64.unpack_from(self.view, self.at)
        self.at += 8
        return int(value)

    def uvarint(self) -> int:
        number = shift = 0
        while True:
            byte = self.view[self.at]
            self.at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
            if shift > 28:
                message = "a length of more than five bytes"
                raise IndexError(message)

    def length(self, *, compact: bool) -> int:
        """An array's or byte string's length; -1 for null."""
        return self.uvarint() - 1 if compact else self.int32()

    def bytes_view(self, size: int) -> memoryview:
        """A slice of the frame itself, not a copy."""
        at = self.at
        self.at = at + size
        if self.at > len(self.view):
            message = f"{self.at - len(self.view)} bytes missing"
            raise IndexError(message)
        return self.view[at : self.at]

    def string(self, *, compact: bool) -> str | None:
        size = self.uvarint() - 1 if compact else self.int16()
        return None if size < 0 else str(self.bytes_view(size), "utf-8")

    def tags(self, wanted: int = -1) -> memoryview | None:
        """Skip the tagged fields of a flexible structure; returns the ``wanted`` one, None if there is none."""
        found = None
        count = self.uvarint()
        if count > MOST_TAGS:
            message = f"{count} tagged fields"
            raise IndexError(message)
        for _ in range(count):
            tag = self.uvarint()
            content = self.bytes_view(self.uvarint())
            if tag == wanted:
                found = content
        return found
