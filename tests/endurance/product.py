"""The product as users run it: connect-mirror-maker processes on one file, restarted after each kill."""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from subprocess import Popen
from typing import Any

import psutil

from bench.contenders import OURS, Flow, log_file
from bench.proctree import Session
from mm2.sandbox.process import end

_STOP_PATIENCE_S = 20.0
_LOG_TAIL_LINES = 20


class ProductFailed(Exception):
    """The product ended or stalled unexpectedly."""


class Product:
    """One process after another, each with its own log. Not thread-safe."""

    def __init__(self, flow: Flow, folder: Path, name: str, settings: dict[str, str]) -> None:
        self.name = name
        self._contender = replace(OURS, top=settings)
        self._flow = flow
        self._folder = folder
        self._starts = 0
        self._process: Popen[bytes] | None = None
        self._sessions: list[Session] = []

    @property
    def pid(self) -> int:
        """Also the id of the session of all its processes."""
        return self._running().pid

    @property
    def log(self) -> Path:
        """Log of the latest start."""
        return log_file(self._run_folder)

    def start(self) -> None:
        self._starts += 1
        self._process = self._contender.launch(self._flow, self._run_folder)
        self._sessions.append(Session(self._process.pid))

    def check(self) -> None:
        """Raise ProductFailed with the end of the log when it has ended."""
        process = self._running()
        if process.poll() is not None:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])
            raise ProductFailed(f"{self.name} ended unexpectedly with exit code {process.returncode}:\n{tail}")

    def terminate(self) -> None:
        """Send SIGTERM without waiting."""
        self._running().terminate()

    def kill9(self, *, whole_tree: bool) -> bool:
        """SIGKILL to all of its processes or only to the main one; False when it had ended already."""
        process = self._running()
        alive = process.poll() is None
        victims = self._sessions[-1].members() if whole_tree else []
        process.kill()
        for victim in victims:
            with suppress(psutil.Error):
                victim.kill()
        process.wait()
        return alive

    def stop(self) -> int:
        """Stop it cleanly, or kill it after a timeout; return the exit code."""
        return end(self._running(), patience_s=_STOP_PATIENCE_S)

    def orphans(self) -> list[psutil.Process]:
        """Running child processes of dead main processes."""
        is_alive = self._process is not None and self._process.poll() is None
        return [member for session in self._sessions[: -1 if is_alive else None] for member in session.members()]

    def wait_for_orphans(self, patience_s: float) -> bool:
        """Wait until no orphans are left; False after the timeout."""
        deadline = time.monotonic() + patience_s
        while self.orphans():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def clean_up(self) -> None:
        """Kill all processes that it has started and that still run."""
        if self._process is not None:
            end(self._process, patience_s=_STOP_PATIENCE_S)
        for orphan in self.orphans():
            with suppress(psutil.Error):
                orphan.kill()

    @property
    def _run_folder(self) -> Path:
        return self._folder / f"{self.name}-{self._starts}"

    def _running(self) -> Popen[bytes]:
        if self._process is None:
            raise ProductFailed(f"{self.name} was never started.")
        return self._process


class LogTail:
    """Reads the JSON lines of a log as they are written."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read_bytes = 0

    def new(self) -> Iterator[dict[str, Any]]:
        """Complete lines since the last call; lines that are not a JSON object (warnings of a JVM) are skipped."""
        if not self._file.exists():
            return
        with self._file.open("rb") as log:
            log.seek(self._read_bytes)
            for line in log:
                if not line.endswith(b"\n"):
                    break
                self._read_bytes += len(line)
                with suppress(ValueError):
                    row = json.loads(line)
                    if isinstance(row, dict):
                        yield row
