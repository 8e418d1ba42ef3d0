"""Holds back the batches of one partition while source offsets before them have no offset on the target yet.

Only for partitions with offset preservation: there each source offset takes up the same offset on the target, so what has
no record is filled with transaction markers (`mm2.copy.markers`) before the next batch is sent.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from mm2.copy.executor.partition.events import BATCHES_QUEUED, GapDue, PartitionEvent
from mm2.copy.executor.partition.outbox import Outbox, OutgoingBatch
from mm2.copy.executor.partition.window import SourceRange, Window

#: Offsets that are filled before the position advances, and the partition's other work continues.
FILLED_AT_ONCE: Final = 50_000


@dataclass(slots=True, eq=False)
class GapQueue:
    """Batches and gaps of one partition, in source order.

    `GapDue` asks for the first gaps to be filled, once nothing is in flight; `filled` follows.

    If ``is_known``, the log end offset of the target follows from what was acknowledged: ``reached``, or a later one.
    ``generation`` is that of the partition's markers, -1 before the first ones. ``is_fenced``: it excludes all that may still be
    unanswered. ``is_clean``: nothing is, or markers of this generation show where the log ends. ``version`` changes when the
    partition starts elsewhere, so that a result of an earlier request is recognized. ``by_transactions``: transactions that
    fill gaps may be open, so nothing else is written before they have ended. The ledger has it before the first one.
    """

    outbox: Outbox
    window: Window
    emit: Callable[[PartitionEvent], None]
    reached: int = -1
    generation: int = -1
    is_fenced: bool = False
    is_clean: bool = False
    is_known: bool = False
    is_filling: bool = False
    by_transactions: bool = False
    version: int = 0
    waiting: deque[OutgoingBatch | SourceRange] = field(default_factory=deque)

    def begin(self, *, is_clean: bool) -> None:
        """The partition starts at another position, with nothing waiting."""
        self.waiting.clear()
        self.version += 1
        self.is_filling = False
        self.is_known, self.is_clean, self.is_fenced, self.reached = False, is_clean, is_clean, -1

    def fill(self, gap: SourceRange) -> None:
        """Fill the target offsets of a range without records, after the batches before it."""
        self.waiting.append(gap)
        self.advance()

    def fill_first(self, gap: SourceRange) -> None:
        """The same for the range of the batch that was first in the outbox: what is queued there has to wait."""
        self.waiting.extendleft(reversed(self.outbox.queue))
        self.outbox.queue.clear()
        self.waiting.appendleft(gap)
        self.advance()

    def advance(self) -> None:
        """Send what does not have to wait any more, and have the next gap filled when all before it is acknowledged."""
        before = len(self.outbox.queue)
        while self.waiting and not self.is_filling and not isinstance(first := self.waiting[0], SourceRange):
            self.waiting.popleft()
            self.outbox.queue.append(first)
        if len(self.outbox.queue) > before:
            self.emit(BATCHES_QUEUED)
        if self.waiting and not self.is_filling and self.outbox.idle:
            self.is_filling = True
            self.emit(GapDue(self.version))

    @property
    def next_gap(self) -> tuple[int, int]:
        """The source offsets that have to be filled now, as (first, after); (-1, -1): none."""
        gaps = list(self._next_gaps())
        return (gaps[0].first, gaps[-1].next_offset) if gaps else (-1, -1)

    @property
    def next_end(self) -> int:
        """The source offset after all gaps before the next batch, also those that are filled later; -1: there is none."""
        end = -1
        for one in self.waiting:
            if not isinstance(one, SourceRange):
                break
            end = one.next_offset
        return end

    @property
    def is_last(self) -> bool:
        """Whether no batch waits behind the gaps that are filled now."""
        return all(isinstance(one, SourceRange) for one in self.waiting)

    def filled(self, after: int) -> bool:
        """The target log ends at this offset. Gaps that end before it are done; False where the gaps that are being filled
        are not complete.
        """
        self.reached = after
        if after < self.next_gap[1]:
            return False
        self.is_filling = False
        self.outbox.end_offset = after
        while self.waiting:
            gap = self.waiting[0]
            if not isinstance(gap, SourceRange) or gap.next_offset > after:
                break
            self.waiting.popleft()
            self.window.done(gap)
        self.advance()
        return True

    def stop(self) -> None:
        """Send nothing more. Gaps that are being filled are completed."""
        gaps = [*itertools.takewhile(lambda one: isinstance(one, SourceRange), self.waiting)] if self.is_filling else []
        self.waiting.clear()
        self.waiting.extend(gaps)

    def is_settled(self, position: int) -> bool:
        """Whether the target ends at this position, as far as it is filled here, and no request is unanswered."""
        return not self.is_filling and self.reached <= position

    def _next_gaps(self) -> Iterator[SourceRange]:
        size = 0
        for one in self.waiting:
            if not isinstance(one, SourceRange) or size >= FILLED_AT_ONCE:
                return
            size += one.next_offset - one.first
            yield one
