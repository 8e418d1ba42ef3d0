"""The FileStream connectors that ship with Kafka: lines of files to and from topics (org.apache.kafka.connect.file)."""

from __future__ import annotations

import os
import re
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, TextIO

import structlog

from mm2 import __version__
from mm2.config.configdef import AbstractConfig, ConfigDef, Importance, Type, non_empty
from mm2.connect.api import (
    ConnectError,
    OffsetAndMetadata,
    SinkConnector,
    SinkRecord,
    SinkTask,
    SourceConnector,
    SourceRecord,
    SourceTask,
    Task,
    TopicPartition,
)
from mm2.connect.data.schema import STRING_SCHEMA

log = structlog.get_logger(__name__)

_END: Final = re.compile(rb"\r\n|\n|\r")


class LineSplitter:
    """Lines end with LF, CR LF or CR, as for Java's readers. An incomplete line is buffered."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._searched = 0
        self._lines: deque[tuple[bytes, int]] = deque()

    def feed(self, data: bytes) -> None:
        """Add the next bytes."""
        if b"\r" in data or self._rest.endswith(b"\r"):
            self._feed(data)
            return
        # With LF only, as in most files, splitting takes a third of the time of searching.
        head, end, tail = data.partition(b"\n")
        self._rest += head
        if end:
            lines = tail.split(b"\n")
            lines.insert(0, bytes(self._rest))
            self._rest = bytearray(lines.pop())
            self._lines.extend((line, len(line) + 1) for line in lines)
        self._searched = len(self._rest)

    def _feed(self, data: bytes) -> None:
        self._rest += data
        at, start = 0, self._searched
        while (end := _END.search(self._rest, start)) is not None:
            if end.group() == b"\r" and end.end() == len(self._rest):
                break  # an LF may follow
            self._lines.append((bytes(self._rest[at : end.start()]), end.end() - at))
            at = start = end.end()
        del self._rest[:at]
        # Scanned bytes are not scanned again, except for a last CR.
        self._searched = max(0, len(self._rest) - self._rest.endswith(b"\r"))

    def take(self, limit: int) -> list[tuple[bytes, int]]:
        """The next complete lines without their ends, at most this many, and how many bytes each of them took."""
        popleft = self._lines.popleft
        return [popleft() for _ in range(min(limit, len(self._lines)))]


FILENAME: Final = "filename"
POSITION: Final = "position"
_CHUNK_BYTES: Final = 65_536
_WAIT_S: Final = 1.0

SOURCE_CONFIG: Final = (
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
        log.info(
            "Starting file source connector", file=AbstractConfig(SOURCE_CONFIG, props).get("file") or "standard input"
        )

    def stop(self) -> None:
        return

    def task_class(self) -> type[Task]:
        return FileStreamSourceTask

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        return [dict(self._props)]

    def config(self) -> ConfigDef:
        return SOURCE_CONFIG

    def exactly_once_support(self, props: Mapping[str, str]) -> bool:
        """Exactly-once works for a file that only grows; the position in standard input is not tracked."""
        return bool(AbstractConfig(SOURCE_CONFIG, props).get("file"))

    def alter_offsets(
        self, props: Mapping[str, str], offsets: Sequence[tuple[dict[str, Any], dict[str, Any] | None]]
    ) -> bool:
        """Checks the offsets' form; the task checks whether the positions exist in the file."""
        if not AbstractConfig(SOURCE_CONFIG, props).get("file"):
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
        config = AbstractConfig(SOURCE_CONFIG, props)
        self._filename: str | None = config.get("file") or None
        self._topic = config.str("topic")
        self._batch_size = config.int("batch.size")
        self._stopping = threading.Event()
        self._lines = LineSplitter()
        self._file: BinaryIO | None = None
        #: After the last line that was returned; None: not tracked.
        self._position: int | None = None
        self._missing_logged = False

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
            if not self._missing_logged:
                log.warning("Couldn't find file, waiting for it to be created", file=filename)
                self._missing_logged = True
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
                "file is shorter than the stored position, waiting for it to grow; to read it from the start, reset the "
                "offsets of the connector",
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
            raise ConnectError(f"File {self._filename} cannot be read any further: {error.strerror}") from error
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


SINK_CONFIG: Final = ConfigDef().define(
    "file",
    Type.STRING,
    None,
    None,
    Importance.HIGH,
    "Destination filename. If not specified, the standard output will be used",
)


class FileStreamSinkConnector(SinkConnector):
    """Runs as many tasks as tasks.max; they share the file."""

    def version(self) -> str:
        return __version__

    def start(self, props: dict[str, str]) -> None:
        self._props = props
        log.info(
            "Starting file sink connector", file=AbstractConfig(SINK_CONFIG, props).get("file") or "standard output"
        )

    def stop(self) -> None:
        return

    def task_class(self) -> type[Task]:
        return FileStreamSinkTask

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        return [dict(self._props) for _ in range(max_tasks)]

    def config(self) -> ConfigDef:
        return SINK_CONFIG

    def alter_offsets(self, props: Mapping[str, str], offsets: Mapping[TopicPartition, int | None]) -> bool:
        """The consumer group holds all offsets."""
        return True


class FileStreamSinkTask(SinkTask):
    """Appends to the file; when `put` returns, its records have been passed to the operating system."""

    def version(self) -> str:
        return __version__

    def start(self, props: dict[str, str]) -> None:
        self._filename: str | None = AbstractConfig(SINK_CONFIG, props).get("file") or None
        self._output: TextIO = sys.stdout
        if self._filename is None:
            return
        try:
            self._output = Path(self._filename).open("a", encoding="utf-8", errors="surrogateescape", newline="\n")  # noqa: SIM115 - closed by the task
        except OSError as error:
            raise ConnectError(
                f"Couldn't find or create file '{self._filename}' for FileStreamSinkTask: {error.strerror}"
            ) from error

    def put(self, records: Collection[SinkRecord]) -> None:
        if not records:
            return
        # One write for all lines, so that lines of several tasks do not interleave.
        self._output.write("".join(f"{as_text(record.value)}\n" for record in records))
        self._output.flush()

    def flush(self, current_offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self._output.flush()

    def stop(self) -> None:
        if self._filename is not None and self._output is not sys.stdout:
            self._output.close()


def as_text(value: Any) -> str:
    """The text that Java prints for a value of this type."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{as_text(key)}={as_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_text, value)) + "]"
    return str(value)


__all__ = ["FileStreamSinkConnector", "FileStreamSinkTask", "FileStreamSourceConnector", "FileStreamSourceTask"]
