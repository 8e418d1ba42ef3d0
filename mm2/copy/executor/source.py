"""The reading side: one Fetch after another per source broker, each answer handed to the partitions' receivers.

A source keeps one request under way per broker and sends the next before the answer's batches are worked on. Where to
read on is the receiver's word (`PartitionReceiver.offset`), so nothing is fetched twice and nothing skipped. A feed that says it is
full is left out of the next request.

All methods and callbacks run on the loop's thread; blocking calls go to ``background``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final, Protocol

from mm2.copy.executor.brokers import SILENT_S, WATCH_S, BrokerAddress, Brokers, Link
from mm2.copy.executor.leaders import agreed_leader, are_complete, newest_leaders
from mm2.copy.executor.throttle import Throttle
from mm2.copy.executor.topic_ids import Belief
from mm2.kafka.cluster import Cluster
from mm2.kafka.connection import Connection
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, CorruptBatch, TimeoutFailure
from mm2.kafka.structs import Metadata, PartitionInfo, TopicInfo, TopicPartition, topic_id_bytes
from mm2.kafka.wire import fetch
from mm2.kafka.wire.channel import BufferPool
from mm2.kafka.wire.fetch import Fetched, FetchSession, Position

_SESSION_ERRORS: Final = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
_HELD_UP_WAIT_MS: Final = 20
#: An answer comes as soon as there is something, so where nothing happens it is asked for less and less often.
_QUIET_WAITS: Final = 4
#: A truncated log is examined meanwhile, and each request would be answered at once.
_DIVERGED_PAUSE_S: Final = 0.2
_LOOK_AGAIN_S: Final = 0.25
_MAX_PARTITION_BYTES: Final = 64 << 20
#: How old may be what `Source.prepare` saw; whoever asks a broker that leads no more is told so.
_PREPARED_S: Final = 30.0
#: A lower leader epoch than one that was read is believed when all brokers name it for so long.
_SET_BACK_AFTER_S: Final = 3.0


class PartitionReceiver(Protocol):
    """What a partition's receiver offers."""

    offset: int  # next source offset to fetch
    leader_epoch: int  # of the last batch read, -1 for none
    topic_id: str  # of the topic that ``offset`` belongs to, "" while it does not matter
    retired: tuple[str, ...]  # ids that topic had before

    @property
    def partition(self) -> TopicPartition:
        """The source partition."""

    held: bool  # it is not to be read until somebody says so

    @property
    def idle(self) -> bool:
        """Nothing waits."""

    @property
    def full(self) -> bool:
        """Enough is waiting already."""

    @property
    def stuck(self) -> bool:
        """It will stay full for a while, or for good."""

    @property
    def behind(self) -> bool:
        """Far from the end: others go first when there is a limit."""

    def take(self, fetched: Fetched) -> None:
        """One partition's share of an answer without an error; may be empty. Moves ``offset``."""

    def failed(self, failure: BrokerFailure) -> None:
        """The broker's error for this partition, other than those that metadata mends."""

    def renewed(self, topic_id: str) -> None:
        """The topic was deleted and created anew, under this id: its offsets begin again.

        Said again and again, and nothing is read, until `topic_id` is that one.
        """

    def diverged(self, epoch: int, end_offset: int) -> None:
        """The log was truncated: of what was read it has only records below this offset and of this or an older epoch."""

    def unchecked(self) -> None:
        """A leader that does not check it itself has to be asked whether the log still has what was read (KIP-320).

        Nothing is read until `Source.validated`. Said again and again.
        """

    def throttled(self) -> None:
        """A limit of ours keeps it from being read right now."""


