"""Skipping records that a predecessor has copied: counted where the source is complete, compared by content where it is not."""

from __future__ import annotations

import struct
import zlib
from collections import deque
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm2.copy.progress.segments import Gap, Segment
from mm2.copy.progress.session import Mark
from mm2.copy.progress.target_progress import FoundBatch, fingerprint
from mm2.kafka.records.batch import TRANSACTIONAL
from mm2.kafka.records.record import Record, decode_batch, encode_batch
from tests.unit.copy.batches import Bench, batch, holed, marker, of_epoch, record, spoiled, view_of


def answered(bench: Bench, there: Iterable[int]) -> None:
    """The copier has looked: these source offsets' records are what is on the target behind the mark."""
    bench.cursor.fingerprints = deque(fingerprint(record(offset)) for offset in there)
    bench.cursor.predecessor.forget_offsets()
    bench.cursor.suspended = False


# -- counting -------------------------------------------------------------------------------------------------------------


def test_whole_batches_are_read_past() -> None:
    bench = Bench(100, target=200, records=50, skip=6, skip_base=200)
    bench.fetch(batch(100, 3), batch(103, 3), batch(106, 2))
    assert bench.offsets() == [106, 107]
    assert (bench.cursor.window.mark, bench.cursor.predecessor.remaining) == (Mark(106, 206, 56), 0)
    bench.ack(206)
    assert (bench.cursor.window.mark, bench.cursor.window.copied, bench.cursor.window.foreign) == (
        Mark(108, 208, 58),
        2,
        0,
    )
    assert bench.owner.acks == [(100, 102, 200, 3), (103, 105, 203, 3), (106, 107, 206, 2)]
    assert bench.cursor.window.trail.newest.segments == [Segment(100, 200, 8)]


def test_the_rest_of_a_partly_written_batch_is_sent() -> None:
    bench = Bench(100, target=200, records=50, skip=4, skip_base=200)
    bench.fetch(batch(100, 3), batch(103, 3))
    assert bench.offsets() == [104, 105]
    assert bench.cursor.window.mark == Mark(104, 204, 54)
    bench.ack(204)
    assert bench.outgoing_batches[0].at == 54, "its sequence is its count"
    assert bench.cursor.window.mark == Mark(106, 206, 56)


def test_a_batch_begun_before_the_mark_counts_from_there() -> None:
    bench = Bench(102, target=200, skip=2, skip_base=200)
    bench.fetch(batch(100, 5))
    assert (bench.offsets(), bench.cursor.window.mark) == ([104], Mark(104, 202, 2))


def test_records_that_are_never_copied_are_not_counted() -> None:
    bench = Bench(0, read_committed=True, target=0, skip=3, skip_base=0)
    bench.fetch_each(
        batch(0, 2),
        marker(2, 1),
        batch(3, 2, attributes=TRANSACTIONAL, producer=(5, 0, 0)),
        aborted=((5, 3),),
    )
    assert (bench.cursor.window.mark, bench.gaps) == (Mark(5, 2, 2), {"control": 1, "aborted": 2})
    bench.fetch(marker(5, 0), batch(6, 2))
    assert bench.cursor.window.mark == Mark(7, 3, 3)
    assert (bench.offsets(), bench.gaps) == ([7], {"control": 2, "aborted": 2})


def test_the_target_offset_may_be_unknown() -> None:
    bench = Bench(0, target=10, skip=2)
    bench.fetch(batch(0, 3))
    assert (bench.cursor.window.mark, bench.owner.acks) == (Mark(2, -1, 2), [(0, 1, -1, 2)])
    assert bench.cursor.window.trail.newest.segments == []
    bench.ack(40)
    assert (bench.cursor.window.mark, bench.cursor.window.foreign) == (Mark(3, 41, 3), 0)


