"""A replication policy and a topic filter of a user, configured by their Python path."""

from __future__ import annotations

from collections.abc import Mapping

from mm2.mirror.filters import TopicFilter
from mm2.mirror.policy import DefaultReplicationPolicy, ReplicationPolicy


class BehindPolicy(ReplicationPolicy):
    """`t` of A is called `t_from_A`."""

    def format_remote_topic(self, source_alias: str, topic: str) -> str:
        return f"{topic}_from_{source_alias}"

    def topic_source(self, topic: str) -> str | None:
        upstream, found, source = topic.rpartition("_from_")
        return source if found and upstream else None

    def upstream_topic(self, topic: str) -> str | None:
        upstream, found, _ = topic.rpartition("_from_")
        return upstream if found and upstream else None


class MergingPolicy(DefaultReplicationPolicy):
    """All topics of A whose names begin alike, up to `-merge-`, have one remote topic."""

    def format_remote_topic(self, source_alias: str, topic: str) -> str:
        prefix, found, _ = topic.partition("-merge-")
        return super().format_remote_topic(source_alias, f"{prefix}-all" if found else topic)


class ShortNames(TopicFilter):
    """Accepts topics whose names are at most `short.names.max` characters long."""

    def configure(self, props: Mapping[str, str]) -> None:
        self._most = int(props["short.names.max"])
        self._prefix = props["short.names.prefix"]

    def should_replicate_topic(self, topic: str) -> bool:
        return topic.startswith(self._prefix) and len(topic) <= self._most
