"""Rewriting batches never changes their records."""

from __future__ import annotations

import struct
from typing import Any

from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from mm2.kafka.records.batch import (
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    BatchView,
    check_crc,
    iter_batches,
    patch,
    read_header,
)
from mm2.kafka.records.codec import CODECS
from mm2.kafka.records.merge import coalesce, merge
from mm2.kafka.records.record import Record, decode_batch, encode_batch, read_varint, rewrite, split
from mm2.kafka.varint import varint

NOON = 1_700_000_000_000
codecs = st.sampled_from([codec.id for codec in CODECS])
payloads = st.none() | st.binary(max_size=40) | st.binary(min_size=120, max_size=300)
# Any timestamps that fit into one batch, and mostly realistic ones.
timestamps = st.integers(NOON - 100, NOON + 100) | st.integers(-1, 1 << 62) | st.integers(-(1 << 61), 1 << 61)
records = st.builds(
    Record,
    key=payloads,
    value=payloads,
    headers=st.lists(st.tuples(st.text(max_size=4), payloads), max_size=3).map(tuple),
    timestamp=timestamps,
)
groups = st.lists(records, min_size=1, max_size=5)
bases = st.integers(0, 1 << 50)

Row = tuple[Any, ...]


def view_of(data: bytes | bytearray | memoryview) -> BatchView:
    (view,) = iter_batches(memoryview(bytearray(data)))
    assert view.header is not None
    check_crc(view.header, view.data)
    return view


def rows(found: list[Record], base: int = 0) -> list[Row]:
    return [(base + r.offset, r.timestamp, r.key, r.value, r.headers) for r in found]


def without_offsets(found: list[Record]) -> list[Row]:
    return [row[1:] for row in rows(found)]


def with_holes(group: list[Record], gaps: list[int], codec: int, base: int) -> BatchView:
    """The batch after log compaction: some records before each record and after the last one are removed."""
    plain = encode_batch(group)
    block, delta = bytearray(), -1
    for place, gap in enumerate(gaps):
        delta += gap + 1
        one = rewrite(view_of(plain), keep_index=place.__eq__)
        assert one is not None
        record = bytes(one.data[HEADER_BYTES:])
        # length | attributes | timestamp delta | offset delta 0 | rest: only the offset delta changes
        _, start = read_varint(record, 0)
        _, offset_at = read_varint(record, start + 1)
        body = record[start:offset_at] + varint(delta) + record[offset_at + 1 :]
        block += varint(len(body)) + body
    data = plain[:HEADER_BYTES] + CODECS[codec].compress(block)
    header = read_header(data)._replace(
        base_offset=base, batch_length=len(data) - 12, attributes=codec, last_offset_delta=delta + gaps[0]
    )
    return seal(data, header._asdict())


def seal(data: bytearray, fields: dict[str, int]) -> BatchView:
    HEADER.pack_into(data, 0, *fields.values())
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return view_of(data)


@given(groups, codecs, bases, st.booleans(), st.integers(0, (1 << 62)), st.integers(0, (1 << 31) - 1))
def test_patching_changes_no_record(
    group: list[Record], codec: int, base: int, transactional: bool, producer: int, sequence: int
) -> None:
    data = encode_batch(group, codec=codec, base_offset=base, producer=(9, 9, 9), attributes=0x50)
    before = rows(decode_batch(view_of(data)))
    patch(memoryview(data), read_header(data), (producer, 3, sequence), transactional=transactional)
    view = view_of(data)
    assert (
        rows(decode_batch(view), base)
        == before
        == rows([Record(r.key, r.value, r.headers, r.timestamp, i) for i, r in enumerate(group)], base)
    )
    assert view.header is not None
    assert (view.header.producer_id, view.header.producer_epoch, view.header.base_sequence) == (producer, 3, sequence)
    assert view.header.is_transactional is transactional


@given(st.lists(groups, min_size=1, max_size=6), codecs, bases, st.integers(100, 3000))
def test_merging_is_concatenating(many: list[list[Record]], codec: int, base: int, max_bytes: int) -> None:
    data, after = bytearray(), base
    for group in many:
        data += encode_batch(group, codec=codec, base_offset=after)
        after += len(group)
    wanted = [row for view in iter_batches(memoryview(data)) for row in rows(decode_batch(view))]
    for items in (
        merge(list(iter_batches(memoryview(data))), max_bytes=max_bytes),
        list(coalesce(memoryview(data), base, max_bytes=max_bytes, compressed=True)),
    ):
        found: list[Row] = []
        for item in items:
            found += rows(decode_batch(view_of(item.data)))
        assert found == wanted


@given(groups, st.data(), codecs, bases, st.booleans())
def test_rewriting_only_removes_holes(
    group: list[Record], data: st.DataObject, codec: int, base: int, append_time: bool
) -> None:
    gaps = data.draw(st.lists(st.integers(0, 200), min_size=len(group), max_size=len(group)))
    view = with_holes(group, gaps, codec, base)
    if append_time:
        assert view.header is not None
        fields = view.header._replace(attributes=codec | LOG_APPEND_TIME, max_timestamp=NOON)._asdict()
        view = seal(bytearray(view.data), fields)
    before = decode_batch(view)
    assert [row[1:] for row in without_offsets(before)] == [row[1:] for row in without_offsets(group)]
    dropped = data.draw(st.sets(st.sampled_from(range(len(group)))))
    rewritten = rewrite(view, keep_index=lambda place: place not in dropped)
    kept = [record for place, record in enumerate(before) if place not in dropped]
    if rewritten is None:
        assert not kept
        return
    assert rewritten.offsets == [record.offset for record in kept]
    after = view_of(rewritten.data)
    assert after.header is not None
    assert after.header.is_plain
    assert without_offsets(decode_batch(after)) == without_offsets(kept)


@given(groups, codecs, bases, st.integers(1, 7))
def test_splitting_causes_no_loss_or_duplicate(group: list[Record], codec: int, base: int, parts: int) -> None:
    view = view_of(encode_batch(group, codec=codec, base_offset=base))
    pieces = split(view, parts)
    assert [offset for piece in pieces for offset in piece.offsets] == list(range(base, base + len(group)))
    found = [row for piece in pieces for row in without_offsets(decode_batch(view_of(piece.data)))]
    assert found == without_offsets(group)
