"""Stall the disk of a broker: the threads that write to the log are stopped, all others continue.

A request handler or a replica fetcher that appends to a log on a stalled disk blocks in write(2), while network threads send no
responses and the heartbeat to the controller continues, so that the broker is not fenced. Stopping those threads with ptrace(2)
has the same effect and needs only the permission to trace child processes.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

_PTRACE_SEIZE, _PTRACE_INTERRUPT, _PTRACE_DETACH = 0x4206, 0x4207, 17  # linux/ptrace.h
_WALL = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.ptrace.restype = ctypes.c_long
_LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
#: The kernel keeps 15 bytes of a name: request handlers, and network threads and acceptors, which wait in epoll_wait(2).
_DATA_PLANE = "data-plane-kafk"
_FETCHER = "ReplicaFetcherT"
_EPOLL = frozenset({"232", "281"})  # epoll_wait, epoll_pwait on x86-64
_CHECKS, _CHECK_S = 10, 0.01


def writers(pid: int) -> list[int]:
    """Ids of the broker threads that append to logs. Raises OSError when there is no such process."""
    tasks = list(Path(f"/proc/{pid}/task").iterdir())
    polling: set[int] = set()
    for _ in range(_CHECKS):  # a network thread that is busy in one check is idle in another
        polling.update(int(task.name) for task in tasks if _read(task / "syscall").partition(" ")[0] in _EPOLL)
        time.sleep(_CHECK_S)
    return sorted(
        int(task.name)
        for task in tasks
        if (name := _read(task / "comm")) == _FETCHER or (name == _DATA_PLANE and int(task.name) not in polling)
    )


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""  # the thread has ended


def stop_threads(threads: Sequence[int]) -> list[int]:
    """Stop threads until `resume_threads` is called by the same thread or the calling thread ends; return the stopped ones.

    Raises OSError when the kernel does not allow it.
    """
    stopped: list[int] = []
    for thread in threads:
        if _LIBC.ptrace(_PTRACE_SEIZE, thread, None, None) != 0:
            error = ctypes.get_errno()
            if isinstance(OSError(error, ""), ProcessLookupError):
                continue  # it has ended
            resume_threads(stopped)
            raise OSError(error, os.strerror(error))
        _LIBC.ptrace(_PTRACE_INTERRUPT, thread, None, None)
        with suppress(OSError):
            os.waitpid(thread, _WALL)
            stopped.append(thread)
    return stopped


def resume_threads(threads: Sequence[int]) -> None:
    """Resume stopped threads; a thread that has died is not an error."""
    for thread in threads:
        _LIBC.ptrace(_PTRACE_DETACH, thread, None, None)


class Script:
    """Runs actions at times after `start` in its own thread; `finish` skips the remaining ones and then calls `undo`."""

    def __init__(self, steps: Sequence[tuple[float, Callable[[], object]]], undo: Callable[[], object]) -> None:
        self._steps = sorted(steps, key=lambda step: step[0])
        self._undo = undo
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="fault", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """End the script. Raises the exception of an action."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        began_s = time.monotonic()
        try:
            for at_s, act in self._steps:
                if self._ending.wait(max(0.0, began_s + at_s - time.monotonic())):
                    break
                act()
        except Exception as exc:  # noqa: BLE001 - raised by `finish`
            self._failure = exc
        finally:
            # ptrace(2) must be called by the thread that stopped the others, so `undo` is called here.
            self._ending.wait()
            self._undo()


class DiskStall:
    """Stops and resumes the writer threads of a broker; call all methods from one thread.

    `pause` and `resume` are used for the whole process where the kernel does not allow ptrace(2).
    """

    def __init__(self, pid: Callable[[], int], pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self._pid = pid
        self._pause = pause
        self._resume = resume
        self._threads: list[int] = []
        self._whole = False
        self.note = ""
        """What was stopped, for the report."""

    def stall(self) -> None:
        self.release()
        try:
            self._threads = stop_threads(writers(self._pid()))
            self.note = f"{len(self._threads)} threads stopped"
        except PermissionError:
            self._whole = True
            self.note = "the whole process stopped"
            self._pause()

    def release(self) -> None:
        resume_threads(self._threads)
        self._threads = []
        if self._whole:
            self._whole = False
            self._resume()
