"""Merging of small batches: the records are unchanged, in batches that a broker accepts."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from mm2.kafka.errors import CorruptBatch
from mm2.kafka.records.batch import (
    CONTROL,
    DELETE_HORIZON,
    HEADER,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchView,
    check_crc,
    iter_batches,
    read_header,
)
from mm2.kafka.records.codec import CODECS
from mm2.kafka.records.merge import TINY_BYTES, Merged, coalesce, merge
from mm2.kafka.records.record import Record, decode_batch, encode_batch

CODEC_IDS = [codec.id for codec in CODECS]
NOON = 1_700_000_000_000

payloads = st.none() | st.binary(max_size=40)
timestamps = (
    st.integers(NOON - 100, NOON + 100) | st.integers(-1, 1 << 62) | st.just(-(1 << 63)) | st.just((1 << 63) - 1)
)


@st.composite
def records(draw: st.DrawFn) -> Record:
    names = st.tuples(st.text(max_size=3), payloads)
    return Record(draw(payloads), draw(payloads), tuple(draw(st.lists(names, max_size=2))), draw(timestamps))


@st.composite
def batches(draw: st.DrawFn) -> list[Record]:
    """Records whose timestamps fit into one batch."""
    group = draw(st.lists(records(), min_size=1, max_size=4))
    stamp = group[0].timestamp or 0
    return [r for r in group if abs((r.timestamp or 0) - stamp) < 1 << 63]


def chain(groups: Iterable[list[Record]], codec: int | str = 0, base: int = 0) -> bytearray:
    """Adjacent batches, as a broker sends them."""
    data = bytearray()
    for group in groups:
        data += encode_batch(group, codec=codec, base_offset=base)
        base += len(group)
    return data


def lone(count: int, codec: int | str = 0, base: int = 0) -> bytearray:
    """Batches of one unique record each."""
    return chain(([Record(b"k%d" % i, b"v" * (i % 90), (), NOON + i * 3)] for i in range(count)), codec, base)


def views_of(data: bytes | bytearray) -> list[BatchView]:
    return list(iter_batches(memoryview(bytearray(data))))


def plain(view: BatchView) -> list[tuple[Any, ...]]:
    return [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in decode_batch(view)]


def content(items: Iterable[BatchView | Merged]) -> list[tuple[Any, ...]]:
    """All records with their source offsets; also checks merged batches against a broker's rules."""
    found = []
    for item in items:
        if isinstance(item, Merged):
            (view,) = views_of(item.data)
            assert view.header == item.header
            assert item.header.is_plain
            assert item.header.attributes == item.header.codec
            assert (item.header.producer_id, item.header.base_sequence) == (-1, -1)
            check_crc(item.header, view.data)
            rows = plain(view)
            assert [row[0] for row in rows] == list(range(item.first, item.after))
            assert item.header.max_timestamp == max(row[1] for row in rows)
            found += rows
        else:
            found += plain(item)
    return found


def edited(data: bytes | bytearray, **fields: int) -> bytearray:
    out = bytearray(data)
    HEADER.pack_into(out, 0, *read_header(out)._replace(**fields))
    struct.pack_into(">I", out, 17, crc32c(memoryview(out)[21:]))
    return out


# -- merge --------------------------------------------------------------------------------------------------------------


@given(st.lists(batches(), min_size=1, max_size=8), st.sampled_from(CODEC_IDS), st.integers(0, 1 << 50))
def test_merged_batches_contain_the_concatenation(groups: list[list[Record]], codec: int, base: int) -> None:
    views = views_of(chain(groups, codec, base))
    merged = merge(views)
    assert content(merged) == content(views)
    assert sum(one.batches for one in merged) == len(views)
    assert {one.header.codec for one in merged} == {codec}


@pytest.mark.parametrize("codec", [0, 1])
def test_another_client_reads_merged_batches(codec: int) -> None:
    builder = MemoryRecordsBuilder(2, codec, 1 << 20)
    (merged,) = merge(views_of(lone(500, codec)))
    for i in range(500):
        builder.append(NOON + i * 3, b"k%d" % i, b"v" * (i % 90))
    builder.close()
    (ours,), (theirs,) = MemoryRecords(bytes(merged.data)), MemoryRecords(bytes(builder._buffer))
    assert ours.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value) for r in ours] == [
        (r.offset, r.timestamp, r.key, r.value) for r in theirs
    ]
    if not codec:
        merged.data[12:16] = builder._buffer[12:16]  # partition leader epoch: they write 0, Java and we -1
        assert bytes(merged.data) == bytes(builder._buffer)


