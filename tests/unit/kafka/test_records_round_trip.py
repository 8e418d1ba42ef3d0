"""Record batches compared with kafka-python's own encoder and decoder, in both directions.

Its codecs other than gzip need packages that we do not have; those three are compared with independent clients on real
brokers (tests/integration/copy/test_copy_engine.py) and here against their own reference bytes.
"""

from __future__ import annotations

import contextlib
import random
from typing import Any

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from mm2.kafka.errors import CorruptBatch
from mm2.kafka.records.batch import BatchView, check_crc, iter_batches, read_header
from mm2.kafka.records.codec import CODECS, codec_of, decompress
from mm2.kafka.records.record import Record, decode_batch, encode_batch, read_varint
from mm2.kafka.varint import varint

payloads = st.none() | st.binary(max_size=80)
# kafka-python rejects negative timestamps, like Java's client.
timestamps = st.integers(0, 1 << 42)
records = st.builds(
    Record,
    key=payloads,
    value=payloads,
    headers=st.lists(st.tuples(st.text(max_size=8), payloads), max_size=4).map(tuple),
    timestamp=timestamps,
)
batches = st.lists(records, min_size=1, max_size=12)


def view_of(data: bytes | bytearray) -> BatchView:
    (view,) = iter_batches(memoryview(bytearray(data)))
    return view


def plain(decoded: list[Record]) -> list[tuple[Any, ...]]:
    return [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in decoded]


def expected(wanted: list[Record], base_offset: int = 0) -> list[tuple[Any, ...]]:
    return [(base_offset + i, r.timestamp, r.key, r.value, r.headers) for i, r in enumerate(wanted)]


def theirs(wanted: list[Record], codec: int, offset: int = 0) -> bytes:
    builder = MemoryRecordsBuilder(2, codec, 1 << 20, offset=offset)
    for record in wanted:
        assert builder.append(record.timestamp, record.key, record.value, list(record.headers)) is not None
    builder.close()
    return bytes(builder._buffer)


@given(batches, st.sampled_from([0, 1]), st.integers(0, 1 << 50))
def test_batches_of_other_clients_are_read(wanted: list[Record], codec: int, base_offset: int) -> None:
    data = bytearray(theirs(wanted, codec))
    data[:8] = base_offset.to_bytes(8, "big")  # as a broker does
    view = view_of(data)
    assert view.header is not None
    check_crc(view.header, view.data)
    assert plain(decode_batch(view)) == expected(wanted, base_offset)


@given(batches, st.sampled_from([0, 1]), st.integers(0, 1 << 50))
def test_other_clients_read_our_batches(wanted: list[Record], codec: int, base_offset: int) -> None:
    (batch,) = MemoryRecords(bytes(encode_batch(wanted, codec=codec, base_offset=base_offset)))
    assert batch.validate_crc()
    assert (batch.compression_type, batch.max_timestamp) == (codec, max(r.timestamp or 0 for r in wanted))
    decoded = [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch]
    assert decoded == expected(wanted, base_offset)


@given(batches)
def test_uncompressed_bytes_equal_those_of_kafka_python(wanted: list[Record]) -> None:
    ours = encode_batch(wanted)
    ours[12:16] = theirs(wanted, 0)[12:16]  # partition leader epoch: they write 0, Java and we -1
    assert bytes(ours) == theirs(wanted, 0)


@given(batches, st.sampled_from([codec.name for codec in CODECS]))
def test_every_codec_round_trips(wanted: list[Record], codec: str) -> None:
    view = view_of(encode_batch(wanted, codec=codec))
    assert view.header is not None
    assert view.header.codec == codec_of(codec).id
    check_crc(view.header, view.data)
    assert plain(decode_batch(view)) == expected(wanted)


def test_fields_given_by_the_caller_are_in_the_header() -> None:
    data = encode_batch(
        [Record(b"k", b"v", timestamp=5)], producer=(7, 3, 11), base_offset=1 << 40, attributes=0x10, codec="zstd"
    )
    batch = DefaultRecordBatch(bytes(data))
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 3, 11)
    assert (batch.base_offset, batch.is_transactional, batch.compression_type) == (1 << 40, True, 4)
    assert batch.leader_epoch == -1
    assert batch.validate_crc()


def test_an_empty_batch_is_not_encoded() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        encode_batch([])


def test_a_record_without_timestamp_is_stamped_with_the_time_of_encoding() -> None:
    (decoded,) = decode_batch(view_of(encode_batch([Record(b"k", None)])))
    assert decoded.timestamp is not None
    assert decoded.timestamp > 1_600_000_000_000


def test_header_names_that_are_not_utf8_are_kept() -> None:
    name = b"\xff\xfe".decode("utf-8", "surrogateescape")
    wanted = [Record(None, b"v", ((name, None), (name, b"")), 1)]
    assert plain(decode_batch(view_of(encode_batch(wanted)))) == expected(wanted)


@given(st.lists(batches, min_size=1, max_size=4), st.integers(0, 60))
def test_a_truncated_last_batch_ends_the_walk(groups: list[list[Record]], cut: int) -> None:
    parts = [bytes(encode_batch(group)) for group in groups]
    whole = b"".join(parts)
    views = list(iter_batches(memoryview(whole)[: len(whole) - cut]))
    kept = len(parts) - bool(cut)
    assert [bytes(view.data) for view in views] == parts[:kept]


