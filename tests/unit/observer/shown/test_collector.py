"""A snapshot as metrics, and as JSON."""

from __future__ import annotations

import dataclasses
import json

import pytest

from mm2.copy.states import PartitionState
from mm2.evidence import Evidence
from mm2.metrics.connect import CONNECT_METRICS
from mm2.metrics.flows import FLOW_METRICS
from mm2.metrics.metric import Cardinality, Sheet
from mm2.metrics.mirror import CONSUMER_LAG, MIRROR_METRICS, metric_formats
from mm2.observer.shown.collector import SnapshotMetrics
from mm2.observer.shown.shapes import chosen_groups, chosen_partitions, flow_json, page_json
from mm2.observer.views import (
    CertificateView,
    ConnectorView,
    EvidenceView,
    FlowState,
    FlowView,
    GroupView,
    HeartbeatView,
    Latency,
    PartitionView,
    Risk,
    Snapshot,
    SparkView,
    TaskView,
    ValueRange,
)
from mm2.reasons import OffsetReasonCode

KNOWN = {metric.name for metric in (*FLOW_METRICS, *MIRROR_METRICS, *CONNECT_METRICS)}


def partition(topic: str, number: int, state: PartitionState = PartitionState.RUNNING, **more: object) -> PartitionView:
    fields = {
        "position": 90,
        "source_end": 100,
        "target_offset": 95,
        "lag_records": 10,
        "lag_bytes": 1000,
        "lag_seconds": 2.0 + number,
        "records_per_s": 5.0,
        "bytes_per_s": 500.0,
        "records": 7,
        "bytes": 700,
        "task": number,
        "latency_ms": ValueRange(5 + number, 1, 9, 4.0),
        **more,
    }
    return PartitionView(topic, number, f"A.{topic}", state, **fields)  # type: ignore[arg-type]


FLOW = FlowView(
    "A",
    "B",
    FlowState.DEGRADED,
    "If A dies now you lose 4.0 seconds, 30 records.",
    Risk(4.0, 30, None),
    observed_ms=1_700_000_000_000,
    evidence=tuple(EvidenceView(what, 1_700_000_000_000) for what in Evidence),
    target_error="B does not answer",
    states={PartitionState.RUNNING: 2, PartitionState.CORRUPT: 1},
    gaps={"compacted": 12},
    lost_ranges=1,
    batches={"passthrough": 9, "compacted": 1},
    latency={"visible": Latency((0.1, 1.0), (2, 1, 0), 0.7)},
    partitions=(
        partition("t", 0),
        partition("t", 1, PartitionState.CORRUPT),
        partition("u", 0, lag_records=None, lag_seconds=None),
    ),
    groups=(
        GroupView("g", "t", 0, "A.t", 40, 45, 44, source_lag=60),
        GroupView("h", "t", 1, "A.t", reason="too long ago", reason_code=OffsetReasonCode.TOO_OLD),
    ),
    heartbeats=(HeartbeatView("A.heartbeats", "A", "B", ("A",), 1500),),
    connectors=(
        ConnectorView(
            "MirrorSourceConnector",
            "source",
            "RUNNING",
            "w",
            tasks=(TaskView(0, "RUNNING", "w"), TaskView(1, "FAILED", "w", "trace")),
        ),
        ConnectorView("MirrorHeartbeatConnector", "source", "UNASSIGNED", ""),
    ),
    micro_batches={0: 3},
)
SNAPSHOT = Snapshot(
    1,
    "1.0",
    (FLOW,),
    SparkView(up=False),
    {"refused": 2},
    (CertificateView("A", "B", "B", "client.pem", 1_800_000_000_000),),
)
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(cardinality: Cardinality = Cardinality.FULL, snapshot: Snapshot = SNAPSHOT) -> Samples:
    sheet = Sheet()
    SnapshotMetrics(lambda: snapshot, cardinality)(sheet)
    found: Samples = {}
    for family in sheet.families():
        for one in family.samples:
            key = (
                one.name,
                tuple((name, value) for name, value in one.labels.items() if name not in ("source", "target")),
            )
            assert key not in found, f"{key} is there twice"
            found[key] = one.value
    return found


