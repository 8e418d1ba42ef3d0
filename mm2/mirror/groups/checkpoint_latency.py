"""Checkpoint latency: the metrics ``checkpoint-latency-ms`` of MirrorCheckpointConnector.

The latency is the time from the creation of a checkpoint to its acknowledgement by the target, by group and partition
of the target. Values cover the time since the task started. Java uses a sampling window of one minute, in which most
groups have no checkpoint.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from mm2.connect.runtime.counters import Sizes
from mm2.kafka.structs import TopicPartition
from mm2.metrics.metric import Cardinality, Sheet
from mm2.metrics.mirror import LEGACY_CHECKPOINT, NEW_CHECKPOINT

LATENCY_RESOURCE: Final = "checkpoint-latencies"
"""The name of the resource by which a process passes its `CheckpointLatencies` to its tasks."""
_CONNECTOR: Final = "MirrorCheckpointConnector"


@dataclass(eq=False)
class TaskLatencies:
    """The latencies of one task; ``formats`` is the value of ``metric.names.formats``. Thread-safe."""

    source: str
    target: str
    task: int
    formats: frozenset[str]
    _of: dict[tuple[str, TopicPartition], Sizes] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, group: str, partition: TopicPartition, latency_ms: float) -> None:
        """Record that a checkpoint of ``group`` for this partition of the target was acknowledged."""
        with self._lock:
            self._of.setdefault((group, partition), Sizes()).add(latency_ms)

    def by_place(self, cardinality: Cardinality) -> Mapping[tuple[str, str, str], Sizes]:
        """Sizes by group, topic and partition; an aggregated level is ""."""
        found: dict[tuple[str, str, str], Sizes] = {}
        with self._lock:
            for (group, place), sizes in self._of.items():
                topic = "" if cardinality is Cardinality.FLOW else place.topic
                partition = str(place.partition) if cardinality is Cardinality.FULL else ""
                found.setdefault((group, topic, partition), Sizes()).join(sizes)
        return found


class CheckpointLatencies:
    """The latencies of all tasks in a process, from `begin` to `end`.

    A task's series end with it, as in Java. Thread-safe.
    """

    def __init__(self) -> None:
        self._tasks: list[TaskLatencies] = []
        self._lock = threading.Lock()

    def begin(self, source: str, target: str, task: int, formats: frozenset[str]) -> TaskLatencies:
        """Register a task that starts."""
        made = TaskLatencies(source, target, task, formats)
        with self._lock:
            self._tasks.append(made)
        return made

    def end(self, latencies: TaskLatencies) -> None:
        """Unregister a task that has stopped; may be called twice."""
        with self._lock:
            self._tasks = [one for one in self._tasks if one is not latencies]

    def write(self, sheet: Sheet, cardinality: Cardinality) -> None:
        """Write all series of a scrape."""
        with self._lock:
            tasks = list(self._tasks)
        for task in tasks:
            flow = (task.source, task.target)
            for place, sizes in task.by_place(cardinality).items():
                for name, value in _values(sizes).items():
                    if "legacy" in task.formats:
                        sheet.add(LEGACY_CHECKPOINT[name], (*flow, *place), value)
                    if "new" in task.formats:
                        sheet.add(NEW_CHECKPOINT[name], (_CONNECTOR, str(task.task), *flow, *place), value)


def _values(sizes: Sizes) -> dict[str, float]:
    return {
        "checkpoint_latency_ms": sizes.last,
        "checkpoint_latency_ms_min": sizes.least,
        "checkpoint_latency_ms_max": sizes.greatest,
        "checkpoint_latency_ms_avg": sizes.total / sizes.count,
    }
