"""Batches that a broker rejects because of one record or its size, and settings of Java's producer."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence

import pytest

from mm2.connect.runtime.sending import RecordSender, SenderSettings
from mm2.connect.runtime.task_building import _producer
from mm2.kafka.admin import Admin
from mm2.kafka.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.producer import Producer, RecordMetadata
from mm2.kafka.reader import BatchReader
from mm2.kafka.records.batch import BatchView
from mm2.kafka.records.record import Record, decode_batch
from mm2.kafka.settings import ClientSettings
from mm2.kafka.structs import TopicPartition
from mm2.kafka.transactions import TransactionalProducer
from mm2.sandbox.kafka import LocalKafka
from tests.integration.connect_reading import create_topic, read_all, read_committed


@pytest.fixture
def cluster(kafka_b: LocalKafka) -> Iterator[Cluster]:
    opened = Cluster(ClientSettings.from_props({"bootstrap.servers": kafka_b.bootstrap}), name="B")
    yield opened
    opened.close()


class Sent:
    """The results of records, by value."""

    def __init__(self) -> None:
        self.arrived: list[bytes] = []
        self.failed: dict[bytes, KafkaFailure] = {}

    def send(self, sender: RecordSender, topic: str, record: Record) -> None:
        value = record.value or b""

        def on_sent(metadata: RecordMetadata | None, failure: KafkaFailure | None) -> None:
            if failure is not None:
                self.failed[value] = failure
            else:
                self.arrived.append(value)

        sender.send(topic, 0, record, on_sent)


class Gate:
    """Block the sender's thread until all records of one batch are queued."""

    def __init__(self) -> None:
        self.open = threading.Event()

    def __call__(self) -> bool:
        assert self.open.wait(20)
        return True


def test_a_record_without_a_key_for_a_compacted_topic_does_not_fail_others(
    kafka_b: LocalKafka, cluster: Cluster, unique: str
) -> None:
    create_topic(kafka_b.bootstrap, unique, 1, **{"cleanup.policy": "compact"})
    gate, sent = Gate(), Sent()
    sender = RecordSender(cluster, Producer(cluster), SenderSettings(), name="sender", is_ours=gate)
    for number in range(20):
        sent.send(sender, unique, Record(None if number == 7 else b"%d" % number, b"%d" % number))
    gate.open.set()
    assert sender.flush(30)
    sender.close(5)
    assert list(sent.failed) == [b"7"]
    assert sent.arrived == [b"%d" % number for number in range(20) if number != 7]
    assert [message.value() for message in read_all(kafka_b.bootstrap, unique)] == sent.arrived


def test_a_record_too_large_for_its_topic_does_not_fail_others(
    kafka_b: LocalKafka, cluster: Cluster, unique: str
) -> None:
    create_topic(kafka_b.bootstrap, unique, 1, **{"max.message.bytes": "20000"})
    gate, sent = Gate(), Sent()
    sender = RecordSender(cluster, Producer(cluster), SenderSettings(), name="sender", is_ours=gate)
    for number in range(40):
        sent.send(sender, unique, Record(b"k", b"%d" % number * (30_000 if number == 7 else 1000)))
    gate.open.set()
    assert sender.flush(30)
    sender.close(5)
    assert list(sent.failed) == [b"7" * 30_000]
    assert [message.value() for message in read_all(kafka_b.bootstrap, unique)] == sent.arrived
    assert len(sent.arrived) == 39


def test_a_transaction_continues_in_smaller_batches_when_the_topic_rejects_larger_ones(
    kafka_b: LocalKafka, cluster: Cluster, unique: str
) -> None:
    create_topic(kafka_b.bootstrap, unique, 1, **{"max.message.bytes": "20000"})
    gate, sent = Gate(), Sent()
    producer = TransactionalProducer(cluster, unique)
    producer.init()
    sender = RecordSender(cluster, producer, SenderSettings(), name="sender", transactional=True, is_ours=gate)
    producer.begin()
    for number in range(100):
        sent.send(sender, unique, Record(b"k", b"%d " % number * 500))
    gate.open.set()
    assert sender.flush(30)
    assert not sent.failed
    producer.commit()
    sender.close(5)
    assert [message.value() for message in read_committed(kafka_b.bootstrap, unique)] == sent.arrived
    assert len(sent.arrived) == 100


