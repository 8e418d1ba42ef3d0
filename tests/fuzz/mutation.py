"""Seeded random damage to bytes, and recomputed checksums so that the damage is not rejected by them."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

_BYTES: Final = (0x00, 0x01, 0x02, 0x03, 0x04, 0x10, 0x20, 0x3F, 0x40, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF)
_NUMBERS: Final = (
    *(struct.pack(">i", number) for number in (-(1 << 31), -2, -1, 0, 1, 2, 61, 0xFFFF, 1 << 20, (1 << 31) - 1)),
    *(struct.pack(">q", number) for number in (-(1 << 63), -1, 0, (1 << 63) - 1)),
    *(struct.pack("<I", number) for number in (0x80000000, 0x80000001, 1 << 16, (1 << 16) + 1)),
    b"\x80\x80\x80\x80\x08",  # varints of 2³¹, of more than 32 and of more than 64 bits
    b"\xfe\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x80" * 11,
)


class Mutator:
    """Generates damaged copies of the seeds; equal generators give equal copies."""

    def __init__(self, seeds: Sequence[bytes], rng: random.Random) -> None:
        self._seeds = seeds
        self._random = rng.random
        self._choices = rng.choices

    def next(self) -> bytearray:
        """A seed with one to five damaged positions."""
        data = bytearray(self._choices(self._seeds)[0])
        for _ in range(int(self._random() ** 2 * 5) + 1):
            if data:
                self._damage(data)
        return data

    def _damage(self, data: bytearray) -> None:
        draw = self._random()
        # Headers contain the lengths: half of the damage is in the first part.
        reach = len(data) if self._random() < 0.5 else min(len(data), 80)
        place = int(self._random() * reach)
        if draw < 0.30:
            data[place] = int(self._random() * 256)
        elif draw < 0.50:
            data[place] ^= 1 << int(self._random() * 8)
        elif draw < 0.65:
            data[place] = self._choices(_BYTES)[0]
        elif draw < 0.80:
            number = self._choices(_NUMBERS)[0]
            data[place : place + len(number)] = number
        elif draw < 0.85:
            del data[place : place + 1 + int(self._random() * 8)]
        elif draw < 0.90:
            data[place:place] = bytes(1 + int(self._random() * 8))
        elif draw < 0.94:
            stop = place + 1 + int(self._random() * 64)
            data[place:place] = data[place:stop]
        elif draw < 0.97:
            other = self._choices(self._seeds)[0]
            data[place:] = other[int(self._random() * len(other)) :]
        else:
            del data[place:]


def seal(data: bytearray) -> None:
    """Recompute the CRC of every batch and message with a valid length."""
    at = 0
    while len(data) - at >= 18:
        (length,) = struct.unpack_from(">i", data, at + 8)
        stop = at + 12 + length
        if not at + 18 <= stop <= len(data):
            return
        if data[at + 16] == 2 and stop - at >= 61:
            struct.pack_into(">I", data, at + 17, crc32c(memoryview(data)[at + 21 : stop]))
        elif data[at + 16] < 2:
            struct.pack_into(">I", data, at + 12, zlib.crc32(memoryview(data)[at + 16 : stop]))
        at = stop
