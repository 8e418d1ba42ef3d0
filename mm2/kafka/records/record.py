"""Records inside a batch: decode, encode, and rewrite a batch without changing keys, values or headers.

==== a record of message format v2, all integers zig-zag varints ====
length | attributes (1 byte, 0) | timestampDelta | offsetDelta | keyLength (-1 null) | key | valueLength (-1 null) |
value | headersCount | { keyLength | key | valueLength (-1 null) | value } ...
======================================================================
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeVar

from mm2.kafka.errors import BatchOverLimit, CorruptBatch
from mm2.kafka.records.batch import (
    CODEC_MASK,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    NO_PRODUCER,
    NO_TIMESTAMP,
    BatchHeader,
    BatchView,
    assemble,
)
from mm2.kafka.records.codec import DECOMPRESSION_MAX_BYTES, codec_of, decompress
from mm2.kafka.records.legacy import LegacyMessage, read_message_set
from mm2.kafka.varint import varint

Headers = tuple[tuple[str, bytes | None], ...]
#: The fields of `Record`.
Fields = tuple[bytes | None, bytes | None, Headers, int | None, int]
Decoded = TypeVar("Decoded")

#: What the integers of one and two bytes mean; looking it up takes less time than the zig-zag arithmetic.
_SIGNED: Final = tuple((number >> 1) ^ -(number & 1) for number in range(1 << 14))
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1
#: The smallest record: its length, attributes, two deltas, two lengths and a number, all of one byte.
_LEAST_RECORD_BYTES: Final = 7
_LEAST_HEADER_BYTES: Final = 2
#: Memory of a decoded record and of one header, without their content. A decompressed batch of the smallest records takes
#: forty times its size when decoded.
_RECORD_MEMORY_BYTES: Final = 256
_HEADER_MEMORY_BYTES: Final = 160


class Record(NamedTuple):
    """One record. ``timestamp`` in ms since the epoch; None: now, when encoded.

    ``offset`` is set in decoded records.
    """

    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    timestamp: int | None = None
    offset: int = -1


#: A record of its fields. The named tuple's own constructor takes twice as long.
record_of: Final[Callable[[Fields], Record]] = partial(tuple.__new__, Record)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The zig-zag varint at ``at`` and the index after it; IndexError past the end."""
    byte = data[at]
    if byte < 0x80:
        return _SIGNED[byte], at + 1
    second = data[at + 1]
    if second < 0x80:
        return _SIGNED[byte & 0x7F | second << 7], at + 2
    at += 1
    number, shift = byte & 0x7F, 7
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7
        if shift > 63:
            message = "a record contains an integer of more than 10 bytes"
            raise CorruptBatch(message)


def _corrupt(header: BatchHeader, why: object) -> CorruptBatch:
    return CorruptBatch(
        f"the records of the batch at offsets {header.base_offset}..{header.last_offset} are inconsistent: {why}"
    )


def _check_end(header: BatchHeader, at: int, end: int) -> None:
    """Check the records count, as Java's reader does.

    A count that is too low would silently lose the remaining records.
    """
    if header.records_count < 0 or at != end:
        why = f"the header has {header.records_count} records, {end - at} bytes follow them"
        raise _corrupt(header, why)


def decode_batch(view: BatchView, limit: int = DECOMPRESSION_MAX_BYTES) -> list[Record]:
    """The records of one batch with absolute offsets and timestamps. The caller checks the CRC.

    Raises BatchOverLimit when the decompressed records, or their objects, would take more than ``limit`` bytes, and
    CorruptBatch when the block does not decompress or does not contain ``count`` whole records.
    """
    return decode_batch_as(record_of, view, limit)


