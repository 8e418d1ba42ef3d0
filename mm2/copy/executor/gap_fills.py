"""Fills target offsets that have no record, for partitions with offset preservation (`mm2.copy.executor.gap_queue`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import structlog

from mm2.copy.executor.background import BackgroundTasks
from mm2.copy.executor.cursor import Cursor
from mm2.copy.executor.endpoints import Endpoints
from mm2.copy.executor.gap_queue import GapQueue
from mm2.copy.executor.link import DriverLink
from mm2.copy.executor.losses import Losses
from mm2.copy.executor.target_progress import TargetLookUp
from mm2.copy.markers import is_ours, marker_at, next_generation
from mm2.kafka.admin import Admin
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import OffsetInfo, ProducerState, TopicPartition

#: Markers of one request. A broker appends them one after another.
_MARKERS_PER_REQUEST: Final = 1_000
_REQUEST_TIMEOUT_S: Final = 30.0
_RETRY_S: Final = 0.25
_REFUSED_RETRY_S: Final = 5.0


class GapFills:
    """Fills gaps of all cursors of a micro-batch, those that become due together in one request for each leader."""

    def __init__(self, link: DriverLink, tasks: BackgroundTasks, endpoints: Endpoints, losses: Losses) -> None:
        self._link = link
        self._tasks = tasks
        self._admin = Admin(endpoints.target_cluster)
        self._look_up = TargetLookUp(endpoints.target_cluster)
        self._call = endpoints.call
        self._losses = losses
        self._due: list[tuple[Cursor, int]] = []
        self.is_working = False
        self._log = structlog.get_logger(__name__)

    def attach(self, cursor: Cursor) -> None:
        """Fill the gaps of a cursor; its `GapQueue` is set."""
        cursor.gaps = GapQueue(cursor.outbox, cursor.owner.put, lambda: self._request(cursor), cursor.window.done)
        cursor.window.is_preserved = True

    def _request(self, cursor: Cursor) -> None:
        self._due.append((cursor, _queue(cursor).version))
        if not self.is_working:
            self.is_working = True
            self._tasks.spawn(self._work())

    async def _work(self) -> None:
        try:
            while self._due and not self._link.stop.is_set():
                due, self._due = self._due, []
                # The next gap of a cursor may have become due while the one before it was being filled.
                cursors = dict.fromkeys(cursor for cursor, version in due if _is_due(cursor, version))
                again = await self._step([*cursors])
                self._due += [(cursor, _queue(cursor).version) for cursor in again]
        finally:
            self.is_working = False

    async def _step(self, cursors: list[Cursor]) -> list[Cursor]:
        """One request for the next gaps of each cursor; returns those whose gaps are not filled yet."""
        versions = {cursor.partition: _queue(cursor).version for cursor in cursors}
        await self._learn_ends([cursor for cursor in cursors if not _queue(cursor).is_known])
        ready = [cursor for cursor in cursors if _queue(cursor).is_known and not cursor.stopped]
        if ready and self._link.may_write():
            await self._write(ready)
        again = [cursor for cursor in cursors if _is_due(cursor, versions[cursor.partition])]
        if again and not (self._link.may_write() and any(_queue(cursor).is_known for cursor in again)):
            is_refused = all(_is_refused(cursor) for cursor in again)
            await self._link.pause(_REFUSED_RETRY_S if is_refused else _RETRY_S)
        return again

    # -- the end of the target log -----------------------------------------------------------------------------------

    async def _learn_ends(self, cursors: list[Cursor]) -> None:
        """Find out where the logs end, and under which generation their markers are written."""
        by_target = {cursor.spec.target: cursor for cursor in cursors}
        if not by_target:
            return
        versions = {cursor.partition: _queue(cursor).version for cursor in cursors}
        try:
            ends = await self._call(self._look_up.stable_ends, _leader_epochs(cursors))
            states = await self._call(self._admin.describe_producers, [*by_target])
        except KafkaFailure as error:
            ends = states = dict.fromkeys(by_target, error)
        for target, cursor in by_target.items():
            if _is_due(cursor, versions[cursor.partition]):
                self._learn(cursor, ends[target], states[target])

    def _learn(
        self, cursor: Cursor, end: OffsetInfo | KafkaFailure, states: Mapping[int, ProducerState] | KafkaFailure
    ) -> None:
        if isinstance(end, KafkaFailure) or isinstance(states, KafkaFailure):
            cursor.outbox.last_error = end if isinstance(end, KafkaFailure) else states  # type: ignore[assignment]
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
            cursor.outbox.last_error = None
            queue.filled(end.offset)

    # -- markers -----------------------------------------------------------------------------------------------------

    async def _write(self, cursors: Iterable[Cursor]) -> None:
        """Write the next markers of each cursor, and check where the logs end when that does not follow."""
        wanted, sent = {}, {}
        for cursor in cursors:
            queue = _queue(cursor)
            first, after = queue.next_gap
            start = max(first, queue.reached)
            stop = min(after, start + _MARKERS_PER_REQUEST)
            if start < stop:
                markers = [marker_at(offset, queue.generation) for offset in range(start, stop)]
                wanted[cursor.spec.target] = markers
                sent[cursor.spec.target] = (cursor, queue.version, stop)
        try:
            answers = await self._call(self._write_markers, wanted)
        except KafkaFailure as error:
            answers = dict.fromkeys(wanted, error)
        unsure = []
        for target, (cursor, version, stop) in sent.items():
            queue, failure = _queue(cursor), answers[target]
            if queue.version != version:
                continue
            if failure is not None:
                self._failed(cursor, failure)
            elif not queue.is_clean or (queue.is_last and stop >= queue.next_gap[1]):
                unsure.append((cursor, stop))
            else:
                queue.filled(stop)
        await self._confirm(unsure)

    def _write_markers(
        self, wanted: Mapping[TopicPartition, list[tuple[int, int, int]]]
    ) -> Mapping[TopicPartition, KafkaFailure | None]:
        return self._admin.write_abort_markers(wanted, timeout_s=_REQUEST_TIMEOUT_S)

    def _failed(self, cursor: Cursor, failure: KafkaFailure) -> None:
        """Some of the markers may have been appended."""
        queue = _queue(cursor)
        queue.is_known = queue.is_clean = False
        code = failure.code if isinstance(failure, BrokerFailure) else 0
        if code not in {ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH}:
            cursor.outbox.last_error = _explained(failure)

    async def _confirm(self, written: list[tuple[Cursor, int]]) -> None:
        """Check that the logs end after the markers that were written: those of a predecessor may have been appended
        instead, or the record of another program between them.
        """
        if not written:
            return
        versions = {cursor.partition: _queue(cursor).version for cursor, _ in written}
        try:
            ends = await self._call(self._look_up.stable_ends, _leader_epochs(cursor for cursor, _ in written))
        except KafkaFailure as error:
            ends = dict.fromkeys((cursor.spec.target for cursor, _ in written), error)
        for cursor, stop in written:
            queue, end = _queue(cursor), ends[cursor.spec.target]
            if queue.version != versions[cursor.partition]:
                continue
            if isinstance(end, KafkaFailure):
                self._failed(cursor, end)
            elif end.offset > stop:
                self._losses.target_diverged(cursor, stop)
            elif end.offset < stop:
                queue.is_known = queue.is_clean = False
            else:
                queue.is_clean = True
                queue.filled(stop)


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


def _leader_epochs(cursors: Iterable[Cursor]) -> dict[TopicPartition, int]:
    return {cursor.spec.target: cursor.outbox.leader_epoch for cursor in cursors}


def _epochs(states: Mapping[int, ProducerState]) -> list[int]:
    return [state.producer_epoch for producer_id, state in states.items() if is_ours(producer_id)]


def _explained(failure: KafkaFailure) -> KafkaFailure:
    if isinstance(failure, BrokerFailure) and failure.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        what = "preserve.offsets fills gaps with transaction markers, which needs CLUSTER_ACTION on the cluster"
        return BrokerFailure.of(failure.code, what)
    return failure
