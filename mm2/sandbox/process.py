"""Child processes that end with this process, also after Ctrl-C or `kill -9`."""

import ctypes
import os
import queue
import signal
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Self

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LIBC = ctypes.CDLL(None, use_errno=True)

_Order = tuple[Sequence[str], Path, Path | None, Mapping[str, str] | None, "Future[subprocess.Popen[bytes]]"]


class Startable(ABC):
    """Processes that run inside a `with` block."""

    @abstractmethod
    def start(self) -> Self:
        """Start them and wait until they can be used."""

    @abstractmethod
    def stop(self) -> None:
        """Stop them; does nothing when they are not running."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Spawner:
    """The only thread that forks.

    The kernel sends the death signal when the *thread* that forked ends, not the process (prctl(2)). If a test started
    a broker in a thread of its own, the broker would die with that thread. One thread that lives as long as the process
    therefore starts all child processes.
    """

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[_Order] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pid_of_thread: int | None = None

    def spawn(
        self, command: Sequence[str], output: Path, folder: Path | None, environment: Mapping[str, str] | None
    ) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._pid_of_thread != os.getpid():  # threads do not survive a fork
                self._orders = queue.SimpleQueue()
                threading.Thread(target=self._run, name="sandbox-spawner", daemon=True).start()
                self._pid_of_thread = os.getpid()
        answer: Future[subprocess.Popen[bytes]] = Future()
        self._orders.put((command, output, folder, environment, answer))
        return answer.result()

    def _run(self) -> None:
        while True:
            command, output, folder, environment, answer = self._orders.get()
            try:
                answer.set_result(_popen(command, output, folder, environment))
            except BaseException as exc:  # noqa: BLE001 - raised in the caller
                answer.set_exception(exc)


_SPAWNER = _Spawner()


def spawn(
    command: Sequence[str], *, output: Path, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start `command` in its own session (Ctrl-C on our terminal does not reach it), without standard input.

    Standard output and error are appended to the file `output`. The kernel kills the child when this process dies.
    Raises OSError when it cannot be started.
    """
    return _SPAWNER.spawn(command, output, folder, environment)


def end(process: subprocess.Popen[bytes], *, patience_s: float = 10.0) -> int:
    """Send SIGTERM, then SIGKILL to the whole session after `patience_s`; returns the exit code."""
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)  # a stopped process does not handle SIGTERM
        process.terminate()
        try:
            return process.wait(patience_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def _popen(
    command: Sequence[str], output: Path, folder: Path | None, environment: Mapping[str, str] | None
) -> subprocess.Popen[bytes]:
    parent = os.getpid()

    def die_with_parent() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died between fork and prctl
            os._exit(1)

    with output.open("ab") as file:
        return subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=dict(environment) if environment is not None else None,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - two system calls, no lock is taken between fork and exec
        )
