"""What distributed and standalone herders share (org.apache.kafka.connect.runtime.AbstractHerder)."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Final, TypeVar

import structlog

from mm2.config.definitions.config_infos import ConfigInfos
from mm2.connect.api import (
    ConnectError,
)
from mm2.connect.errors import AlreadyExists, BadRequest, Busy, Forbidden, NotFound
from mm2.connect.herder.answers import (
    ActiveTopicsInfo,
    ConnectorInfo,
    ConnectorOffsets,
    ConnectorStateInfo,
    ConnectorType,
    Created,
    HealthInfo,
    LoggerLevel,
    Message,
    PluginInfo,
    TaskInfo,
    TaskStateInfo,
    WorkState,
)
from mm2.connect.herder.connector_offsets import ConnectorOffsetsAccess
from mm2.connect.herder.interface import HEALTH_TIMEOUT_S, Herder
from mm2.connect.herder.lifecycle import Reloads, RestartPlan, Starts, StatusReports, restart_plan
from mm2.connect.herder.loggers import Loggers
from mm2.connect.herder.plugin_infos import PluginInfos
from mm2.connect.herder.reconfiguration import TaskReconfiguration
from mm2.connect.herder.request_queue import RequestQueue, StagedFuture, StageTracker, Steps, WorkerStage, run_apart
from mm2.connect.herder.validation import ConnectorValidation, require_valid
from mm2.connect.runtime.counters import StartCounters
from mm2.connect.runtime.tasks import OwnershipGuard
from mm2.connect.runtime.worker import Worker
from mm2.connect.stores.config_state import ClusterConfigState, ConnectorTaskId, Props, RestartRequest, TargetState
from mm2.connect.stores.config_store import ConfigStore
from mm2.connect.stores.status_store import Status, StatusStore

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: At the same time. Each has a thread and connections of its own, and a hanging one keeps them for minutes.
_MOST_OFFSET_READS: Final = 32


class AbstractHerder(Herder):
    """Answers requests that need only the stores, and runs the common steps of all other requests.

    Subclasses implement what differs between one worker and a group: who may perform a request (``_require_…``) and how
    it is performed. ``cluster_id`` is called when the id is needed.
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
        config = worker.config
        self._offsets = offsets
        self._offset_reads = threading.Semaphore(_MOST_OFFSET_READS)
        self._validation = validation
        self._cluster_id = cluster_id
        self.worker = worker
        self._config_store = config_store
        self._status_store = status_store
        self._track_topics = config.bool("topic.tracking.enable")
        self._reset_topics = config.bool("topic.tracking.allow.reset")
        self._loggers = Loggers()
        self._plugin_infos = PluginInfos(worker.plugins)
        self._stopping = threading.Event()
        self._ready = threading.Event()
        self._stages = StageTracker("awaiting startup")
        self._requests = RequestQueue(self._stages, self._wakeup)
        self._reports = StatusReports(
            status_store,
            worker.worker_id,
            lambda: self.generation,
            track_topics=self._track_topics,
            hide=worker.hide,
        )
        self._reconfiguration = TaskReconfiguration(worker, self)
        self._starts = Starts(
            worker,
            self._reports,
            self.configs,
            self._reconfiguration,
            self._guard,
            Reloads(worker, self._restart_at_expiry),
            self._is_ours,
        )

    @property
    def connector_starts(self) -> StartCounters:
        """Starts of connectors on this worker."""
        return self._reports.connector_starts

    @property
    def task_starts(self) -> StartCounters:
        """Starts of tasks on this worker."""
        return self._reports.task_starts

    # -- implemented by subclasses

    @property
    @abstractmethod
    def generation(self) -> int:
        """The group's generation, which is part of each status."""

    @abstractmethod
    def configs(self) -> ClusterConfigState:
        """The configurations that this herder acts on. Any thread."""

    @abstractmethod
    def publish_task_configs(self, connector: str, configs: Sequence[Props]) -> Future[None]:
        """See Publisher."""

    @abstractmethod
    def _wakeup(self) -> None:
        """Wake the herder's thread: there is work for it. Any thread."""

    @abstractmethod
    def _ping(self) -> StagedFuture[None]:
        """Completes when the herder's thread has handled it."""

    @abstractmethod
    def _put(
        self, steps: Steps[Created], name: str, config: Props, *, allow_replace: bool, target_state: TargetState | None
    ) -> None:
        """Store a valid configuration and complete ``steps``. Any thread."""

    @abstractmethod
    def _put_target_state(self, name: str, state: TargetState) -> StagedFuture[None]:
        """Write PAUSED or STARTED. Fails with NotFound."""

    @abstractmethod
    def _stopped_config(self, name: str) -> StagedFuture[Props]:
        """The configuration of a connector whose offsets may now be modified. Fails with the reason if they may not."""

    def require_leader(self, what: str) -> None:
        """Raises NotLeader unless this worker is the leader. On the herder's thread."""

    def _require_own_connector(self, name: str) -> None:
        """Raises NotFound, or an error that names the worker that can restart the connector. On the herder's thread."""
        self._known(name)

    @abstractmethod
    def _require_own_task(self, task: ConnectorTaskId) -> None:
        """Raises NotFound, or an error that names the worker that can restart the task. On the herder's thread."""

    def _guard(self, _task: ConnectorTaskId, _generation: int | None) -> OwnershipGuard | None:
        """What a task's start checks before it produces; arguments: task, generation of its configs."""
        return None

    def _is_ours(self) -> bool:
        """Whether this worker's assignment is still valid. Any thread."""
        return True

    # -- lifecycle

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set()

    @property
    def stage(self) -> WorkerStage:
        return self._stages.current

    @property
    def kafka_cluster_id(self) -> str:
        return self._cluster_id()

    def later(self, action: Callable[[], T], stage: str, *, delay_s: float = 0.0) -> StagedFuture[T]:
        """Run ``action`` on the herder's thread; in a group, while this worker is a member of it. Any thread."""
        return self._requests.submit(action, stage, delay_s=delay_s)

    @staticmethod
    def _stop_all(*steps: Callable[[], object]) -> None:
        """Run the stop steps one after another; a failed step does not prevent the others."""
        for step in steps:
            try:
                step()
            except Exception:
                log.exception("shutdown step failed")

    # -- health

    def health(self) -> StagedFuture[HealthInfo]:
        ping = self._ping()
        answer: StagedFuture[HealthInfo] = StagedFuture(ping.stage)

        def settle(health: HealthInfo) -> None:
            with suppress(InvalidStateError):
                answer.set_result(health)

        def missed() -> HealthInfo:
            details = ping.stage().summary()
            return HealthInfo.unhealthy(details) if self.is_ready else HealthInfo.starting(details)

        def give_up() -> None:
            settle(missed())
            ping.cancel()

        def on_ping(done: Future[None]) -> None:
            timer.cancel()
            if not done.cancelled():
                settle(HealthInfo.healthy() if done.exception() is None else missed())

        timer = threading.Timer(HEALTH_TIMEOUT_S, give_up)
        timer.daemon = True
        timer.start()
        ping.add_done_callback(on_ping)
        return answer

    # -- connectors: reading

    def connectors(self) -> list[str]:
        return sorted(self._config_store.snapshot().connectors())

    def known_connector_info(self, name: str) -> ConnectorInfo:
        configs = self._config_store.snapshot()
        raw = configs.connector_config(name)
        if raw is None:
            raise NotFound(f"Connector {name} not found")
        return ConnectorInfo(name, raw, tuple(configs.tasks(name)), self.connector_type(raw))

    def connector_info(self, name: str) -> StagedFuture[ConnectorInfo]:
        return self.later(lambda: self.known_connector_info(name), f"looking up connector {name}")

    def connector_config(self, name: str) -> StagedFuture[Props]:
        return self.later(lambda: self.known_connector_info(name).config, f"looking up the config of connector {name}")

    def task_configs(self, name: str) -> StagedFuture[list[TaskInfo]]:
        def look_up() -> list[TaskInfo]:
            configs = self._known(name)
            return [
                TaskInfo(task, props)
                for task in configs.tasks(name)
                if (props := configs.task_config(task)) is not None
            ]

        return self.later(look_up, f"looking up the task configs of connector {name}")

    def _known(self, name: str, otherwise: str | None = None) -> ClusterConfigState:
        """The state as read, which may be newer than what the herder acts on, if it has the connector.

        Raises NotFound; ``otherwise`` replaces its message, because Java uses several.
        """
        configs = self._config_store.snapshot()
        if name not in configs:
            raise NotFound(otherwise or f"Connector {name} not found")
        return configs

    def connector_type(self, raw: Props | None) -> ConnectorType:
        """Type of the connector with this configuration; UNKNOWN when this worker cannot load its class."""
        return self._plugin_infos.connector_type(raw or {})

    def connector_status(self, name: str) -> ConnectorStateInfo:
        status = self._status_store.connector(name)
        if status is None:
            raise NotFound(f"No status found for connector {name}")
        return ConnectorStateInfo(
            name,
            _work_state(status),
            tuple(_task_state(task) for task in self._status_store.tasks(name)),
            self.connector_type(self._config_store.snapshot().connector_config(name)),
        )

    def task_status(self, task: ConnectorTaskId) -> TaskStateInfo:
        status = self._status_store.task(task)
        if status is None:
            raise NotFound(f"No status found for task {task}")
        return _task_state(status)

    # -- connectors: changing

    def put_connector_config(
        self, name: str, config: Props, *, allow_replace: bool, target_state: TargetState | None = None
    ) -> StagedFuture[Created]:
        steps: Steps[Created] = Steps("waiting for a new thread to become available for connector validation")
        self._validate_and_put(steps, name, config, allow_replace=allow_replace, target_state=target_state)
        return steps.outcome

    def patch_connector_config(self, name: str, patch: Props) -> StagedFuture[Created]:
        steps: Steps[Created] = Steps(f"looking up the config of connector {name}")

        def patched() -> dict[str, str | None]:
            # Followers reject the request before the configuration is looked up, which makes races less likely.
            self.require_leader("set connector configs")
            merged = {**self.known_connector_info(name).config, **patch}
            return {key: value for key, value in merged.items() if patch.get(key, "") is not None}

        def put(config: Props) -> None:
            self._validate_and_put(steps, name, config, allow_replace=True, target_state=None)

        steps.after(self.later(patched, f"patching the config of connector {name}"), put)
        return steps.outcome

    def _validate_and_put(
        self, steps: Steps[Created], name: str, config: Props, *, allow_replace: bool, target_state: TargetState | None
    ) -> None:
        named = {**config, "name": config.get("name") or name}
        if named["name"] != name:
            steps.fail(
                BadRequest(
                    f"Connector name configuration ({named['name']}) doesn't match connector name in the URL ({name})"
                )
            )
            return

        def then(infos: ConfigInfos) -> None:
            require_valid(infos)
            self._put(steps, name, named, allow_replace=allow_replace, target_state=target_state)

        steps.after(self.validate_connector_config(named), then)

    def _is_new(self, name: str, *, allow_replace: bool) -> bool:
        """Whether the connector does not exist yet. Raises AlreadyExists if it exists and must not be replaced."""
        exists = name in self._config_store.snapshot()
        if exists and not allow_replace:
            raise AlreadyExists(f"Connector {name} already exists")
        return not exists

    def pause_connector(self, name: str) -> StagedFuture[None]:
        return self._put_target_state(name, TargetState.PAUSED)

    def resume_connector(self, name: str) -> StagedFuture[None]:
        return self._put_target_state(name, TargetState.STARTED)

    def restart_connector(self, name: str) -> StagedFuture[None]:
        stage = f"restarting connector {name}"
        steps: Steps[None] = Steps(stage)
        steps.after(self.later(lambda: self._restart_connector(steps, name), stage), lambda _restarting: None)
        return steps.outcome

    def _restart_connector(self, steps: Steps[None], name: str) -> None:
        self._require_own_connector(name)
        with self._stages.during(f"stopping restarted connector {name}"):
            self.worker.stop_connectors([name])
        self._start_connector(steps, name, lambda: None)

    def _restart_at_expiry(self, name: str, delay_s: float) -> StagedFuture[None]:
        """Cancel the future to withdraw it. If the connector does not start, its status has the reason."""
        stage = f"restarting connector {name}"
        return self.later(lambda: self._restart_connector(Steps(stage), name), stage, delay_s=delay_s)

    def _restart_plan(self, request: RestartRequest) -> RestartPlan:
        try:
            return restart_plan(request, self.connector_status(request.connector))
        except NotFound:
            raise NotFound(f"Status for connector {request.connector} not found") from None

    def _start_connector(self, steps: Steps[T], name: str, result: Callable[[], T]) -> None:
        """Start it; ``steps`` complete with ``result()`` when it has reached its state, or fail with the reason."""

        def on_started(error: Exception | None) -> None:
            if error is None:
                steps.end(result())
            else:
                steps.fail(ConnectError(self.worker.hide(name, f"Failed to start connector: {name}: {error}")))

        steps.begin("starting the connector")
        self._starts.connector(name, on_started)

    def restart_task(self, task: ConnectorTaskId) -> StagedFuture[None]:
        def restart() -> None:
            self._require_own_task(task)
            self.worker.stop_tasks([task])
            if not self._starts.task(task):
                raise ConnectError(f"Failed to start task: {task}")

        return self.later(restart, f"restarting task {task}")

    # -- offsets

    def connector_offsets(self, name: str) -> StagedFuture[ConnectorOffsets]:
        steps: Steps[ConnectorOffsets] = Steps(f"looking up connector {name}")

        def read(info: ConnectorInfo) -> None:
            if not self._offset_reads.acquire(blocking=False):
                steps.fail(Busy(f"{_MOST_OFFSET_READS} reads of offsets are in progress; try again later"))
                return

            def all_offsets(stages: StageTracker) -> ConnectorOffsets:
                try:
                    return self._offsets.read(name, info.config, stages)
                finally:
                    self._offset_reads.release()

            steps.after(run_apart(all_offsets, f"offsets-{name}", "waiting for a thread"), steps.end)

        steps.after(self.connector_info(name), read)
        return steps.outcome

    def alter_connector_offsets(self, name: str, offsets: ConnectorOffsets) -> StagedFuture[Message]:
        return self._modify_offsets(name, offsets)

    def reset_connector_offsets(self, name: str) -> StagedFuture[Message]:
        return self._modify_offsets(name, None)

    def _modify_offsets(self, name: str, offsets: ConnectorOffsets | None) -> StagedFuture[Message]:
        steps: Steps[Message] = Steps(f"modifying offsets for connector {name}")

        def modify(raw: Props) -> None:
            modifying = run_apart(
                lambda stages: self._offsets.modify(name, raw, offsets, stages),
                f"offsets-{name}",
                "waiting for a thread",
            )
            steps.after(modifying, steps.end)

        steps.after(self._stopped_config(name), modify)
        return steps.outcome

    # -- topics

    def connector_topics(self, name: str) -> ActiveTopicsInfo:
        self._require_tracking()
        return ActiveTopicsInfo(name, tuple(sorted(self._status_store.topics(name))))

    def reset_connector_topics(self, name: str) -> None:
        self._require_tracking()
        if not self._reset_topics:
            raise Forbidden("Topic tracking reset is disabled.")
        for topic in self._status_store.topics(name):
            self._status_store.delete_topic(name, topic)

    def _require_tracking(self) -> None:
        if not self._track_topics:
            raise Forbidden("Topic tracking is disabled.")

    # -- plugins

    def validate_connector_config(self, config: Props) -> StagedFuture[ConfigInfos]:
        return run_apart(
            lambda stages: self._validation.validate(config, stages),
            f"validate-{config.get('name') or config.get('connector.class')}",
            "waiting for a new thread to become available for connector validation",
        )

    def connector_plugins(self, *, connectors_only: bool = True) -> list[PluginInfo]:
        return self._plugin_infos.all(connectors_only=connectors_only)

    def plugin_config(self, name: str, version: str | None = None) -> list[dict[str, Any]]:
        return self._plugin_infos.config(name, version)

    # -- loggers

    def all_loggers(self) -> Mapping[str, LoggerLevel]:
        return self._loggers.all_levels()

    def logger_level(self, name: str) -> LoggerLevel | None:
        return self._loggers.level(name)

    def set_worker_logger_level(self, namespace: str, level: str) -> list[str]:
        return self._loggers.set_level(namespace, level)


def _work_state(status: Status) -> WorkState:
    return WorkState(status.state.value, status.worker_id, status.trace, status.version)


def _task_state(status: Status) -> TaskStateInfo:
    number = status.id.task if isinstance(status.id, ConnectorTaskId) else -1
    return TaskStateInfo(status.state.value, status.worker_id, status.trace, status.version, id=number)
