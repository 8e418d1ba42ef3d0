"""The cursor of a partition: batches in, outgoing batches, acknowledgements in any order, positions over contiguous acknowledgements."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm2.copy.changes import TimeSlice
from mm2.copy.executor.partition.cursor import QUEUE_LIMIT_BYTES
from mm2.copy.executor.partition.fetched_batches import MISSING
from mm2.copy.executor.partition.outbox import OutboxState, OutgoingBatch
from mm2.copy.executor.partition.split_and_merge import content_error
from mm2.copy.executor.partition.window import SourceRange
from mm2.copy.executor.reports import progress_of
from mm2.copy.progress.segments import Gap, Segment
from mm2.copy.progress.session import LOST_KEPT, Mark
from mm2.copy.states import BEHIND_OFFSETS, PartitionState
from mm2.kafka.errors import BrokerFailure, DisconnectedFailure
from mm2.kafka.records.batch import CRC_FROM, HEADER_BYTES, LOG_APPEND_TIME, TRANSACTIONAL, read_header
from mm2.kafka.records.record import Record, decode_batch, encode_batch
from tests.support import bombs
from tests.unit.copy.batches import Bench, batch, checked, flipped, holed, marker, of_epoch, spoiled, view_of


def segments(bench: Bench) -> list[Segment]:
    return bench.cursor.window.trail.newest.segments


def gaps(bench: Bench) -> list[Gap]:
    return bench.cursor.window.trail.newest.gaps


# -- batches in, outgoing batches out ----------------------------------------------------------------------------------------------


def test_a_dense_batch_is_sent_byte_for_byte() -> None:
    bench, data = Bench(), batch(0, 3, codec="lz4")
    bench.fetch(data)
    cursor = bench.cursor
    assert bytes(bench.outgoing_batches[0].data) == bytes(data)
    assert (cursor.offset, cursor.window.position, bench.tally.paths) == (3, 0, {"passthrough": 1})
    bench.outgoing_batches[0].acked(70)
    assert cursor.window.mark == Mark(3, 73, 3)
    assert (cursor.window.copied, cursor.window.bytes, cursor.window.waiting_bytes) == (3, len(data), 0)
    assert bench.owner.acks == [(0, 2, 70, 3)]
    assert cursor.idle


def test_positions_advance_only_over_contiguous_acks() -> None:
    bench = Bench()
    bench.fetch_each(batch(0, 2), batch(2, 2), batch(4, 2))
    bench.outgoing_batches[2].acked(14)
    bench.outgoing_batches[1].acked(12)
    assert (bench.cursor.window.position, bench.owner.acks) == (0, [])
    bench.outgoing_batches[0].acked(10)
    assert bench.cursor.window.mark == Mark(6, 16, 6)
    assert [ack[0] for ack in bench.owner.acks] == [0, 2, 4]


@settings(deadline=None)
@given(st.permutations(range(8)))
def test_acks_in_any_order_are_reported_in_source_order(order: list[int]) -> None:
    bench = Bench()
    bench.fetch_each(*(batch(i * 3, 3) for i in range(8)))
    done: set[int] = set()
    for index in order:
        bench.outgoing_batches[index].acked(100 + index * 3)
        done.add(index)
        prefix = next(i for i in range(9) if i not in done)
        assert (bench.cursor.window.position, bench.cursor.window.records) == (prefix * 3, prefix * 3)
    assert [ack[2] for ack in bench.owner.acks] == [100 + i * 3 for i in range(8)]
    assert segments(bench) == [Segment(0, 100, 24)]


def test_a_batch_that_starts_before_the_offset_is_cut_there() -> None:
    bench = Bench(12)
    bench.fetch(batch(0, 10), batch(10, 5))
    assert bench.keys() == [[b"k012", b"k013", b"k014"]]
    assert (bench.cursor.offset, bench.gaps, bench.tally.paths) == (15, {}, {"begun": 1})
    bench.outgoing_batches[0].acked(0)
    assert bench.owner.acks == [(12, 14, 0, 3)]


def test_log_append_time_is_reencoded() -> None:
    bench, data = Bench(), batch(0, 2, attributes=LOG_APPEND_TIME)
    bench.fetch(data)
    assert not read_header(bench.outgoing_batches[0].data).is_log_append_time
    assert {r.timestamp for r in decode_batch(view_of(bench.outgoing_batches[0].data))} == {1001}


def test_consecutive_small_batches_are_merged_and_others_are_sent_unchanged() -> None:
    bench, many = Bench(), 2
    bench.fetch(*(batch(offset, 1) for offset in range(many)), holed(many, many + 2, [many + 1]), batch(many + 3, 1))
    assert bench.offsets() == [*range(many), many + 1, many + 3]
    assert [outgoing.count for outgoing in bench.outgoing_batches] == [many, 1, 1]
    bench.ack(10)
    assert bench.cursor.window.mark == Mark(many + 4, 10 + many + 2, many + 2)
    assert segments(bench)[0] == Segment(0, 10, many)
    assert gaps(bench) == [Gap(many, many + 1, "compacted"), Gap(many + 2, many + 3, "compacted")]
    assert bench.tally.paths["merged"] == many


# -- holes ----------------------------------------------------------------------------------------------------------------


def test_holes_between_and_within_batches_are_counted_as_compacted() -> None:
    bench = Bench()
    bench.fetch(batch(5, 2), holed(7, 12, [8, 11]))
    assert read_header(bench.outgoing_batches[1].data).is_dense
    bench.ack(50)
    assert bench.cursor.window.mark == Mark(13, 54, 4)
    assert bench.gaps == {"compacted": 5 + 4}
    assert segments(bench) == [Segment(5, 50, 2), Segment(8, 52, 1), Segment(11, 53, 1)]
    assert gaps(bench) == [
        Gap(0, 5, "compacted"),
        Gap(7, 8, "compacted"),
        Gap(9, 11, "compacted"),
        Gap(12, 13, "compacted"),
    ]
    assert bench.owner.acks[1] == (7, 11, 52, 2)


def test_a_batch_that_compaction_emptied_moves_the_position() -> None:
    bench = Bench()
    bench.fetch(holed(0, 4, []))
    assert (bench.outgoing_batches, bench.cursor.window.mark, bench.gaps) == ([], Mark(5, -1, 0), {"compacted": 5})


def test_control_batches_are_dropped_and_counted() -> None:
    bench = Bench()
    bench.fetch(batch(0, 2, attributes=TRANSACTIONAL, producer=(5, 0, 0)), marker(2, 1), batch(3, 1))
    bench.outgoing_batches[1].acked(2)
    assert bench.cursor.window.position == 0
    bench.outgoing_batches[0].acked(0)
    assert (bench.cursor.window.mark, bench.gaps) == (Mark(4, 3, 3), {"control": 1})


@pytest.mark.parametrize("committed", [True, False])
def test_aborted_batches_are_dropped_under_read_committed_only(committed: bool) -> None:
    bench = Bench(read_committed=committed)
    data = batch(0, 2, attributes=TRANSACTIONAL, producer=(5, 0, 0))
    bench.fetch(data, marker(2, 0), batch(3, 1), aborted=((5, 0),) if committed else ())
    assert bench.offsets() == ([3] if committed else [0, 1, 3])
    bench.ack(0)
    assert bench.gaps == ({"aborted": 2, "control": 1} if committed else {"control": 1})


def test_runs_of_an_entry() -> None:
    assert list(SourceRange(3, 8, count=5).runs()) == [(3, 5)]
    assert list(SourceRange(0, 9, count=4, offsets=[2, 3, 5, 8]).runs()) == [(2, 2), (5, 1), (8, 1)]


# -- corrupt batches ------------------------------------------------------------------------------------------------------


def test_a_batch_that_differs_with_each_read_is_read_again() -> None:
    bench = Bench()
    pauses = []
    for bit in range(4):
        bench.fetch(flipped(batch(0, 2), bit), batch(2, 2))
        assert (bench.cursor.stopped, bench.cursor.offset, bench.owner.calls) == (False, 0, [])
        pauses.append(bench.cursor.full)
    assert pauses == [False, False, True, True], "reads that keep failing are paused"
    progress = progress_of(bench.cursor)
    assert progress.state == PartitionState.UNREACHABLE
    assert progress.reason.startswith("t-0: the record batch at offsets 0..1 has CRC-32C")
    bench.fetch(batch(0, 2), batch(2, 2))
    assert (bench.cursor.offset, progress_of(bench.cursor).reason) == (4, "")


@pytest.mark.parametrize("size", [1, 5000], ids=["merged", "passed on"])
def test_no_bit_that_the_checksum_covers_makes_a_batch_disappear(size: int) -> None:
    """A wrong last offset, for example, looks like that of a batch that was read before."""
    batches = [
        encode_batch([Record(b"k%03d" % (first + index), b"v" * size) for index in range(2)], base_offset=first)
        for first in (0, 2, 4)
    ]
    for bit in range(8 * CRC_FROM, 8 * (HEADER_BYTES + 8)):
        bench = Bench()
        damaged = bytearray(batches[1])
        damaged[bit // 8] ^= 1 << bit % 8
        bench.fetch(batches[0], damaged, batches[2])
        assert bench.cursor.offset == 2, f"bit {bit}"
        bench.fetch(batches[1], batches[2])
        assert (bench.offsets(), bench.gaps, bench.cursor.stopped) == ([*range(6)], {}, False), f"bit {bit}"


def test_a_batch_with_a_corrupt_last_offset_is_not_mistaken_for_the_next_one() -> None:
    bench = Bench()
    for bits in (0x80, 0xC0):  # not the same bytes twice
        damaged = batch(0, 2)
        damaged[23] ^= bits
        bench.fetch(damaged, batch(2, 2))
    assert not bench.cursor.stopped


def test_only_the_corrupt_batch_has_to_be_the_same_when_it_is_read_again() -> None:
    bench = Bench()
    bench.fetch(batch(0, 2), flipped(batch(2, 2), 0))
    bench.fetch(flipped(batch(2, 2), 1), batch(4, 2))
    assert not bench.cursor.stopped
    bench.fetch(flipped(batch(2, 2), 1), batch(4, 2), batch(6, 2))
    assert progress_of(bench.cursor).state == PartitionState.CORRUPT


def test_a_corrupt_batch_is_fetched_again_and_then_stops_the_partition_after_valid_records() -> None:
    bench = Bench()
    bench.fetch(batch(0, 2), spoiled(batch(2, 2)), batch(4, 2))
    assert (bench.cursor.stopped, bench.cursor.offset) == (False, 2)
    bench.fetch(spoiled(batch(2, 2)), batch(4, 2))
    progress = progress_of(bench.cursor)
    assert (progress.state, progress.stopped, progress.offset) == (PartitionState.CORRUPT, False, 2), (
        "one is to be sent"
    )
    assert progress.reason.startswith("t-0: the record batch at offsets 2..3 has CRC-32C")
    assert bench.owner.calls == [("corrupt", 2), ("stopped", PartitionState.CORRUPT)]
    bench.outbox.queue.popleft().acked(0)
    assert (len(bench.outgoing_batches), bench.cursor.window.position, progress_of(bench.cursor).stopped) == (
        1,
        2,
        True,
    )


def moved(data: bytearray, base_offset: int) -> bytearray:
    """With another base offset, which the CRC does not cover."""
    struct.pack_into(">q", data, 0, base_offset)
    return data


@pytest.mark.parametrize(
    "wrong",
    [moved(batch(2, 2), 6), moved(batch(2, 2), 0), of_epoch(batch(2, 2), 1 << 20), of_epoch(batch(2, 2), 2)],
    ids=["later", "earlier", "newer leader", "older leader"],
)
def test_a_wrong_bit_in_the_part_of_a_header_without_a_checksum_loses_nothing(wrong: bytearray) -> None:
    bench = Bench()
    bench.cursor.window.hole_reason = MISSING
    batches = [of_epoch(batch(first, 2), 3) for first in (0, 2, 4)]
    bench.take(batches[0])
    bench.take(wrong, batches[2])
    assert (bench.cursor.offset, bench.cursor.leader_epoch) == (2, 3)
    bench.take(*batches[1:])
    assert (bench.offsets(), bench.cursor.offset, bench.cursor.leader_epoch) == ([0, 1, 2, 3, 4, 5], 6, 3)
    bench.ack(0)
    assert bench.gaps == {}


def test_holes_and_leader_changes_are_believed_when_they_are_read_again() -> None:
    bench = Bench()
    bench.cursor.window.hole_reason = MISSING
    bench.take(of_epoch(batch(0, 2), 3))
    later = [of_epoch(batch(first, 2), epoch) for first, epoch in ((4, 3), (8, 4), (12, 4))]
    bench.take(*later)
    assert bench.cursor.offset == 2
    bench.take(*later)
    assert bench.cursor.offset == 14, "all of the response was read twice"
    bench.ack(0)
    assert bench.gaps == {MISSING: 6}


def test_holes_that_differ_with_each_read_are_not_read_for_ever() -> None:
    bench = Bench()
    bench.cursor.window.hole_reason = MISSING
    bench.take(batch(0, 2))
    for first in range(3, 9):
        assert bench.cursor.offset == 2
        bench.take(batch(first, 2))
    assert bench.cursor.offset == 10


def test_a_single_transmission_error_is_tolerated() -> None:
    bench = Bench()
    for first in (0, 2):
        bench.fetch(spoiled(batch(first, 2)))
        bench.fetch(batch(first, 2))
    assert (bench.offsets(), bench.owner.calls) == ([0, 1, 2, 3], [])


def test_batches_after_a_quarantined_one_wait_until_it_is_handled() -> None:
    bench = Bench()
    bench.owner.takes_corrupt = True
    for _ in range(2):
        bench.fetch(spoiled(batch(0, 2)), batch(2, 2))
    assert bench.owner.calls == [("corrupt", 0)]
    assert (bench.cursor.window.mark, bench.gaps, bench.outgoing_batches) == (Mark(0, -1, 0), {}, []), (
        "it is nowhere yet"
    )
    bench.fetch(batch(2, 2))
    assert bench.outgoing_batches == [], "it is held"
    assert bench.cursor.finish_quarantine(bench.cursor.window.entries[0])
    assert (bench.cursor.window.mark, bench.gaps) == (Mark(2, -1, 0), {"quarantined": 2})
    bench.cursor.suspended = False
    bench.fetch(batch(2, 2))
    assert bench.offsets() == [2, 3]


def test_a_quarantined_batch_is_read_again_when_the_target_is_truncated_meanwhile() -> None:
    bench = Bench()
    bench.owner.takes_corrupt = True
    for _ in range(2):
        bench.fetch(spoiled(batch(0, 2)))
    entry = bench.cursor.window.entries[0]
    bench.cursor.begin(Mark(0, -1, 0))
    bench.fetch(spoiled(batch(0, 2)))
    assert bench.cursor.window.entries[0].reason == entry.reason, "it is written again"
    assert not bench.cursor.finish_quarantine(entry)
    assert (bench.cursor.window.mark, bench.gaps) == (Mark(0, -1, 0), {})


def test_an_internal_error_stops_the_partition_and_not_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    monkeypatch.setattr("mm2.copy.executor.partition.outgoing_records.outgoing_batch", lambda *_, **__: 1 // 0)
    bench.fetch(batch(0, 1))
    assert progress_of(bench.cursor).state == PartitionState.FAILED
    assert "ZeroDivisionError" in progress_of(bench.cursor).reason


# -- states ---------------------------------------------------------------------------------------------------------------


def test_a_failed_partition_stays_failed() -> None:
    bench = Bench()
    bench.cursor.fail(PartitionState.RECREATED, "over")
    bench.cursor.fail(PartitionState.CORRUPT, "again")
    bench.cursor.accepted()
    bench.cursor.failed(BrokerFailure.of(6))
    bench.fetch(batch(0, 1))
    progress = progress_of(bench.cursor)
    assert (progress.state, progress.reason, progress.stopped) == (PartitionState.RECREATED, "over", True)
    assert bench.owner.calls.count(("stopped", PartitionState.RECREATED)) == 1


def test_a_reason_on_the_target_replaces_one_on_the_source_and_not_the_other_way_round() -> None:
    bench = Bench()
    bench.fetch(batch(0, 1))
    bench.cursor.fail(PartitionState.CORRUPT, "source", at_source=True)
    bench.cursor.fail(PartitionState.LOST_RANGE, "source as well", at_source=True)
    assert (bench.cursor.conditions.is_stopped_at_source, bench.state, progress_of(bench.cursor).stopped) == (
        True,
        "CORRUPT",
        False,
    )
    for reason in ("target", "target as well"):
        bench.cursor.fail(PartitionState.INCONSISTENT, reason)
    bench.cursor.fail(PartitionState.LOST_RANGE, "source again", at_source=True)
    progress = progress_of(bench.cursor)
    assert (bench.cursor.conditions.is_stopped_at_source, progress.reason, progress.stopped) == (False, "target", True)
    assert bench.owner.calls == [("stopped", PartitionState.CORRUPT), ("stopped", PartitionState.INCONSISTENT)]


def test_a_partition_whose_target_rejects_the_rest_has_stopped() -> None:
    bench = Bench()
    bench.fetch(batch(0, 1))
    bench.cursor.fail(PartitionState.CORRUPT, "source", at_source=True)
    bench.outbox.state = OutboxState.REFUSED
    assert progress_of(bench.cursor).stopped


def test_an_error_of_the_source_is_reported_until_it_responds() -> None:
    bench, failure = Bench(40), BrokerFailure.of(6, subject="reading t-0")
    bench.cursor.failed(failure)
    before = progress_of(bench.cursor)
    assert (before.state, before.reason, before.offset) == (PartitionState.UNREACHABLE, str(failure), 40)
    assert bench.owner.calls == [("unreadable", 6)]
    bench.fetch()
    after = progress_of(bench.cursor)
    assert (after.state, after.reason, after.offset, after.since_ms) == (PartitionState.RUNNING, "", -1, -1)


def test_the_same_condition_keeps_its_time() -> None:
    bench = Bench()
    bench.cursor.set_read_error(PartitionState.UNREACHABLE, "one")
    assert bench.cursor.conditions.read is not None
    bench.cursor.conditions.read = bench.cursor.conditions.read._replace(since_ms=5)
    bench.cursor.set_read_error(PartitionState.UNREACHABLE, "two")
    assert (bench.cursor.conditions.read.since_ms, bench.cursor.conditions.read.reason) == (5, "two")
    bench.cursor.set_read_error(PartitionState.UNAUTHORIZED, "three")
    assert bench.cursor.conditions.read.since_ms > 5


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (29, PartitionState.UNAUTHORIZED),
        (31, PartitionState.UNAUTHORIZED),
        (56, PartitionState.TARGET_FULL),
        (3, PartitionState.DELETED),
        (6, PartitionState.UNREACHABLE),
        (19, PartitionState.UNREACHABLE),
        (87, PartitionState.REFUSED),
    ],
)
def test_an_error_code_becomes_a_state(code: int, state: PartitionState) -> None:
    bench = Bench()
    bench.outbox.last_error = BrokerFailure.of(code, subject="writing to A.t-0")
    assert bench.state == state
    bench.outbox.last_error = None
    assert bench.state == PartitionState.RUNNING


def test_a_disconnected_broker_is_unreachable() -> None:
    bench = Bench()
    bench.outbox.last_error = DisconnectedFailure("gone")
    assert bench.state == PartitionState.UNREACHABLE


def test_the_targets_refusal_is_shown_until_it_accepts() -> None:
    bench = Bench()
    bench.owner.size_limit = 50
    bench.fetch(batch(0, 1))
    bench.outbox.state = OutboxState.REFUSED
    bench.cursor.rejected(BrokerFailure.of(10, subject="writing to A.t-0"))
    assert bench.cursor.stuck
    assert bench.state == PartitionState.TOO_LARGE
    reason = progress_of(bench.cursor).reason
    assert reason.startswith("writing to A.t-0: MESSAGE_TOO_LARGE")
    assert (
        f"The record at source offset 0 takes {len(batch(0, 1)):,} bytes, and topic A.t accepts 50. "
        "Raise max.message.bytes of topic A.t, or set errors.tolerance=all" in reason
    )
    assert bench.owner.calls == [("too large", 0, 1)]
    bench.fetch()
    assert bench.state == PartitionState.TOO_LARGE
    bench.outbox.state = OutboxState.OPEN
    bench.cursor.accepted()
    assert (bench.state, bench.cursor.stuck) == (PartitionState.RUNNING, False)


def test_an_unknown_limit_is_not_part_of_the_reason() -> None:
    bench = Bench()
    bench.fetch(batch(0, 1))
    bench.outbox.state = OutboxState.REFUSED
    bench.cursor.rejected(BrokerFailure.of(10))
    assert "bytes. Raise max.message.bytes of topic A.t" in progress_of(bench.cursor).reason


def test_a_record_larger_than_a_segment_names_the_segments_limit() -> None:
    bench = Bench()
    bench.owner.size_limit = 60
    bench.fetch(batch(0, 1))
    bench.outbox.state = OutboxState.REFUSED
    bench.cursor.rejected(BrokerFailure.of(18))
    assert "accepts 60. Raise segment.bytes of topic A.t" in progress_of(bench.cursor).reason


def test_a_quarantined_record_is_not_an_error() -> None:
    bench = Bench()
    bench.owner.takes_large = True
    bench.fetch(batch(0, 1))
    bench.cursor.rejected(BrokerFailure.of(10))
    assert bench.state == PartitionState.RUNNING


def test_behind_an_open_transaction_for_a_while_is_blocked_by_it() -> None:
    bench = Bench(900, read_committed=True)
    bench.fetch(end=1000, stable=900)
    assert bench.state == PartitionState.RUNNING
    bench.cursor.conditions._blocked_since_s -= 2
    assert bench.state == PartitionState.BLOCKED_BY_OPEN_TXN
    shown = progress_of(bench.cursor)
    assert "began at source offset 900 " in shown.reason
    assert shown.offset == 900
    assert progress_of(bench.cursor).since_ms == shown.since_ms > 0
    bench.fetch(batch(900, 1), end=1000, stable=950)
    assert bench.state == PartitionState.RUNNING


def test_only_a_reader_of_what_is_committed_is_blocked() -> None:
    bench = Bench(900)
    bench.fetch(end=1000, stable=900)
    assert not bench.cursor.conditions._blocked_since_s


def test_a_partition_that_needs_no_committed_records_is_blocked_by_the_isolation_of_the_requests() -> None:
    """Its predecessor's session, which is read past, is under read_uncommitted, or another partition needs read_committed."""
    bench = Bench(900)
    bench.cursor.reads_committed = True
    bench.fetch(end=1000, stable=900)
    assert bench.state == PartitionState.RUNNING
    bench.cursor.conditions._blocked_since_s -= 2
    assert bench.state == PartitionState.BLOCKED_BY_OPEN_TXN
    bench.cursor.reads_committed = False
    assert bench.state == PartitionState.RUNNING


@pytest.mark.parametrize("by", ["limited by copy.throttle.bytes.per.sec", "limited by a quota of cluster A"])
def test_a_limit_or_a_quota_is_reported_while_it_blocks_reading(by: str) -> None:
    bench = Bench(90)
    bench.fetch(end=100)
    bench.cursor.throttled(by)
    assert bench.state == PartitionState.THROTTLED
    shown = progress_of(bench.cursor)
    assert (shown.reason, shown.offset) == (by, 90)
    assert shown.since_ms > 0
    bench.fetch(batch(90, 10), end=100)
    assert bench.state == PartitionState.RUNNING, "there is nothing left to read"
    bench.fetch(end=200)
    bench.cursor.conditions._throttled_until_s -= 5
    assert bench.state == PartitionState.RUNNING
    bench.cursor.throttled(by, 60.0)
    bench.cursor.conditions._throttled_until_s -= 5
    assert bench.state == PartitionState.THROTTLED


def test_far_behind_is_catching_up() -> None:
    bench = Bench(10)
    bench.fetch(end=10 + BEHIND_OFFSETS)
    assert bench.state == PartitionState.RUNNING
    bench.fetch(end=11 + BEHIND_OFFSETS)
    assert bench.state == PartitionState.CATCHING_UP


def test_a_note_is_reported_when_there_is_no_condition() -> None:
    bench = Bench()
    bench.cursor.conditions.note = "at least once"
    assert progress_of(bench.cursor).reason == "at least once"
    bench.cursor.set_read_error(PartitionState.UNREACHABLE, "disconnected")
    assert progress_of(bench.cursor).reason == "disconnected"


def test_the_rate_is_of_the_last_seconds() -> None:
    bench = Bench()
    bench.cursor.rate.measure(100.0, bench.cursor.window.bytes)
    bench.cursor.window.bytes = 50_000
    bench.cursor.rate.measure(100.5, bench.cursor.window.bytes)
    assert bench.cursor.rate.value == 0
    bench.cursor.rate.measure(110.0, bench.cursor.window.bytes)
    assert bench.cursor.rate.value == 5_000
    bench.cursor.rate.measure(111.0, bench.cursor.window.bytes)
    assert bench.cursor.rate.value == 4_500


# -- going elsewhere ------------------------------------------------------------------------------------------------------


def test_lost_records_are_counted_once_skipped() -> None:
    bench = Bench()
    bench.fetch(batch(0, 2))
    bench.cursor.jump(10, "retention")
    bench.fetch(batch(10, 1))
    assert bench.cursor.window.position == 0
    bench.outgoing_batches[0].acked(0)
    assert (bench.gaps, bench.cursor.window.position) == ({"retention": 8}, 10)


def test_a_rewind_waits_for_nothing_without_batches_in_flight() -> None:
    bench = Bench(50)
    bench.cursor.jump(0, "truncated")
    assert (bench.cursor.offset, bench.cursor.window.position, bench.gaps) == (0, 0, {})
    bench.fetch(batch(0, 2))
    bench.cursor.jump(1, "truncated")
    assert (bench.cursor.offset, bench.cursor.window.position) == (1, 0)


def test_begin_discards_batches_in_flight() -> None:
    bench = Bench()
    bench.fetch(batch(0, 2))
    bench.cursor.suspended = True
    bench.cursor.begin(Mark(40, 90, 7))
    assert (bench.cursor.window.mark, bench.cursor.offset) == (Mark(40, 90, 7), 40)
    assert (bench.cursor.idle, bench.cursor.window.waiting_bytes, bench.cursor.suspended) == (True, 0, False)


def test_a_suspended_cursor_accepts_nothing() -> None:
    bench = Bench()
    bench.cursor.suspended = True
    bench.fetch(batch(0, 2))
    assert (bench.outgoing_batches, bench.cursor.offset, bench.cursor.full, bench.cursor.stuck) == ([], 0, True, True)


def test_a_paused_cursor_finishes_its_batches_accepts_no_more_and_reports_the_reason() -> None:
    bench = Bench()
    bench.fetch(batch(0, 2))
    bench.cursor.pause("paused by ann", 5)
    bench.fetch(batch(2, 2))
    assert (len(bench.outgoing_batches), bench.cursor.offset, bench.cursor.full, bench.cursor.stuck) == (
        1,
        2,
        True,
        True,
    )
    bench.outgoing_batches[0].acked(0)
    shown = progress_of(bench.cursor)
    assert (shown.state, shown.reason, shown.position, shown.since_ms, shown.stopped) == (
        "PAUSED",
        "paused by ann",
        2,
        5,
        False,
    )
    bench.cursor.conditions.paused = None
    bench.fetch(batch(2, 2))
    assert (len(bench.outgoing_batches), bench.cursor.offset, progress_of(bench.cursor).state) == (2, 4, "RUNNING")


def test_the_idle_callback_is_called_once() -> None:
    bench, calls = Bench(), []
    bench.cursor.when_idle(lambda: calls.append("at once"))
    bench.fetch_each(batch(0, 1), batch(1, 1))
    bench.cursor.when_idle(lambda: calls.append("later"))
    bench.outgoing_batches[0].acked(0)
    assert calls == ["at once"]
    bench.outgoing_batches[1].acked(1)
    bench.fetch(batch(2, 1))
    bench.outgoing_batches[2].acked(2)
    assert calls == ["at once", "later"]


def test_lost_ranges_are_kept_with_their_time() -> None:
    bench = Bench()
    bench.cursor.add_lost_range(3, 9, "retention")
    ((first, after, reason, at_ms),) = bench.cursor.lost
    assert (first, after, reason) == (3, 9, "retention")
    assert abs(at_ms - time.time() * 1000) < 10_000
    assert progress_of(bench.cursor).lost == 1


def test_lost_ranges_are_counted_permanently_and_the_newest_are_listed() -> None:
    bench = Bench()
    bench.cursor.lost_before = 7
    for first in range(LOST_KEPT + 3):
        bench.cursor.add_lost_range(first, first + 1, "retention")
    kept, before = bench.cursor.kept_losses()
    assert ([lost.first for lost in kept], before) == ([*range(3, LOST_KEPT + 3)], 10)
    assert progress_of(bench.cursor).lost == LOST_KEPT + 10


def test_source_events_are_passed_to_the_owner() -> None:
    bench = Bench()
    bench.cursor.source_recreated("id2")
    bench.cursor.diverged(3, 17)
    assert bench.owner.calls == [("source_recreated", "id2"), ("diverged", 3, 17)]


def test_holes_of_a_topic_that_is_not_compacted_are_called_missing() -> None:
    bench = Bench()
    bench.cursor.window.hole_reason = MISSING
    bench.fetch(batch(2, 1))
    bench.fetch(holed(3, 8, [4, 6]))
    bench.fetch(holed(9, 12, []))
    for base in (0, 1):
        bench.ack(base)
    assert bench.gaps == {"missing": 2 + 4 + 4}


# -- how much may wait ----------------------------------------------------------------------------------------------------


def test_too_many_waiting_bytes_make_a_cursor_full() -> None:
    bench = Bench()
    bench.fetch(encode_batch([Record(None, bytes(QUEUE_LIMIT_BYTES), timestamp=1)]))
    assert bench.cursor.full
    bench.outgoing_batches[0].acked(0)
    assert not bench.cursor.full


def test_a_long_waiting_batch_makes_a_cursor_full() -> None:
    # It keeps the answers alive that it came in.
    bench = Bench()
    seen = [bench.cursor.full]
    bench.fetch(batch(0, 1))
    seen.append(bench.cursor.full)
    bench.cursor.window.entries[0].since -= 2
    seen.append(bench.cursor.full)
    bench.outgoing_batches[0].acked(0)
    bench.fetch(batch(1, 1))
    seen.append(bench.cursor.full)
    bench.outbox.state = OutboxState.REFUSED
    seen.append(bench.cursor.full)
    assert seen == [False, False, True, False, True]


# -- the target's side ----------------------------------------------------------------------------------------------------


def test_records_of_others_on_the_target_are_counted() -> None:
    bench = Bench(target=100)
    bench.fetch_each(batch(0, 2), batch(2, 2))
    bench.ack(103)
    assert (bench.cursor.window.foreign, bench.cursor.window.mark) == (3, Mark(4, 107, 4))
    bench.fetch(batch(4, 1))
    bench.ack(110)
    assert progress_of(bench.cursor).foreign == 6
    assert segments(bench) == [Segment(0, 103, 4), Segment(4, 110, 1)]
    assert bench.owner.gaps == [(100, 103, 0), (107, 110, 0)], "they may be the session's own"


def test_the_position_waits_until_records_of_others_are_known_not_to_be_the_session_s_own() -> None:
    bench = Bench(target=100)
    bench.owner.searches = True
    bench.fetch_each(batch(0, 2), batch(2, 2), batch(4, 1), batch(5, 1))
    outgoing = list(bench.outgoing_batches)
    outgoing[0].acked(103)
    assert (bench.cursor.window.mark, bench.cursor.window.is_searching, bench.cursor.idle) == (
        Mark(0, 100, 0),
        True,
        False,
    )
    bench.cursor.window.gap_searched(103, is_known=False)
    assert (bench.cursor.window.mark, bench.cursor.window.is_searching) == (Mark(0, 100, 0), False), (
        "it is searched again"
    )
    outgoing[1].acked(105)
    outgoing[2].acked(110)
    assert bench.owner.gaps == [(100, 103, 0), (100, 105, 2)]
    bench.cursor.window.gap_searched(105, is_known=True)
    assert (bench.cursor.window.mark, bench.cursor.window.foreign) == (Mark(4, 107, 4), 3), (
        "only the first gap has been searched"
    )
    assert bench.owner.gaps[2:] == [(107, 110, 0)]
    bench.cursor.window.gap_searched(110, is_known=True)
    outgoing[3].acked(111)
    assert (bench.cursor.window.mark, bench.cursor.idle) == (Mark(6, 112, 6), True)


def test_a_search_that_began_before_the_position_was_changed_has_no_effect() -> None:
    bench = Bench(target=100)
    bench.owner.searches = True
    bench.fetch(batch(0, 2))
    bench.ack(103)
    bench.cursor.begin(Mark(0, 100, 0))
    bench.cursor.window.gap_searched(103, is_known=True)
    assert (bench.cursor.window.mark, bench.cursor.window.is_searching) == (Mark(0, 100, 0), False)


def test_markers_of_our_own_transactions_are_not_foreign() -> None:
    bench = Bench(target=100)
    bench.cursor.window.markers = 1
    bench.fetch(batch(0, 2))
    bench.ack(101)
    assert (bench.cursor.window.foreign, bench.cursor.window.markers, bench.owner.calls) == (0, 0, [])


def test_offsets_after_a_predecessor_s_last_record_are_unknown_and_not_foreign() -> None:
    bench = Bench(target=100)
    bench.cursor.window.markers = None
    bench.fetch_each(batch(0, 2), batch(2, 2))
    bench.ack(101)
    assert (progress_of(bench.cursor).foreign, bench.owner.calls) == (0, [])


def test_without_a_known_target_offset_nothing_is_foreign() -> None:
    bench = Bench()
    bench.fetch(batch(0, 2))
    bench.ack(500)
    assert (bench.cursor.window.foreign, bench.cursor.window.target) == (0, 502)


@pytest.mark.parametrize("markers", [0, None])
def test_a_target_offset_that_was_assigned_before_is_reported(markers: int | None) -> None:
    bench = Bench(target=100)
    bench.cursor.window.markers = markers
    bench.fetch(batch(0, 2))
    bench.ack(40)
    assert (bench.owner.calls, bench.cursor.window.mark) == ([("went back", 40)], Mark(2, 42, 2))


def test_after_an_unknown_target_offset_the_next_one_is_known() -> None:
    bench = Bench(target=100)
    bench.fetch_each(batch(0, 2), batch(2, 2))
    bench.outgoing_batches[0].acked(-1)
    assert bench.cursor.window.mark == Mark(2, -1, 2)
    bench.outgoing_batches[1].acked(102)
    assert (bench.cursor.window.mark, bench.cursor.window.foreign) == (Mark(4, 104, 4), 0)
    assert segments(bench) == [Segment(2, 102, 2)]


# -- outgoing batches that are cut -------------------------------------------------------------------------------------------------


def cut(outgoing: OutgoingBatch) -> list[OutgoingBatch]:
    assert outgoing.split is not None
    pieces = outgoing.split()
    assert pieces is not None
    return pieces


def test_the_pieces_of_an_outgoing_batch_move_the_position_one_by_one() -> None:
    bench = Bench()
    bench.fetch_each(batch(0, 5), batch(5, 1))
    size = bench.cursor.window.waiting_bytes
    first, second = cut(bench.outgoing_batches[0])
    assert (first.count, second.count) == (3, 2)
    assert bench.cursor.window.waiting_bytes == size - len(bench.outgoing_batches[0].data) + len(first.data) + len(
        second.data
    )
    bench.outgoing_batches[1].acked(15)
    deeper = cut(first)
    positions = []
    for piece, base in ((deeper[0], 10), (deeper[1], 12), (second, 13)):
        piece.acked(base)
        positions.append(bench.cursor.window.position)
    assert positions == [2, 3, 6]
    assert bench.owner.acks == [(0, 1, 10, 2), (2, 2, 12, 1), (3, 4, 13, 2), (5, 5, 15, 1)]
    assert (bench.cursor.window.mark, bench.cursor.window.waiting_bytes) == (Mark(6, 16, 6), 0)
    assert segments(bench) == [Segment(0, 10, 6)]


def test_pieces_of_a_batch_with_holes_keep_their_offsets() -> None:
    bench = Bench()
    bench.fetch(holed(0, 9, [1, 2, 6, 8]))
    pieces = cut(bench.outgoing_batches[0])
    assert [piece.count for piece in pieces] == [2, 2]
    assert [(entry.first, entry.next_offset) for entry in bench.cursor.window.entries] == [(0, 6), (6, 10)]
    for index, piece in enumerate(pieces):
        piece.acked(20 + 2 * index)
    assert bench.cursor.window.mark == Mark(10, 24, 4)
    assert segments(bench) == [Segment(1, 20, 2), Segment(6, 22, 1), Segment(8, 23, 1)]
    assert gaps(bench) == [
        Gap(0, 1, "compacted"),
        Gap(3, 6, "compacted"),
        Gap(7, 8, "compacted"),
        Gap(9, 10, "compacted"),
    ]


def test_a_piece_that_was_written_before_has_an_unknown_target_offset() -> None:
    bench = Bench()
    bench.fetch(batch(0, 4))
    first, second = cut(bench.outgoing_batches[0])
    first.acked(-1)
    second.acked(12)
    assert bench.cursor.window.mark == Mark(4, 14, 4)
    assert bench.owner.acks == [(0, 1, -1, 2), (2, 3, 12, 2)]
    assert segments(bench) == [Segment(2, 12, 2)]


def test_a_single_record_cannot_be_cut() -> None:
    bench = Bench()
    bench.fetch(batch(0, 1))
    assert bench.outgoing_batches[0].split is not None
    assert bench.outgoing_batches[0].split() is None


def test_a_batch_that_is_wrong_inside_cannot_be_cut() -> None:
    bench, bad = Bench(), batch(0, 4)
    bad[61] ^= 2
    bench.fetch(checked(bad))
    assert bench.outgoing_batches[0].split is not None
    assert bench.outgoing_batches[0].split() is None


def test_without_its_first_records_an_outgoing_batch_holds_the_rest() -> None:
    bench = Bench(target=7)
    bench.fetch(holed(0, 9, [1, 4, 5, 8]))
    whole = bench.outgoing_batches[0]
    bench.outbox.stamp(whole)
    assert whole.without is not None
    rest = whole.without(3, -1)
    assert [record.key for record in decode_batch(view_of(rest.data))] == [b"k008"]
    assert bench.cursor.window.mark == Mark(8, -1, 3), "the offsets of the others are unknown"
    rest.acked(30)
    assert bench.cursor.window.mark == Mark(10, 31, 4)
    assert (segments(bench), bench.cursor.window.copied) == ([Segment(8, 30, 1)], 1)
    assert bench.cursor.window.waiting_bytes == 0


def test_the_records_that_a_look_up_has_found_are_where_it_has_found_them() -> None:
    bench = Bench(target=7)
    bench.fetch(holed(0, 9, [1, 4, 5, 8]))
    whole = bench.outgoing_batches[0]
    bench.outbox.stamp(whole)
    assert whole.without is not None
    rest = whole.without(3, 12)
    assert bench.cursor.window.mark == Mark(8, 15, 3)
    rest.acked(15)
    assert bench.cursor.window.mark == Mark(10, 16, 4)
    assert segments(bench) == [Segment(1, 12, 1), Segment(4, 13, 2), Segment(8, 15, 1)]
    assert (bench.cursor.window.copied, bench.cursor.window.foreign, bench.owner.gaps) == (1, 5, [])


# -- quarantined records -------------------------------------------------------------------------------------------------


def test_a_quarantined_record_leaves_its_sequence_to_the_next_one() -> None:
    bench = Bench()
    bench.fetch_each(batch(0, 1), batch(1, 2))
    large, other = bench.outbox.queue
    bench.outbox.stamp(large)
    bench.outbox.stamp(other)
    bench.cursor.quarantine(bench.cursor.window.entries[0], "quarantined")
    assert (bench.cursor.window.mark, bench.gaps) == (Mark(1, -1, 0), {"quarantined": 1})
    bench.ack(50)
    assert (other.at, read_header(other.data).base_sequence) == (0, 0)
    assert (bench.cursor.window.mark, bench.outbox.next, bench.cursor.window.waiting_bytes) == (Mark(3, 52, 2), 2, 0)


def test_holes_around_a_quarantined_record_keep_their_own_reason() -> None:
    bench = Bench()
    bench.fetch(holed(0, 6, [3]))
    bench.cursor.quarantine(bench.cursor.window.entries[0], "quarantined")
    assert gaps(bench) == [Gap(0, 3, "compacted"), Gap(3, 4, "quarantined"), Gap(4, 7, "compacted")]
    assert (bench.cursor.window.mark, bench.cursor.idle) == (Mark(7, -1, 0), True)


# -- any log --------------------------------------------------------------------------------------------------------------

PLAN = st.lists(st.tuples(st.sampled_from(["batch", "control", "holes", "gap"]), st.integers(1, 9)), max_size=12)


def log_of(plan: list[tuple[str, int]]) -> tuple[list[bytearray], list[int]]:
    """The batches of a log, and the offsets that hold a record."""
    log: list[bytearray] = []
    kept: list[int] = []
    end = 0
    for kind, size in plan:
        after = end + (1 if kind == "control" else size)
        if kind == "batch":
            log.append(batch(end, size))
            kept += range(end, after)
        elif kind == "holes":
            log.append(holed(end, after - 1, range(end, after, 2)))
            kept += range(end, after, 2)
        elif kind == "control":
            log.append(marker(end, 1))
        end = after
    return log, kept


@settings(deadline=None)
@given(PLAN, st.integers(0, 40), st.integers(0, 5), st.booleans())
def test_every_offset_is_copied_or_has_a_reason(
    plan: list[tuple[str, int]], start: int, base: int, together: bool
) -> None:
    log, kept = log_of(plan)
    bench = Bench(start)
    (bench.fetch if together else bench.fetch_each)(*log)
    wanted = [offset for offset in kept if offset >= start]
    assert bench.offsets() == wanted
    bench.ack(base)
    cursor = bench.cursor
    assert cursor.window.position == cursor.offset
    assert cursor.window.records == len(wanted)
    assert cursor.window.records + sum(bench.gaps.values()) == cursor.window.position - start
    found: dict[int, int] = {}
    for segment in segments(bench):
        found |= {segment.source + i: segment.target + i for i in range(segment.records)}
    assert found == {offset: base + index for index, offset in enumerate(wanted)}
    assert not {offset for gap in gaps(bench) for offset in range(gap.first, gap.after)} & set(wanted)


def test_progress_is_the_sum_of_all_parts() -> None:
    bench = Bench(5, target=8, records=3)
    bench.fetch(batch(5, 2), end=9)
    bench.ack(8)
    row = progress_of(bench.cursor)
    assert (row.topic, row.partition, row.position, row.target_offset) == ("t", 0, 7, 10)
    assert (row.high_watermark, row.records, row.gaps, row.lost) == (9, 2, {}, 0)


# -- what is counted ------------------------------------------------------------------------------------------------------


def test_batches_are_counted_by_how_they_are_sent() -> None:
    bench = Bench()
    bench.fetch_each(batch(0, 2), batch(2, 2, attributes=LOG_APPEND_TIME), holed(4, 8, [5, 8]), batch(9, 1))
    assert bench.tally.paths == {"passthrough": 2, "log_append_time": 1, "compacted": 1}


def test_records_from_before_the_first_copy_have_no_latency() -> None:
    bench = Bench()
    bench.fetch(batch(0, 2), end=4)
    bench.fetch(batch(2, 2), end=6)
    bench.fetch(batch(4, 2), end=6)
    bench.ack(0)
    # Offsets 0 to 3 were there when the first answer came.
    assert bench.owner.newest_ms == [-1, -1, 1005]


def test_a_successor_measures_live_records_unless_it_is_far_behind() -> None:
    bench = Bench(10, records=10)
    bench.fetch(batch(10, 2), end=12)
    bench.fetch(batch(12, 2), end=12 + BEHIND_OFFSETS + 1)
    bench.ack(10)
    assert bench.owner.newest_ms == [1011, -1]


# -- small batches that wait for a request ------------------------------------------------------------------------


def test_small_batches_that_wait_are_sent_as_one() -> None:
    bench = Bench()
    bench.fetch(batch(0, 1), batch(1, 2))
    bench.fetch_each(batch(3, 1), batch(4, 3))
    bench.outbox.merge_waiting()
    (merged,) = bench.outbox.queue
    assert [record.key for record in decode_batch(view_of(merged.data))] == [b"k%03d" % offset for offset in range(7)]
    assert bench.cursor.window.waiting_bytes == len(merged.data)
    bench.ack(50)
    assert (bench.cursor.window.mark, bench.cursor.window.waiting_bytes) == (Mark(7, 57, 7), 0)
    assert (segments(bench), bench.owner.acks) == ([Segment(0, 50, 7)], [(0, 6, 50, 7)])
    assert bench.cursor.idle


def test_merged_batches_are_cut_and_continued_like_others() -> None:
    bench = Bench()
    bench.fetch_each(*(batch(offset, 1) for offset in range(6)))
    bench.outbox.merge_waiting()
    (merged,) = bench.outbox.queue
    assert merged.split is not None
    pieces = merged.split()
    assert pieces is not None
    assert [piece.count for piece in pieces] == [3, 3]
    rest = pieces[0].without and pieces[0].without(1, -1)
    assert rest
    assert [record.key for record in decode_batch(view_of(rest.data))] == [b"k001", b"k002"]
    rest.acked(21)
    pieces[1].acked(23)
    assert bench.cursor.window.mark == Mark(6, 26, 6)


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(batch(3, 2), id="behind a hole"),
        pytest.param(batch(2, 2, codec="lz4"), id="of another codec"),
        pytest.param(batch(2, 100), id="with many records"),
        pytest.param(encode_batch([Record(None, bytes(5000))], base_offset=2), id="with many bytes"),
        pytest.param(of_epoch(batch(2, 2), 3), id="of another leader epoch"),
        pytest.param(holed(2, 5, [3, 4]), id="with holes"),
        pytest.param(checked(batch(2, 2)[:61] + b"\x7e" + batch(2, 2)[62:]), id="with malformed records"),
    ],
)
def test_other_batches_are_sent_separately(second: bytearray) -> None:
    bench = Bench()
    bench.fetch_each(batch(0, 2), second)
    before = list(bench.outbox.queue)
    bench.outbox.merge_waiting()
    bench.outbox.merge_waiting()
    assert list(bench.outbox.queue) == before
    bench.ack(10)
    assert bench.cursor.idle


def test_a_batch_that_was_sent_is_never_merged() -> None:
    bench = Bench()
    bench.fetch_each(batch(0, 1), batch(1, 1), batch(2, 1))
    first = bench.outbox.send_next()
    bench.outbox.queue.appendleft(first)  # its outcome is unknown
    bench.outbox.merge_waiting()
    assert [outgoing.at for outgoing in bench.outbox.queue] == [0, -1, -1]
    bench.outbox.queue.popleft()
    bench.outbox.merge_waiting()
    assert [(outgoing.at, outgoing.count) for outgoing in bench.outbox.queue] == [(-1, 2)]


@settings(deadline=None)
@given(st.lists(st.integers(1, 3), min_size=2, max_size=8), st.integers(1, 7), st.permutations(range(3)))
def test_positions_are_the_same_with_and_without_merging(counts: list[int], first: int, order: list[int]) -> None:
    plain, merging = Bench(), Bench()
    for bench in (plain, merging):
        offset = 0
        for count in counts:
            bench.fetch(batch(offset, count))
            offset += count
    sent = [merging.outbox.send_next() for _ in range(min(first, 3, len(counts) - 1))]
    merging.outbox.merge_waiting()
    sent += [merging.outbox.send_next() for _ in range(len(merging.outbox.queue))]
    plain.ack(10)
    for index in sorted(range(len(sent)), key=lambda number: order[number % 3]):
        sent[index].acked(10 + sent[index].at)
    assert merging.cursor.window.mark == plain.cursor.window.mark
    assert (segments(merging), merging.cursor.window.waiting_bytes) == (segments(plain), 0)


def malformed(offset: int) -> bytearray:
    """A record whose key ends after the record."""
    data = batch(offset, 1)
    assert data[65] == 8, "the length of the key, as a varint"
    data[65] = 0x7E
    return checked(data)


@pytest.mark.parametrize("at_once", [True, False], ids=["in one response", "while they wait"])
def test_a_malformed_record_does_not_take_those_with_it_that_it_was_merged_with(at_once: bool) -> None:
    bench = Bench()
    batches = [batch(0, 1), batch(1, 1), malformed(2), batch(3, 1)]
    if at_once:
        bench.fetch(*batches)
    else:
        bench.fetch_each(*batches)
        bench.outbox.merge_waiting()
    waiting = [*bench.outbox.queue]
    assert [outgoing.count for outgoing in waiting] == [4]
    single = None
    while waiting and single is None:
        (first, *waiting) = waiting
        if content_error(first, bench.cursor.limit) is None:
            continue
        pieces = first.separate and first.separate()
        single = None if pieces else first
        waiting = [*(pieces or ()), *waiting]
    assert single is not None
    assert (single.entry and single.entry.first, single.count, single.separate and single.separate()) == (2, 1, None)
    assert [outgoing.count for outgoing in waiting] == [1]
    assert bench.tally.paths["refused"] == 2


def test_a_batch_of_the_source_is_not_separated() -> None:
    bench = Bench()
    bench.fetch(batch(0, 4))
    assert bench.outgoing_batches[0].separate is None


# -- limits of batches that are decompressed ----------------------------------------------------------------------


def test_a_batch_over_the_limit_stops_its_partition() -> None:
    """At once: its checksum is right, so another attempt would give the same. What was read before is still copied."""
    bench = Bench()
    bench.fetch(batch(0, 3), bombs.zeros("zstd", 128 << 20, offset=3), batch(4, 3))
    assert bench.state == PartitionState.OVER_LIMIT
    condition = bench.cursor.current_state()
    assert (condition.offset, bench.cursor.stopped, bench.cursor.conditions.is_stopped_at_source) == (3, True, True)
    assert condition.reason.startswith("t-0: the batch at offsets 3..3 is not decompressed: a zstd block of ")
    assert "decompression.max.bytes" in condition.reason
    assert bench.offsets() == [0, 1, 2]


def test_an_old_message_set_over_the_limit_stops_its_partition() -> None:
    """Magic 1, gzip."""
    bench = Bench()
    bench.cursor.limit = 1 << 20
    bench.fetch(bombs.message_set(bombs.GZIP, bombs.gzip_zeros(2 << 20)))
    assert bench.state == PartitionState.OVER_LIMIT


def test_a_batch_over_the_limit_goes_to_the_dead_letters() -> None:
    """With ``errors.tolerance=all``, unchanged; the position does not pass it before."""
    bench = Bench()
    bench.owner.takes_corrupt = True
    bench.fetch(batch(0, 3), bombs.zeros("zstd", 128 << 20, offset=3), batch(4, 3))
    assert bench.owner.calls == [("corrupt", 3)]
    assert (bench.cursor.suspended, bench.cursor.stopped, bench.cursor.offset) == (True, False, 4)


def test_a_large_batch_that_the_target_does_not_accept_is_not_split_over_the_limit() -> None:
    """It was passed on as bytes; splitting needs its records."""
    bench = Bench()
    bench.cursor.limit = 1000
    records = [Record(b"k%03d" % index, bytes(2000), (), 1000) for index in range(2)]
    bench.fetch(encode_batch(records, codec="zstd"))
    (outgoing,) = bench.outgoing_batches
    assert outgoing.split is not None
    assert outgoing.split() is None
    bench.outbox.state = OutboxState.REFUSED
    bench.cursor.rejected(BrokerFailure.of(10, subject="writing to A.t-0"))
    assert bench.state == PartitionState.OVER_LIMIT
    reason = bench.cursor.current_state().reason
    assert "decompression.max.bytes), and writing to A.t-0: MESSAGE_TOO_LARGE" in reason


@pytest.mark.parametrize("at_once", [True, False], ids=["in one response", "while they wait"])
@pytest.mark.parametrize("codec", ["", "zstd"])
def test_a_merged_batch_is_not_over_the_limit(codec: str, at_once: bool) -> None:
    """Otherwise it could neither be split nor compared, where each of the batches that it is made of could."""
    bench = Bench()
    bench.cursor.limit = 40_000
    rows = [Record(b"k%03d" % offset, bytes(400), (), 1000, offset) for offset in range(200)]
    batches = [encode_batch([row], base_offset=row.offset, codec=codec or 0) for row in rows]
    if at_once:
        bench.fetch(*batches, end=1_000_000)
    else:
        bench.fetch_each(*batches)
    while bench.outbox.queue:
        bench.outbox.merge_waiting()
        outgoing = bench.outbox.send_next()
        assert content_error(outgoing, bench.cursor.limit) is None
        assert outgoing.count == 1 or (outgoing.split and outgoing.split())


def test_waiting_batches_that_expand_much_are_not_decompressed() -> None:
    """128 of them could take gigabytes, and the seconds in which the lease has to be renewed."""
    bench = Bench()
    bench.fetch_each(*(encode_batch([Record(None, bytes(4 << 20))], base_offset=n, codec="zstd") for n in range(3)))
    before = [*bench.outbox.queue]
    for _ in before:
        bench.outbox.merge_waiting()
        bench.outbox.send_next()
    assert [*bench.outbox.sent] == before


def test_a_refused_batch_over_the_limit_is_not_called_malformed() -> None:
    """Its content is not known."""
    bench = Bench()
    bench.cursor.limit = 1000
    bench.fetch(encode_batch([Record(b"k%03d" % index, bytes(2000), (), 1000) for index in range(2)], codec="zstd"))
    bench.outbox.state = OutboxState.REFUSED
    bench.cursor.rejected(BrokerFailure.of(87, subject="writing to A.t-0"))
    assert (bench.state, bench.owner.calls) == (PartitionState.REFUSED, [])


def test_re_encoding_leaves_the_rest_for_the_next_iteration_of_the_loop() -> None:
    """The loop also renews the lease. What is left is fetched again."""
    turns: list[Callable[[], None]] = []
    slice_ = TimeSlice(60.0, turns.append)
    bench = Bench()
    bench.cursor.reencoding = slice_
    batches = [batch(offset, 3, attributes=LOG_APPEND_TIME) for offset in range(0, 12, 3)]
    bench.fetch(*batches)
    assert bench.cursor.offset == 12
    assert not slice_.is_over
    slice_._until_s = time.monotonic() - 1
    bench.fetch(*batches[:1])
    assert (bench.cursor.offset, len(bench.outgoing_batches)) == (12, 4), "another partition has taken the time"
    assert bench.cursor.passed_over
    (turn,) = turns
    turn()
    assert not slice_.is_over, "the next iteration has its own time"
    again = Bench()
    again.cursor.reencoding = _AfterOne(60.0, turns.append)
    again.fetch(*batches)
    assert (again.offsets(), again.cursor.offset) == ([0, 1, 2], 3), "at least one batch each time"


class _AfterOne(TimeSlice):
    """The time is over after the first batch."""

    asked = 0

    @property
    def is_over(self) -> bool:
        self.asked += 1
        return self.asked > 1
