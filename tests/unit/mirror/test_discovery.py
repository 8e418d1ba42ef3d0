"""Topics that a list of the cluster's topics lacks."""

from __future__ import annotations

from mm2.mirror.discovery import TopicLists


def test_a_topic_was_deleted_when_two_lists_lack_it() -> None:
    lists = TopicLists()
    assert lists.doubtful({"a", "b"}, {"a", "b"}) == set()
    assert lists.doubtful({"a", "b"}, {}) == {"a", "b"}, "a broker that has just started"
    assert lists.doubtful({"a", "b"}, {"a"}) == set(), "b is not there a second time"
    assert lists.doubtful({"a"}, {"a"}) == set()
    assert lists.doubtful({"a"}, set()) == {"a"}
    assert lists.doubtful({"a"}, set()) == set()
