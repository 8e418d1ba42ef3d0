"""How long a worker may believe that what the group has assigned to it is still its own.

A process that is frozen (SIGSTOP, a virtual machine that is moved, a laptop that sleeps) does not notice. The coordinator hears
no heartbeat, and after ``session.timeout.ms`` the group gives the work to others. When the process wakes up, its tasks would go
on until the first answer tells it. So membership is held like a lease here: each answer of the coordinator renews it, counted
from when the question was *sent*, and whoever is about to do something asks `is_valid` first. Java has no such thing; there a
task may run twice until the next rebalance is over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def now_s() -> float:
    """Seconds on a clock that goes on while the process, or the machine, sleeps."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class Lease:
    """Thread-safe. Once lost it stays lost until `begin`."""

    def __init__(self, session_s: float, clock: Callable[[], float] = now_s) -> None:
        self._session_s = session_s
        self._clock = clock
        self._lock = threading.Lock()
        self._held = False
        self._lost = False
        self._until_s = 0.0
        #: While the coordinator owes us an answer it keeps us a member, as long as we take the answer in time.
        self._awaiting = False
        self._awake_s = clock()

    def begin(self) -> None:
        """The group has just taken us in, or confirmed us: the coordinator's answer has come since the last `tick`."""
        with self._lock:
            self._held, self._lost, self._awaiting = True, False, False
            self._until_s = self._awake_s + self._session_s

    def renew(self, asked_s: float) -> None:
        """The coordinator has answered a question sent at ``asked_s`` (of `now_s`) and knows us."""
        with self._lock:
            self._until_s = max(self._until_s, asked_s + self._session_s)

    def await_answer(self) -> None:
        """A question is on its way that the coordinator may take its time for: it keeps us meanwhile."""
        with self._lock:
            if self._is_valid():
                self._awaiting = True

    def answer_failed(self, grace_s: float) -> None:
        """No answer to that; another coordinator may count already, so little time is left."""
        with self._lock:
            if self._awaiting:
                self._until_s = max(self._until_s, self._awake_s + grace_s)
            self._awaiting = False

    def lose(self) -> None:
        """The group has gone on without this worker."""
        with self._lock:
            self._lost = self._held

    def end(self) -> None:
        """There is nothing to lose: this worker has no work, or stops it in order."""
        with self._lock:
            self._held = self._lost = self._awaiting = False

    def is_valid(self) -> bool:
        """Whether what this worker has is still its own. Cheap; to be asked before each step that others would notice."""
        with self._lock:
            return self._is_valid()

    def tick(self) -> bool:
        """To be called several times per session; whether the lease is lost."""
        with self._lock:
            valid = self._is_valid()
            self._awake_s = self._clock()
            return not valid

    def _is_valid(self) -> bool:
        if self._lost:
            return False
        if not self._held:
            return True
        now = self._clock()
        ends_s = self._awake_s + self._session_s if self._awaiting else self._until_s
        if now > ends_s:
            self._lost = True
        return not self._lost
