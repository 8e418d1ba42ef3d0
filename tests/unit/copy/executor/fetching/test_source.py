"""Feeds and brokers of a source through moves and losses. The test plays metadata and brokers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mm2.copy.executor.clusters.brokers import WATCH_S, BrokerAddress
from mm2.copy.executor.fetching.fetch_selector import FetchLimits
from mm2.copy.executor.fetching.fetch_states import PartitionFetchState, SourceBroker
from mm2.copy.executor.fetching.source import Source
from mm2.copy.executor.fetching.throttle import Throttle
from mm2.copy.executor.partition.cursor import Cursor
from mm2.kafka.backoff import Backoff
from mm2.kafka.client.channel import BufferPool
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, DisconnectedFailure
from mm2.kafka.records.record import Record, encode_batch
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import Broker, Metadata, PartitionInfo, TopicInfo, TopicPartition, topic_id_bytes, topic_id_text
from mm2.kafka.wire import fetch
from mm2.kafka.wire.fetch import Fetched, Position
from tests.support.waiting import wait_until_async

SETTINGS = ClientSettings.from_props({"bootstrap.servers": "localhost:1", "reconnect.backoff.ms": "1"}, client_id="c")


class Feed:
    """A receiver that records its calls."""

    full = stuck = behind = suspended = passed_over = False
    idle = True
    leader_epoch = -1

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.offset = 40
        self.topic_id = ""
        self.retired: tuple[str, ...] = ()
        self.renewals: list[str] = []
        self.failures: list[BrokerFailure] = []
        self.taken: list[int] = []
        self.ends: list[tuple[int, int]] = []
        self.limited = 0
        self.suspicions = 0

    def take(self, fetched: Fetched, leader_epoch: int | None) -> None:
        self.taken.append(len(fetched.records))

    def failed(self, failure: BrokerFailure) -> None:
        self.failures.append(failure)

    def source_recreated(self, topic_id: str) -> None:
        self.offset, self.topic_id = 0, topic_id
        self.renewals.append(topic_id)

    def source_is(self, cluster_id: str) -> None:
        pass

    def identified(self) -> None:
        pass

    def diverged(self, epoch: int, end_offset: int) -> None:
        self.ends.append((epoch, end_offset))

    def unvalidated(self) -> None:
        self.suspicions += 1

    def throttled(self, _by: str, _for_s: float = 0.0) -> None:
        self.limited += 1


class Line:
    """A broker's end of a channel: what each request asks for; responses when the test calls for them."""

    lost = False

    def __init__(self, source: Source, receivers: Iterable[Feed], version: int, node: int = 1) -> None:
        self.source = source
        self.asked: list[dict[TopicPartition, Position]] = []
        self.touched: list[list[TopicPartition]] = []
        self.max_bytes: list[int] = []
        self.waits_ms: list[int] = []
        self.racks: list[str] = []
        self.committed: list[bool] = []
        self.answers: list[list[Fetched]] = []
        self.connection = SimpleNamespace(next_correlation_id=lambda: 1, client_id="c", session_is_over=False)
        session = SimpleNamespace(request=self._request, response=lambda *_: self.answers.pop(0), throttle_ms=0)
        self.broker = source._brokers[BrokerAddress(node, 0)] = SourceBroker(node, 0, session=cast(Any, session))
        self.broker.channel = cast(Any, self)
        self.broker.version = version
        for receiver in receivers:
            fetch_state = source._fetch_states[receiver.partition]
            fetch_state.address = BrokerAddress(node, 0)
            self.broker.read(receiver.partition, fetch_state)

    def _request(
        self, _version: int, _correlation: int, _client: str, wanted: dict[TopicPartition, Position], **more: Any
    ) -> bytes:
        self.asked.append(dict(wanted))
        self.touched.append(list(more["touched"]))
        self.max_bytes.append(more["max_bytes"])
        self.waits_ms.append(more["max_wait_ms"])
        self.racks.append(more["rack"])
        self.committed.append(more["read_committed"])
        return b""

    def ask(self) -> None:
        self.source._ask(self.broker)

    def send(self, _buffers: Any, _correlation_id: int) -> None:
        """Nothing goes anywhere."""

    def answer(self, *rows: Fetched) -> None:
        self.answers.append(list(rows))
        self.source._answered(self.broker, memoryview(b""))

    def close(self) -> None:
        self.lost = True