def value(of: Samples, name: str, **labels: str) -> float | None:
    return of.get((name, tuple(labels.items())))


def test_every_metric_is_described() -> None:
    sheet = Sheet()
    SnapshotMetrics(lambda: SNAPSHOT)(sheet)
    names = {f"{family.name}_total" if family.type == "counter" else family.name for family in sheet.families()}
    assert names <= KNOWN


def test_one_poll_describes_the_flow() -> None:
    seen = samples()
    assert value(seen, "mm2_flow_state", state="DEGRADED") == 1
    assert value(seen, "mm2_flow_state", state="RUNNING") == 0
    assert value(seen, "mm2_flow_seconds_at_risk") == 4.0
    assert value(seen, "mm2_flow_records_at_risk") == 30
    assert value(seen, "mm2_flow_records_at_risk_at_least") == 30
    assert value(seen, "mm2_flow_bytes_at_risk") is None  # unknown
    assert value(seen, "mm2_flow_cluster_up", cluster="A") == 1
    assert value(seen, "mm2_flow_cluster_up", cluster="B") == 0
    assert value(seen, "mm2_flow_partitions", state="CORRUPT") == 1
    assert value(seen, "mm2_gap_offsets_total", reason="compacted") == 12
    assert value(seen, "mm2_record_batches_total", path="passthrough") == 9
    assert value(seen, "mm2_copy_latency_seconds_bucket", stage="visible", le="1.0") == 3
    assert value(seen, "mm2_heartbeat_age_seconds", origin="A", origin_target="B", hops="1") == 1.5
    assert value(seen, "mm2_config_reloads_total", outcome="refused") == 2
    assert value(seen, "mm2_config_reloads_total", outcome="applied") == 0
    assert value(seen, "mm2_certificate_expiry_timestamp_seconds", cluster="B", file="client.pem") == 1.8e9


def test_series_of_connectors_that_do_not_run_are_zero_and_not_missing() -> None:
    seen = samples()
    assert value(seen, "mm2_task_up", connector="MirrorSourceConnector", task="0") == 1
    assert value(seen, "mm2_task_up", connector="MirrorSourceConnector", task="1") == 0
    assert value(seen, "mm2_connector_up", connector="MirrorHeartbeatConnector") == 0
    assert value(seen, "mm2_spark_up") == 0


def test_a_group_has_its_lag_and_a_reason_code() -> None:
    seen = samples()
    place = {"group": "g", "topic": "t", "partition": "0"}
    assert value(seen, "mm2_group_lag_records", **place) == 60
    assert value(seen, "mm2_group_translated_offset", **place) == 45
    assert value(seen, "mm2_group_partitions_untranslated", reason="too_old") == 1


def test_full_cardinality_has_every_partition() -> None:
    seen = samples()
    place = {"topic": "t", "partition": "1"}
    assert value(seen, "mm2_partition_lag_seconds", **place) == 3.0
    assert value(seen, "mm2_partition_position_offset", **place) == 90
    assert value(seen, "mm2_partition_state", **place, state="CORRUPT") == 1
    assert value(seen, "mm2_partition_state", **place, state="RUNNING") is None
    assert value(seen, "mm2_partition_state", topic="t", partition="0", state="RUNNING") == 1
    assert value(seen, "mm2_partition_lag_records", topic="u", partition="0") is None


@pytest.mark.parametrize(
    ("cardinality", "topic", "records"), [(Cardinality.TOPIC, "t", 20), (Cardinality.FLOW, "", None)]
)
def test_summed_metrics_have_the_worst_age_and_name_unhealthy_partitions(
    cardinality: Cardinality, topic: str, records: int
) -> None:
    seen = samples(cardinality)
    place = {"topic": topic, "partition": ""}
    assert value(seen, "mm2_partition_lag_records", **place) == records
    assert value(seen, "mm2_partition_lag_seconds", **place) == 3.0
    assert value(seen, "mm2_copied_records_total", **place) == (14 if topic else 21)
    assert value(seen, "mm2_partition_position_offset", **place) is None
    states = {key: one for key, one in seen.items() if key[0] == "mm2_partition_state"}
    assert states == {("mm2_partition_state", (("topic", "t"), ("partition", "1"), ("state", "CORRUPT"))): 1}
    assert value(seen, "mm2_group_lag_records", group="g", topic=topic, partition="") == 60


