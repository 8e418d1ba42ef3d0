"""The transactional producer on real brokers, in both protocols, checked with another client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import BrokerFailure, DisconnectedFailure, ProducerFenced
from mm2.kafka.producer.transactions import TransactionalProducer, TransactionCoordinatorClient
from mm2.kafka.records.record import Record
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import LATEST, TopicPartition
from mm2.sandbox.kafka import LocalKafka
from tests.integration.connect_reading import create_topic, read_committed
from tests.support.waiting import wait_until

PROTOCOLS = pytest.mark.parametrize("implicit", [True, False], ids=["KIP-890", "KIP-98"])


@pytest.fixture
def cluster(kafka_b: LocalKafka) -> Iterator[Cluster]:
    opened = Cluster(ClientSettings.from_props({"bootstrap.servers": kafka_b.bootstrap}), name="B")
    yield opened
    opened.close()


@pytest.fixture
def topic(kafka_b: LocalKafka, unique: str) -> str:
    create_topic(kafka_b.bootstrap, unique, 2)
    return unique


@pytest.fixture
def _protocol(implicit: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers with the new protocol serve clients of the old one; the test marked slow has a broker without the new."""
    if not implicit:
        monkeypatch.setattr(TransactionCoordinatorClient, "_transaction_version", lambda *_: 1)


def producer(cluster: Cluster, name: str, **options: Any) -> TransactionalProducer:
    made = TransactionalProducer(cluster, name, **options)
    made.init()
    return made


def numbers(*values: int) -> list[Record]:
    return [Record(b"k", str(value).encode()) for value in values]


def seen(kafka: LocalKafka, topic: str) -> list[int]:
    """All committed records. The coordinator reports a transaction as ended before the partitions have its markers, so readers get
    the records a moment later."""
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": kafka.bootstrap}), name="reader")
    latest = {TopicPartition(topic, partition): LATEST for partition in (0, 1)}
    try:
        admin = Admin(cluster)
        wait_until(lambda: admin.list_offsets(latest, "read_committed") == admin.list_offsets(latest))
    finally:
        cluster.close()
    return sorted(int(message.value()) for message in read_committed(kafka.bootstrap, topic))


def use(kafka: LocalKafka, cluster: Cluster, topic: str) -> None:
    """Commits, aborts, empty transactions, many batches in a row."""
    writer = producer(cluster, topic)
    for begun in range(5):
        writer.begin()
        writer.send(topic, numbers(begun * 10, begun * 10 + 1), 0)
        writer.send(topic, numbers(begun * 10 + 2), 1)
        writer.send(topic, numbers(begun * 10 + 3), 0)
        if begun == 2:
            writer.abort()
        else:
            writer.commit()
        writer.begin()
        writer.abort()
        writer.begin()
        writer.commit()
    assert seen(kafka, topic) == [n + m for n in (0, 10, 30, 40) for m in range(4)]


@PROTOCOLS
@pytest.mark.usefixtures("_protocol")
def test_committed_records_are_visible_and_aborted_ones_are_not(
    kafka_b: LocalKafka, cluster: Cluster, topic: str, implicit: bool
) -> None:
    use(kafka_b, cluster, topic)


@pytest.mark.slow
def test_a_broker_without_the_new_protocol_gets_the_old_one(
    tmp_path_factory: pytest.TempPathFactory, unique: str
) -> None:
    folder = tmp_path_factory.mktemp("old")
    with LocalKafka("old", folder, format_args=["--feature", "transaction.version=1"]) as old:
        create_topic(old.bootstrap, unique, 2)
        cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": old.bootstrap}), name="old")
        client = TransactionCoordinatorClient(cluster, "t")
        client.init_producer_id(60_000)
        assert not client.implicit_partitions
        use(old, cluster, unique)
        cluster.close()


@PROTOCOLS
@pytest.mark.usefixtures("_protocol")
def test_a_newer_producer_fences_an_older_one_permanently(
    kafka_b: LocalKafka, cluster: Cluster, topic: str, implicit: bool
) -> None:
    older = producer(cluster, topic)
    older.begin()
    older.send(topic, numbers(1), 0)
    newer = producer(cluster, topic)
    newer.begin()
    newer.send(topic, numbers(2), 0)
    with pytest.raises(ProducerFenced, match=topic):
        older.send(topic, numbers(3), 0)
    with pytest.raises(ProducerFenced):
        older.commit()
    with pytest.raises(ProducerFenced):
        older.abort()
    newer.commit()
    assert seen(kafka_b, topic) == [2]
    with pytest.raises(ProducerFenced):
        older.commit()


@PROTOCOLS
@pytest.mark.usefixtures("_protocol")
def test_commit_of_a_fenced_producer_raises_fenced(
    kafka_b: LocalKafka, cluster: Cluster, topic: str, implicit: bool
) -> None:
    older = producer(cluster, topic)
    older.begin()
    older.send(topic, numbers(1), 0)
    producer(cluster, topic)
    with pytest.raises(ProducerFenced):
        older.commit()
    assert seen(kafka_b, topic) == []


@PROTOCOLS
@pytest.mark.usefixtures("_protocol")
def test_a_batch_whose_response_was_lost_is_written_once(
    kafka_b: LocalKafka, cluster: Cluster, topic: str, implicit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = producer(cluster, topic)
    lose_answers(monkeypatch, cluster, 2, "ProduceRequest", "EndTxnRequest")
    writer.begin()
    for value in range(3):
        writer.send(topic, numbers(value), 0)
    writer.commit()
    writer.begin()
    writer.send(topic, numbers(3), 0)
    writer.commit()
    assert seen(kafka_b, topic) == [0, 1, 2, 3]


@PROTOCOLS
@pytest.mark.usefixtures("_protocol")
def test_after_a_failed_write_the_transaction_can_only_be_aborted_and_the_next_is_clean(
    kafka_b: LocalKafka, cluster: Cluster, topic: str, implicit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = producer(cluster, topic)
    with monkeypatch.context() as patch:
        lose_answers(patch, cluster, 100, "ProduceRequest")
        writer.begin()
        with pytest.raises(DisconnectedFailure):
            writer.send(topic, numbers(1), 0, timeout_s=0.3)
    with pytest.raises(DisconnectedFailure):
        writer.commit()
    writer.abort()
    writer.begin()
    writer.send(topic, numbers(2), 0)
    writer.commit()
    assert seen(kafka_b, topic) == [2]


def test_missing_partitions_have_a_separate_error(cluster: Cluster, topic: str) -> None:
    client = TransactionCoordinatorClient(cluster, topic, patience_s=0.5)
    identity = client.init_producer_id(60_000)
    client._implicit = False
    with pytest.raises(BrokerFailure, match=f"partition {topic}-7"):
        client.add_partitions(identity, [TopicPartition(topic, 0), TopicPartition(topic, 7)])


def lose_answers(monkeypatch: pytest.MonkeyPatch, cluster: Cluster, count: int, *kinds: str) -> None:
    """The first responses to each request type are lost after the broker has handled the requests."""
    left, send = dict.fromkeys(kinds, count), cluster.send

    def lossy(node: int | None, request: Any, *, timeout_s: float | None = None) -> Any:
        answer = send(node, request, timeout_s=timeout_s)
        kind = str(request.name)
        if left.get(kind, 0) > 0:
            left[kind] -= 1
            raise DisconnectedFailure("lost on the way")
        return answer

    monkeypatch.setattr(cluster, "send", lossy)
