"""Connections to the brokers of a cluster, shared by reading and writing.

A connection is opened on first use and reopened after a failure, with exponential backoff. Leaders are looked up in
the background, one look-up at a time. All methods run on the loop's thread; blocking calls run in ``background``.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

import structlog

from mm2.copy.executor.clusters.leaders import newest_leaders
from mm2.copy.executor.clusters.topic_ids import IdCheck, TopicIds
from mm2.kafka.backoff import Backoff
from mm2.kafka.client.channel import BufferPool, Channel
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.client.connection import Connection
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import Metadata, TopicInfo

WATCH_S: Final = 0.5
#: Time limit of a re-authentication in the loop.
REAUTHENTICATION_S: Final = 1.0
#: A response may take as long as the request timeout; report it earlier.
SLOW_RESPONSE_S: Final = 10.0
#: Timeout per broker, where several are asked: an unreachable one must not delay the others.
_ONE_OF_MANY_S: Final = 3.0
_WARN_AT: Final = 2  # a single lost connection is normal: brokers close idle ones


class BrokerAddress(NamedTuple):
    """One connection to a broker."""

    node: int
    number: int


@dataclass(slots=True, eq=False)
class Link:
    """The state of one connection to a broker."""

    node: int
    number: int
    channel: Channel | None = None
    opening: bool = False
    version: int = 0  # of the request type sent over it
    failures: int = 0  # consecutive
    not_before: float = 0.0  # monotonic seconds; no new connection earlier

    @property
    def address(self) -> BrokerAddress:
        """Node id and number of the connection."""
        return BrokerAddress(self.node, self.number)


@dataclass(slots=True, eq=False)
class WritingLink(Link):
    """The same for requests that write. ``scheduled``: what is due is sent in the next iteration of the loop."""

    scheduled: bool = False


L = TypeVar("L", bound=Link)
W = TypeVar("W", bound=WritingLink)


class Brokers(ABC, Generic[L]):
    """The brokers of one cluster; `Source` and `Sink` define the requests.

    ``connections`` per broker: a broker's socket buffer limits a connection to about 200 KB in flight, so over a link
    with high latency one connection is not enough. ``failure`` is the last error of the cluster as a whole, None once
    it responds again. Nothing is written to a connection while ``may_send`` is false.
    """

    role: ClassVar[str]
    largest_answer_bytes: ClassVar[int] = 256 << 20

    def __init__(
        self,
        cluster: Cluster,
        loop: asyncio.AbstractEventLoop,
        background: Executor,
        pool: BufferPool,
        *,
        connections: int = 1,
        may_send: Callable[[], bool] = lambda: True,
    ) -> None:
        settings = cluster.settings
        self.failure: KafkaFailure | None = None
        self._cluster = cluster
        self._loop = loop
        self._background = background
        self._pool = pool
        self._connections = connections
        self._may_send = may_send
        self._brokers: dict[tuple[int, int], L] = {}
        self._topics = TopicIds()
        self._refreshing = False
        self._refreshed_s = time.monotonic()
        self._max_age_s = settings.metadata_max_age_ms / 1000
        self._asked_in_turn = 0
        self._closed = False
        self._request_timeout_s = settings.request_timeout_ms / 1000
        self._connect_backoff = Backoff(settings.reconnect_backoff_ms, settings.reconnect_backoff_max_ms)
        self._log = structlog.get_logger(type(self).__module__).bind(cluster=cluster.name)

    @property
    def _quota(self) -> str:
        """What limits a partition whose connection a broker throttles (KIP-219)."""
        return f"limited by a quota of cluster {self._cluster.name}"

    def close(self) -> None:
        """Close all connections. Requests in flight stay unanswered."""
        self._closed = True
        for broker in self._brokers.values():
            if broker.channel is not None:
                broker.channel.close()

    # -- for subclasses ---------------------------------------------------------------------------------------

    @abstractmethod
    def _choose_version(self, connection: Connection) -> int:
        """Version of the request on a new connection. Raises KafkaFailure when no version is supported."""

    @abstractmethod
    def _opened(self, broker: L) -> None:
        """The connection is ready."""

    @abstractmethod
    def _answered(self, broker: L, frame: memoryview) -> None:
        """A response; call `_responded`."""

    @abstractmethod
    def _dropped(self, broker: L) -> None:
        """The connection is closed; its requests in flight will not be answered."""

    @abstractmethod
    def _try_again(self, broker: L) -> None:
        """The backoff after a failure has elapsed."""

    @abstractmethod
    async def _find_leaders_now(self) -> float | None:
        """Look up the leaders and apply them; returns the delay of the next look-up (s), or None. May raise
        KafkaFailure.
        """

    # -- connections -----------------------------------------------------------------------------------------------

    def _open(self, broker: L) -> None:
        if not (broker.opening or self._closed or time.monotonic() < broker.not_before):
            broker.opening = True
            self._loop.create_task(self._connect(broker))

    async def _connect(self, broker: L) -> None:
        try:
            connection: Connection = await self._in_background(self._cluster.open_connection, broker.node)
        except KafkaFailure as error:
            self._unreachable(broker, error)
            return
        finally:
            broker.opening = False
        if self._closed:
            connection.close()
            return
        try:
            broker.version = self._choose_version(connection)
        except KafkaFailure as error:
            connection.close()
            self._unreachable(broker, error)
            return
        broker.channel = Channel(
            connection,
            self._loop,
            self._pool,
            on_frame=lambda frame: self._answered(broker, frame),
            on_lost=lambda error: self._lost(broker, error),
            max_frame_bytes=self.largest_answer_bytes,
            may_write=self._may_send,
        )
        self._opened(broker)

    def _responded(self, broker: L) -> None:
        """The broker has responded: reset its failures."""
        broker.failures = 0
        self.failure = None

    def _lost(self, broker: L, error: KafkaFailure) -> None:
        session_is_over = broker.channel is not None and broker.channel.connection.session_is_over
        broker.channel = None
        log_method = self._log.debug if session_is_over else self._log.info
        log_method(f"connection to a {self.role} broker lost", node=broker.node, error=str(error))
        self._dropped(broker)
        if session_is_over:
            # Brokers close connections without re-authentication (`connections.max.reauth.ms`). This is not an error.
            self._try_again(broker)
        else:
            self._unreachable(broker, error)

    def _unreachable(self, broker: L, error: KafkaFailure) -> None:
        self.failure = error
        broker.failures += 1
        if broker.failures == _WARN_AT:
            self._log.warning(f"{self.role} broker not reachable", node=broker.node, error=str(error))
        self._refresh(0.0)
        delay_s = self._connect_backoff.delay_s(min(broker.failures, 10))
        broker.not_before = time.monotonic() + delay_s
        self._loop.call_later(delay_s + 0.001, self._try_again, broker)

    # -- leaders ---------------------------------------------------------------------------------------------------

    def _refresh(self, delay_s: float) -> None:
        """Look up leaders after ``delay_s``, unless a look-up is scheduled."""
        if not (self._refreshing or self._closed):
            self._refreshing = True
            self._loop.call_later(delay_s, self._start_refresh)

    def _start_refresh(self) -> None:
        if not self._closed:  # the loop may end before a new task does
            self._loop.create_task(self._refresh_now())

    @property
    def _is_old(self) -> bool:
        """Whether the last look-up is older than `metadata.max.age.ms`."""
        return time.monotonic() - self._refreshed_s > self._max_age_s

    def _refresh_old(self) -> None:
        """Refresh leaders older than `metadata.max.age.ms`: a deposed leader may return no error."""
        if self._is_old:
            self._refresh(0.0)

    async def _fresh_metadata(self, topics: Iterable[str]) -> Metadata:
        """Metadata from any broker, and from two more where they were old: at least one of these is not the deposed
        leader.
        """
        names = sorted(topics)
        metadata: Metadata = await self._in_background(self._cluster.metadata, names, max_age_s=0.0)
        if not self._is_old or not names:
            return metadata
        nodes = sorted(metadata.brokers)
        first = self._asked_in_turn
        self._asked_in_turn += 1
        two = {nodes[(first + step) % len(nodes)] for step in (0, 1)} if nodes else set()
        return newest_leaders(metadata, (await self._in_background(self._metadata_of_each, two, names)).values())

    def _metadata_of_each(self, nodes: Iterable[int], names: Iterable[str]) -> dict[int, Metadata]:
        """Blocking: the metadata of each of these brokers, without those that do not respond."""
        found = {}
        for node in sorted(nodes):
            try:
                found[node] = self._cluster.metadata_of(node, names, timeout_s=_ONE_OF_MANY_S)
            except KafkaFailure as error:
                self._log.info("broker does not answer a metadata request", node=node, error=str(error))
        return found

    async def _refresh_now(self) -> None:
        again_s: float | None = WATCH_S
        try:
            again_s = await self._find_leaders_now()
            self._refreshed_s = time.monotonic()
        except KafkaFailure as error:
            self.failure = error
            self._log.info(f"no metadata of the {self.role}", error=str(error))
        finally:
            self._refreshing = False
        if again_s is not None:
            self._refresh(again_s)

    async def _accepted(self, metadata: Metadata) -> set[str]:
        """Topics whose ids in a response are accepted. New ids are confirmed by the leader, see `TopicIds`."""
        accepted = set()
        for name, info in metadata.topics.items():
            check = self._topics.check(name, info.topic_id, time.monotonic())
            if check is IdCheck.CONFIRM and await self._is_confirmed(info):
                self._log.warning("topic was deleted and created again", topic=name, topic_id=info.topic_id)
                self._topics.replace(name, info.topic_id)
                check = IdCheck.ACCEPTED
            if check is IdCheck.ACCEPTED:
                accepted.add(name)
            elif check is not IdCheck.CONFIRM:
                self._log.info("ignored metadata with another topic id", topic=name, check=check.name.lower())
        return accepted

    async def _is_confirmed(self, info: TopicInfo) -> bool:
        """Whether the leader of a partition itself returns this id for the topic: the first one that responds."""
        for leader in dict.fromkeys(partition.leader for partition in info.partitions.values()):
            if leader < 0:
                continue
            try:
                answer: Metadata = await self._in_background(
                    self._cluster.metadata_of, leader, [info.name], timeout_s=_ONE_OF_MANY_S
                )
            except KafkaFailure as error:
                self._log.info("topic id not confirmed", topic=info.name, node=leader, error=str(error))
                continue
            found = answer.topics.get(info.name)
            if found is not None and found.topic_id == info.topic_id:
                return True
            self._topics.drop(info.name)
            return False
        return False

    def _unaccepted(self, info: TopicInfo, subject: str) -> BrokerFailure:
        """Why metadata of a topic are not accepted."""
        known = self._topics.current.get(info.name, "")
        message = (
            f"metadata name topic id {info.topic_id}, but id {known} is known from the ledger or from earlier metadata"
        )
        return BrokerFailure.of(ErrorCode.INCONSISTENT_TOPIC_ID, message, subject=subject)

    async def _in_background(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return await self._loop.run_in_executor(self._background, lambda: call(*args, **kwargs))


class WritingBrokers(Brokers[W]):
    """The brokers of a cluster to which `Sink` and `MarkerSender` write."""

    role = "target"

    @abstractmethod
    def _pump(self, broker: W) -> None:
        """Send what is due, and reset ``scheduled``."""

    def _schedule(self, broker: W) -> None:
        # All that one response makes due goes into one request.
        if not broker.scheduled:
            broker.scheduled = True
            self._loop.call_soon(self._pump, broker)
