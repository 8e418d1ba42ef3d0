"""Changes in the config topic, from their announcement to their effect on this worker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from mm2.connect.errors import NotFound, RequestError
from mm2.connect.group.membership import GroupMember
from mm2.connect.herder.answers import ConnectorStateInfo
from mm2.connect.herder.internal_requests import SessionKeys
from mm2.connect.herder.lifecycle import Starts, restart_plan
from mm2.connect.herder.loggers import Loggers
from mm2.connect.herder.request_queue import StageTracker
from mm2.connect.herder.steps.config_view import ConfigView
from mm2.connect.herder.steps.fencing import LeaderFencing
from mm2.connect.herder.steps.rebalances import AssignedWork, Rebalances
from mm2.connect.request_signing import SessionKey
from mm2.connect.stores.config_state import ConnectorTaskId, RestartRequest

log = structlog.get_logger("mm2.connect.herder.config_changes")


@dataclass(frozen=True)
class ChangeSet:
    """Changes to apply in one tick."""

    connectors: frozenset[str] = frozenset()
    tasks: frozenset[ConnectorTaskId] = frozenset()
    targets: frozenset[str] = frozenset()
    #: Whether they require a rebalance of the group.
    rebalance: bool = False

    def __bool__(self) -> bool:
        return self.rebalance or bool(self.connectors or self.tasks or self.targets)


@dataclass
class PendingChanges:
    """Collects changes from the config log's thread until the herder's thread takes them.

    ``known`` returns whether the herder knows a connector. A new connector, and the removal of a known one, require a
    rebalance. A change of a known connector requires a restart where it runs.
    """

    known: Callable[[str], bool]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _connectors: set[str] = field(default_factory=set)
    _tasks: set[ConnectorTaskId] = field(default_factory=set)
    _targets: set[str] = field(default_factory=set)
    _restarts: dict[str, RestartRequest] = field(default_factory=dict)
    _rebalance: bool = False

    @property
    def need_rebalance(self) -> bool:
        """Whether a rebalance is expected, so that owners are not known."""
        with self._lock:
            return self._rebalance

    def connector_updated(self, connector: str) -> None:
        """A connector's configuration was written."""
        with self._lock:
            self._rebalance |= not self.known(connector)
            self._connectors.add(connector)

    def connector_removed(self, connector: str) -> None:
        """A connector was deleted."""
        with self._lock:
            self._rebalance |= self.known(connector)
            self._connectors.add(connector)

    def tasks_updated(self, tasks: list[ConnectorTaskId]) -> None:
        """A set of task configs was committed."""
        with self._lock:
            self._rebalance = True
            self._tasks.update(tasks)

    def target_changed(self, connector: str) -> None:
        """A connector's target state was changed."""
        with self._lock:
            self._targets.add(connector)

    def restart_requested(self, request: RestartRequest) -> None:
        """Of several requests for one connector the one with the higher impact is kept."""
        with self._lock:
            other = self._restarts.get(request.connector)
            if other is None or request.impact > other.impact:
                self._restarts[request.connector] = request

    def take(self) -> ChangeSet:
        """Take all changes except restart requests; the caller must apply them."""
        with self._lock:
            changes = ChangeSet(
                frozenset(self._connectors), frozenset(self._tasks), frozenset(self._targets), self._rebalance
            )
            self._connectors, self._tasks, self._targets, self._rebalance = set(), set(), set(), False
            return changes

    def take_restarts(self) -> list[RestartRequest]:
        """The restart requests, one per connector."""
        with self._lock:
            requests, self._restarts = list(self._restarts.values()), {}
            return requests


class ConfigTopicListener:
    """The ConfigListener of a herder, on the config log's thread; ``wake`` wakes the herder's thread."""

    def __init__(
        self,
        pending: PendingChanges,
        session_keys: SessionKeys,
        fencing: LeaderFencing,
        loggers: Loggers,
        wake: Callable[[], None],
    ) -> None:
        self._pending = pending
        self._session_keys = session_keys
        self._fencing = fencing
        self._loggers = loggers
        self._wake = wake

    def on_connector_config_update(self, connector: str) -> None:
        """See ConfigListener."""
        self._pending.connector_updated(connector)
        self._wake()

    def on_connector_config_remove(self, connector: str) -> None:
        """See ConfigListener."""
        self._pending.connector_removed(connector)
        self._wake()

    def on_task_config_update(self, tasks: list[ConnectorTaskId]) -> None:
        """See ConfigListener."""
        self._pending.tasks_updated(tasks)
        for name in {task.connector for task in tasks}:
            self._fencing.abort(name)
        self._wake()

    def on_target_state_change(self, connector: str) -> None:
        """See ConfigListener."""
        self._pending.target_changed(connector)
        self._wake()

    def on_session_key_update(self, key: SessionKey) -> None:
        """See ConfigListener."""
        self._session_keys.accept(key)

    def on_restart_request(self, request: RestartRequest) -> None:
        """See ConfigListener."""
        self._pending.restart_requested(request)
        self._wake()

    def on_logging_level_update(self, namespace: str, level: str) -> None:
        """See ConfigListener."""
        try:
            self._loggers.set_level(namespace, level)
        except RequestError as error:
            log.warning("logger level not changed", namespace=namespace, reason=str(error))


class ConfigChanges:
    """Two steps of the tick, on the herder's thread. ``states`` returns a connector's statuses or raises NotFound."""

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
        """Process the restart requests since the last tick."""
        for request in self._pending.take_restarts():
            with self._stages.during(f"handling restart request for connector {request.connector}"):
                try:
                    self._restart(request)
                except Exception:
                    log.exception("restart failed", connector=request.connector)

    def _restart(self, request: RestartRequest) -> None:
        """Restart the requested work that this worker owns."""
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
        """Apply the changes announced in the config topic; True: a rebalance comes first."""
        changes = self._pending.take()
        if not changes:
            return False
        self._view.take()
        if changes.rebalance:
            self._member.request_rejoin("connectors or tasks have changed")
            if self._member.protocol_version == 0:
                # An eager rebalance restarts all work, so there is nothing to restart individually.
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
        log.info("target state changed", connector=name, state=state.value)
        self._worker.set_target_state(name, state, self._starts.on_transition(name))
