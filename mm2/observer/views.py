"""The snapshot: immutable, JSON-able, the one thing that whoever shows something reads.

A value that nobody knows is None, never 0: a missing figure must look missing. Offsets are the next to be done, times are
milliseconds since the epoch unless a name says otherwise, sizes are bytes, rates are per second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from mm2.copy.states import State


class FlowState(StrEnum):
    """The worst that can be said of a flow, the best first."""

    RUNNING = "RUNNING"
    CATCHING_UP = "CATCHING_UP"
    PAUSED = "PAUSED"
    DEGRADED = "DEGRADED"  # some of it does not go on, or one of the clusters does not answer
    STOPPED = "STOPPED"  # nothing of it is copied, and nobody has asked for that
    UNKNOWN = "UNKNOWN"  # nothing has been seen yet


@dataclass(frozen=True, slots=True)
class Risk:
    """What would be lost if the source died now. ``seconds``: age of the oldest record that is not on the target; 0 with nothing
    missing. ``bytes`` are estimated from the records copied lately."""

    seconds: float | None = None
    records: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Latency:
    """Of one stage since the flow was first observed: counts per bucket, not cumulative, ``bounds_s`` their upper ends in
    seconds; one bucket more than bounds, for what took longer."""

    bounds_s: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    sum_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One source partition. ``state`` with its ``reason`` since ``since_ms``; ``task`` is the number of its source task.

    ``verified_offset``: up to there `mm2 verify` has compared source and target and found nothing unexplained.
    """

    topic: str
    partition: int
    remote_topic: str
    state: State
    reason: str = ""
    since_ms: int | None = None
    position: int | None = None
    source_end: int | None = None
    target_offset: int | None = None
    lag_records: int | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    records_per_s: float | None = None
    bytes_per_s: float | None = None
    gaps: Mapping[str, int] = field(default_factory=dict)
    lost_ranges: int = 0
    foreign_records: int = 0
    verified_offset: int | None = None
    verified_at_ms: int | None = None
    task: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class GroupView:
    """A consumer group in one source partition. ``translated`` is its place on the target by the newest checkpoint,
    ``target_offset`` what is committed there; ``reason`` says why one of them is missing or not written."""

    group: str
    topic: str
    partition: int
    remote_topic: str
    source_offset: int | None = None
    translated: int | None = None
    target_offset: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class HeartbeatView:
    """The newest heartbeat of a flow in a topic of the target; ``route`` as of `mm2.mirror.client.freshness`."""

    topic: str
    source: str
    target: str
    route: tuple[str, ...]
    age_ms: int

    @property
    def hops(self) -> int:
        """How often it was copied."""
        return len(self.route)


@dataclass(frozen=True, slots=True)
class TaskView:
    """A task as the status topic has it: RUNNING, PAUSED, FAILED, UNASSIGNED, RESTARTING; ``trace`` when it failed."""

    id: int
    state: str
    worker_id: str
    trace: str = ""


@dataclass(frozen=True, slots=True)
class ConnectorView:
    """A connector and its tasks."""

    name: str
    type: str
    state: str
    worker_id: str
    trace: str = ""
    tasks: tuple[TaskView, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A process in the flow's group, by the ``host:port`` under which the group knows it."""

    worker_id: str
    is_leader: bool
    is_this: bool
    connectors: int
    tasks: int


@dataclass(frozen=True, slots=True)
class LaneView:
    """A lane of this process: the micro-batch that runs, how many there were, how many were lost, and what holds it up."""

    name: str
    task: int
    batch: int
    since_ms: int | None
    lost_batches: int
    partitions: int
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class SparkView:
    """The Spark of this process."""

    up: bool
    trouble: str = ""
    master: str = ""
    application_id: str = ""
    lanes: tuple[LaneView, ...] = ()


@dataclass(frozen=True, slots=True)
class FlowView:
    """One flow. ``observed_ms`` is when the newest of it was seen; ``source_error`` and ``target_error`` say why a cluster
    could not be asked, and what hangs on it is None then, or as it was.

    ``states`` counts partitions; ``batches`` counts record batches by how they went (``passthrough``, or the reason why they were
    made anew); ``troubles`` are sentences. Records and bytes are totals since the process began.
    """

    source: str
    target: str
    state: FlowState
    sentence: str
    risk: Risk
    observed_ms: int | None = None
    source_error: str = ""
    target_error: str = ""
    records: int = 0
    bytes: int = 0
    records_per_s: float | None = None
    bytes_per_s: float | None = None
    states: Mapping[State, int] = field(default_factory=dict)
    gaps: Mapping[str, int] = field(default_factory=dict)
    lost_ranges: int = 0
    foreign_records: int = 0
    batches: Mapping[str, int] = field(default_factory=dict)
    latency: Mapping[str, Latency] = field(default_factory=dict)
    troubles: tuple[str, ...] = ()
    partitions: Sequence[PartitionView] = ()
    groups: Sequence[GroupView] = ()
    heartbeats: Sequence[HeartbeatView] = ()
    connectors: Sequence[ConnectorView] = ()
    workers: Sequence[WorkerView] = ()

    @property
    def name(self) -> str:
        """``A->B``."""
        return f"{self.source}->{self.target}"


#: The stages of `FlowView.latency`: from the record's timestamp until it was fetched, from there until the target has
#: acknowledged it, and both together.
STAGES = ("fetch", "produce", "visible")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All flows of a process at one moment."""

    at_ms: int
    version: str
    flows: tuple[FlowView, ...]
    spark: SparkView | None = None

    def flow(self, name: str) -> FlowView | None:
        """By ``A->B``."""
        return next((flow for flow in self.flows if flow.name == name), None)
