"""The snapshot: immutable, JSON-able, the one thing that whoever shows something reads.

A value that nobody knows is None, never 0: a missing figure must look missing. Offsets are the next to be done, times are
milliseconds since the epoch unless a name says otherwise, sizes are bytes, rates are per second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from mm2.copy.states import State
from mm2.copy.tally import STAGES
from mm2.reasons import OffsetReasonCode

__all__ = [
    "STAGES",
    "CertificateView",
    "ConnectorView",
    "FlowState",
    "FlowView",
    "GroupView",
    "HeartbeatView",
    "LaneView",
    "Latency",
    "LossView",
    "PartitionView",
    "Risk",
    "Snapshot",
    "SparkView",
    "Spread",
    "TaskView",
    "WorkerView",
]


class FlowState(StrEnum):
    """The worst that can be said of a flow, the best first."""

    RUNNING = "RUNNING"
    CATCHING_UP = "CATCHING_UP"
    PAUSED = "PAUSED"
    DEGRADED = "DEGRADED"  # some of it does not go on, or differs from its source; or a cluster does not answer
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
class Spread:
    """Of the record batches of one partition in the last minute or so, in milliseconds."""

    last: int
    least: int
    greatest: int
    average: float


@dataclass(frozen=True, slots=True)
class LossView:
    """Source offsets from ``first`` to ``last`` that nobody will ever copy, as `mm2.copy.session.Lost` has them; ``reason`` is
    retention, recreated or truncated."""

    topic: str
    partition: int
    first: int
    last: int
    reason: str
    found_ms: int


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One source partition. ``state`` with its ``reason`` since ``since_ms``; ``task`` is the number of its source task.

    ``task`` None: no task is to copy it, because its topic is no longer selected, or because nothing is dealt out yet.
    ``lag_seconds``: age of the oldest record that is not on the target. ``records`` and ``bytes`` were copied by this process.
    ``age_ms`` and ``latency_ms``: how old batches were when they were fetched, and when the target had acknowledged them.
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
    records: int = 0
    bytes: int = 0
    age_ms: Spread | None = None
    latency_ms: Spread | None = None


@dataclass(frozen=True, slots=True)
class GroupView:
    """A consumer group in one source partition. ``translated`` is its place on the target by the newest checkpoint,
    ``target_offset`` what is committed there; ``reason`` with its ``reason_code`` says why one of them is missing or not written."""

    group: str
    topic: str
    partition: int
    remote_topic: str
    source_offset: int | None = None
    translated: int | None = None
    target_offset: int | None = None
    reason: str = ""
    reason_code: OffsetReasonCode | None = None


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
    """A connector and its tasks. ``target_state`` is what its users want: STARTED, PAUSED or STOPPED; "" not known."""

    name: str
    type: str
    state: str
    worker_id: str
    trace: str = ""
    tasks: tuple[TaskView, ...] = ()
    target_state: str = ""


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
    """A lane of this process: which micro-batch runs (0: none yet), how many were lost, and what holds it up."""

    name: str
    task: int
    batch: int
    since_ms: int | None
    lost_batches: int
    partitions: int
    trouble: str = ""
    flow: str = ""


@dataclass(frozen=True, slots=True)
class SparkView:
    """The Spark of this process."""

    up: bool
    trouble: str = ""
    master: str = ""
    application_id: str = ""
    lanes: tuple[LaneView, ...] = ()


@dataclass(frozen=True, slots=True)
class CertificateView:
    """A certificate that the flow's clients use, or the process's https listeners (source, target and cluster are "" then); ``file`` is its
    base name."""

    source: str
    target: str
    cluster: str
    file: str
    expires_ms: int


@dataclass(frozen=True, slots=True)
class FlowView:
    """One flow. ``observed_ms`` is when the newest of it was seen; ``source_error`` and ``target_error`` say why a cluster
    could not be asked, and what hangs on it is None then, or as it was.

    ``states`` counts partitions; ``batches`` counts record batches by how they went (``passthrough``, or the reason why they were
    made anew); ``troubles`` are sentences. Records, bytes, batches, latencies and ``micro_batches`` (by task) are those of
    this process since it began. ``metric_formats`` are what ``metric.names.formats`` says. ``differences`` by kind
    are what `mm2 verify` has found, among ``verified_records`` that are on both sides. ``losses`` were found within the last day
    (`mm2.observer.verdict.LOSSES_TOLD_MS`), the newest hundred of them, newest first; ``lost_ranges`` counts all there ever were.
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
    micro_batches: Mapping[int, int] = field(default_factory=dict)
    lost_micro_batches: int = 0
    metric_formats: frozenset[str] = frozenset({"legacy"})
    differences: Mapping[str, int] = field(default_factory=dict)
    verified_records: int = 0
    losses: tuple[LossView, ...] = ()

    @property
    def name(self) -> str:
        """``A->B``."""
        return f"{self.source}->{self.target}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All flows of a process at one moment. ``reloads`` counts new versions of the file by outcome: applied, refused."""

    at_ms: int
    version: str
    flows: tuple[FlowView, ...]
    spark: SparkView | None = None
    reloads: Mapping[str, int] = field(default_factory=dict)
    certificates: tuple[CertificateView, ...] = ()

    def flow(self, name: str) -> FlowView | None:
        """By ``A->B``."""
        return next((flow for flow in self.flows if flow.name == name), None)
