"""Remote topic names of a flow whose transformations rename topics by their names: RegexRouter.

Without a predicate, or with TopicNameMatches, the topic of a record is known before the first record. So such transformations
are a part of the flow's replication policy: topics are created, configured and reported under the new names, and records are
copied to them in copy sessions as to all remote topics. Other transformations that change topics are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from mm2.config.configdef import AbstractConfig, ConfigException
from mm2.config.connector_keys import SOURCE_CONNECTOR_CONFIG
from mm2.config.mirror_keys import SOURCE_CONNECTOR
from mm2.config.values import split_list
from mm2.connect.api import ConnectError, SourceRecord
from mm2.connect.plugins import Plugins
from mm2.connect.predicates import TopicNameMatches
from mm2.connect.runtime.transformation_chain import TransformationStage, build_stages
from mm2.connect.transforms import RegexRouter
from mm2.mirror.policy import SOURCE_ALIAS_KEY, ReplicationPolicy

#: Those of Kafka's transformations and predicates, and of ours; "": the simple name.
_PACKAGES: Final = frozenset(
    {
        "",
        "org.apache.kafka.connect.transforms",
        "org.apache.kafka.connect.transforms.predicates",
        "mm2.connect.transforms",
        "mm2.connect.transforms.routers",
        "mm2.connect.predicates",
    }
)


class RenamedTopics(ReplicationPolicy):
    """The flow's policy, followed by its routers.

    A new name does not show its source, so a topic that the flow's policy does not recognize counts as replicated from the
    flow's source, as with IdentityReplicationPolicy.
    """

    def __init__(self, base: ReplicationPolicy, routers: Sequence[TransformationStage], source_alias: str) -> None:
        self.base = base
        self._routers = routers
        self._source_alias = source_alias

    def format_remote_topic(self, source_alias: str, topic: str) -> str:
        remote = self.base.format_remote_topic(source_alias, topic)
        if source_alias != self._source_alias:
            return remote
        record = SourceRecord(None, None, remote, None, None, None)
        for router in self._routers:
            record = router.apply(record) or record
        return record.topic

    def topic_source(self, topic: str) -> str | None:
        return self.base.topic_source(topic) or self._source_alias

    def upstream_topic(self, topic: str) -> str | None:
        return self.base.upstream_topic(topic) or topic

    def upstream_from(self, alias: str, topic: str) -> str | None:
        return self.base.upstream_from(alias, topic)

    def heartbeats_topic(self) -> str:
        return self.base.heartbeats_topic()

    def is_heartbeats_topic(self, topic: str) -> bool:
        return self.base.is_heartbeats_topic(topic)

    def offset_syncs_topic(self, other_alias: str) -> str:
        return self.base.offset_syncs_topic(other_alias)

    def checkpoints_topic(self, source_alias: str) -> str:
        return self.base.checkpoints_topic(source_alias)

    def is_checkpoints_topic(self, topic: str) -> bool:
        return self.base.is_checkpoints_topic(topic)

    def is_mm2_internal_topic(self, topic: str) -> bool:
        return self.base.is_mm2_internal_topic(topic)

    def is_internal_topic(self, topic: str) -> bool:
        return self.base.is_internal_topic(topic)


def renamed(base: ReplicationPolicy, props: Mapping[str, str]) -> ReplicationPolicy:
    """The policy of a connector with these properties. Raises ConfigException for a router that cannot be configured."""
    routers = [alias for alias in split_list(props.get("transforms") or "") if _renames(props, alias)]
    if not routers:
        return base
    given = {key: value for key, value in props.items() if key.startswith(("transforms.", "predicates"))}
    given |= {"name": SOURCE_CONNECTOR, "connector.class": SOURCE_CONNECTOR, "transforms": ",".join(routers)}
    try:
        stages = build_stages(Plugins(), AbstractConfig(SOURCE_CONNECTOR_CONFIG, given), given, None)
    except ConnectError as error:
        raise ConfigException("transforms", props["transforms"], str(error)) from error
    return RenamedTopics(base, stages, props.get(SOURCE_ALIAS_KEY, ""))


def depends_on_name_only(stage: TransformationStage) -> bool:
    """Whether a router changes the topics of a flow by their names only."""
    is_by_name = stage.predicate is None or isinstance(stage.predicate, TopicNameMatches)
    return isinstance(stage.transformation, RegexRouter) and is_by_name


def _renames(props: Mapping[str, str], alias: str) -> bool:
    predicate = props.get(f"transforms.{alias}.predicate")
    is_by_name = not predicate or _is_of_class(props.get(f"predicates.{predicate}.type"), "TopicNameMatches")
    return is_by_name and _is_of_class(props.get(f"transforms.{alias}.type"), "RegexRouter")


def _is_of_class(name: str | None, simple_name: str) -> bool:
    package, _, last = (name or "").strip().rpartition(".")
    return last == simple_name and package in _PACKAGES
