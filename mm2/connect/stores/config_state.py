"""The content of the config topic: its records, and the state that they result in (KafkaConfigBackingStore)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import structlog

from mm2.codec import written_as
from mm2.connect.api import ConnectError
from mm2.connect.request_signing import SessionKey
from mm2.connect.stores import internal_json
from mm2.kafka.readers.log import RecordWarnings, in_log

log = structlog.get_logger(__name__)

Props = Mapping[str, str | None]


@written_as("connector task")  # as in answers of REST
class ConnectorTaskId(NamedTuple):
    """Names a task; sorts by connector, then number."""

    connector: str
    task: int

    def __str__(self) -> str:
        return f"{self.connector}-{self.task}"


class TargetState(StrEnum):
    """The state that a user has requested for a connector."""

    STARTED = "STARTED"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"


@written_as("include-tasks=include_tasks only-failed=only_failed")  # in Java's order
@dataclass(frozen=True)
class RestartRequest:
    """A ``restart-connector-`` record (KIP-745)."""

    connector: str
    only_failed: bool
    include_tasks: bool

    @property
    def impact(self) -> tuple[bool, bool]:
        """Orders requests for one connector: a request with higher impact replaces a pending one with lower impact."""
        return (not self.only_failed, self.include_tasks)


@dataclass(frozen=True)
class ClusterConfigState:
    """An immutable snapshot. Configurations are as stored: provider references are not resolved."""

    #: Offset of the next record to read, -1 before the first. Members of the group compare it.
    offset: int = -1
    session_key: SessionKey | None = None
    task_counts: Mapping[str, int] = field(default_factory=dict)
    connector_configs: Mapping[str, Props] = field(default_factory=dict)
    target_states: Mapping[str, TargetState] = field(default_factory=dict)
    task_configs: Mapping[ConnectorTaskId, Props] = field(default_factory=dict)
    #: The connector configuration with which the current task configs were committed.
    applied_connector_configs: Mapping[str, Props] = field(default_factory=dict)
    task_count_records: Mapping[str, int] = field(default_factory=dict)
    #: Generation of the committed task configs per connector, starting at 0.
    task_config_generations: Mapping[str, int] = field(default_factory=dict)
    pending_fencing: frozenset[str] = frozenset()
    #: Connectors whose committed task configs are incomplete, because compaction removed a part of them.
    inconsistent: frozenset[str] = frozenset()

    def __contains__(self, connector: str) -> bool:
        return connector in self.connector_configs

    def connectors(self) -> frozenset[str]:
        """Names of all configured connectors."""
        return frozenset(self.connector_configs)

    def connector_config(self, connector: str) -> Props | None:
        """Its configuration as stored, None when there is no such connector."""
        return self.connector_configs.get(connector)

    def target_state(self, connector: str) -> TargetState | None:
        """None when there is no such connector."""
        return self.target_states.get(connector)

    def tasks(self, connector: str) -> list[ConnectorTaskId]:
        """Ids of its tasks in order; empty when its task configs are inconsistent."""
        if connector in self.inconsistent:
            return []
        return [ConnectorTaskId(connector, number) for number in range(self.task_counts.get(connector, 0))]

    def task_config(self, task: ConnectorTaskId) -> Props | None:
        """A task's configuration as stored."""
        return self.task_configs.get(task)

    def all_task_configs(self, connector: str) -> list[Props]:
        """The configurations of :meth:`tasks`, in order."""
        return [self.task_configs[task] for task in self.tasks(connector)]


CONNECTOR_PREFIX = "connector-"
TASK_PREFIX = "task-"
COMMIT_PREFIX = "commit-"
TARGET_STATE_PREFIX = "target-state-"
FENCING_PREFIX = "tasks-fencing-"
RESTART_PREFIX = "restart-connector-"
LOGGER_PREFIX = "logger-cluster-"
SESSION_KEY = "session-key"

ConfigRecord = tuple[str, Any]


def connector_records(name: str, props: Props, state: TargetState | None = None) -> list[ConfigRecord]:
    """A connector's records; its target state comes first, so that it is known when the connector is."""
    first = [] if state is None else [target_state_record(name, state)]
    return [*first, (CONNECTOR_PREFIX + name, _properties(props))]


def removal_records(name: str) -> list[ConfigRecord]:
    """The records that delete a connector."""
    return [(CONNECTOR_PREFIX + name, None), (TARGET_STATE_PREFIX + name, None)]


def task_records(name: str, configs: Sequence[Props]) -> list[ConfigRecord]:
    """Task configs, which take effect with the `commit_record`."""
    return [(f"{TASK_PREFIX}{name}-{number}", _properties(props)) for number, props in enumerate(configs)]


def commit_record(name: str, count: int) -> ConfigRecord:
    """The record that commits ``count`` task configs."""
    return (COMMIT_PREFIX + name, {"tasks": count})


