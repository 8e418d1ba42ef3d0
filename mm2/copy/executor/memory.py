"""Memory of a Python worker that Spark reuses for consecutive micro-batches."""

from __future__ import annotations

import gc

from mm2.allocator import return_free_memory


def release_memory() -> None:
    """Return the memory of a finished micro-batch to the operating system.

    The copier freezes its objects, many of them in reference cycles, so they would never be collected. After one
    backlog each worker kept 25 MB of free memory for the rest of its life.
    """
    gc.unfreeze()
    gc.collect()
    return_free_memory()
