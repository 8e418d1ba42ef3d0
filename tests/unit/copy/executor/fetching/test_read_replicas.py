"""Reading from a follower of the client's rack (KIP-392). The test plays metadata and brokers: 1 leads, 2 follows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mm2.copy.executor.clusters.brokers import BrokerAddress
from mm2.copy.executor.fetching.source import Source
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import DisconnectedFailure
from mm2.kafka.structs import Metadata, PartitionInfo, TopicInfo, TopicPartition
from mm2.kafka.wire import fetch
from tests.support.waiting import wait_until_async
from tests.unit.copy.executor.fetching.test_source import Feed, Line, Scene, fetched, play

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Racks:
    """Two brokers, of which the first leads the partitions of ``receivers``."""

    def __init__(self, scene: Scene, *receivers: Feed, version: int = fetch.MAX_VERSION) -> None:
        self.source: Source = scene.source
        self.receivers = receivers
        scene.line(*receivers, version=version)
        self.leader = Line(self.source, [], version, node=1)
        self.follower = Line(self.source, [], version, node=2)
        self.apply()

    def apply(self, *, leader: int = 1, leader_epoch: int = 1, offline: tuple[int, ...] = ()) -> None:
        """New metadata."""
        rows = {
            receiver.partition.partition: PartitionInfo(leader, leader_epoch, (1, 2), (1, 2), offline)
            for receiver in self.receivers
        }
        metadata = Metadata("id", 1, {}, {"t": TopicInfo("t", "", False, rows)})
        self.source._assign_leaders(metadata, {"t"}, {"t"})

    def address(self, tp: TopicPartition = T0) -> BrokerAddress | None:
        return self.source._fetch_states[tp].address

    def redirect(self, *partitions: TopicPartition) -> None:
        """The leader names the follower."""
        self.leader.answer(*(fetched(tp, preferred_replica=2) for tp in partitions))


Scenario = Callable[[Scene], Awaitable[None]]


def in_rack(scenario: Scenario) -> None:
    play(scenario, rack="b")


def test_the_replica_that_the_leader_names_is_read() -> None:
    async def scenario(scene: Scene) -> None:
        feed = Feed(T0)
        racks = Racks(scene, feed)
        assert racks.leader.racks == ["b"]
        racks.redirect(T0)
        assert racks.address() == BrokerAddress(2, 0)
        assert [asked[T0].offset for asked in racks.follower.asked] == [40]
        racks.follower.answer(fetched(T0, 10))
        assert feed.taken == [10]
        assert len(racks.leader.asked) == 1  # the leader is not asked for it any more

    in_rack(scenario)


def test_no_rack_is_sent_without_client_rack_or_before_version_11() -> None:
    async def without(scene: Scene) -> None:
        assert Racks(scene, Feed(T0)).leader.racks == [""]

    async def old(scene: Scene) -> None:
        assert Racks(scene, Feed(T0), version=10).leader.racks == [""]

    play(without)
    in_rack(old)


@pytest.mark.parametrize(
    "answer",
    [{"error_code": ErrorCode.OFFSET_OUT_OF_RANGE}, {"diverging": (0, 30)}],
    ids=["out-of-range", "diverging-epoch"],
)
def test_a_follower_behind_the_position_is_no_truncation(answer: dict[str, Any]) -> None:
    """The leader is asked, without the rack, so that it compares the position with its own log."""

    async def scenario(scene: Scene) -> None:
        feed = Feed(T0)
        racks = Racks(scene, feed)
        racks.redirect(T0)
        feed.leader_epoch = 1
        racks.follower.answer(fetched(T0, **answer))
        assert (feed.failures, feed.ends) == ([], [])
        assert racks.address() == BrokerAddress(1, 0)
        assert racks.leader.racks[-1] == ""
        assert racks.leader.max_bytes[-1] == 1
        racks.leader.answer(fetched(T0, diverging=(0, 30)))
        assert feed.ends == [(0, 30)]

    in_rack(scenario)


def test_a_position_is_compared_by_the_leader_before_a_follower_is_read() -> None:
    async def scenario(scene: Scene) -> None:
        feed, other = Feed(T0), Feed(T1)
        feed.leader_epoch = 0
        racks = Racks(scene, feed, other)
        assert racks.leader.racks == [""]
        assert racks.leader.asked[0][T0].last_fetched_epoch == 0
        racks.leader.answer(fetched(T1))  # a session's response leaves out what has not changed
        assert racks.leader.racks == ["", "b"]

    in_rack(scenario)


def test_before_version_12_the_position_is_validated_before_a_follower_is_read() -> None:
    async def scenario(scene: Scene) -> None:
        feed = Feed(T0)
        feed.leader_epoch = 0
        racks = Racks(scene, feed, version=11)
        assert (racks.leader.asked, feed.suspicions) == ([], 1)
        racks.source.validated(T0, 1)
        await wait_until_async(lambda: racks.leader.racks == ["b"])
        racks.redirect(T0)
        assert racks.address() == BrokerAddress(2, 0)
        racks.follower.answer(fetched(T0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
        assert feed.suspicions == 2  # by the leader's log again

    in_rack(scenario)


@pytest.mark.parametrize("change", [{"leader_epoch": 2}, {"leader": 2, "leader_epoch": 2}, {"offline": (2,)}])
def test_the_follower_is_left_after_a_leader_change_or_when_it_is_offline(change: dict[str, Any]) -> None:
    async def scenario(scene: Scene) -> None:
        feed = Feed(T0)
        racks = Racks(scene, feed)
        racks.redirect(T0)
        racks.apply()
        assert racks.address() == BrokerAddress(2, 0)  # the same metadata change nothing
        racks.apply(**change)
        assert racks.source._fetch_states[T0].replica == -1
        assert racks.address() == BrokerAddress(change.get("leader", 1), 0)
        racks.follower.answer(fetched(T0, 10))
        assert feed.taken == []  # the response is from before the change

    in_rack(scenario)


def test_a_late_response_of_a_follower_that_was_left_is_dropped_when_it_is_read_again() -> None:
    """The broker may have answered before the leader changed; only what is requested afterwards counts."""

    async def scenario(scene: Scene) -> None:
        feed = Feed(T0)
        racks = Racks(scene, feed)
        racks.redirect(T0)
        racks.apply(leader_epoch=2)
        racks.redirect(T0)
        assert racks.address() == BrokerAddress(2, 0)
        racks.follower.answer(fetched(T0, 10))
        assert feed.taken == []
        racks.follower.answer(fetched(T0, 11))
        assert feed.taken == [11]

    in_rack(scenario)


def test_a_lost_follower_is_replaced_by_the_leader_which_is_not_asked_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mm2.copy.executor.fetching.source.AFTER_LOSS_S", 0.1)

    async def scenario(scene: Scene) -> None:
        feed = Feed(T0)
        racks = Racks(scene, feed)
        racks.redirect(T0)
        racks.source._lost(racks.follower.broker, DisconnectedFailure("gone"))
        assert racks.address() == BrokerAddress(1, 0)
        assert racks.leader.racks == ["b", ""]
        await asyncio.sleep(0.15)
        racks.leader.answer(fetched(T0, 5))
        assert racks.leader.racks == ["b", "", "b"]
        assert (feed.taken, feed.failures) == ([5], [])

    in_rack(scenario)


def test_the_leader_is_asked_again_after_the_maximum_age_of_metadata() -> None:
    async def scenario(scene: Scene) -> None:
        racks = Racks(scene, Feed(T0))
        racks.source._replicas._max_age_s = 0.01
        racks.redirect(T0)
        await asyncio.sleep(0.02)
        racks.source._watch()
        assert racks.address() == BrokerAddress(1, 0)
        assert racks.leader.racks == ["b", "b"]

    in_rack(scenario)


def test_the_high_watermark_of_a_follower_is_not_below_the_position() -> None:
    async def scenario(scene: Scene) -> None:
        feed = Feed(T0)
        feed.offset = 120
        ends: list[int] = []
        feed.take = lambda found, _epoch: ends.append(found.high_watermark)  # type: ignore[assignment,method-assign]
        racks = Racks(scene, feed)
        racks.redirect(T0)
        racks.follower.answer(fetched(T0))
        assert ends == [120]

    in_rack(scenario)
