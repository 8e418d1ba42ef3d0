"""Records that are changed or dropped on their way: sequences, offsets, gaps, skipping, time slices."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm2.copy import changes
from mm2.copy.changes import Attempts, ChangeDelayed, ChangeFailed, Changer, DroppedRange, Passing, dropped_in
from mm2.copy.progress.segments import Gap, Segment
from mm2.copy.progress.session import Mark
from mm2.copy.progress.target_progress import fingerprint
from mm2.copy.spec import PartitionSpec
from mm2.copy.states import PartitionState
from mm2.copy.tally import PASSTHROUGH
from mm2.kafka.records.batch import LOG_APPEND_TIME, TRANSACTIONAL
from mm2.kafka.records.record import Record, decode_batch
from mm2.kafka.structs import TopicPartition
from tests.unit.copy.batches import Bench, batch, holed, view_of

PASSING = Passing("skipped")


@pytest.fixture(scope="module", autouse=True)
def unlimited_slices() -> Iterator[None]:
    """On a busy machine a slice may end after any record."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changes, "SLICE_S", float("inf"))
        yield


class Rule:
    """Upper-cases values, and drops what the test says."""

    def __init__(self, outcome: Callable[[int], str | Exception | None]) -> None:
        self._outcome = outcome
        self.change: Callable[[Record], Record] = changed
        self.seen: list[int] = []
        self.takes_s = 0.0
        self.attempts: dict[TopicPartition, Attempts] = {}

    def apply(self, _part: PartitionSpec, record: Record, *, may_pass: bool = True) -> Record | str:
        self.seen.append(record.offset)
        time.sleep(self.takes_s)
        outcome = self._outcome(record.offset)
        if isinstance(outcome, Passing) and not may_pass:
            raise ChangeDelayed("busy", 0.0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome or self.change(record)

    def close(self) -> None:
        return


def changed(record: Record) -> Record:
    return record._replace(value=(record.value or b"").upper())


def bench_with(outcome: Callable[[int], str | Exception | None], offset: int = 0, **begin: Any) -> tuple[Bench, Rule]:
    bench, rule = Bench(offset, **begin), Rule(outcome)
    bench.cursor.changes = Changer(rule, lambda call: call())
    return bench, rule


def drop_every_third(offset: int) -> str | None:
    return "filtered" if offset % 3 == 0 else None


def test_survivors_are_sent_and_the_others_counted_by_reason() -> None:
    bench, _ = bench_with({2: "filtered", 3: "filtered", 5: "skipped"}.get)
    bench.fetch(batch(0, 7, codec="lz4"))
    (outgoing,) = bench.outgoing_batches
    assert outgoing.header.codec == 3
    assert [record.value for record in decode_batch(view_of(outgoing.data))] == [b"V"] * 4
    bench.ack(70)
    assert bench.cursor.window.mark == Mark(7, 74, 4)
    assert bench.gaps == {"filtered": 2, "skipped": 1}
    chunk = bench.cursor.window.trail.newest
    assert chunk.segments == [Segment(0, 70, 2), Segment(4, 72, 1), Segment(6, 73, 1)]
    assert chunk.gaps == [Gap(2, 4, "filtered"), Gap(5, 6, "skipped")]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_batch_whose_records_are_unchanged_is_passed_on(codec: str) -> None:
    """It is neither encoded nor compressed again: at another level its bytes would differ."""
    bench, rule = bench_with({5: "filtered"}.get)
    rule.change = lambda record: record._replace(value=bytes(bytearray(record.value or b"")))  # equal, not identical
    data = batch(0, 4, codec=codec, level=19)
    bench.fetch(data, batch(4, 3, codec=codec))
    first, second = bench.outgoing_batches
    assert bytes(first.data[61:]) == bytes(data[61:])
    assert bench.offsets() == [0, 1, 2, 3, 4, 6]
    assert bench.tally.paths == {PASSTHROUGH: 1, "transformed": 1}
    bench.ack(10)
    assert (bench.cursor.window.mark, second.header.codec) == (Mark(7, 16, 6), first.header.codec)


@pytest.mark.parametrize(
    ("data", "start"),
    [
        (batch(0, 3, attributes=LOG_APPEND_TIME), 0),
        (holed(0, 4, [0, 1, 4]), 0),
        (batch(0, 3), 1),
    ],
    ids=["LogAppendTime", "holes", "begun before"],
)
def test_unchanged_records_of_other_batches_are_encoded(data: bytearray, start: int) -> None:
    bench, rule = bench_with(lambda _: None, start)
    rule.change = lambda record: record
    bench.fetch(data)
    (outgoing,) = bench.outgoing_batches
    assert outgoing.header.is_plain
    assert outgoing.header.base_offset == 0
    assert bench.tally.paths == {"transformed": 1}
    assert bench.offsets() == [record.offset for record in decode_batch(view_of(data)) if record.offset >= start]


def test_unchanged_records_that_a_predecessor_has_copied_are_not_sent() -> None:
    bench, rule = bench_with(lambda _: None, 0, target=20, skip=2, skip_base=20)
    rule.change = lambda record: record
    bench.fetch(batch(0, 4))
    assert bench.offsets() == [2, 3]


def test_a_batch_of_a_transaction_is_passed_on_without_it() -> None:
    bench, rule = bench_with(lambda _: None)
    rule.change = lambda record: record
    bench.fetch(batch(0, 2, attributes=TRANSACTIONAL, producer=(7, 0, 0)))
    bench.outbox.stamp(bench.outgoing_batches[0])
    header = view_of(bench.outgoing_batches[0].data).header
    assert header is not None
    assert not header.is_transactional


def test_a_batch_without_survivors_moves_the_position() -> None:
    bench, _ = bench_with(lambda _: "filtered")
    bench.fetch(batch(0, 3))
    assert (bench.outgoing_batches, bench.cursor.window.mark, bench.gaps) == ([], Mark(3, -1, 0), {"filtered": 3})


def test_holes_of_the_source_keep_their_reason() -> None:
    bench, _ = bench_with({4: "filtered", 6: "filtered"}.get)
    bench.fetch(holed(0, 9, [1, 4, 5, 6]))
    bench.ack(10)
    assert bench.gaps == {"compacted": 6, "filtered": 2}
    assert bench.cursor.window.mark == Mark(10, 12, 2)


def test_tiny_batches_are_changed_too_and_not_merged() -> None:
    bench, rule = bench_with(drop_every_third)
    bench.fetch(*(batch(offset, 1) for offset in range(40)))
    assert rule.seen == list(range(40))
    assert bench.offsets() == [offset for offset in range(40) if offset % 3]


def test_a_batch_with_append_time_gets_its_timestamps() -> None:
    bench, _ = bench_with(lambda _: None)
    data = batch(0, 3, attributes=LOG_APPEND_TIME)
    bench.fetch(data)
    (outgoing,) = bench.outgoing_batches
    assert not outgoing.header.is_log_append_time
    assert {record.timestamp for record in decode_batch(view_of(outgoing.data))} == {1002}


def test_a_failure_stops_the_partition_after_the_records_before_it() -> None:
    bench, _ = bench_with({3: ChangeFailed("t-0: no such field")}.get)
    bench.fetch(batch(0, 6))
    assert bench.offsets() == [0, 1, 2]
    condition = bench.cursor.conditions.stop
    assert condition is not None
    assert (condition.state, condition.reason, condition.offset) == (PartitionState.FAILED, "t-0: no such field", 3)
    bench.ack(5)
    assert bench.cursor.window.mark == Mark(3, 8, 3)


def test_a_delayed_record_is_read_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: dict[int, str | Exception] = {3: ChangeDelayed("busy", 60.0)}
    bench, rule = bench_with(outcomes.get)
    bench.fetch(batch(0, 6), batch(6, 2))
    assert (bench.offsets(), bench.cursor.offset, bench.cursor.full) == ([0, 1, 2], 3, True)
    bench.ack(0)
    assert bench.cursor.current_state()[:2] == (PartitionState.UNREACHABLE, "busy")
    outcomes.clear()
    later = time.monotonic() + 61
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert not bench.cursor.full
    bench.fetch(batch(0, 6), batch(6, 2))
    assert rule.seen == [0, 1, 2, 3, 3, 4, 5, 6, 7]
    bench.ack(3)
    assert bench.cursor.window.mark == Mark(8, 8, 8)


# -- errors that may pass ----------------------------------------------------------------------------------------------


def test_a_record_that_was_skipped_for_an_error_that_may_pass_ends_the_session() -> None:
    """A successor may be able to change it. It would count it, and leave out the last record that was copied."""
    bench, rule = bench_with({2: PASSING, 3: PASSING, 4: "filtered"}.get)
    bench.outbox.looked_up = True
    bench.fetch(batch(0, 7), batch(7, 2))
    assert (bench.offsets(), bench.cursor.offset, bench.cursor.suspended) == ([0, 1], 5, True)
    assert bench.owner.calls == [], "not before all that it has sent is acknowledged"
    bench.ack(70)
    assert bench.owner.calls == [("replace session", 5)]
    assert bench.cursor.window.mark == Mark(5, 72, 2)
    assert bench.gaps == {"skipped": 2, "filtered": 1}
    bench.cursor.begin(Mark(5, 72, 0))
    bench.fetch(batch(0, 7), batch(7, 2))
    assert (bench.offsets(), bench.cursor.offset) == ([0, 1, 5, 6, 7, 8], 9)
    assert rule.seen == [*range(6), *range(5, 9)]


def test_the_last_record_of_a_batch_ends_the_session_too() -> None:
    bench, _ = bench_with({2: PASSING}.get)
    bench.outbox.looked_up = True
    bench.fetch(batch(0, 3), batch(3, 3))
    bench.ack(0)
    assert (bench.offsets(), bench.owner.calls) == ([0, 1], [("replace session", 3)])


def test_without_a_session_nothing_waits_for_a_skipped_record() -> None:
    bench, _ = bench_with({2: PASSING}.get)
    bench.fetch(batch(0, 4), batch(4, 3))
    assert (bench.offsets(), bench.owner.calls) == ([0, 1, 3, 4, 5, 6], [])


@pytest.mark.parametrize("by_content", [False, True])
def test_a_record_that_a_predecessor_could_change_is_not_skipped(by_content: bool) -> None:
    """It would count the record after it as copied, which would be lost."""
    outcomes: dict[int, str] = {1: PASSING}
    bench, _ = bench_with(outcomes.get, target=10, skip=3, skip_base=10)
    bench.outbox.looked_up = True
    if by_content:
        there = [fingerprint(changed(record)) for record in decode_batch(view_of(batch(0, 3)))]
        bench.cursor.fingerprints = deque(there)
    for _ in range(2):
        bench.fetch(batch(0, 5))
        assert (bench.cursor.offset, bench.cursor.predecessor.remaining) == (1, 2)
        assert bench.cursor.current_state()[:2] == (PartitionState.UNREACHABLE, "busy")
    outcomes.clear()
    bench.fetch(batch(0, 5))
    assert (bench.offsets(), bench.cursor.predecessor.remaining) == ([3, 4], 0)


def test_a_record_after_those_of_a_predecessor_may_be_skipped() -> None:
    bench, _ = bench_with({2: PASSING}.get, target=10, skip=2, skip_base=10)
    bench.outbox.looked_up = True
    bench.fetch(batch(0, 5))
    assert (bench.cursor.offset, bench.cursor.predecessor.remaining, bench.owner.calls) == (2, 0, [])
    bench.fetch(batch(0, 5))
    assert bench.owner.calls == [("replace session", 3)]


def test_changing_records_stops_after_a_while_and_continues_at_the_same_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "SLICE_S", 0.0)
    bench, rule = bench_with(drop_every_third)
    rule.takes_s = 0.002
    while bench.cursor.offset < 8:
        before = bench.cursor.offset
        bench.fetch(batch(0, 5), batch(5, 3))
        assert bench.cursor.offset == before + 1, "at least one record each time"
    assert rule.seen == list(range(8))
    assert bench.offsets() == [1, 2, 4, 5, 7]


