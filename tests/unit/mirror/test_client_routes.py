"""Replication routes of topics: vectors of Kafka's MirrorClientTest and longer chains of our own."""

from __future__ import annotations

import pytest

from mm2.mirror.client import (
    DefaultReplicationPolicy,
    IdentityReplicationPolicy,
    replication_hops,
    route,
    upstream_clusters,
)

POLICY = DefaultReplicationPolicy()


@pytest.mark.parametrize(
    ("topic", "is_heartbeats"),
    [
        ("heartbeats", True),
        ("source1.heartbeats", True),
        ("source2.source1.heartbeats", True),
        ("heartbeats!", False),
        ("!heartbeats", False),
        ("source1heartbeats", False),
        ("source1-heartbeats", False),
    ],
)
def test_heartbeats_topics_are_recognized(topic: str, is_heartbeats: bool) -> None:
    assert POLICY.is_heartbeats_topic(topic) is is_heartbeats


@pytest.mark.parametrize(
    ("topic", "upstream", "hops"),
    [
        ("topic1", "source", -1),
        ("source1.topic1", "source1", 1),
        ("source2.source1.topic1", "source2", 1),
        ("source2.source1.topic1", "source1", 2),
        ("source3.source2.source1.topic4", "source4", -1),
    ],
)
def test_hops_are_counted(topic: str, upstream: str, hops: int) -> None:
    assert replication_hops(POLICY, topic, upstream) == hops


def test_upstream_clusters_are_those_of_all_hops() -> None:
    topics = {"heartbeats", "source1.heartbeats", "source3.source2.heartbeats"}
    assert upstream_clusters(POLICY, topics) == {"source1", "source2", "source3"}
    assert upstream_clusters(POLICY, {"heartbeats"}) == set()


def test_a_route_ends_before_a_loop() -> None:
    assert route(POLICY, "A.B.A.C.t") == ("A", "B")
    same_names = IdentityReplicationPolicy()
    same_names.configure({"source.cluster.alias": "A"})
    assert route(same_names, "t") == ("A",)
    assert route(same_names, "B.A.heartbeats") == ("B", "A")
