"""Java source files that print the results of Kafka's own classes, run by `java File.java`."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from mm2.sandbox.jars import classpath
from tests.support.java import CONNECT_MIRROR


def run_source(java: Sequence[str], source: Path, *arguments: str, text: str | None = None) -> str:
    """Standard output of ``source`` under ``java`` (the executable and its options), with ``text`` as its input."""
    ran = subprocess.run(
        [*java, "-cp", classpath(CONNECT_MIRROR), str(source), *arguments],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    if "jdk.compiler" in ran.stderr:
        pytest.fail(
            "This compiles Java and wants a JDK, not only a runtime: on Debian, apt install openjdk-17-jdk-headless"
        )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout
