"""Interface of the source offset store, and its implementations in memory and in a file.

Java's OffsetBackingStore, MemoryOffsetBackingStore and FileOffsetBackingStore; the file has Java's format.
"""

from __future__ import annotations

import os
import stat
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from mm2.connect.api import ConnectError
from mm2.connect.stores.java_maps import JavaFileError, dump_map, load_map
from mm2.connect.stores.offset_table import OffsetJson, OffsetTable
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.log import LogProgress

log = structlog.get_logger(__name__)

_RETRY_S = 1.0

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
                log.warning("source offsets cannot be read, retrying", connector=self._connector, reason=str(error))
                self._closed.wait(_RETRY_S)
                continue
            if self._closed.is_set():
                raise ConnectError("The offset reader was closed while offsets were read: the task was cancelled")
            return found

    def close(self) -> None:
        """Make all further calls fail; for cancelled tasks."""
        self._closed.set()


class MemoryOffsetStore(OffsetStore):
    """Offsets of a standalone worker. Subclasses override `_save` for persistence."""

    def __init__(self) -> None:
        self._table = OffsetTable()
        self._writing = threading.Lock()

    def start(self) -> None:
        return

    def stop(self) -> None:
        return

    def offsets(
        self, connector: str, partitions: Sequence[Mapping[str, Any]], timeout_s: float
    ) -> list[dict[str, Any] | None]:
        return [self._table.offset(connector, partition) for partition in partitions]

    def all_offsets(self, connector: str, timeout_s: float) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        return self._table.all_offsets(connector)

    def write(self, connector: str, offsets: Iterable[SourceOffset], timeout_s: float) -> None:
        values: dict[bytes, bytes | None] = {}
        for partition, offset in offsets:
            if offset is None:
                values.update(dict.fromkeys(self._table.keys_of(connector, partition)))
            else:
                values[OffsetJson.key(connector, partition)] = OffsetJson.value(offset)
        if not values:
            return
        with self._writing:
            whole = self._table.snapshot()
            for key, value in values.items():
                if value is None:
                    whole.pop(key, None)
                else:
                    whole[key] = value
            # Save first: readers must not see an offset that would be unknown after a restart.
            self._save(whole)
            self._table.update(values)

    def _save(self, values: Mapping[bytes, bytes]) -> None:
        return


_KEY = "offset.storage.file.filename"


class FileOffsetStore(MemoryOffsetStore):
    """Loads the file on start and replaces it on every write; a crash leaves either the old or the new file.

    A missing or empty file means that there are no offsets yet. Any other file that cannot be read completely is
    rejected, where Java would silently start without offsets.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def start(self) -> None:
        """Raises ConnectError when the file exists but cannot be read or parsed."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            data = b""
        except OSError as error:
            raise ConnectError(f"The offsets in {self._path} ({_KEY}) cannot be read: {error.strerror}") from error
        try:
            values = load_map(data) if data else {}
        except JavaFileError as error:
            raise ConnectError(
                f"The file {self._path} ({_KEY}) is not an offsets file of a standalone worker: {error}. "
                "Set another file, or remove this one to read all sources from the beginning"
            ) from error
        self._table.update({key: value for key, value in values.items() if key is not None and value is not None})
        log.info("source offsets loaded", file=str(self._path), offsets=len(self._table))

    def _save(self, values: Mapping[bytes, bytes]) -> None:
        try:
            target = self._path.resolve()  # a symbolic link is kept: its target is replaced
            new = target.with_name(f".{target.name}.new")
            with new.open("wb") as file:
                file.write(dump_map(values))
                file.flush()
                os.fsync(file.fileno())
            if target.exists():
                new.chmod(stat.S_IMODE(target.stat().st_mode))
            new.replace(target)
            _sync_folder(target.parent)
        except OSError as error:
            raise ConnectError(
                f"Source offsets were not written to {self._path} ({_KEY}): {error.strerror or error}"
            ) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
