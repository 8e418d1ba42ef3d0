"""Outboxes through refusals, leader moves and lost connections. The test plays the brokers behind the channels."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mm2.copy.executor.outbox import Outbox, Parcel
from mm2.copy.executor.sink import Sink, _Broker
from mm2.kafka.cluster import Cluster
from mm2.kafka.errors import DisconnectedFailure
from mm2.kafka.records.batch import read_header
from mm2.kafka.records.record import Record, encode_batch
from mm2.kafka.settings import ClientSettings
from mm2.kafka.structs import Broker, Metadata, PartitionInfo, ProducerIdentity, TopicInfo, TopicPartition
from mm2.kafka.wire.channel import BufferPool

TP = TopicPartition("t", 0)
VERSION = 3
TIMED_OUT = 7


class Line:
    """A broker's end of a channel: requests in, answers when the test says so."""

    def __init__(self, sink: Sink, node: int) -> None:
        self.lost = False
        self.requests: list[list[tuple[int, int]]] = []  # (sequence, records) of each batch
        self.connection = SimpleNamespace(
            next_correlation_id=lambda: 1, client_id="c", maybe_reauthenticate=lambda: None
        )
        self._sink = sink
        self.broker = sink._brokers.setdefault(node, _Broker(node))
        self.broker.version = VERSION
        self.broker.channel = cast(Any, self)

    def send(self, buffers: Iterable[Any], _correlation_id: int) -> None:
        headers = [read_header(data) for data in buffers if isinstance(data, memoryview)]
        self.requests.append([(header.base_sequence, header.records_count) for header in headers])

    def answer(self, *results: tuple[TopicPartition, int, int]) -> None:
        """One answer, with (partition, error code, base offset) for each batch."""
        out = struct.pack(">ii", 1, len(results))
        for tp, code, base in results:
            name = tp.topic.encode()
            out += struct.pack(">h", len(name)) + name + struct.pack(">iihqq", 1, tp.partition, code, base, -1)
        self._sink._answered(self.broker, memoryview(out + struct.pack(">i", 0)))

    def fail(self, error: Any) -> None:
        self.lost = True
        self._sink._lost(self.broker, error)

    def close(self) -> None:
        self.lost = True


class Scene:
    """A sink with outboxes that know producer 7 and leader 1."""

    def __init__(self, settings: ClientSettings) -> None:
        self.cluster = Cluster(settings, name="B")
        self.background = ThreadPoolExecutor(1)
        self.sink = Sink(self.cluster, asyncio.get_running_loop(), self.background, BufferPool())
        self.acked: list[tuple[str, int]] = []
        self.words: list[str | None] = []

    def outbox(self, tp: TopicPartition = TP) -> Outbox:
        said = self.words
        box = self.sink.outbox(tp, idempotent=True, on_refused=lambda f: said.append(None if f is None else str(f)))
        box.identity, box.leader = ProducerIdentity(7, 0), 1
        return box

    def put(self, box: Outbox, name: str, count: int = 1) -> None:
        data = encode_batch([Record(b"k", b"v", timestamp=1)] * count)
        parcel = Parcel(memoryview(data), read_header(data), lambda base: self.acked.append((name, base)))
        self.sink.put(box, parcel)

    def leaders(self, **nodes: int) -> None:
        """From now on metadata says this of partition 0 of each topic."""
        topics = {name: TopicInfo(name, "", False, {0: PartitionInfo(node, 1, (), ())}) for name, node in nodes.items()}
        found = Metadata("id", 1, {1: Broker(1, "h", 1, None), 2: Broker(2, "h", 2, None)}, topics)
        self.cluster.metadata = lambda *_args, **_kwargs: found  # type: ignore[method-assign]


def play(scenario: Callable[[Scene], Awaitable[None]], **props: str) -> None:
    settings = ClientSettings.from_props({"bootstrap.servers": "localhost:1", **props}, client_id="c")

    async def run() -> None:
        mishaps: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: mishaps.append(context))
        scene = Scene(settings)
        try:
            await scenario(scene)
        finally:
            scene.sink.close()
            scene.background.shutdown()
            scene.cluster.close()
        assert not mishaps

    asyncio.run(run())


