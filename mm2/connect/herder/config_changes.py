"""What comes through the config topic, from its announcement to what becomes of it on this worker (spec connect D.3)."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from mm2.connect.errors import NotFound
from mm2.connect.group.membership import GroupMember
from mm2.connect.herder.answers import ConnectorStateInfo
from mm2.connect.herder.assigned_work import AssignedWork
from mm2.connect.herder.changes import PendingChanges
from mm2.connect.herder.config_view import ConfigView
from mm2.connect.herder.rebalances import Rebalances
from mm2.connect.herder.restarts import restart_plan
from mm2.connect.herder.stages import StageTracker
from mm2.connect.herder.starts import Starts
from mm2.connect.stores.config_state import RestartRequest

log = structlog.get_logger(__name__)


class ConfigChanges:
    """Two steps of the tick, on the herder's thread. ``states`` is what statuses say of a connector; it raises NotFound."""

    def __init__(
        self,
        pending: PendingChanges,
        view: ConfigView,
        member: GroupMember,
        rebalances: Rebalances,
        work: AssignedWork,
        starts: Starts,
        stages: StageTracker,
        states: Callable[[str], ConnectorStateInfo],
    ) -> None:
        self._pending = pending
        self._view = view
        self._member = member
        self._rebalances = rebalances
        self._work = work
        self._starts = starts
        self._worker = starts.worker
        self._reports = starts.reports
        self._stages = stages
        self._states = states

    # -- restart requests

    def process_restarts(self) -> None:
        """Restart what has been requested since the last tick."""
        for request in self._pending.take_restarts():
            with self._stages.during(f"handling restart request for connector {request.connector}"):
                try:
                    self._restart(request)
                except Exception:
                    log.exception("restart failed", connector=request.connector)

    def _restart(self, request: RestartRequest) -> None:
        """Restart what the request means and this worker owns."""
        name = request.connector
        try:
            plan = restart_plan(request, self._states(name))
        except NotFound:
            return
        connector = plan.connector and self._rebalances.owns(name)
        tasks = [task for task in plan.tasks if self._rebalances.owns(task)]
        log.info("restarting", connector=name, itself=connector, tasks=[str(task) for task in tasks])
        if connector:
            with self._stages.during(f"stopping to-be-restarted connector {name}"):
                self._worker.stop_connectors([name])
            self._reports.restarting(name)
        if tasks:
            with self._stages.during(f"stopping {len(tasks)} to-be-restarted tasks for connector {name}"):
                self._worker.stop_tasks(tasks)
            for task in tasks:
                self._reports.restarting(task)
        self._work.start_all([name] if connector else [], tasks, f"restarting connector {name} and {len(tasks)} tasks")

    # -- configurations and target states

    def apply(self) -> bool:
        """See to what the config topic has announced; True = a rebalance comes first."""
        changes = self._pending.take()
        if not changes:
            return False
        self._view.take()
        if changes.rebalance:
            self._member.request_rejoin("connectors or tasks have changed")
            if self._member.protocol_version == 0:
                # Everything restarts in an eager rebalance, so nothing is left to be done one by one.
                return True
        mine = self._rebalances.assignment
        if changes.connectors and mine is not None:
            self._restart_changed(changes.connectors & set(mine.connectors))
        for name in changes.targets:
            self._apply_target_state(name)
        if changes.tasks and mine is not None:
            changed = {task.connector for task in changes.tasks}
            self._work.stop_reconfigured([task for task in mine.tasks if task.connector in changed])
        return changes.rebalance

    def _restart_changed(self, names: frozenset[str]) -> None:
        if not names:
            return
        with self._stages.during(f"stopping {len(names)} reconfigured connector(s): {', '.join(sorted(names))}"):
            self._worker.stop_connectors(names)
        left = [name for name in names if name in self._view.configs]
        self._work.start_all(left, [], f"restarting {len(left)} reconfigured connectors")

    def _apply_target_state(self, name: str) -> None:
        state = self._view.configs.target_state(name)
        if state is None or name not in self._view.configs:
            return
        log.info("target state", connector=name, state=state.value)
        self._worker.set_target_state(name, state, self._starts.on_transition(name))
