"""An immutable snapshot of the config topic (org.apache.kafka.connect.storage.ClusterConfigState)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from mm2.connect.group.protocol import ConnectorTaskId
from mm2.connect.request_signing import SessionKey

Props = Mapping[str, str | None]


class TargetState(StrEnum):
    """The state that a user has requested for a connector."""

    STARTED = "STARTED"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"


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

    def to_json(self) -> dict[str, bool]:
        """The record's value."""
        return {"include-tasks": self.include_tasks, "only-failed": self.only_failed}


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