@pytest.mark.parametrize("codec", CODEC_IDS)
def test_the_limit_is_respected_and_a_larger_batch_is_not_merged(codec: int) -> None:
    small = lone(40, codec)
    large = encode_batch([Record(b"k", bytes(range(256)) * 20, (), NOON)], codec=codec, base_offset=40)
    tail = lone(3, codec, 41)
    limit = len(small) // 3
    views = views_of(small + large + tail)
    merged = merge(views, max_bytes=limit)
    assert content(merged) == content(views)
    assert len(merged) >= 4
    assert all(len(one.data) <= limit for one in merged if one.batches > 1)


def test_more_records_than_the_initial_table_are_merged() -> None:
    views = views_of(chain([Record(None, b"", (), NOON - i)] for i in range(20_000)))
    assert content(merge(views, max_bytes=4 << 20)) == content(views)


def test_timestamps_too_far_apart_start_another_batch() -> None:
    views = views_of(chain([[Record(b"a", b"", (), -2)], [Record(b"b", b"", (), (1 << 63) - 1)]]))
    merged = merge(views)
    assert [one.batches for one in merged] == [1, 1]
    assert content(merged) == content(views)


def test_fields_of_the_source_are_cleared() -> None:
    first = edited(lone(1), attributes=TRANSACTIONAL, producer_id=7, producer_epoch=1, base_sequence=5)
    second = edited(lone(1, base=1), attributes=DELETE_HORIZON, base_timestamp=NOON - 5, max_timestamp=NOON - 5)
    (merged,) = merge(views_of(first + second))
    assert content([merged]) == [(0, NOON, b"k0", b"", ()), (1, NOON - 5, b"k0", b"", ())]


@pytest.mark.parametrize(
    "second",
    [
        lone(1, base=2),
        lone(1, base=0),
        lone(1, "lz4", base=1),
        edited(lone(1, base=1), attributes=CONTROL),
        edited(lone(1, base=1), attributes=LOG_APPEND_TIME),
        edited(lone(1, base=1), attributes=1 << 7),
        edited(lone(1, base=1), last_offset_delta=3),
        edited(lone(1, base=1)[:61], batch_length=49, records_count=0, last_offset_delta=-1),
    ],
    ids=["gap", "again", "codec", "control", "append-time", "unknown-bit", "holes", "empty"],
)
def test_only_plain_adjacent_batches_are_merged(second: bytearray) -> None:
    with pytest.raises(ValueError, match="cannot be merged"):
        merge(views_of(lone(1) + second))
    assert all(isinstance(item, BatchView) for item in coalesce(memoryview(lone(1) + second), 0, compressed=True))


def test_message_sets_are_not_merged() -> None:
    builder = MemoryRecordsBuilder(1, 0, 1 << 16)
    builder.append(1, b"k", b"v")
    builder.close()
    with pytest.raises(ValueError, match="message set at offset 0"):
        merge(views_of(bytes(builder._buffer)))


def test_merging_nothing_returns_nothing() -> None:
    assert merge([]) == []


def test_a_wrong_crc_is_found() -> None:
    data = lone(3)
    data[-1] ^= 1
    with pytest.raises(CorruptBatch, match=r"offsets 2\.\.2 has CRC-32C"):
        merge(views_of(data))


def test_inconsistent_records_are_detected() -> None:
    bad = bytearray(lone(1, base=1))
    bad[61] += 2  # the record's length
    with pytest.raises(CorruptBatch):
        merge(views_of(lone(1) + edited(bad)))


def test_batches_of_different_leader_epochs_are_not_merged() -> None:
    epochs = [4, 4, 6, 6, 6, 7]
    data = b"".join(edited(lone(1, base=base), leader_epoch=epoch) for base, epoch in enumerate(epochs))
    merged = [item for item in coalesce(memoryview(data), 0) if isinstance(item, Merged)]
    assert [(item.leader_epoch, item.first, item.after) for item in merged] == [(4, 0, 2), (6, 2, 5)]


# -- coalesce -----------------------------------------------------------------------------------------------------------


def shape(items: Iterable[BatchView | Merged]) -> list[int]:
    """The number of source batches of each item; 0 = unchanged."""
    return [item.batches if isinstance(item, Merged) else 0 for item in items]


@given(st.lists(batches(), max_size=8), st.sampled_from(CODEC_IDS), st.integers(0, 1 << 50), st.integers(0, 30))
def test_a_walk_visits_every_batch(groups: list[list[Record]], codec: int, base: int, cut: int) -> None:
    data = chain(groups, codec, base)
    whole = memoryview(data)[: len(data) - cut]
    items = list(coalesce(whole, base, compressed=True))
    assert content(items) == content(iter_batches(whole))


