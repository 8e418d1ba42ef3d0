"""Threads allocate from one arena, so that the memory of a process does not grow with its past threads."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

#: Threads allocate at the same time and free all but the last; prints how many arenas the C library has made for them.
_THREADS = """
import ctypes, sys, threading
from mm2.allocator import use_one_arena

print(use_one_arena() if sys.argv[1] == "one" else None)
together = threading.Barrier(8)
malloc = ctypes.CDLL(None).malloc  # without the GIL, as sockets and TLS do it
malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]

def allocate():
    together.wait()
    for _ in range(2000):
        assert malloc(3000)
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
libc = ctypes.CDLL(None)
libc.fdopen.restype, libc.fdopen.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_char_p]
libc.malloc_info.argtypes, libc.fclose.argtypes = [ctypes.c_int, ctypes.c_void_p], [ctypes.c_void_p]
sys.stdout.flush()
out = libc.fdopen(1, b"w")
libc.malloc_info(0, out)
libc.fclose(out)
"""


def _arenas(how: str, **environment: str) -> tuple[str, int]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    ran = subprocess.run(
        [sys.executable, "-c", _THREADS, how],
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    output, info = ran.stdout.split("\n", 1)
    return output, info.count("<heap nr=")


@pytest.mark.parametrize(
    ("how", "output", "one"), [("one", "True", True), ("as it is", "None", False)], ids=["one", "as-glibc-does"]
)
def test_threads_share_an_arena_only_when_configured(how: str, output: str, one: bool) -> None:
    answer, arenas = _arenas(how)
    assert answer == output
    assert (arenas == 1) is one, arenas


def test_a_number_of_arenas_chosen_by_the_user_is_kept() -> None:
    answer, arenas = _arenas("one", MALLOC_ARENA_MAX="3")
    assert answer == "False"
    assert arenas == 3
