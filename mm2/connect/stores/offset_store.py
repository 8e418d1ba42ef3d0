"""Interface of the source offset store, and its implementations in memory and in a file.

Java's OffsetBackingStore, MemoryOffsetBackingStore and FileOffsetBackingStore.

The file is a serialized ``HashMap<byte[], byte[]>``. A general reader of Java objects (javaobj-py3) creates any
class that a file names. This module reads and writes a single shape and rejects everything else. The file can be used
by Java and by this project in turn.

==== the stream (Java Object Serialization Specification, 6.4.2) ====
ac ed 00 05                                        magic, version
73 72 <java.util.HashMap, its UID> 03 0002 F loadFactor I threshold 78 70    an object, its class, no superclass
<loadFactor: 4 bytes> <threshold: 4 bytes>
77 08 <buckets: 4 bytes> <size: 4 bytes>           what HashMap.writeObject adds
size times a key and a value, each one of
    75 72 <[B, its UID> 02 0000 78 70 <length: 4 bytes> <bytes>      an array, class described in full: the first one
    75 71 <handle of the class> <length: 4 bytes> <bytes>            an array
    71 <handle of an array seen before>
    70                                                               null
78                                                 the end of the object
======================================================================
"""

from __future__ import annotations

import os
import stat
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from mm2.connect.api import ConnectError
from mm2.connect.stores.offset_table import OffsetJson, OffsetTable
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.readers.log import LogProgress

log = structlog.get_logger(__name__)

#: How long the end of a task, or of a change of offsets, waits for `OffsetStore.flush`.
FLUSH_S = 3.0

_RETRY_S = 1.0
_KEY = "offset.storage.file.filename"

# Java Object Serialization, see above.
_HEADER = bytes.fromhex("aced0005")
_OBJECT, _ARRAY, _CLASS, _REFERENCE, _NULL, _BLOCK, _END = 0x73, 0x75, 0x72, 0x71, 0x70, 0x77, 0x78
_HASH_MAP = b"\x00\x11java.util.HashMap\x05\x07\xda\xc1\xc3\x16\x60\xd1\x03\x00\x02F\x00\x0aloadFactorI\x00\x09threshold\x78\x70"
_BYTE_ARRAY = b"\x00\x02[B\xac\xf3\x17\xf8\x06\x08\x54\xe0\x02\x00\x00\x78\x70"
_FIRST_HANDLE = 0x7E0000
#: Handles 0 and 1 are those of the class HashMap and of the map.
_ARRAY_CLASS_HANDLE = _FIRST_HANDLE + 2
_INT = struct.Struct(">i")
_LOAD_FACTOR = 0.75

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

    def flush(self, timeout_s: float) -> bool:
        """Wait for what a write leaves to be done after it has returned; False after ``timeout_s``. Before `stop`."""
        return True

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


class FileOffsetStore(MemoryOffsetStore):
    """Loads the file on start and replaces it on every write; a crash leaves either the old or the new file.

    A missing or empty file means that there are no offsets yet. Any other file that cannot be read completely is
    rejected, where Java would silently start without offsets.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def start(self) -> None:
        """Raises ConnectError when the file exists but cannot be read or parsed, or is a link of another user."""
        if self._path.is_symlink() and self._path.lstat().st_uid not in {0, os.geteuid()}:
            raise ConnectError(
                f"The file {self._path} ({_KEY}) is a link of another user: remove it, or set another file"
            )
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
            new.unlink(missing_ok=True)
            # In a folder of several users, such as /tmp, it may have been created by another one, or be a link.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with os.fdopen(os.open(new, flags, 0o666), "wb") as file:
                if target.exists():
                    os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
                file.write(dump_map(values))
                file.flush()
                os.fsync(file.fileno())
            new.replace(target)
            _sync_folder(target.parent)
        except OSError as error:
            raise ConnectError(
                f"Source offsets were not written to {self._path} ({_KEY}): {error.strerror or error}"
            ) from error


class JavaFileError(ValueError):
    """The data is not a serialized map of byte arrays; the text is the reason, as a part of a sentence."""


def load_map(data: bytes) -> dict[bytes | None, bytes | None]:
    """The map in a file. Raises JavaFileError for any other, truncated or overlong data."""
    return _JavaStreamReader(data).whole_map()


def dump_map(values: Mapping[bytes, bytes]) -> bytes:
    """A map as Java would write it (the order of entries is free; Java's own follows object addresses)."""
    buckets = 16
    while len(values) > buckets * _LOAD_FACTOR:
        buckets *= 2
    out = bytearray(_HEADER)
    out += bytes([_OBJECT, _CLASS]) + _HASH_MAP
    out += struct.pack(">fi", _LOAD_FACTOR, int(buckets * _LOAD_FACTOR))
    out += bytes([_BLOCK, 8]) + struct.pack(">ii", buckets, len(values))
    kind = bytes([_CLASS]) + _BYTE_ARRAY
    for pair in values.items():
        for item in pair:
            out.append(_ARRAY)
            out += kind
            out += _INT.pack(len(item))
            out += item
            kind = bytes([_REFERENCE]) + _INT.pack(_ARRAY_CLASS_HANDLE)
    out.append(_END)
    return bytes(out)


class _JavaStreamReader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._class_known = False
        self._arrays: list[bytes] = []

    def whole_map(self) -> dict[bytes | None, bytes | None]:
        self._expect(_HEADER, "it does not begin as a serialised Java object")
        self._expect(bytes([_OBJECT, _CLASS]) + _HASH_MAP, "the object in it is not a java.util.HashMap")
        self._take(8)
        self._expect(bytes([_BLOCK, 8]), "its map has no size")
        self._int()
        size = self._int()
        if size < 0:
            raise JavaFileError(f"its map has the size {size}")
        values = {}
        for _ in range(size):
            key = self._array()
            values[key] = self._array()
        self._expect(bytes([_END]), "its map does not end where it should")
        if self._at != len(self._data):
            raise JavaFileError(f"{len(self._data) - self._at} bytes follow its end")
        return values

    def _array(self) -> bytes | None:
        (kind,) = self._take(1)
        if kind == _NULL:
            return None
        if kind == _REFERENCE:
            place = self._int() - _ARRAY_CLASS_HANDLE - 1
            if not 0 <= place < len(self._arrays):
                raise JavaFileError(f"it contains an unknown reference at byte {self._at}")
            return self._arrays[place]
        if kind != _ARRAY:
            raise JavaFileError(f"its map contains something other than byte arrays at byte {self._at}")
        if self._class_known:
            self._expect(
                bytes([_REFERENCE]) + _INT.pack(_ARRAY_CLASS_HANDLE),
                "its map contains arrays of another type",
            )
        else:
            self._expect(bytes([_CLASS]) + _BYTE_ARRAY, "its map contains arrays of another type")
            self._class_known = True
        length = self._int()
        if length < 0:
            raise JavaFileError(f"it has an array of {length} bytes at byte {self._at}")
        array = self._take(length)
        self._arrays.append(array)
        return array

    def _int(self) -> int:
        return int(_INT.unpack(self._take(4))[0])

    def _expect(self, wanted: bytes, otherwise: str) -> None:
        if self._take(len(wanted)) != wanted:
            raise JavaFileError(otherwise)

    def _take(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        if len(found) < count:
            raise JavaFileError(f"it is cut off after {len(self._data)} bytes")
        self._at += count
        return found


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
