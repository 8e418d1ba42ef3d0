"""Reads topics with confluent-kafka and waits for records."""

from __future__ import annotations

from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

Records = list[tuple[str, Any]]


def read_all(bootstrap: str, topic: str) -> list[Any]:
    """Every record of a topic, in order per partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": "false"})
    try:
        partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
        records = []
        for partition in partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=60)
            consumer.assign([TopicPartition(topic, partition, low)])
            while low < high:
                message = consumer.poll(10)
                assert message is not None
                assert message.error() is None
                records.append(message)
                low = (message.offset() or 0) + 1
        return records
    finally:
        consumer.close()


def read_committed(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[Any]:
    """The records of a topic under read_committed while producers may still write, in order per partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": "false",
            "enable.partition.eof": "true",
            "isolation.level": isolation,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
        ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=60)[1] for p in partitions}
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        records, left = [], {partition for partition in partitions if ends[partition]}
        while left:
            message = consumer.poll(10)
            assert message is not None
            partition, offset, error = message.partition(), message.offset() or 0, message.error()
            if error is not None:
                # Transaction markers at the end are not messages, so only this detects the end.
                assert error.code() == KafkaError._PARTITION_EOF
                left.discard(partition)
                continue
            if offset < ends[partition]:
                records.append(message)
            if offset + 1 >= ends[partition]:
                left.discard(partition)
        return records
    finally:
        consumer.close()


def pairs(bootstrap: str, topic: str) -> Records:
    return [(m.key().decode(), None if m.value() is None else m.value().decode()) for m in read_all(bootstrap, topic)]


def create_topic(bootstrap: str, name: str, partitions: int = 1, **config: str) -> None:
    """Create a topic without retention, which would delete records with old timestamps 30 s after the broker's start."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(name, partitions, 1, config={"retention.ms": "-1", **config})
    for future in admin.create_topics([topic]).values():
        future.result(60)
