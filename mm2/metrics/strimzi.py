"""The panels of Strimzi's dashboard for MirrorMaker 2 (as of August 2026), and which of them have data here.

Panels about offset commits and outstanding messages select quoted connector names, which only Strimzi's names are: they are empty
with a dedicated process, of Java, too. Panels about a JVM and about containers use other exporters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_SOURCE: Final = "kafka_connect_mirror_mirrorsourceconnector_"
_SPREAD: Final = ("", "_avg", "_min", "_max")


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel, with the metrics that it queries."""

    title: str
    metrics: tuple[str, ...]
    is_claimed: bool


PANELS: Final = (
    Panel("Total Number of Running Connectors", ("kafka_connect_worker_connector_count",), is_claimed=True),
    Panel("Total record rate", (f"{_SOURCE}record_rate",), is_claimed=True),
    Panel("Record Age", tuple(f"{_SOURCE}record_age_ms{one}" for one in _SPREAD), is_claimed=True),
    Panel("Total Number of Running Tasks", ("kafka_connect_worker_task_count",), is_claimed=True),
    Panel("Total byte rate", (f"{_SOURCE}byte_rate",), is_claimed=True),
    Panel(
        "Consumer Lag (graph and table)",
        ("kafka_consumer_fetch_manager_records_lag",),
        is_claimed=True,
    ),
    Panel(
        "Incoming Bytes per Second",
        ("kafka_consumer_incoming_byte_total",),
        is_claimed=True,
    ),
    Panel(
        "Outgoing Bytes per Second",
        ("kafka_producer_outgoing_byte_total",),
        is_claimed=True,
    ),
    Panel(
        "Replication Latency",
        tuple(f"{_SOURCE}replication_latency_ms{one}" for one in _SPREAD),
        is_claimed=True,
    ),
    Panel(
        "Consumer Group Offset Sync Latency",
        ("kafka_connect_mirror_mirrorcheckpointconnector_checkpoint_latency_ms",),
        is_claimed=True,
    ),
    Panel(
        "Source Connector - Producer Available Buffer",
        ("kafka_producer_buffer_available_bytes",),
        is_claimed=False,
    ),
    Panel(
        "Source Connector - Average Offset Commit Time",
        ("kafka_connect_connector_task_offset_commit_avg_time_ms",),
        is_claimed=True,
    ),
    Panel(
        "Source Connector - Connect Outstanding Messages Queue",
        ("kafka_connect_source_task_source_record_active_count",),
        is_claimed=True,
    ),
    Panel(
        "Assigned Connectors per Worker",
        ("kafka_connect_coordinator_assigned_connectors",),
        is_claimed=True,
    ),
    Panel("Rebalancing", ("kafka_connect_worker_rebalance_rebalancing",), is_claimed=True),
    Panel("Assigned Tasks per Worker", ("kafka_connect_coordinator_assigned_tasks",), is_claimed=True),
    Panel("CPU Usage", ("container_cpu_usage_seconds_total",), is_claimed=False),
    Panel("JVM Memory", ("jvm_memory_used_bytes",), is_claimed=False),
    Panel("Time Spent in GC", ("jvm_gc_collection_seconds_sum",), is_claimed=False),
    Panel("JVM Thread Count", ("jvm_threads_current",), is_claimed=False),
)
