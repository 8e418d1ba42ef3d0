"""The writing side: outboxes of batches, one per target partition, emptied into pipelined Produce requests.

A sink knows brokers and retries; what a batch means is its sender's business. Rules it keeps:

* one batch per partition and request, at most five requests under way per connection, so at most five batches per
  partition, which is as many as a broker remembers of an idempotent producer;
* the sequence of a batch is fixed when it is first sent and never changes: whoever sends it again, and after whatever
  failure, the broker takes it once. A batch whose outcome is unknown is neither split nor merged;
* after a failure of one batch of a partition nothing new is sent for it until everything under way is answered; then
  what is not acknowledged goes again, in order;
* a partition runs no further ahead of its committed position than its window allows, see `window`.

All methods and callbacks run on the loop's thread; blocking calls (metadata, connecting) go to ``background``.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Final

from kafka.protocol.producer import InitProducerIdRequest

from mm2.copy.executor.brokers import WATCH_S, Brokers, Link
from mm2.copy.executor.outbox import MAX_IN_FLIGHT, Outbox, Parcel
from mm2.copy.executor.window import PATIENCE_S
from mm2.kafka.backoff import Backoff
from mm2.kafka.cluster import Cluster
from mm2.kafka.connection import Connection
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, CorruptBatch, KafkaFailure, TimeoutFailure
from mm2.kafka.records.batch import patch
from mm2.kafka.structs import ProducerIdentity, TopicPartition
from mm2.kafka.wire import produce
from mm2.kafka.wire.channel import BufferPool, Channel

MAX_REQUEST_BYTES: Final = 4 << 20
_SEQUENCE_WRAP: Final = 1 << 31
_REFUSED_RETRY_S: Final = 5.0
_DUPLICATE: Final = ErrorCode.DUPLICATE_SEQUENCE_NUMBER
_TOO_LARGE: Final = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
_PRODUCER_LOST: Final = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)


@dataclass(slots=True, eq=False)
class _Broker(Link):
    """One broker's connection: its ready outboxes and the requests it has not answered."""

    ready: deque[Outbox] = field(default_factory=deque)
    under_way: deque[tuple[list[tuple[Outbox, Parcel]], float]] = field(default_factory=deque)
    scheduled: bool = False


