"""The config topic: who writes what to it, and how its readers learn (spec connect B.1, KafkaConfigBackingStore)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from mm2.connect import internal_json
from mm2.connect.api import ConnectError
from mm2.connect.sessions import SessionKey
from mm2.connect.stores import config_fold as fold
from mm2.connect.stores.config_state import ClusterConfigState, Props, RestartRequest, TargetState
from mm2.connect.stores.internal_log import InternalLog
from mm2.connect.stores.internal_topic import InternalTopic
from mm2.kafka.cluster import Cluster
from mm2.kafka.errors import KafkaFailure

#: How long one write may take altogether, its reading back included.
WRITE_BUDGET_S = 30.0


class ConfigStore:
    """Reads are served from memory; writes return when they have been read back. Thread-safe.

    Only the group's leader writes connectors, tasks, restarts and the session key; any worker may write target states.
    """

    def __init__(self, cluster: Cluster, topic: InternalTopic, *, start_timeout_s: float) -> None:
        self._fold = fold.ConfigFold()
        self._log = InternalLog(
            cluster,
            topic,
            on_record=lambda record: self._fold.apply(record.offset, record.key, record.value),
            start_timeout_s=start_timeout_s,
            single_partition=True,
        )

    def start(self, listener: fold.ConfigListener) -> None:
        """Create or check the topic, read all of it, then tell ``listener`` about every change.

        Raises ConnectError or KafkaFailure.
        """
        self._log.start()
        self._fold.start_listening(listener)

    def stop(self) -> None:
        """End reading and give up writes under way."""
        self._log.stop()

    def snapshot(self) -> ClusterConfigState:
        """The state as far as read."""
        return self._fold.snapshot()

    def refresh(self, timeout_s: float) -> None:
        """Read to the present end. Raises KafkaFailure when that takes longer than ``timeout_s``."""
        self._log.read_to_end(timeout_s)

    def put_connector_config(self, connector: str, props: Props, target_state: TargetState | None = None) -> None:
        """Create or replace a connector; with ``target_state`` its state is written first, so it never runs in another."""
        records: list[tuple[str, Any]] = []
        if target_state is not None:
            records.append((fold.TARGET_STATE_PREFIX + connector, _target_state(target_state)))
        records.append((fold.CONNECTOR_PREFIX + connector, _properties(props)))
        self._write(f"connector {connector}", records)

    def remove_connector_config(self, connector: str) -> None:
        """Delete a connector and with it its tasks."""
        self._write(
            f"the removal of connector {connector}",
            [(fold.CONNECTOR_PREFIX + connector, None), (fold.TARGET_STATE_PREFIX + connector, None)],
        )

    def put_task_configs(self, connector: str, configs: Sequence[Props]) -> None:
        """Replace the configurations of all tasks of a connector. They take effect together, at the commit record."""
        deadline = time.monotonic() + WRITE_BUDGET_S
        what = f"the task configs of connector {connector}"
        self._read_back(what, deadline)
        if configs:
            tasks = [(f"{fold.TASK_PREFIX}{connector}-{n}", _properties(props)) for n, props in enumerate(configs)]
            self._send(what, tasks, deadline)
            self._read_back(what, deadline)
        self._send(what, [(fold.COMMIT_PREFIX + connector, {"tasks": len(configs)})], deadline)
        self._read_back(what, deadline)

    def put_target_state(self, connector: str, state: TargetState) -> None:
        """Say what state a connector shall be in."""
        self._write(
            f"the target state of connector {connector}",
            [(fold.TARGET_STATE_PREFIX + connector, _target_state(state))],
            read_back=False,
        )

    def put_session_key(self, key: SessionKey) -> None:
        """Distribute a new key for signed requests."""
        self._write("the session key", [(fold.SESSION_KEY, key.to_json())])

    def put_restart_request(self, request: RestartRequest) -> None:
        """Ask all workers to restart what they run of a connector."""
        self._write(
            f"the restart request for connector {request.connector}",
            [(fold.RESTART_PREFIX + request.connector, request.to_json())],
        )

    def put_logger_level(self, namespace: str, level: str) -> None:
        """Ask all workers to change a logger's level."""
        self._write(
            f"the level of logger {namespace}", [(fold.LOGGER_PREFIX + namespace, {"level": level})], read_back=False
        )

    def _write(self, what: str, records: Sequence[tuple[str, Any]], *, read_back: bool = True) -> None:
        deadline = time.monotonic() + WRITE_BUDGET_S
        self._send(what, records, deadline)
        if read_back:
            self._read_back(what, deadline)

    def _send(self, what: str, records: Sequence[tuple[str, Any]], deadline: float) -> None:
        encoded = [(key.encode("utf-8"), internal_json.encode(value)) for key, value in records]
        try:
            self._log.send_all(encoded, timeout_s=max(0.0, deadline - time.monotonic()))
        except KafkaFailure as failure:
            raise self._failed(what, failure) from failure

    def _read_back(self, what: str, deadline: float) -> None:
        try:
            self._log.read_to_end(max(0.0, deadline - time.monotonic()))
        except KafkaFailure as failure:
            raise self._failed(what, failure) from failure

    def _failed(self, what: str, failure: KafkaFailure) -> ConnectError:
        return ConnectError(
            f"Failed to write {what} to the config topic {self._log.name} of cluster {self._log.cluster.name}: {failure}"
        )


def _properties(props: Props) -> dict[str, Mapping[str, str | None]]:
    return {"properties": internal_json.hash_ordered(props)}


def _target_state(state: TargetState) -> dict[str, str]:
    # Workers older than KIP-875 know no STOPPED and read only the first field.
    old = TargetState.PAUSED if state is TargetState.STOPPED else state
    return {"state": old.value, "state.v2": state.value}
