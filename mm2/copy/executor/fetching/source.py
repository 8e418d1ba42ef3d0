"""The reading side: one Fetch after another per source broker; each response is passed to the partitions' receivers.

A source keeps one request in flight per broker and sends the next one before it processes the batches of a response.
The receiver decides where to read next (`Cursor.offset`), so nothing is fetched twice and nothing is
skipped. A receiver that is full is left out of the next request.

All methods and callbacks run on the loop's thread; blocking calls run in ``background``.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import Final

from mm2.copy.executor.clusters.brokers import SLOW_RESPONSE_S, WATCH_S, BrokerAddress, Brokers
from mm2.copy.executor.clusters.leaders import agreed_leader, are_complete, newest_leaders, partition_of
from mm2.copy.executor.clusters.topic_ids import IdCheck
from mm2.copy.executor.fetching.fetch_selector import FetchLimits, FetchSelector
from mm2.copy.executor.fetching.fetch_states import PartitionFetchState, SourceBroker
from mm2.copy.executor.fetching.read_replicas import AFTER_ERROR_S, AFTER_LOSS_S, ReadReplicas
from mm2.copy.executor.fetching.throttle import Throttle
from mm2.copy.executor.partition.cursor import Cursor
from mm2.kafka.client.channel import BufferPool
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.client.connection import Connection
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, CorruptBatch, KafkaFailure, TimeoutFailure
from mm2.kafka.records.batch import iter_batches
from mm2.kafka.structs import Metadata, PartitionInfo, TopicInfo, TopicPartition, topic_id_bytes
from mm2.kafka.wire import fetch
from mm2.kafka.wire.fetch import Fetched, FetchSession

_SESSION_ERRORS: Final = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
#: Up to this size, what a response contains is sent before the next Fetch request.
_SMALL_BYTES: Final = 16 << 10
#: After a response of at least so many batches and at most so many bytes, the next Fetch request waits for `_PACE_S`. A request costs
#: the brokers as much as dozens of records: with one every half millisecond, each record waits longer for busy brokers than for this.
_PACED_BATCHES: Final = 4
_PACED_BYTES: Final = 64 << 10
_PACE_S: Final = 0.002
#: A truncated log is examined during this pause; the broker would answer each request immediately.
_DIVERGED_PAUSE_S: Final = 0.2
_REFRESH_DELAY_S: Final = 0.25
_MAX_PARTITION_BYTES: Final = 64 << 20
#: Maximum age of the metadata of `Source.prepare`. A broker that is no longer the leader returns an error.
_PREPARED_S: Final = 30.0


class Source(Brokers[SourceBroker]):
    """All partitions that are read from one cluster."""

    role = "source"

    def __init__(
        self,
        cluster: Cluster,
        loop: asyncio.AbstractEventLoop,
        background: Executor,
        pool: BufferPool,
        limits: FetchLimits,
        *,
        read_committed: bool,
        room: Callable[[], bool],
        throttle: Throttle,
        send: Callable[[], None],
        connections: int = 1,
    ) -> None:
        """``room`` returns whether there is memory for another response. ``send`` is called when a small one has been passed on,
        before the next request.
        """
        super().__init__(cluster, loop, background, pool, connections=connections)
        self._limits = limits
        self._throttle = throttle
        self._selector = FetchSelector(limits, throttle)
        self._read_committed = read_committed
        self._room = room
        self._send = send
        self._fetch_states: dict[TopicPartition, PartitionFetchState] = {}
        self._topic_ids: dict[str, bytes] = {}
        self._committed: set[TopicPartition] = set()  # these need READ_COMMITTED
        self._resuming = False
        self._prepared: tuple[float, Metadata] | None = None  # time (monotonic) and metadata
        self._assigning = False
        self._replicas = ReadReplicas(cluster.settings.client_rack, self._max_age_s)
        self._watch()

    def add(self, receivers: Iterable[Cursor]) -> None:
        """Start fetching for these partitions."""
        for receiver in receivers:
            if receiver.partition not in self._fetch_states:
                self._topics.expect(receiver.partition.topic, receiver.topic_id, receiver.retired, time.monotonic())
                receiver.reads_committed = self.reads_committed
                self._fetch_states[receiver.partition] = PartitionFetchState(
                    receiver, self._limits.partition_bytes, len(self._fetch_states)
                )
        if self._prepared is None or time.monotonic() - self._prepared[0] > _PREPARED_S:
            self._refresh(0.0)
        elif not self._assigning:
            self._assigning = True
            self._loop.call_soon(self._assign_prepared)

    async def prepare(self, partitions: Sequence[TopicPartition]) -> None:
        """Look up the leaders of partitions that will be added soon, and connect to them. Nothing is read yet.

        Raises KafkaFailure. A partition without a leader is looked up again by `add`.
        """
        names = sorted({tp.topic for tp in partitions})
        metadata: Metadata = await self._in_background(self._cluster.metadata, names)
        addresses: set[BrokerAddress] = set()
        for slot, tp in enumerate(partitions):
            partition = partition_of(metadata, tp)
            if partition is None or partition.leader < 0:
                return
            addresses.add(BrokerAddress(partition.leader, slot % self._connections))
        self._identify(await self._accepted(metadata))
        self._prepared = time.monotonic(), metadata
        for address in addresses - self._brokers.keys():
            self._open(self._broker_at(address))

    def _assign_prepared(self) -> None:
        self._assigning = False
        if self._prepared is None or self._closed:
            return
        _, metadata = self._prepared
        asked = {tp.topic for tp, fetch_state in self._fetch_states.items() if fetch_state.address is None}
        now = time.monotonic()
        accepted = {
            name
            for name, info in metadata.topics.items()
            if self._topics.check(name, info.topic_id, now) is IdCheck.ACCEPTED
        }
        if not asked <= accepted or not self._assign_leaders(metadata, asked, accepted):
            self._prepared = None
            self._refresh(0.0)

    def topic_id(self, topic: str) -> str:
        """The id of a topic ("": unknown)."""
        return self._topics.current.get(topic, "")

    def leader_epoch(self, partition: TopicPartition) -> int:
        """Leader epoch of a partition in the newest metadata; -1: unknown."""
        fetch_state = self._fetch_states.get(partition)
        if fetch_state is not None and fetch_state.address is not None:
            return fetch_state.leader_epoch
        found = None if self._prepared is None else partition_of(self._prepared[1], partition)
        return -1 if found is None else found.leader_epoch

    def epoch_read(self, partition: TopicPartition) -> int | None:
        """Leader epoch of the leader from which a partition is read (-1: unknown); None while a follower is read.

        Requests contain it, so a leader of another epoch has rejected them.
        """
        fetch_state = self._fetch_states.get(partition)
        return None if fetch_state is None or fetch_state.replica >= 0 else fetch_state.leader_epoch

    def remove(self, partition: TopicPartition) -> None:
        """Stop fetching for a partition."""
        fetch_state = self._fetch_states.pop(partition, None)
        self.isolate(partition, committed=False)
        self._replicas.forget(partition)
        if fetch_state is not None and fetch_state.address is not None:
            self._brokers[fetch_state.address].leave(partition)

    def resume(self) -> None:
        """Fetch again where room was missing. Cheap: it runs once per iteration of the loop."""
        if not self._resuming and not self._closed:
            self._resuming = True
            self._loop.call_soon(self._resume_now)

    @property
    def reads_committed(self) -> bool:
        """Whether all partitions are read up to the last stable offset only."""
        return self._read_committed or bool(self._committed)

    def isolate(self, partition: TopicPartition, *, committed: bool) -> None:
        """Whether a partition has to be read with READ_COMMITTED although the source is not.

        The isolation level applies to whole requests: the other partitions are read up to the last stable offset
        meanwhile.
        """
        before = self.reads_committed
        if committed:
            self._committed.add(partition)
        else:
            self._committed.discard(partition)
        if self.reads_committed is not before:
            for fetch_state in self._fetch_states.values():
                fetch_state.receiver.reads_committed = self.reads_committed

    def validated(self, partition: TopicPartition, leader_epoch: int) -> None:
        """The log of the leader of this epoch has all records that were read. Under a newer leader the position is
        validated again.
        """
        fetch_state = self._fetch_states.get(partition)
        if fetch_state is not None and fetch_state.leader_epoch == leader_epoch:
            fetch_state.unvalidated = False
        self.resume()

    async def is_agreed(self, partition: TopicPartition) -> bool:
        """Whether all brokers name the leader and leader epoch from which a partition is read. Raises KafkaFailure."""
        topics = [partition.topic]
        metadata: Metadata = await self._in_background(self._cluster.metadata, topics, max_age_s=0.0)
        answers = await self._in_background(self._metadata_of_each, metadata.brokers, topics)
        leader = agreed_leader([metadata, *answers.values()], partition)
        fetch_state = self._fetch_states.get(partition)
        if leader is None or fetch_state is None or fetch_state.address is None or not are_complete(answers):
            return False
        return (leader.leader, leader.leader_epoch) == (fetch_state.leader, fetch_state.leader_epoch)

    def refresh_soon(self) -> None:
        """Refresh the leaders soon."""
        self._refresh(_REFRESH_DELAY_S)

    def reconsider(self, partitions: Iterable[TopicPartition]) -> None:
        """The state of these partitions has changed: decide again whether to read them."""
        for tp in partitions:
            self.consider(tp)
        self.resume()

    def consider(self, partition: TopicPartition) -> None:
        """The offset of a partition may have changed, or whether it is read: consider it for the next request."""
        fetch_state = self._fetch_states.get(partition)
        if fetch_state is not None and fetch_state.address is not None:
            self._brokers[fetch_state.address].to_consider[partition] = fetch_state

    def _resume_now(self) -> None:
        self._resuming = False
        for broker in self._brokers.values():
            if broker.asked_at is None and broker.fetch_states:
                self._ask(broker)

    # -- asking ----------------------------------------------------------------------------------------------------

    def _ask(self, broker: SourceBroker) -> None:
        channel = broker.channel
        if self._closed or broker.asked_at is not None:
            return
        if channel is None:
            if broker.fetch_states:  # otherwise its partitions have moved; the broker may be gone
                self._open(broker)
            return
        if not self._room():
            return
        now = time.monotonic()
        if now < broker.paced_until_s:
            return
        selection = self._selector.select(broker, now)
        if selection.throttled_s and not broker.throttle_pending:
            broker.throttle_pending = True
            self._loop.call_later(selection.throttled_s, self._throttle_ended, broker)
        if not broker.wanted:
            return
        rack, broker.comparing = self._replicas.mode(broker, now)
        connection = channel.connection
        correlation_id = connection.next_correlation_id()
        frame = broker.session.request(
            broker.version,
            correlation_id,
            connection.client_id,
            broker.wanted,
            max_wait_ms=0 if broker.comparing else broker.wait_ms,
            min_bytes=self._limits.min_bytes,
            max_bytes=1 if broker.comparing else selection.max_bytes,
            read_committed=self.reads_committed,
            touched=selection.touched,
            rack=rack,
        )
        broker.asked_at = now
        channel.send([frame], correlation_id)

    def _ask_after(self, broker: SourceBroker, pause_s: float) -> None:
        if not pause_s:
            self._ask(broker)
            return
        broker.paced_until_s = time.monotonic() + pause_s
        self._loop.call_later(pause_s, self._pace_ended, broker)

    def _pace_ended(self, broker: SourceBroker) -> None:
        broker.paced_until_s = 0.0
        self._ask(broker)

    def _throttle_ended(self, broker: SourceBroker) -> None:
        broker.throttle_pending = False
        self._ask(broker)

    def _answered(self, broker: SourceBroker, frame: memoryview) -> None:
        is_early = broker.asked_at is not None and time.monotonic() - broker.asked_at < broker.wait_ms / 2000
        broker.asked_at = None
        self._responded(broker)
        if self._closed:
            return
        try:
            answer = broker.session.response(broker.version, frame)
        except BrokerFailure as error:
            if error.code not in _SESSION_ERRORS:
                self._log.info("fetch failed", node=broker.node, error=str(error))
                self._leave_replicas(broker, AFTER_LOSS_S)
                for tp, reader in list(broker.fetch_states.items()):
                    reader.receiver.failed(BrokerFailure.of(error.code, subject=self._reading(tp), needed="READ"))
                self._refresh(0.1)
                self._loop.call_later(0.1, self._ask, broker)
            else:
                self._ask_after(broker, broker.hasty.pause_s(is_hasty=True))
            return
        except CorruptBatch as error:
            if broker.channel is not None:
                broker.channel.fail(error)
            return
        broker.count_quiet(is_empty=not answer)
        if broker.session.throttle_ms > 0:
            for throttled in broker.fetch_states.values():
                throttled.receiver.throttled(self._quota, broker.session.throttle_ms / 1000)
        if broker.comparing:
            self._replicas.compared(broker)
        for fetched in _in_turn(broker, answer):
            fetch_state = broker.fetch_states.get(fetched.topic_partition)
            if fetch_state is None:
                continue
            broker.to_consider[fetched.topic_partition] = fetch_state
            if fetched.error_code:
                self._partition_failed(broker, fetch_state, fetched)
                continue
            before = fetch_state.receiver.offset
            if before != fetch_state.asked_for or fetch_state.must_be_validated(broker.version):
                continue  # its position changed meanwhile; the difference is not a hole
            if fetched.preferred_replica >= 0:
                self._follow(fetch_state, fetched.preferred_replica)
                continue
            if fetched.diverging is not None and fetch_state.replica >= 0:
                self._leave_replica(fetch_state, AFTER_ERROR_S, diverging=True)  # it may only lag behind the leader
                continue
            if fetched.diverging is not None:
                fetch_state.paused_until = time.monotonic() + _DIVERGED_PAUSE_S
                self._replicas.leader_changed(fetched.topic_partition)  # the next position has to be compared, too
                fetch_state.receiver.diverged(*fetched.diverging)
                continue
            if self._throttle.active:
                self._throttle.consume(fetched.topic_partition.topic, len(fetched.records))
            # A follower learns the high watermark later than the leader.
            end = max(fetched.high_watermark, before) if fetch_state.replica >= 0 else fetched.high_watermark
            taken = fetched._replace(high_watermark=end) if end > fetched.high_watermark else fetched
            _pass_on(fetch_state, taken, self.epoch_read(fetched.topic_partition))
        try:
            if len(frame) <= _SMALL_BYTES:
                self._send()
        finally:
            is_hasty = is_early and not any(fetched.records for fetched in answer)
            is_small = len(frame) <= _PACED_BYTES and _batches(answer) >= _PACED_BATCHES
            self._ask_after(broker, broker.hasty.pause_s(is_hasty=is_hasty) or (_PACE_S if is_small else 0.0))

    def _partition_failed(self, broker: SourceBroker, fetch_state: PartitionFetchState, fetched: Fetched) -> None:
        failure = BrokerFailure.of(fetched.error_code, subject=self._reading(fetched.topic_partition), needed="READ")
        if fetch_state.replica >= 0:
            # An offset that is out of range on a follower may be in range on the leader, which is asked next (KIP-392).
            self._log.info("replica not readable", node=broker.node, error=str(failure))
            self._leave_replica(fetch_state, AFTER_ERROR_S, diverging=failure.code == ErrorCode.OFFSET_OUT_OF_RANGE)
            if failure.stale_metadata:
                self._refresh(0.05)
            return
        if failure.stale_metadata or failure.retriable:
            broker.leave(fetch_state.receiver.partition)
            fetch_state.address = None
            self._refresh(0.05)
        else:
            fetch_state.paused_until = time.monotonic() + 1.0
        fetch_state.receiver.failed(failure)

    def _reading(self, partition: TopicPartition) -> str:
        return f"reading {self._subject(partition)}"

    def _subject(self, partition: TopicPartition) -> str:
        return f"{partition} of cluster {self._cluster.name}"

    # -- connections and leaders -----------------------------------------------------------------------------------

    def _choose_version(self, connection: Connection) -> int:
        with_ids = all(any(topic_id) for topic_id in self._topic_ids.values())
        return connection.version_of(fetch.REQUEST, fetch.MAX_VERSION if with_ids else fetch.TOPIC_IDS_FROM - 1)

    def _opened(self, broker: SourceBroker) -> None:
        broker.session.reset()
        self._ask(broker)

    def _dropped(self, broker: SourceBroker) -> None:
        broker.asked_at = None

    def _try_again(self, broker: SourceBroker) -> None:
        self._ask(broker)

    async def _find_leaders_now(self) -> float | None:
        topics = {tp.topic for tp in self._fetch_states}
        metadata = await self._fresh_metadata(topics)
        accepted = await self._accepted(metadata)
        if self._stale(metadata, accepted):
            metadata = await self._ask_all(metadata, topics, accepted)
        complete = self._assign_leaders(metadata, topics, accepted)
        if {tp.topic for tp in self._fetch_states} - topics:
            return 0.0  # partitions were added meanwhile
        return None if complete else WATCH_S

    def _stale(self, metadata: Metadata, accepted: set[str]) -> set[TopicPartition]:
        """Partitions whose leader in the metadata is outdated."""
        return {
            tp
            for tp, fetch_state in self._fetch_states.items()
            if tp.topic in accepted
            and (info := metadata.topics.get(tp.topic)) is not None
            and (partition := info.partitions.get(tp.partition)) is not None
            and fetch_state.is_stale(info, partition)
        }

    async def _ask_all(self, metadata: Metadata, topics: Iterable[str], accepted: set[str]) -> Metadata:
        """Metadata with the newest leaders of all brokers' responses.

        If all of them name an older leader epoch than the known one for some seconds, the cluster was restored from a
        backup, or the topic was recreated (without topic ids). Then that leader is accepted.
        """
        answers = await self._in_background(self._metadata_of_each, metadata.brokers, topics)
        found = newest_leaders(metadata, answers.values())
        now = time.monotonic()
        stale = self._stale(found, accepted) if are_complete(answers) else set()
        for tp, fetch_state in self._fetch_states.items():
            if fetch_state.is_set_back(now, stale=tp in stale):
                leader_epoch = found.topics[tp.topic].partitions[tp.partition].leader_epoch
                self._log.warning(
                    "all brokers name an older leader epoch than the one that was read",
                    partition=str(tp),
                    leader_epoch=leader_epoch,
                    read=fetch_state.receiver.leader_epoch,
                )
                fetch_state.accept_older_leader(leader_epoch)
        return found

    def _identify(self, accepted: Iterable[str]) -> None:
        for name in accepted:
            topic_id = topic_id_bytes(self._topics.current.get(name, ""))
            if self._topic_ids.get(name, topic_id) != topic_id:
                for broker in self._brokers.values():
                    broker.session.reset()
            self._topic_ids[name] = topic_id

    def _assign_leaders(self, metadata: Metadata, asked: set[str], accepted: set[str]) -> bool:
        """Assign every partition of the requested topics to its leader; True when all have one.

        A partition whose topic's metadata are not ``accepted`` keeps its leader.
        """
        complete = True
        if metadata.cluster_id:
            for fetch_state in list(self._fetch_states.values()):
                fetch_state.receiver.source_is(metadata.cluster_id)  # which may remove the partition
        self._identify(accepted)
        touched: set[BrokerAddress] = set()
        for tp, fetch_state in list(self._fetch_states.items()):
            if tp.topic not in asked:
                continue
            info = metadata.topics.get(tp.topic)
            if info is not None and tp.topic not in accepted:
                complete = False
                if fetch_state.address is None:
                    fetch_state.receiver.failed(self._unaccepted(info, self._subject(tp)))
                continue
            partition = None if info is None else info.partitions.get(tp.partition)
            if info is None or partition is None or partition.leader < 0:
                complete = False
                code = ErrorCode.LEADER_NOT_AVAILABLE if info is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                # A leader that is connected reports what is wrong itself. If nothing is, an idle partition would keep the error:
                # responses do not contain it.
                if not self._is_connected(fetch_state.address):
                    fetch_state.receiver.failed(
                        metadata.errors.get(tp.topic) or BrokerFailure.of(code, subject=self._subject(tp))
                    )
            elif fetch_state.is_stale(info, partition):
                complete = False
                if fetch_state.address is None:
                    message = f"leader epoch {partition.leader_epoch} is older than a known one"
                    fetch_state.receiver.failed(
                        BrokerFailure.of(ErrorCode.LEADER_NOT_AVAILABLE, message, subject=self._subject(tp))
                    )
            elif (address := self._assign(tp, fetch_state, info, partition)) is not None:
                touched.add(address)
        for address in touched:
            self._ask(self._brokers[address])
        return complete

    def _assign(
        self, tp: TopicPartition, fetch_state: PartitionFetchState, info: TopicInfo, partition: PartitionInfo
    ) -> BrokerAddress | None:
        """Read a partition from this leader from now on, or from the follower that it has named; None if it is no longer
        read.
        """
        stays = self._replicas.may_stay(fetch_state, info.topic_id, partition)
        if fetch_state.topic_id != info.topic_id:
            fetch_state.refuted = -1
        fetch_state.topic_id = info.topic_id
        fetch_state.check_topic()
        if tp not in self._fetch_states:
            return None
        node = fetch_state.replica if stays else partition.leader
        address = BrokerAddress(node, fetch_state.slot % self._connections)
        if not stays:
            fetch_state.replica = -1
            if fetch_state.address != address or fetch_state.leader_epoch != partition.leader_epoch:
                fetch_state.unvalidated = True
                self._replicas.leader_changed(tp)
                # Ignore a response under way: if the leader moved and came back, its log may have been truncated since.
                fetch_state.asked_for = -1
        fetch_state.leader, fetch_state.leader_epoch = partition.leader, partition.leader_epoch
        self._move(fetch_state, address)
        return address

    def _move(self, fetch_state: PartitionFetchState, address: BrokerAddress) -> None:
        """Read a partition over this connection from now on."""
        tp = fetch_state.receiver.partition
        if fetch_state.address is not None and fetch_state.address != address:
            self._brokers[fetch_state.address].leave(tp)
            fetch_state.asked_for = -1  # a response of the same broker to an earlier request does not count
        fetch_state.address = address
        self._broker_at(address).read(tp, fetch_state)

    # -- followers ---------------------------------------------------------------------------------------------------

    def _follow(self, fetch_state: PartitionFetchState, node: int) -> None:
        """The leader names this broker, which has a replica in the client's rack."""
        if self._replicas.follow(fetch_state, node, time.monotonic()):
            address = BrokerAddress(node, fetch_state.slot % self._connections)
            self._move(fetch_state, address)
            self._ask(self._brokers[address])

    def _leave_replica(self, fetch_state: PartitionFetchState, held_s: float, *, diverging: bool = False) -> None:
        """Read a partition from its leader again, for at least so many seconds."""
        self._replicas.leave(fetch_state, held_until=time.monotonic() + held_s, diverging=diverging)
        address = BrokerAddress(fetch_state.leader, fetch_state.slot % self._connections)
        self._move(fetch_state, address)
        self._ask(self._brokers[address])

    def _leave_replicas(self, broker: SourceBroker, held_s: float, *, before: float = float("inf")) -> None:
        """Leave a follower, for the partitions that its leader was asked for before this time (monotonic)."""
        for fetch_state in list(broker.fetch_states.values()) if self._replicas.allowed else ():
            if fetch_state.replica == broker.node and fetch_state.replica_until <= before:
                self._leave_replica(fetch_state, held_s)

    def _unreachable(self, broker: SourceBroker, error: KafkaFailure) -> None:
        super()._unreachable(broker, error)
        self._leave_replicas(broker, AFTER_LOSS_S)

    def _is_connected(self, address: BrokerAddress | None) -> bool:
        return address is not None and self._broker_at(address).channel is not None

    def _broker_at(self, address: BrokerAddress) -> SourceBroker:
        if address not in self._brokers:
            self._brokers[address] = SourceBroker(*address, session=FetchSession(self._topic_ids))
        return self._brokers[address]

    def _watch(self) -> None:
        if self._closed:
            return
        self._refresh_old()
        now = time.monotonic()
        for broker in list(self._brokers.values()):
            self._leave_replicas(broker, 0.0, before=now)
            limit = self._request_timeout_s + broker.wait_ms / 1000
            if broker.channel is not None and broker.asked_at is not None and now - broker.asked_at > limit:
                broker.channel.fail(
                    TimeoutFailure(f"broker {broker.node} did not respond to a Fetch request within {limit:.0f} s")
                )
            elif broker.asked_at is None and broker.fetch_states:
                self._ask(broker)
            elif broker.asked_at is not None and now - broker.asked_at > SLOW_RESPONSE_S + broker.wait_ms / 1000:
                self.failure = TimeoutFailure(
                    f"broker {broker.node} has not responded to a Fetch request for {SLOW_RESPONSE_S:.0f} s"
                )
                self._leave_replicas(broker, AFTER_LOSS_S)
        self._loop.call_later(WATCH_S, self._watch)


