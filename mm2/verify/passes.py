"""The ledger's segments as what has to be compared: passes in which both sides go forward. Pure.

A flow that was sent back copies some source offsets once more, to higher target offsets. Each pass is compared for itself: the ledger
explains why records are there twice. Within a pass a *route* says which source offset lies where on the target, as far as the ledger
knows; between its segments, what lies where is told by content.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from mm2.copy.segments import Chunk, Gap, Segment
from mm2.verify.findings import Explained

#: Reasons for which there is nothing to be seen on the source. What is seen there all the same is missing on the target.
UNSEEN: Final = frozenset({"compacted", "control", "aborted"})


@dataclass(frozen=True)
class Route:
    """Segments that go forward on both sides."""

    segments: tuple[Segment, ...] = ()
    _sources: list[int] = field(init=False, repr=False, compare=False)
    _targets: list[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_sources", [segment.source for segment in self.segments])
        object.__setattr__(self, "_targets", [segment.target for segment in self.segments])

    def at_source(self, offset: int) -> Segment | None:
        """The segment that holds a source offset."""
        place = bisect_right(self._sources, offset) - 1
        segment = self.segments[place] if place >= 0 else None
        return segment if segment is not None and offset < segment.source_end else None

    def at_target(self, offset: int) -> Segment | None:
        """The segment that holds a target offset."""
        place = bisect_right(self._targets, offset) - 1
        segment = self.segments[place] if place >= 0 else None
        return segment if segment is not None and offset < segment.target_end else None

    def target_of(self, source: int) -> int | None:
        """Where a source offset lies; None when the ledger does not know."""
        segment = self.at_source(source)
        return None if segment is None else segment.target + source - segment.source

    def source_of(self, target: int) -> int | None:
        """What lies at a target offset; None when the ledger does not know."""
        segment = self.at_target(target)
        return None if segment is None else segment.source + target - segment.target

    def next_source(self, source: int) -> int | None:
        """Where the next segment behind a source offset begins."""
        place = bisect_right(self._sources, source)
        return self._sources[place] if place < len(self._sources) else None

    def part(self, first: int, after: int) -> Route:
        """The segments of source offsets ``first``..``after - 1``."""
        return Route(tuple(clipped(segment, first, after) for segment in self.segments if _meet(segment, first, after)))


@dataclass(frozen=True)
class Pass:
    """Source offsets ``first``..``after - 1`` against target offsets ``target_first``..``target_after - 1``."""

    first: int
    after: int
    target_first: int
    target_after: int
    route: Route


@dataclass
class Plan:
    """Of one partition: its passes in the order of the target, offsets that are explained without a look at any record, and segments
    that were compared before."""

    passes: list[Pass] = field(default_factory=list)
    explained: dict[str, int] = field(default_factory=dict)
    compared: list[Segment] = field(default_factory=list)

    def explain(self, reason: str, offsets: int) -> None:
        """Count some."""
        if offsets > 0:
            self.explained[reason] = self.explained.get(reason, 0) + offsets


@dataclass(frozen=True)
class Bounds:
    """What is to be compared of a partition: source offsets ``first``..``after - 1``, and nothing less where they are ``whole``.

    The source begins at ``source_start`` and has been copied to ``position``; of the target what lies in
    ``target_start``..``target_end - 1`` was there then. A range whose end lies where the ledger knows no places is widened to
    the next that it knows.

    ``target_first``, if not -1, is where the target has been compared to before, and ``first`` how far the source had been copied
    then. From there on it is the target that counts: what the ledger has put behind ``target_first`` is compared, also
    where the flow was sent back and has copied source offsets below ``first`` once more.
    """

    first: int
    after: int
    source_start: int
    position: int
    target_start: int
    target_end: int
    whole: bool = True
    target_first: int = -1

    @property
    def goes_on(self) -> bool:
        """Part of it was compared before."""
        return self.target_first >= 0


def plan_passes(chunks: Sequence[Chunk], bounds: Bounds) -> Plan:
    """What the ledger's trail says of a range; all that is deleted on either side, or was cut off, is left out and explained."""
    plan = Plan()
    segments = _uncut(chunks, plan, bounds)
    if bounds.goes_on:
        plan.compared, segments = _parted(segments, bounds.target_first)
        first, leading, lowest = bounds.first, True, 0
    else:
        first, leading = _first(segments, bounds)
        lowest = first
    after, trailing = _after(segments, bounds)
    groups: list[list[Segment]] = []
    for segment in segments:
        last = groups[-1][-1] if groups else None
        if last is None or segment.source < last.source_end or segment.target < last.target_end:
            groups.append([])
        groups[-1].append(segment)
    for place, group in enumerate(groups):
        kept = [part for segment in group if (part := _kept(segment, lowest, after, plan, bounds)).records]
        if not kept:
            continue
        # Of what is deleted at its head nothing is known any more.
        is_first = leading and place == 0 and kept[0].source == group[0].source
        following = next((segment for segment in group if after <= segment.source), None)
        is_last = trailing and place + 1 == len(groups)
        # What lies between two passes, and behind the last one, came in the time of the one before it.
        behind = groups[place + 1][0].target if place + 1 < len(groups) else bounds.target_end if trailing else 0
        ends = kept[-1].target_end == group[-1].target_end
        until = kept[-1].source_end
        if is_last or following is not None:
            # A pass that was sent back ends where the copying is, however far the one before it has come.
            until = max(until, bounds.position if is_last else after)
        if following is not None and until > kept[-1].source_end:
            behind, ends = following.target, True
        begin = max(bounds.target_start, bounds.target_first) if is_first else kept[0].target
        plan.passes.append(
            Pass(
                min(first, kept[0].source) if is_first else kept[0].source,
                until,
                begin,
                max(kept[-1].target_end, behind if ends else 0),
                Route(tuple(kept)),
            )
        )
    begin = max(bounds.target_start, bounds.target_first)
    if not segments and (first < after or (bounds.goes_on and begin < bounds.target_end)):
        plan.passes.append(Pass(first, max(first, after), begin, max(begin, bounds.target_end), Route()))
    return plan


