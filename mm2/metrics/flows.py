"""Metrics of flows: what is copied, the lag, and what would be lost."""

from __future__ import annotations

from typing import Final

from mm2.evidence import Evidence
from mm2.metrics.metric import Metric, MetricType, kind_of

_FLOW: Final = ("source", "target")
_PARTITION: Final = (*_FLOW, "topic", "partition")
_GROUP: Final = (*_FLOW, "group", "topic", "partition")

_METRICS: Final[list[Metric]] = []


def _metric(
    name: str, text: str, labels: tuple[str, ...] = (), *evidence: Evidence, kind: MetricType | None = None
) -> Metric:
    metric = Metric(name, kind or kind_of(name), text, labels, evidence)
    _METRICS.append(metric)
    return metric


BUILD_INFO: Final = _metric(
    "mm2_build_info", "Always 1; the label is the version of mm2.", ("version",), Evidence.PROCESS
)
FLOW_STATE: Final = _metric(
    "mm2_flow_state", "1 for the state that the flow is in, 0 for all others.", (*_FLOW, "state")
)
OBSERVED: Final = _metric(
    "mm2_flow_observed_timestamp_seconds",
    "Time when a cluster of the flow last answered; the other values are not newer.",
    _FLOW,
)
READ: Final = _metric(
    "mm2_flow_read_timestamp_seconds",
    "Time when this was last read, by the kind of evidence (docs/reference/statements.md); absent before the first time.",
    (*_FLOW, "evidence"),
)
SECONDS_AT_RISK: Final = _metric(
    "mm2_flow_seconds_at_risk",
    "Age of the oldest record that is not on the target; 0 if none is missing. While the age is unknown in a partition, the greatest known "
    "age. Does not increase while the source is unreachable.",
    _FLOW,
    Evidence.LEDGER,
)
RECORDS_AT_RISK: Final = _metric(
    "mm2_flow_records_at_risk",
    "Records of the source that are not on the target and have not been dropped by transformations: its offsets from the position on. "
    "Absent while that is not known, for instance while the source does not answer.",
    _FLOW,
    Evidence.SOURCE_LOGS,
    Evidence.LEDGER,
    Evidence.TARGET_LOGS,
)
RECORDS_AT_RISK_AT_LEAST: Final = _metric(
    "mm2_flow_records_at_risk_at_least",
    "Records that are known not to be on the target: a lower bound of mm2_flow_records_at_risk, also present while that is absent.",
    _FLOW,
    Evidence.LEDGER,
)
BYTES_AT_RISK: Final = _metric(
    "mm2_flow_bytes_at_risk",
    "Bytes of records that are not on the target, estimated from records copied recently; absent if there are none.",
    _FLOW,
    Evidence.SOURCE_LOGS,
    Evidence.LEDGER,
)
CLUSTER_UP: Final = _metric(
    "mm2_flow_cluster_up",
    "1 while the cluster answers, else 0: the values from it are then those of its last answer.",
    (*_FLOW, "cluster"),
)
PARTITIONS: Final = _metric(
    "mm2_flow_partitions",
    "Partitions of the source by state. One with a condition that does not end by itself, for instance LOST_RANGE, has that state also "
    "while its task has failed or it is paused. Absent while none are known because the target has not answered yet.",
    (*_FLOW, "state"),
    Evidence.WORKERS,
)
RECORDS: Final = _metric("mm2_copied_records_total", "Records copied by this process.", _PARTITION, Evidence.PROCESS)
BYTES: Final = _metric(
    "mm2_copied_bytes_total", "Bytes of record batches copied by this process.", _PARTITION, Evidence.PROCESS
)
LAG_RECORDS: Final = _metric(
    "mm2_partition_lag_records",
    "Offsets between the position and the log end offset of the source, whichever process copies. A lower bound while the source does "
    "not answer, in the states RECREATED and LOST_RANGE, where the log ends before the position, and where the log of the target was not "
    "compared with the ledger; absent if that bound is 0 although the source answers. For a topic or flow the sum, absent if a part is unknown.",
    _PARTITION,
    Evidence.LEDGER,
)
LAG_BYTES: Final = _metric("mm2_partition_lag_bytes", "Estimated lag in bytes.", _PARTITION, Evidence.LEDGER)
LAG_SECONDS: Final = _metric(
    "mm2_partition_lag_seconds",
    "Age of the oldest record that is not on the target; the maximum for a topic or flow.",
    _PARTITION,
    Evidence.LEDGER,
)
POSITION: Final = _metric(
    "mm2_partition_position_offset",
    "The first source offset that is neither on the target nor skipped for a known reason. Only with full cardinality.",
    _PARTITION,
    Evidence.LEDGER,
)
SOURCE_END: Final = _metric(
    "mm2_partition_source_end_offset",
    "The log end offset of the source. Only with full cardinality.",
    _PARTITION,
    Evidence.LEDGER,
)
TARGET_OFFSET: Final = _metric(
    "mm2_partition_target_offset",
    "The target offset after the newest copied record. Only with full cardinality.",
    _PARTITION,
    Evidence.LEDGER,
)
VERIFIED: Final = _metric(
    "mm2_partition_verified_offset",
    "The source offset up to which mm2 verify found no unexplained difference. Only with full cardinality.",
    _PARTITION,
    Evidence.LEDGER,
)
PARTITION_STATE: Final = _metric(
    "mm2_partition_state",
    "1 for the state that the partition is in; the other states are absent. With less than full cardinality only partitions "
    "that are neither RUNNING, CATCHING_UP nor PREPARING.",
    (*_PARTITION, "state"),
    Evidence.WORKERS,
)
LATENCY: Final = _metric(
    "mm2_copy_latency_seconds",
    "Latency of record batches by stage: fetch, from the timestamp of the newest record to the fetch; produce, from the fetch until the target "
    "acknowledged the batch (exactly-once: until the commit); visible, both. Excludes backlogs: batches fetched more than 10,000 "
    "offsets before the end, and those from before the first copy.",
    (*_FLOW, "stage"),
    Evidence.PROCESS,
    kind=MetricType.HISTOGRAM,
)
BATCHES: Final = _metric(
    "mm2_record_batches_total",
    "Record batches by path: passthrough, or the reason for re-encoding (compacted, log_append_time, old_format, "
    "begun, merged, too_large, refused, transformed). Small batches that are merged later, while they wait for a request, count as "
    "passthrough. A batch of which transformations and converters change and drop no record is passed on and counts as "
    "passthrough; transformed are those of which they change or drop some, and those that have to be encoded for another reason. A "
    "batch of which they drop every record is not counted.",
    (*_FLOW, "path"),
    Evidence.PROCESS,
)
GAPS: Final = _metric(
    "mm2_gap_offsets_total",
    "Source offsets without a record on the target, by reason, since the ledger was created.",
    (*_FLOW, "reason"),
    Evidence.LEDGER,
)
FILLED: Final = _metric(
    "mm2_filled_offsets_total",
    "Target offsets that this process has taken up for source offsets without a record (preserve.offsets), by means: markers, or "
    "transactions without records.",
    (*_FLOW, "means"),
    Evidence.PROCESS,
)
UNFILLED: Final = _metric(
    "mm2_leading_gap_offsets",
    "Target offsets before the first record of the source that are still to be filled before copying begins (preserve.offsets). Only "
    "partitions that have some, whatever metrics.cardinality is.",
    _PARTITION,
    Evidence.LEDGER,
)
LOST: Final = _metric(
    "mm2_lost_ranges_total",
    "Ranges of source offsets that can never be copied. Absent while the target has not answered yet.",
    _FLOW,
    Evidence.LEDGER,
)
FOREIGN: Final = _metric(
    "mm2_foreign_records_total",
    "Records in remote topics written by other producers. Absent while the target has not answered yet.",
    _FLOW,
    Evidence.LEDGER,
)
HEARTBEAT_AGE: Final = _metric(
    "mm2_heartbeat_age_seconds",
    "Age of the newest heartbeat of the flow origin to origin_target that arrived on the target over this number of hops; of several "
    "routes with as many hops, the greatest. At least the time since the process has read it, whatever its timestamp is.",
    (*_FLOW, "origin", "origin_target", "hops"),
    Evidence.HEARTBEATS,
)
GROUP_LAG: Final = _metric(
    "mm2_group_lag_records",
    "Lag of the group on the source, in offsets. For a topic or flow the sum, absent if a part is unknown: for instance, an offset "
    "beyond the end of a log that was truncated.",
    _GROUP,
    Evidence.GROUPS,
)
GROUP_SOURCE: Final = _metric(
    "mm2_group_source_offset",
    "Committed offset of the group on the source. Only with full cardinality.",
    _GROUP,
    Evidence.GROUPS,
)
GROUP_TRANSLATED: Final = _metric(
    "mm2_group_translated_offset",
    "Translated offset of the group on the target, from the newest checkpoint. Only with full cardinality.",
    _GROUP,
    Evidence.GROUPS,
)
GROUP_TARGET: Final = _metric(
    "mm2_group_target_offset",
    "Committed offset of the group on the target. Only with full cardinality.",
    _GROUP,
    Evidence.GROUPS,
)
GROUP_UNTRANSLATED: Final = _metric(
    "mm2_group_partitions_untranslated",
    "Committed offsets of groups that are not on the target, by reason code; mm2 groups prints the reasons.",
    (*_FLOW, "reason"),
    Evidence.GROUPS,
)
CONNECTOR_UP: Final = _metric(
    "mm2_connector_up", "1 while the connector is RUNNING, else 0.", (*_FLOW, "connector"), Evidence.WORKERS
)
TASK_UP: Final = _metric(
    "mm2_task_up", "1 while the task is RUNNING on any worker, else 0.", (*_FLOW, "connector", "task"), Evidence.WORKERS
)
SPARK_UP: Final = _metric(
    "mm2_spark_up", "1 while Spark of this process can start tasks, else 0.", (), Evidence.PROCESS
)
MICRO_BATCHES: Final = _metric(
    "mm2_spark_micro_batches_total", "Micro-batches that this process has started.", (*_FLOW, "task"), Evidence.PROCESS
)
MICRO_BATCHES_LOST: Final = _metric(
    "mm2_spark_micro_batches_lost_total", "Micro-batches that ended without a final report.", _FLOW, Evidence.PROCESS
)
FAILING_LANES: Final = _metric(
    "mm2_failing_lanes",
    "Lanes of this process that cannot copy: their last three or more micro-batches ended without a final report.",
    _FLOW,
    Evidence.PROCESS,
)
MOVED_PARTITIONS: Final = _metric(
    "mm2_moved_partitions_total",
    "Partitions that were moved to another lane of this process, after the slots of the Spark cluster or the tasks had changed.",
    _FLOW,
    Evidence.PROCESS,
)
RELOADS: Final = _metric(
    "mm2_config_reloads_total",
    "New versions of the properties file: applied, or refused.",
    ("outcome",),
    Evidence.PROCESS,
)
CERTIFICATE: Final = _metric(
    "mm2_certificate_expiry_timestamp_seconds",
    "Expiry time of a certificate of the flow's clients, or of the process's https listeners (source, target and cluster are empty); file is the "
    "name without the path.",
    (*_FLOW, "cluster", "file"),
    Evidence.PROCESS,
)
DIFFERENCES: Final = _metric(
    "mm2_verify_differences",
    "Unexplained differences that mm2 verify has found, by kind, since the verification started.",
    (*_FLOW, "kind"),
    Evidence.LEDGER,
)
CHECKED: Final = _metric(
    "mm2_verify_checked_records_total",
    "Records that mm2 verify has found on both sides, since the verification started.",
    _FLOW,
    Evidence.LEDGER,
)

#: In the order of their definition.
FLOW_METRICS: Final = tuple(_METRICS)