def test_calls_of_one_turn_of_the_loop_share_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "SLICE_S", 0.0)
    ended: list[Callable[[], None]] = []
    changer = Changer(Rule(lambda _: None), ended.append)
    spec = PartitionSpec("t", 0, "A.t")
    for _ in range(2):
        changer.change(spec, view_of(batch(0, 2)), 0, 2)
    assert len(ended) == 1
    ended[0]()
    changer.change(spec, view_of(batch(0, 2)), 0, 2)
    assert len(ended) == 2


# -- records that a predecessor has copied --------------------------------------------------------------------------------


def test_survivors_are_counted() -> None:
    """Offsets 0, 3, 6 … are dropped; five survivors after the mark are on the target."""
    bench, _ = bench_with(drop_every_third, 0, target=20, records=10, skip=5, skip_base=20)
    bench.fetch(batch(0, 4), batch(4, 4), batch(8, 4))
    assert bench.offsets() == [8, 10, 11]
    assert bench.cursor.window.mark == Mark(8, 25, 15)
    bench.ack(25)
    assert bench.outgoing_batches[0].at == 15, "its sequence is its count"
    assert bench.cursor.window.mark == Mark(12, 28, 18)
    assert bench.gaps == {"filtered": 4}


def test_a_session_ends_right_after_its_last_record() -> None:
    """What was dropped after it is evaluated under the new rules."""
    bench, _ = bench_with(drop_every_third, 0, target=20, skip=2, skip_base=20)
    bench.cursor.predecessor.finishing = True
    bench.fetch(batch(0, 4))
    assert bench.owner.calls == [("finished", 3)]
    assert (bench.cursor.window.mark, bench.cursor.suspended, bench.gaps) == (Mark(3, 22, 2), True, {"filtered": 1})


