"""Message sets of the formats before record batches, magic 0 (Kafka 0.8) and 1 (0.10); a log may still hold them.

==== a message ============================================================================= offset int64 | size int32 |
crc int32 | magic | attributes | timestamp int64 (magic 1 only) | key length int32 (-1 null) | key | value length int32
(-1 null) | value ============================================================================================

The size counts what follows it; the CRC-32 covers everything from the magic on. Attributes: codec 0-2, LogAppendTime 3.
A compressed message, the wrapper, holds a message set of its own as its value. Its offset is that of the last inner
message; inner offsets are absolute in magic 0 and relative in magic 1 (KIP-31). Rules as Java's
`AbstractLegacyRecordBatch`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from mm2.kafka.errors import BatchOverLimit, CorruptBatch
from mm2.kafka.records.batch import CODEC_MASK, LOG_APPEND_TIME, LOG_OVERHEAD, NO_TIMESTAMP, BatchView
from mm2.kafka.records.codec import DECOMPRESSION_MAX_BYTES, LZ4, ZSTD, decompress, with_right_head

_HEAD: Final = struct.Struct(">qiIbb")
_CRC_FROM: Final = 16
_TIMESTAMP: Final = struct.Struct(">q")
_LENGTH: Final = struct.Struct(">i")
_MOST_MESSAGES: Final = 1 << 18


class LegacyMessage(NamedTuple):
    """One message. ``timestamp`` in ms, -1 for magic 0."""

    offset: int
    timestamp: int
    attributes: int
    magic: int
    key: bytes | None
    value: bytes | None


def read_message_set(
    view: BatchView, limit: int = DECOMPRESSION_MAX_BYTES, most: int = _MOST_MESSAGES
) -> list[LegacyMessage]:
    """The messages of one fetched message, more than one when it is compressed, with absolute offsets and timestamps.

    Raises BatchOverLimit for more than ``limit`` decompressed bytes or ``most`` messages, and CorruptBatch when a CRC is
    wrong, or for any other inconsistency.
    """
    where = f"the message set at offset {view.base_offset} (magic {view.magic})"
    try:
        (wrapper,) = _messages(bytes(view.data), where)
        return _unwrapped(wrapper, where, limit, most) if wrapper.attributes & CODEC_MASK else [wrapper]
    except BatchOverLimit as error:
        message = f"{where} is not decompressed: {error}"
        raise BatchOverLimit(message) from None
    except (struct.error, ValueError) as error:
        message = f"{where} does not parse: {error}"
        raise CorruptBatch(message) from error


def check_message_crc(view: BatchView) -> None:
    """Raise CorruptBatch when the CRC of a fetched message, compressed or not, does not match its bytes."""
    if zlib.crc32(view.data[_CRC_FROM:]) != _HEAD.unpack_from(view.data)[2]:
        message = f"the message set at offset {view.base_offset} (magic {view.magic}) fails its CRC"
        raise CorruptBatch(message)


def _messages(data: bytes, where: str) -> Iterator[LegacyMessage]:
    at = 0
    while at < len(data):
        offset, size, crc, magic, attributes = _HEAD.unpack_from(data, at)
        stop = at + LOG_OVERHEAD + size
        if magic not in (0, 1) or not at < stop <= len(data):
            message = f"{where} does not parse: a message of magic {magic} claims {size} bytes"
            raise CorruptBatch(message)
        if zlib.crc32(data[at + _CRC_FROM : stop]) != crc:
            message = f"{where} fails its CRC"
            raise CorruptBatch(message)
        at += _HEAD.size
        timestamp = NO_TIMESTAMP
        if magic:
            (timestamp,) = _TIMESTAMP.unpack_from(data, at)
            at += _TIMESTAMP.size
        key, at = _read_bytes(data, at, stop)
        value, at = _read_bytes(data, at, stop)
        if at != stop:
            message = f"{where} does not parse: {stop - at} bytes follow a value"
            raise CorruptBatch(message)
        yield LegacyMessage(offset, timestamp, attributes, magic, key, value)


def _read_bytes(data: bytes, at: int, stop: int) -> tuple[bytes | None, int]:
    (length,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    if length == -1:
        return None, at
    if length < 0 or at + length > stop:
        message = f"{length} bytes are claimed, {stop - at} are there"
        raise ValueError(message)
    return data[at : at + length], at + length


def _unwrapped(wrapper: LegacyMessage, where: str, limit: int, most: int) -> list[LegacyMessage]:
    codec = wrapper.attributes & CODEC_MASK
    if wrapper.value is None or codec >= ZSTD:
        message = f"{where} does not parse: codec {codec} of a value of {wrapper.value and len(wrapper.value)} bytes"
        raise CorruptBatch(message)
    packed = wrapper.value
    if codec == LZ4 and wrapper.magic == 0:
        packed = with_right_head(packed)
    inner = list(islice(_messages(decompress(codec, packed, limit), where), most + 1))
    if len(inner) > most:
        message = f"more than {most} messages take too much memory (decompression.max.bytes)"
        raise BatchOverLimit(message)
    if not inner or any(message.attributes & CODEC_MASK for message in inner):
        message = f"{where} does not parse: it contains {len(inner)} messages, or compressed ones"
        raise CorruptBatch(message)
    base = 0
    if wrapper.magic and wrapper.offset:  # 0: an unassigned offset, as sent by some producers
        base = wrapper.offset - inner[-1].offset
        if base < 0:
            message = f"{where} does not parse: its last message has the relative offset {inner[-1].offset}"
            raise CorruptBatch(message)
    append_time = wrapper.timestamp if wrapper.magic and wrapper.attributes & LOG_APPEND_TIME else None
    return [
        one._replace(
            offset=base + one.offset,
            timestamp=append_time if append_time is not None and one.magic else one.timestamp,
        )
        for one in inner
    ]
