"""What to do when the source no longer has what was to be copied, or the target no longer has what was.

``source.data.loss`` decides on the source's side: go on, with the lost range written to the ledger, or stop the
partition. The target's losses are made good where the source still has the records.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import structlog

from mm2.copy.executor.cursor import Cursor
from mm2.copy.executor.history import HistoryVerdict, examine
from mm2.copy.executor.opening import Opening, truncated
from mm2.copy.executor.source import Source
from mm2.copy.executor.topic_ids import retire
from mm2.copy.session import Mark
from mm2.copy.spec import CopySpec
from mm2.copy.states import PartitionState
from mm2.kafka.admin import Admin
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import EARLIEST, LATEST, EpochEnd, TopicPartition

#: So long a broker may refuse an offset that is in its log: leaders and followers see a change at different times.
CONTRADICTED_S: Final = 5.0


class Losses:
    """One for all cursors of a micro-batch. ``commit(cursor, then)`` writes a cursor's entry and calls ``then``."""

    def __init__(
        self,
        spec: CopySpec,
        source: Source,
        source_admin: Admin,
        opening: Opening,
        call: Callable[..., Awaitable[Any]],
        commit: Callable[[Cursor, Callable[[], None]], None],
    ) -> None:
        self._spec = spec
        self._source = source
        self._admin = source_admin
        self._opening = opening
        self._call = call
        self._commit = commit
        self._looked_up: set[TopicPartition] = set()  # whose log on the source is being examined
        self._contradictions: dict[
            TopicPartition, tuple[float, float]
        ] = {}  # monotonic seconds of the first and the last
        self._cannot_validate = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._log = structlog.get_logger(__name__)

    @property
    def _stops(self) -> bool:
        return self._spec.source_data_loss == "stop"

    def unreadable(self, cursor: Cursor, failure: BrokerFailure) -> None:
        """The source does not let a partition be read."""
        if failure.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._look_up(cursor, self._out_of_range)

    def validate(self, cursor: Cursor) -> None:
        """Compare a position with the log of a new leader before anything is read: Fetch below version 12 does not do it."""
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
            self._spawn(run())

    def renewed(self, cursor: Cursor, topic_id: str) -> None:
        """Another topic of the same name: from its start, or all that it has up to our offset would be missing."""
        tp = cursor.partition
        what = f"{tp} of {self._spec.source_alias} was deleted and created anew (topic id {topic_id or 'unknown'})"
        if self._stops:
            cursor.fail(PartitionState.RECREATED, f"{what}; source.data.loss is stop")
            return
        if cursor.held:
            return  # it is said again
        self._log.error("a source topic was created anew and is copied from its start", partition=str(tp))
        first = cursor.offset + cursor.skip  # a predecessor copied at least so far
        if cursor.known_end > first:  # heard of by us, or by a predecessor when the ledger was last written
            cursor.lose(first, cursor.known_end, "recreated")
        self.rebase(cursor, 0, topic_id)

    def diverged(self, cursor: Cursor, epoch: int, end_offset: int) -> None:
        """The source lost its end in an unclean election: what was copied from there on is on the target only."""
        if epoch < cursor.leader_epoch:
            # Between two leaders that neither had all of the other's records the new log may be the longer one.
            self._cut_off(cursor, min(end_offset, cursor.offset), epoch)
        else:
            # The log ends below what was read of the same epoch: its end may have moved since, see `history.examine`.
            leader_epoch = self._source.leader_epoch(cursor.partition)
            self._look_up(cursor, lambda cursor: self._examine(cursor, leader_epoch))

    def replaced(self, cursor: Cursor, first: int, records: int, *, exact: bool) -> None:
        """Records that a predecessor copied are not on the source any more: an election there lost them."""
        what = (
            f"{records} records that were copied from {cursor.partition} of {self._spec.source_alias} before the last crash are "
            f"not there any more; other records begin at offset {first}"
        )
        if self._stops:
            cursor.fail(PartitionState.LOST_RANGE, f"{what}; source.data.loss is stop")
            return
        self._log.error("a source log was cut off", partition=str(cursor.partition), records=records, reason=what)
        if exact:
            cursor.lose(first, first + records, "truncated")

    def rebase(self, cursor: Cursor, offset: int, topic_id: str, epoch: int = -1) -> None:
        """Go on elsewhere: after what is under way is in, and once the ledger says so, or a successor would count wrong."""
        if not cursor.held:
            cursor.held = True
            cursor.when_idle(lambda: self._go_on_at(cursor, offset, topic_id, epoch))

    def target_truncated(self, cursor: Cursor, records: int, end: int) -> None:
        """Of the session's records that the target had acknowledged only so many are left: send the rest again."""
        lost = cursor.outbox.acked - records if cursor.outbox.acked else cursor.records - records
        session = self._opening.sessions.get(cursor.partition)
        # Our records end where the target ends, unless others write there too; then the place is not known.
        source = cursor.trail.source_of(end - 1) if end > 0 else None
        self._log.error(
            "the target lost records that it had acknowledged; they are sent again",
            partition=str(cursor.spec.target),
            records=lost,
            end=end,
        )
        if source is None or session is None or cursor.foreign:
            cursor.fail(PartitionState.LOST_RANGE, truncated(cursor.spec.target, self._spec.target_alias, lost, end))
            return
        cursor.trail.target_cut(end)
        cursor.outbox.queue.clear()
        # With its end the log may have lost what it knew of the producer.
        verified_epoch = cursor.outbox.verified_epoch
        cursor.outbox.begin(session.producer, records, known=False)
        cursor.outbox.verified_epoch = verified_epoch
        cursor.outbox.end_offset = end
        cursor.begin(Mark(source + 1, end, records))
        cursor.held = True
        self._commit(cursor, lambda: self._release(cursor))

    def target_recreated(self, cursor: Cursor) -> None:
        """The remote topic was deleted and created anew while we wrote to it."""
        cursor.fail(PartitionState.RECREATED, self._opening.recreated(cursor.spec.target, cursor.records))

    def target_went_back(self, cursor: Cursor, base_offset: int) -> None:
        """The target gave an offset twice: its log was cut off, or it is another topic now."""
        cursor.fail(
            PartitionState.INCONSISTENT,
            f"{cursor.spec.target} of {self._spec.target_alias} took a batch at offset {base_offset}, although it had "
            f"taken one before {cursor.target}: it was truncated or created anew, and records in between are gone; reset "
            "the position of this partition to copy them again",
        )

    def _release(self, cursor: Cursor) -> None:
        if cursor.finishing and not cursor.skip:
            self._opening.open_next(cursor)
            return
        cursor.held = False
        cursor.outbox.paused = False
        self._source.resume()

    def _go_on_at(self, cursor: Cursor, offset: int, topic_id: str, epoch: int) -> None:
        cursor.move(offset)
        if offset:  # by it another truncation is found before anything is read
            cursor.leader_epoch = cursor.known_epoch = epoch
        if topic_id != cursor.topic_id or not offset:
            cursor.known_end = -1  # of the topic that is no more
        if topic_id != cursor.topic_id:
            cursor.retired = retire(cursor.retired, cursor.topic_id)
        cursor.topic_id = topic_id
        self._commit(cursor, lambda: self._release(cursor))

    async def _out_of_range(self, cursor: Cursor) -> None:
        """The source has no such offset, or not the epoch of the last batch that was read. Raises KafkaFailure."""
        tp = cursor.partition
        leader_epoch = self._source.leader_epoch(tp)
        start = await self._offset(tp, EARLIEST, leader_epoch)
        end = await self._offset(tp, LATEST, leader_epoch)
        if cursor.stopped or cursor.held:
            return
        if cursor.offset < start:
            if not cursor.skip:
                self.deleted(cursor, cursor.offset, start)
            if not cursor.stopped:  # with records of a predecessor it is found out first what of it is on the target
                cursor.jump(start, "retention")
        elif cursor.leader_epoch >= 0:
            if not await self._examine(cursor, leader_epoch):
                self._contradicted(cursor, start, end)
        elif cursor.offset > end:
            self._cut_off(cursor, end)
        else:
            self._contradicted(cursor, start, end)

    def deleted(self, cursor: Cursor, first: int, after: int) -> None:
        """The source deleted a range before it was copied."""
        tp, alias = cursor.partition, self._spec.source_alias
        if self._stops:
            what = f"offsets {first}..{after - 1} of {tp} were deleted on {alias} before they were copied"
            cursor.fail(PartitionState.LOST_RANGE, f"{what}; source.data.loss is stop")
            return
        self._log.error("records lost to retention", partition=str(tp), first=first, last=after - 1)
        cursor.lose(first, after, "retention")

    async def _offset(self, partition: TopicPartition, when: int, leader_epoch: int) -> int:
        """As the leader of this epoch has it: one that was deposed may have another log. Raises KafkaFailure."""

        def ask() -> Any:
            return self._admin.list_offsets({partition: when}, leader_epochs={partition: leader_epoch})

        found = (await self._call(ask))[partition]
        if isinstance(found, KafkaFailure):
            raise found
        return int(found.offset)

    async def _examine(self, cursor: Cursor, leader_epoch: int) -> bool:
        """Ask the leader of this epoch where its log departs from what was read, and act on it.

        False when it has everything, or cannot tell.

        Raises KafkaFailure.
        """
        epoch, offset = cursor.leader_epoch, cursor.offset
        tp = cursor.partition

        def ask(asked: int) -> EpochEnd:
            answer = self._admin.epoch_ends({tp: asked}, leader_epochs={tp: leader_epoch})[tp]
            if isinstance(answer, KafkaFailure):
                raise answer
            return answer

        found = await self._call(examine, ask, epoch, offset, cursor.epochs)
        if cursor.stopped or cursor.held or (cursor.leader_epoch, cursor.offset) != (epoch, offset):
            return True  # overtaken by something else
        if found.verdict is HistoryVerdict.SAME:
            return False
        if found.verdict is HistoryVerdict.TRUNCATED:
            self._go_back(cursor, found.offset, found.epoch)
        elif not cursor.topic_id:
            # Brokers before 2.8 have no topic ids; what tells a re-created topic is that its epochs begin again. A broker
            # that was cut off before the topic was deleted says the same of the new one.
            if not await self._source.is_agreed(tp):
                raise BrokerFailure.of(
                    ErrorCode.LEADER_NOT_AVAILABLE, "brokers name different leaders", subject=str(tp)
                )
            if not (cursor.stopped or cursor.held) and (cursor.leader_epoch, cursor.offset) == (epoch, offset):
                self.renewed(cursor, "")
        elif found.verdict is HistoryVerdict.REWOUND:
            start = await self._offset(tp, EARLIEST, leader_epoch)
            if not (cursor.stopped or cursor.held):
                self._go_back(cursor, min(max(found.offset, start), offset))
        else:
            return False
        return True

    def _go_back(self, cursor: Cursor, end_offset: int, epoch: int = -1) -> None:
        if cursor.skip and end_offset >= cursor.offset:
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
                self._source.look_again()
                return
            # Brokers before 2.3 answer clients with CLUSTER_ACTION only (KIP-320).
            if not self._cannot_validate:
                self._log.warning(
                    "source positions are not validated: truncated logs are found by their end only", error=str(error)
                )
            self._cannot_validate = True
        if (cursor.leader_epoch, cursor.offset) == asked:  # else the new position is to be validated, too
            self._source.validated(cursor.partition, leader_epoch)

    def _contradicted(self, cursor: Cursor, start: int, end: int) -> None:
        """The broker refuses an offset that its log has. Stops the partition when that lasts."""
        now = time.monotonic()
        first, last = self._contradictions.get(cursor.partition, (now, now))
        if now - last > 2 * CONTRADICTED_S:
            first = now
        self._contradictions[cursor.partition] = first, now
        if now - first > CONTRADICTED_S:
            cursor.fail(
                PartitionState.LOST_RANGE,
                f"{self._spec.source_alias} refuses offset {cursor.offset} of {cursor.partition} (leader epoch "
                f"{cursor.leader_epoch}) as out of range although its log has {start}..{end}; check the leader epochs of this "
                "partition, or reset its position",
            )

    def _cut_off(self, cursor: Cursor, end_offset: int, epoch: int = -1) -> None:
        if cursor.held:
            return  # it is on its way elsewhere; if not there, this is said again
        read = cursor.offset + cursor.skip  # what a predecessor copied after the mark came from the same log
        what = (
            f"{cursor.partition} of {self._spec.source_alias} was cut off at offset {end_offset}; offsets "
            f"{end_offset}..{read - 1} that were read before are gone or other records now"
        )
        if self._stops or self._spec.auto_offset_reset == "none":
            policy = "source.data.loss is stop" if self._stops else "auto.offset.reset is none"
            cursor.fail(PartitionState.LOST_RANGE, f"{what}; {policy}")
            return
        self._log.error("a source log was cut off", partition=str(cursor.partition), reason=what)
        if end_offset < cursor.offset:
            cursor.lose(end_offset, read, "truncated")
        self.rebase(cursor, end_offset, cursor.topic_id, epoch)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