def test_changed_records_are_compared_by_content() -> None:
    bench, _ = bench_with(drop_every_third, 0, target=20, skip=3, skip_base=20)
    bench.fetch(holed(0, 6, [0, 1, 2, 3, 5, 6]))
    assert bench.cursor.suspended, "a hole: counting is not possible"
    there = [Record(b"k%03d" % offset, b"V", (), 1000 + offset, offset) for offset in (1, 2, 5)]
    bench.cursor.fingerprints = deque(fingerprint(record) for record in there)
    bench.cursor.predecessor.forget_offsets()
    bench.cursor.suspended = False
    bench.fetch(holed(0, 6, [0, 1, 2, 3, 5, 6]), batch(7, 2))
    assert bench.offsets() == [7, 8]
    assert bench.gaps["filtered"] == 3


@settings(deadline=None, max_examples=60)
@given(st.sets(st.integers(0, 29)), st.lists(st.integers(1, 6), min_size=1, max_size=10), st.data())
def test_a_successor_sends_exactly_the_rest(dropped: set[int], sizes: list[int], data: st.DataObject) -> None:
    """Whatever was dropped, and however much a predecessor has copied: each survivor once, at its sequence."""
    batches, first = [], 0
    for size in sizes:
        batches.append(batch(first, size))
        first += size
    survivors = [offset for offset in range(first) if offset not in dropped]
    there = data.draw(st.integers(0, len(survivors)))
    bench, _ = bench_with(lambda offset: "filtered" if offset in dropped else None, target=0, skip=there, skip_base=0)
    bench.fetch_each(*batches)
    assert bench.offsets() == survivors[there:]
    bench.ack(there)
    window = bench.cursor.window
    assert window.mark == Mark(first, len(survivors), len(survivors)) or not survivors
    assert window.position == first
    assert bench.gaps.get("filtered", 0) == first - len(survivors)
    mapped = [
        (segment.source + index, segment.target + index)
        for segment in window.trail.newest.segments
        for index in range(segment.records)
    ]
    assert mapped == [(offset, index) for index, offset in enumerate(survivors)]


