"""Batches of a source, and a test environment for a cursor."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from crc32c import crc32c

from mm2.copy.executor.commit.awake import AwakeCursors
from mm2.copy.executor.partition.cursor import Cursor
from mm2.copy.executor.partition.events import (
    BatchesQueued,
    BatchMalformed,
    CorruptFetched,
    CountUncertain,
    GapDue,
    PartitionEvent,
    PartitionStopped,
    PositionUnvalidated,
    PredecessorPassed,
    RecordsDeleted,
    RecordsReplaced,
    RecordTooLarge,
    SessionEnds,
    SizeLimitUnknown,
    SourceDiverged,
    SourceRecreated,
    StateChanged,
    Unreadable,
)
from mm2.copy.executor.partition.gap_queue import GapQueue
from mm2.copy.executor.partition.outbox import Outbox, OutboxState, OutgoingBatch
from mm2.copy.executor.partition.preserved_records import PreservedRecords
from mm2.copy.executor.partition.window import (
    BatchMisplaced,
    RangeAcknowledged,
    SourceRange,
    TargetGap,
    TargetWentBack,
)
from mm2.copy.executor.partition_events import PartitionEvents
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
    """Records the events of a cursor, and acts on them as the test defines."""

    cursor: Cursor

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
        self.tally = Tally()
        self.woken = 0
        self.gap_due: Callable[[int], None] = lambda _version: None

    def handle(self, event: PartitionEvent) -> None:
        cursor = self.cursor
        match event:
            case StateChanged():
                self.woken += 1
            case BatchesQueued():
                known = set(self.outgoing_batches)
                self.outgoing_batches += (outgoing for outgoing in cursor.outbox.queue if outgoing not in known)
            case GapDue(version):
                self.gap_due(version)
            case RangeAcknowledged(entry, last):
                self.acked(cursor, entry, last)
            case Unreadable(failure):
                self.unreadable(cursor, failure)
            case PartitionStopped():
                self.stopped(cursor)
            case SourceRecreated(topic_id):
                self.source_recreated(cursor, topic_id)
            case SourceDiverged(epoch, end_offset):
                self.diverged(cursor, epoch, end_offset)
            case PositionUnvalidated():
                self.calls.append(("unvalidated",))
            case RecordsReplaced(first, records, exact):
                self.replaced(cursor, first, records, exact=exact)
            case RecordsDeleted(first, after):
                self.deleted(cursor, first, after)
            case PredecessorPassed():
                self.calls.append(("finished", cursor.offset))
            case SessionEnds():
                self.replace_session(cursor)
            case CountUncertain():
                self.calls.append(("uncertain", cursor.offset, cursor.predecessor.remaining))
            case RecordTooLarge(entry, outgoing):
                self.calls.append(("too large", entry.first, outgoing.count))
                if self.takes_large:
                    cursor.outbox.state = OutboxState.QUARANTINING
            case SizeLimitUnknown():
                cursor.conditions.size_limit = self.size_limit
            case BatchMalformed(entry, _, error):
                self.calls.append(("malformed", entry.first, str(error)))
            case CorruptFetched(view, error, entry):
                self.corrupt(cursor, view, error, entry)
            case BatchMisplaced(entry):
                self.calls.append(("misplaced", entry.first, entry.target_base))
            case TargetGap(first, end, own):
                self.gaps.append((first, end, own))
                if not self.searches:
                    cursor.window.leave_unsearched(end)
            case TargetWentBack(base_offset):
                self.calls.append(("went back", base_offset))

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

    def replace_session(self, cursor: Cursor) -> None:
        self.calls.append(("replace session", cursor.window.position))

    def corrupt(self, cursor: Cursor, view: BatchView, error: CorruptBatch, entry: SourceRange) -> None:
        del error, entry
        self.calls.append(("corrupt", view.base_offset))
        cursor.suspended = self.takes_corrupt


def partition_events(cursors: Mapping[TopicPartition, Cursor], **parts: Any) -> PartitionEvents:
    """What acts on events, with these parts only."""
    names = ("link", "source", "sink", "awake", "new_sessions", "search", "losses", "commits", "fills", "quarantine")
    found = {**dict.fromkeys((*names, "size_limits", "watch")), "awake": AwakeCursors(), **parts}
    fields = {f"_{name}": part for name, part in {**found, "cursors": cursors}.items()}
    return PartitionEvents(**cast(Any, fields))


class Bench:
    """A cursor with its surroundings written down."""

    def __init__(
        self, offset: int = 0, *, read_committed: bool = False, is_preserved: bool = False, **begin: int
    ) -> None:
        self.owner = Owner()
        self.outbox = Outbox(SPEC.target, PRODUCER)
        owner = self.owner
        self.cursor = owner.cursor = Cursor(
            SPEC, self.outbox, owner.handle, owner.tally, read_committed, None, with_preserved_offsets=is_preserved
        )
        self.cursor.reads_committed = read_committed
        records = begin.pop("records", 0)
        self.cursor.known_epoch = begin.pop("known_epoch", 0)
        mark = Mark(offset, begin.pop("target", -1), records)
        skip, base, end = begin.pop("skip", 0), begin.pop("skip_base", -1), begin.pop("skip_end", -1)
        there = [FoundBatch(records, base, skip)] if base >= 0 else []
        there += [FoundBatch(records + skip - 1, end - 1, 1)] if end >= 0 else []
        self.cursor.begin(mark, skip=skip, found=there)
        self.outbox.begin(PRODUCER, records + self.cursor.predecessor.remaining, known=True)

    @property
    def outgoing_batches(self) -> list[OutgoingBatch]:
        return self.owner.outgoing_batches

    @property
    def tally(self) -> Tally:
        return self.owner.tally

    @property
    def queue(self) -> GapQueue:
        """Of a partition with preserved offsets."""
        assert isinstance(self.cursor.outgoing, PreservedRecords)
        return self.cursor.outgoing.gaps

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
        self.cursor.take(fetched(*batches, end=end, stable=stable, **fields), self.owner.epoch)

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