def target_state_record(name: str, state: TargetState) -> ConfigRecord:
    """Workers older than KIP-875 do not support STOPPED and read only the first field."""
    old = TargetState.PAUSED if state is TargetState.STOPPED else state
    return (TARGET_STATE_PREFIX + name, {"state": old.value, "state.v2": state.value})


def _properties(props: Props) -> dict[str, Mapping[str, str | None]]:
    return {"properties": internal_json.hash_ordered(props)}


class ConfigListener(Protocol):
    """Receives changes after the store has started. Called on the log's thread: must return immediately."""

    def on_connector_config_update(self, connector: str) -> None:
        """A connector was created or changed."""

    def on_connector_config_remove(self, connector: str) -> None:
        """A connector was deleted."""

    def on_task_config_update(self, tasks: list[ConnectorTaskId]) -> None:
        """A set of task configs was committed; empty when it was inconsistent or had no tasks."""

    def on_target_state_change(self, connector: str) -> None:
        """The target state of a known connector was changed."""

    def on_session_key_update(self, key: SessionKey) -> None:
        """The leader distributed a new key."""

    def on_restart_request(self, request: RestartRequest) -> None:
        """A restart was requested."""

    def on_logging_level_update(self, namespace: str, level: str) -> None:
        """A logger's level must change on every worker."""


class _InvalidRecord(Exception):
    """A record whose value is invalid; it is logged and skipped."""


@dataclass
class _ConfigTables:
    connector_configs: dict[str, Props] = field(default_factory=dict)
    task_counts: dict[str, int] = field(default_factory=dict)
    target_states: dict[str, TargetState] = field(default_factory=dict)
    task_configs: dict[ConnectorTaskId, Props] = field(default_factory=dict)
    applied: dict[str, Props] = field(default_factory=dict)
    count_records: dict[str, int] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)
    deferred: dict[str, dict[ConnectorTaskId, Props]] = field(default_factory=dict)
    pending_fencing: set[str] = field(default_factory=set)
    inconsistent: set[str] = field(default_factory=set)


