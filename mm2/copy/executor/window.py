"""How far the copying of a partition may run ahead of its committed position. Pure.

A crash repeats what was sent and not committed. Ahead of a steady flow that is little; but after an outage ten seconds of
traffic wait on the source and would be sent within milliseconds, long before the first commit. So a window opens as
commits come back, as TCP's does: it doubles when it was the limit, halves when it was not needed, and full speed is
reached after a few commits. Copying goes on without commits when they do not come back for a while: late is worse than
twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SMALLEST: Final = 250
LARGEST: Final = 1 << 22
PATIENCE_S: Final = 0.5


@dataclass(slots=True)
class Window:
    """Counts records; times in seconds of one steady clock."""

    size: int = SMALLEST
    ahead: int = 0  # sent, and their position not committed
    was_limit: bool = False
    confirmed_s: float = 0.0

    def sent(self, count: int, now_s: float) -> None:
        """So many records are on their way for the first time."""
        if not self.ahead:
            self.confirmed_s = now_s
        self.ahead += count

    def is_open(self, now_s: float) -> bool:
        """Whether another batch may be sent."""
        if self.ahead < self.size or now_s - self.confirmed_s > PATIENCE_S:
            return True
        self.was_limit = True
        return False

    @property
    def wants_commit(self) -> bool:
        """Half of it is used: a commit now keeps it from becoming the limit."""
        return self.ahead * 2 >= self.size

    def confirmed(self, count: int, now_s: float) -> None:
        """The position behind so many of the records is committed."""
        if self.was_limit:
            self.size = min(self.size * 2, LARGEST)
        elif self.ahead * 4 < self.size:
            self.size = max(self.size // 2, SMALLEST)
        self.was_limit = False
        self.ahead = max(0, self.ahead - count)
        self.confirmed_s = now_s
