"""RemoteClusterUtils: single queries to a cluster, each with its own connection (Kafka's class of the same name)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import overload

from mm2.config.definitions.java_regex import JavaPattern
from mm2.kafka.structs import OffsetAndMetadata, TopicPartition
from mm2.mirror.client.mirror_client import TIMEOUT_S, MirrorClient


class RemoteClusterUtils:
    """``props`` and errors are those of :class:`MirrorClient`."""

    @staticmethod
    def replication_hops(props: Mapping[str, str], upstream_alias: str) -> int:
        """Hops from that cluster to the one of ``props``; -1 if no heartbeats arrive from there."""
        with MirrorClient(props) as client:
            return client.replication_hops(upstream_alias)

    @staticmethod
    def heartbeat_topics(props: Mapping[str, str]) -> set[str]:
        """All heartbeats topics, including those of other clusters."""
        with MirrorClient(props) as client:
            return client.heartbeat_topics()

    @staticmethod
    def checkpoint_topics(props: Mapping[str, str]) -> set[str]:
        """All checkpoints topics."""
        with MirrorClient(props) as client:
            return client.checkpoint_topics()

    @staticmethod
    def upstream_clusters(props: Mapping[str, str]) -> set[str]:
        """Aliases of all clusters from which heartbeats arrive."""
        with MirrorClient(props) as client:
            return client.upstream_clusters()

    @overload
    @staticmethod
    def translate_offsets(
        props: Mapping[str, str], remote_alias: str, group: str, timeout_s: float = TIMEOUT_S
    ) -> dict[TopicPartition, OffsetAndMetadata]: ...

    @overload
    @staticmethod
    def translate_offsets(
        props: Mapping[str, str], remote_alias: str, group: re.Pattern[str] | JavaPattern, timeout_s: float = TIMEOUT_S
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]: ...

    @staticmethod
    def translate_offsets(
        props: Mapping[str, str],
        remote_alias: str,
        group: str | re.Pattern[str] | JavaPattern,
        timeout_s: float = TIMEOUT_S,
    ) -> dict[TopicPartition, OffsetAndMetadata] | dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """See :meth:`MirrorClient.remote_consumer_offsets`; the order of arguments is that of Java's method."""
        with MirrorClient(props) as client:
            return client.remote_consumer_offsets(group, remote_alias, timeout_s)
