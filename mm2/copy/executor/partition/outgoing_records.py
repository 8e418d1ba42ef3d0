"""What is read of a partition on its way to the outbox: each source offset is in the window, with a record or without.

Where offsets are preserved, each source offset takes up the same offset on the target, so there is one batch for each run
of records, and the offsets between them are filled.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from mm2.copy.changes import ChangedBatch, DroppedRange, dropped_in
from mm2.copy.executor.partition.copy_state import CopyState
from mm2.copy.executor.partition.gap_queue import FILLED_AT_ONCE
from mm2.copy.executor.partition.outgoing import outgoing_batch
from mm2.copy.executor.partition.window import SourceRange, runs
from mm2.copy.progress.target_progress import RecordsAt
from mm2.kafka.records.batch import BatchHeader, BatchView, read_header
from mm2.kafka.records.record import Record, Rewritten, decode_batch, encode_batch


class CopiedRange(NamedTuple):
    """What a predecessor has put on a target with preserved offsets: it ends before ``end``, with so many records of the session.

    ``content`` is compared with what is read of later leader epochs than ``known_epoch``, if records are changed: an
    election on the source may have replaced what the predecessor read. ``markers`` are offsets, as (first, after) in order,
    at which the predecessor cannot have read a record.
    """

    end: int
    records: int
    content: RecordsAt | None = None
    known_epoch: int = -1
    markers: tuple[tuple[int, int], ...] = ()

    def has_marker_at(self, offset: int) -> bool:
        """Whether this offset is one of the ``markers``."""
        at = bisect_right(self.markers, offset, key=lambda marker: marker[0]) - 1
        return at >= 0 and offset < self.markers[at][1]


@dataclass(slots=True, eq=False)
class OutgoingRecords:
    """``there`` is what a predecessor has put on the target, which is
    read again for the reasons of its gaps. ``is_live``: latencies of what is sent are counted.
    """

    state: CopyState
    there: CopiedRange | None = None
    is_live: bool = False

    def after_copied(self, offset: int) -> int:
        """Return a source offset, or the later one at which what a predecessor has put on the target ends."""
        return offset if self.there is None else max(offset, self.there.end)

    def send(
        self,
        data: memoryview,
        header: BatchHeader,
        first: int,
        after: int,
        offsets: list[int] | None = None,
        dropped: Iterable[DroppedRange] = (),
        *,
        is_merged: bool = False,
    ) -> None:
        """Send a batch with the records of source offsets ``first .. after-1``: all of them, or only ``offsets``."""
        state = self.state
        window, gaps = state.window, state.gaps
        newest_ms = header.max_timestamp if self.is_live else -1
        entry = SourceRange(first, after, len(data), header.records_count, offsets, newest_ms=newest_ms)
        entry.dropped = tuple(dropped)
        window.append(entry)
        outgoing = outgoing_batch(data, header, entry, window, state.tally, state.limit, is_merged=is_merged)
        if gaps is None:
            state.outbox.queue.append(outgoing)
        else:
            gaps.send(outgoing)

    def send_rewritten(self, rewritten: Rewritten, first: int, after: int) -> None:
        """Send a batch that was encoded again."""
        data = memoryview(rewritten.data)
        offsets = rewritten.offsets
        is_dense = len(offsets) == after - first
        if self.state.gaps is not None and not is_dense:
            header = read_header(rewritten.data)
            records = decode_batch(BatchView(header, header.base_offset, 2, data), self.state.limit)
            records = [record._replace(offset=offset) for record, offset in zip(records, offsets, strict=True)]
            self._send_runs(records, first, after, header.codec, None)
            return
        self.send(data, read_header(rewritten.data), first, after, None if is_dense else offsets)

    def send_changed(self, records: list[Record], first: int, changed: ChangedBatch, codec: int) -> None:
        """Send the records that are left of a changed batch, from source offset ``first`` on."""
        if self.state.gaps is not None:
            self._send_runs(records, first, changed.after, codec, changed)
            return
        data, offsets = encode_batch(records, codec=codec), [record.offset for record in records]
        is_dense = len(offsets) == changed.after - first
        header = read_header(data)
        self.send(memoryview(data), header, first, changed.after, None if is_dense else offsets, changed.dropped)

    def lead_in(self, first: int, after: int) -> None:
        """Fill offsets before the first one that is copied. They are not counted."""
        for start in range(first, after, FILLED_AT_ONCE):
            entry = SourceRange(start, min(after, start + FILLED_AT_ONCE), already_copied=True)
            self.state.window.append(entry)
            self.leave_out(entry)

    def add_copied(self, offsets: list[int], first: int, end: int, changed: ChangedBatch | None) -> None:
        """The records at these offsets in ``first .. end-1`` are on the target, and so is what the others are filled with."""
        window = self.state.window
        own = [offset for offset in offsets if first <= offset < end]
        for start, count in runs(own):
            self.drop_holes(first, start, changed)
            entry = SourceRange(start, start + count, 0, count, already_copied=True, target_base=start)
            window.append(entry)
            window.done(entry)
            first = start + count
        self.drop_holes(first, end, changed)
        self._end_of_copied()

    def drop_holes(self, first: int, after: int, changed: ChangedBatch | None) -> None:
        """Source offsets ``first .. after-1`` have no record for the target, each for its own reason."""
        dropped = () if changed is None else changed.dropped
        if first < after:
            for start, end, reason in dropped_in(dropped, first, after, self.state.window.hole_reason):
                self.drop(start, end, reason)

    def drop(self, first: int, after: int, reason: str) -> None:
        """Source offsets ``first .. after-1`` have no record for the target."""
        if self.there is not None and first < self.there.end < after:
            end = self.there.end
            self.drop(first, end, reason)
            self.drop(end, after, reason)
            return
        if self.state.gaps is not None and after - first > FILLED_AT_ONCE:
            for start in range(first, after, FILLED_AT_ONCE):
                self.drop(start, min(after, start + FILLED_AT_ONCE), reason)
            return
        entry = SourceRange(first, after, reason=reason)
        self.state.window.append(entry)
        self.drop_entry(entry)

    def drop_entry(self, entry: SourceRange) -> None:
        """The source offsets of an entry of the window have no record for the target."""
        # While records are being matched, the number of records in this range is known only when the next one is found. With a
        # position after it and a count before it, a successor would skip as many new records.
        if not self.state.is_matching:
            self.leave_out(entry)
            self._end_of_copied()

    def leave_out(self, entry: SourceRange) -> None:
        """Nothing of this range is to be written, unless its offsets have to be taken up on the target."""
        gaps = self.state.gaps
        is_there = self.there is not None and entry.next_offset <= self.there.end
        if gaps is None or is_there:
            self.state.window.done(entry)
        else:
            gaps.fill(entry)

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

    def _end_of_copied(self) -> None:
        """Once all is read that a predecessor has copied, its number of records counts: the source may have fewer now."""
        window = self.state.window
        if self.there is not None and window.position >= self.there.end:
            window.records = self.there.records
            self.there = None