def test_runs_of_small_batches_are_merged_and_large_ones_unchanged() -> None:
    large = encode_batch([Record(b"k", bytes(TINY_BYTES), (), NOON)], base_offset=3)
    data = lone(3) + large + lone(1, base=4) + lone(5, "lz4", base=5) + lone(2, base=10)
    assert shape(coalesce(memoryview(data), 0)) == [3, 0, 0, 0, 0, 0, 0, 0, 2]
    items = list(coalesce(memoryview(data), 0, compressed=True))
    assert shape(items) == [3, 0, 0, 5, 2]
    assert content(items) == content(views_of(data))


def test_views_are_views_into_the_buffer() -> None:
    data = lone(1) + encode_batch([Record(b"k", bytes(TINY_BYTES), (), NOON)], base_offset=1)
    assert all(isinstance(item, BatchView) and item.data.obj is data for item in coalesce(memoryview(data), 0))


def test_batches_before_the_offset_are_returned_unchanged() -> None:
    data = lone(6)
    assert shape(coalesce(memoryview(data), 2)) == [0, 0, 4]
    # The records before the offset must be cut from a batch first.
    pair = chain([[Record(b"a", b"", (), NOON)] * 3, [Record(b"b", b"", (), NOON)], [Record(b"c", b"", (), NOON)]])
    assert shape(coalesce(memoryview(pair), 1)) == [0, 2]


def test_a_gap_ends_a_run() -> None:
    data = lone(2) + lone(3, base=7)
    assert shape(coalesce(memoryview(data), 0)) == [2, 3]


def test_the_limit_ends_a_run() -> None:
    data = lone(300)
    items = list(coalesce(memoryview(data), 0, max_bytes=5000))
    assert content(items) == content(views_of(data))
    assert len(items) > 5
    assert all(len(item.data) <= 5000 for item in items)


def test_transactions_are_merged_only_when_their_outcome_is_not_needed() -> None:
    data = b"".join(edited(lone(1, base=i), attributes=TRANSACTIONAL) for i in range(3))
    assert shape(coalesce(memoryview(data), 0)) == [0, 0, 0]
    assert shape(coalesce(memoryview(data), 0, transactional=True)) == [3]


@pytest.mark.parametrize("codec", [0, 3])
@pytest.mark.parametrize("place", [61, 64, -1])
@pytest.mark.parametrize("right_crc", [True, False])
def test_a_corrupt_batch_is_separate_and_does_not_affect_the_others(codec: int, place: int, right_crc: bool) -> None:
    bad = bytearray(lone(1, codec, 3))
    bad[place] ^= 0x55
    if right_crc:
        bad = edited(bad)
    data = lone(3, codec) + bad + lone(4, codec, 4)
    items = list(coalesce(memoryview(data), 0, compressed=True))
    if not right_crc or place != -1 or codec:
        assert shape(items) == [3, 0, 4]
        assert bytes(items[1].data) == bytes(bad)
    assert items[-1].after == 8 if isinstance(items[-1], Merged) else False


@pytest.mark.parametrize("codec", ["", "zstd"])
def test_merged_records_do_not_exceed_the_limit(codec: str) -> None:
    """One batch after another can be decoded under it, so what they are merged into can, too."""
    limit = 100_000
    rows = [Record(b"k", bytes(range(200)) * 10, (), NOON + n) for n in range(400)]
    data = chain([[row] for row in rows], codec or 0)
    items = list(coalesce(memoryview(data), 0, compressed=True, limit=limit))
    views = [view for item in items for view in iter_batches(memoryview(item.data))]
    assert 1 < len(items) < 100
    assert sum(len(decode_batch(view, limit)) for view in views) == len(rows)
    merged = merge(views_of(data), limit=limit)
    assert content(merged) == content(items)
    assert all(decode_batch(view, limit) for one in merged for view in iter_batches(memoryview(one.data)))


def test_only_the_first_run_is_merged_where_no_more_is_asked_for() -> None:
    views = views_of(lone(3) + edited(lone(1, base=3), records_count=2))
    with pytest.raises((CorruptBatch, ValueError)):
        merge(views)
    (merged,) = merge(views, first_only=True)
    assert (merged.batches, merged.after) == (3, 3)


def test_a_run_can_be_longer_than_one_scan() -> None:
    large = encode_batch([Record(b"k", bytes(TINY_BYTES), (), NOON)], base_offset=3000)
    data = lone(3000) + large + lone(700, base=3001)
    assert len(data) > 5 * 64 * 1024
    items = list(coalesce(memoryview(data), 0))
    assert shape(items) == [3000, 0, 700]
    assert content(items) == content(views_of(data))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_that_expand_much_are_passed_on(codec: str) -> None:
    """Decompressing a response full of them would take seconds."""
    data = chain([[Record(None, bytes(1 << 16), (), NOON)] for _ in range(20)], codec)
    assert len(data) // 20 < TINY_BYTES
    assert all(isinstance(item, BatchView) for item in coalesce(memoryview(data), 0, compressed=True))
