"""Java source files that print the results of Kafka's own classes, run by `java File.java`."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from mm2.sandbox.jars import KAFKA_VERSION
from tests.support.java import connect_java


def run_source(
    source: Path, *arguments: str, options: Sequence[str] = (), text: str | None = None, version: str = KAFKA_VERSION
) -> str:
    """Standard output of ``source`` in a JVM with these options and Connect of a version, with ``text`` as its input."""
    ran = subprocess.run(
        [*connect_java("512m", *options, version=version), str(source), *arguments],
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
