"""Fills target offsets that have no record, for partitions with offset preservation (`mm2.copy.executor.gap_queue`)."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterable, Mapping
from typing import Final

from mm2.copy.executor.background import BackgroundTasks
from mm2.copy.executor.cursor import Cursor
from mm2.copy.executor.endpoints import Endpoints
from mm2.copy.executor.gap_queue import GapQueue
from mm2.copy.executor.link import DriverLink
from mm2.copy.executor.losses import Losses
from mm2.copy.executor.marker_sender import MarkerRun, MarkerSender
from mm2.copy.executor.target_progress import TargetLookUp
from mm2.copy.markers import is_ours, next_generation
from mm2.kafka.admin import Admin
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import OffsetInfo, ProducerState, TopicPartition

#: Markers of one partition in a request.
_MARKERS_AT_ONCE: Final = 2_000
_RETRY_S: Final = 0.25
_REFUSED_RETRY_S: Final = 5.0
#: A predecessor has written markers since the end of the log was looked up, or a successor is writing them.
_FENCED: Final = (ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)


class GapFills:
    """Fills gaps of all cursors of a micro-batch. Each gap is one step between two Produce requests of its partition, so
    markers are sent from the loop; only the end of a log is looked up on another thread.
    """

    def __init__(self, link: DriverLink, tasks: BackgroundTasks, endpoints: Endpoints, losses: Losses) -> None:
        self._link = link
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._admin = Admin(endpoints.target_cluster)
        self._look_up = TargetLookUp(endpoints.target_cluster)
        self._call = endpoints.call
        self._sink = endpoints.sink
        self._open_sender = endpoints.marker_sender
        self._sender: MarkerSender | None = None  # before the first gap
        self._losses = losses
        self._unknown: dict[Cursor, int] = {}  # queue versions of cursors whose log end has to be found out
        self._unsure: dict[Cursor, tuple[int, int]] = {}  # versions, and where the log should end
        self._unanswered = 0
        self._is_looking = False

    @property
    def is_working(self) -> bool:
        """Whether something is unanswered."""
        return self._is_looking or self._unanswered > 0

    def attach(self, cursor: Cursor) -> None:
        """Fill the gaps of a cursor; its `GapQueue` is set."""

        def request() -> None:
            self._continue(cursor, _queue(cursor).version)

        cursor.gaps = GapQueue(cursor.outbox, cursor.owner.put, request, cursor.window.done)
        cursor.window.is_preserved = True

    def _continue(self, cursor: Cursor, version: int) -> None:
        """Take the next step for the gaps of a cursor, unless it has started elsewhere meanwhile."""
        if self._link.stop.is_set() or not _is_due(cursor, version):
            return
        if _queue(cursor).is_known:
            self._send(cursor)
        else:
            self._unknown[cursor] = version
            self._look()

    def _again(self, cursor: Cursor, delay_s: float) -> None:
        self._loop.call_later(delay_s, self._continue, cursor, _queue(cursor).version)

    def _filled(self, cursor: Cursor, after: int) -> None:
        """The log ends at this offset."""
        queue = _queue(cursor)
        if not queue.filled(after):
            self._continue(cursor, queue.version)

    # -- markers -----------------------------------------------------------------------------------------------------

    def _send(self, cursor: Cursor) -> None:
        """Send the next markers of a cursor to the leader that its batches are sent to."""
        queue, address = _queue(cursor), cursor.outbox.address
        if address is None:
            self._sink.find_leader(cursor.outbox)
            self._again(cursor, _RETRY_S)
            return
        first, after = queue.next_gap
        start = max(first, queue.reached)
        stop = min(after, start + _MARKERS_AT_ONCE)
        answered = functools.partial(self._answered, cursor, queue.version, stop)
        if self._sender is None:
            self._sender = self._open_sender(self._link.may_write)
        self._unanswered += 1
        self._sender.send(address[0], MarkerRun(cursor.spec.target, start, stop, queue.generation, answered))

    def _answered(self, cursor: Cursor, version: int, stop: int, failure: KafkaFailure | None) -> None:
        self._unanswered -= 1
        queue = _queue(cursor)
        if queue.version != version:
            return
        if failure is not None:
            self._failed(cursor, failure)
            return
        cursor.outbox.last_error = None
        if queue.is_clean and not (queue.is_last and stop >= queue.next_gap[1]):
            self._filled(cursor, stop)
        else:
            # Those of a predecessor may have been appended instead, or the record of another program between them.
            self._unsure[cursor] = (version, stop)
            self._look()

    def _failed(self, cursor: Cursor, failure: KafkaFailure) -> None:
        """Some of the markers may have been appended."""
        queue = _queue(cursor)
        queue.is_known = queue.is_clean = False
        if isinstance(failure, BrokerFailure) and failure.code in _FENCED:
            self._again(cursor, 0.0)
            return
        if isinstance(failure, BrokerFailure) and failure.stale_metadata:
            cursor.outbox.address = None
            self._sink.find_leader(cursor.outbox)
        cursor.outbox.last_error = _explained(failure)
        self._again(cursor, _REFUSED_RETRY_S if _is_refused(cursor) else _RETRY_S)

    # -- the end of the target log -----------------------------------------------------------------------------------

    def _look(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            self._tasks.spawn(self._look_up_ends())

    async def _look_up_ends(self) -> None:
        """Find out where logs end, also to complete what is being filled at the stop."""
        try:
            while self._unsure or (self._unknown and not self._link.stop.is_set()):
                unknown, self._unknown = self._unknown, {}
                unsure, self._unsure = self._unsure, {}
                ends = await self._stable_ends([*unknown, *unsure])
                for cursor, (version, stop) in unsure.items():
                    if _queue(cursor).version == version:
                        self._confirm(cursor, ends[cursor.spec.target], stop)
                await self._learn_all(
                    {cursor: version for cursor, version in unknown.items() if _is_due(cursor, version)}, ends
                )
        finally:
            self._is_looking = False

    async def _stable_ends(self, cursors: Iterable[Cursor]) -> Mapping[TopicPartition, OffsetInfo | KafkaFailure]:
        epochs = {cursor.spec.target: cursor.outbox.leader_epoch for cursor in cursors}
        try:
            ends: Mapping[TopicPartition, OffsetInfo | KafkaFailure] = await self._call(
                self._look_up.stable_ends, epochs
            )
        except KafkaFailure as error:
            return dict.fromkeys(epochs, error)
        return ends

    async def _learn_all(
        self, cursors: Mapping[Cursor, int], ends: Mapping[TopicPartition, OffsetInfo | KafkaFailure]
    ) -> None:
        """Find out under which generation the markers of these cursors are written."""
        if not cursors:
            return
        targets = [cursor.spec.target for cursor in cursors]
        try:
            states = await self._call(self._admin.describe_producers, targets)
        except KafkaFailure as error:
            states = dict.fromkeys(targets, error)
        for cursor, version in cursors.items():
            if _is_due(cursor, version):
                self._learn(cursor, ends[cursor.spec.target], states[cursor.spec.target])

    def _learn(
        self, cursor: Cursor, end: OffsetInfo | KafkaFailure, states: Mapping[int, ProducerState] | KafkaFailure
    ) -> None:
        if isinstance(end, KafkaFailure) or isinstance(states, KafkaFailure):
            cursor.outbox.last_error = end if isinstance(end, KafkaFailure) else states  # type: ignore[assignment]
            self._again(cursor, _REFUSED_RETRY_S if _is_refused(cursor) else _RETRY_S)
            return
        queue = _queue(cursor)
        first, after = queue.next_gap
        if end.offset > after:
            self._losses.target_diverged(cursor, after)
        elif end.offset < first:
            self._losses.preserved_truncated(cursor, end.offset)
        else:
            queue.generation = next_generation(_epochs(states), is_clean=queue.is_clean)
            queue.is_known = True
            if not _is_refused(cursor):
                cursor.outbox.last_error = None
            self._filled(cursor, end.offset)

    def _confirm(self, cursor: Cursor, end: OffsetInfo | KafkaFailure, stop: int) -> None:
        """Check that the log ends after the markers that were written."""
        queue = _queue(cursor)
        if isinstance(end, KafkaFailure):
            self._failed(cursor, end)
        elif end.offset > stop:
            self._losses.target_diverged(cursor, stop)
        elif end.offset < stop:
            queue.is_known = queue.is_clean = False
            self._again(cursor, 0.0)
        else:
            queue.is_clean = True
            self._filled(cursor, stop)


def _queue(cursor: Cursor) -> GapQueue:
    if cursor.gaps is None:
        message = f"{cursor.partition} is copied without offset preservation"
        raise ValueError(message)
    return cursor.gaps


def _is_due(cursor: Cursor, version: int) -> bool:
    """Whether its gaps still have to be filled, and it has not started elsewhere meanwhile."""
    queue = _queue(cursor)
    return queue.version == version and queue.is_filling and not cursor.stopped


def _is_refused(cursor: Cursor) -> bool:
    error = cursor.outbox.last_error
    return isinstance(error, BrokerFailure) and error.is_final


def _epochs(states: Mapping[int, ProducerState]) -> list[int]:
    return [state.producer_epoch for producer_id, state in states.items() if is_ours(producer_id)]


def _explained(failure: KafkaFailure) -> KafkaFailure:
    if isinstance(failure, BrokerFailure) and failure.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        what = "preserve.offsets fills gaps with transaction markers, which needs CLUSTER_ACTION on the cluster"
        return BrokerFailure.of(failure.code, what)
    return failure
