"""A lease on group membership: how long a worker may assume that its assignment is still valid.

A frozen process (SIGSTOP, live migration of a virtual machine, a suspended laptop) does not notice. The coordinator
receives no heartbeat, and after ``session.timeout.ms`` the group reassigns the work. After the process resumes, its
tasks would continue until the first response reports the lost membership. Membership is therefore held as a lease: each
response of the coordinator renews it, counted from when the request was *sent*, and every step with effects outside of
the process checks `is_valid` first. Java has no lease; a task may run twice there until the next rebalance has
completed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def now_s() -> float:
    """Seconds on a clock that continues while the process or the machine is suspended."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class GroupLease:
    """Thread-safe. A lost lease stays lost until `begin`."""

    def __init__(self, session_s: float, clock: Callable[[], float] = now_s) -> None:
        self._session_s = session_s
        self._clock = clock
        self._lock = threading.Lock()
        self._held = False
        self._lost = False
        self._until_s = 0.0
        #: While a response is outstanding the coordinator keeps this member, as long as the response is received in
        #: time.
        self._awaiting = False
        self._awake_s = clock()

    def begin(self) -> None:
        """The group has accepted or confirmed this member; the response has arrived since the last `tick`."""
        with self._lock:
            self._held, self._lost, self._awaiting = True, False, False
            self._until_s = self._awake_s + self._session_s

    def renew(self, asked_s: float) -> None:
        """The coordinator has accepted a request of this member that was sent at ``asked_s`` (of `now_s`)."""
        with self._lock:
            self._until_s = max(self._until_s, asked_s + self._session_s)

    def await_answer(self) -> None:
        """A request is in flight whose response the coordinator may delay; it keeps this member until it responds."""
        with self._lock:
            if self._is_valid():
                self._awaiting = True

    def answer_failed(self, grace_s: float) -> None:
        """The request failed: the lease is valid for ``grace_s`` or the rest of the session.

        Another coordinator may already be counting down the session timeout.
        """
        with self._lock:
            if self._awaiting:
                self._until_s = max(self._until_s, self._awake_s + grace_s)
            self._awaiting = False

    def lose(self) -> None:
        """The group has removed this worker."""
        with self._lock:
            self._lost = self._held

    def end(self) -> None:
        """There is nothing to lose: this worker has no work, or stops it in an orderly way."""
        with self._lock:
            self._held = self._lost = self._awaiting = False

    def is_valid(self) -> bool:
        """Whether this worker's assignment is still valid. Cheap; check it before each step with external effects."""
        with self._lock:
            return self._is_valid()

    def tick(self) -> bool:
        """Whether the lease is lost. Call it several times per session."""
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
