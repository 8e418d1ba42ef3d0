"""Starts and restarts of connectors and tasks on this worker, and the statuses that report them.

Restarts are requested by users (KIP-745) or by config providers whose secrets expire (KIP-297).
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

import structlog

from mm2.connect.api import ConnectError
from mm2.connect.errors import NotFound
from mm2.connect.herder.answers import ConnectorStateInfo, WorkState
from mm2.connect.runtime.connectors import OnTransition, WorkId
from mm2.connect.runtime.counters import StartCounters
from mm2.connect.runtime.tasks import OwnershipGuard
from mm2.connect.runtime.worker import TaskStart, Worker
from mm2.connect.stores.config_state import ClusterConfigState, ConnectorTaskId, Props, RestartRequest
from mm2.connect.stores.status_store import State, Status, StatusStore, TopicStatus, now_ms

log = structlog.get_logger(__name__)

S = TypeVar("S", bound=WorkState)

_TOPIC_WRITE_S: Final = 1.0

#: Creates what a task's start checks before it produces, or None. Arguments: task, generation of its configs.
NewGuard = Callable[[ConnectorTaskId, int | None], OwnershipGuard | None]


class StatusReports:
    """Writes statuses with ``worker_id`` and the group's current ``generation``. Any thread.

    ``hide`` removes secrets from a text about the connector or task.
    """

    def __init__(
        self,
        store: StatusStore,
        worker_id: str,
        generation: Callable[[], int],
        *,
        track_topics: bool,
        hide: Callable[[WorkId, str], str] = lambda _work, text: text,
    ) -> None:
        self._store = store
        self._worker_id = worker_id
        self._generation = generation
        self._track_topics = track_topics
        self._hide = hide
        #: Results of the starts of connectors and of tasks.
        self.connector_starts, self.task_starts = StartCounters(), StartCounters()
        self._started: set[WorkId] = set()
        #: By connector and topic: when a write that has not been read back may be repeated.
        self._topic_writes: dict[tuple[str, str], float] = {}

    # -- StatusListener

    def on_startup(self, work: WorkId, version: str | None) -> None:
        """See StatusListener."""
        self._starts(work).succeeded += 1
        self._started.add(work)
        self._put(work, State.RUNNING, version)

    def on_resume(self, work: WorkId, version: str | None) -> None:
        """See StatusListener."""
        self._put(work, State.RUNNING, version)

    def on_pause(self, work: WorkId, version: str | None) -> None:
        """See StatusListener."""
        self._put(work, State.PAUSED, version)

    def on_stop(self, work: WorkId, version: str | None) -> None:
        """See StatusListener."""
        self._put(work, State.STOPPED, version)

    def on_shutdown(self, work: WorkId, version: str | None) -> None:
        """See StatusListener."""
        self._started.discard(work)
        self._store.put_safe(self._status(work, State.UNASSIGNED, version))

    def on_failure(self, work: WorkId, error: BaseException, version: str | None) -> None:
        """See StatusListener."""
        if work in self._started:
            self._started.discard(work)  # it was running, so this is not a failed start
        else:
            self._starts(work).failed += 1
        trace = self._hide(work, "".join(traceback.format_exception(error)))
        self._store.put_safe(self._status(work, State.FAILED, version, trace))

    # -- for herders

    def restarting(self, work: WorkId) -> None:
        """Work was stopped and will be started again."""
        self._put(work, State.RESTARTING, None)

    def destroyed(self, work: WorkId) -> None:
        """Work is no longer configured."""
        self._put(work, State.DESTROYED, None)

    def clean_up(self, configs: ClusterConfigState) -> None:
        """Remove the statuses of everything that is no longer configured. For the leader."""
        for name in self._store.connectors():
            tasks = set(configs.tasks(name))
            for status in self._store.tasks(name):
                if status.id not in tasks:
                    self.destroyed(status.id)
            if name not in configs and self._store.connector(name) is not None:
                self.destroyed(name)

    def used_topic(self, topic: str, task: ConnectorTaskId) -> None:
        """A task has read from or written to a topic. As in Java, a topic that was reset is recorded again."""
        if not self._track_topics:
            return
        key = task.connector, topic
        if self._store.topic(*key) is not None:
            self._topic_writes.pop(key, None)
            return
        now_s = time.monotonic()
        if now_s >= self._topic_writes.get(key, now_s):
            self._topic_writes[key] = now_s + _TOPIC_WRITE_S
            self._store.put_topic(TopicStatus(topic, task.connector, task.task, now_ms()))

    def forget_topics(self, connectors: Iterable[str]) -> None:
        """Remove the record of topics that connectors have used."""
        if not self._track_topics:
            return
        for name in connectors:
            for topic in self._store.topics(name):
                self._store.delete_topic(name, topic)

    def _starts(self, work: WorkId) -> StartCounters:
        return self.task_starts if isinstance(work, ConnectorTaskId) else self.connector_starts

    def _put(self, work: WorkId, state: State, version: str | None) -> None:
        self._store.put(self._status(work, state, version))

    def _status(self, work: WorkId, state: State, version: str | None, trace: str | None = None) -> Status:
        return Status(work, state, self._worker_id, self._generation(), trace, version)


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
            log.warning("connector to start has no config", connector=name)
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
            log.warning("task to start has no config", task_id=str(task))
            if connector_raw is not None:
                message = (
                    f"Task {task} has no configuration on this worker. The config topic lacks a part of the task configurations of "
                    f"connector {task.connector}, probably because of compaction: change the configuration of the connector"
                )
                self.reports.on_failure(task, ConnectError(message), None)
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
        if request.include_tasks and _is_affected(request, task)
    )
    connector = _is_affected(request, states.connector)
    restarted = {task.task for task in tasks}
    return RestartPlan(
        replace(
            states,
            connector=_restarting(states.connector) if connector else states.connector,
            tasks=tuple(_restarting(task) if task.id in restarted else task for task in states.tasks),
        ),
        connector,
        tasks,
    )


class Reloads:
    """``restart(connector, delay_s)`` schedules a restart; cancelling its future withdraws it."""

    def __init__(self, worker: Worker, restart: Callable[[str, float], Future[None]]) -> None:
        self._worker = worker
        self._restart = restart
        self._lock = threading.Lock()
        self._scheduled: dict[str, Future[None]] = {}

    def schedule(self, name: str, raw: Props) -> None:
        """Schedule a restart for the time when the first value of this configuration expires.

        It replaces that of an earlier configuration, also by none with ``config.action.reload=none``. Any thread.
        """
        self._replace(name, None)
        if (raw.get("config.action.reload") or "restart").strip().lower() != "restart":
            return
        try:
            ttls = self._worker.resolution(raw).ttls
        except Exception as error:  # noqa: BLE001 - the start fails with the same error and writes it to the status
            log.debug("time to live of a configuration unknown", connector=name, reason=str(error))
            return
        if not ttls:
            return
        ttl_ms = min(ttls.values())
        log.info("connector restart scheduled for the expiry of its secrets", connector=name, in_ms=ttl_ms)
        restart = self._restart(name, ttl_ms / 1000)
        self._replace(name, restart)
        restart.add_done_callback(lambda done: _report_reload(name, done))

    def _replace(self, name: str, restart: Future[None] | None) -> None:
        with self._lock:
            earlier = self._scheduled.pop(name, None)
            if restart is not None:
                self._scheduled[name] = restart
        if earlier is not None:
            earlier.cancel()


def _is_affected(request: RestartRequest, work: WorkState) -> bool:
    return not request.only_failed or work.state == State.FAILED


def _restarting(work: S) -> S:
    return replace(work, state=State.RESTARTING.value)


def _report_reload(name: str, done: Future[None]) -> None:
    try:
        done.result()
    except CancelledError:
        return
    except Exception as error:  # noqa: BLE001 - another worker may own it by now
        log.info("connector not restarted after its secrets expired", connector=name, reason=str(error))
