"""A wrong wall clock for every Python process that finds this folder on its PYTHONPATH: so many seconds off as the file
named by MM2_TEST_CLOCK says, at any moment. The monotonic clock is right, as it is when somebody sets the time.
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
