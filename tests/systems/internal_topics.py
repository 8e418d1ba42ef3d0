"""Contents of the internal topics of a group, read with confluent-kafka and decoded independently of the tested code."""

from __future__ import annotations

import json
from typing import Any

from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import producer_of
from tests.integration.mirror_process import records, table

Rows = list[tuple[str, bytes | None]]


def rows(broker: LocalKafka, topic: str) -> Rows:
    """Key and value of every record, in offset order, one partition after the other."""
    return [
        (str(record.key, "utf-8"), record.value)
        for partition in records(broker, topic)
        for record in partition
        if record.key is not None
    ]


def latest(broker: LocalKafka, topic: str) -> dict[str, Any]:
    """The newest value of each key, parsed; without keys that have a tombstone."""
    found = {}
    for key, (value, _) in table(broker, topic).items():
        if value is not None:
            parsed = json.loads(value)
            assert is_connect_json(value), f"{key!r}: {value!r} is not compact JSON without a schema"
            found[key.decode()] = parsed
    return found


def is_connect_json(value: bytes) -> bool:
    """Compact JSON without a schema envelope and without escapes for non-ASCII characters."""
    parsed = json.loads(value)
    enveloped = isinstance(parsed, dict) and parsed.keys() == {"schema", "payload"}
    return not enveloped and json.dumps(parsed, separators=(",", ":"), ensure_ascii=False).encode() == value


def write(broker: LocalKafka, topic: str, key: str, value: str | None) -> None:
    """Write one record to partition 0."""
    producer = producer_of(broker)
    producer.produce(topic, value, key, partition=0)
    assert producer.flush(30) == 0
