"""Maps source offsets to target offsets: segments in which both advance together, and the reasons for the gaps
between them. Pure.

A segment (source, target, records) means that the records at source offsets ``source .. source+records-1`` are at
target offsets ``target .. target+records-1``. It ends where either side jumps: at a hole, a transaction marker, a
rewind, or a record of another producer on the target. A gap (first, after, reason) is the reason why the source
offsets ``first .. after-1`` are not on the target. Offsets in neither are on the target at an unknown offset. A cut
means that the source log was truncated or recreated at a source offset: from there on it has other records than those
of earlier segments.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

#: Segments and gaps of one chunk, which is rewritten each time its newest one changes.
CHUNK_SIZE: Final = 500
#: Chunks kept per partition. Older offsets are translated by offset syncs, as in Java's MirrorMaker.
CHUNKS_KEPT: Final = 64
#: Reasons of gaps that are expected. Under any other reason records are missing on the target.
INTENDED: Final = frozenset({"compacted", "control", "aborted", "filtered"})
#: Reason of offsets between what was copied and a later position that a user has set.
RESET: Final = "reset"


class Segment(NamedTuple):
    """A run of records."""

    source: int
    target: int
    records: int

    @property
    def source_end(self) -> int:
        """The source offset after its last record."""
        return self.source + self.records

    @property
    def target_end(self) -> int:
        """The target offset after its last record."""
        return self.target + self.records


class Gap(NamedTuple):
    """Source offsets that have no record on the target."""

    first: int
    after: int
    reason: str


class Cut(NamedTuple):
    """The source log was cut at an offset after the first ``segments`` segments of the chunk."""

    segments: int
    source: int


@dataclass(slots=True)
class SegmentChunk:
    """Segments and gaps in the order in which they were copied."""

    number: int
    segments: list[Segment] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)

    @property
    def open_segment(self) -> Segment | None:
        """The last segment, if it may still grow: not before a cut, and not when the target has lost all of it."""
        is_cut = self.cuts and self.cuts[-1].segments == len(self.segments)
        return None if is_cut or not self.segments or not self.segments[-1].records else self.segments[-1]

    @property
    def full(self) -> bool:
        """Whether the next chunk has to be started."""
        return len(self.segments) + len(self.gaps) + len(self.cuts) >= CHUNK_SIZE

    def extent(self) -> tuple[int, int, int]:
        """The numbers of segments, gaps and cuts."""
        return len(self.segments), len(self.gaps), len(self.cuts)

    def shortened(self, extent: tuple[int, int, int], source: int) -> SegmentChunk:
        """The chunk as it was when it had this extent and ``source`` was the next source offset. Only the last
        segment and the last gap can have grown since.
        """
        segments, gaps, cuts = extent
        chunk = SegmentChunk(self.number, self.segments[:segments], self.gaps[:gaps], self.cuts[:cuts])
        if chunk.segments and chunk.segments[-1].source_end > source > chunk.segments[-1].source:
            chunk.segments[-1] = chunk.segments[-1]._replace(records=source - chunk.segments[-1].source)
        if chunk.gaps and chunk.gaps[-1].after > source > chunk.gaps[-1].first:
            chunk.gaps[-1] = chunk.gaps[-1]._replace(after=source)
        return chunk

    def to_json(self) -> dict[str, Any]:
        """Delta-coded: a segment is [source step, target step, count] from the end of the previous one."""
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
        data: dict[str, Any] = {"number": self.number, "segments": rows, "gaps": gaps, "reasons": reasons}
        if self.cuts:
            data["cuts"] = [list(cut) for cut in self.cuts]
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SegmentChunk:
        """The inverse of `to_json`."""
        chunk = cls(int(data["number"]))
        source = target = after = 0
        for source_step, target_step, count in data["segments"]:
            segment = Segment(source + source_step, target + target_step, count)
            chunk.segments.append(segment)
            source, target = segment.source_end, segment.target_end
        for step, length, reason in data["gaps"]:
            gap = Gap(after + step, after + step + length, str(data["reasons"][reason]))
            chunk.gaps.append(gap)
            after = gap.after
        chunk.cuts += [Cut(int(segments), int(offset)) for segments, offset in data.get("cuts", ())]
        return chunk


class UnwrittenChunks(NamedTuple):
    """Chunks that differ from those in the ledger, oldest first, and the numbers of chunks to be deleted from it."""

    changed: tuple[SegmentChunk, ...] = ()
    forgotten: tuple[int, ...] = ()


class Trail:
    """The history of one partition's copying: totals of all gaps, and the newest segments and gaps.

    ``chunk`` is the last chunk of the predecessor, ``unwritten`` are the changes that it did not get into the ledger.
    ``take_changed`` returns the chunks to be written. The last segment is open: it reaches to the partition's mark.
    """

    def __init__(
        self,
        chunk: SegmentChunk | None = None,
        gaps: dict[str, int] | None = None,
        unwritten: UnwrittenChunks | None = None,
    ) -> None:
        chunk, unwritten = chunk or SegmentChunk(0), unwritten or UnwrittenChunks()
        earlier = [one for one in unwritten.changed if one.number < chunk.number]
        self._chunks: deque[SegmentChunk] = deque([*earlier, chunk], maxlen=CHUNKS_KEPT)
        self._changed = {one.number for one in unwritten.changed}
        self._forgotten = list(unwritten.forgotten)
        # Taken to be written, but not known to be in the ledger.
        self._in_flight: set[int] = set()
        self._forgotten_in_flight: list[int] = []
        self.gaps: dict[str, int] = dict(gaps or {})

    @property
    def newest(self) -> SegmentChunk:
        """The chunk that is being filled."""
        return self._chunks[-1]

    def copied(self, source: int, target: int, count: int) -> None:
        """Records from ``source`` on are on the target from ``target`` on."""
        last = self.newest.open_segment
        if last is not None and last.source_end == source and last.target_end == target:
            self.newest.segments[-1] = Segment(last.source, last.target, last.records + count)
            return
        self._room().segments.append(Segment(source, target, count))
        self._changed.add(self.newest.number)

    def missing(self, first: int, after: int, reason: str) -> None:
        """These source offsets will not be on the target."""
        self.gaps[reason] = self.gaps.get(reason, 0) + after - first
        gaps = self._chunks[-1].gaps
        if gaps and gaps[-1].after == first and gaps[-1].reason == reason:
            gaps[-1] = Gap(gaps[-1].first, after, reason)
        else:
            self._room().gaps.append(Gap(first, after, reason))
        self._changed.add(self.newest.number)

    def no_longer_missing(self, first: int, after: int, reason: str) -> None:
        """These source offsets, of one range that was missing, will be on the target. Emptied gaps stay, because extents count them."""
        left = self.gaps.get(reason, 0) - (after - first)
        self.gaps.pop(reason, None)
        if left > 0:
            self.gaps[reason] = left
        for chunk in self._chunks:
            for index, gap in enumerate(chunk.gaps):
                if gap.reason == reason and gap.first < after and gap.after > first:
                    chunk.gaps[index] = gap._replace(first=min(gap.first, first), after=max(gap.first, first))
                    self._changed.add(chunk.number)

    def cut(self, source: int) -> None:
        """From this offset on the source has other records than those that were copied. Emptied gaps stay, because
        extents count them.
        """
        for chunk in self._chunks:
            for index, gap in enumerate(chunk.gaps):
                if gap.after > source:
                    chunk.gaps[index] = gap._replace(first=min(gap.first, source), after=source)
                    self._changed.add(chunk.number)
        room = self._room()
        room.cuts.append(Cut(len(room.segments), source))
        self._changed.add(room.number)

    def target_cut(self, end: int) -> None:
        """The target lost its records from this offset on. Emptied segments stay, because cuts count them."""
        for chunk in self._chunks:
            for index, segment in enumerate(chunk.segments):
                if segment.target_end > end:
                    chunk.segments[index] = segment._replace(records=max(0, end - segment.target))
                    self._changed.add(chunk.number)

    def restart(self) -> None:
        """The target topic was recreated: all known target offsets are invalid. The totals continue."""
        number = self.newest.number + 1
        self._forgotten += range(max(0, number - CHUNKS_KEPT), number)
        self._chunks.clear()
        self._chunks.append(SegmentChunk(number))
        self._changed = {number}

    def settle(self) -> None:
        """Write the newest chunk even if it has only grown: another process may have copied since."""
        if self.newest.segments:
            self._changed.add(self.newest.number)

    def take_changed(self) -> UnwrittenChunks:
        """Copies of the chunks that changed since the last call."""
        taken = self._copies(self._changed, self._forgotten)
        self._in_flight |= self._changed
        self._forgotten_in_flight += self._forgotten
        self._changed, self._forgotten = set(), []
        return taken

    def written(self) -> None:
        """Everything that was taken is in the ledger."""
        self._in_flight.clear()
        self._forgotten_in_flight.clear()

    def unwritten(self) -> UnwrittenChunks:
        """Copies of the chunks whose last change is not known to be in the ledger."""
        return self._copies(self._changed | self._in_flight, [*self._forgotten_in_flight, *self._forgotten])

    def _copies(self, numbers: set[int], forgotten: Sequence[int]) -> UnwrittenChunks:
        changed = (
            SegmentChunk(chunk.number, list(chunk.segments), list(chunk.gaps), list(chunk.cuts))
            for chunk in self._chunks
            if chunk.number in numbers
        )
        return UnwrittenChunks(tuple(changed), tuple(forgotten))

    def last_source(self, end: int, *, may_end_with_markers: bool = False) -> int | None:
        """The last source offset that a target log with this end has of the source's present log; -1: none. None if no kept segment
        contains the record before ``end``, or before the transaction markers there (``may_end_with_markers``).

        Newer segments take precedence: a target offset is used again only after a truncation of the target. From a cut on, the
        source has other records than those of the segments before it.
        """
        if may_end_with_markers:
            segments = [segment for chunk in self._chunks for segment in chunk.segments if segment.target < end]
            end = max((min(end, segment.target_end) for segment in segments), default=end)
        for segment, cut in self._newest_first():
            if segment.target < end <= segment.target_end:
                return int(min(segment.source + end - 1 - segment.target, cut - 1))
        return None

    def source_before(self, end: int) -> int | None:
        """The source offset after the newest record that is known to be before this target offset; None: none is known to be.

        All records whose target offsets are not before it are at this source offset or after it.
        """
        for segment, cut in self._newest_first():
            if segment.records and segment.target < end:
                return int(min(segment.source + min(segment.records, end - segment.target), cut))
        return None

    def own_end(self, start: int) -> int:
        """The target offset after the newest record from ``start`` on; -1: none is known to be there."""
        newest = next((segment for segment, _ in self._newest_first() if segment.records), None)
        return newest.target_end if newest is not None and newest.target_end > start else -1

    def _newest_first(self) -> Iterator[tuple[Segment, float]]:
        """The segments, each with the source offset from which on the source has other records than it."""
        cut: float = math.inf
        for chunk in reversed(self._chunks):
            cuts = list(chunk.cuts)
            for index in range(len(chunk.segments) - 1, -1, -1):
                while cuts and cuts[-1].segments > index:
                    cut = min(cut, cuts.pop().source)
                yield chunk.segments[index], cut
            cut = min([cut, *(one.source for one in cuts)])

    def _room(self) -> SegmentChunk:
        newest = self._chunks[-1]
        if newest.full:
            self._changed.add(
                newest.number
            )  # its last segment may have grown, and only the newest chunk grows on reading
            newest = SegmentChunk(newest.number + 1)
            if len(self._chunks) == CHUNKS_KEPT:
                self._changed.discard(self._chunks[0].number)
            if newest.number >= CHUNKS_KEPT:
                self._forgotten.append(newest.number - CHUNKS_KEPT)
            self._chunks.append(newest)
        return newest
