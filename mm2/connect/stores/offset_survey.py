"""Lists the offsets topic key by key, with the age of each offset, for clean-up by operators."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mm2.connect.api import ConnectError
from mm2.connect.stores.config_state import ClusterConfigState, ConfigFold, TargetState
from mm2.connect.stores.offset_table import OffsetJson
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.producer.producer import Producer
from mm2.kafka.readers.log import KafkaBasedLog, LogRecord
from mm2.kafka.records.record import Record


@dataclass(frozen=True)
class KeptOffset:
    """A key that has a value.

    ``connector`` and ``partition`` are None when the key is not one of Connect's, ``offset`` when the value is invalid.
    """

    key: bytes
    connector: str | None
    partition: Mapping[str, Any] | None
    offset: Mapping[str, Any] | None
    #: Timestamp of the record, in ms.
    written_ms: int
    #: Location of its newest record.
    log_partition: int
    log_offset: int

    @classmethod
    def of(cls, record: LogRecord) -> KeptOffset:
        """Parse a record as far as possible."""
        key = record.key or b""
        named = OffsetJson.parse_key(key)
        try:
            offset = OffsetJson.parse_value(record.value)
        except ConnectError:
            offset = None
        connector, partition = (None, None) if named is None else named
        return cls(key, connector, partition, offset, record.timestamp, record.partition, record.offset)


def kept_offsets(cluster: Cluster, topic: str, timeout_s: float) -> list[KeptOffset]:
    """All keys of an offsets topic, by connector, then by key. Raises KafkaFailure.

    Records of aborted transactions are skipped.
    """
    newest: dict[bytes, LogRecord] = {}

    def take(record: LogRecord) -> None:
        if record.key is None:
            return
        if record.value is None:
            newest.pop(record.key, None)
        else:
            newest[record.key] = record

    _read(KafkaBasedLog(cluster, topic, on_record=take, read_committed=True), timeout_s)
    found = [KeptOffset.of(record) for record in newest.values()]
    return sorted(found, key=lambda kept: (kept.connector is None, kept.connector or "", kept.key))


def configured_connectors(cluster: Cluster, config_topic: str, timeout_s: float) -> dict[str, TargetState]:
    """The connectors in a config topic, with their target states. Raises KafkaFailure."""
    state = stored_configs(cluster, config_topic, timeout_s)
    return {name: state.target_state(name) or TargetState.STARTED for name in state.connectors()}


def stored_configs(cluster: Cluster, config_topic: str, timeout_s: float) -> ClusterConfigState:
    """The current state of a config topic. Raises KafkaFailure, also when the topic does not exist."""
    fold = ConfigFold()
    log = KafkaBasedLog(
        cluster,
        config_topic,
        on_record=lambda record: fold.apply(record.offset, record.key, record.value),
        read_committed=True,
    )
    _read(log, timeout_s)
    return fold.snapshot()


def remove(cluster: Cluster, topic: str, kept: Collection[KeptOffset], timeout_s: float) -> None:
    """Write a tombstone for each offset into the partition of its key; its producer may have used another partitioner.

    Raises KafkaFailure; some tombstones may have been written then.
    """
    producer = Producer(cluster)
    try:
        for partition in sorted({one.log_partition for one in kept}):
            batch = [Record(one.key, None) for one in kept if one.log_partition == partition]
            producer.send(topic, batch, partition, timeout_s=timeout_s)
    finally:
        producer.close()


def matching(
    kept: Iterable[KeptOffset], *, connectors: Collection[str], fields: Mapping[str, str], before_ms: int | None
) -> list[KeptOffset]:
    """The offsets of these connectors (of all if empty) that match the filter.

    Their source partition has these fields (numbers as text), and they were written before a time. Keys that are not
    Connect's never match.
    """
    return [
        one
        for one in kept
        if one.connector is not None
        and one.partition is not None
        and (not connectors or one.connector in connectors)
        and all(name in one.partition and _text(one.partition[name]) == value for name, value in fields.items())
        and (before_ms is None or one.written_ms < before_ms)
    ]


def _text(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read(log: KafkaBasedLog, timeout_s: float) -> None:
    try:
        log.start(timeout_s, to_stable=True)
    finally:
        log.stop()
