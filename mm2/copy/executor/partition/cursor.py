"""One partition on its way from source to target: where it is read, what is known of both logs, and its condition.

Fetched batches are handled in `mm2.copy.executor.partition.fetched_batches`, sent by `mm2.copy.executor.partition.outgoing_records`; the position
advances in `mm2.copy.executor.partition.window`.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import structlog

from mm2.copy.changes import Changer, TimeSlice
from mm2.copy.executor.partition import history
from mm2.copy.executor.partition.conditions import Conditions, TooLargeRecord, now_ms
from mm2.copy.executor.partition.fetched_batches import COMPACTED, FetchedBatches
from mm2.copy.executor.partition.gap_queue import GapQueue
from mm2.copy.executor.partition.outbox import Outbox, OutgoingBatch
from mm2.copy.executor.partition.outgoing import content_error
from mm2.copy.executor.partition.outgoing_records import OutgoingRecords
from mm2.copy.executor.partition.predecessor import PredecessorRecords
from mm2.copy.executor.partition.window import SourceRange, Window
from mm2.copy.progress.segments import RESET
from mm2.copy.progress.session import (
    LOST_KEPT,
    UNBOUNDED,
    CopyId,
    EpochStart,
    FormerTopic,
    LedgerEntry,
    Lost,
    Mark,
    PartitionCondition,
)
from mm2.copy.progress.target_progress import FoundBatch
from mm2.copy.spec import PartitionSpec
from mm2.copy.states import BEHIND_OFFSETS, PartitionState, brief, healthy_state, state_of
from mm2.copy.tally import Rate, Summary, Tally
from mm2.kafka.errors import BatchOverLimit, BrokerFailure, CorruptBatch, KafkaFailure
from mm2.kafka.records.batch import BatchView
from mm2.kafka.records.codec import DECOMPRESSION_MAX_BYTES
from mm2.kafka.structs import TopicPartition
from mm2.kafka.wire.fetch import Fetched

log = structlog.get_logger("mm2.copy.executor.cursor")

QUEUE_LIMIT_BYTES: Final = 4 << 20
QUEUE_LIMIT_S: Final = 1.0


class Owner(Protocol):
    """What a cursor needs from the copier. All calls are on the loop's thread. ``tally`` counts batches."""

    tally: Tally

    @property
    def reads_committed(self) -> bool:
        """Whether the source is read up to the last stable offset only, also because of another partition."""

    def wake(self, cursor: Cursor) -> None:
        """Its state changes, perhaps its offset: it has to be committed and reported, see `Cursor.is_at_rest`."""

    def put(self, outbox: Outbox, outgoing: OutgoingBatch) -> None:
        """Send a batch."""

    def acked(self, cursor: Cursor, entry: SourceRange, last: int) -> None:
        """Source offsets ``entry.first``..``last`` are on the target from ``entry.target_base`` on (-1: unknown), in
        source order.
        """

    def unreadable(self, cursor: Cursor, failure: BrokerFailure) -> None:
        """The source rejects reads of the partition."""

    def stopped(self, cursor: Cursor) -> None:
        """The partition has stopped."""

    def source_recreated(self, cursor: Cursor, topic_id: str) -> None:
        """The source topic was recreated."""

    def diverged(self, cursor: Cursor, epoch: int, end_offset: int) -> None:
        """The source log was truncated: only records before this offset, and of this or an older leader epoch, are
        kept.
        """

    def unvalidated(self, cursor: Cursor) -> None:
        """The position has to be validated (KIP-320), then `Source.validated` is called."""

    def replaced(self, cursor: Cursor, first: int, records: int, *, exact: bool) -> None:
        """So many records of a predecessor are on the target and not on the source, which has others from ``first``
        on.

        ``exact``: they had the source offsets from ``first`` on. The cursor is stopped if it must not continue.
        """

    def deleted(self, cursor: Cursor, first: int, after: int) -> None:
        """Source offsets ``first .. after-1`` were deleted before they were copied. The cursor is stopped if it must
        not continue.
        """

    def finished(self, cursor: Cursor) -> None:
        """The records of a session with other rules have been skipped; `Cursor.suspended` until another session has
        begun.
        """

    def replace_session(self, cursor: Cursor) -> None:
        """The session must not continue at the position, where all before is acknowledged: a predecessor may have sent other
        records with the sequences that follow (rule S9), or a successor would count other records (R9). `Cursor.suspended` until
        another session has begun.
        """

    def epoch_read(self, cursor: Cursor) -> int | None:
        """Leader epoch of the source's leader that is read (-1: unknown); None while a follower is read."""

    def uncertain(self, cursor: Cursor) -> None:
        """Counting is not possible: `PredecessorRecords.fingerprints` has to be set, then
        `Cursor.suspended` cleared."""

    def too_large(self, cursor: Cursor, entry: SourceRange, outgoing: OutgoingBatch) -> bool:
        """The target never accepts this record; True when it is being written to the dead letter topic, see
        `Cursor.quarantine`.
        """

    def find_size_limit(self, cursor: Cursor) -> None:
        """Set `Conditions.size_limit` for its record that is too large."""

    def malformed(self, cursor: Cursor, entry: SourceRange, outgoing: OutgoingBatch, error: CorruptBatch) -> bool:
        """The target rejects a batch because of its content; True when it is being written to the dead letter topic,
        see `Cursor.quarantine`.
        """

    def corrupt(self, cursor: Cursor, view: BatchView, error: CorruptBatch, entry: SourceRange) -> bool:
        """A batch is corrupt or over the limit, and the window is about to get this entry for it. True when it is being written to the
        dead letter topic: `Cursor.suspended` until then, see `Cursor.finish_quarantine`.
        """

    def target_went_back(self, cursor: Cursor, base_offset: int) -> None:
        """The target assigned an offset below earlier ones."""

    def misplaced(self, cursor: Cursor, entry: SourceRange) -> None:
        """Offsets are preserved, and the target has appended a batch at another offset than that of the source."""

    def target_gap(self, cursor: Cursor, first: int, end: int, own: int) -> bool:
        """The target has records at offsets ``first .. end-1`` that were not acknowledged to this outbox, beside ``own``
        records that were. True when they are being searched for records of the session: `Window.gap_searched` follows.
        """


