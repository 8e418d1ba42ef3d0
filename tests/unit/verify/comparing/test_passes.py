"""Passes planned from the ledger match source and target offsets for any history of a flow."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from mm2.copy.progress.segments import Cut, Gap, Segment, SegmentChunk, Trail
from mm2.kafka.records.record import Record
from mm2.verify.comparing.findings import DifferenceKind, Explained, Findings
from mm2.verify.comparing.passes import (
    INVISIBLE,
    Bounds,
    Pass,
    Plan,
    Route,
    copied_in_other_passes,
    join,
    merge_gaps,
    plan_passes,
    split,
)
from mm2.verify.comparing.spans import Span
from tests.unit.verify.comparing.test_comparison import ListFeed, compare, record


@dataclass
class Flow:
    """A source with gaps, a target that also has markers and records of other producers, and the segments that the flow stores."""

    holes: set[int]
    length: int
    trail: Trail = field(default_factory=Trail)
    target: list[tuple[int, Record]] = field(default_factory=list)
    end: int = 0
    position: int = 0
    foreign: int = 0
    ages: dict[int, int] = field(default_factory=dict)  # of source offsets: how often they were cut off

    def play(self, event: str, count: int) -> None:
        if event == "copy":
            for _ in range(count):
                self._copy()
        elif event == "marker":
            self.end += 1
        elif event == "foreign":
            for _ in range(count):
                self.target.append((self.end, Record(b"foreign", b"%d" % self.end, (), self.end)))
                self.end += 1
                self.foreign += 1
        elif event == "lose" and self.position < self.length:
            after = min(self.position + count, self.length)
            self.trail.missing(self.position, after, "quarantined")
            self.position = after
        elif event == "rewind":
            self.position = max(0, self.position - count)
        elif event == "cut":
            self.position = max(0, self.position - count)
            self.trail.cut(self.position)
            for offset in range(self.position, self.length):
                self.ages[offset] = self.ages.get(offset, 0) + 1

    def content(self, offset: int) -> Record:
        one, age = record(offset), self.ages.get(offset)
        return one if age is None else Record(one.key, b"%d in log %d" % (offset, age), one.headers, one.timestamp)

    def _copy(self) -> None:
        if self.position >= self.length:
            return
        if self.position in self.holes:
            self.trail.missing(self.position, self.position + 1, "control")
        else:
            self.trail.copied(self.position, self.end, 1)
            self.target.append((self.end, self.content(self.position)))
            self.end += 1
        self.position += 1

    @property
    def source(self) -> list[tuple[int, Record]]:
        return [(offset, self.content(offset)) for offset in range(self.length) if offset not in self.holes]

    def all_chunks(self) -> list[SegmentChunk]:
        """The current chunks of the ledger."""
        return [
            SegmentChunk(one.number, list(one.segments), list(one.gaps), list(one.cuts)) for one in self.trail._chunks
        ]

    @property
    def chunks(self) -> list[SegmentChunk]:
        self.trail.settle()
        return sorted(self.trail.take_changed()[0], key=lambda chunk: chunk.number)

    def bounds(self, **changes: int | bool) -> Bounds:
        whole = {"first": 0, "after": self.position, "source_start": 0, "position": self.position}
        return Bounds(**{**whole, "target_start": 0, "target_end": self.end, **changes})  # type: ignore[arg-type]


def spans_of(plan: Plan, chunks: list[SegmentChunk], size: int | None = None) -> list[Span]:
    gaps = [gap for chunk in chunks for gap in chunk.gaps if gap.reason not in INVISIBLE]
    spans = []
    for one in plan.passes:
        excluded = tuple(sorted([*gaps, *([] if one.is_before_ledger else copied_in_other_passes(one, plan))]))
        pieces = [one] if size is None else split(one, size)
        assert join(pieces) == join([one])
        spans += [
            Span(
                "t",
                0,
                "A.t",
                piece,
                excluded,
                in_detail=size is None,
                whole=(0, one.after),
                cut_off=tuple(merge_gaps(plan.cut_off)),
            )
            for piece in pieces
        ]
    return spans


events = st.lists(
    st.tuples(st.sampled_from(["copy", "copy", "copy", "marker", "foreign", "lose", "rewind"]), st.integers(1, 30)),
    max_size=14,
)


cut_events = st.lists(
    st.tuples(st.sampled_from(["copy", "copy", "copy", "marker", "lose", "cut"]), st.integers(1, 60)), max_size=14
)


def compared(holes: set[int], history: list[tuple[str, int]]) -> tuple[Flow, list[SegmentChunk], Plan, Findings]:
    """A flow with this history, its chunks, and what the comparison of all its records finds."""
    flow = Flow(holes, 100)
    for event, count in history:
        flow.play(event, count)
    chunks = flow.chunks
    plan = plan_passes(chunks, flow.bounds())
    total = Findings()
    for span in spans_of(plan, chunks):
        total.add(compare(span, ListFeed(flow.source), ListFeed(flow.target)))
    return flow, chunks, plan, total


@given(st.sets(st.integers(0, 99), max_size=20), events, st.integers(4, 40))
@settings(max_examples=200)
def test_any_history_is_equal_except_for_foreign_records(
    holes: set[int], history: list[tuple[str, int]], size: int
) -> None:
    flow, chunks, plan, total = compared(holes, history)
    assert total.counts == ({DifferenceKind.EXTRA: flow.foreign} if flow.foreign and plan.passes else {})
    assert total.records == len(flow.target) - flow.foreign if plan.passes else not flow.target or flow.foreign
    if not flow.foreign:
        pieces = [compare(span, ListFeed(flow.source), ListFeed(flow.target)) for span in spans_of(plan, chunks, size)]
        assert all(piece.is_equal for piece in pieces), "the result is the same in pieces"
        assert sum(piece.records for piece in pieces) == len(flow.target)


@given(st.sets(st.integers(0, 99), max_size=20), cut_events)
@settings(max_examples=200)
def test_records_of_a_source_log_that_was_cut_off_are_no_difference(
    holes: set[int], history: list[tuple[str, int]]
) -> None:
    """In any pass, also if all or nothing of the log that follows was copied."""
    flow, _, _, total = compared(holes, history)
    current = {(one.key, one.value) for _, one in flow.source}
    assert total.counts == {}
    assert total.records == sum((one.key, one.value) in current for _, one in flow.target)


@given(st.sets(st.integers(0, 99), max_size=20), events, st.data())
def test_an_altered_record_is_found_in_any_pass(
    holes: set[int], history: list[tuple[str, int]], data: st.DataObject
) -> None:
    flow = Flow(holes, 100)
    for event, count in [("copy", 20), *history]:
        if event != "foreign":
            flow.play(event, count)
    if not flow.target:
        return
    place = data.draw(st.integers(0, len(flow.target) - 1))
    offset, one = flow.target[place]
    flow.target[place] = (offset, Record(one.key, b"altered", one.headers, one.timestamp))
    chunks = flow.chunks
    total = Findings()
    for span in spans_of(plan_passes(chunks, flow.bounds()), chunks):
        total.add(compare(span, ListFeed(flow.source), ListFeed(flow.target)))
    (difference,) = total.differences
    assert (difference.kind, difference.target, difference.records) == (DifferenceKind.ALTERED_VALUE, offset, 1)
    assert record(difference.source or 0).key == one.key


def test_only_the_requested_range_is_read() -> None:
    chunks = [SegmentChunk(0, [Segment(0, 0, 100), Segment(110, 101, 90)], [Gap(100, 110, "compacted")])]
    bounds = Bounds(30, 60, 0, 200, 0, 191, whole=False)
    assert plan_passes(chunks, bounds).passes == [Pass(30, 60, 30, 60, Route((Segment(30, 30, 30),)))]
    wider = plan_passes(chunks, Bounds(50, 105, 0, 200, 0, 191, whole=False)).passes
    assert [(one.first, one.after, one.target_first, one.target_after) for one in wider] == [(50, 110, 50, 101)]


def test_records_deleted_on_either_side_are_explained() -> None:
    chunks = [SegmentChunk(0, [Segment(0, 0, 100)])]
    plan = plan_passes(chunks, Bounds(0, 100, 30, 100, 50, 100))
    (one,) = plan.passes
    assert (one.first, one.target_first) == (50, 50)
    assert plan.explained == {Explained.SOURCE_DELETED: 30, Explained.TARGET_DELETED: 20}
    deleted = plan_passes(chunks, Bounds(0, 100, 100, 100, 0, 100))
    assert (deleted.passes, deleted.explained) == ([], {Explained.SOURCE_DELETED: 100})


def test_records_before_the_first_segment_are_a_pass_of_their_own() -> None:
    """Java's MirrorMaker copied 250 records and committed its position after 200 of them; this flow continued there."""
    chunks = [SegmentChunk(0, [Segment(200, 250, 20)])]
    before, since = plan_passes(chunks, Bounds(0, 220, 0, 220, 0, 270)).passes
    assert before == Pass(0, 220, 0, 250, Route(), joint=200)
    assert since == Pass(200, 220, 250, 270, Route((Segment(200, 250, 20),)))
    assert not since.is_before_ledger
    late = plan_passes(chunks, Bounds(0, 220, 0, 220, 250, 270)).passes
    assert late[0] == Pass(0, 200, 250, 250, Route(), joint=200), "the target has no records from before"
    assert plan_passes(chunks, Bounds(0, 220, 210, 220, 0, 270)).passes[0].first == 210, "its end was deleted"


