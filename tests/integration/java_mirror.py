"""Java's MirrorMaker 2 and its client, for comparison: what it leaves on the clusters, and what it reads of ours."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mm2.sandbox.jars import CONNECT_MIRROR, classpath
from mm2.sandbox.java import java_executable
from mm2.sandbox.process import spawn
from tests.integration.mirror_process import MirrorProcess

_ORACLE = Path(__file__).parent / "java" / "MirrorOracle.java"
_LOGGING = """\
status = error
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %-5p %c{1}: %m%n
"""


def _java(heap: str) -> list[str]:
    return [java_executable(), f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]


class JavaMirrorProcess(MirrorProcess):
    """One start of Kafka 4.3.0's connect-mirror-maker.sh; its log is text, not JSON."""

    def __init__(self, file: Path, log: Path, *clusters: str) -> None:
        self.log = log
        logging = file.parent / "log4j2.properties"
        logging.write_text(_LOGGING)
        command = [
            *(*_java("512m"), f"-Dlog4j2.configurationFile={logging}", "-Djava.awt.headless=true"),
            *("-cp", classpath(CONNECT_MIRROR), "org.apache.kafka.connect.mirror.MirrorMaker", str(file)),
            *(["--clusters", *clusters] if clusters else []),
        ]
        self._process = spawn(command, output=log, folder=file.parent)


def java_says(*questions: Sequence[str]) -> list[Any]:
    """What `MirrorOracle.java` answers to each, all asked of one JVM."""
    ran = subprocess.run(
        [*_java("256m"), "-cp", classpath(CONNECT_MIRROR), str(_ORACLE)],
        input="\n".join("\t".join(question) for question in questions),
        capture_output=True,
        text=True,
        check=False,
    )
    if "jdk.compiler" in ran.stderr:
        pytest.fail(
            "This compiles Java and wants a JDK, not only a runtime: on Debian, apt install openjdk-17-jdk-headless"
        )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return [json.loads(line) for line in ran.stdout.splitlines()]
