"""Kafka's variable-length integers: seven bits per byte, least significant first."""

from __future__ import annotations

from collections.abc import Callable
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


def _zig_zag(value: int) -> bytes:
    return uvarint((value << 1) ^ (value >> 63))


class _ZigZag(dict[int, bytes]):
    """Precomputed for most lengths and deltas of a batch; others are computed and not kept."""

    def __missing__(self, value: int) -> bytes:
        return _zig_zag(value)


#: Zig-zag varint of a signed integer (protobuf's sint), as used inside records. A look-up in C takes half the time of a
#: call of a Python function, and a sixth of that of encoding.
varint: Final[Callable[[int], bytes]] = _ZigZag((value, _zig_zag(value)) for value in range(4096)).__getitem__
