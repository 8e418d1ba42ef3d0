"""Read and corrupt the log segments of a broker.

Bytes are changed in place. The running broker reads through the same page cache, so it serves the changed bytes.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import crc32c

from mm2.sandbox.kafka import LocalKafka

_HEADER = struct.Struct(">qiibIhiqqqhii")  # base offset .. record count, as in the table of mm2.kafka.records.batch
_CRC_AT, _CRC_FROM, _ATTRIBUTES_AT, _RECORDS_AT = 17, 21, 21, 61


@dataclass(frozen=True)
class Batch:
    """A record batch of magic 2 in a file."""

    file: Path
    position: int
    size: int
    base_offset: int
    records: int
    is_transactional: bool

    @property
    def data(self) -> bytearray:
        with self.file.open("rb") as file:
            return bytearray(os.pread(file.fileno(), self.size, self.position))

    def overwrite(self, data: bytes | bytearray) -> None:
        assert len(data) == self.size, "a segment is changed in place"
        with self.file.open("r+b") as file:
            os.pwrite(file.fileno(), data, self.position)

    def change(self, how: Callable[[bytearray], None], *, right_crc: bool) -> None:
        """Change the bytes with `how`; recompute the checksum when `right_crc`, else keep it."""
        data = self.data
        how(data)
        if right_crc:
            struct.pack_into(">I", data, _CRC_AT, crc32c.crc32c(bytes(data[_CRC_FROM:])))
        self.overwrite(data)


def batches(broker: LocalKafka, topic: str, partition: int = 0) -> list[Batch]:
    """All batches of a partition in the order of the log."""
    found = []
    for file in sorted((broker.folder / "data" / f"{topic}-{partition}").glob("*.log")):
        content = file.read_bytes()
        at = 0
        while at + _HEADER.size <= len(content):
            base, length, _, _, _, attributes, last_delta, *_, count = _HEADER.unpack_from(content, at)
            if length <= 0:
                break
            records = count if count >= 0 else last_delta + 1
            found.append(Batch(file, at, length + 12, base, records, bool(attributes & 16)))
            at += length + 12
    return found


def flip_a_bit(data: bytearray) -> None:
    """Flip one bit in the middle of the records."""
    data[(_RECORDS_AT + len(data)) // 2] ^= 0x10


def unknown_codec(data: bytearray) -> None:
    """Set codec 6: the field has three bits, and Kafka defines five values."""
    (attributes,) = struct.unpack_from(">h", data, _ATTRIBUTES_AT)
    struct.pack_into(">h", data, _ATTRIBUTES_AT, attributes & ~7 | 6)


def wrong_record_length(data: bytearray) -> None:
    """Set the length of the first record to more than the batch has."""
    data[_RECORDS_AT : _RECORDS_AT + 2] = b"\xfe\x7f"


def message_set(size: int, base_offset: int, count: int, timestamp_ms: int | None) -> tuple[bytes, list[bytes]]:
    """Messages of magic 1, or of magic 0 without a timestamp, of exactly `size` bytes, and their values (KIP-32)."""
    magic = 0 if timestamp_ms is None else 1
    overhead = 8 + 4 + 4 + 1 + 1 + 8 * magic + 4 + 4
    share = size // count
    blocks, values = [], []
    for index in range(count):
        room = share if index < count - 1 else size - share * (count - 1)
        value = (b"magic %d number %d " % (magic, index)).ljust(room - overhead, b".")
        assert len(value) == room - overhead
        time = b"" if timestamp_ms is None else struct.pack(">q", timestamp_ms + index)
        body = struct.pack(">bb", magic, 0) + time + struct.pack(">ii", -1, len(value)) + value
        message = struct.pack(">I", zlib.crc32(body)) + body
        blocks.append(struct.pack(">qi", base_offset + index, len(message)) + message)
        values.append(value)
    return b"".join(blocks), values
