"""The offsets of one source connector, for reading and changing them from outside of its tasks (KIP-875)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from mm2.connect.api import ConnectError
from mm2.connect.runtime.exactly_once import task_transactional_id
from mm2.connect.runtime.worker import Worker
from mm2.connect.stores.config_state import ConnectorTaskId
from mm2.connect.stores.internal_topic import InternalTopic
from mm2.connect.stores.kafka_offset_store import ConnectorOffsetStore, KafkaOffsetStore, own_topic
from mm2.connect.stores.offset_store import OffsetStore, SourceOffset
from mm2.kafka.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.records.record import Record
from mm2.kafka.settings import ClientSettings
from mm2.kafka.transactions import TransactionalProducer

OWN_TOPIC: Final = "offsets.storage.topic"
_START_S: Final = 60.0


class StoredOffsets:
    """Offsets in the worker's or the connector's offset store.

    ``writer`` writes them in a transaction, as the tasks do with exactly-once support. It has the transactional id of
    the first task, so a transaction that this task left open is aborted.
    """

    def __init__(self, store: OffsetStore, connector: str, writer: TransactionalProducer | None = None) -> None:
        self._store = store
        self._connector = connector
        self._writer = writer

    def all(self, timeout_s: float) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Every partition with its offset. Raises ConnectError."""
        return self._store.all_offsets(self._connector, timeout_s)

    def write(self, offsets: Sequence[SourceOffset], timeout_s: float) -> None:
        """Store these offsets; returns when they are durable. Raises ConnectError.

        None removes an offset under every key that it currently has.
        """
        deadline = time.monotonic() + timeout_s
        if self._writer is None:
            self._store.refresh(timeout_s)
            self._store.write(self._connector, offsets, _left(deadline))
            return
        try:
            # Initialize first: a transaction that a task left open would block the reader.
            self._writer.init()
            self._store.refresh(_left(deadline))
            self._store.before_commit(self._connector, offsets, _left(deadline))
            records = [Record(key, value) for key, value in self._store.records(self._connector, offsets)]
            if not records:
                return
            self._writer.begin()
            self._writer.send(self._store.topic, records, timeout_s=_left(deadline))
            self._writer.commit()
        except KafkaFailure as failure:
            raise ConnectError(
                f"Failed to modify offsets for source connector {self._connector}: {failure}"
            ) from failure
        self._store.after_commit(self._connector, offsets)


class KafkaSourceOffsets:
    """Opens the offsets of connectors of a distributed worker.

    Reads those in its ``store``; for a connector with its own offsets topic, that topic takes precedence (see
    `own_topic`).
    """

    def __init__(self, worker: Worker, store: OffsetStore, *, cluster_name: str) -> None:
        self._worker = worker
        self._store = store
        self._cluster_name = cluster_name

    @contextmanager
    def __call__(self, name: str, props: Mapping[str, str]) -> Iterator[StoredOffsets]:
        """Its clients are closed at the end of the with-block. Raises ConnectError or KafkaFailure."""
        first = ConnectorTaskId(name, 0)
        with ExitStack() as closing:
            producer_props = self._worker.producer_props(first, props)
            cluster = Cluster(
                ClientSettings.from_props({**producer_props, "client.id": f"connector-offset-producer-{name}"}),
                name=self._cluster_name,
            )
            closing.callback(cluster.close)
            store = self._store
            servers = {server.strip() for server in producer_props["bootstrap.servers"].split(",")}
            topic = own_topic(
                (props.get(OWN_TOPIC) or "").strip(),
                store.topic,
                elsewhere=servers != set(self._worker.config.list("bootstrap.servers")),
                exactly_once=self._worker.exactly_once,
            )
            if topic is not None:
                consumer_props = self._worker.clients.offsets_consumer(
                    name, props, self._worker.connector_class(props), exactly_once=self._worker.exactly_once
                )
                own = KafkaOffsetStore(
                    cluster,
                    InternalTopic.of_connector(self._worker.config, topic),
                    start_timeout_s=_START_S,
                    read_committed=consumer_props["isolation.level"].strip().lower() == "read_committed",
                )
                store = ConnectorOffsetStore(own, self._store)
                store.start()
                closing.callback(store.stop)
            writer = None
            if self._worker.exactly_once:
                group = self._worker.config.str("group.id")
                writer = TransactionalProducer(cluster, task_transactional_id(group, first))
                closing.callback(writer.close)
            yield StoredOffsets(store, name, writer)


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
