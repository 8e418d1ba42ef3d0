"""Follows a file or standard input and creates a record for each line (FileStreamSourceConnector and its task).

Deviations from Java: the position counts bytes. Java counts characters but resumes as if they were bytes, so it reads
some text again after any non-ASCII character. Lines that did not fit into a batch are returned by the next poll, not
only when the file grows.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import structlog

from mm2 import __version__
from mm2.config.configdef import AbstractConfig, ConfigDef, Importance, Type, non_empty
from mm2.connect.api import ConnectError, SourceConnector, SourceRecord, SourceTask, Task
from mm2.connect.data.schema import STRING_SCHEMA
from mm2.connect.files.lines import LineSplitter

log = structlog.get_logger(__name__)

FILENAME: Final = "filename"
POSITION: Final = "position"
_CHUNK_BYTES: Final = 65_536
_WAIT_S: Final = 1.0

CONFIG: Final = (
    ConfigDef()
    .define(
        "file",
        Type.STRING,
        None,
        None,
        Importance.HIGH,
        "Source filename. If not specified, the standard input will be used",
    )
    .define("topic", Type.STRING, validator=non_empty(), importance=Importance.HIGH, doc="The topic to publish data to")
    .define(
        "batch.size",
        Type.INT,
        2000,
        None,
        Importance.LOW,
        "The maximum number of records the source task can read from the file each time it is polled",
    )
)


class FileStreamSourceConnector(SourceConnector):
    """One task, regardless of tasks.max: a file has one reader."""

    def version(self) -> str:
        return __version__

    def start(self, props: dict[str, str]) -> None:
        self._props = props
        log.info("Starting file source connector", file=AbstractConfig(CONFIG, props).get("file") or "standard input")

    def stop(self) -> None:
        return

    def task_class(self) -> type[Task]:
        return FileStreamSourceTask

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        return [dict(self._props)]

    def config(self) -> ConfigDef:
        return CONFIG

    def exactly_once_support(self, props: Mapping[str, str]) -> bool:
        """Exactly-once works for a file that only grows; the position in standard input is not tracked."""
        return bool(AbstractConfig(CONFIG, props).get("file"))

    def alter_offsets(
        self, props: Mapping[str, str], offsets: Sequence[tuple[dict[str, Any], dict[str, Any] | None]]
    ) -> bool:
        """Checks the offsets' form; the task checks whether the positions exist in the file."""
        if not AbstractConfig(CONFIG, props).get("file"):
            raise ConnectError(
                "Offsets cannot be modified if the 'file' configuration is unspecified. This is because stdin is used for input "
                "and offsets are not tracked."
            )
        for partition, offset in offsets:
            if offset is None:
                continue  # any offset may be removed
            if POSITION not in offset:
                raise ConnectError(f"Offset objects should either be null or contain the key '{POSITION}'")
            position = offset[POSITION]
            if not isinstance(position, int) or isinstance(position, bool):
                raise ConnectError(f"The value for the '{POSITION}' key in the offset is expected to be a Long value")
            if position < 0:
                raise ConnectError(f"The value for the '{POSITION}' key in the offset should be a non-negative value")
            if partition is None:
                raise ConnectError("Partition objects cannot be null")
            if FILENAME not in partition:
                raise ConnectError(f"Partition objects should contain the key '{FILENAME}'")
        return True


class FileStreamSourceTask(SourceTask):
    """Keeps the file open: reading continues after a rename, like ``tail -f``. Waits for a missing file."""

    def version(self) -> str:
        return __version__

    def start(self, props: dict[str, str]) -> None:
        config = AbstractConfig(CONFIG, props)
        self._filename: str | None = config.get("file") or None
        self._topic = config.str("topic")
        self._batch_size = config.int("batch.size")
        self._stopping = threading.Event()
        self._lines = LineSplitter()
        self._file: BinaryIO | None = None
        #: After the last line that was returned; None: not tracked.
        self._position: int | None = None
        self._said_missing = False

    def poll(self) -> list[SourceRecord] | None:
        if self._filename is not None and self._file is None and not self._open(self._filename):
            self._stopping.wait(_WAIT_S)
            return None
        records: list[SourceRecord] = []
        while len(records) < self._batch_size and not self._stopping.is_set():
            lines = self._lines.take(self._batch_size - len(records))
            if lines:
                self._append(records, lines)
                continue
            data = self._read(wait=not records)
            if not data:
                break
            self._lines.feed(data)
        return records or None

    def stop(self) -> None:
        self._stopping.set()
        if self._file is not None:
            self._file.close()

    def _open(self, filename: str) -> bool:
        """Open the file and seek to the last position; False when the file does not exist yet."""
        try:
            opened = Path(filename).open("rb", buffering=0)  # noqa: SIM115 - closed by the task
        except FileNotFoundError:
            if not self._said_missing:
                log.warning("Couldn't find file, waiting for it to be created", file=filename)
                self._said_missing = True
            return False
        except OSError as error:
            raise ConnectError(f"File {filename} cannot be read: {error.strerror}") from error
        try:
            self._position = self._committed(filename)
            opened.seek(self._position)
            self._warn_if_short(filename, opened)
        except BaseException:
            opened.close()
            raise
        self._file = opened
        log.debug("opened for reading", file=filename, position=self._position)
        return True

    def _committed(self, filename: str) -> int:
        (offset,) = self.context.offset_reader.offsets([{FILENAME: filename}])
        position = None if offset is None else offset.get(POSITION)
        if position is None:
            return 0
        if not isinstance(position, int) or isinstance(position, bool):
            raise ConnectError(f"Offset position is the incorrect type: {position!r} for file {filename}")
        return position

    def _warn_if_short(self, filename: str, opened: BinaryIO) -> None:
        size = os.fstat(opened.fileno()).st_size
        if self._position is not None and size < self._position:
            log.warning(
                "The file is shorter than what was read of it before; nothing is read until it is longer again. To read it from "
                "its start, reset the connector's offsets",
                file=filename,
                bytes=size,
                position=self._position,
            )

    def _read(self, *, wait: bool) -> bytes:
        """The next bytes; empty when there are none after waiting briefly for some."""
        if self._file is None:
            return _read_stdin(_WAIT_S if wait else 0.0)
        try:
            data = self._file.read(_CHUNK_BYTES) or b""
        except ValueError:
            return b""  # closed by stop()
        except OSError as error:
            raise ConnectError(f"File {self._filename} cannot be read on: {error.strerror}") from error
        if not data and wait:
            self._stopping.wait(_WAIT_S)
        return data

    def _append(self, records: list[SourceRecord], lines: Sequence[tuple[bytes, int]]) -> None:
        partition, topic, now_ms = {FILENAME: self._filename}, self._topic, int(time.time() * 1000)
        for line, size in lines:
            if self._position is not None:
                self._position += size
            records.append(
                SourceRecord(
                    partition,
                    {POSITION: self._position},
                    topic,
                    None,
                    None,
                    line.decode("utf-8", "replace"),
                    timestamp=now_ms,
                    value_schema=STRING_SCHEMA,
                )
            )


def _read_stdin(wait_s: float) -> bytes:
    """Available bytes on standard input; none if the worker has no standard input."""
    try:
        number = sys.stdin.fileno()
        readable, _, _ = select.select([number], [], [], wait_s)
        data = os.read(number, _CHUNK_BYTES) if readable else b""
    except (OSError, ValueError, AttributeError):
        data = b""
        readable = [0]
    if readable and not data:
        time.sleep(wait_s)  # at its end it is always readable
    return data
