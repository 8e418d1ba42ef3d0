"""Rewriting batches: header patches, re-encoding, cutting."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.memory_records import MemoryRecordsBuilder

from mm2.kafka.errors import CorruptBatch
from mm2.kafka.records.batch import (
    CONTROL,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    BatchView,
    check_crc,
    iter_batches,
    patch,
    read_header,
)
from mm2.kafka.records.codec import CODECS
from mm2.kafka.records.record import Record, decode_batch, encode_batch, rewrite, split

CODEC_IDS = [codec.id for codec in CODECS]


def view_of(data: bytes | bytearray | memoryview) -> BatchView:
    (view,) = iter_batches(memoryview(bytearray(data)))
    return view


def header_of(view: BatchView) -> BatchHeader:
    assert view.header is not None
    return view.header


def edited(data: bytes | bytearray, **fields: int) -> BatchView:
    """The batch with other header fields and a valid CRC."""
    out = bytearray(data)
    HEADER.pack_into(out, 0, *read_header(out)._replace(**fields))
    struct.pack_into(">I", out, 17, crc32c(memoryview(out)[21:]))
    return view_of(out)


def with_holes(offsets: Sequence[int], *, base: int = 100, last: int | None = None, codec: int = 0) -> BatchView:
    """A batch after log compaction: only the given offset deltas remain, the offset range is unchanged."""
    builder = MemoryRecordsBuilder(2, codec, 1 << 20)
    for delta in offsets:
        builder.skip(delta - builder._next_offset)
        builder.append(1000 + delta, b"k%d" % delta, b"v%d" % delta * 40, [("h", b"%d" % delta)])
    builder.close()
    return edited(bytes(builder._buffer), base_offset=base, last_offset_delta=offsets[-1] if last is None else last)


def batch(count: int = 4, codec: int = 0, **fields: int) -> BatchView:
    records = [Record(b"k%d" % i, b"v" * i, (("a", b"1"), ("a", None)), 2000 + i) for i in range(count)]
    return edited(encode_batch(records, codec=codec), **fields)


# -- the header ---------------------------------------------------------------------------------------------------------


def test_header_fields_are_where_kafka_python_reads_them() -> None:
    view = batch(3, 1, base_offset=77, leader_epoch=5, producer_id=9, producer_epoch=2, base_sequence=4)
    header, other = header_of(view), DefaultRecordBatch(bytes(view.data))
    assert len(HEADER.pack(*header)) == HEADER_BYTES
    assert (header.base_offset, header.leader_epoch, header.magic, header.crc) == (77, 5, 2, other.crc)
    assert (header.attributes, header.last_offset, header.records_count) == (other.attributes, other.last_offset, 3)
    assert (header.base_timestamp, header.max_timestamp) == (other.first_timestamp, other.max_timestamp)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 4)


def test_a_wrong_crc_names_the_offsets() -> None:
    view = batch(3, base_offset=10)
    view.data[-1] ^= 1
    with pytest.raises(CorruptBatch, match=r"offsets 10\.\.12 has CRC-32C"):
        check_crc(header_of(view), view.data)


@pytest.mark.parametrize("codec", CODEC_IDS)
def test_patch_leaves_the_records_alone(codec: int) -> None:
    view = batch(5, codec, base_offset=1 << 33, leader_epoch=8, producer_id=1, producer_epoch=1, base_sequence=1)
    before = bytes(view.data[HEADER_BYTES:])
    patch(view.data, header_of(view), (4001, 7, 123456))
    after = DefaultRecordBatch(bytes(view.data))
    assert bytes(view.data[HEADER_BYTES:]) == before
    assert after.validate_crc()
    assert (after.base_offset, after.leader_epoch) == (0, -1)
    assert (after.producer_id, after.producer_epoch, after.base_sequence) == (4001, 7, 123456)
    assert (after.compression_type, after.records_count) == (codec, 5)


def test_patch_clears_what_belongs_to_the_source() -> None:
    view = batch(2, attributes=TRANSACTIONAL | DELETE_HORIZON | 0)
    patch(view.data, header_of(view), (1, 0, 0))
    assert read_header(view.data).attributes == 0


def test_patch_can_set_our_own_transaction() -> None:
    view = batch(2)
    patch(view.data, header_of(view), (1, 0, 0), transactional=True)
    assert read_header(view.data).is_transactional


def test_a_transactional_batch_without_a_producer_is_refused() -> None:
    view = batch(2)
    with pytest.raises(ValueError, match="needs a producer id"):
        patch(view.data, header_of(view), (-1, -1, -1), transactional=True)


# -- rewriting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [0, 1])
def test_holes_are_closed_and_their_records_kept(codec: int) -> None:
    view = with_holes([1, 2, 7], last=9, codec=codec)
    assert not header_of(view).is_dense
    rewritten = rewrite(view)
    assert rewritten is not None
    assert rewritten.offsets == [101, 102, 107]
    header = read_header(rewritten.data)
    assert header.is_dense
    assert (header.codec, header.records_count, header.max_timestamp) == (codec, 3, 1007)
    check_crc(header, memoryview(rewritten.data))
    old, new = decode_batch(view), decode_batch(view_of(rewritten.data))
    assert [(r.timestamp, r.key, r.value, r.headers) for r in new] == [
        (r.timestamp, r.key, r.value, r.headers) for r in old
    ]
    assert [r.offset for r in new] == [0, 1, 2]


@given(
    st.sets(st.integers(0, 400), min_size=1, max_size=30),
    st.integers(0, 5),
    st.sampled_from(CODEC_IDS),
    st.sets(st.integers(0, 400)),
)
def test_rewriting_keeps_the_selected_records(deltas: set[int], tail: int, codec: int, dropped: set[int]) -> None:
    plain = with_holes(sorted(deltas), base=1 << 35, last=max(deltas) + tail)
    packed = CODECS[codec].compress(plain.data[HEADER_BYTES:])
    header = header_of(plain)
    data = bytes(plain.data[:HEADER_BYTES]) + packed
    view = edited(data, batch_length=len(data) - 12, attributes=codec)
    rewritten = rewrite(view, keep=lambda offset: offset - header.base_offset not in dropped)
    left = sorted(deltas - dropped)
    if not left:
        assert rewritten is None
        return
    assert rewritten is not None
    assert rewritten.offsets == [header.base_offset + delta for delta in left]
    assert read_header(rewritten.data).codec == codec
    assert [r.key for r in decode_batch(view_of(rewritten.data))] == [b"k%d" % delta for delta in left]
    assert read_header(rewritten.data).max_timestamp == 1000 + max(left)


@pytest.mark.parametrize("codec", CODEC_IDS)
def test_log_append_time_becomes_create_time_of_the_same_moment(codec: int) -> None:
    view = batch(3, codec, attributes=codec | LOG_APPEND_TIME, max_timestamp=999_999)
    assert {r.timestamp for r in decode_batch(view)} == {999_999}
    rewritten = rewrite(view)
    assert rewritten is not None
    header = read_header(rewritten.data)
    assert not header.is_log_append_time
    assert (header.base_timestamp, header.max_timestamp, header.codec) == (999_999, 999_999, codec)
    assert {r.timestamp for r in decode_batch(view_of(rewritten.data))} == {999_999}


def test_a_batch_emptied_by_compaction_is_dropped() -> None:
    view = edited(bytes(batch(1).data[:HEADER_BYTES]), batch_length=HEADER_BYTES - 12, records_count=0)
    assert rewrite(view) is None
    assert decode_batch(view) == []


def test_rewritten_batches_lose_the_source_transaction_when_patched() -> None:
    rewritten = rewrite(batch(2, attributes=TRANSACTIONAL | DELETE_HORIZON, producer_id=5))
    assert rewritten is not None
    header = read_header(rewritten.data)
    assert (header.producer_id, header.base_sequence) == (-1, -1)
    patch(memoryview(rewritten.data), header, (6, 0, 40))
    assert read_header(rewritten.data).attributes & (TRANSACTIONAL | CONTROL | DELETE_HORIZON) == 0


def test_the_delete_horizon_does_not_move_timestamps() -> None:
    # Bit 6: baseTimestamp holds the horizon, deltas were made relative to it (KAFKA-12943).
    horizon = 5000
    records = [Record(b"k", None, (), stamp) for stamp in (horizon, horizon - 700)]
    view = edited(encode_batch(records), attributes=DELETE_HORIZON)
    rewritten = rewrite(view)
    assert rewritten is not None
    assert [r.timestamp for r in decode_batch(view_of(rewritten.data))] == [horizon, horizon - 700]


def test_recompression_can_be_disabled() -> None:
    rewritten = rewrite(batch(3, 4), recompress=False)
    assert rewritten is not None
    assert read_header(rewritten.data).codec == 0


@pytest.mark.parametrize("parts", [2, 3, 10])
@pytest.mark.parametrize("codec", CODEC_IDS)
def test_split_keeps_every_record_once(parts: int, codec: int) -> None:
    view = batch(7, codec, base_offset=50)
    pieces = split(view, parts)
    assert len(pieces) == min(parts, 7)
    assert [offset for piece in pieces for offset in piece.offsets] == list(range(50, 57))
    keys = [r.key for piece in pieces for r in decode_batch(view_of(piece.data))]
    assert keys == [b"k%d" % i for i in range(7)]
    for piece in pieces:
        header = read_header(piece.data)
        assert header.is_dense
        assert header.codec == codec
        check_crc(header, memoryview(piece.data))


def test_records_can_be_selected_by_their_index() -> None:
    rewritten = rewrite(with_holes([1, 2, 7, 9]), keep_index=lambda place: place != 2)
    assert rewritten is not None
    assert rewritten.offsets == [101, 102, 109]
    both = rewrite(with_holes([1, 2, 7, 9]), keep=lambda offset: offset > 101, keep_index=lambda place: place != 2)
    assert both is not None
    assert both.offsets == [102, 109]


def test_records_out_of_order_are_corrupt() -> None:
    view = batch(3)
    data = bytes(view.data[HEADER_BYTES:])
    size = data[0] // 2 + 1
    swapped = data[size:] + data[:size]
    with pytest.raises(CorruptBatch, match="offset delta 0"):
        rewrite(edited(bytes(view.data[:HEADER_BYTES]) + swapped))