def test_skipped_records_have_the_target_offsets_of_their_batches() -> None:
    """Batches of other sources may be between them; without their offsets a group would read all of them again."""
    bench = Bench(0, target=10)
    there = [FoundBatch(0, 10, 2), FoundBatch(2, 12, 1), FoundBatch(3, 20, 2), FoundBatch(6, 30, 1)]
    bench.cursor.begin(Mark(0, 10, 0), skip=7, found=there)
    bench.fetch(batch(0, 4), batch(4, 4))
    assert bench.owner.acks == [(0, 2, 10, 3), (3, 3, 20, 1), (4, 4, 21, 1), (5, 5, -1, 1), (6, 6, 30, 1)]
    assert bench.cursor.window.trail.newest.segments == [Segment(0, 10, 3), Segment(3, 20, 2), Segment(6, 30, 1)]
    assert (bench.cursor.window.mark, bench.offsets()) == (Mark(7, 31, 7), [7])


@pytest.mark.parametrize("by_content", [False, True])
def test_after_the_last_skipped_record_the_target_offset_is_that_of_the_look_up(by_content: bool) -> None:
    """Otherwise a successor would have to read the target from the start of the session."""
    bench = Bench(0, target=10, skip=2, skip_end=15)
    bench.fetch(batch(0, 1))
    assert bench.cursor.window.mark == Mark(1, -1, 1)
    if by_content:
        bench.cursor.compare()
        answered(bench, [1])
    bench.fetch(batch(1, 2))
    assert bench.cursor.window.mark == Mark(2, 15, 2)
    bench.ack(15)
    assert (bench.cursor.window.mark, bench.cursor.window.foreign) == (Mark(3, 16, 3), 0)
    bench.cursor.window.target = -1
    bench.cursor.move(0)
    assert bench.cursor.window.target == -1, "the look-up does not apply any more"


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["batch", "control", "aborted"]), st.integers(1, 6)), min_size=1, max_size=10),
    st.data(),
)
def test_the_successor_continues_where_the_predecessor_stopped(
    plan: list[tuple[str, int]], data: st.DataObject
) -> None:
    log: list[bytearray] = []
    kept: list[int] = []
    end = 0
    for kind, size in plan:
        if kind == "batch":
            log.append(batch(end, size))
            kept += range(end, end + size)
            end += size
        else:
            if kind == "aborted":
                log.append(batch(end, size, attributes=TRANSACTIONAL, producer=(5, 0, 0)))
                end += size
            log.append(marker(end, 0))
            end += 1
    marked = data.draw(st.integers(0, len(kept)))
    there = data.draw(st.integers(marked, len(kept)))
    source = kept[marked] if marked < len(kept) else end
    bench = Bench(source, read_committed=True, target=marked, records=marked, skip=there - marked, skip_base=marked)
    for one in log:
        header = view_of(one).header
        assert header is not None
        aborted = ((5, header.base_offset),) if header.is_transactional and not header.is_control else ()
        bench.fetch(one, aborted=aborted)
    assert bench.offsets() == kept[there:]
    bench.ack(there)
    assert bench.cursor.window.mark == Mark(
        end, len(kept) if source < end or marked else bench.cursor.window.target, len(kept)
    )
    assert (bench.cursor.window.foreign, bench.cursor.predecessor.remaining) == (0, 0)
    assert [outgoing.at for outgoing in bench.outgoing_batches] == sorted(
        outgoing.at for outgoing in bench.outgoing_batches
    )
    assert not bench.outgoing_batches or bench.outgoing_batches[0].at == there


# -- where counting leads nowhere -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("skip", "fetched"),
    [
        (3, [batch(2, 2)]),  # a hole before a batch
        (3, [holed(0, 4, [0, 2, 4])]),  # holes within one
        (9, [holed(0, 4, [])]),  # nothing left of one
    ],
)
def test_a_hole_makes_the_owner_check_the_target(skip: int, fetched: list[bytearray]) -> None:
    bench = Bench(0, target=0, skip=skip)
    bench.fetch(*fetched, batch(50, 1))
    assert bench.owner.calls == [("uncertain", 0, skip)]
    assert (bench.cursor.suspended, bench.outgoing_batches, bench.gaps) == (True, [], {})
    assert bench.cursor.window.mark == Mark(0, 0, 0)