@pytest.mark.parametrize(("cardinality", "topic"), [(Cardinality.TOPIC, "t"), (Cardinality.FLOW, "")])
def test_a_sum_with_an_unknown_part_is_unknown(cardinality: Cardinality, topic: str) -> None:
    """As in `mm2 topics` and on the dashboard. A partition that the flow is not to copy, and a group without an offset, have no part."""
    turned = partition("t", 2, lag_records=None, lag_bytes=None, lag_seconds=None, is_counted=False)
    known = dataclasses.replace(
        FLOW,
        partitions=(*FLOW.partitions[:2], turned),
        groups=(
            GroupView("g", "t", 0, "A.t", 40, source_lag=60),
            GroupView("g", "t", 1, "A.t", 70, source_lag=30),
            GroupView("g", "t", 2, "A.t"),
        ),
    )
    unknown = dataclasses.replace(
        known,
        partitions=(FLOW.partitions[0], partition("t", 1, lag_records=None, lag_bytes=None, source_end=None)),
        groups=(known.groups[0], GroupView("g", "t", 1, "A.t", 70)),
    )
    place = {"topic": topic, "partition": ""}
    nothing = dataclasses.replace(known, partitions=(turned,), groups=())
    cases = ((known, 20, 2000, 90), (unknown, None, None, None), (nothing, None, None, None))
    for flow, lag, size, group_lag in cases:
        seen = samples(cardinality, dataclasses.replace(SNAPSHOT, flows=(flow,)))
        assert value(seen, "mm2_partition_lag_records", **place) == lag
        assert value(seen, "mm2_partition_lag_bytes", **place) == size
        assert value(seen, "mm2_group_lag_records", group="g", **place) == group_lag


@pytest.mark.parametrize(
    ("cardinality", "place"),
    [
        (Cardinality.FULL, {"topic": "t", "partition": "0"}),
        (Cardinality.TOPIC, {"topic": "t", "partition": ""}),
        (Cardinality.FLOW, {"topic": "", "partition": ""}),
    ],
)
def test_a_lag_of_which_only_0_is_known_is_unknown(cardinality: Cardinality, place: dict[str, str]) -> None:
    """Of a log that was truncated, or is another one. While the source does not answer, all values are those of its last answer."""

    def lags(number: int, error: str = "", *, is_exact: bool = False) -> list[float | None]:
        view = partition("t", 0, lag_records=number, lag_bytes=None, is_lag_exact=is_exact)
        flow = dataclasses.replace(FLOW, partitions=(view,), source_error=error)
        seen = samples(cardinality, dataclasses.replace(SNAPSHOT, flows=(flow,)))
        consumer: list[float | None] = [one for (name, _), one in seen.items() if name == CONSUMER_LAG.name]
        assert len(consumer) <= 1
        return [value(seen, "mm2_partition_lag_records", **place), *(consumer or [None])]

    assert lags(0) == [None, None]
    assert lags(0, is_exact=True) == [0, 0]
    assert lags(0, "A does not answer") == [0, 0]
    assert lags(4) == [4, 4]


def test_what_the_ledger_counts_is_unknown_before_it_was_read() -> None:
    """A first value of 0 would show old losses as new ones."""
    unread = dataclasses.replace(FLOW, partitions=(), states={}, lost_ranges=0, is_ledger_read=False)
    seen = samples(snapshot=dataclasses.replace(SNAPSHOT, flows=(unread,)))
    names = {name for name, _ in seen}
    assert not names & {"mm2_lost_ranges_total", "mm2_foreign_records_total", "mm2_flow_partitions"}
    assert "mm2_flow_partitions" in {name for name, _ in samples()}


