"""Reports about a real flow: metrics, overview, and an observer in another process, with and without faults.

One process copies between two brokers of its own, which are frozen in turn.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from mm2.config.configdef import ConfigException
from mm2.config.files.properties import load_properties
from mm2.config.mirrormaker import MirrorMakerConfig
from mm2.metrics.connect import CONNECT_METRICS
from mm2.metrics.flows import FLOW_METRICS
from mm2.metrics.metric import MetricType
from mm2.metrics.mirror import MIRROR_METRICS
from mm2.metrics.strimzi import PANELS
from mm2.observer.observer import observe_once
from mm2.observer.views import FlowState
from mm2.sandbox.kafka import LocalKafka, start_pair
from mm2.sandbox.ports import free_ports
from tests.integration.copy_flow import create, delete_before, producer_of
from tests.integration.mirror_flow import commit
from tests.integration.mirror_process import MirrorProcess, write_config
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.timeout(300)

#: Seconds within which the reports must be correct again.
SAID_WITHIN_S = 10.0
HOUR_S = 3_600.0
Samples = list[tuple[str, dict[str, str], float]]


@dataclass
class Environment:
    """Two brokers, the process between them, and its URL."""

    source: LocalKafka
    target: LocalKafka
    process: MirrorProcess
    file: Path
    url: str

    def write(self, topic: str, count: int, *, age_s: float = 0.0) -> None:
        producer = producer_of(self.source)
        timestamp_ms = int((time.time() - age_s) * 1000)
        for index in range(count):
            producer.produce(topic, b"value %d" % index, partition=index % 2, timestamp=timestamp_ms)
        assert producer.flush(30) == 0

    def flow(self) -> dict[str, Any]:
        answer = httpx.get(f"{self.url}/overview/A/B", timeout=60)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def rows(self, what: str, **query: str) -> list[dict[str, Any]]:
        return list(httpx.get(f"{self.url}/overview/A/B/{what}", params=query, timeout=60).json()["rows"])

    def samples(self) -> Samples:
        answer = httpx.get(f"{self.url}/metrics", timeout=60)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/plain; version=")
        return [(one.name, dict(one.labels), one.value) for family in parse(answer.text) for one in family.samples]

    def value(self, name: str, **labels: str) -> float | None:
        found = [value for given, has, value in self.samples() if given == name and labels.items() <= has.items()]
        assert len(found) < 2, f"{name} {labels} is there {len(found)} times"
        return found[0] if found else None

    def await_sentence(self, sentence: str, within_s: float) -> dict[str, Any]:
        """Wait until the flow's sentence contains this text."""
        seen: dict[str, Any] = {}

        def is_shown() -> bool:
            seen.clear()
            seen.update(self.flow())
            return sentence in seen["sentence"]

        wait_until(is_shown, within_s, detail=lambda: seen.get("sentence", ""))
        return seen


@contextmanager
def frozen(broker: LocalKafka) -> Iterator[float]:
    """Freeze the broker inside the `with` block; yields the time by the monotonic clock."""
    broker.pause()
    try:
        yield time.monotonic()
    finally:
        broker.resume()


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    folder = tmp_path_factory.mktemp("observer")
    (port,) = free_ports(1)
    with ExitStack() as stack:
        source, target = stack.enter_context(start_pair(folder))
        create(source, "orders", 2)
        create(source, "quiet", 2)
        file = write_config(
            folder / "mm2.properties",
            {
                "clusters": "A, B",
                "A.bootstrap.servers": source.bootstrap,
                "B.bootstrap.servers": target.bootstrap,
                "A->B.enabled": "true",
                "A->B.topics": "orders, quiet",
                "A->B.sync.group.offsets.enabled": "true",
                "A->B.sync.group.offsets.interval.seconds": "1",
                "A->B.emit.checkpoints.interval.seconds": "1",
                "A->B.refresh.groups.interval.seconds": "1",
                "A->B.metric.names.formats": "legacy,new",
                "A->B.source.data.loss": "stop",
                "A->B.partition.error": "fail",
                "B->A.emit.heartbeats.enabled": "false",
                "listeners": f"http://127.0.0.1:{port}",
            },
        )
        process = MirrorProcess(file, folder / "mirror.log", "B")
        stack.callback(process.clean_up)
        made = Environment(source, target, process, file, f"http://127.0.0.1:{port}")
        made.write("orders", 100, age_s=HOUR_S)
        wait_until(lambda: _answers(made.url), 60, detail=process.tail)
        commit(source, "readers", {("orders", 0): 20, ("orders", 1): 10})
        wait_until(lambda: made.flow()["records"] == 100, 90, detail=process.tail)
        yield made


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def test_a_healthy_flow_has_nothing_at_risk(env: Environment) -> None:
    flow = env.await_sentence("If A dies now you lose nothing.", 30)
    assert (flow["state"], flow["risk"]) == (
        "RUNNING",
        {"seconds": 0.0, "records": 0, "bytes": 0, "records_at_least": 0, "seconds_at_least": 0.0},
    )
    assert (flow["source_error"], flow["target_error"], flow["troubles"]) == ("", "", [])
    assert flow["partitions"] == 4
    rows = env.rows("partitions", search="orders")
    assert [(row["position"], row["source_end"], row["lag_records"], row["state"]) for row in rows] == [
        (50, 50, 0, "RUNNING")
    ] * 2
    assert {row["remote_topic"] for row in rows} == {"A.orders"}
    assert {task["state"] for connector in flow["connectors"] for task in connector["tasks"]} == {"RUNNING"}
    (worker,) = flow["workers"]
    assert (worker["is_this"], worker["is_leader"], worker["connectors"]) == (True, True, 3)
    wait_until(lambda: env.flow()["heartbeats"], 20)
    (beat,) = env.flow()["heartbeats"]  # those of the flow itself, written on B
    assert (beat["topic"], beat["source"], beat["target"], beat["route"]) == ("heartbeats", "A", "B", [])
    assert beat["age_ms"] < 30_000
    # Each cluster is polled separately, and the first checkpoints may have been emitted before the records were copied.
    names = ("group", "topic", "partition", "source_offset", "translated", "target_offset")
    offsets = [("readers", "orders", 0, 20, 20, 20), ("readers", "orders", 1, 10, 10, 10)]
    wait_until(lambda: [tuple(row[name] for name in names) for row in env.rows("groups")] == offsets, 30)


