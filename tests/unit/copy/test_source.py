"""Feeds and brokers of a source through moves and losses. The test plays metadata and brokers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mm2.copy.executor.source import FetchLimits, Source
from mm2.kafka.cluster import Cluster
from mm2.kafka.errors import BrokerFailure, DisconnectedFailure
from mm2.kafka.settings import ClientSettings
from mm2.kafka.structs import Metadata, PartitionInfo, TopicInfo, TopicPartition, topic_id_text
from mm2.kafka.wire.channel import BufferPool
from mm2.kafka.wire.fetch import Fetched

SETTINGS = ClientSettings.from_props({"bootstrap.servers": "localhost:1", "reconnect.backoff.ms": "1"}, client_id="c")


class Feed:
    """A receiver that takes down what it is told."""

    full = stuck = False

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.offset = 40
        self.failures: list[BrokerFailure] = []

    def take(self, fetched: Fetched) -> None:
        """Not called: no broker answers."""

    def failed(self, failure: BrokerFailure) -> None:
        self.failures.append(failure)

    def renewed(self) -> None:
        self.offset = 0


class Scene:
    """A source whose cluster refuses every connection and has the leaders and topic ids that the test says."""

    def __init__(self) -> None:
        self.cluster = Cluster(SETTINGS, name="A")
        self.background = ThreadPoolExecutor(1)
        self.opened: list[int] = []
        self.cluster.open_connection = self._open  # type: ignore[method-assign]
        self.source = Source(
            self.cluster,
            asyncio.get_running_loop(),
            self.background,
            BufferPool(),
            FetchLimits(),
            read_committed=False,
            room=lambda: True,
        )

    def _open(self, node_id: int | None, *, timeout_s: float | None = None) -> Any:
        self.opened.append(-1 if node_id is None else node_id)
        raise DisconnectedFailure("nobody there")

    def say(self, leader: int, topic_id: str = "") -> None:
        """From now on metadata says this of t-0."""
        info = TopicInfo("t", topic_id, False, {0: PartitionInfo(leader, 1, (), ())})
        found = Metadata("id", 1, {}, {"t": info})
        self.cluster.metadata = lambda *_args, **_kwargs: found  # type: ignore[method-assign]


def play(scenario: Callable[[Scene], Awaitable[None]]) -> None:
    async def run() -> None:
        mishaps: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: mishaps.append(context))
        scene = Scene()
        try:
            await scenario(scene)
        finally:
            scene.source.stop()
            scene.background.shutdown()
            scene.cluster.close()
        assert not mishaps

    asyncio.run(run())


def test_a_broker_that_leads_nothing_any_more_is_left_in_peace() -> None:
    async def scenario(scene: Scene) -> None:
        scene.say(1)
        scene.source.add([Feed(TopicPartition("t", 0))])
        await asyncio.sleep(0.1)
        assert 1 in scene.opened
        scene.say(2)
        await asyncio.sleep(0.1)
        scene.opened.clear()
        await asyncio.sleep(0.2)
        assert set(scene.opened) == {2}

    play(scenario)


def test_a_topic_of_the_same_name_but_another_id_is_read_from_its_start() -> None:
    async def scenario(scene: Scene) -> None:
        feed = Feed(TopicPartition("t", 0))
        scene.say(1, topic_id_text(uuid.UUID(int=1)))
        scene.source.add([feed])
        await asyncio.sleep(0.1)
        before = feed.offset
        scene.say(1, topic_id_text(uuid.UUID(int=2)))
        await asyncio.sleep(0.1)
        assert (before, feed.offset) == (40, 0)

    play(scenario)
