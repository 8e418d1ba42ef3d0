"""Monitor the end offsets of a topic on the target over time."""

import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from bench.arrivals import Arrivals
from mm2.kafka.errors import KafkaFailure


@dataclass(frozen=True)
class Snapshot:
    """End offsets by partition at one time (time.monotonic)."""

    at_s: float
    ends: dict[int, int]

    @property
    def records(self) -> int:
        return sum(self.ends.values())


class Growth:
    """Polls the end offsets every `interval_s` in its own thread and keeps every snapshot."""

    def __init__(self, arrivals: Arrivals, interval_s: float = 0.02) -> None:
        self._arrivals = arrivals
        self._interval_s = interval_s
        self._snapshots: list[Snapshot] = [Snapshot(time.monotonic(), {})]
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="growth", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    @property
    def latest(self) -> Snapshot:
        return self._snapshots[-1]

    def at(self, moment_s: float) -> Snapshot:
        """The last snapshot not later than that."""
        snapshots = self._snapshots
        return snapshots[max(0, bisect_right(snapshots, moment_s, key=lambda snapshot: snapshot.at_s) - 1)]

    def between(self, from_s: float, to_s: float) -> int:
        """Number of records that arrived in that time."""
        return self.at(to_s).records - self.at(from_s).records

    def fresh(self) -> Snapshot:
        """A snapshot that was requested after the call."""
        called_s = time.monotonic()
        self.wait(lambda: self.latest.at_s > called_s + self._interval_s, 30.0)
        return self.latest

    def wait(self, until: Callable[[], bool], patience_s: float, check: Callable[[], None] = lambda: None) -> bool:
        """Wait until the condition is true; False after the timeout. `check` raises to end the wait early."""
        deadline = time.monotonic() + patience_s
        while not until():
            check()
            if time.monotonic() > deadline:
                return False
            time.sleep(self._interval_s / 2)
        return True

    def pauses_s(self, from_s: float) -> dict[int, float]:
        """For each partition the longest time without new records since `from_s`, including the current one."""
        snapshots = [snapshot for snapshot in list(self._snapshots) if snapshot.at_s >= from_s]
        longest: dict[int, float] = {}
        grown_s: dict[int, float] = {}
        ends: dict[int, int] = {}
        for snapshot in snapshots:
            for partition, end in snapshot.ends.items():
                since_s = grown_s.setdefault(partition, from_s)
                longest[partition] = max(longest.get(partition, 0.0), snapshot.at_s - since_s)
                if end > ends.setdefault(partition, end):
                    grown_s[partition] = snapshot.at_s
                    ends[partition] = end
        return longest

    def all_grown_since(self, from_s: float) -> bool:
        """Whether every partition has new records since `from_s`."""
        before, now = self.at(from_s).ends, self.latest.ends
        return bool(now) and all(end > before.get(partition, 0) for partition, end in now.items())

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            try:
                ends = self._arrivals.ends()
            except KafkaFailure:
                continue  # without a response no new records are visible
            self._snapshots.append(Snapshot(time.monotonic(), ends))
