"""What a flow creates and changes on its target for the topics that it copies.

`MirrorSourceConnector` carries it out; `mm2 plan` calls the same methods with admin clients that change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from mm2.config.configdef import AbstractConfig
from mm2.kafka.admin import Admin
from mm2.kafka.structs import TopicPartition
from mm2.mirror.common.clients import ClientKind, MirrorClients, Side
from mm2.mirror.common.recurring_errors import RecurringErrors
from mm2.mirror.filters import ConfigPropertyFilter, GroupFilter
from mm2.mirror.notes.ledgers import Ledgers
from mm2.mirror.preserved.leading_gaps import LeadingGaps
from mm2.mirror.preserved.preserved_offsets import PreservedOffsets, denies_writes
from mm2.mirror.topics.config_sync import ConfigSync
from mm2.mirror.topics.remote_topics import REPLICATION_FACTOR_KEY, RemoteTopics
from mm2.mirror.topics.selection import TopicSelection
from mm2.mirror.topics.topic_acls import TopicAcls, writing_principals
from mm2.mirror.topics.topic_configs import TopicConfigs
from mm2.mirror.topics.topic_limits import RemoteTopicsLimits
from mm2.mirror.topics.write_denials import WriteDenials, flow_principals


class TopicSyncs:
    """The syncs of one flow. ``groups`` None: ACLs of groups are not synced."""

    def __init__(
        self,
        settings: AbstractConfig,
        clients: MirrorClients,
        selection: TopicSelection,
        filters: tuple[ConfigPropertyFilter, GroupFilter | None],
        admins: Mapping[Side, Admin],
        ledgers: Ledgers,
        recurring: RecurringErrors,
        pause: Callable[[float], bool],
    ) -> None:
        self._selection = selection
        source, target, props = admins[Side.SOURCE], admins[Side.TARGET], clients.props
        properties, groups = filters
        rules = ConfigSync(properties)
        self.preserved = PreservedOffsets.of(props)
        self.remote_topics = RemoteTopics(
            source,
            target,
            selection,
            rules,
            settings.int(REPLICATION_FACTOR_KEY),
            pause,
            recurring,
            or_broker_default=REPLICATION_FACTOR_KEY not in props,
            limits=RemoteTopicsLimits.of(settings),
        )
        self.leading_gaps = LeadingGaps(source, target, rules, recurring, ledgers)
        self.write_denials = WriteDenials(
            target,
            selection,
            ledgers,
            recurring,
            flow_principals(clients) if denies_writes(props) else None,
            lambda topic: topic in self.preserved and selection.should_replicate(topic),
        )
        self.topic_acls = TopicAcls(
            source,
            target,
            selection,
            groups,
            ledgers,
            recurring,
            writing_principals(clients.settings(Side.TARGET, ClientKind.PRODUCER, "")),
            lambda: self.write_denials.noted,
        )
        self.topic_configs = TopicConfigs(source, target, rules, clients.target_alias, recurring)

    def existing(
        self, source: Mapping[str, int], topics: Iterable[str], target: Mapping[str, int]
    ) -> tuple[TopicPartition, ...]:
        """The partitions of these topics whose remote partitions exist."""
        return tuple(
            TopicPartition(topic, partition)
            for topic in sorted(topics)
            for partition in range(min(source[topic], target.get(self._selection.remote(topic), 0)))
        )

    def deny_writes(self, partitions: Iterable[TopicPartition]) -> Mapping[str, str]:
        """`WriteDenials.ensure` for the topics with preserved offsets."""
        return self.write_denials.ensure(self.preserved.among(tp.topic for tp in partitions))

    def unready(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """`LeadingGaps.unready` for the partitions with preserved offsets."""
        preserved = [tp for tp in partitions if tp.topic in self.preserved]
        return self.leading_gaps.unready(preserved, self._selection.remote) if preserved else set()

    def sync_configs(self, topics: Iterable[str], copied: Collection[str], target: Collection[str]) -> bool:
        """`TopicConfigs.sync` for those of ``topics`` that decide on a remote topic that exists. ``copied`` are all topics of the flow.

        Of topics with the same remote topic one decides, also while only another one is new.
        """
        sources = self._selection.config_sources(copied)
        pairs = [(topic, self._selection.remote(topic)) for topic in topics if topic in sources]
        return self.topic_configs.sync(
            (topic, remote)
            for topic, remote in pairs
            if remote in target and not self.leading_gaps.is_filling(topic, remote)
        )
