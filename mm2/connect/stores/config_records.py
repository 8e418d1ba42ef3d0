"""Records of the config topic, as (key, value) pairs with JSON-compatible values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mm2.connect.stores import internal_json
from mm2.connect.stores.config_state import Props, TargetState

CONNECTOR_PREFIX = "connector-"
TASK_PREFIX = "task-"
COMMIT_PREFIX = "commit-"
TARGET_STATE_PREFIX = "target-state-"
FENCING_PREFIX = "tasks-fencing-"
RESTART_PREFIX = "restart-connector-"
LOGGER_PREFIX = "logger-cluster-"
SESSION_KEY = "session-key"

ConfigRecord = tuple[str, Any]


def connector(name: str, props: Props, state: TargetState | None = None) -> list[ConfigRecord]:
    """A connector's records; its target state comes first, so that it is known when the connector is."""
    first = [] if state is None else [target_state(name, state)]
    return [*first, (CONNECTOR_PREFIX + name, _properties(props))]


def removal(name: str) -> list[ConfigRecord]:
    """The records that delete a connector."""
    return [(CONNECTOR_PREFIX + name, None), (TARGET_STATE_PREFIX + name, None)]


def tasks(name: str, configs: Sequence[Props]) -> list[ConfigRecord]:
    """Task configs, which take effect with the `commit`."""
    return [(f"{TASK_PREFIX}{name}-{number}", _properties(props)) for number, props in enumerate(configs)]


def commit(name: str, count: int) -> ConfigRecord:
    """The record that commits ``count`` task configs."""
    return (COMMIT_PREFIX + name, {"tasks": count})


def target_state(name: str, state: TargetState) -> ConfigRecord:
    """Workers older than KIP-875 do not support STOPPED and read only the first field."""
    old = TargetState.PAUSED if state is TargetState.STOPPED else state
    return (TARGET_STATE_PREFIX + name, {"state": old.value, "state.v2": state.value})


def _properties(props: Props) -> dict[str, Mapping[str, str | None]]:
    return {"properties": internal_json.hash_ordered(props)}
