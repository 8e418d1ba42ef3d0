"""The five compression codecs of record batches, one small class each behind one interface.

Snappy is the odd one: Java writes it in the framing of the xerial library (a 16-byte head, then length-prefixed raw
blocks) and reads raw snappy too, so both are read here and the framing is written.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from typing import Final, cast

import cramjam

from mm2.kafka.errors import CorruptBatch

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEAD: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024


class Codec(ABC):
    """Compresses and decompresses the records block of a batch."""

    id: int
    name: str

    @abstractmethod
    def compress(self, data: bytes | bytearray | memoryview) -> bytes: ...

    @abstractmethod
    def decompress(self, data: bytes | bytearray | memoryview) -> bytes: ...


class NoCodec(Codec):
    """Records as they are."""

    id, name = 0, "none"

    def compress(self, data: bytes | bytearray | memoryview) -> bytes:
        return bytes(data)

    def decompress(self, data: bytes | bytearray | memoryview) -> bytes:
        return bytes(data)


class Gzip(Codec):
    """RFC 1952."""

    id, name = 1, "gzip"

    def compress(self, data: bytes | bytearray | memoryview) -> bytes:
        return bytes(cramjam.gzip.compress(data, level=6))

    def decompress(self, data: bytes | bytearray | memoryview) -> bytes:
        return bytes(cramjam.gzip.decompress(data))


class Snappy(Codec):
    """Raw snappy blocks of 32 KiB in xerial framing."""

    id, name = 2, "snappy"

    def compress(self, data: bytes | bytearray | memoryview) -> bytes:
        view = memoryview(data)
        out = bytearray(_XERIAL_HEAD)
        for at in range(0, len(view), _XERIAL_BLOCK_BYTES):
            block = bytes(cramjam.snappy.compress_raw(view[at : at + _XERIAL_BLOCK_BYTES]))
            out += struct.pack(">i", len(block)) + block
        return bytes(out)

    def decompress(self, data: bytes | bytearray | memoryview) -> bytes:
        view = memoryview(data)
        if bytes(view[:8]) != _XERIAL_MAGIC:
            return bytes(cramjam.snappy.decompress_raw(view))
        out = bytearray()
        at = len(_XERIAL_HEAD)
        while at < len(view):
            (size,) = struct.unpack_from(">i", view, at)
            at += 4
            if size < 0 or at + size > len(view):
                message = f"a snappy block claims {size} bytes, {len(view) - at} are there"
                raise CorruptBatch(message)
            out += cramjam.snappy.decompress_raw(view[at : at + size])
            at += size
        return bytes(out)


class Lz4(Codec):
    """The LZ4 frame format with independent blocks: Java's reader refuses linked ones, cramjam's default."""

    id, name = 3, "lz4"

    def compress(self, data: bytes | bytearray | memoryview) -> bytes:
        compressor = cramjam.lz4.Compressor(block_linked=False)
        compressor.compress(bytes(data))
        return bytes(compressor.finish())

    def decompress(self, data: bytes | bytearray | memoryview) -> bytes:
        return bytes(cramjam.lz4.decompress(data))


class Zstd(Codec):
    """RFC 8878 (KIP-110)."""

    id, name = 4, "zstd"

    def compress(self, data: bytes | bytearray | memoryview) -> bytes:
        return bytes(cramjam.zstd.compress(data, level=3))

    def decompress(self, data: bytes | bytearray | memoryview) -> bytes:
        return bytes(cramjam.zstd.decompress(data))


CODECS: Final[tuple[Codec, ...]] = (NoCodec(), Gzip(), Snappy(), Lz4(), Zstd())
_BY_NAME: Final = {codec.name: codec for codec in CODECS}


def codec_of(key: int | str) -> Codec:
    """The codec of an id (attributes & 7) or of a Kafka name (``compression.type``); CorruptBatch / ValueError."""
    if isinstance(key, int):
        if key >= len(CODECS):
            message = f"a record batch names compression codec {key}, which does not exist"
            raise CorruptBatch(message)
        return CODECS[key]
    if key not in _BY_NAME:
        message = f"{key!r} is not a compression type; there are {', '.join(_BY_NAME)}"
        raise ValueError(message)
    return _BY_NAME[key]


def decompress(codec_id: int, data: bytes | bytearray | memoryview) -> bytes:
    """Decompress a records block; CorruptBatch when it is no valid block of that codec."""
    codec = codec_of(codec_id)
    try:
        return codec.decompress(data)
    except CorruptBatch:
        raise
    except Exception as error:  # cramjam.DecompressionError and, for lz4, plain OSErrors
        message = f"a {codec.name} block of {len(cast(bytes, data))} bytes does not decompress: {error}"
        raise CorruptBatch(message) from error
