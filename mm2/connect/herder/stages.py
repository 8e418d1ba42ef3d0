"""What a herder is doing, so that a request that waits for it can say what it waits for (Java's Stage, KAFKA-15563)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Stage:
    """One thing that a thread is or was doing; ``description`` goes on after "The worker is currently"."""

    description: str
    #: Milliseconds since the epoch.
    started_ms: int
    #: None while it is in progress.
    completed_ms: int | None = None

    def summary(self) -> str:
        """One sentence for messages: what is in progress since when, or what was done last and when."""
        began = f"{self.description}, which began at {_instant(self.started_ms)}"
        if self.completed_ms is None:
            return f"The worker is currently {began}."
        return f"The last operation the worker completed was {began} and completed at {_instant(self.completed_ms)}."


class StagedFuture(Future[T]):
    """The outcome of a request, which can tell what it waits for: ``stage()``, thread-safe."""

    def __init__(self, stage: Callable[[], Stage]) -> None:
        super().__init__()
        self.stage = stage


class StageTracker:
    """What one thread does: the innermost stage in progress, or the one completed last. Read from any thread."""

    def __init__(self, description: str) -> None:
        self._lock = threading.Lock()
        self._stage = Stage(description, _now_ms())

    @property
    def current(self) -> Stage:
        """The stage now."""
        with self._lock:
            return self._stage

    def begin(self, description: str) -> None:
        """Enter a stage that lasts until the next one."""
        with self._lock:
            self._stage = Stage(description, _now_ms())

    @contextmanager
    def during(self, description: str) -> Iterator[None]:
        """A stage for the time of a with-block; around it, the outer one if that is in progress, goes on afterwards."""
        with self._lock:
            outer = self._stage
            mine = self._stage = Stage(description, _now_ms())
        try:
            yield
        finally:
            with self._lock:
                self._stage = outer if outer.completed_ms is None else replace(mine, completed_ms=_now_ms())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _instant(ms: int) -> str:
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03d}Z"
