"""The writing side: outboxes of batches, one per target partition, sent in pipelined Produce requests.

Rules:

* One batch per partition and request, at most five requests in flight per connection. So at most five batches per partition are in
  flight, which is the number that a broker remembers of an idempotent producer.
* The sequence of a batch is fixed when it is first sent and never changes. So the broker appends it once, whichever process resends it
  after whatever failure. A batch whose outcome is unknown is neither split nor merged.
* After a failure of one batch of a partition, nothing new is sent for it until all requests in flight are answered. Then unacknowledged
  batches are resent in order.
* In a transaction, a batch that may have been appended is resent before it counts as rejected: otherwise the transaction would be committed
  with the batch and without its position.
* In a copy session, a batch whose outcome is unknown is looked up on the target, and only missing records are resent. A broker forgets
  producers by the timestamps of their records, and would then append the same batch twice.
* A batch so old that this may happen is sent only on a connection without unanswered requests. Otherwise the broker might read it after
  a look-up: a broker reads the next request of a connection when it has answered the one before, also after the client has closed it.
* Nothing is sent after the lease has expired.

The rules S1 to S8 of docs/design/copy-sessions.md give the reasons.

All methods and callbacks run on the loop's thread; blocking calls (metadata, connecting) run in ``background``.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mm2.copy.executor.brokers import SLOW_RESPONSE_S, WATCH_S, BrokerAddress, Brokers, Link
from mm2.copy.executor.outbox import MAX_IN_FLIGHT, Outbox, OutgoingBatch
from mm2.copy.executor.target_progress import (
    LOOK_UP_REFUSED_S,
    InconsistentTarget,
    ProgressQuestion,
    TargetProgress,
)
from mm2.kafka.backoff import Backoff
from mm2.kafka.cluster import Cluster
from mm2.kafka.connection import Connection
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, CorruptBatch, KafkaFailure, TimeoutFailure
from mm2.kafka.structs import ProducerIdentity, TopicPartition, topic_id_bytes
from mm2.kafka.wire import produce
from mm2.kafka.wire.channel import BufferPool, Channel

MAX_REQUEST_BYTES: Final = 4 << 20
_REFUSED_RETRY_S: Final = 5.0
_LOOK_UP_RETRY_S: Final = 0.25
_TOO_LARGE: Final = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
_PRODUCER_LOST: Final = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_TXN_STATE,
)
#: Errors that exclude an append. After any other error the batch may be in the log (`ReplicaManager.appendRecords`,
#: `DelayedProduce`).
_NOT_APPENDED: Final = frozenset(
    {
        *_TOO_LARGE,
        *_PRODUCER_LOST,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.INVALID_RECORD,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)
#: Maximum number of consecutive sequence errors although the look-up finds the sequences correct.
_MAX_SEQUENCE_ERRORS: Final = 3
#: Maximum number of resends in a transaction after an error that leaves the outcome unknown. A leader remembers producers with an
#: open transaction and detects a duplicate, so a batch that is still rejected was not appended.
_MAX_UNCERTAIN_RESENDS: Final = 3
#: Assumed `producer.id.expiration.ms` where it is unknown: 15 minutes. A known value is reduced by a tenth.
UNKNOWN_EXPIRATION_MS: Final = 15 * 60_000
_LEAST_MARGIN_MS: Final = 2 * 60_000

#: Looks up the progress of copy sessions on the target.
LookUp = Callable[
    [Mapping[TopicPartition, ProgressQuestion]],
    Awaitable[Mapping[TopicPartition, TargetProgress | KafkaFailure]],
]


class _UnderWay(NamedTuple):
    """A request in flight; ``version`` is that of Produce."""

    outgoing_batches: list[tuple[Outbox, OutgoingBatch]]
    sent_s: float
    version: int


@dataclass(slots=True, eq=False)
class _TargetBroker(Link):
    """One connection to a broker: its ready outboxes and its requests in flight."""

    ready: deque[Outbox] = field(default_factory=deque)
    under_way: deque[_UnderWay] = field(default_factory=deque)
    scheduled: bool = False


class Sink(Brokers[_TargetBroker]):
    """All outboxes of one cluster. ``acks`` is always all; ``request_timeout_s`` limits every response.

    ``look_up`` None: there are no copy sessions, and unanswered batches are resent. ``on_lost(outbox, failure)``
    reports that a producer cannot continue, because the target's state of it contradicts ours. With
    ``transactional_id`` set (`in_transactions`) every transactional outbox writes in the open transaction. Nothing is
    sent while ``may_send`` is false.
    """

    role = "target"

    def __init__(
        self,
        cluster: Cluster,
        loop: asyncio.AbstractEventLoop,
        background: Executor,
        pool: BufferPool,
        *,
        connections: int = 1,
        max_request_bytes: int = MAX_REQUEST_BYTES,
        look_up: LookUp | None = None,
        on_lost: Callable[[Outbox, KafkaFailure], None] | None = None,
        may_send: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(cluster, loop, background, pool, connections=connections)
        self.topic_ids: dict[str, str] = {}  # as first seen; not changed when a topic is recreated
        self._ids: dict[str, bytes] = {}
        self._names: dict[bytes, str] = {}  # of all ids that were ever used: responses may be late
        self._max_request_bytes = max_request_bytes
        self._look_up = look_up
        self._on_lost = on_lost
        self._may_send = may_send
        self._remembered_for_ms = 0
        self.producer_expires_after(UNKNOWN_EXPIRATION_MS)
        self._transactional_id: str | None = None
        self._hold_new = False
        self._not_offered: list[Outbox] = []  # rejected outboxes that became due while new batches were held back
        self.on_enroll: Callable[[Outbox], None] | None = None  # adds an outbox to the transaction
        self._max_version = produce.MAX_VERSION
        self._backoff = Backoff(cluster.settings.retry_backoff_ms, cluster.settings.retry_backoff_max_ms)
        self._outboxes: dict[TopicPartition, Outbox] = {}
        self._leaderless: set[TopicPartition] = set()
        self._to_look_up: dict[TopicPartition, Outbox] = {}
        self._look_up_refused: dict[TopicPartition, float] = {}  # since when
        self._looking_up = False
        self._watch()

    def outbox(
        self,
        partition: TopicPartition,
        *,
        idempotent: bool,
        transactional: bool = False,
        waits_for_commit: bool = True,
        on_refused: Callable[[KafkaFailure | None], None] | None = None,
    ) -> Outbox:
        """Open the outbox of a partition. An idempotent one sends nothing until `Outbox.begin` sets its producer.

        A transactional one with ``waits_for_commit`` sends no new batches while the sink holds them back (`hold`).
        """
        identity = ProducerIdentity(-1, -1) if idempotent else None
        outbox = Outbox(partition, identity, transactional, on_refused, slot=len(self._outboxes))
        outbox.waits_for_commit = transactional and waits_for_commit
        self._outboxes[partition] = outbox
        return outbox

    def producer_expires_after(self, expiration_ms: int) -> None:
        """Set the cluster's ``producer.id.expiration.ms``: brokers remember a producer until its last record is that
        old.
        """
        self._remembered_for_ms = max(0, expiration_ms - max(expiration_ms // 10, _LEAST_MARGIN_MS))

    def in_transactions(self, transactional_id: str, max_version: int) -> None:
        """Use this transactional id for transactional outboxes, and Produce versions up to ``max_version``."""
        self._transactional_id = transactional_id
        self._max_version = min(self._max_version, max_version)
        for broker in self._brokers.values():
            broker.version = min(broker.version, max_version)

    def hold(self, *, new: bool) -> None:
        """Whether batches that were never sent have to wait. Batches that were sent and not acknowledged are resent
        in any case.
        """
        self._hold_new = new
        if not new:
            offers, self._not_offered = self._not_offered, []
            for outbox in offers:
                outbox.refused = False
            for outbox in self._outboxes.values():
                self.wake(outbox)

    async def find_leaders(self, topics: Iterable[str]) -> None:
        """Find the leaders of the outboxes' partitions. Raises KafkaFailure."""
        await self._find_leaders(set(topics))

    def connect(self) -> None:
        """Open the connections that the outboxes need, before the first batch."""
        for address in {outbox.address for outbox in self._outboxes.values() if outbox.address is not None}:
            broker = self._broker_at(address)
            if broker.channel is None:
                self._open(broker)

    def put(self, outbox: Outbox, outgoing: OutgoingBatch) -> None:
        """Queue a batch; it is sent as soon as the pipeline has room."""
        outbox.queue.append(outgoing)
        self.wake(outbox)

    # -- sending ---------------------------------------------------------------------------------------------------

    def wake(self, outbox: Outbox) -> None:
        """Schedule the outbox if it may send."""
        if outbox.ready or outbox.is_blocked or not outbox.queue:
            return
        if outbox.needs_producer_id or (outbox.sent and not outbox.has_room(self._remembered_ms())):
            return
        if self._hold_new and outbox.waits_for_commit and outbox.queue[0].at < 0:
            return
        if not outbox.enrolled:
            if self.on_enroll is not None:
                self.on_enroll(outbox)
            return
        if outbox.address is None:
            self._leaderless.add(outbox.partition)
            self._refresh(0.0)
            return
        outbox.ready = True
        broker = self._broker_at(outbox.address)
        broker.ready.append(outbox)
        self._schedule(broker)

    def _remembered_ms(self) -> float:
        """The oldest timestamp of a last record at which a leader still remembers the producer."""
        return time.time() * 1000 - self._remembered_for_ms

    def _may_write(self) -> bool:
        return self._may_send()

    def _broker_at(self, address: tuple[int, int]) -> _TargetBroker:
        broker = self._brokers.get(address)
        if broker is None:
            broker = self._brokers[address] = _TargetBroker(*address)
        return broker

    def _schedule(self, broker: _TargetBroker) -> None:
        # In the next iteration of the loop, so that all batches of one Fetch response go into one request.
        if not broker.scheduled:
            broker.scheduled = True
            self._loop.call_soon(self._pump, broker)

    def _pump(self, broker: _TargetBroker) -> None:
        broker.scheduled = False
        if self._closed or not broker.ready or not self._may_send():
            return
        if broker.channel is None:
            self._open(broker)
            return
        channel = broker.channel
        # The lease is checked where requests are handed to the socket: a process that was frozen resumes with the callbacks of its
        # sockets, before any timer.
        while broker.ready and len(broker.under_way) < MAX_IN_FLIGHT and not channel.lost and self._may_send():
            if not self._send_request(broker, channel):
                break

    def _send_request(self, broker: _TargetBroker, channel: Channel) -> bool:
        """Send one request; False when nothing may be sent now."""
        batches: dict[TopicPartition, memoryview] = {}
        outgoing_batches: list[tuple[Outbox, OutgoingBatch]] = []
        again: list[Outbox] = []
        size = 0
        transactional: bool | None = None
        put_off: list[Outbox] = []
        remembered_ms = self._remembered_ms()
        while broker.ready and size < self._max_request_bytes:
            outbox = broker.ready.popleft()
            outbox.ready = False
            waits_for_commit = self._hold_new and outbox.waits_for_commit and outbox.queue and outbox.queue[0].at < 0
            if outbox.verified_epoch not in {None, outbox.leader_epoch} and not outbox.is_blocked:
                outbox.look_up_cause = None
                self._queue_look_up(outbox)  # looked up in another leader epoch, possibly on a deposed leader (rule S6)
                continue
            if outbox.address != broker.address or outbox.is_blocked or not outbox.queue or waits_for_commit:
                self.wake(outbox)
                continue
            if outbox.sent and not outbox.has_room(remembered_ms):
                continue  # the leader has changed since it was scheduled; a response wakes it
            if broker.under_way and outbox.may_be_processed_late(remembered_ms):
                outbox.ready = True
                broker.ready.appendleft(outbox)  # the next response continues here
                break
            if transactional is None:
                transactional = outbox.transactional
            elif transactional is not outbox.transactional:
                put_off.append(outbox)  # a request is either transactional or not
                continue
            outgoing = outbox.queue.popleft()
            outbox.stamp(outgoing)
            outgoing.under_way = True
            outgoing.leader_epoch = outbox.leader_epoch
            outbox.sent.append(outgoing)
            batches[outbox.partition] = outgoing.data
            outgoing_batches.append((outbox, outgoing))
            size += len(outgoing.data)
            again.append(outbox)
        for outbox in (*again, *put_off):
            self.wake(outbox)
        if not batches:
            return False
        connection = channel.connection
        correlation_id = connection.next_correlation_id()
        version = broker.version
        if version >= produce.TOPIC_IDS_FROM and not all(self._ids.get(tp.topic) for tp in batches):
            version = produce.TOPIC_IDS_FROM - 1
        buffers = produce.request(
            version,
            correlation_id,
            connection.client_id,
            batches,
            acks=-1,
            timeout_ms=int(self._request_timeout_s * 1000),
            transactional_id=self._transactional_id if transactional else None,
            topic_ids=self._ids,
        )
        broker.under_way.append(_UnderWay(outgoing_batches, time.monotonic(), version))
        channel.send(buffers, correlation_id)
        return True

    # -- answers ---------------------------------------------------------------------------------------------------

    def _answered(self, broker: _TargetBroker, frame: memoryview) -> None:
        channel = broker.channel
        if channel is None or not broker.under_way:
            return
        request = broker.under_way[0]
        try:
            answer = produce.response(request.version, frame, self._names)
        except CorruptBatch as error:
            channel.fail(error)
            return
        broker.under_way.popleft()
        self._responded(broker)
        results = {result.topic_partition: result for result in answer}
        for outbox, outgoing in request.outgoing_batches:
            outgoing.under_way = False
            result = results.get(outbox.partition)
            code = ErrorCode.UNKNOWN_SERVER_ERROR if result is None else result.error_code
            if result is not None and not code:
                outgoing.base_offset = result.base_offset
                outgoing.failure = 0
            else:
                outgoing.failure = code
                message = None if result is None else result.message or None
                self._failed(outbox, outgoing, BrokerFailure.of(code, message, subject=self._subject(outbox)))
            self._settle(outbox)
        if broker.ready:
            self._schedule(broker)

    def _subject(self, outbox: Outbox) -> str:
        return f"writing to {outbox.partition} of cluster {self._cluster.name}"

    def _failed(self, outbox: Outbox, outgoing: OutgoingBatch, failure: BrokerFailure) -> None:
        first = not outbox.draining
        outbox.draining = True
        if first or outbox.last_error is None:
            outbox.last_error = failure
        if failure.stale_metadata:
            outbox.address = None
            self._leaderless.add(outbox.partition)
            self._refresh(0.0)
        elif failure.code == ErrorCode.REQUEST_TIMED_OUT:
            self._refresh(0.0)  # a deposed leader may respond with this error
        if first:
            self._log.debug(
                "batch not acknowledged", partition=str(outbox.partition), at=outgoing.at, error=str(failure)
            )

    def _settle(self, outbox: Outbox) -> None:
        """Deliver acknowledgements in order. When all requests of a failed outbox are answered, start over."""
        while outbox.sent and outbox.sent[0].base_offset is not None:
            outgoing = outbox.sent.popleft()
            outbox.failures = 0
            outbox.known = not outbox.draining and outgoing.leader_epoch == outbox.leader_epoch
            outbox.acked_ms = outgoing.header.max_timestamp
            outbox.verified_epoch = None
            if outbox.last_error is not None:
                outbox.last_error = None
                if outbox.on_refused is not None:
                    outbox.on_refused(None)
            self._deliver(outbox, outgoing, outgoing.base_offset if outgoing.base_offset is not None else -1)
        if outbox.draining and not any(outgoing.under_way for outgoing in outbox.sent):
            self._start_over(outbox)
        else:
            self.wake(outbox)

    @staticmethod
    def _deliver(outbox: Outbox, outgoing: OutgoingBatch, base_offset: int) -> None:
        if outgoing.at >= 0:
            outbox.acked = max(outbox.acked, outgoing.end)
        outbox.end_offset = base_offset + outgoing.count if base_offset >= 0 else -1
        outgoing.acked(base_offset)

    def _start_over(self, outbox: Outbox) -> None:
        """All requests in flight are answered, and not all were acknowledged."""
        flight = list(outbox.sent)
        outbox.sent.clear()
        outbox.draining = outbox.known = False
        if not flight:
            self.wake(outbox)
            return
        outbox.failures += 1
        cause = flight[0].failure  # the other failures may be consequences of it
        may_be_appended = any(
            outgoing.base_offset is None and outgoing.failure not in _NOT_APPENDED for outgoing in flight
        )
        overtaken = next((outgoing for outgoing in flight if outgoing.base_offset is not None), None)
        if overtaken is not None and not may_be_appended and outbox.identity is not None:
            self._overtaken(outbox, flight[0], overtaken)
            return
        acknowledged = [] if outbox.looked_up else [outgoing for outgoing in flight if outgoing.base_offset is not None]
        again = [outgoing for outgoing in flight if outgoing not in acknowledged]
        if cause in _TOO_LARGE and not may_be_appended:
            pieces = again[0].split() if again[0].split is not None else None
            if pieces:
                outbox.restamp(again[0], pieces)
                again[0:1] = pieces
                cause = 0
        for outgoing in reversed(again):
            outgoing.failure = 0
            outgoing.base_offset = None
            outbox.queue.appendleft(outgoing)
        for outgoing in acknowledged:
            self._deliver(outbox, outgoing, outgoing.base_offset if outgoing.base_offset is not None else -1)
        failure = BrokerFailure.of(cause, subject=self._subject(outbox)) if cause else None
        outbox.look_up_cause = None if cause in _PRODUCER_LOST else failure
        if outbox.identity is not None and cause in _PRODUCER_LOST:
            if not outbox.looked_up or outbox.failures > _MAX_SEQUENCE_ERRORS:
                outbox.paused = True
                self._lose(outbox, failure)
            else:
                self._queue_look_up(outbox)
        elif outbox.looked_up and may_be_appended:
            self._queue_look_up(outbox)
        elif (
            outbox.transactional
            and may_be_appended
            and failure is not None
            and outbox.failures <= _MAX_UNCERTAIN_RESENDS
        ):
            self._pause(outbox)
        else:
            self._retry(outbox, failure)

    def _retry(self, outbox: Outbox, failure: BrokerFailure | KafkaFailure | None) -> None:
        """Resend what is not on the target: immediately, after a backoff, or after `_REFUSED_RETRY_S`."""
        if failure is None:
            self.end_pause(outbox)
        elif not failure.retriable:
            outbox.paused = False
            self._refuse(outbox, failure)
        else:
            self._pause(outbox)

    def _pause(self, outbox: Outbox) -> None:
        """Resend after a backoff."""
        outbox.paused = True
        self._loop.call_later(self._backoff.delay_s(min(outbox.failures, 10)), self.end_pause, outbox)

    def _overtaken(self, outbox: Outbox, refused: OutgoingBatch, acknowledged: OutgoingBatch) -> None:
        """A batch was appended although the one before it was rejected (rule S4): nothing more is sent."""
        outbox.paused = True
        failure = BrokerFailure.of(refused.failure, subject=self._subject(outbox))
        reason = (
            f"{outbox.partition} of cluster {self._cluster.name} appended the records from {acknowledged.at} on at offset "
            f"{acknowledged.base_offset}, although it had rejected those from {refused.at} on: {failure}"
        )
        if outbox.looked_up and outbox.on_inconsistent is not None:
            outbox.on_inconsistent(reason)
        else:
            self._lose(outbox, failure)

    def end_pause(self, outbox: Outbox) -> None:
        """End a pause."""
        outbox.paused = False
        self.wake(outbox)

    def _reoffer(self, outbox: Outbox) -> None:
        if self._hold_new and outbox.waits_for_commit:
            self._not_offered.append(outbox)  # the open transaction's positions do not include it
            return
        outbox.refused = False
        self.wake(outbox)

    def _refuse(self, outbox: Outbox, failure: KafkaFailure) -> None:
        outbox.refused = True
        if outbox.on_refused is not None:
            outbox.on_refused(failure)
        if outbox.refused:  # the callback may have handled it
            self._loop.call_later(_REFUSED_RETRY_S, self._reoffer, outbox)

    def _lose(self, outbox: Outbox, failure: KafkaFailure | None) -> None:
        if self._on_lost is not None:
            self._on_lost(outbox, failure or BrokerFailure.of(ErrorCode.UNKNOWN_PRODUCER_ID))

    # -- look-ups on the target -------------------------------------------------------------------------------------

    def _queue_look_up(self, outbox: Outbox) -> None:
        outbox.paused = True
        self._to_look_up[outbox.partition] = outbox
        if not self._looking_up:
            self._looking_up = True
            self._loop.create_task(self._look_up_all())

    async def _look_up_all(self) -> None:
        """Repeat the look-up until every outcome is known. Missing batches are resent with the sequences that they
        had.
        """
        look_up = self._look_up
        try:
            while self._to_look_up and look_up is not None and not self._closed:
                asked = dict(self._to_look_up)
                questions = {
                    tp: ProgressQuestion(
                        outbox.identity,
                        outbox.acked,
                        outbox.end_offset,
                        outbox.floor,
                        max(outbox.leader_epoch, -1 if outbox.verified_epoch is None else outbox.verified_epoch),
                        self.topic_ids.get(tp.topic, ""),
                    )
                    for tp, outbox in asked.items()
                    if outbox.identity is not None
                }
                answers = await look_up(questions)
                for tp, answer in answers.items():
                    if isinstance(answer, TargetProgress):
                        del self._to_look_up[tp]
                        self._look_up_refused.pop(tp, None)
                        self._align(asked[tp], answer)
                    elif isinstance(answer, InconsistentTarget):
                        del self._to_look_up[tp]
                        self._report_inconsistent(asked[tp], answer)
                    elif answer.is_final and self._is_refused_for_long(tp):
                        # Rely on the broker's producer state.
                        del self._to_look_up[tp]
                        note = f"at least once: an unanswered batch cannot be looked up on the target: {answer}"
                        self._log.warning(note, partition=str(tp))
                        if (on_uncertain := asked[tp].on_uncertain) is not None:
                            on_uncertain(note)
                        self._retry(asked[tp], asked[tp].look_up_cause)
                    else:
                        asked[tp].last_error = answer
                        if isinstance(answer, BrokerFailure) and answer.stale_metadata:
                            self._refresh(0.0)
                if self._to_look_up:
                    if any(outbox.address is None for outbox in self._to_look_up.values()):
                        self._refresh(0.0)
                    await asyncio.sleep(_LOOK_UP_RETRY_S)
        finally:
            self._looking_up = False

    def _is_refused_for_long(self, tp: TopicPartition) -> bool:
        since = self._look_up_refused.setdefault(tp, time.monotonic())
        if time.monotonic() - since < LOOK_UP_REFUSED_S:
            return False
        del self._look_up_refused[tp]
        return True

    def _report_inconsistent(self, outbox: Outbox, failure: InconsistentTarget) -> None:
        if outbox.on_inconsistent is not None:
            outbox.on_inconsistent(str(failure))
        else:
            self._lose(outbox, failure)

    def _align(self, outbox: Outbox, progress: TargetProgress) -> None:
        there = progress.records
        outbox.last_error = None
        outbox.known = False
        outbox.verified_epoch = progress.leader_epoch if progress.leader_epoch >= 0 else None
        if outbox.verified_epoch not in {None, outbox.leader_epoch}:
            self._refresh(0.0)
        if there < outbox.acked:
            if outbox.on_truncated is not None:
                outbox.on_truncated(there, progress.end)
            return
        gained = False
        while outbox.queue and outbox.queue[0].at >= 0 and outbox.queue[0].end <= there:
            outgoing = outbox.queue.popleft()
            self._deliver(outbox, outgoing, progress.offset_of(outgoing.at, outgoing.count))
            gained = True
        if outbox.queue and 0 <= outbox.queue[0].at < there:
            whole = outbox.queue.popleft()
            rest = None if whole.without is None else whole.without(there - whole.at)
            if rest is None:
                self._lose(outbox, BrokerFailure.of(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
                return
            whole.at = there
            outbox.restamp(whole, [rest])
            outbox.queue.appendleft(rest)
            outbox.acked, outbox.end_offset = there, progress.target_end
            gained = True
        if there > outbox.next:
            # Another executor has copied more than this one has read: it has taken over the partition.
            self._lose(outbox, BrokerFailure.of(ErrorCode.PRODUCER_FENCED, subject=self._subject(outbox)))
            return
        self._retry(outbox, None if gained or not outbox.queue else outbox.look_up_cause)

    # -- connections and leaders -----------------------------------------------------------------------------------

    def _choose_version(self, connection: Connection) -> int:
        return connection.version_of(produce.REQUEST, self._max_version)

    def _opened(self, broker: _TargetBroker) -> None:
        self._pump(broker)

    def _dropped(self, broker: _TargetBroker) -> None:
        unanswered = list(broker.under_way)
        broker.under_way.clear()
        for outbox in self._outboxes.values():
            if outbox.address == broker.address:
                outbox.known = False  # the broker may have lost its producer state
        touched: dict[TopicPartition, Outbox] = {}
        for request in unanswered:
            for outbox, outgoing in request.outgoing_batches:
                outgoing.under_way = False
                outgoing.failure = 0
                outbox.draining = True
                touched[outbox.partition] = outbox
        for outbox in touched.values():
            self._settle(outbox)

    def _try_again(self, broker: _TargetBroker) -> None:
        if self._closed:
            return
        for outbox in list(broker.ready):
            if outbox.address != broker.address:
                broker.ready.remove(outbox)
                outbox.ready = False
                self.wake(outbox)
        if broker.channel is None and broker.ready:
            self._open(broker)

    async def _find_leaders_now(self) -> float | None:
        topics = {tp.topic for tp in self._leaderless} or {tp.topic for tp in self._outboxes}
        await self._find_leaders(topics, fresh=True)
        return 0.25 if self._leaderless or self._topics.waiting else None

    async def _find_leaders(self, topics: Iterable[str], *, fresh: bool = False) -> None:
        if fresh:
            metadata = await self._fresh_metadata(topics)
        else:
            metadata = await self._in_background(self._cluster.metadata, sorted(topics), max_age_s=60.0)
        accepted = await self._accepted(metadata)
        for name in accepted:
            self._identified(name, metadata.topics[name].topic_id)
        for outbox in self._outboxes.values():
            info = metadata.topics.get(outbox.partition.topic)
            if info is not None and outbox.partition.topic not in accepted:
                continue  # stale or unconfirmed: keep the leader
            if info is None:
                if outbox.partition.topic in metadata.errors:
                    self._move(outbox, None)
                    outbox.last_error = metadata.errors[outbox.partition.topic]
                continue
            partition = info.partitions.get(outbox.partition.partition)
            leader = partition.leader if partition is not None and partition.leader >= 0 else None
            self._move(outbox, leader, -1 if partition is None else partition.leader_epoch)
            if leader is None and not outbox.idle:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if partition is None else ErrorCode.LEADER_NOT_AVAILABLE
                outbox.last_error = BrokerFailure.of(code, subject=self._subject(outbox))
            elif leader is not None and outbox.partition in self._leaderless:
                self._leaderless.discard(outbox.partition)
                self.wake(outbox)

    async def settle_id(self, name: str, known: str, retired: Iterable[str]) -> str:
        """The id of a topic, given the ledger's id and the retired ones, once more than one response confirms it.

        Returns "" when the sink is closed.
        """
        self._topics.expect(name, known, retired, time.monotonic())
        while not self._closed:
            try:
                metadata = await self._in_background(self._cluster.metadata, [name])
                if name in await self._accepted(metadata):
                    topic_id: str = metadata.topics[name].topic_id
                    self.topic_ids[name] = topic_id
                    self._use_id(name, topic_id)
                    return topic_id
            except KafkaFailure as error:
                self._log.info("no metadata of the target", error=str(error))
            await asyncio.sleep(_LOOK_UP_RETRY_S)
        return ""

    def _identified(self, name: str, topic_id: str) -> None:
        """A recreated topic gets no further records: acknowledged records are not in it."""
        before = self.topic_ids.setdefault(name, topic_id)
        if before == topic_id:
            self._use_id(name, topic_id)
            return
        for outbox in self._outboxes.values():
            if outbox.partition.topic == name and outbox.on_recreated is not None:
                outbox.paused = True
                outbox.on_recreated()
        if not any(o.on_recreated is not None for o in self._outboxes.values() if o.partition.topic == name):
            self.topic_ids[name] = topic_id
            self._use_id(name, topic_id)

    def _use_id(self, name: str, topic_id: str) -> None:
        if topic_id:
            data = topic_id_bytes(topic_id)
            self._ids[name], self._names[data] = data, name

    def _move(self, outbox: Outbox, leader: int | None, leader_epoch: int = -1) -> None:
        address = None if leader is None else BrokerAddress(leader, outbox.slot % self._connections)
        if address != outbox.address or leader_epoch != outbox.leader_epoch:
            outbox.known = False
        outbox.leader_epoch = leader_epoch if leader is not None else outbox.leader_epoch
        if address != outbox.address and outbox.sent:
            outbox.draining = True  # send nothing to the new leader before the old one has responded, to keep the order
        outbox.address = address

    def _watch(self) -> None:
        """Report requests without a response, close connections after the request timeout, and re-authenticate."""
        if self._closed:
            return
        self._refresh_old()
        now = time.monotonic()
        for broker in list(self._brokers.values()):  # a closed connection may add the partition's new leader
            channel = broker.channel
            if channel is None:
                continue
            waiting_s = now - broker.under_way[0].sent_s if broker.under_way else 0.0
            if waiting_s > self._request_timeout_s:
                seconds = self._request_timeout_s
                channel.fail(
                    TimeoutFailure(f"broker {broker.node} did not respond to a Produce request within {seconds:.0f} s")
                )
            elif waiting_s > SLOW_RESPONSE_S:
                slow = TimeoutFailure(
                    f"broker {broker.node} has not responded to a Produce request for {SLOW_RESPONSE_S:.0f} s"
                )
                for outbox, _ in broker.under_way[0].outgoing_batches:
                    outbox.last_error = outbox.last_error or slow
            elif not broker.under_way:
                # Takes milliseconds, and only near the end of a session's lifetime. A busy connection is replaced instead.
                try:
                    channel.connection.maybe_reauthenticate()
                except KafkaFailure as error:
                    channel.fail(error)
        self._loop.call_later(WATCH_S, self._watch)
