"""One partition on its way from source to target: batches are passed on unchanged, re-encoded, or dropped.

A broker accepts a batch from a producer only if it is magic 2, without holes, with CreateTime and without control
records (`LogValidator`). Fetched batches are handled as follows:

    control batches, aborted ones under read_committed, empty ones   dropped, and counted by reason
    holes, LogAppendTime, magic 0/1, batches begun before our offset  re-encoded with the same codec
    many tiny ones in a row                                          merged
    everything else                                                  passed on as bytes

Records that a predecessor has put on the target are *skipped*: read, counted, and not sent. Counting is exact while
the source is unchanged. Where it has a hole now, records that are on the target may have been removed from the
source; then the target's records are compared by content (`match`). The same holds from the first batch on whose
leader epoch is higher than the one in the predecessor's ledger entry: an unclean election may have replaced records
that were copied (KIP-101).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import structlog

from mm2.copy.executor import history
from mm2.copy.executor.outbox import Outbox, OutgoingBatch
from mm2.copy.executor.target_progress import fingerprint
from mm2.copy.segments import Trail
from mm2.copy.session import LOST_KEPT, EpochStart, Lost, Mark, PartitionCondition
from mm2.copy.spec import PartitionProgress, PartitionSpec
from mm2.copy.states import PartitionState, state_of
from mm2.copy.tally import PASSTHROUGH, Summary, Tally
from mm2.kafka.errors import BrokerFailure, CorruptBatch
from mm2.kafka.records.batch import BatchHeader, BatchView, check_crc, iter_batches, read_header
from mm2.kafka.records.merge import Merged, coalesce
from mm2.kafka.records.record import Rewritten, decode_batch, rewrite, split
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
#: Minimum number of consecutive tiny batches that are merged.
MANY_BATCHES: Final = 16
#: From this number of source offsets behind on, a partition is catching up.
BEHIND_OFFSETS: Final = 10_000
_BLOCKED_AFTER_S: Final = 1.0
_THROTTLED_FOR_S: Final = 2.0
_RATE_OVER_S: Final = 10.0


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
        """Counting is not possible: `Cursor.match` has to be set, then `Cursor.suspended` cleared."""

    def too_large(self, cursor: Cursor, entry: SourceRange, outgoing: OutgoingBatch) -> bool:
        """The target never accepts this record; True when it is being written to the dead letter topic, see
        `Cursor.quarantine`.
        """

    def malformed(self, cursor: Cursor, entry: SourceRange, outgoing: OutgoingBatch, error: CorruptBatch) -> bool:
        """The target rejects a batch because of its content; True when it is being written to the dead letter topic,
        see `Cursor.quarantine`.
        """

    def corrupt(self, cursor: Cursor, view: BatchView, error: CorruptBatch) -> bool:
        """A batch is corrupt; True when it is being written to the dead letter topic: `Cursor.suspended` until then,
        see `Cursor.finish_quarantine`.
        """

    def target_went_back(self, cursor: Cursor, base_offset: int) -> None:
        """The target assigned an offset below earlier ones."""

    def target_gap(self, cursor: Cursor, first: int, end: int, own: int) -> bool:
        """The target has records at offsets ``first .. end-1`` that were not acknowledged to this outbox, beside ``own``
        records that were. True when they are being searched for records of the session: `Cursor.gap_searched` follows.
        """


@dataclass(slots=True, eq=False)
class SourceRange:
    """Source offsets up to ``next_offset``: a batch in flight, or offsets that are dropped for a reason.

    ``offsets`` are those of its records, unless they are all of the range. Done once it is on the target or dropped.
    ``newest_ms`` is its newest record's timestamp; -1 when there is none, or when it belongs to a backlog.
    """

    first: int
    next_offset: int
    size: int = 0
    count: int = 0
    offsets: list[int] | None = None
    reason: str = ""
    done: bool = False
    already_copied: bool = False  # copied by a predecessor
    target_base: int = -1
    newest_ms: int = -1
    since: float = field(default_factory=lambda: time.monotonic())  # noqa: PLW0108  (the simulation replaces `time`)

    def runs(self) -> Iterator[tuple[int, int]]:
        """(first source offset, count) of each run of records without a hole."""
        if self.offsets is None:
            yield self.next_offset - self.count, self.count
            return
        start = previous = self.offsets[0]
        for offset in self.offsets[1:]:
            if offset != previous + 1:
                yield start, previous + 1 - start
                start = offset
            previous = offset
        yield start, previous + 1 - start


@dataclass(slots=True, eq=False)
class Cursor:
    """A partition's receiver for the source (`PartitionReceiver`) and sender for the sink.

    ``records`` of the session are on the target and acknowledged; ``skip`` more are there and still have to be
    skipped. ``target`` is the target offset after the last one, -1 while unknown. While ``suspended`` it is not read,
    nor while ``paused`` by a user.
    """

    spec: PartitionSpec
    outbox: Outbox
    owner: Owner
    read_committed: bool
    offset: int = -1
    position: int = -1
    target: int = -1
    records: int = 0
    skip: int = 0
    skip_base: int = -1
    match: deque[int] | None = None
    match_with_time: bool = True  # the fingerprints in ``match`` contain timestamps
    finishing: bool = False  # the session has other rules: its records are skipped, then another session begins
    suspended: bool = False
    paused: PartitionCondition | None = None
    leader_epoch: int = -1
    hole_reason: str = COMPACTED  # of source offsets without a record
    epochs: tuple[EpochStart, ...] = ()  # that were read, see `LedgerEntry.source_epochs`
    known_epoch: int = -1  # no batch of a higher leader epoch is counted as copied by a predecessor
    topic_id: str = ""
    retired: tuple[str, ...] = ()  # replaced topic ids of both sides
    high_watermark: int = -1
    last_stable: int = -1
    known_end: int = -1  # last known end offset of the source, also from a predecessor
    trail: Trail = field(default_factory=Trail)
    lost: list[Lost] = field(default_factory=list)
    lost_before: int = 0  # number of ranges no longer in ``lost``
    foreign: int = 0
    markers: int | None = 0  # own transaction markers after ``target``; None: unknown
    read_condition: PartitionCondition | None = None
    write_condition: PartitionCondition | None = None
    stop_condition: PartitionCondition | None = None
    stopped_at_source: bool = False  # records that were read are still copied
    note: str = ""  # a message about reduced guarantees; it stops nothing
    dead_letter_outbox: Outbox | None = (
        None  # of the dead letter topic, while a record of this partition is being written there
    )
    copied: int = 0
    bytes: int = 0
    ages_ms: Summary = field(default_factory=Summary)  # of live batches, when they were fetched
    latencies_ms: Summary = field(default_factory=Summary)  # and when they were acknowledged
    backlog_end: int = 0  # records before it existed before the first copy began
    waiting_bytes: int = 0
    rate: float = 0.0
    entries: deque[SourceRange] = field(default_factory=deque)
    _live: bool = False
    _when_idle: Callable[[], None] | None = None
    _corrupt_at: int = -1
    _behind_lso_s: float = 0.0
    _throttled_s: float = 0.0
    _wait_condition: PartitionCondition | None = None
    _deleted: list[SourceRange] = field(
        default_factory=list
    )  # by retention; it is not known yet how much of it was copied
    _has_holes: bool = False  # the source has holes where a predecessor copied
    _searching_to: int = -1  # target offset up to which a gap is being searched for records of the session
    _searched_to: int = -1  # target offset up to which gaps have been searched
    _malformed: CorruptBatch | None = None  # content error of the batch that the target rejects
    partition: TopicPartition = field(init=False)  # of the source
    _rated: tuple[float, int] = (0.0, 0)

    def __post_init__(self) -> None:
        self.partition = self.spec.source

    @property
    def mark(self) -> Mark:
        """The position on both sides."""
        return Mark(self.position, self.target, self.records)

    @property
    def full(self) -> bool:
        """Whether enough waits for the target, or has waited so long that the target accepts nothing at the moment.

        Each waiting batch keeps its whole response in memory, so a slow partition could hold gigabytes of other
        partitions' data.
        """
        if self.suspended or self.paused is not None or self.waiting_bytes >= QUEUE_LIMIT_BYTES:
            return True
        return not self.idle and (self.stuck or time.monotonic() - self.entries[0].since > QUEUE_LIMIT_S)

    @property
    def stuck(self) -> bool:
        """Whether the target rejects it, or it is suspended, paused or stopped: it need not be polled often."""
        return self.suspended or self.paused is not None or self.outbox.refused or self.outbox.stopped

    @property
    def behind(self) -> bool:
        """Far from the end of its source."""
        return self.high_watermark - self.offset > BEHIND_OFFSETS

    @property
    def idle(self) -> bool:
        """Whether everything fetched is on the target or dropped."""
        return not self.entries or self.match is not None

    @property
    def stopped(self) -> bool:
        """Whether it has stopped in this micro-batch."""
        return self.stop_condition is not None

    @property
    def _has_ended(self) -> bool:
        """Whether it has stopped, and nothing that was read is still to be copied."""
        is_copied = self.outbox.idle and not self.is_searching
        return self.stopped and (not self.stopped_at_source or is_copied or self.outbox.refused)

    @property
    def is_searching(self) -> bool:
        """Whether the position waits until a gap on the target has been searched (rule L7)."""
        return self._searching_to >= 0

    # -- the source's side -------------------------------------------------------------------------------------------

    def take(self, fetched: Fetched) -> None:
        """Turn fetched batches into outgoing batches. A corrupt batch stops this partition only."""
        self.high_watermark = self.known_end = fetched.high_watermark
        self.last_stable = fetched.last_stable_offset
        self.read_condition = None
        if self.backlog_end < 0:
            self.backlog_end = fetched.high_watermark
        # The age of records in a backlog is unrelated to the latency of copying.
        self._live = self.offset >= self.backlog_end and not self.behind
        if not fetched.records or self.suspended or self.paused is not None:
            return
        aborted = AbortedTransactions(fetched.aborted)
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
        if self.skip and end_offset >= self.offset:
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
        if self.match is None:
            self._ask_target()

    def throttled(self) -> None:
        """A configured limit prevented reading."""
        self._throttled_s = time.monotonic()

    # -- state changes -------------------------------------------------------------------------------------------

    def set_read_error(self, state: PartitionState, reason: str) -> None:
        """Reading is blocked at the moment."""
        self.read_condition = self._condition(self.read_condition, state, reason, max(self.offset, self.position))

    def pause(self, reason: str, since_ms: int) -> None:
        """Stop reading. Records that were read are still copied."""
        self.paused = PartitionCondition(PartitionState.PAUSED, reason, max(self.offset, self.position), since_ms)

    def fail(self, state: PartitionState, reason: str, *, at_source: bool = False) -> None:
        """Stop this partition; the others continue.

        ``at_source``: the reason is on the source, so records that were read are still copied. A reason on the target
        that is found meanwhile replaces it.
        """
        if self.stop_condition is None or (self.stopped_at_source and not at_source):
            self.stopped_at_source = at_source
            self.stop_condition = PartitionCondition(state, reason, max(self.offset, self.position), _now_ms())
            self.owner.stopped(self)

    def stop_with(self, condition: PartitionCondition) -> None:
        """Stop this partition for a known reason, before anything is read."""
        self.stop_condition = condition
        self.owner.stopped(self)

    def begin(self, mark: Mark, *, skip: int = 0, skip_base: int = -1) -> None:
        """Continue at a mark; ``skip`` records after it are on the target, from ``skip_base`` on if they are
        contiguous.

        If nothing has been copied yet, all current records of the source are a backlog.
        """
        self.backlog_end = 0 if mark.records or skip else -1
        self.offset = self.position = mark.source
        self.epochs = history.before(self.epochs, mark.source)
        self.target, self.records = mark.target, mark.records
        self.skip, self.skip_base, self.match = skip, skip_base, None
        self._has_holes = False
        self._searching_to = self._searched_to = -1
        self.entries.clear()
        self._deleted.clear()
        self._when_idle = None  # callbacks are for another position
        self.waiting_bytes = 0
        self.suspended = False

    def move(self, offset: int) -> None:
        """Continue at an offset from which the source has other records; not while anything is in flight."""
        self._when_idle = None
        self._conclude()
        self.trail.cut(offset)
        self.offset = self.position = offset
        self.epochs = history.before(self.epochs, offset)
        self.leader_epoch = self.known_epoch = -1

    def when_idle(self, then: Callable[[], None]) -> None:
        """Call ``then`` once nothing is in flight."""
        self._when_idle = None
        if self.idle:
            then()
        else:
            self._when_idle = then

    def jump(self, offset: int, reason: str) -> None:
        """Continue at another source offset; offsets that are left out are counted under ``reason``."""
        if offset > self.offset:
            self._has_holes = self._has_holes or self.skip > 0
            if self.skip and self.match is None:
                self._ask_target()
                return
            self._drop(self.offset, offset, reason)
            if self.match is not None:
                self._deleted.append(self.entries[-1])
        elif self.idle:
            self.position = offset
        self.offset = offset

    def add_lost_range(self, first: int, after: int, reason: str) -> None:
        """Record a range that will never be copied."""
        self.lost.append(Lost(first, after, reason, _now_ms()))

    def kept_losses(self) -> tuple[tuple[Lost, ...], int]:
        """The ranges that the ledger lists, and the number of earlier ones."""
        return tuple(self.lost[-LOST_KEPT:]), self.lost_before + max(0, len(self.lost) - LOST_KEPT)

    def refused(self, failure: Exception | None) -> None:
        """The target rejects this partition's first batch (or accepts it again: None)."""
        if failure is None:
            self.write_condition = self._malformed = None
            return
        outgoing = self.outbox.queue[0] if self.outbox.queue else None
        entry = next((entry for entry in self.entries if not entry.done), None)
        state = state_of(failure)
        self._malformed = None
        if outgoing is not None and entry is not None:
            if state is PartitionState.TOO_LARGE and self.owner.too_large(self, entry, outgoing):
                return
            if state is PartitionState.REFUSED:
                self._malformed = _content_error(outgoing)
                if self._malformed is not None and self.owner.malformed(self, entry, outgoing, self._malformed):
                    return
        self._set_write_error(failure)

    def _set_write_error(self, failure: Exception) -> None:
        """Set the write condition from an error of the target, or from the corrupt content if that is the cause."""
        state, reason = state_of(failure), str(failure)
        if state is PartitionState.REFUSED and self._malformed is not None:
            state, reason = PartitionState.CORRUPT, f"{self.partition}: {self._malformed}, and {reason}"
        self.write_condition = self._condition(self.write_condition, state, reason, self.position)

    def gap_searched(self, end: int, *, is_known: bool) -> None:
        """The target was searched up to offset ``end``, or (not ``is_known``) could not be searched now."""
        if end != self._searching_to:
            return  # the position has been changed meanwhile
        self._searching_to = -1
        if is_known:
            self._searched_to = end
            self._pass_done()

    def finish_quarantine(self) -> None:
        """The corrupt batch has been written to the dead letter topic. Called once for each that `Owner.corrupt`
        accepted.
        """
        entry = next((entry for entry in self.entries if entry.reason == QUARANTINED and not entry.done), None)
        if entry is not None:  # otherwise the target was truncated meanwhile: the batch is read again
            self._done(entry)

    def quarantine(self, entry: SourceRange, reason: str) -> None:
        """The entry's records will not be on the target; later records take their sequences."""
        outbox = self.outbox
        outgoing = outbox.queue.popleft()
        runs = list(entry.runs())
        offset, after = runs[0][0], sum(runs[-1])
        if outgoing.at >= 0:
            outbox.next = outgoing.at
            for other in outbox.queue:
                other.at = -1
        self.waiting_bytes -= entry.size
        entry.size = entry.count = 0
        entry.offsets = None
        entry_index = self.entries.index(entry)
        if entry.first < offset:
            self.entries.insert(entry_index, SourceRange(entry.first, offset, reason=self.hole_reason, done=True))
        if after < entry.next_offset:
            index = self.entries.index(entry) + 1
            self.entries.insert(index, SourceRange(after, entry.next_offset, reason=self.hole_reason, done=True))
        entry.first, entry.next_offset, entry.reason = offset, after, reason
        self._malformed = None
        self._done(entry)

    def progress(self) -> PartitionProgress:
        """A snapshot for the driver."""
        state_now = self._current_state()
        return PartitionProgress(
            self.spec.topic,
            self.spec.partition,
            self.position,
            self.target,
            self.high_watermark,
            str(state_now.state),
            state_now.reason,
            state_now.offset,
            state_now.since_ms,
            self._has_ended,
            self.copied,
            self.bytes,
            dict(self.trail.gaps),
            self.lost_before + len(self.lost),
            self.foreign,
            list(self.ages_ms) or None,
            list(self.latencies_ms) or None,
        )

    def progress_key(self) -> tuple[Any, ...]:
        """A value that changes whenever `progress` changes. It costs a tenth of `progress`, and most of thousands of
        partitions do not move.

        Gaps grow only where the position moves.
        """
        state_now = self._current_state()
        return (
            self.position,
            self.target,
            self.high_watermark,
            self.copied,
            (state_now.state, state_now.reason, state_now.offset, state_now.since_ms),
            self._has_ended,
            self.lost_before + len(self.lost),
            self.foreign,
        )

    def measure(self, now_s: float) -> None:
        """Update ``rate``: bytes per second over about the last ten seconds."""
        since, seen = self._rated
        if not since:
            self._rated = (now_s, self.bytes)
            return
        passed = now_s - since
        if passed >= 1.0:
            weight = min(1.0, passed / _RATE_OVER_S)
            self.rate += ((self.bytes - seen) / passed - self.rate) * weight
            self._rated = (now_s, self.bytes)

    def current_condition(self) -> PartitionCondition | None:
        """Why it cannot continue now; None if it can."""
        if self.stop_condition is not None or self.paused is not None:
            return self.stop_condition or self.paused
        last_error = self.outbox.last_error if self.dead_letter_outbox is None else self.dead_letter_outbox.last_error
        if last_error is not None:
            self._set_write_error(last_error)
        elif not self.outbox.refused:
            self.write_condition = None
        return self.write_condition or self.read_condition

    @staticmethod
    def _condition(
        known: PartitionCondition | None, state: PartitionState, reason: str, offset: int
    ) -> PartitionCondition:
        """A condition that keeps its time while the state is the same."""
        if known is None or known.state != state:
            return PartitionCondition(state, reason, offset, _now_ms())
        return known._replace(reason=reason)

    def _current_state(self) -> PartitionCondition:
        """Its state, and unless it is healthy the reason, the offset and since when."""
        suspended = self.current_condition() or self._waiting_condition()
        if suspended is not None:
            return suspended
        return PartitionCondition(
            PartitionState.CATCHING_UP if self.behind else PartitionState.RUNNING, self.note, -1, -1
        )

    def _waiting_condition(self) -> PartitionCondition | None:
        """What it waits for although there is no error."""
        now = time.monotonic()
        # Checked here and not in `take`: a fetch session's response leaves out unchanged partitions.
        blocked = self.read_committed and self.high_watermark > self.offset >= self.last_stable
        self._behind_lso_s = (self._behind_lso_s or now) if blocked else 0.0
        if blocked and now - self._behind_lso_s > _BLOCKED_AFTER_S:
            reason = (
                f"a transaction that began at source offset {self.last_stable} is neither committed nor aborted, "
                "and read_committed does not read past it"
            )
            self._set_wait_condition(PartitionState.BLOCKED_BY_OPEN_TXN, reason, self.last_stable)
        elif now - self._throttled_s < _THROTTLED_FOR_S and self.high_watermark > self.offset:
            self._set_wait_condition(PartitionState.THROTTLED, "limited by copy.throttle.bytes.per.sec", self.offset)
        else:
            self._wait_condition = None
        return self._wait_condition

    def _set_wait_condition(self, state: PartitionState, reason: str, offset: int) -> None:
        if self._wait_condition is None or (self._wait_condition.state, self._wait_condition.reason) != (state, reason):
            self._wait_condition = PartitionCondition(state, reason, offset, _now_ms())

    def _batches(self, fetched: Fetched) -> Iterable[BatchView | Merged]:
        if self.skip:
            return iter_batches(fetched.records)
        # A few tiny batches are passed on. Merging compressed ones costs more than passing them on, unless there are too many for
        # the connection to the target.
        return coalesce(
            fetched.records,
            self.offset,
            least=MANY_BATCHES,
            compressed=self.behind,
            transactional=not (self.read_committed and fetched.aborted),
        )

    # -- batches -------------------------------------------------------------------------------------------------------

    def _corrupt(self, error: CorruptBatch) -> None:
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
            if self.skip and self.match is None and self._corrupt_at == before:
                self._ask_target()  # a predecessor may have read it intact, so counting is not possible
                return False
            if header is None or self._corrupt_at != before or not self.owner.corrupt(self, view, error):
                raise
            after = max(header.last_offset + 1, before)
            # Not done yet: the position may pass it only after it has been written to the dead letter topic.
            self.entries.append(SourceRange(before, after, reason=QUARANTINED))
            self.offset = after
        return not (self.suspended or self.stopped)

    def _take_merged(self, merged: Merged) -> None:
        if merged.first > self.offset:
            self._drop(self.offset, merged.first, self.hole_reason)
        self.leader_epoch = self.known_epoch = merged.leader_epoch
        self.epochs = history.read(self.epochs, merged.leader_epoch, merged.first)
        self.owner.tally.count("merged", merged.batches)
        self._send(memoryview(merged.data), merged.header, merged.first, merged.after)
        self.offset = merged.after

    def _take_batch(self, view: BatchView, aborted: AbortedTransactions) -> None:
        header = view.header
        if header is None:
            self._take_legacy(view)
            return
        hidden = aborted.covers(view)
        if header.last_offset < self.offset:
            return  # a fetch starts at the batch that contains the offset, which may have been handled
        check_crc(header, view.data)
        is_newer = header.leader_epoch > self.known_epoch
        if header.base_offset > self.offset or is_newer:
            self._has_holes = self._has_holes or (self.skip > 0 and header.base_offset > self.offset)
            if self.skip and self.match is None:
                self._ask_target()
                return
        if header.base_offset > self.offset:
            self._drop(self.offset, header.base_offset, self.hole_reason)
            self.offset = header.base_offset
        after = header.last_offset + 1
        self.leader_epoch = header.leader_epoch
        self.epochs = history.read(self.epochs, header.leader_epoch, self.offset)
        if not self.skip:
            self.known_epoch = header.leader_epoch
        if header.is_control:
            self._drop(self.offset, after, "control")
        elif hidden and self.read_committed:
            self._drop(self.offset, after, "aborted")
        elif self.skip:
            self._skip_batch(view, header, after)
            if self.suspended or self.stopped:
                return
        elif header.is_plain and header.base_offset == self.offset:
            paths = self.owner.tally.paths
            paths[PASSTHROUGH] = paths.get(PASSTHROUGH, 0) + 1
            self._send(view.data, header, self.offset, after)
        else:
            self._reencode(view, self.offset, after)
        self.offset = after

    def _take_legacy(self, view: BatchView) -> None:
        rewritten = rewrite(view, keep=lambda offset: offset >= self.offset)
        if rewritten is None:
            return
        after = rewritten.offsets[-1] + 1
        if self.skip and self.match is None:
            self._ask_target()
            return
        if self.skip:
            self._skip_matching(view, after)
            if self.suspended or self.stopped:
                return
        else:
            self.owner.tally.count("old_format")
            self._send_rewritten(rewritten, self.offset, after)
        self.offset = after

    def _reencode(self, view: BatchView, start: int, after: int) -> None:
        rewritten = rewrite(view, keep=lambda offset: offset >= start)
        if rewritten is None:
            self._drop(self.offset, after, self.hole_reason)
            return
        self.owner.tally.count(_reencode_reason(view, start))
        self._send_rewritten(rewritten, self.offset, after)

    def _send_rewritten(self, rewritten: Rewritten, first: int, after: int) -> None:
        data = memoryview(rewritten.data)
        offsets = rewritten.offsets
        dense = len(offsets) == after - first
        self._send(data, read_header(rewritten.data), first, after, None if dense else offsets)

    def _send(
        self, data: memoryview, header: BatchHeader, first: int, after: int, offsets: list[int] | None = None
    ) -> None:
        newest_ms = header.max_timestamp if self._live else -1
        entry = SourceRange(first, after, len(data), header.records_count, offsets, newest_ms=newest_ms)
        self.entries.append(entry)
        self.waiting_bytes += len(data)
        self.owner.put(self.outbox, self._outgoing(data, header, entry))

    def _outgoing(self, data: memoryview, header: BatchHeader, entry: SourceRange) -> OutgoingBatch:
        def acked(base: int) -> None:
            entry.target_base = base
            self._done(entry)

        def cut() -> list[OutgoingBatch] | None:
            if header.records_count < 2:
                return None
            try:
                parts = split(BatchView(header, header.base_offset, 2, data), 2)
            except CorruptBatch:
                return None  # its header was valid, so it was passed on; the target's error counts
            self.owner.tally.count("too_large")
            return self._replace(entry, parts)

        def without(count: int) -> OutgoingBatch:
            keep_from = header.base_offset + count
            rest = rewrite(BatchView(header, header.base_offset, 2, data), keep=lambda offset: offset >= keep_from)
            if rest is None:
                message = (
                    f"{self.partition}: a batch of {header.records_count} records has no record after number {count}"
                )
                raise CorruptBatch(message)
            head, tail = self._cut_entry(entry, [count, header.records_count - count], [0, len(rest.data)])
            head.already_copied = True
            self._done(head)
            return self._outgoing(memoryview(rest.data), read_header(rest.data), tail)

        return OutgoingBatch(data, header, acked, cut, without)

    def _replace(self, entry: SourceRange, parts: list[Rewritten]) -> list[OutgoingBatch]:
        """Outgoing batches for the parts of a batch, each with its own entry."""
        entries = self._cut_entry(entry, [len(part.offsets) for part in parts], [len(part.data) for part in parts])
        return [
            self._outgoing(memoryview(part.data), read_header(part.data), piece)
            for part, piece in zip(parts, entries, strict=True)
        ]

    def _cut_entry(self, entry: SourceRange, counts: list[int], sizes: list[int]) -> list[SourceRange]:
        offsets = entry.offsets or list(range(entry.next_offset - entry.count, entry.next_offset))
        pieces, first, at = [], entry.first, 0
        for index, (count, size) in enumerate(zip(counts, sizes, strict=True)):
            own = offsets[at : at + count]
            at += count
            after = entry.next_offset if index == len(counts) - 1 else offsets[at]
            dense = len(own) == after - first
            piece = SourceRange(first, after, size, count, None if dense else own, newest_ms=entry.newest_ms)
            piece.since = entry.since
            pieces.append(piece)
            first = after
        entry_index = self.entries.index(entry)
        self.entries.remove(entry)
        for index, piece in enumerate(pieces):
            self.entries.insert(entry_index + index, piece)
        self.waiting_bytes += sum(sizes) - entry.size
        return pieces

    def _drop(self, first: int, after: int, reason: str) -> None:
        entry = SourceRange(first, after, reason=reason)
        self.entries.append(entry)
        # While records are being matched, the number of records in this range is known only when the next one is found. With a
        # position after it and a count before it, a successor would skip as many new records.
        if self.match is None:
            self._done(entry)

    # -- records of a predecessor -------------------------------------------------------------------------------------------

    def _ask_target(self) -> None:
        self.suspended = True
        self.owner.uncertain(self)

    def _skip_batch(self, view: BatchView, header: BatchHeader, after: int) -> None:
        if self.match is not None:
            self._skip_matching(view, after)
            return
        if not header.is_dense:
            self._has_holes = True
            self._ask_target()
            return
        start = self.offset
        there = min(self.skip, after - start)
        self._add_already_copied(start, start + there, there)
        if self._finish(start + there):
            return
        if start + there < after:
            self.offset = start + there
            self._reencode(view, start + there, after)

    def _skip_matching(self, view: BatchView, after: int) -> None:
        """Find each record among the target's records, in order, until one is new."""
        match = self.match
        first = fresh = self.offset
        offsets = []
        for record in decode_batch(view):
            if record.offset < first or match is None:
                continue
            try:
                entry_index = match.index(fingerprint(record, with_time=self.match_with_time))
            except ValueError:
                match, fresh = None, record.offset
                break
            for _ in range(entry_index + 1):
                match.popleft()
            offsets.append(record.offset)
            # Records were copied in order, so deleted records before it were copied, too.
            self._settle_deleted(record.offset)
            self._settle_dropped()
            self.records += entry_index  # on the target, and no longer on the source
            self.skip -= entry_index
            if not match:
                match = None
        there = offsets[-1] + 1 if offsets else first
        if offsets:
            self._add_already_copied(first, there, len(offsets), offsets)
        if match is None:
            header = view.header
            if self._deleted:
                # The remaining records were copied from the deleted range, unless there were holes before it.
                first = self._deleted[0].first
                is_known = not any(entry.reason == self.hole_reason for entry in self.entries)
                self._settle_deleted(first + self.skip if is_known else first)
                if self.stopped:
                    return
            elif self.skip and header is not None and header.leader_epoch > self.known_epoch:
                self.owner.replaced(self, fresh, self.skip, exact=not self._has_holes)
                if self.stopped:
                    return
            self._conclude()
            if there < fresh:
                self._drop(there, fresh, self.hole_reason)
                there = fresh
            if self._finish(there):
                return
            if there < after:
                self.offset = there
                self._reencode(view, there, after)
        elif there < after:
            self._drop(there, after, self.hole_reason)

    def _finish(self, after: int) -> bool:
        """Whether a session with other rules ends before this offset."""
        if self.finishing and not self.skip:
            self.offset = after
            self.suspended = True
            self.owner.finished(self)
        return self.suspended

    def _conclude(self) -> None:
        """The rest of a predecessor's records will not be found on the source any more."""
        if self.skip:
            self.target = self.skip_base + self.skip if self.skip_base >= 0 else -1
        self.records += self.skip
        self.skip, self.skip_base, self.match = 0, -1, None
        self._deleted.clear()
        self._settle_dropped()

    def _settle_deleted(self, copied_to: int) -> None:
        """Of the deleted source offsets a predecessor had copied those before this offset; the rest is lost."""
        deleted, self._deleted = self._deleted, []
        for entry in deleted:
            after = entry.next_offset
            entry.already_copied = entry.first < copied_to
            first = min(max(entry.first, copied_to), after)
            if first == after:
                continue
            if entry.already_copied:
                entry.next_offset = first
                self.entries.insert(self.entries.index(entry) + 1, SourceRange(first, after, reason=entry.reason))
            self.owner.deleted(self, first, after)

    def _settle_dropped(self) -> None:
        for entry in [entry for entry in self.entries if not entry.count and not entry.done]:
            self._done(entry)

    def _add_already_copied(self, first: int, after: int, count: int, offsets: list[int] | None = None) -> None:
        entry = SourceRange(first, after, 0, count, offsets, already_copied=True, target_base=self.skip_base)
        self.skip -= count
        if self.skip_base >= 0:
            self.skip_base += count
        self.entries.append(entry)
        self._done(entry)

    # -- done ----------------------------------------------------------------------------------------------------------

    def _done(self, entry: SourceRange) -> None:
        entry.done = True
        self._pass_done()

    def _pass_done(self) -> None:
        while self.entries and self.entries[0].done and not self._has_unsearched_gap(self.entries[0]):
            self._pass(self.entries.popleft())
        if not self.entries and self._when_idle is not None:
            then, self._when_idle = self._when_idle, None
            then()

    def _has_unsearched_gap(self, entry: SourceRange) -> bool:
        """Whether the target has records before those of this entry that may be the session's own (rule L7).

        The position must not pass them before that is known, or a successor would not find them either.
        """
        base = entry.target_base
        if self.is_searching:
            return True
        # Offsets of records that a predecessor copied come from a look-up, which has read this part of the log (rule L3).
        if not entry.count or entry.already_copied or self.target < 0 or self.markers is None:
            return False
        if base <= self.target + self.markers or base <= self._searched_to:
            return False
        # One search for all gaps that are known by now: other producers may write continuously.
        done = [one for one in self.entries if one.done and one.target_base >= base]
        end = max(one.target_base for one in done)
        own = sum(one.count for one in done if one.target_base < end)
        self._searching_to = end
        if not self.owner.target_gap(self, self.target, end, own):
            self._searching_to, self._searched_to = -1, end
        return self.is_searching

    def _pass(self, entry: SourceRange) -> None:
        """The oldest entry is done: advance, and extend the trail."""
        if not entry.count:
            if not entry.already_copied:
                self.trail.missing(entry.first, entry.next_offset, entry.reason)
            self.position = entry.next_offset
            return
        self.waiting_bytes -= entry.size
        self.copied += 0 if entry.already_copied else entry.count
        self.records += entry.count
        self.bytes += entry.size
        base = entry.target_base
        if base >= 0:
            self._check_target_offset(base)
            self.target = base + entry.count
        else:
            self.target = -1
        at, last = entry.first, entry.first - 1
        for start, count in entry.runs():
            if start > at and not entry.already_copied:  # records missing now may have existed when it was copied
                self.trail.missing(at, start, self.hole_reason)
            if base >= 0:
                self.trail.copied(start, base, count)
                base += count
            at, last = start + count, start + count - 1
        if at < entry.next_offset:
            self.trail.missing(at, entry.next_offset, self.hole_reason)
        self.position = entry.next_offset
        self.owner.acked(self, entry, last)

    def _check_target_offset(self, base: int) -> None:
        markers, self.markers = self.markers, 0
        if self.target < 0:
            return
        expected = self.target + (markers or 0)
        if base < expected:
            self.owner.target_went_back(self, base)
        # If the number of markers is unknown, the gap may consist of markers and aborted records.
        elif base > expected and markers is not None:
            if not self.foreign:
                log.warning(
                    "another producer writes to a remote topic",
                    partition=str(self.spec.target),
                    offset=expected,
                    records=base - expected,
                )
            self.foreign += base - expected


def _reencode_reason(view: BatchView, start: int) -> str:
    """Why a batch had to be re-encoded."""
    header = view.header
    if header is None:
        return "old_format"
    if header.is_log_append_time:
        return "log_append_time"
    return "begun" if header.is_dense and header.base_offset < start else COMPACTED


def _now_ms() -> int:
    return int(time.time() * 1000)


def _content_error(outgoing: OutgoingBatch) -> CorruptBatch | None:
    """The error in the content of a batch that was passed on without decoding; None: none."""
    try:
        decode_batch(BatchView(outgoing.header, outgoing.header.base_offset, 2, outgoing.data))
    except CorruptBatch as error:
        return error
    return None
