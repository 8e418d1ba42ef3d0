"""Compares the ends of remote partitions with what was acknowledged there: at rest, where no acknowledgement would show that the
target has lost its end, or that the remote topic was deleted or created again; and before the first record in transactions, where
no session is looked up (rule L9 of docs/design/copy-sessions.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

import structlog

from mm2.copy.executor.background import BackgroundTasks
from mm2.copy.executor.cursor import Cursor
from mm2.copy.executor.link import DriverLink
from mm2.copy.executor.losses import Losses
from mm2.copy.executor.sink import Sink
from mm2.copy.executor.target_progress import GONE, ProgressQuestion, TargetLookUp
from mm2.kafka.admin import Admin
from mm2.kafka.cluster import Cluster
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import LATEST, OffsetInfo, ProducerIdentity, TopicPartition

_INTERVAL_S: Final = 5.0
_RETRY_S: Final = 0.25
_NO_PRODUCER: Final = ProducerIdentity(-1, -1)
#: Look-ups in one round after a connection was lost, so that thousands of partitions at rest do not delay those that are copied.
_MOST_CUT_OFF: Final = 500


class TargetWatch:
    """For all cursors of a micro-batch."""

    def __init__(
        self,
        link: DriverLink,
        sink: Sink,
        target: Cluster,
        call: Callable[..., Awaitable[Any]],
        cursors: Mapping[TopicPartition, Cursor],
        tasks: BackgroundTasks,
        losses: Losses,
    ) -> None:
        self._link = link
        self._sink = sink
        self._call = call
        self._cursors = cursors
        self._tasks = tasks
        self._losses = losses
        self._look_up = TargetLookUp(target)
        self._admin = Admin(target)
        self._unproven: dict[TopicPartition, Cursor] = {}
        self._log = structlog.get_logger(__name__)

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

    def prove(self, cursor: Cursor) -> None:
        """Send nothing in transactions before the target is known to have all that was committed before the position."""
        if cursor.window.target <= 0 or cursor.is_elsewhere:
            return
        cursor.outbox.paused = True
        self._unproven[cursor.partition] = cursor
        if len(self._unproven) == 1:
            self._tasks.spawn(self._prove())

    async def _prove(self) -> None:
        await asyncio.sleep(0)  # those that are opened together are asked for together
        while self._unproven and not self._link.stop.is_set():
            asked = {cursor.outbox.partition: cursor for cursor in self._unproven.values() if not cursor.stopped}
            for target, answer in (await self._answers({tp: one.window.target for tp, one in asked.items()})).items():
                cursor = asked[target]
                if isinstance(answer, KafkaFailure):
                    cursor.outbox.last_error = answer
                    continue
                del self._unproven[cursor.partition]
                cursor.outbox.last_error = None
                if answer < cursor.window.target and not cursor.stopped:
                    self._losses.transactions_truncated(cursor, answer)
                self._sink.end_pause(cursor.outbox)
            for tp in [tp for tp, cursor in self._unproven.items() if cursor.stopped]:
                del self._unproven[tp]
            if self._unproven:
                await self._link.pause(_RETRY_S)

    async def _answers(self, known: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | KafkaFailure]:
        """The ends of these partitions; one that is before the known offset is confirmed, in the leader's log and for the topic."""
        try:
            ends = await self._call(self._admin.list_offsets, dict.fromkeys(known, LATEST))
            found = {tp: end.offset if isinstance(end, OffsetInfo) else end for tp, end in ends.items()}
            questions = {
                tp: ProgressQuestion(_NO_PRODUCER, 1, known[tp], known[tp], topic_id=self._sink.topic_ids.get(tp.topic))
                for tp, end in found.items()
                if isinstance(end, int) and end < known[tp]
            }
            for tp, progress in (await self._call(self._look_up.progress, questions)).items() if questions else ():
                found[tp] = progress if isinstance(progress, KafkaFailure) else progress.end
        except KafkaFailure as error:
            return dict.fromkeys(known, error)
        return found

    def _look_up_cut_off(self, at_rest: Iterable[Cursor]) -> None:
        cut_off = [cursor.outbox for cursor in at_rest if cursor.outbox.is_cut_off]
        for outbox in cut_off[:_MOST_CUT_OFF]:
            self._sink.look_up(outbox)


def _is_at_rest(cursor: Cursor) -> bool:
    """Whether all that was read is acknowledged, in the topic of the outbox."""
    outbox, window = cursor.outbox, cursor.window
    is_open = not (cursor.stopped or cursor.suspended or cursor.is_elsewhere or outbox.is_blocked)
    is_done = outbox.idle and not window.entries and not window.is_searching and not cursor.predecessor.remaining
    return is_open and is_done and not outbox.needs_producer_id and window.target > 0
