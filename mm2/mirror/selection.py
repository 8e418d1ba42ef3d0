"""Selects the topics that a flow replicates, and names them on both clusters. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from mm2.mirror.filters import TopicFilter
from mm2.mirror.own_topics import is_own_topic
from mm2.mirror.policy import ReplicationPolicy


@dataclass(frozen=True)
class TopicSelection:
    """The naming and filtering rules of one flow."""

    policy: ReplicationPolicy
    topic_filter: TopicFilter
    source_alias: str
    target_alias: str
    heartbeats_replication: bool = True

    def should_replicate(self, topic: str) -> bool:
        """Whether the source's `topic` is replicated to the target."""
        wanted = self.topic_filter.should_replicate_topic(topic) or (
            self.heartbeats_replication and self.policy.is_heartbeats_topic(topic)
        )
        internal = self.policy.is_internal_topic(topic) or is_own_topic(topic)
        return wanted and not internal and not self.is_cycle(topic)

    def is_cycle(self, topic: str) -> bool:
        """Whether the source's `topic` came from the target, over any number of hops."""
        while not self.policy.came_from(self.target_alias, topic):
            upstream = self.policy.upstream_topic(topic)
            if upstream is None or upstream == topic:
                return False
            topic = upstream
        return True

    def remote(self, topic: str) -> str:
        """The name on the target of a source topic."""
        return self.policy.format_remote_topic(self.source_alias, topic)

    def is_remote(self, topic: str) -> bool:
        """Whether the target's `topic` is a remote topic of the source (its checkpoints topic is not)."""
        own = self.policy.checkpoints_topic(self.source_alias)
        return topic != own and self.policy.came_from(self.source_alias, topic)
