"""The REST interfaces of the processes that this user runs on this machine, and the tokens for them.

Each process writes two files, named after its process id, that `mm2` commands read: its address, and its token. The
process deletes them when it stops. The files of a killed process are ignored. Other users can neither read them nor add
any: the folder has mode 0700, and it is used only if it belongs to this user (unless that is root) and is no symbolic link.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import structlog

from mm2.connect.api import ConnectError

log = structlog.get_logger(__name__)

_PRIVATE: Final = 0o700
_OTHERS: Final = 0o077
#: May use the files of another user (``DynamicUser`` of systemd).
_ROOT: Final = 0
_MAX_BYTES: Final = 1024 * 1024


@dataclass(frozen=True)
class Process:
    """A running process. ``url`` ends with a slash, ``flows`` are of the form ``A->B``, none for a Connect worker."""

    pid: int
    url: str
    flows: tuple[str, ...]
    #: Start time of the process, in milliseconds since the epoch.
    since_ms: int
    #: Start time by the operating system, in clock ticks: a later process may have the same process id.
    birth: str
    #: The absolute path of its properties file, "" if unknown.
    file: str = ""


class UntrustedFolder(ConnectError):
    """Another user owns the folder, can write to it, or has replaced it."""


def write(url: str, flows: Sequence[str], file: Path | None = None) -> None:
    """Publish the address of this process. A disk error is logged and otherwise ignored."""
    pid = os.getpid()
    name = "" if file is None else str(file.absolute())
    birth = _birth(pid)
    process = Process(pid, url, tuple(flows), _started_ms(birth), birth, name)
    _write(f"{pid}.json", json.dumps(asdict(process)))


def write_token(token: str) -> bool:
    """Publish the token of this process for its user. A disk error is logged; then the result is False."""
    return _write(f"{os.getpid()}.token", token)


def remove() -> None:
    """Delete the files of this process."""
    with contextlib.suppress(OSError, RuntimeError, UntrustedFolder), _open_folder(create=False) as folder:
        for name in (f"{os.getpid()}.json", f"{os.getpid()}.token"):
            _unlink(name, folder)


def processes() -> list[Process]:
    """The processes that are running, oldest first. Raises UntrustedFolder."""
    found = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, RuntimeError), _open_folder(create=False) as folder:
        for name in (name for name in os.listdir(folder) if name.endswith(".json")):  # noqa: PTH208 - of a descriptor
            try:
                fields = json.loads(_read(name, folder))
                process = Process(
                    int(fields["pid"]),
                    str(fields["url"]),
                    tuple(fields["flows"]),
                    int(fields["since_ms"]),
                    fields["birth"],
                    str(fields.get("file", "")),
                )
            except (OSError, ValueError, KeyError, TypeError):
                continue  # deleted, or not ours
            if process.birth and process.birth == _birth(process.pid):
                found.append(process)
            else:
                _unlink(name, folder)
                _unlink(f"{process.pid}.token", folder)
    return sorted(found, key=lambda process: process.since_ms)


def token_of(process: Process) -> str | None:
    """The token of a process; None if it could not write one. Raises UntrustedFolder."""
    try:
        with _open_folder(create=False) as folder:
            return _read(f"{process.pid}.token", folder).strip() or None
    except (OSError, RuntimeError):
        return None


def folder_path() -> Path:
    """Where the files are: below ``XDG_STATE_HOME`` or the home of the user. Raises RuntimeError without a home."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "mm2" / "processes"


@contextmanager
def _open_folder(*, create: bool) -> Iterator[int]:
    """A descriptor of the folder. ``create``: to publish files. Raises OSError, RuntimeError without a home, or UntrustedFolder."""
    path = folder_path()
    if create:
        path.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
    if path.is_symlink():
        raise UntrustedFolder(f"{path} is a symbolic link, so it is not used.")
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        status = os.fstat(folder)
        owner, own = status.st_uid, os.geteuid()
        if create and owner != own:
            # Root could write there, but the owner could replace the files, so no command would trust them.
            raise UntrustedFolder(
                f"{path} belongs to user {owner} and the process runs as user {own}: set HOME or XDG_STATE_HOME."
            )
        if own not in {owner, _ROOT}:
            raise UntrustedFolder(f"{path} belongs to another user, so it is not used: run the command as that user.")
        if stat.S_IMODE(status.st_mode) & _OTHERS:
            raise UntrustedFolder(f"{path} is accessible to other users, so it is not used: chmod 700 {path}")
        yield folder
    finally:
        os.close(folder)


def _write(name: str, text: str) -> bool:
    try:
        with _open_folder(create=True) as folder:
            new = f".{name}"
            _unlink(new, folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with os.fdopen(os.open(new, flags, 0o600, dir_fd=folder), "w", encoding="utf-8") as file:
                file.write(text)
            os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    except (OSError, RuntimeError, UntrustedFolder) as error:
        reason = getattr(error, "strerror", None) or str(error)
        log.warning("Commands such as mm2 pause will not find this process.", file=name, reason=reason)
        return False
    return True


def _read(name: str, folder: int) -> str:
    with os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder), encoding="utf-8") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.fstat(folder).st_uid:
            raise PermissionError(f"{name} is not a file of the owner of the folder")
        return file.read(_MAX_BYTES)


def _unlink(name: str, folder: int) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)


def _started_ms(birth: str) -> int:
    """When this process was started, from the clock ticks between the start of the system and its own. The address is published
    again with each change of the flows.
    """
    try:
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(birth) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        age_s = 0.0
    return int((time.time() - age_s) * 1000)


def _birth(pid: int) -> str:
    try:
        # The process name, in parentheses, may contain any character; the start time is the 20th field after it.
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
