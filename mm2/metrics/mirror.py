"""MirrorMaker 2's own metrics under the names that the usual rules of the JMX exporter give them.

There are two forms, selected by ``metric.names.formats``: *legacy*,
``kafka.connect.mirror:type=MirrorSourceConnector,…``, and *new* (KIP-1280), ``kafka.connect:type=plugins,…``. ``topic``
is the name on the target, as in Java.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mm2.metrics.metric import Metric, MetricType

_PLACE: Final = ("source", "target", "topic", "partition")
_NEW_PLACE: Final = ("connector", "task", *_PLACE)

#: Attributes of Java's MBean, and their descriptions.
SOURCE_ATTRIBUTES: Final = {
    "record_count": "Records copied.",
    "record_rate": "Records copied per second.",
    "byte_count": "Bytes copied: whole record batches (Java counts record values only).",
    "byte_rate": "Bytes copied per second.",
    "record_age_ms": "Age of the last record batch when it was fetched.",
    "record_age_ms_min": "Minimum age of a record batch when it was fetched, over about the last minute.",
    "record_age_ms_max": "Maximum age of a record batch when it was fetched, over about the last minute.",
    "record_age_ms_avg": "Average age of a record batch when it was fetched, over about the last minute.",
    "replication_latency_ms": "Time from the timestamp of the last record batch until the target acknowledged it.",
    "replication_latency_ms_min": "Minimum replication latency of a record batch, over about the last minute.",
    "replication_latency_ms_max": "Maximum replication latency of a record batch, over about the last minute.",
    "replication_latency_ms_avg": "Average replication latency of a record batch, over about the last minute.",
}
_LEGACY: Final = "kafka_connect_mirror_mirrorsourceconnector_"
_NEW: Final = "kafka_connect_plugins_"


def _metrics(
    prefix: str, labels: tuple[str, ...], attributes: Mapping[str, str] = SOURCE_ATTRIBUTES
) -> dict[str, Metric]:
    return {name: Metric(prefix + name, MetricType.GAUGE, text, labels) for name, text in attributes.items()}


LEGACY_SOURCE: Final = _metrics(_LEGACY, _PLACE)
NEW_SOURCE: Final = _metrics(_NEW, _NEW_PLACE)

CHECKPOINT_ATTRIBUTES: Final = {
    "checkpoint_latency_ms": "Time from the creation of the last checkpoint until the target acknowledged it.",
    "checkpoint_latency_ms_min": "Minimum checkpoint latency since the task started.",
    "checkpoint_latency_ms_max": "Maximum checkpoint latency since the task started.",
    "checkpoint_latency_ms_avg": "Average checkpoint latency since the task started.",
}
_CHECKPOINT_PLACE: Final = ("source", "target", "group", "topic", "partition")
LEGACY_CHECKPOINT: Final = _metrics(
    "kafka_connect_mirror_mirrorcheckpointconnector_", _CHECKPOINT_PLACE, CHECKPOINT_ATTRIBUTES
)
NEW_CHECKPOINT: Final = _metrics(_NEW, ("connector", "task", *_CHECKPOINT_PLACE), CHECKPOINT_ATTRIBUTES)

#: Metrics of Java's clients of a source task; ``clientid`` is quoted, as JMX quotes names with such characters.
CONSUMER_LAG: Final = Metric(
    "kafka_consumer_fetch_manager_records_lag",
    MetricType.GAUGE,
    "Offsets between the position and the log end offset of the source, for partitions that this process copies; topic is the name on the source.",
    ("clientid", "topic", "partition"),
)
INCOMING: Final = Metric(
    "kafka_consumer_incoming_byte_total",
    MetricType.COUNTER,
    "Bytes of record batches that the flow has read and copied in this process.",
    ("clientid",),
)
OUTGOING: Final = Metric(
    "kafka_producer_outgoing_byte_total",
    MetricType.COUNTER,
    "Bytes of record batches that the flow has written in this process.",
    ("clientid",),
)

MIRROR_METRICS: Final = (
    *LEGACY_SOURCE.values(),
    *NEW_SOURCE.values(),
    *LEGACY_CHECKPOINT.values(),
    *NEW_CHECKPOINT.values(),
    CONSUMER_LAG,
    INCOMING,
    OUTGOING,
)


def metric_formats(props: Mapping[str, str]) -> frozenset[str]:
    """The formats in a connector's ``metric.names.formats``: legacy, new, or both; legacy if neither is set."""
    given = {item.strip() for item in props.get("metric.names.formats", "legacy").split(",")}
    return frozenset(given & {"legacy", "new"}) or frozenset({"legacy"})


def client_id(source: str, target: str, role: str, task: int | None = None) -> str:
    """The client id of a source task's client, as in Java's MBean names."""
    return f'"{source}->{target}|MirrorSourceConnector{"" if task is None else f"-{task}"}|{role}"'
