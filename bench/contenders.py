"""The contenders: this project and Java's MirrorMaker 2, each started as users start it, with the same file."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from subprocess import Popen

from bench.conditions import PLAIN, Conditions
from bench.errors import BenchFailed
from mm2.sandbox.jars import classpath
from mm2.sandbox.java import java_executable
from mm2.sandbox.process import spawn
from tests.support.java import CONNECT_MIRROR, console_logging

# The layout of Kafka's own connect-log4j2.yaml, so that logging costs what it costs in life.
_JAVA_LOGGING = console_logging("[%d] %p %X{connector.context}%m (%c:%L)%n")

# What kafka-run-class.sh and connect-mirror-maker.sh of Kafka 4.3.0 give to the JVM.
_JAVA_OPTIONS = (
    *("-Xms256M", "-Xmx2G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true"),
)

_INSERT_HEADER = {
    "transforms": "header",
    "transforms.header.type": "org.apache.kafka.connect.transforms.InsertHeader",
    "transforms.header.header": "origin",
    "transforms.header.value.literal": "A",
    "header.converter": "org.apache.kafka.connect.storage.SimpleHeaderConverter",
}


@dataclass(frozen=True)
class Flow:
    """One flow from the source broker to the target broker under aliases of its own.

    Aliases are in the names of the remote topic, of every internal topic and of the worker group. So a run under new
    ones finds nothing that an earlier run left, on brokers that stay up and warm. `client` are settings that both
    clusters' clients need, `more` are further lines of the file.
    """

    source: str
    target: str
    source_bootstrap: str
    target_bootstrap: str
    topic: str
    conditions: Conditions = PLAIN
    client: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def remote_topic(self) -> str:
        return self.remote(self.topic)

    def remote(self, topic: str) -> str:
        """What a topic of the source is called on the target."""
        return f"{self.source}.{topic}"

    def properties(self) -> dict[str, str]:
        """The file every contender gets: one direction, one topic, factors that a single broker can serve."""
        there, back = f"{self.source}->{self.target}", f"{self.target}->{self.source}"
        factors = (
            *("replication.factor", "offset-syncs.topic.replication.factor", "checkpoints.topic.replication.factor"),
            *("heartbeats.topic.replication.factor", "offset.storage.replication.factor"),
            *("status.storage.replication.factor", "config.storage.replication.factor"),
        )
        exactly_once = {
            f"{self.target}.exactly.once.source.support": "enabled",
            f"{self.source}.consumer.isolation.level": "read_committed",
        }
        return {
            "clusters": f"{self.source}, {self.target}",
            f"{self.source}.bootstrap.servers": self.source_bootstrap,
            f"{self.target}.bootstrap.servers": self.target_bootstrap,
            **{f"{alias}.{key}": value for alias in (self.source, self.target) for key, value in self.client.items()},
            f"{there}.enabled": "true",
            f"{there}.topics": self.topic,
            f"{back}.enabled": "false",
            f"{back}.emit.heartbeats.enabled": "false",
            **dict.fromkeys(factors, "1"),
            **(exactly_once if self.conditions.exactly_once else {}),
            **(
                {f"{there}.{key}": value for key, value in _INSERT_HEADER.items()}
                if self.conditions.insert_header
                else {}
            ),
            **self.more,
        }


@dataclass(frozen=True)
class Contender:
    """`source_consumer`, `target_producer`, `top` and `of_flow` are settings it adds to the common file; `exactly_once` (at the
    top) and `exactly_once_flow` (of the flow) only when that is on."""

    name: str
    title: str
    is_java: bool
    source_consumer: Mapping[str, str] = field(default_factory=dict)
    target_producer: Mapping[str, str] = field(default_factory=dict)
    top: Mapping[str, str] = field(default_factory=dict)
    of_flow: Mapping[str, str] = field(default_factory=dict)
    exactly_once: Mapping[str, str] = field(default_factory=dict)
    exactly_once_flow: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    def properties(self, flow: Flow) -> dict[str, str]:
        there = f"{flow.source}->{flow.target}"
        exactly_once = {
            **self.exactly_once,
            **{f"{there}.{key}": value for key, value in self.exactly_once_flow.items()},
        }
        return {
            **flow.properties(),
            **{f"{flow.source}.consumer.{key}": value for key, value in self.source_consumer.items()},
            **{f"{flow.target}.producer.{key}": value for key, value in self.target_producer.items()},
            **self.top,
            **{f"{there}.{key}": value for key, value in self.of_flow.items()},
            **(exactly_once if flow.conditions.exactly_once else {}),
        }

    def launch(self, flow: Flow, folder: Path) -> Popen[bytes]:
        """Starts it in `folder`, its output in `log_file(folder)`; the process leads a session of its own."""
        folder.mkdir(parents=True)
        file = folder / "mm2.properties"
        file.write_text("".join(f"{key} = {value}\n" for key, value in self.properties(flow).items()))
        command = [*(_java(folder) if self.is_java else _ours()), str(file), "--clusters", flow.target]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **self.environment}
        return spawn(command, output=log_file(folder), folder=folder, environment=environment)


def log_file(folder: Path) -> Path:
    return folder / "contender.log"


def fetch_jars() -> None:
    """Downloads Java's MirrorMaker 2 when it is not there yet. Raises SandboxError."""
    classpath(CONNECT_MIRROR)


