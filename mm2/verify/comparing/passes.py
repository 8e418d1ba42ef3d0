"""Derives from the ledger's segments what to compare: passes in which both sides ascend. Pure.

A flow whose position was reset copies some source offsets again, to higher target offsets. Each pass is compared
separately: the ledger explains the duplicates. Within a pass, a *route* maps source offsets to target offsets where the
ledger has segments. Between the segments, records are matched by content.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from mm2.copy.progress.segments import Gap, Segment, SegmentChunk
from mm2.verify.comparing.findings import Explained

#: Reasons for offsets without visible records on the source. A record that is visible there is missing on the target.
INVISIBLE: Final = frozenset({"compacted", "missing", "control", "aborted", "retention"})


@dataclass(frozen=True)
class Route:
    """Segments that ascend on both sides."""

    segments: tuple[Segment, ...] = ()
    _sources: list[int] = field(init=False, repr=False, compare=False)
    _targets: list[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_sources", [segment.source for segment in self.segments])
        object.__setattr__(self, "_targets", [segment.target for segment in self.segments])

    def at_source(self, offset: int) -> Segment | None:
        """The segment that contains a source offset."""
        index = bisect_right(self._sources, offset) - 1
        segment = self.segments[index] if index >= 0 else None
        return segment if segment is not None and offset < segment.source_end else None

    def at_target(self, offset: int) -> Segment | None:
        """The segment that contains a target offset."""
        index = bisect_right(self._targets, offset) - 1
        segment = self.segments[index] if index >= 0 else None
        return segment if segment is not None and offset < segment.target_end else None

    def target_of(self, source: int) -> int | None:
        """The target offset of a source offset; None if it is in no segment."""
        segment = self.at_source(source)
        return None if segment is None else segment.target + source - segment.source

    def source_of(self, target: int) -> int | None:
        """The source offset of a target offset; None if it is in no segment."""
        segment = self.at_target(target)
        return None if segment is None else segment.source + target - segment.target

    def next_source(self, source: int) -> int | None:
        """The source offset at which the next segment after an offset starts."""
        index = bisect_right(self._sources, source)
        return self._sources[index] if index < len(self._sources) else None

    def part(self, first: int, after: int) -> Route:
        """The segments of source offsets ``first``..``after - 1``."""
        return Route(
            tuple(clip(segment, first, after) for segment in self.segments if _overlaps(segment, first, after))
        )


@dataclass(frozen=True)
class Pass:
    """Source offsets ``first``..``after - 1`` against target offsets ``target_first``..``target_after - 1``.

    ``joint``: if this is the pass before the ledger's first segment, the source offset of that segment, else -1. The target
    may also have records from there on: those that another program has copied after its last committed position.
    """

    first: int
    after: int
    target_first: int
    target_after: int
    route: Route
    joint: int = -1

    @property
    def is_before_ledger(self) -> bool:
        """Whether the ledger has no segment of it, because another program has copied it or the segments were dropped."""
        return self.joint >= 0


@dataclass
class Plan:
    """The plan of one partition.

    It has the passes in the order of the target, offsets that are explained without reading records, segments that
    were compared before, and the target offsets of records that have no counterpart: of a source log that was cut off, or of the other
    source partitions of a merge.
    """

    passes: list[Pass] = field(default_factory=list)
    explained: dict[str, int] = field(default_factory=dict)
    compared: list[Segment] = field(default_factory=list)
    cut_off: list[Gap] = field(default_factory=list)

    def is_cut_off(self, target_first: int, target_after: int) -> bool:
        """Whether no record at these target offsets has a counterpart."""
        return any(gap.first <= target_first and gap.after >= target_after for gap in merge_gaps(self.cut_off))

    def explain(self, reason: str, offsets: int) -> None:
        """Count explained offsets."""
        if offsets > 0:
            self.explained[reason] = self.explained.get(reason, 0) + offsets


@dataclass(frozen=True)
class Bounds:
    """What to compare of a partition: source offsets ``first``..``after - 1``; with ``whole``, to the end of the copy.

    The source starts at ``source_start`` and has been copied to ``position``. The target had
    ``target_start``..``target_end - 1`` at that time. A range whose ends are in no segment is extended to the next
    segment.

    ``target_first``, if not -1, is the offset up to which the target was compared before, and ``first`` the source
    position at that time. All segments after ``target_first`` are compared, also if the flow was reset and has copied
    source offsets below ``first`` again.
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
    def is_incremental(self) -> bool:
        """Whether only the part after a previous comparison is compared."""
        return self.target_first >= 0


