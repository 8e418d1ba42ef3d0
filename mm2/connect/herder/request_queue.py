"""The queue of requests to the herder's thread, and the stage that the herder is in.

Corresponds to Java's DistributedHerderRequest and Stage (KAFKA-15563).
"""

from __future__ import annotations

import contextvars
import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeVar

import structlog

from mm2.connect.api import ConnectError

log = structlog.get_logger(__name__)

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

    def begin(self, description: str) -> None:
        """Report this action from now on; it is not a step of the herder's thread."""
        stage = WorkerStage(description, _now_ms())
        self._stage = lambda: stage

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


#: Due time of a request that is never due.
NEVER: Final = float("inf")
#: How long requests may keep the herder from polling its group, excluding the last request's own time.
_TURN_S = 5.0


@dataclass(order=True)
class _Request:
    due_s: float
    sequence: int
    stage: str = field(compare=False)
    action: Callable[[], Any] = field(compare=False)
    future: StagedFuture[Any] = field(compare=False)


class RequestQueue:
    """Requests ordered by (due time, sequence). Any thread submits, the herder's thread runs them.

    ``wakeup`` ends the herder's wait for its group. The stage of a waiting request is what the herder's thread is doing
    meanwhile.
    """

    def __init__(self, stages: StageTracker, wakeup: Callable[[], None]) -> None:
        self._stages = stages
        self._wakeup = wakeup
        self._lock = threading.Lock()
        self._requests: list[_Request] = []
        self._sequence = itertools.count()
        self._accepting = True

    def submit(self, action: Callable[[], T], stage: str, *, delay_s: float = 0.0) -> StagedFuture[T]:
        """Run ``action`` on the herder's thread; ``stage`` describes it. Cancel the future to withdraw it."""
        future: StagedFuture[T] = StagedFuture(lambda: self._stages.current)
        with self._lock:
            accepted = self._accepting
            if accepted:
                due_s = time.monotonic() + delay_s
                heapq.heappush(self._requests, _Request(due_s, next(self._sequence), stage, action, future))
        if accepted:
            self._wakeup()
        else:
            future.set_exception(_shutting_down())
        return future

    def run_due(self, interrupted: Callable[[], bool]) -> float:
        """Run due requests; returns the monotonic time at which the next one is due, or `NEVER`.

        Returns early after slow requests, so that the group is polled, and when ``interrupted()`` is true.
        """
        enough_s = time.monotonic() + _TURN_S
        while True:
            with self._lock:
                if not self._requests:
                    return NEVER
                now = time.monotonic()
                if self._requests[0].due_s > now or now > enough_s or interrupted():
                    return self._requests[0].due_s
                request = heapq.heappop(self._requests)
            if request.future.set_running_or_notify_cancel():
                self._run(request)

    def close(self) -> None:
        """Reject all waiting and future requests."""
        with self._lock:
            self._accepting = False
            refused, self._requests = self._requests, []
        for request in refused:
            if request.future.set_running_or_notify_cancel():
                request.future.set_exception(_shutting_down())

    def _run(self, request: _Request) -> None:
        with self._stages.during(request.stage):
            try:
                result = request.action()
            except Exception as error:  # noqa: BLE001 - reported through the future
                log.info("request failed", stage=request.stage, reason=str(error))
                request.future.set_exception(error)
            else:
                request.future.set_result(result)


def _shutting_down() -> ConnectError:
    return ConnectError("Worker is shutting down")
