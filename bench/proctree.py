"""What a process and all its descendants use: CPU time and memory.

Everything the sandbox starts leads a session of its own (`mm2.sandbox.process.spawn`), and neither Spark's JVM nor its
Python daemon leaves it. So the members of the session are the tree, also when a parent in between has died.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class CpuTime:
    """In seconds, dead and reaped children included."""

    user_s: float = 0.0
    system_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.user_s + self.system_s

    def __add__(self, other: "CpuTime") -> "CpuTime":
        return CpuTime(self.user_s + other.user_s, self.system_s + other.system_s)

    def __sub__(self, other: "CpuTime") -> "CpuTime":
        return CpuTime(self.user_s - other.user_s, self.system_s - other.system_s)


def session_members(session: int) -> list[psutil.Process]:
    """The living processes of the session that `session` led or leads; zombies are not living."""
    found = []
    for pid in psutil.pids():
        with suppress(OSError, psutil.Error):
            if os.getsid(pid) == session:
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
    return found


class Session:
    """The session that a child process leads or led. Create it before the child is waited for: its id can then be given to another
    process, and members of that one's session must not be taken for ours.
    """

    def __init__(self, leader: int) -> None:
        self._leader = psutil.Process(leader)

    def members(self) -> list[psutil.Process]:
        """Its living processes."""
        found = session_members(self._leader.pid)
        # psutil compares processes by id and creation time.
        return [] if any(one.pid == self._leader.pid and one != self._leader for one in found) else found


def cpu_time(process: psutil.Process) -> CpuTime:
    """CPU time of a process and the children it has reaped. Raises psutil.Error when it has ended."""
    times = process.cpu_times()
    return CpuTime(times.user + times.children_user, times.system + times.children_system)


def tree_cpu_time(session: int) -> CpuTime:
    """Of everything that runs or ran in the session. Exact while its leader runs: a dead process is counted by its parent."""
    total = CpuTime()
    for process in session_members(session):
        with suppress(psutil.Error):
            total += cpu_time(process)
    return total


def tree_rss_bytes(session: int) -> int:
    """Resident memory of all members; a page that two of them share counts twice."""
    total = 0
    for process in session_members(session):
        with suppress(psutil.Error):
            total += process.memory_info().rss
    return total


class PeakMemory:
    """The highest resident memory of a session that any of the samples saw."""

    def __init__(self, session: int) -> None:
        self.peak_bytes = 0
        self._session = session
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="peak-memory", daemon=True)

    @contextmanager
    def watching(self) -> Iterator["PeakMemory"]:
        self._thread.start()
        try:
            yield self
        finally:
            self._stopping.set()
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(0.2):
            self.peak_bytes = max(self.peak_bytes, tree_rss_bytes(self._session))
