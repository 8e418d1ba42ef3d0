"""What is read of a partition with preserved offsets on its way to the outbox: each source offset takes up the same offset on the
target. So there is one batch for each run of records, and the offsets between them are filled.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mm2.copy.changes import ChangedBatch
from mm2.copy.executor.partition.gap_queue import FILLED_AT_ONCE, GapQueue
from mm2.copy.executor.partition.outgoing_records import OutgoingRecords
from mm2.copy.executor.partition.window import SourceRange, runs
from mm2.kafka.records.batch import BatchView, read_header
from mm2.kafka.records.record import Record, Rewritten, decode_batch, encode_batch


@dataclass(slots=True, eq=False)
class PreservedRecords(OutgoingRecords):
    """``gaps`` holds back what is sent while offsets before it have to be filled."""

    gaps: GapQueue = field(init=False)

    def __post_init__(self) -> None:
        state = self.state
        self.gaps = GapQueue(state.outbox, state.window, state.emit)
        self.waiting = self.gaps.waiting
        state.window.is_preserved = state.outbox.is_preserved = True

    def begin(self, *, is_clean: bool) -> None:
        self.copied = None
        self.gaps.begin(is_clean=is_clean)

    def end_on_target(self, end: int) -> int:
        # Filling gaps does not wait for the ledger.
        return max(end, self.gaps.reached)

    def is_settled(self, position: int) -> bool:
        # Of what a predecessor has put on the target, the offsets without a record may still have to be read.
        return self.copied is None and self.gaps.is_settled(position)

    @property
    def fills_by_transactions(self) -> bool:
        return self.gaps.by_transactions

    def send_rewritten(self, rewritten: Rewritten, first: int, after: int) -> None:
        offsets = rewritten.offsets
        if len(offsets) == after - first:
            OutgoingRecords.send_rewritten(
                self, rewritten, first, after
            )  # `super()` does not work in a class with slots
            return
        header = read_header(rewritten.data)
        records = decode_batch(BatchView(header, header.base_offset, 2, memoryview(rewritten.data)), self.state.limit)
        records = [record._replace(offset=offset) for record, offset in zip(records, offsets, strict=True)]
        self._send_runs(records, first, after, header.codec, None)

    def send_changed(self, records: list[Record], first: int, changed: ChangedBatch, codec: int) -> None:
        self._send_runs(records, first, changed.after, codec, changed)

    def fill_leading_gap(self, first: int) -> None:
        """Fill the offsets before the first one that is copied. They are not counted."""
        state = self.state
        for start in range(state.offset, first, FILLED_AT_ONCE):
            entry = SourceRange(start, min(first, start + FILLED_AT_ONCE), already_copied=True)
            state.window.append(entry)
            self.leave_out(entry)
        state.offset = max(state.offset, first)

    def drop(self, first: int, after: int, reason: str) -> None:
        if self.copied is not None and first < self.copied.end < after:
            end = self.copied.end
            self.drop(first, end, reason)
            self.drop(end, after, reason)
            return
        for start in range(first, after, FILLED_AT_ONCE):
            OutgoingRecords.drop(self, start, min(after, start + FILLED_AT_ONCE), reason)

    def leave_out(self, entry: SourceRange) -> None:
        if self.copied is not None and entry.next_offset <= self.copied.end:
            self.state.window.done(entry)  # a predecessor has filled it
        else:
            self.gaps.fill(entry)

    def exclude(self, entry: SourceRange, reason: str) -> None:
        # It is a run of records, so it has no holes.
        self.state.window.waiting_bytes -= entry.size
        entry.size, entry.count, entry.reason = 0, 0, reason
        self.gaps.fill_first(entry)

    def advance(self) -> None:
        self.gaps.advance()

    def stop(self) -> None:
        self.gaps.stop()

    def _send_runs(
        self, records: list[Record], first: int, after: int, codec: int, changed: ChangedBatch | None
    ) -> None:
        """Send the records of source offsets ``first .. after-1`` in one batch for each run of consecutive offsets."""
        at = 0
        for start, count in runs(record.offset for record in records):
            self.drop_holes(first, start, changed)
            data = encode_batch(records[at : at + count], codec=codec)
            at, first = at + count, start + count
            self.send(memoryview(data), read_header(data), start, first)
        self.drop_holes(first, after, changed)
