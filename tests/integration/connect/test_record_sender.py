"""Batches that a broker rejects because of one record or its size, and settings of Java's producer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

from mm2.config.configdef import AbstractConfig
from mm2.config.keys.connector_keys import source_connector_config
from mm2.config.keys.mirror_keys import HEARTBEAT_CONNECTOR
from mm2.config.keys.worker_keys import WorkerConfig
from mm2.config.mirrormaker import MirrorMakerConfig, SourceAndTarget
from mm2.connect.files import FileStreamSourceConnector
from mm2.connect.runtime.clients import ClientProps
from mm2.connect.runtime.exactly_once_settings import transactions_of
from mm2.connect.runtime.sending import RecordSender, SenderSettings
from mm2.connect.runtime.task_building import _producer, _transactional_producer
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure, TimeoutFailure
from mm2.kafka.producer.producer import Producer, RecordMetadata
from mm2.kafka.producer.transactions import TransactionalProducer
from mm2.kafka.readers.reader import BatchReader
from mm2.kafka.records.batch import BatchView
from mm2.kafka.records.record import Record, decode_batch
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import TopicPartition
from mm2.sandbox.kafka import LocalKafka
from tests.integration.connect_reading import create_topic, read_all, read_committed
from tests.support.sent_requests import recorded
from tests.support.waiting import wait_until


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
        assert self.open.wait(60)
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
    # The coordinator answers before it has written its markers to all partitions.
    wait_until(lambda: [message.value() for message in read_committed(kafka_b.bootstrap, unique)] == sent.arrived)
    assert len(sent.arrived) == 100


BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
FILE = {
    "group.id": "g",
    "key.converter": BYTES,
    "value.converter": BYTES,
    **{f"{store}.storage.topic": store for store in ("config", "offset", "status")},
}
#: Settings of a task's producer, from keys of a producer without their prefix.
Origin = Callable[[Mapping[str, str]], dict[str, str]]


def of_a_worker(given: Mapping[str, str]) -> dict[str, str]:
    """From the file of a Connect worker."""
    config = WorkerConfig({"bootstrap.servers": "b:1", **FILE, **{f"producer.{k}": v for k, v in given.items()}})
    return ClientProps(config, None).producer("c", {}, FileStreamSourceConnector, client_id="p")


def of_mirror_maker(given: Mapping[str, str]) -> dict[str, str]:
    """From MirrorMaker's file, for the task that emits heartbeats."""
    file = {"clusters": "A,B", "A.bootstrap.servers": "a:1", "B.bootstrap.servers": "b:1", "A->B.enabled": "true"}
    config = MirrorMakerConfig({**file, **{f"B.producer.{key}": value for key, value in given.items()}})
    pair = SourceAndTarget("A", "B")
    connector = config.connector_config(pair, HEARTBEAT_CONNECTOR)
    clients = ClientProps(WorkerConfig(config.worker_config(pair)), None)
    return clients.producer(connector["name"], connector, FileStreamSourceConnector, client_id="p")


origins = pytest.mark.parametrize("origin", [of_a_worker, of_mirror_maker])


def sender_with(cluster: Cluster, props: Mapping[str, str], is_ours: Callable[[], bool] = lambda: True) -> RecordSender:
    return RecordSender(cluster, _producer(cluster, props), SenderSettings.of(props), name="sender", is_ours=is_ours)


def sent_with(cluster: Cluster, topic: str, props: Mapping[str, str], records: Sequence[Record]) -> Sent:
    """Send records to partition 0 by a producer with these settings; all are queued before the first is written."""
    gate, sent = Gate(), Sent()
    sender = sender_with(cluster, props, gate)
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


