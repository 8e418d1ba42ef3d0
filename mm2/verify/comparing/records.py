"""Records in a comparison: bodies as bytes first, their parts only where two records differ. Pure.

A record's body is what follows its offset in the batch: key, value and headers with their lengths
(`mm2.kafka.records.record` has the layout). Two records with equal bodies and timestamps are equal, whatever batches
they are in. Iterating over the bodies of a batch takes a third of the time of decoding its records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Self

from mm2.copy.changes import ChangedBatch
from mm2.kafka.errors import BatchOverLimit, CorruptBatch
from mm2.kafka.records.batch import HEADER_BYTES, BatchView
from mm2.kafka.records.codec import DECOMPRESSION_MAX_BYTES
from mm2.kafka.records.record import Record, decode_batch, read_varint, records_block
from mm2.kafka.varint import varint

_DIGEST_BYTES: Final = 16
_HEADER_MEMORY_BYTES: Final = 300
_NO_BATCH: Final = BatchView(None, 0, 2, memoryview(b""))

#: What a flow makes of the records of a batch: those from a source offset on, up to before another.
Change = Callable[[BatchView, int, int], ChangedBatch]


class ValueDigest(NamedTuple):
    """A key, a value or a header's value: its size and a digest. The content is never displayed."""

    size: int
    digest: bytes

    @classmethod
    def of(cls, data: bytes | None) -> ValueDigest | None:
        """The part of these bytes; None for null, which differs from empty."""
        return None if data is None else cls(len(data), hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest())

    def __str__(self) -> str:
        return f"{self.size:,} bytes ({self.digest.hex()[:8]})"


class Item(NamedTuple):
    """A record to be matched. ``timestamp`` is its timestamp (ms), None if timestamps are not compared."""

    offset: int
    timestamp: int | None
    key: ValueDigest | None
    value: ValueDigest | None
    headers: tuple[tuple[str, ValueDigest | None], ...] = ()

    @property
    def content(self) -> tuple[object, ...]:
        """All fields except the offset."""
        return self[1:]

    def without_timestamp(self) -> Item:
        """The record without its timestamp."""
        return self._replace(timestamp=None)

    def similarity(self, other: Item) -> int:
        """A score for two unequal records, 0 if they have nothing in common."""
        same = 2 * (self.key is not None and self.key == other.key)
        same += 2 * (self.value is not None and self.value == other.value)
        same += bool(self.headers) and self.headers == other.headers
        return same + (self.timestamp is not None and self.timestamp == other.timestamp)


