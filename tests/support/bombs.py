"""Record batches that a few kilobytes turn into much memory, with valid checksums."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Final

import cramjam

from mm2.kafka.records.batch import LOG_APPEND_TIME, assemble
from mm2.kafka.varint import varint

_MIB: Final = 1 << 20
_ZSTD_BLOCK_BYTES: Final = 128 << 10
_RLE_BLOCK: Final = _ZSTD_BLOCK_BYTES << 3 | 1 << 1  # three bytes, before the byte that is repeated
_RLE: Final = struct.pack("<I", _RLE_BLOCK)
_LZ4_HEAD: Final = bytes.fromhex("04224d18604082")
_LEAST_RECORD: Final = b"\x0c\x00\x00\x00\x01\x01\x00"
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4


def zstd_zeros(size: int) -> bytes:
    """A zstd frame of RLE blocks (RFC 8878): four bytes for each 128 KiB of zeros."""
    head = struct.pack("<IBB", 0xFD2FB528, 0, 0x38)  # without content size and checksum; a window of 128 KiB
    return head + _RLE * (size // _ZSTD_BLOCK_BYTES - 1) + struct.pack("<I", _RLE_BLOCK | 1)


def gzip_zeros(size: int) -> bytes:
    """The best compression of gzip, about a thousandth."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([*(packer.compress(bytes(_MIB)) for _ in range(size // _MIB)), packer.flush()])


def lz4_zeros(size: int) -> bytes:
    """An LZ4 frame as Kafka's clients write it: one 255th."""
    block = bytes(cramjam.lz4.compress_block(bytes(64 << 10), store_size=False))
    return _LZ4_HEAD + (struct.pack("<I", len(block)) + block) * (size >> 16) + bytes(4)


def lz4_linked_zeros(size: int) -> bytes:
    """An LZ4 frame with blocks of 4 MiB, which Kafka's clients do not write."""
    return bytes(cramjam.lz4.compress(bytes(size)))


def snappy_zeros(size: int) -> bytes:
    """Raw snappy blocks in xerial framing: one 21st."""
    block = bytes(cramjam.snappy.compress_raw(bytes(_MIB)))
    head = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    return head + (struct.pack(">i", len(block)) + block) * (size // _MIB)


ZEROS: Final[dict[str, tuple[int, Callable[[int], bytes]]]] = {
    "gzip": (GZIP, gzip_zeros),
    "snappy": (SNAPPY, snappy_zeros),
    "lz4": (LZ4, lz4_zeros),
    "lz4-linked": (LZ4, lz4_linked_zeros),
    "zstd": (ZSTD, zstd_zeros),
}


def batch_of(block: bytes, codec: int, count: int = 1, *, append_time: bool = True, offset: int = 0) -> bytearray:
    """A batch around a compressed records block. With LogAppendTime a copier has to re-encode it."""
    attributes = codec | (LOG_APPEND_TIME if append_time else 0)
    return assemble(block, count=count, attributes=attributes, base_timestamp=0, max_timestamp=0, base_offset=offset)


def zeros(codec: str, size: int = 450 * _MIB, *, offset: int = 0) -> bytearray:
    """A batch whose records block decompresses to so many zeros."""
    codec_id, pack = ZEROS[codec]
    return batch_of(pack(size), codec_id, offset=offset)


def one_record(size: int, *, key: bytes = b"", append_time: bool = True, offset: int = 0) -> bytearray:
    """A valid batch with one record whose value is so many zeros, a multiple of 128 KiB."""
    body = b"\x00\x00\x00" + varint(len(key)) + key + varint(size)
    head = varint(len(body) + size + 1) + body
    packed = zstd_zeros(size)
    blocks = packed[:6] + _raw_block(head) + _RLE * (size // _ZSTD_BLOCK_BYTES) + _raw_block(b"\x00", is_last=True)
    return batch_of(blocks, ZSTD, append_time=append_time, offset=offset)


def _raw_block(content: bytes, *, is_last: bool = False) -> bytes:
    return struct.pack("<I", len(content) << 3 | is_last)[:3] + content


def many_records(count: int = 9_000_000) -> bytearray:
    """The smallest records: a batch of 6 KB for 63 MB of records, whose objects take 1.5 GB."""
    return batch_of(bytes(cramjam.zstd.compress(_LEAST_RECORD * count)), ZSTD, count)


def many_headers(count: int = 20_000_000) -> bytearray:
    """One record with so many empty headers."""
    body = b"\x00\x00\x00\x01\x01" + varint(count) + b"\x00\x01" * count
    return batch_of(bytes(cramjam.zstd.compress(varint(len(body)) + body)), ZSTD)


def claimed_count(count: int = 2**31 - 1) -> bytearray:
    """A header that claims so many records, over a block with one."""
    return batch_of(_LEAST_RECORD, 0, count)


def message_set(codec: int, block: bytes, magic: int = 1) -> bytearray:
    """A compressed message of magic 1 whose value is such a block."""
    body = struct.pack(">bbqii", magic, codec, 0, -1, len(block)) + block
    return bytearray(struct.pack(">qiI", 0, len(body) + 4, zlib.crc32(body)) + body)


def codec_of_gzip(block: bytes) -> bytes:
    """The block as gzip compresses it."""
    return zlib.compress(block, wbits=31)


def tiny(count: int = 30, size: int = 120 * _MIB) -> Iterator[bytearray]:
    """Consecutive plain batches of less than 4 KB, which a copier far behind would merge."""
    for offset in range(count):
        yield batch_of(zstd_zeros(size), ZSTD, append_time=False, offset=offset)
