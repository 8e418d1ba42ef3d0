"""One partition on its way from source to target: which batches go as they are, which are re-encoded, which are dropped.

A broker takes a batch from a producer only if it is magic 2, without holes, with CreateTime and no control records
(`LogValidator`). So of what is fetched

    control batches, aborted ones under read_committed, empty ones   are dropped, and counted by reason
    holes, LogAppendTime, magic 0/1, batches begun before our offset  are re-encoded with the same codec
    many tiny ones in a row                                          are merged
    everything else                                                  goes as the bytes it came in

What a predecessor has put on the target already is *skipped*: read, counted, and not sent. Counting is exact while the
source is as it was. Where it has a hole now, records may have been taken away that are on the target, and then the
target's own records tell where to go on (`match`). The same holds from the first batch on whose leader epoch is higher than
the one in the predecessor's ledger entry: an unclean election may have replaced what was copied (KIP-101).
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
#: Why a source log has no record at an offset: its cleaner took it, or its topic is not compacted and the record is gone.
COMPACTED: Final = "compacted"
MISSING: Final = "missing"
#: So many tiny batches in a row are merged.
MANY_BATCHES: Final = 16
#: So many source offsets behind, a partition is catching up.
BEHIND_OFFSETS: Final = 10_000
_BLOCKED_AFTER_S: Final = 1.0
_THROTTLED_FOR_S: Final = 2.0
_RATE_OVER_S: Final = 10.0


class Owner(Protocol):
    """What a cursor asks of the copier. All calls come on the loop's thread. ``tally`` is where batches are counted."""

    tally: Tally

    def put(self, outbox: Outbox, outgoing: OutgoingBatch) -> None:
        """Send a batch."""

    def acked(self, cursor: Cursor, entry: SourceRange, last: int) -> None:
        """Source offsets ``entry.first``..``last`` are on the target from ``entry.target_base`` (-1: unknown), in source order."""

    def unreadable(self, cursor: Cursor, failure: BrokerFailure) -> None:
        """The source does not let it be read."""

    def stopped(self, cursor: Cursor) -> None:
        """It is given up."""

    def renewed(self, cursor: Cursor, topic_id: str) -> None:
        """Its source topic is another one of the same name."""

    def diverged(self, cursor: Cursor, epoch: int, end_offset: int) -> None:
        """Its source log was truncated: only records below this offset, and of this or an older leader epoch, are kept."""

    def unchecked(self, cursor: Cursor) -> None:
        """Its position has to be validated (KIP-320), then `Source.validated`."""

    def replaced(self, cursor: Cursor, first: int, records: int, *, exact: bool) -> None:
        """So many records of a predecessor are on the target and not on the source, which has others from ``first`` on.

        ``exact``: they had the source offsets from ``first`` on. The cursor is stopped when it must not continue.
        """

    def deleted(self, cursor: Cursor, first: int, after: int) -> None:
        """Source offsets ``first .. after-1`` were deleted before they were copied. The cursor is stopped when it must not continue."""

    def finished(self, cursor: Cursor) -> None:
        """A session under other rules has been read past; `Cursor.held` until another one has begun."""

    def uncertain(self, cursor: Cursor) -> None:
        """Counting leads nowhere; `Cursor.match` has to be set, then `Cursor.held` taken back."""

    def too_large(self, cursor: Cursor, entry: SourceRange, outgoing: OutgoingBatch) -> bool:
        """The target takes a record in no way; True when it is being put away, see `Cursor.bury`."""

    def malformed(self, cursor: Cursor, entry: SourceRange, outgoing: OutgoingBatch, error: CorruptBatch) -> bool:
        """The target refuses a batch whose inside is not what a batch holds; True when it is being put away, see `Cursor.bury`."""

    def corrupt(self, cursor: Cursor, view: BatchView, error: CorruptBatch) -> bool:
        """A batch is not what was written; True when it is being put away: `Cursor.held` until then, see `Cursor.put_away`."""

    def target_went_back(self, cursor: Cursor, base_offset: int) -> None:
        """The target gave an offset that is below those given before."""

    def target_gap(self, cursor: Cursor, first: int, end: int) -> None:
        """There are records at target offsets ``first .. end-1`` that were not acknowledged to this outbox."""