def test_a_range_before_the_first_segment_is_compared() -> None:
    """It was skipped, and reported as equal."""
    chunks = [SegmentChunk(0, [Segment(200, 200, 20)])]
    bounds = Bounds(10, 100, 0, 220, 0, 220, whole=False)
    assert plan_passes(chunks, bounds).passes == [Pass(0, 220, 0, 200, Route(), joint=200)]


def test_records_truncated_on_the_source_are_explained() -> None:
    chunks = [SegmentChunk(0, [Segment(0, 0, 100), Segment(80, 100, 20)], [], [Cut(1, 80)])]
    plan = plan_passes(chunks, Bounds(0, 100, 0, 100, 0, 120))
    assert plan.explained == {Explained.SOURCE_TRUNCATED: 20}
    assert [one.route.segments for one in plan.passes] == [(Segment(0, 0, 80), Segment(80, 100, 20))]


def test_an_incremental_comparison_includes_foreign_records_after_the_previous_one() -> None:
    chunks = [SegmentChunk(0, [Segment(0, 0, 100), Segment(100, 103, 50)])]
    (one,) = plan_passes(chunks, Bounds(100, 150, 0, 150, 0, 153, whole=True, target_first=100)).passes
    assert (one.first, one.target_first, one.target_after) == (100, 100, 153)


