"""What is committed of each partition, and when: its ledger entry, its position and offset syncs.

`Commits` is for copy sessions. `TransactionCommits` is for exactly-once mode, in which positions are part of the transaction of
their records. Nothing else of a micro-batch's steps depends on which of the two it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from mm2.copy import channel
from mm2.copy.executor.commit.awake import AwakeCursors
from mm2.copy.executor.commit.positions import Commit, PendingRecords, Positions
from mm2.copy.executor.commit.syncs import Syncs
from mm2.copy.executor.commit.transaction import TaskTransactions
from mm2.copy.executor.link import DriverLink
from mm2.copy.executor.partition import history
from mm2.copy.executor.partition.cursor import Cursor
from mm2.copy.executor.partition.outbox import Outbox, SharedPartition
from mm2.copy.executor.partition.window import SourceRange, TargetWentBack
from mm2.copy.executor.producing.sink import Sink
from mm2.copy.progress.segments import SegmentChunk
from mm2.copy.progress.session import (
    Lease,
    LedgerEntry,
    Mark,
    PartitionCondition,
    PositionHeader,
    PreviousCommit,
    Session,
    Start,
)
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.records.record import Record
from mm2.kafka.structs import TopicPartition

_LEDGER_TIMEOUT_S: Final = 5.0
_CLAIM_RETRY_S: Final = 0.5
_POLL_S: Final = 0.005


@dataclass(eq=False)
class Commits:
    """Commits of the default mode: the ledger entry, then the position. In transactions both are written otherwise, see below.

    ``arrived(cursor, range)`` is called for records that are visible to consumers.
    """

    _cursors: Mapping[TopicPartition, Cursor]
    _positions: Positions
    _ledger: PendingRecords | None
    _ledger_topic: str | None
    _sink: Sink
    _sessions: Mapping[TopicPartition, Session]
    _syncs: Syncs | None
    _arrived: Callable[[Cursor, SourceRange], None]
    _awake: AwakeCursors

    def __post_init__(self) -> None:
        self._written: dict[TopicPartition, tuple[Any, ...]] = {}  # state of the last commit of each
        self._known: dict[TopicPartition, LedgerEntry] = {}  # entries of partitions whose copying has not begun
        # Callbacks for a commit with that lease, or a later one.
        self._waiting: dict[TopicPartition, list[tuple[Lease, Callable[[], None]]]] = {}
        self._ledger_unavailable_s = 0.0
        self._log = structlog.get_logger("mm2.copy.executor.commits")

    async def claim(self) -> bool:
        """Fence the predecessor before the positions are read; False at the stop, or when that is refused. Here the leases do it."""
        return True

    def start(self, source: TopicPartition, start: Start) -> None:
        """A partition starts with the state that the driver has sent."""
        if start.entry is not None:
            self._known[source] = start.entry

    def acked(self, cursor: Cursor, copied: SourceRange, last: int) -> None:
        """The target has acknowledged records up to the source offset ``last``."""
        cursor.written_by = -1  # the last record is the session's
        self._make_visible(cursor, copied, last)

    def enroll(self, outbox: Outbox) -> None:
        """An outbox has something to send before its partition is part of the open transaction, if there are transactions."""

    def commit_due(self) -> float:
        """Commit what need not wait for the next interval; returns the seconds until this is to be called again."""
        return math.inf

    async def finish(self, renew_lease: Callable[[], None], poll_s: float) -> None:
        """Wait for the commit that had begun at the stop."""

    async def end(self, deadline: float) -> None:
        """Begin the last commit of the micro-batch, until ``deadline`` (monotonic, s)."""

    @property
    def errors(self) -> list[KafkaFailure | None]:
        """Why positions are not acknowledged."""
        return [outbox.last_error for outbox in self._positions.outboxes]

    def commit(self, *, ending: bool = False) -> None:
        """Write what has changed: the ledger, then Connect's offsets topic, then offset syncs that are not due.

        Where nothing moves, the ledger is written once more after the position (`Positions.is_settled`).
        """
        self._watch_ledger()
        now = time.monotonic()
        uncommitted = self._awake.uncommitted
        for cursor in list(uncommitted):
            tp = cursor.partition
            cursor.rate.measure(now, cursor.window.bytes)
            is_written = self._written.get(tp) == state_of(cursor)
            if not (is_written and self._positions.is_settled(tp, ending=ending)):
                self._commit_one(cursor)
            elif not ending and cursor.is_at_rest and not self._positions.busy(tp):
                del uncommitted[cursor]
        self._positions.flush()
        if self._syncs is not None:
            self._syncs.commit()

    def then(self, cursor: Cursor, call: Callable[[], None]) -> None:
        """Write a cursor's entry as it is now or later, and call ``call`` when it is written."""
        # A commit in flight was computed before.
        self._awake.wake(cursor)
        due = self._positions.lease(cursor.partition).following()
        self._waiting.setdefault(cursor.partition, []).append((due, call))
        if not self._positions.busy(cursor.partition):
            self._commit_one(cursor)
            # In the next iteration of the loop, so that partitions that start together share a batch.
            asyncio.get_running_loop().call_soon(self._positions.flush)

    def _committed(self, entry: LedgerEntry) -> None:
        """A commit is written."""
        source = entry.source
        self._cursors[source].window.trail.written()
        waiting = self._waiting.get(source)
        if not waiting:
            return
        del self._waiting[source]
        later = [(due, call) for due, call in waiting if due > entry.lease]
        if later:
            self._waiting[source] = later
            asyncio.get_running_loop().call_soon(self._commit_again, self._cursors[source])
        for due, call in waiting:
            if due <= entry.lease:
                call()

    def is_awaited(self, source: TopicPartition) -> bool:
        """Whether a callback waits for a commit of this partition."""
        return source in self._waiting

    @property
    def is_complete(self) -> bool:
        """Whether everything is committed. A lost offset sync is replaced by the next one, so it must not delay a stop."""
        syncs_idle = self._syncs is None or self._syncs.idle or self._syncs.outbox.last_error is not None
        return self._positions.idle and syncs_idle and self._is_all_written()

    def _is_all_written(self) -> bool:
        return all(
            cursor.window.position < 0 or self._written.get(tp, ())[:3] == state_of(cursor)[:3]
            for tp, cursor in self._cursors.items()
        )

    def remember_start(self, cursor: Cursor) -> None:
        """The partition begins to copy in transactions, and nothing of it was read."""

    def remember_source(self, cursor: Cursor) -> None:
        """The source topic or log of a partition is about to change."""

    def entry(self, cursor: Cursor) -> LedgerEntry:
        """The ledger entry of a partition as it is now, without ``previous``."""
        part = cursor.spec
        condition = cursor.current_condition()
        lost, lost_before = cursor.kept_losses()
        return LedgerEntry(
            part.topic,
            part.partition,
            part.remote_topic,
            cursor.window.mark,
            None,
            cursor.topic_id,
            self._sink.topic_ids.get(part.remote_topic, ""),
            cursor.leader_epoch,
            self._sessions.get(part.source),
            dict(cursor.window.trail.gaps),
            lost,
            cursor.window.foreign,
            int(cursor.rate.value),
            cursor.window.trail.newest.number,
            condition,
            cursor.conditions.note,
            end=cursor.known_end,
            lost_before=lost_before,
            target_epoch=cursor.outbox.leader_epoch,
            lease=self._positions.lease(part.source),
            known_epoch=cursor.known_epoch,
            retired=cursor.retired,
            source_epochs=history.before(cursor.epochs, cursor.window.mark.source),
            former=cursor.former,
            is_preserved=cursor.is_preserved,
            fills_by_transactions=cursor.outgoing.fills_by_transactions,
            shared_until=cursor.shared_until if cursor.shares(cursor.window.position) else -1,
            copy_id=cursor.copy_id,
            written_by=cursor.written_by,
            origin=cursor.origin,
        )

    @property
    def has_ledger(self) -> bool:
        """Whether there is a ledger, and it can be written."""
        return self._ledger is not None

    def _make_visible(self, cursor: Cursor, copied: SourceRange, last: int) -> None:
        if self._syncs is not None:
            self._syncs.acked(cursor.partition, copied.first, last, copied.target_base, copied.count)
        self._arrived(cursor, copied)

    def _commit_one(self, cursor: Cursor) -> None:
        tp = cursor.partition
        if self._positions.busy(tp):
            return
        if cursor.window.position >= 0:
            self._known.pop(tp, None)
            self._write(cursor, self.entry(cursor))
        else:
            self._write_unbegun(cursor)

    def _write_unbegun(self, cursor: Cursor) -> None:
        """Write why a partition has stopped, or is paused, before copying began. Nothing else is known of it than before.

        A paused partition without an entry gets none: an entry would claim that copying has begun.
        """
        part, stop = cursor.spec, cursor.conditions.stop
        lasting = cursor.current_condition() if stop is None else stop
        if stop is None and (cursor.conditions.paused is None or cursor.partition not in self._known):
            return
        unbegun = LedgerEntry(
            part.topic, part.partition, part.remote_topic, Mark(0, -1, 0), is_unbegun=True, origin=cursor.origin
        )
        known = self._known.get(cursor.partition, unbegun)
        before = known.condition
        if (
            lasting is not None
            and before is not None
            and (lasting.state, lasting.reason) == (before.state, before.reason)
        ):
            lasting = before  # it has lasted since then; of a pause, also how far copying had come
            if stop is not None:
                cursor.conditions.stop = before
        self._written[cursor.partition] = state_of(cursor)
        if lasting != before:
            self._known[cursor.partition] = entry = known.replace(condition=lasting)
            self._positions.put_condition(entry)

    def _write(self, cursor: Cursor, entry: LedgerEntry) -> None:
        self._written[cursor.partition] = state_of(cursor)
        self._positions.commit(Commit(entry, *cursor.window.trail.take_changed()), self._committed)

    def _commit_again(self, cursor: Cursor) -> None:
        self._awake.wake(cursor)
        self._commit_one(cursor)
        self._positions.flush()

    def _watch_ledger(self) -> None:
        """Stop using a ledger that was deleted or permanently rejects writes, and report the reduced guarantee.

        A ledger without a leader or with too few replicas is retried: commits are delayed, and nothing else (rule
        C6).
        """
        unavailable = self._ledger is not None and any(
            outbox.refused or (outbox.last_error is not None and not outbox.idle) for outbox in self._ledger.outboxes
        )
        now = time.monotonic()
        if not unavailable:
            self._ledger_unavailable_s = 0.0
            return
        self._ledger_unavailable_s = self._ledger_unavailable_s or now
        errors = [outbox.last_error for outbox in self._ledger.outboxes] if self._ledger is not None else []
        known = next((last_error for last_error in errors if last_error is not None), None)
        is_gone = isinstance(known, BrokerFailure) and (
            (not known.retriable and known.code != ErrorCode.UNKNOWN_SERVER_ERROR)  # not specific to the ledger
            or known.code in {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}
        )
        if is_gone and self._sink.failure is None and now - self._ledger_unavailable_s > _LEDGER_TIMEOUT_S:
            note = f"at least once: the ledger {self._ledger_topic} cannot be written: {known}"
            self._log.error(note)
            for cursor in self._cursors.values():
                cursor.annotate(note)
            self._ledger = None
            self._positions.without_ledger()