def plan_passes(chunks: Sequence[SegmentChunk], bounds: Bounds, of_others: Iterable[Gap] = ()) -> Plan:
    """Plan the comparison of a range by the ledger. ``of_others``: target offsets of the other source partitions of a merge.

    Offsets that were deleted or truncated on either side are explained.
    """
    plan = Plan(cut_off=list(of_others))
    segments = _without_truncated(chunks, plan, bounds)
    if bounds.is_incremental:
        plan.compared, segments = _split_at_target(segments, bounds.target_first)
        first, leading, lowest = bounds.first, True, 0
    else:
        first, leading = _first(segments, bounds)
        lowest = first
    after, trailing = _after(segments, bounds)
    groups = _ascending_groups(segments)
    if leading and segments and not bounds.is_incremental:
        plan.passes += _before_ledger(segments[0], first, bounds, plan)
    for index, group in enumerate(groups):
        kept = [part for segment in group if (part := _part_to_compare(segment, lowest, after, plan, bounds)).records]
        if not kept:
            continue
        is_last = trailing and index + 1 == len(groups)
        # Records between two passes, and after the last one, belong to the pass before them.
        next_target = groups[index + 1][0].target if index + 1 < len(groups) else bounds.target_end if trailing else 0
        until, target_until = _pass_end(group, kept, after, next_target, bounds.position if is_last else None)
        # If the start of its segment was deleted, the exact beginning of the pass is unknown.
        is_first = bounds.is_incremental and index == 0 and kept[0].source == group[0].source
        plan.passes.append(
            Pass(
                min(first, kept[0].source) if is_first else kept[0].source,
                until,
                max(bounds.target_start, bounds.target_first) if is_first else kept[0].target,
                target_until,
                Route(tuple(kept)),
            )
        )
    begin = max(bounds.target_start, bounds.target_first)
    if not segments and (first < after or ((bounds.whole or bounds.is_incremental) and begin < bounds.target_end)):
        plan.passes.append(Pass(first, max(first, after), begin, max(begin, bounds.target_end), Route()))
    return plan


def _before_ledger(opening: Segment, first: int, bounds: Bounds, plan: Plan) -> list[Pass]:
    """The pass before the first segment of the ledger; none if there is nothing, or its end was deleted."""
    if first > opening.source or bounds.target_start > opening.target:
        return []
    start = opening.target if plan.is_cut_off(bounds.target_start, opening.target) else bounds.target_start
    if first == opening.source and start == opening.target:
        return []
    # Another program may have copied as many records after its last committed position.
    after = min(bounds.position, opening.source + opening.target - start)
    return [Pass(first, max(opening.source, after), start, opening.target, Route(), joint=opening.source)]


def _ascending_groups(segments: Iterable[Segment]) -> list[list[Segment]]:
    """Consecutive segments that ascend on both sides; a reset of the flow starts a new group."""
    groups: list[list[Segment]] = []
    for segment in segments:
        last = groups[-1][-1] if groups else None
        if last is None or segment.source < last.source_end or segment.target < last.target_end:
            groups.append([])
        groups[-1].append(segment)
    return groups


def _pass_end(
    group: Sequence[Segment], kept: Sequence[Segment], after: int, next_target: int, position: int | None
) -> tuple[int, int]:
    """The source and target offset at which a pass ends. ``position`` is that of the flow, for the last pass only."""
    following = next((segment for segment in group if after <= segment.source), None)
    until = kept[-1].source_end
    reaches_end = kept[-1].target_end == group[-1].target_end
    if position is not None:
        # The last pass after a reset ends at the current position, however far the previous pass had come.
        until = max(until, position)
    elif following is not None:
        until = max(until, after)
    if following is not None and until > kept[-1].source_end:
        next_target, reaches_end = following.target, True
    return until, max(kept[-1].target_end, next_target if reaches_end else 0)


def _split_at_target(segments: Iterable[Segment], target: int) -> tuple[list[Segment], list[Segment]]:
    """Split segments at a target offset: those below it, and those from it on."""
    below: list[Segment] = []
    above: list[Segment] = []
    for segment in segments:
        middle = segment.source + target - segment.target
        parts = clip(segment, segment.source, middle), clip(segment, middle, segment.source_end)
        for part, side in zip(parts, (below, above), strict=True):
            if part.records:
                side.append(part)
    return below, above


def _first(segments: Sequence[Segment], bounds: Bounds) -> tuple[int, bool]:
    """The start offset, and whether it is before all segments."""
    if any(segment.source <= bounds.first < segment.source_end for segment in segments):
        return bounds.first, bounds.first <= bounds.source_start
    below = [segment.source_end for segment in segments if segment.source_end <= bounds.first]
    return (max(below), False) if below else (bounds.source_start, True)


