"""Connect workers, ours and Java's: processes with a properties file, used through REST."""

from __future__ import annotations

import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from subprocess import Popen
from typing import Any, Final, Self

import httpx
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from mm2.sandbox.jars import KAFKA_VERSION
from mm2.sandbox.ports import free_ports
from mm2.sandbox.process import end
from tests.support import programs
from tests.support.access import OPEN
from tests.support.java import CONNECT_VERSION, connect_java, console_logging
from tests.support.waiting import PATIENCE, wait_until

ROOT = Path(__file__).parents[2]
FILE_CONNECTORS = "libs/connect-file-4.3.0.jar"
"""The entry of ``plugin.path`` in Kafka's quickstart."""
STRING_CONVERTER = "org.apache.kafka.connect.storage.StringConverter"

_JAVA_LOGGING = console_logging("%d{ISO8601} %-5p %X{connector.context}%c{1}: %m%n")


class Rest:
    """Connect's REST API of one worker. ``url`` without a slash at the end."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.Client(base_url=url, timeout=100, trust_env=False)

    def ask(self, method: str, path: str, *, expect: int | Sequence[int] = 200, **how: Any) -> Any:
        """The JSON of a response (None without a body), which must have one of the expected statuses."""
        answer = self.http.request(method, path, **how)
        wanted = [expect] if isinstance(expect, int) else expect
        assert answer.status_code in wanted, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def get(self, path: str, **how: Any) -> Any:
        return self.ask("GET", path, **how)

    def create(self, name: str, config: Mapping[str, str], *, state: str | None = None) -> Any:
        """Create a connector; retry while a rebalance rejects the request."""
        body = {"name": name, "config": dict(config), **({} if state is None else {"initial_state": state})}
        return self._patiently(lambda: self.http.post("/connectors", json=body), 201)

    def configure(self, name: str, config: Mapping[str, str]) -> Any:
        """Change the configuration of a connector."""
        return self._patiently(lambda: self.http.put(f"/connectors/{name}/config", json=dict(config)), 200, 201)

    def delete(self, name: str) -> None:
        """Delete a connector."""
        self._patiently(lambda: self.http.delete(f"/connectors/{name}"), 204)

    def stop(self, name: str) -> None:
        """Stop a connector and wait until it has no tasks."""
        self._patiently(lambda: self.http.put(f"/connectors/{name}/stop"), 204)
        wait_until(
            lambda: self.states(name) == ["STOPPED"],
            30,
            detail=lambda: self.http.get(f"/connectors/{name}/status").text,
        )

    def resume(self, name: str) -> None:
        self._patiently(lambda: self.http.put(f"/connectors/{name}/resume"), 202)

    def pause(self, name: str) -> None:
        self._patiently(lambda: self.http.put(f"/connectors/{name}/pause"), 202)

    def status(self, name: str) -> dict[str, Any]:
        """``/status``, or an empty dict when the connector has none."""
        answer = self.http.get(f"/connectors/{name}/status")
        found = answer.json()
        return found if answer.status_code == 200 else {"connector": {}, "tasks": [], "error": found}

    def states(self, name: str) -> list[str]:
        """The state of the connector, then the states of its tasks in order."""
        found = self.status(name)
        tasks = sorted(found["tasks"], key=lambda task: int(task["id"]))
        return [found["connector"].get("state", ""), *(task["state"] for task in tasks)]

    def await_running(self, name: str, tasks: int, timeout_s: float = 60) -> dict[str, Any]:
        """Wait until a connector runs with exactly that many running tasks; its status."""
        wait_until(
            lambda: self.states(name) == ["RUNNING"] * (tasks + 1), timeout_s, detail=lambda: str(self.status(name))
        )
        return self.status(name)

    def offsets(self, name: str) -> list[dict[str, Any]]:
        """``/offsets``: partition and offset of each entry."""
        found = self.get(f"/connectors/{name}/offsets")["offsets"]
        return sorted(found, key=lambda entry: str(entry["partition"]))

    @staticmethod
    def _patiently(call: Callable[[], httpx.Response], *wanted: int, patience_s: float = 60) -> Any:
        deadline = time.monotonic() + patience_s
        while True:
            answer = call()
            if answer.status_code in wanted:
                return answer.json() if answer.content else None
            # 409 is a rebalance in progress: Connect asks clients to retry
            assert answer.status_code == 409, f"{answer.status_code} {answer.text}"
            assert time.monotonic() < deadline, answer.text
            time.sleep(0.2)


class WorkerProcess(ABC):
    """One worker with its own REST port. ``props`` override the defaults of a test worker.

    It can be restarted with the same properties on the same port. Usable as a context manager, which
    starts it and waits until it is healthy.
    """

    def __init__(self, folder: Path, props: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        (self.port,) = free_ports(1)
        self.props = {**self._defaults(), "listeners": f"http://127.0.0.1:{self.port}", **props}
        self.log = folder / "worker.log"
        self.rest = Rest(f"http://127.0.0.1:{self.port}")
        self._process: Popen[bytes] | None = None

    @abstractmethod
    def _command(self, file: Path) -> list[str]: ...

    @staticmethod
    def _defaults() -> dict[str, str]:
        return {
            "key.converter": STRING_CONVERTER,
            "value.converter": STRING_CONVERTER,
            "offset.flush.interval.ms": "500",
            **OPEN,
        }

    @property
    def worker_id(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def launch(self) -> Self:
        """Start it and return immediately."""
        file = self.folder / "worker.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in self.props.items()), encoding="latin-1")
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = programs.start(
            self._command(file), output=self.log, folder=self.folder, environment=environment
        )
        return self

    def start(self, timeout_s: float = 90) -> Self:
        """Start it and wait until ``/health`` reports that it is healthy."""
        self.launch()
        self.await_healthy(timeout_s)
        return self

    def await_healthy(self, timeout_s: float = 90) -> None:
        def healthy() -> bool:
            assert self.is_running, f"ended by itself with {self.exit_code}: {self.tail()}"
            try:
                return self.rest.http.get("/health", timeout=15).status_code == 200
            except httpx.TransportError:
                return False

        wait_until(healthy, timeout_s, detail=self.tail)

    def rest_when_open(self, path: str, timeout_s: float = 90) -> Any:
        """The first response with data, after those without (404, 503, no connection, empty)."""
        deadline = time.monotonic() + timeout_s
        while True:
            assert time.monotonic() < deadline, self.tail()
            try:
                answer = self.rest.http.get(path)
            except httpx.TransportError:
                time.sleep(0.02)
                continue
            if answer.status_code == 200 and answer.json():
                return answer.json()
            assert answer.status_code in {200, 404, 503}, answer.text
            time.sleep(0.02)

    def stop(self, patience_s: float = 30) -> int:
        """Stop it with SIGTERM; returns its exit code."""
        assert self._process is not None, "not started"
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        return self._process.wait(patience_s)

    def kill9(self) -> None:
        assert self._process is not None, "not started"
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """Return when all its threads are stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def tail(self, lines: int = 25) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        was_running = self.is_running
        if self._process is not None:
            end(self._process, patience_s=20)
        self.rest.http.close()
        assert not (was_running and self.exit_code == -signal.SIGKILL), f"did not end after SIGTERM: {self.tail()}"