def _parted(segments: Iterable[Segment], target: int) -> tuple[list[Segment], list[Segment]]:
    """What lies below a target offset, and what lies there and behind."""
    below: list[Segment] = []
    behind: list[Segment] = []
    for segment in segments:
        middle = segment.source + target - segment.target
        parts = clipped(segment, segment.source, middle), clipped(segment, middle, segment.source_end)
        for part, where in zip(parts, (below, behind), strict=True):
            if part.records:
                where.append(part)
    return below, behind


def _first(segments: Sequence[Segment], bounds: Bounds) -> tuple[int, bool]:
    """Where to begin, and whether that is before all that the ledger knows."""
    if any(segment.source <= bounds.first < segment.source_end for segment in segments):
        return bounds.first, bounds.first <= bounds.source_start
    below = [segment.source_end for segment in segments if segment.source_end <= bounds.first]
    return (max(below), False) if below else (bounds.source_start, True)


def _after(segments: Sequence[Segment], bounds: Bounds) -> tuple[int, bool]:
    """Where to end, and whether that is behind all that the ledger knows."""
    if bounds.whole:
        return max([bounds.position, *(segment.source_end for segment in segments)]), True
    if any(segment.source < bounds.after <= segment.source_end for segment in segments):
        return bounds.after, False
    above = [segment.source for segment in segments if segment.source >= bounds.after]
    return (min(above), False) if above else (bounds.position, True)


def _kept(segment: Segment, first: int, after: int, plan: Plan, bounds: Bounds) -> Segment:
    """What is left to be compared of a segment; the rest is explained."""
    wanted = clipped(segment, first, after)
    there = clipped(wanted, bounds.source_start, after)
    plan.explain(Explained.SOURCE_DELETED, wanted.records - there.records)
    kept = clipped(there, there.source + bounds.target_start - there.target, after)
    plan.explain(Explained.TARGET_DELETED, there.records - kept.records)
    return kept


