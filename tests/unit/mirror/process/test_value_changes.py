"""Which worker restarts what when the values of config providers have changed."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, cast

import pytest

from mm2.connect.errors import NotLeader, RebalanceNeeded
from mm2.connect.herder.distributed import DistributedHerder
from mm2.connect.stores.config_state import ConnectorTaskId, RestartRequest
from mm2.mirror.process import value_changes
from mm2.mirror.process.value_changes import restart_with_new_values
from tests.support.waiting import wait_until

TASKS = (ConnectorTaskId("source", 0), ConnectorTaskId("source", 3), ConnectorTaskId("checkpoint", 0))


class Herder:
    """The part of a herder that is used here; the first requests fail with ``failures``."""

    def __init__(self, *failures: Exception, leads: bool = False) -> None:
        self.is_leader = leads
        self.assigned = (("source",), TASKS)
        self.failures = list(failures)
        self.requests: list[object] = []

    def restart_connector_and_tasks(self, request: RestartRequest) -> Future[None]:
        assert request.include_tasks
        assert not request.only_failed
        return self._handle(request)

    def restart_connector(self, name: str) -> Future[None]:
        return self._handle(name)

    def restart_task(self, task: ConnectorTaskId) -> Future[None]:
        return self._handle(task)

    def _handle(self, request: object) -> Future[None]:
        self.requests.append(request)
        future: Future[None] = Future()
        if self.failures:
            failure = self.failures.pop(0)
            if isinstance(failure, NotLeader):
                self.is_leader = False
            future.set_exception(failure)
        else:
            future.set_result(None)
        return future

    def restart(self) -> list[object]:
        restart_with_new_values(cast(DistributedHerder, cast(Any, self)), "source")
        return self.requests


ALL = RestartRequest("source", only_failed=False, include_tasks=True)
OWN = ["source", *TASKS[:2]]


def test_the_leader_restarts_the_connector_on_all_workers() -> None:
    assert Herder(leads=True).restart() == [ALL]


def test_another_worker_restarts_its_own_part() -> None:
    """Its values may have changed after the leader has restarted all tasks."""
    assert Herder().restart() == OWN


def test_a_worker_that_has_just_lost_the_leadership_restarts_its_own_part() -> None:
    assert Herder(NotLeader("no", None), leads=True).restart() == [ALL, *OWN]


@pytest.mark.parametrize("leads", [True, False])
def test_a_restart_is_repeated_after_a_rebalance(monkeypatch: pytest.MonkeyPatch, leads: bool) -> None:
    monkeypatch.setattr(value_changes, "_AGAIN_S", 0.01)
    herder = Herder(RebalanceNeeded(), leads=leads)
    expected = [ALL] if leads else OWN
    herder.restart()
    wait_until(lambda: len(herder.requests) > len(expected), 30, what="the repeated request", interval_s=0.01)
    repeated = list(herder.requests)
    repeated.remove(expected[0])  # a repetition may come before the other requests
    assert sorted(repeated, key=str) == sorted(expected, key=str)