def fetched(tp: TopicPartition, size: int = 0, **fields: Any) -> Fetched:
    values: dict[str, Any] = {"error_code": 0, "records": memoryview(bytes(size)), **fields}
    return Fetched(tp, high_watermark=99, last_stable_offset=99, log_start_offset=0, aborted=(), **values)


class Scene:
    """A source whose cluster refuses every connection and has the leaders and topic ids that the test defines."""

    def __init__(self, throttle: Throttle | None = None, rack: str = "", limits: FetchLimits | None = None) -> None:
        self.cluster = Cluster(replace(SETTINGS, client_rack=rack), name="A")
        self.background = ThreadPoolExecutor(1)
        self.opened: list[int] = []
        self.of_leader: Metadata | None = None  # the leader's own metadata; None: the same as that of the others
        self.cluster.open_connection = self._open  # type: ignore[method-assign]
        self.source = Source(
            self.cluster,
            asyncio.get_running_loop(),
            self.background,
            BufferPool(),
            limits or FetchLimits(),
            read_committed=False,
            room=lambda: True,
            throttle=throttle or Throttle(),
            send=lambda: None,
        )

    def _open(self, node_id: int | None, *, timeout_s: float | None = None) -> Any:
        self.opened.append(-1 if node_id is None else node_id)
        raise DisconnectedFailure("no broker")

    def add(self, *feeds: Feed) -> None:
        self.source.add(cast(list[Cursor], feeds))

    def line(self, *receivers: Feed, version: int = fetch.MAX_VERSION) -> Line:
        """A broker that leads these receivers' partitions, and responses when the test calls for them."""
        for receiver in receivers:
            self.source._fetch_states[receiver.partition] = PartitionFetchState(cast(Cursor, receiver), 1 << 20)
        return Line(self.source, receivers, version)

    def say(self, leader: int, topic_id: str = "", leader_epoch: int = 1) -> None:
        """Set the metadata of t."""
        info = TopicInfo("t", topic_id, False, {index: PartitionInfo(leader, leader_epoch, (), ()) for index in (0, 1)})
        found = Metadata("id", 1, {}, {"t": info})
        self.cluster.metadata = lambda *_args, **_kwargs: found  # type: ignore[method-assign]
        self.cluster.metadata_of = lambda *_args, **_kwargs: self.of_leader or found  # type: ignore[method-assign]


def play(
    scenario: Callable[[Scene], Awaitable[None]],
    throttle: Throttle | None = None,
    rack: str = "",
    limits: FetchLimits | None = None,
) -> None:
    async def run() -> None:
        mishaps: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: mishaps.append(context))
        scene = Scene(throttle, rack, limits)
        try:
            await scenario(scene)
        finally:
            scene.source.close()
            scene.background.shutdown()
            scene.cluster.close()
        assert not mishaps

    asyncio.run(run())


def test_a_broker_without_partitions_gets_no_requests() -> None:
    async def scenario(scene: Scene) -> None:
        scene.say(1)
        scene.add(Feed(TopicPartition("t", 0)))
        await wait_until_async(lambda: 1 in scene.opened)
        scene.say(2)
        await wait_until_async(lambda: scene.opened[-1] == 2)
        scene.opened.clear()
        await wait_until_async(lambda: len(scene.opened) > 2)
        assert set(scene.opened) == {2}

    play(scenario)


def test_no_look_up_begins_after_the_source_is_closed() -> None:
    """Its task was destroyed with the loop while it was pending."""

    async def scenario(scene: Scene) -> None:
        looked_up: list[bool] = []

        async def find() -> float | None:
            looked_up.append(scene.source._closed)
            return None

        scene.source._find_leaders_now = find  # type: ignore[method-assign]
        scene.source._refresh(0.0)
        await wait_until_async(lambda: looked_up == [False])
        scene.source._refresh(0.0)
        scene.source.close()
        await asyncio.sleep(0.05)
        assert looked_up == [False]

    play(scenario)


