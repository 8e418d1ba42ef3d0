"""Batches that a broker rejects because of one record, or because they exceed the topic's limit."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from mm2.connect.runtime.sending import RecordSender, SenderSettings
from mm2.kafka.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.producer import Producer, RecordMetadata
from mm2.kafka.records.record import Record
from mm2.kafka.settings import ClientSettings
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
