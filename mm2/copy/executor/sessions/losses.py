"""Handles records that the source lost before they were copied, and records that the target lost afterwards.

``source.data.loss`` decides for the source: continue, with the lost range in the ledger, or stop the partition.
Records that the target lost are copied again where the source still has them.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

import structlog

from mm2.copy.executor.background import BackgroundTasks
from mm2.copy.executor.clusters.topic_ids import retire
from mm2.copy.executor.fetching.source import Source
from mm2.copy.executor.partition.cursor import Cursor
from mm2.copy.executor.partition.history import HistoryVerdict, examine
from mm2.copy.executor.sessions.new_sessions import NewSessions
from mm2.copy.executor.sessions.preserved_starts import source_recreated
from mm2.copy.executor.sessions.session_table import SessionTable
from mm2.copy.progress.session import Mark
from mm2.copy.spec import CopySpec
from mm2.copy.states import PartitionState
from mm2.kafka.admin import Admin
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure, value_of
from mm2.kafka.structs import EARLIEST, LATEST, EpochEnd, TopicPartition

log = structlog.get_logger("mm2.copy.executor.losses")

#: A broker may reject an offset that is in its log for this time, because replicas learn of a new leader at different times.
CONTRADICTED_S: Final = 5.0


@dataclass(eq=False)
class Losses:
    """For all cursors of a micro-batch. ``commit(cursor, then)`` writes a cursor's entry and calls ``then``."""

    _spec: CopySpec
    _tasks: BackgroundTasks
    _source: Source
    _admin: Admin
    _sessions: SessionTable
    _new_sessions: NewSessions
    _call: Callable[..., Awaitable[Any]]
    _commit: Callable[[Cursor, Callable[[], None]], None]

    def __post_init__(self) -> None:
        self._looked_up: set[TopicPartition] = set()  # partitions whose source log is being examined
        self._contradictions: dict[TopicPartition, tuple[float, float]] = {}  # first and last time (monotonic)
        self._cannot_validate = False
        self._log = structlog.get_logger("mm2.copy.executor.losses")

    @property
    def _stops(self) -> bool:
        return self._spec.source_data_loss == "stop"

    def unreadable(self, cursor: Cursor, failure: BrokerFailure) -> None:
        """The source rejects reads of a partition."""
        if failure.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._look_up(cursor, self._out_of_range)

    def validate(self, cursor: Cursor) -> None:
        """Compare a position with the log of a new leader before anything is read: Fetch below version 12 does not do
        it.
        """
        self._look_up(cursor, self._validate)

    def _look_up(self, cursor: Cursor, work: Callable[[Cursor], Coroutine[Any, Any, object]]) -> None:
        async def run() -> None:
            try:
                await work(cursor)
            except KafkaFailure as error:
                self._log.info("source log could not be examined", partition=str(cursor.partition), error=str(error))
            finally:
                self._looked_up.discard(cursor.partition)

        if cursor.partition not in self._looked_up:
            self._looked_up.add(cursor.partition)
            self._tasks.spawn(run())

    def source_recreated(self, cursor: Cursor, topic_id: str) -> None:
        """The source topic was recreated: copy it from its start, or its records before the current offset would be
        missing.
        """
        tp = cursor.partition
        what = f"{tp} of {self._spec.source_alias} was deleted and recreated (topic id {topic_id or 'unknown'})"
        if self._stops:
            cursor.fail(PartitionState.RECREATED, f"{what}; source.data.loss is stop", at_source=True)
            return
        if cursor.is_preserved:
            cursor.fail(
                PartitionState.RECREATED, source_recreated(tp, self._spec.source_alias, topic_id), at_source=True
            )
            return
        if cursor.suspended:
            return  # called again later
        self._log.error("source topic recreated, copying it from its start", partition=str(tp))
        first = cursor.offset + cursor.predecessor.remaining  # a predecessor copied at least up to here
        self.rebase(cursor, 0, topic_id, lost=(first, cursor.known_end, "recreated"))  # known end of the deleted topic

    def diverged(self, cursor: Cursor, epoch: int, end_offset: int) -> None:
        """The source lost its end in an unclean election: records copied from there on are on the target only."""
        if epoch < cursor.leader_epoch:
            # If neither leader had all records of the other, the new log may be the longer one.
            self._cut_off(cursor, min(end_offset, cursor.offset), epoch)
        else:
            # The log ends before what was read of the same epoch: its end may have changed since, see `history.examine`.
            leader_epoch = self._source.leader_epoch(cursor.partition)
            self._look_up(cursor, lambda cursor: self._examine(cursor, leader_epoch))

    def replaced(self, cursor: Cursor, first: int, records: int, *, exact: bool) -> None:
        """Records that a predecessor copied are no longer on the source: an election there lost them."""
        what = (
            f"{records} records that were copied from {cursor.partition} of {self._spec.source_alias} before the last crash are "
            f"no longer there; other records begin at offset {first}"
        )
        if self._stops:
            cursor.fail(PartitionState.LOST_RANGE, f"{what}; source.data.loss is stop", at_source=True)
            return
        self._log.error("source log truncated", partition=str(cursor.partition), records=records, reason=what)
        if exact:
            cursor.add_lost_range(first, first + records, "truncated")

    def rebase(
        self, cursor: Cursor, offset: int, topic_id: str, epoch: int = -1, *, lost: tuple[int, int, str] | None = None
    ) -> None:
        """Continue at another position: after batches in flight are acknowledged, and once the ledger has it, or a
        successor would count wrong.

        ``lost`` is a range with its reason (`Cursor.add_lost_range`), which may be empty. It is recorded with the position: if
        the partition begins elsewhere before, it is found again.
        """
        if not cursor.suspended:
            cursor.suspended = True
            cursor.when_idle(lambda: self._continue_at(cursor, offset, topic_id, epoch, lost))

    def target_truncated(self, cursor: Cursor, records: int, end: int) -> None:
        """The target lost acknowledged records and has ``records`` of the session left: resend the rest, in another session
        where those before this one are lost, too.
        """
        if cursor.is_preserved:
            self.preserved_truncated(cursor, end)
            return
        lost = cursor.outbox.acked - records if cursor.outbox.acked else cursor.window.records - records
        session = self._sessions.current.get(cursor.partition)
        # Offsets before the start of the session that the target has lost as well.
        before = 0 if session is None else max(0, session.start.target - end)
        lost += before
        # The session's records end at the target's end, unless other producers write there; then the source offset is unknown.
        source = cursor.window.trail.last_source(end)
        is_alone = not cursor.window.foreign and cursor.window.others is None
        if source is None or session is None or not is_alone or _has_others(cursor):
            cursor.fail(PartitionState.LOST_RANGE, truncated(cursor, self._spec.target_alias, lost, end))
            return
        self._log.error(
            "target lost acknowledged records, resending them",
            partition=str(cursor.spec.target),
            records=lost,
            end=end,
        )
        cursor.window.trail.target_cut(end)
        cursor.outbox.queue.clear()
        # The truncated log may have lost its producer state.
        verified_epoch = cursor.outbox.verified_epoch
        if before:
            # The records before the session are sent again, too. In this session they would not fit into its count.
            mark = Mark(min(source + 1, session.start.source), end, 0)
            self._new_sessions.open_before(cursor, mark, -1 if verified_epoch is None else verified_epoch)
            return
        # Requests with what was read before it may be unanswered (rule S9).
        cursor.shared_until = max(cursor.shared_until, cursor.offset)
        cursor.outbox.begin(session.producer, records, known=False)
        cursor.outbox.verified_epoch = verified_epoch
        cursor.outbox.end_offset = end
        cursor.begin(Mark(source + 1, end, records))
        cursor.suspended = True
        self._commit(cursor, lambda: self._release(cursor))

    def transactions_truncated(self, cursor: Cursor, end: int, *, is_own: bool) -> None:
        """The target lost committed records and ends at this offset: copy them again. Nothing is in flight. ``is_own``: the record
        before it is known to be the task's.
        """
        lost, last = cursor.window.target - end, cursor.window.trail.last_source(end, may_end_with_markers=True)
        if cut_at(cursor, self._spec.target_alias, last, lost, end, is_own=is_own) and last is not None:
            cursor.outbox.queue.clear()
            self._new_sessions.open_again(cursor, Mark(last + 1, end, 0))

    def preserved_truncated(self, cursor: Cursor, end: int) -> None:
        """The target lost what was acknowledged, or has got late records of a predecessor, and ends at this offset: where offsets
        are preserved, copying continues there.
        """
        if end > cursor.outbox.end_offset >= 0:
            self._log.info(
                "late records of a predecessor are on the target", partition=str(cursor.spec.target), end=end
            )
        else:
            self._log.error(
                "target lost acknowledged records, resending them", partition=str(cursor.spec.target), end=end
            )
        cursor.begin(cursor.window.mark)  # nothing more is sent or filled from here
        cursor.outbox.queue.clear()
        cursor.suspended = True
        cursor.window.trail.target_cut(end)
        # The end may move again before the first batch, by another election or another late request.
        self._sessions.unsettled.add(cursor.partition)
        self._new_sessions.open_again(cursor, Mark(end, end, 0))

    def target_diverged(self, cursor: Cursor, offset: int, misplaced: tuple[int, int] | None = None) -> None:
        """Where offsets are preserved, the target has another record than the source, first at this offset. ``misplaced``: the
        first source offset of a batch that was written then, and its offset on the target.
        """
        reason = diverged(cursor.spec.target, self._spec.target_alias, offset)
        if misplaced is not None:
            source, target = misplaced
            reason += f". Records that were in flight, from source offset {source} on, are at offset {target} and after"
        cursor.fail(PartitionState.DIVERGED, reason)

    def target_recreated(self, cursor: Cursor) -> None:
        """The remote topic was recreated while records were written to it."""
        cursor.fail(
            PartitionState.RECREATED, recreated(cursor.spec.target, self._spec.target_alias, cursor.window.records)
        )

    def target_went_back(self, cursor: Cursor, base_offset: int) -> None:
        """The target assigned an offset twice: its log was truncated, or the topic was recreated."""
        cursor.fail(
            PartitionState.INCONSISTENT,
            f"{cursor.spec.target} of {self._spec.target_alias} appended a batch at offset {base_offset}, although it had "
            f"acknowledged one before {cursor.window.target}: it was truncated or recreated, and records in between are lost; reset "
            "the position of this partition to copy them again",
        )

    def _release(self, cursor: Cursor) -> None:
        if cursor.predecessor.finishing and not cursor.predecessor.remaining:
            self._new_sessions.open_next(cursor)
            return
        cursor.suspended = False
        cursor.outbox.paused = False
        self._source.resume()

    def _continue_at(
        self, cursor: Cursor, offset: int, topic_id: str, epoch: int, lost: tuple[int, int, str] | None
    ) -> None:
        if lost is not None and lost[0] < lost[1]:
            cursor.add_lost_range(*lost)
        is_shared = cursor.is_sequence_shared
        cursor.move(offset)
        self._sessions.forget_ended(cursor.partition)
        cursor.outbox.ended_sessions = ()
        if offset:  # to detect another truncation before anything is read
            cursor.leader_epoch = cursor.known_epoch = epoch
        if topic_id != cursor.topic_id or not offset:
            cursor.known_end = -1  # end of the deleted topic
        if topic_id != cursor.topic_id:
            cursor.retired = retire(cursor.retired, cursor.topic_id)
        cursor.topic_id = topic_id
        if is_shared:
            self._new_sessions.replace(cursor)
        else:
            self._commit(cursor, lambda: self._release(cursor))

    async def _out_of_range(self, cursor: Cursor) -> None:
        """The source does not have this offset, or not the epoch of the last batch that was read. Raises
        KafkaFailure.
        """
        tp = cursor.partition
        leader_epoch = self._source.leader_epoch(tp)
        start = await self._offset(tp, EARLIEST, leader_epoch)
        end = await self._offset(tp, LATEST, leader_epoch)
        if cursor.stopped or cursor.suspended:
            return
        if cursor.offset < start and not cursor.predecessor.remaining and self._is_shared(cursor):
            cursor.replace_session()
        elif cursor.offset < start:
            first = self._first_lost(cursor, start)
            if first < start and not cursor.predecessor.remaining:
                self.deleted(cursor, first, start)
            if not cursor.stopped:  # records of a predecessor are compared with the target first
                cursor.jump(start, "retention")
        elif cursor.leader_epoch >= 0:
            if not await self._examine(cursor, leader_epoch):
                self._contradicted(cursor, start, end)
        elif cursor.offset > end:
            self._cut_off(cursor, end)
        else:
            self._contradicted(cursor, start, end)

    def _is_shared(self, cursor: Cursor) -> bool:
        """Whether the predecessor may have sent records from the cursor's offset on, or from where the target ends."""
        return cursor.shares(cursor.outgoing.after_copied(cursor.offset))

    def _first_lost(self, cursor: Cursor, start: int) -> int:
        """The first offset that was deleted before it was copied, if the source now starts at this one.

        Where offsets are preserved, the position is before what a predecessor has put on the target, before what is left of a
        lost range that is being filled, and before the first record while the offsets before it are filled.
        """
        if not cursor.is_preserved:
            return cursor.offset
        session, copied = self._sessions.current.get(cursor.partition), cursor.outgoing.copied
        records = cursor.window.records if copied is None else copied.records
        first = cursor.outgoing.after_copied(cursor.offset)
        if session is not None and session.start.source > session.start.target and not records:
            return start
        newest = cursor.lost[-1] if cursor.lost else None
        return max(first, newest.after) if newest is not None and newest.reason == "retention" else first

    def deleted(self, cursor: Cursor, first: int, after: int) -> None:
        """The source deleted a range before it was copied."""
        tp, alias = cursor.partition, self._spec.source_alias
        if self._stops:
            what = f"offsets {first}..{after - 1} of {tp} were deleted on {alias} before they were copied"
            cursor.fail(PartitionState.LOST_RANGE, f"{what}; source.data.loss is stop", at_source=True)
            return
        self._log.error("records lost to retention", partition=str(tp), first=first, last=after - 1)
        cursor.add_lost_range(first, after, "retention")

    async def _offset(self, partition: TopicPartition, when: int, leader_epoch: int) -> int:
        """An offset on the leader of this epoch: a deposed leader may have another log. Raises KafkaFailure."""

        def ask() -> Any:
            return self._admin.list_offsets({partition: when}, leader_epochs={partition: leader_epoch})

        return int(value_of((await self._call(ask))[partition]).offset)

    async def _examine(self, cursor: Cursor, leader_epoch: int) -> bool:
        """Ask the leader of this epoch where its log diverges from what was read, and handle it.

        False when it has all records, or when it is unknown. Raises KafkaFailure.
        """
        epoch, offset = cursor.leader_epoch, cursor.offset
        tp = cursor.partition

        def ask(asked: int) -> EpochEnd:
            return value_of(self._admin.epoch_ends({tp: asked}, leader_epochs={tp: leader_epoch})[tp])

        found = await self._call(examine, ask, epoch, offset, cursor.epochs)
        if cursor.stopped or cursor.suspended or (cursor.leader_epoch, cursor.offset) != (epoch, offset):
            return True  # the position has changed meanwhile
        if found.verdict is HistoryVerdict.SAME:
            return False
        if found.verdict is HistoryVerdict.TRUNCATED:
            self._go_back(cursor, found.offset, found.epoch)
        elif not cursor.topic_id:
            # Brokers before 2.8 have no topic ids. A recreated topic is detected by its epochs, which start again. A broker
            # that was disconnected before the topic was deleted looks the same.
            if not await self._source.is_agreed(tp):
                raise BrokerFailure.of(
                    ErrorCode.LEADER_NOT_AVAILABLE, "brokers name different leaders", subject=str(tp)
                )
            if not (cursor.stopped or cursor.suspended) and (cursor.leader_epoch, cursor.offset) == (epoch, offset):
                self.source_recreated(cursor, "")
        elif found.verdict is HistoryVerdict.REWOUND:
            start = await self._offset(tp, EARLIEST, leader_epoch)
            if not (cursor.stopped or cursor.suspended):
                self._go_back(cursor, min(max(found.offset, start), offset))
        else:
            return False
        return True

    def _go_back(self, cursor: Cursor, end_offset: int, epoch: int = -1) -> None:
        if cursor.predecessor.remaining and end_offset >= cursor.offset:
            cursor.compare(epoch)
        else:
            self._cut_off(cursor, end_offset, epoch)

    async def _validate(self, cursor: Cursor) -> None:
        leader_epoch = self._source.leader_epoch(cursor.partition)
        asked = cursor.leader_epoch, cursor.offset
        try:
            await self._examine(cursor, leader_epoch)
        except BrokerFailure as error:
            if not error.is_final or error.stale_metadata:
                self._log.info(
                    "source position could not be validated", partition=str(cursor.partition), error=str(error)
                )
                self._source.refresh_soon()
                return
            # Brokers before 2.3 answer clients with CLUSTER_ACTION only (KIP-320).
            if not self._cannot_validate:
                self._log.warning(
                    "source positions are not validated: truncated logs are detected by their end only",
                    error=str(error),
                )
            self._cannot_validate = True
        if (cursor.leader_epoch, cursor.offset) == asked:  # otherwise the new position has to be validated
            self._source.validated(cursor.partition, leader_epoch)

    def _contradicted(self, cursor: Cursor, start: int, end: int) -> None:
        """The broker rejects an offset that its log has. Stops the partition when that lasts."""
        now = time.monotonic()
        first, last = self._contradictions.get(cursor.partition, (now, now))
        if now - last > 2 * CONTRADICTED_S:
            first = now
        self._contradictions[cursor.partition] = first, now
        if now - first > CONTRADICTED_S:
            cursor.fail(
                PartitionState.LOST_RANGE,
                f"{self._spec.source_alias} rejects offset {cursor.offset} of {cursor.partition} (leader epoch "
                f"{cursor.leader_epoch}) as out of range although its log has {start}..{end}; check the leader epochs of this "
                "partition, or reset its position",
                at_source=True,
            )

    def _cut_off(self, cursor: Cursor, end_offset: int, epoch: int = -1) -> None:
        if cursor.suspended:
            return  # its position is being changed; if not to this one, this is called again
        # Records that a predecessor copied after the mark came from the same log.
        read = cursor.offset + cursor.predecessor.remaining
        what = (
            f"{cursor.partition} of {self._spec.source_alias} was truncated at offset {end_offset}; the records "
            f"that were read from offsets {end_offset}..{read - 1} are lost or replaced"
        )
        if self._stops or self._spec.auto_offset_reset == "none":
            policy = "source.data.loss is stop" if self._stops else "auto.offset.reset is none"
            cursor.fail(PartitionState.LOST_RANGE, f"{what}; {policy}", at_source=True)
            return
        if cursor.is_preserved:
            advice = "the remote topic has them at the same offsets; delete it and reset the position to copy it again"
            cursor.fail(PartitionState.LOST_RANGE, f"{what}; {advice}", at_source=True)
            return
        self._log.error("source log truncated", partition=str(cursor.partition), reason=what)
        lost = (end_offset, read, "truncated") if end_offset < cursor.offset else None
        self.rebase(cursor, end_offset, cursor.topic_id, epoch, lost=lost)


