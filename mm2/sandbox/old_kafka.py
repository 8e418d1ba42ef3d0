"""A Kafka broker of before KRaft with a ZooKeeper of its own, for what only old sources do."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from mm2.sandbox.errors import SandboxError
from mm2.sandbox.jars import fetch, old_kafka
from mm2.sandbox.kafka import LocalKafka
from mm2.sandbox.ports import free_ports
from mm2.sandbox.process import end, spawn

_LOGGING = """\
log4j.rootLogger=WARN, out
log4j.logger.kafka.server.KafkaServer=INFO
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %-5p %c{1}: %m%n
"""

_DEFAULTS = {
    "broker.id": "1",
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    "log.cleaner.dedupe.buffer.size": "8388608",
    # A busy machine must not end the session; a clean stop ends it at once.
    "zookeeper.session.timeout.ms": "30000",
    "zookeeper.connection.timeout.ms": "60000",
}


class OldKafka(LocalKafka):
    """One broker of an old version (`jars.OLD_VERSIONS`), PLAINTEXT only, as `LocalKafka` otherwise.

    After `kill9` it can be started again only when its ZooKeeper session has ended; `stop` ends ZooKeeper, too.
    """

    ready_line: ClassVar[bytes] = b"KafkaServer: [KafkaServer id=1] started"

    def __init__(
        self,
        version: str,
        name: str,
        data_dir: Path,
        *,
        overrides: Mapping[str, str] | None = None,
        heap: str = "256m",
    ) -> None:
        super().__init__(name, data_dir, overrides=overrides, heap=heap)
        self.version = version
        self._zookeeper_port = free_ports(1)[0]
        self._zookeeper: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Starts ZooKeeper, waits for it, and starts the broker's process."""
        if self.is_running:
            return
        jars = fetch(old_kafka(self.version))
        self._prepare(jars)
        self._launch_zookeeper(jars)
        self._spawn(self._java(jars, "kafka.Kafka", str(self._settings_file)))

    def stop(self, patience_s: float = 10.0) -> None:
        """Stops the broker, then ZooKeeper; their data stay."""
        super().stop(patience_s)
        if self._zookeeper is not None:
            end(self._zookeeper, patience_s=patience_s)
            self._zookeeper = None

    def _launch_zookeeper(self, jars: Path, timeout_s: float = 120.0) -> None:
        if self._zookeeper is not None and self._zookeeper.poll() is None:
            return
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        command = self._java(jars, main, str(self.folder / "zookeeper.properties"), heap="64m")
        self._zookeeper = spawn(command, output=self.folder / "zookeeper.log", folder=self.folder)
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._zookeeper_port), 1.0).close()
            except OSError:
                if self._zookeeper.poll() is not None or time.monotonic() > deadline:
                    raise SandboxError(f"ZooKeeper of Kafka {self.name} did not start.") from None
                time.sleep(0.05)
            else:
                return

    def _java(self, jars: Path, main: str, *args: str, heap: str | None = None) -> list[str]:
        command = super()._java(jars, main, *args)
        place = command.index("-cp")
        options = [option for option in command[:place] if not option.startswith(("-Dlog4j2.", "-Xm"))]
        size = heap or self._heap
        # Java 17 opens its own packages to nobody; Kafka 2.1 was made for Java 8 to 11.
        opened = ("java.base/java.lang", "java.base/java.nio", "java.base/sun.nio.ch", "java.base/java.util")
        return [
            *options,
            *(f"-Xmx{size}", f"-Xms{size}", f"-Dlog4j.configuration=file:{self.folder / 'log4j.properties'}"),
            *(f"--add-opens={package}=ALL-UNNAMED" for package in opened),
            *command[place:],
        ]

    def _settings(self) -> dict[str, str]:
        address = f"PLAINTEXT://{self.address('PLAINTEXT')}"
        return {
            **_DEFAULTS,
            "listeners": address,
            "advertised.listeners": address,
            "zookeeper.connect": f"127.0.0.1:{self._zookeeper_port}",
            "log.dirs": str(self._data_folder),
            **self._overrides,
        }

    def _prepare(self, jars: Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "log4j.properties").write_text(_LOGGING)
        self._write_settings()
        (self.folder / "zookeeper.properties").write_text(
            f"dataDir={self.folder / 'zookeeper'}\nclientPort={self._zookeeper_port}\nclientPortAddress=127.0.0.1\n"
            "maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=ruok\n"
        )
