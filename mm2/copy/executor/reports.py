"""Progress reports of one micro-batch to the driver."""

from __future__ import annotations

import time
from typing import Any, Final

from mm2.codec import encode
from mm2.copy.executor.commit.awake import AwakeCursors
from mm2.copy.executor.link import DriverLink
from mm2.copy.executor.partition.cursor import Cursor
from mm2.copy.executor.partition.window import SourceRange
from mm2.copy.spec import PartitionProgress
from mm2.copy.tally import Tally

_LATENCY_SAMPLES: Final = 4096


class Reports:
    """Counts what was copied, and reports partitions that have changed. Each report also asks for the lease."""

    def __init__(self, link: DriverLink, awake: AwakeCursors) -> None:
        self._link = link
        self._awake = awake
        self.tally = Tally()
        self._reported: dict[Cursor, tuple[Any, ...]] = {}
        self._clocks_apart_s = 0.0  # difference between wall clock and monotonic clock
        self._latencies: list[int] = []

    def compare_clocks(self) -> None:
        """Measure the difference between the clocks; the wall clock may have been set."""
        self._clocks_apart_s = time.time() - time.monotonic()

    def arrived(self, cursor: Cursor, copied: SourceRange) -> None:
        """Records are on the target and visible to consumers."""
        if copied.newest_ms <= 0 or copied.already_copied:
            return
        now_s = time.monotonic()
        newest_s = copied.newest_ms / 1000 - self._clocks_apart_s
        self.tally.acked(newest_s, copied.since, now_s)
        latency_ms = int((now_s - newest_s) * 1000) if now_s > newest_s else 0
        cursor.ages_ms.add(int((copied.since - newest_s) * 1000) if copied.since > newest_s else 0)
        cursor.latencies_ms.add(latency_ms)
        if len(self._latencies) < _LATENCY_SAMPLES:
            self._latencies.append(latency_ms)

    def report(self, failure: str) -> None:
        """Report to the driver; ``failure`` is why nothing can be copied at the moment."""
        self.compare_clocks()
        rows = []
        unreported = self._awake.unreported
        for cursor in list(unreported):
            seen = progress_key(cursor)
            if self._reported.get(cursor) != seen:
                self._reported[cursor] = seen
                rows.append(progress_of(cursor))
            elif cursor.is_at_rest:
                del unreported[cursor]
        tally = {"tally": encode(self.tally)} if rows else {}
        message = {"type": "progress", "partitions": rows, "latency_ms": self._latency(), "failure": failure}
        self._link.ask({**message, **tally})

    def _latency(self) -> list[int]:
        """p50, p99 and maximum from produce to acknowledgement since the last report, in ms."""
        samples = sorted(self._latencies)
        self._latencies.clear()
        if not samples:
            return []
        return [samples[len(samples) // 2], samples[min(len(samples) - 1, len(samples) * 99 // 100)], samples[-1]]


def progress_of(cursor: Cursor) -> PartitionProgress:
    """A snapshot of a partition for the driver."""
    window = cursor.window
    return PartitionProgress(
        cursor.spec.topic,
        cursor.spec.partition,
        window.position,
        window.target,
        cursor.high_watermark,
        *cursor.current_state(),
        cursor.has_ended,
        window.copied,
        window.bytes,
        dict(window.trail.gaps),
        cursor.lost_before + len(cursor.lost),
        window.foreign,
        list(cursor.ages_ms) or None,
        list(cursor.latencies_ms) or None,
    )


def progress_key(cursor: Cursor) -> tuple[Any, ...]:
    """A value that changes whenever `progress_of` changes. It costs a tenth of it.

    Gaps grow only where the position moves.
    """
    window = cursor.window
    return (
        window.position,
        window.target,
        cursor.high_watermark,
        window.copied,
        cursor.current_state(),
        cursor.has_ended,
        cursor.lost_before + len(cursor.lost),
        window.foreign,
    )
