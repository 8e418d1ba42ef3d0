"""Watches the partitions of a topic grow on the target, and remembers when each of them did."""

import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from bench.arrivals import Arrivals
from mm2.kafka.errors import KafkaFailure


@dataclass(frozen=True)
class Look:
    """End offsets by partition at one moment (time.monotonic)."""

    at_s: float
    ends: dict[int, int]

    @property
    def records(self) -> int:
        return sum(self.ends.values())


class Growth:
    """Looks every `interval_s` in a thread of its own, and keeps every look."""

    def __init__(self, arrivals: Arrivals, interval_s: float = 0.02) -> None:
        self._arrivals = arrivals
        self._interval_s = interval_s
        self._looks: list[Look] = [Look(time.monotonic(), {})]
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="growth", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    @property
    def latest(self) -> Look:
        return self._looks[-1]

    def at(self, moment_s: float) -> Look:
        """The last look not later than that."""
        looks = self._looks
        return looks[max(0, bisect_right(looks, moment_s, key=lambda look: look.at_s) - 1)]

    def between(self, from_s: float, to_s: float) -> int:
        """Records that appeared in that time."""
        return self.at(to_s).records - self.at(from_s).records

    def fresh(self) -> Look:
        """A look that began after the call."""
        called_s = time.monotonic()
        self.wait(lambda: self.latest.at_s > called_s + self._interval_s, 30.0)
        return self.latest

    def wait(self, until: Callable[[], bool], patience_s: float, check: Callable[[], None] = lambda: None) -> bool:
        """Waits until the condition holds; False when that takes longer. `check` raises when waiting is in vain."""
        deadline = time.monotonic() + patience_s
        while not until():
            check()
            if time.monotonic() > deadline:
                return False
            time.sleep(self._interval_s / 2)
        return True

    def pauses_s(self, from_s: float) -> dict[int, float]:
        """For each partition the longest time without growth since then, the present one included."""
        looks = [look for look in list(self._looks) if look.at_s >= from_s]
        longest: dict[int, float] = {}
        grown_s: dict[int, float] = {}
        ends: dict[int, int] = {}
        for look in looks:
            for partition, end in look.ends.items():
                since_s = grown_s.setdefault(partition, from_s)
                longest[partition] = max(longest.get(partition, 0.0), look.at_s - since_s)
                if end > ends.setdefault(partition, end):
                    grown_s[partition] = look.at_s
                    ends[partition] = end
        return longest

    def all_grown_since(self, from_s: float) -> bool:
        """Every partition is longer than it was then."""
        before, now = self.at(from_s).ends, self.latest.ends
        return bool(now) and all(end > before.get(partition, 0) for partition, end in now.items())

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            try:
                ends = self._arrivals.ends()
            except KafkaFailure:
                continue  # a broker that does not answer is seen as one on which nothing grows
            self._looks.append(Look(time.monotonic(), ends))
