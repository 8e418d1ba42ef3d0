"""What a partition reports while it is read and acknowledged. `PartitionEvents` acts on each event at once: what follows depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mm2.copy.executor.partition.outbox import OutgoingBatch
from mm2.copy.executor.partition.window import SourceRange, WindowEvent
from mm2.kafka.errors import BrokerFailure, CorruptBatch
from mm2.kafka.records.batch import BatchView


@dataclass(frozen=True, slots=True)
class StateChanged:
    """Its state changes, perhaps its offset: it has to be committed and reported, see `Cursor.is_at_rest`."""


@dataclass(frozen=True, slots=True)
class BatchesQueued:
    """Its outbox has got batches."""


@dataclass(frozen=True, slots=True)
class GapDue:
    """The first gaps of its `GapQueue` have to be filled, and nothing is in flight."""

    version: int


@dataclass(frozen=True, slots=True)
class TransactionsBegin:
    """It begins to copy in transactions, and nothing of it was read."""


@dataclass(frozen=True, slots=True)
class PartitionStopped:
    """It has stopped."""


# -- the source


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The source rejects reads of it."""

    failure: BrokerFailure


@dataclass(frozen=True, slots=True)
class SourceRecreated:
    """The source topic was recreated."""

    topic_id: str


@dataclass(frozen=True, slots=True)
class SourceDiverged:
    """The source log was truncated: only records before this offset, and of this or an older leader epoch, are kept."""

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class PositionUnvalidated:
    """The position has to be validated (KIP-320), then `Source.validated` is called."""


@dataclass(frozen=True, slots=True)
class SessionEnds:
    """The session must not continue at the position, where all before is acknowledged: a predecessor may have sent other
    records with the sequences that follow (rule S9), or a successor would count other records (R9). `Cursor.suspended` until
    another session has begun.
    """


# -- records that a predecessor has put on the target


@dataclass(frozen=True, slots=True)
class PredecessorPassed:
    """The records of a session with other rules have been skipped; `Cursor.suspended` until another session has begun."""


@dataclass(frozen=True, slots=True)
class CountUncertain:
    """Counting is not possible: `CopyState.fingerprints` has to be set, then `CopyState.suspended` cleared."""


@dataclass(frozen=True, slots=True)
class RecordsReplaced:
    """So many records of a predecessor are on the target and not on the source, which has others from ``first`` on.

    ``exact``: they had the source offsets from ``first`` on. The partition is stopped if it must not continue.
    """

    first: int
    records: int
    exact: bool


@dataclass(frozen=True, slots=True)
class RecordsDeleted:
    """Source offsets ``first .. after-1`` were deleted before they were copied. The partition is stopped if it must not
    continue.
    """

    first: int
    after: int


# -- what cannot be copied. Where it is being written to the dead letter topic, the handler shows that in the partition's state.


@dataclass(frozen=True, slots=True)
class CorruptFetched:
    """A batch is corrupt or over the limit, and the window is about to get this entry for it. `CopyState.suspended` while it is
    being written to the dead letter topic, see `Cursor.finish_quarantine`.
    """

    view: BatchView
    error: CorruptBatch
    entry: SourceRange


@dataclass(frozen=True, slots=True)
class RecordTooLarge:
    """The target never accepts this record. `OutboxState.QUARANTINING` while it is being written to the dead letter topic,
    see `Cursor.quarantine`.
    """

    entry: SourceRange
    outgoing: OutgoingBatch


@dataclass(frozen=True, slots=True)
class BatchMalformed:
    """The target rejects a batch because of its content. The state is as for `RecordTooLarge`."""

    entry: SourceRange
    outgoing: OutgoingBatch
    error: CorruptBatch


@dataclass(frozen=True, slots=True)
class SizeLimitUnknown:
    """`Conditions.size_limit` has to be set for its record that is too large."""


PartitionEvent = (
    StateChanged
    | BatchesQueued
    | GapDue
    | TransactionsBegin
    | PartitionStopped
    | Unreadable
    | SourceRecreated
    | SourceDiverged
    | PositionUnvalidated
    | SessionEnds
    | PredecessorPassed
    | CountUncertain
    | RecordsReplaced
    | RecordsDeleted
    | CorruptFetched
    | RecordTooLarge
    | BatchMalformed
    | SizeLimitUnknown
    | WindowEvent
)
STATE_CHANGED: Final = StateChanged()
BATCHES_QUEUED: Final = BatchesQueued()
