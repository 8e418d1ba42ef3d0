"""What is read of a partition on its way to the outbox: each source offset is in the window, with a record or without.

There are two ways, and all parts of a partition use whichever it has: records get the target offsets that the target assigns, which is
`OutgoingRecords`, or those of the source (`mm2.copy.executor.partition.preserved_records`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from mm2.copy.changes import ChangedBatch, DroppedRange, dropped_in
from mm2.copy.executor.partition.copy_state import CopyState
from mm2.copy.executor.partition.outbox import OutgoingBatch
from mm2.copy.executor.partition.split_and_merge import outgoing_batch
from mm2.copy.executor.partition.window import SourceRange, runs
from mm2.copy.progress.target_progress import RecordsAt
from mm2.kafka.records.batch import BatchHeader, read_header
from mm2.kafka.records.record import Record, Rewritten, encode_batch


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
    """The target assigns the offsets, so source offsets without a record leave no gap there. ``is_live``: latencies of what is sent
    are counted.

    Where offsets are preserved, ``waiting`` is what waits for gaps before it to be filled, and ``copied`` what a predecessor has put
    on the target, which is read again for the reasons of its gaps.
    """

    state: CopyState
    copied: CopiedRange | None = None
    is_live: bool = False
    waiting: deque[OutgoingBatch | SourceRange] | tuple[()] = ()

    def begin(self, *, is_clean: bool) -> None:
        """Start at another position, with nothing in flight; ``is_clean``: also of a predecessor."""
        del is_clean
        self.copied = None

    def after_copied(self, offset: int) -> int:
        """Return a source offset, or the later one at which what a predecessor has put on the target ends."""
        return offset if self.copied is None else max(offset, self.copied.end)

    def end_on_target(self, end: int) -> int:
        """Where the target ends, if it ended at this offset at the last commit."""
        return end

    def is_settled(self, position: int) -> bool:
        """Whether a successor may continue at this position without a look-up, if all batches are acknowledged."""
        del position
        return self.copied is None

    @property
    def fills_by_transactions(self) -> bool:
        """See `LedgerEntry.fills_by_transactions`."""
        return False

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
        window = state.window
        newest_ms = header.max_timestamp if self.is_live else -1
        entry = SourceRange(first, after, len(data), header.records_count, offsets, newest_ms=newest_ms)
        entry.dropped = tuple(dropped)
        window.append(entry)
        outgoing = outgoing_batch(data, header, entry, window, state.tally, state.limit, is_merged=is_merged)
        (self.waiting or state.outbox.queue).append(outgoing)

    def send_rewritten(self, rewritten: Rewritten, first: int, after: int) -> None:
        """Send a batch that was encoded again."""
        data = memoryview(rewritten.data)
        offsets = rewritten.offsets
        is_dense = len(offsets) == after - first
        self.send(data, read_header(rewritten.data), first, after, None if is_dense else offsets)

    def send_changed(self, records: list[Record], first: int, changed: ChangedBatch, codec: int) -> None:
        """Send the records that are left of a changed batch, from source offset ``first`` on."""
        data, offsets = encode_batch(records, codec=codec), [record.offset for record in records]
        is_dense = len(offsets) == changed.after - first
        header = read_header(data)
        self.send(memoryview(data), header, first, changed.after, None if is_dense else offsets, changed.dropped)

    def fill_leading_gap(self, first: int) -> None:
        """Continue at source offset ``first``, where copying begins."""

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
        self.state.window.done(entry)

    def exclude(self, entry: SourceRange, reason: str) -> None:
        """The records of a batch that was first in the outbox will not be on the target."""
        self.state.window.exclude(entry, reason)

    def advance(self) -> None:
        """Send what does not have to wait any more."""

    def stop(self) -> None:
        """Send nothing more."""

    def _end_of_copied(self) -> None:
        """Once all is read that a predecessor has copied, its number of records counts: the source may have fewer now."""
        window = self.state.window
        if self.copied is not None and window.position >= self.copied.end:
            window.records = self.copied.records
            self.copied = None
