"""The state of a partition that is copied, which its parts share: where it is read, its window, and why it is not copied now."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from mm2.copy.changes import Changer, TimeSlice
from mm2.copy.executor.partition.conditions import Conditions, now_ms
from mm2.copy.executor.partition.events import STATE_CHANGED, PartitionEvent, PartitionStopped, SessionEnds
from mm2.copy.executor.partition.outbox import Outbox
from mm2.copy.executor.partition.window import Window
from mm2.copy.progress.session import EpochStart, PartitionCondition
from mm2.copy.spec import PartitionSpec
from mm2.copy.states import BEHIND_OFFSETS, PartitionState, brief
from mm2.copy.tally import Tally
from mm2.kafka.records.codec import DECOMPRESSION_MAX_BYTES
from mm2.kafka.structs import TopicPartition


@dataclass(slots=True, eq=False)
class CopyState:
    """``emit`` reports what happens; what has to be done about it is done when it returns.

    While ``suspended`` a partition is not read, nor while a user has paused it. ``spec`` names the remote topic of the session.
    ``limit`` is ``decompression.max.bytes``. ``reencoding`` limits the time for re-encoding batches, shared by all
    partitions; None: no limit. ``tally`` counts batches.
    """

    spec: PartitionSpec
    outbox: Outbox
    emit: Callable[[PartitionEvent], None]
    tally: Tally
    read_committed: bool
    changes: (
        Changer | None
    )  # None: records are copied as they are. Both are other ones while a predecessor's session ends
    limit: int = DECOMPRESSION_MAX_BYTES
    reencoding: TimeSlice | None = None
    offset: int = -1
    suspended: bool = False
    leader_epoch: int = -1
    epochs: tuple[EpochStart, ...] = ()  # that were read, see `LedgerEntry.source_epochs`
    known_epoch: int = -1  # no batch of a higher leader epoch is counted as copied by a predecessor
    shared_until: int = -1  # see `LedgerEntry.shared_until`
    high_watermark: int = -1
    conditions: Conditions = field(default_factory=Conditions)
    #: Of the records of a predecessor that are still to be skipped, while they are compared by content.
    fingerprints: deque[int] | None = None
    window: Window = field(init=False)
    partition: TopicPartition = field(init=False)  # of the source

    def __post_init__(self) -> None:
        self.partition = self.spec.source
        self.window = Window(self.spec.target, self.emit)

    @property
    def stopped(self) -> bool:
        """Whether it has stopped in this micro-batch."""
        return self.conditions.stop is not None

    @property
    def is_preserved(self) -> bool:
        """Whether each source offset takes up the same offset on the target."""
        return self.window.is_preserved

    @property
    def is_counted(self) -> bool:
        """Whether it has a copy session, so that a successor counts what was copied."""
        return self.outbox.looked_up

    @property
    def behind(self) -> bool:
        """Far from the end of its source."""
        return self.high_watermark - self.offset > BEHIND_OFFSETS

    @property
    def is_matching(self) -> bool:
        """Whether the records of a predecessor are being compared by content."""
        return self.fingerprints is not None

    @property
    def idle(self) -> bool:
        """Whether everything fetched is on the target or dropped."""
        return not self.window.entries or self.is_matching

    def shares(self, offset: int) -> bool:
        """Whether a predecessor may have a request in flight with the record at this source offset, or a later one (rule S9)."""
        return offset < self.shared_until

    def when_idle(self, then: Callable[[], None]) -> None:
        """Call ``then`` once nothing is in flight."""
        self.window.next_when_empty = None
        if self.idle:
            then()
        else:
            self.window.next_when_empty = then

    def replace_session(self) -> None:
        """Read nothing more before another session has begun: the source has changed where a predecessor may have read it, or a
        record was left out that a successor would count.
        """
        self.emit(STATE_CHANGED)
        if not self.suspended:
            self.suspended = True
            self.when_idle(functools.partial(self.emit, SessionEnds()))

    def set_read_error(self, state: PartitionState, reason: str) -> None:
        """Reading is blocked at the moment."""
        self.emit(STATE_CHANGED)
        self.conditions.set_read(state, reason, max(self.offset, self.window.position))

    def fail(self, state: PartitionState, reason: str, *, at_source: bool = False) -> None:
        """Stop this partition; the others continue.

        ``at_source``: the reason is on the source, so records that were read are still copied. A reason on the target
        that is found meanwhile replaces it.
        """
        self.emit(STATE_CHANGED)
        conditions = self.conditions
        if conditions.stop is None or (conditions.is_stopped_at_source and not at_source):
            conditions.is_stopped_at_source = at_source
            offset = max(self.offset, self.window.position)
            conditions.stop = PartitionCondition(state, brief(reason), offset, now_ms())
            self.emit(PartitionStopped())
