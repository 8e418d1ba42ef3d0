"""Curves of a week from a real Prometheus, whose data were written in advance."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mm2.observer.curves.history import History
from mm2.observer.curves.long_term import Curves, CurveSource, LongTermHistory
from mm2.observer.curves.prometheus import Prometheus
from mm2.observer.curves.prometheus_settings import PrometheusSettings
from tests.integration.prometheus_server import prometheus
from tests.support.waiting import wait_until

DAY_S = 86_400
STEP_S = 600
WEEK_MS = 7 * DAY_S * 1000
FLOW = 'source="A",target="B"'
TOPIC = f'{FLOW},topic="orders"'
#: Names of families and their types, where they are not those of a gauge.
FAMILIES = {
    "mm2_copied_records_total": ("mm2_copied_records", "counter"),
    "mm2_copy_latency_seconds_bucket": ("mm2_copy_latency_seconds", "histogram"),
}


def samples(now_s: int) -> str:
    """Six days as OpenMetrics: two processes copy 10 records a second each and see the lag of both partitions."""
    times = range(now_s - 6 * DAY_S, now_s, STEP_S)
    counts = [10.0 * STEP_S * index for index in range(len(times))]
    lines: list[str] = []

    def series(name: str, labels: str, values: list[float]) -> None:
        family, kind = FAMILIES.get(name, (name, "gauge"))
        header = f"# TYPE {family} {kind}"
        if header not in lines:
            lines.append(header)
        lines.extend(f"{name}{{{labels}}} {value:g} {at}" for at, value in zip(times, values, strict=True))

    def constant(name: str, labels: str, value: float) -> None:
        series(name, labels, [value] * len(times))

    for process in ("a", "b"):
        series("mm2_copied_records_total", f'{TOPIC},instance="{process}"', counts)
    for process in ("a", "b"):
        constant("mm2_flow_records_at_risk_at_least", f'{FLOW},instance="{process}"', 70)
    for process in ("a", "b"):
        constant("mm2_flow_observed_timestamp_seconds", f'{FLOW},instance="{process}"', now_s)
    for process in ("a", "b"):
        for partition, lag in ((0, 30), (1, 40)):
            constant("mm2_partition_lag_records", f'{TOPIC},partition="{partition}",instance="{process}"', lag)
    for partition, state in enumerate(("CORRUPT", "RUNNING")):
        constant("mm2_partition_state", f'{TOPIC},partition="{partition}",state="{state}"', 1)
    for bound in ("0.5", "1.0", "+Inf"):
        series("mm2_copy_latency_seconds_bucket", f'{FLOW},stage="visible",le="{bound}"', counts)
    return "\n".join([*lines, "# EOF\n"])


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CurveSource]:
    folder = tmp_path_factory.mktemp("long-term")
    file: Path = folder / "samples.om"
    file.write_text(samples(int(time.time())))
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", file, folder / "data"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with prometheus(folder, [], retention="90d") as server:
        settings = PrometheusSettings.of({"dashboard.prometheus.url": server.url})
        assert settings is not None
        yield CurveSource(History(), LongTermHistory(Prometheus(settings)))


def of(source: CurveSource, topic: str, *names: str) -> Curves:
    def read() -> Curves:
        return source.of("A->B", topic, names, WEEK_MS, int(time.time() * 1000))

    wait_until(lambda: not read().note.startswith("Reading"), 60, detail=lambda: read().note)
    found = read()
    assert found.note == "From Prometheus."
    return found


def middle(curves: Curves, name: str) -> float | None:
    """The value of a moment of the six days, in the middle of the week."""
    points = curves.points[name]
    return points[len(points) // 2][1]


def test_the_curves_of_a_flow_are_those_of_all_its_processes_once(source: CurveSource) -> None:
    found = of(source, "", "records_per_s", "lag_records", "latency_0.5")
    assert middle(found, "records_per_s") == pytest.approx(20, rel=0.01)
    assert middle(found, "lag_records") == 70
    assert middle(found, "latency_0.5") == pytest.approx(0.25, rel=0.01)
    first = found.points["records_per_s"][0]
    assert first[1] is None, "a time without samples is unknown, not 0"
    assert time.time() * 1000 - first[0] > 6.9 * DAY_S * 1000


def test_the_curves_of_a_topic_count_each_partition_once(source: CurveSource) -> None:
    found = of(source, "orders", "records_per_s", "lag_records", "unhealthy")
    assert middle(found, "records_per_s") == pytest.approx(20, rel=0.01)
    assert middle(found, "lag_records") == 70
    assert middle(found, "unhealthy") == 1


def test_a_topic_without_unhealthy_partitions_has_none(source: CurveSource) -> None:
    found = of(source, "other", "unhealthy")
    assert middle(found, "unhealthy") == 0
