"""All offsets of one source connector, looked at and changed from outside while it is stopped (KIP-875; spec connect D.11)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from mm2.connect.api import ConnectError
from mm2.connect.stores.offset_store import OffsetStore, SourceOffset
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.records.record import Record
from mm2.kafka.transactions import TransactionalProducer


class StoredOffsets:
    """``store`` is where the connector's tasks read and write; it has been started.

    ``producer`` has the transactional id of the connector's first task, where tasks write in transactions: taking that id
    over ends whatever a task that should not run any more has open.
    """

    def __init__(self, store: OffsetStore, connector: str, producer: TransactionalProducer | None = None) -> None:
        self._store = store
        self._connector = connector
        self._producer = producer

    def all(self, timeout_s: float) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Every partition with its offset. Raises ConnectError when the store cannot be read to its end."""
        return self._store.all_offsets(self._connector, timeout_s)

    def write(self, offsets: Sequence[SourceOffset], timeout_s: float) -> None:
        """Store these, None removing one; safe when it returns. Raises ConnectError."""
        if self._producer is None:
            self._store.write(self._connector, offsets, timeout_s)
            return
        deadline = time.monotonic() + timeout_s
        # Up to date, so that a partition is removed under every key that says the same.
        self._store.offsets(self._connector, [], timeout_s)
        batch = [Record(key, value) for key, value in self._store.records(self._connector, offsets)]
        self._store.before_commit(self._connector, offsets, max(0.0, deadline - time.monotonic()))
        try:
            self._producer.init()
            self._producer.begin()
            self._producer.send(self._store.topic, batch, timeout_s=max(0.0, deadline - time.monotonic()))
            self._producer.commit()
        except KafkaFailure as failure:
            raise ConnectError(
                f"Source offsets of connector {self._connector} were not written to topic {self._store.topic}: {failure}"
            ) from failure
        self._store.after_commit(self._connector, offsets)
