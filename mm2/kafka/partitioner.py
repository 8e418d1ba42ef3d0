"""Partition of a key, the same as in Java producers."""

from __future__ import annotations

from typing import Final

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_R: Final = 24
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """32-bit MurmurHash2 with Kafka's seed, as a signed number (`org.apache.kafka.common.utils.Utils.murmur2`)."""
    length = len(data)
    whole = length & ~3
    value = (_SEED ^ length) & _MASK
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little") * _M & _MASK
        word ^= word >> _R
        value = (value * _M & _MASK) ^ (word * _M & _MASK)
    if length > whole:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    value = (value ^ (value >> 13)) * _M & _MASK
    value ^= value >> 15
    return value - (1 << 32) if value & 0x80000000 else value


def partition_for(key: bytes, partitions: int) -> int:
    """Partition of a key among `partitions` (`BuiltInPartitioner.partitionForKey`)."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
