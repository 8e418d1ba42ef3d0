"""Connectors that do nothing and, if configured, fail after a delay (MockSourceConnector, MockSinkConnector)."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from typing import Final

from mm2 import __version__
from mm2.config.configdef import AbstractConfig, ConfigDef, Importance, Type
from mm2.connect.api import (
    Connector,
    SinkConnector,
    SinkRecord,
    SinkTask,
    SourceConnector,
    SourceRecord,
    SourceTask,
    Task,
)

_CONNECTOR_FAILURE: Final = "connector-failure"
_TASK_FAILURE: Final = "task-failure"
_LOOK_MS: Final = 250

CONFIG: Final = (
    ConfigDef()
    .define(
        "mock_mode",
        Type.STRING,
        None,
        None,
        Importance.LOW,
        f"{_CONNECTOR_FAILURE} or {_TASK_FAILURE}: what fails; nothing does for any other value.",
    )
    .define("delay_ms", Type.LONG, 15_000, None, Importance.LOW, "After how many milliseconds.")
)


class MockFailure(RuntimeError):
    """The configured failure."""


class _Mock(Connector):
    def version(self) -> str:
        return __version__

    def start(self, props: dict[str, str]) -> None:
        self._props = props
        self._timer: threading.Timer | None = None
        config = AbstractConfig(CONFIG, props)
        if config.get("mock_mode") == _CONNECTOR_FAILURE:
            failure = MockFailure("mock_mode=connector-failure")
            self._timer = threading.Timer(config.int("delay_ms") / 1000, lambda: self.context.raise_error(failure))
            self._timer.daemon = True
            self._timer.start()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        return [dict(self._props)]

    def config(self) -> ConfigDef:
        return CONFIG


class MockSourceConnector(_Mock, SourceConnector):
    """Runs one task that returns no records."""

    def task_class(self) -> type[Task]:
        return MockSourceTask


class MockSinkConnector(_Mock, SinkConnector):
    """Runs one task that discards all records."""

    def task_class(self) -> type[Task]:
        return MockSinkTask


class _Fuse:
    """Raises the failure after the configured delay, if a failure is configured."""

    def __init__(self, props: dict[str, str]) -> None:
        config = AbstractConfig(CONFIG, props)
        self.is_lit = config.get("mock_mode") == _TASK_FAILURE
        self.delay_ms = config.int("delay_ms")
        self._since_s = time.monotonic()

    def check(self) -> None:
        if self.is_lit and (time.monotonic() - self._since_s) * 1000 > self.delay_ms:
            raise MockFailure("mock_mode=task-failure")


class MockSourceTask(SourceTask):
    """Returns no records."""

    def version(self) -> str:
        return __version__

    def start(self, props: dict[str, str]) -> None:
        self._fuse = _Fuse(props)

    def poll(self) -> list[SourceRecord] | None:
        self._fuse.check()
        return []

    def stop(self) -> None:
        return


class MockSinkTask(SinkTask):
    """Discards all records."""

    def version(self) -> str:
        return __version__

    def start(self, props: dict[str, str]) -> None:
        self._fuse = _Fuse(props)
        self._look_again()

    def put(self, records: Collection[SinkRecord]) -> None:
        self._fuse.check()
        self._look_again()

    def stop(self) -> None:
        return

    def _look_again(self) -> None:
        """Request another call of ``put`` before the delay ends, even without records."""
        if self._fuse.is_lit:
            self.context.timeout(max(1, min(self._fuse.delay_ms, _LOOK_MS)))
