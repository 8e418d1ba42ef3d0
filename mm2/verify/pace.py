"""How many bytes per second may be read, both sides together."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_MOST_BYTES: Final = 8 << 20
_LEAST_BYTES: Final = 64 << 10
_NAP_S: Final = 0.5


class Pace:
    """``rate`` 0: no limit. There is no credit for times when less was read: a limit is for those who share the line."""

    def __init__(self, rate: float, heard: Callable[[], None] = lambda: None) -> None:
        self._rate = rate
        self._heard = heard
        self._free_at = time.monotonic()

    @property
    def piece(self) -> int:
        """Bytes to ask for at a time."""
        return _MOST_BYTES if not self._rate else int(min(_MOST_BYTES, max(_LEAST_BYTES, self._rate / 4)))

    def came(self, size: int) -> None:
        """So much has been read."""
        if self._rate:
            self._free_at = max(self._free_at, time.monotonic()) + size / self._rate

    def wait(self) -> None:
        """Until more may be asked for; says now and then that it is alive."""
        while (left := self._free_at - time.monotonic()) > 0:
            time.sleep(min(left, _NAP_S))
            self._heard()