def test_prepared_partitions_are_connected_before_the_first_read_and_not_looked_up_again() -> None:
    async def scenario(scene: Scene) -> None:
        scene.say(1)
        partitions = [TopicPartition("t", 0), TopicPartition("t", 1)]
        await scene.source.prepare(partitions)
        scene.say(2)  # no metadata request: a broker that is no longer the leader returns an error
        scene.add(*(Feed(tp) for tp in partitions))
        await asyncio.sleep(0)
        assert {fetch_state.address for fetch_state in scene.source._fetch_states.values()} == {BrokerAddress(1, 0)}
        await asyncio.sleep(0.1)
        assert scene.opened[0] == 1

    play(scenario)


def test_a_partition_without_a_leader_at_preparation_is_looked_up_when_added() -> None:
    async def scenario(scene: Scene) -> None:
        scene.say(-1)
        await scene.source.prepare([TopicPartition("t", 0)])
        assert not scene.opened
        scene.say(2)
        scene.add(Feed(TopicPartition("t", 0)))
        await asyncio.sleep(0.1)
        assert set(scene.opened) == {2}

    play(scenario)


OLD, NEW = (topic_id_text(uuid.UUID(int=number)) for number in (1, 2))


@pytest.fixture
def _confirmed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm2.copy.executor.clusters.topic_ids.CONFIRM_AFTER_S", 0.1)
    monkeypatch.setattr("mm2.copy.executor.fetching.source.WATCH_S", 0.05)


@pytest.mark.usefixtures("_confirmed_soon")
def test_a_topic_of_the_same_name_but_another_id_is_read_from_its_start() -> None:
    async def scenario(scene: Scene) -> None:
        receiver = Feed(TopicPartition("t", 0))
        scene.say(1, OLD)
        scene.add(receiver)
        await wait_until_async(lambda: receiver.topic_id == OLD)
        assert receiver.offset == 40
        scene.say(1, NEW)
        await wait_until_async(lambda: receiver.topic_id == NEW)
        assert (receiver.offset, scene.source._topic_ids["t"]) == (0, topic_id_bytes(NEW))

    play(scenario)


@pytest.mark.usefixtures("_confirmed_soon")
def test_a_known_id_detects_a_recreated_topic_from_the_start() -> None:
    async def scenario(scene: Scene) -> None:
        receivers = [Feed(TopicPartition("t", 0)), Feed(TopicPartition("t", 1))]
        scene.say(1, NEW)
        for receiver in receivers:  # one is added after the other has reported the new id
            receiver.topic_id = OLD
            scene.add(receiver)
            await wait_until_async(lambda: receiver.topic_id == NEW)  # noqa: B023
        assert [receiver.offset for receiver in receivers] == [0, 0]

    play(scenario)


@pytest.mark.usefixtures("_confirmed_soon")
@pytest.mark.parametrize("prepared", [True, False])
def test_metadata_that_name_a_replaced_topic_change_nothing(prepared: bool) -> None:
    """Old, new, old, new: the ledger knows that the old one was replaced."""

    async def scenario(scene: Scene) -> None:
        receiver = Feed(TopicPartition("t", 0))
        receiver.topic_id, receiver.retired = NEW, (OLD,)
        scene.say(1, OLD)
        if prepared:
            await scene.source.prepare([receiver.partition])
        scene.add(receiver)
        await asyncio.sleep(0.5)
        assert (receiver.renewals, scene.source._fetch_states[receiver.partition].address) == ([], None)
        assert {failure.code for failure in receiver.failures} == {ErrorCode.INCONSISTENT_TOPIC_ID}
        assert f"metadata name topic id {OLD}, but id {NEW} is known" in str(receiver.failures[0])
        scene.say(2, NEW)
        await wait_until_async(lambda: scene.source._fetch_states[receiver.partition].address == BrokerAddress(2, 0))
        receiver.failures.clear()
        scene.say(1, OLD)
        scene.source.refresh_soon()
        await asyncio.sleep(0.5)
        assert scene.source._fetch_states[receiver.partition].address == BrokerAddress(2, 0)
        assert (receiver.renewals, receiver.offset, receiver.topic_id) == ([], 40, NEW)
        assert receiver.failures == [], "it is read"
        assert scene.source._topic_ids["t"] == topic_id_bytes(NEW)

    play(scenario)


