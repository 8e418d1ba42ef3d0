"""The partitions of a micro-batch that are awake. All others are at rest: their state is committed and reported, and does not
change before they are woken.

Of thousands of partitions most are at rest. To compare the state of each once a second took most of an idle executor's CPU time.
"""

from __future__ import annotations

import time

from mm2.copy.executor.partition.cursor import Cursor


class AwakeCursors:
    """Cursors whose state has to be compared with what was committed, and with what was reported.

    `Commits` and `Reports` remove a cursor when both are the same and `Cursor.is_at_rest`. ``expected`` are those without a start
    position: another micro-batch may be copying them, so they are neither committed nor reported.
    """

    def __init__(self) -> None:
        # Dictionaries, because they keep the order.
        self.uncommitted: dict[Cursor, None] = {}
        self.unreported: dict[Cursor, None] = {}
        self.expected: set[Cursor] = set()

    def begin(self, cursor: Cursor) -> None:
        """A cursor has got its start position."""
        self.expected.discard(cursor)
        self.wake(cursor)

    def wake(self, cursor: Cursor) -> None:
        """The state of a cursor changes, or is about to."""
        if cursor in self.expected:
            return
        if cursor not in self.uncommitted:
            cursor.rate.measure(time.monotonic(), cursor.window.bytes)  # nothing was copied while it was at rest
            self.uncommitted[cursor] = None
        self.unreported[cursor] = None