#: Session timeout of a worker and of its sink tasks. A successor of a killed one waits for it; the default for a task is 45 s.
SHORT_SESSIONS: Final = {
    f"{whose}{key}": value
    for whose in ("", "consumer.")
    for key, value in (("session.timeout.ms", "6000"), ("heartbeat.interval.ms", "1000"))
}


def shorten_session(bootstrap: str, group: str) -> None:
    """Have the coordinator remove a dead member of this group of KIP-848 as soon as `SHORT_SESSIONS`, instead of after 45 s."""
    settings = (
        ConfigEntry(f"consumer.{key}", SHORT_SESSIONS[key], incremental_operation=AlterConfigOpType.SET)
        for key in ("session.timeout.ms", "heartbeat.interval.ms")
    )
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=list(settings))
    admin = AdminClient({"bootstrap.servers": bootstrap})  # not garbage-collected before the response
    (done,) = admin.incremental_alter_configs([resource]).values()
    done.result(30 * PATIENCE)


def distributed_props(bootstrap: str, group: str, *, by_coordinator: bool = False) -> dict[str, str]:
    """Properties of a distributed worker with three internal topics of its group and a session timeout of some seconds.

    ``by_coordinator``: for sink tasks with ``group.protocol=consumer``, whose session timeout is the coordinator's:
    see `shorten_session`.
    """
    sessions = {
        key: value for key, value in SHORT_SESSIONS.items() if not (by_coordinator and key.startswith("consumer."))
    }
    return {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        **{
            f"{store}.storage.{key}": value
            for store, topic in (("config", "configs"), ("offset", "offsets"), ("status", "status"))
            for key, value in (("topic", f"{group}-{topic}"), ("replication.factor", "1"))
        },
        "offset.storage.partitions": "3",
        "status.storage.partitions": "2",
        "scheduled.rebalance.max.delay.ms": "1000",
        **sessions,
    }


