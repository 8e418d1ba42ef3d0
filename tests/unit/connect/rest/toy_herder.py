"""A herder that stores connectors in a dict, for tests of the REST layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from mm2.connect.errors import AlreadyExists, BadRequest, Forbidden, NotFound
from mm2.connect.herder.answers import (
    ActiveTopicsInfo,
    ConnectorInfo,
    ConnectorOffset,
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
from mm2.connect.herder.interface import Herder
from mm2.connect.herder.request_queue import StagedFuture, WorkerStage
from mm2.connect.request_signing import RequestSignature, SessionKey
from mm2.connect.stores.config_state import ConnectorTaskId, Props, RestartRequest, TargetState

T = TypeVar("T")

SESSION_KEY = SessionKey(bytes(32), "HmacSHA256", 0)


class ToyHerder(Herder):
    """``refuse`` makes the next mutating calls fail with that error; ``hang`` makes them wait forever."""

    session_key: SessionKey | None = None

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Reset to the initial state."""
        self.configs: dict[str, dict[str, str | None]] = {}
        self.states: dict[str, str] = {}
        self.refuse: Exception | None = None
        self.hang = False
        self.waiting = 0  # calls that hang
        self.ready = True
        self.calls: list[tuple[Any, ...]] = []

    # -- life

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def await_stopped(self, timeout_s: float | None = None) -> bool:
        return timeout_s is not None

    @property
    def failure(self) -> BaseException | None:
        return None

    @property
    def is_ready(self) -> bool:
        return self.ready

    @property
    def stage(self) -> WorkerStage:
        return WorkerStage("counting sheep", 0)

    @property
    def kafka_cluster_id(self) -> str:
        return "toy-cluster"

    def health(self) -> StagedFuture[HealthInfo]:
        return self._later(HealthInfo.healthy)

    # -- reading

    def connectors(self) -> list[str]:
        return sorted(self.configs)

    def known_connector_info(self, name: str) -> ConnectorInfo:
        self._require(name)
        return ConnectorInfo(name, self.configs[name], (ConnectorTaskId(name, 0),), ConnectorType.SOURCE)

    def connector_info(self, name: str) -> StagedFuture[ConnectorInfo]:
        return self._later(lambda: self.known_connector_info(name))

    def connector_config(self, name: str) -> StagedFuture[Props]:
        return self._later(lambda: self.known_connector_info(name).config)

    def connector_status(self, name: str) -> ConnectorStateInfo:
        if name not in self.configs:
            raise NotFound(f"No status found for connector {name}")
        state = self.states.get(name, "RUNNING")
        work, task = WorkState(state, "h:1", None, "1"), TaskStateInfo(state, "h:1", None, "1", id=0)
        return ConnectorStateInfo(name, work, (task,), ConnectorType.SOURCE)

    def task_status(self, task: ConnectorTaskId) -> TaskStateInfo:
        if task.connector not in self.configs or task.task != 0:
            raise NotFound(f"No status found for task {task}")
        return TaskStateInfo("FAILED", "h:1", "why", None, id=0)

    def task_configs(self, name: str) -> StagedFuture[list[TaskInfo]]:
        return self._later(lambda: [TaskInfo(ConnectorTaskId(name, 0), self.known_connector_info(name).config)])

    def connector_topics(self, name: str) -> ActiveTopicsInfo:
        return ActiveTopicsInfo(name, ())

    def reset_connector_topics(self, name: str) -> None:
        self.calls.append(("reset topics", name))

    # -- changing

    def put_connector_config(
        self, name: str, config: Props, *, allow_replace: bool, target_state: TargetState | None = None
    ) -> StagedFuture[Created]:
        def put() -> Created:
            self.calls.append(("put", name, dict(config), target_state))
            if not config.get("connector.class"):
                raise BadRequest(f"Connector config {name} contains no connector type")
            existed = name in self.configs
            if existed and not allow_replace:
                raise AlreadyExists(f"Connector {name} already exists")
            self.configs[name] = dict(config)
            return Created(not existed, self.known_connector_info(name))

        return self._later(put)

    def patch_connector_config(self, name: str, patch: Props) -> StagedFuture[Created]:
        def put() -> Created:
            self._require(name)
            merged = {**self.configs[name], **patch}
            self.configs[name] = {key: value for key, value in merged.items() if value is not None}
            return Created(created=False, info=self.known_connector_info(name))

        return self._later(put)

    def delete_connector_config(self, name: str) -> StagedFuture[None]:
        def delete() -> None:
            self._require(name)
            del self.configs[name]

        return self._later(delete)

    def _set_state(self, name: str, state: str) -> StagedFuture[None]:
        def change() -> None:
            if name not in self.configs:
                raise NotFound(f"Unknown connector {name}")
            self.states[name] = state

        return self._later(change)

    def pause_connector(self, name: str) -> StagedFuture[None]:
        return self._set_state(name, "PAUSED")

    def resume_connector(self, name: str) -> StagedFuture[None]:
        return self._set_state(name, "RUNNING")

    def stop_connector(self, name: str) -> StagedFuture[None]:
        return self._set_state(name, "STOPPED")

    def restart_connector(self, name: str) -> StagedFuture[None]:
        return self._later(lambda: self._require(name))

    def restart_connector_and_tasks(self, request: RestartRequest) -> StagedFuture[ConnectorStateInfo]:
        self.calls.append(("restart", request))
        return self._later(lambda: self.connector_status(request.connector))

    def restart_task(self, task: ConnectorTaskId) -> StagedFuture[None]:
        return self._later(lambda: self._require(task.connector))

    # -- between workers

    def require_signature(self) -> None:
        if not self.hang and self.refuse is None:
            self._signed(None)

    def put_task_configs(
        self, name: str, configs: Callable[[], Sequence[Props]], signature: RequestSignature | None, is_permitted: bool
    ) -> StagedFuture[None]:
        def put() -> None:
            self._signed(signature)
            self.calls.append(("put_task_configs", name, configs()))

        return self._later(put)

    def fence_zombies(self, name: str, signature: RequestSignature | None, is_permitted: bool) -> StagedFuture[None]:
        return self._later(lambda: self._signed(signature))

    @staticmethod
    def _signed(signature: RequestSignature | None) -> None:
        if signature is None:
            raise BadRequest("Internal request missing required signature")
        if not signature.is_valid(SESSION_KEY):
            raise Forbidden("Internal request contained invalid signature.")

    # -- offsets

    def connector_offsets(self, name: str) -> StagedFuture[ConnectorOffsets]:
        def offsets() -> ConnectorOffsets:
            self._require(name)
            return ConnectorOffsets((ConnectorOffset({"file": "ä"}, {"position": 7, "raw": b"\x00\xff"}),))

        return self._later(offsets)

    def alter_connector_offsets(self, name: str, offsets: ConnectorOffsets) -> StagedFuture[Message]:
        self.calls.append(("alter", name, offsets))
        return self._later(lambda: self._message(name))

    def reset_connector_offsets(self, name: str) -> StagedFuture[Message]:
        return self._later(lambda: self._message(name))

    def _message(self, name: str) -> Message:
        self._require(name)
        return Message("done")

    # -- plugins

    def validate_connector_config(self, config: Props) -> StagedFuture[Any]:
        def validate() -> Any:
            if not config.get("connector.class"):
                raise BadRequest(f"Connector config {dict(config)} contains no connector type")
            return _Infos()

        return self._later(validate)

    def connector_plugins(self, *, connectors_only: bool = True) -> list[PluginInfo]:
        plugins = [PluginInfo("a.Sink", "sink", "1"), PluginInfo("a.Converter", "converter", "undefined")]
        return plugins[:1] if connectors_only else plugins

    def plugin_config(self, name: str, version: str | None = None) -> list[dict[str, Any]]:
        if name != "Sink":
            raise NotFound(f"Unknown plugin {name}.")
        return [{"name": "topics", "version": version}]

    # -- loggers

    def all_loggers(self) -> Mapping[str, LoggerLevel]:
        return {"root": LoggerLevel("INFO", None)}

    def logger_level(self, name: str) -> LoggerLevel | None:
        return LoggerLevel("INFO", 5) if name == "root" else None

    def set_worker_logger_level(self, namespace: str, level: str) -> list[str]:
        return [namespace]

    def set_cluster_logger_level(self, namespace: str, level: str) -> StagedFuture[None]:
        return self._later(lambda: self.calls.append(("cluster level", namespace, level)))

    # --

    def _require(self, name: str) -> None:
        if name not in self.configs:
            raise NotFound(f"Connector {name} not found")

    def _later(self, action: Callable[[], T]) -> StagedFuture[T]:
        future: StagedFuture[T] = StagedFuture(lambda: self.stage)
        if self.hang:
            self.waiting += 1
            return future
        try:
            if self.refuse is not None:
                raise self.refuse
            future.set_result(action())
        except Exception as error:  # noqa: BLE001 - what the future fails with
            future.set_exception(error)
        return future


class _Infos:
    def to_json(self) -> dict[str, Any]:
        return {"name": "a.Sink", "error_count": 0, "groups": [], "configs": []}
