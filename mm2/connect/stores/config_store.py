"""Where the desired state of a Connect cluster is kept (org.apache.kafka.connect.storage.ConfigBackingStore)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from mm2.connect.api import ConnectError
from mm2.connect.request_signing import SessionKey
from mm2.connect.stores.config_fold import ConfigListener
from mm2.connect.stores.config_state import ClusterConfigState, Props, RestartRequest, TargetState


class PrivilegedWriteError(ConnectError):
    """The leader could not write: another one has fenced it, or the cluster did not answer. Claim again, then retry."""


class ConfigStore(ABC):
    """Connectors, task configs and target states, with all changes told to a listener. Thread-safe.

    Reads are served from memory. A write is visible in `snapshot` when it returns, except for target states and logger
    levels, which come back when they come back.
    """

    @abstractmethod
    def start(self, listener: ConfigListener) -> None:
        """Load what there is, then tell ``listener`` about every change. Raises ConnectError or KafkaFailure."""

    @abstractmethod
    def stop(self) -> None:
        """Release everything; writes under way are given up."""

    @abstractmethod
    def snapshot(self) -> ClusterConfigState:
        """The state as far as known here."""

    @abstractmethod
    def refresh(self, timeout_s: float) -> None:
        """Catch up with what others have written. Raises KafkaFailure when that takes longer than ``timeout_s``."""

    @abstractmethod
    def is_pending_fencing(self, connector: str) -> bool:
        """Whether a connector has task configs whose predecessors have not been fenced yet, as far as known here."""

    @abstractmethod
    def claim_write_privileges(self) -> None:
        """Become the only leader that can write; does nothing where nobody else could. Raises ConnectError."""

    @abstractmethod
    def put_connector_config(self, connector: str, props: Props, target_state: TargetState | None = None) -> None:
        """Create or replace a connector; with ``target_state`` its state is set first, so it never runs in another."""

    @abstractmethod
    def remove_connector_config(self, connector: str) -> None:
        """Delete a connector and with it its tasks."""

    @abstractmethod
    def put_task_configs(self, connector: str, configs: Sequence[Props]) -> None:
        """Replace the configurations of all tasks of a connector. They take effect together."""

    @abstractmethod
    def put_task_count(self, connector: str, count: int) -> None:
        """Note that older tasks of a connector are fenced and ``count`` newer ones may run."""

    @abstractmethod
    def put_target_state(self, connector: str, state: TargetState) -> None:
        """Say what state a connector shall be in."""

    @abstractmethod
    def put_session_key(self, key: SessionKey) -> None:
        """Distribute a new key for signed requests."""

    @abstractmethod
    def put_restart_request(self, request: RestartRequest) -> None:
        """Ask all workers to restart what they run of a connector."""

    @abstractmethod
    def put_logger_level(self, namespace: str, level: str) -> None:
        """Ask all workers to change a logger's level."""
