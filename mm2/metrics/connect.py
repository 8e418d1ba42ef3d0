"""Kafka Connect's metrics under the names that the usual rules of the JMX exporter give them.

In a MirrorMaker process each series also has the labels ``source`` and ``target`` of its flow, since the connectors of
all flows have the same names. In Java these collide.
"""

from __future__ import annotations

from typing import Final

from mm2.metrics.metric import Metric, MetricType, kind_of

FLOW_LABELS: Final = ("source", "target")
_CONNECTOR: Final = ("connector",)
_TASK: Final = ("connector", "task")


def _gauges(prefix: str, labels: tuple[str, ...], texts: dict[str, str]) -> dict[str, Metric]:
    return {name: Metric(prefix + name, kind_of(name), text, labels) for name, text in texts.items()}


WORKER: Final = _gauges(
    "kafka_connect_worker_",
    (),
    {
        "connector_count": "Number of connectors on this worker.",
        "task_count": "Number of tasks on this worker.",
        "connector_startup_attempts_total": "Connector starts that this worker has attempted.",
        "connector_startup_success_total": "Connector starts that succeeded.",
        "connector_startup_failure_total": "Connector starts that failed.",
        "connector_startup_success_percentage": "Share of connector starts that succeeded, from 0 to 1, since the worker started.",
        "connector_startup_failure_percentage": "Share of connector starts that failed, from 0 to 1, since the worker started.",
        "task_startup_attempts_total": "Task starts that this worker has attempted.",
        "task_startup_success_total": "Task starts that succeeded.",
        "task_startup_failure_total": "Task starts that failed.",
        "task_startup_success_percentage": "Share of task starts that succeeded, from 0 to 1, since the worker started.",
        "task_startup_failure_percentage": "Share of task starts that failed, from 0 to 1, since the worker started.",
    },
)
WORKER_CONNECTOR: Final = _gauges(
    "kafka_connect_worker_",
    _CONNECTOR,
    {
        "connector_total_task_count": "Number of tasks of the connector on all workers.",
        "connector_running_task_count": "Number of RUNNING tasks of the connector.",
        "connector_paused_task_count": "Number of PAUSED tasks of the connector.",
        "connector_failed_task_count": "Number of FAILED tasks of the connector.",
        "connector_unassigned_task_count": "Number of UNASSIGNED tasks of the connector.",
        "connector_restarting_task_count": "Number of RESTARTING tasks of the connector.",
        "connector_destroyed_task_count": "Always 0: DESTROYED tasks are removed.",
    },
)
REBALANCE: Final = _gauges(
    "kafka_connect_worker_rebalance_",
    (),
    {
        "epoch": "Generation of the group.",
        "completed_rebalances_total": "Rebalances that this worker has completed.",
        "rebalancing": "1 from a new assignment until its connectors and tasks are started, else 0.",
        "rebalance_avg_time_ms": "Average duration of a rebalance since the worker started.",
        "rebalance_max_time_ms": "Maximum duration of a rebalance since the worker started.",
        "time_since_last_rebalance_ms": "Time since the last rebalance was completed; infinite before the first.",
    },
)
COORDINATOR: Final = _gauges(
    "kafka_connect_coordinator_",
    ("clientid",),
    {
        "assigned_connectors": "Connectors assigned to this worker.",
        "assigned_tasks": "Tasks assigned to this worker.",
    },
)
STATUS: Final = Metric(
    "kafka_connect_connector_status", MetricType.GAUGE, "1 for the status that the task is in.", (*_TASK, "status")
)
TASK: Final = _gauges(
    "kafka_connect_connector_task_",
    _TASK,
    {
        "running_ratio": "Share of the task's lifetime in which it was running.",
        "pause_ratio": "Share of the task's lifetime in which it was paused.",
        "offset_commit_avg_time_ms": "Average duration of an offset commit since the task started.",
        "offset_commit_max_time_ms": "Maximum duration of an offset commit since the task started.",
        "offset_commit_success_percentage": "Share of offset commits that succeeded, from 0 to 1.",
        "offset_commit_failure_percentage": "Share of offset commits that failed, from 0 to 1.",
        "batch_size_avg": "Average number of records in a batch.",
        "batch_size_max": "Maximum number of records in a batch.",
    },
)
SOURCE: Final = _gauges(
    "kafka_connect_source_task_",
    _TASK,
    {
        "source_record_poll_rate": "Records polled per second. MirrorSourceTask copies records outside of poll, so they are not included.",
        "source_record_poll_total": "Records polled.",
        "source_record_write_rate": "Records written per second, after transformations.",
        "source_record_write_total": "Records written, after transformations.",
        "poll_batch_avg_time_ms": "Average duration of a poll.",
        "poll_batch_max_time_ms": "Maximum duration of a poll.",
        "source_record_active_count": "Records that were polled and are not acknowledged yet.",
        "source_record_active_count_avg": "Average number of records that were polled and are not acknowledged yet.",
        "source_record_active_count_max": "Maximum number of records that were polled and are not acknowledged yet.",
        "transaction_size_min": "Minimum number of records in a transaction.",
        "transaction_size_avg": "Average number of records in a transaction.",
        "transaction_size_max": "Maximum number of records in a transaction.",
    },
)
SINK: Final = _gauges(
    "kafka_connect_sink_task_",
    _TASK,
    {
        "sink_record_read_rate": "Records read per second.",
        "sink_record_read_total": "Records read.",
        "sink_record_send_rate": "Records passed to the task per second.",
        "sink_record_send_total": "Records passed to the task, after transformations.",
        "partition_count": "Partitions assigned to the task.",
        "offset_commit_seq_no": "Sequence number of the last offset commit.",
        "offset_commit_completion_rate": "Offset commits completed per second.",
        "offset_commit_completion_total": "Offset commits completed.",
        "offset_commit_skip_rate": "Offset commits per second whose answer came too late.",
        "offset_commit_skip_total": "Offset commits whose answer came too late.",
        "put_batch_avg_time_ms": "Average duration of a put.",
        "put_batch_max_time_ms": "Maximum duration of a put.",
        "sink_record_active_count": "Records that were consumed and are not committed yet.",
        "sink_record_active_count_avg": "Average number of records that were consumed and are not committed yet.",
        "sink_record_active_count_max": "Maximum number of records that were consumed and are not committed yet.",
    },
)
ERRORS: Final = _gauges(
    "kafka_connect_task_error_",
    _TASK,
    {
        "total_record_failures": "Operations on records that failed.",
        "total_record_errors": "Records that failed.",
        "total_records_skipped": "Records that were skipped because of errors.",
        "total_retries": "Operations that were retried.",
        "total_errors_logged": "Errors that were logged.",
        "deadletterqueue_produce_requests": "Records sent to the dead letter queue.",
        "deadletterqueue_produce_failures": "Records that could not be written to the dead letter queue.",
        "last_error_timestamp": "Time of the last error, in milliseconds since the epoch; 0 if there was none.",
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
