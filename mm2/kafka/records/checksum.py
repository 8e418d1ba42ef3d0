"""CRC-32C of bytes whose head has changed, derived from the old CRC without reading the rest.

A CRC is linear: the CRCs of two messages of equal length differ by the CRC of their difference. If only a head differs,
that is the difference of the heads' CRCs, shifted over the following bytes as if they were zeros. A shift over n zeros
is a linear map of 32 bits for each n. It is composed of one map for each hexadecimal digit of n, with four tables of
256 entries each.

For a batch that is not in the CPU cache, computing the CRC takes longer than sending it. A derived CRC also still
reveals any corruption of the records since their producer wrote them, which a new CRC would hide.
"""

from __future__ import annotations

import functools
from array import array
from typing import Final

from crc32c import crc32c

_POLYNOMIAL: Final = 0x82F63B78  # CRC-32C, reflected

_Tables = tuple["array[int]", "array[int]", "array[int]", "array[int]"]


def with_other_head(crc: int, old: bytes, new: bytes, rest_bytes: int) -> int:
    """The CRC of ``new`` + rest, when ``crc`` is that of ``old`` + rest. ``old`` and ``new`` must be equally long."""
    value = crc32c(old) ^ crc32c(new)
    place = 0
    while rest_bytes:
        if digit := rest_bytes & 0xF:
            # `_carried` inlined: this runs for every batch, and a call would double its cost.
            first, second, third, fourth = _tables(place, digit)
            value = first[value & 0xFF] ^ second[value >> 8 & 0xFF] ^ third[value >> 16 & 0xFF] ^ fourth[value >> 24]
        rest_bytes >>= 4
        place += 1
    return crc ^ value


def _carried(value: int, tables: _Tables) -> int:
    first, second, third, fourth = tables
    return first[value & 0xFF] ^ second[value >> 8 & 0xFF] ^ third[value >> 16 & 0xFF] ^ fourth[value >> 24]


@functools.cache
def _tables(place: int, digit: int) -> _Tables:
    """The effect of digit x 16^place zero bytes on each of the four bytes of a CRC."""
    images = _images(place, digit)
    first, second, third, fourth = (_table(images[8 * byte : 8 * byte + 8]) for byte in range(4))
    return first, second, third, fourth


def _table(images: list[int]) -> array[int]:
    table = array("I", [0])
    for image in images:
        table.extend([image ^ entry for entry in table])
    return table


@functools.cache
def _images(place: int, digit: int) -> list[int]:
    """The effect of digit x 16^place zero bytes on each of the 32 bits."""
    if digit > 1:
        return [_carried(image, _tables(place, 1)) for image in _images(place, digit - 1)]
    if place > 0:
        return [_carried(image, _tables(place - 1, 1)) for image in _images(place - 1, 15)]
    images = [1 << bit for bit in range(32)]
    for _ in range(8):  # a zero bit shifts the CRC by one; a bit shifted out is replaced by the polynomial
        images = [image >> 1 ^ (_POLYNOMIAL if image & 1 else 0) for image in images]
    return images
