"""Kafka Connect's metrics under the names that the usual rules of the JMX exporter give them.

In a MirrorMaker process each series also has the labels ``source`` and ``target`` of its flow, since the connectors of
all flows have the same names. In Java these collide.
"""

from __future__ import annotations

from typing import Final

from mm2.metrics.metric import Metric, MetricType

FLOW_LABELS: Final = ("source", "target")
_CONNECTOR: Final = ("connector",)
_TASK: Final = ("connector", "task")


def _gauges(prefix: str, labels: tuple[str, ...], texts: dict[str, str]) -> dict[str, Metric]:
    return {
        name: Metric(prefix + name, MetricType.COUNTER if name.endswith("_total") else MetricType.GAUGE, text, labels)
        for name, text in texts.items()
    }


WORKER: Final = _gauges(
    "kafka_connect_worker_",
    (),
    {
        "connector_count": "Connectors that are on this worker.",
        "task_count": "Tasks that are on this worker.",
        "connector_startup_attempts_total": "Connectors that this worker has tried to start.",
        "connector_startup_success_total": "Those that started.",
        "connector_startup_failure_total": "Those that did not.",
        "connector_startup_success_percentage": "Their share, from 0 to 1, since the worker began.",
        "connector_startup_failure_percentage": "The share of the others.",
        "task_startup_attempts_total": "Tasks that this worker has tried to start.",
        "task_startup_success_total": "Those that started.",
        "task_startup_failure_total": "Those that did not.",
        "task_startup_success_percentage": "Their share, from 0 to 1, since the worker began.",
        "task_startup_failure_percentage": "The share of the others.",
    },
)
WORKER_CONNECTOR: Final = _gauges(
    "kafka_connect_worker_",
    _CONNECTOR,
    {
        "connector_total_task_count": "Tasks of the connector, on whichever worker.",
        "connector_running_task_count": "Those that are RUNNING.",
        "connector_paused_task_count": "Those that are PAUSED.",
        "connector_failed_task_count": "Those that are FAILED.",
        "connector_unassigned_task_count": "Those that are UNASSIGNED.",
        "connector_restarting_task_count": "Those that are RESTARTING.",
        "connector_destroyed_task_count": "Always 0: DESTROYED tasks are removed.",
    },
)
REBALANCE: Final = _gauges(
    "kafka_connect_worker_rebalance_",
    (),
    {
        "epoch": "The group's generation.",
        "completed_rebalances_total": "Rebalances that this worker has gone through.",
        "rebalancing": "1 from an assignment until its work has started.",
        "rebalance_avg_time_ms": "How long that took on the average, since the worker began.",
        "rebalance_max_time_ms": "How long that took at most.",
        "time_since_last_rebalance_ms": "Since the last one was over; infinite before the first.",
    },
)
COORDINATOR: Final = _gauges(
    "kafka_connect_coordinator_",
    ("clientid",),
    {
        "assigned_connectors": "Connectors that the group has given to this worker.",
        "assigned_tasks": "Tasks that the group has given to this worker.",
    },
)
STATUS: Final = Metric(
    "kafka_connect_connector_status", MetricType.GAUGE, "1 for the status that the task is in.", (*_TASK, "status")
)
TASK: Final = _gauges(
    "kafka_connect_connector_task_",
    _TASK,
    {
        "running_ratio": "The share of the task's life in which it ran.",
        "pause_ratio": "The share in which it was paused.",
        "offset_commit_avg_time_ms": "How long commits of offsets took on the average, since the task began.",
        "offset_commit_max_time_ms": "How long one took at most.",
        "offset_commit_success_percentage": "The share of commits that succeeded, from 0 to 1.",
        "offset_commit_failure_percentage": "The share of those that failed.",
        "batch_size_avg": "Records in a batch on the average.",
        "batch_size_max": "Records in the largest one.",
    },
)
SOURCE: Final = _gauges(
    "kafka_connect_source_task_",
    _TASK,
    {
        "source_record_poll_rate": "Records polled per second. What MirrorSourceTask copies does not come this way.",
        "source_record_poll_total": "Records polled.",
        "source_record_write_rate": "Records written per second, after transformations.",
        "source_record_write_total": "Records written, after transformations.",
        "poll_batch_avg_time_ms": "How long poll took on the average.",
        "poll_batch_max_time_ms": "How long it took at most.",
        "source_record_active_count": "Records polled and not acknowledged yet.",
        "source_record_active_count_avg": "Their number on the average.",
        "source_record_active_count_max": "Their greatest number.",
        "transaction_size_min": "Records in the smallest transaction.",
        "transaction_size_avg": "Records in a transaction on the average.",
        "transaction_size_max": "Records in the largest transaction.",
    },
)
SINK: Final = _gauges(
    "kafka_connect_sink_task_",
    _TASK,
    {
        "sink_record_read_rate": "Records read per second.",
        "sink_record_read_total": "Records read.",
        "sink_record_send_rate": "Records handed to the task per second.",
        "sink_record_send_total": "Records handed to the task, after transformations.",
        "partition_count": "Partitions that the task has.",
        "offset_commit_seq_no": "Number of the last commit.",
        "offset_commit_completion_rate": "Commits completed per second.",
        "offset_commit_completion_total": "Commits completed.",
        "offset_commit_skip_rate": "Commits per second whose answer came too late.",
        "offset_commit_skip_total": "Commits whose answer came too late.",
        "put_batch_avg_time_ms": "How long put took on the average.",
        "put_batch_max_time_ms": "How long it took at most.",
        "sink_record_active_count": "Records consumed and not committed yet.",
        "sink_record_active_count_avg": "Their number on the average.",
        "sink_record_active_count_max": "Their greatest number.",
    },
)
ERRORS: Final = _gauges(
    "kafka_connect_task_error_",
    _TASK,
    {
        "total_record_failures": "Operations on records that failed.",
        "total_record_errors": "Records that failed.",
        "total_records_skipped": "Records that were left out because of that.",
        "total_retries": "Operations that were tried again.",
        "total_errors_logged": "Errors that were logged.",
        "deadletterqueue_produce_requests": "Records sent to the dead letters.",
        "deadletterqueue_produce_failures": "Those that did not get there.",
        "last_error_timestamp": "When the last error was, in milliseconds since the epoch; 0 without one.",
    },
)

CONNECT_METRICS: Final = (
    *WORKER.values(),
    *WORKER_CONNECTOR.values(),
    *REBALANCE.values(),
    *COORDINATOR.values(),
    STATUS,
    *TASK.values(),
    *SOURCE.values(),
    *SINK.values(),
    *ERRORS.values(),
)
