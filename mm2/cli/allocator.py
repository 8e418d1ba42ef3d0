"""How the C library of a process that runs for years hands out memory."""

from __future__ import annotations

import ctypes
import os
from typing import Final

#: mallopt(3), M_ARENA_MAX of malloc.h.
_ARENA_MAX: Final = -8
_OWN_CHOICE: Final = "MALLOC_ARENA_MAX"


def use_one_arena() -> bool:
    """All threads share one arena from now on; True when that was set. Call it before threads begin.

    glibc gives threads arenas of their own, up to eight a core, so that they need not wait for each other. Under the GIL they
    hardly would; but what a thread frees stays in its arena for the next thread that happens to use it, and with some forty
    threads that fail, end and begin anew the process grew by 2 MB with every fault, all of it free. Somebody who sets
    MALLOC_ARENA_MAX knows better, and other C libraries (musl, macOS) have no arenas.
    """
    if os.environ.get(_OWN_CHOICE):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_ARENA_MAX, 1))
