"""What a herder is doing, so that a request that waits for it can say what it waits for (Java's Stage, KAFKA-15563)."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

T = TypeVar("T")
S = TypeVar("S")


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
        self._detail: Callable[[], str] | None = None

    @property
    def current(self) -> Stage:
        """The stage now."""
        with self._lock:
            stage, detail = self._stage, self._detail
        if detail is None or not (more := detail()):
            return stage
        return replace(stage, description=f"{stage.description} ({more})")

    @contextmanager
    def during(self, description: str, detail: Callable[[], str] | None = None) -> Iterator[None]:
        """A stage for the time of a with-block; an outer one that is in progress goes on afterwards.

        ``detail`` is asked how far it is whenever somebody wants to know.
        """
        with self._lock:
            outer, outer_detail = self._stage, self._detail
            mine = self._stage = Stage(description, _now_ms())
            self._detail = detail
        try:
            yield
        finally:
            with self._lock:
                ended = outer.completed_ms is not None
                self._stage = replace(mine, completed_ms=_now_ms()) if ended else outer
                self._detail = None if ended else outer_detail

    def complete(self) -> None:
        """End the stage that the tracker was made with."""
        with self._lock:
            self._stage = replace(self._stage, completed_ms=_now_ms())


class Steps(Generic[T]):
    """A request that several parties work on, one after another; ``outcome`` says what the present one is doing."""

    def __init__(self, description: str) -> None:
        first = Stage(description, _now_ms())
        self._stage: Callable[[], Stage] = lambda: first
        self.outcome: StagedFuture[T] = StagedFuture(self._present)

    def after(self, step: StagedFuture[S], then: Callable[[S], None]) -> None:
        """Go on with ``then`` on the thread that ends ``step``; when that fails, or ``then`` raises, so does the outcome."""
        self._stage = step.stage

        def on_done(done: Future[S]) -> None:
            try:
                then(done.result())
            except Exception as error:  # noqa: BLE001 - goes to whoever asked
                self.fail(error)

        step.add_done_callback(on_done)

    def _present(self) -> Stage:
        return self._stage()

    def end(self, result: T) -> None:
        """That is the outcome; only the first one counts."""
        with suppress(InvalidStateError):
            self.outcome.set_result(result)

    def fail(self, error: BaseException) -> None:
        """It failed."""
        with suppress(InvalidStateError):
            self.outcome.set_exception(error)


def run_apart(action: Callable[[StageTracker], T], name: str, waiting_for: str) -> StagedFuture[T]:
    """Run ``action`` on a thread of its own, which it may block for as long as it likes, and tell its stages.

    Not on a pool: as many as hang may hang, none keeps another from running, nor the process from ending.
    """
    stages = StageTracker(waiting_for)
    future: StagedFuture[T] = StagedFuture(lambda: stages.current)
    context = contextvars.copy_context()

    def run() -> None:
        stages.complete()
        try:
            result = action(stages)
        except Exception as error:  # noqa: BLE001 - goes to whoever asked
            with suppress(InvalidStateError):  # who waited has given up
                future.set_exception(error)
        else:
            with suppress(InvalidStateError):
                future.set_result(result)

    threading.Thread(target=lambda: context.run(run), name=name, daemon=True).start()
    return future


def done(result: T, stage: Callable[[], Stage]) -> StagedFuture[T]:
    """A future that is done."""
    future: StagedFuture[T] = StagedFuture(stage)
    future.set_result(result)
    return future


def failed(error: BaseException, stage: Callable[[], Stage]) -> StagedFuture[Any]:
    """A future that has failed."""
    future: StagedFuture[Any] = StagedFuture(stage)
    future.set_exception(error)
    return future


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _instant(ms: int) -> str:
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03d}Z"
