"""Adopts the positions of another Kafka Connect deployment, such as that of Strimzi's KafkaMirrorMaker2, for a flow.

MirrorMaker 2 stores its positions in Connect's offsets topic, under a key of the connector's name, the alias of the source and the
partition (``MirrorUtils.wrapPartition``). A dedicated MirrorMaker and Strimzi differ in the name of the connector and of the topic
only, so a position is adopted by writing it again under the flow's key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mm2.config.keys.mirror_keys import SOURCE_CONNECTOR
from mm2.config.keys.worker_keys import WorkerConfig, storage_topics
from mm2.config.mirrormaker import DEDICATED_WORKER_DEFAULTS, SourceAndTarget
from mm2.connect.stores.internal_topic import InternalTopic, ensure
from mm2.connect.stores.offset_survey import KeptOffset, kept_offsets
from mm2.copy.progress.written_positions import offset_key, offset_value
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.producer.producer import Producer
from mm2.kafka.records.record import Record
from mm2.kafka.structs import TopicPartition
from mm2.mirror.common.discovery import vanished
from mm2.mirror.source_connector import topic_selection

CONNECTOR: Final = SOURCE_CONNECTOR.rpartition(".")[2]
_READ_S: Final = 300.0
_WRITE_S: Final = 60.0
_NAMED: Final = 5


class AdoptionRefused(Exception):
    """Nothing was changed, for the reason in the message."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The other deployment: the group of its workers, their offsets topic, and its source connector."""

    group: str
    topic: str
    connector: str

    @classmethod
    def of_strimzi(cls, pair: SourceAndTarget) -> Origin:
        """The names that Strimzi's operator uses unless its resource sets others (KafkaMirrorMaker2Connectors)."""
        group = "mirrormaker2-cluster"
        return cls(group, f"{group}-offsets", f"{pair}.{CONNECTOR}")


@dataclass(frozen=True, slots=True)
class Adoption:
    """The last copied offset of each partition: the ``new`` ones, and those that the flow had already.

    ``missing``: topics on the target that do not exist, although these positions show that records were copied to them.
    """

    topic: str
    new: Mapping[TopicPartition, int]
    known: Mapping[TopicPartition, int]
    missing: Sequence[str]