def _has_others(cursor: Cursor) -> bool:
    """Whether the target has, or had, offsets after the position that no acknowledged record of the session explains. They are
    searched before the position passes them (rule L7), and `Window.foreign` counts them only then.
    """
    outbox, window = cursor.outbox, cursor.window
    is_known = outbox.end_offset >= 0 and window.target >= 0 and outbox.acked > window.records
    return is_known and outbox.end_offset - window.target != outbox.acked - window.records


def recreated(target: TopicPartition, alias: str, records: int) -> str:
    """The reason for a remote topic that was recreated."""
    return (
        f"{target} of {alias} was deleted and recreated, {records} records that were copied to it are lost; reset the position "
        "of this partition to copy it again"
    )


def cut_at(cursor: Cursor, alias: str, last: int | None, lost: int, end: int, *, is_own: bool = False) -> bool:
    """The target ends at this offset and lost so many records; ``last`` is the source offset of the last one that is left (None:
    unknown). Whether it is known which were lost; otherwise the partition stops. Records of other programs may have taken the
    place of lost ones, unless the one before the end is known to be the task's (``is_own``).
    """
    if last is None or (cursor.window.foreign and not is_own) or cursor.window.others is not None:
        cursor.fail(PartitionState.LOST_RANGE, truncated(cursor, alias, lost, end))
        return False
    log.error(
        "target lost acknowledged records, resending them", partition=str(cursor.spec.target), records=lost, end=end
    )
    cursor.window.trail.target_cut(end)
    return True


