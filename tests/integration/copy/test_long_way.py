"""A target with a high latency: the TCP window of one connection does not limit the flow."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mm2.copy.driver.engine import CopyEngine
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import Flow, producer_of
from tests.integration.spark_workers import workers
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

_PARTITIONS = 6


@pytest.fixture
def far(tmp_path: Path) -> Iterator[tuple[LocalKafka, Proxy]]:
    listeners = {"PLAINTEXT": "PLAINTEXT", "PROXIED": "PLAINTEXT"}
    with (
        LocalKafka("far", tmp_path, listeners=listeners, proxied=["PROXIED"]) as broker,
        Proxy.before(broker) as proxy,
    ):
        yield broker, proxy


@pytest.mark.slow
def test_partitions_have_separate_connections_to_a_broker_with_high_latency(
    kafka_a: LocalKafka, far: tuple[LocalKafka, Proxy], unique: str
) -> None:
    target, proxy = far
    engine = CopyEngine({})
    engine.start()
    try:
        flow = Flow(engine, kafka_a, target, unique)
        topic = flow.topic(partitions=_PARTITIONS)
        producer = producer_of(kafka_a)
        for partition in range(_PARTITIONS):
            for number in range(100):
                producer.produce(topic, b"%d" % number * 100, partition=partition)
        producer.flush()
        proxy.delay(round_trip_ms=40)
        spec = flow.spec(
            topic,
            partitions=_PARTITIONS,
            target=ClientSettings.from_props({"bootstrap.servers": proxy.address}, client_id="copy-target"),
        )
        with flow.copying(spec, {part.source: 0 for part in spec.partitions}) as job:
            flow.wait_until_copied(job, spec)
            wait_until(lambda: _connections_to(proxy) >= _PARTITIONS)
        for partition in range(_PARTITIONS):
            flow.assert_equal(topic, partition)
    finally:
        engine.stop()


def _connections_to(proxy: Proxy) -> int:
    """The maximum number of connections of one Spark process."""
    port = int(proxy.address.rpartition(":")[2])
    return max(
        (sum(bool(c.raddr) and c.raddr.port == port for c in worker.net_connections("tcp")) for worker in workers()),
        default=0,
    )
