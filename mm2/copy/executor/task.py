"""The body of a copy job's Spark task, and the pre-import for Spark's Python daemon."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Iterator

from mm2.copy.executor.copier import Copier
from mm2.copy.executor.memory import give_back
from mm2.copy.spec import Assignment


def run(assignments: Iterable[str]) -> Iterator[str]:
    """Copy for one micro-batch and yield how it ended, as JSON: ``state``, and ``reason``.

    The final report itself has gone over the progress channel. Never raises: Spark would run the task again beside the first one. After an error of our own the iterator is left
    unfinished, and so Spark throws this Python worker away instead of using it for the next task.
    """
    from pyspark import TaskContext  # noqa: PLC0415  (there is none outside a task)

    context = TaskContext.get()
    attempt = 0 if context is None else context.attemptNumber()
    for text in assignments:
        if attempt > 0:
            # Spark lost the first attempt's worker; the driver has noticed and starts a new batch.
            yield json.dumps({"state": "refused", "reason": "a second attempt"})
            continue
        # The source's bytes and the target's acks alternate within microseconds; 5 ms slices would show as latency.
        sys.setswitchinterval(0.001)
        try:
            copier = Copier(Assignment(**json.loads(text)), attempt)
            reason = asyncio.run(copier.run())
        except Exception as error:  # noqa: BLE001
            yield json.dumps({"state": "failed", "reason": f"{type(error).__name__}: {error}"})
            return
        sound = copier.sound
        del copier
        give_back()
        yield json.dumps({"state": "stopped", "reason": reason})
        if not sound:
            return
