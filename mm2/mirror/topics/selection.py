"""Selects the topics that a flow replicates, and names them on both clusters. Pure."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from mm2.config.keys.mirror_keys import PRESERVE_KEY
from mm2.mirror.filters import TopicFilter
from mm2.mirror.policy import DefaultReplicationPolicy, ReplicationPolicy
from mm2.mirror.topics.own_topics import is_own_topic, is_reserved
from mm2.mirror.topics.routing import NO_ROUTE, TopicRoute


@dataclass(frozen=True)
class TopicSelection:
    """The naming and filtering rules of one flow. ``route``: the part of its transformations.

    ``reserved``: names on the target that no copied topic may have (`mm2.mirror.topics.own_topics.reserved_topics`).
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

    def reserves(self, remote: str) -> bool:
        """Whether the flow, its process or its worker uses a topic of the target for itself."""
        return is_reserved(remote, remote, self.policy, self.reserved)

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
        return names_show_origin(self.policy, self.route)

    def merges(self, topics: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """The remote topics that several of the topics are copied to, each with those topics, sorted."""
        sources: dict[str, list[str]] = {}
        for topic in sorted(topics):
            sources.setdefault(self.remote(topic), []).append(topic)
        return {remote: tuple(several) for remote, several in sources.items() if len(several) > 1}

    def config_sources(self, topics: Iterable[str]) -> set[str]:
        """The topics whose configs their remote topics get: of several with the same remote topic, the first by name."""
        wanted = set(topics)
        return wanted.difference(*(several[1:] for several in self.merges(wanted).values()))

    def unroutable(
        self, topics: AbstractSet[str], preserved: Container[str], copied_to: Callable[[], Mapping[str, str]]
    ) -> dict[str, str]:
        """The topics to which the policy or transformations give a remote topic that is not possible, with a message each.

        ``preserved``: topics whose records have the same offsets on the target, which can be those of one topic only. The one that
        has been copied there remains: ``copied_to`` has the remote topic of each topic copied so far.
        """
        refused = {
            topic: f"its remote topic would be the internal topic {self.remote(topic)}; rename it, or exclude it with "
            "topics.exclude"
            for topic in sorted(topics)
            if self.has_reserved_name(topic)
        }
        for remote, several in self.merges(topics - refused.keys()).items():
            if any(topic in preserved for topic in several):
                before = copied_to()
                there = [topic for topic in several if before.get(topic) == remote]
                others = [topic for topic in several if len(there) != 1 or topic not in there]
                refused |= dict.fromkeys(others, f"{PRESERVE_KEY}: {merge_refused(several, remote)}")
        return {
            topic: f"Topic {topic} of cluster {self.source_alias} is not copied: {reason}."
            for topic, reason in refused.items()
        }

    def is_remote(self, topic: str) -> bool:
        """Whether the target's `topic` is a remote topic of the source (its checkpoints topic is not)."""
        own = self.policy.checkpoints_topic(self.source_alias)
        return topic != own and self.policy.came_from(self.source_alias, topic)


def names_show_origin(policy: ReplicationPolicy, route: TopicRoute) -> bool:
    """Whether each name on the target shows the clusters that a topic has passed, so that two flows never have the same."""
    return type(policy) is DefaultReplicationPolicy and not route


def merge_refused(topics: Sequence[str], remote: str) -> str:
    """Why topics with preserved offsets are not copied to the same remote topic."""
    return f"{' and '.join(topics)} have the same remote topic {remote}, which can have the offsets of one of them only"
