"""The offsets topic: how far sources have been read (spec connect B.3, KafkaOffsetBackingStore)."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import structlog

from mm2.connect.api import ConnectError
from mm2.connect.converters import OffsetJson
from mm2.connect.stores.internal_log import InternalLog
from mm2.connect.stores.internal_topic import InternalTopic
from mm2.kafka.cluster import Cluster
from mm2.kafka.errors import KafkaFailure

log = structlog.get_logger(__name__)

_AGAIN_S = 1.0


class OffsetFold:
    """Latest value per key, and an index of each connector's partitions. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[bytes, bytes] = {}
        self._partitions: dict[str, dict[bytes, dict[str, Any]]] = {}

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Take in one record."""
        if key is None:
            return
        named = OffsetJson.parse_key(key)
        if named is None:
            log.warning("offset record with a foreign key", key=repr(key[:200]))
        with self._lock:
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = value
            if named is None:
                return
            connector, partition = named
            known = self._partitions.setdefault(connector, {})
            if value is None:
                known.pop(key, None)
            else:
                known[key] = partition

    def offset(self, connector: str, partition: Mapping[str, Any]) -> dict[str, Any] | None:
        """The offset of a partition, None when there is none. Raises ConnectError when it cannot be read.

        Java finds offsets by the bytes of their key. Somebody else may have written the same map in another order,
        so where the bytes lead nowhere the parsed maps are compared.
        """
        key = OffsetJson.key(connector, partition)
        with self._lock:
            value = self._values.get(key)
            if value is None:
                wanted = dict(partition)
                for other, candidate in self._partitions.get(connector, {}).items():
                    if candidate == wanted:
                        value = self._values.get(other)
                        break
        return OffsetJson.parse_value(value)

    def partitions(self, connector: str) -> list[dict[str, Any]]:
        """All partitions for which a connector has an offset."""
        with self._lock:
            return [dict(partition) for partition in self._partitions.get(connector, {}).values()]


class OffsetStore:
    """Source offsets of all connectors of a worker. Thread-safe.

    ``read_committed``: offsets count only when the transaction they were written in is committed; with exactly-once the
    tasks write them by themselves, together with their records.
    """

    def __init__(
        self, cluster: Cluster, topic: InternalTopic, *, start_timeout_s: float, read_committed: bool = False
    ) -> None:
        self._fold = OffsetFold()
        self._log = InternalLog(
            cluster,
            topic,
            on_record=lambda record: self._fold.apply(record.key, record.value),
            start_timeout_s=start_timeout_s,
            read_committed=read_committed,
        )

    @property
    def topic(self) -> str:
        """Name of the offsets topic."""
        return self._log.name

    def start(self) -> None:
        """Create or check the topic and read all of it. Raises ConnectError or KafkaFailure."""
        self._log.start()

    def stop(self) -> None:
        """End reading and give up writes under way."""
        self._log.stop()

    def offsets(
        self, connector: str, partitions: Sequence[Mapping[str, Any]], timeout_s: float
    ) -> list[dict[str, Any] | None]:
        """Read the topic to its end, then look up. Raises ConnectError when it cannot be read in ``timeout_s``."""
        self._read_to_end(timeout_s)
        return [self._fold.offset(connector, partition) for partition in partitions]

    def partitions(self, connector: str, timeout_s: float) -> list[dict[str, Any]]:
        """Read to the end, then list the partitions for which a connector has an offset."""
        self._read_to_end(timeout_s)
        return self._fold.partitions(connector)

    def _read_to_end(self, timeout_s: float) -> None:
        try:
            self._log.read_to_end(timeout_s)
        except KafkaFailure as failure:
            raise ConnectError(
                f"The source offsets in topic {self._log.name} of cluster {self._log.cluster.name} cannot be read: {failure}"
            ) from failure

    def write(
        self, connector: str, offsets: Iterable[tuple[Mapping[str, Any], Mapping[str, Any] | None]], timeout_s: float
    ) -> None:
        """Write offsets (None removes one) and wait for the acks. Raises ConnectError.

        After a failure it is unknown which were written; writing the same or newer ones again is right.
        """
        records = [(OffsetJson.key(connector, partition), OffsetJson.value(offset)) for partition, offset in offsets]
        try:
            self._log.send_all(records, timeout_s=timeout_s)
        except KafkaFailure as failure:
            raise ConnectError(
                f"Source offsets of connector {connector} were not written to topic {self._log.name} of cluster "
                f"{self._log.cluster.name}: {failure}"
            ) from failure


class ConnectorOffsetReader:
    """The offset reader of one task: the store seen through its connector's name."""

    def __init__(self, store: OffsetStore, connector: str, *, timeout_s: float = 60.0) -> None:
        self._store = store
        self._connector = connector
        self._timeout_s = timeout_s
        self._closed = threading.Event()

    def offsets(self, partitions: Iterable[Mapping[str, Any]]) -> list[dict[str, Any] | None]:
        """See :class:`mm2.connect.api.OffsetReader`. Waits for a topic that cannot be read at the moment, as Java does."""
        wanted = list(partitions)
        while True:
            if self._closed.is_set():
                raise ConnectError(
                    "The offset reader is closed: the task was cancelled because it did not stop in time"
                )
            try:
                found = self._store.offsets(self._connector, wanted, self._timeout_s)
            except ConnectError as error:
                cause = error.__cause__
                if not isinstance(cause, KafkaFailure) or not cause.retriable or self._closed.is_set():
                    raise
                log.warning("source offsets cannot be read, trying on", connector=self._connector, reason=str(error))
                self._closed.wait(_AGAIN_S)
                continue
            if self._closed.is_set():
                raise ConnectError("The offset reader was closed while offsets were read: the task was cancelled")
            return found

    def close(self) -> None:
        """Make every use from now on fail; for cancelled tasks."""
        self._closed.set()
