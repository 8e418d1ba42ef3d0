"""Selects the topics that a flow replicates, and names them on both clusters. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from mm2.mirror.filters import TopicFilter
from mm2.mirror.own_topics import is_own_topic, is_reserved
from mm2.mirror.policy import DefaultReplicationPolicy, ReplicationPolicy
from mm2.mirror.routing import NO_ROUTE, TopicRoute


@dataclass(frozen=True)
class TopicSelection:
    """The naming and filtering rules of one flow. ``route``: the part of its transformations.

    ``reserved``: names on the target that no copied topic may have (`mm2.mirror.own_topics.reserved_topics`).
    """

    policy: ReplicationPolicy
    topic_filter: TopicFilter
    source_alias: str
    target_alias: str
    heartbeats_replication: bool = True
    route: TopicRoute = NO_ROUTE
    reserved: frozenset[str] = frozenset()

    def should_replicate(self, topic: str) -> bool:
        """Whether the source's `topic` is replicated to the target, with its records, configs and ACLs."""
        return self.is_selected(topic) and not self.has_reserved_name(topic)

    def has_reserved_name(self, topic: str) -> bool:
        """Whether the remote topic of `topic` would be one that the flow, its process or its worker uses for itself."""
        return is_reserved(topic, self.remote(topic), self.policy, self.reserved)

    def is_selected(self, topic: str) -> bool:
        """Whether the filters select the source's `topic`. `unroutable` has those of them that cannot be copied."""
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
        return self.route.of(self.named(topic))

    def named(self, topic: str) -> str:
        """The name on the target by the replication policy; transformations may name another one."""
        return self.policy.format_remote_topic(self.source_alias, topic)

    def named_if_routed(self, topic: str) -> str:
        """`named` if transformations name another topic; "": they do not (`mm2.copy.spec.PartitionSpec.named`)."""
        return self.named(topic) if self.route else ""

    def remote_prefix(self, prefix: str) -> str:
        """What the names on the target begin with, of topics with this prefix; "": not known."""
        return "" if self.route else self.remote(prefix)

    @property
    def names_show_origin(self) -> bool:
        """Whether a name on the target shows the clusters that a topic has passed."""
        return type(self.policy) is DefaultReplicationPolicy and not self.route

    def unroutable(self, topics: Collection[str], copied_to: Callable[[], Mapping[str, str]]) -> dict[str, str]:
        """Those of the selected topics whose remote topic is not possible, with a message each.

        Of topics to which transformations give the same remote topic, the one that has been copied there remains:
        ``copied_to`` has the remote topic of each topic copied so far.
        """
        refused = {
            topic: f"its remote topic would be the internal topic {self.remote(topic)}; rename it, or exclude it with "
            "topics.exclude"
            for topic in topics
            if self.has_reserved_name(topic)
        }
        sources: dict[str, list[str]] = {}
        for topic in sorted(topics) if self.route else ():
            sources.setdefault(self.remote(topic), []).append(topic)
        for remote, several in sources.items():
            if len(several) > 1 and several[0] not in refused:
                before = copied_to()
                there = [topic for topic in several if before.get(topic) == remote]
                others = [topic for topic in several if len(there) != 1 or topic not in there]
                flow = f"{self.source_alias}->{self.target_alias}"
                reason = f"the transformations of {flow} name the same remote topic {remote} for {', '.join(several)}"
                refused |= dict.fromkeys(others, reason)
        return {
            topic: f"Topic {topic} of cluster {self.source_alias} is not copied: {reason}."
            for topic, reason in refused.items()
        }

    def is_remote(self, topic: str) -> bool:
        """Whether the target's `topic` is a remote topic of the source (its checkpoints topic is not)."""
        own = self.policy.checkpoints_topic(self.source_alias)
        return topic != own and self.policy.came_from(self.source_alias, topic)
