"""Interface of the config store, and the store of standalone workers (ConfigBackingStore, MemoryConfigBackingStore)."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from mm2.connect.api import ConnectError
from mm2.connect.request_signing import SessionKey
from mm2.connect.stores import internal_json
from mm2.connect.stores.config_state import (
    ClusterConfigState,
    ConfigFold,
    ConfigListener,
    Props,
    RestartRequest,
    TargetState,
    commit_record,
    connector_records,
    removal_records,
    target_state_record,
    task_records,
)


class PrivilegedWriteError(ConnectError):
    """The leader could not write: another leader has fenced it, or the cluster did not respond.

    Claim the privileges again, then retry.
    """


class ConfigStore(ABC):
    """Connectors, task configs and target states; a listener receives all changes. Thread-safe.

    Reads are served from memory. A write is visible in `snapshot` when it returns, except for target states and logger
    levels, which become visible when they are read back.
    """

    @abstractmethod
    def start(self, listener: ConfigListener) -> None:
        """Load the current state, then pass every change to ``listener``. Raises ConnectError or KafkaFailure."""

    @abstractmethod
    def stop(self) -> None:
        """Release all resources; writes in progress are aborted."""

    @abstractmethod
    def snapshot(self) -> ClusterConfigState:
        """The state as read so far."""

    @abstractmethod
    def refresh(self, timeout_s: float) -> None:
        """Read what other workers have written. Raises KafkaFailure when that takes longer than ``timeout_s``."""

    @abstractmethod
    def is_pending_fencing(self, connector: str) -> bool:
        """Whether a connector has task configs whose predecessors have not been fenced yet, as read so far."""

    @abstractmethod
    def claim_write_privileges(self) -> None:
        """Become the only leader that can write; does nothing standalone or without transactions. Raises ConnectError."""

    @abstractmethod
    def put_connector_config(self, connector: str, props: Props, target_state: TargetState | None = None) -> None:
        """Create or replace a connector; ``target_state`` is written first, so it never runs in another state."""

    @abstractmethod
    def remove_connector_config(self, connector: str) -> None:
        """Delete a connector and its tasks."""

    @abstractmethod
    def put_task_configs(self, connector: str, configs: Sequence[Props]) -> None:
        """Replace the configurations of all tasks of a connector. They take effect together."""

    @abstractmethod
    def put_task_count(self, connector: str, count: int) -> None:
        """Record that older tasks of a connector are fenced and ``count`` newer ones may run."""

    @abstractmethod
    def put_target_state(self, connector: str, state: TargetState) -> None:
        """Set the target state of a connector."""

    @abstractmethod
    def put_session_key(self, key: SessionKey) -> None:
        """Distribute a new key for signed requests."""

    @abstractmethod
    def put_restart_request(self, request: RestartRequest) -> None:
        """Request all workers to restart their part of a connector."""

    @abstractmethod
    def put_logger_level(self, namespace: str, level: str) -> None:
        """Request all workers to change a logger's level."""


class MemoryConfigStore(ConfigStore):
    """Folds the records that would be written to the config topic, so both stores follow the same rules.

    The listener is called on the writing thread, before the write returns. As in Java, task counts, session keys,
    restart requests and logger levels are accepted and ignored, because there is only one worker.
    """

    def __init__(self) -> None:
        self._fold = ConfigFold()
        self._lock = threading.RLock()
        self._end = 0

    def start(self, listener: ConfigListener) -> None:
        self._fold.start_listening(listener)

    def stop(self) -> None:
        return

    def snapshot(self) -> ClusterConfigState:
        return self._fold.snapshot()

    def refresh(self, timeout_s: float) -> None:
        return

    def is_pending_fencing(self, connector: str) -> bool:
        return False

    def claim_write_privileges(self) -> None:
        return

    def put_connector_config(self, connector: str, props: Props, target_state: TargetState | None = None) -> None:
        self._write(connector_records(connector, props, target_state))

    def remove_connector_config(self, connector: str) -> None:
        self._write(removal_records(connector))

    def put_task_configs(self, connector: str, configs: Sequence[Props]) -> None:
        self._require(connector)
        self._write([*task_records(connector, configs), commit_record(connector, len(configs))])

    def put_task_count(self, connector: str, count: int) -> None:
        return

    def put_target_state(self, connector: str, state: TargetState) -> None:
        self._require(connector)
        self._write([target_state_record(connector, state)])

    def put_session_key(self, key: SessionKey) -> None:
        return

    def put_restart_request(self, request: RestartRequest) -> None:
        return

    def put_logger_level(self, namespace: str, level: str) -> None:
        return

    def _require(self, connector: str) -> None:
        if connector not in self.snapshot():
            raise ConnectError(f"No connector {connector} is configured")

    def _write(self, batch: Sequence[tuple[str, Any]]) -> None:
        # One writer at a time; a listener may write again during its call.
        with self._lock:
            for key, value in batch:
                offset, self._end = self._end, self._end + 1
                self._fold.apply(offset, key.encode("utf-8"), internal_json.encode(value))
