"""A local YARN: a ResourceManager and NodeManagers of Hadoop, on 127.0.0.1 only."""

from __future__ import annotations

import contextlib
import getpass
import subprocess
import time
from pathlib import Path
from typing import Any, Final, Self
from xml.sax.saxutils import escape

import httpx
import psutil

from mm2.copy.driver.jvm import spark_home
from mm2.sandbox.errors import SandboxError
from mm2.sandbox.jars import JarSet, fetch
from mm2.sandbox.java import java_executable
from mm2.sandbox.ports import free_ports
from mm2.sandbox.process import Startable, end, spawn
from tests.support.java import console_logging

_VERSION: Final = "3.5.0"
"""Of the Hadoop client in PySpark."""
#: The servers of Hadoop's minicluster need Bouncy Castle, which that module does not name.
_HADOOP: Final = JarSet(
    f"hadoop-{_VERSION}",
    (
        ("org.apache.hadoop", "hadoop-client-minicluster", _VERSION),
        ("org.bouncycastle", "bcprov-jdk18on", "1.82"),
        ("org.bouncycastle", "bcpkix-jdk18on", "1.82"),
    ),
    Path(__file__).with_name(f"hadoop-{_VERSION}.sha256"),
)
_SERVER: Final = "org.apache.hadoop.yarn.server"
_MANAGER: Final = "yarn.resourcemanager"
_NODE: Final = "yarn.nodemanager"
_EXECUTOR: Final = "YarnCoarseGrainedExecutorBackend"
_LOGGING: Final = console_logging("%d{ISO8601} %-5p %c{1}: %m%n", "warn")


class LocalYarn(Startable):
    """One ResourceManager and one NodeManager with ``cores`` and ``memory_mb`` for containers. Usable as a context manager."""

    def __init__(self, folder: Path, *, cores: int = 5, memory_mb: int = 4096) -> None:
        self.folder = folder
        #: Value of HADOOP_CONF_DIR.
        self.conf = folder / "conf"
        self._web, *ports = free_ports(8)
        names = ("address", "scheduler.address", "resource-tracker.address", "admin.address")
        manager = {f"{_MANAGER}.{name}": f"127.0.0.1:{port}" for name, port in zip(names, ports[:4], strict=True)}
        nodes = ("address", "localizer.address", "webapp.address")
        node = {f"{_NODE}.{name}": f"127.0.0.1:{port}" for name, port in zip(nodes, ports[4:], strict=True)}
        self._site = {
            **manager,
            **node,
            f"{_MANAGER}.webapp.address": f"127.0.0.1:{self._web}",
            # This one counts memory only, as the capacity scheduler does by default, and starts without a file of queues.
            f"{_MANAGER}.scheduler.class": f"{_SERVER}.resourcemanager.scheduler.fifo.FifoScheduler",
            "yarn.scheduler.minimum-allocation-mb": "128",
            f"{_NODE}.hostname": "127.0.0.1",
            f"{_NODE}.local-dirs": str(folder / "local"),
            f"{_NODE}.log-dirs": str(folder / "containers"),
            f"{_NODE}.resource.memory-mb": str(memory_mb),
            f"{_NODE}.resource.cpu-vcores": str(cores),
            # Java reserves far more address space than it uses.
            f"{_NODE}.vmem-check-enabled": "false",
            # A disk of this machine that is nearly full would make the node unhealthy.
            f"{_NODE}.disk-health-checker.enable": "false",
        }
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def props(self) -> dict[str, str]:
        """Settings of an application that runs here. Spark's jars are those of this environment, which would otherwise be uploaded."""
        return {
            "spark.master": "yarn",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executor.memoryOverhead": "512m",
            "spark.yarn.am.memory": "384m",
            "spark.yarn.jars": f"local:{spark_home()}/jars/*",
            "spark.yarn.stagingDir": (self.folder / "staging").as_uri(),
        }

    def start(self, timeout_s: float = 90.0) -> Self:
        """Start both and wait until the node is registered. Raises SandboxError."""
        deadline = time.monotonic() + timeout_s
        self.conf.mkdir(parents=True)
        self._write("yarn-site.xml", self._site)
        self._write("core-site.xml", {"hadoop.tmp.dir": str(self.folder / "tmp")})
        (self.folder / "log4j2.properties").write_text(_LOGGING)
        try:
            self._processes.append(self._spawn("resourcemanager.ResourceManager"))
            self._processes.append(self._spawn("nodemanager.NodeManager"))
            while self._nodes() != 1:
                if time.monotonic() > deadline or any(one.poll() is not None for one in self._processes):
                    raise SandboxError(f"YARN does not start.\n{self.log_tail()}")
                time.sleep(0.2)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the node, then the manager, and what is left of containers, which are in sessions of their own."""
        containers = self.containers() if self._processes else []
        for process in reversed(self._processes):
            end(process)
        self._processes.clear()
        for container in containers:
            with contextlib.suppress(psutil.Error):
                container.kill()

    def containers(self) -> list[psutil.Process]:
        """The JVMs of application masters and executors."""
        with contextlib.suppress(psutil.Error):
            return [one for one in psutil.Process(self._processes[1].pid).children(recursive=True) if _is_java(one)]
        return []

    def executors(self) -> list[psutil.Process]:
        """The executors' JVMs."""
        return [one for one in self.containers() if _EXECUTOR in " ".join(_words(one))]

    def kill(self, application: str) -> None:
        """As ``yarn application -kill``."""
        url = f"http://127.0.0.1:{self._web}/ws/v1/cluster/apps/{application}/state?user.name={getpass.getuser()}"
        httpx.put(url, json={"state": "KILLED"}, timeout=30, trust_env=False).raise_for_status()

    def applications(self) -> dict[str, str]:
        """The state of each application, by id."""
        answer = self._get("apps")["apps"]
        return {app["id"]: app["state"] for app in (answer or {}).get("app", [])}

    def log_tail(self) -> str:
        """The ends of both logs."""
        return "\n".join(f"{log}: {log.read_text(errors='replace')[-3000:]}" for log in self.folder.glob("*.log"))

    def _nodes(self) -> int:
        with contextlib.suppress(httpx.HTTPError):
            return int(self._get("metrics")["clusterMetrics"]["activeNodes"])
        return 0

    def _get(self, what: str) -> Any:
        answer = httpx.get(f"http://127.0.0.1:{self._web}/ws/v1/cluster/{what}", timeout=30, trust_env=False)
        return answer.raise_for_status().json()

    def _write(self, name: str, settings: dict[str, str]) -> None:
        rows = "".join(
            f"<property><name>{name}</name><value>{escape(value)}</value></property>\n"
            for name, value in settings.items()
        )
        (self.conf / name).write_text(f"<configuration>\n{rows}</configuration>\n")

    def _spawn(self, main: str) -> subprocess.Popen[bytes]:
        logging = [
            str(jar) for pattern in ("log4j*", "slf4j*") for jar in (spark_home() / "jars").glob(f"{pattern}.jar")
        ]
        path = ":".join([str(self.conf), *logging, f"{fetch(_HADOOP)}/*"])
        command = [
            *(java_executable(), "-Xmx256m", "-XX:+UseSerialGC", "--add-opens=java.base/java.lang=ALL-UNNAMED"),
            *(f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}", "-cp", path, f"{_SERVER}.{main}"),
        ]
        return spawn(command, output=self.folder / f"{main.partition('.')[0]}.log", folder=self.folder)


def _is_java(process: psutil.Process) -> bool:
    return Path((_words(process) or [""])[0]).name == "java"


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # ended meanwhile
        return []
