"""How a source task is told its partitions (spec mirrormaker §3.7). Pure."""

from __future__ import annotations

from typing import Final

from mm2.kafka.structs import TopicPartition

ASSIGNED_PARTITIONS_KEY: Final = "task.assigned.partitions"


def deal(partitions: tuple[TopicPartition, ...], max_tasks: int) -> list[list[TopicPartition]]:
    """Partition k goes to task k modulo the number of tasks, so that one topic's partitions spread over tasks."""
    count = min(max_tasks, len(partitions))
    return [list(partitions[index::count]) for index in range(count)]


def encode_partitions(partitions: list[TopicPartition]) -> str:
    return ",".join(map(str, partitions))


def decode_partitions(text: str) -> list[TopicPartition]:
    """The list of `encode_partitions`. Raises ValueError."""
    decoded = []
    for item in text.split(","):
        topic, _, partition = item.strip().rpartition("-")
        decoded.append(TopicPartition(topic, int(partition)))
    return decoded
