"""Simulated brokers, their controller, replication and client requests.

The controller decides about leaders and in-sync replicas immediately; each broker applies it after its own delay. Not
simulated: segments, retention and compaction, quotas, authorization, transactions of clients of the target.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from kafka.protocol.admin import DescribeConfigsResponse, DescribeProducersResponse
from kafka.protocol.consumer import ListOffsetsResponse, OffsetForLeaderEpochResponse
from kafka.protocol.metadata import MetadataResponse

from mm2.kafka.error_codes import ErrorCode
from tests.simulation import protocol
from tests.simulation.network import Link, Network
from tests.simulation.protocol import FetchCall, Head, Read, Share
from tests.simulation.storage import Batch, Replica, batch_at
from tests.simulation.world import Event, World

Place = tuple[str, int]
_REPLICATED_BYTES = 4_000


class Leadership(NamedTuple):
    """The leader, epoch and ISR of a partition as the controller decided."""

    leader: int
    epoch: int
    isr: tuple[int, ...]
    version: int


@dataclass(slots=True, eq=False)
class Partition:
    """The controller's view."""

    place: Place
    replicas: dict[int, Replica]
    state: Leadership
    lost: bool = False  # by an unclean election


@dataclass(slots=True)
class Options:
    """``hold_high_watermark``: it does not advance below min.insync.replicas (KIP-966, Kafka 3.7 and later).

    ``late_requests``: any number of requests of a connection that was closed are processed, at any later time. Otherwise at most the
    one that the broker works on or would read next, and nothing that arrives later; except writes to the topics in `Cluster.late_topics`.
    """

    release: str = "3.7"
    min_isr: int = 2
    expiration_ms: int = 86_400_000
    check_interval_s: float = 600.0
    lag_time_s: float = 10.0
    session_s: float = 3.0
    hold_high_watermark: bool = False
    late_requests: bool = False


@dataclass(slots=True, eq=False)
class _Writing:
    """A Produce request that waits for replicas."""

    link: Link
    head: Head
    results: dict[Place, tuple[str | bytes, int, int, int]]
    waiting: dict[Place, int]  # offset that has to be below the high watermark
    timer: Event | None = None
    over: bool = False


@dataclass(slots=True, eq=False)
class _Reading:
    """A Fetch request that waits for records."""

    link: Link
    head: Head
    call: FetchCall
    timer: Event | None = None
    over: bool = False


@dataclass(slots=True, eq=False)
class _Client:
    """A broker's end of a connection: requests are processed one at a time."""

    link: Link
    buffer: bytearray = field(default_factory=bytearray)
    queue: deque[bytes] = field(default_factory=deque)
    busy: bool = False
    closed: bool = False
    late: bool = False  # its next request was deferred