def _in_turn(broker: SourceBroker, answer: Iterable[Fetched]) -> list[Fetched]:
    """What a response contains; partitions that were passed over come first. Brokers return them in the same order each time, so
    the last ones would be passed over as long as the first ones have much to be re-encoded.
    """

    def passed_over(fetched: Fetched) -> int:
        fetch_state = broker.fetch_states.get(fetched.topic_partition)
        return 0 if fetch_state is None else -fetch_state.passed_over

    return sorted(answer, key=passed_over)


def _pass_on(fetch_state: PartitionFetchState, fetched: Fetched, leader_epoch: int | None) -> None:
    """Pass a partition's part of a response on to its receiver."""
    receiver = fetch_state.receiver
    before = receiver.offset
    receiver.take(fetched, leader_epoch)
    if receiver.passed_over:
        fetch_state.passed_over += 1
        return
    fetch_state.passed_over = 0
    too_small = receiver.offset == before and len(fetched.records) >= fetch_state.max_bytes
    if fetched.records and too_small and not receiver.full:
        # The next batch is larger than the limit; brokers return it whole only as the first of a response.
        fetch_state.max_bytes = min(fetch_state.max_bytes * 4, _MAX_PARTITION_BYTES)


def _batches(answer: Iterable[Fetched]) -> int:
    """The number of batches in a response, counted up to `_PACED_BATCHES`."""
    batches = (view for fetched in answer for view in iter_batches(fetched.records))
    try:
        return sum(1 for _ in itertools.islice(batches, _PACED_BATCHES))
    except CorruptBatch:
        return 0