def truncated(cursor: Cursor, alias: str, lost: int, end: int) -> str:
    """The reason for a remote topic that lost acknowledged records at its end, if it is unknown which. Where other source partitions
    are copied there, too, it may have lost fewer of this one.
    """
    window = cursor.window
    number = f"{lost}" if window.others is None else f"up to {lost}"
    known = "" if window.target < 0 else f", where copying had reached offset {window.target}"
    first = window.trail.source_before(end)
    return (
        f"{cursor.spec.target} of {alias} lost {number} acknowledged records at its end: it ends at offset {end}{known}. Which they "
        f"were is not known. To copy them again, {reset_to(cursor.partition, first)}"
    )


def reset_to(partition: TopicPartition, first: int | None) -> str:
    """How to continue at a source offset, at the beginning for None."""
    offset = f'{{"offset": {first - 1}}}' if first else "null"
    where = f'{{"topic": "{partition.topic}", "partition": {partition.partition}}}'
    return (
        f"stop the source connector (mm2 stop --connector source), set its position of {where} to {offset} (PATCH …/offsets), and "
        "resume it (mm2 resume --connector source)"
    )


def diverged(target: TopicPartition, alias: str, offset: int) -> str:
    """The reason for a target partition whose offsets are not those of the source."""
    return (
        f"{target} of {alias} has a record at offset {offset} that is not the source's: another program has written to it. "
        "Nothing more is written. To copy it again with the same offsets, delete the remote topic and reset the position of "
        "this partition"
    )
