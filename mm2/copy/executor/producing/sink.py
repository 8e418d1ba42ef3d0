"""The writing side: outboxes of batches, one per source partition, sent in pipelined Produce requests.

Rules:

* One batch per target partition and request, at most five requests in flight per connection. So at most five batches per partition are
  in flight, which is the number that a broker remembers of an idempotent producer.
* Several source partitions may be copied to one target partition (`SharedPartition`). Each has its own outbox and producer. In a
  transaction they have the same producer, and send in turns.
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

The rules S1 to S10 of docs/explanation/copy-sessions.md give the reasons. This module sends batches; `produce_outcomes` acts on responses and lost
connections, and `progress_look_ups` on unknown outcomes.

All methods and callbacks run on the loop's thread; blocking calls (metadata, connecting) run in ``background``.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mm2.copy.executor.clusters.brokers import (
    REAUTHENTICATION_S,
    SLOW_RESPONSE_S,
    WATCH_S,
    BrokerAddress,
    WritingBrokers,
    WritingLink,
)
from mm2.copy.executor.clusters.topic_ids import TargetTopicIds
from mm2.copy.executor.partition.outbox import (
    MAX_IN_FLIGHT,
    Outbox,
    OutboxState,
    OutgoingBatch,
    SharedPartition,
    subject_of,
)
from mm2.copy.executor.producing.outbox_events import (
    ErrorChanged,
    LeadersOutdated,
    LeaderUnknown,
    NotInTransaction,
    OutboxEvent,
    OutcomeUnknown,
    PauseEnds,
    ReportedEvent,
    RetryDue,
    TargetRecreated,
    Throttled,
)
from mm2.copy.executor.producing.produce_outcomes import ProduceOutcomes
from mm2.copy.executor.producing.progress_look_ups import ProgressLookUp, ProgressLookUps
from mm2.kafka.backoff import Backoff
from mm2.kafka.client.channel import BufferPool, Channel
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.client.connection import Connection
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, CorruptBatch, KafkaFailure, TimeoutFailure
from mm2.kafka.structs import ProducerIdentity, TopicPartition
from mm2.kafka.wire import produce

MAX_REQUEST_BYTES: Final = 4 << 20
_SETTLE_RETRY_S: Final = 0.25
#: The broker may resume reading from a throttled connection a little later than announced.
_THROTTLE_MARGIN_S: Final = 0.1
#: Assumed `producer.id.expiration.ms` where it is unknown: 15 minutes. A known value is reduced by a tenth.
UNKNOWN_EXPIRATION_MS: Final = 15 * 60_000
_LEAST_MARGIN_MS: Final = 2 * 60_000


class _UnderWay(NamedTuple):
    """A request in flight; ``version`` is that of Produce."""

    outgoing_batches: list[tuple[Outbox, OutgoingBatch]]
    sent_s: float
    version: int


@dataclass(slots=True, eq=False)
class _TargetBroker(WritingLink):
    """One connection to a broker: its ready outboxes and its requests in flight."""

    ready: deque[Outbox] = field(default_factory=deque)
    under_way: deque[_UnderWay] = field(default_factory=deque)
    throttled_until_s: float = 0.0  # the broker reads nothing from the connection before (KIP-219)


class Sink(WritingBrokers[_TargetBroker]):
    """All outboxes of one cluster. ``acks`` is always all; ``request_timeout_s`` limits every response.

    ``look_up`` None: there are no copy sessions, and unanswered batches are resent. ``report`` gets what concerns the
    partition of an outbox, not only its requests. With
    ``transactional_id`` set (`in_transactions`) every transactional outbox writes in the open transaction.
    """

    largest_answer_bytes = produce.LARGEST_ANSWER_BYTES

    def __init__(
        self,
        cluster: Cluster,
        loop: asyncio.AbstractEventLoop,
        background: Executor,
        pool: BufferPool,
        *,
        connections: int = 1,
        max_request_bytes: int = MAX_REQUEST_BYTES,
        look_up: ProgressLookUp | None = None,
        report: Callable[[ReportedEvent], None] = lambda _event: None,
        may_send: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(cluster, loop, background, pool, connections=connections, may_send=may_send)
        self.topic_ids = TargetTopicIds()
        backoff = Backoff(cluster.settings.retry_backoff_ms, cluster.settings.retry_backoff_max_ms)
        self._outcomes = ProduceOutcomes(cluster.name, backoff)
        self._look_ups = ProgressLookUps(self._outcomes, cluster.name, loop, look_up, self.topic_ids, self._handle)
        self._report = report
        self._max_request_bytes = max_request_bytes
        self._remembered_for_ms = 0
        self.producer_expires_after(UNKNOWN_EXPIRATION_MS)
        self._transactional_id: str | None = None
        self._hold_new = False
        self._not_offered: list[Outbox] = []  # rejected outboxes that became due while new batches were held back
        self._max_version = produce.MAX_VERSION
        self._outboxes: list[Outbox] = []
        self._first_of: dict[TopicPartition, Outbox] = {}  # the first outbox of each target partition
        #: With the error of the topic in the last look-up.
        self._leaderless: dict[Outbox, KafkaFailure | None] = {}
        self._watch()

    def close(self) -> None:
        super().close()
        self._look_ups.close()

    def outbox(
        self,
        partition: TopicPartition,
        *,
        idempotent: bool,
        transactional: bool = False,
        waits_for_commit: bool = True,
        source: TopicPartition | None = None,
    ) -> Outbox:
        """Open the outbox of a partition. An idempotent one sends nothing until `Outbox.begin` sets its producer.

        ``source`` is the partition that is copied to it. A transactional one with ``waits_for_commit`` sends no new batches while the sink holds them back (`hold`).
        """
        identity = ProducerIdentity(-1, -1) if idempotent else None
        outbox = Outbox(partition, identity, transactional, source, slot=len(self._outboxes))
        outbox.waits_for_commit = transactional and waits_for_commit
        self._outboxes.append(outbox)
        first = self._first_of.setdefault(partition, outbox)
        if first is not outbox:
            first.shared = outbox.shared = first.shared or SharedPartition([first])
            outbox.shared.outboxes.append(outbox)
            outbox.slot = first.slot  # the same connection, so its responses have the order of the log
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
                outbox.state = OutboxState.OPEN
            for outbox in self._outboxes:
                self.wake(outbox)

    async def find_leaders(self, topics: Iterable[str]) -> None:
        """Find the leaders of the outboxes' partitions. Raises KafkaFailure."""
        await self._find_leaders(set(topics))

    def connect(self) -> None:
        """Open the connections that the outboxes need, before the first batch."""
        for address in {outbox.address for outbox in self._outboxes if outbox.address is not None}:
            broker = self._broker_at(address)
            if broker.channel is None:
                self._open(broker)

    def put(self, outbox: Outbox, outgoing: OutgoingBatch) -> None:
        """Queue a batch; it is sent as soon as the pipeline has room."""
        outbox.queue.append(outgoing)
        self.wake(outbox)

    def send_scheduled(self) -> None:
        """Send now what is scheduled for the next iteration of the loop. Without it a single record would wait for that, and
        for the next Fetch request.
        """
        for broker in list(self._brokers.values()):
            if broker.scheduled:
                self._pump(broker)

    # -- sending ---------------------------------------------------------------------------------------------------

    def wake(self, outbox: Outbox) -> None:
        """Schedule the outbox if it may send."""
        if outbox.shared is not None and outbox.transactional:
            self._pass_turn(outbox.shared)
        if outbox.ready or outbox.is_blocked or not outbox.queue:
            return
        if outbox.needs_producer_id or (outbox.sent and not outbox.has_room(self._remembered_ms())):
            return
        if self._is_held_back(outbox):
            return
        if outbox.shared is not None and not outbox.shared.may_send(outbox):
            outbox.shared.wait(outbox)
            self._pass_turn(outbox.shared)  # which schedules it, or another one
            return
        if not outbox.enrolled:
            self._report(NotInTransaction(outbox))
            return
        if outbox.address is None:
            self.find_leader(outbox)
            return
        outbox.ready = True
        broker = self._broker_at(outbox.address)
        broker.ready.append(outbox)
        self._schedule(broker)

    def _pass_turn(self, shared: SharedPartition) -> None:
        if (following := shared.pass_on()) is not None:
            self.wake(following)

    def end_pause(self, outbox: Outbox) -> None:
        """End a pause."""
        outbox.paused = False
        self.wake(outbox)

    def offer_again(self, outbox: Outbox) -> None:
        """Resend a rejected batch. While new batches are held back it waits: the open transaction's positions do not
        include it.
        """
        if self._hold_new and outbox.waits_for_commit:
            self._not_offered.append(outbox)
            return
        outbox.state = OutboxState.OPEN
        self.wake(outbox)

    def find_leader(self, outbox: Outbox) -> None:
        """Look up the leader of an outbox that has none; it is woken then."""
        self._leaderless.setdefault(outbox)
        self._refresh(0.0)

    def look_up(self, outbox: Outbox) -> None:
        """Look up the progress of an outbox with nothing in flight, because the end of the target contradicts it, or because the
        connection to it was lost. Its topic may have been created again, which metadata show.
        """
        self._refresh(0.0)
        if outbox.looked_up:
            outbox.look_up_cause = None
            self._look_ups.add(outbox)

    def _is_held_back(self, outbox: Outbox) -> bool:
        return self._hold_new and outbox.waits_for_commit and outbox.queue[0].at < 0

    def _remembered_ms(self) -> float:
        """The oldest timestamp of a last record at which a leader still remembers the producer."""
        return time.time() * 1000 - self._remembered_for_ms

    def _handle(self, events: Iterable[OutboxEvent]) -> None:
        """Do what follows from answers of the target."""
        for event in events:
            match event:
                case PauseEnds(outbox):
                    self.end_pause(outbox)
                case RetryDue(outbox, delay_s):
                    self._loop.call_later(delay_s, self.offer_again if outbox.refused else self.end_pause, outbox)
                case OutcomeUnknown(outbox):
                    self._look_ups.add(outbox)
                case LeaderUnknown(outbox):
                    self.find_leader(outbox)
                case LeadersOutdated():
                    self._refresh(0.0)
                case _:
                    self._report(event)

    def _set_error(self, outbox: Outbox, error: KafkaFailure | None) -> None:
        outbox.last_error = error
        self._report(ErrorChanged(outbox))

    def _broker_at(self, address: tuple[int, int]) -> _TargetBroker:
        broker = self._brokers.get(address)
        if broker is None:
            broker = self._brokers[address] = _TargetBroker(*address)
        return broker

    def _pump(self, broker: _TargetBroker) -> None:
        broker.scheduled = False
        if self._closed or not broker.ready or not self._may_send():
            return
        if broker.channel is None:
            self._open(broker)
            return
        if time.monotonic() < broker.throttled_until_s:
            return  # it would wait in the broker's socket, and could be read after a look-up (rule S8)
        channel = broker.channel
        # The lease is checked where requests are handed to the socket: a process that was frozen resumes with the callbacks of its
        # sockets, before any timer.
        while broker.ready and len(broker.under_way) < MAX_IN_FLIGHT and not channel.lost and self._may_send():
            if not self._send_request(broker, channel):
                break

    def _send_request(self, broker: _TargetBroker, channel: Channel) -> bool:
        """Send one request; False when nothing may be sent now."""
        chosen = self._choose(broker)
        if not chosen:
            return False
        batches = {outbox.partition: outgoing.data for outbox, outgoing in chosen}
        connection = channel.connection
        correlation_id = connection.next_correlation_id()
        version = broker.version
        if version >= produce.TOPIC_IDS_FROM and not all(self.topic_ids.data.get(tp.topic) for tp in batches):
            version = produce.TOPIC_IDS_FROM - 1
        buffers = produce.request(
            version,
            correlation_id,
            connection.client_id,
            batches,
            acks=-1,
            timeout_ms=int(self._request_timeout_s * 1000),
            transactional_id=self._transactional_id if chosen[0][0].transactional else None,
            topic_ids=self.topic_ids.data,
        )
        broker.under_way.append(_UnderWay(chosen, time.monotonic(), version))
        channel.send(buffers, correlation_id)
        return True

    def _choose(self, broker: _TargetBroker) -> list[tuple[Outbox, OutgoingBatch]]:
        """Take the batches of the next request from the ready outboxes."""
        chosen: list[tuple[Outbox, OutgoingBatch]] = []
        size = 0
        put_off: list[Outbox] = []
        remembered_ms = self._remembered_ms()
        while broker.ready and size < self._max_request_bytes:
            outbox = broker.ready.popleft()
            outbox.ready = False
            in_other_epoch = outbox.verified_epoch not in {None, outbox.leader_epoch}
            if (outbox.is_unverified or outbox.is_cut_off or in_other_epoch) and not outbox.is_blocked:
                outbox.look_up_cause = None
                # Not looked up, or in another leader epoch, possibly on a deposed leader (rules R3, S6).
                self._look_ups.add(outbox)
                continue
            is_elsewhere = outbox.address != broker.address
            if is_elsewhere or outbox.is_blocked or not outbox.queue or self._is_held_back(outbox):
                self.wake(outbox)
                continue
            if outbox.shared is not None and not outbox.shared.may_send(outbox):
                self.wake(outbox)
                continue
            if outbox.sent and not outbox.has_room(remembered_ms):
                continue  # the leader has changed since it was scheduled; a response wakes it
            if broker.under_way and outbox.may_be_processed_late(remembered_ms):
                outbox.ready = True
                broker.ready.appendleft(outbox)  # the next response continues here
                break
            if chosen and chosen[0][0].transactional is not outbox.transactional:
                put_off.append(outbox)  # a request is either transactional or not
                continue
            if outbox.shared is not None:
                if any(other.partition == outbox.partition for other, _ in chosen):
                    put_off.append(outbox)
                    continue
                if outbox.queue[0].at < 0:
                    outbox.shared.sent()
            outbox.merge_waiting()
            outgoing = outbox.send_next()
            chosen.append((outbox, outgoing))
            size += len(outgoing.data)
        for outbox in (*(outbox for outbox, _ in chosen), *put_off):
            self.wake(outbox)
        return chosen

    def _answered(self, broker: _TargetBroker, frame: memoryview) -> None:
        channel = broker.channel
        if channel is None or not broker.under_way:
            return
        request = broker.under_way[0]
        try:
            answer = produce.response(request.version, frame, self.topic_ids.names)
        except CorruptBatch as error:
            channel.fail(error)
            return
        broker.under_way.popleft()
        self._responded(broker)
        if answer.throttle_ms > 0 and request.version >= produce.MUTED_FROM:
            throttle_s = answer.throttle_ms / 1000 + _THROTTLE_MARGIN_S
            broker.throttled_until_s = time.monotonic() + throttle_s
            self._loop.call_later(throttle_s + 0.001, self._schedule, broker)
            for outbox, _ in request.outgoing_batches:
                self._report(Throttled(outbox, self._quota, throttle_s))
        results = {result.topic_partition: result for result in answer}
        for outbox, outgoing in request.outgoing_batches:
            self._handle(self._outcomes.answered(outbox, outgoing, results.get(outbox.partition)))
            self.wake(outbox)
        if broker.ready:
            self._schedule(broker)

    # -- connections and leaders -----------------------------------------------------------------------------------

    def _choose_version(self, connection: Connection) -> int:
        return connection.version_of(produce.REQUEST, self._max_version)

    def _opened(self, broker: _TargetBroker) -> None:
        self._pump(broker)

    def _dropped(self, broker: _TargetBroker) -> None:
        broker.throttled_until_s = 0.0
        unanswered = list(broker.under_way)
        broker.under_way.clear()
        for outbox in self._outboxes:
            if outbox.address == broker.address:
                outbox.known = False  # the broker may have lost its producer state
                # It may have lost the end of its log, too. Others may fill that before the next batch, which would not show it.
                outbox.is_cut_off = outbox.looked_up
        pairs = [pair for request in unanswered for pair in request.outgoing_batches]
        self._handle(self._outcomes.unanswered(pairs))
        for outbox in dict.fromkeys(outbox for outbox, _ in pairs):
            self.wake(outbox)

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
        topics = {outbox.partition.topic for outbox in (self._leaderless or self._outboxes)}
        await self._find_leaders(topics, fresh=True)
        if all(outbox.idle for outbox in self._outboxes):
            self.failure = None  # nothing is blocked, and no response to a batch will end it
        return 0.25 if self._leaderless or self._topics.waiting else None

    async def _find_leaders(self, topics: Iterable[str], *, fresh: bool = False) -> None:
        if fresh:
            metadata = await self._fresh_metadata(topics)
        else:
            metadata = await self._in_background(self._cluster.metadata, sorted(topics), max_age_s=60.0)
        accepted = await self._accepted(metadata)
        for name in accepted:
            self._identified(name, metadata.topics[name].topic_id)
        for outbox in self._outboxes:
            info = metadata.topics.get(outbox.partition.topic)
            if info is not None and outbox.partition.topic not in accepted:
                # Stale or unconfirmed: keep the leader.
                if outbox.address is None and not outbox.idle:
                    self._set_error(outbox, self._unaccepted(info, subject_of(outbox, self._cluster.name)))
                continue
            if info is None:
                if (error := metadata.errors.get(outbox.partition.topic)) is not None:
                    self._move(outbox, None)
                    self._set_error(outbox, error)
                    if not outbox.stopped:
                        self._leaderless[outbox] = error
                continue
            partition = info.partitions.get(outbox.partition.partition)
            leader = partition.leader if partition is not None and partition.leader >= 0 else None
            self._move(outbox, leader, -1 if partition is None else partition.leader_epoch)
            if leader is None and not outbox.idle:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if partition is None else ErrorCode.LEADER_NOT_AVAILABLE
                self._set_error(outbox, BrokerFailure.of(code, subject=subject_of(outbox, self._cluster.name)))
            elif leader is not None and outbox in self._leaderless:
                reported = self._leaderless.pop(outbox)
                if reported is not None and outbox.last_error is reported and outbox.idle:
                    self._set_error(outbox, None)  # no acknowledgement will end it
                self.wake(outbox)

    async def settle_id(
        self, name: str, known: str, retired: Iterable[str], report: Callable[[KafkaFailure], None]
    ) -> str:
        """The id of a topic, given the ledger's id and the retired ones, once more than one response confirms it.

        Returns "" when the sink is closed. ``report`` gets the reason for the wait.
        """
        self._topics.expect(name, known, retired, time.monotonic())
        while not self._closed:
            try:
                metadata = await self._in_background(self._cluster.metadata, [name])
                if name in await self._accepted(metadata):
                    topic_id: str = metadata.topics[name].topic_id
                    self.topic_ids.replace(name, topic_id)
                    return topic_id
                subject = f"topic {name} of cluster {self._cluster.name}"
                if (info := metadata.topics.get(name)) is not None:
                    report(self._unaccepted(info, subject))
                elif (failure := metadata.errors.get(name)) is not None:
                    report(failure)
            except KafkaFailure as error:
                self._log.info("no metadata of the target", error=str(error))
                report(error)
            await asyncio.sleep(_SETTLE_RETRY_S)
        return ""

    def _identified(self, name: str, topic_id: str) -> None:
        """A recreated topic gets no further records: acknowledged records are not in it."""
        if self.topic_ids.see(name, topic_id):
            return
        for outbox in self._outboxes:
            if outbox.partition.topic == name and outbox.source is not None:
                outbox.paused = True
                self._report(TargetRecreated(outbox))
        if not any(o.source is not None for o in self._outboxes if o.partition.topic == name):
            self.topic_ids.replace(name, topic_id)

    def _move(self, outbox: Outbox, leader: int | None, leader_epoch: int = -1) -> None:
        address = None if leader is None else BrokerAddress(leader, outbox.slot % self._connections)
        if address != outbox.address or leader_epoch != outbox.leader_epoch:
            outbox.known = False
            # The log of a leader that was elected uncleanly may have lost its end.
            outbox.is_cut_off = outbox.looked_up and (outbox.is_cut_off or leader_epoch != outbox.leader_epoch)
        outbox.leader_epoch = leader_epoch if leader is not None else outbox.leader_epoch
        if address != outbox.address and outbox.sent:
            # Send nothing to the new leader before the old one has responded, to keep the order.
            outbox.state = OutboxState.DRAINING
        outbox.address = address

    def _watch(self) -> None:
        """Report requests without a response, close connections after the request timeout, and re-authenticate."""
        if self._closed:
            return
        self._refresh_old()
        now = time.monotonic()
        for first in self._first_of.values():
            if first.shared is not None and first.transactional:
                self._pass_turn(first.shared)  # its batch was rejected, which wakes no other
        for broker in list(self._brokers.values()):  # a closed connection may add the partition's new leader
            if broker.ready:
                # Held back while the lease seemed to have expired. A process that was suspended may not have read its renewal
                # yet, and where no request is in flight, no response continues here.
                self._schedule(broker)
            channel = broker.channel
            if channel is None:
                continue
            waiting_s = now - max(broker.under_way[0].sent_s, broker.throttled_until_s) if broker.under_way else 0.0
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
                    self._set_error(outbox, outbox.last_error or slow)
            elif not broker.under_way:
                # Takes milliseconds, and only near the end of a session's lifetime. A busy connection is replaced instead, and so is
                # one whose broker or token endpoint does not answer soon: this blocks the loop, which renews the lease.
                try:
                    channel.connection.maybe_reauthenticate(timeout_s=REAUTHENTICATION_S)
                except KafkaFailure as error:
                    channel.fail(error)
        self._loop.call_later(WATCH_S, self._watch)
