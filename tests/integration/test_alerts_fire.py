"""Alerts on a real flow: Prometheus scrapes a process that copies between two brokers, and says what is done to it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from confluent_kafka.admin import ResourceType

from mm2.sandbox.kafka import LocalKafka, start_pair
from mm2.sandbox.ports import free_ports
from tests.faults.stage import Topics
from tests.integration.copy_flow import alter, eventually, producer_of
from tests.integration.mirror_process import MirrorProcess, write_config
from tests.integration.prometheus_server import Prometheus, prometheus
from tests.unit.conf.test_grafana import BOARDS, queries, resolved

_FLOW = {"source": "A", "target": "B"}
#: Longest `for` of what is played here, and a machine that has much else to do.
_PATIENCE_S = 300.0


@dataclass(frozen=True)
class Watched:
    a: LocalKafka
    b: LocalKafka
    process: MirrorProcess
    prometheus: Prometheus

    def write(self, topic: str, count: int = 1, size: int = 100) -> None:
        producer = producer_of(self.a)
        for _ in range(count):
            producer.produce(topic, b"x" * size)
        assert producer.flush(30) == 0

    def seconds_at_risk(self) -> float | None:
        return self.prometheus.value("max(mm2_flow_seconds_at_risk)")

    def eventually(self, condition: Callable[[], object]) -> None:
        eventually(condition, _PATIENCE_S, why=lambda: f"{self.prometheus.alerts()}\n{self.process.tail()}")

    def await_firing(self, name: str, **labels: str) -> None:
        self.eventually(lambda: self.prometheus.firing(name, **labels))

    def await_silence(self) -> None:
        self.eventually(lambda: not self.prometheus.alerts())


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("alerts")
    (port,) = free_ports(1)
    with ExitStack() as stack:
        a, b = stack.enter_context(start_pair(folder))
        Topics(a).create("orders", "large", partitions=2)
        file = write_config(
            folder / "mm2.properties",
            {
                "clusters": "A, B",
                "A.bootstrap.servers": a.bootstrap,
                "B.bootstrap.servers": b.bootstrap,
                "A->B.enabled": "true",
                "A->B.topics": "orders, large",
                "B->A.emit.heartbeats.enabled": "false",
                "listeners": f"http://127.0.0.1:{port}",
            },
        )
        process = MirrorProcess(file, folder / "mirror.log", "B")
        stack.callback(process.clean_up)
        server = stack.enter_context(prometheus(folder / "prometheus", [f"127.0.0.1:{port}"], "1s"))
        made = Watched(a, b, process, server)
        made.write("orders", 1000)
        made.eventually(lambda: server.value("sum(mm2_copied_records_total)") == 1000)
        yield made


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_healthy_flow_is_silent_and_every_panel_can_ask(watched: Watched) -> None:
    watched.await_silence()  # after what was pending while it started
    for file in BOARDS:
        for place, expression in queries(file):
            assert watched.prometheus.query(resolved(expression)) is not None, place  # matching of labels is tried, too
    for _ in range(20):
        time.sleep(1)
        assert watched.prometheus.firing() == []
    watched.eventually(lambda: watched.seconds_at_risk() == 0)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_record_that_is_too_large_is_told_by_topic_until_the_limit_is_raised(watched: Watched) -> None:
    alter(watched.b, ResourceType.TOPIC, "A.large", "max.message.bytes", "2000")
    watched.write("large", size=5000)
    watched.await_firing("Mm2RecordTooLarge", topic="large", **_FLOW)
    (alert,) = watched.prometheus.firing("Mm2RecordTooLarge")
    assert "A->B: a record of large is larger than B takes" in alert.annotations["summary"]
    alter(watched.b, ResourceType.TOPIC, "A.large", "max.message.bytes", "1048588")
    watched.await_silence()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_target_that_does_not_answer_is_told_and_so_is_what_would_be_lost(watched: Watched) -> None:
    watched.b.pause()
    try:
        watched.write("orders", 10)
        watched.await_firing("Mm2ClusterUnreachable", cluster="B", **_FLOW)
        watched.await_firing("Mm2RpoExceeded", **_FLOW)
        (alert,) = watched.prometheus.firing("Mm2RpoExceeded")
        assert re.search(r"the last \d+m .*, 10 of them", alert.annotations["description"]), alert
        assert not watched.prometheus.firing(cluster="A")
    finally:
        watched.b.resume()
    watched.await_silence()
    watched.eventually(lambda: watched.seconds_at_risk() == 0)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_z_a_process_that_is_gone_is_told_though_nothing_is_left_to_look_at(watched: Watched) -> None:
    watched.process.kill9(whole_family=True)
    watched.await_firing("Mm2Down")
    watched.await_firing("Mm2Absent")
    assert {alert.name for alert in watched.prometheus.firing()} == {"Mm2Absent", "Mm2Down"}