def test_a_hole_after_the_counted_records_is_ignored() -> None:
    bench = Bench(0, target=0, skip=2, skip_base=0)
    bench.fetch(batch(0, 2), batch(4, 1))
    assert (bench.owner.calls, bench.offsets(), bench.gaps) == ([], [4], {"compacted": 2})


def test_a_legacy_batch_is_searched_on_the_target() -> None:
    bench = Bench(0, target=0, skip=1)
    message = struct.pack(">bbqii", 1, 0, 5, -1, 1) + b"x"  # magic 1, no key, one byte
    bench.fetch(struct.pack(">qiI", 0, len(message) + 4, zlib.crc32(message)) + message)
    assert bench.owner.calls == [("uncertain", 0, 1)]


def test_deleted_records_are_compared_with_the_target_before_they_count_as_lost() -> None:
    bench = Bench(0, target=0, skip=5)
    bench.cursor.jump(4, "retention")
    assert (bench.owner.calls, bench.cursor.offset, bench.gaps) == ([("uncertain", 0, 5)], 0, {})


def test_a_corrupt_batch_cannot_be_counted() -> None:
    # A predecessor may have read it whole: the records behind it would be taken for its own.
    bench = Bench(0, target=0, skip=2)
    bench.owner.takes_corrupt = True
    for _ in range(2):
        bench.fetch(spoiled(batch(0, 2)), batch(2, 2))
    assert bench.owner.calls == [("uncertain", 0, 2)]
    answered(bench, [0, 1])
    bench.fetch(spoiled(batch(0, 2)), batch(2, 2))
    assert bench.owner.calls[-1] == ("corrupt", 0)
    bench.cursor.finish_quarantine(bench.cursor.window.entries[0])
    bench.cursor.suspended = False
    bench.fetch(batch(2, 2))
    bench.ack(2)
    assert (bench.offsets(), bench.cursor.window.mark) == ([2, 3], Mark(4, 4, 4))


# -- batches that an election may have replaced ---------------------------------------------------------------------------


def test_no_batch_of_a_newer_leader_is_counted() -> None:
    """KIP-101: an unclean election may have replaced what the predecessor copied."""
    bench = Bench(0, target=0, skip=5, skip_base=0, known_epoch=3)
    bench.fetch(of_epoch(batch(0, 2), 3), of_epoch(batch(2, 9), 4))
    assert bench.owner.calls == [("uncertain", 2, 3)]
    assert (bench.cursor.window.mark, bench.cursor.known_epoch, bench.outgoing_batches) == (Mark(2, 2, 2), 3, [])


def test_records_replaced_by_an_election_are_reported_and_the_new_ones_are_copied() -> None:
    bench = Bench(0, target=0, skip=5, skip_base=0, known_epoch=3)
    new = of_epoch(batch(2, 9), 4)
    bench.fetch(of_epoch(batch(0, 2), 3), new)
    answered(bench, [102, 103, 104])  # others
    bench.fetch(new)
    assert bench.owner.calls[1:] == [("replaced", 2, 3, True)]
    assert bench.offsets() == list(range(2, 11))
    bench.ack(5)
    assert (bench.cursor.window.mark, bench.outgoing_batches[0].at) == (Mark(11, 14, 14), 5)
    bench.fetch(of_epoch(batch(11, 1), 4))
    assert bench.cursor.known_epoch == 4


def test_a_clean_election_causes_only_a_comparison() -> None:
    bench = Bench(0, target=0, skip=5, skip_base=0, known_epoch=3)
    new = of_epoch(batch(2, 4), 4)
    bench.fetch(of_epoch(batch(0, 2), 3), new)
    answered(bench, [2, 3, 4])
    bench.fetch(new)
    assert (bench.owner.calls[1:], bench.offsets(), bench.cursor.window.records) == ([], [5], 5)


def test_while_records_are_compared_the_epoch_that_may_be_counted_stays() -> None:
    """A successor after another crash has to compare, too."""
    bench = Bench(0, target=0, skip=5, known_epoch=3)
    new = of_epoch(batch(0, 2), 4)
    bench.fetch(new)
    answered(bench, range(5))
    bench.fetch(new)
    assert (bench.cursor.window.mark, bench.cursor.known_epoch, bench.cursor.leader_epoch) == (Mark(2, -1, 2), 3, 4)


