"""The five compression codecs of record batches: one small class each, one interface.

Snappy: Java writes it in the framing of the xerial library (a 16-byte head, then length-prefixed raw blocks) and also
reads raw snappy. This module reads both and writes the framing.

No codec produces more than a limit: the output is written into a buffer that never grows beyond it. So a batch that was
made to expand to gigabytes is rejected at the cost of the limit.

LZ4: frames are parsed and built here, block by block. A tiny batch takes a tenth of the setup time of the library's
frame reader, and a large one needs no checksums besides that of the batch.
"""

from __future__ import annotations

import struct
import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, cast

import cramjam

from mm2.kafka.errors import BatchOverLimit, CorruptBatch

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEAD: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_SNAPPY_EXPANSION: Final = 24  # the highest expansion: a three-byte copy produces 64 bytes

# Head of every frame of Java's client and of librdkafka: magic number, version 1 with independent blocks and no
# checksums, blocks of 64 KiB, checksum of these two bytes.
_LZ4_HEAD: Final = bytes.fromhex("04224d18604082")
_LZ4_BLOCK_BYTES: Final = 64 * 1024
_LZ4_STORED: Final = 0x80000000
_LZ4_CONTENT_SIZE: Final = 0x08  # a flag: the descriptor has eight more bytes
_LZ4_DICTIONARY: Final = 0x01  # four more bytes
_LZ4_START: Final = struct.Struct("<7sI")
_LZ4_SIZE: Final = struct.Struct("<I")


LZ4: Final = 3
ZSTD: Final = 4

#: Default of ``decompression.max.bytes``: 64 times the default of ``max.message.bytes``. Text compresses by 3 to 20.
DECOMPRESSION_MAX_BYTES: Final = 64 << 20

_KEPT_SCRATCH_BYTES: Final = 4 << 20  # new memory costs a page fault per 4 KiB
_USUAL_EXPANSION: Final = 4
#: The library's message when the output buffer is full.
_BUFFER_IS_FULL: Final = "failed to write whole buffer"

Data = bytes | bytearray | memoryview


