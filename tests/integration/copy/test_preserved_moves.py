"""Consumers move from A to B with nothing but another bootstrap address: none skips a record, none reads one again.

Given a flow with `preserve.offsets` and topics of equal names, whose first partition has a trimmed log and whose partitions have
gaps of transactions; the flow copies the records of aborted transactions (read_uncommitted) or does not (read_committed). A Java
consumer, a kafka-python consumer and a Spark Structured Streaming job with a checkpoint read a part of the topic on A and stop.
When more has been written to A, the flow has copied it, and the committed offsets of the groups are the same on B, the same
programs continue with the address of B. Validates that each of them has read every record of A once, at its offset on A.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonTopicPartition
from kafka.structs import OffsetAndMetadata

from mm2.kafka.structs import TopicPartition
from mm2.sandbox.kafka import LocalKafka, start_pair
from tests.integration.copy.test_preserved_flow import trim
from tests.integration.copy_flow import create, delete_before, producer_of, read_all
from tests.integration.java_source import run_source
from tests.integration.mirror_flow import committed
from tests.integration.mirror_process import MirrorProcess, ends, write_config
from tests.support.spark_kafka import spark_kafka_jars
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(int(900 * PATIENCE))]

TOPIC = "orders"
FIRST = 120_000
PARTITIONS = 2
READ_ON_A = 100
TO_THE_END = -1

Offsets = list[tuple[int, int]]
"""Partition and offset of each record, in the order in which they were read."""


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[LocalKafka, LocalKafka]]:
    with start_pair(tmp_path / "kafka", heap="384m") as brokers:
        yield brokers


def write_transactions(broker: LocalKafka, count: int) -> None:
    """Transactions of three records in each partition, of which every third is aborted."""
    producer = producer_of(broker, transactional__id="shop")
    producer.init_transactions(30 * PATIENCE)
    for number in range(count):
        producer.begin_transaction()
        for index in range(3 * PARTITIONS):
            producer.produce(TOPIC, b"%d-%d" % (number, index), b"k", partition=index % PARTITIONS)
        producer.flush(30 * PATIENCE)
        if number % 3 == 1:
            producer.abort_transaction(30 * PATIENCE)
        else:
            producer.commit_transaction(30 * PATIENCE)


def visible(broker: LocalKafka, isolation: str) -> Offsets:
    found = read_all(broker, TOPIC, range(PARTITIONS), isolation=isolation)
    return sorted((partition, record.offset) for partition, rows in found.items() for record in rows)


def by_java(broker: LocalKafka, isolation: str, count: int) -> Offsets:
    command = "\t".join((broker.bootstrap, TOPIC, isolation, "java", str(count)))
    source = Path(__file__).parents[1] / "java" / "ReadTopic.java"
    rows = [json.loads(line) for line in run_source(source, text=command).splitlines() if line.startswith("[")]
    return [(row[0], row[1]) for row in rows]


def by_python(broker: LocalKafka, isolation: str, count: int) -> Offsets:
    """Read so many records and commit the offsets after them; all that there are if the number is negative."""
    consumer = KafkaConsumer(
        TOPIC,
        bootstrap_servers=broker.bootstrap,
        group_id="python",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level=isolation,
    )
    found: Offsets = []
    done: dict[PythonTopicPartition, OffsetAndMetadata] = {}
    try:
        quiet = 0
        while len(found) != count and quiet < 5:
            polled: dict[Any, Any] = consumer.poll(2_000)
            quiet = 0 if polled or not consumer.assignment() else quiet + 1
            for where, records in polled.items():
                for record in records[: None if count < 0 else count - len(found)]:
                    found.append((record.partition, record.offset))
                    done[where] = OffsetAndMetadata(record.offset + 1, "", -1)
        consumer.commit(done)
        return found
    finally:
        consumer.close(autocommit=False)


class SparkJob:
    """A Spark Structured Streaming job with a checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._batches: list[int] = []

    def run(self, broker: LocalKafka, isolation: str) -> Offsets:
        """Read to the ends of the topic; returns what the job has written since its first run."""
        program = Path(__file__).parents[1].joinpath("spark_stream.py")
        command = [
            sys.executable,
            str(program),
            spark_kafka_jars(),
            broker.bootstrap,
            TOPIC,
            isolation,
            str(self._folder),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4_000:]
        self._batches.append(len(list((self._folder / "checkpoint" / "commits").glob("[0-9]*"))))
        lines = [line for path in (self._folder / "out").glob("*.json") for line in path.read_text().splitlines()]
        return [(row["partition"], row["offset"]) for row in map(json.loads, lines)]

    @property
    def batches(self) -> list[int]:
        """Micro-batches that were completed after each run."""
        return self._batches


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_consumers_continue_on_the_target_where_they_stopped(
    pair: tuple[LocalKafka, LocalKafka], isolation: str, tmp_path: Path
) -> None:
    source, target = pair
    create(source, TOPIC, PARTITIONS, retention__ms="-1")
    trim(source, TopicPartition(TOPIC, 0), FIRST)
    write_transactions(source, 40)
    delete_before(source, TOPIC, 50, partition=1)
    props: dict[str, str | None] = {
        "clusters": "A, B",
        "A.bootstrap.servers": source.bootstrap,
        "B.bootstrap.servers": target.bootstrap,
        "A->B.enabled": "true",
        "B->A.enabled": "false",
        "A->B.topics": TOPIC,
        "A->B.groups": "java, python",
        "A->B.preserve.offsets": "true",
        "A->B.sync.group.offsets.enabled": "true",
        "A->B.sync.group.offsets.interval.seconds": "1",
        "A.consumer.isolation.level": isolation,
        "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
    }
    process = MirrorProcess(write_config(tmp_path / "mm2.properties", props), tmp_path / "log")
    spark = SparkJob(tmp_path / "spark")
    try:
        on_a = {"java": by_java(source, isolation, READ_ON_A), "python": by_python(source, isolation, READ_ON_A)}
        assert {name: len(rows) for name, rows in on_a.items()} == {"java": READ_ON_A, "python": READ_ON_A}
        first_run = spark.run(source, isolation)
        assert sorted(first_run) == visible(source, isolation)
        write_transactions(source, 40)
        process.eventually(lambda: ends(target, TOPIC) == ends(source, TOPIC), 300)
        for group, rows in on_a.items():
            for partition in {partition for partition, _ in rows}:
                offset = committed(source, group, TOPIC, partition)
                assert offset == max(offset for at, offset in rows if at == partition) + 1
                process.eventually(lambda: committed(target, group, TOPIC, partition) == offset)  # noqa: B023
    finally:
        process.clean_up()
    expected = visible(source, isolation)
    assert expected[0] == (0, FIRST)
    assert visible(target, isolation) == expected
    source.stop()
    on_b = {"java": by_java(target, isolation, TO_THE_END), "python": by_python(target, isolation, TO_THE_END)}
    for name, rows in on_b.items():
        assert sorted(on_a[name] + rows) == expected, name
    assert sorted(spark.run(target, isolation)) == expected
    assert 1 < spark.batches[0] < spark.batches[1], "both runs have several batches"
