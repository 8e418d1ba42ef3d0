"""The snapshot: immutable, JSON-serializable, the only input of everything that displays the state of flows.

An unknown value is None, never 0: a missing value must be recognizable. Offsets are those of the next record, times are
milliseconds since the epoch unless the name has another unit, sizes are bytes, rates are per second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from mm2.copy.causes import Cause
from mm2.copy.states import WELL, PartitionState
from mm2.copy.tally import STAGES
from mm2.evidence import Evidence
from mm2.reasons import MoveCode, OffsetReasonCode, PauseCode, SparkDownCode

__all__ = [
    "STAGES",
    "CertificateView",
    "ConnectorView",
    "EvidenceView",
    "FlowState",
    "FlowView",
    "GroupProcess",
    "GroupView",
    "HeartbeatView",
    "LaneView",
    "Latency",
    "LossView",
    "PartitionView",
    "Risk",
    "Snapshot",
    "SparkView",
    "TaskView",
    "ValueRange",
]


def _read(default: Any, *evidence: Evidence) -> Any:
    """A field that is unknown, null in JSON, until all of this was read once."""
    metadata = {"evidence": evidence}
    is_mapping = isinstance(default, dict)
    return field(default_factory=dict, metadata=metadata) if is_mapping else field(default=default, metadata=metadata)


class FlowState(StrEnum):
    """The worst state that applies to a flow, best first."""

    RUNNING = "RUNNING"
    CATCHING_UP = "CATCHING_UP"
    PAUSED = "PAUSED"
    NO_TOPICS = "NO_TOPICS"  # the source has no topic that the flow selects, so nothing is copied
    DEGRADED = "DEGRADED"  # a part is blocked or differs from its source, or a cluster does not answer
    STOPPED = "STOPPED"  # nothing is copied although no user has requested this
    UNKNOWN = "UNKNOWN"  # no data yet


@dataclass(frozen=True, slots=True)
class Risk:
    """What would be lost if the source failed now.

    ``seconds`` is the age of the oldest record that is not on the target, 0 if none is missing. It is None while the age is unknown in
    some partition; ``seconds_at_least`` is the greatest known age. ``bytes`` are estimated from the records copied recently.
    ``records_at_least`` are those that are known. They are all ``records`` only if the source answers, and the position and the end
    offset of each partition are known; otherwise ``records`` is None.
    """

    seconds: float | None = None
    records: int | None = None
    bytes: int | None = None
    records_at_least: int | None = None
    seconds_at_least: float | None = None

    @property
    def least_seconds(self) -> float | None:
        """The age of the oldest record that is known to be missing on the target; None: not known at all."""
        return self.seconds if self.seconds_at_least is None else self.seconds_at_least

    @property
    def least(self) -> int | None:
        """The records that are known to be missing on the target; None: not known at all."""
        return self.records if self.records_at_least is None else self.records_at_least


@dataclass(frozen=True, slots=True)
class EvidenceView:
    """When something was last read, None: never yet; ``error``: why it, or a part of it, could not be read since."""

    what: Evidence
    at_ms: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Latency:
    """The latency of one stage since the flow was first observed.

    ``counts`` are per bucket, not cumulative; ``bounds_s`` are the upper bounds in seconds. There is one bucket more
    than bounds, for larger values.
    """

    bounds_s: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    sum_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ValueRange:
    """Values of the record batches of one partition in about the last minute, in milliseconds."""

    last: int
    least: int
    greatest: int
    average: float


@dataclass(frozen=True, slots=True)
class LossView:
    """Source offsets ``first`` to ``last`` that are permanently lost (`mm2.copy.progress.session.Lost`).

    ``reason`` is retention, recreated or truncated.
    """

    topic: str
    partition: int
    first: int
    last: int
    reason: str
    found_ms: int


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One source partition.

    ``state`` has applied since ``since_ms`` for the given ``reason``. ``task`` is the number of its source task, None
    if it is assigned to none: its topic is no longer selected, or there is no assignment yet. ``lag_seconds`` is the
    age of the oldest record that is not on the target. ``records`` and ``bytes`` were copied by this process.
    ``age_ms`` and ``latency_ms`` are the ages of batches when they were fetched and when the target had acknowledged
    them. Up to ``verified_offset``, `mm2 verify` has compared source and target and found nothing unexplained. ``unfilled``
    offsets before the first record are still to be filled on the target (`preserve.offsets`). ``pause``: why its state is PAUSED, or
    would be without a condition that lasts (`mm2.copy.states.LASTING`); None if that is not known. ``is_counted``: it is in the sums
    of the flow, as are all partitions that the flow is to copy. ``is_lag_exact``: ``lag_records`` are all that are not on the target;
    otherwise they are those that are known.
    """

    topic: str
    partition: int
    remote_topic: str
    state: PartitionState
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
    age_ms: ValueRange | None = None
    latency_ms: ValueRange | None = None
    unfilled: int = 0
    pause: PauseCode | None = None
    is_counted: bool = True
    is_lag_exact: bool = True

    @property
    def known_lag(self) -> int | None:
        """``lag_records``, also if they are a lower bound, but None for one of 0, which shows nothing."""
        return self.lag_records if self.is_lag_exact else self.lag_records or None

    @property
    def is_unhealthy(self) -> bool:
        """Whether its state needs attention; never for a partition that is paused, or that the flow is not to copy."""
        return self.is_counted and self.state not in WELL