class Block:
    """The records of one batch within ``first``..``after - 1``; ``at`` is the next one to compare.

    The records are decoded only if comparing the batch as a whole was not sufficient: `load`.
    """

    __slots__ = ("after", "at", "bodies", "first", "held_bytes", "limit", "offsets", "timestamps", "view")

    def __init__(self, view: BatchView, first: int, after: int, limit: int = DECOMPRESSION_MAX_BYTES) -> None:
        self.view = view
        self.limit = limit
        self.held_bytes = 0  # of the decoded records
        self.first = first
        self.after = after
        self.at = 0
        self.offsets: list[int] | None = None
        self.timestamps: list[int] = []
        self.bodies: list[bytes] = []

    @classmethod
    def of(cls, records: Sequence[Record], limit: int = DECOMPRESSION_MAX_BYTES) -> Self:
        """Records that are in no batch, at least one; offsets ascend."""
        block = cls(_NO_BATCH, records[0].offset, records[-1].offset + 1, limit)
        block.offsets = block._take(records)
        block.held_bytes = sum(map(len, block.bodies))
        return block

    @property
    def whole(self) -> bool:
        """Whether this is an unread batch of format 2 with consecutive offsets, completely in the range."""
        header = self.view.header
        return (
            self.at == 0
            and header is not None
            and header.last_offset_delta + 1 == header.records_count
            and header.base_offset >= self.first
            and header.base_offset + header.last_offset_delta < self.after
        )

    @property
    def payload(self) -> memoryview:
        """The records section, still compressed."""
        return self.view.data[HEADER_BYTES:]

    @property
    def has_broker_timestamps(self) -> bool:
        """Whether its timestamps are those of the broker (LogAppendTime)."""
        return self.view.header is not None and self.view.header.is_log_append_time

    def load(self) -> list[int]:
        """Decode the records; returns their offsets. Raises CorruptBatch if they are inconsistent."""
        if self.offsets is None:
            self.offsets = self._load()
            self.held_bytes = sum(map(len, self.bodies))
        return self.offsets

    @property
    def left(self) -> int:
        """The number of records still to compare."""
        return len(self.load()) - self.at

    def item(self, index: int) -> Item:
        """One of the records, split into its parts."""
        return item_of(self.load()[index], self.timestamps[index], self.bodies[index], self.limit)

    def _load(self) -> list[int]:
        header = self.view.header
        if header is None:
            records = decode_batch(self.view, self.limit)
            return self._take([one for one in records if self.first <= one.offset < self.after])
        data = records_block(header, self.view.data, self.limit)
        base, first, after = header.base_offset, self.first, self.after
        started = header.base_timestamp
        append_time = header.max_timestamp if header.is_log_append_time else None
        offsets: list[int] = []
        at = 0
        try:
            for _ in range(header.records_count):
                length, at = read_varint(data, at)
                stop = at + length
                delta, at = read_varint(data, at + 1)
                step, at = read_varint(data, at)
                if at > stop or stop > len(data):
                    raise _corrupt(self.view, f"a record of {length} bytes is cut off")
                if first <= base + step < after:
                    offsets.append(base + step)
                    self.timestamps.append(started + delta if append_time is None else append_time)
                    self.bodies.append(data[at:stop])
                at = stop
        except IndexError as error:
            raise _corrupt(self.view, "the end is missing") from error
        if at != len(data):
            raise _corrupt(self.view, f"{len(data) - at} bytes follow the last one")
        return offsets

    def _take(self, records: Sequence[Record]) -> list[int]:
        self.timestamps = [-1 if record.timestamp is None else record.timestamp for record in records]
        self.bodies = [body_of(record) for record in records]
        return [record.offset for record in records]


def body_of(record: Record) -> bytes:
    """The body of a record in a batch of format 2."""
    out = [_sized(record.key), _sized(record.value), varint(len(record.headers))]
    for name, content in record.headers:
        out += [_sized(name.encode("utf-8", "surrogateescape")), _sized(content)]
    return b"".join(out)


def item_of(offset: int, timestamp: int, body: bytes, limit: int = DECOMPRESSION_MAX_BYTES) -> Item:
    """A record split into its parts. Raises CorruptBatch; BatchOverLimit when its headers take too much memory."""
    try:
        key, at = _read(body, 0)
        value, at = _read(body, at)
        count, at = read_varint(body, at)
        if count * _HEADER_MEMORY_BYTES > limit and count <= len(body):
            message = f"the record at offset {offset} has {count} headers, which take too much memory (decompression.max.bytes)"
            raise BatchOverLimit(message)
        headers: list[tuple[str, ValueDigest | None]] = []
        for _ in range(count):
            name, at = _read(body, at)
            content, at = _read(body, at)
            headers.append(((name or b"").decode("utf-8", "backslashreplace"), ValueDigest.of(content)))
    except IndexError as error:
        message = f"the record at offset {offset} is inconsistent: its end is missing"
        raise CorruptBatch(message) from error
    if at != len(body):
        message = f"the record at offset {offset} is inconsistent: {len(body) - at} bytes follow its headers"
        raise CorruptBatch(message)
    return Item(offset, timestamp, ValueDigest.of(key), ValueDigest.of(value), tuple(headers))


def _sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def _read(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = read_varint(data, at)
    if size < 0:
        return None, at
    if at + size > len(data):
        raise IndexError
    return data[at : at + size], at + size


def _corrupt(view: BatchView, why: str) -> CorruptBatch:
    return CorruptBatch(f"the records of the batch at offset {view.base_offset} are inconsistent: {why}")
