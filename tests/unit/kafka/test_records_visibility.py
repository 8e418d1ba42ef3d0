"""Visible batches of a Fetch response, compared with a reference that knows the result of every transaction."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm2.kafka.errors import CorruptBatch
from mm2.kafka.records.batch import CONTROL, CRC_FROM, TRANSACTIONAL, iter_batches
from mm2.kafka.records.record import Record, encode_batch
from mm2.kafka.records.visibility import VisibleBatches, end_of
from tests.unit.kafka.fetch_cluster import legacy_message

PRODUCERS = (1, 2, 3)


@dataclass
class Batch:
    kind: str
    producer: int
    first: int
    last: int
    data: bytes


def data_of(kind: str, producer: int, first: int, count: int) -> bytes:
    if kind == "legacy":
        return legacy_message(first, b"v")
    identity = (-1, -1, -1) if kind == "plain" else (producer, 0, 0)
    if kind in ("commit", "abort"):
        key = struct.pack(">hh", 0, int(kind == "commit"))
        marker = Record(key, struct.pack(">hi", 0, 0), timestamp=1)
        attributes = TRANSACTIONAL | CONTROL
        return bytes(encode_batch([marker], producer=identity, attributes=attributes, base_offset=first))
    attributes = TRANSACTIONAL if kind == "transactional" else 0
    records = [Record(b"k%d" % index, b"v", timestamp=1) for index in range(count)]
    return bytes(encode_batch(records, producer=identity, attributes=attributes, base_offset=first))


@st.composite
def logs(draw: st.DrawFn) -> list[Batch]:
    """Batches with gaps between them. Every transaction ends, since a broker returns nothing after an open one."""
    batches: list[Batch] = []
    end = 0
    steps = st.tuples(
        st.sampled_from(["plain", "legacy", "idempotent", "transactional", "transactional", "commit", "abort"]),
        st.sampled_from(PRODUCERS),
        st.integers(1, 3),
        st.sampled_from([0, 0, 0, 5]),
    )
    ends = [("abort" if draw(st.booleans()) else "commit", producer, 1, 0) for producer in PRODUCERS]
    for kind, producer, size, gap in [*draw(st.lists(steps, max_size=25)), *ends]:
        count = 1 if kind in ("commit", "abort", "legacy") else size
        first = end + gap
        batches.append(Batch(kind, producer, first, first + count - 1, data_of(kind, producer, first, count)))
        end = first + count
    return batches


def is_aborted(batches: list[Batch], index: int) -> bool:
    """Whether the next marker of the batch's producer aborts."""
    batch = batches[index]
    if batch.kind != "transactional":
        return False
    markers = (b.kind for b in batches[index:] if b.kind in ("commit", "abort") and b.producer == batch.producer)
    return next(markers) == "abort"


def aborted_transactions(batches: list[Batch], start: int) -> list[tuple[int, int]]:
    """(producer, first offset) of the aborted transactions that end at offset ``start`` or later."""
    found = []
    for producer in PRODUCERS:
        first: int | None = None
        for batch in (b for b in batches if b.producer == producer):
            if batch.kind == "transactional" and first is None:
                first = batch.first
            elif batch.kind in ("commit", "abort"):
                if batch.kind == "abort" and first is not None and batch.last >= start:
                    found.append((producer, first))
                first = None
    return found


@given(logs(), st.integers(0, 60), st.booleans(), st.booleans())
def test_visible_batches_are_those_of_a_naive_reader(
    batches: list[Batch], start: int, read_committed: bool, earlier: bool
) -> None:
    answered = [batch for batch in batches if earlier or batch.last >= start]
    data = memoryview(b"".join(batch.data for batch in answered))
    since = answered[0].first if answered else start
    aborted = aborted_transactions(batches, since) if read_committed else None
    visible = VisibleBatches(data, start, aborted=aborted)
    expected = [
        batch.first
        for index, batch in enumerate(batches)
        if batch.last >= start
        and batch.kind not in ("commit", "abort")
        and not (read_committed and is_aborted(batches, index))
    ]
    assert [view.base_offset for view in visible] == expected
    assert visible.position == max(start, batches[-1].last + 1)


@given(logs(), st.data())
def test_batches_before_a_corrupt_one_are_returned(batches: list[Batch], draw: st.DataObject) -> None:
    index = draw.draw(st.integers(0, len(batches) - 1))
    spoilt = bytearray(batches[index].data)
    at = draw.draw(st.integers(CRC_FROM if batches[index].kind != "legacy" else 18, len(spoilt) - 1))
    spoilt[at] ^= 1 << draw.draw(st.integers(0, 7))
    parts = [batch.data for batch in batches]
    parts[index] = bytes(spoilt)
    visible = VisibleBatches(memoryview(b"".join(parts)), 0)
    found: list[int] = []
    with pytest.raises(CorruptBatch, match="CRC"):
        found.extend(view.base_offset for view in visible)
    intact = batches[:index]
    assert found == [batch.first for batch in intact if batch.kind not in ("commit", "abort")]
    assert visible.position == (intact[-1].last + 1 if intact else 0)


def test_a_batch_with_a_corrupt_last_offset_is_not_skipped() -> None:
    spoilt = bytearray(data_of("plain", 0, 7, 2))
    spoilt[23] ^= 0x80
    visible = VisibleBatches(memoryview(spoilt + data_of("plain", 0, 9, 1)), 7)
    with pytest.raises(CorruptBatch, match="CRC"):
        list(visible)
    assert visible.position == 7


def test_crcs_are_not_checked_on_request() -> None:
    spoilt = bytearray(data_of("plain", 0, 7, 2))
    spoilt[-1] ^= 1
    visible = VisibleBatches(memoryview(spoilt), 0, check_crcs=False)
    assert len(list(visible)) == 1
    assert visible.position == 9


def test_control_batches_are_returned_on_request() -> None:
    data = memoryview(data_of("plain", 0, 7, 2) + data_of("abort", 5, 9, 1))
    assert [
        [view.base_offset for view in VisibleBatches(data, 0, with_control=wanted)] for wanted in (False, True)
    ] == [
        [7],
        [7, 9],
    ]


def test_an_incomplete_last_batch_is_left_out() -> None:
    whole = data_of("plain", 0, 7, 2)
    data = memoryview(whole + data_of("plain", 0, 9, 1)[:-1])
    visible = VisibleBatches(data, 0)
    assert [view.base_offset for view in visible] == [7]
    assert visible.position == 9
    assert end_of(data)[0] == 9


@given(logs())
def test_the_end_of_a_record_set_is_that_of_its_last_batch(batches: list[Batch]) -> None:
    data = memoryview(b"".join(batch.data for batch in batches))
    assert end_of(data) == (batches[-1].last + 1, list(iter_batches(data))[-1].header.leader_epoch)  # type: ignore[union-attr]
    assert end_of(data[:0]) == (None, -1)
