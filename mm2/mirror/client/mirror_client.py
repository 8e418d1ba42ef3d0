"""MirrorClient: one cluster, asked what is mirrored to it (Kafka's class of the same name, spec mirrormaker §7).

Deviations: all client settings count, where Java's drops whatever is not about addresses and security; a tombstone in the
checkpoints topic is passed over, where Java's ends with a NullPointerException; an answer that is not complete when its time
is over is a failure, where Java's gives what it has by then.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Final, Self, overload

from mm2.kafka.cluster import Cluster
from mm2.kafka.errors import KafkaFailure, TimeoutFailure
from mm2.kafka.reader import read_partition
from mm2.kafka.records.record import Record
from mm2.kafka.settings import ClientSettings
from mm2.kafka.structs import EARLIEST, LATEST, OffsetAndMetadata, TopicPartition
from mm2.mirror.client.routes import replication_hops, upstream_clusters
from mm2.mirror.clients import Kind, with_prefix
from mm2.mirror.formats import Checkpoint, FormatError
from mm2.mirror.plugins import admin_class, replication_policy
from mm2.mirror.policy import ReplicationPolicy

TIMEOUT_S: Final = 30.0
"""How long a topic may take to be read, unless the caller says otherwise."""


class MirrorClient:
    """``props`` lead to the cluster, with the keys of a Kafka client and those of the replication policy.

    Keys under ``admin.`` and ``consumer.`` win for that kind of client. Nothing is connected before the first question; one
    thread at a time. The constructor raises ConfigException or ConnectError, the questions raise
    :class:`~mm2.kafka.errors.KafkaFailure`.
    """

    def __init__(self, props: Mapping[str, str]) -> None:
        self._props = dict(props)
        self._policy = replication_policy(self._props)
        self._admin_cluster = Cluster(_settings(self._props, Kind.ADMIN), name=self._name)
        self._admin = admin_class(self._props)(self._admin_cluster)
        self._consumer_cluster = Cluster(_settings(self._props, Kind.CONSUMER), name=self._name)
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
        """What tells which topic came from where."""
        return self._policy

    # -- topics

    def topics(self) -> set[str]:
        """All topics that may be described, without those that the broker calls internal."""
        return self._admin.list_topics()

    def heartbeat_topics(self) -> set[str]:
        """``heartbeats`` and what has come of it from elsewhere: ``A.heartbeats``, ``B.A.heartbeats``."""
        return {topic for topic in self.topics() if self._policy.is_heartbeats_topic(topic)}

    def checkpoint_topics(self) -> set[str]:
        """One for each cluster whose groups can be continued here."""
        return {topic for topic in self.topics() if self._policy.is_checkpoints_topic(topic)}

    def upstream_clusters(self) -> set[str]:
        """Aliases of all clusters from which heartbeats arrive here, whatever number of hops away."""
        return upstream_clusters(self._policy, self.heartbeat_topics())

    def replication_hops(self, upstream_alias: str) -> int:
        """Hops from that cluster to this one, by the shortest way that heartbeats take; -1 when none come from there."""
        hops = [replication_hops(self._policy, topic, upstream_alias) for topic in self.heartbeat_topics()]
        return min((count for count in hops if count >= 0), default=-1)

    def remote_topics(self, source: str | None = None) -> set[str]:
        """Topics that were mirrored to here, by the cluster ``source`` next to this one (None: by any)."""
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
        self, group: re.Pattern[str], remote_alias: str, timeout_s: float = TIMEOUT_S
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]: ...

    def remote_consumer_offsets(
        self, group: str | re.Pattern[str], remote_alias: str, timeout_s: float = TIMEOUT_S
    ) -> dict[TopicPartition, OffsetAndMetadata] | dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """Where a group that has read on the cluster ``remote_alias`` goes on here, by partition of this cluster.

        With a pattern: the same by group, for all groups that match it as a whole. Empty when there is no checkpoint.
        """
        found: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        for checkpoint in self.checkpoints(remote_alias, timeout_s):
            if checkpoint.group == group if isinstance(group, str) else group.fullmatch(checkpoint.group):
                partition = TopicPartition(checkpoint.topic, checkpoint.partition)
                offset = OffsetAndMetadata(checkpoint.downstream_offset, checkpoint.metadata)
                found.setdefault(checkpoint.group, {})[partition] = offset
        return found.get(group, {}) if isinstance(group, str) else found

    def checkpoints(self, remote_alias: str, timeout_s: float = TIMEOUT_S) -> list[Checkpoint]:
        """The newest checkpoint of every group and partition that came from the cluster ``remote_alias``.

        A key whose newest record is a tombstone has none; records that are no checkpoints are passed over.
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
        """Partition 0 of ``topic``, from offset ``start`` (None: from the beginning) to what is its end now.

        TimeoutFailure when that takes longer than ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        info = self._consumer.describe_topics([topic])[topic]
        if isinstance(info, KafkaFailure):
            raise info
        first, end = (self.offset(topic, when) for when in (EARLIEST, LATEST))
        # What begins behind the end belongs to a topic that is gone.
        begin = first if start is None or start > end else max(first, start)
        for record in read_partition(self._consumer_cluster, info, 0, start=begin, end=end, patience_s=timeout_s):
            if time.monotonic() > deadline:
                raise TimeoutFailure(f"{topic}-0 of cluster {self._name} was not read to its end in {timeout_s:g} s")
            yield record

    def offset(self, topic: str, when: int) -> int:
        """Of the first record in partition 0 that is not older than ``when``, ms since 1970, or EARLIEST or LATEST; the end when
        there is none."""
        partition = TopicPartition(topic, 0)
        found = self._consumer.list_offsets({partition: when})[partition]
        if isinstance(found, KafkaFailure):
            raise found
        return self.offset(topic, LATEST) if found.offset < 0 else found.offset

    @property
    def _name(self) -> str:
        return f"at {self._props.get('bootstrap.servers', 'no address')}"


def _settings(props: Mapping[str, str], kind: Kind) -> ClientSettings:
    merged = {"client.id": "mm2-mirror-client", **props, **with_prefix(props, f"{kind.value}.")}
    return ClientSettings.from_props(merged)
