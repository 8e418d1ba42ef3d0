"""Encodes the partitions of a source task in its configuration (MirrorSourceTaskConfig). Pure."""

from __future__ import annotations

from typing import Final

from mm2.kafka.structs import TopicPartition

ASSIGNED_PARTITIONS_KEY: Final = "task.assigned.partitions"


def encode_partitions(partitions: list[TopicPartition]) -> str:
    return ",".join(map(str, partitions))


def decode_partitions(text: str) -> list[TopicPartition]:
    """Decode the list that `encode_partitions` wrote. Raises ValueError."""
    decoded = []
    for item in text.split(","):
        topic, _, partition = item.strip().rpartition("-")
        decoded.append(TopicPartition(topic, int(partition)))
    return decoded
