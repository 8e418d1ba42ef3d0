"""What reading from and writing to the brokers of a cluster have in common: connections that come and go.

A connection is opened when it is first needed, again after it was lost, and with a growing pause between tries. Who leads
what is looked up in the background, one look-up at a time. All methods run on the loop's thread; blocking calls go to
``background``.
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

from mm2.copy.executor.leaders import newest_leaders
from mm2.copy.executor.topic_ids import Belief, TopicIds
from mm2.kafka.backoff import Backoff
from mm2.kafka.cluster import Cluster
from mm2.kafka.connection import Connection
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import Metadata, TopicInfo
from mm2.kafka.wire.channel import BufferPool, Channel

WATCH_S: Final = 0.5
#: An answer may take as long as the request timeout; somebody has to hear of it before that.
SILENT_S: Final = 10.0
#: Of one broker, where several are asked: one that does not answer must not delay the others' answers.
_ONE_OF_MANY_S: Final = 3.0
_WARN_AT: Final = 2  # a connection lost once is no news: brokers close idle ones


class BrokerAddress(NamedTuple):
    """One of our connections to a broker."""

    node: int
    number: int


@dataclass(slots=True, eq=False)
class Link:
    """One connection to a broker, and what is known about getting it."""

    node: int
    number: int
    channel: Channel | None = None
    opening: bool = False
    version: int = 0  # of the one request that is sent over it
    failures: int = 0  # in a row
    not_before: float = 0.0  # monotonic seconds; no new connection earlier

    @property
    def place(self) -> BrokerAddress:
        """Which connection this is."""
        return BrokerAddress(self.node, self.number)


L = TypeVar("L", bound=Link)


class Brokers(ABC, Generic[L]):
    """The brokers of one cluster; `Source` and `Sink` say what goes over the connections.

    ``connections`` per broker: a broker's socket buffer lets some 200 KB per connection be under way, so over a long way
    one is not enough. ``failure`` is the last thing that went wrong with the cluster as a whole, None once it answers again.
    """

    role: ClassVar[str]

    def __init__(
        self,
        cluster: Cluster,
        loop: asyncio.AbstractEventLoop,
        background: Executor,
        pool: BufferPool,
        *,
        connections: int = 1,
    ) -> None:
        settings = cluster.settings
        self.failure: KafkaFailure | None = None
        self._cluster = cluster
        self._loop = loop
        self._background = background
        self._pool = pool
        self._connections = connections
        self._brokers: dict[tuple[int, int], L] = {}
        self._topics = TopicIds()
        self._refreshing = False
        self._refreshed_s = time.monotonic()
        self._max_age_s = settings.metadata_max_age_ms / 1000
        self._asked_in_turn = 0
        self._over = False
        self._request_timeout_s = settings.request_timeout_ms / 1000
        self._connect_backoff = Backoff(settings.reconnect_backoff_ms, settings.reconnect_backoff_max_ms)
        self._log = structlog.get_logger(type(self).__module__).bind(cluster=cluster.name)

    def close(self) -> None:
        """Close all connections; what is unanswered stays unanswered."""
        self._over = True
        for broker in self._brokers.values():
            if broker.channel is not None:
                broker.channel.close()

    # -- for the heirs to say --------------------------------------------------------------------------------------

    @abstractmethod
    def _choose_version(self, connection: Connection) -> int:
        """Version of the request to be used on a new connection; KafkaFailure when there is none."""

    def _may_write(self) -> bool:
        """Whether requests may be sent now."""
        return True

    @abstractmethod
    def _opened(self, broker: L) -> None:
        """The connection can be used."""

    @abstractmethod
    def _answered(self, broker: L, frame: memoryview) -> None:
        """One answer; see `_heard`."""

    @abstractmethod
    def _dropped(self, broker: L) -> None:
        """The connection is gone, and with it the answers that were due on it."""

    @abstractmethod
    def _try_again(self, broker: L) -> None:
        """The pause after a failure is over."""

    @abstractmethod
    async def _find_leaders_now(self) -> float | None:
        """Look up who leads what, and act on it; when to look again (s), None for not until asked. May raise KafkaFailure."""

    # -- connections -----------------------------------------------------------------------------------------------

    def _open(self, broker: L) -> None:
        if not (broker.opening or self._over or time.monotonic() < broker.not_before):
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
        if self._over:
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
            may_write=self._may_write,
        )
        self._opened(broker)

    def _heard(self, broker: L) -> None:
        """The broker has answered: all is well with it."""
        broker.failures = 0
        self.failure = None

    def _lost(self, broker: L, error: KafkaFailure) -> None:
        session_is_over = broker.channel is not None and broker.channel.connection.session_is_over
        broker.channel = None
        say = self._log.debug if session_is_over else self._log.info
        say(f"connection to a {self.role} broker lost", node=broker.node, error=str(error))
        self._dropped(broker)
        if session_is_over:
            # Brokers hang up on who has not logged in again (`connections.max.reauth.ms`): no trouble, the next one is opened.
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
        """Look up leaders after ``delay_s``, unless that is about to happen anyway."""
        if not (self._refreshing or self._over):
            self._refreshing = True
            self._loop.call_later(delay_s, lambda: self._loop.create_task(self._refresh_now()))

    @property
    def _is_old(self) -> bool:
        """Whether leaders were looked up longer than `metadata.max.age.ms` ago."""
        return time.monotonic() - self._refreshed_s > self._max_age_s

    def _refresh_old(self) -> None:
        """Look up leaders that are older than `metadata.max.age.ms`: a deposed leader that does not know it returns no error."""
        if self._is_old:
            self._refresh(0.0)

    async def _fresh_metadata(self, topics: Iterable[str]) -> Metadata:
        """Metadata from any broker, and from two more where they were old: one of these is not the broker that was deposed."""
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
        """Blocking: metadata as each of these brokers has them; without those that do not answer."""
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

    async def _believed(self, metadata: Metadata) -> set[str]:
        """Topics whose ids in an answer are believed; leaders are asked about new ones. See `TopicIds`."""
        believed = set()
        for name, info in metadata.topics.items():
            belief = self._topics.judge(name, info.topic_id, time.monotonic())
            if belief is Belief.DUE and await self._is_confirmed(info):
                self._log.warning("topic was deleted and created again", topic=name, topic_id=info.topic_id)
                self._topics.replace(name, info.topic_id)
                belief = Belief.BELIEVED
            if belief is Belief.BELIEVED:
                believed.add(name)
            elif belief is not Belief.DUE:
                self._log.info("metadata with another topic id not believed", topic=name, belief=belief.name.lower())
        return believed

    async def _is_confirmed(self, info: TopicInfo) -> bool:
        """Whether the leader of a partition gives the topic that id itself."""
        leader = next((partition.leader for partition in info.partitions.values() if partition.leader >= 0), -1)
        if leader < 0:
            return False
        try:
            answer: Metadata = await self._in_background(self._cluster.metadata_of, leader, [info.name])
        except KafkaFailure as error:
            self._log.info("topic id not confirmed", topic=info.name, error=str(error))
            return False
        found = answer.topics.get(info.name)
        if found is None or found.topic_id != info.topic_id:
            self._topics.drop(info.name)
            return False
        return True

    async def _in_background(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return await self._loop.run_in_executor(self._background, lambda: call(*args, **kwargs))
