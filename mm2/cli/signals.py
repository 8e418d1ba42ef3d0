"""Stops a program at signals, and ends it if a part does not stop."""

from __future__ import annotations

import _thread
import os
import signal
import threading
from types import FrameType

import structlog

log = structlog.get_logger(__name__)


class StopRequest(threading.Event):
    """Set by a signal; ``signal`` is its number, 0 before."""

    signal = 0

    @property
    def exit_code(self) -> int:
        """The exit code of a program that the signal has interrupted, as shells expect it."""
        return 128 + self.signal


def stop_at_signals() -> StopRequest:
    """An event that SIGTERM and Ctrl-C set; a second signal ends the process at once (128 + its number)."""
    stopping = StopRequest()

    def stop(number: int, _frame: FrameType | None) -> None:
        if stopping.signal or stopping.is_set():
            os._exit(128 + number)
        stopping.signal = number
        _set(stopping)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return stopping


def ask_at_hangup(stopping: threading.Event) -> threading.Event:
    """An event that SIGHUP sets as a request to reload the settings.

    If its terminal was closed, the process stops instead.
    """
    asked = threading.Event()
    in_terminal = os.isatty(0)

    def ask(_number: int, _frame: FrameType | None) -> None:
        _set(stopping if in_terminal and not os.isatty(0) else asked)

    signal.signal(signal.SIGHUP, ask)
    return asked


def _set(event: threading.Event) -> None:
    """Set an event in a handler, which runs on the main thread at any moment, also while that holds the lock of the event."""
    _thread.start_new_thread(event.set, ())  # threading.Thread has locks itself


def exit_in(seconds: float, code: int) -> threading.Timer:
    """End the process with the exit code after this time, unless the timer is cancelled before."""

    def give_up() -> None:
        log.warning("The stop takes too long; threads that hang are abandoned.")
        os._exit(code)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    return timer
