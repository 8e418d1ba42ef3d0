"""Derives a topic's path from its name (Kafka's MirrorClient.countHopsForTopic and allSources). Pure."""

from __future__ import annotations

from mm2.mirror.policy import ReplicationPolicy


def route(policy: ReplicationPolicy, topic: str) -> tuple[str, ...]:
    """Aliases of the clusters ``topic`` has come through, the nearest first: ``B.A.t`` returns ``("B", "A")``.

    It ends before a repeated alias: under a policy that keeps names, a topic appears to come from itself.
    """
    found: list[str] = []
    upstream: str | None = topic
    while upstream is not None:
        source = policy.topic_source(upstream)
        if source is None or source in found:
            break
        found.append(source)
        upstream = policy.upstream_topic(upstream)
    return tuple(found)


def upstream_clusters(policy: ReplicationPolicy, topics: set[str]) -> set[str]:
    """All clusters that one of ``topics`` has come through."""
    return {source for topic in topics for source in route(policy, topic)}


def replication_hops(policy: ReplicationPolicy, topic: str, upstream_alias: str) -> int:
    """The number of hops from the cluster ``upstream_alias`` to ``topic``; -1 if it did not come through it."""
    way = route(policy, topic)
    return way.index(upstream_alias) + 1 if upstream_alias in way else -1
