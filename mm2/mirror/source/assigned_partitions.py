"""Encodes the partitions of a source task in its configuration (MirrorSourceTaskConfig). Pure."""

from __future__ import annotations

from typing import Final

from mm2.kafka.structs import TopicPartition

ASSIGNED_PARTITIONS_KEY: Final = "task.assigned.partitions"


def round_robin(partitions: tuple[TopicPartition, ...], max_tasks: int) -> list[list[TopicPartition]]:
    """Assign partition k to task k modulo the number of tasks, which spreads each topic's partitions over the tasks."""
    count = min(max_tasks, len(partitions))
    return [list(partitions[index::count]) for index in range(count)]


def encode_partitions(partitions: list[TopicPartition]) -> str:
    return ",".join(map(str, partitions))


def decode_partitions(text: str) -> list[TopicPartition]:
    """Decode the list that `encode_partitions` wrote. Raises ValueError."""
    decoded = []
    for item in text.split(","):
        topic, _, partition = item.strip().rpartition("-")
        decoded.append(TopicPartition(topic, int(partition)))
    return decoded