def test_when_replaced_records_stop_the_partition_no_later_record_is_copied() -> None:
    bench = Bench(0, target=0, skip=5, known_epoch=3)
    bench.owner.stops = True
    new = of_epoch(batch(0, 9), 4)
    bench.fetch(new)
    answered(bench, range(100, 105))
    bench.fetch(new, of_epoch(batch(9, 1), 4))
    assert (bench.outgoing_batches, bench.cursor.window.mark, bench.cursor.predecessor.remaining) == (
        [],
        Mark(0, 0, 0),
        5,
    )


def test_with_holes_which_offsets_the_replaced_records_had_is_not_known() -> None:
    bench = Bench(0, target=0, skip=5, known_epoch=3)
    new = of_epoch(batch(2, 9), 4)
    bench.fetch(new)
    answered(bench, range(100, 105))
    bench.fetch(new)
    assert bench.owner.calls[1:] == [("replaced", 2, 5, False)]


def test_a_truncation_after_the_mark_is_compared_and_not_applied() -> None:
    bench = Bench(10, target=0, skip=5, known_epoch=3)
    bench.cursor.diverged(2, 12)
    assert (bench.owner.calls, bench.cursor.suspended) == ([("uncertain", 10, 5)], True)
    assert (bench.cursor.leader_epoch, bench.cursor.known_epoch) == (2, -1)
    bench.cursor.suspended = False
    bench.cursor.diverged(1, 7)
    assert bench.owner.calls[1:] == [("diverged", 1, 7)]


def test_timestamps_that_the_target_does_not_keep_are_not_compared() -> None:
    bench = Bench(0, target=0, skip=2)
    bench.fetch(batch(1, 2))
    bench.cursor.fingerprints = deque(fingerprint(record(o)._replace(timestamp=77), with_time=False) for o in (0, 1))
    bench.cursor.predecessor.with_time, bench.cursor.suspended = False, False
    bench.fetch(batch(1, 2))
    assert bench.offsets() == [2]


# -- looking for it -------------------------------------------------------------------------------------------------------


def test_the_first_record_that_is_not_found_is_new() -> None:
    bench = Bench(0, target=0, skip=4)
    bench.fetch(holed(0, 5, [1, 3, 4, 5]))
    answered(bench, [0, 1, 2, 3])
    bench.fetch(holed(0, 5, [1, 3, 4, 5]))
    assert (bench.offsets(), bench.cursor.window.records, bench.cursor.predecessor.remaining) == ([4, 5], 4, 0)
    bench.ack(4)
    assert (bench.cursor.window.mark, bench.cursor.window.foreign) == (Mark(6, 6, 6), 0)
    assert bench.outgoing_batches[0].at == 4
    assert bench.cursor.fingerprints is None


def test_only_surviving_records_are_skipped() -> None:
    bench = Bench(10, target=0, records=100, skip=5)
    bench.fetch(batch(12, 1))
    answered(bench, range(10, 15))
    bench.fetch(batch(12, 1), batch(14, 1))
    assert (bench.outgoing_batches, bench.cursor.window.mark) == ([], Mark(15, -1, 105))
    bench.fetch(batch(15, 1))
    bench.ack(5)
    assert (bench.offsets(), bench.cursor.window.mark) == ([15], Mark(16, 6, 106))


def test_a_new_record_is_copied_when_all_others_are_deleted() -> None:
    bench = Bench(10, target=3, records=100, skip=5)
    bench.fetch(batch(30, 2))
    answered(bench, range(10, 15))
    bench.fetch(batch(30, 2))
    assert (bench.offsets(), bench.cursor.window.records, bench.cursor.window.target) == ([30, 31], 105, -1)
    bench.ack(8)
    assert bench.cursor.window.mark == Mark(32, 10, 107)
    assert bench.cursor.window.foreign == 0, "records of the predecessor are not foreign"