def _after(segments: Sequence[Segment], bounds: Bounds) -> tuple[int, bool]:
    """The end offset, and whether it is after all segments."""
    if bounds.whole:
        return max([bounds.position, *(segment.source_end for segment in segments)]), True
    if any(segment.source < bounds.after <= segment.source_end for segment in segments):
        return bounds.after, False
    above = [segment.source for segment in segments if segment.source >= bounds.after]
    return (min(above), False) if above else (bounds.position, True)


def _part_to_compare(segment: Segment, first: int, after: int, plan: Plan, bounds: Bounds) -> Segment:
    """The part of a segment that is still to be compared; the rest is explained."""
    wanted = clip(segment, first, after)
    on_source = clip(wanted, bounds.source_start, after)
    plan.explain(Explained.SOURCE_DELETED, wanted.records - on_source.records)
    kept = clip(on_source, on_source.source + bounds.target_start - on_source.target, after)
    plan.explain(Explained.TARGET_DELETED, on_source.records - kept.records)
    return kept


def split(one: Pass, offsets: int) -> list[Pass]:
    """Split into pieces of about ``offsets`` source offsets, only at offsets within segments."""
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
            route = one.route.part(first, at)
            pieces.append(
                replace(one, first=first, after=at, target_first=target_first, target_after=target, route=route)
            )
            first, target_first = at, target
        at += offsets
    pieces.append(replace(one, first=first, target_first=target_first, route=one.route.part(first, one.after)))
    return pieces


def join(pieces: Sequence[Pass]) -> Pass:
    """Join adjacent pieces."""
    segments = tuple(segment for piece in pieces for segment in piece.route.segments)
    return Pass(
        pieces[0].first,
        pieces[-1].after,
        pieces[0].target_first,
        pieces[-1].target_after,
        Route(_merge_adjacent(segments)),
        pieces[0].joint,
    )


def clip(segment: Segment, first: int, after: int) -> Segment:
    """The part of a segment with source offsets ``first``..``after - 1``."""
    low, high = max(segment.source, first), min(segment.source_end, after)
    return Segment(low, segment.target + low - segment.source, max(0, high - low))


def copied_in_other_passes(one: Pass, plan: Plan) -> list[Gap]:
    """Source offsets that other passes of the plan have copied, and that need not be in this one."""
    others = [segment for other in plan.passes if other is not one for segment in other.route.segments]
    return [
        Gap(segment.source, segment.source_end, "copied in another pass")
        for segment in [*plan.compared, *others]
        if segment.source < one.after and segment.source_end > one.first
    ]


def merge_gaps(gaps: Iterable[Gap]) -> list[Gap]:
    """The same offsets in ranges that do not overlap."""
    merged: list[Gap] = []
    for gap in sorted(gaps):
        if merged and gap.first <= merged[-1].after:
            merged[-1] = merged[-1]._replace(after=max(merged[-1].after, gap.after))
        else:
            merged.append(gap)
    return merged


def _overlaps(segment: Segment, first: int, after: int) -> bool:
    return segment.source < after and segment.source_end > first


def _merge_adjacent(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    whole: list[Segment] = []
    for segment in segments:
        last = whole[-1] if whole else None
        if last is not None and (last.source_end, last.target_end) == (segment.source, segment.target):
            whole[-1] = last._replace(records=last.records + segment.records)
        else:
            whole.append(segment)
    return tuple(whole)


def _without_truncated(chunks: Sequence[SegmentChunk], plan: Plan, bounds: Bounds) -> list[Segment]:
    """All segments in the order of copying, without offsets that the source has since assigned to other records."""
    found: list[Segment] = []
    for chunk in chunks:
        cuts = sorted(chunk.cuts)
        for index, segment in enumerate([*chunk.segments, None]):
            while cuts and cuts[0].segments == index:
                found = _truncate(found, cuts.pop(0).source, plan, bounds)
            if segment is None:
                continue
            # Records beyond the end were in flight when the end offset was read.
            visible = segment._replace(records=min(segment.records, bounds.target_end - segment.target))
            if visible.records > 0:
                found.append(visible)
    return found


def _truncate(segments: list[Segment], offset: int, plan: Plan, bounds: Bounds) -> list[Segment]:
    left = []
    for segment in segments:
        kept = clip(segment, segment.source, max(segment.source, offset))
        lost = clip(segment, max(kept.source_end, bounds.first), bounds.after)
        plan.explain(Explained.SOURCE_TRUNCATED, lost.records)
        replaced = clip(segment, kept.source_end, segment.source_end)
        if replaced.records:
            plan.cut_off.append(Gap(replaced.target, replaced.target_end, Explained.SOURCE_TRUNCATED))
        if kept.records:
            left.append(kept)
    return left
