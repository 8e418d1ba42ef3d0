"""A source connector for tests of herders: its tasks write beats, records with the worker that wrote them and the time.

Key of a record: the task's number. Value: JSON with ``worker`` (process id), ``run`` (unique for each start of the task),
``task``, ``count``, ``at`` (seconds), ``config`` (value of the key of that name). Configuration, all optional:

    tasks           number of tasks; ignores tasks.max
    pause.s         seconds between beats (0.05)
    fail.until      path: start of the connector fails until the file exists
    task.fails.until  path: the first beat of a task fails until the file exists
    hang.in         config, validate, start, task.configs or stop: where the connector hangs while ``hang.file`` exists
    secret          its length is part of each beat
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from mm2.config.configdef import ConfigDef, Importance, Type
from mm2.config.providers import ConfigData, ConfigProvider
from mm2.connect.api import SourceConnector, SourceRecord, SourceTask, Task

MODULE = "tests.systems.herder_toys"
CLASS = f"{MODULE}.BeatingConnector"


class BriefProvider(ConfigProvider):
    """The text of a file, cached for two seconds."""

    def get(self, path: str, keys: Collection[str]) -> ConfigData:
        return ConfigData(dict.fromkeys(keys, Path(path).read_text()), ttl_ms=2000)


def hang(props: Mapping[str, str], where: str) -> None:
    """Block while the file exists."""
    while props.get("hang.in") == where and Path(props["hang.file"]).exists():
        time.sleep(0.05)


class BeatingConnector(SourceConnector):
    def version(self) -> str:
        return "1.2.3"

    def config(self) -> ConfigDef:
        return ConfigDef().define("topic", Type.STRING, importance=Importance.HIGH, doc="where to")

    def validate(self, props: Mapping[str, str]) -> list[tuple[str, str]]:
        hang(props, "validate")
        return super().validate(props)

    def start(self, props: dict[str, str]) -> None:
        hang(props, "start")
        if "fail.until" in props and not Path(props["fail.until"]).exists():
            raise ValueError("configured to fail")
        self.props = props

    def stop(self) -> None:
        hang(self.props, "stop")

    def task_class(self) -> type[Task]:
        return BeatingTask

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        hang(self.props, "task.configs")
        return [{**self.props, "number": str(number)} for number in range(int(self.props.get("tasks", max_tasks)))]

    def alter_offsets(
        self, props: Mapping[str, str], offsets: Sequence[tuple[dict[str, Any], dict[str, Any] | None]]
    ) -> bool:
        for _, offset in offsets:
            if offset is not None and "count" not in offset:
                raise ValueError("an offset needs a count")
        return props.get("knows.offsets", "true") == "true"


class BeatingTask(SourceTask):
    def version(self) -> str:
        return "1.2.3"

    def start(self, props: dict[str, str]) -> None:
        self.props = props
        self.ended = threading.Event()
        self.run = secrets.token_hex(8)
        self.partition = {"number": int(props["number"])}
        (offset,) = self.context.offset_reader.offsets([self.partition])
        self.count = 0 if offset is None else int(offset["count"])

    def poll(self) -> list[SourceRecord] | None:
        if self.ended.wait(float(self.props.get("pause.s", "0.05"))):
            return None
        until = self.props.get("task.fails.until")
        if until is not None and not Path(until).exists():
            raise ValueError("task configured to fail")
        self.count += 1
        beat = {
            "worker": os.getpid(),
            "run": self.run,
            "task": self.partition["number"],
            "count": self.count,
            "at": time.time(),
            "config": self.props.get("config", ""),
            "secret": len(self.props.get("secret", "")),
        }
        number = str(self.partition["number"])
        offset = {"count": self.count}
        return [
            SourceRecord(self.partition, offset, self.props["topic"], partition=0, key=number, value=json.dumps(beat))
        ]

    def stop(self) -> None:
        self.ended.set()
