"""The source offsets of one partition between its position and the next batch to be read, in order.

Batches in flight and offsets that are dropped for a reason may be done in any order; the position passes them in source
order. Between the target offsets of two batches there may be records that no response explains. The position does not
pass those before they have been searched for records of the session (rule L7 of docs/explanation/copy-sessions.md).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import structlog

from mm2.copy.changes import DroppedRange, dropped_in
from mm2.copy.executor.partition.target_ranges import AcknowledgedRanges
from mm2.copy.progress.segments import Trail
from mm2.copy.progress.session import Mark
from mm2.kafka.structs import TopicPartition

log = structlog.get_logger("mm2.copy.executor.window")


@dataclass(slots=True, eq=False)
class SourceRange:
    """Source offsets up to ``next_offset``: a batch in flight, or offsets that are dropped for a reason.

    ``offsets`` are those of its records, unless they are all of the range. Done once it is on the target or dropped.
    ``newest_ms`` is its newest record's timestamp; -1 when there is none, or when it belongs to a backlog. ``dropped``
    are those source offsets whose records have been dropped; other offsets without a record are holes of the source.
    """

    first: int
    next_offset: int
    size: int = 0
    count: int = 0
    offsets: list[int] | None = None
    reason: str = ""
    done: bool = False
    already_copied: bool = False  # copied by a predecessor
    target_base: int = -1
    newest_ms: int = -1
    dropped: tuple[DroppedRange, ...] = ()
    since: float = field(default_factory=lambda: time.monotonic())  # noqa: PLW0108  (the simulation replaces `time`)

    def runs(self) -> Iterator[tuple[int, int]]:
        """(first source offset, count) of each run of records without a hole."""
        if self.offsets is None:
            yield self.next_offset - self.count, self.count
            return
        yield from runs(self.offsets)


def runs(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """(first offset, count) of each run of consecutive offsets."""
    start = after = -1
    for offset in offsets:
        if offset != after:
            if after > start:
                yield start, after - start
            start = offset
        after = offset + 1
    if after > start:
        yield start, after - start


@dataclass(frozen=True, slots=True)
class RangeAcknowledged:
    """Source offsets ``entry.first .. last`` are on the target from ``entry.target_base`` on (-1: unknown), in source order."""

    entry: SourceRange
    last: int


@dataclass(frozen=True, slots=True)
class TargetGap:
    """The target has records at offsets ``first .. end-1`` that were not acknowledged to this partition, beside ``own`` records that
    were. The position waits for `Window.gap_searched`, or `Window.leave_unsearched`.
    """

    first: int
    end: int
    own: int


@dataclass(frozen=True, slots=True)
class TargetWentBack:
    """The target assigned an offset below earlier ones."""

    base_offset: int


@dataclass(frozen=True, slots=True)
class BatchMisplaced:
    """Offsets are preserved, and the target has appended a batch at another offset. The position does not pass it."""

    entry: SourceRange


WindowEvent = RangeAcknowledged | TargetGap | TargetWentBack | BatchMisplaced


@dataclass(slots=True, eq=False)
class Window:
    """The position of a partition, and the source offsets after it that have been read.

    ``records`` of the session are on the target and acknowledged, ``copied`` of them by this micro-batch. ``position`` is
    the source offset after them, ``target`` the target offset, -1 while unknown.

    With ``is_preserved`` each source offset takes up the same offset on the target, and there is one batch for each run of
    records.
    """

    remote: TopicPartition
    emit: Callable[[WindowEvent], None]
    position: int = -1
    target: int = -1
    records: int = 0
    entries: deque[SourceRange] = field(default_factory=deque)
    waiting_bytes: int = 0  # of batches in flight
    next_when_empty: Callable[[], None] | None = None  # called once when everything is done
    # Called once when the position reaches this source offset, unless everything is done then and ``next_when_empty`` is called.
    next_when_passed: tuple[int, Callable[[], None]] | None = None
    trail: Trail = field(default_factory=Trail)
    hole_reason: str = ""  # of source offsets without a record
    is_preserved: bool = False
    markers: int | None = 0  # own transaction markers after ``target``; None: unknown
    foreign: int = 0  # records of other producers on the target
    others: AcknowledgedRanges | None = (
        None  # of all source partitions that are copied to this target partition, if several are
    )
    copied: int = 0
    bytes: int = 0
    _searching_to: int = -1  # target offset up to which a gap is being searched for records of the session
    _searched_to: int = -1  # target offset up to which gaps have been searched

    @property
    def mark(self) -> Mark:
        """The position on both sides."""
        return Mark(self.position, self.target, self.records)

    @property
    def is_searching(self) -> bool:
        """Whether the position waits until a gap on the target has been searched (rule L7)."""
        return self._searching_to >= 0

    def begin(self, mark: Mark) -> None:
        """Continue at a mark, with nothing in flight."""
        self.position, self.target, self.records = mark.source, mark.target, mark.records
        self._searching_to = self._searched_to = -1
        self.entries.clear()
        self.next_when_empty = self.next_when_passed = None  # they are for another position
        self.waiting_bytes = 0

    # -- entries -------------------------------------------------------------------------------------------------------

    def append(self, entry: SourceRange) -> None:
        """Add the next source offsets."""
        self.entries.append(entry)
        self.waiting_bytes += entry.size

    def cut(self, entry: SourceRange, counts: list[int], sizes: list[int]) -> list[SourceRange]:
        """Replace a batch by parts of so many records and bytes; returns them."""
        offsets = entry.offsets or list(range(entry.next_offset - entry.count, entry.next_offset))
        pieces, first, at = [], entry.first, 0
        for index, (count, size) in enumerate(zip(counts, sizes, strict=True)):
            own = offsets[at : at + count]
            at += count
            after = entry.next_offset if index == len(counts) - 1 else offsets[at]
            dense = len(own) == after - first
            offsets_of_piece = None if dense else own
            piece = SourceRange(
                first, after, size, count, offsets_of_piece, newest_ms=entry.newest_ms, dropped=entry.dropped
            )
            piece.since = entry.since
            pieces.append(piece)
            first = after
        entry_index = self.entries.index(entry)
        self.entries.remove(entry)
        for index, piece in enumerate(pieces):
            self.entries.insert(entry_index + index, piece)
        self.waiting_bytes += sum(sizes) - entry.size
        return pieces

    def join(self, entries: list[SourceRange], size: int) -> SourceRange:
        """Replace consecutive batches without a gap between them by one of so many bytes; returns it."""
        first, last = entries[0], entries[-1]
        newest_ms = max(entry.newest_ms for entry in entries)
        joined = SourceRange(
            first.first, last.next_offset, size, sum(entry.count for entry in entries), newest_ms=newest_ms
        )
        joined.since = first.since
        at = self.entries.index(first)
        self.waiting_bytes += size - sum(entry.size for entry in entries)
        self.entries[at] = joined
        for _ in entries[1:]:
            del self.entries[at + 1]
        return joined

    def exclude(self, entry: SourceRange, reason: str) -> None:
        """A batch in flight will not be on the target. Holes around its records keep their own reason."""
        runs = list(entry.runs())
        offset, after = runs[0][0], sum(runs[-1])
        self.waiting_bytes -= entry.size
        entry.size = entry.count = 0
        entry.offsets = None
        index = self.entries.index(entry)
        for first, end, why in reversed([*dropped_in(entry.dropped, after, entry.next_offset, self.hole_reason)]):
            self.entries.insert(index + 1, SourceRange(first, end, reason=why, done=True))
        for first, end, why in reversed([*dropped_in(entry.dropped, entry.first, offset, self.hole_reason)]):
            self.entries.insert(index, SourceRange(first, end, reason=why, done=True))
        entry.first, entry.next_offset, entry.reason = offset, after, reason
        self.done(entry)

    def done(self, entry: SourceRange) -> None:
        """An entry is on the target or dropped."""
        entry.done = True
        self._advance()

    def when_passed(self, offset: int, then: Callable[[], None]) -> None:
        """Call ``then`` once the position has reached a source offset, unless `next_when_empty` is called at the same time."""
        self.next_when_passed = offset, then
        self._advance()

    def pass_others(self) -> bool:
        """Nothing is read behind the position or in flight: move the target offset past what was acknowledged to the copies of other
        source partitions. A successor then searches the target for records of the session from there only.
        """
        end = self.target if self.others is None else self.others.explained_to(self.target)
        if self.entries or self.target < 0 or end == self.target:
            return False
        self.target = end
        self.trail.settle()  # its newest segment no longer reaches to the mark
        return True

    def drop_done(self) -> None:
        """All entries without records are done."""
        for entry in [entry for entry in self.entries if not entry.count and not entry.done]:
            self.done(entry)

    # -- the position --------------------------------------------------------------------------------------------------

    def is_searching_to(self, end: int) -> bool:
        """Whether the position waits for the search of a gap before target offset ``end``. False if the position has been changed
        since the search began.
        """
        return end == self._searching_to

    def gap_searched(self, end: int, *, is_known: bool) -> None:
        """The target was searched up to offset ``end``, or (not ``is_known``) could not be searched now."""
        if not self.is_searching_to(end):
            return
        self._searching_to = -1
        if is_known:
            self._searched_to = end
            self._advance()

    def leave_unsearched(self, end: int) -> None:
        """There is no session, so the gap before this target offset has no records of it."""
        self._searching_to, self._searched_to = -1, end

    def _advance(self) -> None:
        while self.entries and self.entries[0].done and not self.is_searching:
            entry = self.entries[0]
            if self.is_preserved and entry.count and entry.target_base not in {-1, entry.next_offset - entry.count}:
                self.emit(BatchMisplaced(entry))
                return
            unexplained = self._unexplained(entry)
            # Offsets of records that a predecessor copied come from a look-up, which has read this part of the log (rule L3).
            if unexplained > 0 and not entry.already_copied and entry.target_base > self._searched_to:
                self._search(entry.target_base)
                continue
            self.entries.popleft()
            self._pass(entry, unexplained)
        if not self.entries and self.next_when_empty is not None:
            # Both end a session or move the position, or write the ledger entry, and once is enough.
            then, self.next_when_empty, self.next_when_passed = self.next_when_empty, None, None
            then()
        if self.next_when_passed is not None and self.position >= self.next_when_passed[0]:
            (_, then), self.next_when_passed = self.next_when_passed, None
            then()

    def _unexplained(self, entry: SourceRange) -> int:
        """Number of target offsets between the last record and those of this entry, without own transaction markers and without
        those that were acknowledged to the copies of other source partitions; below zero when the target assigned an earlier
        offset.
        """
        if not entry.count or entry.target_base < 0 or self.target < 0:
            return 0
        between = entry.target_base - self.target
        if self.others is not None and between > 0:
            between -= self.others.count(self.target, entry.target_base)
        # If the number of markers is unknown, the gap may consist of markers and aborted records.
        return min(0, between) if self.markers is None else between - self.markers

    def _search(self, base: int) -> None:
        """Search the target for records of the session before it assigned ``base``.

        The position must not pass them before, or a successor would not find them either.
        """
        # One search for all gaps that are known by now: other producers may write continuously.
        done = [one for one in self.entries if one.done and one.target_base >= base]
        end = max(one.target_base for one in done)
        own = sum(one.count for one in done if one.target_base < end)
        self._searching_to = end
        self.emit(TargetGap(self.target, end, own))

    def _pass(self, entry: SourceRange, unexplained: int) -> None:
        """The oldest entry is done: advance, and extend the trail."""
        if not entry.count:
            if not entry.already_copied:
                self.trail.missing(entry.first, entry.next_offset, entry.reason)
            self.position = entry.next_offset
            if self.is_preserved:
                self.target = entry.next_offset
            return
        self.waiting_bytes -= entry.size
        self.copied += 0 if entry.already_copied else entry.count
        self.records += entry.count
        self.bytes += entry.size
        base = entry.target_base
        if self.is_preserved:
            base = entry.target_base = entry.next_offset - entry.count  # also where a look-up has found it
        if base >= 0:
            # Several copies write there, also those of earlier micro-batches, so other producers cannot be told from them.
            if self.others is None or unexplained < 0:
                self._report(base, unexplained)
            self.markers = 0
            self.target = base + entry.count
        else:
            self.target = -1
        # Records missing now may have existed when a predecessor copied it.
        hole_reason = "" if entry.already_copied else self.hole_reason
        at, last = entry.first, entry.first - 1
        for start, count in entry.runs():
            if start > at:
                self._miss(entry, at, start, hole_reason)
            if base >= 0:
                self.trail.copied(start, base, count)
                base += count
            at, last = start + count, start + count - 1
        if at < entry.next_offset:
            self._miss(entry, at, entry.next_offset, self.hole_reason)
        self.position = entry.next_offset
        self.emit(RangeAcknowledged(entry, last))

    def _miss(self, entry: SourceRange, first: int, after: int, hole_reason: str) -> None:
        """Source offsets of an entry have no record on the target; holes are not counted without a reason."""
        for start, end, reason in dropped_in(entry.dropped, first, after, hole_reason):
            if reason:
                self.trail.missing(start, end, reason)

    def _report(self, base: int, unexplained: int) -> None:
        if unexplained < 0:
            self.emit(TargetWentBack(base))
        elif unexplained > 0:
            if not self.foreign:
                log.warning(
                    "another producer writes to a remote topic",
                    partition=str(self.remote),
                    offset=base - unexplained,
                    records=unexplained,
                )
            self.foreign += unexplained
