"""Starts this project's programs as forks of a process that has imported them.

The imports take two thirds of the processor time of a start, and the tests start hundreds of processes. Apart from this
a fork runs the program as `python -P -m` does: in its own session, with its own arguments, environment and output. Only
`/proc` has the command line and the environment of the process that it was forked from.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mm2.sandbox.process import spawn
from tests.support.waiting import PATIENCE

ROOT: Final = Path(__file__).parents[2]
PYTHON: Final = (sys.executable, "-P", "-m")
_PROGRAMS: Final = tuple(
    f"mm2.cli.{name}" for name in ("connect_distributed", "connect_standalone", "connect_mirror_maker")
)
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER: Final = 36
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_ORDER_BYTES: Final = 1 << 20


class Forked(subprocess.Popen[bytes]):
    """A program that `_Template` has forked for this process."""

    def _execute_child(self, args: Mapping[str, Any], *_: object) -> None:
        self.pid: int = _TEMPLATE.fork(args)
        self._child_created = True


class _Template:
    """The process with the imported programs, started with the first order; it ends with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._orders: socket.socket | None = None

    def fork(self, order: Mapping[str, Any]) -> int:
        """Have a process forked that is a child of this one; returns its id."""
        with self._lock:
            if self._orders is None:
                self._orders = _start()
            # The process between the two has ended when the answer arrives, and Linux gives its child to this process.
            _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)
            try:
                self._orders.send(json.dumps(order).encode())
                answer = self._orders.recv(_ORDER_BYTES)
            finally:
                _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 0)
        assert answer, "the process that forks programs has ended"
        return int(answer)


_TEMPLATE: Final = _Template()


def start(
    command: Sequence[str], *, output: Path, folder: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a command as `mm2.sandbox.process.spawn` does: in pytest the programs of this project as forks.

    Benchmarks and long runs, which also use the helpers of the tests, execute them, as users do.
    """
    forks = "PYTEST_VERSION" in os.environ and environment.get("PYTHONPATH") == str(ROOT)
    if not forks or tuple(command[:3]) != PYTHON or command[3] not in _PROGRAMS:
        return spawn(command, output=output, folder=folder, environment=environment)
    return _fork(command, output, output, folder, environment)


def run(program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end as a fork, with these environment variables only; returns both of its outputs."""
    command = [*PYTHON, f"mm2.cli.{program}", *arguments]
    environment = {"PYTHONPATH": str(ROOT), **variables}
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder) / "output", Path(folder) / "errors"
        code = _fork(command, output, errors, ROOT, environment).wait(100 * PATIENCE)
        return subprocess.CompletedProcess(command, code, output.read_text(), errors.read_text())


def _fork(
    command: Sequence[str], output: Path, errors: Path, folder: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    for file in (output, errors):
        file.touch()  # as with `spawn`, they can be read when this returns
    order = {
        "program": command[3],
        "arguments": list(command[4:]),
        "outputs": [str(output.absolute()), str(errors.absolute())],
        "folder": str(folder.absolute()),
        "environment": dict(environment),
        "parent": os.getpid(),
    }
    return Forked(order)  # type: ignore[call-overload, no-any-return]


def _start() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )

    def end() -> None:
        ours.close()
        process.wait(10)

    atexit.register(end)
    return ours


# -- in the process that forks


def _serve(orders: socket.socket) -> dict[str, Any]:
    """Returns in each forked process, with its order. Ends this process with the one that sends the orders."""
    while data := orders.recv(_ORDER_BYTES):
        order: dict[str, Any] = json.loads(data)
        reader, writer = os.pipe()
        middle = os.fork()
        if middle == 0:
            child = os.fork()
            if child == 0:
                orders.close()
                os.close(reader)
                os.close(writer)
                return order
            os.write(writer, str(child).encode())
            os._exit(0)
        os.close(writer)
        os.waitpid(middle, 0)
        orders.send(os.read(reader, 32))
        os.close(reader)
    os._exit(0)


def _become(order: Mapping[str, Any]) -> None:
    os.setsid()
    while os.getppid() != order["parent"]:
        if os.getppid() == 1:
            os._exit(1)  # the test has ended
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != order["parent"]:
        os._exit(1)
    for descriptor, name in enumerate(order["outputs"], 1):
        output = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(output, descriptor)
        os.close(output)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    tempfile.tempdir = None  # TMPDIR may be another one


def _run(order: Mapping[str, Any]) -> None:
    """Run the program as the main module, as `python -m` does."""
    _become(order)
    sys.argv[1:] = order["arguments"]
    del sys.modules[order["program"]]  # imported only for its imports
    runpy.run_module(order["program"], run_name="__main__", alter_sys=True)


def _main() -> None:
    gc.disable()
    for module in (*_PROGRAMS, "pyspark"):
        importlib.import_module(module)
    gc.freeze()  # a collection in a fork would copy the memory of all these objects
    with socket.socket(fileno=int(sys.argv[1])) as orders:
        order = _serve(orders)
    gc.enable()
    _run(order)


if __name__ == "__main__":
    _main()
