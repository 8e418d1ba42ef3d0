"""Who is compared: this project and Java's MirrorMaker 2, each started as its users start it, on the same file."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen

from mm2.sandbox.jars import CONNECT_MIRROR, classpath
from mm2.sandbox.java import java_executable
from mm2.sandbox.process import spawn

# The layout of Kafka's own connect-log4j2.yaml, so that logging costs what it costs in life.
_JAVA_LOGGING = """\
status = error
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = [%d] %p %X{connector.context}%m (%c:%L)%n
"""

# What kafka-run-class.sh and connect-mirror-maker.sh of Kafka 4.3.0 give to the JVM.
_JAVA_OPTIONS = (
    *("-Xms256M", "-Xmx2G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true"),
)


@dataclass(frozen=True)
class Flow:
    """One flow from the source broker to the target broker under aliases of its own.

    Aliases are in the names of the remote topic, of every internal topic and of the worker group. So a run under new
    ones finds nothing that an earlier run left, on brokers that stay up and warm.
    """

    source: str
    target: str
    source_bootstrap: str
    target_bootstrap: str
    topic: str

    @property
    def remote_topic(self) -> str:
        return f"{self.source}.{self.topic}"

    def properties(self) -> dict[str, str]:
        """The file every contender gets: one direction, one topic, factors that a single broker can serve."""
        there, back = f"{self.source}->{self.target}", f"{self.target}->{self.source}"
        factors = (
            *("replication.factor", "offset-syncs.topic.replication.factor", "checkpoints.topic.replication.factor"),
            *("heartbeats.topic.replication.factor", "offset.storage.replication.factor"),
            *("status.storage.replication.factor", "config.storage.replication.factor"),
        )
        return {
            "clusters": f"{self.source}, {self.target}",
            f"{self.source}.bootstrap.servers": self.source_bootstrap,
            f"{self.target}.bootstrap.servers": self.target_bootstrap,
            f"{there}.enabled": "true",
            f"{there}.topics": self.topic,
            f"{back}.enabled": "false",
            f"{back}.emit.heartbeats.enabled": "false",
            **dict.fromkeys(factors, "1"),
        }


@dataclass(frozen=True)
class Contender:
    """`source_consumer`, `target_producer` and `top` are settings it adds to the common file."""

    name: str
    title: str
    is_java: bool
    source_consumer: Mapping[str, str] = field(default_factory=dict)
    target_producer: Mapping[str, str] = field(default_factory=dict)
    top: Mapping[str, str] = field(default_factory=dict)

    def properties(self, flow: Flow) -> dict[str, str]:
        return {
            **flow.properties(),
            **{f"{flow.source}.consumer.{key}": value for key, value in self.source_consumer.items()},
            **{f"{flow.target}.producer.{key}": value for key, value in self.target_producer.items()},
            **self.top,
        }

    def launch(self, flow: Flow, folder: Path) -> Popen[bytes]:
        """Starts it in `folder`, its output in `log_file(folder)`; the process leads a session of its own."""
        folder.mkdir(parents=True)
        file = folder / "mm2.properties"
        file.write_text("".join(f"{key} = {value}\n" for key, value in self.properties(flow).items()))
        command = [*(_java(folder) if self.is_java else _ours()), str(file), "--clusters", flow.target]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        return spawn(command, output=log_file(folder), folder=folder, environment=environment)


def log_file(folder: Path) -> Path:
    return folder / "contender.log"


def fetch_jars() -> None:
    """Downloads Java's MirrorMaker 2 when it is not there yet. Raises SandboxError."""
    classpath(CONNECT_MIRROR)


def _java(folder: Path) -> list[str]:
    logging = folder / "log4j2.properties"
    logging.write_text(_JAVA_LOGGING)
    return [
        *(java_executable(), *_JAVA_OPTIONS, f"-Dlog4j2.configurationFile={logging}"),
        *("-cp", classpath(CONNECT_MIRROR), "org.apache.kafka.connect.mirror.MirrorMaker"),
    ]


def _ours() -> list[str]:
    return [sys.executable, "-P", "-m", "mm2.cli.connect_mirror_maker"]


OURS = Contender("mm2", "this project", is_java=False)
JAVA_DEFAULT = Contender("java", "Java MirrorMaker 2 4.3.0, default", is_java=True)
JAVA_TUNED = Contender(
    "java-tuned",
    "Java MirrorMaker 2 4.3.0, tuned",
    is_java=True,
    source_consumer={"max.poll.records": "10000", "fetch.min.bytes": "100000"},
    target_producer={"batch.size": "1000000", "linger.ms": "50", "acks": "1"},
    top={"tasks.max": "2"},
)
CONTENDERS = (OURS, JAVA_DEFAULT, JAVA_TUNED)
