"""The memory allocator of the C library, and Python's garbage collector, in long-running processes."""

from __future__ import annotations

import ctypes
import gc
import os
from typing import Final

#: mallopt(3), M_ARENA_MAX of malloc.h.
_ARENA_MAX: Final = -8
#: Numbers of collections of young objects before older ones, and of these before all, are examined.
_GENERATIONS: Final = (10, 10)
_OWN_CHOICE: Final = "MALLOC_ARENA_MAX"


def use_one_arena() -> bool:
    """Make all threads share one arena; True if that was set. Must be called before threads start.

    glibc gives threads separate arenas, up to eight per core, to reduce lock contention. Under the GIL there is little
    contention. Memory that a thread frees stays in its arena for the next thread that uses it: with some forty threads
    that fail, end and restart, the process grew by 2 MB with each fault, all of it free memory. A MALLOC_ARENA_MAX set
    by the user takes precedence. Other C libraries (musl, macOS) have no arenas.
    """
    if os.environ.get(_OWN_CHOICE):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_ARENA_MAX, 1))


def collect_less_often(new_objects: int = 10_000) -> None:
    """Make the collector of reference cycles run less often than with Python's default of 700 new objects.

    Metadata of thousands of topics, or offsets of thousands of groups, are some 10,000 objects that live for a moment.
    Objects that live during a collection are counted as old ones, and as soon as there are enough, all objects of the
    process are examined: with Python's default a third of the driver's processor time with 2,000 topics without traffic,
    with 10,000 a sixth.

    Cycles wait until there are ``new_objects``, with what they refer to, such as the bodies of requests.
    """
    gc.set_threshold(new_objects, *_GENERATIONS)


def return_free_memory() -> None:
    """Return free memory to the operating system. glibc keeps what lies below an allocation in use.

    Other C libraries (musl, macOS) have no malloc_trim.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
