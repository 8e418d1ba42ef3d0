"""Metrics of flows: what is copied, the lag, and what would be lost."""

from __future__ import annotations

from typing import Final

from mm2.metrics.metric import Metric, MetricType

_FLOW: Final = ("source", "target")
_PARTITION: Final = (*_FLOW, "topic", "partition")
_GROUP: Final = (*_FLOW, "group", "topic", "partition")

BUILD_INFO: Final = Metric(
    "mm2_build_info", MetricType.GAUGE, "Always 1; the version of mm2 is its label.", ("version",)
)

FLOW_STATE: Final = Metric(
    "mm2_flow_state", MetricType.GAUGE, "1 for the state that the flow is in, 0 for all others.", (*_FLOW, "state")
)
OBSERVED: Final = Metric(
    "mm2_flow_observed_timestamp_seconds",
    MetricType.GAUGE,
    "When one of the flow's clusters last answered; other values are not newer.",
    _FLOW,
)
SECONDS_AT_RISK: Final = Metric(
    "mm2_flow_seconds_at_risk",
    MetricType.GAUGE,
    "Age of the oldest record that is not on the target; 0 when nothing is missing. Stands still while the source is silent.",
    _FLOW,
)
RECORDS_AT_RISK: Final = Metric(
    "mm2_flow_records_at_risk", MetricType.GAUGE, "Records of the source that are not on the target.", _FLOW
)
BYTES_AT_RISK: Final = Metric(
    "mm2_flow_bytes_at_risk",
    MetricType.GAUGE,
    "Their size in bytes, estimated from the records copied lately; missing while none were.",
    _FLOW,
)
CLUSTER_UP: Final = Metric(
    "mm2_flow_cluster_up",
    MetricType.GAUGE,
    "1 while the cluster answers, 0 while it does not: what comes from it is as it was then.",
    (*_FLOW, "cluster"),
)
PARTITIONS: Final = Metric(
    "mm2_flow_partitions", MetricType.GAUGE, "Partitions of the source by state.", (*_FLOW, "state")
)
RECORDS: Final = Metric(
    "mm2_copied_records_total", MetricType.COUNTER, "Records copied by this process.", _PARTITION, is_partitions=True
)
BYTES: Final = Metric(
    "mm2_copied_bytes_total",
    MetricType.COUNTER,
    "Bytes of record batches copied by this process.",
    _PARTITION,
    is_partitions=True,
)
LAG_RECORDS: Final = Metric(
    "mm2_partition_lag_records",
    MetricType.GAUGE,
    "Offsets between the position and the source's end, whichever process copies.",
    _PARTITION,
    is_partitions=True,
)
LAG_BYTES: Final = Metric(
    "mm2_partition_lag_bytes", MetricType.GAUGE, "The same in bytes, estimated.", _PARTITION, is_partitions=True
)
LAG_SECONDS: Final = Metric(
    "mm2_partition_lag_seconds",
    MetricType.GAUGE,
    "Age of the oldest record that is not on the target; of a topic or flow the greatest.",
    _PARTITION,
    is_partitions=True,
)
POSITION: Final = Metric(
    "mm2_partition_position_offset",
    MetricType.GAUGE,
    "The first source offset that is neither on the target nor left out for a reason. Only with full cardinality.",
    _PARTITION,
    is_partitions=True,
)
SOURCE_END: Final = Metric(
    "mm2_partition_source_end_offset",
    MetricType.GAUGE,
    "The next offset of the source. Only with full cardinality.",
    _PARTITION,
    is_partitions=True,
)
TARGET_OFFSET: Final = Metric(
    "mm2_partition_target_offset",
    MetricType.GAUGE,
    "The target offset behind the newest copied record. Only with full cardinality.",
    _PARTITION,
    is_partitions=True,
)
VERIFIED: Final = Metric(
    "mm2_partition_verified_offset",
    MetricType.GAUGE,
    "Up to this source offset mm2 verify found nothing unexplained. Only with full cardinality.",
    _PARTITION,
    is_partitions=True,
)
PARTITION_STATE: Final = Metric(
    "mm2_partition_state",
    MetricType.GAUGE,
    "1 for the state that the partition is in; the other states are absent. With less than full cardinality only partitions "
    "that are neither RUNNING nor CATCHING_UP.",
    (*_PARTITION, "state"),
    is_partitions=True,
)
LATENCY: Final = Metric(
    "mm2_copy_latency_seconds",
    MetricType.HISTOGRAM,
    "Of record batches, by stage: fetch, from their newest record's timestamp until they were fetched; produce, until the target "
    "acknowledged them (exactly-once: until the commit); visible, both. Without backlogs: what was fetched more than 10,000 "
    "offsets behind the end, or was there before the first copy.",
    (*_FLOW, "stage"),
)
BATCHES: Final = Metric(
    "mm2_record_batches_total",
    MetricType.COUNTER,
    "Record batches by path: passthrough, or why they were re-encoded (compacted, log_append_time, old_format, "
    "begun, merged, too_large).",
    (*_FLOW, "path"),
)
GAPS: Final = Metric(
    "mm2_gap_offsets_total",
    MetricType.COUNTER,
    "Source offsets without a record on the target, by reason, since the ledger began.",
    (*_FLOW, "reason"),
)
LOST: Final = Metric(
    "mm2_lost_ranges_total", MetricType.COUNTER, "Ranges of source offsets that can never be copied.", _FLOW
)
FOREIGN: Final = Metric(
    "mm2_foreign_records_total", MetricType.COUNTER, "Records in remote topics written by other producers.", _FLOW
)
HEARTBEAT_AGE: Final = Metric(
    "mm2_heartbeat_age_seconds",
    MetricType.GAUGE,
    "Age of the newest heartbeat of the flow origin to origin_target that has come to the target over so many hops.",
    (*_FLOW, "origin", "origin_target", "hops"),
)
GROUP_LAG: Final = Metric(
    "mm2_group_lag_records",
    MetricType.GAUGE,
    "Offsets of the source that the group has yet to read there.",
    _GROUP,
    is_partitions=True,
)
GROUP_SOURCE: Final = Metric(
    "mm2_group_source_offset",
    MetricType.GAUGE,
    "What the group has committed on the source.",
    _GROUP,
    is_partitions=True,
)
GROUP_TRANSLATED: Final = Metric(
    "mm2_group_translated_offset",
    MetricType.GAUGE,
    "The same place on the target, by the newest checkpoint.",
    _GROUP,
    is_partitions=True,
)
GROUP_TARGET: Final = Metric(
    "mm2_group_target_offset",
    MetricType.GAUGE,
    "What is committed for the group on the target.",
    _GROUP,
    is_partitions=True,
)
GROUP_UNTRANSLATED: Final = Metric(
    "mm2_group_partitions_untranslated",
    MetricType.GAUGE,
    "Places of groups that are not on the target, by the kind of reason; mm2 groups has the sentences.",
    (*_FLOW, "reason"),
)
CONNECTOR_UP: Final = Metric(
    "mm2_connector_up", MetricType.GAUGE, "1 while the connector is RUNNING, else 0.", (*_FLOW, "connector")
)
TASK_UP: Final = Metric(
    "mm2_task_up",
    MetricType.GAUGE,
    "1 while the task is RUNNING, else 0, on whichever worker.",
    (*_FLOW, "connector", "task"),
)
SPARK_UP: Final = Metric("mm2_spark_up", MetricType.GAUGE, "1 while this process's Spark is up.")
MICRO_BATCHES: Final = Metric(
    "mm2_spark_micro_batches_total", MetricType.COUNTER, "Micro-batches that this process has begun.", (*_FLOW, "task")
)
MICRO_BATCHES_LOST: Final = Metric(
    "mm2_spark_micro_batches_lost_total", MetricType.COUNTER, "Those of them that ended without a final report.", _FLOW
)
RELOADS: Final = Metric(
    "mm2_config_reloads_total", MetricType.COUNTER, "New versions of the file: applied, or refused.", ("outcome",)
)
CERTIFICATE: Final = Metric(
    "mm2_certificate_expiry_timestamp_seconds",
    MetricType.GAUGE,
    "When a certificate expires that the flow's clients or (source, target and cluster empty) the process's https listeners use; only the name of "
    "the file.",
    (*_FLOW, "cluster", "file"),
)
DIFFERENCES: Final = Metric(
    "mm2_verify_differences",
    MetricType.GAUGE,
    "Differences that mm2 verify has found and nothing explains, by kind, since the verification began.",
    (*_FLOW, "kind"),
)
CHECKED: Final = Metric(
    "mm2_verify_checked_records_total",
    MetricType.COUNTER,
    "Records that mm2 verify has found on both sides, since the verification began.",
    _FLOW,
)

FLOW_METRICS: Final = (
    BUILD_INFO,
    FLOW_STATE,
    OBSERVED,
    SECONDS_AT_RISK,
    RECORDS_AT_RISK,
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
    RELOADS,
    CERTIFICATE,
    DIFFERENCES,
    CHECKED,
)
