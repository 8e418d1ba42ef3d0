"""The instance of a connector, without Kafka."""

from __future__ import annotations

from concurrent.futures import Future
from typing import cast

import pytest

from mm2.config.configdef import ConfigDef
from mm2.connect.api import ConnectError, Connector, ConnectorContext, SourceConnector, Task
from mm2.connect.runtime.connectors import InstanceState, TooManyTasks, WorkerConnector
from mm2.connect.stores.config_state import TargetState
from tests.support.waiting import wait_until
from tests.unit.connect.task_parts import RecordingListener
from tests.unit.connect.test_worker_keys import worker


class Failing(SourceConnector):
    """A connector whose context the test uses, and that has two tasks."""

    context: ConnectorContext

    def __init__(self) -> None:
        self.stops = 0
        self.fails_to_stop = False

    def version(self) -> str:
        return "1"

    def start(self, props: dict[str, str]) -> None: ...

    def stop(self) -> None:
        self.stops += 1
        if self.fails_to_stop:
            raise OSError("the process has died")

    def task_class(self) -> type[Task]:
        return Task

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        return [{}, {}]

    def config(self) -> ConfigDef:
        return ConfigDef()


class Running:
    """A started connector."""

    def __init__(self) -> None:
        self.listener = RecordingListener()
        self.plugin = Failing()
        self.connector = WorkerConnector(
            "c", lambda: cast("Connector", self.plugin), {}, self.listener, lambda: None, list, {}
        )
        self.connector.start()
        assert self.become(TargetState.STARTED) is None

    def become(self, state: TargetState) -> Exception | None:
        outcome: Future[Exception | None] = Future()
        self.connector.transition_to(state, outcome.set_result)
        return outcome.result(60)


@pytest.mark.parametrize("fails_to_stop", [False, True])
def test_a_connector_that_reports_an_error_does_not_run_any_more(fails_to_stop: bool) -> None:
    """As in Java. Its plugin is stopped with it, which Java leaves out."""
    running = Running()
    running.plugin.fails_to_stop = fails_to_stop
    running.plugin.context.raise_error(ValueError("broken"))
    assert not running.connector.is_running
    for state in (TargetState.PAUSED, TargetState.STARTED):
        assert isinstance(running.become(state), ConnectError)
    running.plugin.context.raise_error(ValueError("broken again"))
    assert running.listener.events == ["startup", "failure"]
    assert running.plugin.stops == 0
    running.connector.shutdown()
    assert running.connector.await_shutdown(10)
    assert (running.listener.events, running.plugin.stops) == (["startup", "failure", "shutdown"], 1)


def test_a_failed_connector_can_be_stopped_and_then_resumed() -> None:
    running = Running()
    running.plugin.context.raise_error(ValueError("broken"))
    assert running.become(TargetState.STOPPED) is None
    assert (running.listener.events, running.plugin.stops) == (["startup", "failure", "stop"], 1)
    assert running.become(TargetState.STARTED) is None
    assert running.connector.is_running
    running.connector.shutdown()
    assert running.connector.await_shutdown(10)
    assert running.plugin.stops == 2


def test_a_connector_with_too_many_tasks_has_failed() -> None:
    running, instance = Running(), worker()
    instance._connectors["c"] = running.connector
    props = {"name": "c", "connector.class": "Failing", "tasks.max": "1"}
    with pytest.raises(TooManyTasks):
        instance.task_configs("c", dict(props), props)
    wait_until(lambda: running.connector.state is InstanceState.FAILED)
    assert not instance.is_running("c")
    running.connector.shutdown()
    assert running.connector.await_shutdown(10)