class _Scratch(threading.local):
    """Output buffer of the library, one per thread, because the library releases the GIL."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_LZ4_BLOCK_BYTES))

    def expand(self, decompress_into: Callable[[Data, memoryview], int], data: Data, limit: int) -> bytes:
        """What ``data`` decompresses to. Raises _OverLimit, or what the library raises."""
        view = self.view
        if len(view) < (usual := min(limit, len(data) * _USUAL_EXPANSION)):
            view = self._grown(usual)
        while True:
            try:
                return bytes(view[: decompress_into(data, view[:limit])])
            except cramjam.DecompressionError as error:
                if str(error) != _BUFFER_IS_FULL:
                    raise
            if len(view) >= limit:
                raise _OverLimit
            view = self._grown(min(limit, len(view) * 4))

    def _grown(self, size: int) -> memoryview:
        view = memoryview(bytearray(size))
        if size <= _KEPT_SCRATCH_BYTES:
            self.view = view
        return view


class _OverLimit(Exception):
    """More than the limit would be decompressed."""


_SCRATCH: Final = _Scratch()


class Codec(ABC):
    """Compresses and decompresses the records block of a batch.

    ``fast`` selects the cheapest level instead of the default level of Kafka's producer. ``level`` is a level of the codec
    (``compression.<codec>.level``, KIP-390); codecs without levels ignore it, and so does LZ4, whose library has one.
    """

    id: int
    name: str

    @abstractmethod
    def compress(self, data: Data, *, fast: bool = False, level: int | None = None) -> bytes: ...

    @abstractmethod
    def decompress(self, data: Data, limit: int) -> bytes:
        """Raises _OverLimit instead of returning more than ``limit`` bytes."""


class NoCodec(Codec):
    """Uncompressed records."""

    id, name = 0, "none"

    def compress(self, data: Data, *, fast: bool = False, level: int | None = None) -> bytes:
        return bytes(data)

    def decompress(self, data: Data, limit: int) -> bytes:
        del limit  # these bytes have been received already
        return bytes(data)


class Gzip(Codec):
    """RFC 1952."""

    id, name = 1, "gzip"

    def compress(self, data: Data, *, fast: bool = False, level: int | None = None) -> bytes:
        if fast:
            return zlib.compress(data, 1, wbits=31)
        return bytes(cramjam.gzip.compress(data, level=6 if level is None or level < 0 else level))

    def decompress(self, data: Data, limit: int) -> bytes:
        return _SCRATCH.expand(cramjam.gzip.decompress_into, data, limit)


class Snappy(Codec):
    """Raw snappy blocks of 32 KiB in xerial framing."""

    id, name = 2, "snappy"

    def compress(self, data: Data, *, fast: bool = False, level: int | None = None) -> bytes:
        view = memoryview(data)
        out = bytearray(_XERIAL_HEAD)
        for at in range(0, len(view), _XERIAL_BLOCK_BYTES):
            block = bytes(cramjam.snappy.compress_raw(view[at : at + _XERIAL_BLOCK_BYTES]))
            out += struct.pack(">i", len(block)) + block
        return bytes(out)

    def decompress(self, data: Data, limit: int) -> bytes:
        view = memoryview(data)
        if bytes(view[:8]) != _XERIAL_MAGIC:
            return self._block(view, limit)
        out = bytearray()
        at = len(_XERIAL_HEAD)
        while at < len(view):
            (size,) = struct.unpack_from(">i", view, at)
            at += 4
            if size < 0 or at + size > len(view):
                message = f"a snappy block claims {size} bytes, {len(view) - at} are there"
                raise CorruptBatch(message)
            out += self._block(view[at : at + size], limit - len(out))
            at += size
        return bytes(out)

    @staticmethod
    def _block(block: memoryview, limit: int) -> bytes:
        # The library allocates the size that the block claims, up to 4 GiB, before it reads the rest.
        size = cramjam.snappy.decompress_raw_len(block)
        if size > _SNAPPY_EXPANSION * len(block):
            message = f"a snappy block of {len(block)} bytes claims {size} decompressed"
            raise CorruptBatch(message)
        if size > limit:
            raise _OverLimit
        return bytes(cramjam.snappy.decompress_raw(block))


class Lz4(Codec):
    """The LZ4 frame format with independent blocks: Java's reader rejects linked ones, the default of cramjam."""

    id, name = LZ4, "lz4"

    def compress(self, data: Data, *, fast: bool = False, level: int | None = None) -> bytes:
        del fast, level  # Java's producer also uses the fast compressor unless a level is configured
        view = memoryview(data)
        out: list[bytes | memoryview] = [_LZ4_HEAD]
        for at in range(0, len(view), _LZ4_BLOCK_BYTES):
            plain = view[at : at + _LZ4_BLOCK_BYTES]
            packed = bytes(cramjam.lz4.compress_block(plain, store_size=False))
            if len(packed) < len(plain):
                out += (_LZ4_SIZE.pack(len(packed)), packed)
            else:
                out += (_LZ4_SIZE.pack(len(plain) | _LZ4_STORED), plain)
        out.append(b"\0\0\0\0")
        return b"".join(out)

    def decompress(self, data: Data, limit: int) -> bytes:
        view = memoryview(data)
        head, size = _LZ4_START.unpack_from(view)
        if head != _LZ4_HEAD:
            return _SCRATCH.expand(cramjam.lz4.decompress_into, data, limit)
        scratch = _SCRATCH.view[:_LZ4_BLOCK_BYTES]
        blocks: list[bytes] = []
        left = limit
        at = _LZ4_START.size
        while size:
            stored, size = size & _LZ4_STORED, size & ~_LZ4_STORED
            stop = at + size
            block = view[at:stop]
            (size,) = _LZ4_SIZE.unpack_from(view, stop)
            at = stop + 4
            if stored:
                blocks.append(bytes(block))
            else:
                blocks.append(bytes(scratch[: cramjam.lz4.decompress_block_into(block, scratch)]))
            left -= len(blocks[-1])
            if left < 0:
                raise _OverLimit
        # Bytes after the end mark are ignored, as by Java's reader.
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)