@dataclass(frozen=True, slots=True)
class GroupView:
    """A consumer group in one source partition.

    ``translated`` is its offset on the target by the newest checkpoint, ``target_offset`` the offset committed there.
    ``reason`` and ``reason_code`` explain why one of them is missing or not written. ``source_lag`` and ``target_lag`` are
    the records after the committed offsets; on the target, those that the flow has copied. They are None if an end offset is not
    known, or is that of another log. ``if_moved``: what its consumers would
    do on the target now, None if its offsets there are not known; ``if_moved_records``: with how many records.
    """

    group: str
    topic: str
    partition: int
    remote_topic: str
    source_offset: int | None = None
    translated: int | None = None
    target_offset: int | None = None
    reason: str = ""
    reason_code: OffsetReasonCode | None = None
    source_lag: int | None = None
    target_lag: int | None = None
    if_moved: MoveCode | None = None
    if_moved_records: int | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatView:
    """The newest heartbeat of a flow in a topic of the target; for ``route`` see `mm2.mirror.client.freshness`."""

    topic: str
    source: str
    target: str
    route: tuple[str, ...]
    age_ms: int

    @property
    def hops(self) -> int:
        """The number of times it was copied."""
        return len(self.route)


@dataclass(frozen=True, slots=True)
class TaskView:
    """A task from the status topic: RUNNING, PAUSED, FAILED, UNASSIGNED, RESTARTING; ``trace`` if it failed."""

    id: int
    state: str
    worker_id: str
    trace: str = ""


@dataclass(frozen=True, slots=True)
class ConnectorView:
    """A connector and its tasks.

    ``target_state`` is the requested state: STARTED, PAUSED or STOPPED; "" if not known.
    """

    name: str
    type: str
    state: str
    worker_id: str
    trace: str = ""
    tasks: tuple[TaskView, ...] = ()
    target_state: str = ""


@dataclass(frozen=True, slots=True)
class GroupProcess:
    """A process in the flow's group, by its ``host:port`` in the group."""

    worker_id: str
    is_leader: bool
    is_this: bool
    connectors: int
    tasks: int


@dataclass(frozen=True, slots=True)
class LaneView:
    """A lane of this process: its micro-batch (0: none yet), the number of lost ones, and the error that blocks it."""

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
    """The Spark of this process. ``up``: it can start tasks; otherwise ``trouble`` is the message of ``down``. ``slots``: how many
    tasks can run at the same time; None: unknown, or without a limit.
    """

    up: bool
    trouble: str = ""
    master: str = ""
    application_id: str = ""
    lanes: tuple[LaneView, ...] = ()
    down: SparkDownCode | None = None
    slots: int | None = None


