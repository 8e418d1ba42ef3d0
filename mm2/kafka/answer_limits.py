"""Limits of answers that are decoded into objects. A broker may be malicious, or another program that listens at its port.

Decoded objects take up to a hundred times the memory of the answer, so the limits are near the largest answers of real
clusters, and far below those of raw Fetch answers, whose records are not decoded.
"""

from __future__ import annotations

import re
from typing import Final

from mm2.kafka.errors import CorruptBatch

_MIB: Final = 1 << 20
#: Before the broker is authenticated, and of any size that a token or a certificate has.
_HANDSHAKE_BYTES: Final = _MIB
#: A hundred thousand groups or ACLs, the configs of thousands of topics.
_USUAL_BYTES: Final = 8 * _MIB
#: Partitions take about 100 bytes each: 300,000 of them. Members of a group may send what they subscribe to.
_LARGE_BYTES: Final = 32 * _MIB
_HANDSHAKES: Final = frozenset({"ApiVersions", "SaslHandshake", "SaslAuthenticate"})
_LARGE: Final = frozenset(
    {"Metadata", "DescribeTopicPartitions", "ListOffsets", "OffsetFetch", "JoinGroup", "SyncGroup", "DescribeGroups"}
)
# An integer of variable length ends with its first byte below 0x80. kafka-python reads one of any length, in time that
# grows with the square. Text of a language without ASCII has such runs, but none that long.
_ENDLESS_INTEGER: Final = re.compile(rb"[\x80-\xff]{4096}")
_ENDLESS_BYTES: Final = 4096


def largest_answer(api: str) -> int:
    """The largest size in bytes of an answer to this request, e.g. "Metadata"."""
    if api in _HANDSHAKES:
        return _HANDSHAKE_BYTES
    return _LARGE_BYTES if api in _LARGE else _USUAL_BYTES


def check_answer(frame: memoryview) -> None:
    """Raise CorruptBatch if decoding an answer could take forever."""
    if len(frame) >= _ENDLESS_BYTES and _ENDLESS_INTEGER.search(frame):
        message = f"an answer of {len(frame)} bytes has an integer of more than 4096 bytes"
        raise CorruptBatch(message)