def at_revision(revision: str, repository: Path, folder: Path) -> Contender:
    """This project as it was at a Git revision, unpacked into `folder`; it runs with the libraries of today.

    Raises BenchFailed when Git does not know the revision.
    """
    folder.mkdir()
    archive = subprocess.run(
        ["git", "-C", str(repository), "archive", revision, "mm2"], capture_output=True, check=False
    )
    if archive.returncode != 0:
        raise BenchFailed(f"git archive {revision}: {archive.stderr.decode(errors='replace').strip()}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    # Also for Spark's Python workers, which do not inherit sys.path.
    return replace(
        OURS, name=f"mm2-{revision[:12]}", title=f"this project at {revision}", environment={"PYTHONPATH": str(folder)}
    )


def _java(folder: Path) -> list[str]:
    logging = folder / "log4j2.properties"
    logging.write_text(_JAVA_LOGGING)
    return [
        *(java_executable(), *_JAVA_OPTIONS, f"-Dlog4j2.configurationFile={logging}"),
        *("-cp", classpath(CONNECT_MIRROR), "org.apache.kafka.connect.mirror.MirrorMaker"),
    ]


def _ours() -> list[str]:
    return [sys.executable, "-P", "-m", "mm2.cli.connect_mirror_maker"]


_JAVA_EXACTLY_ONCE = {
    # Without its internal REST a dedicated process refuses exactly-once: zombies are fenced through it (KIP-710).
    "dedicated.mode.enable.internal.rest": "true",
    "listeners": "http://127.0.0.1:0",
}
_TUNED_CONSUMER = {
    # A poll is what Connect converts and sends as one piece; 500 records of it would end after half a megabyte.
    "max.poll.records": "10000",
    # The broker answers with something worth a round trip.
    "fetch.min.bytes": "100000",
    # 1 MB a partition by default: with 128 KB batches that is seven of them.
    "max.partition.fetch.bytes": "10485760",
    # 64 KB by default; -1 leaves the size to the kernel, which makes it as large as the way needs.
    "receive.buffer.bytes": "-1",
}
_TUNED_PRODUCER = {
    "batch.size": "1000000",
    "linger.ms": "50",
    "acks": "all",
    # Connect sends one request at a time, for the sake of order. With idempotence five keep their order too (KAFKA-5494).
    "enable.idempotence": "true",
    "max.in.flight.requests.per.connection": "5",
    # 1 MB by default, one batch of the size above: so a request holds those of all partitions.
    "max.request.size": "10485760",
    # 32 MB by default, four requests of that size.
    "buffer.memory": "134217728",
    # 128 KB by default: at 80 ms that would be all that is ever under way.
    "send.buffer.bytes": "-1",
}
_TUNED_EXACTLY_ONCE_FLOW = {
    # A transaction a second instead of one for each poll. MirrorMaker hands it to the connector only with the flow's prefix.
    "transaction.boundary": "interval",
    "transaction.boundary.interval.ms": "1000",
}

OURS = Contender("mm2", "this project", is_java=False)
OURS_PRESERVED = replace(
    OURS, name="mm2-preserved", title="this project, preserve.offsets", of_flow={"preserve.offsets": "true"}
)
NOTHING = Contender("none", "no replicator", is_java=False)
"""The floor of steady traffic: the brokers, the producer and the reader of the source topic alone. It is never launched."""
JAVA_DEFAULT = Contender("java", "Java MirrorMaker 2 4.3.0, default", is_java=True, exactly_once=_JAVA_EXACTLY_ONCE)
JAVA_TUNED = Contender(
    "java-tuned",
    "Java MirrorMaker 2 4.3.0, tuned",
    is_java=True,
    source_consumer=_TUNED_CONSUMER,
    target_producer=_TUNED_PRODUCER,
    top={"tasks.max": "2"},
    exactly_once=_JAVA_EXACTLY_ONCE,
    exactly_once_flow=_TUNED_EXACTLY_ONCE_FLOW,
)
JAVA_WIDE = Contender(
    "java-wide",
    "Java MirrorMaker 2 4.3.0, tuned, a task for each partition",
    is_java=True,
    source_consumer=_TUNED_CONSUMER,
    target_producer=_TUNED_PRODUCER,
    # A connection each: what else is there to do when a connection's window is the limit?
    top={"tasks.max": "8"},
    exactly_once=_JAVA_EXACTLY_ONCE,
    exactly_once_flow=_TUNED_EXACTLY_ONCE_FLOW,
)
LEFT_OUT = (
    "Spark's own Kafka source and sink do not run: the registry has no spark-sql-kafka-0-10 of PySpark's release (4.3.0), "
    "and that of 4.0.0 fails in it with a missing class."
)
CONTENDERS = (OURS, JAVA_DEFAULT, JAVA_TUNED, JAVA_WIDE)
