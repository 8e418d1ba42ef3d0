"""Which topics have preserved offsets, what leading gaps need, and the translation of offsets."""

from __future__ import annotations

import pytest

from mm2.config.configdef import ConfigException
from mm2.kafka.producer.filler import FILLER_PRODUCER_ID, filler_batch, is_filler
from mm2.kafka.records.batch import BatchView, read_header
from mm2.kafka.records.record import Record, decode_batch, encode_batch
from mm2.kafka.structs import TopicPartition
from mm2.mirror.preserved.leading_gaps import GapState, PlannedGap, gap_state
from mm2.mirror.preserved.preserved_offsets import PreservedOffsets, check_preserved_offsets, refuse_transactions


def test_no_topic_is_preserved_by_default() -> None:
    assert "orders" not in PreservedOffsets.of({})
    assert "orders" not in PreservedOffsets.of({"preserve.offsets.topics": "orders"})


def test_topics_are_chosen_by_names_and_patterns() -> None:
    chosen = PreservedOffsets.of({"preserve.offsets": "true", "preserve.offsets.topics": "orders, pay.*"})
    assert chosen.among(["pay", "orders", "other", "orders2", "payments", "orders"]) == ("orders", "pay", "payments")


def test_heartbeats_are_never_preserved() -> None:
    every = PreservedOffsets.of({"preserve.offsets": "true"})
    assert every.among(["heartbeats", "A.heartbeats", "orders"]) == ("orders",)


@pytest.mark.parametrize(
    ("props", "text"),
    [
        ({"preserve.offsets": "yes"}, "preserve.offsets"),
        ({"preserve.offsets.topics": "("}, "preserve.offsets.topics"),
        ({"preserve.offsets": "true", "start.from": "2026-01-01T00:00:00Z"}, r"start\.from.*preserve\.offsets=true"),
        ({"preserve.offsets": "true", "consumer.auto.offset.reset": "latest"}, "latest.*beginning of the source log"),
        ({"preserve.offsets": "true", "source.consumer.auto.offset.reset": "none"}, "none.*beginning"),
    ],
)
def test_wrong_values_name_their_key(props: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigException, match=text):
        check_preserved_offsets(props)


def test_transactions_are_refused_only_with_preserved_topics() -> None:
    refuse_transactions([])
    with pytest.raises(ConfigException, match=r"exactly\.once\.source\.support=enabled"):
        refuse_transactions(["orders"])


@pytest.mark.parametrize(
    ("source_start", "target_start", "target_end", "has_fillers", "expected"),
    [
        (0, 0, 0, False, GapState.READY),
        (1, 0, 0, False, GapState.FILL),
        (1000, 0, 7, True, GapState.FILL),
        (1000, 6, 1000, True, GapState.FILL),
        (1000, 1000, 1000, False, GapState.READY),
        (1000, 5, 1000 + 1, True, GapState.OVERFILLED),
        (1000, 5, 9, False, GapState.READY),
    ],
)
def test_the_offsets_show_what_a_partition_needs(
    source_start: int, target_start: int, target_end: int, has_fillers: bool, expected: GapState
) -> None:
    assert gap_state(source_start, target_start, target_end, has_fillers=has_fillers) == expected


def test_a_plan_tells_how_gaps_are_filled() -> None:
    target = TopicPartition("A.orders", 0)
    assert PlannedGap(target, 0, 20_000_000, by_fillers=True).details == {
        "offsets": "0..19999999",
        "by": "filler records, which are deleted",
        "seconds": "about 7",
        "bytes": "about 17000000",
    }
    assert PlannedGap(target, 7, 107, by_fillers=False).details == {
        "offsets": "7..106",
        "by": "transaction markers with the time of copying",
        "seconds": "about 1",
        "bytes": "about 7800",
    }


def test_a_filler_batch_has_empty_records_and_is_recognized() -> None:
    data = filler_batch(7, 300)
    header = read_header(data)
    assert (header.records_count, header.last_offset, header.is_dense) == (300, 299, True)
    assert is_filler(header)
    assert (header.base_sequence, header.producer_id) == (7, FILLER_PRODUCER_ID)
    assert filler_batch((1 << 31) + 5, 300) == filler_batch(5, 300)
    records = decode_batch(BatchView(header, 0, 2, memoryview(data)))
    assert {(record.key, record.value, record.headers) for record in records} == {(b"", None, ())}
    assert is_filler(read_header(encode_batch([Record(b"", None, (), 1)]))), "of an old version"
    assert not is_filler(read_header(encode_batch([Record(b"", None, (), 2)])))
    assert not is_filler(read_header(encode_batch([Record(b"", None, (), 1)], producer=(5, 0, 0))))