@dataclass(frozen=True, slots=True)
class CertificateView:
    """A certificate of the flow's clients or of the process's https listeners.

    For listeners source, target and cluster are "". ``file`` is the base name. ``problem``: why the file, which has
    been replaced since, is not in use.
    """

    source: str
    target: str
    cluster: str
    file: str
    expires_ms: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class FlowView:
    """One flow.

    - ``observed_ms``: when the newest value was read.
    - ``source_error``, ``target_error``: why a cluster could not be read; values from it are then None or the previous
      ones.
    - ``states``: number of partitions by state.
    - ``batches``: number of record batches by how they were copied (``passthrough``, or the reason for re-encoding).
    - ``troubles``: messages.
    - Records, bytes, batches, latencies and ``micro_batches`` (by task) are those of this process since it started.
    - ``metric_formats``: the value of ``metric.names.formats``.
    - ``differences``: what `mm2 verify` has found, by kind, among ``verified_records`` records that are on both sides.
    - ``losses``: the newest hundred found within the last day (`mm2.observer.partitions.LOSSES_REPORTED_MS`), newest first;
      ``lost_ranges`` counts all of them.
    - ``groups_error``: why offsets of groups on the target, or of some groups, are not known; ``groups`` then lacks some of them. "" if
      only the source does not answer.
    - ``throttles``: limits by `mm2 throttle`, in bytes per second, 0 for none: by topic, "" for the flow.
    - ``causes``: what stops partitions, those that are neither well nor throttled, and how many by each cause.
    - ``is_ledger_read``: otherwise the target has not answered yet, and what is counted in the ledger is not known: lost ranges,
      foreign records and gaps.
    - ``evidence``: what the view is made of, and when it was read.
    - ``target_losses``: the number of partitions of which the target does not have what was copied.
    - ``came_back_topics``: those that the flow in the opposite direction copies to the source under the same name. This flow does not
      copy them, and what other producers wrote to them is not counted.
    - ``kept_records``: what `mm2 failback` has left on the source only.
    """

    source: str
    target: str
    state: FlowState
    sentence: str
    risk: Risk
    observed_ms: int | None = None
    source_error: str = ""
    target_error: str = ""
    records: int = _read(0, Evidence.PROCESS)
    bytes: int = _read(0, Evidence.PROCESS)
    records_per_s: float | None = None
    bytes_per_s: float | None = None
    states: Mapping[PartitionState, int] = _read({}, Evidence.WORKERS)
    gaps: Mapping[str, int] = _read({}, Evidence.LEDGER)
    lost_ranges: int = _read(0, Evidence.LEDGER)
    foreign_records: int = _read(0, Evidence.LEDGER)
    batches: Mapping[str, int] = _read({}, Evidence.PROCESS)
    latency: Mapping[str, Latency] = _read({}, Evidence.PROCESS)
    troubles: tuple[str, ...] = ()
    partitions: Sequence[PartitionView] = _read((), Evidence.LEDGER)
    groups: Sequence[GroupView] = _read((), Evidence.GROUPS)
    heartbeats: Sequence[HeartbeatView] = _read((), Evidence.HEARTBEATS)
    connectors: Sequence[ConnectorView] = _read((), Evidence.WORKERS)
    workers: Sequence[GroupProcess] = _read((), Evidence.WORKERS)
    micro_batches: Mapping[int, int] = _read({}, Evidence.PROCESS)
    lost_micro_batches: int = _read(0, Evidence.PROCESS)
    failing_lanes: int = _read(0, Evidence.PROCESS)
    moved_partitions: int = _read(0, Evidence.PROCESS)
    metric_formats: frozenset[str] = frozenset({"legacy"})
    differences: Mapping[str, int] = _read({}, Evidence.LEDGER)
    verified_records: int = _read(0, Evidence.LEDGER)
    losses: Sequence[LossView] = _read((), Evidence.LEDGER)
    throttles: Mapping[str, int] = _read({}, Evidence.LEDGER)
    filled: Mapping[str, int] = _read({}, Evidence.PROCESS)
    groups_error: str = ""
    is_ledger_read: bool = True
    evidence: tuple[EvidenceView, ...] = ()
    target_losses: int = _read(0, Evidence.TARGET_LOGS)
    causes: tuple[Cause, ...] = ()
    came_back_topics: int = _read(0, Evidence.SOURCE_TOPICS)
    kept_records: int = _read(0, Evidence.LEDGER)

    def has_read(self, what: Evidence) -> bool:
        """Whether it was read at least once."""
        return any(one.what is what and one.at_ms is not None for one in self.evidence)

    @property
    def unread(self) -> frozenset[str]:
        """The names of fields whose values are not known, because a part of their evidence was never read."""
        evidence = {one.name: one.metadata.get("evidence", ()) for one in fields(self)}
        return frozenset(name for name, kinds in evidence.items() if not all(map(self.has_read, kinds)))

    @property
    def name(self) -> str:
        """The name ``A->B``."""
        return f"{self.source}->{self.target}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All flows of a process at one moment.

    ``reloads`` counts new versions of the file by outcome: applied, refused.
    """

    at_ms: int
    version: str
    flows: tuple[FlowView, ...]
    spark: SparkView | None = None
    reloads: Mapping[str, int] = field(default_factory=dict)
    certificates: tuple[CertificateView, ...] = ()

    def flow(self, name: str) -> FlowView | None:
        """The flow with the name ``A->B``."""
        return next((flow for flow in self.flows if flow.name == name), None)
