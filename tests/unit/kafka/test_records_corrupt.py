"""Inconsistent bytes raise CorruptBatch, and no other exception."""

from __future__ import annotations

import contextlib
import struct

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecordsBuilder

from mm2.kafka.errors import CorruptBatch
from mm2.kafka.records.batch import HEADER_BYTES, check_crc, iter_batches, read_header
from mm2.kafka.records.codec import CODECS
from mm2.kafka.records.record import Record, decode_batch, encode_batch, rewrite, split
from mm2.kafka.records.transactions import AbortedTransactions, control_type

CODEC_IDS = [codec.id for codec in CODECS]
SAMPLE = [Record(b"key%d" % i, b"value" * i, (("h", b"x"), ("h", None)), 1000 + i) for i in range(5)]


def read_all(data: bytes | bytearray, *, check: bool = True) -> int:
    """Run all parsers of fetched bytes; returns the number of records."""
    count = 0
    aborted = AbortedTransactions([(1, 0)])
    for view in iter_batches(memoryview(data)):
        aborted.covers(view)
        if view.header is not None and check:
            check_crc(view.header, view.data)
        count += len(decode_batch(view))
        rewrite(view)
        split(view, 2)
    return count


@settings(max_examples=300, deadline=None)
@given(
    codec=st.sampled_from(CODEC_IDS),
    edits=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=6),
    cut=st.integers(0, 30),
    crc=st.booleans(),
)
def test_mutated_batches_raise_only_documented_errors(
    codec: int, edits: list[tuple[int, int]], cut: int, crc: bool
) -> None:
    data = encode_batch(SAMPLE, codec=codec)
    # Too high record counts only take time (parsing continues to the end of the bytes): keep the test fast.
    for place, value in edits:
        if place % len(data) not in (57, 58):
            data[place % len(data)] = value
    if crc:
        struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    with contextlib.suppress(CorruptBatch):
        read_all(data[: len(data) - cut], check=not crc)


@settings(max_examples=200, deadline=None)
@given(
    magic=st.sampled_from([0, 1]), codec=st.sampled_from([0, 1]), place=st.integers(0, 300), value=st.integers(0, 255)
)
def test_mutated_message_sets_raise_only_documented_errors(magic: int, codec: int, place: int, value: int) -> None:
    builder = MemoryRecordsBuilder(magic, codec, 1 << 16)
    for i in range(3):
        builder.append(i, b"k%d" % i, b"v" * 20)
    builder.close()
    data = bytearray(builder._buffer)
    data[place % len(data)] = value
    with contextlib.suppress(CorruptBatch):
        read_all(data)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_raise_only_documented_errors(noise: bytes) -> None:
    with contextlib.suppress(CorruptBatch):
        read_all(noise)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=120), st.integers(0, 4), st.integers(-3, 40), st.integers(0, 40))
def test_random_records_after_a_valid_header_raise_only_documented_errors(
    block: bytes, codec: int, count: int, last: int
) -> None:
    data = encode_batch(SAMPLE[:1])[:HEADER_BYTES] + CODECS[codec].compress(block)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">hi", data, 21, codec, last)
    struct.pack_into(">i", data, 57, count)
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    (view,) = iter_batches(memoryview(data))
    for work in (decode_batch, rewrite):
        with contextlib.suppress(CorruptBatch):
            work(view)


@pytest.mark.parametrize("length", [-1, 0, 5, 48])
def test_impossible_lengths_are_corrupt(length: int) -> None:
    data = encode_batch(SAMPLE)
    struct.pack_into(">i", data, 8, length)
    with pytest.raises(CorruptBatch, match=f"claims a length of {length} bytes"):
        list(iter_batches(memoryview(data)))


@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("offset", [2**63 - 1, 2**63 - 2**31])
def test_offsets_that_no_log_has_are_corrupt(offset: int, magic: int) -> None:
    """The next offset has to fit into 64 bits: a struct.error ended all partitions of a micro-batch."""
    data = encode_batch(SAMPLE)
    data[16] = magic
    struct.pack_into(">q", data, 0, offset)
    with pytest.raises(CorruptBatch, match=f"a record batch begins at offset {offset}"):
        list(iter_batches(memoryview(data)))


@pytest.mark.parametrize("magic", [3, 127, 255])
def test_an_unknown_magic_is_corrupt(magic: int) -> None:
    data = encode_batch(SAMPLE)
    data[16] = magic
    with pytest.raises(CorruptBatch, match="magic"):
        list(iter_batches(memoryview(data)))


def test_a_short_header_is_corrupt() -> None:
    with pytest.raises(CorruptBatch, match="needs 61 bytes, 60 are left"):
        read_header(bytes(60))


@pytest.mark.parametrize("announced", [4, 6, -1])
def test_a_wrong_record_count_is_corrupt(announced: int) -> None:
    data = encode_batch(SAMPLE)
    struct.pack_into(">i", data, 57, announced)
    (view,) = iter_batches(memoryview(data))
    with pytest.raises(CorruptBatch, match=r"offsets 0\.\.4 are inconsistent"):
        decode_batch(view)
    with pytest.raises(CorruptBatch, match=r"offsets 0\.\.4 are inconsistent"):
        rewrite(view)


def test_a_record_outside_the_range_of_its_batch_is_corrupt() -> None:
    data = encode_batch(SAMPLE)
    struct.pack_into(">i", data, 23, 3)  # lastOffsetDelta: the fifth record has delta 4
    (view,) = iter_batches(memoryview(data))
    with pytest.raises(CorruptBatch, match="offset delta 4"):
        rewrite(view)


def test_a_record_of_negative_length_is_corrupt() -> None:
    data = encode_batch(SAMPLE[:1])
    data[HEADER_BYTES] = 0x05  # length -3
    (view,) = iter_batches(memoryview(data))
    with pytest.raises(CorruptBatch):
        rewrite(view)
    with pytest.raises(CorruptBatch):
        decode_batch(view)


def test_malformed_control_records_are_corrupt() -> None:
    data = encode_batch([Record(b"\x00", b"", timestamp=1)], attributes=0x20)
    (view,) = iter_batches(memoryview(data))
    assert view.header is not None
    assert control_type(view.header, view.data) is None
