"""Metrics of a Connect worker."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from mm2.config.keys.worker_keys import StandaloneConfig
from mm2.connect.herder.lifecycle import StatusReports
from mm2.connect.metrics import ConnectMetrics, ObservedWorker
from mm2.connect.node import StandaloneNode
from mm2.connect.plugins import Plugins
from mm2.connect.runtime.counters import RebalanceCounters
from mm2.connect.stores.config_state import ConnectorTaskId
from mm2.connect.stores.status_store import MemoryStatusStore
from mm2.metrics.metric import Sheet

TASK = ConnectorTaskId("c", 0)


def test_a_start_counts_once_regardless_of_later_events() -> None:
    reports = StatusReports(MemoryStatusStore(), "w", lambda: 1, track_topics=False)
    reports.on_startup("c", None)
    reports.on_startup(TASK, None)
    reports.on_failure(TASK, RuntimeError("later"), None)  # it had started: no start has failed
    reports.on_failure(TASK, RuntimeError("the second start"), None)
    reports.on_failure("d", RuntimeError("at once"), None)
    assert (reports.connector_starts.succeeded, reports.connector_starts.failed) == (1, 1)
    assert (reports.task_starts.succeeded, reports.task_starts.failed) == (1, 1)


def test_a_start_after_a_stop_counts_again() -> None:
    reports = StatusReports(MemoryStatusStore(), "w", lambda: 1, track_topics=False)
    reports.on_startup(TASK, None)
    reports.on_shutdown(TASK, None)
    reports.on_failure(TASK, RuntimeError(), None)
    assert (reports.task_starts.succeeded, reports.task_starts.failed) == (1, 1)


def test_a_rebalance_lasts_until_its_work_has_started() -> None:
    counters = RebalanceCounters()
    counters.begin()
    under_way = [counters.began_s is not None]
    time.sleep(0.01)
    counters.end()
    under_way.append(counters.began_s is not None)
    assert under_way == [True, False]
    assert counters.took_ms.count == 1
    assert counters.took_ms.greatest >= 10


@pytest.fixture
def node(tmp_path: Path) -> StandaloneNode:
    """A worker that has not been started; its cluster is unreachable."""
    props = {
        "bootstrap.servers": "127.0.0.1:1",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "offset.storage.file.filename": str(tmp_path / "offsets"),
    }
    return StandaloneNode(StandaloneConfig(props), Plugins(), worker_id="w", cluster_name="Kafka")


def test_an_empty_worker_reports_zeros(node: StandaloneNode) -> None:
    sheet = Sheet()
    ConnectMetrics(lambda: [ObservedWorker(node.herder, {"source": "A", "target": "B"})])(sheet)
    samples = {one.name: one for family in sheet.families() for one in family.samples}
    assert samples["kafka_connect_worker_connector_count"].labels == {"source": "A", "target": "B"}
    assert samples["kafka_connect_worker_connector_count"].value == 0
    assert samples["kafka_connect_worker_task_startup_attempts_total"].value == 0
    assert not any(name.startswith("kafka_connect_worker_rebalance") for name in samples)  # it is in no group


def test_rates_cover_the_time_between_scrapes(node: StandaloneNode) -> None:
    metrics = ConnectMetrics(list)
    seen: set[object] = set()
    rate = metrics._rate
    assert rate(seen, "polled", 100, 10.0) is None  # nothing to compare with
    assert rate(seen, "polled", 200, 20.0) == 10.0
    assert rate(seen, "polled", 200, 40.0) == pytest.approx(100 / 30)
    assert rate(seen, "polled", 200, 100.0) == pytest.approx(0.0, abs=2.0)
    assert rate(seen, "polled", 5, 110.0) is None  # a new task of the same name
