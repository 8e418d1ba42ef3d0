"""`KafkaBasedLog` and `Producer` on a real broker, with confluent-kafka on the other end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka.admin import AdminClient

from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import TimeoutFailure
from mm2.kafka.producer.producer import Producer
from mm2.kafka.readers.log import KafkaBasedLog, LogRecord
from mm2.kafka.records.record import Record
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import create, producer_of, read_all
from tests.support.waiting import wait_until


@contextmanager
def cluster_of(broker: LocalKafka) -> Iterator[Cluster]:
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": broker.bootstrap}, client_id="log"), name="B")
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def cluster(kafka_b: LocalKafka) -> Iterator[Cluster]:
    with cluster_of(kafka_b) as cluster:
        yield cluster


def test_a_reader_reads_to_the_end_and_then_follows(cluster: Cluster, kafka_b: LocalKafka, unique: str) -> None:
    create(kafka_b, unique, 3)
    for partition, codec in enumerate(["none", "zstd", "lz4"]):
        producer = producer_of(kafka_b, compression__type=codec)
        for i in range(200):
            producer.produce(unique, None if i % 10 == 0 else b"v%d" % i, key=b"k%d" % i, partition=partition)
        assert producer.flush(30) == 0
    seen: list[LogRecord] = []
    log = KafkaBasedLog(cluster, unique, on_record=seen.append, producer=Producer(cluster))
    log.start(30)
    try:
        assert log.partitions == 3
        for partition in range(3):
            mine = [(r.offset, r.key, r.value) for r in seen if r.partition == partition]
            assert mine == [(i, b"k%d" % i, None if i % 10 == 0 else b"v%d" % i) for i in range(200)]
        sent = log.send(b"new", b"record")
        log.read_to_end(30)
        assert (seen[-1].partition, seen[-1].offset, seen[-1].value) == (sent.partition, sent.offset, b"record")
        other = producer_of(kafka_b)
        other.produce(unique, b"from elsewhere", key=b"x")
        other.flush(30)
        wait_until(lambda: seen[-1].value == b"from elsewhere")
    finally:
        log.stop()


def test_markers_at_the_end_do_not_block_a_reader(cluster: Cluster, kafka_b: LocalKafka, unique: str) -> None:
    create(kafka_b, unique)
    producer = producer_of(kafka_b, transactional__id=unique)
    producer.init_transactions(30)
    for value, commit in ((b"kept", True), (b"aborted", False)):
        producer.begin_transaction()
        producer.produce(unique, value)
        if commit:
            producer.commit_transaction(30)
        else:
            producer.flush(30)
            producer.abort_transaction(30)
    for committed, expected in ((True, [b"kept"]), (False, [b"kept", b"aborted"])):
        seen: list[LogRecord] = []
        log = KafkaBasedLog(cluster, unique, on_record=seen.append, read_committed=committed)
        log.start(30)
        log.stop()
        assert [record.value for record in seen] == expected


def test_an_open_transaction_blocks_a_committed_reader(cluster: Cluster, kafka_b: LocalKafka, unique: str) -> None:
    create(kafka_b, unique)
    producer = producer_of(kafka_b, transactional__id=unique)
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(unique, b"open")
    producer.flush(30)
    log = KafkaBasedLog(cluster, unique, on_record=lambda _: None, read_committed=True)
    with pytest.raises(
        TimeoutFailure, match=f"topic {unique} of cluster B was not read to its end: nothing arrived in"
    ):
        log.start(1.0)
    undeterred = KafkaBasedLog(cluster, unique, on_record=lambda _: None, read_committed=True)
    undeterred.start(10.0, to_stable=True)
    with pytest.raises(TimeoutFailure):
        undeterred.read_to_end(0.5)
    producer.abort_transaction(30)
    undeterred.read_to_end(10)
    undeterred.stop()


def test_a_record_that_cannot_be_decoded_does_not_stop_the_log(
    cluster: Cluster, kafka_b: LocalKafka, unique: str
) -> None:
    create(kafka_b, unique)
    seen: list[bytes | None] = []

    def take(record: LogRecord) -> None:
        if record.value == b"bad":
            raise ValueError(record.value)
        seen.append(record.value)

    log = KafkaBasedLog(cluster, unique, on_record=take, producer=Producer(cluster))
    log.start(30)
    log.send_all([(None, b"one"), (None, b"bad"), (None, b"two")])
    log.read_to_end(30)
    log.stop()
    assert seen == [b"one", b"two"]


def test_reading_continues_at_the_previous_position(cluster: Cluster, kafka_b: LocalKafka, unique: str) -> None:
    create(kafka_b, unique, 2)
    producer = Producer(cluster)
    first: list[bytes | None] = []
    log = KafkaBasedLog(cluster, unique, on_record=lambda record: first.append(record.value))
    producer.send(unique, [Record(None, b"a"), Record(None, b"b")], 0)
    log.start(30)
    log.stop()
    assert (first, log.positions) == ([b"a", b"b"], {0: 2, 1: 0})
    producer.send(unique, [Record(None, b"c")], 0)
    producer.send(unique, [Record(None, b"d")], 1)
    later: list[bytes | None] = []
    again = KafkaBasedLog(cluster, unique, on_record=lambda record: later.append(record.value), begin=log.positions)
    again.start(30)
    again.stop()
    assert (sorted(map(str, later)), again.positions) == (["b'c'", "b'd'"], {0: 3, 1: 1})


def test_a_recreated_topic_is_read_from_its_start_even_when_it_is_longer(
    cluster: Cluster, kafka_b: LocalKafka, unique: str
) -> None:
    create(kafka_b, unique)
    producer = producer_of(kafka_b)
    seen: list[bytes | None] = []
    go_on = threading.Event()
    go_on.set()

    def take(record: LogRecord) -> None:
        seen.append(record.value)
        go_on.wait(60)

    log = KafkaBasedLog(cluster, unique, on_record=take)
    log.start(30)
    try:
        go_on.clear()  # the reader does not poll while the topic is replaced
        producer.produce(unique, b"old", partition=0)
        assert producer.flush(30) == 0
        wait_until(lambda: seen == [b"old"])
        admin = AdminClient({"bootstrap.servers": kafka_b.bootstrap})
        admin.delete_topics([unique])[unique].result(30)
        wait_until(lambda: unique not in admin.list_topics(timeout=60).topics, 30)
        create(kafka_b, unique)
        again = producer_of(kafka_b)
        for index in range(5):
            again.produce(unique, b"new-%d" % index, partition=0)
        assert again.flush(30) == 0
        go_on.set()
        wait_until(lambda: seen[1:] == [b"new-%d" % index for index in range(5)], 30)
    finally:
        go_on.set()
        log.stop()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_other_readers_read_what_the_producer_writes(
    cluster: Cluster, kafka_b: LocalKafka, unique: str, codec: str
) -> None:
    create(kafka_b, unique, 4, retention__ms="-1")
    records = [
        Record(b"key-%d" % i, b"v" * (i * 997 % 40_000), (("h", None), ("h", b"%d" % i)), 1_000_000 + i)
        for i in range(60)
    ]
    metadata = Producer(cluster, codec=codec, max_request_bytes=200_000).send(unique, records, timeout_s=30)
    found = read_all(kafka_b, unique, range(4))
    # librdkafka's murmur2_random is Java's partitioner: equal keys go to equal partitions.
    reference = producer_of(kafka_b, partitioner="murmur2_random")
    for sent, record in zip(metadata, records, strict=True):
        (got,) = [row for row in found[sent.partition] if row.key == record.key]
        assert (got.offset, got.timestamp, got.value, got.headers) == (
            sent.offset,
            record.timestamp,
            record.value,
            record.headers,
        )
        reference.produce(unique, b"again", key=record.key)
    assert reference.flush(30) == 0
    again = read_all(kafka_b, unique, range(4))
    for partition, rows in again.items():
        assert {r.key for r in rows if r.value == b"again"} == {r.key for r in found[partition]}
