"""One partition on its way from source to target: which batches go as they are, which are re-encoded, which are dropped.

A broker takes a batch from a producer only if it is magic 2, without holes, with CreateTime and no control records
(`LogValidator`). So of what is fetched

    control batches, aborted ones under read_committed, empty ones   are dropped, and counted by reason
    holes, LogAppendTime, magic 0/1, batches begun before our offset  are re-encoded with the same codec
    everything else                                                  goes as the bytes it came in
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from mm2.copy.executor.outbox import Outbox, Parcel
from mm2.copy.spec import PartitionProgress, PartitionSpec
from mm2.kafka.errors import BrokerFailure, CorruptBatch
from mm2.kafka.records.batch import BatchHeader, BatchView, check_crc, iter_batches, read_header
from mm2.kafka.records.record import rewrite, split
from mm2.kafka.records.transactions import AbortedTransactions
from mm2.kafka.structs import TopicPartition
from mm2.kafka.wire.fetch import Fetched

log = structlog.get_logger(__name__)

QUEUE_LIMIT_BYTES: Final = 4 << 20
QUEUE_LIMIT_S: Final = 1.0


@dataclass(slots=True, eq=False)
class _Entry:
    """A stretch of source offsets up to ``next_offset``, done once it is on the target or known to be dropped."""

    first: int
    next_offset: int
    size: int = 0
    count: int = 0
    pieces: int = 1  # batches it travels in; more than one when the target wants it smaller
    answered: bool = False
    done: bool = False
    target_base: int = -1
    newest_ms: int = -1
    since: float = field(default_factory=time.monotonic)


@dataclass(slots=True, eq=False)
class Cursor:
    """A partition's receiver for the source (`Feed`) and sender for the sink.

    ``put`` queues a parcel, ``on_acked(cursor, first, last, target_base, count, newest_ms)`` follows in source order,
    ``on_failed(cursor, failure)`` hands over what only the copier can mend (out of range), ``on_over(cursor)`` says that
    this partition is given up, ``on_renewed(cursor)`` that its topic is another one of the same name.
    """

    spec: PartitionSpec
    outbox: Outbox
    offset: int
    read_committed: bool
    put: Callable[[Outbox, Parcel], None]
    on_acked: Callable[[Cursor, int, int, int, int, int], None]
    on_failed: Callable[[Cursor, BrokerFailure], None]
    on_over: Callable[[Cursor], None]
    on_renewed: Callable[[Cursor], None]
    position: int = -1
    target_offset: int = -1
    high_watermark: int = -1
    state: str = "copying"
    reason: str = ""
    records: int = 0
    committed_records: int = 0
    bytes: int = 0
    reencoded: int = 0
    waiting_bytes: int = 0
    gaps: dict[str, int] = field(default_factory=dict)
    entries: deque[_Entry] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.position = self.offset

    @property
    def partition(self) -> TopicPartition:
        """The source partition."""
        return self.spec.source

    @property
    def full(self) -> bool:
        """Enough waits for the target already, or for so long that the target takes nothing at the moment.

        Each waiting batch keeps the whole answer alive that it came in, so a trickle could hold gigabytes of others' data.
        """
        if self.waiting_bytes >= QUEUE_LIMIT_BYTES:
            return True
        return bool(self.entries) and (self.stuck or time.monotonic() - self.entries[0].since > QUEUE_LIMIT_S)

    @property
    def stuck(self) -> bool:
        """The target refuses it: full until somebody mends that, so no use in asking for it often."""
        return self.state == "refused"

    @property
    def idle(self) -> bool:
        """Everything fetched is on the target or dropped."""
        return not self.entries

    def take(self, fetched: Fetched) -> None:
        """Turn fetched batches into parcels; a corrupt batch stops this partition only."""
        self.high_watermark = fetched.last_stable_offset if self.read_committed else fetched.high_watermark
        if self.state == "waiting":
            self.state, self.reason = "copying", ""
        if not fetched.records:
            return
        aborted = AbortedTransactions(fetched.aborted)
        try:
            for view in iter_batches(fetched.records):
                self._take_batch(view, aborted)
        except CorruptBatch as error:
            self.fail(f"{self.partition}: {error}")
        except Exception as error:
            log.exception("an error of ours stops a partition", partition=str(self.partition))
            self.fail(f"{self.partition} cannot be read: {type(error).__name__}: {error}")

    def failed(self, failure: BrokerFailure) -> None:
        """The source's word that this partition cannot be read right now."""
        if self.state != "failed":
            self.state, self.reason = "waiting", str(failure)
        self.on_failed(self, failure)

    def renewed(self) -> None:
        """The topic was deleted and created anew."""
        self.on_renewed(self)

    def fail(self, reason: str) -> None:
        """Stop this partition for good; the others go on."""
        self.state, self.reason = "failed", reason
        self.on_over(self)

    def jump(self, offset: int, reason: str) -> None:
        """Go on at another source offset; what lies between is counted as a gap of that reason when it is skipped."""
        if offset > self.offset:
            self._drop(self.offset, offset, reason)
        elif self.idle:
            self.position = offset
        self.offset = offset

    def refused(self, failure: Exception | None) -> None:
        """The target does not take this partition (or takes it again: None)."""
        if self.state == "failed":
            return
        self.state, self.reason = ("copying", "") if failure is None else ("refused", str(failure))

    def progress(self) -> PartitionProgress:
        """A snapshot for the driver."""
        state, reason = self.state, self.reason
        if state == "copying" and self.outbox.complaint is not None:
            state, reason = "waiting", str(self.outbox.complaint)
        return PartitionProgress(
            self.spec.topic,
            self.spec.partition,
            self.position,
            self.target_offset,
            self.high_watermark,
            state,
            reason,
            self.records,
            self.bytes,
            dict(self.gaps),
        )

    def _take_batch(self, view: BatchView, aborted: AbortedTransactions) -> None:
        header = view.header
        if header is None:
            self._take_legacy(view)
            return
        hidden = aborted.covers(view)
        if header.last_offset < self.offset:
            return  # a fetch starts at the batch that holds the offset, which may be done already
        check_crc(header, view.data)
        if header.base_offset > self.offset:
            self._drop(self.offset, header.base_offset, "compacted")
            self.offset = header.base_offset
        after = header.last_offset + 1
        if header.is_control:
            self._drop(self.offset, after, "control")
        elif hidden and self.read_committed:
            self._drop(self.offset, after, "aborted")
        elif header.is_dense and header.base_offset == self.offset and not header.is_log_append_time:
            self._send(view.data, header, header.base_offset, after)
        else:
            self._reencode(view, self.offset, after)
        self.offset = after

    def _take_legacy(self, view: BatchView) -> None:
        rewritten = rewrite(view, keep=lambda offset: offset >= self.offset)
        if rewritten is None:
            return
        after = rewritten.offsets[-1] + 1
        self._count_holes(self.offset, after, rewritten.offsets)
        self._send_rewritten(rewritten.data, self.offset, after)
        self.offset = after

    def _reencode(self, view: BatchView, start: int, after: int) -> None:
        rewritten = rewrite(view, keep=lambda offset: offset >= start)
        if rewritten is None:
            self._drop(start, after, "compacted")
            return
        self.reencoded += 1
        self._count_holes(start, after, rewritten.offsets)
        self._send_rewritten(rewritten.data, start, after)

    def _count_holes(self, start: int, after: int, offsets: list[int]) -> None:
        missing = after - start - len(offsets)
        if missing > 0:
            self.gaps["compacted"] = self.gaps.get("compacted", 0) + missing

    def _send_rewritten(self, data: bytearray, first: int, after: int) -> None:
        self._send(memoryview(data), read_header(data), first, after)

    def _send(self, data: memoryview, header: BatchHeader, first: int, after: int) -> None:
        entry = _Entry(first, after, len(data), header.records_count, newest_ms=header.max_timestamp)
        self.entries.append(entry)
        self.waiting_bytes += len(data)
        self.put(self.outbox, self._parcel(data, header, entry))

    def _parcel(self, data: memoryview, header: BatchHeader, entry: _Entry) -> Parcel:
        def acked(base: int) -> None:
            entry.pieces -= 1
            if not entry.answered:
                # The first piece's place; unknown (-1) when it was there already, and then no later piece's will do.
                entry.answered, entry.target_base = True, base
            if not entry.pieces:
                self._done(entry)

        def cut() -> list[Parcel] | None:
            if header.records_count < 2:
                return None
            try:
                parts = split(BatchView(header, header.base_offset, 2, data), 2)
            except CorruptBatch:
                return None  # right on the outside, so it was passed on; the target's word on it stands
            entry.pieces += len(parts) - 1
            return [self._parcel(memoryview(part.data), read_header(part.data), entry) for part in parts]

        return Parcel(data, header, acked, cut)

    def _drop(self, first: int, after: int, reason: str) -> None:
        self.gaps[reason] = self.gaps.get(reason, 0) + after - first
        entry = _Entry(first, after)
        self.entries.append(entry)
        self._done(entry)

    def _done(self, entry: _Entry) -> None:
        entry.done = True
        while self.entries and self.entries[0].done:
            first = self.entries.popleft()
            self.position = first.next_offset
            if first.count:
                self.waiting_bytes -= first.size
                self.records += first.count
                self.bytes += first.size
                if first.target_base >= 0:
                    self.target_offset = first.target_base + first.count
                self.on_acked(self, first.first, first.next_offset - 1, first.target_base, first.count, first.newest_ms)