class Adopter:
    """Adopts positions for one flow. ``worker`` and ``props`` are those of its worker and its source connector, resolved."""

    def __init__(
        self, cluster: Cluster, pair: SourceAndTarget, worker: Mapping[str, str], props: Mapping[str, str]
    ) -> None:
        self._cluster = cluster
        self._admin = Admin(cluster)
        self._pair = pair
        self._worker = WorkerConfig({**DEDICATED_WORKER_DEFAULTS, **worker})
        self._selection = topic_selection(props, storage_topics(worker))

    def adopt(self, origin: Origin, *, dry_run: bool) -> Adoption:
        """Write the positions, and read them back. Raises AdoptionRefused, ConnectError or KafkaFailure."""
        for group in (origin.group, self._worker.str("group.id")):
            self._require_idle(group)
        if vanished(self._admin.describe_topics([origin.topic])[origin.topic]):
            raise AdoptionRefused(f"Cluster {self._pair.target} has no topic {origin.topic}.")
        positions = self._positions_of(origin)
        topic = self._worker.str("offset.storage.topic")
        known = self._own(topic)
        differing = sorted(tp for tp, offset in positions.items() if known.get(tp, offset) != offset)
        if differing:
            first = differing[0]
            raise AdoptionRefused(
                f"The flow {self._pair} has other positions of {len(differing)} partitions in {topic}, first {first}: {known[first]} "
                f"instead of {positions[first]}. It has been running already; remove them with mm2 offsets delete to adopt these."
            )
        new = {tp: offset for tp, offset in positions.items() if tp not in known}
        adoption = Adoption(
            topic, new, {tp: offset for tp, offset in positions.items() if tp in known}, self._missing(positions)
        )
        if not dry_run and new:
            self._write(topic, new)
        return adoption

    def _require_idle(self, group: str) -> None:
        """Its workers would copy and commit meanwhile, and what they copied then would be copied again."""
        found = self._admin.describe_groups([group])[group]
        if isinstance(found, KafkaFailure):
            if isinstance(found, BrokerFailure) and found.code == ErrorCode.GROUP_ID_NOT_FOUND:
                return
            raise found
        if found.members:
            raise AdoptionRefused(
                f"{len(found.members)} workers are in the group {group} on cluster {self._pair.target}: stop them first. A killed worker "
                "leaves the group after its session timeout."
            )

    def _positions_of(self, origin: Origin) -> dict[TopicPartition, int]:
        kept = kept_offsets(self._cluster, origin.topic, _READ_S)
        mine = _positions(kept, origin.connector, self._pair.source)
        if mine:
            return mine
        there = Counter((one.connector, (one.partition or {}).get("cluster")) for one in kept if one.connector)
        named = [
            f"{connector} from {source} ({count})" for (connector, source), count in sorted(there.items(), key=str)
        ]
        raise AdoptionRefused(
            f"Topic {origin.topic} has no positions of the connector {origin.connector} from {self._pair.source}. It has those of: "
            f"{', '.join(named[:_NAMED]) or 'no connector'}."
        )

    def _own(self, topic: str) -> dict[TopicPartition, int]:
        if vanished(self._admin.describe_topics([topic])[topic]):
            return {}
        return _positions(kept_offsets(self._cluster, topic, _READ_S), CONNECTOR, self._pair.source)

    def _missing(self, positions: Mapping[TopicPartition, int]) -> list[str]:
        """With other names than before, the records after the positions would be copied to other topics."""
        names = {self._selection.remote(tp.topic) for tp in positions}
        missing = sorted(names - set(self._admin.list_topics()))
        if missing and len(missing) == len(names):
            raise AdoptionRefused(
                f"Cluster {self._pair.target} has none of the remote topics, such as {missing[0]}: set replication.policy.class and its "
                "separator as they were."
            )
        return missing

    def _write(self, topic: str, positions: Mapping[TopicPartition, int]) -> None:
        ensure(
            self._admin,
            InternalTopic.from_config(self._worker, "offset.storage."),
            self._pair.target,
            timeout_s=_WRITE_S,
        )
        records = [
            Record(offset_key(CONNECTOR, self._pair.source, tp), offset_value(offset + 1))
            for tp, offset in positions.items()
        ]
        producer = Producer(self._cluster)
        try:
            producer.send(topic, records, timeout_s=_WRITE_S)
        finally:
            producer.close()
        back = self._own(topic)
        lost = sorted(tp for tp, offset in positions.items() if back.get(tp) != offset)
        if lost:
            raise AdoptionRefused(
                f"{len(lost)} positions, first {lost[0]}, were not read back: another process writes to {topic}."
            )


def _positions(kept: Sequence[KeptOffset], connector: str, source: str) -> dict[TopicPartition, int]:
    """The last copied offset of each partition of a source cluster. Raises AdoptionRefused for one that is not an offset."""
    found = {}
    for one in kept:
        partition = one.partition or {}
        if one.connector != connector or partition.get("cluster") != source:
            continue
        offset = (one.offset or {}).get("offset")
        topic, number = partition.get("topic"), partition.get("partition")
        if not (_is_number(offset) and isinstance(topic, str) and _is_number(number)):
            raise AdoptionRefused(
                f"The position {one.key!r} of {connector} is not an offset of a partition: {one.offset}."
            )
        found[TopicPartition(topic, int(str(number)))] = int(str(offset))
    return found


def next_offsets(cluster: Cluster, topic: str, source_alias: str, timeout_s: float) -> dict[TopicPartition, int]:
    """A flow's positions in Connect's offsets topic, as the next source offsets. Raises KafkaFailure."""
    found = {}
    for one in kept_offsets(cluster, topic, timeout_s):
        partition, offset = one.partition or {}, one.offset or {}
        if one.connector == CONNECTOR and partition.get("cluster") == source_alias:
            done, number = offset.get("offset"), partition.get("partition")
            if isinstance(done, int) and isinstance(number, int):
                found[TopicPartition(str(partition.get("topic")), number)] = done + 1
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
