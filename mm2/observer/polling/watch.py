"""Polls a cluster on a separate thread, so that an unresponsive cluster blocks no other work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import structlog

from mm2.kafka.errors import KafkaFailure

log = structlog.get_logger("mm2.observer.watch")

_JOIN_S: Final = 2.0
_CLOCK_SET_MS: Final = 1_000


class PeriodicPoll:
    """Calls ``ask`` every ``interval_s`` seconds from `start` to `stop`; ``ask`` stores its results.

    ``error`` is a message while ``ask`` fails, and ``failing_since_s`` (monotonic clock) when the first of these polls ended.
    ``answered_s`` (monotonic clock) and ``answered_ms`` (since the epoch) are when it last succeeded, None: never yet. ``interval_s`` may be a function, called after each poll.
    """

    def __init__(self, name: str, ask: Callable[[], None], interval_s: float | Callable[[], float]) -> None:
        self.error = ""
        self.failing_since_s: float | None = None
        self.answered_s: float | None = None
        self.answered_ms: int | None = None
        self._name = name
        self._ask = ask
        self._interval = interval_s if callable(interval_s) else lambda: interval_s
        self._stopping = threading.Event()
        self._answered = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start polling; returns at once."""
        self._thread = threading.Thread(target=self._run, name=f"watch-{self._name}", daemon=True)
        self._thread.start()

    def signal_stop(self) -> None:
        """Stop polling. The owner of the connections closes them, which aborts a request in flight."""
        self._stopping.set()

    def answered_by_clock_ms(self, now_s: float, now_ms: int) -> int | None:
        """When it last succeeded, by a wall clock that may have been set since; None: never yet."""
        if self.answered_s is None or self.answered_ms is None:
            return None
        at_ms = now_ms - int((now_s - self.answered_s) * 1000)
        if abs(at_ms - self.answered_ms) > _CLOCK_SET_MS:
            self.answered_ms = at_ms
        return self.answered_ms

    def join(self) -> None:
        """Wait for the thread, as long as it normally takes to end."""
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def once(self) -> None:
        """Poll now, on this thread."""
        try:
            self._ask()
        except KafkaFailure as failure:
            if self._stopping.is_set():
                return  # we are stopping
            self._failed(str(failure))
        except Exception as error:
            if self._stopping.is_set():
                return
            log.exception("an error of ours while observing", watch=self._name)
            self._failed(f"{type(error).__name__}: {error}")
        else:
            self.answered_s, self.answered_ms = time.monotonic(), time.time_ns() // 1_000_000
            self.error, self.failing_since_s = "", None
        finally:
            self._answered.set()

    def _failed(self, error: str) -> None:
        self.error = error
        if self.failing_since_s is None:
            self.failing_since_s = time.monotonic()

    def await_first(self, timeout_s: float) -> bool:
        """Wait for the end of the first poll, successful or not; False at the timeout."""
        return self._answered.wait(timeout_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            began_s = time.monotonic()
            self.once()
            self._stopping.wait(max(0.05, self._interval() - (time.monotonic() - began_s)))
