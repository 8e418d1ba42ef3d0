"""The herder of a worker that is alone: nobody to agree with, nothing kept but offsets (StandaloneHerder, spec connect D.15)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Final, TypeVar

import structlog

from mm2.config.config_infos import ConfigInfos
from mm2.connect.api import ConnectError
from mm2.connect.errors import AlreadyExists, BadRequest, NotFound, NotSupported
from mm2.connect.group.protocol import ConnectorTaskId
from mm2.connect.herder.answers import (
    ConnectorInfo,
    ConnectorOffsets,
    ConnectorStateInfo,
    Created,
    Message,
    TaskInfo,
)
from mm2.connect.herder.base import AbstractHerder
from mm2.connect.herder.connector_offsets import ConnectorOffsetsAccess, require_stopped
from mm2.connect.herder.reconfiguration import TaskReconfiguration
from mm2.connect.herder.reloads import Reloads
from mm2.connect.herder.requests import NEVER, RequestQueue
from mm2.connect.herder.restarts import restart_plan
from mm2.connect.herder.sessions import RequestSignature, SessionKey
from mm2.connect.herder.stages import Stage, StagedFuture, StageTracker, Steps, failed, run_apart
from mm2.connect.herder.starts import Starts
from mm2.connect.herder.status_reports import StatusReports
from mm2.connect.herder.validation import ConnectorValidation, require_valid
from mm2.connect.runtime.worker import TooManyTasks, Worker
from mm2.connect.stores.config_state import ClusterConfigState, Props, RestartRequest, TargetState
from mm2.connect.stores.config_store import ConfigStore
from mm2.connect.stores.status_store import StatusStore

log = structlog.get_logger(__name__)

T = TypeVar("T")

_STOP_S: Final = 30.0


class StandaloneHerder(AbstractHerder):
    """All changes go through one thread. ``cluster_id`` is asked when somebody wants to know.

    `start` loads the offsets and returns when that is done; `ready` says that the connectors of the command line are there,
    and only then is the worker healthy.
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
        super().__init__(worker, config_store, status_store, offsets=offsets, validation=validation)
        self._cluster_id = cluster_id
        self._stages = StageTracker("awaiting startup")
        self._news = threading.Event()
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        self._ready = threading.Event()
        self._on_ready: Future[None] = Future()
        self._requests = RequestQueue(self._stages, self._news.set)
        self._reports = StatusReports(status_store, worker.worker_id, lambda: 0, track_topics=self._track_topics)
        self._reconfiguration = TaskReconfiguration(worker, self)
        self._starts = Starts(
            worker,
            self._reports,
            self.configs,
            self._reconfiguration,
            reloads=Reloads(worker, self._restart_later),
        )
        self._thread = threading.Thread(target=self._run, name="standalone-herder", daemon=True)

    # -- life

    def start(self) -> None:
        """Load the offsets, then answer requests. Raises ConnectError or KafkaFailure."""
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
    def is_ready(self) -> bool:
        return self._ready.is_set()

    @property
    def stage(self) -> Stage:
        return self._stages.current

    @property
    def kafka_cluster_id(self) -> str:
        return self._cluster_id()

    def configs(self) -> ClusterConfigState:
        """What is configured."""
        return self._config_store.snapshot()

    def later(self, action: Callable[[], T], stage: str, *, delay_s: float = 0.0) -> StagedFuture[T]:
        """Have ``action`` run on the herder's thread. Any thread."""
        return self._requests.submit(action, stage, delay_s=delay_s)

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
            steps: list[Callable[[], object]] = [
                lambda: self.worker.stop_tasks(self.worker.task_ids()),
                lambda: self.worker.stop_connectors(self.worker.connector_names()),
                self._status_store.stop,
                self._config_store.stop,
                self.worker.stop,
                self._validation.close,
            ]
            for step in steps:
                try:
                    step()
                except Exception:
                    log.exception("a step of stopping failed")
        self._stopped.set()
        log.info("herder stopped")

    # -- connectors: reading

    def connector_info(self, name: str) -> StagedFuture[ConnectorInfo]:
        return self.later(lambda: self.known_connector_info(name), f"looking up connector {name}")

    def connector_config(self, name: str) -> StagedFuture[Props]:
        return self.later(lambda: self.known_connector_info(name).config, f"looking up the config of connector {name}")

    def task_configs(self, name: str) -> StagedFuture[list[TaskInfo]]:
        return self.later(lambda: self._task_infos(name), f"looking up the task configs of connector {name}")

    def _task_infos(self, name: str) -> list[TaskInfo]:
        configs = self._known(name)
        return [TaskInfo(task, configs.task_configs[task]) for task in configs.tasks(name)]

    # -- connectors: changing

    def put_connector_config(
        self, name: str, config: Props, *, allow_replace: bool, target_state: TargetState | None = None
    ) -> StagedFuture[Created]:
        steps: Steps[Created] = Steps("waiting for a new thread to become available for connector validation")
        self._validate_and_put(steps, name, config, allow_replace=allow_replace, target_state=target_state)
        return steps.outcome

    def patch_connector_config(self, name: str, patch: Props) -> StagedFuture[Created]:
        steps: Steps[Created] = Steps(f"looking up the config of connector {name}")

        def put(info: ConnectorInfo) -> None:
            merged = {**info.config, **patch}
            config = {key: value for key, value in merged.items() if patch.get(key, "") is not None}
            self._validate_and_put(steps, name, config, allow_replace=True, target_state=None)

        steps.after(self.connector_info(name), put)
        return steps.outcome

    def _validate_and_put(
        self, steps: Steps[Created], name: str, config: Props, *, allow_replace: bool, target_state: TargetState | None
    ) -> None:
        named = {**config, "name": config.get("name") or name}

        def put() -> None:
            exists = name in self.configs()
            if exists and not allow_replace:
                raise AlreadyExists(f"Connector {name} already exists")
            self.worker.stop_connectors([name])
            self._config_store.put_connector_config(name, named, target_state)
            log.info("connector config stored", connector=name, created=not exists)

            def on_started(error: Exception | None) -> None:
                if error is None:
                    steps.end(Created(not exists, self.known_connector_info(name)))
                else:
                    steps.fail(ConnectError(f"Failed to start connector: {name}: {error}"))

            self._starts.connector(name, on_started)

        def then(infos: ConfigInfos) -> None:
            require_valid(infos)
            steps.after(self.later(put, f"starting connector {name}"), lambda _starting: None)

        if named["name"] != name:
            steps.fail(
                BadRequest(
                    f"Connector name configuration ({named['name']}) doesn't match connector name in the URL ({name})"
                )
            )
            return
        steps.after(self.validate_connector_config(named), then)

    def delete_connector_config(self, name: str) -> StagedFuture[None]:
        def delete() -> None:
            self._known(name)
            self._remove_tasks(name)
            self.worker.stop_connectors([name])
            self._config_store.remove_connector_config(name)
            self._reports.forget_topics([name])
            self._reports.destroyed(name)

        return self.later(delete, f"deleting connector {name}")

    def pause_connector(self, name: str) -> StagedFuture[None]:
        return self._put_target_state(name, TargetState.PAUSED)

    def resume_connector(self, name: str) -> StagedFuture[None]:
        return self._put_target_state(name, TargetState.STARTED)

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

    def restart_connector(self, name: str) -> StagedFuture[None]:
        return self._restart_later(name, 0.0)

    def _restart_later(self, name: str, delay_s: float) -> StagedFuture[None]:
        steps: Steps[None] = Steps(f"restarting connector {name}")

        def on_started(error: Exception | None) -> None:
            if error is None:
                steps.end(None)
            else:
                steps.fail(ConnectError(f"Failed to start connector: {name}: {error}"))

        def restart() -> None:
            self._known(name)
            self.worker.stop_connectors([name])
            self._starts.connector(name, on_started)

        steps.after(self.later(restart, f"restarting connector {name}", delay_s=delay_s), lambda _restarting: None)
        return steps.outcome

    def restart_task(self, task: ConnectorTaskId) -> StagedFuture[None]:
        def restart() -> None:
            configs = self._known(task.connector)
            if configs.task_config(task) is None or task not in configs.tasks(task.connector):
                raise NotFound(f"Task {task} not found")
            self.worker.stop_tasks([task])
            if not self._starts.task(task):
                raise ConnectError(f"Failed to start task: {task}")

        return self.later(restart, f"restarting task {task}")

    def restart_connector_and_tasks(self, request: RestartRequest) -> StagedFuture[ConnectorStateInfo]:
        name = request.connector

        def restart() -> ConnectorStateInfo:
            self._known(name)
            plan = restart_plan(request, self.connector_status(name))
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

    def put_task_configs(
        self, name: str, configs: Sequence[Props], signature: RequestSignature | None
    ) -> StagedFuture[None]:
        return self._not_supported("externally setting task configurations")

    def fence_zombies(self, name: str, signature: RequestSignature | None) -> StagedFuture[None]:
        return self._not_supported("exactly-once source connectors")

    def _not_supported(self, what: str) -> StagedFuture[None]:
        error = NotSupported(f"Kafka Connect in standalone mode does not support {what}.")
        return failed(error, lambda: self._stages.current)

    # -- offsets

    def connector_offsets(self, name: str) -> StagedFuture[ConnectorOffsets]:
        steps: Steps[ConnectorOffsets] = Steps(f"looking up connector {name}")

        def read(info: ConnectorInfo) -> None:
            reading = run_apart(
                lambda stages: self._offsets.read(name, info.config, stages), f"offsets-{name}", "waiting for a thread"
            )
            steps.after(reading, steps.end)

        steps.after(self.connector_info(name), read)
        return steps.outcome

    def alter_connector_offsets(self, name: str, offsets: ConnectorOffsets) -> StagedFuture[Message]:
        return self._modify_offsets(name, offsets)

    def reset_connector_offsets(self, name: str) -> StagedFuture[Message]:
        return self._modify_offsets(name, None)

    def _modify_offsets(self, name: str, offsets: ConnectorOffsets | None) -> StagedFuture[Message]:
        steps: Steps[Message] = Steps(f"modifying offsets for connector {name}")

        def stopped_config() -> Props:
            configs = self._known(name)
            require_stopped(name, configs)
            return configs.connector_configs[name]

        def modify(raw: Props) -> None:
            modifying = run_apart(
                lambda stages: self._offsets.modify(name, raw, offsets, stages), f"offsets-{name}", "waiting"
            )
            steps.after(modifying, steps.end)

        steps.after(self.later(stopped_config, f"modifying offsets for connector {name}"), modify)
        return steps.outcome

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

    def too_many_tasks(self, connector: str, error: TooManyTasks) -> None:
        """The connector fails; its tasks run on."""
        self._reports.on_failure(connector, error, None)

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

    def _known(self, name: str) -> ClusterConfigState:
        """What is configured, when the connector is. Raises NotFound."""
        configs = self.configs()
        if name not in configs:
            raise NotFound(f"Connector {name} not found")
        return configs

    # -- ConfigListener, on the thread that writes, which is the herder's

    def on_connector_config_update(self, connector: str) -> None:
        """See ConfigListener; who wrote it sees to it."""

    def on_connector_config_remove(self, connector: str) -> None:
        """See ConfigListener; who removed it sees to it."""

    def on_task_config_update(self, tasks: list[ConnectorTaskId]) -> None:
        """See ConfigListener; who wrote them sees to it."""

    def on_target_state_change(self, connector: str) -> None:
        """See ConfigListener."""
        state = self.configs().target_state(connector)
        if state is not None:
            self.worker.set_target_state(connector, state, self._starts.on_transition(connector))

    def on_session_key_update(self, key: SessionKey) -> None:
        """See ConfigListener; nobody signs here."""

    def on_restart_request(self, request: RestartRequest) -> None:
        """See ConfigListener; restarts go the short way here."""

    def on_logging_level_update(self, namespace: str, level: str) -> None:
        """See ConfigListener; levels go the short way here."""
