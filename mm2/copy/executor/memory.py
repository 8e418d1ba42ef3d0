"""Memory of a Python worker that Spark uses for one micro-batch after the other."""

from __future__ import annotations

import ctypes
import gc


def give_back() -> None:
    """Returns to the system what a micro-batch that is over has needed.

    The copier freezes what it is made of, much of it in cycles; frozen it would stay for good. And of what is freed glibc keeps all that
    lies below anything in use: after one backlog each worker held 25 MB of it for as long as it lived. Other C libraries (musl, macOS)
    cannot be asked, and are not.
    """
    gc.unfreeze()
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
