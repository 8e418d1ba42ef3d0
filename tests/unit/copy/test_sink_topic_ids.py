"""Reaction of a sink to metadata with another topic id. Metadata are simulated."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from mm2.copy.executor.clusters.brokers import BrokerAddress
from mm2.copy.executor.partition.outbox import outgoing_of
from mm2.copy.executor.producing.outbox_events import ReportedEvent, TargetRecreated
from mm2.copy.executor.producing.sink import Sink
from mm2.copy.states import PartitionState, state_of
from mm2.kafka.client.channel import BufferPool
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, DisconnectedFailure, KafkaFailure
from mm2.kafka.records.record import Record
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import Metadata, PartitionInfo, TopicInfo, TopicPartition, topic_id_bytes
from tests.support.waiting import wait_until_async

SETTINGS = ClientSettings.from_props({"bootstrap.servers": "localhost:1"}, client_id="c")
TP = TopicPartition("t", 0)
OLD, NEW = "AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg"


class Scene:
    """A sink with one outbox."""

    def __init__(self) -> None:
        self.cluster = Cluster(SETTINGS, name="B")
        self.background = ThreadPoolExecutor(1)
        self.recreated = 0
        self.reports: list[KafkaFailure] = []
        self.sink = Sink(self.cluster, asyncio.get_running_loop(), self.background, BufferPool(), report=self._report)
        self.outbox = self.sink.outbox(TP, idempotent=True, source=TP)

    def _report(self, event: ReportedEvent) -> None:
        self.recreated += isinstance(event, TargetRecreated)

    def say(self, topic_id: str, leader: int = 1, of_leader: str | None = None) -> None:
        """From now on metadata name this id; the leader itself ``of_leader``."""
        everybody, itself = (
            Metadata("id", 1, {}, {"t": TopicInfo("t", found, False, {0: PartitionInfo(leader, 1, (), ())})})
            for found in (topic_id, of_leader or topic_id)
        )
        self.cluster.metadata = lambda *_args, **_kwargs: everybody  # type: ignore[method-assign]
        self.cluster.metadata_of = lambda *_args, **_kwargs: itself  # type: ignore[method-assign]

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            await self.sink.find_leaders(["t"])
            await asyncio.sleep(0.02)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm2.copy.executor.clusters.topic_ids.CONFIRM_AFTER_S", 0.01)
    monkeypatch.setattr("mm2.copy.executor.producing.sink._SETTLE_RETRY_S", 0.02)


def play(scenario: Callable[[Scene], Awaitable[None]]) -> None:
    async def run() -> None:
        scene = Scene()
        try:
            async with asyncio.timeout(20):
                await scenario(scene)
        finally:
            scene.sink.close()
            scene.background.shutdown()
            scene.cluster.close()

    asyncio.run(run())


def test_one_answer_with_another_id_changes_nothing() -> None:
    async def scenario(scene: Scene) -> None:
        scene.say(NEW)
        await scene.look()
        scene.say(OLD, leader=2)
        await scene.look()
        scene.say(NEW)
        await scene.look()
        assert (scene.recreated, scene.outbox.address, scene.sink.topic_ids.get("t")) == (0, BrokerAddress(1, 0), NEW)

    play(scenario)


def test_a_confirmed_topic_id_stops_partitions_of_the_replaced_topic() -> None:
    async def scenario(scene: Scene) -> None:
        scene.say(OLD)
        await scene.look()
        scene.say(NEW, of_leader=OLD)
        await scene.look(3)
        assert scene.recreated == 0
        scene.say(NEW)
        await scene.look(3)
        assert scene.recreated
        assert (scene.outbox.paused, scene.sink.topic_ids.get("t")) == (True, OLD)

    play(scenario)


def test_topic_ids_of_the_ledger_are_compared_with_the_cluster() -> None:
    async def scenario(scene: Scene) -> None:
        scene.say(OLD)
        await scene.look()
        asked = asyncio.create_task(scene.sink.settle_id("t", NEW, [OLD], scene.reports.append))
        await wait_until_async(lambda: scene.reports)
        assert not asked.done()
        assert f"INCONSISTENT_TOPIC_ID, metadata name topic id {OLD}, but id {NEW} is known" in str(scene.reports[0])
        scene.say(NEW)
        assert await asked == NEW
        assert (scene.sink.topic_ids.get("t"), scene.sink.topic_ids.data["t"]) == (NEW, topic_id_bytes(NEW))
        scene.say(OLD)
        await scene.look(3)
        assert (scene.recreated, scene.sink.topic_ids.get("t")) == (0, NEW)

    play(scenario)


def test_the_reason_for_a_wait_for_metadata_is_reported() -> None:
    async def scenario(scene: Scene) -> None:
        refused = DisconnectedFailure("no broker")
        deleted = BrokerFailure.of(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        answers: list[Metadata | KafkaFailure] = [refused, Metadata("id", 1, {}, {}, {"t": deleted})]

        def metadata(*_args: object, **_kwargs: object) -> Metadata:
            answer = answers.pop(0)
            if not answers:
                scene.say(NEW)
            if isinstance(answer, KafkaFailure):
                raise answer
            return answer

        scene.cluster.metadata = metadata  # type: ignore[method-assign]
        assert await scene.sink.settle_id("t", NEW, [], scene.reports.append) == NEW
        assert scene.reports == [refused, deleted]

    play(scenario)


def test_batches_without_a_leader_have_a_reason_while_an_id_is_not_accepted() -> None:
    async def scenario(scene: Scene) -> None:
        scene.sink._topics.expect("t", NEW, [OLD], 0.0)
        scene.say(OLD)
        await scene.look()
        errors = [scene.outbox.last_error]
        scene.outbox.queue.append(outgoing_of([Record(b"k", b"v")], lambda: None))
        await scene.look()
        errors.append(scene.outbox.last_error)
        assert [state_of(error) if error else None for error in errors] == [None, PartitionState.UNREACHABLE]
        assert isinstance(errors[1], BrokerFailure)
        assert errors[1].code == ErrorCode.INCONSISTENT_TOPIC_ID

    play(scenario)


def test_an_id_that_the_ledger_does_not_know_is_confirmed_first() -> None:
    async def scenario(scene: Scene) -> None:
        scene.say(NEW)
        await scene.look()
        assert await scene.sink.settle_id("t", OLD, [], scene.reports.append) == NEW
        assert scene.sink.topic_ids.get("t") == NEW

    play(scenario)


def test_a_closed_sink_compares_no_topic_ids() -> None:
    async def scenario(scene: Scene) -> None:
        scene.say(OLD)
        asked = asyncio.create_task(scene.sink.settle_id("t", NEW, [OLD], scene.reports.append))
        await asyncio.sleep(0.05)
        scene.sink.close()
        assert await asked == ""

    play(scenario)
