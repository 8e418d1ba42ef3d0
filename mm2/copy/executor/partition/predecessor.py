"""The records that a predecessor has put on the target after the mark: they are *skipped*, read and not sent.

Counting them is exact while the source is unchanged. Where it has a hole now, records that are on the target may have
been removed from the source; then the target's records are compared by content. The same holds after the first
batch with a higher leader epoch than the one in the predecessor's ledger entry: an unclean election may have replaced
records that were copied (KIP-101).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mm2.copy.changes import ChangedBatch
from mm2.copy.executor.partition.copy_state import CopyState
from mm2.copy.executor.partition.events import CountUncertain, PredecessorPassed, RecordsDeleted, RecordsReplaced
from mm2.copy.executor.partition.outgoing_records import OutgoingRecords
from mm2.copy.executor.partition.window import SourceRange
from mm2.copy.progress.target_progress import FoundBatch, fingerprint
from mm2.kafka.records.batch import BatchView
from mm2.kafka.records.record import decode_batch


@dataclass(slots=True, eq=False)
class PredecessorRecords:
    """``remaining`` records are still to be skipped. On the target they end at ``target_end`` (-1: unknown).

    `CopyState.fingerprints` of them are set while they are compared by content. The session is ``finishing`` with the last of them where
    that may be necessary, where it has other rules, or where transactions follow.
    """

    state: CopyState
    outgoing: OutgoingRecords
    remaining: int = 0
    target_end: int = -1
    with_time: bool = True  # the fingerprints contain timestamps
    finishing: bool = False  # the session ends with its last record
    has_holes: bool = False  # the source has holes where the records were
    _deleted: list[SourceRange] = field(default_factory=list)  # by retention; it is not known yet how much was copied
    _next: int = 0  # number of the next record in its session
    _batches: deque[FoundBatch] = field(default_factory=deque)  # where they are on the target, as far as it is known

    def begin(self, first: int, count: int, batches: Sequence[FoundBatch]) -> None:
        """Skip so many records, from this number of the session on; ``batches`` contain them on the target."""
        self._next, self.remaining, self.state.fingerprints = first, count, None
        self._batches = deque(batches)
        self.target_end = batches[-1].offset + batches[-1].records if batches else -1
        self.has_holes = False
        self._deleted.clear()

    @property
    def target_base(self) -> int:
        """The target offset of the next record; -1: unknown."""
        return next(self._runs(1))[1] if self.remaining else -1

    def forget_offsets(self) -> None:
        """The target offsets of the records are unknown, because some of them may no longer be on the source."""
        self._batches.clear()

    @property
    def is_counted(self) -> bool:
        """Whether there are records to be skipped, by their number alone."""
        return self.remaining > 0 and self.state.fingerprints is None

    def compare(self) -> None:
        """Counting is not possible: records have to be compared by content."""
        self.state.suspended = True
        self.state.emit(CountUncertain())

    def skip(self, view: BatchView, after: int, changed: ChangedBatch | None = None) -> int:
        """Skip records of a batch that ends before source offset ``after``; returns the offset from which on its records
        are new. ``changed``: what is on the target are these records of the batch.

        Nothing must be copied when the cursor is suspended or stopped afterwards.
        """
        if self.state.fingerprints is not None:
            return self._skip_matching(view, after, changed)
        state, header = self.state, view.header
        if header is None or not header.is_dense:
            self.has_holes = self.has_holes or header is not None
            self.compare()
            return state.offset
        if changed is not None:
            return self._skip_changed(changed)
        count = min(self.remaining, after - state.offset)
        fresh = state.offset + count
        self._add(state.offset, fresh, count)
        self._finish(fresh)
        return fresh

    def _skip_changed(self, changed: ChangedBatch) -> int:
        """Skip as many changed records as a predecessor has copied. What was dropped after the last of them is evaluated
        again.
        """
        first = self.state.offset
        offsets = [record.offset for record in changed.records[: self.remaining]]
        after_last = offsets[-1] + 1 if offsets else first
        if offsets:
            self._add(first, after_last, len(offsets), offsets, changed)
        if self.remaining and after_last < changed.after:
            self.outgoing.drop_holes(after_last, changed.after, changed)
            return changed.after
        self._finish(after_last)
        return after_last

    def drop_deleted(self, first: int, after: int, reason: str) -> None:
        """The source has deleted these offsets, and some of their records may be on the target."""
        self.outgoing.drop(first, after, reason)
        if self.state.fingerprints is not None:
            self._deleted.append(self.state.window.entries[-1])

    def conclude(self) -> None:
        """The rest of the records will not be found on the source any more."""
        window = self.state.window
        if self.remaining:
            window.target = -1
        window.records += self.remaining
        self.remaining, self.state.fingerprints = 0, None
        self._batches.clear()
        self._deleted.clear()
        window.drop_done()
        self._restore_target()

    def _restore_target(self) -> None:
        """Once all are skipped, the target offset is the one after the last that the look-up has found."""
        if self.remaining:
            return
        if self.state.window.target < 0:
            self.state.window.target = self.target_end
        self.target_end = -1

    def _skip_matching(self, view: BatchView, after: int, changed: ChangedBatch | None) -> int:
        """Find each record among the target's records, in order, until one is new."""
        state, match = self.state, self.state.fingerprints
        first = fresh = state.offset
        offsets = []
        for record in decode_batch(view, state.limit) if changed is None else changed.records:
            if record.offset < first or match is None:
                continue
            try:
                index = match.index(fingerprint(record, with_time=self.with_time))
            except ValueError:
                match, fresh = None, record.offset
                break
            for _ in range(index + 1):
                match.popleft()
            offsets.append(record.offset)
            # Records were copied in order, so deleted records before it were copied, too.
            self._settle_deleted(record.offset)
            state.window.drop_done()
            state.window.records += index  # on the target, and no longer on the source
            self.remaining -= index
            if not match:
                match = None
        after_last = offsets[-1] + 1 if offsets else first
        if offsets:
            self._add(first, after_last, len(offsets), offsets, changed)
        if match is not None:
            if after_last < after:
                self.outgoing.drop_holes(after_last, after, changed)
            return after
        self._end_matching(view, fresh, is_changed=changed is not None)
        if state.stopped:
            return after_last
        if after_last < fresh:
            self.outgoing.drop_holes(after_last, fresh, changed)
            after_last = fresh
        self._finish(after_last)
        return after_last

    def _end_matching(self, view: BatchView, fresh: int, *, is_changed: bool) -> None:
        """The source has a new record at ``fresh``: those that were not found are no longer there. Where records are
        changed, some may have been dropped, so their number does not show their offsets.
        """
        state, header = self.state, view.header
        if self._deleted:
            # The remaining records were copied from the deleted range, unless there were holes before it.
            first = self._deleted[0].first
            is_known = not is_changed and not any(
                entry.reason == state.window.hole_reason for entry in state.window.entries
            )
            self._settle_deleted(first + self.remaining if is_known else first)
        elif self.remaining and header is not None and header.leader_epoch > state.known_epoch:
            state.emit(RecordsReplaced(fresh, self.remaining, exact=not (self.has_holes or is_changed)))
        if not state.stopped:
            self.conclude()

    def _settle_deleted(self, copied_to: int) -> None:
        """Of the deleted source offsets a predecessor had copied those before this offset; the rest is lost."""
        deleted, self._deleted = self._deleted, []
        entries = self.state.window.entries
        for entry in deleted:
            after = entry.next_offset
            entry.already_copied = entry.first < copied_to
            first = min(max(entry.first, copied_to), after)
            if first == after:
                continue
            if entry.already_copied:
                entry.next_offset = first
                entries.insert(entries.index(entry) + 1, SourceRange(first, after, reason=entry.reason))
            self.state.emit(RecordsDeleted(first, after))

    def _add(
        self,
        first: int,
        after: int,
        count: int,
        offsets: list[int] | None = None,
        changed: ChangedBatch | None = None,
    ) -> None:
        """So many records are on the target already."""
        window = self.state.window
        entry = SourceRange(first, after, 0, count, offsets)
        entry.dropped = () if changed is None else tuple(changed.dropped)
        window.append(entry)
        counts, bases = zip(*self._runs(count), strict=True)
        pieces = [entry] if len(counts) == 1 else window.cut(entry, [*counts], [0] * len(counts))
        self.remaining -= count
        self._next += count
        for piece, base in zip(pieces, bases, strict=True):
            piece.already_copied, piece.target_base = True, base
        for piece in pieces:
            window.done(piece)

    def _runs(self, count: int) -> Iterator[tuple[int, int]]:
        """(number, target offset of the first one) of the next ``count`` records, by runs that are contiguous on the target; offset -1:
        unknown.
        """
        at, end, batches = self._next, self._next + count, self._batches
        while batches and batches[0].at + batches[0].records <= at:
            batches.popleft()
        run, base = 0, -1
        for batch in batches:
            if batch.at >= end:
                break
            if batch.at > at:
                if run:
                    yield run, base
                yield batch.at - at, -1
                at, run = batch.at, 0
            offset, more = batch.offset + at - batch.at, min(end, batch.at + batch.records) - at
            if run and offset != base + run:
                yield run, base
                run = 0
            base, run, at = base if run else offset, run + more, at + more
        if run:
            yield run, base
        if at < end:
            yield end - at, -1

    def _finish(self, after: int) -> None:
        """A session that is to end ends before this offset."""
        self._restore_target()
        if self.finishing and not self.remaining:
            self.state.offset = after
            self.state.suspended = True
            self.state.emit(PredecessorPassed())
