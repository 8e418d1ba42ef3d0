"""What the view of a partition is made of: the inputs of all partitions, and what is kept of one between two snapshots. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from mm2.copy.driver.status import FlowStatus, PartitionStatus
from mm2.copy.progress.ledger import Ledger, Pauses, Verified
from mm2.copy.progress.session import LedgerEntry
from mm2.copy.spec import PartitionProgress
from mm2.kafka.structs import TopicPartition
from mm2.mirror.groups.target_logs import TargetLoss
from mm2.mirror.notes.preparation import Preparation
from mm2.mirror.notes.promotions import Promotion, promoted
from mm2.observer.polling.end_offsets import EndOffsetHistory
from mm2.observer.polling.polls import SourceLogs
from mm2.observer.views import PartitionView
from mm2.observer.work import Work


@dataclass(frozen=True)
class PartitionInputs:
    """The inputs at one moment. Times in seconds are of a monotonic clock.

    - ``as_of_s``: the time for which ages are computed; it does not advance while the source does not answer.
    - ``status``: what this process copies, and has copied.
    - ``silent``: why the source does not answer, with the time (ms) of its last answer; "" while it answers.
    - ``target_silent``: the same for the target.
    - ``noted``: end offsets from the ledger's notes (`mm2.mirror.notes.source_answers`), while the source does not answer.
    - ``preparing``: partitions that no task copies yet (`mm2.mirror.notes.preparation`).
    - ``target_losses``: see `mm2.observer.polling.polls.TargetLogsPoll`.
    """

    now_s: float
    now_ms: int
    as_of_s: float
    ledger: Ledger | None
    source: SourceLogs
    status: FlowStatus
    work: Work
    silent: str = ""
    silent_since_ms: int | None = None
    noted: Mapping[TopicPartition, int] = field(default_factory=dict)
    preparing: Mapping[TopicPartition, Preparation] = field(default_factory=dict)
    target_losses: Mapping[TopicPartition, TargetLoss | None] = field(default_factory=dict)
    target_silent: str = ""
    target_silent_since_ms: int | None = None

    @cached_property
    def verified(self) -> Mapping[TopicPartition, Verified]:
        """Results of `mm2 verify`."""
        return {} if self.ledger is None else self.ledger.verifications()

    @cached_property
    def pauses(self) -> Pauses:
        """Pauses of topics and partitions."""
        return {} if self.ledger is None else self.ledger.pauses()

    @cached_property
    def promotions(self) -> Mapping[str, Promotion]:
        """Promoted topics."""
        return {} if self.ledger is None else promoted(self.ledger)

    @cached_property
    def idle(self) -> str:
        """Why nothing is copied although no user has requested this; "" if something is copied."""
        # Without a worker's topics, the flow may be run by a Connect cluster.
        return self.work.idle_reason if self.work.connectors or self.work.absent else ""

    @property
    def has_current_ends(self) -> bool:
        """Whether the source has answered, and still does."""
        return self.source.ends_at_s > 0 and not self.silent

    def is_turned(self, topic: str) -> bool:
        """Whether the flow in the opposite direction copies the topic: records that are added to it come from this flow's target."""
        promotion = self.promotions.get(topic)
        return promotion is not None and promotion.turned

    def is_counted(self, tp: TopicPartition, task: int | None) -> bool:
        """Whether the flow is to copy the partition."""
        is_selected = self.work.tasks is None or task is not None or tp in self.preparing
        return is_selected and not self.is_turned(tp.topic)

    def common(self) -> tuple[object, ...]:
        """The inputs on which the view of any partition may depend."""
        source, work = self.source, self.work
        return (
            (work.tasks, work.failed, work.held, self.idle),
            (self.pauses, self.verified, self.promotions, self.preparing, self.ledger is None),
            (source.missing, source.topic_ids, source.starts, self.has_current_ends),
            (self.silent, self.silent_since_ms, self.noted, self.target_silent, self.target_silent_since_ms),
            (self.status.left, self.target_losses),
        )


@dataclass(slots=True)
class PartitionMemory:
    """What is kept of one partition between two snapshots.

    ``entry`` is that of ``version`` in the ledger, decoded at ``read_s``. The ``position`` was first seen at ``learned_s``; it has lag since
    ``behind_s``. ``counted``: time, records, bytes, and whether these are of this process. ``reading`` is the number of the last
    `PartitionViews.read` that has made the ``view``. ``is_at_rest``: the view does not change before one of its inputs does. ``asked`` is
    the end offset that the source returned. ``loss`` and ``is_uncompared``, ``is_of_other_log``: see `Partitions`.
    """

    tp: TopicPartition
    moved_s: float
    reading: int
    history: EndOffsetHistory = field(default_factory=EndOffsetHistory)
    version: int = -1
    entry: LedgerEntry | None = None
    written_ms: int = -1
    read_s: float = 0.0
    position: int = -1
    learned_s: float = 0.0
    behind_s: float | None = None
    counted: tuple[float, int, int, bool] | None = None
    records_per_s: float = 0.0
    bytes_per_s: float | None = None
    view: PartitionView | None = None
    is_at_rest: bool = False
    status: PartitionStatus | None = None
    loss: TargetLoss | None = None
    is_uncompared: bool = False
    asked: int | None = None
    is_of_other_log: bool = False

    @property
    def row(self) -> PartitionProgress | None:
        """The last report of this process's copier."""
        return None if self.status is None else self.status.row

    @property
    def fresh_row(self) -> PartitionProgress | None:
        """The last report, while reports arrive."""
        return self.status.row if self.status is not None and self.status.is_fresh else None

    def is_replaced(self, inputs: PartitionInputs) -> bool:
        """Whether the source has another topic of this name than the one that was copied."""
        return self.entry is not None and self.entry.is_replaced_by(inputs.source.topic_ids.get(self.tp.topic, ""))
