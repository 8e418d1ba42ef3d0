"""Message sets of magic 0 and 1, compared with bytes of Java's client, in all codecs, and corrupt ones."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import cramjam
import pytest
from kafka.record.memory_records import MemoryRecordsBuilder

from mm2.kafka.errors import CorruptBatch
from mm2.kafka.records.batch import BatchView, iter_batches, read_header
from mm2.kafka.records.codec import codec_of, with_right_head
from mm2.kafka.records.legacy import read_message_set
from mm2.kafka.records.record import decode_batch, rewrite, split

GOLDEN = Path(__file__).with_name("legacy_message_sets.tsv")
ROWS = [line.split() for line in GOLDEN.read_text().splitlines() if not line.startswith("#")]
VALUES = [(b"k0", b"v" * 60), (None, b"one"), (b"k2", None)]
STAMPS = {
    "none": [-1, -1, -1],
    "create": [1600000000000, 1600000000005, 1600000000003],
    "append": [1600000000999] * 3,
}


def views_of(data: bytes | bytearray) -> list[BatchView]:
    return list(iter_batches(memoryview(bytearray(data))))


def message(
    value: bytes | None,
    *,
    key: bytes | None = None,
    offset: int = 0,
    magic: int = 1,
    attributes: int = 0,
    stamp: int = 7,
) -> bytes:
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", stamp) if magic else b"")
    for data in (key, value):
        body += struct.pack(">i", -1 if data is None else len(data)) + (data or b"")
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def golden(magic: int, codec: str) -> bytes:
    return next(bytes.fromhex(row[3]) for row in ROWS if row[:2] == [str(magic), codec])


@pytest.mark.parametrize(("magic", "codec", "stamps", "data"), ROWS, ids=["-".join(row[:3]) for row in ROWS])
def test_batches_written_by_java_are_read(magic: str, codec: str, stamps: str, data: str) -> None:
    found, offsets = [], []
    for view in views_of(bytes.fromhex(data)):
        assert (view.magic, view.header) == (int(magic), None)
        found += decode_batch(view)
        rewritten = rewrite(view)
        assert rewritten is not None
        assert read_header(rewritten.data).codec == codec_of(codec).id
        assert rewritten.offsets == [record.offset for record in decode_batch(view)]
        assert split(view, 2)[0].data == rewritten.data
        offsets += rewritten.offsets
        (batch,) = views_of(rewritten.data)
        assert [(r.key, r.value, r.timestamp) for r in decode_batch(batch)] == [
            (r.key, r.value, r.timestamp) for r in decode_batch(view)
        ]
    assert offsets == [1000, 1001, 1002]
    assert [(record.key, record.value) for record in found] == VALUES
    assert [record.timestamp for record in found] == STAMPS[stamps]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1])
def test_batches_written_by_kafka_python_are_read(magic: int, codec: int) -> None:
    builder = MemoryRecordsBuilder(magic, codec, 1 << 20, offset=0)
    for i in range(3):
        builder.append(4000 + i, b"k%d" % i, None if i == 1 else b"v%d" % i)
    builder.close()
    got = [record for view in views_of(bytes(builder._buffer)) for record in decode_batch(view)]
    assert [(r.key, r.value) for r in got] == [(b"k0", b"v0"), (b"k1", None), (b"k2", b"v2")]
    assert [r.timestamp for r in got] == ([4000, 4001, 4002] if magic else [-1, -1, -1])


def test_records_of_a_message_set_can_be_selected() -> None:
    (view,) = views_of(golden(1, "gzip"))
    by_offset, by_place = rewrite(view, keep=lambda offset: offset > 1000), rewrite(view, keep_index=lambda i: i == 1)
    assert by_offset is not None
    assert by_place is not None
    assert (by_offset.offsets, by_place.offsets) == ([1001, 1002], [1001])
    assert rewrite(view, keep=lambda offset: False) is None
    plain = rewrite(view, recompress=False)
    assert plain is not None
    assert read_header(plain.data).codec == 0


def test_the_wrong_checksum_of_old_lz4_frames_is_corrected() -> None:
    old = golden(0, "lz4")
    frame = old[old.index(b"\x04\x22\x4d\x18") :]
    assert frame[6] == 0x1A
    with pytest.raises(cramjam.DecompressionError):
        cramjam.lz4.decompress(frame)
    right = with_right_head(frame)
    assert right[6] == 0x82
    assert right[:6] + right[7:] == frame[:6] + frame[7:]


@pytest.mark.parametrize("linked", [True, False])
def test_old_lz4_frames_of_other_writers_are_corrected(linked: bool) -> None:
    compressor = cramjam.lz4.Compressor(content_checksum=True, block_linked=linked)
    compressor.compress(b"".join(message(b"v%d" % i * 50, offset=5 + i, magic=0) for i in range(2)))
    frame = bytearray(bytes(compressor.finish()))
    frame[6] ^= 0xFF
    (view,) = views_of(message(bytes(frame), offset=6, magic=0, attributes=3))
    assert [(one.offset, one.value) for one in read_message_set(view)] == [(5, b"v0" * 50), (6, b"v1" * 50)]


def test_a_descriptor_with_content_size_has_its_checksum_further_on() -> None:
    frame = bytearray(bytes.fromhex("04224d18") + b"\x68\x40" + struct.pack("<Q", 5) + b"?" + b"rest")
    fixed = with_right_head(bytes(frame))
    assert fixed[:14] == frame[:14]
    assert fixed[15:] == b"rest"
    assert bytes(cramjam.lz4.decompress(fixed[:15] + b"\x05\0\0\x80hello" + bytes(4))) == b"hello"


def test_an_unnumbered_wrapper_begins_at_zero() -> None:
    # As librdkafka sends it: Java's reader makes the same exception.
    inner = b"".join(message(b"v", offset=i) for i in range(3))
    (view,) = views_of(message(codec_of("gzip").compress(inner), attributes=1))
    assert [one.offset for one in read_message_set(view)] == [0, 1, 2]


@pytest.mark.parametrize("magic", [0, 1])
def test_compacted_message_sets_keep_their_offsets(magic: int) -> None:
    inner = b"".join(message(b"v", offset=offset if magic else 40 + offset, magic=magic) for offset in (0, 4, 9))
    (view,) = views_of(message(codec_of("snappy").compress(inner), offset=49, magic=magic, attributes=2))
    rewritten = rewrite(view)
    assert rewritten is not None
    assert rewritten.offsets == [40, 44, 49]
    assert read_header(rewritten.data).is_dense


SMALL = message(b"v", offset=3)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (message(None, attributes=1), "codec 1 of a value of None bytes"),
        (message(b"x", attributes=4), "codec 4"),
        (message(b"x", attributes=7), "codec 7"),
        (message(b"x", attributes=1), "gzip block of 1 bytes does not decompress"),
        (message(b"x", attributes=3, magic=0), "an lz4 frame of 1 bytes"),
        (message(codec_of("gzip").compress(b""), attributes=1), "contains 0 messages"),
        (message(codec_of("gzip").compress(message(b"x", attributes=1)), attributes=1), "or compressed ones"),
        (message(codec_of("gzip").compress(SMALL), attributes=1, offset=2), "relative offset 3"),
        (message(codec_of("gzip").compress(SMALL[:-1]), attributes=1), "claims"),
        (message(codec_of("gzip").compress(SMALL + b"\0"), attributes=1), "does not parse"),
        (message(codec_of("gzip").compress(SMALL[:-1] + b"w"), attributes=1), "fails its CRC"),
        (message(codec_of("gzip").compress(bytes(16) + b"\2" + bytes(30)), attributes=1), "magic 2"),
        (SMALL[:-1] + b"w", r"offset 3 \(magic 1\) fails its CRC"),
    ],
)
def test_inconsistent_message_sets_are_corrupt(data: bytes, why: str) -> None:
    (view,) = views_of(data)
    for work in (decode_batch, rewrite):
        with pytest.raises(CorruptBatch, match=why):
            work(view)


@pytest.mark.parametrize("lengths", [(-2, 1), (5, 1), (-1, 2), (-1, 0), (1 << 30, 0)])
def test_wrong_lengths_with_a_valid_crc_are_corrupt(lengths: tuple[int, int]) -> None:
    body = struct.pack(">bbqii", 1, 0, 7, *lengths) + b"v"
    (view,) = views_of(struct.pack(">qiI", 0, len(body) + 4, zlib.crc32(body)) + body)
    with pytest.raises(CorruptBatch, match="does not parse"):
        read_message_set(view)


def test_timestamps_too_far_apart_for_one_batch_are_corrupt() -> None:
    inner = message(b"a", offset=0, stamp=-1) + message(b"b", offset=1, stamp=(1 << 63) - 1)
    (view,) = views_of(message(codec_of("gzip").compress(inner), offset=1, attributes=1))
    assert len(decode_batch(view)) == 2
    with pytest.raises(CorruptBatch, match="timestamps from -1"):
        rewrite(view)