def test_the_rest_of_a_batch_after_the_last_one_found_is_copied() -> None:
    bench = Bench(0, target=0, skip=2)
    bench.fetch(holed(0, 6, [1, 3, 5]))
    answered(bench, [1, 3])
    bench.fetch(holed(0, 6, [1, 3, 5]))
    assert (bench.offsets(), bench.cursor.window.position) == ([5], 4)
    bench.ack(2)
    assert bench.cursor.window.mark == Mark(7, 3, 3)
    assert bench.cursor.window.trail.newest.gaps == [Gap(4, 5, "compacted"), Gap(6, 7, "compacted")]


def test_a_position_never_passes_records_that_may_exist() -> None:
    """Else a successor would take the next new records for what the predecessor copied."""
    bench = Bench(0, target=0, skip=4)
    bench.fetch(batch(5, 1))
    answered(bench, range(4))
    bench.fetch(holed(0, 9, []))
    assert bench.cursor.window.mark == Mark(0, 0, 0)
    bench.cursor.jump(20, "retention")
    assert bench.cursor.window.mark == Mark(0, 0, 0)
    bench.fetch(marker(20, 1))
    assert (bench.cursor.window.mark, bench.cursor.offset) == (Mark(0, 0, 0), 21)
    assert not bench.cursor.full, "nothing is held for them"
    bench.fetch(batch(21, 1))
    assert bench.cursor.window.mark == Mark(21, -1, 4)
    bench.ack(4)
    assert bench.cursor.window.mark == Mark(22, 5, 5)
    assert bench.gaps == {"compacted": 10, "retention": 10, "control": 1}


def test_a_reassigned_partition_keeps_the_count_of_skipped_records() -> None:
    for looking in (False, True):
        bench = Bench(50, target=7, records=20, skip=4)
        calls: list[int] = []
        if looking:
            bench.fetch(batch(60, 1))
            answered(bench, range(50, 54))
            bench.fetch(holed(50, 59, []))
        bench.cursor.when_idle(lambda calls=calls: calls.append(1))  # type: ignore[misc]
        bench.cursor.move(0)
        assert (calls, bench.cursor.window.mark, bench.cursor.offset) == ([1], Mark(0, -1, 24), 0)
        bench.fetch(batch(0, 2))
        assert bench.offsets() == [0, 1], "another topic's first records are not taken for the old one's"


def test_equal_records_are_matched_one_by_one() -> None:
    same = [Record(b"k", b"v", (), 5)] * 3
    data = encode_batch(same, base_offset=4)
    bench = Bench(0, target=0, skip=2)
    bench.fetch(data)
    bench.cursor.fingerprints = deque(fingerprint(row) for row in decode_batch(view_of(data)))
    bench.cursor.fingerprints.pop()
    bench.cursor.suspended = False
    bench.fetch(data)
    assert [outgoing.count for outgoing in bench.outgoing_batches] == [1]
    assert bench.cursor.window.records == 2


@settings(deadline=None)
@given(st.sets(st.integers(0, 29)), st.integers(0, 30), st.integers(0, 30), st.integers(1, 7))
def test_after_any_compaction_every_remaining_record_is_on_the_target_once(
    gone: set[int], marked: int, there: int, size: int
) -> None:
    """The predecessor copied ``there`` of 30 records, the ledger knows of ``marked``; then the source is compacted."""
    marked, there = min(marked, there), max(marked, there)
    bench = Bench(marked, target=marked, records=marked, skip=there - marked, skip_base=marked)
    log = [
        holed(first, min(first + size, 30) - 1, [o for o in range(first, min(first + size, 30)) if o not in gone])
        for first in range(0, 30, size)
    ]
    for _ in range(2):
        for one in log:
            bench.fetch(one)
            mark = bench.cursor.window.mark
            assert mark.records == min(mark.source, there), "a successor would count wrong"
        if bench.cursor.suspended:
            answered(bench, range(there - bench.cursor.predecessor.remaining, there))
    left = [offset for offset in range(there, 30) if offset not in gone]
    assert bench.offsets() == left
    if left:
        assert bench.outbox.next == there
        bench.ack(there)
        assert bench.cursor.window.mark == Mark(30, there + len(left), there + len(left))
        assert (bench.cursor.window.foreign, bench.cursor.predecessor.remaining) == (0, 0)