@origins
def test_batch_size_limits_the_batches(kafka_b: LocalKafka, cluster: Cluster, unique: str, origin: Origin) -> None:
    records = [Record(None, b"%d" % number * 1000) for number in range(10)]
    counts = {}
    for name, given in (("default", {}), ("limited", {"batch.size": "2500"}), ("none", {"batch.size": "0"})):
        create_topic(kafka_b.bootstrap, f"{unique}-{name}", 1)
        sent_with(cluster, f"{unique}-{name}", origin(given), records)
        counts[name] = [len(decode_batch(view)) for view in batches(cluster, f"{unique}-{name}")]
    # The first records may be written alone, before the others are queued.
    assert max(counts["default"]) > 2
    assert max(counts["limited"]) == 2
    assert counts["none"] == [1] * 10


@origins
@pytest.mark.parametrize(
    "limit", [{"retries": "0"}, {"delivery.timeout.ms": "1"}, {}], ids=["retries", "delivery.timeout.ms", "default"]
)
def test_a_temporary_error_is_retried_within_the_configured_limits(
    kafka_b: LocalKafka, cluster: Cluster, unique: str, origin: Origin, limit: dict[str, str]
) -> None:
    """Connect's defaults have no limit."""
    create_topic(kafka_b.bootstrap, unique, 1)
    sender, sent = sender_with(cluster, origin({})), Sent()
    sent.send(sender, unique, Record(None, b"a"))
    assert sender.flush(30)
    sender._settings = SenderSettings.of(origin(limit))
    assert Admin(cluster).delete_topics([unique])[unique] is None
    sent.send(sender, unique, Record(None, b"b"))  # it is retried, since the topic may be created again
    assert sender.flush(30 if limit else 1) is bool(limit)
    sender.close(0)
    if limit:
        assert list(sent.failed) == [b"b"]
        assert isinstance(failure := sent.failed[b"b"], BrokerFailure)
        assert failure.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@origins
def test_acks_are_those_of_the_requests(kafka_b: LocalKafka, cluster: Cluster, unique: str, origin: Origin) -> None:
    create_topic(kafka_b.bootstrap, unique, 1)
    for given, acks in (({}, -1), ({"acks": "1"}, 1), ({"acks": "0"}, 0)):
        with recorded() as requests:
            sent_with(cluster, unique, origin(given), [Record(None, b"a")])
        assert [request.acks for request in requests.of(ProduceRequest)] == [acks]


@origins
def test_a_record_larger_than_max_request_size_is_rejected(
    kafka_b: LocalKafka, cluster: Cluster, unique: str, origin: Origin
) -> None:
    create_topic(kafka_b.bootstrap, unique, 1)
    sent_with(cluster, unique, origin({}), [Record(None, bytes(2000))])
    with pytest.raises(BrokerFailure, match=r"more than max\.request\.size, which is 1000"):
        sent_with(cluster, unique, origin({"max.request.size": "1000"}), [Record(None, bytes(2000))])


@origins
def test_a_full_buffer_blocks_for_max_block_ms(
    kafka_b: LocalKafka, cluster: Cluster, unique: str, origin: Origin
) -> None:
    """Connect's default blocks without a limit."""
    create_topic(kafka_b.bootstrap, unique, 1)
    for given, queued in (({}, 3), ({"buffer.memory": "2500"}, 2)):
        gate, sent, given_up = Gate(), Sent(), threading.Event()
        sender = sender_with(cluster, origin({**given, "max.block.ms": "50"}), gate)
        for number in range(queued):
            sent.send(sender, unique, Record(None, b"%d" % number * 1000))
        if given:
            with pytest.raises(TimeoutFailure, match="there is no room in the buffer"):
                sent.send(sender, unique, Record(None, bytes(1000)))
            sender._settings = SenderSettings.of(origin(given))
            threading.Timer(1, given_up.set).start()
            began_s = time.monotonic()
            with pytest.raises(TimeoutFailure, match="there is no room in the buffer"):
                sender.send(unique, 0, Record(None, bytes(1000)), lambda *_: None, give_up=given_up.is_set)
            assert time.monotonic() - began_s >= 0.9, "blocked until it was given up"
        gate.open.set()
        assert sender.flush(30)
        sender.close(5)