class Broker:
    """``cut``: no connection to the controller, which has fenced it. ``stalled``: it processes no request."""

    def __init__(self, cluster: Cluster, node: int) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.node = node
        self.host = f"{cluster.name}{node}"
        self.alive = True
        self.stalled_until = 0.0
        self.cut_until = 0.0
        self.unreachable_until = 0.0  # for clients
        self.lag_s = 0.0  # delay of decisions of the controller
        self.view: dict[Place, Leadership] = {}
        self.ids: dict[str, uuid.UUID] = {}
        self.replicas: dict[Place, Replica] = {}
        self.slow_fetch_s: dict[Place, float] = {}  # how long a follower's fetch takes there
        self.error_chance = 0.0
        self._clients: dict[Link, _Client] = {}
        self._writing: list[_Writing] = []
        self._reading: list[_Reading] = []
        self._heard = 0  # decisions of the controller that were applied
        self.world.after(self.world.random.random() * cluster.options.check_interval_s, self.after_check)

    @property
    def stalled(self) -> bool:
        return self.stalled_until > self.world.now

    @property
    def cut(self) -> bool:
        return self.cut_until > self.world.now

    # -- connections

    def reachable(self) -> bool:
        return self.alive

    def hold_s(self) -> float:
        return max(0.0, self.unreachable_until - self.world.now)

    def accept(self, link: Link) -> None:
        self._clients[link] = _Client(link)

    def received(self, link: Link, data: bytes) -> None:
        client = self._clients.get(link)
        if client is None or not self.alive:
            return
        client.buffer += data
        while len(client.buffer) >= 4:
            size = int.from_bytes(client.buffer[:4], "big")
            if len(client.buffer) < 4 + size:
                break
            frame = bytes(client.buffer[4 : 4 + size])
            del client.buffer[: 4 + size]
            if not client.closed or self.cluster.options.late_requests:
                client.queue.append(frame)
            elif self._may_be_late(frame):
                client.queue.append(frame)
                client.late = False
        self._serve(client)

    def closed(self, link: Link) -> None:
        client = self._clients.get(link)
        if client is None:
            return
        client.closed = True
        self._drop_late(client)
        self.world.after(30.0, self._clients.pop, link, None)  # until then requests may still arrive

    def _drop_late(self, client: _Client) -> None:
        """Discard the requests that the broker has not read when the connection closes, except the next one."""
        if not self.cluster.options.late_requests:
            kept = 0 if client.busy or self.world.random.random() < 0.3 else 1
            while len(client.queue) > kept and not self._may_be_late(client.queue[-1]):
                client.queue.pop()

    def _serve(self, client: _Client) -> None:
        if client.busy or not client.queue or not self.alive or self.stalled:
            return
        if client.closed and not client.late and self._may_be_late(client.queue[0]):
            client.late = True
            self.world.after(self.world.random.choice([0.0, 0.5, 5.0, 20.0]), self._serve, client)
            return
        client.busy = True
        frame = client.queue.popleft()
        self._handle(client.link, frame)

    def _may_be_late(self, frame: bytes) -> bool:
        """Whether it writes to topics in which late writes are simulated: ledger and offsets topic."""
        head = protocol.head_of(frame)
        if head.api_key != protocol.PRODUCE:
            return False
        names = {self._name_of(write.topic) for write in protocol.produce_call(head, frame)[1]}
        return names <= self.cluster.late_topics

    def respond(self, link: Link, data: bytes) -> None:
        client = self._clients.get(link)
        if client is None or not self.alive:
            return
        client.busy = False
        if not client.closed:
            link.to_client(data)
        if client.queue:
            self.world.after(0.00005, self._serve, client)

    # -- requests

    def _handle(self, link: Link, frame: bytes) -> None:
        head = protocol.head_of(frame)
        kind = head.api_key
        if kind == protocol.PRODUCE:
            self._produce(link, head, frame)
        elif kind == protocol.FETCH:
            reading = _Reading(link, head, protocol.fetch_call(head, frame))
            if not self._try_read(reading, last=False):
                self._reading.append(reading)
                reading.timer = self.world.after(reading.call.max_wait_ms / 1000, self._read_expired, reading)
        elif kind == protocol.METADATA:
            self.respond(link, self._metadata(head, protocol.call_of(head, frame)))
        elif kind == protocol.LIST_OFFSETS:
            self.respond(link, self._list_offsets(head, protocol.call_of(head, frame)))
        elif kind == protocol.DESCRIBE_PRODUCERS:
            self.respond(link, self._describe_producers(head, protocol.call_of(head, frame)))
        elif kind == protocol.OFFSET_FOR_EPOCH:
            self.respond(link, self._offset_for_epoch(head, protocol.call_of(head, frame)))
        elif kind == protocol.INIT_PRODUCER_ID:
            self.cluster.producer_ids += 1
            fields = {"error_code": 0, "producer_id": self.cluster.producer_ids, "producer_epoch": 0}
            self.respond(link, protocol.schema_answer(head, **fields))
        elif kind == protocol.DESCRIBE_CONFIGS:
            self.respond(link, self._describe_configs(head, protocol.call_of(head, frame)))
        elif kind == protocol.API_VERSIONS:
            self.respond(link, protocol.versions_answer(head, self.cluster.options.release))
        else:
            message = f"request {kind} is not simulated"
            raise NotImplementedError(message)

    def _name_of(self, topic: str | bytes) -> str | None:
        if isinstance(topic, str):
            return topic if topic in self.ids else None
        return next((name for name, topic_id in self.ids.items() if topic_id.bytes == topic), None)

    def _replica_or_error(self, topic: str | bytes, index: int, epoch: int = -1) -> Replica | int:
        name = self._name_of(topic)
        if name is None:
            known = isinstance(topic, str)
            return int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if known else ErrorCode.UNKNOWN_TOPIC_ID)
        replica = self.replicas.get((name, index))
        if replica is None:
            return int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if epoch >= 0 and epoch < replica.epoch:
            return int(ErrorCode.FENCED_LEADER_EPOCH)
        if epoch > replica.epoch:
            return int(ErrorCode.UNKNOWN_LEADER_EPOCH)
        return replica

    def _leader_or_error(self, topic: str | bytes, index: int, epoch: int = -1) -> Replica | int:
        replica = self._replica_or_error(topic, index, epoch)
        if isinstance(replica, Replica) and not replica.leads:
            return int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return replica

    def _produce(self, link: Link, head: Head, frame: bytes) -> None:
        timeout_ms, writes = protocol.produce_call(head, frame)
        writing = _Writing(link, head, {}, {})
        options = self.cluster.options
        appended: list[Replica] = []
        for write in writes:
            replica = self._leader_or_error(write.topic, write.partition)
            place = (self._name_of(write.topic) or "", write.partition)
            error, base = 0, -1
            if isinstance(replica, int):
                error = replica
            elif len(replica.isr) < options.min_isr:
                error = int(ErrorCode.NOT_ENOUGH_REPLICAS)
            elif self.error_chance and self.world.random.random() < self.error_chance:
                error = self.world.random.choice(
                    [int(ErrorCode.KAFKA_STORAGE_ERROR), int(ErrorCode.UNKNOWN_SERVER_ERROR)]
                )
                if self.world.random.random() < 0.5:
                    self._append(replica, write.data)
                    appended.append(replica)
            else:
                error, base, after = self._append(replica, write.data)
                if not error:
                    writing.waiting[place] = after
                    appended.append(replica)
            writing.results[place] = (write.topic, write.partition, error, base)
            self.cluster.on_produce(self.node, place, error, base, write.data)
        for replica in appended:
            self.advance(replica)
            self.cluster.replicate(replica)
        if not self._try_write(writing):
            self._writing.append(writing)
            writing.timer = self.world.after(timeout_ms / 1000, self._write_expired, writing)

    def _append(self, replica: Replica, data: memoryview) -> tuple[int, int, int]:
        if len(data) > self.cluster.max_message_bytes.get(replica.topic, len(data)):
            return int(ErrorCode.MESSAGE_TOO_LARGE), -1, -1
        batch = batch_at(data, replica.end, replica.epoch)
        error, repeated = replica.check(batch)
        if error:
            return error, -1, -1
        if repeated >= 0:
            return 0, repeated, repeated + batch.after - batch.base
        replica.append(batch)
        return 0, batch.base, batch.after

    def _try_write(self, writing: _Writing) -> bool:
        if writing.over:
            return True
        options = self.cluster.options
        for place, after in list(writing.waiting.items()):
            replica = self.replicas.get(place)
            topic, index, _, base = writing.results[place]
            if replica is None or not replica.leads:
                writing.results[place] = (topic, index, int(ErrorCode.NOT_LEADER_OR_FOLLOWER), -1)
            elif replica.high_watermark >= after:
                few = len(replica.isr) < options.min_isr
                code = int(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND) if few else 0
                writing.results[place] = (topic, index, code, -1 if code else base)
            else:
                continue
            del writing.waiting[place]
        if writing.waiting:
            return False
        writing.over = True
        if writing.timer is not None:
            writing.timer.cancel()
        self.respond(writing.link, protocol.produce_answer(writing.head, list(writing.results.values())))
        return True

    def _write_expired(self, writing: _Writing) -> None:
        if writing.over or not self.alive:
            return
        if self.stalled:
            writing.timer = self.world.after(self.stalled_until - self.world.now, self._write_expired, writing)
            return
        for place in writing.waiting:
            topic, index, _, _ = writing.results[place]
            writing.results[place] = (topic, index, int(ErrorCode.REQUEST_TIMED_OUT), -1)
        writing.waiting.clear()
        self._try_write(writing)
        self._writing.remove(writing)

    def retry(self, place: Place) -> None:
        """The high watermark or the leader of a partition has changed."""
        if self._writing:
            self._writing = [
                writing for writing in self._writing if place not in writing.waiting or not self._try_write(writing)
            ]
        if self._reading:
            self._reading = [reading for reading in self._reading if not self._try_read(reading, last=False)]

    def _read_expired(self, reading: _Reading) -> None:
        if reading.over or not self.alive:
            return
        if self.stalled:
            reading.timer = self.world.after(self.stalled_until - self.world.now, self._read_expired, reading)
            return
        self._try_read(reading, last=True)
        self._reading.remove(reading)

    def _try_read(self, reading: _Reading, *, last: bool) -> bool:
        if reading.over:
            return True
        if self.stalled:
            return False
        shares = [self._share(reading.head, read, reading.call) for read in reading.call.reads]
        if not last and not any(share.records or share.error or share.diverging for share in shares):
            return False
        reading.over = True
        if reading.timer is not None:
            reading.timer.cancel()
        self.respond(reading.link, protocol.fetch_answer(reading.head, shares))
        return True

    def _share(self, head: Head, read: Read, call: FetchCall) -> Share:
        share = Share(read.topic, read.partition)
        replica = self._leader_or_error(read.topic, read.partition, read.leader_epoch)
        if isinstance(replica, int):
            share.error = replica
            return share
        share.high_watermark, share.last_stable, share.start = (
            replica.high_watermark,
            replica.last_stable,
            replica.start,
        )
        if head.version >= 12 and read.fetched_epoch >= 0:
            epoch, end = replica.end_of_epoch(read.fetched_epoch)
            if end < 0:
                share.error = int(ErrorCode.OFFSET_OUT_OF_RANGE)
                return share
            if epoch < read.fetched_epoch or end < read.offset:
                share.diverging = (epoch, end)
                return share
        if not replica.start <= read.offset <= replica.end:
            share.error = int(ErrorCode.OFFSET_OUT_OF_RANGE)
            return share
        limit = replica.last_stable if call.read_committed else replica.high_watermark
        batches = replica.read(read.offset, limit, min(read.max_bytes, call.max_bytes)) if read.offset < limit else []
        share.records = b"".join(batch.data for batch in batches)
        if call.read_committed and batches:
            share.aborted = replica.aborted(batches[0].base, batches[-1].after)
        return share

    def _metadata(self, head: Head, call: object) -> bytes:
        names = getattr(call, "topics", None)
        wanted = sorted(self.ids) if names is None else [topic.name for topic in names]
        response = MetadataResponse
        topics = []
        for name in wanted:
            if name not in self.ids:
                topics.append(
                    response.MetadataResponseTopic(
                        error_code=int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                        name=name,
                        topic_id=uuid.UUID(int=0),
                        is_internal=False,
                        partitions=[],
                    )
                )
                continue
            rows = [
                response.MetadataResponseTopic.MetadataResponsePartition(
                    error_code=0 if state.leader >= 0 else int(ErrorCode.LEADER_NOT_AVAILABLE),
                    partition_index=place[1],
                    leader_id=state.leader,
                    leader_epoch=state.epoch,
                    replica_nodes=sorted(self.cluster.brokers),
                    isr_nodes=list(state.isr),
                    offline_replicas=[],
                )
                for place, state in self.view.items()
                if place[0] == name
            ]
            topics.append(
                response.MetadataResponseTopic(
                    error_code=0, name=name, topic_id=self.ids[name], is_internal=False, partitions=rows
                )
            )
        brokers = [
            response.MetadataResponseBroker(node_id=node, host=broker.host, port=9092, rack=None)
            for node, broker in self.cluster.brokers.items()
        ]
        return protocol.schema_answer(
            head,
            throttle_time_ms=0,
            brokers=brokers,
            cluster_id=self.cluster.name,
            controller_id=1,
            topics=topics,
            error_code=0,
        )

    def _list_offsets(self, head: Head, call: object) -> bytes:
        topics = []
        for topic in call.topics:  # type: ignore[attr-defined]
            rows = []
            for part in topic.partitions:
                epoch = getattr(part, "current_leader_epoch", -1)
                epoch = -1 if epoch is None else epoch
                debugging = call.replica_id == -2  # type: ignore[attr-defined]
                find = self._replica_or_error if debugging else self._leader_or_error
                replica = find(topic.name, part.partition_index, epoch)
                error, offset, found_epoch = 0, -1, -1
                if isinstance(replica, int):
                    error = replica
                else:
                    isolation = getattr(call, "isolation_level", 0)
                    latest = replica.last_stable if isolation else replica.high_watermark
                    found_epoch = replica.epoch
                    if part.timestamp == -2:
                        offset = replica.start
                    elif not debugging and replica.epoch_start > replica.high_watermark:
                        old = head.version < 5
                        error = int(ErrorCode.LEADER_NOT_AVAILABLE if old else ErrorCode.OFFSET_NOT_AVAILABLE)
                    elif part.timestamp == -1:
                        offset = replica.end if debugging else latest
                    else:
                        offset = next(
                            (
                                batch.base
                                for batch in replica.log
                                if batch.newest_ms >= part.timestamp and batch.base < latest
                            ),
                            -1,
                        )
                rows.append(
                    ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse(
                        partition_index=part.partition_index,
                        error_code=error,
                        timestamp=-1,
                        offset=offset,
                        leader_epoch=found_epoch,
                    )
                )
            topics.append(ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=rows))
        return protocol.schema_answer(head, throttle_time_ms=0, topics=topics)

    def _describe_producers(self, head: Head, call: object) -> bytes:
        response = DescribeProducersResponse.TopicResponse
        topics = []
        for topic in call.topics:  # type: ignore[attr-defined]
            rows = []
            for index in topic.partition_indexes:
                replica = self._leader_or_error(topic.name, index)
                found = {} if isinstance(replica, int) else replica.producers
                rows.append(
                    response.PartitionResponse(
                        partition_index=index,
                        error_code=replica if isinstance(replica, int) else 0,
                        error_message=None,
                        active_producers=[
                            response.PartitionResponse.ProducerState(
                                producer_id=producer_id,
                                producer_epoch=known.epoch,
                                last_sequence=known.last_sequence,
                                last_timestamp=known.newest_ms,
                                coordinator_epoch=-1,
                                current_txn_start_offset=-1,
                            )
                            for producer_id, known in found.items()
                        ],
                    )
                )
            topics.append(response(name=topic.name, partitions=rows))
        return protocol.schema_answer(head, throttle_time_ms=0, topics=topics)

    def _offset_for_epoch(self, head: Head, call: object) -> bytes:
        result = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
        topics = []
        for topic in call.topics:  # type: ignore[attr-defined]
            rows = []
            for part in topic.partitions:
                replica = self._leader_or_error(topic.topic, part.partition, part.current_leader_epoch)
                known = not isinstance(replica, int)
                epoch, end = replica.end_of_epoch(part.leader_epoch) if isinstance(replica, Replica) else (-1, -1)
                rows.append(
                    result.EpochEndOffset(
                        error_code=0 if known else replica, partition=part.partition, leader_epoch=epoch, end_offset=end
                    )
                )
            topics.append(result(topic=topic.topic, partitions=rows))
        return protocol.schema_answer(head, throttle_time_ms=0, topics=topics)

    def _describe_configs(self, head: Head, call: object) -> bytes:
        response = DescribeConfigsResponse.DescribeConfigsResult
        options = self.cluster.options
        values = {
            2: {
                "cleanup.policy": "delete",
                "min.insync.replicas": str(options.min_isr),
                "message.timestamp.type": "CreateTime",
            },
            4: {
                "producer.id.expiration.ms": str(options.expiration_ms),
                "min.insync.replicas": str(options.min_isr),
                "transactional.id.expiration.ms": "604800000",
            },
        }
        results = []
        for resource in call.resources:  # type: ignore[attr-defined]
            wanted = resource.configuration_keys
            rows = [
                response.DescribeConfigsResourceResult(
                    name=name,
                    value=value,
                    read_only=False,
                    config_source=5,
                    is_sensitive=False,
                    synonyms=[],
                    config_type=0,
                    documentation=None,
                )
                for name, value in values[resource.resource_type].items()
                if wanted is None or name in wanted
            ]
            results.append(
                response(
                    error_code=0,
                    error_message=None,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    configs=rows,
                )
            )
        return protocol.schema_answer(head, throttle_time_ms=0, results=results)

    # -- decisions of the controller

    def hear(self) -> None:
        """Apply the decisions of the controller, unless this broker is disconnected from it."""
        if not self.alive or self.cut or self.stalled:
            return
        decisions = self.cluster.decisions
        while self._heard < len(decisions):
            place, state, topic_id = decisions[self._heard]
            self._heard += 1
            known = self.ids.get(place[0])
            if known != topic_id:
                for other in [other for other in self.view if other[0] == place[0]]:
                    self.view.pop(other)
                    self.replicas.pop(other, None)
                self.ids[place[0]] = topic_id
            self.view[place] = state
            replica = self.cluster.replica(place, self.node, topic_id)
            if replica is not None:
                self.replicas[place] = replica
                self._apply(replica, state)

    def _apply(self, replica: Replica, state: Leadership) -> None:
        was_leader, old_epoch = replica.leads, replica.epoch
        if state.epoch < old_epoch:
            return
        replica.epoch, replica.leader, replica.isr = state.epoch, state.leader, state.isr
        replica.leads = state.leader == self.node
        if replica.leads and (not was_leader or state.epoch != old_epoch):
            replica.epoch_start = replica.end
            replica.epochs = [entry for entry in replica.epochs if entry[1] < replica.end or entry[0] < state.epoch]
            replica.epochs.append((state.epoch, replica.end))
            replica.remote = {}
            self.world.say(
                "leads",
                broker=self.host,
                place=replica.topic,
                partition=replica.partition,
                epoch=state.epoch,
                end=replica.end,
                hw=replica.high_watermark,
            )
        place = (replica.topic, replica.partition)
        if replica.leads:
            self.advance(replica)
            self.cluster.replicate(replica)
        else:
            self.cluster.fetch_soon(place, self.node, 0.001)
        self.retry(place)

    def advance(self, replica: Replica) -> None:
        """Advance the high watermark to the offset that all in-sync replicas have (`Partition.maybeIncrementLeaderHW`)."""
        options = self.cluster.options
        if not replica.leads or (options.hold_high_watermark and len(replica.isr) < options.min_isr):
            return
        end = replica.end
        for node in replica.isr:
            if node != self.node:
                end = min(end, replica.remote.get(node, -1))
        if end > replica.high_watermark:
            replica.high_watermark = end
            self.cluster.on_high_watermark(self.node, replica)
            self.retry((replica.topic, replica.partition))

    # -- time and faults

    def after_check(self) -> None:
        """The periodic check for expired producers."""
        options = self.cluster.options
        if self.alive and not self.stalled and self.cluster.tracks_producers:
            now_ms = int(self.world.wall() * 1000)
            for place, replica in self.replicas.items():
                old = replica.forget(now_ms, options.expiration_ms)
                if old:
                    self.world.say("producers expired", broker=self.host, place=place, producers=old)
        self.world.after(options.check_interval_s, self.after_check)

    def stall(self, seconds: float) -> None:
        """Process no request for some time."""
        self.world.say("broker stalled", broker=self.host, seconds=round(seconds, 2))
        self.stalled_until = max(self.stalled_until, self.world.now + seconds)
        self.world.after(seconds + 1e-6, self._go_on)

    def _go_on(self) -> None:
        if self.stalled or not self.alive:
            return
        self.world.say("broker resumed", broker=self.host)
        clients = list(self._clients.values())
        self.world.random.shuffle(clients)
        # Requests and decisions of the controller that arrived meanwhile are processed in no particular order; but
        # requests on connections that are closed by now come before later requests on others.
        self.world.after(self.world.random.random() * 0.01, self.hear)
        for client in clients:
            delay_s = self.world.random.random() * 0.01
            self.world.after(delay_s if client.closed else 0.01 + delay_s, self._serve, client)
        for place in self.replicas:
            self.retry(place)
            self.cluster.fetch_soon(place, self.node, 0.002)

    def crash(self) -> None:
        """Crash the broker, as kill -9 does."""
        self.world.say("broker killed", broker=self.host)
        self.alive = False
        for client in list(self._clients.values()):
            client.link.reset()
        self._clients.clear()
        for writing in self._writing:
            writing.over = True
        for reading in self._reading:
            reading.over = True
        self._writing.clear()
        self._reading.clear()
        for replica in self.replicas.values():
            replica.leads = False

    def restart(self, *, clean: bool) -> None:
        """Restart. Producer state comes from the log; ``clean``: from a snapshot, without expired producers."""
        if self.alive:
            return
        self.world.say("broker started", broker=self.host, clean=clean)
        self.alive = True
        self.stalled_until = self.cut_until = 0.0
        now_ms = int(self.world.wall() * 1000)
        for replica in self.replicas.values():
            replica.leads = False
            replica.rebuild()
            # The checkpoint of the high watermark is written every five seconds.
            replica.high_watermark = max(replica.start, min(replica.high_watermark, replica.end))
            if clean:
                replica.forget(now_ms, self.cluster.options.expiration_ms)
        self.cluster.returned(self)

    def break_links(self, chance: float) -> None:
        """Reset connections of clients."""
        for client in list(self._clients.values()):
            if not client.closed and self.world.random.random() < chance:
                client.link.reset()
                client.closed = True
                self._drop_late(client)


