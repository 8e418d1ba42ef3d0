"""The limit of the lines that Spark's JVM writes, and a JVM that cannot be started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mm2.copy.driver.jvm import LineLimit


def test_lines_beyond_the_limit_are_counted_until_the_next_minute() -> None:
    limit = LineLimit(2)
    first = [line for number in range(5) for line in limit.allowed(b"%d\n" % number, 100.0 + number)]
    assert first == [b"0\n", b"1\n", b"[spark] 2 lines within a minute: the rest of this minute is omitted\n"]
    assert list(limit.allowed(b"5\n", 160.0)) == [b"[spark] 3 lines were omitted\n", b"5\n"]


def test_a_minute_within_the_limit_says_nothing() -> None:
    limit = LineLimit(3)
    written = [line for number in range(6) for line in limit.allowed(b"%d\n" % number, 60.0 * (number // 2))]
    assert written == [b"%d\n" % number for number in range(6)]


#: In a process of its own, because threads of other tests open and close files meanwhile.
_PROGRAM = """
import os, subprocess, sys, tempfile
from mm2.copy.driver.jvm import Jvm
from mm2.copy.driver.settings import spark_props

def no_memory(*_, **__):
    raise OSError(12, "Cannot allocate memory")

tempfile.tempdir, subprocess.Popen = sys.argv[1], no_memory
props, before = spark_props({"spark.master": sys.argv[2]}), len(os.listdir("/proc/self/fd"))
try:
    Jvm(props)
except OSError as error:
    print(error.errno, len(os.listdir("/proc/self/fd")) - before, os.listdir(sys.argv[1]))
"""


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[1,1,1024]"])
def test_a_jvm_that_cannot_be_started_leaves_nothing_behind(tmp_path: Path, master: str) -> None:
    """It is tried again every minute."""
    program = [sys.executable, "-P", "-c", _PROGRAM, str(tmp_path), master]
    done = subprocess.run(program, check=True, capture_output=True, text=True)
    assert done.stdout == "12 0 []\n", done
