"""The comparison of the demo is correct: written by one client, read by ours."""

from collections.abc import Sequence

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.sandbox.compare import compare_topics
from mm2.sandbox.kafka import LocalKafka

_Rows = Sequence[tuple[int, bytes | None, bytes | None, int]]

_ROWS: _Rows = [
    (
        index % 2,
        f"k{index}".encode() if index % 3 else None,
        b"v" * index if index % 5 else None,
        1_700_000_000_000 + index,
    )
    for index in range(300)
]


def _write(broker: LocalKafka, topic: str, rows: _Rows, *, codec: str, partitions: int = 2) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for done in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        done.result()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": codec})
    for partition, key, value, timestamp in rows:
        headers: list[tuple[str, str | bytes | None]] = [("h", b"1"), ("h", None)]
        producer.produce(topic, key=key, value=value, partition=partition, timestamp=timestamp, headers=headers)
    assert producer.flush(20) == 0


def _cluster(broker: LocalKafka) -> Cluster:
    settings = ClientSettings.from_props({"bootstrap.servers": broker.bootstrap}, client_id="compare")
    return Cluster(settings, name=broker.name)


def test_equal_topics_compare_equal_with_any_codec(kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str) -> None:
    _write(kafka_a, unique, _ROWS, codec="zstd")
    _write(kafka_b, unique, _ROWS, codec="none")
    result = compare_topics(_cluster(kafka_a), _cluster(kafka_b), unique, unique)
    assert (result.equal, result.records, result.partitions) == (True, 300, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[:-1], "partition 1, record 149: the record is offset 149"),
        (lambda rows: [*rows, rows[0]], "partition 0, record 150: the record is missing on the source"),
        (lambda rows: [rows[2], rows[1], rows[0], *rows[3:]], "partition 0, record 0: the key"),
        (lambda rows: [(p, k, v, t + (t % 100 == 50)) for p, k, v, t in rows], "partition 0, record 25: the timestamp"),
    ],
    ids=["missing", "twice", "order", "timestamp"],
)
def test_a_difference_is_found(kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, change, message: str) -> None:  # type: ignore[no-untyped-def]
    _write(kafka_a, unique, _ROWS, codec="lz4")
    _write(kafka_b, unique, change(list(_ROWS)), codec="lz4")
    result = compare_topics(_cluster(kafka_a), _cluster(kafka_b), unique, unique)
    assert message in str(result.difference)


def test_missing_partitions_and_topics_are_found(kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str) -> None:
    _write(kafka_a, unique, [], codec="none", partitions=3)
    _write(kafka_b, unique, [], codec="none", partitions=2)
    result = compare_topics(_cluster(kafka_a), _cluster(kafka_b), unique, unique)
    assert str(result.difference) == "partition 2: the partition is there on the source and not there on the target"
    with pytest.raises(KafkaFailure):
        compare_topics(_cluster(kafka_a), _cluster(kafka_b), unique, unique + "-no")
