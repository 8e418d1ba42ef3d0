"""Lines out of bytes that come piece by piece."""

from __future__ import annotations

import re
from collections import deque
from typing import Final

_END: Final = re.compile(rb"\r\n|\n|\r")


class LineSplitter:
    """Lines end with LF, CR LF or CR, as for Java's readers. A line that has not ended yet is kept."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._searched = 0
        self._lines: deque[tuple[bytes, int]] = deque()

    def feed(self, data: bytes) -> None:
        """The next bytes."""
        self._rest += data
        at, start = 0, self._searched
        while (end := _END.search(self._rest, start)) is not None:
            if end.group() == b"\r" and end.end() == len(self._rest):
                break  # an LF may follow
            self._lines.append((bytes(self._rest[at : end.start()]), end.end() - at))
            at = start = end.end()
        del self._rest[:at]
        # What has been looked at is not looked at again, but for a last CR.
        self._searched = max(0, len(self._rest) - self._rest.endswith(b"\r"))

    def next_line(self) -> tuple[bytes, int] | None:
        """The next whole line without its end, and how many bytes it took with it; None when there is none."""
        return self._lines.popleft() if self._lines else None
