"""The limit of the lines that Spark's JVM writes, and a JVM that cannot be started."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from pathlib import Path

import pytest

from mm2.copy.driver.jvm import Jvm, LineLimit
from mm2.copy.driver.settings import spark_props


def test_lines_beyond_the_limit_are_counted_until_the_next_minute() -> None:
    limit = LineLimit(2)
    first = [line for number in range(5) for line in limit.allowed(b"%d\n" % number, 100.0 + number)]
    assert first == [b"0\n", b"1\n", b"[spark] 2 lines within a minute: the rest of this minute is omitted\n"]
    assert list(limit.allowed(b"5\n", 160.0)) == [b"[spark] 3 lines were omitted\n", b"5\n"]


def test_a_minute_within_the_limit_says_nothing() -> None:
    limit = LineLimit(3)
    written = [line for number in range(6) for line in limit.allowed(b"%d\n" % number, 60.0 * (number // 2))]
    assert written == [b"%d\n" % number for number in range(6)]


def descriptors() -> set[tuple[str, str]]:
    """Number and name of each open file and pipe. Sockets may be of threads that other tests have left."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add((link.name, str(link.readlink())))
    return {(number, name) for number, name in found if name.startswith(("/", "pipe:"))}


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[1,1,1024]"])
def test_a_jvm_that_cannot_be_started_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, master: str
) -> None:
    """It is tried again every minute."""

    def no_memory(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(subprocess, "Popen", no_memory)
    props, before = spark_props({"spark.master": master}), descriptors()
    with pytest.raises(OSError, match="Cannot allocate memory"):
        Jvm(props)
    assert list(tmp_path.iterdir()) == []
    assert descriptors() <= before, "other tests' garbage may have been closed meanwhile, nothing may have been opened"