class TransactionCommits(Commits):
    """Commits of exactly-once mode, in these transactions. ``link`` ends the micro-batch when one fails."""

    def __init__(self, link: DriverLink, transactions: TaskTransactions, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._link = link
        self._transactions = transactions
        self._committing: asyncio.Task[None] | None = None
        self._has_failed = False  # a transaction failed: a successor may have continued
        self._in_transaction: list[tuple[Cursor, SourceRange, int]] = []  # acknowledged in the open transaction
        self._after_transaction: list[tuple[Cursor, Callable[[], None]]] = []
        self._previous: dict[TopicPartition, PreviousCommit] = {}  # state after the last committed transaction
        self._moved = False

    def enroll(self, outbox: Outbox) -> None:
        self._transactions.enroll(outbox)

    async def claim(self) -> bool:
        """Claim the transactional id."""
        link = self._link
        while not link.stop.is_set():
            try:
                await self._transactions.claim()
            except KafkaFailure as error:
                link.ask({"type": "waiting", "reason": str(error)})
                if error.is_final:
                    link.end(f"cannot initialize the transactional id: {error}")
                    return False
                await link.pause(_CLAIM_RETRY_S)
                continue
            self.begin()
            return True
        return False

    def begin(self) -> None:
        """The transactional id was claimed."""
        self._transactions.begin(cursor.outbox for cursor in self._cursors.values())

    def start(self, source: TopicPartition, start: Start) -> None:
        super().start(source, start)
        self._previous[source] = _previous_commit_of(start)
        if (entry := start.entry) is not None:
            self._written[source] = _state(entry.mark, len(entry.lost), entry.foreign, entry.condition, entry.note)

    def acked(self, cursor: Cursor, copied: SourceRange, last: int) -> None:
        if cursor.outbox.shared is not None and copied.count and copied.target_base >= 0:
            self._compare_others(cursor, cursor.outbox.shared, copied.target_base)
        identity = cursor.outbox.identity
        is_own = identity is not None and copied.target_base >= 0 and not copied.already_copied
        cursor.written_by = identity.producer_id if identity is not None and is_own else -1
        self._in_transaction.append((cursor, copied, last))  # not visible before the commit

    def _compare_others(self, cursor: Cursor, shared: SharedPartition, base_offset: int) -> None:
        """The sources of a merge have one producer, and take turns: what one of them has just written cannot lie before what another had
        written earlier, unless the target has lost that.
        """
        for outbox in shared.outboxes:
            other = None if outbox.source is None else self._cursors.get(outbox.source)
            if other is None or other is cursor or other.stopped:
                continue
            if base_offset < other.window.target:
                other.emit(TargetWentBack(base_offset))

    def commit_due(self) -> float:
        if self._is_between and self.is_due:
            self._committing = asyncio.get_running_loop().create_task(self.commit_transaction())
        return _POLL_S if self._in_transaction else math.inf

    @property
    def _is_between(self) -> bool:
        """Whether no transaction is being committed."""
        return self._committing is None or self._committing.done()

    @property
    def is_due(self) -> bool:
        """Whether the open transaction is to be committed now."""
        if not (self._in_transaction or self._moved):
            return self._transactions.is_overdue
        return self._transactions.due(behind=any(cursor.behind for cursor in self._cursors.values()))

    @property
    def errors(self) -> list[KafkaFailure | None]:
        return [*super().errors, *self._transactions.errors]

    def commit(self, *, ending: bool = False) -> None:
        if not ending:
            # Positions may advance without a record on the target, when all records that were read were dropped.
            self._moved = self._moved or any(self._is_ahead(cursor) for cursor in self._cursors.values())
            if self._is_between:
                self.commit_unmoved()
        self._watch_ledger()
        now = time.monotonic()
        for cursor in self._awake.uncommitted:
            cursor.rate.measure(now, cursor.window.bytes)
        self._positions.flush()

    def then(self, cursor: Cursor, call: Callable[[], None]) -> None:
        self._after_transaction.append((cursor, call))
        self._moved = True

    def _is_all_written(self) -> bool:
        return True

    def commit_unmoved(self) -> None:
        """Between two transactions: write the ledger entries of partitions that have not moved.

        No transaction would include a paused partition, and `mm2 failover` waits for its entry.
        """
        if self._ledger is None:
            return
        for tp, cursor in self._cursors.items():
            if cursor.window.position < 0 and self._written.get(tp) != state_of(cursor):
                self._commit_one(cursor)
            stands = cursor.window.position >= 0 and cursor.window.position == (self._positions.committed.get(tp) or 0)
            if stands and not self._positions.busy(tp) and self._written.get(tp) != state_of(cursor):
                self._previous[tp] = self._current_commit(cursor)
                self._commit_one(cursor)

    async def commit_transaction(self) -> None:
        """Commit the open transaction. Ends the micro-batch if that fails."""
        transactions = self._transactions
        in_transaction: list[tuple[Cursor, SourceRange, int]] = []
        positions: dict[TopicPartition, int] = {}
        now: dict[TopicPartition, PreviousCommit] = {}
        after: list[tuple[Cursor, Callable[[], None]]] = []

        def records() -> list[tuple[int, Record]]:
            nonlocal in_transaction
            nonlocal after
            in_transaction, self._in_transaction = self._in_transaction, []
            after, self._after_transaction = self._after_transaction, []
            self._moved = False
            return self._write_entries({cursor.partition for cursor, _ in after}, positions, now)

        try:
            done = await transactions.commit(
                records, lambda: self._positions.idle, lambda: self._link.unanswered_s > channel.LEASE_TIMEOUT_S
            )
        except KafkaFailure as error:
            self._has_failed = True
            self._link.end(f"the transaction failed: {error}")
            return
        if not done:
            self._has_failed = True
            self._link.end("the transaction was abandoned")
            return
        self._positions.committed.update(positions)
        self._previous.update(now)
        for cursor, call in after:
            # Write the entry again without the previous state: a user may set the position back to exactly that.
            self._written.pop(cursor.partition, None)
            call()
        acknowledged = {row[0].partition for row in in_transaction if not row[1].already_copied}
        for tp, cursor in self._cursors.items():
            if tp in acknowledged:
                cursor.window.markers = (cursor.window.markers or 0) + 1
            elif cursor.outbox.partition in transactions.marked:
                # Its batches were rejected, perhaps before it became part of the transaction.
                cursor.window.markers = None
        for cursor, copied, last in in_transaction:
            self._make_visible(cursor, copied, last)
        if self._syncs is not None:
            self._syncs.commit()

    def _write_entries(
        self,
        waiting: set[TopicPartition],
        positions: dict[TopicPartition, int],
        now: dict[TopicPartition, PreviousCommit],
    ) -> list[tuple[int, Record]]:
        """Write the entries of partitions that moved or are ``waiting`` for their entry, and return the positions of
        those that moved, also in ``positions``; ``now`` gets their state.
        """
        rows = []
        for tp, cursor in self._cursors.items():
            is_ahead = self._is_ahead(cursor)
            if not is_ahead and (tp not in waiting or cursor.window.position < 0):
                continue
            entry = self.entry(cursor)
            if is_ahead:
                # Also 0, where the source was recreated: otherwise a position of the old topic could not be distinguished from
                # the same position in the new one.
                positions[tp] = cursor.window.position
                rows.append(self._positions.offset_record(tp, cursor.window.position, PositionHeader.of(entry)))
                # The entry contains exactly this transaction, and the state before it, which is valid if it is not committed. If
                # it were written afterwards, a crash in between would leave a range of offsets without a reason.
                before = self._previous[tp]
                entry = entry.replace(before=before._replace(lost=len(cursor.lost) - before.lost))
            now[tp] = self._current_commit(cursor)
            self._write(cursor, entry)
        self._positions.flush()
        return rows

    async def finish(self, renew_lease: Callable[[], None], poll_s: float) -> None:
        """If the transaction takes too long to commit, it stays the last one."""
        committing = self._committing
        if committing is None:
            return
        deadline = time.monotonic() + self._link.drain_s
        while not committing.done() and time.monotonic() < deadline:
            renew_lease()
            await asyncio.wait({committing}, timeout=poll_s)
        if not committing.done():
            self._log.warning("stopped before the last transaction was committed")
            self._has_failed = True
            committing.cancel()
            await asyncio.wait({committing})

    async def end(self, deadline: float) -> None:
        """Commit or abort the last transaction of the micro-batch."""
        if self._has_failed:
            return  # a later one must not be committed without this one
        with contextlib.suppress(asyncio.TimeoutError, KafkaFailure):
            left_s = max(0.1, deadline - time.monotonic())
            if self._in_transaction and self._link.stop_requested:
                await asyncio.wait_for(self.commit_transaction(), left_s)
            elif self._in_transaction:
                await asyncio.wait_for(self._transactions.abort(), left_s)
            if self._link.stop_requested and not self._has_failed:
                self.commit_unmoved()

    def remember_start(self, cursor: Cursor) -> None:
        """What a later position leaves out is so also if the first transaction is not committed."""
        before = self._previous.get(cursor.partition)
        if before is not None and before.gaps != cursor.window.trail.gaps:
            self._previous[cursor.partition] = self._current_commit(cursor)._replace(entry=None)

    def remember_source(self, cursor: Cursor) -> None:
        """Record the source topic and log of a position that was committed before the ledger had an entry, or set by
        a user. The source may have been recreated by the time the first transaction is written.

        Without a position, auto.offset.reset applies again if that transaction is not committed.
        """
        before = self._previous.get(cursor.partition)
        has_position = cursor.window.position >= 0 and self._positions.committed.get(cursor.partition) is not None
        if before is not None and before.entry is None and has_position:
            self._previous[cursor.partition] = before._replace(entry=self.entry(cursor))

    def _is_ahead(self, cursor: Cursor) -> bool:
        """Whether Connect's offsets topic has another position. None is the beginning of a log.

        Skipped records belong to a session, which the ledger names until the first transaction.
        """
        position = cursor.window.position
        return (
            not cursor.predecessor.finishing
            and position >= 0
            and position != (self._positions.committed.get(cursor.partition) or 0)
        )

    def _current_commit(self, cursor: Cursor) -> PreviousCommit:
        """The current state of a partition."""
        entry, extent = self.entry(cursor), cursor.window.trail.newest.extent()
        return PreviousCommit(entry.mark, entry.gaps, entry.chunk, extent, len(cursor.lost), entry)


def state_of(cursor: Cursor) -> tuple[Any, ...]:
    """The part of the state whose change requires a ledger write. The rate alone does not."""
    return _state(
        cursor.window.mark, len(cursor.lost), cursor.window.foreign, cursor.current_condition(), cursor.conditions.note
    )


def _state(mark: Mark, lost: int, foreign: int, condition: PartitionCondition | None, note: str) -> tuple[Any, ...]:
    what = "" if condition is None else f"{condition.state} {condition.offset} {condition.since_ms}"
    return mark, lost, foreign, what, note


def _previous_commit_of(start: Start) -> PreviousCommit:
    """The ledger's state where a partition's copying begins."""
    entry, chunk = start.entry, start.chunk or SegmentChunk(0)
    if entry is None:
        return PreviousCommit(Mark(start.position or 0, -1, 0), {}, chunk.number, chunk.extent(), 0)
    known = None if start.moved else entry
    return PreviousCommit(entry.mark, dict(entry.gaps), chunk.number, chunk.extent(), len(entry.lost), known)