@pytest.mark.usefixtures("_confirmed_soon")
def test_an_unknown_id_that_the_leader_does_not_confirm_is_not_accepted() -> None:
    async def scenario(scene: Scene) -> None:
        receiver = Feed(TopicPartition("t", 0))
        scene.say(1, OLD)
        scene.of_leader = scene.cluster.metadata()
        scene.add(receiver)
        await wait_until_async(lambda: receiver.topic_id == OLD)
        scene.say(1, NEW)
        await asyncio.sleep(0.6)
        assert receiver.renewals == []
        scene.of_leader = None
        await wait_until_async(lambda: receiver.renewals == [NEW])

    play(scenario)


@pytest.mark.usefixtures("_confirmed_soon")
def test_the_leader_of_another_partition_confirms_an_id_when_the_first_one_does_not_respond() -> None:
    async def scenario(scene: Scene) -> None:
        receiver = Feed(TopicPartition("t", 1))
        receiver.topic_id = OLD
        partitions = {index: PartitionInfo(index + 1, 1, (), ()) for index in (0, 1)}
        found = Metadata("id", 1, {}, {"t": TopicInfo("t", NEW, False, partitions)})

        def answer_of(node: int) -> Metadata:
            if node == 1:
                raise DisconnectedFailure("no broker")
            return found

        scene.cluster.metadata = lambda *_args, **_kwargs: found  # type: ignore[method-assign]
        scene.cluster.metadata_of = lambda node, *_args, **_kwargs: answer_of(node)  # type: ignore[method-assign]
        scene.add(receiver)
        await wait_until_async(lambda: receiver.topic_id == NEW)

    play(scenario)


def _leaders(scene: Scene, answers: dict[int, tuple[int, int] | None]) -> None:
    """The leader of t and its epoch in each broker's metadata; None: it does not respond. The first one is asked first."""
    brokers = {node: Broker(node, "localhost", 1) for node in answers}

    def metadata_from(node: int) -> Metadata:
        written = answers[node]
        if written is None:
            raise DisconnectedFailure("no broker")
        info = TopicInfo("t", OLD, False, {0: PartitionInfo(*written, (), ())})
        return Metadata("id", 1, brokers, {"t": info})

    first = next(iter(answers))
    scene.cluster.metadata = lambda *_args, **_kwargs: metadata_from(first)  # type: ignore[method-assign]
    scene.cluster.metadata_of = lambda node, *_args, **_kwargs: metadata_from(node)  # type: ignore[method-assign]


@pytest.fixture
def _set_back_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm2.copy.executor.fetching.fetch_states._SET_BACK_AFTER_S", 0.2)
    monkeypatch.setattr("mm2.copy.executor.fetching.source.WATCH_S", 0.05)


@pytest.mark.usefixtures("_set_back_soon")
def test_a_deposed_leader_that_does_not_know_it_is_not_read_from() -> None:
    """It names itself with the leader epoch before; another broker names the later one (KIP-320)."""

    async def scenario(scene: Scene) -> None:
        receiver = Feed(TopicPartition("t", 0))
        receiver.leader_epoch = 5
        _leaders(scene, {1: (1, 4), 2: (2, 5)})
        scene.add(receiver)
        fetch_state = scene.source._fetch_states[receiver.partition]
        await wait_until_async(lambda: fetch_state.address == BrokerAddress(2, 0))
        scene.source.refresh_soon()
        await asyncio.sleep(0.5)
        assert (fetch_state.address, fetch_state.leader_epoch, receiver.failures) == (BrokerAddress(2, 0), 5, [])

    play(scenario)


@pytest.mark.usefixtures("_set_back_soon")
def test_an_older_leader_epoch_is_accepted_when_all_brokers_name_it_for_a_while() -> None:
    """The cluster was set back to a copy, or the topic was created again (before topic ids)."""

    async def scenario(scene: Scene) -> None:
        receiver = Feed(TopicPartition("t", 0))
        receiver.leader_epoch = 5
        _leaders(scene, {1: (1, 4), 2: None})
        scene.add(receiver)
        fetch_state = scene.source._fetch_states[receiver.partition]
        await asyncio.sleep(0.5)
        assert fetch_state.address is None
        assert receiver.failures, "and the partition has a reason"
        _leaders(scene, {1: (1, 4), 2: (1, 4)})
        await wait_until_async(lambda: fetch_state.address == BrokerAddress(1, 0))
        assert fetch_state.leader_epoch == 4

    play(scenario)