def test_a_scrape_is_valid_and_every_metric_is_described(env: Environment) -> None:
    described = {metric.name: metric for metric in (*FLOW_METRICS, *MIRROR_METRICS, *CONNECT_METRICS)}
    known = {
        name + suffix
        for name, metric in described.items()
        for suffix in (("_bucket", "_count", "_sum") if metric.kind is MetricType.HISTOGRAM else ("",))
    }
    names = {name for name, _, _ in env.samples()}
    assert {name for name in names if not name.startswith("process_")} - known == set()
    assert env.value("mm2_copied_records_total", topic="orders", partition="0") == 50
    assert env.value("mm2_flow_state", state="RUNNING") == 1
    assert env.value("mm2_task_up", connector="MirrorSourceConnector", task="0") == 1
    assert env.value("mm2_spark_up") == 1
    assert env.value("kafka_connect_worker_connector_count", source="A", target="B") == 3
    assert env.value("kafka_connect_worker_connector_startup_success_total", source="A") == 3
    assert env.value("kafka_connect_worker_rebalance_rebalancing", source="A") == 0
    body = httpx.get(
        f"{env.url}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}, timeout=15
    )
    assert body.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    families = parse_openmetrics(body.text)  # type: ignore[no-untyped-call]
    assert {family.name for family in families} >= {"mm2_flow_state", "mm2_copied_records"}


def test_latency_is_measured_for_new_records_and_not_for_old_ones(env: Environment) -> None:
    def visible() -> float:
        return env.value("mm2_copy_latency_seconds_count", stage="visible") or 0.0

    before = visible()
    env.write("orders", 10)
    wait_until(lambda: visible() > before, 20, detail=env.process.tail)
    # None of the hundred that were an hour old when the first copy started.
    assert (env.value("mm2_copy_latency_seconds_sum", stage="visible") or HOUR_S) < HOUR_S / 2
    place = {"topic": "A.orders", "partition": "0"}
    legacy, new = "kafka_connect_mirror_mirrorsourceconnector_", "kafka_connect_plugins_"
    latencies = [f"{prefix}replication_latency_ms" for prefix in (legacy, new)]
    # The histogram counts batches immediately, the partition's values are updated by its next report.
    wait_until(lambda: all(env.value(latency, **place) is not None for latency in latencies), 20)
    assert (env.value("mm2_record_batches_total", path="passthrough") or 0) > 0


def test_every_claimed_metric_of_strimzis_dashboard_exists(env: Environment) -> None:
    # Latencies are those of records written during copying: the previous test wrote some.
    claimed = {name for panel in PANELS if panel.is_claimed for name in panel.metrics}
    assert claimed
    missing: set[str] = set()

    def is_there() -> bool:
        missing.clear()
        missing.update(claimed - {name for name, _, _ in env.samples()})
        return not missing

    wait_until(is_there, 20, detail=lambda: sorted(missing))


