"""Topics that a list of the cluster's topics lacks."""

from __future__ import annotations

from mm2.mirror.common.discovery import TopicLists


def test_a_topic_was_deleted_when_two_lists_lack_it() -> None:
    lists = TopicLists()
    assert lists.doubtful({"a": 1, "b": 2}, {"a": 1, "b": 2}) == set()
    assert lists.doubtful({"a": 1, "b": 2}, {}) == {"a", "b"}, "a broker that has just started"
    assert lists.doubtful({"a": 1, "b": 2}, {"a": 1}) == set(), "b is not there a second time"
    assert lists.doubtful({"a": 1}, {"a": 1}) == set()
    assert lists.doubtful({"a": 1}, {}) == {"a"}
    assert lists.doubtful({"a": 1}, {}) == set()


def test_partitions_were_deleted_when_two_lists_lack_them() -> None:
    """Otherwise the partitions that a topic got last would not be copied for ten minutes, after one answer from before."""
    lists = TopicLists()
    assert lists.doubtful({"a": 6}, {"a": 4}) == {"a"}, "a broker with old metadata"
    assert lists.doubtful({"a": 6}, {"a": 6}) == set()
    assert lists.doubtful({"a": 6}, {"a": 8}) == set()
    assert lists.doubtful({"a": 8}, {"a": 4}) == {"a"}
    assert lists.doubtful({"a": 8}, {"a": 4}) == set(), "it was recreated"
