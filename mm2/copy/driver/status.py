"""The status of copying in this process, for status pages and metrics. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mm2.copy.spec import PartitionProgress
from mm2.copy.tally import Tally
from mm2.kafka.structs import TopicPartition


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """``batch`` is the number of the newest micro-batch, ``since_ms`` when the running one began to copy (None: none
    is running).

    ``lost`` counts micro-batches without a final report. ``failing``: why no micro-batch copies any more, although the
    lane is started again and again; "" otherwise.
    """

    name: str
    flow: str
    task: int
    batch: int
    since_ms: int | None
    lost: int
    partitions: int
    blocked_reason: str
    failing: str = ""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """``row`` is the copier's last report, None before the first one; ``is_fresh`` while reports arrive.

    ``records`` and ``bytes`` were copied by all tasks of this process since it started.
    """

    row: PartitionProgress | None
    task: int
    remote_topic: str
    is_fresh: bool
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class FlowStatus:
    """All tasks of a flow in this process, and the counts of tasks that have ended.

    ``records`` and ``bytes`` are totals; ``left`` are the (records, bytes) of partitions that no task here copies any
    more. ``micro_batches`` counts by task, ``lost`` counts those without a final report. ``moves`` counts partitions that moved to
    another lane.
    """

    partitions: Mapping[TopicPartition, PartitionStatus] = field(default_factory=dict)
    left: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    records: int = 0
    bytes: int = 0
    tally: Tally = field(default_factory=Tally)
    micro_batches: Mapping[int, int] = field(default_factory=dict)
    lost: int = 0
    lanes: tuple[LaneStatus, ...] = ()
    blocked_reasons: tuple[str, ...] = ()
    moves: int = 0