# -- what becomes of outgoing batches ---------------------------------------------------------------------------------------


def test_a_split_batch_keeps_its_gaps() -> None:
    bench, _ = bench_with(drop_every_third)
    bench.fetch(batch(0, 10))
    whole = bench.outbox.queue.popleft()
    assert whole.split is not None
    bench.outbox.queue.extend(whole.split() or ())
    bench.ack(0)
    assert (bench.cursor.window.mark, bench.gaps) == (Mark(10, 6, 6), {"filtered": 4})


def test_a_quarantined_record_keeps_the_gaps_around_it() -> None:
    bench, _ = bench_with(lambda offset: None if offset == 2 else "filtered")
    bench.fetch(batch(0, 5))
    (entry,) = bench.cursor.window.entries
    bench.cursor.quarantine(entry, "quarantined")
    assert bench.cursor.window.position == 5
    assert bench.gaps == {"filtered": 4, "quarantined": 1}


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), max_size=6), st.integers(0, 30), st.integers(0, 30))
def test_every_offset_of_a_range_has_one_reason(steps: list[tuple[int, int]], one: int, other: int) -> None:
    ranges, at = [], 0
    for gap, length in steps:
        ranges.append(DroppedRange(at + gap, at + gap + length, "filtered"))
        at += gap + length
    first, after = min(one, other), max(one, other)
    reasons = {offset: "filtered" for each in ranges for offset in range(each.first, each.after)}
    found = [
        (offset, why) for start, end, why in dropped_in(ranges, first, after, "hole") for offset in range(start, end)
    ]
    assert found == [(offset, reasons.get(offset, "hole")) for offset in range(first, after)]
