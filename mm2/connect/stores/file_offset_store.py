"""Source offsets of a standalone worker in a file (FileOffsetBackingStore of Java, in the same format)."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

import structlog

from mm2.connect.api import ConnectError
from mm2.connect.stores.java_file import JavaFileError, dump_map, load_map
from mm2.connect.stores.memory_offset_store import MemoryOffsetStore

log = structlog.get_logger(__name__)

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
                f"The file {self._path} ({_KEY}) holds no source offsets as a standalone worker writes them: {error}. "
                "Name another file, or remove this one to read all sources from their beginning"
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
