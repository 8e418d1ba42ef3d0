"""Events recorded by `tests.systems.task_toys.RecordingSinkTask`, and its topics and groups."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient

from tests.systems.task_toys import MODULE

STRING = "org.apache.kafka.connect.storage.StringConverter"
BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
SINK = f"{MODULE}.RecordingSinkConnector"


def sink_props(name: str, topic: str, events: Path, **more: str) -> dict[str, str]:
    """Configuration of the recording sink; ``__`` in keys of ``more`` stands for a dot."""
    return {
        "name": name,
        "connector.class": SINK,
        "topics": topic,
        "events": str(events),
        **{key.replace("__", "."): value for key, value in more.items()},
    }


def events_of(events: Path, *kinds: str) -> list[dict[str, Any]]:
    """The recorded events in order; only those of the given kinds."""
    if not events.exists():
        return []
    lines = events.read_text().split("\n")[:-1]
    return [event for event in map(json.loads, lines) if not kinds or event["event"] in kinds]


def put(events: Path) -> list[str]:
    """The `repr` of each value passed to `put`."""
    return [event["value"] for event in events_of(events, "put")]


def produce(
    bootstrap: str,
    topic: str,
    values: Iterable[str | bytes],
    *,
    partition: int | None = None,
    key: bytes | None = None,
    headers: list[tuple[str, str | bytes | None]] | None = None,
) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for value in values:
        producer.produce(topic, value, key, -1 if partition is None else partition, headers=headers)
    assert producer.flush(30) == 0


def committed(bootstrap: str, group: str) -> dict[str, int]:
    """Committed offsets of a consumer group by "topic-partition"; only those above 0."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(60)
    return {f"{tp.topic}-{tp.partition}": tp.offset for tp in answer.topic_partitions if tp.offset > 0}
