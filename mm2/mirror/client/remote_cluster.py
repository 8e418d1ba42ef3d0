"""RemoteClusterUtils: single questions to a cluster, each with a connection of its own (Kafka's class of the same name)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import overload

from mm2.kafka.structs import OffsetAndMetadata, TopicPartition
from mm2.mirror.client.mirror_client import TIMEOUT_S, MirrorClient


class RemoteClusterUtils:
    """``props`` are those of :class:`MirrorClient`, as are the failures."""

    @staticmethod
    def replication_hops(props: Mapping[str, str], upstream_alias: str) -> int:
        """Hops from that cluster to the one behind ``props``; -1 when no heartbeats come from there."""
        with MirrorClient(props) as client:
            return client.replication_hops(upstream_alias)

    @staticmethod
    def heartbeat_topics(props: Mapping[str, str]) -> set[str]:
        """All heartbeats topics, those of other clusters among them."""
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
        props: Mapping[str, str], remote_alias: str, group: re.Pattern[str], timeout_s: float = TIMEOUT_S
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]: ...

    @staticmethod
    def translate_offsets(
        props: Mapping[str, str], remote_alias: str, group: str | re.Pattern[str], timeout_s: float = TIMEOUT_S
    ) -> dict[TopicPartition, OffsetAndMetadata] | dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """See :meth:`MirrorClient.remote_consumer_offsets`; the arguments are in the order of Java's method."""
        with MirrorClient(props) as client:
            return client.remote_consumer_offsets(group, remote_alias, timeout_s)
