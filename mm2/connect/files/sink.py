"""Writes each record's value as a line to a file or to standard output (FileStreamSinkConnector and its task)."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, TextIO

import structlog

from mm2 import __version__
from mm2.config.configdef import AbstractConfig, ConfigDef, Importance, Type
from mm2.connect.api import (
    ConnectError,
    OffsetAndMetadata,
    SinkConnector,
    SinkRecord,
    SinkTask,
    Task,
    TopicPartition,
)

log = structlog.get_logger(__name__)

CONFIG: Final = ConfigDef().define(
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
        log.info("Starting file sink connector", file=AbstractConfig(CONFIG, props).get("file") or "standard output")

    def stop(self) -> None:
        return

    def task_class(self) -> type[Task]:
        return FileStreamSinkTask

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        return [dict(self._props) for _ in range(max_tasks)]

    def config(self) -> ConfigDef:
        return CONFIG

    def alter_offsets(self, props: Mapping[str, str], offsets: Mapping[TopicPartition, int | None]) -> bool:
        """The consumer group holds all offsets."""
        return True


class FileStreamSinkTask(SinkTask):
    """Appends to the file; when `put` returns, its records have been passed to the operating system."""

    def version(self) -> str:
        return __version__

    def start(self, props: dict[str, str]) -> None:
        self._filename: str | None = AbstractConfig(CONFIG, props).get("file") or None
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