def test_a_frozen_source_is_reported_within_ten_seconds(env: Environment) -> None:
    with frozen(env.source) as since:
        flow = env.await_sentence("A has not answered since", SAID_WITHIN_S)
        assert time.monotonic() - since < SAID_WITHIN_S * PATIENCE
        assert flow["state"] == "DEGRADED"
        assert "If it died then, you lost no record that is known here." in flow["sentence"]
        assert (flow["risk"]["records"], flow["risk"]["records_at_least"]) == (None, 0)
        assert flow["states"] == {"UNREACHABLE": 4}
        assert flow["source_error"]
        assert env.value("mm2_flow_cluster_up", cluster="A") == 0
        assert env.value("mm2_flow_cluster_up", cluster="B") == 1
        # Values known from the target are still reported.
        assert len(env.rows("partitions", search="orders")) == 2
    env.await_sentence("If A dies now you lose nothing.", 45)


def test_a_frozen_target_increases_the_seconds_at_risk(env: Environment) -> None:
    with frozen(env.target) as since:
        env.write("orders", 40)
        written = time.monotonic()
        flow = env.await_sentence("If A dies now you lose", SAID_WITHIN_S)
        wait_until(lambda: env.flow()["risk"]["records"] == 40, SAID_WITHIN_S, detail=env.flow)
        wait_until(lambda: env.flow()["target_error"] != "", SAID_WITHIN_S)
        assert time.monotonic() - since < 2 * SAID_WITHIN_S * PATIENCE
        flow = env.flow()
        assert flow["state"] == "DEGRADED"
        assert "40 records" in flow["sentence"]
        assert "B has not answered since" in flow["sentence"]
        assert 0 < flow["risk"]["seconds"] <= time.monotonic() - written + 2
        later = flow["risk"]["seconds"]
        wait_until(lambda: env.flow()["risk"]["seconds"] > later + 1)
    env.await_sentence("If A dies now you lose nothing.", 60)


def test_an_observer_outside_the_process_reports_the_same(env: Environment) -> None:
    config = MirrorMakerConfig(load_properties(env.file))
    snapshot = observe_once(config)
    (flow,) = snapshot.flows
    assert (flow.name, flow.state, flow.sentence) == ("A->B", FlowState.RUNNING, "If A dies now you lose nothing.")
    assert {(one.topic, one.partition): one.lag_records for one in flow.partitions if one.topic == "orders"} == {
        ("orders", 0): 0,
        ("orders", 1): 0,
    }
    source = next(one for one in flow.connectors if one.name == "MirrorSourceConnector")
    assert {task.state for task in source.tasks} == {"RUNNING"}
    assert [group.translated for group in flow.groups]
    with pytest.raises(ConfigException, match="The file has no flow A->C; its flows are A->B, B->A"):
        observe_once(config, ["A->C"])


def test_the_series_of_a_failed_task_is_zero_and_not_missing(env: Environment) -> None:
    base = f"{env.url}/A/B/connectors/MirrorSourceConnector"
    copied = env.value("mm2_copied_records_total", topic="orders", partition="0")
    httpx.put(f"{base}/pause", timeout=60)
    env.await_sentence("Copying is paused. If A dies now you lose nothing.", 30)
    assert env.flow()["state"] == "PAUSED"
    assert {row["state"] for row in env.rows("partitions")} == {"PAUSED"}
    tasks = {row["id"] for one in env.flow()["connectors"] for row in one["tasks"] if "Source" in one["name"]}
    # The statuses of tasks are read from the status topic, one after the other.
    wait_until(
        lambda: {env.value("mm2_task_up", connector="MirrorSourceConnector", task=str(one)) for one in tasks} == {0}
    )
    # This process copied the records, regardless of the state of its tasks.
    assert env.value("mm2_copied_records_total", topic="orders", partition="0") == copied
    # Records deleted before they were copied fail the task at each start.
    env.write("quiet", 20)
    delete_before(env.source, "quiet", 5, 0)
    httpx.put(f"{base}/resume", timeout=60)

    def failed() -> set[int]:
        source = next(one for one in env.flow()["connectors"] if "Source" in one["name"])
        return {task["id"] for task in source["tasks"] if task["state"] == "FAILED"}

    wait_until(failed, 45, detail=env.process.tail)
    (task,) = failed()
    assert env.value("mm2_task_up", connector="MirrorSourceConnector", task=str(task)) == 0
    flow = env.flow()
    assert flow["state"] in {"DEGRADED", "STOPPED"}
    # The state of the task does not hide what has happened, and the alert does not end. The leader starts the task again and again.
    place = {"topic": "quiet", "partition": "0", "state": "LOST_RANGE"}
    wait_until(lambda: failed() and env.value("mm2_partition_state", **place) == 1, 45, detail=env.process.tail)
    assert env.value("mm2_flow_partitions", source="A", state="LOST_RANGE") == 1
    (row,) = env.rows("partitions", search="quiet-0")
    assert row["state"] == "LOST_RANGE"
