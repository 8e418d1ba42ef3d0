"""What is counted of record batches."""

from __future__ import annotations

import json

import pytest

from mm2.codec import encode
from mm2.copy.tally import BOUNDS_S, STAGES, Histogram, Summary, Tally


def test_a_value_falls_into_the_bucket_whose_end_it_does_not_pass() -> None:
    histogram = Histogram()
    for seconds in (0.0, 0.001, 0.0011, 300.0, 301.0):
        histogram.add(seconds)
    assert histogram.counts[:2] == [2, 1]
    assert histogram.counts[-2:] == [1, 1]
    assert sum(histogram.counts) == 5
    assert histogram.sum_s == pytest.approx(601.0021)


def test_the_stages_of_a_batch_make_up_the_whole() -> None:
    tally = Tally()
    tally.acked(newest_s=10.0, fetched_s=10.3, now_s=10.4)
    assert [tally.latency[stage].sum_s for stage in STAGES] == pytest.approx([0.3, 0.1, 0.4])


def test_a_record_from_the_future_has_waited_for_nothing() -> None:
    tally = Tally()
    tally.acked(newest_s=99.0, fetched_s=10.0, now_s=10.5)
    assert [tally.latency[stage].sum_s for stage in STAGES] == pytest.approx([0.0, 0.5, 0.0])


def test_counts_survive_the_channel_and_are_added_up() -> None:
    tally = Tally()
    tally.count("passthrough", 3)
    tally.count("compacted")
    tally.acked(0.0, 1.0, 2.0)
    sent = json.loads(json.dumps(encode(tally)))
    total = Tally.received(sent)
    total.merge(Tally.received(sent))
    assert total.paths == {"passthrough": 6, "compacted": 2}
    assert sum(total.latency["visible"].counts) == 2
    assert total.latency["visible"].sum_s == pytest.approx(4.0)
    assert tally.paths == {"passthrough": 3, "compacted": 1}  # its own is left alone


@pytest.mark.parametrize(
    "message",
    [
        None,
        {},
        {"latency": {"visible": [[1, 2], 3.0]}},
        {"latency": {"other": {"counts": [], "sum_s": 0}}},
        {"latency": {stage: {"counts": [1, 2], "sum_s": 3.0} for stage in STAGES}},
    ],
)
def test_a_message_of_another_version_counts_nothing(message: dict[str, object] | None) -> None:
    tally = Tally.received(message)
    assert tally.paths == {}
    assert {stage: sum(one.counts) for stage, one in tally.latency.items()} == dict.fromkeys(STAGES, 0)


def test_a_copy_is_independent() -> None:
    tally = Tally()
    copy = tally.copy()
    copy.count("merged")
    copy.acked(0, 0, 1)
    assert (tally.paths, sum(tally.latency["fetch"].counts)) == ({}, 0)


def test_a_spread_knows_the_last_the_ends_and_the_sum() -> None:
    spread = Summary()
    for value in (5, 2, 9, 4):
        spread.add(value)
    assert spread == [4, 2, 9, 20, 4]


def test_bounds_ascend() -> None:
    assert list(BOUNDS_S) == sorted(set(BOUNDS_S))
