"""A local Kafka broker: one node, broker and controller in one process, reachable from 127.0.0.1 only."""

import atexit
import base64
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from mm2.sandbox.errors import SandboxError
from mm2.sandbox.jars import KAFKA, JarSet, class_archive, fetch
from mm2.sandbox.java import java_executable
from mm2.sandbox.ports import free_ports
from mm2.sandbox.process import Startable, end, spawn

_TAIL_LINES = 25
#: The serial collector needs no threads of its own, and the compiler that optimizes less starts a broker with half the
#: processor time, which suits the few cores of a test machine.
_SHORT_LIVED = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
#: Idle threads of these pools wake up three times a second. By default there are 8 and 3, each also for the controller.
_FEW_THREADS = {"num.io.threads": "2", "num.network.threads": "1"}

_LOGGING = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
logger.server.name = kafka.server.KafkaRaftServer
logger.server.level = info
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %-5p %c{1}: %m%n
"""

_DEFAULTS = {
    "controller.listener.names": "CONTROLLER",
    # One node cannot have three replicas.
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # The default of 50 partitions each would delay the first group and the first transaction by a second.
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    # A killed broker can register again only after its session timeout, which is 9 s by default.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # The default takes a quarter of the small heap.
    "log.cleaner.dedupe.buffer.size": "8388608",
    # An idle controller would write a record to disk twice a second, so that followers see that the log advances (KIP-835).
    "metadata.max.idle.interval.ms": "0",
}


@dataclass(frozen=True)
class NodeRole:
    """Role of a node in its cluster; by default it is the only node. `cluster_id` is the same for all nodes."""

    node_id: int = 1
    is_broker: bool = True
    is_controller: bool = True
    cluster_id: str = ""
    voters: str = ""
    """`<node id>@<host>:<port>` of the controller, for nodes that are not controllers."""

    @property
    def roles(self) -> str:
        return ",".join(["broker"] * self.is_broker + ["controller"] * self.is_controller)


def new_id() -> str:
    """A random id in Kafka's format: 16 bytes in URL-safe base64."""
    # As Kafka's Uuid.randomUuid, without a leading dash: kafka-storage would take it for an option.
    while (made := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return made


_RUNNING: "weakref.WeakSet[LocalKafka]" = weakref.WeakSet()


class LocalKafka(Startable):
    """One broker. It keeps its ports and its data across `stop`, `kill9` and `start`.

    `data_dir` gets `server.properties`, `log4j2.properties`, `broker.log` and the data. `listeners` maps listener names
    to security protocols (default: one PLAINTEXT); `bootstrap` is the address of the first. `overrides` are broker
    settings with the highest precedence, `segment_bytes` is the size of log segments (Kafka's minimum is 1 MiB),
    `format_args` are passed to `kafka-storage format` (e.g. `["--add-scram", "SCRAM-SHA-256=[name=a,password=b]"]`).
    `proxied` listeners advertise another port, `advertised(name)`, on which a Proxy has to listen. `place` makes the
    broker one of several nodes (see `cluster.LocalCluster`).

    Usable as a context manager. Not thread-safe.
    """

    def __init__(
        self,
        name: str,
        data_dir: Path,
        *,
        listeners: Mapping[str, str] | None = None,
        overrides: Mapping[str, str] | None = None,
        format_args: Sequence[str] = (),
        heap: str = "512m",
        segment_bytes: int | None = None,
        jvm_options: Sequence[str] = (),
        proxied: Collection[str] = (),
        place: NodeRole | None = None,
    ) -> None:
        self.name = name
        self.folder = Path(data_dir)
        self.place = place or NodeRole()
        self.cluster_id = self.place.cluster_id or new_id()
        self.log_file = self.folder / "broker.log"
        self._listeners = dict(listeners or {"PLAINTEXT": "PLAINTEXT"}) if self.place.is_broker else {}
        self._ports = dict(zip([*self._listeners, "CONTROLLER"], free_ports(len(self._listeners) + 1), strict=True))
        self._proxy_ports = dict(zip(proxied, free_ports(len(proxied)), strict=True)) if proxied else {}
        self._overrides = dict(overrides or {})
        if segment_bytes is not None:
            self._overrides.setdefault("log.segment.bytes", str(segment_bytes))
        self._format_args = tuple(format_args)
        self._heap = heap
        self._jvm_options = tuple(jvm_options)
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start_bytes = 0

    def __repr__(self) -> str:
        return f"LocalKafka({self.name} at {self.bootstrap})"

    @property
    def bootstrap(self) -> str:
        """`127.0.0.1:<port>` of the first listener."""
        return self.address(next(iter(self._listeners)))

    def address(self, listener: str) -> str:
        """`127.0.0.1:<port>` of the listener of that name."""
        return f"127.0.0.1:{self._ports[listener]}"

    def advertised(self, listener: str) -> str:
        """The advertised address of that listener: `address`, unless the listener is `proxied`."""
        return f"127.0.0.1:{self._proxy_ports.get(listener, self._ports[listener])}"

    def advertise(self, listener: str, port: int) -> None:
        """Advertise another port for that `proxied` listener after the next start."""
        self._proxy_ports[listener] = port

    @property
    def jar_set(self) -> JarSet:
        """The jars of its version of Kafka."""
        return KAFKA

    @property
    def ready_line(self) -> bytes:
        """The last line that the broker logs during startup."""
        return b"Kafka Server started"

    @property
    def pid(self) -> int:
        """Process id of the running broker. Raises SandboxError when it is not running."""
        return self._running().pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, timeout_s: float = 60.0) -> Self:
        """Start the broker, format its data the first time, and wait until it is ready. Raises SandboxError."""
        self.launch()
        self.wait_until_ready(timeout_s)
        return self

    def launch(self) -> None:
        """First half of `start`: returns once the process exists, so that several brokers can start at once."""
        if self.is_running:
            return
        jars = fetch(self.jar_set)
        self._prepare(jars)
        self._spawn(self._java(jars, "kafka.Kafka", str(self._settings_file)))

    def _spawn(self, command: Sequence[str]) -> None:
        self._log_start_bytes = self.log_file.stat().st_size if self.log_file.exists() else 0
        self._process = spawn(command, output=self.log_file, folder=self.folder)
        _RUNNING.add(self)

    def wait_until_ready(self, timeout_s: float = 60.0) -> None:
        """Second half of `start`. Raises SandboxError with the end of the log if the broker exits."""
        process = self._running()
        deadline = time.monotonic() + timeout_s
        while self.ready_line not in self._log_of_this_run():
            if process.poll() is not None:
                raise SandboxError(f"{self._died(process)}\n{self.log_tail()}")
            if time.monotonic() > deadline:
                self.kill9()
                raise SandboxError(f"Kafka {self.name} did not start in {timeout_s:.0f} s.\n{self.log_tail()}")
            time.sleep(0.03)

    def stop(self, patience_s: float = 10.0) -> None:
        """Stop it cleanly, by force after `patience_s`; its data is kept. Does nothing when it is not running."""
        if self._process is not None:
            end(self._process, patience_s=patience_s)
            self._process = None
        _RUNNING.discard(self)

    def kill9(self) -> None:
        """Kill it with SIGKILL, similar to a power failure (but the page cache survives)."""
        process = self._running()
        process.kill()
        process.wait()
        self._process = None
        _RUNNING.discard(self)

    def pause(self) -> None:
        """Freeze it: connections stay open, and no request is answered. Returns when all its threads are stopped."""
        self._running().send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """Undo `pause`."""
        self._running().send_signal(signal.SIGCONT)

    def check(self) -> None:
        """Raise SandboxError with the end of the log when the broker has died."""
        self._running()

    def log_tail(self, lines: int = _TAIL_LINES) -> str:
        """The last lines of this run's log."""
        return "\n".join(self._log_of_this_run().decode(errors="replace").splitlines()[-lines:])

    @property
    def _is_short_lived(self) -> bool:
        """Whether little processor time matters more than throughput: unless the JVM options name a garbage collector."""
        return not any(option.endswith("GC") for option in self._jvm_options)

    @property
    def _settings_file(self) -> Path:
        return self.folder / "server.properties"

    @property
    def _data_folder(self) -> Path:
        return self.folder / "data"

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise SandboxError(f"Kafka {self.name} is not running: start it first.")
        if self._process.poll() is not None:
            raise SandboxError(f"{self._died(self._process)}\n{self.log_tail()}")
        return self._process

    def _died(self, process: subprocess.Popen[bytes]) -> str:
        return f"Kafka {self.name} died with exit code {process.returncode}; the end of {self.log_file}:"

    def _log_of_this_run(self) -> bytes:
        with self.log_file.open("rb") as file:
            file.seek(self._log_start_bytes)
            return file.read()

    def _java(self, jars: Path, main: str, *args: str) -> list[str]:
        options = [*self._jvm_options, *(_SHORT_LIVED if self._is_short_lived else ())]
        archive = class_archive(self.jar_set)
        if archive.exists():
            options.append(f"-XX:SharedArchiveFile={archive}")
        return [
            *(java_executable(), f"-Xmx{self._heap}", f"-Xms{self._heap}", "-Xshare:auto", *options),
            *(*self._system_properties(), "-Djava.awt.headless=true"),
            *("-cp", f"{jars}/*", main, *args),
        ]

    def _system_properties(self) -> list[str]:
        """JVM options that depend on the version of Kafka."""
        return [f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"]

    def _settings(self) -> dict[str, str]:
        place = self.place
        names = [*self._listeners, *(["CONTROLLER"] if place.is_controller else [])]
        protocols = {**self._listeners, "CONTROLLER": "PLAINTEXT"}
        broker = {
            "advertised.listeners": ",".join(f"{name}://{self.advertised(name)}" for name in self._listeners),
            "inter.broker.listener.name": names[0],
        }
        return {
            **_DEFAULTS,
            **(_FEW_THREADS if self._is_short_lived else {}),
            "process.roles": place.roles,
            "node.id": str(place.node_id),
            "controller.quorum.voters": place.voters or f"{place.node_id}@{self.address('CONTROLLER')}",
            "listeners": ",".join(f"{name}://{self.address(name)}" for name in names),
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
            **(broker if place.is_broker else {}),
            "log.dirs": str(self._data_folder),
            **self._overrides,
        }

    def _prepare(self, jars: Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "log4j2.properties").write_text(_LOGGING)
        self._write_settings()
        if (self._data_folder / "meta.properties").exists():
            return
        if self._format_args:
            self._format(jars, *self._format_args)
            return
        # Writes the same files as `kafka-storage format` without starting a JVM. The feature levels are the same for
        # every cluster, so they are created once and stored beside the jars; the ids can be chosen freely.
        features = jars / "bootstrap.checkpoint"
        if not features.exists():
            self._format(jars)
            _copy_atomically(self._data_folder / features.name, features)
            return
        self._data_folder.mkdir()
        shutil.copyfile(features, self._data_folder / features.name)
        (self._data_folder / "meta.properties").write_text(
            f"version=1\ncluster.id={self.cluster_id}\nnode.id={self.place.node_id}\ndirectory.id={new_id()}\n"
        )

    def _write_settings(self) -> None:
        lines = [f"{key}={_escaped(value)}\n" for key, value in self._settings().items()]
        self._settings_file.write_text("".join(lines))

    def _format(self, jars: Path, *args: str) -> None:
        command = ("format", "--cluster-id", self.cluster_id, "--config", str(self._settings_file), *args)
        done = subprocess.run(
            self._java(jars, "kafka.tools.StorageTool", *command), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            output = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise SandboxError(f"The data of Kafka {self.name} could not be formatted: {' '.join(output[:3])}")


def start_all(brokers: Sequence[LocalKafka], timeout_s: float = 60.0) -> None:
    """Start several brokers at once. If one fails, stops the others. Raises SandboxError."""
    try:
        for broker in brokers:
            broker.launch()
        for broker in brokers:
            broker.wait_until_ready(timeout_s)
    except BaseException:
        stop_all(brokers)
        raise


def stop_all(brokers: Sequence[LocalKafka], patience_s: float = 10.0) -> None:
    """Stop several brokers at once."""
    for broker in brokers:
        if broker.is_running:
            broker.resume()
            os.kill(broker.pid, signal.SIGTERM)
    for broker in brokers:
        broker.stop(patience_s)


@contextmanager
def start_pair(data_dir: Path, **options: Any) -> Iterator[tuple[LocalKafka, LocalKafka]]:
    """Two brokers, A and B, in two sub-folders of `data_dir`, running inside the `with` block."""
    pair = LocalKafka("A", data_dir / "a", **options), LocalKafka("B", data_dir / "b", **options)
    start_all(pair)
    try:
        yield pair
    finally:
        stop_all(pair)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _copy_atomically(source: Path, target: Path) -> None:
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as scratch:
        scratch.write(source.read_bytes())
    Path(scratch.name).rename(target)


@atexit.register
def _stop_what_still_runs() -> None:
    stop_all(list(_RUNNING), patience_s=5.0)
