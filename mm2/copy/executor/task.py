"""The body of a copy job's Spark task. Spark's Python daemon imports it in advance."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Iterator

from mm2.copy.executor.copier import Copier
from mm2.copy.executor.memory import release_memory
from mm2.copy.spec import Assignment, OtherVersion


def run(assignments: Iterable[str]) -> Iterator[str]:
    """Copy for one micro-batch and yield how it ended, as JSON: ``state`` and ``reason``.

    The final report is sent over the progress channel. Never raises, because Spark would then run the task again in
    parallel. After an internal error the iterator is left unfinished, so Spark discards this Python worker instead of
    using it for the next task.
    """
    from pyspark import TaskContext  # noqa: PLC0415  (there is none outside a task)

    context = TaskContext.get()
    attempt = 0 if context is None else context.attemptNumber()
    for text in assignments:
        if attempt > 0:
            # It does so although `spark.task.maxFailures` is 1, if the failure is not the task's. The driver starts a new batch.
            yield json.dumps({"state": "refused", "reason": "Spark has lost the executor, and started the task again"})
            continue
        # Fetch responses and acknowledgements alternate within microseconds; the default interval of 5 ms would add latency.
        sys.setswitchinterval(0.001)
        try:
            copier = Copier(Assignment.of(text), attempt)
            reason = asyncio.run(copier.run())
        except OtherVersion as error:
            yield json.dumps({"state": "failed", "reason": str(error)})
            return
        except Exception as error:  # noqa: BLE001
            yield json.dumps({"state": "failed", "reason": f"{type(error).__name__}: {error}"})
            return
        healthy = copier.healthy
        del copier
        release_memory()
        yield json.dumps({"state": "stopped", "reason": reason})
        if not healthy:
            return
