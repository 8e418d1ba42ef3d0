"""The record batch of message format v2 (KIP-98), as it lies on the wire and in the log.

==== offset  size  field =================================================================
        0      8   baseOffset                 rewritten by the target broker; outside the CRC
        8      4   batchLength                bytes that follow this field
       12      4   partitionLeaderEpoch       outside the CRC
       16      1   magic                      2; messages of magic 0 and 1 keep it at this place too
       17      4   crc                        CRC-32C over bytes 21 .. end
       21      2   attributes                 codec 0-2 | LogAppendTime 3 | transactional 4 | control 5 | delete horizon 6
       23      4   lastOffsetDelta
       27      8   baseTimestamp              ms; the delete horizon when bit 6 is set, deltas are relative to it all the same
       35      8   maxTimestamp               ms
       43      8   producerId
       51      2   producerEpoch
       53      4   baseSequence
       57      4   recordsCount
       61      .   records                    compressed as one block when a codec is set
==========================================================================================

Everything here is pure: buffers in, buffers out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from mm2.kafka.errors import CorruptBatch
from mm2.kafka.records.checksum import with_other_head

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = 61
LOG_OVERHEAD: Final = 12  # baseOffset + batchLength: the bytes before those that batchLength counts
CRC_FROM: Final = 21
_DERIVED_FROM: Final = 64 << 10  # computing the CRC of this many bytes takes longer than deriving it
_LEAST_OLD_BYTES: Final = 18  # up to the attributes of a message of magic 0
_PREFIX: Final = struct.Struct(">qiib")  # enough to iterate over batches of any magic
_PRODUCER: Final = struct.Struct(">qhi")
_UNTIL_CRC: Final = struct.Struct(">qiibI")
_CRC: Final = struct.Struct(">I")
_ATTRIBUTES: Final = struct.Struct(">h")

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40
_NOT_PLAIN: Final = CONTROL | LOG_APPEND_TIME
_OF_THE_SOURCE: Final = TRANSACTIONAL | CONTROL | DELETE_HORIZON

NO_PRODUCER: Final = (-1, -1, -1)
NO_TIMESTAMP: Final = -1

# The named tuple's own constructor costs as much as the whole parsing.
_tuple = tuple.__new__
#: The offsets after those of any batch that begins here have 64 bits, too.
LAST_BASE_OFFSET: Final = (1 << 63) - (1 << 32)


class BatchHeader(NamedTuple):
    """The 61 header bytes, field by field, in wire order."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def last_offset(self) -> int:
        """Offset of the last record slot, even if compaction removed its record."""
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> int:
        """Codec id: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & CODEC_MASK

    @property
    def is_control(self) -> bool:
        """Contains transaction markers or other control records, which consumers do not return."""
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        """Part of a transaction of its producer."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_log_append_time(self) -> bool:
        """All records have the timestamp ``max_timestamp``; their deltas are ignored."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_dense(self) -> bool:
        """Every offset of the range has a record; a broker rejects any other batch from a producer."""
        return self.last_offset_delta + 1 == self.records_count

    @property
    def is_plain(self) -> bool:
        """Dense, with CreateTime and no control records: to copy it, patching the header is enough.

        One check instead of three, because it runs for every batch.
        """
        return not self.attributes & _NOT_PLAIN and self.last_offset_delta + 1 == self.records_count


class BatchView(NamedTuple):
    """One batch inside a larger buffer. ``header`` is None for messages of magic 0 and 1."""

    header: BatchHeader | None
    base_offset: int
    magic: int
    data: memoryview  # the whole batch, from baseOffset on

    @property
    def legacy_codec(self) -> int:
        """Codec id of a message set of magic 0 or 1; its attributes byte follows the magic."""
        return self.data[17] & CODEC_MASK


def read_header(data: bytes | bytearray | memoryview, at: int = 0) -> BatchHeader:
    """The header of the batch that starts at ``at``; CorruptBatch when fewer than 61 bytes are left."""
    if len(data) - at < HEADER_BYTES:
        message = f"a record batch header needs {HEADER_BYTES} bytes, {len(data) - at} are left"
        raise CorruptBatch(message)
    return _tuple(BatchHeader, HEADER.unpack_from(data, at))


def iter_batches(buffer: memoryview, at: int = 0) -> Iterator[BatchView]:
    """Iterate over the batches of a fetched record set from ``at`` on, up to an incomplete last batch (KIP-74).

    Raises CorruptBatch for an impossible length or an unknown magic.
    """
    end = len(buffer)
    unpack = HEADER.unpack_from
    while end - at >= HEADER_BYTES:
        header = _tuple(BatchHeader, unpack(buffer, at))
        base_offset, length, magic = header[0], header[1], header[3]
        if magic != 2 or length < HEADER_BYTES - LOG_OVERHEAD or base_offset > LAST_BASE_OFFSET:
            view = _old_or_odd(buffer, at)
            if view is None:
                return
            yield view
            at += len(view.data)
            continue
        stop = at + LOG_OVERHEAD + length
        if stop > end:
            return
        yield _tuple(BatchView, (header, base_offset, 2, buffer[at:stop]))
        at = stop
    while end - at >= _LEAST_OLD_BYTES:
        view = _old_or_odd(buffer, at)
        if view is None:
            return
        yield view
        at += len(view.data)


def _old_or_odd(buffer: memoryview, at: int) -> BatchView | None:
    """The batch at ``at`` if it is a message set of magic 0 or 1, None if it is incomplete, else CorruptBatch."""
    base_offset, length, _, magic = _PREFIX.unpack_from(buffer, at)
    if length < (HEADER_BYTES - LOG_OVERHEAD if magic == 2 else _LEAST_OLD_BYTES - LOG_OVERHEAD):
        message = f"a record batch at offset {base_offset} claims a length of {length} bytes"
        raise CorruptBatch(message)
    if base_offset > LAST_BASE_OFFSET:
        message = f"a record batch begins at offset {base_offset}"
        raise CorruptBatch(message)
    stop = at + LOG_OVERHEAD + length
    if stop > len(buffer):
        return None
    if magic not in (0, 1):
        message = f"a record batch at offset {base_offset} has magic {magic}"
        raise CorruptBatch(message)
    return BatchView(None, base_offset, magic, buffer[at:stop])


def check_crc(header: BatchHeader, data: memoryview) -> None:
    """Raise CorruptBatch when the CRC does not match the bytes."""
    actual = crc32c(data[CRC_FROM:])
    if actual != header[4]:
        message = (
            f"the record batch at offsets {header.base_offset}..{header.last_offset} has CRC-32C {actual:#010x}, "
            f"its header has {header.crc:#010x}"
        )
        raise CorruptBatch(message)


def unpatched(data: bytes | memoryview, header: BatchHeader) -> bytes:
    """The batch with the original ``header``, after any number of calls of `patch`."""
    return HEADER.pack(*header) + bytes(data[HEADER_BYTES:])


def patch(
    data: memoryview, header: BatchHeader, producer: tuple[int, int, int], *, transactional: bool = False
) -> None:
    """Adapt a fetched batch for another cluster, in place; the records stay unchanged.

    ``header`` is the original header with a verified CRC (`check_crc`): the new CRC of a large batch is derived from
    it. A patched batch may be patched again with the same header. ``producer`` is (id, epoch, base sequence). The
    delete horizon is removed (the target's cleaner would drop tombstones immediately), and so is the source's
    transaction.

    Raises ValueError for a transactional batch without a producer id: a broker would accept it, but consumers could
    never read it.
    """
    producer_id, epoch, sequence = producer
    if transactional and producer_id < 0:
        message = "a transactional batch needs a producer id"
        raise ValueError(message)
    attributes = header[5]
    if transactional or attributes & _OF_THE_SOURCE:
        attributes = attributes & ~_OF_THE_SOURCE | (TRANSACTIONAL if transactional else 0)
    if len(data) >= _DERIVED_FROM:
        old = HEADER.pack(*header)
        new = HEADER.pack(
            *(0, header[1], -1, 2, 0, attributes), *header[6:9], producer_id, epoch, sequence, header.records_count
        )
        crc = with_other_head(header[4], old[CRC_FROM:], new[CRC_FROM:], len(data) - HEADER_BYTES)
        data[:HEADER_BYTES] = new
        _CRC.pack_into(data, 17, crc)
        return
    _ATTRIBUTES.pack_into(data, CRC_FROM, attributes)
    _PRODUCER.pack_into(data, 43, producer_id, epoch, sequence)
    _UNTIL_CRC.pack_into(data, 0, 0, header[1], -1, 2, crc32c(data[CRC_FROM:]))


def assemble(
    records: bytes | bytearray | memoryview,
    *,
    count: int,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    base_offset: int = 0,
    producer: tuple[int, int, int] = NO_PRODUCER,
) -> bytearray:
    """A batch around an encoded (and compressed) records block with dense offsets."""
    batch = bytearray(HEADER_BYTES + len(records))
    batch[HEADER_BYTES:] = records
    seal(
        batch,
        count=count,
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        base_offset=base_offset,
        producer=producer,
    )
    return batch


def seal(
    batch: bytearray,
    *,
    count: int,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    base_offset: int = 0,
    producer: tuple[int, int, int] = NO_PRODUCER,
) -> None:
    """Write the header of a batch whose records block is already in place."""
    length = len(batch) - LOG_OVERHEAD
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        length,
        -1,
        2,
        0,
        attributes,
        count - 1,
        base_timestamp,
        max_timestamp,
        *producer,
        count,
    )
    _CRC.pack_into(batch, 17, crc32c(memoryview(batch)[CRC_FROM:]))