class Cluster:
    """Three brokers and a controller that never fails. All topics have a replica on each broker."""

    def __init__(self, world: World, network: Network, name: str, options: Options, *, tracks_producers: bool) -> None:
        self.world = world
        self.name = name
        self.options = options
        self.tracks_producers = tracks_producers
        self.producer_ids = 1_000
        self.partitions: dict[Place, Partition] = {}
        self.late_topics: set[str | None] = set()
        self.max_message_bytes: dict[str, int] = {}  # by topic; no limit for others
        self.decisions: list[tuple[Place, Leadership, uuid.UUID]] = []
        self.ids: dict[str, uuid.UUID] = {}
        self.on_high_watermark: Callable[[int, Replica], None] = lambda _node, _replica: None
        self.on_elected: Callable[[Replica, int], None] = lambda _replica, _epoch: None
        self.on_produce: Callable[[int, Place, int, int, memoryview], None] = lambda *_: None
        self.brokers: dict[int, Broker] = {}
        self._fenced: set[int] = set()
        self._generations: dict[str, int] = {}
        self._suspects: dict[Place, dict[int, tuple[float, int]]] = {}
        for node in (1, 2, 3):
            self.brokers[node] = Broker(self, node)
            network.hosts[self.brokers[node].host] = self.brokers[node]
        world.after(options.lag_time_s / 2, self.shrink)

    @property
    def bootstrap(self) -> tuple[tuple[str, int], ...]:
        return tuple((broker.host, 9092) for broker in self.brokers.values())

    def create(self, name: str, partitions: int) -> None:
        generation = self._generations[name] = self._generations.get(name, 0) + 1
        topic_id = self.ids[name] = protocol.topic_id_of(self.name, name, generation)
        for index in range(partitions):
            place = (name, index)
            replicas = {node: Replica(name, index, node) for node in self.brokers}
            leader = 1 + index % len(self.brokers)
            state = Leadership(leader, 0, tuple(sorted(self.brokers)), 0)
            self.partitions[place] = Partition(place, replicas, state)
            self.decisions.append((place, state, topic_id))
        self._tell()

    def replica(self, place: Place, node: int, topic_id: uuid.UUID) -> Replica | None:
        if self.ids.get(place[0]) != topic_id or place not in self.partitions:
            return None
        return self.partitions[place].replicas[node]

    def leader_replica(self, place: Place) -> Replica | None:
        """The replica of the leader that the controller elected, even if its broker has not applied it yet."""
        part = self.partitions[place]
        return part.replicas.get(part.state.leader)

    # -- decisions

    def decide(self, part: Partition, leader: int, isr: tuple[int, ...], *, new_epoch: bool) -> None:
        state = part.state
        epoch = state.epoch + 1 if new_epoch else state.epoch
        part.state = Leadership(leader, epoch, isr, state.version + 1)
        self.world.say("controller", cluster=self.name, place=part.place, leader=leader, epoch=epoch, isr=isr)
        self.decisions.append((part.place, part.state, self.ids[part.place[0]]))
        if new_epoch and leader in part.replicas:
            self.on_elected(part.replicas[leader], epoch)
        self._tell()

    def _tell(self) -> None:
        for broker in self.brokers.values():
            self.world.after(0.001 + broker.lag_s + self.world.random.random() * 0.02, broker.hear)

    def _is_up(self, node: int) -> bool:
        broker = self.brokers[node]
        return broker.alive and node not in self._fenced

    def lost(self, broker: Broker) -> None:
        """Stop the heartbeats of a broker; it is fenced when its session expires, unless they resume."""
        self.world.after(self.options.session_s, self._session_over, broker)

    def _session_over(self, broker: Broker) -> None:
        if broker.node in self._fenced or (broker.alive and not broker.cut and not broker.stalled):
            return
        self._fenced.add(broker.node)
        self.world.say("controller fences", broker=broker.host)
        for part in self.partitions.values():
            state = part.state
            isr = tuple(node for node in state.isr if node != broker.node) or state.isr
            if state.leader == broker.node:
                candidates = [node for node in isr if self._is_up(node)]
                self.decide(part, candidates[0] if candidates else -1, isr, new_epoch=True)
            elif isr != state.isr:
                self.decide(part, state.leader, isr, new_epoch=False)

    def heal(self) -> None:
        """Resume the heartbeats of all running brokers."""
        for node in sorted(self._fenced):
            broker = self.brokers[node]
            if broker.alive and not broker.stalled and not broker.cut:
                self.returned(broker)

    def returned(self, broker: Broker) -> None:
        """Resume the heartbeats of a broker."""
        self._fenced.discard(broker.node)
        for part in self.partitions.values():
            state = part.state
            if state.leader == -1 and broker.node in state.isr:
                self.decide(part, broker.node, state.isr, new_epoch=True)
        self.world.after(0.01, broker.hear)
        for place in broker.replicas:
            self.fetch_soon(place, broker.node, 0.05)

    def move_leader(self, place: Place) -> bool:
        """Elect another in-sync replica (clean election)."""
        part = self.partitions[place]
        others = [node for node in part.state.isr if node != part.state.leader and self._is_up(node)]
        if not others:
            return False
        self.decide(part, self.world.random.choice(others), part.state.isr, new_epoch=True)
        return True

    def elect_unclean(self, place: Place) -> bool:
        """Elect a replica that may lack acknowledged records (unclean election)."""
        part = self.partitions[place]
        others = [node for node in self.brokers if node != part.state.leader and self._is_up(node)]
        if not others:
            return False
        ends = {node: part.replicas[node].end for node in others}
        node = min(others, key=lambda other: (ends[other], other))
        part.lost = True
        self.world.say("unclean election", place=place, node=node, end=ends[node])
        self.decide(part, node, (node,), new_epoch=True)
        return True

    def change_isr(self, leader: Replica, isr: tuple[int, ...]) -> None:
        """A leader requests a change of the ISR (AlterPartition)."""
        part = self.partitions.get((leader.topic, leader.partition))
        broker = self.brokers[leader.broker]
        if (
            part is None
            or part.replicas[leader.broker] is not leader
            or broker.cut
            or broker.stalled
            or not broker.alive
        ):
            return
        known = broker.view.get(part.place)
        # A request that names an older version is rejected (KIP-497: INVALID_UPDATE_VERSION). The leader repeats it when it knows the
        # newer one.
        if known is None or known.version != part.state.version or tuple(sorted(isr)) == part.state.isr:
            return
        # Until the expanded ISR is confirmed, the high watermark waits for its replicas all the same (maximal ISR).
        leader.isr = tuple(sorted({*leader.isr, *isr}))
        self.decide(part, part.state.leader, tuple(sorted(isr)), new_epoch=False)

    # -- replication

    def replicate(self, leader: Replica) -> None:
        """Let all followers fetch from their leaders."""
        place = (leader.topic, leader.partition)
        for node in self.brokers:
            if node != leader.broker:
                self.fetch_soon(place, node, 0.0002 + self.world.random.random() * 0.002)

    def fetch_soon(self, place: Place, node: int, delay_s: float) -> None:
        part = self.partitions.get(place)
        if part is None:
            return
        follower = part.replicas[node]
        at_s = self.world.now + max(delay_s, self.brokers[node].slow_fetch_s.get(place, 0.0))
        if follower.fetch is not None:
            if follower.fetch_at_s <= at_s:
                return
            follower.fetch.cancel()
        follower.fetch_at_s = at_s
        follower.fetch = self.world.after(at_s - self.world.now, self._fetch, part, follower)

    def _fetch(self, part: Partition, follower: Replica) -> None:
        """One fetch of a follower: the leader gets its log end offset, the follower new batches and the high watermark."""
        follower.fetch = None
        broker = self.brokers[follower.broker]
        if not broker.alive or follower.leads or follower.leader < 0 or broker.replicas.get(part.place) is not follower:
            return
        source = self.brokers[follower.leader]
        leader = part.replicas[follower.leader]
        if broker.stalled or source.stalled or not source.alive or source.cut or broker.cut:
            # The fetch is retried later.
            self.fetch_soon(part.place, follower.broker, 0.25)
            return
        if not leader.leads or leader.epoch != follower.epoch:
            if part.state.leader == follower.leader:
                self.fetch_soon(part.place, follower.broker, 0.02)
            return
        common = follower.common_end(leader)
        if common < follower.end:
            self.world.say("truncated", broker=broker.host, place=part.place, end=common, before=follower.end)
            follower.truncate(common)
        # An epoch in which it led and appended no batch (`UnifiedLog.truncateTo` always truncates the epoch cache).
        follower.epochs = [entry for entry in follower.epochs if entry[1] < follower.end]
        leader.remote[follower.broker] = follower.end
        before = leader.high_watermark
        caught_up = follower.end >= max(leader.high_watermark, leader.epoch_start)
        if follower.broker not in leader.isr and caught_up and self._is_up(follower.broker):
            self.change_isr(leader, (*leader.isr, follower.broker))
        source.advance(leader)
        fresh = leader.read(follower.end, leader.end, _REPLICATED_BYTES) if follower.end < leader.end else []
        for batch in fresh:
            follower.append(
                Batch(
                    batch.base,
                    batch.after,
                    batch.epoch,
                    batch.producer,
                    batch.newest_ms,
                    batch.data,
                    batch.control,
                    batch.transactional,
                )
            )
        follower.high_watermark = max(follower.high_watermark, min(leader.high_watermark, follower.end))
        if fresh:
            self.fetch_soon(part.place, follower.broker, 0.0002 + self.world.random.random() * 0.001)
        if leader.high_watermark > before:
            for node in self.brokers:
                if node != leader.broker:
                    self.fetch_soon(part.place, node, self.world.random.random() * 0.5)

    def shrink(self) -> None:
        """Leaders remove lagging followers from the ISR. Called every half of the lag time."""
        for part in self.partitions.values():
            leader = part.replicas.get(part.state.leader)
            if leader is None or not leader.leads:
                continue
            behind = [node for node in leader.isr if node != leader.broker and leader.remote.get(node, -1) < leader.end]
            suspects = self._suspects.setdefault(part.place, {})
            for node in list(suspects):
                if node not in behind:
                    del suspects[node]
            for node in behind:
                since_s, end = suspects.get(node, (self.world.now, -1))
                known = leader.remote.get(node, -1)
                suspects[node] = (since_s, known) if known == end else (self.world.now, known)
            slow = [
                node for node, (since_s, _) in suspects.items() if self.world.now - since_s >= self.options.lag_time_s
            ]
            if slow:
                self.change_isr(leader, tuple(node for node in leader.isr if node not in slow))
        self.world.after(self.options.lag_time_s / 2, self.shrink)
