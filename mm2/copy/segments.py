"""Which source offset lies where on the target: runs in which both advance together, and what lies between them. Pure.

A segment (source, target, records) says that the records at source offsets ``source .. source+records-1`` are at target
offsets ``target .. target+records-1``. It ends where either side jumps: a hole, a transaction marker, a rewind, somebody
else's record on the target. A gap (first, after, reason) says why the source offsets ``first .. after-1`` are not there.
Offsets in neither are on the target at a place that nobody knows. A cut says that from a source offset on the source has
other records now than those of the segments before it: its log was cut off there, or begun anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

#: Segments and gaps of one chunk: what is written again each time that the newest of them changes.
CHUNK_SIZE: Final = 500
#: Chunks kept per partition; what is older is translated by MM2's rule.
CHUNKS_KEPT: Final = 64
#: Reasons of gaps whose records are not meant to be on the target; with any other they are missing there.
INTENDED: Final = frozenset({"compacted", "control", "aborted", "filtered"})


class Segment(NamedTuple):
    """A run of records."""

    source: int
    target: int
    records: int

    @property
    def source_end(self) -> int:
        """The source offset behind its last record."""
        return self.source + self.records

    @property
    def target_end(self) -> int:
        """The target offset behind its last record."""
        return self.target + self.records


class Gap(NamedTuple):
    """Source offsets that have no record on the target."""

    first: int
    after: int
    reason: str


class Cut(NamedTuple):
    """Behind the first ``place`` segments of its chunk the source was cut off at an offset."""

    place: int
    source: int


@dataclass(slots=True)
class SegmentChunk:
    """Some segments and gaps in the order in which they were copied."""

    number: int
    segments: list[Segment] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)

    @property
    def open_segment(self) -> Segment | None:
        """The one that may still grow; not behind a cut, and not where the target has lost all of it."""
        is_cut = self.cuts and self.cuts[-1].place == len(self.segments)
        return None if is_cut or not self.segments or not self.segments[-1].records else self.segments[-1]

    @property
    def full(self) -> bool:
        """Time for the next one."""
        return len(self.segments) + len(self.gaps) + len(self.cuts) >= CHUNK_SIZE

    def extent(self) -> tuple[int, int, int]:
        """How many segments, gaps and cuts."""
        return len(self.segments), len(self.gaps), len(self.cuts)

    def shortened(self, extent: tuple[int, int, int], source: int) -> SegmentChunk:
        """As it was when that was its extent and ``source`` the next source offset: only the last of each may have grown since."""
        segments, gaps, cuts = extent
        chunk = SegmentChunk(self.number, self.segments[:segments], self.gaps[:gaps], self.cuts[:cuts])
        if chunk.segments and chunk.segments[-1].source_end > source > chunk.segments[-1].source:
            chunk.segments[-1] = chunk.segments[-1]._replace(records=source - chunk.segments[-1].source)
        if chunk.gaps and chunk.gaps[-1].after > source > chunk.gaps[-1].first:
            chunk.gaps[-1] = chunk.gaps[-1]._replace(after=source)
        return chunk

    def to_json(self) -> dict[str, Any]:
        """Delta-coded: a segment as [source step, target step, count] from the end of the one before it."""
        rows, source, target = [], 0, 0
        for segment in self.segments:
            rows.append([segment.source - source, segment.target - target, segment.records])
            source, target = segment.source_end, segment.target_end
        reasons: list[str] = []
        gaps, after = [], 0
        for gap in self.gaps:
            if gap.reason not in reasons:
                reasons.append(gap.reason)
            gaps.append([gap.first - after, gap.after - gap.first, reasons.index(gap.reason)])
            after = gap.after
        data: dict[str, Any] = {"segments": rows, "gaps": gaps, "reasons": reasons}
        if self.cuts:
            data["cuts"] = [list(cut) for cut in self.cuts]
        return data

    @classmethod
    def from_json(cls, number: int, data: dict[str, Any]) -> SegmentChunk:
        """The inverse of `to_json`."""
        chunk = cls(number)
        source = target = after = 0
        for source_step, target_step, count in data["segments"]:
            segment = Segment(source + source_step, target + target_step, count)
            chunk.segments.append(segment)
            source, target = segment.source_end, segment.target_end
        for step, length, reason in data["gaps"]:
            gap = Gap(after + step, after + step + length, str(data["reasons"][reason]))
            chunk.gaps.append(gap)
            after = gap.after
        chunk.cuts += [Cut(int(place), int(offset)) for place, offset in data.get("cuts", ())]
        return chunk


class Trail:
    """What one partition's copying leaves behind: gap totals for ever, the newest segments and gaps one by one.

    ``chunk`` is where a predecessor left off. ``take_changed`` gives the chunks to be written; the last segment is open:
    it reaches to the partition's mark.
    """

    def __init__(self, chunk: SegmentChunk | None = None, gaps: dict[str, int] | None = None) -> None:
        self._chunks: deque[SegmentChunk] = deque([chunk or SegmentChunk(0)], maxlen=CHUNKS_KEPT)
        self._changed: set[int] = set()
        self._forgotten: list[int] = []
        self.gaps: dict[str, int] = dict(gaps or {})

    @property
    def newest(self) -> SegmentChunk:
        """The chunk that is being filled."""
        return self._chunks[-1]

    def copied(self, source: int, target: int, count: int) -> None:
        """Records at ``source`` and on are on the target at ``target`` and on."""
        last = self.newest.open_segment
        if last is not None and last.source_end == source and last.target_end == target:
            self.newest.segments[-1] = Segment(last.source, last.target, last.records + count)
            return
        self._room().segments.append(Segment(source, target, count))
        self._changed.add(self.newest.number)

    def missing(self, first: int, after: int, reason: str) -> None:
        """Source offsets that will not be on the target."""
        self.gaps[reason] = self.gaps.get(reason, 0) + after - first
        gaps = self._chunks[-1].gaps
        if gaps and gaps[-1].after == first and gaps[-1].reason == reason:
            gaps[-1] = Gap(gaps[-1].first, after, reason)
        else:
            self._room().gaps.append(Gap(first, after, reason))
        self._changed.add(self.newest.number)

    def cut(self, source: int) -> None:
        """From this offset on the source has other records than those that were copied; emptied gaps stay, marks count them."""
        for chunk in self._chunks:
            for place, gap in enumerate(chunk.gaps):
                if gap.after > source:
                    chunk.gaps[place] = gap._replace(first=min(gap.first, source), after=source)
                    self._changed.add(chunk.number)
        room = self._room()
        room.cuts.append(Cut(len(room.segments), source))
        self._changed.add(room.number)

    def target_cut(self, end: int) -> None:
        """The target has lost what was at this offset and behind; emptied segments stay, cuts count them."""
        for chunk in self._chunks:
            for place, segment in enumerate(chunk.segments):
                if segment.target_end > end:
                    chunk.segments[place] = segment._replace(records=max(0, end - segment.target))
                    self._changed.add(chunk.number)

    def begin_anew(self) -> None:
        """The target is another topic now: none of the places that were known on it holds. The totals go on."""
        number = self.newest.number + 1
        self._forgotten += range(max(0, number - CHUNKS_KEPT), number)
        self._chunks.clear()
        self._chunks.append(SegmentChunk(number))
        self._changed = {number}

    def settle(self) -> None:
        """Have the newest chunk written although it may only have grown: somebody else may have copied since."""
        if self.newest.segments:
            self._changed.add(self.newest.number)

    def take_changed(self) -> tuple[list[SegmentChunk], list[int]]:
        """Copies of chunks that differ from what was taken before, and numbers of those to be forgotten."""
        changed = [
            SegmentChunk(chunk.number, list(chunk.segments), list(chunk.gaps), list(chunk.cuts))
            for chunk in self._chunks
            if chunk.number in self._changed
        ]
        forgotten, self._forgotten = self._forgotten, []
        self._changed.clear()
        return changed, forgotten

    def source_of(self, target: int) -> int | None:
        """The source offset of the record at a target offset, as far back as is known here."""
        return source_of(self._chunks, target)

    def _room(self) -> SegmentChunk:
        newest = self._chunks[-1]
        if newest.full:
            self._changed.add(
                newest.number
            )  # its last segment may have grown, and the ledger only lets the newest grow
            newest = SegmentChunk(newest.number + 1)
            if len(self._chunks) == CHUNKS_KEPT:
                self._changed.discard(self._chunks[0].number)
            if newest.number >= CHUNKS_KEPT:
                self._forgotten.append(newest.number - CHUNKS_KEPT)
            self._chunks.append(newest)
        return newest


def source_of(chunks: Sequence[SegmentChunk] | deque[SegmentChunk], target: int) -> int | None:
    """The source offset of the record at a target offset; None when no kept segment holds it.

    Newer segments win: after a rewind of the source the same target offset is never used twice, but after a truncation of
    the target it is.
    """
    for chunk in reversed(chunks):
        for segment in reversed(chunk.segments):
            if segment.target <= target < segment.target_end:
                return segment.source + target - segment.target
    return None