@dataclass(slots=True, eq=False)
class SourceRange:
    """A stretch of source offsets up to ``next_offset``: one batch on its way, or offsets that are dropped for a reason.

    ``offsets`` are those of its records where they are not all of the stretch. Done once it is on the target or dropped.
    ``newest_ms`` is its newest record's timestamp; -1 when there is none, or when it is of a backlog.
    """

    first: int
    next_offset: int
    size: int = 0
    count: int = 0
    offsets: list[int] | None = None
    reason: str = ""
    done: bool = False
    there: bool = False  # on the target before we came
    target_base: int = -1
    newest_ms: int = -1
    since: float = field(default_factory=lambda: time.monotonic())  # noqa: PLW0108  (the simulation replaces `time`)

    def runs(self) -> Iterator[tuple[int, int]]:
        """(first source offset, count) of each stretch of records without a hole."""
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

    ``records`` of the session are on the target and acknowledged; ``skip`` more are there and still to be read past;
    ``target`` is the target offset behind the last one, -1 while unknown. ``held`` keeps it from being read, and so does
    ``paused``, which a user has asked for.
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
    finishing: bool = False  # the session has other rules than ours: it is only read past, then another one begins
    held: bool = False
    paused: PartitionCondition | None = None
    leader_epoch: int = -1
    hole_reason: str = COMPACTED  # of source offsets without a record
    epochs: tuple[EpochStart, ...] = ()  # that were read, see `LedgerEntry.source_epochs`
    known_epoch: int = -1  # no batch of a higher leader epoch is counted as copied by a predecessor
    topic_id: str = ""
    retired: tuple[str, ...] = ()  # topic ids, of either side, that were replaced by newer ones
    high_watermark: int = -1
    last_stable: int = -1
    known_end: int = -1  # where the source ended when we, or before us a predecessor, last heard of it
    trail: Trail = field(default_factory=Trail)
    lost: list[Lost] = field(default_factory=list)
    lost_before: int = 0  # ranges that are no longer among them
    foreign: int = 0
    markers: int | None = 0  # transaction markers of ours that stand behind ``target``; None: not known
    read_trouble: PartitionCondition | None = None
    write_trouble: PartitionCondition | None = None
    stop_trouble: PartitionCondition | None = None
    note: str = ""  # something to be known that stops nothing
    letters: Outbox | None = None  # of the dead letters, while something of this partition has to be put away there
    copied: int = 0
    bytes: int = 0
    ages_ms: Summary = field(default_factory=Summary)  # of live batches, when they were fetched
    latencies_ms: Summary = field(default_factory=Summary)  # and when they were on the target
    backlog_end: int = 0  # what lies before it was there before the first copy began
    waiting_bytes: int = 0
    rate: float = 0.0
    entries: deque[SourceRange] = field(default_factory=deque)
    _live: bool = False
    _when_idle: Callable[[], None] | None = None
    _corrupt_at: int = -1
    _behind_lso_s: float = 0.0
    _throttled_s: float = 0.0
    _held: PartitionCondition | None = None
    _deleted: list[SourceRange] = field(
        default_factory=list
    )  # by retention, and it is not known yet what of it was copied
    _has_holes: bool = False  # the source has holes where a predecessor copied
    _malformed: CorruptBatch | None = None  # what is wrong inside of the batch that the target refuses
    partition: TopicPartition = field(init=False)  # of the source
    _rated: tuple[float, int] = (0.0, 0)

    def __post_init__(self) -> None:
        self.partition = self.spec.source

    @property
    def mark(self) -> Mark:
        """Where it is on both sides."""
        return Mark(self.position, self.target, self.records)

    @property
    def full(self) -> bool:
        """Enough waits for the target already, or for so long that the target takes nothing at the moment.

        Each waiting batch keeps the whole answer alive that it came in, so a trickle could hold gigabytes of others' data.
        """
        if self.held or self.paused is not None or self.waiting_bytes >= QUEUE_LIMIT_BYTES:
            return True
        return not self.idle and (self.stuck or time.monotonic() - self.entries[0].since > QUEUE_LIMIT_S)

    @property
    def stuck(self) -> bool:
        """The target refuses it, or it waits for a word of ours: no use in asking for it often."""
        return self.held or self.paused is not None or self.outbox.refused

    @property
    def behind(self) -> bool:
        """Far from the end of its source."""
        return self.high_watermark - self.offset > BEHIND_OFFSETS

    @property
    def idle(self) -> bool:
        """Everything fetched is on the target or dropped."""
        return not self.entries or self.match is not None

    @property
    def stopped(self) -> bool:
        """Given up in this micro-batch."""
        return self.stop_trouble is not None

    # -- the source's side -------------------------------------------------------------------------------------------

    def take(self, fetched: Fetched) -> None:
        """Turn fetched batches into outgoing batches; a corrupt batch stops this partition only."""
        self.high_watermark = self.known_end = fetched.high_watermark
        self.last_stable = fetched.last_stable_offset
        self.read_trouble = None
        if self.backlog_end < 0:
            self.backlog_end = fetched.high_watermark
        # What has waited long before it was asked for says nothing of how long copying takes.
        self._live = self.offset >= self.backlog_end and not self.behind
        if not fetched.records or self.held or self.paused is not None:
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
            log.exception("an error of ours stops a partition", partition=str(self.partition))
            self.fail(PartitionState.FAILED, f"{self.partition} cannot be read: {type(error).__name__}: {error}")

    def failed(self, failure: BrokerFailure) -> None:
        """The source's word that this partition cannot be read right now."""
        self.say(state_of(failure), str(failure))
        self.owner.unreadable(self, failure)

    def renewed(self, topic_id: str) -> None:
        """The topic was deleted and created anew."""
        self.owner.renewed(self, topic_id)

    def diverged(self, epoch: int, end_offset: int) -> None:
        """The source log was truncated to this leader epoch and offset (KIP-595, diverging epoch)."""
        if epoch < self.leader_epoch:
            end_offset, epoch = history.common_end(self.epochs, epoch, end_offset)
        if self.skip and end_offset >= self.offset:
            self.compare(epoch)
        else:
            self.owner.diverged(self, epoch, end_offset)

    def unchecked(self) -> None:
        """The log of a new leader has to be compared with what was read, before anything is read from it."""
        self.owner.unchecked(self)

    def compare(self, epoch: int = -1) -> None:
        """What was copied before the mark is still on the source, what a predecessor copied after it may be not: compare it."""
        self.leader_epoch = epoch
        self.known_epoch = -1
        if self.match is None:
            self._ask_target()

    def throttled(self) -> None:
        """A limit of ours kept it from being read."""
        self._throttled_s = time.monotonic()

    # -- what happens to it ------------------------------------------------------------------------------------------

    def say(self, state: PartitionState, reason: str) -> None:
        """Something keeps it from being read, for now."""
        self.read_trouble = self._trouble(self.read_trouble, state, reason, max(self.offset, self.position))

    def pause(self, reason: str, since_ms: int) -> None:
        """Read nothing more; what has been read is still brought to its end."""
        self.paused = PartitionCondition(PartitionState.PAUSED, reason, max(self.offset, self.position), since_ms)

    def fail(self, state: PartitionState, reason: str) -> None:
        """Stop this partition; the others go on."""
        self.stop_with(PartitionCondition(state, reason, max(self.offset, self.position), _now_ms()))

    def stop_with(self, trouble: PartitionCondition) -> None:
        """Stop this partition for a known reason."""
        if self.stop_trouble is None:
            self.stop_trouble = trouble
            self.owner.stopped(self)

    def begin(self, mark: Mark, *, skip: int = 0, skip_base: int = -1) -> None:
        """Go on at a mark; ``skip`` records behind it are on the target, from ``skip_base`` if they lie side by side.

        Where nothing has been copied yet, all that the source has now is a backlog.
        """
        self.backlog_end = 0 if mark.records or skip else -1
        self.offset = self.position = mark.source
        self.epochs = history.before(self.epochs, mark.source)
        self.target, self.records = mark.target, mark.records
        self.skip, self.skip_base, self.match = skip, skip_base, None
        self._has_holes = False
        self.entries.clear()
        self._deleted.clear()
        self._when_idle = None  # what waited has another position in mind
        self.waiting_bytes = 0
        self.held = False

    def move(self, offset: int) -> None:
        """Go on elsewhere: the source is another one from there on; not while anything is on its way."""
        self._when_idle = None
        self._conclude()
        self.trail.cut(offset)
        self.offset = self.position = offset
        self.epochs = history.before(self.epochs, offset)
        self.leader_epoch = self.known_epoch = -1

    def when_idle(self, then: Callable[[], None]) -> None:
        """Call ``then`` once nothing is on its way."""
        self._when_idle = None
        if self.idle:
            then()
        else:
            self._when_idle = then

    def jump(self, offset: int, reason: str) -> None:
        """Go on at another source offset; offsets that are left out are counted under ``reason``."""
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

    def lose(self, first: int, after: int, reason: str) -> None:
        """Write down a range that nobody will ever copy."""
        self.lost.append(Lost(first, after, reason, _now_ms()))

    def kept_losses(self) -> tuple[tuple[Lost, ...], int]:
        """The ranges that the ledger is to list, and how many there were before them."""
        return tuple(self.lost[-LOST_KEPT:]), self.lost_before + max(0, len(self.lost) - LOST_KEPT)

    def refused(self, failure: Exception | None) -> None:
        """The target does not take this partition's head (or takes it again: None)."""
        if failure is None:
            self.write_trouble = self._malformed = None
            return
        outgoing = self.outbox.queue[0] if self.outbox.queue else None
        entry = next((entry for entry in self.entries if not entry.done), None)
        state = state_of(failure)
        self._malformed = None
        if outgoing is not None and entry is not None:
            if state is PartitionState.TOO_LARGE and self.owner.too_large(self, entry, outgoing):
                return
            if state is PartitionState.REFUSED:
                self._malformed = _wrong_inside(outgoing)
                if self._malformed is not None and self.owner.malformed(self, entry, outgoing, self._malformed):
                    return
        self._complain(failure)

    def _complain(self, failure: Exception) -> None:
        """The target's word on what is to be written, and ours where we know why."""
        state, reason = state_of(failure), str(failure)
        if state is PartitionState.REFUSED and self._malformed is not None:
            state, reason = PartitionState.CORRUPT, f"{self.partition}: {self._malformed}, and {reason}"
        self.write_trouble = self._trouble(self.write_trouble, state, reason, self.position)

    def put_away(self) -> None:
        """The corrupt batch is where the owner wanted it; said once for each that `Owner.corrupt` took."""
        self._done(next(entry for entry in self.entries if entry.reason == QUARANTINED and not entry.done))

    def bury(self, entry: SourceRange, reason: str) -> None:
        """Its records will not be on the target; what follows takes their sequences."""
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
        place = self.entries.index(entry)
        if entry.first < offset:
            self.entries.insert(place, SourceRange(entry.first, offset, reason=self.hole_reason, done=True))
        if after < entry.next_offset:
            index = self.entries.index(entry) + 1
            self.entries.insert(index, SourceRange(after, entry.next_offset, reason=self.hole_reason, done=True))
        entry.first, entry.next_offset, entry.reason = offset, after, reason
        self._malformed = None
        self._done(entry)

    def progress(self) -> PartitionProgress:
        """A snapshot for the driver."""
        standing = self._standing()
        return PartitionProgress(
            self.spec.topic,
            self.spec.partition,
            self.position,
            self.target,
            self.high_watermark,
            str(standing.state),
            standing.reason,
            standing.offset,
            standing.since_ms,
            self.stopped,
            self.copied,
            self.bytes,
            dict(self.trail.gaps),
            self.lost_before + len(self.lost),
            self.foreign,
            list(self.ages_ms) or None,
            list(self.latencies_ms) or None,
        )

    def glance(self) -> tuple[Any, ...]:
        """Something else whenever `progress` is; of thousands of partitions most have not moved, and this is a tenth of it.

        Gaps grow only where the position moves.
        """
        standing = self._standing()
        return (
            self.position,
            self.target,
            self.high_watermark,
            self.copied,
            (standing.state, standing.reason, standing.offset, standing.since_ms),
            self.stopped,
            self.lost_before + len(self.lost),
            self.foreign,
        )

    def measure(self, now_s: float) -> None:
        """Bring ``rate`` up to date: bytes per second over the last ten or so."""
        since, seen = self._rated
        if not since:
            self._rated = (now_s, self.bytes)
            return
        passed = now_s - since
        if passed >= 1.0:
            weight = min(1.0, passed / _RATE_OVER_S)
            self.rate += ((self.bytes - seen) / passed - self.rate) * weight
            self._rated = (now_s, self.bytes)

    def current_trouble(self) -> PartitionCondition | None:
        """What keeps it from going on now."""
        if self.stop_trouble is not None or self.paused is not None:
            return self.stop_trouble or self.paused
        complaint = self.outbox.complaint if self.letters is None else self.letters.complaint
        if complaint is not None:
            self._complain(complaint)
        elif not self.outbox.refused:
            self.write_trouble = None
        return self.write_trouble or self.read_trouble

    @staticmethod
    def _trouble(
        known: PartitionCondition | None, state: PartitionState, reason: str, offset: int
    ) -> PartitionCondition:
        """The same state keeps its time."""
        if known is None or known.state != state:
            return PartitionCondition(state, reason, offset, _now_ms())
        return known._replace(reason=reason)

    def _standing(self) -> PartitionCondition:
        """Its state, and unless all is well the reason, from which offset on, and since when."""
        held = self.current_trouble() or self._held_back()
        if held is not None:
            return held
        return PartitionCondition(
            PartitionState.CATCHING_UP if self.behind else PartitionState.RUNNING, self.note, -1, -1
        )

    def _held_back(self) -> PartitionCondition | None:
        """What it waits for although nothing is wrong."""
        now = time.monotonic()
        # Not when something is fetched: a session's answer leaves out what has not changed.
        blocked = self.read_committed and self.high_watermark > self.offset >= self.last_stable
        self._behind_lso_s = (self._behind_lso_s or now) if blocked else 0.0
        if blocked and now - self._behind_lso_s > _BLOCKED_AFTER_S:
            reason = (
                f"a transaction that began at source offset {self.last_stable} is neither committed nor aborted, "
                "and with read_committed nothing passes it"
            )
            self._hold(PartitionState.BLOCKED_BY_OPEN_TXN, reason, self.last_stable)
        elif now - self._throttled_s < _THROTTLED_FOR_S and self.high_watermark > self.offset:
            self._hold(PartitionState.THROTTLED, "copy.throttle.bytes.per.sec allows no more", self.offset)
        else:
            self._held = None
        return self._held

    def _hold(self, state: PartitionState, reason: str, offset: int) -> None:
        if self._held is None or (self._held.state, self._held.reason) != (state, reason):
            self._held = PartitionCondition(state, reason, offset, _now_ms())

    def _batches(self, fetched: Fetched) -> Iterable[BatchView | Merged]:
        if self.skip:
            return iter_batches(fetched.records)
        # A few go as they came. Compressed ones cost more to merge than to pass on, unless there are too many of them for
        # the way to the target.
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
            self._corrupt_at = self.offset  # a wire may lie once; what is bad on the disk stays bad
            return
        self.fail(PartitionState.CORRUPT, f"{self.partition}: {error}")

    def _take_checked(self, view: BatchView, aborted: AbortedTransactions) -> bool:
        """Take a batch; False when what follows it has to wait."""
        before = self.offset
        try:
            self._take_batch(view, aborted)
        except CorruptBatch as error:
            header = view.header
            if self.skip and self.match is None and self._corrupt_at == before:
                self._ask_target()  # a predecessor may have read it whole, so there is no counting past it
                return False
            if header is None or self._corrupt_at != before or not self.owner.corrupt(self, view, error):
                raise
            after = max(header.last_offset + 1, before)
            # Not done yet: the position goes past it when it has been put away, or a crash would leave it nowhere.
            self.entries.append(SourceRange(before, after, reason=QUARANTINED))
            self.offset = after
        return not (self.held or self.stopped)

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
            return  # a fetch starts at the batch that holds the offset, which may be done already
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
            if self.held or self.stopped:
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
            if self.held or self.stopped:
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
        self.owner.tally.count(_why_anew(view, start))
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
                return None  # right on the outside, so it was passed on; the target's word on it stands
            self.owner.tally.count("too_large")
            return self._replace(entry, parts)

        def without(count: int) -> OutgoingBatch:
            keep_from = header.base_offset + count
            rest = rewrite(BatchView(header, header.base_offset, 2, data), keep=lambda offset: offset >= keep_from)
            if rest is None:
                message = f"{self.partition}: a batch of {header.records_count} records has none behind the {count}th"
                raise CorruptBatch(message)
            head, tail = self._cut_entry(entry, [count, header.records_count - count], [0, len(rest.data)])
            head.there = True
            self._done(head)
            return self._outgoing(memoryview(rest.data), read_header(rest.data), tail)

        return OutgoingBatch(data, header, acked, cut, without)

    def _replace(self, entry: SourceRange, parts: list[Rewritten]) -> list[OutgoingBatch]:
        """Outgoing batches for the parts of a batch, each with an entry of its own."""
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
        place = self.entries.index(entry)
        self.entries.remove(entry)
        for index, piece in enumerate(pieces):
            self.entries.insert(place + index, piece)
        self.waiting_bytes += sum(sizes) - entry.size
        return pieces

    def _drop(self, first: int, after: int, reason: str) -> None:
        entry = SourceRange(first, after, reason=reason)
        self.entries.append(entry)
        # While records are looked for, how many of them lay here is known when the next one is found. A position behind
        # it with a count before it would have a successor take as many new records for old ones.
        if self.match is None:
            self._done(entry)

    # -- what is there already -----------------------------------------------------------------------------------------

    def _ask_target(self) -> None:
        self.held = True
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
        self._there(start, start + there, there)
        if self._finish(start + there):
            return
        if start + there < after:
            self.offset = start + there
            self._reencode(view, start + there, after)

    def _skip_matching(self, view: BatchView, after: int) -> None:
        """Of the records that are on the target each one here is found again in the same order, until one is new."""
        match = self.match
        first = fresh = self.offset
        offsets = []
        for record in decode_batch(view):
            if record.offset < first or match is None:
                continue
            try:
                place = match.index(fingerprint(record, with_time=self.match_with_time))
            except ValueError:
                match, fresh = None, record.offset
                break
            for _ in range(place + 1):
                match.popleft()
            offsets.append(record.offset)
            # It was copied in order, so what was deleted before it was copied, too.
            self._settle_deleted(record.offset)
            self._settle_dropped()
            self.records += place  # they are gone from the source, and on the target
            self.skip -= place
            if not match:
                match = None
        there = offsets[-1] + 1 if offsets else first
        if offsets:
            self._there(first, there, len(offsets), offsets)
        if match is None:
            header = view.header
            if self._deleted:
                # What is left was copied from the deleted range, unless it lay in a hole before that.
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
        """Whether a session under other rules ends before this offset."""
        if self.finishing and not self.skip:
            self.offset = after
            self.held = True
            self.owner.finished(self)
        return self.held

    def _conclude(self) -> None:
        """What is left of what a predecessor has copied will not be read any more."""
        if self.skip:
            self.target = self.skip_base + self.skip if self.skip_base >= 0 else -1
        self.records += self.skip
        self.skip, self.skip_base, self.match = 0, -1, None
        self._deleted.clear()
        self._settle_dropped()

    def _settle_deleted(self, copied_to: int) -> None:
        """Of what was deleted from the source a predecessor had copied what lies before this offset; the rest is lost."""
        deleted, self._deleted = self._deleted, []
        for entry in deleted:
            after = entry.next_offset
            entry.there = entry.first < copied_to
            first = min(max(entry.first, copied_to), after)
            if first == after:
                continue
            if entry.there:
                entry.next_offset = first
                self.entries.insert(self.entries.index(entry) + 1, SourceRange(first, after, reason=entry.reason))
            self.owner.deleted(self, first, after)

    def _settle_dropped(self) -> None:
        for entry in [entry for entry in self.entries if not entry.count and not entry.done]:
            self._done(entry)

    def _there(self, first: int, after: int, count: int, offsets: list[int] | None = None) -> None:
        entry = SourceRange(first, after, 0, count, offsets, there=True, target_base=self.skip_base)
        self.skip -= count
        if self.skip_base >= 0:
            self.skip_base += count
        self.entries.append(entry)
        self._done(entry)

    # -- done ----------------------------------------------------------------------------------------------------------

    def _done(self, entry: SourceRange) -> None:
        entry.done = True
        while self.entries and self.entries[0].done:
            self._pass(self.entries.popleft())
        if not self.entries and self._when_idle is not None:
            then, self._when_idle = self._when_idle, None
            then()

    def _pass(self, entry: SourceRange) -> None:
        """The oldest entry is done: move on, and leave a trail."""
        if not entry.count:
            if not entry.there:
                self.trail.missing(entry.first, entry.next_offset, entry.reason)
            self.position = entry.next_offset
            return
        self.waiting_bytes -= entry.size
        self.copied += 0 if entry.there else entry.count
        self.records += entry.count
        self.bytes += entry.size
        base = entry.target_base
        if base >= 0:
            self._place(base)
            self.target = base + entry.count
        else:
            self.target = -1
        at, last = entry.first, entry.first - 1
        for start, count in entry.runs():
            if start > at and not entry.there:  # what is missing now may have been there when it was copied
                self.trail.missing(at, start, self.hole_reason)
            if base >= 0:
                self.trail.copied(start, base, count)
                base += count
            at, last = start + count, start + count - 1
        if at < entry.next_offset:
            self.trail.missing(at, entry.next_offset, self.hole_reason)
        self.position = entry.next_offset
        self.owner.acked(self, entry, last)

    def _place(self, base: int) -> None:
        markers, self.markers = self.markers, 0
        if self.target < 0:
            return
        expected = self.target + (markers or 0)
        if base < expected:
            self.owner.target_went_back(self, base)
        # With markers that nobody has counted it may be those, and records of transactions that were aborted.
        elif base > expected and markers is not None:
            if not self.foreign:
                log.warning(
                    "somebody else writes to a remote topic",
                    partition=str(self.spec.target),
                    offset=expected,
                    records=base - expected,
                )
            self.foreign += base - expected
            self.owner.target_gap(self, expected, base)


def _why_anew(view: BatchView, start: int) -> str:
    """Why a batch could not go as it was."""
    header = view.header
    if header is None:
        return "old_format"
    if header.is_log_append_time:
        return "log_append_time"
    return "begun" if header.is_dense and header.base_offset < start else COMPACTED


def _now_ms() -> int:
    return int(time.time() * 1000)


def _wrong_inside(outgoing: OutgoingBatch) -> CorruptBatch | None:
    """What is wrong inside of a batch that was passed on unopened; None: nothing."""
    try:
        decode_batch(BatchView(outgoing.header, outgoing.header.base_offset, 2, outgoing.data))
    except CorruptBatch as error:
        return error
    return None
