"""A partition on its way: batches in, parcels out, acknowledgements in any order, positions only over what is done."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm2.copy.executor.cursor import QUEUE_LIMIT_BYTES, Cursor
from mm2.copy.executor.outbox import Outbox, Parcel
from mm2.copy.spec import PartitionSpec
from mm2.kafka.errors import BrokerFailure
from mm2.kafka.records.batch import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, BatchView, iter_batches, read_header
from mm2.kafka.records.record import Record, decode_batch, encode_batch, rewrite
from mm2.kafka.structs import ProducerIdentity, TopicPartition
from mm2.kafka.wire.fetch import Fetched

SPEC = PartitionSpec("t", 0, "A.t")
TP = TopicPartition("t", 0)


class Bench:
    """A cursor with its surroundings written down."""

    def __init__(self, offset: int = 0, *, read_committed: bool = False) -> None:
        self.parcels: list[Parcel] = []
        self.acks: list[tuple[int, ...]] = []
        self.failures: list[BrokerFailure] = []
        self.over: list[str] = []
        self.cursor = Cursor(
            SPEC,
            Outbox(SPEC.target, ProducerIdentity(1, 0)),
            offset,
            read_committed,
            put=lambda _, parcel: self.parcels.append(parcel),
            on_acked=lambda _, *ack: self.acks.append(ack[:4]),
            on_failed=lambda _, failure: self.failures.append(failure),
            on_over=lambda cursor: self.over.append(cursor.reason),
            on_renewed=lambda cursor: cursor.jump(0, "truncated"),
        )

    def fetch(self, *batches: bytes | bytearray, end: int = 1000, stable: int = 900, **fields: Any) -> None:
        records = memoryview(bytearray(b"".join(batches)))
        values: dict[str, Any] = {"error_code": 0, "log_start_offset": 0, "aborted": (), **fields}
        self.cursor.take(
            Fetched(topic_partition=TP, high_watermark=end, last_stable_offset=stable, records=records, **values)
        )

    def keys(self) -> list[list[bytes | None]]:
        return [[record.key for record in decode_batch(view_of(parcel.data))] for parcel in self.parcels]


def view_of(data: memoryview | bytes | bytearray) -> BatchView:
    (view,) = iter_batches(memoryview(data))
    return view


def batch(first: int, count: int, **options: Any) -> bytearray:
    records = [Record(b"k%d" % offset, b"v", (), 1000 + offset) for offset in range(first, first + count)]
    return encode_batch(records, base_offset=first, **options)


def holed(first: int, last: int, kept: Iterable[int]) -> bytearray:
    """A compacted batch over first..last of which only ``kept`` is left."""
    out = bytearray()
    deltas = [offset - first for offset in kept]
    for delta in deltas:
        body = b"\x00\x00" + bytes((delta << 1,)) + b"\x06k%02d" % delta + b"\x01\x00"
        out += bytes((len(body) << 1,)) + body
    data = encode_batch([Record(b"x", b"", timestamp=1000)], base_offset=first)[:61] + out
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">i", data, 23, last - first)
    struct.pack_into(">i", data, 57, len(deltas))
    return checked(data)


def checked(data: bytearray) -> bytearray:
    from crc32c import crc32c  # noqa: PLC0415

    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return data


def marker(offset: int, kind: int, producer: int = 5) -> bytearray:
    record = Record(struct.pack(">hh", 0, kind), b"\x00" * 6, timestamp=1)
    return encode_batch([record], base_offset=offset, attributes=TRANSACTIONAL | CONTROL, producer=(producer, 0, -1))


def test_a_dense_batch_goes_as_the_bytes_it_came_in() -> None:
    bench, data = Bench(), batch(0, 3, codec="lz4")
    bench.fetch(data)
    assert bytes(bench.parcels[0].data) == bytes(data)
    assert (bench.cursor.offset, bench.cursor.position, bench.cursor.reencoded) == (3, 0, 0)
    bench.parcels[0].acked(70)
    assert (bench.cursor.position, bench.cursor.target_offset) == (3, 73)
    assert (bench.cursor.records, bench.cursor.bytes, bench.cursor.waiting_bytes) == (3, len(data), 0)
    assert bench.acks == [(0, 2, 70, 3)]
    assert bench.cursor.idle


def test_positions_move_only_over_an_unbroken_row_of_acks() -> None:
    bench = Bench()
    bench.fetch(batch(0, 2), batch(2, 2), batch(4, 2))
    bench.parcels[2].acked(14)
    bench.parcels[1].acked(12)
    assert (bench.cursor.position, bench.acks) == (0, [])
    bench.parcels[0].acked(10)
    assert bench.cursor.position == 6
    assert [ack[0] for ack in bench.acks] == [0, 2, 4]


@given(st.permutations(range(8)))
def test_acks_in_any_order_are_told_in_source_order(order: list[int]) -> None:
    bench = Bench()
    bench.fetch(*(batch(i * 3, 3) for i in range(8)))
    done: set[int] = set()
    for index in order:
        bench.parcels[index].acked(100 + index * 3)
        done.add(index)
        prefix = next(i for i in range(9) if i not in done)
        assert bench.cursor.position == prefix * 3
    assert [ack[2] for ack in bench.acks] == [100 + i * 3 for i in range(8)]


def test_a_batch_begun_before_the_offset_is_cut_there() -> None:
    bench = Bench(12)
    bench.fetch(batch(0, 10), batch(10, 5))
    assert bench.keys() == [[b"k12", b"k13", b"k14"]]
    assert (bench.cursor.offset, bench.cursor.gaps, bench.cursor.reencoded) == (15, {}, 1)
    bench.parcels[0].acked(0)
    assert bench.acks == [(12, 14, 0, 3)]


def test_holes_between_and_within_batches_are_counted_as_compacted() -> None:
    bench = Bench()
    bench.fetch(batch(5, 2), holed(7, 12, [8, 11]))
    assert bench.cursor.gaps == {"compacted": 5 + 4}
    assert read_header(bench.parcels[1].data).is_dense
    for index, parcel in enumerate(bench.parcels):
        parcel.acked(index * 2)
    assert (bench.cursor.position, bench.cursor.records, bench.cursor.target_offset) == (13, 4, 4)


def test_a_batch_that_compaction_emptied_moves_the_position() -> None:
    bench = Bench()
    bench.fetch(holed(0, 4, []))
    assert (bench.parcels, bench.cursor.position, bench.cursor.gaps) == ([], 5, {"compacted": 5})


def test_control_batches_are_dropped_and_counted() -> None:
    bench = Bench()
    bench.fetch(batch(0, 2, attributes=TRANSACTIONAL, producer=(5, 0, 0)), marker(2, 1), batch(3, 1))
    assert len(bench.parcels) == 2
    bench.parcels[1].acked(2)
    assert bench.cursor.position == 0
    bench.parcels[0].acked(0)
    assert (bench.cursor.position, bench.cursor.gaps) == (4, {"control": 1})


@pytest.mark.parametrize("committed", [True, False])
def test_aborted_batches_are_dropped_under_read_committed_only(committed: bool) -> None:
    bench = Bench(read_committed=committed)
    data = batch(0, 2, attributes=TRANSACTIONAL, producer=(5, 0, 0))
    bench.fetch(data, marker(2, 0), batch(3, 1), aborted=((5, 0),) if committed else ())
    assert len(bench.parcels) == (1 if committed else 2)
    assert bench.cursor.gaps == ({"aborted": 2, "control": 1} if committed else {"control": 1})


def test_the_end_is_the_last_stable_offset_under_read_committed() -> None:
    for committed, end in ((True, 900), (False, 1000)):
        bench = Bench(read_committed=committed)
        bench.fetch()
        assert bench.cursor.high_watermark == end


def test_log_append_time_is_reencoded() -> None:
    bench, data = Bench(), batch(0, 2, attributes=LOG_APPEND_TIME)
    bench.fetch(data)
    assert not read_header(bench.parcels[0].data).is_log_append_time
    assert {r.timestamp for r in decode_batch(view_of(bench.parcels[0].data))} == {1001}


def test_a_wrong_crc_stops_the_partition_behind_what_was_right() -> None:
    bench, bad = Bench(), batch(2, 2)
    bad[-1] ^= 1
    bench.fetch(batch(0, 2), bad, batch(4, 2))
    assert bench.cursor.state == "failed"
    assert bench.cursor.reason.startswith("t-0: the record batch at offsets 2..3 has CRC-32C")
    assert bench.over == [bench.cursor.reason]
    bench.parcels[0].acked(0)
    assert (len(bench.parcels), bench.cursor.position) == (1, 2)


def test_a_failed_partition_stays_failed() -> None:
    bench = Bench()
    bench.cursor.fail("over")
    bench.cursor.refused(None)
    bench.cursor.failed(BrokerFailure.of(6))
    bench.fetch(batch(0, 1))
    assert (bench.cursor.state, bench.cursor.reason) == ("failed", "over")


def test_the_sources_trouble_is_shown_until_it_answers() -> None:
    bench, failure = Bench(), BrokerFailure.of(6, subject="reading t-0")
    bench.cursor.failed(failure)
    assert (bench.cursor.state, bench.cursor.reason) == ("waiting", str(failure))
    assert bench.failures == [failure]
    bench.fetch()
    assert (bench.cursor.state, bench.cursor.reason) == ("copying", "")


def test_the_targets_refusal_is_shown_until_it_accepts() -> None:
    bench = Bench()
    bench.cursor.refused(BrokerFailure.of(10, subject="writing to A.t-0"))
    assert bench.cursor.stuck
    assert bench.cursor.progress().reason.startswith("writing to A.t-0: MESSAGE_TOO_LARGE")
    bench.fetch()
    assert bench.cursor.state == "refused"
    bench.cursor.refused(None)
    assert (bench.cursor.state, bench.cursor.stuck) == ("copying", False)


def test_a_complaint_of_the_target_is_shown_as_waiting() -> None:
    bench = Bench()
    bench.cursor.outbox.complaint = BrokerFailure.of(19, subject="writing to A.t-0")
    assert (bench.cursor.progress().state, bench.cursor.state) == ("waiting", "copying")


def test_lost_records_are_counted_once_skipped() -> None:
    bench = Bench()
    bench.fetch(batch(0, 2))
    bench.cursor.jump(10, "retention")
    bench.fetch(batch(10, 1))
    assert (bench.cursor.gaps, bench.cursor.position) == ({"retention": 8}, 0)
    bench.parcels[0].acked(0)
    assert bench.cursor.position == 10


def test_a_log_that_begins_anew_is_read_from_there() -> None:
    bench = Bench(50)
    bench.cursor.jump(0, "truncated")
    assert (bench.cursor.offset, bench.cursor.position, bench.cursor.gaps) == (0, 0, {})


def test_too_much_waiting_makes_it_full() -> None:
    bench = Bench()
    big = encode_batch([Record(None, bytes(QUEUE_LIMIT_BYTES), timestamp=1)])
    bench.fetch(big)
    assert bench.cursor.full
    bench.parcels[0].acked(0)
    assert not bench.cursor.full


def test_what_waits_for_long_makes_it_full_however_little_it_is() -> None:
    # It keeps the answers alive that it came in.
    bench = Bench()
    seen = [bench.cursor.full]
    bench.fetch(batch(0, 1))
    seen.append(bench.cursor.full)
    bench.cursor.entries[0].since -= 2
    seen.append(bench.cursor.full)
    bench.parcels[0].acked(0)
    bench.fetch(batch(1, 1))
    seen.append(bench.cursor.full)
    bench.cursor.refused(BrokerFailure.of(29))
    seen.append(bench.cursor.full)
    assert seen == [False, False, True, False, True]


# -- parcels that are cut -----------------------------------------------------------------------------------------------


def cut(parcel: Parcel) -> list[Parcel]:
    assert parcel.split is not None
    pieces = parcel.split()
    assert pieces is not None
    return pieces


def test_a_cut_parcel_is_done_when_all_its_pieces_are() -> None:
    bench = Bench()
    bench.fetch(batch(0, 5), batch(5, 1))
    first, second = cut(bench.parcels[0])
    assert (first.count, second.count) == (3, 2)
    deeper = cut(first)
    bench.parcels[1].acked(15)
    for piece, base in ((deeper[0], 10), (deeper[1], 12)):
        piece.acked(base)
        assert bench.cursor.position == 0
    second.acked(13)
    assert (bench.cursor.position, bench.cursor.target_offset) == (6, 16)
    assert bench.acks[0] == (0, 4, 10, 5)
    assert bench.cursor.records == 6


def test_a_piece_that_was_there_already_leaves_the_place_unknown() -> None:
    # The place of the second piece would promise more than is there.
    bench = Bench()
    bench.fetch(batch(0, 4))
    first, second = cut(bench.parcels[0])
    first.acked(-1)
    second.acked(12)
    assert (bench.cursor.position, bench.cursor.target_offset) == (4, -1)
    assert bench.acks == [(0, 3, -1, 4)]


def test_a_single_record_cannot_be_cut() -> None:
    bench = Bench()
    bench.fetch(batch(0, 1))
    assert bench.parcels[0].split is not None
    assert bench.parcels[0].split() is None


def test_a_batch_that_is_wrong_inside_cannot_be_cut() -> None:
    bench, bad = Bench(), batch(0, 4)
    bad[61] ^= 2
    bench.fetch(checked(bad))
    assert bench.parcels[0].split is not None
    assert bench.parcels[0].split() is None


# -- any log ------------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.sampled_from(["batch", "control", "holes", "gap"]), st.integers(1, 9)), max_size=12),
    st.integers(0, 40),
)
def test_every_offset_is_copied_or_has_a_reason(plan: list[tuple[str, int]], start: int) -> None:
    log: list[bytearray] = []
    end = 0
    for kind, size in plan:
        if kind == "batch":
            log.append(batch(end, size))
        elif kind == "holes":
            log.append(holed(end, end + size - 1, range(end, end + size, 2)))
        elif kind == "control":
            log.append(marker(end, 1))
            size = 1  # noqa: PLW2901
        end += size
    bench = Bench(start)
    bench.fetch(*log)
    for parcel in bench.parcels:
        parcel.acked(0)
    cursor = bench.cursor
    assert cursor.position == cursor.offset
    assert cursor.records + sum(cursor.gaps.values()) == cursor.position - start
    wanted = []
    for data in log:
        view = view_of(data)
        assert view.header is not None
        kept = None if view.header.is_control else rewrite(view, keep=lambda offset: offset >= start)
        wanted += [] if kept is None else [r.timestamp for r in decode_batch(view_of(kept.data))]
    assert [r.timestamp for p in bench.parcels for r in decode_batch(view_of(p.data))] == wanted
