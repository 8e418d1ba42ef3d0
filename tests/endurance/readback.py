"""Reads a whole topic with confluent-kafka, an implementation that shares nothing with what is tested."""

import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, TopicPartition

from tests.endurance.judge import Arrived, Judge

_QUIET_S = 3.0


def read_to_judge(bootstrap: str, topic: str, partitions: int, judge: Judge, patience_s: float) -> None:
    """Shows all records to the judge, until it has seen all it waits for and nothing more comes, or nothing comes for
    `patience_s`. Raises KafkaException."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "readback",  # demanded by the client, never used
            "enable.auto.commit": False,
            "check.crcs": True,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
        last_news = time.monotonic()
        while time.monotonic() - last_news < (_QUIET_S if judge.is_complete else patience_s):
            for message in consumer.consume(1000, 0.2):
                error = message.error()
                if error is not None:
                    raise KafkaException(error)
                last_news = time.monotonic()
                judge.see(
                    Arrived(
                        partition=message.partition() or 0,
                        offset=message.offset() or 0,
                        key=message.key(),
                        value=message.value(),
                        headers=_headers(message),
                        timestamp_ms=message.timestamp()[1],
                    )
                )
    finally:
        consumer.close()


def _headers(message: Message) -> list[tuple[str, bytes | None]]:
    found = message.headers() or []
    pairs = found.items() if isinstance(found, dict) else found
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in pairs]
