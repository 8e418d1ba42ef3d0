"""Fills target offsets that have no record, for partitions with offset preservation (`mm2.copy.executor.partition.gap_queue`)."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from mm2.copy.empty_transactions import ID_PREFIX, EmptyTransactions
from mm2.copy.executor.background import BackgroundTasks
from mm2.copy.executor.endpoints import Endpoints
from mm2.copy.executor.link import DriverLink
from mm2.copy.executor.partition.cursor import Cursor
from mm2.copy.executor.partition.gap_queue import GapQueue
from mm2.copy.executor.partition.preserved_records import PreservedRecords
from mm2.copy.executor.producing.marker_sender import MarkerRun, MarkerSender
from mm2.copy.executor.sessions.losses import Losses
from mm2.copy.markers import is_ours, next_generation
from mm2.copy.progress.target_progress import TargetLookUp
from mm2.copy.tally import MARKERS, TRANSACTIONS
from mm2.kafka.admin import Admin
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import OffsetInfo, ProducerState, TopicPartition

#: Markers of one partition in a request.
_MARKERS_AT_ONCE: Final = 2_000
_TRANSACTIONS_AT_ONCE: Final = 512
_LATE_MARKERS_S: Final = 5.0
_LATE_POLL_S: Final = 0.005
_SLOWER: Final = (
    "gaps are filled with empty transactions, which is slower, because CLUSTER_ACTION on the cluster is missing"
)
_RETRY_S: Final = 0.25
_REFUSED_RETRY_S: Final = 5.0
#: A predecessor has written markers since the end of the log was looked up, or a successor is writing them.
_FENCED: Final = (ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)


class _Unsure(NamedTuple):
    """The log of a cursor has to end at ``stop``, at this time (monotonic, s) at the latest. ``version``: of its queue."""

    version: int
    stop: int
    until_s: float


@dataclass(eq=False)
class GapFills:
    """Fills gaps of all cursors of a micro-batch. Each gap is one step between two Produce requests of its partition, so
    markers are sent from the loop; only the end of a log is looked up on another thread. ``commit(cursor, then)`` writes a
    cursor's entry and calls ``then``.
    """

    _link: DriverLink
    _tasks: BackgroundTasks
    _endpoints: Endpoints
    _losses: Losses
    _commit: Callable[[Cursor, Callable[[], None]], None]

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._admin = Admin(self._endpoints.target_cluster)
        self._look_up = TargetLookUp(self._endpoints.target_cluster)
        self._call = self._endpoints.call
        self._sink = self._endpoints.sink
        self._sender: MarkerSender | None = None  # before the first gap
        self._empty: EmptyTransactions | None = None  # before the target has rejected markers
        self._has_no_right = False  # to write markers
        self._settled: set[Cursor] = set()  # cursors for which no transaction of a predecessor is open
        self._unknown: dict[Cursor, int] = {}  # queue versions of cursors whose log end has to be found out
        self._unsure: dict[Cursor, _Unsure] = {}
        self._steps: dict[Cursor, int] = {}  # queue versions of cursors of which a step is not completed
        self._unanswered = 0
        self._is_looking = False

    @property
    def is_working(self) -> bool:
        """Whether something is unanswered."""
        return self._is_looking or self._unanswered > 0

    async def settle(self, cursor: Cursor) -> bool:
        """End the transactions that a killed predecessor may have left open: their markers would shift what is written before
        them. False at the stop.
        """
        while not self._link.stop.is_set():
            failure = await self._transactions().claim(cursor.spec.target)
            if failure is None:
                self._settled.add(cursor)
                cursor.set_target_error(None)
                return True
            cursor.set_target_error(_explained(failure, is_left=True))
            await self._link.pause(_REFUSED_RETRY_S if failure.is_final else _RETRY_S)
        return False

    def fill(self, cursor: Cursor, version: int) -> None:
        """Take the next step for the gaps of a cursor, unless it has started elsewhere meanwhile.

        One step at a time: two requests for the same offsets would both be accepted in part.
        """
        if self._link.stop.is_set() or not _is_due(cursor, version) or self._steps.get(cursor) == version:
            return
        self._steps[cursor] = version
        queue = _queue(cursor)
        target = cursor.spec.target
        is_ready = self._transactions().is_claimed(target) if self._has_no_right else not queue.by_transactions
        if queue.is_known and is_ready:
            self._send(cursor)
        else:
            self._unknown[cursor] = version
            self._look()

    def _again(self, cursor: Cursor, delay_s: float) -> None:
        """Take the next step after so many seconds."""

        def later(version: int) -> None:
            self._end_step(cursor, version)
            self.fill(cursor, version)

        self._loop.call_later(delay_s, later, _queue(cursor).version)

    def _end_step(self, cursor: Cursor, version: int) -> None:
        if self._steps.get(cursor) == version:
            del self._steps[cursor]

    def _filled(self, cursor: Cursor, after: int) -> None:
        """The log ends at this offset."""
        queue = _queue(cursor)
        before = max(queue.reached, queue.next_gap[0])
        if queue.is_clean and after > before:
            cursor.tally.fill(TRANSACTIONS if self._has_no_right else MARKERS, after - before)
        self._end_step(cursor, queue.version)
        if not queue.filled(after):
            self.fill(cursor, queue.version)

    # -- markers -----------------------------------------------------------------------------------------------------

    def _send(self, cursor: Cursor) -> None:
        """Send the next markers of a cursor to the leader that its batches are sent to."""
        queue, address = _queue(cursor), cursor.outbox.address
        first, after = queue.next_gap
        start = max(first, queue.reached)
        if start >= after:  # a predecessor had read more of the source, and has filled it
            self._filled(cursor, start)
            return
        if self._has_no_right:
            self._begin_transactions(cursor, queue.version)
            return
        if address is None:
            self._sink.find_leader(cursor.outbox)
            self._again(cursor, _RETRY_S)
            return
        stop = min(after, start + _MARKERS_AT_ONCE)
        answered = functools.partial(self._answered, cursor, queue.version, stop)
        if self._sender is None:
            self._sender = self._endpoints.marker_sender(self._link.may_write)
        self._unanswered += 1
        self._sender.send(address[0], MarkerRun(cursor.spec.target, start, stop, queue.generation, answered))

    def _begin_transactions(self, cursor: Cursor, version: int) -> None:
        """Fill the next gap by transactions, once the ledger has that there are some. After a kill nothing on the target shows
        an open transaction without a record, and the successor may have other rights or rules.
        """
        queue = _queue(cursor)

        def begin() -> None:
            if queue.version == version and not self._link.stop.is_set():
                self._tasks.spawn(self._fill_by_transactions(cursor))

        if queue.by_transactions:
            begin()
        else:
            queue.by_transactions = True
            self._commit(cursor, begin)

    async def _fill_by_transactions(self, cursor: Cursor) -> None:
        """Take up the next offsets of a cursor without a right that hosted clusters rarely grant."""
        queue = _queue(cursor)
        cursor.annotate(_SLOWER)
        version = queue.version
        first, after = queue.next_gap
        start = max(first, queue.reached)
        stop = min(after, start + _TRANSACTIONS_AT_ONCE)
        self._unanswered += 1
        transactions = self._transactions()
        failure = await transactions.fill(cursor.spec.target, stop - start)
        if failure is None and queue.version == version and stop >= queue.next_end:
            failure = await transactions.settle(cursor.spec.target)
        # The coordinator answers before it has written the last markers.
        self._answered(cursor, version, stop, failure, late_s=_LATE_MARKERS_S)

    def _transactions(self) -> EmptyTransactions:
        if self._empty is None:
            self._empty = self._endpoints.empty_transactions(self._link.may_write)
        return self._empty

    def _answered(
        self, cursor: Cursor, version: int, stop: int, failure: KafkaFailure | None, *, late_s: float = 0.0
    ) -> None:
        self._unanswered -= 1
        queue = _queue(cursor)
        if queue.version != version:
            return
        if failure is not None:
            self._failed(cursor, failure)
            return
        cursor.set_target_error(None)
        if queue.is_clean and not late_s and not (queue.is_last and stop >= queue.next_gap[1]):
            self._filled(cursor, stop)
        else:
            # Those of a predecessor may have been appended instead, or the record of another program between them.
            self._check(cursor, _Unsure(version, stop, time.monotonic() + late_s))

    def _check(self, cursor: Cursor, unsure: _Unsure) -> None:
        """Look up whether the log ends where it should."""
        self._unsure[cursor] = unsure
        self._look()

    def _failed(self, cursor: Cursor, failure: KafkaFailure) -> None:
        """Some of the markers may have been appended."""
        queue = _queue(cursor)
        queue.is_known = queue.is_clean = False
        code = failure.code if isinstance(failure, BrokerFailure) else 0
        # Nothing of an answered request appears later, and there are only 32,768 generations.
        queue.is_fenced = queue.is_fenced and isinstance(failure, BrokerFailure) and code not in _FENCED
        if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            self._has_no_right = True
            self._again(cursor, 0.0)
            return
        if code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            self._has_no_right = False  # neither right; one of them may be granted
        if code in _FENCED:
            self._again(cursor, 0.0)
            return
        if isinstance(failure, BrokerFailure) and failure.stale_metadata:
            cursor.outbox.address = None
            self._sink.find_leader(cursor.outbox)
        cursor.set_target_error(_explained(failure, is_left=queue.by_transactions))
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
                unknown = {cursor: version for cursor, version in unknown.items() if await self._fence(cursor)}
                ends = await self._stable_ends([*unknown, *unsure])
                for cursor, wanted in unsure.items():
                    await self._confirm(cursor, ends[cursor.spec.target], wanted)
                await self._learn_all(
                    {cursor: version for cursor, version in unknown.items() if _is_due(cursor, version)}, ends
                )
        finally:
            self._is_looking = False

    async def _fence(self, cursor: Cursor) -> bool:
        """End transactions that fill gaps, if there may be some, before the end of the log is read. False if that has failed."""
        queue = _queue(cursor)
        if not (self._has_no_right or queue.by_transactions):
            return True
        failure = await self._transactions().claim(cursor.spec.target)
        if failure is not None:
            self._failed(cursor, failure)
            return False
        self._settled.add(cursor)
        queue.by_transactions = queue.by_transactions and self._has_no_right
        return True

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
            state = states[cursor.spec.target]
            if _is_due(cursor, version) and not await self._has_rival(cursor, state):
                await self._learn(cursor, ends[cursor.spec.target], state)

    async def _has_rival(self, cursor: Cursor, states: Mapping[int, ProducerState] | KafkaFailure) -> bool:
        """Whether markers of transactions may have appeared that a predecessor without the right to write markers has left, and
        that the ledger has lost. None does afterwards, so the end of the log is looked up again.
        """
        is_possible = not _queue(cursor).is_clean and cursor not in self._settled
        if not is_possible or isinstance(states, KafkaFailure) or not any(map(_is_of_transaction, states.values())):
            return False
        failure = await self._transactions().claim(cursor.spec.target)
        # Without the right to do so there was no such predecessor.
        if failure is not None and not failure.is_final:
            self._failed(cursor, failure)
            return True
        self._settled.add(cursor)
        self._again(cursor, 0.0)
        return True

    async def _learn(
        self, cursor: Cursor, end: OffsetInfo | KafkaFailure, states: Mapping[int, ProducerState] | KafkaFailure
    ) -> None:
        if isinstance(end, KafkaFailure) or isinstance(states, KafkaFailure):
            cursor.set_target_error(next(found for found in (end, states) if isinstance(found, KafkaFailure)))
            self._again(cursor, _REFUSED_RETRY_S if _is_refused(cursor) else _RETRY_S)
            return
        queue = _queue(cursor)
        first, _ = queue.next_gap
        if end.offset < first:
            self._losses.preserved_truncated(cursor, end.offset)
        elif await self._is_filled(cursor, max(first, queue.reached), end.offset):
            known = [*_epochs(states), max(0, queue.generation)]  # none of its markers may have been appended yet
            queue.generation = next_generation(known, is_clean=queue.is_fenced)
            queue.is_known = queue.is_fenced = True
            if not _is_refused(cursor):
                cursor.set_target_error(None)
            self._filled(cursor, end.offset)

    async def _is_filled(self, cursor: Cursor, first: int, end: int) -> bool:
        """Whether target offsets ``first .. end-1``, which were not filled by this process, have no records, and no batch has
        to be written there. Otherwise the partition stops, or the next step follows.

        Late markers of a predecessor may be there, also where it had read more of the source. A coordinator that has had no
        answer writes a marker again.
        """
        queue = _queue(cursor)
        version, offset = queue.version, -1
        if first < end:
            try:
                offset = await self._call(self._look_up.foreign_offset, cursor.spec.target, first, end, frozenset())
            except KafkaFailure as error:
                if queue.version == version:
                    self._failed(cursor, error)
                return False
        if not _is_due(cursor, version):
            return False
        if offset < 0 and end > queue.next_end and not queue.is_last:
            offset = queue.next_end
        if offset >= 0:
            self._losses.target_diverged(cursor, offset)
        return offset < 0

    async def _confirm(self, cursor: Cursor, end: OffsetInfo | KafkaFailure, unsure: _Unsure) -> None:
        """Check that the log ends after the markers that were written, or that there are only more of them."""
        queue, stop = _queue(cursor), unsure.stop
        if queue.version != unsure.version:
            return
        if isinstance(end, KafkaFailure):
            self._failed(cursor, end)
        elif end.offset > stop:
            if await self._is_filled(cursor, stop, end.offset):
                queue.is_clean = True
                self._filled(cursor, end.offset)
        elif end.offset < stop and time.monotonic() < unsure.until_s:
            self._loop.call_later(_LATE_POLL_S, self._check, cursor, unsure)
        elif end.offset < stop:
            queue.is_known = queue.is_clean = False
            self._again(cursor, 0.0)
        else:
            queue.is_clean = True
            self._filled(cursor, stop)


def _queue(cursor: Cursor) -> GapQueue:
    if not isinstance(cursor.outgoing, PreservedRecords):
        message = f"{cursor.partition} is copied without offset preservation"
        raise TypeError(message)
    return cursor.outgoing.gaps


def _is_due(cursor: Cursor, version: int) -> bool:
    """Whether its gaps still have to be filled, and it has not started elsewhere meanwhile."""
    queue = _queue(cursor)
    return queue.version == version and queue.is_filling and not cursor.outbox.stopped


def _is_refused(cursor: Cursor) -> bool:
    error = cursor.outbox.last_error
    return isinstance(error, BrokerFailure) and error.is_final


def _is_of_transaction(state: ProducerState) -> bool:
    return state.coordinator_epoch >= 0 and not is_ours(state.producer_id)


def _epochs(states: Mapping[int, ProducerState]) -> list[int]:
    return [state.producer_epoch for producer_id, state in states.items() if is_ours(producer_id)]


def _explained(failure: KafkaFailure, *, is_left: bool) -> KafkaFailure:
    """``is_left``: transactions may be open."""
    if isinstance(failure, BrokerFailure) and failure.code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        right = f"WRITE on the transactional ids with the prefix {ID_PREFIX}"
        if is_left:
            what = f"empty transactions that fill gaps may still be open; to end them, {right} is needed, also with CLUSTER_ACTION"
        else:
            what = (
                "preserve.offsets fills gaps with transaction markers, which needs CLUSTER_ACTION on the cluster, or with empty "
                f"transactions, which needs {right}"
            )
        return BrokerFailure.of(failure.code, what)
    return failure
