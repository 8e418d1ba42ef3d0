"""Read a whole topic with confluent-kafka, which shares no code with the tested client."""

import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, TopicPartition

from tests.endurance.judge import Arrived, Judge

_QUIET_S = 3.0


def read_to_judge(bootstrap: str, topic: str, partitions: int, judge: Judge, patience_s: float) -> None:
    """Pass all records to the judge until it is complete and no more arrive, or none arrive for `patience_s`.

    Raises KafkaException.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "readback",  # required by the client, never used
            "enable.auto.commit": False,
            "check.crcs": True,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
        last_record = time.monotonic()
        while time.monotonic() - last_record < (_QUIET_S if judge.is_complete else patience_s):
            for message in consumer.consume(1000, 0.2):
                error = message.error()
                if error is not None:
                    raise KafkaException(error)
                last_record = time.monotonic()
                judge.add(
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