def split(one: Pass, offsets: int) -> list[Pass]:
    """The same in pieces of about so many source offsets; cut only where the ledger knows both sides."""
    pieces: list[Pass] = []
    first, target_first = one.first, one.target_first
    at = first + offsets
    while at + offsets // 2 < one.after:
        segment = one.route.at_source(at)
        if segment is None:
            following = one.route.next_source(at)
            segment = None if following is None else one.route.at_source(following)
            if segment is None or segment.source + offsets // 2 >= one.after:
                break
            at = segment.source
        target = segment.target + at - segment.source
        if target > target_first:
            pieces.append(Pass(first, at, target_first, target, one.route.part(first, at)))
            first, target_first = at, target
        at += offsets
    pieces.append(Pass(first, one.after, target_first, one.target_after, one.route.part(first, one.after)))
    return pieces


def joined(pieces: Sequence[Pass]) -> Pass:
    """Neighbours as one again."""
    segments = tuple(segment for piece in pieces for segment in piece.route.segments)
    return Pass(
        pieces[0].first, pieces[-1].after, pieces[0].target_first, pieces[-1].target_after, Route(_mended(segments))
    )


def clipped(segment: Segment, first: int, after: int) -> Segment:
    """The part of a segment of source offsets ``first``..``after - 1``."""
    low, high = max(segment.source, first), min(segment.source_end, after)
    return Segment(low, segment.target + low - segment.source, max(0, high - low))


def elsewhere(one: Pass, plan: Plan) -> list[Gap]:
    """Source offsets that other passes of the plan have copied: where this one does not know them, they are not missing."""
    others = [segment for other in plan.passes if other is not one for segment in other.route.segments]
    return [
        Gap(segment.source, segment.source_end, "copied in another pass")
        for segment in [*plan.compared, *others]
        if segment.source < one.after and segment.source_end > one.first
    ]


def side_by_side(gaps: Iterable[Gap]) -> list[Gap]:
    """The same offsets in ranges that do not overlap."""
    merged: list[Gap] = []
    for gap in sorted(gaps):
        if merged and gap.first <= merged[-1].after:
            merged[-1] = merged[-1]._replace(after=max(merged[-1].after, gap.after))
        else:
            merged.append(gap)
    return merged


def _meet(segment: Segment, first: int, after: int) -> bool:
    return segment.source < after and segment.source_end > first


def _mended(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    whole: list[Segment] = []
    for segment in segments:
        last = whole[-1] if whole else None
        if last is not None and (last.source_end, last.target_end) == (segment.source, segment.target):
            whole[-1] = last._replace(records=last.records + segment.records)
        else:
            whole.append(segment)
    return tuple(whole)


def _uncut(chunks: Sequence[Chunk], plan: Plan, bounds: Bounds) -> list[Segment]:
    """All segments in the order of copying, without what the source has other records for since."""
    found: list[Segment] = []
    for chunk in chunks:
        cuts = sorted(chunk.cuts)
        for place, segment in enumerate([*chunk.segments, None]):
            while cuts and cuts[0].place == place:
                found = _cut(found, cuts.pop(0).source, plan, bounds)
            if segment is None:
                continue
            # What lies further on was on its way when the end was looked up.
            there = segment._replace(records=min(segment.records, bounds.target_end - segment.target))
            if there.records > 0:
                found.append(there)
    return found


def _cut(segments: list[Segment], offset: int, plan: Plan, bounds: Bounds) -> list[Segment]:
    left = []
    for segment in segments:
        kept = clipped(segment, segment.source, max(segment.source, offset))
        lost = clipped(segment, max(kept.source_end, bounds.first), bounds.after)
        plan.explain(Explained.SOURCE_CUT, lost.records)
        if kept.records:
            left.append(kept)
    return left
