"""What there is to see of the copying in this process, for whoever shows it. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mm2.copy.spec import PartitionProgress
from mm2.copy.tally import Tally
from mm2.kafka.structs import TopicPartition


@dataclass(frozen=True, slots=True)
class LaneSight:
    """``batch`` is the number of the newest micro-batch, ``since_ms`` when the running one began to copy (None: none does).

    ``lost`` counts those without a final report.
    """

    name: str
    flow: str
    task: int
    batch: int
    since_ms: int | None
    lost: int
    partitions: int
    trouble: str


@dataclass(frozen=True, slots=True)
class PartitionSight:
    """``row`` is the copier's last report, None before the first; ``is_fresh`` while it goes on reporting.

    ``records`` and ``bytes`` were copied since this process began, by whichever of its tasks.
    """

    row: PartitionProgress | None
    task: int
    remote_topic: str
    is_fresh: bool
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class FlowSight:
    """All tasks of one flow that are in this process, and what those have left that are no longer.

    ``records`` and ``bytes`` are totals; ``left`` are those (records, bytes) of partitions that no task here copies any more.
    ``micro_batches`` counts by task, ``lost`` are those of them without a final report.
    """

    partitions: Mapping[TopicPartition, PartitionSight] = field(default_factory=dict)
    left: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    records: int = 0
    bytes: int = 0
    tally: Tally = field(default_factory=Tally)
    micro_batches: Mapping[int, int] = field(default_factory=dict)
    lost: int = 0
    lanes: tuple[LaneSight, ...] = ()
    troubles: tuple[str, ...] = ()
