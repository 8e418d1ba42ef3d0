"""Rounds of zombie fencing: when one is needed, and that an incomplete one is never reported as complete."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from structlog.testing import capture_logs

from mm2.connect.api import ConnectError
from mm2.connect.herder.request_queue import StageTracker
from mm2.connect.herder.steps.fencing import FencingConflict, FencingRound, LeaderPrivileges, ZombieFencing, due_round
from mm2.connect.stores.config_state import ClusterConfigState


def configs(tasks: int, record: int | None, *, pending: bool = True, generation: int = 3) -> ClusterConfigState:
    return ClusterConfigState(
        task_counts={"c": tasks},
        task_count_records={} if record is None else {"c": record},
        task_config_generations={"c": generation},
        pending_fencing=frozenset({"c"} if pending else ()),
    )


@pytest.mark.parametrize(
    ("state", "fence"),
    [
        (configs(3, None), 0),
        (configs(1, 1), 0),
        (configs(3, 1), 1),
        (configs(1, 3), 3),
        (configs(3, 3), 3),
        (configs(0, 2), 2),
    ],
    ids=["first", "one after one", "one before", "more before", "as many", "none now"],
)
def test_producers_of_the_last_recorded_tasks_are_fenced(state: ClusterConfigState, fence: int) -> None:
    assert due_round(state, "c") == FencingRound("c", 3, fence=fence, record=state.task_counts["c"])


def test_a_completed_round_is_not_due() -> None:
    assert due_round(configs(3, 3, pending=False), "c") is None


class Leader:
    """A herder that runs in the test's thread."""

    def __init__(self, state: ClusterConfigState) -> None:
        self.state = state
        self.leads = True
        self.written: list[tuple[str, int]] = []
        self.waiting: list[Callable[[], None]] = []
        self.asked = threading.Event()

    def require_leader(self) -> None:
        if not self.leads:
            raise ConnectError("not the leader")

    def refreshed(self) -> ClusterConfigState:
        return self.state

    def write_task_count(self, connector: str, count: int) -> None:
        self.written.append((connector, count))

    def later(self, action: Callable[[], None], stage: str) -> Future[None]:
        self.waiting.append(action)
        self.asked.set()
        return Future()

    def tick(self) -> None:
        assert self.asked.wait(60)
        self.waiting.pop()()


class Brokers:
    """Fences when the test allows it."""

    def __init__(self) -> None:
        self.fenced: list[tuple[str, int]] = []
        self.go_on = threading.Event()
        self.error: Exception | None = None

    def fence(self, connector: str, count: int) -> None:
        assert self.go_on.wait(60)
        if self.error is not None:
            raise self.error
        self.fenced.append((connector, count))


def begun(state: ClusterConfigState) -> tuple[Leader, Brokers, ZombieFencing]:
    leader, brokers = Leader(state), Brokers()
    return leader, brokers, ZombieFencing(leader, brokers.fence)


def test_requests_during_a_round_share_it() -> None:
    leader, brokers, fencing = begun(configs(2, 3))
    first, second = fencing.begin("c"), fencing.begin("c")
    assert first is second
    assert not first.done()
    brokers.go_on.set()
    leader.tick()
    assert first.result(60) is None
    assert brokers.fenced == [("c", 3)]
    assert leader.written == [("c", 2)]


def test_a_round_without_fencing_is_recorded_immediately() -> None:
    leader, brokers, fencing = begun(configs(2, None))
    assert fencing.begin("c").result(0) is None
    assert leader.written == [("c", 2)]
    leader.state = configs(2, 2, pending=False)
    assert fencing.begin("c").result(0) is None
    assert len(leader.written) == 1
    assert brokers.fenced == []


def test_new_task_configs_end_a_round_and_nothing_is_written() -> None:
    leader, brokers, fencing = begun(configs(2, 3))
    round_ = fencing.begin("c")
    fencing.abort("c")
    with pytest.raises(FencingConflict):
        round_.result(0)
    brokers.go_on.set()
    leader.tick()
    assert leader.written == []
    # The next one is a round of its own.
    assert fencing.begin("c") is not round_


def test_an_unnoticed_later_generation_is_a_conflict() -> None:
    leader, brokers, fencing = begun(configs(2, 3))
    round_ = fencing.begin("c")
    leader.state = configs(2, 3, generation=4)
    brokers.go_on.set()
    leader.tick()
    with pytest.raises(FencingConflict):
        round_.result(0)
    assert leader.written == []


def test_a_former_leader_writes_nothing() -> None:
    leader, brokers, fencing = begun(configs(2, 3))
    round_ = fencing.begin("c")
    leader.leads = False
    brokers.go_on.set()
    leader.tick()
    with pytest.raises(ConnectError, match="not the leader"):
        round_.result(0)
    assert leader.written == []
    with pytest.raises(ConnectError, match="not the leader"):
        fencing.begin("c")


def test_a_failed_round_can_be_repeated() -> None:
    leader, brokers, fencing = begun(configs(2, 3))
    brokers.error = ConnectError("no right")
    brokers.go_on.set()
    with pytest.raises(ConnectError, match="no right"):
        fencing.begin("c").result(60)
    brokers.error = None
    again = fencing.begin("c")
    leader.tick()
    assert again.result(60) is None
    assert leader.written == [("c", 2)]


def test_a_reason_why_write_privileges_are_not_claimed_is_logged_once() -> None:
    """It is tried again four times a second, without the right to the transactional id for hours."""

    class Denied:
        reason = "no right"

        def claim_write_privileges(self) -> None:
            if self.reason:
                raise ConnectError(self.reason)

    store: Any = Denied()
    privileges = LeaderPrivileges(store, StageTracker(""), threading.Event())
    with capture_logs() as logs:
        assert [privileges.claim() for _ in range(3)] == [False] * 3
        store.reason = "another"
        assert not privileges.claim()
        store.reason = ""
        assert privileges.claim()
        store.reason = "another"
        assert not privileges.claim()
    assert [line["reason"] for line in logs] == ["no right", "another", "another"]