class Sink(Brokers[_Broker]):
    """All outboxes into one cluster. ``acks`` is always all; ``request_timeout_s`` bounds every answer."""

    role = "target"

    def __init__(
        self,
        cluster: Cluster,
        loop: asyncio.AbstractEventLoop,
        background: Executor,
        pool: BufferPool,
        *,
        max_request_bytes: int = MAX_REQUEST_BYTES,
    ) -> None:
        super().__init__(cluster, loop, background, pool)
        self._max_request_bytes = max_request_bytes
        self._backoff = Backoff(cluster.settings.retry_backoff_ms, cluster.settings.retry_backoff_max_ms)
        self._outboxes: dict[TopicPartition, Outbox] = {}
        self._homeless: set[TopicPartition] = set()
        self._watch()

    def outbox(
        self,
        partition: TopicPartition,
        *,
        idempotent: bool,
        on_refused: Callable[[KafkaFailure | None], None] | None = None,
    ) -> Outbox:
        """Open the outbox of a partition; an idempotent one sends nothing until it has a producer id."""
        outbox = Outbox(partition, ProducerIdentity(-1, -1) if idempotent else None, on_refused)
        self._outboxes[partition] = outbox
        return outbox

    async def identify(self, outboxes: Iterable[Outbox]) -> None:
        """Give idempotent outboxes one new producer id and find their leaders; KafkaFailure when neither can be had."""
        identity = await self._in_background(self._new_identity)
        topics = set()
        for outbox in outboxes:
            outbox.identity, outbox.known = identity, False
            topics.add(outbox.partition.topic)
        if topics:
            await self._find_leaders(topics)

    def put(self, outbox: Outbox, parcel: Parcel) -> None:
        """Queue a batch; it is sent as soon as the pipeline has room."""
        outbox.queue.append(parcel)
        self._wake(outbox)

    def confirm(self, outbox: Outbox, count: int) -> None:
        """The position behind ``count`` more records of this partition is committed: so many more may go ahead of it."""
        outbox.window.confirmed(count, time.monotonic())
        self._wake(outbox)

    def close(self) -> None:
        """Close all connections; what is unanswered stays unanswered."""
        self._close_channels()

    # -- sending ---------------------------------------------------------------------------------------------------

    def _wake(self, outbox: Outbox) -> None:
        if outbox.ready or outbox.held or not outbox.queue:
            return
        if len(outbox.sent) >= outbox.depth or (outbox.identity is not None and outbox.identity.producer_id < 0):
            return
        if outbox.identity is not None and not outbox.window.is_open(time.monotonic()):
            # `confirm` opens it; should no commit come back, it is open after a while.
            if not outbox.alarm:
                outbox.alarm = True
                self._loop.call_later(PATIENCE_S * 1.1, self._window_open, outbox)
            return
        if outbox.leader is None:
            self._homeless.add(outbox.partition)
            self._refresh(0.0)
            return
        outbox.ready = True
        broker = self._brokers.setdefault(outbox.leader, _Broker(outbox.leader))
        broker.ready.append(outbox)
        self._schedule(broker)

    def _window_open(self, outbox: Outbox) -> None:
        outbox.alarm = False
        self._wake(outbox)

    def _schedule(self, broker: _Broker) -> None:
        # One turn of the loop later, so that all that one Fetch answer brought goes into one request.
        if not broker.scheduled:
            broker.scheduled = True
            self._loop.call_soon(self._pump, broker)

    def _pump(self, broker: _Broker) -> None:
        broker.scheduled = False
        if self._over or not broker.ready:
            return
        if broker.channel is None:
            self._open(broker)
            return
        channel = broker.channel
        while broker.ready and len(broker.under_way) < MAX_IN_FLIGHT and not channel.lost:
            self._send_request(broker, channel)

    def _send_request(self, broker: _Broker, channel: Channel) -> None:
        batches: dict[TopicPartition, memoryview] = {}
        parcels: list[tuple[Outbox, Parcel]] = []
        again: list[Outbox] = []
        size = 0
        while broker.ready and (size < self._max_request_bytes):
            outbox = broker.ready.popleft()
            outbox.ready = False
            if outbox.leader != broker.node or outbox.held or not outbox.queue:
                self._wake(outbox)
                continue
            parcel = outbox.queue.popleft()
            self._stamp(outbox, parcel)
            parcel.under_way = True
            outbox.sent.append(parcel)
            batches[outbox.partition] = parcel.data
            parcels.append((outbox, parcel))
            size += len(parcel.data)
            again.append(outbox)
        for outbox in again:
            self._wake(outbox)
        if not batches:
            return
        connection = channel.connection
        correlation_id = connection.next_correlation_id()
        buffers = produce.request(
            broker.version,
            correlation_id,
            connection.client_id,
            batches,
            acks=-1,
            timeout_ms=int(self._request_timeout_s * 1000),
        )
        broker.under_way.append((parcels, time.monotonic()))
        channel.send(buffers, correlation_id)

    @staticmethod
    def _stamp(outbox: Outbox, parcel: Parcel) -> None:
        """Give a batch its sequence, once and for all, and make its header the target's."""
        if parcel.sequence >= 0:
            return
        identity = outbox.identity
        if identity is None:
            patch(parcel.data, parcel.header, (-1, -1, -1))
            return
        if not parcel.counted:
            parcel.counted = True
            outbox.window.sent(parcel.count, time.monotonic())
        parcel.sequence = outbox.sequence
        outbox.sequence = (outbox.sequence + parcel.count) % _SEQUENCE_WRAP
        patch(parcel.data, parcel.header, (identity.producer_id, identity.producer_epoch, parcel.sequence))

    # -- answers ---------------------------------------------------------------------------------------------------

    def _answered(self, broker: _Broker, frame: memoryview) -> None:
        channel = broker.channel
        if channel is None or not broker.under_way:
            return
        parcels, _ = broker.under_way.popleft()
        try:
            results = {result.topic_partition: result for result in produce.response(broker.version, frame)}
        except CorruptBatch as error:
            broker.under_way.appendleft((parcels, 0.0))
            channel.fail(error)
            return
        self._heard(broker)
        for outbox, parcel in parcels:
            parcel.under_way = False
            result = results.get(outbox.partition)
            code = ErrorCode.UNKNOWN_SERVER_ERROR if result is None else result.error_code
            if result is not None and code in (0, _DUPLICATE):
                parcel.base_offset = -1 if code else result.base_offset
                parcel.failure = 0
            else:
                parcel.failure = code
                message = None if result is None else result.message or None
                subject = f"writing to {outbox.partition} of cluster {self._cluster.name}"
                self._failed(outbox, parcel, BrokerFailure.of(code, message, subject=subject))
            self._settle(outbox)
        if broker.ready:
            self._schedule(broker)

    def _failed(self, outbox: Outbox, parcel: Parcel, failure: BrokerFailure) -> None:
        first = not outbox.draining
        outbox.draining = True
        if first or outbox.complaint is None:
            outbox.complaint = failure
        if failure.stale_metadata:
            outbox.leader = None
        if first:
            self._log.debug(
                "a batch was not taken", partition=str(outbox.partition), sequence=parcel.sequence, error=str(failure)
            )

    def _settle(self, outbox: Outbox) -> None:
        """Deliver acknowledgements in order; when everything under way of a failed outbox is answered, start over."""
        while outbox.sent and outbox.sent[0].base_offset is not None:
            parcel = outbox.sent.popleft()
            outbox.failures = 0
            outbox.known = True
            if outbox.complaint is not None:
                outbox.complaint = None
                if outbox.on_refused is not None:
                    outbox.on_refused(None)
            parcel.acked(parcel.base_offset if parcel.base_offset is not None else -1)
        if outbox.draining and not any(parcel.under_way for parcel in outbox.sent):
            self._start_over(outbox)
        else:
            self._wake(outbox)

    def _start_over(self, outbox: Outbox) -> None:
        unacked = [parcel for parcel in outbox.sent if parcel.base_offset is None]
        # An acknowledged batch behind an unacknowledged one keeps its place: its turn comes when the first one is in.
        done_behind = [parcel for parcel in outbox.sent if parcel.base_offset is not None]
        outbox.sent.clear()
        outbox.draining = False
        outbox.failures += 1
        cause = unacked[0].failure if unacked else 0  # the others' failures may only follow from it
        if unacked and cause in _TOO_LARGE:
            pieces = unacked[0].split() if unacked[0].split is not None else None
            if pieces:
                self._resequence(outbox, unacked[0], pieces)
                unacked[0:1] = pieces
                cause = 0
        for parcel in reversed(unacked):
            parcel.failure = 0
            outbox.queue.appendleft(parcel)
        for parcel in done_behind:
            parcel.acked(parcel.base_offset if parcel.base_offset is not None else -1)
        if not unacked:
            self._wake(outbox)
            return
        failure = (
            BrokerFailure.of(cause, subject=f"writing to {outbox.partition} of cluster {self._cluster.name}")
            if cause
            else None
        )
        if cause in _PRODUCER_LOST and outbox.identity is not None:
            outbox.paused = True
            self._loop.create_task(self._new_producer(outbox))
        elif failure is not None and not failure.retriable:
            self._refuse(outbox, failure)
        elif failure is None:
            self._wake(outbox)
        else:
            outbox.paused = True
            self._loop.call_later(self._backoff.delay_s(min(outbox.failures, 10)), self._pause_over, outbox)

    def _pause_over(self, outbox: Outbox) -> None:
        outbox.paused = False
        self._wake(outbox)

    def _offer_again(self, outbox: Outbox) -> None:
        outbox.refused = False
        self._wake(outbox)

    def _refuse(self, outbox: Outbox, failure: KafkaFailure) -> None:
        outbox.refused = True
        if outbox.on_refused is not None:
            outbox.on_refused(failure)
        self._loop.call_later(_REFUSED_RETRY_S, self._offer_again, outbox)

    @staticmethod
    def _resequence(outbox: Outbox, whole: Parcel, pieces: list[Parcel]) -> None:
        """The pieces take exactly the sequence numbers of the whole, so what follows keeps its own."""
        sequence = whole.sequence
        identity = outbox.identity
        for piece in pieces:
            if identity is not None and sequence >= 0:
                piece.sequence = sequence
                patch(piece.data, piece.header, (identity.producer_id, identity.producer_epoch, sequence))
                sequence = (sequence + piece.count) % _SEQUENCE_WRAP

    async def _new_producer(self, outbox: Outbox) -> None:
        """The broker lost track of our producer: go on under a new id. Until copy sessions come this may double records."""
        self._log.warning("the target forgot our producer, a new id is taken", partition=str(outbox.partition))
        try:
            identity = await self._in_background(self._new_identity)
        except KafkaFailure as error:
            self._log.warning("no producer id", error=str(error))
            self._loop.call_later(1.0, lambda: self._loop.create_task(self._new_producer(outbox)))
            return
        outbox.identity, outbox.known = identity, False
        outbox.sequence = 0
        for parcel in outbox.queue:
            parcel.sequence = -1
        self._pause_over(outbox)

    def _new_identity(self) -> ProducerIdentity:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000, max_version=4)
        answer: Any = self._cluster.send(None, request)
        if answer.error_code:
            raise BrokerFailure.of(answer.error_code, subject=f"asking cluster {self._cluster.name} for a producer id")
        return ProducerIdentity(answer.producer_id, answer.producer_epoch)

    # -- connections and leaders -----------------------------------------------------------------------------------

    def _choose_version(self, connection: Connection) -> int:
        return connection.version_of(produce.REQUEST, produce.MAX_VERSION)

    def _opened(self, broker: _Broker) -> None:
        self._pump(broker)

    def _dropped(self, broker: _Broker) -> None:
        unanswered = list(broker.under_way)
        broker.under_way.clear()
        touched: dict[TopicPartition, Outbox] = {}
        for parcels, _ in unanswered:
            for outbox, parcel in parcels:
                parcel.under_way = False
                parcel.failure = 0
                outbox.draining = True
                touched[outbox.partition] = outbox
        for outbox in touched.values():
            self._settle(outbox)

    def _try_again(self, broker: _Broker) -> None:
        if self._over:
            return
        for outbox in list(broker.ready):
            if outbox.leader != broker.node:
                broker.ready.remove(outbox)
                outbox.ready = False
                self._wake(outbox)
        if broker.channel is None and broker.ready:
            self._open(broker)

    async def _find_leaders_now(self) -> float | None:
        topics = {tp.topic for tp in self._homeless} or {tp.topic for tp in self._outboxes}
        await self._find_leaders(topics, fresh=True)
        return 0.25 if self._homeless else None

    async def _find_leaders(self, topics: Iterable[str], *, fresh: bool = False) -> None:
        metadata = await self._in_background(self._cluster.metadata, sorted(topics), max_age_s=0.0 if fresh else 60.0)
        for outbox in self._outboxes.values():
            info = metadata.topics.get(outbox.partition.topic)
            if info is None:
                if outbox.partition.topic in metadata.errors:
                    self._move(outbox, None)
                    outbox.complaint = metadata.errors[outbox.partition.topic]
                continue
            partition = info.partitions.get(outbox.partition.partition)
            leader = partition.leader if partition is not None and partition.leader >= 0 else None
            self._move(outbox, leader)
            if leader is None and not outbox.idle:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if partition is None else ErrorCode.LEADER_NOT_AVAILABLE
                subject = f"writing to {outbox.partition} of cluster {self._cluster.name}"
                outbox.complaint = BrokerFailure.of(code, subject=subject)
            elif leader is not None and outbox.partition in self._homeless:
                self._homeless.discard(outbox.partition)
                self._wake(outbox)

    @staticmethod
    def _move(outbox: Outbox, leader: int | None) -> None:
        if leader != outbox.leader and outbox.sent:
            outbox.draining = True  # the new leader gets nothing before the old one has answered: order
        outbox.leader = leader

    def _watch(self) -> None:
        """Close connections whose oldest request waits longer than the request timeout; renew credentials in time."""
        if self._over:
            return
        now = time.monotonic()
        for broker in list(self._brokers.values()):  # giving one up may bring in the partition's new leader
            channel = broker.channel
            if channel is None:
                continue
            if broker.under_way and now - broker.under_way[0][1] > self._request_timeout_s:
                seconds = self._request_timeout_s
                channel.fail(
                    TimeoutFailure(f"broker {broker.node} did not answer a Produce request in {seconds:.0f} s")
                )
            elif not broker.under_way:
                # Milliseconds, and only when a session's lifetime nears its end. A busy connection is replaced instead.
                try:
                    channel.connection.maybe_reauthenticate()
                except KafkaFailure as error:
                    channel.fail(error)
        self._loop.call_later(WATCH_S, self._watch)
