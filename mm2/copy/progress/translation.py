"""Translation of committed offsets between source and target, by the segments of the ledger. Pure.

A *pass* is a run of segments along which source and target offsets both rise. There is one pass, unless the position was reset to
an earlier offset; then the target has the same records more than once.

To the target: the newest copy of each unread record counts, and the translated offset must not lie behind the first of them. With
one pass it is the offset of the group's next record. With several it is the group's offset in the newest pass that begins early
enough, so that the group reads in the order of the source, also while a pass is being copied. To the source: the lowest offset that
the group has not read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from mm2.copy.progress.segments import Segment, SegmentChunk
from mm2.copy.progress.session import Mark


class TranslatedOffset(NamedTuple):
    """A translated offset, never past a record that the group has not read.

    ``is_exact``: no record is read again either. Otherwise the target offsets of some records are unknown, and any
    offset from ``offset`` to ``at_most`` (None: unbounded) would be safe, too.
    """

    offset: int
    is_exact: bool
    at_most: int | None


class _Newest(NamedTuple):
    """A run of source offsets, with the target offset of the newest copy of its first record, or a lower bound of it."""

    source: int
    source_end: int
    target: int
    rises: bool
    """Target offsets rise with source offsets; otherwise all of them are at ``target`` or after it."""

    def at(self, offset: int) -> int:
        """The target offset of a source offset in the run, or of its first record."""
        return self.target + (offset - self.source if self.rises and offset > self.source else 0)


@dataclass(frozen=True, slots=True)
class _Pass:
    segments: list[Segment]

    @property
    def start(self) -> int:
        return self.segments[0].source

    @property
    def end(self) -> int:
        return self.segments[-1].source_end


class Translation:
    """The known mapping of one partition: ``chunks``, oldest first, and the mark that they reach to (`Ledger.chunks`,
    `LedgerEntry.mark`). ``end`` is the source's end offset when the mark was written (`LedgerEntry.end`; -1: unknown).
    """

    def __init__(self, chunks: Sequence[SegmentChunk], mark: Mark, end: int = -1) -> None:
        self._mark = mark
        self._end = end
        self._segments = _valid_segments(chunks, mark)
        self._passes: list[_Pass] = []
        for segment in self._segments:
            if not self._passes or segment.source < self._passes[-1].end:
                self._passes.append(_Pass([]))
            self._passes[-1].segments.append(segment)
        self._chunks = chunks

    def to_target(self, offset: int) -> TranslatedOffset | None:
        """The target offset for a group with the committed source offset ``offset``; None: before all known segments."""
        if not self._segments:
            # What lies behind was copied by another program, whose offset syncs are more precise. A program that was killed may have
            # copied records past the position that it stored: they are on the target before the mark, and nothing shows how many.
            is_certain = self._mark.target == 0 or self._end == self._mark.source
            if offset > self._mark.source or not is_certain:
                return None
            return _from_mark(offset, self._mark.source, self._mark.target)
        latest = self._latest(offset)
        for run in reversed(self._passes):
            if run.start <= offset:
                found = self._in(run, offset)
                if latest is None or found.offset <= latest:
                    at_most = latest if found.at_most is None else found.at_most
                    return found._replace(
                        at_most=at_most if latest is None or at_most is None else min(at_most, latest)
                    )
        if self._segments[0].target > 0:
            return None
        # The target topic was empty before the first record, so all unread records are known.
        first = 0 if latest is None else latest
        return TranslatedOffset(first, is_exact=len(self._passes) == 1, at_most=first)

    def to_source(self, offset: int) -> TranslatedOffset | None:
        """The source offset for a group with the committed target offset ``offset``; None: before all known segments."""
        if not self._segments:
            return _from_mark(offset, self._mark.target, self._mark.source)
        index = bisect_right(self._segments, offset, key=lambda segment: segment.target) - 1
        if index < 0:
            return None
        segment = self._segments[index]
        read = min(offset - segment.target, segment.records)
        found = segment.source + read
        if len(self._passes) > 1:
            found = self._lowest_unread(index, read, found)
            return TranslatedOffset(found, is_exact=False, at_most=found)
        if offset <= segment.target_end:
            return TranslatedOffset(found, is_exact=True, at_most=found)
        behind = self._segments[index + 1].source if index + 1 < len(self._segments) else self._mark.source
        is_exact = offset <= self._mark.target and self._is_missing(found, behind)
        return TranslatedOffset(found, is_exact, behind if index + 1 < len(self._segments) else None)

    @property
    def first_known(self) -> Segment | None:
        """The oldest segment."""
        return self._segments[0] if self._segments else None

    @cached_property
    def on_target(self) -> list[tuple[int, int]]:
        """The target offsets that are known to have copied records, as (first, after) in order."""
        return _merged((one.target, one.target_end) for one in self._segments)

    def on_target_before(self, source: int) -> list[tuple[int, int]]:
        """Those of `on_target` whose records are before a source offset."""
        known = (one for one in self._segments if one.source < source)
        return _merged((one.target, one.target + min(source - one.source, one.records)) for one in known)

    @property
    def on_source(self) -> list[tuple[int, int]]:
        """The source offsets that are known to be copied, or to have no record to be copied, as (first, after) in order."""
        return _merged([*((one.source, one.source_end) for one in self._segments), *self._gaps])

    def hole_at(self, offset: int) -> tuple[int, int] | None:
        """The target offsets around ``offset``, as (first, after), that are between copied records and have none; None: one is there, or
        it is not known what is.
        """
        index = bisect_right(self._holes, offset, key=lambda hole: hole[0]) - 1
        return self._holes[index] if index >= 0 and offset < self._holes[index][1] else None

    @cached_property
    def _holes(self) -> list[tuple[int, int]]:
        return holes(self.on_target, self._segments[0].target, self._mark.target) if self._segments else []

    def _in(self, run: _Pass, offset: int) -> TranslatedOffset:
        index = bisect_right(run.segments, offset, key=lambda segment: segment.source) - 1
        segment = run.segments[index]
        if offset < segment.source_end:
            exact = segment.target + offset - segment.source
            return TranslatedOffset(exact, is_exact=True, at_most=exact)
        behind = run.segments[index + 1] if index + 1 < len(run.segments) else None
        is_exact = self._is_missing(segment.source_end, offset)
        if behind is None and offset >= self._mark.source and self._mark.target > segment.target_end:
            # The group has read all that was copied, and what is behind it was copied of other source partitions.
            return TranslatedOffset(self._mark.target, is_exact, None)
        return TranslatedOffset(segment.target_end, is_exact, None if behind is None else behind.target)

    def _latest(self, offset: int) -> int | None:
        """Upper bound of the translated offset; None when it follows from the group's pass."""
        if len(self._passes) == 1:
            return None  # its next record has the lowest target offset
        newest, lowest = self._newest
        index = bisect_right(newest, offset, key=lambda run: run.source_end)
        if index == len(newest):
            return None
        here = newest[index].at(offset)
        return here if index + 1 == len(newest) else min(here, lowest[index + 1])

    @cached_property
    def _newest(self) -> tuple[list[_Newest], list[int]]:
        """The newest copy of every known source offset, in order, and the lowest target offset from each run on."""
        known = [
            [_Newest(one.source, one.source_end, one.target, rises=True) for one in run.segments]
            for run in self._passes
        ]
        newest: list[_Newest] = []
        # Records with unknown target offsets come last: a known offset may be of an older copy, but is the safer answer.
        for layer in [*reversed(known), *reversed(self._unknown_runs())]:
            newest = sorted(newest + _without(layer, newest))
        lowest = list(accumulate((run.target for run in reversed(newest)), min))
        return newest, lowest[::-1]

    def _unknown_runs(self) -> list[list[_Newest]]:
        """Records with unknown target offsets: between two segments that leave room on both sides; by pass."""
        ends = [(one.source, one.target) for one in self._segments[1:]] + [(self._mark.source, self._mark.target)]
        unknown: list[list[_Newest]] = [[]]
        for segment, (source, target) in zip(self._segments, ends, strict=True):
            if source < segment.source_end:
                unknown.append([])
                continue
            has_room = target < 0 or target > segment.target_end
            if has_room and not self._is_missing(segment.source_end, source):
                unknown[-1].append(_Newest(segment.source_end, source, segment.target_end, rises=False))
        return unknown

    def _is_missing(self, first: int, after: int) -> bool:
        """Whether all of these source offsets are known not to be on the target."""
        if first >= after:
            return True
        index = bisect_right(self._gaps, first, key=lambda gap: gap[0]) - 1
        return index >= 0 and self._gaps[index][1] >= after

    @cached_property
    def _gaps(self) -> list[tuple[int, int]]:
        """Ranges of source offsets without a record, merged, in order."""
        gaps: list[tuple[int, int]] = []
        for chunk in self._chunks:
            for cut in chunk.cuts:  # a cut was computed from the chunks that were kept then
                gaps = [(first, min(after, cut.source)) for first, after in gaps if first < cut.source]
            gaps += [(gap.first, gap.after) for gap in chunk.gaps if gap.first < gap.after]
        return _merged(gaps)

    def _lowest_unread(self, index: int, read: int, found: int) -> int:
        """The first source offset that the group has not read in any pass; at most ``found``."""
        reading = self._segments[index]
        read_to = reading.source + read
        seen = _merged([*((one.source, one.source_end) for one in self._segments[:index]), (reading.source, read_to)])
        ahead = [(read_to, reading.source_end), *((one.source, one.source_end) for one in self._segments[index + 1 :])]
        for first, after in sorted(ahead):
            seen_index = bisect_right(seen, first, key=lambda stretch: stretch[0]) - 1
            unread = max(first, seen[seen_index][1]) if seen_index >= 0 else first
            if unread < after:
                return min(unread, found)
        return found


