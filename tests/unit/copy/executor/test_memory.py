"""What a micro-batch has needed goes back to the system when it is over."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

#: Pieces as small as those that glibc takes from its heap, the last of which stays in use; prints MB before and after.
_BACKLOG = """
import gc
import psutil
from mm2.copy.executor.memory import release_memory

class Ring:
    def __init__(self, piece):
        self.piece, self.itself = piece, self

def rss():
    return psutil.Process().memory_info().rss >> 20

rings = [Ring(bytearray(b"x" * 60_000)) for _ in range(1_000)]
kept = bytearray(60_000)
gc.freeze()
del rings
gc.collect()
print(rss())
release_memory()
print(rss(), gc.get_freeze_count())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be asked for it")
def test_frozen_and_freed_memory_is_released() -> None:
    ran = subprocess.run([sys.executable, "-c", _BACKLOG], capture_output=True, text=True, timeout=60, check=True)
    before, after, frozen = map(int, ran.stdout.split())
    assert before - after > 40, (before, after)
    assert frozen == 0
