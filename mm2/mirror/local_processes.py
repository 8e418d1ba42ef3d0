"""The REST interfaces of the MirrorMaker processes that this user runs on this machine.

Each process writes a file, named after its process id, that `mm2` commands read. The process deletes it when it stops.
The file of a killed process is ignored.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Process:
    """A running process. ``url`` ends with a slash, ``flows`` are of the form ``A->B``."""

    pid: int
    url: str
    flows: tuple[str, ...]
    #: Start time of the process, in milliseconds since the epoch.
    since_ms: int
    #: Start time by the operating system, in clock ticks: a later process may have the same process id.
    birth: str


def write(url: str, flows: Sequence[str]) -> None:
    """Publish this process. A disk error is logged and otherwise ignored."""
    pid = os.getpid()
    process = Process(pid, url, tuple(flows), int(time.time() * 1000), _birth(pid))
    try:
        _folder().mkdir(parents=True, exist_ok=True, mode=0o700)
        _file(pid).write_text(json.dumps(asdict(process)), encoding="utf-8")
    except OSError as error:
        log.warning("Other commands will not find this process.", file=str(_file(pid)), reason=error.strerror)


def remove() -> None:
    """Delete the file that `write` created."""
    with contextlib.suppress(OSError):
        _file(os.getpid()).unlink(missing_ok=True)


def processes() -> list[Process]:
    """The processes that are running, oldest first."""
    found = []
    for file in _folder().glob("*.json"):
        try:
            fields = json.loads(file.read_text(encoding="utf-8"))
            process = Process(
                int(fields["pid"]), str(fields["url"]), tuple(fields["flows"]), int(fields["since_ms"]), fields["birth"]
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue  # deleted, or being written
        if process.birth and process.birth == _birth(process.pid):
            found.append(process)
        else:
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)
    return sorted(found, key=lambda process: process.since_ms)


def _folder() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "mm2" / "processes"


def _file(pid: int) -> Path:
    return _folder() / f"{pid}.json"


def _birth(pid: int) -> str:
    try:
        # The process name, in parentheses, may contain any character; the start time is the 20th field after it.
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
