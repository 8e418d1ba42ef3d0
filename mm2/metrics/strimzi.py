"""The panels of Strimzi's dashboard for MirrorMaker 2 (as of August 2026), and which of them have data here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_SOURCE: Final = "kafka_connect_mirror_mirrorsourceconnector_"
_SPREAD: Final = ("", "_avg", "_min", "_max")
_NO_JVM: Final = "no: the worker does not run in a JVM; see `process_…`"
_QUOTED: Final = (
    "the metric exists; the panel selects quoted connector names, which only Strimzi's names are, so it is empty with "
    "Java's dedicated process, too"
)


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel. ``metrics`` are those it queries; ``source`` is where they come from here, or why they are missing."""

    title: str
    metrics: tuple[str, ...]
    is_claimed: bool
    source: str


PANELS: Final = (
    Panel(
        "Total Number of Running Connectors", ("kafka_connect_worker_connector_count",), is_claimed=True, source="yes"
    ),
    Panel("Total record rate", (f"{_SOURCE}record_rate",), is_claimed=True, source="yes"),
    Panel("Record Age", tuple(f"{_SOURCE}record_age_ms{one}" for one in _SPREAD), is_claimed=True, source="yes"),
    Panel("Total Number of Running Tasks", ("kafka_connect_worker_task_count",), is_claimed=True, source="yes"),
    Panel("Total byte rate", (f"{_SOURCE}byte_rate",), is_claimed=True, source="yes"),
    Panel(
        "Consumer Lag (graph and table)",
        ("kafka_consumer_fetch_manager_records_lag",),
        is_claimed=True,
        source="yes: as `mm2_partition_lag_records`, for partitions that this process copies",
    ),
    Panel(
        "Incoming Bytes per Second",
        ("kafka_consumer_incoming_byte_total",),
        is_claimed=True,
        source="yes: bytes of record batches, without protocol overhead",
    ),
    Panel(
        "Outgoing Bytes per Second",
        ("kafka_producer_outgoing_byte_total",),
        is_claimed=True,
        source="yes: the same batches",
    ),
    Panel(
        "Replication Latency",
        tuple(f"{_SOURCE}replication_latency_ms{one}" for one in _SPREAD),
        is_claimed=True,
        source="yes",
    ),
    Panel(
        "Consumer Group Offset Sync Latency",
        ("kafka_connect_mirror_mirrorcheckpointconnector_checkpoint_latency_ms",),
        is_claimed=True,
        source="yes, for the groups whose checkpoints this process writes",
    ),
    Panel(
        "Source Connector - Producer Available Buffer",
        ("kafka_producer_buffer_available_bytes",),
        is_claimed=False,
        source="no: the copy engine has no such buffer",
    ),
    Panel(
        "Source Connector - Average Offset Commit Time",
        ("kafka_connect_connector_task_offset_commit_avg_time_ms",),
        is_claimed=True,
        source=_QUOTED,
    ),
    Panel(
        "Source Connector - Connect Outstanding Messages Queue",
        ("kafka_connect_source_task_source_record_active_count",),
        is_claimed=True,
        source=_QUOTED,
    ),
    Panel(
        "Assigned Connectors per Worker",
        ("kafka_connect_coordinator_assigned_connectors",),
        is_claimed=True,
        source="yes",
    ),
    Panel("Rebalancing", ("kafka_connect_worker_rebalance_rebalancing",), is_claimed=True, source="yes"),
    Panel("Assigned Tasks per Worker", ("kafka_connect_coordinator_assigned_tasks",), is_claimed=True, source="yes"),
    Panel(
        "CPU Usage", ("container_cpu_usage_seconds_total",), is_claimed=False, source="from the cluster's own exporter"
    ),
    Panel("JVM Memory", ("jvm_memory_used_bytes",), is_claimed=False, source=_NO_JVM),
    Panel("Time Spent in GC", ("jvm_gc_collection_seconds_sum",), is_claimed=False, source=_NO_JVM),
    Panel("JVM Thread Count", ("jvm_threads_current",), is_claimed=False, source=_NO_JVM),
)
