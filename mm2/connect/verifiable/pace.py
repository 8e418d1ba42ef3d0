"""Throughput limit of sources, and their output."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any


class Throttler:
    """Limits the records per second; negative: no limit, 0: none (ThroughputThrottler of Java)."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._begun_s = time.monotonic()
        self._stopped = threading.Event()

    def keep(self, records: int) -> None:
        """Wait until ``records`` are within the limit, or until `stop`; at most one second."""
        if self._per_second < 0:
            return
        due_s = 1.0
        if self._per_second > 0:
            due_s = self._begun_s + records / self._per_second - time.monotonic()
        if due_s > 0:
            self._stopped.wait(min(due_s, 1.0))

    def is_ahead(self, records: int) -> bool:
        """Whether one more record would exceed the limit now."""
        if self._per_second <= 0:
            return self._per_second == 0
        return records / self._per_second > time.monotonic() - self._begun_s

    def rest(self) -> None:
        """There are no more records; wait for a while, or until `stop`."""
        self._stopped.wait(1.0)

    def stop(self) -> None:
        """End all waits."""
        self._stopped.set()


def say(data: dict[str, Any]) -> None:
    """Print one line of JSON on standard output, where tests read it."""
    sys.stdout.write(json.dumps(data, separators=(",", ":"), default=str) + "\n")
    sys.stdout.flush()


def now_ms() -> int:
    return int(time.time() * 1000)