def _from_mark(offset: int, here: int, there: int) -> TranslatedOffset | None:
    """Translate an offset of a copy that has no record yet, or only those of another program, by its mark.

    Records from the mark on are copied to after it.
    """
    if min(here, there) < 0:
        return None
    if offset > here:
        return TranslatedOffset(there, is_exact=False, at_most=None)
    return TranslatedOffset(there, is_exact=True, at_most=there) if offset == here or there == 0 else None


def _without(runs: Sequence[_Newest], taken: Sequence[_Newest]) -> list[_Newest]:
    """The parts of ``runs`` whose source offsets are not in ``taken``. Both are in order and without overlaps."""
    left: list[_Newest] = []
    index = 0
    for run in runs:
        while index < len(taken) and taken[index].source_end <= run.source:
            index += 1
        first, next_taken = run.source, index
        while first < run.source_end:
            after = min(run.source_end, taken[next_taken].source) if next_taken < len(taken) else run.source_end
            if first < after:
                left.append(_Newest(first, after, run.at(first), run.rises))
            if next_taken == len(taken):
                break
            first = max(first, taken[next_taken].source_end)
            next_taken += 1
    return left


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same offsets in the fewest ranges, in order."""
    merged: list[tuple[int, int]] = []
    for first, after in sorted(ranges):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], after))
        else:
            merged.append((first, after))
    return merged


def holes(ranges: Iterable[tuple[int, int]], first: int, after: int) -> list[tuple[int, int]]:
    """The offsets from ``first`` to ``after - 1`` that are in none of the ranges, in order."""
    found = []
    for start, end in _merged(ranges):
        if first < min(start, after):
            found.append((first, min(start, after)))
        first = max(first, end)
    return [*found, (first, after)] if first < after else found


def end_of_run(ranges: Iterable[tuple[int, int]], offset: int) -> int:
    """The first offset from ``offset`` on that is in none of the ranges."""
    return next((end for start, end in _merged(ranges) if start <= offset < end), offset)


def _valid_segments(chunks: Sequence[SegmentChunk], mark: Mark) -> list[Segment]:
    """The valid segments in the order of the target: none after the mark, none that a later segment replaces."""
    valid: list[Segment] = []
    for chunk in chunks:
        cuts: dict[int, int] = {}
        for cut in chunk.cuts:
            cuts[cut.segments] = min(cut.source, cuts.get(cut.segments, cut.source))
        for index, segment in enumerate(chunk.segments):
            if index in cuts:
                valid = _before_source(valid, cuts[index])
            _drop_from(valid, segment.target)
            if segment.records > 0:
                valid.append(segment)
        if len(chunk.segments) in cuts:
            valid = _before_source(valid, cuts[len(chunk.segments)])
    if mark.target >= 0:
        _drop_from(valid, mark.target)
    return valid


def _drop_from(segments: list[Segment], target: int) -> None:
    """Remove everything from this target offset on: the target log was truncated there and written again."""
    while segments and segments[-1].target >= target:
        segments.pop()
    if segments and segments[-1].target_end > target:
        last = segments[-1]
        segments[-1] = Segment(last.source, last.target, target - last.target)


def _before_source(segments: list[Segment], source: int) -> list[Segment]:
    """The parts with records before a source offset."""
    return [
        Segment(segment.source, segment.target, min(segment.records, source - segment.source))
        for segment in segments
        if segment.source < source
    ]
