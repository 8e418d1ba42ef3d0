"""MirrorClient: queries a cluster about what is mirrored to it (Kafka's class of the same name).

Deviations from Java: all client settings apply, where Java's class drops all but those for addresses and security; a
tombstone in the checkpoints topic is skipped, where Java's fails with a NullPointerException; an incomplete result at
the timeout is an error, where Java's returns the partial result.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Final, Self, overload

from mm2.config.definitions.java_regex import JavaPattern
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import TimeoutFailure, value_of
from mm2.kafka.readers.reader import read_partition
from mm2.kafka.records.record import Record
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import EARLIEST, LATEST, OffsetAndMetadata, TopicPartition
from mm2.mirror.client.routes import replication_hops, upstream_clusters
from mm2.mirror.common.clients import ClientKind, with_prefix
from mm2.mirror.common.formats import Checkpoint, FormatError
from mm2.mirror.common.plugins import admin_class, replication_policy
from mm2.mirror.policy import ReplicationPolicy

TIMEOUT_S: Final = 30.0
"""Default time limit for reading a topic."""


class MirrorClient:
    """``props`` are the cluster's Kafka client settings and those of the replication policy.

    Keys under ``admin.`` and ``consumer.`` take precedence for that kind of client. Nothing is connected before the
    first query. Not thread-safe. The constructor raises ConfigException or ConnectError, the queries raise
    :class:`~mm2.kafka.errors.KafkaFailure`.
    """

    def __init__(self, props: Mapping[str, str]) -> None:
        self._props = dict(props)
        self._policy = replication_policy(self._props)
        self._admin_cluster = Cluster(_settings(self._props, ClientKind.ADMIN), name=self._name)
        self._admin = admin_class(self._props)(self._admin_cluster)
        self._consumer_cluster = Cluster(_settings(self._props, ClientKind.CONSUMER), name=self._name)
        self._consumer = admin_class(self._props)(self._consumer_cluster)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._admin_cluster.close()
        self._consumer_cluster.close()

    def replication_policy(self) -> ReplicationPolicy:
        """The policy that names remote topics."""
        return self._policy

    # -- topics

    def topics(self) -> set[str]:
        """All topics that may be described, except those that are internal to the broker."""
        return self._admin.list_topics()

    def heartbeat_topics(self) -> set[str]:
        """``heartbeats`` and its remote topics: ``A.heartbeats``, ``B.A.heartbeats``."""
        return {topic for topic in self.topics() if self._policy.is_heartbeats_topic(topic)}

    def checkpoint_topics(self) -> set[str]:
        """The checkpoints topics, one for each cluster whose groups can fail over to this cluster."""
        return {topic for topic in self.topics() if self._policy.is_checkpoints_topic(topic)}

    def upstream_clusters(self) -> set[str]:
        """Aliases of all clusters from which heartbeats arrive here, over any number of hops."""
        return upstream_clusters(self._policy, self.heartbeat_topics())

    def replication_hops(self, upstream_alias: str) -> int:
        """Hops from that cluster to this one, by the shortest path of heartbeats; -1 if none arrive from there."""
        hops = [replication_hops(self._policy, topic, upstream_alias) for topic in self.heartbeat_topics()]
        return min((count for count in hops if count >= 0), default=-1)

    def remote_topics(self, source: str | None = None) -> set[str]:
        """Remote topics here, copied directly from the cluster ``source`` (None: from any)."""
        return {
            topic
            for topic in self.topics()
            if not self._policy.is_internal_topic(topic)
            and (came_from := self._policy.topic_source(topic)) is not None
            and source in (None, came_from)
        }

    # -- groups

    @overload
    def remote_consumer_offsets(
        self, group: str, remote_alias: str, timeout_s: float = TIMEOUT_S
    ) -> dict[TopicPartition, OffsetAndMetadata]: ...

    @overload
    def remote_consumer_offsets(
        self, group: re.Pattern[str] | JavaPattern, remote_alias: str, timeout_s: float = TIMEOUT_S
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]: ...

    def remote_consumer_offsets(
        self, group: str | re.Pattern[str] | JavaPattern, remote_alias: str, timeout_s: float = TIMEOUT_S
    ) -> dict[TopicPartition, OffsetAndMetadata] | dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """The translated offsets of a group of the cluster ``remote_alias``, by partition of this cluster.

        With a pattern: the same by group, for all groups whose whole id matches. Empty if there is no checkpoint.
        """
        found: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        for checkpoint in self.checkpoints(remote_alias, timeout_s):
            if checkpoint.group == group if isinstance(group, str) else group.fullmatch(checkpoint.group):
                partition = TopicPartition(checkpoint.topic, checkpoint.partition)
                offset = OffsetAndMetadata(checkpoint.downstream_offset, checkpoint.metadata)
                found.setdefault(checkpoint.group, {})[partition] = offset
        return found.get(group, {}) if isinstance(group, str) else found

    def checkpoints(self, remote_alias: str, timeout_s: float = TIMEOUT_S) -> list[Checkpoint]:
        """The newest checkpoint of each group and partition that came from the cluster ``remote_alias``.

        A key whose newest record is a tombstone has none; records that are not checkpoints are skipped.
        """
        newest: dict[bytes | None, Checkpoint] = {}
        for record in self.read(self._policy.checkpoints_topic(remote_alias), timeout_s):
            if record.value is None:
                newest.pop(record.key, None)
                continue
            with contextlib.suppress(FormatError):
                newest[record.key] = Checkpoint.decode(record.key, record.value)
        return list(newest.values())

    def read(self, topic: str, timeout_s: float = TIMEOUT_S, *, start: int | None = None) -> Iterator[Record]:
        """Read partition 0 of ``topic``, from offset ``start`` (None: from the beginning) to its current end.

        Raises TimeoutFailure if that takes longer than ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        info = value_of(self._consumer.describe_topics([topic])[topic])
        first, end = (self.offset(topic, when) for when in (EARLIEST, LATEST))
        # An offset after the end belongs to a topic that was deleted.
        begin = first if start is None or start > end else max(first, start)
        for record in read_partition(self._consumer_cluster, info, 0, start=begin, end=end, patience_s=timeout_s):
            if time.monotonic() > deadline:
                raise TimeoutFailure(f"{topic}-0 of cluster {self._name} was not read to its end in {timeout_s:g} s")
            yield record

    def offset(self, topic: str, when: int) -> int:
        """The offset in partition 0 for ``when``: a timestamp in ms since 1970, or EARLIEST or LATEST.

        For a timestamp, that of the first record that is not older, or the end if there is none.
        """
        partition = TopicPartition(topic, 0)
        found = value_of(self._consumer.list_offsets({partition: when})[partition])
        if found.offset < 0:
            found = value_of(self._consumer.list_offsets({partition: LATEST})[partition])
        return found.offset

    @property
    def _name(self) -> str:
        return f"at {self._props.get('bootstrap.servers', 'no address')}"


def _settings(props: Mapping[str, str], kind: ClientKind) -> ClientSettings:
    merged = {"client.id": "mm2-mirror-client", **props, **with_prefix(props, f"{kind.value}.")}
    return ClientSettings.from_props(merged)
