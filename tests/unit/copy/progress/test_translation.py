"""Translation by segments against a model that knows the offset of each record."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mm2.copy.progress.ledger import Ledger, chunk_record, chunk_tombstone, entry_record
from mm2.copy.progress.segments import CHUNK_SIZE, Cut, Gap, Segment, SegmentChunk, Trail
from mm2.copy.progress.session import LedgerEntry, Mark, Session
from mm2.copy.progress.translation import TranslatedOffset, Translation, end_of_run
from mm2.kafka.structs import ProducerIdentity, TopicPartition

TP = TopicPartition("t", 0)


def exactly(offset: int) -> TranslatedOffset:
    return TranslatedOffset(offset, is_exact=True, at_most=offset)


def test_offsets_within_a_segment_are_translated_in_both_directions() -> None:
    known = Translation([SegmentChunk(0, [Segment(100, 57, 1_000_000)])], Mark(1_000_100, 1_000_057, 0))
    for offset in (100, 101, 500_000, 1_000_099):
        assert known.to_target(offset) == exactly(offset - 43)
        assert known.to_source(offset - 43) == exactly(offset)
    assert known.to_target(1_000_100) == TranslatedOffset(1_000_057, is_exact=True, at_most=None)
    assert known.to_target(99) is None
    assert known.to_source(56) is None


def test_a_group_ahead_of_the_copy_continues_at_its_end() -> None:
    known = Translation([SegmentChunk(0, [Segment(0, 0, 10)])], Mark(10, 10, 10))
    assert known.to_target(15) == TranslatedOffset(10, is_exact=False, at_most=None)


def test_a_group_in_a_hole_reads_nothing_again() -> None:
    chunk = SegmentChunk(0, [Segment(0, 0, 10), Segment(20, 11, 10)], [Gap(10, 19, "aborted"), Gap(19, 20, "control")])
    known = Translation([chunk], Mark(30, 21, 0))
    assert known.to_target(10) == TranslatedOffset(10, is_exact=True, at_most=11)
    assert known.to_target(20) == exactly(11)
    assert known.to_target(15) == TranslatedOffset(10, is_exact=True, at_most=11)


@pytest.mark.parametrize(
    ("mark", "to_target", "to_source"),
    [
        (Mark(0, 0, 0), {0: exactly(0), 3: None}, {0: exactly(0)}),
        (
            Mark(21, 25, 0),
            {20: None, 21: exactly(25), 30: None},
            {24: None, 25: exactly(21), 30: TranslatedOffset(21, False, None)},
        ),
        (Mark(50, 0, 0), {20: exactly(0), 50: exactly(0)}, {0: exactly(50)}),
        (Mark(0, 50, 0), {0: exactly(50)}, {20: exactly(0), 50: exactly(0), 60: TranslatedOffset(0, False, None)}),
        (Mark(21, -1, 0), {21: None}, {0: None}),
        (Mark(-1, -1, 0), {0: None}, {0: None}),
    ],
    ids=["empty", "only another program has copied", "empty target", "others have written", "no target offset", "new"],
)
def test_without_a_known_record_the_mark_translates(
    mark: Mark, to_target: dict[int, TranslatedOffset | None], to_source: dict[int, TranslatedOffset | None]
) -> None:
    """Groups had no offset on the way back, although both logs ended at the same record."""
    known = Translation([], mark, mark.source)
    assert {offset: known.to_target(offset) for offset in to_target} == to_target
    assert {offset: known.to_source(offset) for offset in to_source} == to_source


@pytest.mark.parametrize("end", [-1, 30])
def test_without_a_known_record_a_group_is_not_led_past_what_a_killed_program_has_copied(end: int) -> None:
    """Records 21 to 24 are on the target before the mark: their position was never stored, so they are copied again, if the source lives."""
    known = Translation([], Mark(21, 25, 0), end)
    assert [known.to_target(offset) for offset in (20, 21, 22)] == [None, None, None]
    assert known.to_source(25) == exactly(21), "reading them again skips nothing"
    assert Translation([], Mark(21, 0, 0), end).to_target(21) == exactly(0), "the target was empty"


def test_an_empty_target_starts_before_its_first_record() -> None:
    known = Translation([SegmentChunk(0, [Segment(50, 0, 10)])], Mark(60, 10, 10))
    assert known.to_target(20) == exactly(0)


def test_while_a_rewound_copy_is_under_way_older_copies_count() -> None:
    first, second = Segment(0, 0, 100), Segment(0, 100, 60)
    known = Translation([SegmentChunk(0, [first, second])], Mark(60, 160, 60))
    assert known.to_target(50) == exactly(50), "60 to 99 are nowhere else yet"
    done = Translation([SegmentChunk(0, [first, Segment(0, 100, 100)])], Mark(100, 200, 100))
    assert done.to_target(50) == exactly(150)


def test_records_that_the_source_no_longer_has_do_not_count() -> None:
    chunk = SegmentChunk(0, [Segment(0, 0, 100), Segment(40, 100, 10)], cuts=[Cut(1, 40)])
    known = Translation([chunk], Mark(50, 110, 0))
    assert known.to_target(45) == exactly(105)
    assert known.to_target(39) == exactly(39)
    assert known.to_source(70).offset == 40, "70 is gone; what came for it begins at 40"  # type: ignore[union-attr]


def test_records_lost_by_the_target_do_not_count() -> None:
    known = Translation([SegmentChunk(0, [Segment(0, 0, 100), Segment(80, 80, 5)])], Mark(85, 85, 85))
    assert known.to_target(82) == exactly(82)
    assert known.to_target(95) == TranslatedOffset(85, is_exact=False, at_most=None)


def test_cuts_survive_the_ledger() -> None:
    chunk = SegmentChunk(3, [Segment(5, 6, 7)], [Gap(1, 2, "control")], [Cut(0, 4), Cut(1, 9)])
    assert SegmentChunk.from_json(chunk.to_json()) == chunk


def test_no_segment_extends_over_a_cut() -> None:
    trail = Trail()
    trail.copied(0, 0, 10)
    trail.cut(10)
    trail.copied(10, 10, 5)
    assert trail.newest.segments == [Segment(0, 0, 10), Segment(10, 10, 5)]


def test_a_segment_does_not_extend_over_records_of_another_producer() -> None:
    # Ours up to 100; then Java copied 100..299, of which half were compacted, to 100..199; now ours again.
    ledger = Ledger()
    for row in (
        chunk_record(TP, SegmentChunk(0, [Segment(0, 0, 100)])),
        entry_record(_entry(Mark(300, 200, 0), Mark(300, 200, 0))),
    ):
        ledger.apply(row.key, row.value)
    assert ledger.chunks(TP)[0].segments == [Segment(0, 0, 100)]
    straight = entry_record(_entry(Mark(200, 200, 0), Mark(200, 200, 0)))  # as many, but who knows which
    ledger.apply(straight.key, straight.value)
    assert ledger.chunks(TP)[0].segments == [Segment(0, 0, 100)]


@pytest.mark.parametrize("transactions", [600])
def test_each_record_of_many_transactions_has_its_offset(transactions: int) -> None:
    model = Model()
    for _ in range(transactions):
        model.write(3)
        model.leave("control")
        model.copy(4)
        model.commit()
    known = model.known()
    for source in range(0, 4 * transactions, 97):
        assert known.to_target(source) is not None
        assert known.to_target(source).is_exact  # type: ignore[union-attr]
    assert len(model.ledger.chunks(TP)) == -(-2 * transactions // CHUNK_SIZE)


def _entry(mark: Mark, start: Mark, chunk: int = 0) -> LedgerEntry:
    return LedgerEntry("t", 0, "A.t", mark, session=Session(ProducerIdentity(1, 0), start), chunk=chunk)


class Model:
    """Both logs record by record (a record is its number, what is no record a reason), and a copier with its ledger."""

    def __init__(self) -> None:
        self.source: list[int | str] = []
        self.target: list[int | None] = []  # None: a marker, negative: of another producer
        self.written = 0
        self.ledger = Ledger()
        self.trail = Trail()
        self.position = self.reached = 0
        self.start = Mark(0, 0, 0)
        self.passes = 1
        self.commit()

    # -- the world

    def write(self, count: int) -> None:
        for _ in range(count):
            self.source.append(self.written)
            self.written += 1

    def leave(self, reason: str) -> None:
        self.source.append(reason)

    def foreign(self, count: int) -> None:
        self.target.extend([-1] * count)

    # -- the copier

    def copy(self, count: int, *, marker: bool = False, trail: bool = True) -> None:
        for offset in range(self.position, min(self.position + count, len(self.source))):
            found = self.source[offset]
            if isinstance(found, str):
                if trail:
                    self.trail.missing(offset, offset + 1, found)
            else:
                if trail:
                    self.trail.copied(offset, len(self.target), 1)
                self.target.append(found)
            self.position = offset + 1
            self.reached = max(self.reached, self.position)
        if marker:
            self.target.append(None)

    @property
    def mark(self) -> Mark:
        return Mark(self.position, len(self.target), 0)

    def commit(self, mark: Mark | None = None) -> None:
        self.committed = mark or self.mark
        chunks, forgotten = self.trail.take_changed()
        rows = [chunk_record(TP, chunk) for chunk in chunks]
        rows += [chunk_tombstone(TP, number) for number in forgotten]
        rows.append(entry_record(_entry(self.committed, self.start, self.trail.newest.number)))
        for row in rows:
            self.ledger.apply(row.key, row.value)

    def crash(self, *, is_located: bool) -> None:
        """A successor skips the records on the target; it knows their number, but not their offsets."""
        self.trail = Trail(self.ledger.newest_chunk(TP))
        at = self.committed.target
        records = [place for place in range(at, len(self.target)) if (self.target[place] or 0) >= 0]
        is_located = is_located and len(records) == len(self.target) - at and None not in self.target[at:]
        for offset in range(self.committed.source, self.position):
            found = self.source[offset]
            if isinstance(found, str):
                self.trail.missing(offset, offset + 1, found)
            elif is_located:
                self.trail.copied(offset, at, 1)
                at += 1
        self.commit()

    def others_copy(self, count: int) -> None:
        """Java takes over for a while, and then it is ours again: a new session."""
        self.copy(count, trail=False)
        self.reset(self.position)

    def reset(self, position: int) -> None:
        self.passes += position < self.position
        self.trail = Trail(self.ledger.newest_chunk(TP))
        self.trail.settle()
        self.position = position
        self.start = self.mark
        self.commit()

    def cut_source(self, offset: int) -> None:
        """An unclean election, or a new topic of the same name.

        Below what was copied before the copying was sent back, and not below where it is, it is not detected: the ledger
        has no leader epochs of earlier passes.
        """
        offset = min(offset, len(self.source))
        if self.position <= offset < self.reached:
            return
        del self.source[offset:]
        self.reached = min(self.reached, offset)
        if offset < self.position:
            self.position = offset
            self.trail.cut(offset)
            self.commit()

    def cut_target(self, end: int) -> None:
        """Acknowledged records are lost; the copier goes back to where that was."""
        source = self.trail.last_source(end) if end < len(self.target) else None
        if source is not None and source < self.position and not (source >= 0 and isinstance(self.source[source], str)):
            del self.target[end:]
            self.trail.target_cut(end)
            self.position = source + 1
            self.commit()

    # -- what is to hold

    def known(self) -> Translation:
        return Translation(self.ledger.chunks(TP), self.committed)

    def check(self) -> None:
        known = self.known()
        places: dict[int, list[int]] = {}
        for place, record in enumerate(self.target):
            if record is not None and record >= 0:
                places.setdefault(record, []).append(place)
        of = {record: offset for offset, record in enumerate(self.source) if isinstance(record, int)}
        for offset in range(len(self.source) + 2):
            found = known.to_target(offset)
            if found is None:
                continue
            assert 0 <= found.offset <= len(self.target)
            for record, where in places.items():
                # What lies behind our position will be copied again, to the end.
                if record in of and offset <= of[record] < self.position:
                    assert where[-1] >= found.offset, f"{of[record]} is skipped by a group at {offset}"
                if record in of and of[record] < offset and found.is_exact and self.passes == 1:
                    assert where[-1] < found.offset, f"{of[record]} is read again by a group at {offset}"
        for place in range(len(self.target) + 1):
            back = known.to_source(place)
            if back is None:
                continue
            for record, where in places.items():
                if record in of and where[0] >= place:
                    assert back.offset <= of[record], f"{of[record]} is skipped by a group at {place} that comes home"
                if record in of and where[-1] < place and back.is_exact and self.passes == 1:
                    assert back.offset > of[record], f"{of[record]} is read again by a group at {place}"


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "write",
                "write",
                "leave",
                "copy",
                "copy",
                "marker",
                "commit",
                "commit",
                "foreign",
                "located",
                "unlocated",
                "java",
                "reset",
                "election",
                "loss",
            ]
        ),
        st.integers(0, 12),
    ),
    max_size=25,
)


@settings(max_examples=200)
@given(STEPS)
@example([("write", 12), ("marker", 9), ("loss", 2), ("reset", 1), ("java", 12)])
@example(
    [
        ("write", 5),
        ("copy", 7),
        ("reset", 10),
        ("election", 9),
        ("reset", 3),
        ("write", 6),
        ("copy", 1),
        ("unlocated", 4),
    ]
)
@example([("write", 1), ("copy", 1), ("election", 1), ("write", 9), ("java", 2), ("election", 8)])
@example([("write", 10), ("election", 9), ("leave", 0), ("copy", 2), ("election", 1), ("write", 1), ("java", 1)])
@example([("write", 3), ("marker", 1), ("copy", 1), ("marker", 1), ("loss", 4), ("marker", 1), ("unlocated", 0)])
@example(
    [
        ("foreign", 1),
        ("write", 7),
        ("leave", 0),
        ("marker", 4),
        ("commit", 0),
        ("copy", 8),
        ("leave", 0),
        ("unlocated", 8),
    ]
)
def test_with_known_offsets_no_record_is_skipped_or_read_again(steps: list[tuple[str, int]]) -> None:
    model = Model()
    foreign = False
    for step, number in steps:
        if step == "write":
            model.write(number)
        elif step == "leave":
            model.leave("aborted")
        elif step in {"copy", "marker"}:
            model.copy(number, marker=step == "marker")
        elif step == "commit":
            model.commit()
        elif step == "foreign":
            model.foreign(number)
            foreign = foreign or number > 0
        elif step in {"located", "unlocated"}:
            model.crash(is_located=step == "located")
        elif step == "java":
            model.commit()
            model.others_copy(number)
        elif step == "reset":
            model.commit()
            model.reset(max(0, model.position - number))
        elif step == "election":
            model.commit()
            model.cut_source(max(0, len(model.source) - number))
        elif not foreign:
            model.commit()
            model.cut_target(len(model.target) - number)
        model.check()


@pytest.mark.parametrize(
    ("offset", "end"), [(0, 0), (5, 20), (12, 20), (20, 20), (30, 40), (39, 40), (40, 40), (50, 50)]
)
def test_a_run_ends_at_the_first_offset_that_is_in_no_range(offset: int, end: int) -> None:
    assert end_of_run([(30, 40), (5, 10), (10, 20)], offset) == end