def test_foreign_records_are_included_if_nothing_was_copied() -> None:
    """Otherwise the next round would start after them."""
    (one,) = plan_passes([], Bounds(0, 0, 0, 0, 0, 2)).passes
    assert (one.first, one.after, one.target_first, one.target_after) == (0, 0, 0, 2)


@given(st.sets(st.integers(0, 99), max_size=20), events, st.sets(st.integers(0, 14)), st.data())
@settings(max_examples=200)
def test_rounds_compare_each_target_record_once_for_any_resets(
    holes: set[int], history: list[tuple[str, int]], rounds: set[int], data: st.DataObject
) -> None:
    flow = Flow(holes, 100)
    altered = data.draw(st.none() | st.integers(0, 200))
    total, checked, compared = Findings(), 0, -1
    for step, (event, count) in enumerate([("copy", 1), *history, ("copy", 1)]):
        flow.play(event, count)
        if altered is not None and altered < len(flow.target) and flow.target[altered][1].value != b"altered":
            offset, one = flow.target[altered]
            if offset < compared or one.key == b"foreign":
                altered = None  # only a complete verification detects it
            else:
                flow.target[altered] = (offset, Record(one.key, b"altered", one.headers, one.timestamp))
        if step in rounds or step > len(history):
            chunks = flow.all_chunks()
            plan = plan_passes(chunks, flow.bounds(first=checked, target_first=compared))
            for span in spans_of(plan, chunks):
                total.add(compare(span, ListFeed(flow.source), ListFeed(flow.target)))
            checked, compared = flow.position, flow.end
    expected = {
        DifferenceKind.EXTRA: flow.foreign,
        DifferenceKind.ALTERED_VALUE: int(altered is not None and altered < len(flow.target)),
    }
    assert total.counts == {kind: count for kind, count in expected.items() if count}
    assert total.records == len(flow.target) - sum(expected.values())


def test_records_copied_again_after_a_reset_are_compared() -> None:
    chunks = [SegmentChunk(0, [Segment(0, 0, 100), Segment(30, 100, 20)])]
    plan = plan_passes(chunks, Bounds(100, 50, 0, 50, 0, 120, target_first=100))
    assert plan.passes == [Pass(30, 50, 100, 120, Route((Segment(30, 100, 20),)))]
    assert copied_in_other_passes(plan.passes[0], plan) == [Gap(0, 100, "copied in another pass")]
    further = plan_passes(chunks, Bounds(40, 50, 0, 50, 0, 120, target_first=110)).passes
    assert further == [Pass(40, 50, 110, 120, Route((Segment(40, 110, 10),)))]
    assert plan_passes(chunks[:1], Bounds(100, 30, 0, 30, 0, 120, target_first=120)).passes == [], "nothing yet"


def test_gaps_and_foreign_records_are_compared_if_nothing_was_copied_since() -> None:
    chunks = [SegmentChunk(0, [Segment(0, 0, 100)], [Gap(100, 103, "control")])]
    plan = plan_passes(chunks, Bounds(100, 103, 0, 103, 0, 100, target_first=100))
    assert plan.passes == [Pass(100, 103, 100, 100, Route())]
    foreign = plan_passes(chunks, Bounds(103, 103, 0, 103, 0, 105, target_first=100))
    assert foreign.passes == [Pass(103, 103, 100, 105, Route())]


def test_without_segments_there_is_one_pass() -> None:
    assert plan_passes([], Bounds(0, 50, 0, 50, 0, 40)).passes == [Pass(0, 50, 0, 40, Route())]
    assert plan_passes([], Bounds(0, 0, 0, 0, 0, 0)).passes == []


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(1, 60)), min_size=1, max_size=10),
    st.integers(2, 50),
)
def test_passes_are_split_at_known_offsets(steps: list[tuple[int, int, int]], size: int) -> None:
    segments, source, target = [], 0, 0
    for hole, foreign, count in steps:
        segments.append(Segment(source + hole, target + foreign, count))
        source, target = segments[-1].source_end, segments[-1].target_end
    one = Pass(0, source, 0, target, Route(tuple(segments)))
    pieces = split(one, size)
    assert join(pieces) == join([one])
    for before, after in pairwise(pieces):
        assert (before.after, before.target_after) == (after.first, after.target_first)
        assert one.route.target_of(after.first) == after.target_first