@dataclass(slots=True, eq=False)
class _Intake:
    """A feed with what the source knows about it."""

    feed: PartitionReceiver
    max_bytes: int
    slot: int = 0
    place: BrokerAddress | None = None
    leader_epoch: int = -1
    paused_until: float = 0.0
    asked_for: int = -1  # the offset that the request under way names
    settled: bool = False  # it is asked for, and nothing has come since: only its own offset can make a difference
    topic_id: str = ""  # of the topic as it is now
    unchecked: bool = True  # its leader or the leader's epoch changed since the position was validated
    strange: bool = False  # the feed's offset belongs to a topic that is no more
    set_back_s: float = (
        0.0  # since when (monotonic) all brokers name a lower leader epoch than the known one, if they do
    )
    refuted: int = -1  # a leader epoch of the feed that all brokers contradict: the cluster was set back


@dataclass(slots=True, eq=False)
class _SourceBroker(Link):
    """One connection to a broker: its fetch session and partitions that the broker leads."""

    session: FetchSession = field(default_factory=lambda: FetchSession({}))
    asked_at: float | None = None  # monotonic seconds; None while no answer is due
    wait_ms: int = 0  # how long the broker may hold the answer back
    quiet: int = 0  # answers in a row that brought nothing
    intakes: dict[TopicPartition, _Intake] = field(default_factory=dict)
    wanted: dict[TopicPartition, Position] = field(default_factory=dict)  # what the last request asked for in all
    left: dict[TopicPartition, None] = field(default_factory=dict)  # since the last request, each once and in order
    recess: bool = False  # some partitions wait for the throttle

    def leave(self, partition: TopicPartition) -> None:
        """It is not read here any more."""
        if self.intakes.pop(partition, None) is not None:
            self.left[partition] = None


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Sizes in bytes, waits in ms, as ``fetch.*`` and ``max.partition.fetch.bytes`` of the consumer."""

    max_bytes: int = 8 << 20
    partition_bytes: int = 1 << 20
    max_wait_ms: int = 500
    min_bytes: int = 1


class Source(Brokers[_SourceBroker]):
    """All feeds from one cluster."""

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
        connections: int = 1,
    ) -> None:
        """``room`` says whether another answer may be asked for at all (memory)."""
        super().__init__(cluster, loop, background, pool, connections=connections)
        self._limits = limits
        self._throttle = throttle
        self._read_committed = read_committed
        self._room = room
        self._intakes: dict[TopicPartition, _Intake] = {}
        self._topic_ids: dict[str, bytes] = {}
        self._committed: set[TopicPartition] = set()  # these need READ_COMMITTED whatever the others need
        self._resuming = False
        self._prepared: tuple[float, Metadata] | None = None  # when, and what
        self._placing = False
        self._watch()

    def add(self, feeds: Iterable[PartitionReceiver]) -> None:
        """Start fetching for these partitions."""
        for feed in feeds:
            if feed.partition not in self._intakes:
                self._topics.expect(feed.partition.topic, feed.topic_id, feed.retired, time.monotonic())
                self._intakes[feed.partition] = _Intake(feed, self._limits.partition_bytes, len(self._intakes))
        if self._prepared is None or time.monotonic() - self._prepared[0] > _PREPARED_S:
            self._refresh(0.0)
        elif not self._placing:
            self._placing = True
            self._loop.call_soon(self._place_prepared)

    async def prepare(self, partitions: Sequence[TopicPartition]) -> None:
        """Look up the leaders of partitions that are to be added soon, and connect to them: nothing is read yet.

        Raises KafkaFailure when the cluster cannot be asked. A partition without a leader is looked up again by `add`.
        """
        names = sorted({tp.topic for tp in partitions})
        metadata: Metadata = await self._in_background(self._cluster.metadata, names)
        places: set[BrokerAddress] = set()
        for slot, tp in enumerate(partitions):
            info = metadata.topics.get(tp.topic)
            partition = None if info is None else info.partitions.get(tp.partition)
            if partition is None or partition.leader < 0:
                return
            places.add(BrokerAddress(partition.leader, slot % self._connections))
        self._identify(await self._believed(metadata))
        self._prepared = time.monotonic(), metadata
        for place in places - self._brokers.keys():
            self._open(self._broker_at(place))

    def _place_prepared(self) -> None:
        self._placing = False
        if self._prepared is None or self._over:
            return
        _, metadata = self._prepared
        asked = {tp.topic for tp, intake in self._intakes.items() if intake.place is None}
        now = time.monotonic()
        believed = {
            name
            for name, info in metadata.topics.items()
            if self._topics.judge(name, info.topic_id, now) is Belief.BELIEVED
        }
        if not asked <= believed or not self._place(metadata, asked, believed):
            self._prepared = None
            self._refresh(0.0)

    def leader_epoch(self, partition: TopicPartition) -> int:
        """Leader epoch of a partition as the newest metadata have it; -1 when it is not known."""
        intake = self._intakes.get(partition)
        if intake is not None and intake.place is not None:
            return intake.leader_epoch
        prepared = None if self._prepared is None else self._prepared[1].topics.get(partition.topic)
        found = None if prepared is None else prepared.partitions.get(partition.partition)
        return -1 if found is None else found.leader_epoch

    def remove(self, partition: TopicPartition) -> None:
        """Fetch no more for a partition."""
        intake = self._intakes.pop(partition, None)
        self._committed.discard(partition)
        if intake is not None and intake.place is not None:
            self._brokers[intake.place].leave(partition)

    def resume(self) -> None:
        """Ask again where room was missing; cheap to call often, as it is done once per turn of the loop."""
        if not self._resuming and not self._over:
            self._resuming = True
            self._loop.call_soon(self._resume_now)

    def isolate(self, partition: TopicPartition, *, committed: bool) -> None:
        """Whether a partition has to be read with READ_COMMITTED although the source is not.

        The isolation is per request: the others are read up to the last stable offset meanwhile.
        """
        if committed:
            self._committed.add(partition)
        else:
            self._committed.discard(partition)

    def validated(self, partition: TopicPartition, leader_epoch: int) -> None:
        """The log of the leader of this epoch has what was read. It is asked again where another one leads by now."""
        intake = self._intakes.get(partition)
        if intake is not None and intake.leader_epoch == leader_epoch:
            intake.unchecked = False
        self.resume()

    async def is_agreed(self, partition: TopicPartition) -> bool:
        """Whether all brokers name the leader and leader epoch from which a partition is read. Raises KafkaFailure."""
        topics = [partition.topic]
        metadata: Metadata = await self._in_background(self._cluster.metadata, topics, max_age_s=0.0)
        answers = await self._in_background(self._metadata_of_each, metadata.brokers, topics)
        leader = agreed_leader([metadata, *answers.values()], partition)
        intake = self._intakes.get(partition)
        if leader is None or intake is None or intake.place is None or not are_complete(answers):
            return False
        return (leader.leader, leader.leader_epoch) == (intake.place.node, intake.leader_epoch)

    def look_again(self) -> None:
        """Look up leaders soon."""
        self._refresh(_LOOK_AGAIN_S)

    def reconsider(self, partitions: Iterable[TopicPartition]) -> None:
        """Whether these are to be read is another question than it was."""
        for tp in partitions:
            if tp in self._intakes:
                self._intakes[tp].settled = False
        self.resume()

    def _resume_now(self) -> None:
        self._resuming = False
        for broker in self._brokers.values():
            if broker.asked_at is None and broker.intakes:
                self._ask(broker)

    # -- asking ----------------------------------------------------------------------------------------------------

    def _ask(self, broker: _SourceBroker) -> None:
        channel = broker.channel
        if self._over or broker.asked_at is not None:
            return
        if channel is None:
            if broker.intakes:  # else its partitions have moved on; it may be gone for good
                self._open(broker)
            return
        if not self._room():
            return
        now = time.monotonic()
        wanted = broker.wanted
        held_up = False
        throttled = self._throttle.active
        max_bytes = self._limits.max_bytes
        throttled_s = 0.0
        looked_at = [
            (tp, intake)
            for tp, intake in broker.intakes.items()
            if throttled or not intake.settled or intake.feed.held or intake.feed.offset != intake.asked_for
        ]
        touched = broker.left
        broker.left = {}
        for tp in touched:
            wanted.pop(tp, None)
        for tp, intake in looked_at:
            feed = intake.feed
            touched[tp] = None
            wanted.pop(tp, None)
            intake.settled = False
            if intake.strange and self._is_strange(intake):
                continue
            if self._must_be_checked(broker, intake):
                if not feed.held:
                    feed.unchecked()
                continue
            if feed.full:
                held_up = held_up or not feed.stuck
            elif intake.paused_until <= now:
                size = intake.max_bytes
                if throttled:
                    room, wait_s = self._throttle.room(tp.topic, now, behind=feed.behind)
                    if not room:
                        feed.throttled()
                        throttled_s = min(throttled_s or wait_s, wait_s)
                        continue
                    size = int(min(size, room))
                    # The limit of one topic is no reason to ask for less of the others.
                    max_bytes = int(min(max_bytes, self._throttle.flow_room(behind=feed.behind)))
                intake.asked_for = feed.offset
                intake.unchecked = False
                intake.settled = feed.idle
                wanted[tp] = Position(feed.offset, intake.leader_epoch, size, feed.leader_epoch)
        if throttled_s and not broker.recess:
            broker.recess = True
            self._loop.call_later(throttled_s, self._recess_over, broker)
        if not wanted:
            broker.left = touched
            return
        if looked_at:
            broker.quiet = 0
        if held_up or throttled_s:
            # A partition that was left out must not wait for the others' silence to end.
            broker.wait_ms = _HELD_UP_WAIT_MS
        else:
            broker.wait_ms = self._limits.max_wait_ms * min(1 << broker.quiet, _QUIET_WAITS)
        connection = channel.connection
        correlation_id = connection.next_correlation_id()
        frame = broker.session.request(
            broker.version,
            correlation_id,
            connection.client_id,
            wanted,
            max_wait_ms=broker.wait_ms,
            min_bytes=self._limits.min_bytes,
            max_bytes=max_bytes,
            read_committed=self._read_committed or bool(self._committed),
            touched=touched,
        )
        broker.asked_at = now
        channel.send([frame], correlation_id)

    def _recess_over(self, broker: _SourceBroker) -> None:
        broker.recess = False
        self._ask(broker)

    def _answered(self, broker: _SourceBroker, frame: memoryview) -> None:
        broker.asked_at = None
        self._heard(broker)
        if self._over:
            return
        try:
            answer = broker.session.response(broker.version, frame)
        except BrokerFailure as error:
            if error.code not in _SESSION_ERRORS:
                self._log.info("a fetch failed", node=broker.node, error=str(error))
                for tp, reader in list(broker.intakes.items()):
                    reader.feed.failed(BrokerFailure.of(error.code, subject=self._reading(tp)))
                self._refresh(0.1)
                self._loop.call_later(0.1, self._ask, broker)
            else:
                self._ask(broker)
            return
        except CorruptBatch as error:
            if broker.channel is not None:
                broker.channel.fail(error)
            return
        broker.quiet = 0 if answer else min(broker.quiet + 1, _QUIET_WAITS)
        for fetched in answer:
            intake = broker.intakes.get(fetched.topic_partition)
            if intake is None:
                continue
            intake.settled = False
            if fetched.error_code:
                self._partition_failed(broker, intake, fetched)
                continue
            before = intake.feed.offset
            if before != intake.asked_for or self._must_be_checked(broker, intake):
                continue  # it was sent elsewhere meanwhile; what lies between is no hole
            if fetched.diverging is not None:
                intake.paused_until = time.monotonic() + _DIVERGED_PAUSE_S
                intake.feed.diverged(*fetched.diverging)
                continue
            if self._throttle.active:
                self._throttle.came(fetched.topic_partition.topic, len(fetched.records))
            intake.feed.take(fetched)
            too_small = intake.feed.offset == before and len(fetched.records) >= intake.max_bytes
            if fetched.records and too_small and not intake.feed.full:
                # The next batch is larger than what we ask for; brokers send it whole only as an answer's first.
                intake.max_bytes = min(intake.max_bytes * 4, _MAX_PARTITION_BYTES)
        self._ask(broker)

    def _partition_failed(self, broker: _SourceBroker, intake: _Intake, fetched: Fetched) -> None:
        failure = BrokerFailure.of(fetched.error_code, subject=self._reading(fetched.topic_partition))
        if failure.stale_metadata or failure.retriable:
            broker.leave(intake.feed.partition)
            intake.place = None
            self._refresh(0.05)
        else:
            intake.paused_until = time.monotonic() + 1.0
        intake.feed.failed(failure)

    def _reading(self, partition: TopicPartition) -> str:
        return f"reading {partition} of cluster {self._cluster.name}"

    # -- connections and leaders -----------------------------------------------------------------------------------

    def _choose_version(self, connection: Connection) -> int:
        with_ids = all(any(topic_id) for topic_id in self._topic_ids.values())
        return connection.version_of(fetch.REQUEST, fetch.MAX_VERSION if with_ids else fetch.TOPIC_IDS_FROM - 1)

    def _opened(self, broker: _SourceBroker) -> None:
        broker.session.reset()
        self._ask(broker)

    def _dropped(self, broker: _SourceBroker) -> None:
        broker.asked_at = None

    def _try_again(self, broker: _SourceBroker) -> None:
        self._ask(broker)

    async def _find_leaders_now(self) -> float | None:
        topics = {tp.topic for tp in self._intakes}
        metadata = await self._fresh_metadata(topics)
        believed = await self._believed(metadata)
        if self._stale(metadata, believed):
            metadata = await self._ask_all(metadata, topics, believed)
        complete = self._place(metadata, topics, believed)
        if {tp.topic for tp in self._intakes} - topics:
            return 0.0  # some were added meanwhile
        return None if complete else WATCH_S

    @staticmethod
    def _is_stale(intake: _Intake, info: TopicInfo, partition: PartitionInfo) -> bool:
        """Whether a later leader of the same topic is known than the one that metadata name."""
        known = intake.leader_epoch if intake.topic_id == info.topic_id else -1
        feed = intake.feed
        if feed.topic_id in ("", info.topic_id) and feed.leader_epoch > intake.refuted:
            known = max(known, feed.leader_epoch)
        return 0 <= partition.leader_epoch < known

    def _stale(self, metadata: Metadata, believed: set[str]) -> set[TopicPartition]:
        """Partitions of which metadata name a leader of the past."""
        return {
            tp
            for tp, intake in self._intakes.items()
            if tp.topic in believed
            and (info := metadata.topics.get(tp.topic)) is not None
            and (partition := info.partitions.get(tp.partition)) is not None
            and self._is_stale(intake, info, partition)
        }

    async def _ask_all(self, metadata: Metadata, topics: Iterable[str], believed: set[str]) -> Metadata:
        """Metadata with the newest leaders of all brokers' answers.

        Where all of them name an older leader epoch than the known one for some seconds, the cluster was set back, or the topic
        is another one (before topic ids): then that leader is believed.
        """
        answers = await self._in_background(self._metadata_of_each, metadata.brokers, topics)
        found = newest_leaders(metadata, answers.values())
        now = time.monotonic()
        stale = self._stale(found, believed) if are_complete(answers) else set()
        for tp, intake in self._intakes.items():
            if tp not in stale:
                intake.set_back_s = 0.0
                continue
            intake.set_back_s = intake.set_back_s or now
            if now - intake.set_back_s >= _SET_BACK_AFTER_S:
                leader_epoch = found.topics[tp.topic].partitions[tp.partition].leader_epoch
                self._log.warning(
                    "all brokers name an older leader epoch than was read",
                    partition=str(tp),
                    leader_epoch=leader_epoch,
                    read=intake.feed.leader_epoch,
                )
                intake.refuted = max(intake.feed.leader_epoch, leader_epoch)
                intake.leader_epoch = -1
                intake.set_back_s = 0.0
        return found

    def _identify(self, believed: Iterable[str]) -> None:
        for name in believed:
            topic_id = topic_id_bytes(self._topics.current.get(name, ""))
            if self._topic_ids.get(name, topic_id) != topic_id:
                for broker in self._brokers.values():
                    broker.session.reset()
            self._topic_ids[name] = topic_id

    def _place(self, metadata: Metadata, asked: set[str], believed: set[str]) -> bool:
        """Put every feed whose topic was asked for with its leader; True when all have one.

        A feed whose topic's metadata are not ``believed`` stays where it is.
        """
        complete = True
        self._identify(believed)
        touched: set[BrokerAddress] = set()
        for tp, intake in list(self._intakes.items()):
            if tp.topic not in asked:
                continue
            info = metadata.topics.get(tp.topic)
            if info is not None and tp.topic not in believed:
                complete = False
                continue
            partition = None if info is None else info.partitions.get(tp.partition)
            if info is None or partition is None or partition.leader < 0:
                complete = False
                subject = f"{tp} of cluster {self._cluster.name}"
                code = ErrorCode.LEADER_NOT_AVAILABLE if info is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                intake.feed.failed(metadata.errors.get(tp.topic) or BrokerFailure.of(code, subject=subject))
                continue
            if self._is_stale(intake, info, partition):
                complete = False
                if intake.place is None:
                    message = f"leader epoch {partition.leader_epoch} is older than one that was seen"
                    intake.feed.failed(
                        BrokerFailure.of(
                            ErrorCode.LEADER_NOT_AVAILABLE, message, subject=f"{tp} of cluster {self._cluster.name}"
                        )
                    )
                continue
            if intake.topic_id != info.topic_id:
                intake.refuted = -1
            intake.topic_id = info.topic_id
            intake.strange = self._is_strange(intake)
            if tp not in self._intakes:
                continue
            place = BrokerAddress(partition.leader, intake.slot % self._connections)
            if intake.place != place or intake.leader_epoch != partition.leader_epoch:
                intake.unchecked = True
            intake.leader_epoch = partition.leader_epoch
            intake.settled = False
            if intake.place is not None and intake.place != place:
                self._brokers[intake.place].leave(tp)
            intake.place = place
            self._broker_at(place).intakes[tp] = intake
            touched.add(place)
        for place in touched:
            self._ask(self._brokers[place])
        return complete

    def _broker_at(self, place: BrokerAddress) -> _SourceBroker:
        if place not in self._brokers:
            self._brokers[place] = _SourceBroker(*place, session=FetchSession(self._topic_ids))
        return self._brokers[place]

    @staticmethod
    def _must_be_checked(broker: _SourceBroker, intake: _Intake) -> bool:
        """From Fetch 12 on the leader itself compares the epoch of the last batch that was read (KIP-595)."""
        return intake.unchecked and broker.version < fetch.FLEXIBLE_FROM and intake.feed.leader_epoch >= 0

    @staticmethod
    def _is_strange(intake: _Intake) -> bool:
        feed = intake.feed
        feed.topic_id = feed.topic_id or intake.topic_id
        if not intake.topic_id or feed.topic_id == intake.topic_id:
            intake.strange = False
            return False
        feed.renewed(intake.topic_id)
        return True

    def _watch(self) -> None:
        if self._over:
            return
        self._refresh_old()
        now = time.monotonic()
        for broker in self._brokers.values():
            limit = self._request_timeout_s + broker.wait_ms / 1000
            if broker.channel is not None and broker.asked_at is not None and now - broker.asked_at > limit:
                broker.channel.fail(
                    TimeoutFailure(f"broker {broker.node} did not answer a Fetch request in {limit:.0f} s")
                )
            elif broker.asked_at is None and broker.intakes:
                self._ask(broker)
            elif broker.asked_at is not None and now - broker.asked_at > SILENT_S + broker.wait_ms / 1000:
                self.failure = TimeoutFailure(f"broker {broker.node} has not answered a Fetch for {SILENT_S:.0f} s")
        self._loop.call_later(WATCH_S, self._watch)
