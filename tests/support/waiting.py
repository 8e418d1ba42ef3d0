"""Waiting for a condition that another thread or process fulfils.

`MM2_TEST_PATIENCE` (a number, 1 unless set) multiplies every timeout, for use on a busy machine.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Final

PATIENCE: Final = float(os.environ.get("MM2_TEST_PATIENCE", "1"))

_LONGEST_INTERVAL_S: Final = 0.25


def wait_until(
    condition: Callable[[], object],
    timeout_s: float = 45.0,
    *,
    what: str = "",
    detail: Callable[[], object] = str,
    interval_s: float = 0.05,
) -> None:
    """Call `condition` until it returns something true: at first every `interval_s`, then at longer intervals.

    Raises AssertionError after `timeout_s` seconds, with `what` and the result of `detail`, for example the end of a log. A condition that
    raises IndexError or KeyError is not met yet: what it looks up is what another process has still to write.
    """
    timeout_s *= PATIENCE
    began_s = time.monotonic()

    def is_met() -> bool:
        try:
            return bool(condition())
        except LookupError:
            if time.monotonic() - began_s < timeout_s:
                return False
            raise

    while not is_met():
        waited_s = time.monotonic() - began_s
        assert waited_s < timeout_s, f"{what or 'the condition'}: not within {timeout_s:.0f} s: {detail()}"
        # Many conditions read topics or send requests: polled at a constant rate, they delay what they wait for.
        time.sleep(max(interval_s, min(waited_s / 20, _LONGEST_INTERVAL_S)))


async def wait_until_async(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    """Let other coroutines run until `condition` returns something true; TimeoutError after `timeout_s` seconds."""
    async with asyncio.timeout(timeout_s * PATIENCE):
        while not condition():  # noqa: ASYNC110  (what is waited for sets no event)
            await asyncio.sleep(0.005)
