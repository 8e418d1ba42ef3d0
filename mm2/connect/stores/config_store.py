"""Interface of the config store (org.apache.kafka.connect.storage.ConfigBackingStore)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from mm2.connect.api import ConnectError
from mm2.connect.request_signing import SessionKey
from mm2.connect.stores.config_fold import ConfigListener
from mm2.connect.stores.config_state import ClusterConfigState, Props, RestartRequest, TargetState


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
