"""Merge tiny batches of one partition into large ones.

A broker accepts one batch per partition and request. Copying batches of one record would be limited to one record per
round trip, and the target would need a header and a log append for each. The records of consecutive batches are moved
into one batch: their offset and timestamp deltas are rewritten, their other bytes stay unchanged.

`merge` takes batches that have been parsed. `coalesce` parses a fetched record set and merges in one loop, fast enough
for a million batches per second.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from mm2.kafka.errors import CorruptBatch
from mm2.kafka.records.batch import (
    CRC_FROM,
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_OVERHEAD,
    TRANSACTIONAL,
    BatchHeader,
    BatchView,
    check_crc,
    iter_batches,
    read_header,
    seal,
)
from mm2.kafka.records.codec import DECOMPRESSION_MAX_BYTES, codec_of, decompress
from mm2.kafka.records.record import read_varint
from mm2.kafka.varint import varint

#: A batch of this size or more is not tiny: its records cost more than the batch overhead.
TINY_BYTES: Final = 4096
MAX_MERGED_BYTES: Final = 512 << 10

# base offset, length, leader epoch, magic, CRC, attributes, last offset delta, base timestamp, records count
_LEAN: Final = struct.Struct(">qiibIhiq22xi")
_INT32: Final = struct.Struct(">i")
_LEAST_LENGTH: Final = HEADER_BYTES - LOG_OVERHEAD
#: Shares of ``decompression.max.bytes`` that a merged batch uses: bytes after decompression, and records, which `decode_batch` counts
#: as 256 bytes each. It must not be over the limit where the batches that it is made of are not.
_INFLATED_SHARE: Final = 4
_RECORD_SHARE: Final = 512
#: A batch that expands by more than this is passed on: decompressing a response full of such batches would take seconds, in which the
#: lease is not renewed.
_MAX_EXPANSION: Final = 16
_WINDOW_BYTES: Final = 64 << 10
_IGNORED: Final = DELETE_HORIZON | TRANSACTIONAL
_TABLE: Final = 1 << 14
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Merged:
    """One batch made of several. It covers the source offsets from ``first`` to before ``after``.

    All of them are of one ``leader_epoch``, so that the reader knows where each epoch begins (KIP-101).
    """

    data: bytearray
    header: BatchHeader
    first: int
    after: int
    batches: int
    leader_epoch: int


def merge(
    views: Sequence[BatchView],
    *,
    max_bytes: int = MAX_MERGED_BYTES,
    limit: int = DECOMPRESSION_MAX_BYTES,
    first_only: bool = False,
) -> list[Merged]:
    """Merge consecutive batches, all plain (`BatchHeader.is_plain`) and of one codec, into as few as possible.

    ``limit`` is ``decompression.max.bytes``. ``first_only``: returns only the first of them, and does not look at the rest.

    At most ``max_bytes`` of batches are merged into one, which has about the same size or less; a larger batch stays
    alone. The merged batches have no producer and no transaction, and
    the offsets and the leader epoch of the source.

    Raises CorruptBatch when a CRC is wrong or records are malformed, ValueError for batches that are not plain, differ
    in codec or are not consecutive.
    """
    if old := [view for view in views if view.header is None]:
        message = f"the message set at offset {old[0].base_offset} cannot be merged"
        raise ValueError(message)
    data = b"".join([view.data for view in views])
    merged: list[Merged] = []
    at = 0
    while at < len(data) and not (first_only and merged):
        header = read_header(data, at)
        stop = at + LOG_OVERHEAD + header.batch_length
        run = _Run(header, limit)
        if not merged or (merged[-1].after, merged[-1].header.codec) == (header.base_offset, header.codec):
            run.take(data, at, min(max(at + max_bytes, stop), len(data)), _IGNORED, below=len(data))
        if not run.batches:
            check_crc(header, memoryview(data)[at:stop])
            if header.is_plain:
                run.add(run.inflate(data[at:stop]), 0, header.base_timestamp, header.records_count, 0)
            message = f"the batch at offset {header.base_offset} cannot be merged with those before it"
            raise ValueError(message)
        at += run.size
        merged.append(run.finish())
    return merged


def coalesce(
    buffer: memoryview,
    offset: int,
    *,
    max_bytes: int = MAX_MERGED_BYTES,
    compressed: bool = False,
    transactional: bool = False,
    limit: int = DECOMPRESSION_MAX_BYTES,
) -> Iterator[BatchView | Merged]:
    """As `iter_batches`, but merges consecutive tiny batches.

    Merges plain batches of one codec and leader epoch, from ``offset`` on, without gaps between them, with valid CRCs
    and records. ``compressed``: also merges compressed batches, which costs decompression and compression.
    ``transactional``: also merges transactional batches, which is correct only if none of them can be aborted. All
    other batches, including corrupt ones, are returned as views, in order; the caller detects corrupt ones. ``limit`` is
    ``decompression.max.bytes``.
    """
    ignored = _IGNORED if transactional else DELETE_HORIZON
    at: int | None = 0
    too_few_until = 0
    while at is not None:
        start, at = at, None
        for view in iter_batches(buffer, start):
            header = view.header
            stop = start + len(view.data)
            if (
                header is not None
                and start >= too_few_until
                and header.batch_length < TINY_BYTES
                and header.base_offset >= offset
                and (compressed or not header.codec)
                and len(buffer) - stop >= HEADER_BYTES
                and _INT32.unpack_from(buffer, stop + 8)[0] < TINY_BYTES
            ):
                run = _run_of(header, buffer[start : start + max_bytes], ignored, limit)
                if run.batches < 2:
                    too_few_until = start + run.size
                else:
                    at = start + run.size
                    yield run.finish()
                    break
            yield view
            start = stop


def _run_of(first: BatchHeader, buffer: memoryview, ignored: int, limit: int) -> _Run:
    """The tiny batches at the beginning of ``buffer`` that can be merged; empty when the first one cannot."""
    run = _Run(first, limit)
    more = True
    while more:
        window = bytes(buffer[run.size : run.size + _WINDOW_BYTES])  # slicing bytes costs less than slicing a view
        before = run.size
        run.take(window, 0, len(window), ignored, below=TINY_BYTES)
        taken = run.size - before
        more = taken > 0 and len(window) - taken < LOG_OVERHEAD + TINY_BYTES
    return run


@functools.cache
def _varints() -> list[bytes]:
    """Varints of 0, 1, 2, …, created on first use."""
    return [varint(number) for number in range(_TABLE)]


@functools.cache
def _lengths() -> list[bytes]:
    """The first bytes of a record of length n: its length, and attributes 0."""
    return [varint(length) + b"\0" for length in range(TINY_BYTES + 16)]


@functools.cache
def _lone_heads() -> list[bytes]:
    """The first bytes of the only record in a block of n bytes.

    These are its length, attributes 0, timestamp delta 0 and offset delta 0.
    """
    heads = [b"\xff"] * 4  # no record is that short
    for size in range(4, TINY_BYTES):
        length = size - 1
        while length + len(varint(length)) > size:
            length -= 1
        heads.append(varint(length) + b"\0\0\0")
    return heads


class _Run:
    """Batches that are being merged. ``size`` is the size of the batches taken so far."""

    __slots__ = (
        "_base_timestamp",
        "_count",
        "_first",
        "_inflated",
        "_leader_epoch",
        "_max_inflated",
        "_max_records",
        "_newest",
        "_pieces",
        "batches",
        "codec",
        "size",
    )

    def __init__(self, first: BatchHeader, limit: int) -> None:
        self.codec = first.codec
        self._max_inflated = limit // _INFLATED_SHARE
        self._max_records = limit // _RECORD_SHARE
        self.batches = 0
        self.size = 0
        self._first = first.base_offset
        self._base_timestamp = self._newest = first.base_timestamp
        self._count = 0
        self._inflated = 0
        self._leader_epoch = first.leader_epoch
        self._pieces = [bytes(HEADER_BYTES)]

    def take(self, data: bytes, at: int, end: int, ignored: int, *, below: int) -> None:
        """Take whole batches from ``at`` on, while they are shorter than ``below``, alike, consecutive and valid.

        ``ignored``: attributes that may differ. May be called again with the bytes that follow.
        """
        varints, lengths, lone_heads = _varints(), _lengths(), _lone_heads()
        codec, attributes_mask, base = self.codec, ~ignored, self._base_timestamp
        pieces, number = self._pieces, self._count
        expected, begin, last = self._first + number, at, end - HEADER_BYTES
        leader_epoch, max_records = self._leader_epoch, self._max_records
        while at <= last:
            offset, length, epoch, magic, crc, attributes, last_delta, base_timestamp, count = _LEAN.unpack_from(
                data, at
            )
            stop = at + LOG_OVERHEAD + length
            if (
                offset != expected
                or epoch != leader_epoch
                or attributes & attributes_mask != codec
                or last_delta + 1 != count
                or magic != 2
                or not _LEAST_LENGTH <= length < below
                or stop > end
                or not 0 < count <= max_records - number
            ):
                break
            block, start = data[at + CRC_FROM : stop], HEADER_BYTES - CRC_FROM
            if crc32c(block) != crc:
                break
            try:
                if codec:
                    block, start = self.inflate(data[at:stop]), 0
                    self._inflated += len(block)
                room = len(block) - start
                if (
                    count == 1
                    and room < TINY_BYTES
                    and 0 <= (delta := base_timestamp - base) < _TABLE
                    and number < _TABLE
                    and block.startswith(head := lone_heads[room], start)
                ):
                    # Fast path for the usual case: `add` would do the same in three times the time.
                    rest = block[start + len(head) :]
                    stamp, index = varints[delta], varints[number]
                    pieces += (lengths[1 + len(stamp) + len(index) + len(rest)], stamp, index, rest)
                    if base_timestamp > self._newest:  # noqa: PLR1730 (a call costs more than the line it would save)
                        self._newest = base_timestamp
                elif not self.add(block, start, base_timestamp, count, number):
                    break
            except CorruptBatch:
                break
            expected += count
            number += count
            at = stop
            self.batches += 1
        self.size += at - begin
        self._count = number

    def inflate(self, batch: bytes) -> bytes:
        """The records block of a whole batch. Raises CorruptBatch, also where it is too large to be merged."""
        limit = min(TINY_BYTES + _MAX_EXPANSION * len(batch), self._max_inflated - self._inflated)
        return decompress(self.codec, batch[HEADER_BYTES:], limit)

    def add(self, block: bytes, start: int, base_timestamp: int, count: int, number: int) -> bool:
        """Add the records of a batch, ``block`` from ``start`` on, as the ``number``-th and following ones.

        Returns False when their timestamps are too far from the first one. Raises CorruptBatch. Unless it returns True,
        nothing is added.
        """
        varints = _varints()
        shift = base_timestamp - self._base_timestamp
        newest = self._newest
        pieces: list[bytes] = []
        at, end = start, len(block)
        try:
            for index in range(count):
                length, at = read_varint(block, at)
                stop = at + length
                delta, offset_at = read_varint(block, at + 1)
                if index < _TABLE and block.startswith(due := varints[index], offset_at):
                    offset_delta, rest_at = index, offset_at + len(due)
                else:
                    offset_delta, rest_at = read_varint(block, offset_at)
                if offset_delta != index or not rest_at <= stop <= end:
                    message = f"a record of {length} bytes has the offset delta {offset_delta} when {index} was due"
                    raise CorruptBatch(message)
                timestamp = base_timestamp + delta
                if timestamp > newest:  # noqa: PLR1730 (a call costs more than the line it would save)
                    newest = timestamp
                delta += shift
                if 0 <= delta < _TABLE:
                    stamp = varints[delta]
                elif _INT64_MIN <= delta <= _INT64_MAX:
                    stamp = varint(delta)
                else:
                    return False
                place = varints[number] if number < _TABLE else varint(number)
                length = 1 + len(stamp) + len(place) + stop - rest_at
                pieces += (
                    varints[length] if length < _TABLE else varint(length),
                    block[at : at + 1],
                    stamp,
                    place,
                    block[rest_at:stop],
                )
                at = stop
                number += 1
        except IndexError as error:
            message = f"the records of a batch end before the last of {count} records"
            raise CorruptBatch(message) from error
        if at != end or not _INT64_MIN <= newest <= _INT64_MAX:
            message = f"{end - at} bytes follow the {count} records of a batch, the newest of which is of {newest}"
            raise CorruptBatch(message)
        self._newest = newest
        self._pieces += pieces
        return True

    def finish(self) -> Merged:
        """The merged batch with a valid CRC."""
        codec = codec_of(self.codec)
        if codec.id:
            self._pieces[1:] = [codec.compress(b"".join(self._pieces[1:]), fast=True)]
        data = bytearray().join(self._pieces)
        seal(
            data,
            count=self._count,
            attributes=codec.id,
            base_timestamp=self._base_timestamp,
            max_timestamp=self._newest,
            base_offset=self._first,
        )
        _INT32.pack_into(data, LOG_OVERHEAD, self._leader_epoch)
        after = self._first + self._count
        return Merged(data, read_header(data), self._first, after, self.batches, self._leader_epoch)
