"""What distributed and standalone herders have in common (org.apache.kafka.connect.runtime.AbstractHerder)."""

from __future__ import annotations

import contextlib
import threading
from abc import abstractmethod
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

import structlog

from mm2.config.config_infos import ConfigInfos, ConfigKeyInfo
from mm2.config.connector_keys import SINK_CONNECTOR_CONFIG, SOURCE_CONNECTOR_CONFIG
from mm2.config.versions import InvalidVersionRange, version_requirement
from mm2.connect.api import (
    ConnectError,
    Connector,
    Converter,
    HeaderConverter,
    Predicate,
    SinkConnector,
    SourceConnector,
    Transformation,
)
from mm2.connect.errors import BadRequest, Forbidden, NotFound
from mm2.connect.group.protocol import ConnectorTaskId
from mm2.connect.herder.answers import (
    ActiveTopicsInfo,
    ConnectorInfo,
    ConnectorStateInfo,
    ConnectorType,
    HealthInfo,
    LoggerLevel,
    PluginInfo,
    TaskState,
    WorkState,
)
from mm2.connect.herder.connector_offsets import ConnectorOffsetsAccess
from mm2.connect.herder.interface import HEALTH_TIMEOUT_S, Herder
from mm2.connect.herder.loggers import Loggers
from mm2.connect.herder.stages import StagedFuture, run_apart
from mm2.connect.herder.validation import ConnectorValidation
from mm2.connect.plugins.kinds import LISTED
from mm2.connect.runtime.worker import Worker
from mm2.connect.stores.config_state import Props
from mm2.connect.stores.config_store import ConfigStore
from mm2.connect.stores.status_store import StatusStore
from mm2.connect.stores.statuses import Status

log = structlog.get_logger(__name__)


class AbstractHerder(Herder):
    """Answers what follows from the stores alone."""

    def __init__(
        self,
        worker: Worker,
        config_store: ConfigStore,
        status_store: StatusStore,
        *,
        offsets: ConnectorOffsetsAccess,
        validation: ConnectorValidation,
    ) -> None:
        config = worker.config
        self._offsets = offsets
        self._validation = validation
        self.worker = worker
        self._config_store = config_store
        self._status_store = status_store
        self._track_topics = config.bool("topic.tracking.enable")
        self._reset_topics = config.bool("topic.tracking.allow.reset")
        self._loggers = Loggers()
        self._types: dict[tuple[str, str | None], ConnectorType] = {}

    # -- health

    @abstractmethod
    def _ping(self) -> StagedFuture[None]:
        """Done when the herder has come by."""

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

    # -- connectors

    def connectors(self) -> list[str]:
        return sorted(self._config_store.snapshot().connectors())

    def known_connector_info(self, name: str) -> ConnectorInfo:
        configs = self._config_store.snapshot()
        raw = configs.connector_config(name)
        if raw is None:
            raise NotFound(f"Connector {name} not found")
        return ConnectorInfo(name, raw, tuple(configs.tasks(name)), self.connector_type(raw))

    def connector_type(self, raw: Props | None) -> ConnectorType:
        """What kind of connector a configuration is of; UNKNOWN when its class is not known here."""
        given = raw or {}
        name, version = given.get("connector.class"), given.get("connector.plugin.version")
        if not name:
            return ConnectorType.UNKNOWN
        known = self._types.get((name, version))
        if known is not None:
            return known
        try:
            found = self.worker.plugins.find(name, Connector, key="connector.class", version=version)
        except ConnectError:
            return ConnectorType.UNKNOWN
        type_ = ConnectorType.UNKNOWN
        if issubclass(found, SinkConnector):
            type_ = ConnectorType.SINK
        elif issubclass(found, SourceConnector):
            type_ = ConnectorType.SOURCE
        self._types[name, version] = type_
        return type_

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

    def task_status(self, task: ConnectorTaskId) -> TaskState:
        status = self._status_store.task(task)
        if status is None:
            raise NotFound(f"No status found for task {task}")
        return _task_state(status)

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
        return [
            PluginInfo(plugin.name, type_.value, plugin.version)
            for type_ in LISTED
            if type_.is_connector or not connectors_only
            for plugin in self.worker.plugins.list(type_)
        ]

    def plugin_config(self, name: str, version: str | None = None) -> list[dict[str, Any]]:
        plugins = self.worker.plugins
        try:
            version_requirement(version)
        except InvalidVersionRange as error:
            raise BadRequest(f"{version} is no version and no range of versions: {error}") from error
        kinds = (SinkConnector, SourceConnector, Converter, HeaderConverter, Transformation, Predicate)
        plugin: object = None
        # By kind, since an alias may mean a connector and its task.
        for kind in (*kinds, object):
            with contextlib.suppress(ConnectError):
                plugin = plugins.new(name, kind, key="plugin", version=version)
                break
        if plugin is None:
            raise NotFound(f"Unknown plugin {name}.")
        if not isinstance(plugin, kinds):
            raise BadRequest(
                f"Invalid plugin class {name}. Valid types are sink, source, converter, header_converter, transformation, "
                "predicate."
            )
        with plugins.swap(plugins.loader_of(plugin)):
            definition = plugin.config()
        keys = dict(definition.keys) if definition is not None else {}
        if isinstance(plugin, Connector):
            base = SINK_CONNECTOR_CONFIG if isinstance(plugin, SinkConnector) else SOURCE_CONNECTOR_CONFIG
            keys.update({key: row for key, row in base.keys.items() if key not in keys})
        return [ConfigKeyInfo.of(row).as_json() for row in keys.values()]

    # -- loggers

    def all_loggers(self) -> Mapping[str, LoggerLevel]:
        return self._loggers.all_levels()

    def logger_level(self, name: str) -> LoggerLevel | None:
        return self._loggers.level(name)

    def set_worker_logger_level(self, namespace: str, level: str) -> list[str]:
        return self._loggers.set_level(namespace, level)


def _work_state(status: Status) -> WorkState:
    return WorkState(status.state.value, status.worker_id, status.trace, status.version)


def _task_state(status: Status) -> TaskState:
    return TaskState(status.id.task if isinstance(status.id, ConnectorTaskId) else -1, _work_state(status))
