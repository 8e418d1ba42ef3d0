"""The config topic: write permissions, and propagation to readers (KafkaConfigBackingStore)."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from mm2.codec import encode
from mm2.connect.api import ConnectError
from mm2.connect.request_signing import SessionKey
from mm2.connect.stores import internal_json
from mm2.connect.stores.config_state import (
    FENCING_PREFIX,
    LOGGER_PREFIX,
    RESTART_PREFIX,
    SESSION_KEY,
    ClusterConfigState,
    ConfigFold,
    ConfigListener,
    ConfigRecord,
    Props,
    RestartRequest,
    TargetState,
    commit_record,
    connector_records,
    removal_records,
    target_state_record,
    task_records,
)
from mm2.connect.stores.config_store import ConfigStore, PrivilegedWriteError
from mm2.connect.stores.internal_topic import InternalLog, InternalTopic
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.producer.transactions import TransactionalProducer
from mm2.kafka.records.record import Record

#: Time limit of a write, including reading it back.
WRITE_BUDGET_S = 30.0


#: For this long, a leader that dies during a write blocks readers.
_TRANSACTION_TIMEOUT_MS = 10_000
#: Time limit for claiming the write privileges.
_CLAIM_S = 15.0


@dataclass(frozen=True)
class LeaderWrites:
    """Settings for transactional writes of the leader, which fence older leaders (exactly.once.source.support)."""

    #: Separate connections, as in Java (client id ``…configs-leader``).
    cluster: Cluster
    transactional_id: str


class KafkaConfigStore(ConfigStore):
    """Reads are served from memory; writes return when they have been read back. Thread-safe.

    Only the group's leader writes connectors, tasks, fencing, restarts and the session key; any worker may write target
    states and logger levels. With ``leader_writes`` the leader's writes require `claim_write_privileges` first, and
    raise PrivilegedWriteError once another leader has claimed them.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: InternalTopic,
        *,
        start_timeout_s: float,
        read_committed: bool = False,
        leader_writes: LeaderWrites | None = None,
    ) -> None:
        self._leader_writes = leader_writes
        self._leader_lock = threading.Lock()
        self._leader_producer: TransactionalProducer | None = None
        self._fold = ConfigFold()
        self._log = InternalLog(
            cluster,
            topic,
            on_record=lambda record: self._fold.apply(record.offset, record.key, record.value),
            start_timeout_s=start_timeout_s,
            single_partition=True,
            read_committed=read_committed,
        )

    def start(self, listener: ConfigListener) -> None:
        """Create or check the topic, read all of it, then pass every change to ``listener``.

        Raises ConnectError or KafkaFailure.
        """
        self._log.start()
        self._fold.start_listening(listener)

    def stop(self) -> None:
        """Stop reading and abort writes in progress."""
        producer = self._leader_producer
        if producer is not None:
            producer.close()
        self._log.stop()

    def snapshot(self) -> ClusterConfigState:
        """The state as read so far."""
        return self._fold.snapshot()

    def refresh(self, timeout_s: float) -> None:
        """Read to the current end. Raises KafkaFailure when that takes longer than ``timeout_s``."""
        self._log.read_to_end(timeout_s)

    def is_pending_fencing(self, connector: str) -> bool:
        """Whether a connector has task configs whose predecessors have not been fenced yet, as read so far."""
        return self._fold.is_pending_fencing(connector)

    def claim_write_privileges(self) -> None:
        """Become the only leader that can write; does nothing if it already is, or without transactions.

        Raises ConnectError. Takes up to 15 s when the cluster responds slowly.
        """
        if self._leader_writes is None:
            return
        with self._leader_lock:
            if self._leader_producer is not None:
                return
            producer = TransactionalProducer(
                self._leader_writes.cluster,
                self._leader_writes.transactional_id,
                _TRANSACTION_TIMEOUT_MS,
                patience_s=_CLAIM_S,
            )
            self._leader_producer = producer  # so that stop() can end the wait
            try:
                if self._log.stopping.is_set():
                    producer.close()
                producer.init()
            except KafkaFailure as failure:
                self._leader_producer = None
                raise ConnectError(
                    f"The leader cannot claim write privileges for the config topic {self._log.name} of cluster "
                    f"{self._log.cluster.name}: {failure}"
                ) from failure

    def put_connector_config(self, connector: str, props: Props, target_state: TargetState | None = None) -> None:
        self._write(f"connector {connector}", connector_records(connector, props, target_state))

    def remove_connector_config(self, connector: str) -> None:
        self._write(f"the removal of connector {connector}", removal_records(connector))

    def put_task_configs(self, connector: str, configs: Sequence[Props]) -> None:
        """The configs take effect with the commit record, which is written when the others have been read back."""
        deadline = time.monotonic() + WRITE_BUDGET_S
        what = f"the task configs of connector {connector}"
        self._read_back(what, deadline)
        if configs:
            self._send(what, task_records(connector, configs), deadline)
            self._read_back(what, deadline)
        self._send(what, [commit_record(connector, len(configs))], deadline)
        self._read_back(what, deadline)

    def put_task_count(self, connector: str, count: int) -> None:
        self._write(f"the task count of connector {connector}", [(FENCING_PREFIX + connector, {"task-count": count})])

    def put_target_state(self, connector: str, state: TargetState) -> None:
        self._write(
            f"the target state of connector {connector}", [target_state_record(connector, state)], privileged=False
        )

    def put_session_key(self, key: SessionKey) -> None:
        self._write("the session key", [(SESSION_KEY, encode(key))])

    def put_restart_request(self, request: RestartRequest) -> None:
        self._write(
            f"the restart request for connector {request.connector}",
            [(RESTART_PREFIX + request.connector, encode(request))],
        )

    def put_logger_level(self, namespace: str, level: str) -> None:
        self._write(
            f"the level of logger {namespace}",
            [(LOGGER_PREFIX + namespace, {"level": level})],
            privileged=False,
        )

    def _write(self, what: str, batch: Sequence[ConfigRecord], *, privileged: bool = True) -> None:
        deadline = time.monotonic() + WRITE_BUDGET_S
        if privileged:
            self._send(what, batch, deadline)
            self._read_back(what, deadline)
            return
        try:
            self._log.send_all(_encoded(batch), timeout_s=_remaining_s(deadline))
        except KafkaFailure as failure:
            raise self._failed(what, failure) from failure

    def _send(self, what: str, batch: Sequence[ConfigRecord], deadline: float) -> None:
        """Write as the leader."""
        if self._leader_writes is not None:
            self._send_in_transaction(what, batch, deadline)
            return
        try:
            self._log.send_all(_encoded(batch), timeout_s=_remaining_s(deadline))
        except KafkaFailure as failure:
            raise self._failed(what, failure) from failure

    def _send_in_transaction(self, what: str, batch: Sequence[ConfigRecord], deadline: float) -> None:
        with self._leader_lock:
            producer = self._leader_producer
            if producer is None:
                raise PrivilegedWriteError(
                    f"Failed to write {what} to the config topic {self._log.name} of cluster {self._log.cluster.name}: "
                    "this worker has not claimed the right to write it, or has lost it to another leader"
                )
            written = [Record(key, value) for key, value in _encoded(batch)]
            try:
                producer.begin()
                producer.send(self._log.name, written, 0, timeout_s=_remaining_s(deadline))
                producer.commit()
            except KafkaFailure as failure:
                # It is unknown whether the records were written; the next claim aborts the transaction if it is still
                # open.
                self._leader_producer = None
                producer.close()
                raise PrivilegedWriteError(str(self._failed(what, failure))) from failure

    def _read_back(self, what: str, deadline: float) -> None:
        try:
            self._log.read_to_end(_remaining_s(deadline))
        except KafkaFailure as failure:
            raise self._failed(what, failure) from failure

    def _failed(self, what: str, failure: KafkaFailure) -> ConnectError:
        return ConnectError(
            f"Failed to write {what} to the config topic {self._log.name} of cluster {self._log.cluster.name}: {failure}"
        )


def _encoded(batch: Sequence[ConfigRecord]) -> list[tuple[bytes, bytes | None]]:
    return [(key.encode("utf-8"), internal_json.encode(value)) for key, value in batch]


def _remaining_s(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
