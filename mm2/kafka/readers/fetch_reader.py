"""Blocking Fetch requests to the leaders of partitions, with one request in flight for each broker.

`FetchReader` finds the leaders, connects to them and returns a result or a failure per partition. Its callers decide
which offsets are requested next, what follows from an offset out of range, and which failures end their work.

With a ``client.rack`` a leader may name a follower of that rack, which is then read from (KIP-392), until it fails, the
leader or its epoch changes, or ``metadata.max.age.ms`` has passed. A failure of a follower is not a result: the leader is
asked again.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from mm2.kafka.backoff import Backoff, HastyAnswers
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.client.connection import Connection
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, CorruptBatch, KafkaFailure, TimeoutFailure
from mm2.kafka.structs import Metadata, PartitionInfo, TopicInfo, TopicPartition, topic_id_bytes
from mm2.kafka.wire import fetch
from mm2.kafka.wire.fetch import Fetched, FetchSession, Position
from mm2.kafka.wire.primitives import INT32

_BUFFER_BYTES: Final = 1 << 16
_NO_SESSION: Final = -1  # the epoch of a request that neither begins a session nor belongs to one (KIP-227)
_UNUSED_S: Final = 60.0
#: How long a partition is read from its leader after an error of a follower, and after a follower that did not answer.
_AFTER_ERROR_S: Final = 1.0
_AFTER_LOSS_S: Final = 5.0
_NO_EPOCHS: Final[Mapping[TopicPartition, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class FetchReaderLimits:
    """Limits and isolation level of a Fetch request; ``partition_bytes`` is the limit for each partition.

    Without ``incremental`` no fetch session is used, which would take memory on the broker: for readers that request
    other partitions each time.
    """

    max_wait_ms: int
    max_bytes: int
    partition_bytes: int
    min_bytes: int = 1
    read_committed: bool = False
    incremental: bool = True


class LeaderConnection:
    """A connection to one broker with its fetch session, and at most one request in flight."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        #: Partitions of the request in flight; empty without one.
        self.requested: tuple[TopicPartition, ...] = ()
        self.has_rack = False
        self.sent_s = time.monotonic()
        self._wait_s = 0.0
        self._hasty = HastyAnswers()
        self._session = FetchSession({})
        self._version = 0
        self._correlation_id = 0

    @property
    def throttled(self) -> bool:
        """A quota was exceeded: the last response may have been empty although there are records (KIP-219)."""
        return self._session.throttle_ms > 0

    def send(
        self,
        offsets: Mapping[TopicPartition, int],
        topics: Mapping[str, TopicInfo],
        limits: FetchReaderLimits,
        last_epochs: Mapping[TopicPartition, int] = _NO_EPOCHS,
        *,
        rack: str = "",
    ) -> None:
        """Request these partitions from these offsets. ``last_epochs``: see `Position`. Raises KafkaFailure.

        Without ``rack`` the broker names no follower to read from.
        """
        connection, session = self.connection, self._session
        connection.maybe_reauthenticate()
        names = {tp.topic for tp in offsets}
        has_ids = all(topics[name].topic_id for name in names)
        self._version = connection.version_of(fetch.REQUEST, fetch.MAX_VERSION if has_ids else fetch.TOPIC_IDS_FROM - 1)
        topic_ids = {name: topic_id_bytes(topics[name].topic_id) for name in names}
        if any(topic_ids.get(name, old) != old for name, old in session.topic_ids.items()):
            session.reset()  # a topic was recreated
        # Topics that are no longer requested keep their id, which is needed to remove them from the session.
        session.topic_ids = {**session.topic_ids, **topic_ids}
        if not limits.incremental:
            session.epoch = _NO_SESSION
            session.known.clear()
        positions = {
            tp: Position(
                offset,
                topics[tp.topic].partitions[tp.partition].leader_epoch,
                limits.partition_bytes,
                last_epochs.get(tp, -1),
            )
            for tp, offset in offsets.items()
        }
        self._correlation_id = connection.next_correlation_id()
        frame = session.request(
            self._version,
            self._correlation_id,
            connection.client_id,
            positions,
            max_wait_ms=limits.max_wait_ms,
            min_bytes=limits.min_bytes,
            max_bytes=limits.max_bytes,
            read_committed=limits.read_committed,
            rack=rack,
        )
        self.has_rack = bool(rack)
        self.requested = tuple(offsets)
        self.sent_s = time.monotonic()
        self._wait_s = limits.max_wait_ms / 1000
        connection.send_buffers([frame])

    def pause_s(self, answer: Iterable[Fetched]) -> float:
        """Seconds to wait before the next request, after this answer."""
        is_early = time.monotonic() - self.sent_s < self._wait_s / 2
        return self._hasty.pause_s(is_hasty=is_early and not any(one.records for one in answer))

    def receive(self, buffer: bytearray, timeout_s: float) -> tuple[list[Fetched], int]:
        """The partitions of the response, which are views into ``buffer``, and its size in bytes. Raises KafkaFailure.

        After a TimeoutFailure that leaves the connection open, the request is still in flight.
        """
        frame = self.connection.receive_frame(buffer, timeout_s=timeout_s)
        requested, self.requested = frozenset(self.requested), ()
        answered = INT32.unpack_from(frame)[0] if len(frame) >= INT32.size else None
        if answered != self._correlation_id:
            raise self.connection.out_of_turn(answered, self._correlation_id)
        found = self._session.response(self._version, frame)
        if any(one.topic_partition not in requested for one in found):
            self.connection.close()
            message = f"The {self.connection.who} answered a Fetch request for other partitions"
            raise CorruptBatch(message)
        return found, len(frame)


