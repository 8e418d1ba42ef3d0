"""What a herder is doing, so that a waiting request can report what it waits for (Java's Stage, KAFKA-15563)."""

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
class WorkerStage:
    """One action that a thread performs or has performed; ``description`` continues "The worker is currently"."""

    description: str
    #: Milliseconds since the epoch.
    started_ms: int
    #: None while it is in progress.
    completed_ms: int | None = None

    def summary(self) -> str:
        """One sentence for messages: the action in progress and its start, or the last one and its end."""
        began = f"{self.description}, which began at {_instant(self.started_ms)}"
        if self.completed_ms is None:
            return f"The worker is currently {began}."
        return f"The last operation the worker completed was {began} and completed at {_instant(self.completed_ms)}."


class StagedFuture(Future[T]):
    """The result of a request; ``stage()`` (thread-safe) reports what the request waits for."""

    def __init__(self, stage: Callable[[], WorkerStage]) -> None:
        super().__init__()
        self.stage = stage


class StageTracker:
    """The actions of one thread: the innermost stage in progress, or the one completed last. Read from any thread."""

    def __init__(self, description: str) -> None:
        self._lock = threading.Lock()
        self._stage = WorkerStage(description, _now_ms())
        self._detail: Callable[[], str] | None = None

    @property
    def current(self) -> WorkerStage:
        """The current stage."""
        with self._lock:
            stage, detail = self._stage, self._detail
        if detail is None or not (more := detail()):
            return stage
        return replace(stage, description=f"{stage.description} ({more})")

    @contextmanager
    def during(self, description: str, detail: Callable[[], str] | None = None) -> Iterator[None]:
        """A stage for the duration of a with-block; an enclosing stage in progress resumes afterwards.

        ``detail`` is called for the progress whenever the stage is read.
        """
        with self._lock:
            outer, outer_detail = self._stage, self._detail
            mine = self._stage = WorkerStage(description, _now_ms())
            self._detail = detail
        try:
            yield
        finally:
            with self._lock:
                ended = outer.completed_ms is not None
                self._stage = replace(mine, completed_ms=_now_ms()) if ended else outer
                self._detail = None if ended else outer_detail

    def complete(self) -> None:
        """End the stage that the tracker was created with."""
        with self._lock:
            self._stage = replace(self._stage, completed_ms=_now_ms())


class Steps(Generic[T]):
    """A request that several parties process in turn; ``outcome`` reports the stage of the current one."""

    def __init__(self, description: str) -> None:
        first = WorkerStage(description, _now_ms())
        self._stage: Callable[[], WorkerStage] = lambda: first
        self.outcome: StagedFuture[T] = StagedFuture(self._present)

    def after(self, step: StagedFuture[S], then: Callable[[S], None]) -> None:
        """Call ``then`` on the thread that completes ``step``; a failure of either fails the outcome."""
        self._stage = step.stage

        def on_done(done: Future[S]) -> None:
            try:
                then(done.result())
            except Exception as error:  # noqa: BLE001 - reported through the future
                self.fail(error)

        step.add_done_callback(on_done)

    def _present(self) -> WorkerStage:
        return self._stage()

    def end(self, result: T) -> None:
        """Complete the outcome; only the first call has an effect."""
        with suppress(InvalidStateError):
            self.outcome.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Fail the outcome."""
        with suppress(InvalidStateError):
            self.outcome.set_exception(error)


def run_apart(action: Callable[[StageTracker], T], name: str, waiting_for: str) -> StagedFuture[T]:
    """Run ``action`` on its own thread, where it may block indefinitely, and report its stages.

    Not on a pool: hanging actions must not prevent others from running or the process from exiting.
    """
    stages = StageTracker(waiting_for)
    future: StagedFuture[T] = StagedFuture(lambda: stages.current)
    context = contextvars.copy_context()

    def run() -> None:
        stages.complete()
        try:
            result = action(stages)
        except Exception as error:  # noqa: BLE001 - reported through the future
            with suppress(InvalidStateError):  # the caller no longer waits
                future.set_exception(error)
        else:
            with suppress(InvalidStateError):
                future.set_result(result)

    threading.Thread(target=lambda: context.run(run), name=name, daemon=True).start()
    return future


def done(result: T, stage: Callable[[], WorkerStage]) -> StagedFuture[T]:
    """A completed future."""
    future: StagedFuture[T] = StagedFuture(stage)
    future.set_result(result)
    return future


def failed(error: BaseException, stage: Callable[[], WorkerStage]) -> StagedFuture[Any]:
    """A failed future."""
    future: StagedFuture[Any] = StagedFuture(stage)
    future.set_exception(error)
    return future


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _instant(ms: int) -> str:
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03d}Z"
