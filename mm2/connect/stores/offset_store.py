"""Interface of the source offset store (org.apache.kafka.connect.storage.OffsetBackingStore)."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import structlog

from mm2.connect.api import ConnectError
from mm2.connect.stores.offset_json import OffsetJson
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.log import LogProgress

log = structlog.get_logger(__name__)

_AGAIN_S = 1.0

#: A source partition with its offset; None means "no offset" and removes an existing one.
SourceOffset = tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]


class OffsetStore(ABC):
    """Source offsets by connector and source partition, both flat maps. Thread-safe."""

    @property
    def topic(self) -> str:
        """The topic for a connector's offsets; empty when they are not stored in Kafka."""
        return ""

    @property
    def progress(self) -> LogProgress | None:
        """The progress of `start`; None when there is nothing to wait for."""
        return None

    @abstractmethod
    def start(self) -> None:
        """Load the stored offsets. Raises ConnectError or KafkaFailure."""

    @abstractmethod
    def stop(self) -> None:
        """Release all resources; writes in progress are aborted."""

    @abstractmethod
    def offsets(
        self, connector: str, partitions: Sequence[Mapping[str, Any]], timeout_s: float
    ) -> list[dict[str, Any] | None]:
        """The offset of each partition, None where there is none; includes all writes before this call.

        Raises ConnectError when they cannot be determined within ``timeout_s``, never returns an empty result instead.
        """

    @abstractmethod
    def all_offsets(self, connector: str, timeout_s: float) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Every partition with an offset of a connector, and that offset. Raises ConnectError like `offsets`."""

    @abstractmethod
    def write(self, connector: str, offsets: Iterable[SourceOffset], timeout_s: float) -> None:
        """Store offsets and return when they are durable. Raises ConnectError.

        After a failure it is unknown which ones were stored; it is safe to store the same or newer ones again.
        """

    def refresh(self, timeout_s: float) -> None:
        """Read all writes before this call. Raises ConnectError when that takes longer than ``timeout_s``."""
        return

    def records(self, connector: str, offsets: Iterable[SourceOffset]) -> list[tuple[bytes, bytes | None]]:
        """Keys and values of offsets in `topic`, for tasks that write them in their own transactions.

        Raises ConnectError when a partition or an offset is not flat.
        """
        return [(OffsetJson.key(connector, partition), OffsetJson.value(offset)) for partition, offset in offsets]

    def before_commit(self, connector: str, offsets: Iterable[SourceOffset], timeout_s: float) -> None:
        """Call this before committing a transaction that contains `records` of these offsets. Raises ConnectError."""
        return

    def after_commit(self, connector: str, offsets: Iterable[SourceOffset]) -> None:
        """Call this after the commit; returns immediately."""
        return

    def partitions(self, connector: str, timeout_s: float) -> list[dict[str, Any]]:
        """The partitions of `all_offsets`."""
        return [partition for partition, _ in self.all_offsets(connector, timeout_s)]

    def reset(self, connector: str, timeout_s: float) -> int:
        """Remove every offset of a connector; returns how many there were. Raises ConnectError."""
        known = self.partitions(connector, timeout_s)
        self.write(connector, [(partition, None) for partition in known], timeout_s)
        return len(known)


class ConnectorOffsetReader:
    """The offset reader of one task, limited to its connector."""

    def __init__(self, store: OffsetStore, connector: str, *, timeout_s: float = 60.0) -> None:
        self._store = store
        self._connector = connector
        self._timeout_s = timeout_s
        self._closed = threading.Event()

    def offsets(self, partitions: Iterable[Mapping[str, Any]]) -> list[dict[str, Any] | None]:
        """See :class:`mm2.connect.api.OffsetReader`. As in Java, waits while the topic cannot be read."""
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
        """Make all further calls fail; for cancelled tasks."""
        self._closed.set()
