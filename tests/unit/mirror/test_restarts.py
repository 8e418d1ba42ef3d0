from typing import Any

from mm2.mirror.restarts import Restarts


def status(state: str, *, leader: bool = True, connector: str = "RUNNING") -> dict[str, Any]:
    parts = {"connector": {"state": connector}, "tasks": [{"id": 0, "state": "RUNNING"}, {"id": 1, "state": state}]}
    return {"leader": leader, "connectors": {"MirrorHeartbeatConnector": parts}}


def test_a_failed_task_is_started_again_after_a_while_and_then_ever_later() -> None:
    restarts = Restarts()
    seen = [now for now in range(0, 700, 5) if restarts.due(status("FAILED"), float(now))]
    assert seen == [10, 30, 70, 150, 310, 610]


def test_a_failed_connector_counts_like_a_task() -> None:
    restarts = Restarts()
    assert restarts.due(status("RUNNING", connector="FAILED"), 0.0) == []
    assert restarts.due(status("RUNNING", connector="FAILED"), 10.0) == ["MirrorHeartbeatConnector"]


def test_only_the_leader_restarts() -> None:
    restarts = Restarts()
    assert not [now for now in range(100) if restarts.due(status("FAILED", leader=False), float(now))]
    assert restarts.due(status("FAILED"), 100.0) == ["MirrorHeartbeatConnector"]


def test_what_runs_is_left_alone_and_forgotten_after_ten_quiet_minutes() -> None:
    restarts = Restarts()
    for now in range(0, 31, 5):
        restarts.due(status("FAILED"), float(now))
    assert not [now for now in range(31, 700) if restarts.due(status("RUNNING"), float(now))]
    assert restarts.due(status("FAILED"), 700.0) == []
    assert restarts.due(status("FAILED"), 710.0) == ["MirrorHeartbeatConnector"]


def test_a_failure_after_some_quiet_waits_as_long_as_the_last_one() -> None:
    restarts = Restarts()
    assert [now for now in range(0, 15, 5) if restarts.due(status("FAILED"), float(now))] == [10]
    assert not [now for now in range(15, 100, 5) if restarts.due(status("RUNNING"), float(now))]
    assert [now for now in range(100, 130, 5) if restarts.due(status("FAILED"), float(now))] == [120]
