"""Each row of the table of failures in docs/how-to/spark.md, on a real standalone cluster while records are written and copied.

Authenticated and encrypted, two workers with two slots each. Counted from what both brokers have stored, by values and append times. To
print the rows: ``.venv/bin/python -m pytest -q tests/systems/test_spark_failures.py``. They depend on the load of the machine, so no test
depends on them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from mm2.copy.driver.engine import CopyEngine
from mm2.sandbox.kafka import LocalKafka
from mm2.sandbox.ports import free_ports
from tests.integration.copy.test_spark_standalone import SECRET, busy, executors, python_workers
from tests.integration.copy_flow import Flow, Read, Traffic, create, read_all
from tests.integration.mirror_process import ROOT, MirrorProcess, ends, has_all, write_config
from tests.support.proxy import Proxy
from tests.support.spark import LocalSpark
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PARTITIONS = 8
SLOTS = 4
#: A record that arrives later is part of a pause.
_PAUSE_MS = 1_000
_STAMPED = {"message__timestamp__type": "LogAppendTime", "retention__ms": "-1"}
_PAGE = ROOT / "docs/how-to/spark.md"


@dataclass
class Stage:
    """What a fault is caused in. ``faulty_from_s`` is when, in seconds since 1970."""

    cluster: LocalSpark
    engine: CopyEngine
    links: Sequence[Proxy]
    faulty_from_s: float = field(default_factory=time.time)

    @property
    def jvm(self) -> int:
        assert self.engine.spark.pid is not None
        return self.engine.spark.pid

    def copying(self) -> psutil.Process:
        """An executor that copies records."""
        wait_until(lambda: busy(self.cluster), 60)
        return busy(self.cluster)[0]

    def machine(self) -> list[psutil.Process]:
        """The processes of a worker whose executor copies records: the worker, its executor, Python."""
        parent = self.copying().parent()
        assert parent is not None
        return [parent, *parent.children(recursive=True)]


Cause = Callable[[Stage], None]


@dataclass(frozen=True)
class Fault:
    """``name`` is that of the row in the page. ``cause`` begins the fault and ends it, where it ends."""

    name: str
    cause: Cause
    settings: Mapping[str, str] = field(default_factory=dict)
    has_standby: bool = False
    is_linked: bool = False  # executors reach the driver through proxies
    work_bytes: int = 0  # the size of the file system of the workers' folders


def kill(*processes: psutil.Process) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def frozen(seconds: float, of: Callable[[Stage], Sequence[psutil.Process]]) -> Cause:
    def cause(stage: Stage) -> None:
        processes = of(stage)
        for sent in (signal.SIGSTOP, signal.SIGCONT):
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):  # it may be replaced meanwhile
                    process.send_signal(sent)
            if sent == signal.SIGSTOP:
                time.sleep(seconds)

    return cause


def unreachable(seconds: float) -> Cause:
    def cause(stage: Stage) -> None:
        for link in stage.links:
            link.freeze()
        time.sleep(seconds)
        for link in stage.links:
            link.heal()

    return cause


def restart_master(stage: Stage) -> None:
    stage.cluster.kill_master()
    time.sleep(10)
    stage.cluster.start_master()


def fill_disks(stage: Stage) -> None:
    files = [stage.cluster.folder / f"worker{index}" / "full" for index in range(2)]
    for file in files:
        with contextlib.suppress(OSError), file.open("wb", buffering=0) as filling:
            while filling.write(bytes(4096)):
                pass
    kill(*executors(stage.cluster))
    time.sleep(40)
    for file in files:
        file.unlink()


def pid(of: Callable[[Stage], int]) -> Callable[[Stage], list[psutil.Process]]:
    return lambda stage: [psutil.Process(of(stage))]


_RECOVERY = {"spark.deploy.recoveryMode": "FILESYSTEM"}
_DECOMMISSION = {"spark.decommission.enabled": "true"}

FAULTS = [
    Fault("Python worker killed", lambda stage: kill(*python_workers(stage.copying()))),
    Fault("executor killed", lambda stage: kill(stage.copying())),
    Fault("all executors killed", lambda stage: kill(*executors(stage.cluster))),
    Fault("worker killed", lambda stage: kill(stage.machine()[0])),
    Fault("a worker's machine lost", lambda stage: kill(*reversed(stage.machine()))),
    Fault("worker decommissioned", lambda stage: stage.machine()[0].send_signal(signal.SIGPWR), _DECOMMISSION),
    Fault("Spark's JVM killed", lambda stage: os.kill(stage.jvm, signal.SIGKILL)),
    Fault("master restarted, no recovery", restart_master),
    Fault("master restarted, `FILESYSTEM`", restart_master, _RECOVERY),
    Fault("master killed, one in standby", lambda stage: stage.cluster.kill_master(), has_standby=True),
    Fault("disks of the workers full", fill_disks, work_bytes=2 << 20),
    *(Fault(f"driver unreachable for {s} s", unreachable(s), is_linked=True) for s in (8, 40, 150)),
    *(Fault(f"a worker's machine hangs {s} s", frozen(s, Stage.machine)) for s in (8, 40, 150)),
    Fault("Python worker hangs 40 s", frozen(40, lambda stage: python_workers(stage.copying()))),
    Fault("executor's JVM hangs 40 s", frozen(40, lambda stage: [stage.copying()])),
    Fault("worker hangs 40 s", frozen(40, lambda stage: stage.machine()[:1])),
    Fault("master hangs 40 s", frozen(40, pid(lambda stage: stage.cluster.master_pid))),
    Fault("Spark's JVM hangs 40 s", frozen(40, pid(lambda stage: stage.jvm))),
]


@dataclass(frozen=True)
class Counted:
    """``pause_s`` is the longest time that a record took from one broker to the other. After ``recovery_s`` none took a second."""

    lost: int
    doubled: int
    reordered: int
    pause_s: float
    recovery_s: float


def counted(
    written: Mapping[int, Sequence[Read]], copied: Mapping[int, Sequence[Read]], faulty_from_s: float
) -> Counted:
    """Compare by the numbers in the records' values."""
    lost = doubled = reordered = pause_ms = 0
    recovered_ms = faulty_from_s * 1000
    for partition, records in written.items():
        at = {int(record.value or b""): record.timestamp for record in records}
        got = [int(record.value or b"") for record in copied[partition]]
        firsts = list(dict.fromkeys(got))
        lost += len(at.keys() - set(firsts))
        doubled += len(got) - len(firsts)
        reordered += sum(later < earlier for earlier, later in itertools.pairwise(firsts))
        for record in copied[partition]:
            if record.timestamp > faulty_from_s * 1000:
                took_ms = record.timestamp - at[int(record.value or b"")]
                pause_ms = max(pause_ms, took_ms)
                if took_ms > _PAUSE_MS:
                    recovered_ms = max(recovered_ms, record.timestamp)
    return Counted(lost, doubled, reordered, pause_ms / 1000, recovered_ms / 1000 - faulty_from_s)


