"""The measuring tools of the benches: the traffic, the watchers, the bandwidth limit."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from bench.arrivals import Arrivals
from bench.preload import SENTINEL_KEY
from bench.race import create_topic
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.sandbox.kafka import LocalKafka
from mm2.sandbox.process import end, spawn

BENCH = Path(__file__).resolve().parents[3] / "bench"


@pytest.fixture
def target(kafka_b: LocalKafka) -> Iterator[Cluster]:
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": kafka_b.bootstrap}), name="B")
    yield cluster
    cluster.close()


def reported(*command: str) -> dict[str, dict[str, float]]:
    done = subprocess.run([sys.executable, "-P", *command], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def check(code: int | None, output: Path) -> None:
    assert code is None, output.read_text()


@pytest.mark.slow
def test_steady_traffic_is_timed_on_both_clusters(
    kafka_b: LocalKafka, target: Cluster, unique: str, tmp_path: Path
) -> None:
    create_topic(target, unique, 4)
    command = [sys.executable, "-P", str(BENCH / "steady.py"), kafka_b.bootstrap, unique, "4", "2000", "0"]
    output = tmp_path / "steady.log"
    producer = spawn(command, output=output)
    try:
        Arrivals(target, unique, 4).wait(100, 20, lambda: check(producer.poll(), output))
        seen = reported(str(BENCH / "watcher.py"), "4", "2", *[kafka_b.bootstrap, unique] * 2)
        alone = reported(str(BENCH / "watcher.py"), "4", "2", kafka_b.bootstrap, unique)
    finally:
        assert end(producer) == 0, output.read_text()
    assert alone.keys() == {"source"}
    for side in (*seen.values(), *alone.values()):
        # 4,000 in two seconds; on a busy machine fewer, or more when delayed records arrive in that time.
        assert 100 < side["records"] <= 3 * 4000
        assert 0 < side["p50"] <= side["p99"] <= side["p999"] <= side["max"] < 60_000
    assert seen["source"]["records"] == seen["target"]["records"]


def test_with_exactly_once_the_end_is_the_last_record_not_the_last_offset(
    kafka_b: LocalKafka, target: Cluster, unique: str
) -> None:
    create_topic(target, unique, 2)
    arrivals = Arrivals(target, unique, 2, committed=True)
    producer = Producer({"bootstrap.servers": kafka_b.bootstrap, "transactional.id": unique})
    producer.init_transactions()
    for _ in range(3):  # each writes a marker to both partitions
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce(unique, b"one", partition=partition)
        producer.commit_transaction()
    assert arrivals.wait(6, 20, lambda: None).records > 6
    ended = threading.Event()

    def finish() -> None:
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce(unique, b"two", SENTINEL_KEY, partition=partition)
        ended.set()
        producer.commit_transaction()

    finishing = threading.Timer(0.3, finish)
    finishing.start()
    arrivals.wait(8, 20, lambda: None, all_of_them=True)
    assert ended.is_set()
    finishing.join()
    assert arrivals.count() == 8


def test_the_simulated_network_passes_every_byte(
    kafka_pair: tuple[LocalKafka, LocalKafka], target: Cluster, unique: str
) -> None:
    producer = Producer({"bootstrap.servers": kafka_pair[0].bootstrap, "batch.num.messages": 100, "linger.ms": 50})
    source = Cluster(ClientSettings.from_props({"bootstrap.servers": kafka_pair[0].bootstrap}), name="A")
    create_topic(source, unique, 3)
    create_topic(target, f"A.{unique}", 3)
    for number in range(3000):
        producer.produce(unique, b"x" * 1000, partition=number % 3)
    producer.flush()
    command = [str(BENCH / "line.py"), "brokers", *[broker.bootstrap for broker in kafka_pair], unique, f"A.{unique}"]
    seen = reported(*command, "0,2")
    assert int(str(seen["bytes"])) > 2_000_000
    assert Arrivals(target, f"A.{unique}", 3).ends() == {0: 1000, 1: 0, 2: 1000}
    source.close()
