from typing import Any

from mm2.mirror.process.restarts import Restarts


def status(state: str, *, leader: bool = True, connector: str = "RUNNING") -> dict[str, Any]:
    parts = {"connector": {"state": connector}, "tasks": [{"id": 0, "state": "RUNNING"}, {"id": 1, "state": state}]}
    return {"leader": leader, "connectors": {"MirrorHeartbeatConnector": parts}}


def test_a_failed_task_is_restarted_with_backoff() -> None:
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


def test_running_tasks_are_not_restarted_and_forgotten_after_ten_minutes() -> None:
    restarts = Restarts()
    for now in range(0, 31, 5):
        restarts.due(status("FAILED"), float(now))
    assert not [now for now in range(31, 700) if restarts.due(status("RUNNING"), float(now))]
    assert restarts.due(status("FAILED"), 700.0) == []
    assert restarts.due(status("FAILED"), 710.0) == ["MirrorHeartbeatConnector"]


def test_a_failure_soon_after_a_recovery_keeps_its_backoff() -> None:
    restarts = Restarts()
    assert [now for now in range(0, 15, 5) if restarts.due(status("FAILED"), float(now))] == [10]
    assert not [now for now in range(15, 100, 5) if restarts.due(status("RUNNING"), float(now))]
    assert [now for now in range(100, 130, 5) if restarts.due(status("FAILED"), float(now))] == [120]
