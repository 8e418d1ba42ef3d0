"""Derived checksums equal computed ones."""

from __future__ import annotations

import random

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from mm2.kafka.errors import CorruptBatch
from mm2.kafka.records.batch import TRANSACTIONAL, check_crc, iter_batches, patch, read_header
from mm2.kafka.records.checksum import with_other_head
from mm2.kafka.records.record import Record, decode_batch, encode_batch

NOISE = random.Random(3).randbytes(1 << 20)


@given(st.binary(min_size=40, max_size=40), st.binary(min_size=40, max_size=40), st.integers(0, len(NOISE)))
def test_a_derived_checksum_is_correct(old: bytes, new: bytes, size: int) -> None:
    rest = NOISE[:size]
    assert with_other_head(crc32c(old + rest), old, new, size) == crc32c(new + rest)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 255, 4096, 1 << 16, (1 << 16) + 1, 3 << 22])
def test_sizes_with_few_digits_have_correct_checksums(size: int) -> None:
    rest = bytes(size)
    assert with_other_head(crc32c(b"old" + rest), b"old", b"new", size) == crc32c(b"new" + rest)


@pytest.mark.parametrize("size", [1000, 65_000, 66_000, 300_000])
def test_patched_batches_of_any_size_have_correct_checksums(size: int) -> None:
    data = encode_batch(
        [Record(b"k", NOISE[:size], (), 5)], base_offset=1 << 40, producer=(7, 7, 7), attributes=TRANSACTIONAL | 0x40
    )
    header, before = read_header(data), [record.value for record in decode_batch(next(iter_batches(memoryview(data))))]
    for transactional, sequence in ((False, 3), (True, (1 << 31) - 1), (False, 0)):
        patch(memoryview(data), header, (1 << 60, 9, sequence), transactional=transactional)
        (view,) = iter_batches(memoryview(data))
        assert view.header is not None
        check_crc(view.header, view.data)
        assert (view.header.attributes, view.header.base_offset) == (TRANSACTIONAL if transactional else 0, 0)
        assert (view.header.leader_epoch, view.header.base_sequence) == (-1, sequence)
        assert [record.value for record in decode_batch(view)] == before


def test_damage_after_the_check_is_detected_by_the_target() -> None:
    data = encode_batch([Record(b"k", NOISE[:100_000], (), 5)])
    header = read_header(data)
    check_crc(header, memoryview(data))
    data[50_000] ^= 1
    patch(memoryview(data), header, (1, 0, 0))
    with pytest.raises(CorruptBatch):
        check_crc(read_header(data), memoryview(data))
