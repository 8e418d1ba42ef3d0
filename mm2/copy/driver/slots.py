"""Whose turn it is on a cluster that has only so many slots.

A micro-batch holds a slot (a core of an executor, as a rule) as long as it runs, and the next one of its lane stands by
in another for a moment. Spark would queue what finds none, and a lane would wait for ever behind others that never
end. So nothing is submitted before there is a slot for it, nothing stands by where a lane that has no slot at all waits
for one, and when there are more lanes than slots they take turns.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import structlog

TURN_S: Final = 5.0
"""How long a lane keeps its slot while others have none."""

_LOOK_S: Final = 0.5
_LATE_S: Final = 20.0
_NO_SLOT: Final = "all slots of the Spark cluster are taken"
_NO_EXECUTOR: Final = "the Spark cluster has given us no executor"


class Slots:
    """Thread-safe. ``count`` is how many there are: None without a limit; 0 until `resize` says more."""

    def __init__(self, count: int | None) -> None:
        self.count = count
        self._changed = threading.Condition()
        self._holders: dict[str, str] = {}  # lane by batch
        self._queue: dict[str, str] = {}  # the same, in the order they came
        self._said = False
        self._log = structlog.get_logger(__name__)

    def resize(self, count: int | None) -> None:
        """So many slots there are now; who holds one keeps it."""
        with self._changed:
            if count != self.count:
                self.count = count
                self._changed.notify_all()

    def enter(self, batch: str, lane: str, until: threading.Event, on_trouble: Callable[[str], None]) -> bool:
        """Wait for a slot and take it; False when ``until`` was set before. ``on_trouble`` hears of long waits, and why."""
        since = time.monotonic()
        told = ""
        with self._changed:
            self._queue[batch] = lane
            try:
                while not until.is_set():
                    if self._is_next(batch):
                        self._holders[batch] = lane
                        return True
                    if time.monotonic() - since > _LATE_S:
                        trouble = _NO_SLOT if self.count else _NO_EXECUTOR
                        if trouble != told:
                            told = trouble
                            on_trouble(trouble)
                    self._changed.wait(_LOOK_S)
                return False
            finally:
                del self._queue[batch]
                self._changed.notify_all()

    def leave(self, batch: str) -> None:
        """Give the slot back; nothing happens when it holds none."""
        with self._changed:
            self._holders.pop(batch, None)
            self._changed.notify_all()

    def may_stand_by(self) -> bool:
        """Whether the next micro-batch may be submitted while the one before it still runs."""
        with self._changed:
            return self.count is None or len(self._holders) + len(self._queue) < self.count

    def is_over(self, held_s: float) -> bool:
        """Whether a lane that has had its slot for so long has to let others have it."""
        if held_s < TURN_S:
            return False
        with self._changed:
            scarce = bool(self._waiting())
            if scarce and self.count and not self._said:
                self._said = True
                self._log.warning(
                    "There are more lanes than slots on the Spark cluster, so they take turns: give it more cores, or "
                    "lower tasks.max or copy.lanes.",
                    lanes=len({*self._holders.values(), *self._queue.values()}),
                    slots=self.count,
                )
            return scarce

    def _is_next(self, batch: str) -> bool:
        if self.count is None:
            return True
        waiting = self._waiting()
        # Lanes that have no slot at all come first, then those whose next batch is to stand by.
        order = [*waiting, *(other for other in self._queue if other not in waiting)]
        return batch in order[: max(0, self.count - len(self._holders))]

    def _waiting(self) -> list[str]:
        """Batches without a slot whose lane has none, in the order they came."""
        running = set(self._holders.values())
        return [batch for batch, lane in self._queue.items() if lane not in running]
