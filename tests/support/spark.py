"""A local Spark standalone cluster from PySpark's own jars: a master and workers, on 127.0.0.1 only."""

import atexit
import importlib.util
import os
import socket
import subprocess
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from mm2.sandbox.errors import SandboxError
from mm2.sandbox.java import java_executable
from mm2.sandbox.ports import free_ports
from mm2.sandbox.process import Startable, end, spawn
from tests.support.waiting import PATIENCE

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_ZOOKEEPER = "org.apache.zookeeper.server.ZooKeeperServerMain"
_MASTER_READY = b"I have been elected leader!"
_STANDBY_READY = b"Starting Spark master at"
_WORKER_READY = b"Successfully registered with master"
_TAIL_LINES = 25

_LOGGING = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
logger.master.name = org.apache.spark.deploy.master.Master
logger.master.level = info
logger.worker.name = org.apache.spark.deploy.worker
logger.worker.level = info
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %-5p %c{1}: %m%n
"""

# The options of org.apache.spark.launcher.JavaModuleOptions that a master and a worker need.
_OPENED = ("java.lang", "java.lang.invoke", "java.nio", "java.util", "java.util.concurrent", "sun.nio.ch", "java.net")

_RUNNING: "weakref.WeakSet[LocalSpark]" = weakref.WeakSet()


class LocalSpark(Startable):
    """One cluster. It keeps its port and its folder across `stop` and `start`.

    `data_dir` gets the logs and each worker's folder with the output of its executors. Every worker has `cores` slots
    and `memory_mb` for executors, which use `executor_mb` each (Spark's minimum is 450). With a `secret` all
    connections are authenticated and encrypted. ``settings`` are for master, workers and applications. With ``has_standby`` there is a
    second master, and a ZooKeeper in which both keep their state. Usable as a context manager. Not thread-safe.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        workers: int = 2,
        cores: int = 1,
        memory_mb: int = 1024,
        executor_mb: int = 512,
        secret: str | None = None,
        heap: str = "192m",
        settings: Mapping[str, str] = {},
        has_standby: bool = False,
    ) -> None:
        self.folder = Path(data_dir)
        self._ports = free_ports(2 if has_standby else 1)
        self._zookeeper: subprocess.Popen[bytes] | None = None
        self._standby: subprocess.Popen[bytes] | None = None
        self._workers = workers
        self._cores = cores
        self._memory_mb = memory_mb
        self._executor_mb = executor_mb
        self._secret = secret
        self._heap = heap
        self._settings = dict(settings)
        self._master: subprocess.Popen[bytes] | None = None
        self._worker_processes: list[subprocess.Popen[bytes]] = []

    def __repr__(self) -> str:
        return f"LocalSpark({self._workers} workers at {self.url})"

    @property
    def url(self) -> str:
        """Value of `spark.master`."""
        return "spark://" + ",".join(f"127.0.0.1:{port}" for port in self._ports)

    @property
    def props(self) -> dict[str, str]:
        """Settings of an application that runs on this cluster."""
        found = {
            "spark.master": self.url,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": f"{self._executor_mb}m",
            **self._settings,
        }
        return {**found, **self._security()}

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers; executors are their children."""
        return [process.pid for process in self._worker_processes]

    @property
    def master_pid(self) -> int:
        """Process id of the first master."""
        assert self._master is not None
        return self._master.pid

    def kill_master(self) -> None:
        """As ``kill -9``: without recovery, it forgets workers and applications."""
        assert self._master is not None
        self._master.kill()
        self._master.wait()

    def start_master(self, timeout_s: float = 60.0) -> None:
        """Start a master on the same port. The workers register again; Raises SandboxError."""
        self._master = self._spawn(_MASTER, "master", "--port", str(self._ports[0]))
        self._await("master", self._master, _MASTER_READY, time.monotonic() + timeout_s * PATIENCE)

    def add_worker(self, timeout_s: float = 60.0) -> int:
        """Start one more worker; returns its process id. Raises SandboxError."""
        name = f"worker{self._workers}"
        process = self._spawn_worker(self._workers)
        self._workers += 1
        self._worker_processes.append(process)
        self._await(name, process, _WORKER_READY, time.monotonic() + timeout_s * PATIENCE)
        return process.pid

    @property
    def is_running(self) -> bool:
        """Whether all its processes are alive."""
        processes = [self._master, *self._worker_processes]
        return all(process is not None and process.poll() is None for process in processes)

    def start(self, timeout_s: float = 90.0) -> Self:
        """Start master and workers and wait until the workers are registered. Raises SandboxError."""
        deadline = time.monotonic() + timeout_s * PATIENCE
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "log4j2.properties").write_text(_LOGGING)
        if len(self._ports) > 1:
            address = f"127.0.0.1:{free_ports(1)[0]}"
            self._settings |= {"spark.deploy.recoveryMode": "ZOOKEEPER", "spark.deploy.zookeeper.url": address}
        settings = {"spark.master.rest.enabled": "false", **self._settings, **self._security()}
        (self.folder / "spark.properties").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
        (self.folder / "spark.properties").chmod(0o600)
        _RUNNING.add(self)
        try:
            if len(self._ports) > 1:
                self._zookeeper = self._spawn_zookeeper(address, deadline)
            self._master = self._spawn(_MASTER, "master", "--port", str(self._ports[0]))
            self._await("master", self._master, _MASTER_READY, deadline)
            if len(self._ports) > 1:
                self._standby = self._spawn(_MASTER, "standby", "--port", str(self._ports[1]))
                self._await("standby", self._standby, _STANDBY_READY, deadline)
            for index in range(self._workers):
                self._worker_processes.append(self._spawn_worker(index))
            for index, process in enumerate(self._worker_processes):
                self._await(f"worker{index}", process, _WORKER_READY, deadline)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop all processes, executors first; does nothing when it is not running."""
        for process in self._worker_processes:
            if process.poll() is None:
                process.terminate()  # all at once: each needs a moment to end its executors
        for process in self._worker_processes:
            end(process)
        self._worker_processes.clear()
        for other in (self._standby, self._master, self._zookeeper):
            if other is not None:
                end(other)
        self._standby = self._master = self._zookeeper = None
        _RUNNING.discard(self)

    def log_tail(self, name: str, lines: int = _TAIL_LINES) -> str:
        """The end of the log of `master`, `worker0`, `worker1` and so on."""
        return "\n".join(self._log(name).read_text(errors="replace").splitlines()[-lines:])

    def _spawn_worker(self, index: int) -> subprocess.Popen[bytes]:
        resources = ("--cores", str(self._cores), "--memory", f"{self._memory_mb}m")
        work = ("--work-dir", str(self.folder / f"worker{index}"))
        return self._spawn(_WORKER, f"worker{index}", *resources, *work, self.url)

    def _spawn(self, main: str, name: str, *args: str) -> subprocess.Popen[bytes]:
        home = _spark_home()
        command = [
            *self._java(main),
            *("--host", "127.0.0.1", "--webui-port", "0"),
            *("--properties-file", str(self.folder / "spark.properties"), *args),
        ]
        # Without this setting their web pages listen on all addresses.
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(home)}
        # Spark's scripts would set it; a worker needs it to start an executor.
        environment["SPARK_SCALA_VERSION"] = _scala_version(home)
        self._log(name).write_bytes(b"")
        return spawn(command, output=self._log(name), folder=self.folder, environment=environment)

    def _java(self, main: str) -> list[str]:
        return [
            *(java_executable(), f"-Xmx{self._heap}", "-XX:+UseSerialGC", "-Xshare:auto"),
            *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
            *(
                f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}",
                "-cp",
                f"{_spark_home()}/jars/*",
                main,
            ),
        ]

    def _spawn_zookeeper(self, address: str, deadline: float) -> subprocess.Popen[bytes]:
        """Spark's jars contain the whole of ZooKeeper, not only its client."""
        settings = self.folder / "zookeeper.properties"
        host, port = address.split(":")
        settings.write_text(
            f"dataDir={self.folder / 'zookeeper'}\nclientPort={port}\nclientPortAddress={host}\nadmin.enableServer=false\n"
        )
        process = spawn([*self._java(_ZOOKEEPER), str(settings)], output=self._log("zookeeper"), folder=self.folder)
        while True:
            try:
                socket.create_connection((host, int(port)), 1.0).close()
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SandboxError(f"ZooKeeper did not start.\n{self.log_tail('zookeeper')}") from None
                time.sleep(0.05)
            else:
                return process

    def _await(self, name: str, process: subprocess.Popen[bytes], ready: bytes, deadline: float) -> None:
        while ready not in self._log(name).read_bytes():
            if process.poll() is not None:
                raise SandboxError(
                    f"Spark's {name} died with exit code {process.returncode}; the end of its log:\n{self.log_tail(name)}"
                )
            if time.monotonic() > deadline:
                raise SandboxError(f"Spark's {name} did not start in time.\n{self.log_tail(name)}")
            time.sleep(0.05)

    def _security(self) -> dict[str, str]:
        if self._secret is None:
            return {}
        on = dict.fromkeys(("spark.authenticate", "spark.network.crypto.enabled"), "true")
        return {**on, "spark.authenticate.secret": self._secret}

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


def _spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise SandboxError("PySpark, whose jars the cluster is made of, is not installed.")
    return Path(next(iter(spec.submodule_search_locations)))


def _scala_version(home: Path) -> str:
    for jar in (home / "jars").glob("spark-core_*.jar"):
        return jar.name.removeprefix("spark-core_").partition("-")[0]
    raise SandboxError(f"There is no Spark in {home}.")


@atexit.register
def _stop_what_still_runs() -> None:
    for cluster in list(_RUNNING):
        cluster.stop()