def test_a_heartbeat_that_arrives_on_several_routes_has_the_age_of_the_slowest() -> None:
    """One series: labels do not name the route."""
    beats = tuple(HeartbeatView(f"{via}.A.heartbeats", "X", "A", (via, "A"), age) for via, age in (("B", 70), ("C", 9)))
    for order in (beats, beats[::-1]):
        seen = samples(snapshot=dataclasses.replace(SNAPSHOT, flows=(dataclasses.replace(FLOW, heartbeats=order),)))
        assert value(seen, "mm2_heartbeat_age_seconds", origin="X", origin_target="A", hops="2") == 0.07


def test_fewer_series_with_less_cardinality() -> None:
    many = tuple(partition("t", number) for number in range(100))
    snapshot = dataclasses.replace(SNAPSHOT, flows=(dataclasses.replace(FLOW, partitions=many),))
    full, topic, flow = (len(samples(one, snapshot)) for one in Cardinality)
    assert full - topic > 99 * 15
    assert topic == flow


def test_java_names_have_the_configured_formats() -> None:
    place = {"topic": "A.t", "partition": "1"}
    legacy = "kafka_connect_mirror_mirrorsourceconnector_replication_latency_ms"
    new = "kafka_connect_plugins_replication_latency_ms"
    by_default = dataclasses.replace(FLOW, metric_formats=metric_formats({}))
    seen = samples(snapshot=dataclasses.replace(SNAPSHOT, flows=(by_default,)))
    assert value(seen, legacy, **place) == 6
    assert value(seen, f"{legacy}_max", **place) == 9
    assert not any(name.startswith("kafka_connect_plugins_") for name, _ in seen)
    both = dataclasses.replace(FLOW, metric_formats=metric_formats({"metric.names.formats": "legacy, new"}))
    seen = samples(snapshot=dataclasses.replace(SNAPSHOT, flows=(both,)))
    assert value(seen, legacy, **place) == 6
    assert value(seen, new, connector="MirrorSourceConnector", task="1", **place) == 6


def test_an_empty_process_reports_its_version() -> None:
    seen = samples(snapshot=Snapshot(1, "1.0", ()))
    assert value(seen, "mm2_build_info", version="1.0") == 1


# -- as JSON


def test_a_lower_bound_is_not_a_number_of_records_at_risk() -> None:
    flow = dataclasses.replace(FLOW, risk=Risk(4.0, None, None, 30))
    seen = samples(snapshot=dataclasses.replace(SNAPSHOT, flows=(flow,)))
    assert value(seen, "mm2_flow_records_at_risk") is None
    assert value(seen, "mm2_flow_records_at_risk_at_least") == 30


def test_the_json_of_a_flow_has_counts_instead_of_lists() -> None:
    document = json.loads(json.dumps(flow_json(FLOW)))
    assert (document["name"], document["state"], document["partitions"], document["groups"]) == (
        "A->B",
        "DEGRADED",
        3,
        2,
    )
    assert document["states"] == {"RUNNING": 2, "CORRUPT": 1}
    assert document["risk"] == {
        "seconds": 4.0,
        "records": 30,
        "bytes": None,
        "records_at_least": None,
        "seconds_at_least": None,
    }


def test_partitions_are_filtered_sorted_and_paged() -> None:
    rows = chosen_partitions(FLOW, "", (), "lag_seconds", descending=True)
    assert [(row.topic, row.partition) for row in rows] == [("t", 1), ("t", 0), ("u", 0)]  # the unknown last
    page = page_json(rows, 1, 1)
    assert (page["total"], page["offset"], [row["topic"] for row in page["rows"]]) == (3, 1, ["t"])
    assert [row.partition for row in chosen_partitions(FLOW, "t-1", (), "topic", descending=False)] == [1]
    assert [row.partition for row in chosen_partitions(FLOW, "", ("CORRUPT",), "topic", descending=False)] == [1]


def test_an_unknown_sort_order_is_rejected() -> None:
    with pytest.raises(ValueError, match="order is 'remote_topic'; it may be bytes_per_s, lag_bytes"):
        chosen_partitions(FLOW, "", (), "remote_topic", descending=False)


def test_groups_are_searched_by_name_and_topic() -> None:
    assert [row.group for row in chosen_groups(FLOW, "h", "group", descending=False)] == ["h"]
    assert len(chosen_groups(FLOW, "t", "translated", descending=True)) == 2
