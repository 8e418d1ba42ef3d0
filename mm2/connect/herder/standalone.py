"""The herder of a standalone worker: no group, and only offsets are persistent (StandaloneHerder)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Final

import structlog

from mm2.connect.errors import NotFound, NotSupported
from mm2.connect.herder.answers import ConnectorStateInfo, Created
from mm2.connect.herder.base import AbstractHerder
from mm2.connect.herder.connector_offsets import ConnectorOffsetsAccess, require_stopped
from mm2.connect.herder.request_queue import NEVER, StagedFuture, Steps, failed
from mm2.connect.herder.validation import ConnectorValidation
from mm2.connect.request_signing import RequestSignature, SessionKey
from mm2.connect.runtime.worker import Worker
from mm2.connect.stores.config_state import ClusterConfigState, ConnectorTaskId, Props, RestartRequest, TargetState
from mm2.connect.stores.config_store import ConfigStore
from mm2.connect.stores.status_store import StatusStore

log = structlog.get_logger(__name__)

_STOP_S: Final = 30.0


class StandaloneHerder(AbstractHerder):
    """All changes go through one thread. ``cluster_id`` is called when the id is needed.

    `start` loads the offsets and returns when they are loaded; call `ready` when the connectors of the command line
    have been created. The worker is healthy only from then on.
    """

    def __init__(
        self,
        worker: Worker,
        config_store: ConfigStore,
        status_store: StatusStore,
        *,
        offsets: ConnectorOffsetsAccess,
        validation: ConnectorValidation,
        cluster_id: Callable[[], str],
    ) -> None:
        super().__init__(
            worker, config_store, status_store, offsets=offsets, validation=validation, cluster_id=cluster_id
        )
        self._news = threading.Event()
        self._stopped = threading.Event()
        self._on_ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="standalone-herder", daemon=True)

    # -- lifecycle

    def start(self) -> None:
        """Load the offsets, then accept requests. Raises ConnectError or KafkaFailure."""
        with self._stages.during("initializing and reading the source offsets"):
            self.worker.start()
            self._status_store.start()
            self._config_store.start(self)
        self._thread.start()

    def ready(self) -> None:
        """The connectors of the command line have been created."""
        if not self._ready.is_set():
            self._ready.set()
            self._on_ready.set_result(None)

    def stop(self) -> None:
        self._stopping.set()
        self._news.set()
        if self._thread.is_alive():
            self._stopped.wait(_STOP_S)
        elif not self._stopped.is_set():
            self._close()

    def await_stopped(self, timeout_s: float | None = None) -> bool:
        return self._stopped.wait(timeout_s)

    @property
    def failure(self) -> BaseException | None:
        return None

    @property
    def generation(self) -> int:
        """A standalone worker has no group."""
        return 0

    def configs(self) -> ClusterConfigState:
        """The current configurations."""
        return self._config_store.snapshot()

    def _wakeup(self) -> None:
        self._news.set()

    def _ping(self) -> StagedFuture[None]:
        steps: Steps[None] = Steps("starting the connectors of the command line")

        def ask(_ready: Future[None]) -> None:
            steps.after(self.later(lambda: None, "answering a health check"), steps.end)

        self._on_ready.add_done_callback(ask)
        return steps.outcome

    def _run(self) -> None:
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(**self.worker.log_context)
        try:
            while not self._stopping.is_set():
                self._news.clear()
                next_due_s = self._requests.run_due(self._stopping.is_set)
                self._news.wait(None if next_due_s == NEVER else max(0.0, next_due_s - time.monotonic()))
        finally:
            self._close()

    def _close(self) -> None:
        self._requests.close()
        with self._stages.during("stopping connectors and tasks"):
            self._stop_all(
                lambda: self.worker.stop_tasks(self.worker.task_ids()),
                lambda: self.worker.stop_connectors(self.worker.connector_names()),
                self._status_store.stop,
                self._config_store.stop,
                self.worker.stop,
                self._validation.close,
            )
        self._stopped.set()
        log.info("herder stopped")

    # -- connectors: changing

    def _put(
        self, steps: Steps[Created], name: str, config: Props, *, allow_replace: bool, target_state: TargetState | None
    ) -> None:
        def put() -> None:
            new = self._is_new(name, allow_replace=allow_replace)
            self.worker.stop_connectors([name])
            self._config_store.put_connector_config(name, config, target_state)
            log.info("connector config stored", connector=name, created=new)
            self._start_connector(steps, name, lambda: Created(new, self.known_connector_info(name)))

        steps.after(self.later(put, f"starting connector {name}"), lambda _starting: None)

    def delete_connector_config(self, name: str) -> StagedFuture[None]:
        def delete() -> None:
            self._known(name)
            self._remove_tasks(name)
            self.worker.stop_connectors([name])
            self._config_store.remove_connector_config(name)
            self._reports.forget_topics([name])
            self._reports.destroyed(name)

        return self.later(delete, f"deleting connector {name}")

    def stop_connector(self, name: str) -> StagedFuture[None]:
        def stop() -> None:
            self._known(name)
            self._remove_tasks(name)
            self._config_store.put_target_state(name, TargetState.STOPPED)

        return self.later(stop, f"stopping connector {name}")

    def _put_target_state(self, name: str, state: TargetState) -> StagedFuture[None]:
        def put() -> None:
            self._known(name)
            self._config_store.put_target_state(name, state)

        return self.later(put, f"giving connector {name} the target state {state.value}")

    def _require_own_task(self, task: ConnectorTaskId) -> None:
        configs = self._known(task.connector)
        if configs.task_config(task) is None or task not in configs.tasks(task.connector):
            raise NotFound(f"Task {task} not found")

    def restart_connector_and_tasks(self, request: RestartRequest) -> StagedFuture[ConnectorStateInfo]:
        name = request.connector

        def restart() -> ConnectorStateInfo:
            self._known(name)
            plan = self._restart_plan(request)
            if plan.connector:
                self.worker.stop_connectors([name])
                self._reports.restarting(name)
            self.worker.stop_tasks(plan.tasks)
            for task in plan.tasks:
                self._reports.restarting(task)
            if plan.connector:
                self._starts.connector(name)
            self._start_tasks(plan.tasks)
            return plan.states

        return self.later(restart, f"restarting connector {name} and its tasks")

    # -- between workers

    def require_signature(self) -> None:
        return  # the requests themselves are rejected

    def put_task_configs(
        self, name: str, configs: Callable[[], Sequence[Props]], signature: RequestSignature | None, is_permitted: bool
    ) -> StagedFuture[None]:
        return self._not_supported("externally setting task configurations")

    def fence_zombies(self, name: str, signature: RequestSignature | None, is_permitted: bool) -> StagedFuture[None]:
        return self._not_supported("exactly-once source connectors")

    def _not_supported(self, what: str) -> StagedFuture[None]:
        error = NotSupported(f"Kafka Connect in standalone mode does not support {what}.")
        return failed(error, lambda: self._stages.current)

    # -- offsets

    def _stopped_config(self, name: str) -> StagedFuture[Props]:
        def look_up() -> Props:
            configs = self._known(name)
            require_stopped(name, configs)
            return configs.connector_configs[name]

        return self.later(look_up, f"modifying offsets for connector {name}")

    # -- loggers

    def set_cluster_logger_level(self, namespace: str, level: str) -> StagedFuture[None]:
        def set_level() -> None:
            self._loggers.set_level(namespace, level)

        return self.later(set_level, f"setting the level of logger {namespace}")

    # -- task configs of connectors (Publisher)

    def publish_task_configs(self, connector: str, configs: Sequence[Props]) -> Future[None]:
        """On the herder's thread: the older tasks stop, the new ones start."""
        self._remove_tasks(connector)
        self._config_store.put_task_configs(connector, configs)
        self._start_tasks(self.configs().tasks(connector))
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _remove_tasks(self, name: str) -> None:
        tasks = self.configs().tasks(name)
        if not tasks:
            return
        self.worker.stop_tasks(tasks)
        self._config_store.put_task_configs(name, [])
        for task in tasks:
            self._reports.destroyed(task)

    def _start_tasks(self, tasks: Iterable[ConnectorTaskId]) -> None:
        for task in tasks:
            self._starts.task(task)

    # -- ConfigListener, on the thread that writes, which is the herder's

    def on_connector_config_update(self, connector: str) -> None:
        """See ConfigListener; the writer applies the change."""

    def on_connector_config_remove(self, connector: str) -> None:
        """See ConfigListener; the writer applies the change."""

    def on_task_config_update(self, tasks: list[ConnectorTaskId]) -> None:
        """See ConfigListener; the writer applies the change."""

    def on_target_state_change(self, connector: str) -> None:
        """See ConfigListener."""
        state = self.configs().target_state(connector)
        if state is not None:
            self.worker.set_target_state(connector, state, self._starts.on_transition(connector))

    def on_session_key_update(self, key: SessionKey) -> None:
        """See ConfigListener; requests are not signed here."""

    def on_restart_request(self, request: RestartRequest) -> None:
        """See ConfigListener; restarts do not use the config topic here."""

    def on_logging_level_update(self, namespace: str, level: str) -> None:
        """See ConfigListener; levels do not use the config topic here."""