def with_right_head(frame: bytes) -> bytes:
    """Fix an LZ4 frame of a message of magic 0.

    Its writers included the frame's magic number in the descriptor's checksum (KAFKA-3160), so all other readers reject
    it. Raises ValueError when there is no descriptor.
    """
    if len(frame) < len(_LZ4_HEAD):
        message = f"an lz4 frame of {len(frame)} bytes"
        raise ValueError(message)
    flags = frame[4]
    place = 6 + (8 if flags & _LZ4_CONTENT_SIZE else 0) + (4 if flags & _LZ4_DICTIONARY else 0)
    checksum = _xxh32(frame[4:place]) >> 8 & 0xFF
    return frame[:place] + bytes((checksum,)) + frame[place + 1 :]


def _xxh32(data: bytes) -> int:
    """XXH32 with seed 0 for fewer than 16 bytes, the size of every descriptor: the rounds of four lanes are omitted."""
    mask = 0xFFFFFFFF
    total = (0x165667B1 + len(data)) & mask
    whole = len(data) & ~3
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        total = (total + word * 0xC2B2AE3D) & mask
        total = ((total << 17 | total >> 15) * 0x27D4EB2F) & mask
    for byte in data[whole:]:
        total = (total + byte * 0x165667B1) & mask
        total = ((total << 11 | total >> 21) * 0x9E3779B1) & mask
    total = ((total ^ total >> 15) * 0x85EBCA77) & mask
    total = ((total ^ total >> 13) * 0xC2B2AE3D) & mask
    return total ^ total >> 16


class Zstd(Codec):
    """RFC 8878 (KIP-110)."""

    id, name = ZSTD, "zstd"

    def compress(self, data: Data, *, fast: bool = False, level: int | None = None) -> bytes:
        return bytes(cramjam.zstd.compress(data, level=1 if fast else 3 if level is None else level))

    def decompress(self, data: Data, limit: int) -> bytes:
        return _SCRATCH.expand(cramjam.zstd.decompress_into, data, limit)


CODECS: Final[tuple[Codec, ...]] = (NoCodec(), Gzip(), Snappy(), Lz4(), Zstd())
_BY_NAME: Final = {codec.name: codec for codec in CODECS}


def codec_of(key: int | str) -> Codec:
    """The codec of an id (attributes & 7) or of a Kafka name (``compression.type``).

    Raises CorruptBatch or ValueError.
    """
    if isinstance(key, int):
        if key >= len(CODECS):
            message = f"a record batch has the unknown compression codec {key}"
            raise CorruptBatch(message)
        return CODECS[key]
    if key not in _BY_NAME:
        message = f"{key!r} is not a compression type; known are {', '.join(_BY_NAME)}"
        raise ValueError(message)
    return _BY_NAME[key]


def decompress(codec_id: int, data: Data, limit: int = DECOMPRESSION_MAX_BYTES) -> bytes:
    """Decompress a records block.

    Raises BatchOverLimit instead of returning more than ``limit`` bytes, and CorruptBatch when it is not a valid block
    of that codec. Uncompressed records have no limit: they have been received already.
    """
    codec = codec_of(codec_id)
    try:
        return codec.decompress(data, limit)
    except CorruptBatch:
        raise
    except _OverLimit:
        size = len(cast(bytes, data))
        message = (
            f"a {codec.name} block of {size} bytes decompresses to more than {limit} bytes (decompression.max.bytes)"
        )
        raise BatchOverLimit(message) from None
    except Exception as error:  # cramjam.DecompressionError and, for lz4, plain OSErrors
        message = f"a {codec.name} block of {len(cast(bytes, data))} bytes does not decompress: {error}"
        raise CorruptBatch(message) from error
