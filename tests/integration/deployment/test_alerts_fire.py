"""Alerts on a real flow: Prometheus scrapes a process between two brokers while faults are injected.

A healthy flow fires no alert. Records that were blocked for a minute have a latency of a minute, which may keep
Mm2LatencyHigh pending for its range of five minutes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import httpx
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import ResourceType

from mm2.sandbox.kafka import LocalKafka, start_pair
from mm2.sandbox.ports import free_ports
from tests.faults.environment import Topics
from tests.integration.copy_flow import alter, producer_of
from tests.integration.mirror_process import MirrorProcess, write_config
from tests.integration.prometheus_server import Prometheus, prometheus
from tests.support.waiting import PATIENCE, wait_until
from tests.unit.deployment_files.test_grafana import BOARDS, queries, resolved

_FLOW = {"source": "A", "target": "B"}
#: The longest `for` of the tested alerts, with a margin for a busy machine.
_PATIENCE_S = 300.0
# A test and its fixture wait at most five times; a missing condition fails its own wait before this limit.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(int(6 * _PATIENCE_S * PATIENCE))]


#: Dashboard panels without data for a healthy flow without certificates and verification.
NOTHING_TO_SHOW = frozenset(
    {
        *(f"{file.stem}: annotation Alerts" for file in BOARDS),
        "flows: Alerts: A",
        "flows: Re-encoded batches, by reason: A",
        "partitions: Partitions that do not go on: A",
        "partitions: Gaps by reason: A",
        "partitions: Differences found by verify: A",
        "partitions: Not verified yet, the ten longest: A",
        "partitions: Records compared by verify: A",
        "groups: Without a place, by reason: A",
        "groups: Where each group is, the fifty that are furthest behind: D",  # not exported without sync.group.offsets.enabled
        "workers: Certificates: A",
    }
)


@dataclass(frozen=True)
class Watched:
    a: LocalKafka
    b: LocalKafka
    process: MirrorProcess
    prometheus: Prometheus
    overview: str

    def write(self, topic: str, count: int = 1, size: int = 100) -> None:
        producer = producer_of(self.a)
        for _ in range(count):
            producer.produce(topic, b"x" * size)
        assert producer.flush(30) == 0

    def seconds_at_risk(self) -> float | None:
        return self.prometheus.value("max(mm2_flow_seconds_at_risk)")

    def eventually(self, condition: Callable[[], object]) -> None:
        wait_until(condition, _PATIENCE_S, detail=self._all_that_is_said)

    def _all_that_is_said(self) -> str:
        try:
            seen = httpx.get(self.overview, timeout=30, trust_env=False).text
        except httpx.HTTPError as error:
            seen = repr(error)
        states = self.prometheus.query("mm2_partition_state == 1")
        return "\n".join(map(str, (self.prometheus.alerts(), states, seen, self.process.tail())))

    def await_firing(self, name: str, **labels: str) -> None:
        self.eventually(lambda: self.prometheus.firing(name, **labels))

    def await_silence(self) -> None:
        self.eventually(lambda: not self.prometheus.firing())


def _commit(broker: LocalKafka, group: str, offset: TopicPartition) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, "enable.auto.commit": False})
    try:
        consumer.commit(offsets=[offset], asynchronous=False)
    finally:
        consumer.close()


def unanswered(watched: Watched, asked: Mapping[str, str]) -> set[str]:
    """Dashboard panels for which Prometheus has no series."""
    return {panel for panel, expression in asked.items() if not watched.prometheus.query(resolved(expression))}


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
                # The config sync would restore the source's max.message.bytes every ten minutes.
                "A->B.sync.topic.configs.enabled": "false",
                "B->A.emit.heartbeats.enabled": "false",
                "listeners": f"http://127.0.0.1:{port}",
            },
        )
        producer = producer_of(a)
        producer.produce("orders", b"the first", partition=0)
        assert producer.flush(30) == 0
        _commit(a, "billing", TopicPartition("orders", 0, 1))
        process = MirrorProcess(file, folder / "mirror.log", "B")
        stack.callback(process.clean_up)
        server = stack.enter_context(prometheus(folder / "prometheus", [f"127.0.0.1:{port}"], "1s"))
        made = Watched(a, b, process, server, f"http://127.0.0.1:{port}/overview")
        made.write("orders", 1000)
        made.eventually(lambda: server.value("sum(mm2_copied_records_total)") == 1001)
        yield made


def test_a_healthy_flow_fires_no_alert_and_every_panel_query_works(watched: Watched) -> None:
    watched.eventually(lambda: not watched.prometheus.alerts())  # and no alert is pending, once it has started
    asked = {panel: expression for file in BOARDS for panel, expression in queries(file)}
    # Also tests the label matching: a panel without data on a healthy flow has none during an incident either.
    wait_until(
        lambda: unanswered(watched, asked) <= NOTHING_TO_SHOW,
        _PATIENCE_S,
        detail=lambda: sorted(unanswered(watched, asked) - NOTHING_TO_SHOW),
    )
    for _ in range(20):
        time.sleep(1)
        assert watched.prometheus.firing() == []
    watched.eventually(lambda: watched.seconds_at_risk() == 0)


def test_a_record_that_is_too_large_fires_an_alert_by_topic_until_the_limit_is_raised(watched: Watched) -> None:
    alter(watched.b, ResourceType.TOPIC, "A.large", "max.message.bytes", "2000")
    watched.write("large", size=5000)
    watched.await_firing("Mm2RecordTooLarge", topic="large", **_FLOW)
    (alert,) = watched.prometheus.firing("Mm2RecordTooLarge")
    assert "A->B: a record of large is too large for B" in alert.annotations["summary"]
    alter(watched.b, ResourceType.TOPIC, "A.large", "max.message.bytes", "1048588")
    watched.await_silence()


def test_an_unresponsive_target_fires_an_alert_and_so_does_the_possible_loss(watched: Watched) -> None:
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


def test_z_a_dead_process_fires_an_alert_without_any_series(watched: Watched) -> None:
    watched.process.kill9(whole_family=True)
    watched.await_firing("Mm2Down")
    watched.await_firing("Mm2Absent")
    assert {alert.name for alert in watched.prometheus.firing()} == {"Mm2Absent", "Mm2Down"}