def test_leaders_are_looked_up_again_when_metadata_are_old() -> None:
    """A deposed leader that does not know it answers fetches without an error: nothing else would ever ask."""

    async def scenario(scene: Scene) -> None:
        receiver = Feed(TopicPartition("t", 0))
        _leaders(scene, {1: (1, 4), 2: (2, 5), 3: (2, 5)})
        scene.source._max_age_s = 1.0
        scene.add(receiver)
        fetch_state = scene.source._fetch_states[receiver.partition]
        await wait_until_async(lambda: fetch_state.address == BrokerAddress(1, 0))
        await wait_until_async(lambda: fetch_state.address == BrokerAddress(2, 0))

    play(scenario)


def test_a_validation_by_a_former_leader_is_ignored() -> None:
    async def scenario(scene: Scene) -> None:
        receiver = Feed(TopicPartition("t", 0))
        receiver.leader_epoch = 3
        line = scene.line(receiver, version=fetch.FLEXIBLE_FROM - 1)
        fetch_state = scene.source._fetch_states[receiver.partition]
        fetch_state.leader_epoch = 5
        scene.source.validated(receiver.partition, 4)
        line.ask()
        assert (receiver.suspicions, line.asked) == (1, [])
        scene.source.validated(receiver.partition, 5)
        line.ask()
        assert len(line.asked) == 1

    play(scenario)


def test_an_answer_for_an_offset_that_is_no_longer_wanted_is_dropped() -> None:
    async def scenario(scene: Scene) -> None:
        receiver = Feed(TopicPartition("t", 0))
        line = scene.line(receiver)
        line.ask()
        receiver.offset = 7
        scene.source.consider(receiver.partition)
        line.answer(fetched(receiver.partition, 100))
        assert (receiver.taken, line.asked[-1][receiver.partition].offset) == ([], 7)
        line.answer(fetched(receiver.partition, 100))
        assert receiver.taken == [100]

    play(scenario)


def test_an_answer_from_before_the_leader_moved_and_came_back_is_dropped() -> None:
    """It contains what the broker had as the former leader. Its log may have been truncated since."""

    class Reader(Feed):
        def take(self, fetched: Fetched, leader_epoch: int | None) -> None:
            super().take(fetched, leader_epoch)
            self.offset += len(fetched.records)

    async def scenario(scene: Scene) -> None:
        receiver = Reader(TopicPartition("t", 0))
        first = scene.line(receiver)
        second = Line(scene.source, [], fetch.MAX_VERSION, node=2)
        fetch_state = scene.source._fetch_states[receiver.partition]
        first.ask()
        scene.say(2, leader_epoch=2)
        scene.source.refresh_soon()
        await wait_until_async(lambda: fetch_state.address == BrokerAddress(2, 0))
        second.answer(fetched(receiver.partition, 20))
        assert (receiver.offset, second.asked[-1][receiver.partition].offset) == (60, 60)
        scene.say(1, leader_epoch=3)
        scene.source.refresh_soon()
        await wait_until_async(lambda: fetch_state.address == BrokerAddress(1, 0))
        first.answer(fetched(receiver.partition, 50))
        assert (receiver.taken, first.asked[-1][receiver.partition].offset) == ([20], 60)
        first.answer(fetched(receiver.partition, 5))
        assert receiver.taken == [20, 5]

    play(scenario)


def test_a_fetch_that_fails_as_a_whole_is_reported_for_each_partition() -> None:
    async def scenario(scene: Scene) -> None:
        def refuse(*_: object) -> list[Fetched]:
            raise BrokerFailure.of(-1)

        receivers = [Feed(TopicPartition("t", index)) for index in (0, 1)]
        line = scene.line(*receivers)
        line.ask()
        cast(Any, line.broker.session).response = refuse
        scene.source._answered(line.broker, memoryview(b""))
        assert [[failure.code for failure in receiver.failures] for receiver in receivers] == [[-1], [-1]]

    play(scenario)


