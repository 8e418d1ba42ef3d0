"""Batches of a source, and a test environment for a cursor."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from crc32c import crc32c

from mm2.copy.executor.partition.cursor import Cursor
from mm2.copy.executor.partition.outbox import Outbox, OutgoingBatch
from mm2.copy.executor.partition.window import SourceRange
from mm2.copy.executor.reports import progress_of
from mm2.copy.progress.session import Mark
from mm2.copy.progress.target_progress import FoundBatch
from mm2.copy.spec import PartitionSpec
from mm2.copy.states import PartitionState
from mm2.copy.tally import Tally
from mm2.kafka.errors import BrokerFailure, CorruptBatch
from mm2.kafka.records.batch import CONTROL, TRANSACTIONAL, BatchView, iter_batches
from mm2.kafka.records.record import Record, decode_batch, encode_batch
from mm2.kafka.structs import ProducerIdentity, TopicPartition
from mm2.kafka.varint import varint
from mm2.kafka.wire.fetch import Fetched

SPEC = PartitionSpec("t", 0, "A.t")
TP = TopicPartition("t", 0)
PRODUCER = ProducerIdentity(1, 0)


class Owner:
    """An owner that records its calls, and responds as the test defines."""

    def __init__(self) -> None:
        self.outgoing_batches: list[OutgoingBatch] = []
        self.acks: list[tuple[int, ...]] = []
        self.newest_ms: list[int] = []
        self.calls: list[tuple[Any, ...]] = []
        self.gaps: list[tuple[int, int, int]] = []  # on the target, and the acknowledged records between them
        self.searches = False  # whether gaps are searched
        self.takes_corrupt = False
        self.takes_large = False
        self.size_limit: int | None = None
        self.stops = False
        self.epoch: int | None = None  # of the source's leader
        self.reads_committed = False  # whether the source is read up to the last stable offset
        self.tally = Tally()
        self.woken = 0

    def wake(self, _cursor: Cursor) -> None:
        self.woken += 1

    def put(self, outbox: Outbox, outgoing: OutgoingBatch) -> None:
        outbox.queue.append(outgoing)
        self.outgoing_batches.append(outgoing)

    def acked(self, _cursor: Cursor, entry: SourceRange, last: int) -> None:
        self.acks.append((entry.first, last, entry.target_base, entry.count))
        self.newest_ms.append(entry.newest_ms)

    def unreadable(self, _cursor: Cursor, failure: BrokerFailure) -> None:
        self.calls.append(("unreadable", failure.code))

    def stopped(self, cursor: Cursor) -> None:
        condition = cursor.conditions.stop
        self.calls.append(("stopped", condition and condition.state))

    def source_recreated(self, _cursor: Cursor, topic_id: str) -> None:
        self.calls.append(("source_recreated", topic_id))

    def diverged(self, _cursor: Cursor, epoch: int, end_offset: int) -> None:
        self.calls.append(("diverged", epoch, end_offset))

    def unvalidated(self, _cursor: Cursor) -> None:
        self.calls.append(("unvalidated",))

    def replaced(self, cursor: Cursor, first: int, records: int, *, exact: bool) -> None:
        self.calls.append(("replaced", first, records, exact))
        if self.stops:
            cursor.fail(PartitionState.LOST_RANGE, "")

    def deleted(self, cursor: Cursor, first: int, after: int) -> None:
        self.calls.append(("deleted", first, after))
        if self.stops:
            cursor.fail(PartitionState.LOST_RANGE, "")
        else:
            cursor.add_lost_range(first, after, "retention")

    def finished(self, cursor: Cursor) -> None:
        self.calls.append(("finished", cursor.offset))

    def replace_session(self, cursor: Cursor) -> None:
        self.calls.append(("replace session", cursor.window.position))

    def epoch_read(self, _cursor: Cursor) -> int | None:
        return self.epoch

    def uncertain(self, cursor: Cursor) -> None:
        self.calls.append(("uncertain", cursor.offset, cursor.predecessor.remaining))

    def too_large(self, _cursor: Cursor, entry: SourceRange, outgoing: OutgoingBatch) -> bool:
        self.calls.append(("too large", entry.first, outgoing.count))
        return self.takes_large

    def find_size_limit(self, cursor: Cursor) -> None:
        cursor.conditions.size_limit = self.size_limit

    def malformed(self, _cursor: Cursor, entry: SourceRange, _outgoing: OutgoingBatch, error: CorruptBatch) -> bool:
        self.calls.append(("malformed", entry.first, str(error)))
        return False

    def corrupt(self, cursor: Cursor, view: BatchView, _error: CorruptBatch, _entry: SourceRange) -> bool:
        self.calls.append(("corrupt", view.base_offset))
        cursor.suspended = self.takes_corrupt
        return self.takes_corrupt

    def misplaced(self, _cursor: Cursor, entry: SourceRange) -> None:
        self.calls.append(("misplaced", entry.first, entry.target_base))

    def target_gap(self, _cursor: Cursor, first: int, end: int, own: int) -> bool:
        self.gaps.append((first, end, own))
        return self.searches

    def target_went_back(self, _cursor: Cursor, base_offset: int) -> None:
        self.calls.append(("went back", base_offset))


class Bench:
    """A cursor with its surroundings written down."""

    def __init__(self, offset: int = 0, *, read_committed: bool = False, **begin: int) -> None:
        self.owner = Owner()
        self.owner.reads_committed = read_committed
        self.outbox = Outbox(SPEC.target, PRODUCER)
        self.cursor = Cursor(SPEC, self.outbox, self.owner, read_committed, None)
        records = begin.pop("records", 0)
        self.cursor.known_epoch = begin.pop("known_epoch", 0)
        mark = Mark(offset, begin.pop("target", -1), records)
        skip, base, end = begin.pop("skip", 0), begin.pop("skip_base", -1), begin.pop("skip_end", -1)
        there = [FoundBatch(records, base, skip)] if base >= 0 else []
        there += [FoundBatch(records + skip - 1, end - 1, 1)] if end >= 0 else []
        self.cursor.begin(mark, skip=skip, there=there)
        self.outbox.begin(PRODUCER, records + self.cursor.predecessor.remaining, known=True)

    @property
    def outgoing_batches(self) -> list[OutgoingBatch]:
        return self.owner.outgoing_batches

    @property
    def tally(self) -> Tally:
        return self.owner.tally

    @property
    def gaps(self) -> dict[str, int]:
        return self.cursor.window.trail.gaps

    @property
    def state(self) -> str:
        return progress_of(self.cursor).state

    def fetch(self, *batches: bytes | bytearray, end: int = 1000, stable: int = 900, **fields: Any) -> None:
        """One answer of the source, which is the same again if a leader epoch or a hole has to be read twice."""
        self.take(*batches, end=end, stable=stable, **fields)
        if self.cursor.batches.is_doubted:
            self.take(*batches, end=end, stable=stable, **fields)

    def take(self, *batches: bytes | bytearray, end: int = 1000, stable: int = 900, **fields: Any) -> None:
        """One answer of the source, only once."""
        self.cursor.take(fetched(*batches, end=end, stable=stable, **fields))

    def fetch_each(self, *batches: bytes | bytearray, **fields: Any) -> None:
        """An answer for each batch: tiny ones that come together are merged."""
        for one in batches:
            self.fetch(one, **fields)

    def ack(self, base: int) -> None:
        """The target takes everything that waits, side by side from ``base``."""
        queue = self.outbox.queue
        while queue:
            outgoing = queue.popleft()
            self.outbox.stamp(outgoing)
            outgoing.acked(base)
            base += outgoing.count

    def keys(self) -> list[list[bytes | None]]:
        """Of the records in each outgoing batch so far."""
        return [[record.key for record in decode_batch(view_of(outgoing.data))] for outgoing in self.outgoing_batches]

    def offsets(self) -> list[int]:
        """Source offsets of the records in all outgoing batches so far, by their keys."""
        return [int((key or b"")[1:]) for keys in self.keys() for key in keys]


def view_of(data: memoryview | bytes | bytearray) -> BatchView:
    (view,) = iter_batches(memoryview(data))
    return view


def record(offset: int) -> Record:
    """The record that stands at an offset, wherever a batch holds it."""
    return Record(b"k%03d" % offset, b"v", (), 1000 + offset, offset)


def fetched(*batches: bytes | bytearray, end: int = 1000, stable: int = 900, **fields: Any) -> Fetched:
    """The partition's part of an answer of the source."""
    records = memoryview(bytearray(b"".join(batches)))
    values: dict[str, Any] = {"error_code": 0, "log_start_offset": 0, "aborted": (), **fields}
    return Fetched(topic_partition=TP, high_watermark=end, last_stable_offset=stable, records=records, **values)