# -- varints ------------------------------------------------------------------------------------------------------------


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_varints_round_trip(number: int) -> None:
    data = varint(number)
    assert len(data) <= 10
    assert read_varint(data + b"\x01", 0) == (number, len(data))


# Zig-zag vectors of the protobuf encoding, whose sint64 this is.
@pytest.mark.parametrize(
    ("number", "data"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (-64, "7f"),
        (64, "8001"),
        (2147483647, "feffffff0f"),
        (-2147483648, "ffffffff0f"),
        ((1 << 63) - 1, "feffffffffffffffff01"),
        (-(1 << 63), "ffffffffffffffffff01"),
    ],
)
def test_varint_vectors(number: int, data: str) -> None:
    assert varint(number).hex() == data
    assert read_varint(bytes.fromhex(data), 0) == (number, len(data) // 2)


def test_a_varint_of_more_than_ten_bytes_is_corrupt() -> None:
    assert read_varint(b"\x80" * 9 + b"\x01", 0)[1] == 10
    with pytest.raises(CorruptBatch, match="more than 10 bytes"):
        read_varint(b"\x80" * 10 + b"\x01", 0)


def test_an_unterminated_varint_is_past_the_end() -> None:
    with pytest.raises(IndexError):
        read_varint(b"\x80\x80", 0)


# -- codecs -------------------------------------------------------------------------------------------------------------


def test_snappy_is_written_as_xerial_does() -> None:
    data = bytes(range(256)) * 200  # two blocks of 32 KiB
    packed = codec_of("snappy").compress(data)
    assert packed[:16].hex() == "82534e41505059000000000100000001"
    first = int.from_bytes(packed[16:20], "big")
    assert bytes(cramjam.snappy.decompress_raw(packed[20 : 20 + first])) == data[: 32 * 1024]
    assert decompress(2, packed) == data


def test_raw_snappy_is_read_too() -> None:
    assert decompress(2, bytes(cramjam.snappy.compress_raw(b"abc" * 100))) == b"abc" * 100


def test_lz4_frames_have_independent_blocks() -> None:
    packed = codec_of("lz4").compress(b"x" * 200_000)
    assert packed[:4].hex() == "04224d18"
    assert packed[4] & 0x20, "Java's reader refuses linked blocks"


@pytest.mark.parametrize("size", [0, 1, 100, 64 * 1024, 64 * 1024 + 1, 300_000])
@pytest.mark.parametrize("data", [b"abcdef" * 50_000, random.Random(5).randbytes(300_000)], ids=["dense", "stored"])
def test_lz4_frames_are_read_and_written_as_the_library_does(size: int, data: bytes) -> None:
    packed = codec_of("lz4").compress(data[:size])
    assert packed[:7].hex() == "04224d18604082", "how Java's and librdkafka's frames begin"
    assert bytes(cramjam.lz4.decompress(packed)) == decompress(3, packed) == data[:size]
    assert decompress(3, bytes(cramjam.lz4.compress(data[:size]))) == data[:size]


@pytest.mark.parametrize("size", [0x80000004, 0x7FFFFFFF, 3, 0xFFFFFFFF])
def test_lz4_blocks_with_a_wrong_size_are_corrupt(size: int) -> None:
    packed = bytearray(codec_of("lz4").compress(b"abc" * 100))
    packed[7:11] = size.to_bytes(4, "little")
    with pytest.raises(CorruptBatch, match="lz4 block"):
        decompress(3, packed)


def test_a_snappy_block_that_claims_gigabytes_allocates_nothing() -> None:
    with pytest.raises(CorruptBatch, match="claims 4294967295 decompressed"):
        decompress(2, b"\xff\xff\xff\xff\x0f" + bytes(20))
    assert decompress(2, bytes(cramjam.snappy.compress_raw(bytes(1 << 20)))) == bytes(1 << 20)


@pytest.mark.parametrize("codec", [codec.name for codec in CODECS])
def test_the_fast_level_is_read_like_any_other(codec: str) -> None:
    chosen = codec_of(codec)
    assert decompress(chosen.id, chosen.compress(b"some text, " * 900, fast=True)) == b"some text, " * 900


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
@settings(max_examples=60, deadline=None)
@given(noise=st.binary(max_size=200))
def test_random_bytes_do_not_decompress(codec: int, noise: bytes) -> None:
    with contextlib.suppress(CorruptBatch):
        decompress(codec, noise)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs_are_corrupt(codec: int) -> None:
    data = encode_batch([Record(b"k", b"v", timestamp=1)])
    data[22] = codec
    assert read_header(data).codec == codec
    with pytest.raises(CorruptBatch, match=f"codec {codec}"):
        decode_batch(view_of(data))


def test_an_unknown_codec_name_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="'brotli' is not a compression type; known are none, gzip"):
        codec_of("brotli")


@pytest.mark.parametrize("lie", [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x00\x00\x10"])
def test_snappy_blocks_with_a_wrong_size_are_corrupt(lie: bytes) -> None:
    packed = codec_of("snappy").compress(b"abc" * 100)
    with pytest.raises(CorruptBatch, match="snappy block"):
        decompress(2, packed[:16] + lie + packed[20:] if len(lie) == 4 else packed[:16] + lie)
