"""The queue of the herder's thread, ordered by due time (DistributedHerder.DistributedHerderRequest)."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import structlog

from mm2.connect.api import ConnectError
from mm2.connect.herder.stages import StagedFuture, StageTracker

log = structlog.get_logger(__name__)

T = TypeVar("T")

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