async def turn(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  (nobody there sets an event)
            await asyncio.sleep(0.005)


def test_a_partition_whose_batch_was_not_taken_is_left_alone_for_the_pause() -> None:
    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox()
        scene.put(box, "a")
        await turn()
        scene.put(box, "b")  # it stands in the broker's line when the answer comes
        line.answer((TP, TIMED_OUT, -1))
        await turn()
        assert line.requests == [[(0, 1)]]
        await until(lambda: len(line.requests) > 1)
        assert line.requests[1] == [(0, 1)]

    play(scenario, **{"retry.backoff.ms": "50"})


def test_an_answer_never_stands_for_a_batch_that_was_not_in_the_request() -> None:
    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox()
        line.broker.under_way.extend(([], float("inf")) for _ in range(4))  # others' requests keep the line waiting
        scene.put(box, "a")
        await turn()
        scene.put(box, "b")
        line.broker.under_way.rotate(1)
        line.answer((TP, TIMED_OUT, -1))
        line.broker.under_way.append(([], float("inf")))
        await asyncio.sleep(0.1)
        line.broker.under_way.clear()
        scene.sink._schedule(line.broker)
        await turn()
        line.answer((TP, 0, 100))
        assert scene.acked == [("a", 100)]

    play(scenario, **{"retry.backoff.ms": "20", "retry.backoff.max.ms": "20"})


def test_the_first_batch_of_a_producer_goes_alone() -> None:
    # A broker that does not know the producer would take a second batch though it refused the first.
    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox()
        for name in "abc":
            scene.put(box, name)
        await turn()
        assert line.requests == [[(0, 1)]]
        line.answer((TP, 0, 10))
        await turn()
        assert line.requests == [[(0, 1)], [(1, 1)], [(2, 1)]]

    play(scenario)


def test_a_new_leader_gets_nothing_before_the_old_one_has_answered() -> None:
    async def scenario(scene: Scene) -> None:
        old, new, box = Line(scene.sink, 1), Line(scene.sink, 2), scene.outbox()
        box.known = True
        scene.put(box, "a")
        await turn()
        scene.leaders(t=2)
        await scene.sink._find_leaders(["t"], fresh=True)
        scene.put(box, "b")
        await turn()
        assert new.requests == []
        old.fail(DisconnectedFailure("gone"))
        await turn()
        assert new.requests == [[(0, 1)], [(1, 1)]]
        new.answer((TP, 0, 10))
        new.answer((TP, 0, 11))
        assert scene.acked == [("a", 10), ("b", 11)]

    play(scenario)


def test_a_batch_that_the_answer_does_not_mention_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm2.copy.executor.sink._REFUSED_RETRY_S", 0.01)

    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox()
        scene.put(box, "a")
        await turn()
        line.answer()
        await until(lambda: len(line.requests) == 2)
        line.answer((TP, 0, 10))
        assert (scene.acked, scene.words[-1]) == ([("a", 10)], None)

    play(scenario)


def test_a_broker_that_does_not_answer_is_left_for_the_new_leader() -> None:
    async def scenario(scene: Scene) -> None:
        old, box = Line(scene.sink, 1), scene.outbox()
        scene.put(box, "a")
        await turn()
        scene.leaders(t=2)
        await scene.sink._find_leaders(["t"], fresh=True)
        old.broker.under_way[0] = (old.broker.under_way[0][0], float("-inf"))
        scene.sink._watch()
        new = Line(scene.sink, 2)
        await turn()
        assert new.requests == [[(0, 1)]]

    play(scenario)


def test_a_partition_without_a_leader_says_so_until_a_batch_is_taken() -> None:
    async def scenario(scene: Scene) -> None:
        line, box = Line(scene.sink, 1), scene.outbox()
        box.leader = None
        scene.leaders(t=-1)
        scene.put(box, "a")
        await until(lambda: box.complaint)
        assert str(box.complaint).startswith("writing to t-0 of cluster B: LEADER_NOT_AVAILABLE")
        scene.leaders(t=1)
        await until(lambda: line.requests)
        line.answer((TP, 0, 10))
        assert (box.complaint, scene.words) == (None, [None])

    play(scenario)
