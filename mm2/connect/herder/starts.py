"""Starts connectors and tasks on this worker, in the target state of their configurations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from mm2.connect.errors import NotFound
from mm2.connect.herder.reloads import Reloads
from mm2.connect.herder.status_reports import StatusReports
from mm2.connect.runtime.connectors import OnTransition
from mm2.connect.runtime.tasks import OwnershipGuard
from mm2.connect.runtime.worker import TaskStart, Worker
from mm2.connect.stores.config_state import ClusterConfigState, ConnectorTaskId

log = structlog.get_logger(__name__)

#: Creates what a task's start checks before it produces, or None. Arguments: task, generation of its configs.
NewGuard = Callable[[ConnectorTaskId, int | None], OwnershipGuard | None]


def ignore_outcome(_error: Exception | None) -> None:
    """For callers that rely on the status instead."""


class Reconfiguration(Protocol):
    """Requests task configs of connectors; see TaskReconfiguration."""

    def request(self, name: str, *, fresh: bool = False, then: Callable[[], None] | None = None) -> None:
        """``fresh``: the connector's instance is new."""


@dataclass(frozen=True)
class Starts:
    """``configs`` returns the herder's view; ``reloads`` schedules restarts for expiring values. Any thread."""

    worker: Worker
    reports: StatusReports
    configs: Callable[[], ClusterConfigState]
    reconfiguration: Reconfiguration
    guard: NewGuard
    reloads: Reloads
    #: Whether this worker's assignment is still valid.
    is_ours: Callable[[], bool]

    def connector(self, name: str, done: OnTransition = ignore_outcome) -> None:
        """Start a connector; ``done`` is called when it has reached its state, or with the error."""
        configs = self.configs()
        raw, state = configs.connector_config(name), configs.target_state(name)
        if raw is None or state is None:
            log.warning("a connector to be started has no config", connector=name)
            done(NotFound(f"Connector {name} not found"))
            return
        self.reloads.schedule(name, raw)
        self.worker.start_connector(
            name,
            raw,
            listener=self.reports,
            request_reconfiguration=lambda: self.reconfiguration.request(name),
            stored_task_configs=lambda: self.configs().all_task_configs(name),
            state=state,
            on_transition=self.on_transition(name, done),
        )

    def on_transition(self, name: str, done: OnTransition = ignore_outcome) -> OnTransition:
        """The callback for a connector's change of state: once it is running, its task configs are requested.

        ``done`` is called when these are published, or when the first attempt has failed.
        """

        def on_transition(error: Exception | None) -> None:
            if error is not None or not self.worker.is_running(name):
                done(error)
                return
            self.reconfiguration.request(name, fresh=True, then=lambda: done(None))

        return on_transition

    def task(self, task: ConnectorTaskId) -> bool:
        """Start a task; False when that failed. The status shows the reason."""
        configs = self.configs()
        connector_raw, task_raw = configs.connector_config(task.connector), configs.task_config(task)
        state = configs.target_state(task.connector)
        if connector_raw is None or task_raw is None or state is None:
            log.warning("a task to be started has no config", task_id=str(task))
            return False
        return self.worker.start_task(
            TaskStart(
                task,
                connector_raw,
                task_raw,
                count=len(configs.tasks(task.connector)),
                state=state,
                listener=self.reports,
                on_topic=lambda topic: self.reports.used_topic(topic, task),
                is_ours=self.is_ours,
                guard=self.guard(task, configs.task_config_generations.get(task.connector)),
            )
        )