def test_metadata_without_a_partition_are_no_error_while_its_leader_answers() -> None:
    """A broker that has just started may not know a topic. Fetch responses do not contain idle partitions, so nothing would end
    the error.
    """

    async def scenario(scene: Scene) -> None:
        receiver = Feed(TopicPartition("t", 0))
        scene.say(1)
        line = scene.line(receiver)
        known = await scene.source._find_leaders_now()
        unknown = BrokerFailure.of(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        without = Metadata("id", 1, {}, {}, {"t": unknown})
        scene.cluster.metadata = lambda *_args, **_kwargs: without  # type: ignore[method-assign]
        assert (known, await scene.source._find_leaders_now()) == (None, WATCH_S), "it is looked up again"
        assert receiver.failures == []
        line.broker.channel = None
        await scene.source._find_leaders_now()
        assert receiver.failures == [unknown]

    play(scenario)


def test_a_truncated_log_is_reported_with_its_end() -> None:
    async def scenario(scene: Scene) -> None:
        receiver = Feed(TopicPartition("t", 0))
        receiver.leader_epoch = 5
        line = scene.line(receiver)
        line.ask()
        assert line.asked[0][receiver.partition].last_fetched_epoch == 5
        line.answer(fetched(receiver.partition, diverging=(4, 33)))
        assert (receiver.ends, receiver.taken) == ([(4, 33)], [])

    play(scenario)


def test_below_fetch_12_a_position_is_validated_before_it_is_read_and_after_each_change_of_leader() -> None:
    """KIP-320: the client asks by OffsetForLeaderEpoch, the broker does not compare by itself."""

    async def scenario(scene: Scene) -> None:
        receiver, fresh = Feed(TopicPartition("t", 0)), Feed(TopicPartition("t", 1))
        receiver.leader_epoch = 1
        line = scene.line(receiver, fresh, version=fetch.FLEXIBLE_FROM - 1)
        line.ask()
        assert (receiver.suspicions, [*line.asked[0]]) == (1, [fresh.partition])
        scene.source.validated(receiver.partition, scene.source._fetch_states[receiver.partition].leader_epoch)
        line.answer()
        assert {*line.asked[-1]} == {receiver.partition, fresh.partition}
        scene.say(1, leader_epoch=2)
        scene.source.refresh_soon()
        await wait_until_async(lambda: scene.source._fetch_states[receiver.partition].leader_epoch == 2)
        line.answer(fetched(receiver.partition, 6), fetched(fresh.partition, 6))
        assert (receiver.suspicions > 1, receiver.taken, fresh.taken) == (True, [], []), "responses to earlier requests"
        line.answer(fetched(fresh.partition, 6))
        assert (receiver.taken, fresh.taken) == ([], [6])
        assert receiver.partition not in line.asked[-1]

    play(scenario)


def test_an_abandoned_partition_is_not_fetched() -> None:
    async def scenario(scene: Scene) -> None:
        one, two = Feed(TopicPartition("t", 0)), Feed(TopicPartition("t", 1))
        line = scene.line(one, two)
        line.ask()
        scene.source.remove(one.partition)
        line.answer(fetched(one.partition, 5), fetched(two.partition, 6))
        assert (one.taken, two.taken, [*line.asked[-1]]) == ([], [6], [two.partition])

    play(scenario)


def test_the_isolation_that_one_partition_needs_applies_to_all() -> None:
    async def scenario(scene: Scene) -> None:
        partition, other = (TopicPartition("t", index) for index in (0, 1))
        source, feed = scene.source, Feed(partition)
        line = scene.line(feed)
        line.ask()
        source.isolate(other, committed=True)
        found = [source.reads_committed]
        line.answer(fetched(partition))
        source.isolate(other, committed=False)
        found.append(source.reads_committed)
        line.answer(fetched(partition))
        assert (line.committed, found) == ([False, True, False], [True, False])

    play(scenario)


def test_a_full_partition_is_not_fetched() -> None:
    async def scenario(scene: Scene) -> None:
        one, two = Feed(TopicPartition("t", 0)), Feed(TopicPartition("t", 1))
        line = scene.line(one, two)
        one.full = True
        line.ask()
        assert [*line.asked[-1]] == [two.partition]

    play(scenario)


def test_an_idle_partition_is_not_checked_until_it_changes() -> None:
    async def scenario(scene: Scene) -> None:
        quiet, busy = Feed(TopicPartition("t", 0)), Feed(TopicPartition("t", 1))
        line = scene.line(quiet, busy)
        line.ask()
        line.answer(fetched(busy.partition, 6))
        assert (line.touched[-1], {*line.asked[-1]}) == ([busy.partition], {quiet.partition, busy.partition})
        line.answer()
        assert line.touched[-1] == []
        quiet.offset = 41
        scene.source.consider(quiet.partition)
        line.answer()
        assert (line.touched[-1], line.asked[-1][quiet.partition].offset) == ([quiet.partition], 41)
        quiet.suspended = quiet.full = quiet.stuck = True
        scene.source.consider(quiet.partition)
        line.answer()
        assert (line.touched[-1], [*line.asked[-1]]) == ([quiet.partition], [busy.partition])
        quiet.suspended = quiet.full = quiet.stuck = False
        line.answer()
        assert quiet.partition in line.asked[-1]

    play(scenario)


def test_fetches_of_idle_partitions_wait_longer_until_they_change() -> None:
    async def scenario(scene: Scene) -> None:
        receiver = Feed(TopicPartition("t", 0))
        line = scene.line(receiver)
        line.ask()
        for _ in range(5):
            line.answer()
        assert line.waits_ms == [500, 1000, 2000, 2000, 2000, 2000]
        line.answer(fetched(receiver.partition, 6))
        assert line.waits_ms[-1] == 500
        line.answer()
        assert line.waits_ms[-1] == 1000
        receiver.offset = 7  # it was sent elsewhere
        scene.source.consider(receiver.partition)
        line.answer()
        assert line.waits_ms[-1] == 500

    play(scenario)


def test_with_a_minimum_of_bytes_no_fetch_waits_longer_than_configured() -> None:
    async def scenario(scene: Scene) -> None:
        line = scene.line(Feed(TopicPartition("t", 0)))
        line.ask()
        for _ in range(3):
            line.answer()
        assert line.waits_ms == [500] * 4

    play(scenario, limits=FetchLimits(min_bytes=100))


def test_an_idle_partition_is_not_fetched_while_paused_and_fetched_again_afterwards() -> None:
    async def scenario(scene: Scene) -> None:
        quiet, busy = Feed(TopicPartition("t", 0)), Feed(TopicPartition("t", 1))
        line = scene.line(quiet, busy)
        line.ask()
        line.answer()
        quiet.full = quiet.stuck = True
        scene.source.reconsider([quiet.partition, TopicPartition("unknown", 0)])
        line.answer()
        assert (line.touched[-1], [*line.asked[-1]]) == ([quiet.partition], [busy.partition])
        quiet.full = quiet.stuck = False
        scene.source.reconsider([quiet.partition])
        line.answer()
        assert (line.touched[-1], quiet.partition in line.asked[-1]) == ([quiet.partition], True)

    play(scenario)


def test_a_response_rejected_by_a_paused_partition_causes_no_further_fetch() -> None:
    async def scenario(scene: Scene) -> None:
        receiver = Feed(TopicPartition("t", 0))
        line = scene.line(receiver)
        line.ask()
        size = line.asked[-1][receiver.partition].max_bytes
        receiver.full = True
        line.answer(fetched(receiver.partition, size))
        receiver.full = False
        line.ask()
        assert line.asked[-1][receiver.partition].max_bytes == size
        line.answer(fetched(receiver.partition, size))
        assert line.asked[-1][receiver.partition].max_bytes > size, "a batch that does not fit"

    play(scenario)


def test_while_all_are_full_nothing_is_fetched_and_no_partition_is_listed_twice_afterwards() -> None:
    async def scenario(scene: Scene) -> None:
        one, two = Feed(TopicPartition("t", 0)), Feed(TopicPartition("t", 1))
        line = scene.line(one, two)
        line.ask()
        for receiver in (one, two):
            receiver.full = True
            receiver.offset += 1
            scene.source.consider(receiver.partition)
        line.answer()
        for _ in range(2):
            line.ask()
        assert len(line.asked) == 1
        one.full = False
        line.ask()
        assert line.touched[-1] == [one.partition, two.partition]
        assert [*line.asked[-1]] == [one.partition]

    play(scenario)


def test_a_partition_with_waiting_batches_is_checked_each_time_because_time_makes_it_full() -> None:
    async def scenario(scene: Scene) -> None:
        receiver, other = Feed(TopicPartition("t", 0)), Feed(TopicPartition("t", 1))
        receiver.idle = False
        line = scene.line(receiver, other)
        line.ask()
        line.answer()
        assert line.touched[-1] == [receiver.partition]
        receiver.full = True
        line.answer()
        assert [*line.asked[-1]] == [other.partition]

    play(scenario)


def test_the_limit_of_one_topic_blocks_no_other() -> None:
    async def scenario(scene: Scene) -> None:
        slow, fast = Feed(TopicPartition("slow", 0)), Feed(TopicPartition("fast", 0))
        line = scene.line(slow, fast)
        line.ask()
        assert (line.asked[0][slow.partition].max_bytes, line.max_bytes) == (10_000, [8 << 20])
        line.answer(fetched(slow.partition, 30_000), fetched(fast.partition, 500_000))
        assert [*line.asked[1]] == [fast.partition]
        assert (line.asked[1][fast.partition].max_bytes, line.max_bytes[1], slow.limited) == (1 << 20, 8 << 20, 1)

    play(scenario, Throttle(0, {"slow": 10_000}))


def test_the_limit_of_a_flow_applies_to_a_whole_response_and_is_awaited() -> None:
    async def scenario(scene: Scene) -> None:
        one, two = Feed(TopicPartition("t", 0)), Feed(TopicPartition("u", 0))
        line = scene.line(one, two)
        line.ask()
        assert line.max_bytes == [200_000]
        line.answer(fetched(one.partition, 215_000))
        assert (len(line.asked), one.limited, two.limited) == (1, 1, 1)
        await asyncio.sleep(0.3)
        assert [*line.asked[1]] == [one.partition, two.partition]

    play(scenario, Throttle(200_000))


@pytest.mark.parametrize(("batches", "size", "waits"), [(4, 100, True), (3, 100, False), (4, 30_000, False)])
def test_after_many_small_batches_the_next_request_waits_for_more(batches: int, size: int, waits: bool) -> None:
    async def scenario(scene: Scene) -> None:
        receiver = Feed(TopicPartition("t", 0))
        line = scene.line(receiver)
        line.ask()
        data = b"".join(encode_batch([Record(None, bytes(size))], base_offset=40 + n) for n in range(batches))
        line.answers.append([fetched(receiver.partition, records=memoryview(data))])
        receiver.offset += batches
        scene.source._answered(line.broker, memoryview(bytes(len(data))))
        line.ask()
        scene.source.resume()
        assert len(line.asked) == (1 if waits else 2)
        await wait_until_async(lambda: len(line.asked) == 2)

    play(scenario)


# -- time for re-encoding -------------------------------------------------------------------------------------------------


def test_a_partition_that_was_passed_over_does_not_read_more_the_next_time() -> None:
    """Its batches are not too large: there was no time for them."""

    async def scenario(scene: Scene) -> None:
        feed = Feed(TopicPartition("t", 0))
        line = scene.line(feed)
        for feed.passed_over in (True, False):
            line.ask()
            line.answer(fetched(feed.partition, 1 << 20))
        assert [asked[feed.partition].max_bytes for asked in line.asked] == [1 << 20, 1 << 20, 4 << 20]

    play(scenario)


def test_partitions_take_turns_when_the_time_is_over() -> None:
    """Otherwise the last ones of a response would wait as long as the first ones have something to be re-encoded."""

    async def scenario(scene: Scene) -> None:
        feeds = [_OneInTime(TopicPartition("t", index)) for index in range(4)]
        line = scene.line(*feeds)
        line.ask()
        for _ in range(12):
            _OneInTime.is_over = False
            line.answer(*(fetched(feed.partition, 100) for feed in feeds))
        assert [len(feed.taken) for feed in feeds] == [3, 3, 3, 3]

    play(scenario)


class _OneInTime(Feed):
    """The first of them that is called takes all the time."""

    is_over = False

    def take(self, fetched: Fetched, leader_epoch: int | None) -> None:
        self.passed_over = _OneInTime.is_over
        _OneInTime.is_over = True
        if not self.passed_over:
            super().take(fetched, leader_epoch)


def test_a_broker_that_answers_at_once_with_nothing_is_asked_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an end it was asked as often as it answered."""
    monkeypatch.setattr("mm2.kafka.backoff._HASTY", Backoff(3_600_000, 3_600_000))

    async def scenario(scene: Scene) -> None:
        line = scene.line(Feed(TopicPartition("t", 0)))
        line.ask()
        for _ in range(50):
            if line.broker.asked_at is not None:
                line.answer()
            line.ask()
        assert len(line.asked) == 8, "then there is a pause"

    play(scenario, limits=FetchLimits(max_wait_ms=3_600_000))
