"""Kafka's variable-length integers: seven bits per byte, least significant first."""

from __future__ import annotations

from typing import Final


def uvarint(number: int) -> bytes:
    """Unsigned varint (KIP-482), as used for compact lengths and tags."""
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number > 0x7F:
        out.append((number & 0x7F) | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def varint(value: int) -> bytes:
    """Zig-zag varint of a signed integer (protobuf's sint), as used inside records."""
    return _OFTEN[value] if 0 <= value < len(_OFTEN) else _zig_zag(value)


def _zig_zag(value: int) -> bytes:
    return uvarint((value << 1) ^ (value >> 63))


#: Precomputed for most lengths and deltas of a batch: a lookup takes a third of the time of encoding.
_OFTEN: Final = tuple(map(_zig_zag, range(4096)))
