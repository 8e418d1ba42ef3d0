"""A Kafka broker from before KRaft with its own ZooKeeper, for tests of old source clusters."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Self

from mm2.kafka.client.cluster import Cluster
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.sandbox.errors import SandboxError
from mm2.sandbox.jars import JarSet, fetch
from mm2.sandbox.java import java_executable
from mm2.sandbox.kafka import LocalKafka, NodeRole
from mm2.sandbox.ports import free_ports
from mm2.sandbox.process import end, spawn
from tests.support.java import old_broker

_LOGGING = """\
log4j.rootLogger=WARN, out
log4j.logger.kafka.server.KafkaServer=INFO
log4j.logger.kafka.server.KafkaRaftServer=INFO
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %-5p %c{1}: %m%n
"""

_DEFAULTS = {
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    "log.cleaner.dedupe.buffer.size": "8388608",
    # Controlled shutdown would be retried repeatedly where no other replica is in sync.
    "controlled.shutdown.enable": "false",
    # A complete replica stays in the ISR after its broker has died, until the next write.
    "replica.lag.time.max.ms": "3000",
    # The session must survive pauses of a busy machine; a clean stop ends it immediately.
    "zookeeper.session.timeout.ms": "18000",
    "zookeeper.connection.timeout.ms": "60000",
}


class OldZooKeeper:
    """A ZooKeeper for brokers of one old version."""

    def __init__(self, version: str, data_dir: Path) -> None:
        self.version = version
        self.folder = data_dir
        self.port = free_ports(1)[0]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, timeout_s: float = 120.0) -> Self:
        """Return when it accepts connections. Raises SandboxError."""
        if self._process is not None and self._process.poll() is None:
            return self
        jars = fetch(old_broker(self.version))
        self.folder.mkdir(parents=True, exist_ok=True)
        write_log4j(self.folder)
        settings = self.folder / "zookeeper.properties"
        settings.write_text(
            f"dataDir={self.folder / 'data'}\nclientPort={self.port}\nclientPortAddress=127.0.0.1\n"
            "maxClientCnxns=0\nadmin.enableServer=false\n"
        )
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        options = ["-Xmx64m", "-Xms64m", "-XX:+UseSerialGC", *log4j_options(self.folder), "-cp", f"{jars}/*"]
        command = [java_executable(), *options, main, str(settings)]
        self._process = spawn(command, output=self.folder / "zookeeper.log", folder=self.folder)
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise SandboxError(f"ZooKeeper in {self.folder} did not start.") from None
                time.sleep(0.05)
            else:
                return self

    def stop(self) -> None:
        """Stop it; its data is kept."""
        if self._process is not None:
            end(self._process)
            self._process = None


class OldKafka(LocalKafka):
    """One broker of an old version (`java.OLD_VERSIONS`), PLAINTEXT only, otherwise as `LocalKafka`.

    Without a `zookeeper` it starts its own, which is stopped with it. After `kill9` it can start again only after its
    ZooKeeper session timeout.
    """

    def __init__(
        self,
        version: str,
        name: str,
        data_dir: Path,
        *,
        node_id: int = 1,
        zookeeper: OldZooKeeper | None = None,
        overrides: Mapping[str, str] | None = None,
        heap: str = "256m",
    ) -> None:
        super().__init__(name, data_dir, overrides=overrides, heap=heap, place=NodeRole(node_id, is_controller=False))
        self.version = version
        self._own = zookeeper is None
        self._zookeeper = zookeeper or OldZooKeeper(version, self.folder / "zookeeper")

    @property
    def ready_line(self) -> bytes:
        return b"KafkaServer: [KafkaServer id=%d] started" % self.place.node_id

    @property
    def jar_set(self) -> JarSet:
        return old_broker(self.version)

    def launch(self) -> None:
        """Start ZooKeeper, wait for it, and start the broker's process."""
        if not self.is_running:
            self._zookeeper.start()
        super().launch()

    def wait_until_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until it runs and knows the controller. confluent-kafka waits minutes for one that it has not found at once."""
        deadline = time.monotonic() + timeout_s
        super().wait_until_ready(timeout_s)
        with closing(
            Cluster(ClientSettings.from_props({"bootstrap.servers": self.bootstrap}), name="ready")
        ) as cluster:
            while cluster.metadata([]).controller_id < 0:
                if time.monotonic() > deadline:
                    raise SandboxError(
                        f"Kafka {self.name} had no controller after {timeout_s:.0f} s.\n{self.log_tail()}"
                    )
                time.sleep(0.05)

    def stop(self, patience_s: float = 10.0) -> None:
        """Stop the broker and its own ZooKeeper, if any; their data is kept."""
        super().stop(patience_s)
        if self._own:
            self._zookeeper.stop()

    def _system_properties(self) -> list[str]:
        return log4j_options(self.folder)

    def _settings(self) -> dict[str, str]:
        address = f"PLAINTEXT://{self.address('PLAINTEXT')}"
        return {
            **_DEFAULTS,
            "listeners": address,
            "advertised.listeners": address,
            "broker.id": str(self.place.node_id),
            "zookeeper.connect": f"127.0.0.1:{self._zookeeper.port}",
            "log.dirs": str(self._data_folder),
            **self._overrides,
        }

    def _prepare(self, jars: Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_log4j(self.folder)
        self._write_settings()


def log4j_options(folder: Path) -> list[str]:
    """JVM options of Kafka before 4.0. Kafka 2.1 was made for Java 8 to 11 and needs packages that Java 17 does not open."""
    opened = ("java.base/java.lang", "java.base/java.nio", "java.base/sun.nio.ch", "java.base/java.util")
    logging = f"-Dlog4j.configuration=file:{folder / 'log4j.properties'}"
    return [logging, *(f"--add-opens={package}=ALL-UNNAMED" for package in opened)]


def write_log4j(folder: Path) -> None:
    """Configure log4j 1, which Kafka before 4.0 uses."""
    (folder / "log4j.properties").write_text(_LOGGING)