def sent_with(cluster: Cluster, topic: str, given: Mapping[str, str], records: Sequence[Record]) -> Sent:
    """Send records to partition 0 by a producer with these settings; all are queued before the first is written."""
    gate, sent = Gate(), Sent()
    sender = RecordSender(cluster, _producer(cluster, given), SenderSettings.of(given), name="sender", is_ours=gate)
    for record in records:
        sent.send(sender, topic, record)
    gate.open.set()
    assert sender.flush(30)
    sender.close(5)
    return sent


def batches(cluster: Cluster, topic: str) -> list[BatchView]:
    """The record batches in partition 0."""
    metadata = cluster.metadata([topic])
    reader = BatchReader(cluster, cluster.leader(topic, 0), metadata.topics)
    reader.positions[TopicPartition(topic, 0)] = 0
    try:
        return [batch.view for batch in reader.poll(max_wait_ms=1000)]
    finally:
        reader.close()


def test_batch_size_limits_the_batches(kafka_b: LocalKafka, cluster: Cluster, unique: str) -> None:
    records = [Record(None, b"%d" % number * 1000) for number in range(10)]
    counts = {}
    for name, given in (("default", {}), ("limited", {"batch.size": "2500"}), ("none", {"batch.size": "0"})):
        create_topic(kafka_b.bootstrap, f"{unique}-{name}", 1)
        sent_with(cluster, f"{unique}-{name}", given, records)
        counts[name] = [len(decode_batch(view)) for view in batches(cluster, f"{unique}-{name}")]
    # The first record may be written alone, before the others are queued.
    assert max(counts["default"]) >= 9
    assert max(counts["limited"]) == 2
    assert counts["none"] == [1] * 10


def test_without_retries_a_temporary_error_is_final(kafka_b: LocalKafka, cluster: Cluster, unique: str) -> None:
    create_topic(kafka_b.bootstrap, unique, 1)
    sender = RecordSender(cluster, Producer(cluster), SenderSettings.of({"retries": "0"}), name="sender")
    sent = Sent()
    sent.send(sender, unique, Record(None, b"a"))
    assert sender.flush(30)
    assert Admin(cluster).delete_topics([unique])[unique] is None
    sent.send(sender, unique, Record(None, b"b"))  # with retries it would wait for the topic to be created again
    assert sender.flush(30)
    sender.close(5)
    assert list(sent.failed) == [b"b"]
    assert isinstance(failure := sent.failed[b"b"], BrokerFailure)
    assert failure.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_level_of_the_codec_changes_the_size_of_a_batch(kafka_b: LocalKafka, cluster: Cluster, unique: str) -> None:
    text = " ".join(f"{number * 7919 % 10_007} apples" for number in range(5_000)).encode()
    for codec, low, high in (("gzip", "1", "9"), ("zstd", "-50", "19")):
        sizes = []
        for level in (low, high):
            topic = f"{unique}-{codec}{level.replace('-', 'm')}"
            create_topic(kafka_b.bootstrap, topic, 1)
            given = {"compression.type": codec, f"compression.{codec}.level": level}
            sent_with(cluster, topic, given, [Record(None, text)])
            (view,) = batches(cluster, topic)
            assert decode_batch(view)[0].value == text
            sizes.append(len(view.data))
        assert sizes[0] > sizes[1]


@pytest.mark.parametrize(("ignored", "partitions"), [("false", 1), ("true", 4)])
def test_keys_choose_the_partition_unless_they_are_ignored(
    kafka_b: LocalKafka, cluster: Cluster, unique: str, ignored: str, partitions: int
) -> None:
    create_topic(kafka_b.bootstrap, unique, 4)
    given = {"partitioner.ignore.keys": ignored, "batch.size": "0"}
    sender = RecordSender(cluster, _producer(cluster, given), SenderSettings.of(given), name="sender")
    used: set[int] = set()
    for _ in range(40):
        sender.send(unique, None, Record(b"k", b"v"), lambda sent, _failure: used.add(sent.partition if sent else -1))
        assert sender.flush(30)
    sender.close(5)
    assert len(used) == partitions
    assert -1 not in used
