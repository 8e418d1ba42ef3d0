"""Watches MirrorMaker's properties file for changes while the process runs.

The file is polled, not subscribed to. A poll is one stat call; it also works on network drives and for files that
Kubernetes replaces by changing a symbolic link.
"""

from __future__ import annotations

import threading
from pathlib import Path

from mm2.config.files.properties import file_stamp, load_properties


class ConfigFile:
    """``asked``, set by a signal handler, requests a read even if the file is unchanged.

    The values behind its config provider references may have changed.
    """

    def __init__(self, path: Path, asked: threading.Event) -> None:
        self.path = path
        self._asked = asked
        self._loaded: tuple[int, ...] | None = None
        self._seen: tuple[int, ...] | None = None

    def load(self) -> dict[str, str]:
        """Return the properties by key.

        Raises UnreadableFile or ConfigException. In all cases :meth:`changed` is False until the next change.
        """
        self._loaded = self._seen = file_stamp(self.path)
        return load_properties(self.path)

    def changed(self) -> bool:
        """Whether to call :meth:`load`.

        A change is reported one poll after it was seen, since the writer may not have finished.
        """
        if self._asked.is_set():
            self._asked.clear()
            return True
        stamp, before = file_stamp(self.path), self._seen
        self._seen = stamp
        # A missing file is assumed to be about to be replaced.
        return stamp is not None and stamp != self._loaded and stamp == before