@dataclass(frozen=True, slots=True)
class _Replica:
    """The follower that a leader has named, and until when (monotonic) it is read from."""

    node: int
    leader: int
    leader_epoch: int
    until_s: float

    def is_valid(self, partition: PartitionInfo, now_s: float) -> bool:
        """Whether to read from it under this metadata."""
        is_led = (partition.leader, partition.leader_epoch) == (self.leader, self.leader_epoch)
        return is_led and self.until_s > now_s and partition.has_online(self.node)


class FetchReader:
    """Reads partitions of a cluster through one connection of its pool per leader. Not thread-safe, except `abort`.

    After a failure the metadata of the topic is refreshed before its next request. With ``backoff`` a partition that
    could not be read is not requested again before its delay has passed; the delay begins again at its minimum after a
    success. A leader that has not answered after ``timeout_s`` (default: ``request.timeout.ms``) is disconnected. An
    offset out of range is neither delayed nor does it refresh metadata.
    """

    def __init__(self, cluster: Cluster, *, backoff: Backoff | None = None, timeout_s: float | None = None) -> None:
        #: Size of all responses.
        self.bytes_received = 0
        self._cluster = cluster
        self._backoff = backoff
        self._timeout_s = cluster.settings.request_timeout_ms / 1000 if timeout_s is None else timeout_s
        self._leaders: dict[int, LeaderConnection] = {}
        #: What the next `receive` returns.
        self._results: dict[TopicPartition, Fetched | KafkaFailure] = {}
        #: Number of consecutive failures, and the time of the next attempt.
        self._retries: dict[TopicPartition, tuple[int, float]] = {}
        #: Until then (monotonic) the ends of delays are known to the caller.
        self._checked_s = 0.0
        self._aborted = False
        self._rack = cluster.settings.client_rack
        self._replicas: dict[TopicPartition, _Replica] = {}
        #: Partitions that only their leader is asked for, until then (monotonic).
        self._held: dict[TopicPartition, float] = {}
        #: The leader and leader epoch of the last request for a partition, and of the last position that was compared.
        self._led: dict[TopicPartition, tuple[int, int]] = {}
        self._compared: dict[TopicPartition, tuple[int, int]] = {}

    @property
    def in_flight(self) -> frozenset[TopicPartition]:
        """The partitions of all requests in flight."""
        return frozenset(tp for leader in self._leaders.values() for tp in leader.requested)

    @property
    def has_results(self) -> bool:
        """Whether requests are in flight or have failed, so that `receive` will return something."""
        return bool(self._results or self.in_flight)

    def send(
        self,
        offsets: Mapping[TopicPartition, int],
        limits: FetchReaderLimits,
        *,
        metadata: Metadata | None = None,
        last_epochs: Mapping[TopicPartition, int] = _NO_EPOCHS,
    ) -> None:
        """Request these partitions from their leaders. `receive` returns the results, failures to send included.

        Partitions that are in flight or delayed are left out, and so are those whose leader has another request in
        flight. ``metadata``: at most ``metadata.max.age.ms`` old if not given. ``last_epochs``: see `Position`.
        """
        now_s = self._checked_s = time.monotonic()
        in_flight = self.in_flight
        wanted = [tp for tp in offsets if tp not in in_flight and self._retries.get(tp, (0, 0.0))[1] <= now_s]
        if not wanted:
            return
        if metadata is None:
            max_age_s = self._cluster.settings.metadata_max_age_ms / 1000
            try:
                metadata = self._cluster.metadata({tp.topic for tp in wanted}, max_age_s=max_age_s)
            except KafkaFailure as failure:
                self._fail(wanted, failure)
                return
        for node in [n for n, one in self._leaders.items() if not one.requested and one.sent_s < now_s - _UNUSED_S]:
            self._release(node)  # the broker closes it after a while; the pool checks that
        for node, found in self._by_broker(wanted, metadata).items():
            leader = self._leaders.get(node)
            if leader is not None and leader.requested:
                continue
            partitions, rack = self._with_rack(found, last_epochs)
            try:
                leader = leader or self._connect(node)
                leader.send({tp: offsets[tp] for tp in partitions}, metadata.topics, limits, last_epochs, rack=rack)
            except KafkaFailure as failure:
                self._disconnect(node, partitions, failure)

    def receive(
        self, timeout_s: float, *, buffer: bytearray | None = None, wake: socket.socket | None = None
    ) -> dict[TopicPartition, Fetched | KafkaFailure]:
        """The results of the next response, without partitions that have nothing new, and the failures since the last call.

        Empty after ``timeout_s``, at the end of a delay, or when there is something to read from ``wake``. The records
        are views into ``buffer`` (default: a new one), so no view of an earlier response may exist then.
        """
        if not self._results and (node := self._wait(timeout_s, wake)) is not None:
            self._receive_from(node, bytearray(_BUFFER_BYTES) if buffer is None else buffer)
        results, self._results = self._results, {}
        return results

    def abort(self) -> None:
        """Let all calls fail from now on, also one in progress; from any thread. `close` must still follow."""
        self._aborted = True
        for leader in list(self._leaders.values()):
            leader.connection.abort()

    def close(self) -> None:
        """Disconnect from the leaders, and forget failures and delays. The reader can be used again."""
        for node in list(self._leaders):
            self._release(node)
        for forgotten in (self._results, self._retries, self._replicas, self._held, self._led, self._compared):
            forgotten.clear()

    def _by_broker(self, wanted: Iterable[TopicPartition], metadata: Metadata) -> dict[int, list[TopicPartition]]:
        by_broker: dict[int, list[TopicPartition]] = {}
        for tp in wanted:
            topic = metadata.topics.get(tp.topic)
            partition = None if topic is None else topic.partitions.get(tp.partition)
            if partition is not None and partition.leader >= 0:
                by_broker.setdefault(self._broker_of(tp, partition), []).append(tp)
                continue
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if partition is None else ErrorCode.LEADER_NOT_AVAILABLE
            subject = f"Partition {tp} of cluster {self._cluster.name}"
            self._fail([tp], metadata.errors.get(tp.topic) or BrokerFailure.of(code, subject=subject))
        return by_broker

    def _broker_of(self, tp: TopicPartition, partition: PartitionInfo) -> int:
        """The broker to read a partition from."""
        if self._rack:
            self._led[tp] = partition.leader, partition.leader_epoch
            replica = self._replicas.get(tp)
            if replica is not None and replica.is_valid(partition, time.monotonic()):
                return replica.node
            self._replicas.pop(tp, None)
        return partition.leader

    def _with_rack(
        self, partitions: list[TopicPartition], last_epochs: Mapping[TopicPartition, int]
    ) -> tuple[list[TopicPartition], str]:
        """The partitions to request from a broker now, and the rack of the request.

        A leader that names a follower does not compare the position with its log. So it is asked without the rack first.
        """
        if not self._rack:
            return partitions, ""
        at_leader = [tp for tp in partitions if tp not in self._replicas]
        new = [tp for tp in at_leader if last_epochs.get(tp, -1) >= 0 and self._compared.get(tp) != self._led[tp]]
        if new:
            return new, ""
        now_s = time.monotonic()
        is_held = any(self._held.get(tp, 0.0) > now_s for tp in at_leader)
        return partitions, "" if is_held else self._rack

    def _leave(self, tp: TopicPartition, held_s: float) -> None:
        """Read a partition from its leader again, for at least so many seconds."""
        del self._replicas[tp]
        self._compared.pop(tp, None)
        self._held[tp] = time.monotonic() + held_s

    def _connect(self, node: int) -> LeaderConnection:
        leader = LeaderConnection(self._cluster.lease_connection(node, timeout_s=self._timeout_s))
        self._leaders[node] = leader
        if self._aborted:
            leader.connection.abort()  # opened too late for `abort` to see it
        return leader

    def _wait(self, timeout_s: float, wake: socket.socket | None) -> int | None:
        """The leader whose response can be read and whose request is the oldest."""
        asked = {node: leader for node, leader in self._leaders.items() if leader.requested}
        now_s = time.monotonic()
        times_s = [leader.sent_s + self._timeout_s for leader in asked.values()]
        # A delay may have ended after `send` has left its partition out. Nothing else would end the wait then.
        times_s += [at_s for _, at_s in self._retries.values() if at_s > self._checked_s]
        self._checked_s = now_s
        wait_s = max(0.001, min([timeout_s, *(at_s - now_s for at_s in times_s)]))
        poll = select.poll()
        filenos = [leader.connection.fileno() for leader in asked.values()]
        for fileno in filenos if wake is None else [*filenos, wake.fileno()]:
            poll.register(fileno, select.POLLIN)
        pending = {node for node, leader in asked.items() if leader.connection.has_pending()}
        events = {fileno for fileno, _ in poll.poll(0 if pending else int(wait_s * 1000) + 1)}
        if wake is not None and wake.fileno() in events:
            wake.recv(4096)
        ready = pending | {node for node, leader in asked.items() if leader.connection.fileno() in events}
        overdue_s = time.monotonic() - self._timeout_s
        for node, leader in asked.items():
            if node not in ready and leader.sent_s <= overdue_s:
                failure = TimeoutFailure(f"The {leader.connection.who} did not answer a Fetch request in time.")
                self._disconnect(node, leader.requested, failure)
        return min(ready, key=lambda node: asked[node].sent_s, default=None)

    def _receive_from(self, node: int, buffer: bytearray) -> None:
        leader = self._leaders[node]
        requested = leader.requested
        try:
            fetched, size = leader.receive(buffer, 0.0)
        except KafkaFailure as failure:
            # Still in flight after a timeout: what could be read was a session ticket of TLS.
            if leader.connection.closed or not isinstance(failure, TimeoutFailure):
                self._disconnect(node, requested, failure)
            return
        self.bytes_received += size
        if not leader.has_rack:
            self._compared.update((tp, self._led[tp]) for tp in requested if tp in self._led)
        for one in fetched:
            tp = one.topic_partition
            if self._rack and self._is_about_replica(one, node):
                continue
            if one.error_code:
                where = f"Reading {tp} of cluster {self._cluster.name}"
                self._fail([tp], BrokerFailure.of(one.error_code, subject=where, needed="READ"))
            else:
                self._results[tp] = one
                self._retries.pop(tp, None)
        if pause_s := leader.pause_s(fetched):
            until_s = time.monotonic() + pause_s
            for tp in requested:
                failures, at_s = self._retries.get(tp, (0, 0.0))
                self._retries[tp] = failures, max(at_s, until_s)

    def _is_about_replica(self, one: Fetched, node: int) -> bool:
        """Whether this part of a response is no result, because another broker has to be asked."""
        tp = one.topic_partition
        if one.preferred_replica >= 0:
            max_age_s = self._cluster.settings.metadata_max_age_ms / 1000
            self._replicas[tp] = _Replica(one.preferred_replica, *self._led[tp], time.monotonic() + max_age_s)
            return True
        if tp not in self._replicas or self._replicas[tp].node != node:
            return False
        if one.error_code or one.diverging is not None:
            # The follower may only lag behind the leader.
            if one.error_code and one.error_code != ErrorCode.OFFSET_OUT_OF_RANGE:
                self._cluster.invalidate(tp.topic)
            self._leave(tp, _AFTER_ERROR_S)
            return True
        return not one.records  # its high watermark may be lower than that of the leader

    def _fail(self, partitions: Iterable[TopicPartition], failure: KafkaFailure) -> None:
        out_of_range = isinstance(failure, BrokerFailure) and failure.code == ErrorCode.OFFSET_OUT_OF_RANGE
        for tp in partitions:
            self._results[tp] = failure
            if out_of_range:
                continue
            self._cluster.invalidate(tp.topic)
            if self._backoff is not None:
                failures, _ = self._retries.get(tp, (0, 0.0))
                self._retries[tp] = (failures + 1, time.monotonic() + self._backoff.delay_s(failures))

    def _disconnect(self, node: int, partitions: Iterable[TopicPartition], failure: KafkaFailure) -> None:
        if node in self._leaders:
            self._leaders[node].connection.close()
            self._release(node)
        followed = [tp for tp in partitions if tp in self._replicas and self._replicas[tp].node == node]
        for tp in followed:
            self._leave(tp, _AFTER_LOSS_S)
            self._cluster.invalidate(tp.topic)
        self._fail([tp for tp in partitions if tp not in followed], failure)

    def _release(self, node: int) -> None:
        leader = self._leaders.pop(node)
        if leader.requested:
            leader.connection.close()  # its response may still arrive
        self._cluster.return_connection(leader.connection)
