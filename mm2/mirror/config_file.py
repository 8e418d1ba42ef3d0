"""MirrorMaker's file while the process runs: whether it has to be read anew.

It is looked at, not subscribed to: a look is one stat, and works for files on network drives and for those that Kubernetes
puts in place by turning a link round.
"""

from __future__ import annotations

import threading
from pathlib import Path

from mm2.config.properties import load_properties


class ConfigFile:
    """``asked`` is set (by a signal) when the file is to be read whether it has changed or not: what its references to
    config providers stand for may have."""

    def __init__(self, path: Path, asked: threading.Event) -> None:
        self.path = path
        self._asked = asked
        self._loaded: tuple[int, ...] | None = None
        self._seen: tuple[int, ...] | None = None

    def load(self) -> dict[str, str]:
        """Key → value. Raises UnreadableFile or ConfigException; :meth:`changed` is False then, too, until the next change."""
        self._loaded = self._seen = self._stamp()
        return load_properties(self.path)

    def changed(self) -> bool:
        """Whether to :meth:`load` it, which is so when a change is one look old: who writes it may not be done yet."""
        if self._asked.is_set():
            self._asked.clear()
            return True
        stamp, before = self._stamp(), self._seen
        self._seen = stamp
        # A file that is not there is one that is about to be replaced.
        return stamp is not None and stamp != self._loaded and stamp == before

    def _stamp(self) -> tuple[int, ...] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        # With its rights, by which alone one that could not be read may be mended.
        rights = (found.st_mode, found.st_uid, found.st_gid)
        return (found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev, *rights)
