"""Exactly-once mode: data and positions of a task in consecutive transactions (KIP-618, KIP-890).

New batches are held back while a transaction ends. Batches that were sent already are resent until the target has
acknowledged them. So a commit costs about 20 ms of writing, and reading continues.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from mm2.copy.executor.partition.outbox import Outbox, OutboxState, outgoing_of
from mm2.copy.executor.producing.sink import Sink
from mm2.copy.spec import TransactionsSpec
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.producer.transactions import MAX_PRODUCE_EXPLICIT, TransactionCoordinatorClient
from mm2.kafka.records.record import Record
from mm2.kafka.structs import ProducerIdentity, TopicPartition
from mm2.kafka.wire import produce

_POLL_S: Final = 0.001
#: Seconds between commits while far behind: each commit costs about 20 ms.
CATCHING_UP_S: Final = 1.0
_ROUND_TRIPS: Final = 10


class TaskTransactions:
    """Consecutive transactions under the task's transactional id.

    ``call`` runs a blocking function on a background thread, ``on_failure`` is called with an error that ends the
    micro-batch.
    """

    def __init__(
        self,
        cluster: Cluster,
        spec: TransactionsSpec,
        sink: Sink,
        offsets_topic: str,
        call: Callable[..., Awaitable[Any]],
        on_failure: Callable[[KafkaFailure], None],
    ) -> None:
        self._client = TransactionCoordinatorClient(cluster, spec.transactional_id)
        self._spec = spec
        self._sink = sink
        self._offsets_topic = offsets_topic
        self._call = call
        self._data: list[Outbox] = []
        self._offsets: dict[int, Outbox] = {}
        self._identity = ProducerIdentity(-1, -1)
        self._ended_s = 0.0  # the last one, or when the first one could begin
        self._open_since_s: float | None = None  # when `is_overdue` has first found it open
        self._cost_s = 0.002
        self._on_failure = on_failure
        self._counted: dict[Outbox, int] = {}  # records of each outbox when the transaction began
        self._is_ending = self._is_over = False
        self.marked: set[TopicPartition] = set()  # the partitions that the last transaction has put a marker into
        self._enrolling: set[TopicPartition] = set()
        self._enroller: asyncio.Task[None] | None = None

    async def claim(self) -> None:
        """Initialize the transactional id: a previous producer is fenced, its open transaction aborted. Raises
        KafkaFailure.
        """
        self._identity = await self._call(self._client.init_producer_id, self._spec.timeout_ms)
        implicit = self._client.implicit_partitions
        version = produce.MAX_VERSION if implicit else MAX_PRODUCE_EXPLICIT
        self._sink.in_transactions(self._spec.transactional_id, version)

    def begin(self, data: Iterable[Outbox]) -> None:
        """Open these partitions' outboxes."""
        self._data = list(data)
        self._ended_s = time.monotonic()
        for outbox in self._data:
            self._begin_outbox(outbox, 0)

    @property
    def errors(self) -> list[KafkaFailure | None]:
        """Why positions are not acknowledged."""
        return [outbox.last_error for outbox in self._offsets.values()]

    def due(self, *, behind: bool) -> bool:
        """Whether the next commit is due."""
        interval_s = (self._spec.interval_ms or 0) / 1000
        least_s = CATCHING_UP_S if behind else _ROUND_TRIPS * self._cost_s
        return time.monotonic() - self._ended_s >= max(interval_s, min(least_s, CATCHING_UP_S))

    @property
    def is_overdue(self) -> bool:
        """Whether the target has rejected all that was sent, and has had the open transaction for half of its timeout.

        The coordinator would abort it then, and fence this producer.
        """
        now = time.monotonic()
        if not self._is_open():
            self._open_since_s = None
            return False
        self._open_since_s = self._open_since_s or now
        is_late = now - self._open_since_s >= self._spec.timeout_ms / 2000
        return is_late and all(self._settled(outbox) for outbox in self._data)

    async def commit(
        self,
        positions: Callable[[], list[tuple[int, Record]]],
        recorded: Callable[[], bool],
        give_up: Callable[[], bool],
    ) -> bool:
        """Wait for requests in flight, add the positions (partition of the offsets topic, record), and commit.

        Also waits until ``recorded`` returns true: records that `positions` has written elsewhere, and earlier ones
        there, are acknowledged. An empty transaction is not ended, because brokers reject that. Returns False when
        ``give_up`` returned true before, or when the transaction has exceeded its timeout and the coordinator has
        aborted it, for instance because a topic was recreated and its batches can never be acknowledged. Raises
        KafkaFailure. After either, and when it is cancelled, nothing more is sent under this id.
        """
        if self._is_ending or self._is_over:
            return False
        self._is_ending = True
        done = False
        try:
            done = await self._commit(positions, recorded, give_up)
        finally:
            self._is_ending = False
            if not done:
                self._close()
        return done

    async def _commit(
        self,
        positions: Callable[[], list[tuple[int, Record]]],
        recorded: Callable[[], bool],
        give_up: Callable[[], bool],
    ) -> bool:
        began = time.monotonic()

        def must_give_up() -> bool:
            return give_up() or (self._sent() and time.monotonic() - began > self._spec.timeout_ms / 1000)

        self._sink.hold(new=True)
        while not (recorded() and all(self._settled(outbox) for outbox in self._data)):
            if must_give_up():
                return False
            await asyncio.sleep(_POLL_S)
        if give_up():  # other writes are not in the transaction: a successor's may already be there
            return False
        by_partition: dict[int, list[Record]] = {}
        for partition, record in positions():
            by_partition.setdefault(partition, []).append(record)
        left = len(by_partition)

        def written() -> None:
            nonlocal left
            left -= 1

        for partition, records in by_partition.items():
            self._sink.put(self._offsets_outbox(partition), outgoing_of(records, written))
        # A partition that is added now belongs to this transaction, not to the next one.
        while left or not recorded() or self._enroller is not None:
            if must_give_up():
                return False
            await asyncio.sleep(_POLL_S)
        before = self._identity
        self.marked = {outbox.partition for outbox in self._data if self._is_part(outbox)}
        if self._is_open():
            self._identity = await self._end()
        self._ended_s, self._open_since_s = time.monotonic(), None
        self._cost_s = min(self._ended_s - began, CATCHING_UP_S / _ROUND_TRIPS)
        counts = {outbox: outbox.acked if outbox.shared is None else outbox.shared.records for outbox in self._all()}
        for outbox, count in counts.items():
            self._begin_outbox(outbox, 0 if self._identity != before else count)
        self._sink.hold(new=False)
        return True

    async def abort(self) -> None:
        """Abort the open transaction. Raises KafkaFailure; the coordinator then aborts it after its timeout.

        With unanswered batches it is left to the successor, which gets a new epoch: a batch that is appended after
        the abort would be in a transaction that no process ends.
        """
        if self._is_ending or self._is_over or self._identity.producer_id < 0:
            return
        self._close()
        # A batch whose connection was lost is not in flight, but the broker may still append it.
        if self._is_open() and all(not outbox.sent and outbox.acked == outbox.next for outbox in self._all()):
            await self._call(self._client.end, self._identity, False)

    def _close(self) -> None:
        """Send nothing more under this id: it is unknown which transaction a batch would belong to."""
        self._is_over = True
        for outbox in self._all():
            outbox.stopped = True

    def _sent(self) -> bool:
        """Whether anything was sent in this transaction."""
        return any(outbox.next > self._counted.get(outbox, 0) for outbox in self._all())

    def _is_open(self) -> bool:
        """Whether the coordinator has a transaction open."""
        return any(self._is_part(outbox) for outbox in self._all())

    def _is_part(self, outbox: Outbox) -> bool:
        """Whether the transaction includes a partition, also one of which all batches were rejected."""
        is_added = outbox.enrolled and not self._client.implicit_partitions
        return is_added or outbox.next > self._counted.get(outbox, 0)

    async def _end(self) -> ProducerIdentity:
        try:
            following: ProducerIdentity = await self._call(self._client.end, self._identity, True)
        except BrokerFailure as error:
            is_empty = not any(outbox.acked > self._counted.get(outbox, 0) for outbox in self._all())
            if error.code == ErrorCode.INVALID_TXN_STATE and is_empty:
                return self._identity  # all batches were rejected
            raise
        return following

    def _all(self) -> list[Outbox]:
        return [*self._data, *self._offsets.values()]

    @staticmethod
    def _settled(outbox: Outbox) -> bool:
        """Whether all batches that were sent in this transaction are acknowledged, except those that the target has
        rejected with certainty.
        """
        is_rejected = outbox.state in {OutboxState.REFUSED, OutboxState.QUARANTINING}
        is_waiting = not outbox.queue or outbox.queue[0].at < 0 or is_rejected
        return is_waiting and not outbox.sent and not outbox.is_doubtful

    def _begin_outbox(self, outbox: Outbox, count: int) -> None:
        # The leader remembers a producer of which it has just appended a marker. Another one accepts any sequence from it, and
        # would append a batch behind a rejected one.
        was_acknowledged = outbox.acked > self._counted.get(outbox, 0)
        if outbox.shared is not None:
            outbox.shared.begin()
        outbox.begin(self._identity, count, known=outbox.known and was_acknowledged)
        outbox.failures = 0
        self._counted[outbox] = count
        # Before KIP-890 a partition is added before its first record; otherwise it gets no marker.
        outbox.enrolled = self._client.implicit_partitions

    def enroll(self, outbox: Outbox) -> None:
        """Add the partition of an outbox to the open transaction, then let it send."""
        self._enrolling.add(outbox.partition)
        if self._enroller is None:
            self._enroller = asyncio.get_running_loop().create_task(self._enroll_all())

    async def _enroll_all(self) -> None:
        try:
            while self._enrolling:
                await asyncio.sleep(0)  # collect all requests of this iteration of the loop
                partitions, self._enrolling = self._enrolling, set()
                await self._call(self._client.add_partitions, self._identity, sorted(partitions))
                for outbox in self._all():
                    if outbox.partition in partitions:
                        outbox.enrolled = True
                        self._sink.wake(outbox)
        except KafkaFailure as error:
            self._on_failure(error)
        finally:
            self._enroller = None

    def _offsets_outbox(self, partition: int) -> Outbox:
        found = self._offsets.get(partition)
        if found is None:
            tp = TopicPartition(self._offsets_topic, partition)
            found = self._offsets[partition] = self._sink.outbox(
                tp, idempotent=True, transactional=True, waits_for_commit=False
            )
            self._begin_outbox(found, 0)
        return found
