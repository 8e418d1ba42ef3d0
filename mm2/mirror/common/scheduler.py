"""One thread that runs the periodic jobs of a connector or task (org.apache.kafka.connect.mirror.Scheduler).

Differences from Java: a failed job is retried after a short backoff instead of a whole interval (10 minutes by
default); missed runs are not repeated; stopping does not wait for a blocked job longer than the caller allows.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from mm2.kafka.errors import KafkaFailure
from mm2.mirror.common.recurring_errors import RecurringErrors

log = structlog.get_logger("mm2.mirror.scheduler")

FIRST_RETRY_S: Final = 1.0
LAST_RETRY_S: Final = 30.0

Job = Callable[[], bool | None]
"""A unit of work; False = not finished, retry soon. An exception has the same effect and is logged."""


@dataclass(order=True)
class _ScheduledTask:
    due: float
    sequence: int
    name: str = field(compare=False)
    job: Job = field(compare=False)
    interval_s: float | None = field(compare=False)
    planned: float = field(compare=False)
    retry_s: float = field(compare=False)


class Scheduler:
    """Runs jobs one at a time in the order they are due. `context` is bound to each log line of the thread."""

    def __init__(self, name: str, *, context: Mapping[str, object]) -> None:
        self._context = dict(context)
        self._entries: list[_ScheduledTask] = []
        self._sequence = itertools.count()
        self._changed = threading.Condition()
        self._stopping = False
        self._recurring = RecurringErrors()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def stopping(self) -> bool:
        return self._stopping

    def once(self, name: str, job: Job) -> None:
        """Run `job` as soon as possible and retry it until it succeeds, then no more."""
        self._add(name, job, None, delay_s=0)

    def every(self, interval_s: float, name: str, job: Job, *, delay_s: float = 0) -> None:
        """Run `job` at a fixed rate, first after `delay_s`. A negative interval schedules nothing, as in Java."""
        if interval_s >= 0:
            self._add(name, job, interval_s, delay_s=delay_s)

    def _add(self, name: str, job: Job, interval_s: float | None, *, delay_s: float) -> None:
        due = time.monotonic() + delay_s
        with self._changed:
            heapq.heappush(
                self._entries, _ScheduledTask(due, next(self._sequence), name, job, interval_s, due, FIRST_RETRY_S)
            )
            self._changed.notify_all()

    def pause(self, seconds: float) -> bool:
        """For use inside a job: sleep, ending early at stop. False at stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, seconds)
        return not self._stopping

    def stop(self, timeout_s: float) -> bool:
        """Start no further jobs and wait for the running one. False if it did not end in time."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _next(self) -> _ScheduledTask | None:
        with self._changed:
            while not self._stopping:
                if not self._entries:
                    self._changed.wait()
                elif (wait_s := self._entries[0].due - time.monotonic()) > 0:
                    self._changed.wait(wait_s)
                else:
                    return heapq.heappop(self._entries)
        return None

    def _run(self) -> None:
        structlog.contextvars.bind_contextvars(**self._context)
        while (entry := self._next()) is not None:
            done = self._attempt(entry)
            now = time.monotonic()
            if done:
                entry.retry_s = FIRST_RETRY_S
                if entry.interval_s is None:
                    continue
                entry.planned = max(entry.planned + entry.interval_s, now)
                entry.due = entry.planned
            else:
                entry.due = now + entry.retry_s
                if entry.interval_s:
                    entry.due = min(entry.due, now + entry.interval_s)
                entry.planned = entry.due
                entry.retry_s = min(entry.retry_s * 2, LAST_RETRY_S)
            with self._changed:
                heapq.heappush(self._entries, entry)

    def _attempt(self, entry: _ScheduledTask) -> bool:
        started = time.monotonic()
        try:
            done = entry.job() is not False
        except KafkaFailure as failure:
            if not self._stopping:  # a stop closes the clients that the job uses
                self._recurring.report(entry.name, f"{entry.name} failed and is tried again: {failure}")
            return False
        except Exception:
            if not self._stopping:
                log.exception("%s failed unexpectedly.", entry.name, retry_in_s=entry.retry_s)
            return False
        self._recurring.resolve(entry.name)
        log.debug("%s is done.", entry.name, seconds=round(time.monotonic() - started, 3))
        return done
