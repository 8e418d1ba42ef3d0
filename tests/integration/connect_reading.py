"""Reading topics back with another client, and waiting for what is to come."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

Records = list[tuple[str, Any]]


def read_all(bootstrap: str, topic: str) -> list[Any]:
    """Every record of a topic, in order per partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": "false"})
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        records = []
        for partition in partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
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
    """Every record a read_committed consumer sees up to the last stable offset, in order per partition."""
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
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        records, ended = [], 0
        while ended < len(partitions):
            message = consumer.poll(10)
            assert message is not None
            error = message.error()
            if error is None:
                records.append(message)
            else:
                assert error.code() == KafkaError._PARTITION_EOF
                ended += 1
        return records
    finally:
        consumer.close()


def pairs(bootstrap: str, topic: str) -> Records:
    return [(m.key().decode(), None if m.value() is None else m.value().decode()) for m in read_all(bootstrap, topic)]


def eventually(check: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, "did not come true in time"
        time.sleep(0.05)


def create_topic(bootstrap: str, name: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(name, partitions, 1, config=config)]).values():
        future.result(20)
