"""What to do when the source no longer has what was to be copied, or the target no longer has what was.

``source.data.loss`` decides on the source's side: go on, with the lost range written to the ledger, or stop the
partition. The target's losses are made good where the source still has the records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from mm2.copy.executor.cursor import Cursor
from mm2.copy.executor.opening import Opening
from mm2.copy.executor.source import Source
from mm2.copy.session import Mark
from mm2.copy.spec import CopySpec
from mm2.copy.states import State
from mm2.kafka.admin import Admin
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import EARLIEST, LATEST, TopicPartition


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
        self._looked_up: set[TopicPartition] = set()  # whose range on the source is being asked for
        self._tasks: set[asyncio.Task[None]] = set()
        self._log = structlog.get_logger(__name__)

    @property
    def _stops(self) -> bool:
        return self._spec.source_data_loss == "stop"

    def unreadable(self, cursor: Cursor, failure: BrokerFailure) -> None:
        """The source does not let a partition be read."""
        if failure.code == ErrorCode.OFFSET_OUT_OF_RANGE and cursor.partition not in self._looked_up:
            self._looked_up.add(cursor.partition)
            self._spawn(self._out_of_range(cursor))

    def renewed(self, cursor: Cursor, topic_id: str) -> None:
        """Another topic of the same name: from its start, or all that it has up to our offset would be missing."""
        tp = cursor.partition
        what = f"{tp} of {self._spec.source_alias} was deleted and created anew (topic id {topic_id or 'unknown'})"
        if self._stops:
            cursor.fail(State.RECREATED, f"{what}; source.data.loss is stop")
            return
        if cursor.held:
            return  # it is said again
        self._log.error("a source topic was created anew and is copied from its start", partition=str(tp))
        if cursor.known_end > cursor.offset:  # heard of by us, or by a predecessor when the ledger was last written
            cursor.lose(cursor.offset, cursor.known_end, "recreated")
        self.rebase(cursor, 0, topic_id)

    def diverged(self, cursor: Cursor, epoch: int, end_offset: int) -> None:
        """The source lost its end in an unclean election: what was copied from there on is on the target only."""
        # Between two leaders that neither had all of the other's records the new log may be the longer one.
        end_offset = min(end_offset, cursor.offset)
        what = (
            f"{cursor.partition} of {self._spec.source_alias} was cut off at offset {end_offset} by a change of leader; "
            f"offsets {end_offset}..{cursor.offset - 1} that were read before are other records now"
        )
        self._cut_off(cursor, end_offset, what)

    def replaced(self, cursor: Cursor, first: int, records: int, *, exact: bool) -> None:
        """Records that a predecessor copied are not on the source any more: an election there lost them."""
        what = (
            f"{records} records that were copied from {cursor.partition} of {self._spec.source_alias} before the last crash are "
            f"not there any more; other records begin at offset {first}"
        )
        if self._stops:
            cursor.fail(State.LOST_RANGE, f"{what}; source.data.loss is stop")
            return
        self._log.error("a source log was cut off", partition=str(cursor.partition), records=records, reason=what)
        if exact:
            cursor.lose(first, first + records, "truncated")

    def rebase(self, cursor: Cursor, offset: int, topic_id: str) -> None:
        """Go on elsewhere: after what is under way is in, and once the ledger says so, or a successor would count wrong."""
        if not cursor.held:
            cursor.held = True
            cursor.when_idle(lambda: self._go_on_at(cursor, offset, topic_id))

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
            cursor.fail(
                State.LOST_RANGE,
                f"{cursor.spec.target} of {self._spec.target_alias} lost {lost} acknowledged records at its end "
                f"({end}), and which they were is not known; reset the position of this partition to copy them again",
            )
            return
        cursor.trail.target_cut(end)
        cursor.outbox.queue.clear()
        # With its end the log may have lost what it knew of the producer.
        cursor.outbox.begin(session.producer, records, known=False)
        cursor.outbox.end_offset = end
        cursor.begin(Mark(source + 1, end, records))
        cursor.held = True
        self._commit(cursor, lambda: self._release(cursor))

    def target_recreated(self, cursor: Cursor) -> None:
        """The remote topic was deleted and created anew while we wrote to it."""
        cursor.fail(State.RECREATED, self._opening.recreated(cursor.spec.target, cursor.records))

    def target_went_back(self, cursor: Cursor, base_offset: int) -> None:
        """The target gave an offset twice: its log was cut off, or it is another topic now."""
        cursor.fail(
            State.LOST_RANGE,
            f"{cursor.spec.target} of {self._spec.target_alias} took a batch at offset {base_offset}, although it had "
            f"taken one before {cursor.target}: it was truncated or created anew, and records in between are gone; reset "
            "the position of this partition to copy them again",
        )

    def _release(self, cursor: Cursor) -> None:
        cursor.held = False
        cursor.outbox.paused = False
        self._source.resume()

    def _go_on_at(self, cursor: Cursor, offset: int, topic_id: str) -> None:
        cursor.move(offset)
        if topic_id != cursor.topic_id:
            cursor.known_end = -1  # of the topic that is no more
        cursor.topic_id = topic_id
        self._commit(cursor, lambda: self._release(cursor))

    async def _out_of_range(self, cursor: Cursor) -> None:
        """The source has no such offset: records were deleted under us, or its log begins anew."""
        tp = cursor.partition
        alias = self._spec.source_alias
        try:
            start = (await self._call(self._admin.list_offsets, {tp: EARLIEST}))[tp]
            end = (await self._call(self._admin.list_offsets, {tp: LATEST}))[tp]
        except KafkaFailure as error:
            self._log.info("could not look up the log's range", partition=str(tp), error=str(error))
            return
        finally:
            self._looked_up.discard(tp)
        if isinstance(start, KafkaFailure) or isinstance(end, KafkaFailure) or cursor.stopped or cursor.held:
            return
        if cursor.offset < start.offset:
            what = (
                f"offsets {cursor.offset}..{start.offset - 1} of {tp} were deleted on {alias} before they were copied"
            )
            if self._stops:
                cursor.fail(State.LOST_RANGE, f"{what}; source.data.loss is stop")
                return
            self._log.error("records lost to retention", partition=str(tp), first=cursor.offset, last=start.offset - 1)
            first = cursor.offset
            cursor.jump(start.offset, "retention")
            if cursor.offset == start.offset:  # else it is asked first what of it is on the target
                cursor.lose(first, start.offset, "retention")
        elif cursor.offset > end.offset:
            what = f"{tp} ends at {end.offset} on {alias}, but was read up to {cursor.offset}: it was truncated"
            self._cut_off(cursor, end.offset, what)

    def _cut_off(self, cursor: Cursor, end_offset: int, what: str) -> None:
        if cursor.held:
            return  # it is on its way elsewhere; if not there, this is said again
        if self._stops or self._spec.auto_offset_reset == "none":
            policy = "source.data.loss is stop" if self._stops else "auto.offset.reset is none"
            cursor.fail(State.LOST_RANGE, f"{what}; {policy}")
            return
        self._log.error("a source log was cut off", partition=str(cursor.partition), reason=what)
        if end_offset < cursor.offset:
            # What a predecessor copied after the mark came from the same log.
            cursor.lose(end_offset, cursor.offset + cursor.skip, "truncated")
        self.rebase(cursor, end_offset, cursor.topic_id)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
