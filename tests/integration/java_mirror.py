"""Java's MirrorMaker 2 and its client, to compare the records it writes and the way it reads our topics."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.proctree import Session
from mm2.sandbox.jars import KAFKA_VERSION
from mm2.sandbox.process import spawn
from tests.integration.java_source import run_source
from tests.integration.mirror_process import MirrorProcess
from tests.support.java import MIRROR_VERSION, connect_java, console_logging

_ORACLE = Path(__file__).parent / "java" / "MirrorOracle.java"
_LOGGING = console_logging("%d{ISO8601} %-5p %c{1}: %m%n")


class JavaMirrorProcess(MirrorProcess):
    """One start of connect-mirror-maker.sh of Kafka 4.3.0 or `version`; its log is text, not JSON."""

    version = KAFKA_VERSION

    def __init__(self, file: Path, log: Path, *clusters: str) -> None:
        self.log = log
        logging = file.parent / "log4j2.properties"
        logging.write_text(_LOGGING)
        command = [
            *connect_java("512m", f"-Dlog4j2.configurationFile={logging}", version=self.version),
            *("org.apache.kafka.connect.mirror.MirrorMaker", str(file)),
            *(["--clusters", *clusters] if clusters else []),
        ]
        self._process = spawn(command, output=log, folder=file.parent)
        self._session = Session(self._process.pid)


class NewestJavaMirrorProcess(JavaMirrorProcess):
    """That of the newest release."""

    version = MIRROR_VERSION


def java_says(*questions: Sequence[str]) -> list[Any]:
    """Results of `MirrorOracle.java` for each request, from one JVM."""
    asked = "\n".join("\t".join(question) for question in questions)
    return [json.loads(line) for line in run_source(_ORACLE, text=asked).splitlines()]
