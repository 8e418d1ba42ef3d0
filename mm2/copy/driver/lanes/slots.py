"""Shares the slots of a Spark cluster, or of `local[N]`, between lanes.

A micro-batch occupies a slot (usually a core of an executor) while it runs, and the next one of its lane waits in
another slot for a moment. Spark would queue jobs without a slot, and a lane could wait forever behind jobs that never
end. So a job is submitted only when there is a slot for it, no job waits in a slot while another lane has none, and
when there are more lanes than slots they take turns.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import structlog

from mm2.reasons import SparkDown, SparkDownCode

TURN_S: Final = 5.0
"""How long a lane keeps its slot while others have none."""

#: How long lanes have to wait before others leave them their slots. Until then they may end, or executors may come back.
SCARCE_S: Final = 8.0
_POLL_S: Final = 0.5
_LATE_S: Final = 20.0
_NO_SLOT: Final = "all slots of the Spark cluster are in use"
_NO_EXECUTOR: Final = "the Spark cluster has not started an executor"


class Slots:
    """Thread-safe. ``count`` is the number of slots: None without a limit; 0 until `resize` is called."""

    def __init__(self, count: int | None) -> None:
        self.count = count
        self._empty_since = time.monotonic()
        self._changed = threading.Condition()
        self._holders: dict[str, str] = {}  # lane by batch
        self._queue: dict[str, str] = {}  # lane by batch, in the order of arrival
        self._scarce_since = self._scarce_at = float("-inf")
        self._warned = False
        self._log = structlog.get_logger("mm2.copy.driver.slots")

    def resize(self, count: int | None) -> None:
        """Set the number of slots. A batch that has a slot keeps it."""
        with self._changed:
            if count != self.count:
                self._empty_since = time.monotonic()
                self.count = count
                self._changed.notify_all()

    @property
    def down(self) -> SparkDown | None:
        """That there has been no executor for a long time, or None."""
        with self._changed:
            if self.count == 0 and time.monotonic() - self._empty_since > _LATE_S:
                return SparkDown(SparkDownCode.NO_EXECUTOR, _NO_EXECUTOR)
            return None

    def enter(self, batch: str, lane: str, until: threading.Event, on_wait: Callable[[str], None]) -> bool:
        """Wait for a slot and take it; False when ``until`` was set before. ``on_wait`` is called with the reason of
        a long wait.
        """
        since = time.monotonic()
        reported = ""
        with self._changed:
            self._queue[batch] = lane
            try:
                while not until.is_set():
                    if self._is_next(batch):
                        self._holders[batch] = lane
                        return True
                    if time.monotonic() - since > _LATE_S:
                        reason = _NO_SLOT if self.count else _NO_EXECUTOR
                        if reason != reported:
                            reported = reason
                            on_wait(reason)
                    self._changed.wait(_POLL_S)
                return False
            finally:
                del self._queue[batch]
                self._changed.notify_all()

    def leave(self, batch: str) -> None:
        """Return the slot of a batch, if it has one."""
        with self._changed:
            self._holders.pop(batch, None)
            self._changed.notify_all()

    @property
    def missing(self) -> int:
        """How many slots are missing for all lanes and the next micro-batch of one of them."""
        with self._changed:
            lanes = {*self._holders.values(), *self._queue.values()}
            return 0 if self.count is None else max(0, len(lanes) + 1 - self.count)

    def may_start_standby(self) -> bool:
        """Whether the next micro-batch may be submitted while the previous one still runs."""
        with self._changed:
            return self.count is None or len(self._holders) + len(self._queue) < self.count

    def must_yield(self, held_s: float) -> bool:
        """Whether a lane that has had its slot for ``held_s`` has to leave it to another lane."""
        with self._changed:
            if not self._waiting():
                return False
            now_s = time.monotonic()
            if now_s - self._scarce_at > TURN_S:  # none has waited for some time
                self._scarce_since = now_s
            self._scarce_at = now_s
            if held_s < TURN_S or now_s - self._scarce_since < SCARCE_S:
                return False
            if self.count and not self._warned:
                self._warned = True
                self._log.warning(
                    "There are more lanes than slots on the Spark cluster, so the lanes take turns: add cores, or "
                    "decrease tasks.max.",
                    lanes=len({*self._holders.values(), *self._queue.values()}),
                    slots=self.count,
                )
            return True

    def _is_next(self, batch: str) -> bool:
        if self.count is None:
            return True
        waiting = self._waiting()
        # Lanes without a slot come first, then next batches of lanes that have one.
        order = [*waiting, *(other for other in self._queue if other not in waiting)]
        return batch in order[: max(0, self.count - len(self._holders))]

    def _waiting(self) -> list[str]:
        """Batches whose lane has no slot, in the order of arrival."""
        running = set(self._holders.values())
        return [batch for batch, lane in self._queue.items() if lane not in running]