@origins
def test_records_are_compressed_by_compression_type(
    kafka_b: LocalKafka, cluster: Cluster, unique: str, origin: Origin
) -> None:
    for codec, number in (("none", 0), ("gzip", 1), ("snappy", 2), ("lz4", 3), ("zstd", 4)):
        create_topic(kafka_b.bootstrap, f"{unique}-{codec}", 1)
        given = {} if codec == "none" else {"compression.type": codec}
        sent_with(cluster, f"{unique}-{codec}", origin(given), [Record(None, bytes(1000))])
        (view,) = batches(cluster, f"{unique}-{codec}")
        assert view.header is not None
        assert view.header.codec == number


@pytest.mark.parametrize(("age", "used"), [({}, {0}), ({"metadata.max.age.ms": "1"}, {0, 1})], ids=["default", "short"])
def test_new_partitions_are_written_to_after_metadata_max_age_ms(
    kafka_b: LocalKafka, unique: str, age: dict[str, str], used: set[int]
) -> None:
    create_topic(kafka_b.bootstrap, unique, 1)
    props = {**of_a_worker(age), "bootstrap.servers": kafka_b.bootstrap}
    cluster = Cluster(ClientSettings.from_props(props), name="B")
    sender, partitions = sender_with(cluster, props), set[int]()

    def send() -> None:
        sender.send(unique, None, Record(None, b"v"), lambda sent, _: partitions.add(sent.partition if sent else -1))
        assert sender.flush(30)

    send()
    assert Admin(cluster).create_partitions({unique: 2})[unique] is None
    cluster.invalidate(unique)
    wait_until(lambda: len(cluster.metadata([unique]).topics[unique].partitions) == 2)
    for _ in range(10):
        time.sleep(0.002)
        send()
    assert partitions == used
    sender.close(5)
    cluster.close()


def test_the_coordinator_gets_transaction_timeout_ms(cluster: Cluster, unique: str) -> None:
    props = {"name": "c", "connector.class": "X"}
    connector, requested = AbstractConfig(source_connector_config(props), props), []
    for given in ({}, {"transaction.timeout.ms": "7654"}):
        producer_props = of_a_worker(given)
        boundaries = transactions_of(connector, WorkerConfig({"bootstrap.servers": "b:1", **FILE}), producer_props)
        producer = _transactional_producer(cluster, producer_props, unique, boundaries)
        with recorded() as requests:
            producer.init()
        producer.close()
        requested.append(requests.of(InitProducerIdRequest)[-1].transaction_timeout_ms)
    assert requested == [60_000, 7654]


@origins
def test_the_level_of_the_codec_changes_the_size_of_a_batch(
    kafka_b: LocalKafka, cluster: Cluster, unique: str, origin: Origin
) -> None:
    text = " ".join(f"{number * 7919 % 10_007} apples" for number in range(5_000)).encode()
    for codec, low, high in (("gzip", "1", "9"), ("zstd", "-50", "19")):
        sizes = []
        for level in (low, high):
            topic = f"{unique}-{codec}{level.replace('-', 'm')}"
            create_topic(kafka_b.bootstrap, topic, 1)
            given = {"compression.type": codec, f"compression.{codec}.level": level}
            sent_with(cluster, topic, origin(given), [Record(None, text)])
            (view,) = batches(cluster, topic)
            assert decode_batch(view)[0].value == text
            sizes.append(len(view.data))
        assert sizes[0] > sizes[1]


@pytest.mark.parametrize(("ignored", "partitions"), [("false", 1), ("true", 4)])
def test_keys_choose_the_partition_unless_they_are_ignored(
    kafka_b: LocalKafka, cluster: Cluster, unique: str, ignored: str, partitions: int
) -> None:
    create_topic(kafka_b.bootstrap, unique, 4)
    sender = sender_with(cluster, of_a_worker({"partitioner.ignore.keys": ignored, "batch.size": "0"}))
    used: set[int] = set()
    for _ in range(40):
        sender.send(unique, None, Record(b"k", b"v"), lambda sent, _failure: used.add(sent.partition if sent else -1))
        assert sender.flush(30)
    sender.close(5)
    assert len(used) == partitions
    assert -1 not in used
