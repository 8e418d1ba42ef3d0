"""Compares the ends of remote partitions with what was acknowledged there: at rest, where no acknowledgement would show that the
target has lost its end, or that the remote topic was deleted or created again; and before the first record in transactions, where
no session is looked up (rule L9 of docs/explanation/copy-sessions.md).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from mm2.copy.executor.background import BackgroundTasks
from mm2.copy.executor.link import DriverLink
from mm2.copy.executor.partition.cursor import Cursor
from mm2.copy.executor.producing.sink import Sink
from mm2.copy.executor.sessions.losses import Losses
from mm2.copy.progress.target_progress import GONE, InconsistentTarget, ProgressQuestion, TargetLookUp
from mm2.copy.states import PartitionState
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import LATEST, OffsetInfo, ProducerIdentity, TopicPartition

#: One ListOffsets request to each broker and lane: 7 ms of CPU for 1,000 partitions, 0.1 s per minute.
_INTERVAL_S: Final = 5.0
_RETRY_S: Final = 0.25
_NO_PRODUCER: Final = ProducerIdentity(-1, -1)
#: Look-ups in one round after a connection was lost, so that thousands of partitions at rest do not delay those that are copied.
_MOST_CUT_OFF: Final = 500


@dataclass(eq=False)
class TargetWatch:
    """For all cursors of a micro-batch."""

    _link: DriverLink
    _sink: Sink
    _target: Cluster
    _call: Callable[..., Awaitable[Any]]
    _cursors: Mapping[TopicPartition, Cursor]
    _tasks: BackgroundTasks
    _losses: Losses

    def __post_init__(self) -> None:
        self._look_up = TargetLookUp(self._target)
        self._admin = Admin(self._target)
        self._unproven: dict[TopicPartition, Cursor] = {}
        self._own_tails: set[TopicPartition] = (
            set()
        )  # targets whose newest record before the position is known to be the task's
        self._epochs: dict[TopicPartition, int] = {}  # of the leader in which the target was compared, in transactions
        self._log = structlog.get_logger("mm2.copy.executor.target_watch")

    async def run(self) -> None:
        """Compare them until the stop."""
        while not self._link.stop.is_set():
            await self._link.pause(_INTERVAL_S)
            await self._compare()

    async def _compare(self) -> None:
        known = {tp: cursor.window.target for tp, cursor in self._cursors.items() if _is_at_rest(cursor)}
        targets = {self._cursors[tp].outbox.partition for tp in known}
        if not targets or self._link.stop.is_set():
            return
        try:
            ends = await self._call(self._admin.list_offsets, dict.fromkeys(targets, LATEST))
        except KafkaFailure as error:
            self._log.info("ends of the target not known", error=str(error))
            return
        at_rest = [cursor for tp in known if _is_at_rest(cursor := self._cursors[tp])]
        self._prove_elected(at_rest, ends)
        self._look_up_cut_off(at_rest)
        for cursor in at_rest:
            outbox = cursor.outbox
            end = ends.get(outbox.partition)
            if isinstance(end, BrokerFailure) and end.code in GONE:
                self._sink.find_leader(outbox)  # reports why it has none
            elif end is None or isinstance(end, KafkaFailure) or end.offset >= known[cursor.partition]:
                continue
            else:
                # The high watermark of a new leader may still be behind, and the topic may be another one.
                self._sink.look_up(outbox)
                if outbox.transactional:
                    self.prove(cursor)

    def _prove_elected(
        self, at_rest: Iterable[Cursor], ends: Mapping[TopicPartition, OffsetInfo | KafkaFailure]
    ) -> None:
        """Compare what is in transactions again after a leader was elected: its log may have lost its end, which others have filled."""
        for cursor in at_rest:
            end = ends.get(cursor.outbox.partition)
            if cursor.outbox.transactional and isinstance(end, OffsetInfo):
                known = self._epochs.setdefault(cursor.partition, end.leader_epoch)
                if end.leader_epoch > known and end.offset >= cursor.window.target:
                    cursor.is_handed_off = False
                    self.prove(cursor)

    def prove(self, cursor: Cursor) -> None:
        """Send nothing in transactions before the target is known to have all that was committed before the position."""
        if cursor.window.target <= 0:
            return
        cursor.outbox.paused = True
        self._unproven[cursor.partition] = cursor
        if len(self._unproven) == 1:
            self._tasks.spawn(self._prove())

    async def _prove(self) -> None:
        """Several cursors may write to one partition (a merge). They are asked about one after another, and none sends before the end
        is known to reach the positions of all: what one sends may fill what another has lost.
        """
        await asyncio.sleep(0)  # those that are opened together are asked for together
        proven: dict[TopicPartition, list[Cursor]] = defaultdict(list)
        while self._unproven and not self._link.stop.is_set():
            asked = {cursor.outbox.partition: cursor for cursor in self._unproven.values() if not cursor.stopped}
            is_failed = False
            for target, answer in (await self._answers(asked)).items():
                cursor = asked[target]
                if isinstance(answer, InconsistentTarget):
                    cursor.fail(PartitionState.INCONSISTENT, str(answer))
                elif isinstance(answer, KafkaFailure):
                    cursor.set_target_error(answer)
                    is_failed = True
                    continue
                del self._unproven[cursor.partition]
                cursor.set_target_error(None)
                if isinstance(answer, OffsetInfo) and not cursor.stopped:
                    self._epochs[cursor.partition] = answer.leader_epoch
                    if answer.offset < cursor.window.target:
                        self._losses.transactions_truncated(cursor, answer.offset, is_own=target in self._own_tails)
                proven[target].append(cursor)
            for tp in [tp for tp, cursor in self._unproven.items() if cursor.stopped]:
                del self._unproven[tp]
            for target in proven.keys() - {cursor.outbox.partition for cursor in self._unproven.values()}:
                for cursor in proven.pop(target):
                    self._sink.end_pause(cursor.outbox)
            if is_failed:
                await self._link.pause(_RETRY_S)

    async def _answers(self, asked: Mapping[TopicPartition, Cursor]) -> dict[TopicPartition, OffsetInfo | KafkaFailure]:
        """The ends of these partitions; one that is before the position is confirmed, in the leader's log and for the topic, and is the
        end of the last committed record. InconsistentTarget where other programs have written what is before it.
        """
        known = {tp: cursor.window.target for tp, cursor in asked.items()}
        found: dict[TopicPartition, OffsetInfo | KafkaFailure]
        try:
            found = await self._call(self._admin.list_offsets, dict.fromkeys(known, LATEST))
            questions = {
                tp: ProgressQuestion(_NO_PRODUCER, 1, known[tp], known[tp], topic_id=self._sink.topic_ids.get(tp.topic))
                for tp, end in found.items()
                if isinstance(end, OffsetInfo) and end.offset < known[tp]
            }
            for tp, progress in (await self._call(self._look_up.progress, questions)).items() if questions else ():
                if isinstance(progress, KafkaFailure):
                    found[tp] = progress
                    continue
                # Before its end there may be records of a transaction that was aborted, because the coordinator has lost its end, too.
                end = progress.end
                if end < known[tp]:
                    end = await self._call(self._look_up.committed_end, tp, end)
                found[tp] = OffsetInfo(end, -1, progress.leader_epoch)
            found |= await self._replaced(asked, found)
            found |= await self._ahead(asked, found)
        except KafkaFailure as error:
            return dict.fromkeys(known, error)
        return found

    async def _replaced(
        self, asked: Mapping[TopicPartition, Cursor], ends: Mapping[TopicPartition, OffsetInfo | KafkaFailure]
    ) -> dict[TopicPartition, KafkaFailure]:
        """The partitions whose newest known record is another producer's: the end of the log alone does not show that the target has
        lost it, if other programs have filled the end. Those that cannot be read. Raises KafkaFailure.
        """
        last = {
            tp: min(cursor.window.target, end.offset) - 1
            for tp, cursor in asked.items()
            if isinstance(end := ends[tp], OffsetInfo) and cursor.written_by >= 0 and not cursor.is_handed_off
        }
        last = {tp: offset for tp, offset in last.items() if offset >= 0}
        found: dict[TopicPartition, KafkaFailure] = {}
        self._own_tails -= asked.keys()
        for tp, header in (await self._call(self._look_up.headers_at, last)).items() if last else ():
            cursor = asked[tp]
            if isinstance(header, KafkaFailure):
                if not header.is_final:  # otherwise it may not be read, and the end has to suffice
                    found[tp] = header
                continue
            writer = -1 if header is None else header.producer_id
            is_marker = header is not None and header.is_control and last[tp] == cursor.window.target - 1
            if writer != cursor.written_by or is_marker:
                found[tp] = InconsistentTarget(_replaced_end(cursor, last[tp], writer))
            elif header is not None and not header.is_control:
                self._own_tails.add(tp)
        return found

    async def _ahead(
        self, asked: Mapping[TopicPartition, Cursor], ends: Mapping[TopicPartition, OffsetInfo | KafkaFailure]
    ) -> dict[TopicPartition, KafkaFailure]:
        """The partitions that have committed records of the task after the position: ledger and offsets topic have both lost their ends.
        In a merge they may be those of another source partition. Behind the last record there is a marker. Raises KafkaFailure.
        """
        found: dict[TopicPartition, KafkaFailure] = {}
        for tp, cursor in asked.items():
            end, known = ends[tp], cursor.window.target
            if cursor.written_by < 0 or cursor.is_handed_off or cursor.outbox.shared is not None:
                continue
            if isinstance(end, OffsetInfo) and end.offset > known + 1:
                try:
                    records, after = await self._call(self._look_up.own_end, tp, known, cursor.written_by)
                except KafkaFailure as error:
                    if not error.is_final:  # otherwise it may not be read
                        found[tp] = error
                    continue
                if records and not cursor.stopped:
                    found[tp] = InconsistentTarget(_lost_positions(cursor, records, after))
        return found

    def _look_up_cut_off(self, at_rest: Iterable[Cursor]) -> None:
        cut_off = [cursor.outbox for cursor in at_rest if cursor.outbox.is_cut_off]
        for outbox in cut_off[:_MOST_CUT_OFF]:
            self._sink.look_up(outbox)


def _is_at_rest(cursor: Cursor) -> bool:
    """Whether all that was read is acknowledged."""
    outbox, window = cursor.outbox, cursor.window
    is_open = not (cursor.stopped or cursor.suspended or outbox.is_blocked)
    is_done = outbox.idle and not window.entries and not window.is_searching and not cursor.predecessor.remaining
    return is_open and is_done and not outbox.needs_producer_id and window.target > 0


def _lost_positions(cursor: Cursor, records: int, after: int) -> str:
    position = cursor.window.position
    return (
        f"{cursor.outbox.partition} has {records} records from target offset {cursor.window.target} to {after - 1} that were copied in "
        f"transactions after source offset {position}, where the ledger and the offsets topic end: both have lost their ends; if no "
        f"source offset from there on is without a record, set the position of this partition to offset {position + records}; any "
        "earlier one copies the records after it again"
    )


def _replaced_end(cursor: Cursor, offset: int, writer: int) -> str:
    written = "no producer id" if writer < 0 else f"producer id {writer}"
    return (
        f"{cursor.outbox.partition} has a record of {written} at offset {offset}, where a record of producer id {cursor.written_by} was "
        f"committed, and copying had reached offset {cursor.window.target}: the target has lost its end, and another program has "
        "filled it; reset the position of this partition to copy the lost records again"
    )
