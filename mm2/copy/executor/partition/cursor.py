"""One partition on its way from source to target: where it is read, what is known of both logs, and its condition.

Fetched batches are handled in `mm2.copy.executor.partition.fetched_batches`, sent by `mm2.copy.executor.partition.outgoing_records`; the position
advances in `mm2.copy.executor.partition.window`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Final

import structlog

from mm2.copy.executor.partition import history
from mm2.copy.executor.partition.conditions import TooLargeRecord, now_ms
from mm2.copy.executor.partition.copy_state import CopyState
from mm2.copy.executor.partition.events import (
    BATCHES_QUEUED,
    STATE_CHANGED,
    BatchMalformed,
    PartitionStopped,
    PositionUnvalidated,
    RecordTooLarge,
    SizeLimitUnknown,
    SourceDiverged,
    SourceRecreated,
    Unreadable,
)
from mm2.copy.executor.partition.fetched_batches import COMPACTED, FetchedBatches
from mm2.copy.executor.partition.outbox import Outbox, OutboxState
from mm2.copy.executor.partition.outgoing_records import OutgoingRecords
from mm2.copy.executor.partition.predecessor import PredecessorRecords
from mm2.copy.executor.partition.preserved_records import PreservedRecords
from mm2.copy.executor.partition.split_and_merge import content_error
from mm2.copy.executor.partition.window import SourceRange
from mm2.copy.progress.segments import RESET
from mm2.copy.progress.session import (
    LOST_KEPT,
    UNBOUNDED,
    CopyId,
    CopyOrigin,
    FormerTopic,
    LedgerEntry,
    Lost,
    Mark,
    PartitionCondition,
)
from mm2.copy.progress.target_progress import FoundBatch
from mm2.copy.states import PartitionState, brief, healthy_state, state_of
from mm2.copy.tally import Rate, Summary
from mm2.kafka.errors import BatchOverLimit, BrokerFailure, KafkaFailure
from mm2.kafka.wire.fetch import Fetched

log = structlog.get_logger("mm2.copy.executor.cursor")

QUEUE_LIMIT_BYTES: Final = 4 << 20
QUEUE_LIMIT_S: Final = 1.0


@dataclass(slots=True, eq=False)
class Cursor(CopyState):
    """What the source reads, and what opens, commits and stops a partition.

    ``with_preserved_offsets``: see `mm2.copy.executor.partition.preserved_records`.
    """

    with_preserved_offsets: InitVar[bool] = False
    passed_over: bool = False  # nothing of the last response was taken, for lack of time
    reads_committed: bool = (
        False  # the source is read up to the last stable offset only, also because of another partition
    )
    topic_id: str = ""
    copy_id: CopyId = CopyId()  # noqa: RUF009  (immutable)
    #: Producer id of the record before the target offset of the position, if it was written in a transaction (see `LedgerEntry`).
    written_by: int = -1
    #: The predecessor has ended with the position acknowledged, so the target need not be compared.
    is_handed_off: bool = False
    origin: CopyOrigin = CopyOrigin()  # noqa: RUF009  (immutable)  # see `LedgerEntry.origin`
    retired: tuple[str, ...] = ()  # replaced topic ids of both sides
    former: FormerTopic | None = None  # see `LedgerEntry.former`
    last_stable: int = -1
    known_end: int = -1  # last known end offset of the source, also from a predecessor
    lost: list[Lost] = field(default_factory=list)
    lost_before: int = 0  # number of ranges no longer in ``lost``
    dead_letter_outbox: Outbox | None = (
        None  # of the dead letter topic, while something of the partition is being written there
    )
    ages_ms: Summary = field(default_factory=Summary)  # of live batches, when they were fetched
    latencies_ms: Summary = field(default_factory=Summary)  # and when they were acknowledged
    backlog_end: int = 0  # records before it existed before the first copy began
    rate: Rate = field(default_factory=Rate)  # bytes per second that were copied
    _is_identified: bool = False
    _then_identified: Callable[[], None] | None = None
    outgoing: OutgoingRecords = field(init=False)
    predecessor: PredecessorRecords = field(init=False)
    batches: FetchedBatches = field(init=False)

    def __post_init__(self, with_preserved_offsets: bool) -> None:
        CopyState.__post_init__(self)  # `super()` does not work in a class with slots
        self.window.hole_reason = COMPACTED
        self.outgoing = PreservedRecords(self) if with_preserved_offsets else OutgoingRecords(self)
        self.predecessor = PredecessorRecords(self, self.outgoing)
        self.batches = FetchedBatches(self, self.outgoing, self.predecessor)

    @property
    def full(self) -> bool:
        """Whether enough waits for the target, or has waited so long that the target accepts nothing at the moment.

        Each waiting batch keeps its whole response in memory, so a slow partition could hold gigabytes of other
        partitions' data.
        """
        is_paused = self.suspended or self.conditions.paused is not None
        if (
            is_paused
            or self.window.waiting_bytes >= QUEUE_LIMIT_BYTES
            or time.monotonic() < self.batches.delayed_until_s
        ):
            return True
        return not self.idle and (self.stuck or time.monotonic() - self.window.entries[0].since > QUEUE_LIMIT_S)

    @property
    def stuck(self) -> bool:
        """Whether the target rejects it, or it is suspended, paused or stopped: it need not be polled often."""
        is_paused = self.suspended or self.conditions.paused is not None
        return is_paused or self.outbox.refused or self.outbox.stopped

    @property
    def is_at_rest(self) -> bool:
        """Whether its state does not change before `StateChanged`: nothing is in flight, and it waits for nothing."""
        is_lasting = self.conditions.stop is not None or self.conditions.paused is not None
        is_waiting = self.high_watermark > self.offset and not is_lasting  # the state may depend on the time
        is_suspended = self.suspended and not (self.window.position < 0 and self.conditions.paused is not None)
        return not (is_waiting or is_suspended or self.window.entries) and self.outbox.idle

    @property
    def is_end_known(self) -> bool:
        """Whether the mark will be the end of the flow's records on the target when all that was read is acknowledged. It is not
        before copying has begun, or while records of a predecessor after it are still to be read past.
        """
        return self.window.position >= 0 and not self.predecessor.remaining and self.outgoing.copied is None

    @property
    def has_ended(self) -> bool:
        """Whether it has stopped, and nothing that was read is still to be copied."""
        error = self.outbox.last_error
        is_waiting = bool(self.outgoing.waiting)
        is_copied = self.outbox.idle and not self.window.is_searching and not is_waiting
        is_refused = self.outbox.refused or (is_waiting and error is not None and error.is_final)
        return self.stopped and (not self.conditions.is_stopped_at_source or is_copied or is_refused)

    # -- the source's side -------------------------------------------------------------------------------------------

    def take(self, fetched: Fetched, leader_epoch: int | None = None) -> None:
        """Turn fetched batches into outgoing batches. A corrupt batch stops this partition only.

        ``leader_epoch`` is that of the leader that is read (-1: unknown); None: a follower is read.
        """
        self.emit(STATE_CHANGED)
        self.high_watermark = self.known_end = fetched.high_watermark
        self.last_stable = fetched.last_stable_offset
        if self.shared_until == UNBOUNDED and leader_epoch == self.known_epoch:
            # The leader is the one that the predecessor has read, whose high watermark only grows.
            self.shared_until = fetched.high_watermark
        self.conditions.read = None
        if self.backlog_end < 0:
            self.backlog_end = fetched.high_watermark
        # The age of records in a backlog is unrelated to the latency of copying.
        self.outgoing.is_live = self.offset >= self.backlog_end and not self.behind
        self.passed_over = False
        if not fetched.records or self.suspended or self.conditions.paused is not None:
            return
        if self.reencoding is not None and self.reencoding.is_over:
            self.passed_over = True  # fetched again: the loop also renews the lease
            return
        try:
            self.batches.take(fetched)
        except Exception as error:
            log.exception("partition stopped by an internal error", partition=str(self.partition))
            self.fail(PartitionState.FAILED, f"{self.partition} cannot be read: {type(error).__name__}: {error}")
        if self.outbox.queue:
            self.emit(BATCHES_QUEUED)

    def failed(self, failure: BrokerFailure) -> None:
        """The source rejects reads of this partition at the moment."""
        self.set_read_error(state_of(failure), str(failure))
        self.emit(Unreadable(failure))

    def source_is(self, cluster_id: str) -> None:
        """The source is the cluster with this id. Positions and sessions are valid only in the one that was read before."""
        known = self.copy_id.cluster
        if known not in {"", cluster_id}:
            reason = (
                f"the source is cluster {cluster_id} now, and {self.partition} was copied from cluster {known}; `mm2 accept-source` decides "
                "where copying continues"
            )
            self.fail(PartitionState.SOURCE_REPLACED, reason, at_source=True)
        elif not known:
            self.copy_id = self.copy_id._replace(cluster=cluster_id)
            self.emit(STATE_CHANGED)

    def when_identified(self, call: Callable[[], None]) -> None:
        """Call it once the ids of the source's cluster and topic are known, instead of an earlier one."""
        self._then_identified = call
        if self._is_identified:
            self.identified()

    def identified(self) -> None:
        """The ids of the source's cluster and topic are known, as far as its brokers have any."""
        self._is_identified = True
        if self._then_identified is not None:
            call, self._then_identified = self._then_identified, None
            call()

    def source_recreated(self, topic_id: str) -> None:
        """The topic was recreated."""
        self.emit(STATE_CHANGED)
        self.emit(SourceRecreated(topic_id))

    def diverged(self, epoch: int, end_offset: int) -> None:
        """The source log was truncated to this leader epoch and offset (KIP-595, diverging epoch)."""
        self.emit(STATE_CHANGED)
        if epoch < self.leader_epoch:
            end_offset, epoch = history.common_end(self.epochs, epoch, end_offset)
        if self.predecessor.remaining and end_offset >= self.offset:
            self.compare(epoch)
        else:
            self.emit(SourceDiverged(epoch, end_offset))

    def unvalidated(self) -> None:
        """The log of a new leader has to be compared with what was read, before anything is read from it."""
        self.emit(STATE_CHANGED)
        self.emit(PositionUnvalidated())

    def compare(self, epoch: int = -1) -> None:
        """Records before the mark are still on the source, records that a predecessor copied after it may be not:
        compare them.
        """
        self.leader_epoch = epoch
        self.known_epoch = -1
        if self.fingerprints is None:
            self.predecessor.compare()

    def throttled(self, by: str, for_s: float = 0.0) -> None:
        """A limit or a quota prevents reading or writing for so many seconds."""
        self.conditions.throttled(by, for_s)

    # -- state changes -------------------------------------------------------------------------------------------

    def pause(self, reason: str, since_ms: int) -> None:
        """Stop reading. Records that were read are still copied."""
        self.emit(STATE_CHANGED)
        offset = max(self.offset, self.window.position)
        self.conditions.paused = PartitionCondition(PartitionState.PAUSED, brief(reason), offset, since_ms)

    def resume(self) -> None:
        """Continue reading after a pause."""
        self.emit(STATE_CHANGED)
        self.conditions.paused = None

    def annotate(self, note: str) -> None:
        """Report a message that stops nothing."""
        self.emit(STATE_CHANGED)
        self.conditions.note = brief(note)

    def stop_with(self, condition: PartitionCondition) -> None:
        """Stop this partition for a known reason, before anything is read."""
        self.emit(STATE_CHANGED)
        self.conditions.stop = condition
        self.emit(PartitionStopped())

    def begin(self, mark: Mark, *, skip: int = 0, found: Sequence[FoundBatch] = (), is_clean: bool = False) -> None:
        """Continue at a mark; ``skip`` records after it are on the target, in the batches ``found`` as far as that is known.
        ``is_clean``: no request of a predecessor is unanswered.

        If nothing has been copied yet, all current records of the source are a backlog.
        """
        self.emit(STATE_CHANGED)
        self.backlog_end = 0 if mark.records or skip else -1
        self.offset = mark.source
        self.epochs = history.before(self.epochs, mark.source)
        self.window.begin(mark)
        self.outgoing.begin(is_clean=is_clean)
        self.predecessor.begin(mark.records, skip, found)
        self.suspended = False
        if (paused := self.conditions.paused) is not None:
            self.conditions.paused = paused._replace(offset=mark.source)  # nothing behind it has been read

    def move(self, offset: int) -> None:
        """Continue at an offset from which the source has other records; not while anything is in flight."""
        self.emit(STATE_CHANGED)
        self.window.next_when_empty = None
        self.predecessor.conclude()
        self.window.trail.cut(offset)
        self.offset = self.window.position = offset
        self.epochs = history.before(self.epochs, offset)
        self.leader_epoch = self.known_epoch = -1

    def resume_log(self, entry: LedgerEntry) -> None:
        """The log that is read is the one of this entry, as far as it was read."""
        self.leader_epoch, self.known_epoch, self.epochs = entry.source_epoch, entry.known_epoch, entry.source_epochs
        self.topic_id, self.known_end = entry.source_id, entry.end

    def jump(self, offset: int, reason: str) -> None:
        """Continue at another source offset; offsets that are left out are counted under ``reason``."""
        self.emit(STATE_CHANGED)
        predecessor = self.predecessor
        if offset > self.offset:
            predecessor.has_holes = predecessor.has_holes or predecessor.remaining > 0
            if predecessor.is_counted:
                predecessor.compare()
                return
            predecessor.drop_deleted(self.offset, offset, reason)
        elif self.idle:
            self.window.position = offset
        self.offset = offset

    def add_lost_range(self, first: int, after: int, reason: str) -> None:
        """Record a range that will never be copied."""
        self.emit(STATE_CHANGED)
        self.lost.append(Lost(first, after, reason, now_ms()))

    def copy_again(self, offset: int) -> None:
        """What an earlier position has left out from this offset on is copied now."""
        kept = []
        for lost in self.lost:
            first = max(lost.first, offset) if lost.reason == RESET else lost.after
            if first < lost.after:
                self.window.trail.no_longer_missing(first, lost.after, RESET)
            if first > lost.first:
                kept.append(lost._replace(after=min(first, lost.after)))
        self.lost = kept

    def kept_losses(self) -> tuple[tuple[Lost, ...], int]:
        """The ranges that the ledger lists, and the number of earlier ones."""
        return tuple(self.lost[-LOST_KEPT:]), self.lost_before + max(0, len(self.lost) - LOST_KEPT)

    def set_target_error(self, error: KafkaFailure | None) -> None:
        """The target rejects what this partition needs of it at the moment; None: it does not."""
        self.emit(STATE_CHANGED)
        self.outbox.last_error = error

    def accepted(self) -> None:
        """The target accepts batches again."""
        self.emit(STATE_CHANGED)
        conditions = self.conditions
        conditions.content_error = conditions.too_large = conditions.write = None

    def rejected(self, failure: KafkaFailure) -> None:
        """The target rejects this partition's first batch."""
        conditions = self.conditions
        conditions.content_error, conditions.too_large = None, None
        outgoing = self.outbox.queue[0] if self.outbox.queue else None
        entry = next((entry for entry in self.window.entries if not entry.done), None)
        state = state_of(failure)
        if outgoing is not None and entry is not None:
            if state is PartitionState.TOO_LARGE:
                self.emit(RecordTooLarge(entry, outgoing))
                if self.outbox.state is OutboxState.QUARANTINING:
                    return
            is_refused = state is PartitionState.REFUSED
            if is_refused or (state is PartitionState.TOO_LARGE and outgoing.count > 1):
                conditions.content_error = error = content_error(outgoing, self.limit)
                is_malformed = is_refused and not isinstance(error, BatchOverLimit)
                if is_malformed and error is not None:
                    self.emit(BatchMalformed(entry, outgoing, error))
                    if self.outbox.state is OutboxState.QUARANTINING:
                        return
        if state is PartitionState.TOO_LARGE and outgoing is not None and outgoing.count == 1 and entry is not None:
            conditions.too_large = TooLargeRecord.of(failure, entry.first, len(outgoing.data), self.spec.remote_topic)
            self.emit(SizeLimitUnknown())
        conditions.set_write(failure, self.partition, self.window.position)

    def finish_quarantine(self, entry: SourceRange) -> bool:
        """A corrupt batch has been written to the dead letter topic. False if the partition has begun elsewhere meanwhile: the
        batch is read again.
        """
        if entry not in self.window.entries:
            return False
        self.outgoing.drop_entry(entry)
        return True

    @property
    def is_sequence_shared(self) -> bool:
        """Whether an unanswered request may have the sequence of the next record. Then other records than the source had
        must not take it (rule S9).
        """
        return self.outbox.looked_up and (self.shares(self.window.position) or self.outbox.is_doubtful)

    def pass_others(self) -> None:
        """Where nothing of a session is in flight, its successor need not read what other copies have put on the target since."""
        outbox = self.outbox
        is_at_rest = outbox.looked_up and outbox.idle and outbox.acked == outbox.next == self.window.records
        if is_at_rest and not self.predecessor.remaining and self.window.pass_others():
            outbox.end_offset, self.written_by = self.window.target, -1

    def quarantine(self, entry: SourceRange, reason: str) -> None:
        """The entry's records will not be on the target; later records take their sequences."""
        outbox = self.outbox
        outgoing = outbox.queue.popleft()
        if outgoing.at >= 0:
            outbox.next = outgoing.at
            for other in outbox.queue:
                other.at = -1
        self.conditions.content_error = None
        self.outgoing.exclude(entry, reason)

    def current_condition(self) -> PartitionCondition | None:
        """Why it cannot continue now; None if it can."""
        conditions = self.conditions
        if conditions.stop is not None:
            return conditions.stop
        if conditions.paused is not None:
            return conditions.paused if self.is_end_known else conditions.paused._replace(offset=-1)
        last_error = self.outbox.last_error if self.dead_letter_outbox is None else self.dead_letter_outbox.last_error
        if last_error is not None:
            conditions.set_write(last_error, self.partition, self.window.position)
        elif not self.outbox.refused:
            conditions.write = None
        return conditions.write or conditions.read

    def current_state(self) -> PartitionCondition:
        """Its state, and unless it is healthy the reason, the offset and since when."""
        # Checked here and not in `take`: a fetch session's response leaves out unchanged partitions.
        condition = self.current_condition() or self.conditions.waiting(
            self.offset, self.high_watermark, self.last_stable if self.reads_committed else None
        )
        if condition is not None:
            return condition
        return PartitionCondition(healthy_state(self.high_watermark - self.offset), self.conditions.note, -1, -1)
