"""The config store of a standalone worker, not persistent (MemoryConfigBackingStore of Java)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from mm2.connect.api import ConnectError
from mm2.connect.request_signing import SessionKey
from mm2.connect.stores import config_fold as fold
from mm2.connect.stores import config_records as records
from mm2.connect.stores import internal_json
from mm2.connect.stores.config_state import ClusterConfigState, Props, RestartRequest, TargetState
from mm2.connect.stores.config_store import ConfigStore


class MemoryConfigStore(ConfigStore):
    """Folds the records that would be written to the config topic, so both stores follow the same rules.

    The listener is called on the writing thread, before the write returns. As in Java, task counts, session keys,
    restart requests and logger levels are accepted and ignored, because there is only one worker.
    """

    def __init__(self) -> None:
        self._fold = fold.ConfigFold()
        self._lock = threading.RLock()
        self._end = 0

    def start(self, listener: fold.ConfigListener) -> None:
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
        self._write(records.connector(connector, props, target_state))

    def remove_connector_config(self, connector: str) -> None:
        self._write(records.removal(connector))

    def put_task_configs(self, connector: str, configs: Sequence[Props]) -> None:
        self._require(connector)
        self._write([*records.tasks(connector, configs), records.commit(connector, len(configs))])

    def put_task_count(self, connector: str, count: int) -> None:
        return

    def put_target_state(self, connector: str, state: TargetState) -> None:
        self._require(connector)
        self._write([records.target_state(connector, state)])

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