class FormerLog(NamedTuple):
    """Topic id ("": unknown) and newest known leader epoch (-1: unknown) of a remote topic that is no longer written to."""

    topic_id: str
    leader_epoch: int


@dataclass(slots=True, eq=False)
class Cursor:
    """A partition's receiver for the source (`PartitionReceiver`) and sender for the sink.

    While ``suspended`` it is not read, nor while a user has paused it. ``spec`` names the remote topic of the session.
    ``elsewhere`` is the log of that topic while it has another name than the topic of ``outbox``: the replication policy has
    changed, and the records of a predecessor's session are skipped. Nothing is sent before the next session.
    ``limit`` is ``decompression.max.bytes``. ``reencoding`` limits the time for re-encoding batches, shared by all
    partitions; None: no limit. With ``gaps`` each source offset takes up the same offset on the target.
    """

    spec: PartitionSpec
    outbox: Outbox
    owner: Owner
    read_committed: bool
    changes: (
        Changer | None
    )  # None: records are copied as they are. Both are other ones while a predecessor's session ends
    limit: int = DECOMPRESSION_MAX_BYTES
    reencoding: TimeSlice | None = None
    offset: int = -1
    suspended: bool = False
    passed_over: bool = False  # nothing of the last response was taken, for lack of time
    leader_epoch: int = -1
    epochs: tuple[EpochStart, ...] = ()  # that were read, see `LedgerEntry.source_epochs`
    known_epoch: int = -1  # no batch of a higher leader epoch is counted as copied by a predecessor
    shared_until: int = -1  # see `LedgerEntry.shared_until`
    topic_id: str = ""
    copy_id: CopyId = CopyId()  # noqa: RUF009  (immutable)
    #: In transactions: producer id of the record before the target offset of the position (-1: unknown).
    written_by: int = -1
    #: The predecessor has ended with the position acknowledged, so the target need not be compared.
    is_handed_off: bool = False
    retired: tuple[str, ...] = ()  # replaced topic ids of both sides
    former: FormerTopic | None = None  # see `LedgerEntry.former`
    elsewhere: FormerLog | None = None
    high_watermark: int = -1
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
    conditions: Conditions = field(default_factory=Conditions)
    gaps: GapQueue | None = None
    window: Window = field(init=False)
    predecessor: PredecessorRecords = field(init=False)
    partition: TopicPartition = field(init=False)  # of the source
    outgoing: OutgoingRecords = field(init=False)
    batches: FetchedBatches = field(init=False)

    def __post_init__(self) -> None:
        self.partition = self.spec.source
        self.predecessor = PredecessorRecords(
            self,
            functools.partial(self.owner.uncertain, self),
            functools.partial(self.owner.finished, self),
            functools.partial(self.owner.replaced, self),
            functools.partial(self.owner.deleted, self),
        )
        self.window = Window(
            self.spec.target,
            functools.partial(self.owner.acked, self),
            functools.partial(self.owner.target_went_back, self),
            functools.partial(self.owner.target_gap, self),
            functools.partial(self.owner.misplaced, self),
            hole_reason=COMPACTED,
        )
        tally = self.owner.tally
        self.outgoing = OutgoingRecords(self, functools.partial(self.owner.put, self.outbox), tally)
        self.batches = FetchedBatches(self, tally)

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
    def is_counted(self) -> bool:
        """Whether it has a copy session, so that a successor counts what was copied."""
        return self.outbox.looked_up

    @property
    def behind(self) -> bool:
        """Far from the end of its source."""
        return self.high_watermark - self.offset > BEHIND_OFFSETS

    @property
    def idle(self) -> bool:
        """Whether everything fetched is on the target or dropped."""
        return not self.window.entries or self.is_matching

    @property
    def is_matching(self) -> bool:
        """Whether the records of a predecessor are being compared by content."""
        return self.predecessor.fingerprints is not None

    @property
    def is_elsewhere(self) -> bool:
        """Whether the session, which is to end, is in a remote topic of another name."""
        return self.elsewhere is not None

    @property
    def stopped(self) -> bool:
        """Whether it has stopped in this micro-batch."""
        return self.conditions.stop is not None

    @property
    def is_at_rest(self) -> bool:
        """Whether its state does not change before `Owner.wake`: nothing is in flight, and it waits for nothing."""
        is_lasting = self.conditions.stop is not None or self.conditions.paused is not None
        is_waiting = self.high_watermark > self.offset and not is_lasting  # the state may depend on the time
        is_suspended = self.suspended and not (self.window.position < 0 and self.conditions.paused is not None)
        return not (is_waiting or is_suspended or self.window.entries) and self.outbox.idle

    @property
    def is_end_known(self) -> bool:
        """Whether the mark will be the end of the flow's records on the target when all that was read is acknowledged. It is not
        before copying has begun, or while records of a predecessor after it are still to be read past.
        """
        return self.window.position >= 0 and not self.predecessor.remaining and self.outgoing.there is None

    @property
    def has_ended(self) -> bool:
        """Whether it has stopped, and nothing that was read is still to be copied."""
        error = self.outbox.last_error
        is_waiting = self.gaps is not None and bool(self.gaps.waiting)
        is_copied = self.outbox.idle and not self.window.is_searching and not is_waiting
        is_refused = self.outbox.refused or (is_waiting and error is not None and error.is_final)
        return self.stopped and (not self.conditions.is_stopped_at_source or is_copied or is_refused)

    # -- the source's side -------------------------------------------------------------------------------------------

    def take(self, fetched: Fetched) -> None:
        """Turn fetched batches into outgoing batches. A corrupt batch stops this partition only."""
        self.owner.wake(self)
        self.high_watermark = self.known_end = fetched.high_watermark
        self.last_stable = fetched.last_stable_offset
        if self.shared_until == UNBOUNDED and self.owner.epoch_read(self) == self.known_epoch:
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

    def failed(self, failure: BrokerFailure) -> None:
        """The source rejects reads of this partition at the moment."""
        self.set_read_error(state_of(failure), str(failure))
        self.owner.unreadable(self, failure)

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
            self.owner.wake(self)

    def source_recreated(self, topic_id: str) -> None:
        """The topic was recreated."""
        self.owner.wake(self)
        self.owner.source_recreated(self, topic_id)

    def diverged(self, epoch: int, end_offset: int) -> None:
        """The source log was truncated to this leader epoch and offset (KIP-595, diverging epoch)."""
        self.owner.wake(self)
        if epoch < self.leader_epoch:
            end_offset, epoch = history.common_end(self.epochs, epoch, end_offset)
        if self.predecessor.remaining and end_offset >= self.offset:
            self.compare(epoch)
        else:
            self.owner.diverged(self, epoch, end_offset)

    def unvalidated(self) -> None:
        """The log of a new leader has to be compared with what was read, before anything is read from it."""
        self.owner.wake(self)
        self.owner.unvalidated(self)

    def compare(self, epoch: int = -1) -> None:
        """Records before the mark are still on the source, records that a predecessor copied after it may be not:
        compare them.
        """
        self.leader_epoch = epoch
        self.known_epoch = -1
        if self.predecessor.fingerprints is None:
            self.predecessor.compare()

    def shares(self, offset: int) -> bool:
        """Whether a predecessor may have a request in flight with the record at this source offset, or a later one (rule S9)."""
        return offset < self.shared_until

    def replace_session(self) -> None:
        """Read nothing more before another session has begun: the source has changed where a predecessor may have read it, or a
        record was left out that a successor would count.
        """
        self.owner.wake(self)
        if not self.suspended:
            self.suspended = True
            self.when_idle(lambda: self.owner.replace_session(self))

    def throttled(self, by: str, for_s: float = 0.0) -> None:
        """A limit or a quota prevents reading or writing for so many seconds."""
        self.conditions.throttled(by, for_s)

    # -- state changes -------------------------------------------------------------------------------------------

    def set_read_error(self, state: PartitionState, reason: str) -> None:
        """Reading is blocked at the moment."""
        self.owner.wake(self)
        self.conditions.set_read(state, reason, max(self.offset, self.window.position))

    def pause(self, reason: str, since_ms: int) -> None:
        """Stop reading. Records that were read are still copied."""
        self.owner.wake(self)
        offset = max(self.offset, self.window.position)
        self.conditions.paused = PartitionCondition(PartitionState.PAUSED, brief(reason), offset, since_ms)

    def resume(self) -> None:
        """Continue reading after a pause."""
        self.owner.wake(self)
        self.conditions.paused = None

    def annotate(self, note: str) -> None:
        """Report a message that stops nothing."""
        self.owner.wake(self)
        self.conditions.note = brief(note)

    def fail(self, state: PartitionState, reason: str, *, at_source: bool = False) -> None:
        """Stop this partition; the others continue.

        ``at_source``: the reason is on the source, so records that were read are still copied. A reason on the target
        that is found meanwhile replaces it.
        """
        self.owner.wake(self)
        conditions = self.conditions
        if conditions.stop is None or (conditions.is_stopped_at_source and not at_source):
            conditions.is_stopped_at_source = at_source
            offset = max(self.offset, self.window.position)
            conditions.stop = PartitionCondition(state, brief(reason), offset, now_ms())
            self.owner.stopped(self)

    def stop_with(self, condition: PartitionCondition) -> None:
        """Stop this partition for a known reason, before anything is read."""
        self.owner.wake(self)
        self.conditions.stop = condition
        self.owner.stopped(self)

    def begin(self, mark: Mark, *, skip: int = 0, there: Sequence[FoundBatch] = (), is_clean: bool = False) -> None:
        """Continue at a mark; ``skip`` records after it are on the target, in the batches ``there`` as far as that is known.
        ``is_clean``: no request of a predecessor is unanswered.

        If nothing has been copied yet, all current records of the source are a backlog.
        """
        self.owner.wake(self)
        self.backlog_end = 0 if mark.records or skip else -1
        self.offset = mark.source
        self.epochs = history.before(self.epochs, mark.source)
        self.window.begin(mark)
        self.outgoing.there = None
        if self.gaps is not None:
            self.gaps.begin(is_clean=is_clean)
        self.predecessor.begin(mark.records, skip, there)
        self.suspended = False
        if (paused := self.conditions.paused) is not None:
            self.conditions.paused = paused._replace(offset=mark.source)  # nothing behind it has been read

    def lead_in(self, first: int) -> None:
        """Continue at source offset ``first``, where copying begins. Where offsets are preserved, those before it are filled."""
        if self.gaps is not None:
            self.outgoing.lead_in(self.offset, first)
            self.offset = max(self.offset, first)

    def end_on_target(self, end: int) -> int:
        """Where the target ends, if it ended at this offset before gaps were filled: they do not wait for the ledger."""
        return end if self.gaps is None else max(end, self.gaps.reached)

    def move(self, offset: int) -> None:
        """Continue at an offset from which the source has other records; not while anything is in flight."""
        self.owner.wake(self)
        self.window.on_empty = None
        self.predecessor.conclude()
        self.window.trail.cut(offset)
        self.offset = self.window.position = offset
        self.epochs = history.before(self.epochs, offset)
        self.leader_epoch = self.known_epoch = -1

    def resume_log(self, entry: LedgerEntry) -> None:
        """The log that is read is the one of this entry, as far as it was read."""
        self.leader_epoch, self.known_epoch, self.epochs = entry.source_epoch, entry.known_epoch, entry.source_epochs
        self.topic_id, self.known_end = entry.source_id, entry.end

    def be_elsewhere(self, remote_topic: str, log: FormerLog) -> None:
        """The records of the predecessor's session are in this topic."""
        self.spec = dataclasses.replace(self.spec, remote_topic=remote_topic)
        self.elsewhere = log

    def leave_former_topic(self, position: int) -> None:
        """Records from this source offset on are sent to the topic of the outbox. What is known of the other topic does not
        apply to it.
        """
        self.former = FormerTopic(self.spec.remote_topic, position)
        self.spec = dataclasses.replace(self.spec, remote_topic=self.outbox.partition.topic)
        self.elsewhere = None
        self.window.trail.restart()
        self.window.foreign = 0

    def when_idle(self, then: Callable[[], None]) -> None:
        """Call ``then`` once nothing is in flight."""
        self.window.on_empty = None
        if self.idle:
            then()
        else:
            self.window.on_empty = then

    def jump(self, offset: int, reason: str) -> None:
        """Continue at another source offset; offsets that are left out are counted under ``reason``."""
        self.owner.wake(self)
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
        self.owner.wake(self)
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
        self.owner.wake(self)
        self.outbox.last_error = error

    def accepted(self) -> None:
        """The target accepts batches again."""
        self.owner.wake(self)
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
            if state is PartitionState.TOO_LARGE and self.owner.too_large(self, entry, outgoing):
                return
            is_refused = state is PartitionState.REFUSED
            if is_refused or (state is PartitionState.TOO_LARGE and outgoing.count > 1):
                conditions.content_error = error = content_error(outgoing, self.limit)
                is_malformed = is_refused and not isinstance(error, BatchOverLimit)
                if is_malformed and error is not None and self.owner.malformed(self, entry, outgoing, error):
                    return
        if state is PartitionState.TOO_LARGE and outgoing is not None and outgoing.count == 1 and entry is not None:
            conditions.too_large = TooLargeRecord.of(failure, entry.first, len(outgoing.data), self.spec.remote_topic)
            self.owner.find_size_limit(self)
        conditions.set_write(failure, self.partition, self.window.position)

    def corrupt(self, view: BatchView, error: CorruptBatch, entry: SourceRange) -> bool:
        """A batch is corrupt or over the limit; True when it is being written to the dead letter topic."""
        return self.owner.corrupt(self, view, error, entry)

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
        if is_at_rest and not (self.is_elsewhere or self.predecessor.remaining) and self.window.pass_others():
            outbox.end_offset = self.window.target

    def quarantine(self, entry: SourceRange, reason: str) -> None:
        """The entry's records will not be on the target; later records take their sequences."""
        outbox = self.outbox
        outgoing = outbox.queue.popleft()
        if outgoing.at >= 0:
            outbox.next = outgoing.at
            for other in outbox.queue:
                other.at = -1
        self.conditions.content_error = None
        if self.gaps is None:
            self.window.exclude(entry, reason)
            return
        # It is a run of records, so it has no holes.
        self.window.waiting_bytes -= entry.size
        entry.size, entry.count, entry.reason = 0, 0, reason
        self.gaps.fill_first(entry)

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
            self.offset, self.high_watermark, self.last_stable if self.owner.reads_committed else None
        )
        if condition is not None:
            return condition
        return PartitionCondition(healthy_state(self.high_watermark - self.offset), self.conditions.note, -1, -1)