def batch(first: int, count: int, **options: Any) -> bytearray:
    """Records ``first .. first+count-1``."""
    records = [record(offset) for offset in range(first, first + count)]
    return encode_batch(records, base_offset=first, **options)


def holed(first: int, last: int, kept: Iterable[int]) -> bytearray:
    """A compacted batch over first..last of which only ``kept`` is left. Less than 64 offsets."""
    out = bytearray()
    kept = list(kept)
    for offset in kept:
        delta = offset - first
        body = b"\x00" + varint(delta) + varint(delta) + b"\x08k%03d\x02v\x00" % offset
        out += varint(len(body)) + body
    data = encode_batch([Record(b"x", b"", timestamp=1000 + first)], base_offset=first)[:61] + out
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">i", data, 23, last - first)
    struct.pack_into(">q", data, 35, 1000 + (kept[-1] if kept else first))
    struct.pack_into(">i", data, 57, len(kept))
    return checked(data)


def checked(data: bytearray) -> bytearray:
    """With the CRC that it should have."""
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return data


def of_epoch(data: bytearray, leader_epoch: int) -> bytearray:
    """With another partition leader epoch, which the CRC does not cover."""
    struct.pack_into(">i", data, 12, leader_epoch)
    return data


def spoiled(data: bytearray) -> bytearray:
    """With another CRC."""
    data[-1] ^= 1
    return data


def flipped(data: bytearray, bit: int) -> bytearray:
    """With a bit of the last byte flipped."""
    data[-1] ^= 1 << bit
    return data


def marker(offset: int, kind: int, producer: int = 5) -> bytearray:
    """A transaction marker: 0 abort, 1 commit."""
    row = Record(struct.pack(">hh", 0, kind), b"\x00" * 6, timestamp=1)
    return encode_batch([row], base_offset=offset, attributes=TRANSACTIONAL | CONTROL, producer=(producer, 0, -1))
