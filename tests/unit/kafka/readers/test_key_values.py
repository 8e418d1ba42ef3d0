"""The fast scan of a batch returns the same as full decoding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm2.kafka.errors import CorruptBatch
from mm2.kafka.readers.key_values import collect
from mm2.kafka.records.batch import BatchView, iter_batches
from mm2.kafka.records.record import Record, decode_batch, encode_batch

_sizes = st.sampled_from([0, 1, 62, 63, 64, 65, 100, 8190, 8191, 8192, 9000])
_content = st.none() | st.binary(max_size=8) | _sizes.map(bytes)
_records = st.builds(
    Record,
    key=_content,
    value=_content,
    headers=st.lists(st.tuples(st.text(max_size=3), _content), max_size=2).map(tuple),
    timestamp=st.sampled_from([0, 1, 10_000, 1_700_000_000_000]),
)


def view_of(records: list[Record], codec: str = "none", base_offset: int = 0) -> BatchView:
    (view,) = iter_batches(memoryview(bytes(encode_batch(records, codec=codec, base_offset=base_offset))))
    return view


@given(
    batches=st.lists(st.lists(_records, min_size=1, max_size=40), min_size=1, max_size=4),
    codec=st.sampled_from(["none", "lz4", "zstd"]),
    base_offset=st.sampled_from([0, 1000]),
    position=st.integers(0, 1100),
)
def test_the_result_equals_that_of_decoding(
    batches: list[list[Record]], codec: str, base_offset: int, position: int
) -> None:
    views, offset = [], base_offset
    for records in batches:
        views.append(view_of(records, codec, offset))
        offset += len(records)
    all_of_them = [record for view in views for record in decode_batch(view)]
    wanted = {r.key: r.value for r in all_of_them if r.offset >= position and r.key is not None}
    assert collect(views, position) == wanted


def test_a_later_batch_wins() -> None:
    views = [view_of([Record(b"k", b"0"), Record(b"k", value)]) for value in (b"1", b"2", None)]
    assert collect(views, 0) == {b"k": None}
    assert collect(views[:2], 0) == {b"k": b"2"}


@pytest.mark.parametrize("change", [-1, 1])
def test_a_batch_with_a_wrong_record_count_is_rejected(change: int) -> None:
    view = view_of([Record(b"key", b"value")] * 3)
    assert view.header is not None
    lying = view._replace(header=view.header._replace(records_count=3 + change))
    with pytest.raises(CorruptBatch, match="the batch at offset 0 are inconsistent"):
        collect([lying], 0)
