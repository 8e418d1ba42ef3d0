"""Java's consumer and confluent-kafka read the same records at the same offsets on both clusters.

Given a partition whose log starts at offset 10⁹, and a topic that grows from 5 to 8 partitions; keys, values and headers that may be
null or repeated, records of transactions, and timestamps in the past. Validates equality of offset, key, value, headers in their order,
timestamp and timestamp type, and of the end offsets.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TopicPartition
from confluent_kafka import Consumer as ConfluentConsumer

from mm2.kafka.structs import TopicPartition as Mm2TopicPartition
from mm2.sandbox.kafka import LocalKafka, start_pair
from tests.integration.copy.test_preserved_flow import trim
from tests.integration.copy_flow import EARLIEST, create, producer_of
from tests.integration.java_source import run_source
from tests.integration.mirror_process import MirrorProcess, ends, grow, partitions_of, write_config
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.slow

FIRST = 1_000_000_000
Rows = list[list[Any]]
"""Partition, offset, timestamp type, timestamp, key, value and headers of each record, sorted; bytes in base64."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalKafka, LocalKafka]]:
    with start_pair(tmp_path_factory.mktemp("equality")) as brokers:
        yield brokers


def write(broker: LocalKafka, topic: str, partitions: range, count: int) -> None:
    """Records of all kinds, in transactions of which the second is aborted."""
    producer = producer_of(broker, transactional__id=f"{topic}-{partitions.start}")
    producer.init_transactions(30 * PATIENCE)
    headers: Any = [("a", b"1"), ("b", None), ("a", b"2"), ("", b"")]
    for transaction in range(3):
        producer.begin_transaction()
        for number in range(count):
            producer.produce(
                topic,
                None if number % 5 == 0 else b"v%d" % number,
                None if number % 3 == 0 else b"k%d" % number,
                partition=partitions[number % len(partitions)],
                headers=headers if number % 2 else None,
                timestamp=1_600_000_000_000 + number,
            )
        producer.flush(30 * PATIENCE)
        if transaction == 1:
            producer.abort_transaction(30 * PATIENCE)
        else:
            producer.commit_transaction(30 * PATIENCE)


def by_java(broker: LocalKafka, topic: str) -> Rows:
    command = f"{broker.bootstrap}\t{topic}\tread_uncommitted\t\t-1"
    source = Path(__file__).parents[1] / "java" / "ReadTopic.java"
    return sorted(json.loads(line) for line in run_source(source, text=command).splitlines() if line.startswith("["))


def by_confluent(broker: LocalKafka, topic: str) -> Rows:
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "unused", "isolation.level": "read_uncommitted"}
    consumer = ConfluentConsumer({**settings, "enable.partition.eof": True, "enable.auto.commit": False})
    found: Rows = []
    left = partitions_of(broker, topic)
    try:
        consumer.assign([TopicPartition(topic, partition, EARLIEST) for partition in range(left)])
        while left:
            for message in consumer.consume(500, 1):
                if message.error() is not None:
                    left -= 1
                    continue
                kind, timestamp = message.timestamp()
                headers: Any = message.headers() or []
                key: Any = message.key()
                value: Any = message.value()
                row: list[Any] = [message.partition(), message.offset()]
                row += ["CreateTime" if kind == TIMESTAMP_CREATE_TIME else "LogAppendTime", timestamp]
                found.append([*row, text(key), text(value), [[name, text(content)] for name, content in headers]])
    finally:
        consumer.close()
    return sorted(found, key=lambda row: row[:2])


def text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def assert_equal(source: LocalKafka, target: LocalKafka, topic: str, remote: str) -> Rows:
    """The records of both sides, which two clients read alike."""
    wanted = by_java(source, topic)
    assert by_java(target, remote) == wanted
    assert by_confluent(source, topic) == wanted
    assert by_confluent(target, remote) == wanted
    assert ends(target, remote) == ends(source, topic)
    return wanted


def settings(pair: tuple[LocalKafka, LocalKafka], topic: str) -> dict[str, str | None]:
    return {
        "clusters": "A, B",
        "A.bootstrap.servers": pair[0].bootstrap,
        "B.bootstrap.servers": pair[1].bootstrap,
        "A->B.enabled": "true",
        "B->A.enabled": "false",
        "A->B.topics": topic,
        "A->B.preserve.offsets": "true",
    }


@pytest.mark.timeout(int(600 * PATIENCE))
def test_a_topic_that_grows_from_five_to_eight_partitions(pair: tuple[LocalKafka, LocalKafka], tmp_path: Path) -> None:
    source, target = pair
    topic, remote = "growing", "A.growing"
    create(source, topic, 5, retention__ms="-1")
    write(source, topic, range(5), 100)
    process = MirrorProcess(write_config(tmp_path / "mm2.properties", settings(pair, topic)), tmp_path / "log")
    try:
        process.eventually(lambda: ends(target, remote) == ends(source, topic), 180)
        grow(source, topic, 8)
        write(source, topic, range(8), 200)
        process.eventually(lambda: ends(target, remote) == ends(source, topic), 180)
    finally:
        process.clean_up()
    rows = assert_equal(source, target, topic, remote)
    assert {row[0] for row in rows} == set(range(8))
    assert any(row[6] == [["a", "MQ=="], ["b", None], ["a", "Mg=="], ["", ""]] for row in rows)


@pytest.mark.timeout(int(3600 * PATIENCE))
def test_a_log_that_starts_at_a_billion(pair: tuple[LocalKafka, LocalKafka], tmp_path: Path) -> None:
    source, target = pair
    topic, remote = "trimmed", "A.trimmed"
    create(source, topic, 2, retention__ms="-1")
    trim(source, Mm2TopicPartition(topic, 0), FIRST)
    write(source, topic, range(2), 200)
    wanted = ends(source, topic)
    assert wanted[0] > FIRST
    process = MirrorProcess(write_config(tmp_path / "mm2.properties", settings(pair, topic)), tmp_path / "log")
    try:
        process.await_log("Filling offsets before the first record.", timeout_s=180)
        process.eventually(lambda: ends(target, remote) == wanted, 3000)
    finally:
        process.clean_up()
    rows = assert_equal(source, target, topic, remote)
    assert rows[0][:2] == [0, FIRST]
