"""Shifts the wall clock of every Python process that has this folder on its PYTHONPATH.

The file named by MM2_TEST_CLOCK contains the offset in seconds and is read at each call. The monotonic clock is not
changed, as when an operator sets the time.
"""

import os
import time
from pathlib import Path

_right_time, _right_time_ns = time.time, time.time_ns
_file = Path(os.environ["MM2_TEST_CLOCK"])


def _off_s() -> int:
    return int(_file.read_text() or 0)


def _time() -> float:
    return _right_time() + _off_s()


def _time_ns() -> int:
    return _right_time_ns() + _off_s() * 1_000_000_000


time.time, time.time_ns = _time, _time_ns
