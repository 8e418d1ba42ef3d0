"""Requests that create and extend topics."""

from __future__ import annotations

from mm2.mirror.remote_topics import PARTITIONS_PER_REQUEST, in_requests


def test_no_request_exceeds_the_controller_s_partition_limit_unless_one_topic_does() -> None:
    counts = {"a": 2_000, "b": 3_000, "c": 1, "d": PARTITIONS_PER_REQUEST + 1, "e": 4_999, "f": 1}
    assert in_requests(counts, counts.__getitem__) == [["a", "b"], ["c"], ["d"], ["e", "f"]]
    assert in_requests({}, counts.__getitem__) == []