def decode_batch_as(
    make: Callable[[Fields], Decoded], view: BatchView, limit: int = DECOMPRESSION_MAX_BYTES
) -> list[Decoded]:
    """As `decode_batch`, with what ``make`` makes of the fields of each record."""
    header = view.header
    if header is None:
        return [make((one.key, one.value, (), one.timestamp, one.offset)) for one in _messages(view, limit)]
    data = records_block(header, view.data, limit)
    left = limit - header.records_count * _RECORD_MEMORY_BYTES
    at, end = 0, len(data)
    records = []
    append_time = header.max_timestamp if header.is_log_append_time else None
    base_timestamp, base_offset, last_delta = header.base_timestamp, header.base_offset, header.last_offset_delta
    try:
        for _ in range(header.records_count):
            length, at = read_varint(data, at)
            stop = at + length
            if stop > end:
                raise _corrupt(header, f"{stop - end} bytes missing")
            delta, at = read_varint(data, at + 1)
            offset, at = read_varint(data, at)
            size, at = read_varint(data, at)
            key = data[at : (at := at + size)] if size >= 0 else None
            size, at = read_varint(data, at)
            value = data[at : (at := at + size)] if size >= 0 else None
            if data[at]:
                headers, at = _read_headers(header, data, at, left // _HEADER_MEMORY_BYTES)
                left -= len(headers) * _HEADER_MEMORY_BYTES
            else:
                headers, at = (), at + 1
            if at != stop:  # sizes only move forward, so none of them is beyond the record
                raise _corrupt(header, f"a record of {length} bytes is {at - stop:+d} bytes off")
            if not 0 <= offset <= last_delta:
                raise _corrupt(header, f"a record has the offset delta {offset}")
            timestamp = base_timestamp + delta if append_time is None else append_time
            records.append(make((key, value, headers, timestamp, base_offset + offset)))
    except IndexError as error:
        raise _corrupt(header, error) from error
    _check_end(header, at, end)
    return records


def records_block(header: BatchHeader, data: memoryview, limit: int = DECOMPRESSION_MAX_BYTES) -> bytes:
    """The decompressed records block of a whole batch.

    Raises BatchOverLimit when it, or the objects of its records, would take more than ``limit`` bytes.
    """
    try:
        block = decompress(header.codec, data[HEADER_BYTES:], limit)
    except BatchOverLimit as error:
        raise _over_limit(header, error) from None
    count = header.records_count
    if count * _RECORD_MEMORY_BYTES > limit:
        if count * _LEAST_RECORD_BYTES > len(block):
            raise _corrupt(header, f"the header has {count} records, the block {len(block)} bytes")
        raise _over_limit(header, f"{count} records take more than {limit} bytes of memory (decompression.max.bytes)")
    return block


def _over_limit(header: BatchHeader, why: object) -> BatchOverLimit:
    return BatchOverLimit(f"the batch at offsets {header.base_offset}..{header.last_offset} is not decompressed: {why}")


def _messages(view: BatchView, limit: int) -> list[LegacyMessage]:
    return read_message_set(view, limit, limit // _RECORD_MEMORY_BYTES)


def _read_headers(header: BatchHeader, data: bytes, at: int, most: int) -> tuple[Headers, int]:
    count, at = read_varint(data, at)
    if count <= 0:
        return (), at
    if count > most:
        if count * _LEAST_HEADER_BYTES > len(data) - at:
            raise _corrupt(header, f"a record has {count} headers and {len(data) - at} bytes")
        raise _over_limit(header, f"{count} headers of a record take too much memory (decompression.max.bytes)")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        size, at = read_varint(data, at)
        name = data[at : (at := at + size)] if size > 0 else b""
        size, at = read_varint(data, at)
        content = data[at : (at := at + size)] if size >= 0 else None
        headers.append((name.decode("utf-8", "surrogateescape"), content))
    return tuple(headers), at


def _decode_legacy(view: BatchView, limit: int) -> list[Record]:
    return [Record(one.key, one.value, (), one.timestamp, one.offset) for one in _messages(view, limit)]


def encode_batch(
    records: Sequence[Record],
    *,
    codec: int | str = 0,
    level: int | None = None,
    producer: tuple[int, int, int] = NO_PRODUCER,
    attributes: int = 0,
    base_offset: int = 0,
) -> bytearray:
    """Encode a whole batch with dense offsets from ``base_offset``. ``producer`` = (id, epoch, base sequence).

    ``level`` is the codec's compression level, None: its default.
    """
    if not records:
        message = "a record batch contains at least one record"
        raise ValueError(message)
    now = int(time.time() * 1000)
    stamps = [now if record.timestamp is None else record.timestamp for record in records]
    base = stamps[0]
    out = bytearray()
    for index, (key, value, headers, _, _) in enumerate(records):
        body = b"".join(
            (
                b"\x00",
                varint(stamps[index] - base),
                varint(index),
                b"\x01" if key is None else varint(len(key)),
                key or b"",
                b"\x01" if value is None else varint(len(value)),
                value or b"",
                _headers(headers) if headers else b"\x00",
            )
        )
        out += varint(len(body))
        out += body
    chosen = codec_of(codec)
    return assemble(
        chosen.compress(out, level=level),
        count=len(records),
        attributes=(attributes & ~CODEC_MASK) | chosen.id,
        base_timestamp=base,
        max_timestamp=max(stamps),
        base_offset=base_offset,
        producer=producer,
    )


def _headers(headers: Headers) -> bytes:
    parts = [varint(len(headers))]
    for name, content in headers:
        encoded = name.encode("utf-8", "surrogateescape")
        if content is None:
            parts += (varint(len(encoded)), encoded, b"\x01")
        else:
            parts += (varint(len(encoded)), encoded, varint(len(content)), content)
    return b"".join(parts)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A batch re-encoded with dense offsets, and the source offsets of its records (ascending)."""

    data: bytearray
    offsets: list[int]


def rewrite(
    view: BatchView,
    *,
    keep: Callable[[int], bool] | None = None,
    keep_index: Callable[[int], bool] | None = None,
    recompress: bool = True,
    limit: int = DECOMPRESSION_MAX_BYTES,
) -> Rewritten | None:
    """Re-encode a batch that a broker would reject: close gaps, convert LogAppendTime to CreateTime and magic 0/1 to 2.

    Keys, values, headers and timestamps stay unchanged, and so does the codec unless ``recompress`` is off. ``keep``
    selects records by their absolute source offset, ``keep_index`` by their index in the batch (as
    `Produced.bad_records` counts them). Returns None when no record is left (compaction keeps empty batches to preserve
    producer state).

    Raises only CorruptBatch, for any malformed bytes, and BatchOverLimit as `decode_batch` does.
    """
    header = view.header
    if header is None:
        return _rewrite_legacy(view, keep, keep_index, limit, recompress=recompress)
    base = header.max_timestamp if header.is_log_append_time else header.base_timestamp
    out, offsets, newest = _kept_records(header, records_block(header, view.data, limit), base, keep, keep_index)
    if not offsets:
        return None
    if not _INT64_MIN <= newest <= _INT64_MAX:
        raise _corrupt(header, f"a record has the timestamp {newest}")
    chosen = codec_of(header.codec if recompress else 0)
    attributes = header.attributes & ~(CODEC_MASK | LOG_APPEND_TIME)
    return Rewritten(
        assemble(
            chosen.compress(out),
            count=len(offsets),
            attributes=attributes | chosen.id,
            base_timestamp=base,
            max_timestamp=newest,
        ),
        offsets,
    )


def _kept_records(
    header: BatchHeader,
    data: bytes,
    base: int,
    keep: Callable[[int], bool] | None,
    keep_index: Callable[[int], bool] | None,
) -> tuple[bytearray, list[int], int]:
    """The selected records of a block with dense offset deltas, their source offsets, and their newest timestamp.

    ``base``: the base timestamp; with LogAppendTime the timestamp of all records.
    """
    is_append_time = header.is_log_append_time
    newest = NO_TIMESTAMP
    out = bytearray()
    offsets: list[int] = []
    previous = -1
    at = 0
    try:
        for place in range(header.records_count):
            length, at = read_varint(data, at)
            stop = at + length
            if stop > len(data):
                raise _corrupt(header, f"{stop - len(data)} bytes missing")
            delta_at = at + 1
            delta, offset_at = read_varint(data, delta_at)
            offset_delta, rest_at = read_varint(data, offset_at)
            if stop < rest_at or not previous < offset_delta <= header.last_offset_delta:
                raise _corrupt(header, f"a record of {length} bytes has the offset delta {offset_delta}")
            previous = offset_delta
            offset = header.base_offset + offset_delta
            if (keep is None or keep(offset)) and (keep_index is None or keep_index(place)):
                stamp = b"\x00" if is_append_time else data[delta_at:offset_at]
                timestamp = base if is_append_time else base + delta
                newest = max(newest, timestamp) if offsets else timestamp
                index = varint(len(offsets))
                out += varint(1 + len(stamp) + len(index) + stop - rest_at)
                out.append(data[at])
                out += stamp
                out += index
                out += data[rest_at:stop]
                offsets.append(offset)
            at = stop
    except IndexError as error:
        raise _corrupt(header, error) from error
    _check_end(header, at, len(data))
    return out, offsets, newest


def _rewrite_legacy(
    view: BatchView,
    keep: Callable[[int], bool] | None,
    keep_index: Callable[[int], bool] | None,
    limit: int,
    *,
    recompress: bool,
) -> Rewritten | None:
    records = [
        record
        for place, record in enumerate(_decode_legacy(view, limit))
        if (keep is None or keep(record.offset)) and (keep_index is None or keep_index(place))
    ]
    if not records:
        return None
    stamps = [record.timestamp or 0 for record in records]
    if max(stamps) - stamps[0] > _INT64_MAX or min(stamps) - stamps[0] < _INT64_MIN:
        message = f"the message set at offset {view.base_offset} has timestamps from {min(stamps)} to {max(stamps)}"
        raise CorruptBatch(message)
    codec = view.legacy_codec if recompress else 0
    return Rewritten(encode_batch(records, codec=codec), [record.offset for record in records])


def split(view: BatchView, parts: int, limit: int = DECOMPRESSION_MAX_BYTES) -> list[Rewritten]:
    """Split a batch into about ``parts`` smaller ones with the same records, for a target with a lower size limit.

    Raises as `rewrite` does.
    """
    whole = rewrite(view, recompress=view.header is None, limit=limit)
    if whole is None or view.header is None:
        return [] if whole is None else [whole]
    size = max(1, -(-len(whole.offsets) // parts))
    pieces = []
    for start in range(0, len(whole.offsets), size):
        piece = rewrite(view, keep_index=range(start, start + size).__contains__, limit=limit)
        if piece is not None:
            pieces.append(piece)
    return pieces
