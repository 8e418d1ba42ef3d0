"""The connector of `bench/java/IdleSource.java` for a worker of ours."""

from __future__ import annotations

import threading

from mm2.config.configdef import ConfigDef
from mm2.connect.api import SourceConnector, SourceRecord, SourceTask, Task


class IdleSource(SourceConnector):
    """As many tasks as it may have, none of which does anything: what a worker costs by itself."""

    def version(self) -> str:
        return "1.0"

    def start(self, props: dict[str, str]) -> None:
        self._props = props

    def stop(self) -> None:
        return

    def task_class(self) -> type[Task]:
        return IdleTask

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        return [{**self._props, "number": str(number)} for number in range(max_tasks)]

    def config(self) -> ConfigDef:
        return ConfigDef()


class IdleTask(SourceTask):
    """Polls once a second, in vain."""

    def __init__(self) -> None:
        self._ended = threading.Event()

    def version(self) -> str:
        return "1.0"

    def start(self, props: dict[str, str]) -> None:
        return

    def poll(self) -> list[SourceRecord] | None:
        self._ended.wait(1.0)
        return None

    def stop(self) -> None:
        self._ended.set()
