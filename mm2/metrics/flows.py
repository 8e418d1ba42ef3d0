"""Metrics of flows: what is copied, the lag, and what would be lost."""

from __future__ import annotations

from typing import Final

from mm2.evidence import Evidence
from mm2.metrics.metric import Metric, MetricType

_FLOW: Final = ("source", "target")
_PARTITION: Final = (*_FLOW, "topic", "partition")
_GROUP: Final = (*_FLOW, "group", "topic", "partition")

BUILD_INFO: Final = Metric(
    "mm2_build_info",
    MetricType.GAUGE,
    "Always 1; the label is the version of mm2.",
    ("version",),
    evidence=(Evidence.PROCESS,),
)

FLOW_STATE: Final = Metric(
    "mm2_flow_state", MetricType.GAUGE, "1 for the state that the flow is in, 0 for all others.", (*_FLOW, "state")
)
OBSERVED: Final = Metric(
    "mm2_flow_observed_timestamp_seconds",
    MetricType.GAUGE,
    "Time when a cluster of the flow last answered; the other values are not newer.",
    _FLOW,
)
SECONDS_AT_RISK: Final = Metric(
    "mm2_flow_seconds_at_risk",
    MetricType.GAUGE,
    "Age of the oldest record that is not on the target; 0 if none is missing. While the age is unknown in a partition, the greatest known "
    "age. Does not increase while the source is unreachable.",
    _FLOW,
    evidence=(Evidence.LEDGER,),
)
RECORDS_AT_RISK: Final = Metric(
    "mm2_flow_records_at_risk",
    MetricType.GAUGE,
    "Records of the source that are not on the target and have not been dropped by transformations: its offsets from the position on. "
    "Absent while that is not known, for instance while the source does not answer.",
    _FLOW,
    evidence=(
        Evidence.SOURCE_LOGS,
        Evidence.LEDGER,
        Evidence.TARGET_LOGS,
    ),
)
RECORDS_AT_RISK_AT_LEAST: Final = Metric(
    "mm2_flow_records_at_risk_at_least",
    MetricType.GAUGE,
    "Records that are known not to be on the target: a lower bound of mm2_flow_records_at_risk, also present while that is absent.",
    _FLOW,
    evidence=(Evidence.LEDGER,),
)
BYTES_AT_RISK: Final = Metric(
    "mm2_flow_bytes_at_risk",
    MetricType.GAUGE,
    "Bytes of records that are not on the target, estimated from records copied recently; absent if there are none.",
    _FLOW,
    evidence=(
        Evidence.SOURCE_LOGS,
        Evidence.LEDGER,
    ),
)
CLUSTER_UP: Final = Metric(
    "mm2_flow_cluster_up",
    MetricType.GAUGE,
    "1 while the cluster answers, else 0: the values from it are then those of its last answer.",
    (*_FLOW, "cluster"),
)
PARTITIONS: Final = Metric(
    "mm2_flow_partitions",
    MetricType.GAUGE,
    "Partitions of the source by state. One with a condition that does not end by itself, for instance LOST_RANGE, has that state also "
    "while its task has failed or it is paused. Absent while none are known because the target has not answered yet.",
    (*_FLOW, "state"),
    evidence=(Evidence.WORKERS,),
)
RECORDS: Final = Metric(
    "mm2_copied_records_total",
    MetricType.COUNTER,
    "Records copied by this process.",
    _PARTITION,
    is_partitions=True,
    evidence=(Evidence.PROCESS,),
)
BYTES: Final = Metric(
    "mm2_copied_bytes_total",
    MetricType.COUNTER,
    "Bytes of record batches copied by this process.",
    _PARTITION,
    is_partitions=True,
    evidence=(Evidence.PROCESS,),
)
LAG_RECORDS: Final = Metric(
    "mm2_partition_lag_records",
    MetricType.GAUGE,
    "Offsets between the position and the log end offset of the source, whichever process copies. A lower bound while the source does "
    "not answer, in the states RECREATED and LOST_RANGE, where the log ends before the position, and where the log of the target was not "
    "compared with the ledger; absent if that bound is 0 although the source answers. For a topic or flow the sum, absent if a part is unknown.",
    _PARTITION,
    is_partitions=True,
    evidence=(Evidence.LEDGER,),
)
LAG_BYTES: Final = Metric(
    "mm2_partition_lag_bytes",
    MetricType.GAUGE,
    "Estimated lag in bytes.",
    _PARTITION,
    is_partitions=True,
    evidence=(Evidence.LEDGER,),
)
LAG_SECONDS: Final = Metric(
    "mm2_partition_lag_seconds",
    MetricType.GAUGE,
    "Age of the oldest record that is not on the target; the maximum for a topic or flow.",
    _PARTITION,
    is_partitions=True,
    evidence=(Evidence.LEDGER,),
)
POSITION: Final = Metric(
    "mm2_partition_position_offset",
    MetricType.GAUGE,
    "The first source offset that is neither on the target nor skipped for a known reason. Only with full cardinality.",
    _PARTITION,
    is_partitions=True,
    evidence=(Evidence.LEDGER,),
)
SOURCE_END: Final = Metric(
    "mm2_partition_source_end_offset",
    MetricType.GAUGE,
    "The log end offset of the source. Only with full cardinality.",
    _PARTITION,
    is_partitions=True,
    evidence=(Evidence.LEDGER,),
)
TARGET_OFFSET: Final = Metric(
    "mm2_partition_target_offset",
    MetricType.GAUGE,
    "The target offset after the newest copied record. Only with full cardinality.",
    _PARTITION,
    is_partitions=True,
    evidence=(Evidence.LEDGER,),
)
VERIFIED: Final = Metric(
    "mm2_partition_verified_offset",
    MetricType.GAUGE,
    "The source offset up to which mm2 verify found no unexplained difference. Only with full cardinality.",
    _PARTITION,
    is_partitions=True,
    evidence=(Evidence.LEDGER,),
)
PARTITION_STATE: Final = Metric(
    "mm2_partition_state",
    MetricType.GAUGE,
    "1 for the state that the partition is in; the other states are absent. With less than full cardinality only partitions "
    "that are neither RUNNING, CATCHING_UP nor PREPARING.",
    (*_PARTITION, "state"),
    is_partitions=True,
    evidence=(Evidence.WORKERS,),
)
LATENCY: Final = Metric(
    "mm2_copy_latency_seconds",
    MetricType.HISTOGRAM,
    "Latency of record batches by stage: fetch, from the timestamp of the newest record to the fetch; produce, from the fetch until the target "
    "acknowledged the batch (exactly-once: until the commit); visible, both. Excludes backlogs: batches fetched more than 10,000 "
    "offsets before the end, and those from before the first copy.",
    (*_FLOW, "stage"),
    evidence=(Evidence.PROCESS,),
)
BATCHES: Final = Metric(
    "mm2_record_batches_total",
    MetricType.COUNTER,
    "Record batches by path: passthrough, or the reason for re-encoding (compacted, log_append_time, old_format, "
    "begun, merged, too_large, refused, transformed). Small batches that are merged later, while they wait for a request, count as "
    "passthrough. A batch of which transformations and converters change and drop no record is passed on and counts as "
    "passthrough; transformed are those of which they change or drop some, and those that have to be encoded for another reason. A "
    "batch of which they drop every record is not counted.",
    (*_FLOW, "path"),
    evidence=(Evidence.PROCESS,),
)
GAPS: Final = Metric(
    "mm2_gap_offsets_total",
    MetricType.COUNTER,
    "Source offsets without a record on the target, by reason, since the ledger was created.",
    (*_FLOW, "reason"),
    evidence=(Evidence.LEDGER,),
)
FILLED: Final = Metric(
    "mm2_filled_offsets_total",
    MetricType.COUNTER,
    "Target offsets that this process has taken up for source offsets without a record (preserve.offsets), by means: markers, or "
    "transactions without records.",
    (*_FLOW, "means"),
    evidence=(Evidence.PROCESS,),
)
UNFILLED: Final = Metric(
    "mm2_leading_gap_offsets",
    MetricType.GAUGE,
    "Target offsets before the first record of the source that are still to be filled before copying begins (preserve.offsets). Only "
    "partitions that have some, whatever metrics.cardinality is.",
    _PARTITION,
    evidence=(Evidence.LEDGER,),
)
LOST: Final = Metric(
    "mm2_lost_ranges_total",
    MetricType.COUNTER,
    "Ranges of source offsets that can never be copied. Absent while the target has not answered yet.",
    _FLOW,
    evidence=(Evidence.LEDGER,),
)
FOREIGN: Final = Metric(
    "mm2_foreign_records_total",
    MetricType.COUNTER,
    "Records in remote topics written by other producers. Absent while the target has not answered yet.",
    _FLOW,
    evidence=(Evidence.LEDGER,),
)
HEARTBEAT_AGE: Final = Metric(
    "mm2_heartbeat_age_seconds",
    MetricType.GAUGE,
    "Age of the newest heartbeat of the flow origin to origin_target that arrived on the target over this number of hops; of several "
    "routes with as many hops, the greatest. At least the time since the process has read it, whatever its timestamp is.",
    (*_FLOW, "origin", "origin_target", "hops"),
    evidence=(Evidence.HEARTBEATS,),
)
GROUP_LAG: Final = Metric(
    "mm2_group_lag_records",
    MetricType.GAUGE,
    "Lag of the group on the source, in offsets. For a topic or flow the sum, absent if a part is unknown: for instance, an offset "
    "beyond the end of a log that was truncated.",
    _GROUP,
    is_partitions=True,
    evidence=(Evidence.GROUPS,),
)
GROUP_SOURCE: Final = Metric(
    "mm2_group_source_offset",
    MetricType.GAUGE,
    "Committed offset of the group on the source. Only with full cardinality.",
    _GROUP,
    is_partitions=True,
    evidence=(Evidence.GROUPS,),
)
GROUP_TRANSLATED: Final = Metric(
    "mm2_group_translated_offset",
    MetricType.GAUGE,
    "Translated offset of the group on the target, from the newest checkpoint. Only with full cardinality.",
    _GROUP,
    is_partitions=True,
    evidence=(Evidence.GROUPS,),
)
GROUP_TARGET: Final = Metric(
    "mm2_group_target_offset",
    MetricType.GAUGE,
    "Committed offset of the group on the target. Only with full cardinality.",
    _GROUP,
    is_partitions=True,
    evidence=(Evidence.GROUPS,),
)
GROUP_UNTRANSLATED: Final = Metric(
    "mm2_group_partitions_untranslated",
    MetricType.GAUGE,
    "Committed offsets of groups that are not on the target, by reason code; mm2 groups prints the reasons.",
    (*_FLOW, "reason"),
    evidence=(Evidence.GROUPS,),
)
CONNECTOR_UP: Final = Metric(
    "mm2_connector_up",
    MetricType.GAUGE,
    "1 while the connector is RUNNING, else 0.",
    (*_FLOW, "connector"),
    evidence=(Evidence.WORKERS,),
)
TASK_UP: Final = Metric(
    "mm2_task_up",
    MetricType.GAUGE,
    "1 while the task is RUNNING on any worker, else 0.",
    (*_FLOW, "connector", "task"),
    evidence=(Evidence.WORKERS,),
)
SPARK_UP: Final = Metric(
    "mm2_spark_up",
    MetricType.GAUGE,
    "1 while Spark of this process can start tasks, else 0.",
    evidence=(Evidence.PROCESS,),
)
MICRO_BATCHES: Final = Metric(
    "mm2_spark_micro_batches_total",
    MetricType.COUNTER,
    "Micro-batches that this process has started.",
    (*_FLOW, "task"),
    evidence=(Evidence.PROCESS,),
)
MICRO_BATCHES_LOST: Final = Metric(
    "mm2_spark_micro_batches_lost_total",
    MetricType.COUNTER,
    "Micro-batches that ended without a final report.",
    _FLOW,
    evidence=(Evidence.PROCESS,),
)
FAILING_LANES: Final = Metric(
    "mm2_failing_lanes",
    MetricType.GAUGE,
    "Lanes of this process that cannot copy: their last three or more micro-batches ended without a final report.",
    _FLOW,
    evidence=(Evidence.PROCESS,),
)
MOVED_PARTITIONS: Final = Metric(
    "mm2_moved_partitions_total",
    MetricType.COUNTER,
    "Partitions that were moved to another lane of this process, after the slots of the Spark cluster or the tasks had changed.",
    _FLOW,
    evidence=(Evidence.PROCESS,),
)
RELOADS: Final = Metric(
    "mm2_config_reloads_total",
    MetricType.COUNTER,
    "New versions of the properties file: applied, or refused.",
    ("outcome",),
    evidence=(Evidence.PROCESS,),
)
CERTIFICATE: Final = Metric(
    "mm2_certificate_expiry_timestamp_seconds",
    MetricType.GAUGE,
    "Expiry time of a certificate of the flow's clients, or of the process's https listeners (source, target and cluster are empty); file is the "
    "name without the path.",
    (*_FLOW, "cluster", "file"),
    evidence=(Evidence.PROCESS,),
)
READ: Final = Metric(
    "mm2_flow_read_timestamp_seconds",
    MetricType.GAUGE,
    "Time when this was last read, by the kind of evidence (docs/reference/statements.md); absent before the first time.",
    (*_FLOW, "evidence"),
)
DIFFERENCES: Final = Metric(
    "mm2_verify_differences",
    MetricType.GAUGE,
    "Unexplained differences that mm2 verify has found, by kind, since the verification started.",
    (*_FLOW, "kind"),
    evidence=(Evidence.LEDGER,),
)
CHECKED: Final = Metric(
    "mm2_verify_checked_records_total",
    MetricType.COUNTER,
    "Records that mm2 verify has found on both sides, since the verification started.",
    _FLOW,
    evidence=(Evidence.LEDGER,),
)

FLOW_METRICS: Final = (
    BUILD_INFO,
    FLOW_STATE,
    OBSERVED,
    READ,
    SECONDS_AT_RISK,
    RECORDS_AT_RISK,
    RECORDS_AT_RISK_AT_LEAST,
    BYTES_AT_RISK,
    CLUSTER_UP,
    PARTITIONS,
    RECORDS,
    BYTES,
    LAG_RECORDS,
    LAG_BYTES,
    LAG_SECONDS,
    POSITION,
    SOURCE_END,
    TARGET_OFFSET,
    VERIFIED,
    PARTITION_STATE,
    LATENCY,
    BATCHES,
    GAPS,
    FILLED,
    UNFILLED,
    LOST,
    FOREIGN,
    HEARTBEAT_AGE,
    GROUP_LAG,
    GROUP_SOURCE,
    GROUP_TRANSLATED,
    GROUP_TARGET,
    GROUP_UNTRANSLATED,
    CONNECTOR_UP,
    TASK_UP,
    SPARK_UP,
    MICRO_BATCHES,
    MICRO_BATCHES_LOST,
    FAILING_LANES,
    MOVED_PARTITIONS,
    RELOADS,
    CERTIFICATE,
    DIFFERENCES,
    CHECKED,
)