def documented() -> dict[str, str]:
    """The last column of the rows of the page, by the first."""
    rows = [line.strip("| ").split(" | ") for line in _PAGE.read_text().splitlines() if line.startswith("| ")]
    return {row[0]: row[-1] for row in rows}


def load() -> str:
    return f"{os.getloadavg()[0]:.0f}"


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """The rows, printed at the end."""
    rows: list[str] = []
    yield rows
    head = [
        "| failure | records | lost | doubled | reordered | longest pause (s) | recovered after (s) | load | documented |",
        "| --- " * 9 + "|",
    ]
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("", *head, *rows, sep="\n")  # noqa: T201


@contextlib.contextmanager
def small_disks(folder: Path, size: int) -> Iterator[None]:
    """File systems of ``size`` bytes for the workers' folders; none for 0."""
    mounted = []
    try:
        for target in [folder / f"worker{index}" for index in range(2)] if size else []:
            target.mkdir(parents=True)
            command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(target)]
            if subprocess.run(command, check=False, capture_output=True).returncode:
                pytest.skip("needs the right to mount a file system")
            mounted.append(target)
        yield
    finally:
        for target in mounted:
            subprocess.run(["umount", "--lazy", str(target)], check=True)


@contextlib.contextmanager
def linked(is_linked: bool, folder: Path) -> Iterator[tuple[dict[str, str], list[Proxy]]]:
    """Settings with which executors reach the driver through proxies."""
    keys = ("spark.driver.port", "spark.driver.blockManager.port", "spark.mm2.channel.port") if is_linked else ()
    ports = dict(zip(keys, free_ports(len(keys)), strict=True)) if keys else {}
    with contextlib.ExitStack() as stack:
        links = [
            stack.enter_context(Proxy(f"127.0.0.1:{port}", folder / f"{key}.log", address=f"127.0.0.2:{port}"))
            for key, port in ports.items()
        ]
        host = {"spark.driver.host": "127.0.0.2", "spark.driver.bindAddress": "127.0.0.1"} if links else {}
        yield {**host, **{key: str(port) for key, port in ports.items()}}, links


@contextlib.contextmanager
def staged(fault: Fault, folder: Path) -> Iterator[Stage]:
    settings = dict(fault.settings)
    if "spark.deploy.recoveryMode" in settings:
        settings["spark.deploy.recoveryDirectory"] = str(folder / "recovery")
    with contextlib.ExitStack() as stack:
        stack.enter_context(small_disks(folder, fault.work_bytes))
        cluster = LocalSpark(
            folder, workers=2, cores=2, secret=SECRET, settings=settings, has_standby=fault.has_standby
        )
        stack.enter_context(cluster)
        props, links = stack.enter_context(linked(fault.is_linked, folder))
        engine = CopyEngine({**cluster.props, **props})
        stack.callback(engine.stop)
        engine.start()
        wait_until(lambda: engine.slots.count == SLOTS, 120, detail=lambda: (engine.slots.count, engine.down))
        yield Stage(cluster, engine, links)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: re.sub(r"\W+", "-", fault.name))