class ConfigFold:
    """Folds records in the order of the topic. One thread applies records; any thread may take snapshots."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._warnings = RecordWarnings(log)
        self._tables = _ConfigTables()
        self._session_key: SessionKey | None = None
        self._offset = -1
        self._listener: ConfigListener | None = None

    def start_listening(self, listener: ConfigListener) -> None:
        """Call ``listener`` from the next record on; earlier records are not reported."""
        self._listener = listener

    def snapshot(self) -> ClusterConfigState:
        """The current state."""
        with self._lock:
            tables = self._tables
            return ClusterConfigState(
                offset=self._offset,
                session_key=self._session_key,
                task_counts=dict(tables.task_counts),
                connector_configs=dict(tables.connector_configs),
                target_states=dict(tables.target_states),
                task_configs=dict(tables.task_configs),
                applied_connector_configs=dict(tables.applied),
                task_count_records=dict(tables.count_records),
                task_config_generations=dict(tables.generations),
                pending_fencing=frozenset(tables.pending_fencing),
                inconsistent=frozenset(tables.inconsistent),
            )

    def is_pending_fencing(self, connector: str) -> bool:
        """Whether a connector is in ``snapshot().pending_fencing``, without the cost of a snapshot."""
        with self._lock:
            return connector in self._tables.pending_fencing

    def apply(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Apply one record; invalid ones are logged and skipped.

        As in Java, JSON that cannot be parsed does not advance the offset, a key that is not UTF-8 does: members whose
        offsets differ would rebalance without end.
        """
        name = (key or b"").decode("utf-8", "replace")
        try:
            parsed = internal_json.decode(value)
        except ConnectError as error:
            self._warnings.warning("config record cannot be read", offset=offset, reason=in_log(str(error)))
            return
        try:
            with self._lock:
                self._offset = offset + 1
                event = self._dispatch(name, parsed)
        except _InvalidRecord as refused:
            # Values may contain secrets: describe only the error.
            self._warnings.warning(
                "config record rejected", key=in_log(name), offset=offset, reason=in_log(str(refused))
            )
            return
        if event is not None and self._listener is not None:
            event(self._listener)

    def _dispatch(self, key: str, value: Any) -> Callable[[ConfigListener], None] | None:
        if key == SESSION_KEY:
            return self._session_key_record(value)
        for prefix, handle in (
            (TARGET_STATE_PREFIX, self._target_state_record),
            (CONNECTOR_PREFIX, self._connector_record),
            (FENCING_PREFIX, self._task_count_record),
            (TASK_PREFIX, self._task_record),
            (COMMIT_PREFIX, self._commit_record),
            (RESTART_PREFIX, self._restart_record),
            (LOGGER_PREFIX, self._logger_record),
        ):
            if key.startswith(prefix):
                return handle(key[len(prefix) :], value)
        raise _InvalidRecord("unknown key")

    def _connector_record(self, connector: str, value: Any) -> Callable[[ConfigListener], None]:
        tables = self._tables
        if value is None:
            self._remove_connector(connector)
            return lambda listener: listener.on_connector_config_remove(connector)
        tables.connector_configs[connector] = _read_properties(value)
        tables.target_states.setdefault(connector, TargetState.STARTED)
        return lambda listener: listener.on_connector_config_update(connector)

    def _remove_connector(self, connector: str) -> None:
        tables = self._tables
        tables.connector_configs.pop(connector, None)
        tables.task_counts.pop(connector, None)
        tables.deferred.pop(connector, None)
        tables.applied.pop(connector, None)
        for task in [task for task in tables.task_configs if task.connector == connector]:
            del tables.task_configs[task]

    def _task_record(self, rest: str, value: Any) -> None:
        connector, dash, number = rest.rpartition("-")
        if not dash or not number.isascii() or not number.isdigit():
            raise _InvalidRecord("the key does not name a task")
        if value is None:
            raise _InvalidRecord("a task config is unexpectedly null")
        self._tables.deferred.setdefault(connector, {})[ConnectorTaskId(connector, int(number))] = _read_properties(
            value
        )

    def _commit_record(self, connector: str, value: Any) -> Callable[[ConfigListener], None] | None:
        tables = self._tables
        if connector not in tables.connector_configs:
            # The connector was deleted, and compaction removed both its config and the tombstone.
            self._remove_connector(connector)
            return None
        count = _integer(value, "tasks")
        deferred = tables.deferred.get(connector)
        updated: list[ConnectorTaskId] = []
        # Additional configs are valid: compaction may leave configs of tasks that have been removed.
        complete = all(ConnectorTaskId(connector, number) in (deferred or {}) for number in range(count))
        if complete:
            tables.applied[connector] = tables.connector_configs[connector]
            if deferred is not None:
                tables.task_configs.update(deferred)
                updated = sorted(deferred)
                tables.generations[connector] = tables.generations.get(connector, -1) + 1
            tables.inconsistent.discard(connector)
        else:
            tables.inconsistent.add(connector)
        if deferred is not None:
            deferred.clear()
        tables.task_counts[connector] = count
        tables.pending_fencing.add(connector)
        return lambda listener: listener.on_task_config_update(updated)

    def _target_state_record(self, connector: str, value: Any) -> Callable[[ConfigListener], None] | None:
        states = self._tables.target_states
        known = connector in self._tables.connector_configs
        if value is None:
            states.pop(connector, None)
            if known:
                states[connector] = TargetState.STARTED
            return None
        fields = _map(value)
        text = fields.get("state.v2")
        if not isinstance(text, str):
            text = fields.get("state")
        if not isinstance(text, str) or text not in TargetState.__members__:
            raise _InvalidRecord("neither state.v2 nor state is a target state")
        state = TargetState(text)
        changed = states.get(connector) != state
        states[connector] = state
        if not changed or not known:
            return None
        return lambda listener: listener.on_target_state_change(connector)

    def _task_count_record(self, connector: str, value: Any) -> None:
        self._tables.count_records[connector] = _integer(value, "task-count")
        self._tables.pending_fencing.discard(connector)

    def _session_key_record(self, value: Any) -> Callable[[ConfigListener], None] | None:
        if value is None:
            raise _InvalidRecord("a session key is unexpectedly null")
        try:
            key = SessionKey.from_json(value)
        except ConnectError as error:
            raise _InvalidRecord(str(error)) from error
        self._session_key = key
        return lambda listener: listener.on_session_key_update(key)

    def _restart_record(self, connector: str, value: Any) -> Callable[[ConfigListener], None]:
        fields = _map(value)
        request = RestartRequest(
            connector,
            only_failed=fields.get("only-failed") is True,
            include_tasks=fields.get("include-tasks") is True,
        )
        return lambda listener: listener.on_restart_request(request)

    def _logger_record(self, namespace: str, value: Any) -> Callable[[ConfigListener], None]:
        level = _map(value).get("level")
        if not isinstance(level, str):
            raise _InvalidRecord("a logger's level must be a string")
        return lambda listener: listener.on_logging_level_update(namespace, level)


def _map(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _InvalidRecord(f"a map was expected, not {type(value).__name__}")
    return value


def _read_properties(value: Any) -> Props:
    properties = _map(value).get("properties")
    if not isinstance(properties, dict):
        raise _InvalidRecord("field 'properties' must be a map")
    return {
        key: None if item is None else item if isinstance(item, str) else str(item) for key, item in properties.items()
    }


def _integer(value: Any, name: str) -> int:
    number = _map(value).get(name)
    if not isinstance(number, int) or isinstance(number, bool):
        raise _InvalidRecord(f"field {name!r} must be an integer")
    return number