class OwnWorker(WorkerProcess):
    """One of our programs, with Kafka's file connectors."""

    @staticmethod
    def _defaults() -> dict[str, str]:
        return {**WorkerProcess._defaults(), "plugin.path": FILE_CONNECTORS}


class DistributedWorker(OwnWorker):
    """``bin/connect-distributed``."""

    def _command(self, file: Path) -> list[str]:
        return [sys.executable, "-P", "-m", "mm2.cli.connect_distributed", str(file)]


class StandaloneWorker(OwnWorker):
    """``bin/connect-standalone`` with the connectors in ``files``; offsets in the file ``offsets`` of its folder."""

    def __init__(self, folder: Path, props: Mapping[str, str], files: Sequence[Path] = ()) -> None:
        super().__init__(folder, {"offset.storage.file.filename": str(folder / "offsets"), **props})
        self.files = list(files)

    def _command(self, file: Path) -> list[str]:
        return [sys.executable, "-P", "-m", "mm2.cli.connect_standalone", str(file), *map(str, self.files)]


class JavaDistributedWorker(WorkerProcess):
    """``connect-distributed.sh`` of Kafka 4.3.0 or `version`."""

    version = KAFKA_VERSION
    main = "org.apache.kafka.connect.cli.ConnectDistributed"
    jvm_options: Sequence[str] = ()

    def _command(self, file: Path) -> list[str]:
        logging = self.folder / "log4j2.properties"
        logging.write_text(_JAVA_LOGGING)
        options = (f"-Dlog4j2.configurationFile={logging}", *self.jvm_options)
        return [*connect_java("384m", *options, version=self.version), self.main, str(file)]

    @staticmethod
    def _defaults() -> dict[str, str]:
        # All plugins are on its class path and found through manifests: scanning takes seconds.
        return {**WorkerProcess._defaults(), "plugin.discovery": "service_load"}


class NewestJavaWorker(JavaDistributedWorker):
    """That of the newest release."""

    version = CONNECT_VERSION


class JavaStandaloneWorker(JavaDistributedWorker):
    """``connect-standalone.sh`` of Kafka 4.3.0."""

    main = "org.apache.kafka.connect.cli.ConnectStandalone"

    def __init__(self, folder: Path, props: Mapping[str, str], files: Sequence[Path] = ()) -> None:
        super().__init__(folder, {"offset.storage.file.filename": str(folder / "offsets"), **props})
        self.files = list(files)

    def _command(self, file: Path) -> list[str]:
        return [*super()._command(file), *map(str, self.files)]