def test_no_record_is_lost_doubled_or_reordered_when_spark_fails(
    table: list[str], kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path, fault: Fault
) -> None:
    with staged(fault, tmp_path / "spark") as stage:
        flow = Flow(stage.engine, kafka_a, kafka_b, unique)
        topic = flow.topic(partitions=PARTITIONS, source=_STAMPED, target=_STAMPED)
        spec = flow.spec(topic, partitions=PARTITIONS, lanes=0, batch_duration_ms=4_000)
        with Traffic(kafka_a, topic, PARTITIONS, per_second=400) as traffic, flow.copying(spec) as job:

            def copied_from_now_on() -> None:
                at = traffic.sent // PARTITIONS
                wait_until(
                    lambda: len(rows := job.progress()) == PARTITIONS and all(row.position > at for row in rows),
                    300,
                    detail=lambda: (stage.engine.down, job.status(), job.lanes()),
                )

            wait_until(lambda: len(job.lanes()) == SLOTS - 1, 60, detail=job.lanes)
            copied_from_now_on()
            wait_until(lambda: all(lane.batch > 1 for lane in job.lanes()), 60, detail=job.lanes)
            stage.faulty_from_s = time.time()
            fault.cause(stage)
            copied_from_now_on()
            batches = job.status()["batches"]
            wait_until(lambda: job.status()["batches"] > batches + 3, 120, detail=job.status)
            copied_from_now_on()
            traffic.finish()
            flow.wait_until_copied(job, spec, 120)
    written, copied = (
        read_all(broker, name, range(PARTITIONS)) for broker, name in ((kafka_a, topic), (kafka_b, flow.remote(topic)))
    )
    report(table, fault.name, traffic.sent, counted(written, copied, stage.faulty_from_s))


def test_no_record_is_lost_doubled_or_reordered_when_the_process_is_killed_and_started_again(
    table: list[str], kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path
) -> None:
    topic, remote = f"{unique}-t", f"A.{unique}-t"
    for broker, name in ((kafka_a, topic), (kafka_b, remote)):
        create(broker, name, PARTITIONS, **_STAMPED)
    with LocalSpark(tmp_path / "spark", workers=2, cores=2, secret=SECRET) as cluster, contextlib.ExitStack() as stack:
        props = {
            "clusters": "A, B",
            "A.bootstrap.servers": kafka_a.bootstrap,
            "B.bootstrap.servers": kafka_b.bootstrap,
            "A->B.enabled": "true",
            "A->B.topics": topic,
            "B->A.enabled": "false",
            "copy.batch.duration.ms": "4000",
            **cluster.props,
        }
        file = write_config(tmp_path / "mm2.properties", props)

        def started(log: str) -> MirrorProcess:
            process = MirrorProcess(file, tmp_path / log, "B")
            stack.callback(process.clean_up)
            return process

        process = started("first.log")
        traffic = stack.enter_context(Traffic(kafka_a, topic, PARTITIONS, per_second=400))
        process.await_log("Copied so far.", timeout_s=240)
        at = traffic.sent
        process.eventually(lambda: sum(ends(kafka_b, remote)) >= at, 120)
        wait_until(lambda: len(busy(cluster)) == 2, 60, detail=process.tail)
        running = [one for executor in executors(cluster) for one in (executor, *python_workers(executor))]
        faulty_from_s = time.time()
        process.kill9()
        wait_until(lambda: not any(map(is_alive, running)), 120, detail=lambda: running)
        ended_s = time.time() - faulty_from_s
        process = started("second.log")
        process.await_log("Copied so far.", timeout_s=240)
        traffic.finish()
        process.eventually(lambda: has_all(kafka_a, topic, kafka_b, remote), 180)
        assert process.stop()[0] == 0
    written, copied = (
        read_all(broker, name, range(PARTITIONS)) for broker, name in ((kafka_a, topic), (kafka_b, remote))
    )
    report(table, "process killed and restarted", traffic.sent, counted(written, copied, faulty_from_s))
    table.append(f"\nThe executors of the killed process ended after {ended_s:.1f} s.")


def report(table: list[str], name: str, sent: int, found: Counted) -> None:
    figures = f"{found.pause_s:.1f} | {found.recovery_s:.1f} | {load()} | {documented()[name]}"
    table.append(f"| {name} | {sent} | {found.lost} | {found.doubled} | {found.reordered} | {figures} |")
    assert (found.lost, found.doubled, found.reordered) == (0, 0, 0), table[-1]
