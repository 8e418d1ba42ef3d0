"""Small valid inputs of every kind; large inputs have no additional errors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from kafka.record.memory_records import MemoryRecordsBuilder

from mm2.kafka.records.batch import CONTROL, DELETE_HORIZON, LOG_APPEND_TIME, TRANSACTIONAL
from mm2.kafka.records.codec import CODECS
from mm2.kafka.records.record import Record, encode_batch
from tests.unit.kafka.test_records_legacy import ROWS
from tests.unit.kafka.test_wire_fetch import T0, T1, U0
from tests.unit.kafka.test_wire_fetch import answer as fetch_answer
from tests.unit.kafka.test_wire_produce import frame_of as produce_answer

NOON: Final = 1_700_000_000_000
SAMPLE: Final = (
    Record(b"k", b"value" * 4, (("h", b"x"), ("h", None)), NOON),
    Record(None, b"", (), NOON + 3),
    Record(b"", None, (("", b""),), NOON - 1),
)
CODEC_IDS: Final = tuple(codec.id for codec in CODECS)
FETCH_VERSIONS: Final = (7, 8, 11, 12, 13, 17)
PRODUCE_VERSIONS: Final = (3, 5, 8, 9, 12, 13)


def _chain(counts: Sequence[int], codec: int) -> bytes:
    data, base = b"", 40
    for count in counts:
        records = [Record(b"k%d" % base, b"v" * (base % 30), (), NOON + 7 * i + base) for i in range(count)]
        data += encode_batch(records, codec=codec, base_offset=base)
        base += count
    return data


def batches() -> list[bytes]:
    """One batch each: every codec, one record and several, gaps and attributes."""
    found = []
    for codec, count in itertools.product(CODEC_IDS, (1, 3)):
        found.append(bytes(encode_batch(SAMPLE[:count], codec=codec, base_offset=9, producer=(7, 1, 3))))
    kinds = (TRANSACTIONAL, TRANSACTIONAL | CONTROL, LOG_APPEND_TIME, DELETE_HORIZON)
    found += [bytes(encode_batch(SAMPLE, attributes=attributes)) for attributes in kinds]
    builder = MemoryRecordsBuilder(2, 0, 1 << 16)
    for delta in (0, 2, 3, 9):
        builder.skip(delta - builder._next_offset)
        builder.append(NOON + delta, b"k", b"v", [])
    builder.close()
    found.append(bytes(builder._buffer))
    marker = Record(b"\0\0\0\0", b"\0\0\0\0\0\1", (), NOON)
    found.append(bytes(encode_batch([marker], attributes=TRANSACTIONAL | CONTROL)))
    return found


def chains() -> list[bytes]:
    """Adjacent tiny batches."""
    return [_chain(counts, codec) for codec in CODEC_IDS for counts in ((1, 1), (1, 1, 1), (2, 1), (1, 3, 1))]


def old() -> list[bytes]:
    """Message sets of magic 0 and 1, like those of Java's client."""
    return [bytes.fromhex(row[3]) for row in ROWS]


def blocks() -> list[bytes]:
    """The records of batches without the headers; the first byte is their number."""
    return [bytes((count,)) + encode_batch((SAMPLE * 2)[:count])[61:] for count in (1, 2, 3, 6)]


def packed() -> list[bytes]:
    """Compressed blocks; the first byte is the codec."""
    texts = (b"", b"short", b"ab" * 3000, bytes(range(256)) * 3)
    return [bytes((codec.id,)) + codec.compress(text) for codec in CODECS[1:] for text in texts]


def fetch_answers() -> list[bytes]:
    """Fetch responses; the first byte is the version."""
    found = []
    for version in FETCH_VERSIONS:
        full = fetch_answer(
            version,
            {
                T0: {"records": _chain((1, 2), 0), "aborted": [(7, 50), (8, 60)], "diverging": (3, 9)},
                T1: {"error_code": 1},
                U0: {"aborted": None, "records": None},
            },
        )
        found.append(bytes((version,)) + full)
        found.append(bytes((version,)) + fetch_answer(version, {}, error_code=70))
    return found


def produce_answers() -> list[bytes]:
    """Produce responses; the first byte is the version."""
    return [bytes((version,)) + produce_answer(version) for version in PRODUCE_VERSIONS]


def frames() -> list[bytes]:
    """Bytes of a broker on a connection: responses to requests 1, 2 and 3."""
    bodies = [number.to_bytes(4, "big") + b"x" * size for number, size in ((1, 0), (2, 90), (3, 7))]
    return [b"".join(len(body).to_bytes(4, "big") + body for body in bodies)]
