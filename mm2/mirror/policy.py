"""Replication policies: define the name of a replicated topic on another cluster (ReplicationPolicy).

A policy is created without arguments and then configured with all properties of its connector, like Kafka's
`Configurable` classes. A custom policy subclasses `ReplicationPolicy`; its Python path is set in
`replication.policy.class`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final

import structlog

log = structlog.get_logger(__name__)

SEPARATOR_KEY: Final = "replication.policy.separator"
INTERNAL_SEPARATOR_KEY: Final = "replication.policy.internal.topic.separator.enabled"
SOURCE_ALIAS_KEY: Final = "source.cluster.alias"

HEARTBEATS_TOPIC: Final = "heartbeats"
DEFAULT_SEPARATOR: Final = "."


class ReplicationPolicy(ABC):
    """Kafka's interface of the same name, with its default methods (all of them with a fixed `.`)."""

    def configure(self, props: Mapping[str, str]) -> None:  # noqa: B027 - optional
        """Configure the policy with the connector's properties; called once, before all other methods."""

    @abstractmethod
    def format_remote_topic(self, source_alias: str, topic: str) -> str:
        """The name on the target of `topic` when replicated from the cluster `source_alias`."""

    @abstractmethod
    def topic_source(self, topic: str) -> str | None:
        """The alias of the cluster from which `topic` was replicated; None if it is not a remote topic."""

    @abstractmethod
    def upstream_topic(self, topic: str) -> str | None:
        """The name of `topic` on the cluster `topic_source(topic)`; None if it is not a remote topic."""

    def original_topic(self, topic: str) -> str:
        """The name of `topic` on the cluster where it was created, over any number of hops."""
        while (upstream := self.upstream_topic(topic)) is not None and upstream != topic:
            topic = upstream
        return topic

    def upstream_from(self, alias: str, topic: str) -> str | None:
        """The name of `topic` on the cluster `alias` if it was replicated directly from there, else None."""
        return self.upstream_topic(topic) if self.topic_source(topic) == alias else None

    def came_from(self, alias: str, topic: str) -> bool:
        """Whether `topic` was replicated directly from the cluster `alias`."""
        return self.topic_source(topic) == alias or self.upstream_from(alias, topic) is not None

    def heartbeats_topic(self) -> str:
        return HEARTBEATS_TOPIC

    def offset_syncs_topic(self, other_alias: str) -> str:
        """Offset syncs topic; `other_alias` is the flow's cluster that does *not* host it."""
        return f"mm2-offset-syncs.{other_alias}.internal"

    def checkpoints_topic(self, source_alias: str) -> str:
        return f"{source_alias}{self._checkpoints_suffix()}"

    def is_heartbeats_topic(self, topic: str) -> bool:
        return self.original_topic(topic) == self.heartbeats_topic()

    def is_checkpoints_topic(self, topic: str) -> bool:
        return topic.endswith(self._checkpoints_suffix())

    def is_mm2_internal_topic(self, topic: str) -> bool:
        """Since 4.3 (KIP-1074) only `mm2*…internal` and checkpoints topics; a user's `x.internal` is replicated."""
        return (topic.startswith("mm2") and topic.endswith(self._internal_suffix())) or self.is_checkpoints_topic(topic)

    def is_internal_topic(self, topic: str) -> bool:
        return self.is_mm2_internal_topic(topic) or topic.startswith(("__", "."))

    def _internal_suffix(self) -> str:
        return ".internal"

    def _checkpoints_suffix(self) -> str:
        return ".checkpoints.internal"


class DefaultReplicationPolicy(ReplicationPolicy):
    """Names remote topics `<source alias><separator><topic>`."""

    def __init__(self) -> None:
        self._separator = DEFAULT_SEPARATOR
        self._internal_separator = DEFAULT_SEPARATOR

    def configure(self, props: Mapping[str, str]) -> None:
        separator = props.get(SEPARATOR_KEY)
        if separator is None:
            return  # then the internal flag has no effect either, as in Java
        self._separator = separator
        own_internal = props.get(INTERNAL_SEPARATOR_KEY, "true").lower() == "true"
        self._internal_separator = separator if own_internal else DEFAULT_SEPARATOR
        if separator != DEFAULT_SEPARATOR:
            log.info("Remote topic names use a custom separator.", separator=separator, in_internal_names=own_internal)

    def format_remote_topic(self, source_alias: str, topic: str) -> str:
        return f"{source_alias}{self._separator}{topic}"

    def topic_source(self, topic: str) -> str | None:
        if not self._separator:  # an empty pattern splits after each character
            return topic[0] if len(topic) >= 2 else None
        # Java's String.split drops trailing empty parts, so `a.` and `.` have one part or none: no source.
        parts = topic.split(self._separator)
        while parts and not parts[-1]:
            parts.pop()
        return parts[0] if len(parts) >= 2 else None

    def upstream_topic(self, topic: str) -> str | None:
        source = self.topic_source(topic)
        return None if source is None else topic[len(source) + len(self._separator) :]

    def upstream_from(self, alias: str, topic: str) -> str | None:
        # Kafka splits a name at its first separator. It does not recognize topics of an alias that contains the
        # separator (`eu.west`), so two such clusters would replicate them back and forth endlessly.
        prefix = f"{alias}{self._separator}"
        if self._separator in alias and self.format_remote_topic(alias, "") == prefix and topic.startswith(prefix):
            return topic.removeprefix(prefix) or None
        return super().upstream_from(alias, topic)

    def offset_syncs_topic(self, other_alias: str) -> str:
        return f"mm2-offset-syncs{self._internal_separator}{other_alias}{self._internal_suffix()}"

    def _internal_suffix(self) -> str:
        return f"{self._internal_separator}internal"

    def _checkpoints_suffix(self) -> str:
        return f"{self._internal_separator}checkpoints{self._internal_separator}internal"


class IdentityReplicationPolicy(DefaultReplicationPolicy):
    """Keeps topic names. There is no cycle detection, except for heartbeats, which are still renamed.

    Every topic counts as replicated from the configured `source.cluster.alias`. A name that merely *ends* with
    `heartbeats` is renamed too, as in Java.
    """

    def __init__(self) -> None:
        super().__init__()
        self._source_alias: str | None = None

    def configure(self, props: Mapping[str, str]) -> None:
        super().configure(props)
        self._source_alias = props.get(SOURCE_ALIAS_KEY)

    def format_remote_topic(self, source_alias: str, topic: str) -> str:
        return super().format_remote_topic(source_alias, topic) if self._looks_like_heartbeats(topic) else topic

    def topic_source(self, topic: str) -> str | None:
        return super().topic_source(topic) if self._looks_like_heartbeats(topic) else self._source_alias

    def upstream_topic(self, topic: str) -> str | None:
        return super().upstream_topic(topic) if self._looks_like_heartbeats(topic) else topic

    def _looks_like_heartbeats(self, topic: str) -> bool:
        return topic.endswith(self.heartbeats_topic())
