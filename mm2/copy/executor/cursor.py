"""One partition on its way from source to target: batches are passed on unchanged, re-encoded, or dropped.

A broker accepts a batch from a producer only if it is magic 2, without holes, with CreateTime and without control
records (`LogValidator`). Fetched batches are handled as follows:

    control batches, aborted ones under read_committed, empty ones   dropped, and counted by reason
    holes, LogAppendTime, magic 0/1, batches begun before our offset  re-encoded with the same codec
    tiny ones in a row                                               merged
    all, where `Cursor.changes` are set                              decoded, changed, encoded with the same codec if
                                                                     any of their records has changed
    everything else                                                  passed on as bytes

Records that a predecessor has put on the target are skipped, see `mm2.copy.executor.predecessor`. The position advances
in `mm2.copy.executor.window`.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import structlog

from mm2.copy.executor import history
from mm2.copy.executor.changes import ChangedBatch, ChangeDelayed, Changer, DroppedRange, TimeSlice, dropped_in
from mm2.copy.executor.conditions import Conditions, now_ms
from mm2.copy.executor.gap_queue import FILLED_AT_ONCE, GapQueue
from mm2.copy.executor.outbox import Outbox, OutgoingBatch
from mm2.copy.executor.outgoing import content_error, outgoing_batch
from mm2.copy.executor.predecessor import PredecessorRecords
from mm2.copy.executor.window import SourceRange, Window, runs
from mm2.copy.session import LOST_KEPT, EpochStart, FormerTopic, Lost, Mark, PartitionCondition
from mm2.copy.spec import PartitionSpec
from mm2.copy.states import PartitionState, state_of
from mm2.copy.tally import PASSTHROUGH, Rate, Summary, Tally
from mm2.kafka.errors import BatchOverLimit, BrokerFailure, CorruptBatch
from mm2.kafka.records.batch import BatchHeader, BatchView, check_crc, iter_batches, read_header
from mm2.kafka.records.codec import DECOMPRESSION_MAX_BYTES
from mm2.kafka.records.merge import Merged, coalesce
from mm2.kafka.records.record import Record, Rewritten, decode_batch, encode_batch, rewrite
from mm2.kafka.records.transactions import AbortedTransactions
from mm2.kafka.structs import TopicPartition
from mm2.kafka.wire.fetch import Fetched

log = structlog.get_logger(__name__)

QUEUE_LIMIT_BYTES: Final = 4 << 20
QUEUE_LIMIT_S: Final = 1.0
QUARANTINED: Final = "quarantined"
#: Why a source log has no record at an offset: it was compacted, or the topic is not compacted and the record is missing.
COMPACTED: Final = "compacted"
MISSING: Final = "missing"
#: From this number of source offsets behind on, a partition is catching up.
BEHIND_OFFSETS: Final = 10_000


class Owner(Protocol):
    """What a cursor needs from the copier. All calls are on the loop's thread. ``tally`` counts batches."""

    tally: Tally

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

    def uncertain(self, cursor: Cursor) -> None:
        """Counting is not possible: `PredecessorRecords.fingerprints` has to be set, then
        `Cursor.suspended` cleared."""

    def too_large(self, cursor: Cursor, entry: SourceRange, outgoing: OutgoingBatch) -> bool:
        """The target never accepts this record; True when it is being written to the dead letter topic, see
        `Cursor.quarantine`.
        """

    def malformed(self, cursor: Cursor, entry: SourceRange, outgoing: OutgoingBatch, error: CorruptBatch) -> bool:
        """The target rejects a batch because of its content; True when it is being written to the dead letter topic,
        see `Cursor.quarantine`.
        """

    def corrupt(self, cursor: Cursor, view: BatchView, error: CorruptBatch) -> bool:
        """A batch is corrupt or over the limit; True when it is being written to the dead letter topic: `Cursor.suspended` until then,
        see `Cursor.finish_quarantine`.
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


class CopiedRange(NamedTuple):
    """The source offsets before ``end`` are on the target, with ``records`` of the session."""

    end: int
    records: int


@dataclass(slots=True, eq=False)
class Cursor:
    """A partition's receiver for the source (`PartitionReceiver`) and sender for the sink.

    While ``suspended`` it is not read, nor while a user has paused it. ``spec`` names the remote topic of the session.
    ``elsewhere`` is the log of that topic while it has another name than the topic of ``outbox``: the replication policy has
    changed, and the records of a predecessor's session are skipped. Nothing is sent before the next session.
    ``limit`` is ``decompression.max.bytes``. ``reencoding`` limits the time for re-encoding batches, shared by all
    partitions; None: no limit. With ``gaps`` each source offset takes up the same offset on the target; ``there`` is what a
    predecessor has put there, which is read again for the reasons of its gaps.
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
    topic_id: str = ""
    retired: tuple[str, ...] = ()  # replaced topic ids of both sides
    former: FormerTopic | None = None  # see `LedgerEntry.former`
    elsewhere: FormerLog | None = None
    high_watermark: int = -1
    last_stable: int = -1
    known_end: int = -1  # last known end offset of the source, also from a predecessor
    lost: list[Lost] = field(default_factory=list)
    lost_before: int = 0  # number of ranges no longer in ``lost``
    dead_letter_outbox: Outbox | None = (
        None  # of the dead letter topic, while a record of this partition is being written there
    )
    ages_ms: Summary = field(default_factory=Summary)  # of live batches, when they were fetched
    latencies_ms: Summary = field(default_factory=Summary)  # and when they were acknowledged
    backlog_end: int = 0  # records before it existed before the first copy began
    rate: Rate = field(default_factory=Rate)  # bytes per second that were copied
    conditions: Conditions = field(default_factory=Conditions)
    gaps: GapQueue | None = None
    there: CopiedRange | None = None
    window: Window = field(init=False)
    predecessor: PredecessorRecords = field(init=False)
    partition: TopicPartition = field(init=False)  # of the source
    _live: bool = False
    _corrupt_at: int = -1
    _is_cut: bool = False  # the rest of what was fetched has to be fetched again, to be changed or re-encoded
    _delayed_until: float = 0.0  # monotonic: a record cannot be changed before

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

    @property
    def full(self) -> bool:
        """Whether enough waits for the target, or has waited so long that the target accepts nothing at the moment.

        Each waiting batch keeps its whole response in memory, so a slow partition could hold gigabytes of other
        partitions' data.
        """
        is_paused = self.suspended or self.conditions.paused is not None
        if is_paused or self.window.waiting_bytes >= QUEUE_LIMIT_BYTES or time.monotonic() < self._delayed_until:
            return True
        return not self.idle and (self.stuck or time.monotonic() - self.window.entries[0].since > QUEUE_LIMIT_S)

    @property
    def stuck(self) -> bool:
        """Whether the target rejects it, or it is suspended, paused or stopped: it need not be polled often."""
        is_paused = self.suspended or self.conditions.paused is not None
        return is_paused or self.outbox.refused or self.outbox.stopped

    @property
    def behind(self) -> bool:
        """Far from the end of its source."""
        return self.high_watermark - self.offset > BEHIND_OFFSETS

    @property
    def idle(self) -> bool:
        """Whether everything fetched is on the target or dropped."""
        return not self.window.entries or self.predecessor.fingerprints is not None

    @property
    def is_elsewhere(self) -> bool:
        """Whether the session, which is to end, is in a remote topic of another name."""
        return self.elsewhere is not None

    @property
    def stopped(self) -> bool:
        """Whether it has stopped in this micro-batch."""
        return self.conditions.stop is not None

    @property
    def has_ended(self) -> bool:
        """Whether it has stopped, and nothing that was read is still to be copied."""
        is_copied = self.outbox.idle and not self.window.is_searching
        return self.stopped and (not self.conditions.is_stopped_at_source or is_copied or self.outbox.refused)

    # -- the source's side -------------------------------------------------------------------------------------------

    def take(self, fetched: Fetched) -> None:
        """Turn fetched batches into outgoing batches. A corrupt batch stops this partition only."""
        self.high_watermark = self.known_end = fetched.high_watermark
        self.last_stable = fetched.last_stable_offset
        self.conditions.read = None
        if self.backlog_end < 0:
            self.backlog_end = fetched.high_watermark
        # The age of records in a backlog is unrelated to the latency of copying.
        self._live = self.offset >= self.backlog_end and not self.behind
        self.passed_over = False
        if not fetched.records or self.suspended or self.conditions.paused is not None:
            return
        if self.reencoding is not None and self.reencoding.is_over:
            self.passed_over = True  # fetched again: the loop also renews the lease
            return
        aborted = AbortedTransactions(fetched.aborted)
        self._is_cut = False
        try:
            for view in self._batches(fetched):
                if isinstance(view, Merged):
                    self._take_merged(view)
                elif not self._take_checked(view, aborted):
                    return
        except CorruptBatch as error:
            self._corrupt(error)
        except Exception as error:
            log.exception("partition stopped by an internal error", partition=str(self.partition))
            self.fail(PartitionState.FAILED, f"{self.partition} cannot be read: {type(error).__name__}: {error}")

    def failed(self, failure: BrokerFailure) -> None:
        """The source rejects reads of this partition at the moment."""
        self.set_read_error(state_of(failure), str(failure))
        self.owner.unreadable(self, failure)

    def source_recreated(self, topic_id: str) -> None:
        """The topic was recreated."""
        self.owner.source_recreated(self, topic_id)

    def diverged(self, epoch: int, end_offset: int) -> None:
        """The source log was truncated to this leader epoch and offset (KIP-595, diverging epoch)."""
        if epoch < self.leader_epoch:
            end_offset, epoch = history.common_end(self.epochs, epoch, end_offset)
        if self.predecessor.remaining and end_offset >= self.offset:
            self.compare(epoch)
        else:
            self.owner.diverged(self, epoch, end_offset)

    def unvalidated(self) -> None:
        """The log of a new leader has to be compared with what was read, before anything is read from it."""
        self.owner.unvalidated(self)

    def compare(self, epoch: int = -1) -> None:
        """Records before the mark are still on the source, records that a predecessor copied after it may be not:
        compare them.
        """
        self.leader_epoch = epoch
        self.known_epoch = -1
        if self.predecessor.fingerprints is None:
            self.predecessor.compare()

    def throttled(self, by: str, for_s: float = 0.0) -> None:
        """A limit or a quota prevents reading or writing for so many seconds."""
        self.conditions.throttled(by, for_s)

    # -- state changes -------------------------------------------------------------------------------------------

    def set_read_error(self, state: PartitionState, reason: str) -> None:
        """Reading is blocked at the moment."""
        self.conditions.set_read(state, reason, max(self.offset, self.window.position))

    def pause(self, reason: str, since_ms: int) -> None:
        """Stop reading. Records that were read are still copied."""
        offset = max(self.offset, self.window.position)
        self.conditions.paused = PartitionCondition(PartitionState.PAUSED, reason, offset, since_ms)

    def fail(self, state: PartitionState, reason: str, *, at_source: bool = False) -> None:
        """Stop this partition; the others continue.

        ``at_source``: the reason is on the source, so records that were read are still copied. A reason on the target
        that is found meanwhile replaces it.
        """
        conditions = self.conditions
        if conditions.stop is None or (conditions.is_stopped_at_source and not at_source):
            conditions.is_stopped_at_source = at_source
            conditions.stop = PartitionCondition(state, reason, max(self.offset, self.window.position), now_ms())
            self.owner.stopped(self)

    def stop_with(self, condition: PartitionCondition) -> None:
        """Stop this partition for a known reason, before anything is read."""
        self.conditions.stop = condition
        self.owner.stopped(self)

    def begin(self, mark: Mark, *, skip: int = 0, skip_base: int = -1, is_clean: bool = False) -> None:
        """Continue at a mark; ``skip`` records after it are on the target, from ``skip_base`` on if they are
        contiguous. ``is_clean``: no request of a predecessor is unanswered.

        If nothing has been copied yet, all current records of the source are a backlog.
        """
        self.backlog_end = 0 if mark.records or skip else -1
        self.offset = mark.source
        self.epochs = history.before(self.epochs, mark.source)
        self.window.begin(mark)
        self.there = None
        if self.gaps is not None:
            self.gaps.begin(is_clean=is_clean)
        self.predecessor.begin(skip, skip_base)
        self.suspended = False

    def move(self, offset: int) -> None:
        """Continue at an offset from which the source has other records; not while anything is in flight."""
        self.window.on_empty = None
        self.predecessor.conclude()
        self.window.trail.cut(offset)
        self.offset = self.window.position = offset
        self.epochs = history.before(self.epochs, offset)
        self.leader_epoch = self.known_epoch = -1

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
        self.lost.append(Lost(first, after, reason, now_ms()))

    def kept_losses(self) -> tuple[tuple[Lost, ...], int]:
        """The ranges that the ledger lists, and the number of earlier ones."""
        return tuple(self.lost[-LOST_KEPT:]), self.lost_before + max(0, len(self.lost) - LOST_KEPT)

    def refused(self, failure: Exception | None) -> None:
        """The target rejects this partition's first batch (or accepts it again: None)."""
        conditions = self.conditions
        conditions.content_error, conditions.too_large_record = None, ""
        if failure is None:
            conditions.write = None
            return
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
            conditions.too_large_record = (
                f"The record at source offset {entry.first} takes {len(outgoing.data):,} bytes. Raise max.message.bytes of topic "
                f"{self.spec.remote_topic}, or set errors.tolerance=all to write it to the dead letter topic."
            )
        conditions.set_write(failure, self.partition, self.window.position)

    def finish_quarantine(self) -> None:
        """The corrupt batch has been written to the dead letter topic. Called once for each that `Owner.corrupt`
        accepted.
        """
        entries = self.window.entries
        entry = next((entry for entry in entries if entry.reason == QUARANTINED and not entry.done), None)
        if entry is not None:  # otherwise the target was truncated meanwhile: the batch is read again
            self._dropped(entry)

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
        lasting = conditions.stop or conditions.paused
        if lasting is not None:
            return lasting
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
            self.offset, self.high_watermark, self.last_stable if self.read_committed else None
        )
        if condition is not None:
            return condition
        state = PartitionState.CATCHING_UP if self.behind else PartitionState.RUNNING
        return PartitionCondition(state, self.conditions.note, -1, -1)

    def _batches(self, fetched: Fetched) -> Iterable[BatchView | Merged]:
        if self.predecessor.remaining or self.changes is not None or self.there is not None:
            return iter_batches(fetched.records)
        # Merging compressed ones costs more than passing them on, unless there are too many for the connection to the target. Others
        # are merged while they wait for it (`Outbox.merge_waiting`).
        return coalesce(
            fetched.records,
            self.offset,
            compressed=self.behind,
            transactional=not (self.read_committed and fetched.aborted),
            limit=self.limit,
        )

    # -- batches -------------------------------------------------------------------------------------------------------

    def _corrupt(self, error: CorruptBatch) -> None:
        if isinstance(error, BatchOverLimit):
            self.fail(PartitionState.OVER_LIMIT, f"{self.partition}: {error}", at_source=True)
            return
        if self._corrupt_at != self.offset:
            self._corrupt_at = self.offset  # a transmission error does not repeat; corruption on the disk does
            return
        self.fail(PartitionState.CORRUPT, f"{self.partition}: {error}", at_source=True)

    def _take_checked(self, view: BatchView, aborted: AbortedTransactions) -> bool:
        """Take a batch; False when later batches have to wait."""
        before = self.offset
        try:
            self._take_batch(view, aborted)
        except CorruptBatch as error:
            header = view.header
            is_known = self._corrupt_at == before or isinstance(error, BatchOverLimit)
            if self.predecessor.is_counted and is_known:
                self.predecessor.compare()  # a predecessor may have read it intact, so counting is not possible
                return False
            if header is None or not is_known or not self.owner.corrupt(self, view, error):
                raise
            after = max(header.last_offset + 1, before)
            # Not done yet: the position may pass it only after it has been written to the dead letter topic.
            self.window.append(SourceRange(before, after, reason=QUARANTINED))
            self.offset = after
        return not (self.suspended or self.stopped or self._is_cut)

    def _take_merged(self, merged: Merged) -> None:
        if merged.first > self.offset:
            self.drop(self.offset, merged.first, self.window.hole_reason)
        self.leader_epoch = self.known_epoch = merged.leader_epoch
        self.epochs = history.read(self.epochs, merged.leader_epoch, merged.first)
        self.owner.tally.count("merged", merged.batches)
        self._send(memoryview(merged.data), merged.header, merged.first, merged.after, is_merged=True)
        self.offset = merged.after

    def _take_batch(self, view: BatchView, aborted: AbortedTransactions) -> None:
        header, predecessor = view.header, self.predecessor
        if header is None:
            self._take_legacy(view)
            return
        hidden = aborted.covers(view)
        if header.last_offset < self.offset:
            return  # a fetch starts at the batch that contains the offset, which may have been handled
        check_crc(header, view.data)
        is_newer = header.leader_epoch > self.known_epoch
        if header.base_offset > self.offset or is_newer:
            predecessor.has_holes = predecessor.has_holes or (
                predecessor.remaining > 0 and header.base_offset > self.offset
            )
            if predecessor.is_counted:
                predecessor.compare()
                return
        if header.base_offset > self.offset:
            self.drop(self.offset, header.base_offset, self.window.hole_reason)
            self.offset = header.base_offset
        after = header.last_offset + 1
        self.leader_epoch = header.leader_epoch
        self.epochs = history.read(self.epochs, header.leader_epoch, self.offset)
        if not predecessor.remaining:
            self.known_epoch = header.leader_epoch
        if header.is_control:
            self.drop(self.offset, after, "control")
        elif hidden and self.read_committed:
            self.drop(self.offset, after, "aborted")
        elif self.changes is not None:
            self._change(self.changes, view, after, header.codec)
            return
        elif self.there is not None:
            self._read_past(view, after, self.there)
        elif predecessor.remaining:
            self._skip(view, after)
            if self.suspended or self.stopped:
                return
        elif self._is_whole(header):
            paths = self.owner.tally.paths
            paths[PASSTHROUGH] = paths.get(PASSTHROUGH, 0) + 1
            self._send(view.data, header, self.offset, after)
        else:
            self._reencode(view, self.offset, after)
        self.offset = after

    def _take_legacy(self, view: BatchView) -> None:
        rewritten = rewrite(view, keep=lambda offset: offset >= self.offset, limit=self.limit)
        self._is_cut = self.reencoding is not None and self.reencoding.is_over
        if rewritten is None:
            return
        after = rewritten.offsets[-1] + 1
        if self.changes is not None:
            self._change(self.changes, view, after, view.legacy_codec)
            return
        if self.there is not None:
            self._read_past(view, after, self.there)
        elif self.predecessor.remaining:
            self._skip(view, after)
            if self.suspended or self.stopped:
                return
        else:
            self.owner.tally.count("old_format")
            self._send_rewritten(rewritten, self.offset, after)
        self.offset = after

    # -- changes -------------------------------------------------------------------------------------------------------

    def _change(self, changes: Changer, view: BatchView, after: int, codec: int) -> None:
        """Change the records of a batch that ends before source offset ``after``, and send those that are left."""
        changed = changes.change(self.spec, view, self.offset, after)
        self._is_cut = changed.is_last
        if self.predecessor.remaining:
            fresh = self.predecessor.skip(view, changed.after, changed)
            if self.suspended or self.stopped:
                return
            self.offset = fresh
        elif self.there is not None and self.offset < min(self.there.end, changed.after):
            self._add_copied([record.offset for record in changed.records], min(self.there.end, changed.after), changed)
        header = view.header
        records = [record for record in changed.records if record.offset >= self.offset]
        if records and changed.is_unchanged and header is not None and self._is_whole(header):
            self.owner.tally.count(PASSTHROUGH)
            self._send(view.data, header, self.offset, after)
        elif records:
            self.owner.tally.count("transformed")
            self._send_changed(records, changed, codec)
        elif self.offset < changed.after:
            self.drop_holes(self.offset, changed.after, changed)
        self.offset = changed.after
        if isinstance(changed.failure, ChangeDelayed):
            self._delayed_until = time.monotonic() + changed.failure.after_s
            # Not FAILED, which fails the task with partition.error=fail: it may succeed later.
            self.set_read_error(PartitionState.UNREACHABLE, str(changed.failure))
        elif changed.failure is not None:
            self.fail(PartitionState.FAILED, str(changed.failure), at_source=True)

    def _is_whole(self, header: BatchHeader) -> bool:
        """Whether a batch can be passed on as it is, and nothing of it was read before."""
        return header.is_plain and header.base_offset == self.offset

    def _send_runs(
        self, records: list[Record], first: int, after: int, codec: int, changed: ChangedBatch | None
    ) -> None:
        """Send the records of source offsets ``first .. after-1`` in one batch for each run of consecutive offsets."""
        at = 0
        for start, count in runs(record.offset for record in records):
            self.drop_holes(first, start, changed)
            data = encode_batch(records[at : at + count], codec=codec)
            at, first = at + count, start + count
            self._send(memoryview(data), read_header(data), start, first)
        self.drop_holes(first, after, changed)

    def _send_changed(self, records: list[Record], changed: ChangedBatch, codec: int) -> None:
        if self.gaps is not None:
            self._send_runs(records, self.offset, changed.after, codec, changed)
            return
        data, offsets = encode_batch(records, codec=codec), [record.offset for record in records]
        dense = len(offsets) == changed.after - self.offset
        header = read_header(data)
        self._send(memoryview(data), header, self.offset, changed.after, None if dense else offsets, changed.dropped)

    def drop_holes(self, first: int, after: int, changed: ChangedBatch | None) -> None:
        """Source offsets ``first .. after-1`` have no record for the target, each for its own reason."""
        dropped = () if changed is None else changed.dropped
        if first < after:
            for start, end, reason in dropped_in(dropped, first, after, self.window.hole_reason):
                self.drop(start, end, reason)

    def _skip(self, view: BatchView, after: int) -> None:
        """Skip the records of a batch that a predecessor has copied, and send the others."""
        fresh = self.predecessor.skip(view, after)
        if fresh < after and not (self.suspended or self.stopped):
            self.offset = fresh
            self._reencode(view, fresh, after)

    def _reencode(self, view: BatchView, start: int, after: int) -> None:
        rewritten = rewrite(view, keep=lambda offset: offset >= start, limit=self.limit)
        self._is_cut = self.reencoding is not None and self.reencoding.is_over
        if rewritten is None:
            self.drop(self.offset, after, self.window.hole_reason)
            return
        self.owner.tally.count(_reencode_reason(view, start))
        self._send_rewritten(rewritten, self.offset, after)

    def _send_rewritten(self, rewritten: Rewritten, first: int, after: int) -> None:
        data = memoryview(rewritten.data)
        offsets = rewritten.offsets
        dense = len(offsets) == after - first
        if self.gaps is not None and not dense:
            header = read_header(rewritten.data)
            records = decode_batch(BatchView(header, header.base_offset, 2, data), self.limit)
            records = [record._replace(offset=offset) for record, offset in zip(records, offsets, strict=True)]
            self._send_runs(records, first, after, header.codec, None)
            return
        self._send(data, read_header(rewritten.data), first, after, None if dense else offsets)

    def _send(
        self,
        data: memoryview,
        header: BatchHeader,
        first: int,
        after: int,
        offsets: list[int] | None = None,
        dropped: Iterable[DroppedRange] = (),
        *,
        is_merged: bool = False,
    ) -> None:
        newest_ms = header.max_timestamp if self._live else -1
        entry = SourceRange(first, after, len(data), header.records_count, offsets, newest_ms=newest_ms)
        entry.dropped = tuple(dropped)
        self.window.append(entry)
        outgoing = outgoing_batch(data, header, entry, self.window, self.owner.tally, self.limit, is_merged=is_merged)
        if self.gaps is None:
            self.owner.put(self.outbox, outgoing)
        else:
            self.gaps.send(outgoing)

    def lead_in(self, first: int) -> None:
        """Continue at source offset ``first``, where copying begins; offsets before it are filled and not counted."""
        if self.gaps is None:
            return
        for start in range(self.offset, first, FILLED_AT_ONCE):
            entry = SourceRange(start, min(first, start + FILLED_AT_ONCE), already_copied=True)
            self.window.append(entry)
            self.gaps.fill(entry)
        self.offset = max(self.offset, first)

    def _read_past(self, view: BatchView, after: int, there: CopiedRange) -> None:
        """Pass over the records of a batch that are on the target, and send the others."""
        offsets = [record.offset for record in decode_batch(view, self.limit)]
        end = min(there.end, after)
        if self.offset < end:
            self._add_copied(offsets, end, None)
        if self.offset < after:
            self._reencode(view, self.offset, after)

    def _add_copied(self, offsets: list[int], end: int, changed: ChangedBatch | None) -> None:
        """The records at these offsets before ``end`` are on the target, and so is what its other offsets are filled with."""
        own = [offset for offset in offsets if self.offset <= offset < end]
        for start, count in runs(own):
            self.drop_holes(self.offset, start, changed)
            entry = SourceRange(start, start + count, 0, count, already_copied=True, target_base=start)
            self.window.append(entry)
            self.window.done(entry)
            self.offset = start + count
        self.drop_holes(self.offset, end, changed)
        self.offset = end
        self._end_of_copied()

    def _end_of_copied(self) -> None:
        """Once all is read that a predecessor has copied, its number of records counts: the source may have fewer now."""
        if self.there is not None and self.window.position >= self.there.end:
            self.window.records = self.there.records
            self.there = None

    def drop(self, first: int, after: int, reason: str) -> None:
        """Source offsets ``first .. after-1`` have no record for the target."""
        if self.there is not None and first < self.there.end < after:
            end = self.there.end
            self.drop(first, end, reason)
            self.drop(end, after, reason)
            return
        if self.gaps is not None and after - first > FILLED_AT_ONCE:
            for start in range(first, after, FILLED_AT_ONCE):
                self.drop(start, min(after, start + FILLED_AT_ONCE), reason)
            return
        entry = SourceRange(first, after, reason=reason)
        self.window.append(entry)
        # While records are being matched, the number of records in this range is known only when the next one is found. With a
        # position after it and a count before it, a successor would skip as many new records.
        if self.predecessor.fingerprints is None:
            self._dropped(entry)
            self._end_of_copied()

    def _dropped(self, entry: SourceRange) -> None:
        """Nothing of this range is to be written, unless its offsets have to be taken up on the target."""
        is_there = self.there is not None and entry.next_offset <= self.there.end
        if self.gaps is None or is_there:
            self.window.done(entry)
        else:
            self.gaps.fill(entry)


def _reencode_reason(view: BatchView, start: int) -> str:
    """Why a batch had to be re-encoded."""
    header = view.header
    if header is None:
        return "old_format"
    if header.is_log_append_time:
        return "log_append_time"
    return "begun" if header.is_dense and header.base_offset < start else COMPACTED
