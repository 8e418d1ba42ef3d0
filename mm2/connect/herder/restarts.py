"""Selects the parts of a connector that a restart request affects (KIP-745)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mm2.connect.herder.answers import ConnectorStateInfo, WorkState
from mm2.connect.stores.config_state import ConnectorTaskId, RestartRequest
from mm2.connect.stores.status_store import State


@dataclass(frozen=True)
class RestartPlan:
    """``states`` are the current ones, except that everything to be restarted is RESTARTING."""

    states: ConnectorStateInfo
    #: Whether the connector's instance is restarted.
    connector: bool
    tasks: tuple[ConnectorTaskId, ...]


def restart_plan(request: RestartRequest, states: ConnectorStateInfo) -> RestartPlan:
    """The plan, which all workers compute from the same statuses; each applies it to the work it owns."""
    tasks = tuple(
        ConnectorTaskId(request.connector, task.id)
        for task in states.tasks
        if request.include_tasks and _is_meant(request, task.work)
    )
    connector = _is_meant(request, states.connector)
    restarted = {task.task for task in tasks}
    return RestartPlan(
        replace(
            states,
            connector=_restarting(states.connector) if connector else states.connector,
            tasks=tuple(
                replace(task, work=_restarting(task.work)) if task.id in restarted else task for task in states.tasks
            ),
        ),
        connector,
        tasks,
    )


def _is_meant(request: RestartRequest, work: WorkState) -> bool:
    return not request.only_failed or work.state == State.FAILED


def _restarting(work: WorkState) -> WorkState:
    return replace(work, state=State.RESTARTING.value)
