"""Full and slow disks (rows K of docs/reference/reliability.md)."""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

from mm2.sandbox.kafka import LocalKafka
from tests.endurance.footprint import sample
from tests.faults.environment import COPYING_BLOCKED, Environment, ReplicatedTopic, kill, members, running_mirror_maker
from tests.support.waiting import wait_until

_MB = 1 << 20


class SmallDisk:
    """A small tmpfs where the test may mount one. Where not, `limit` limits the file size of a process instead."""

    def __init__(self, folder: Path, size_mb: int) -> None:
        self.folder = folder
        self._size_mb = size_mb
        self.is_real = False

    def __enter__(self) -> Self:
        self.folder.mkdir()
        options = f"size={self._size_mb}m"
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.folder)], capture_output=True, check=False
        )
        self.is_real = mounted.returncode == 0
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_real:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    def grow(self, size_mb: int) -> None:
        if self.is_real:
            subprocess.run(["mount", "-o", f"remount,size={size_mb}m", str(self.folder)], check=True)

    def limit(self, pid: int, size_mb: int) -> None:
        """Simulate a full disk for that process where no tmpfs could be mounted: no file can grow beyond the limit."""
        if not self.is_real:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size_mb * _MB, size_mb * _MB))


@contextmanager
def full(disk: SmallDisk) -> Iterator[None]:
    """Fill the disk inside the `with` block."""
    filler = disk.folder / "filler"
    if disk.is_real:
        with filler.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(_MB)):
                    pass
            except OSError:
                pass
            try:
                while file.write(b"x"):
                    pass
            except OSError:
                pass
    try:
        yield
    finally:
        filler.unlink(missing_ok=True)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_k1_a_full_target_disk_is_reported_and_copying_resumes_when_space_is_freed(
    environment: Environment, tmp_path: Path
) -> None:
    with SmallDisk(tmp_path / "disk", 60) as disk:
        target = LocalKafka("F", disk.folder / "f", heap="384m")
        with (
            target,
            running_mirror_maker(tmp_path / "K1", "K1", source=environment.a, target=target, topics=1) as flow,
        ):
            replicated = ReplicatedTopic(environment.a, target, flow, "K1-0", 2)
            with replicated.load(500, size_bytes=20_000):
                replicated.await_copied()
                disk.limit(target.pid, 20)
                wait_until(
                    lambda: not target.is_running, 60, what="the broker to fail on the full disk", detail=flow.tail
                )
                wait_until(lambda: flow.lines(COPYING_BLOCKED), 30, what="the log message", detail=flow.tail)
                time.sleep(3)
            disk.grow(400)
            target.start()
            replicated.await_copied(60)
            replicated.judge().assert_exactly_once()


@pytest.mark.slow
def test_k2_a_worker_with_a_full_disk_continues_to_copy_and_reports_a_failed_restart(
    environment: Environment, tmp_path: Path
) -> None:
    """Its log, its temporary files and Spark's are all on that disk. Spark needs a file to start a job."""
    with SmallDisk(tmp_path / "disk", 30) as disk:
        temporary = disk.folder / "tmp"
        temporary.mkdir()
        variables = {"TMPDIR": str(temporary), "SPARK_LOCAL_DIRS": str(temporary)}
        with running_mirror_maker(
            tmp_path / "K2", "K2", source=environment.a, target=environment.b, topics=1, variables=variables
        ) as flow:
            replicated = ReplicatedTopic(environment.a, environment.b, flow, "K2-0", 2)
            with replicated.load():
                replicated.await_copied()
                with full(disk):
                    replicated.await_copied()
                    kill(members(flow.process, "worker"))
                    if disk.is_real:
                        wait_until(
                            lambda: flow.lines("", reason="No space left on device"),
                            30,
                            what="the log message",
                            detail=flow.tail,
                        )
                replicated.await_copied(60)
            replicated.judge().assert_exactly_once()


@pytest.mark.slow
def test_k2_a_log_file_that_cannot_be_written_blocks_nothing(environment: Environment, tmp_path: Path) -> None:
    with (
        SmallDisk(tmp_path / "disk", 30) as disk,
        running_mirror_maker(disk.folder / "K4", "K4", source=environment.a, target=environment.b, topics=1) as flow,
    ):
        replicated = ReplicatedTopic(environment.a, environment.b, flow, "K4-0", 2)
        with replicated.load():
            replicated.await_copied()
            with full(disk):
                kill(members(flow.process, "worker"))
                replicated.await_copied(60)
        replicated.judge().assert_exactly_once()


@pytest.mark.slow
def test_k3_a_slow_target_does_not_exhaust_memory_and_the_backlog_is_copied(
    environment: Environment, tmp_path: Path
) -> None:
    through = (environment.a.bootstrap, environment.network_b.address)
    with running_mirror_maker(
        tmp_path / "K3", "K3", source=environment.a, target=environment.b, through=through, topics=1
    ) as flow:
        replicated = ReplicatedTopic(environment.a, environment.b, flow, "K3-0", 2)
        with replicated.load(3000, size_bytes=2000):
            replicated.await_copied()
            before = sample(flow.process.pid, 0).total_bytes
            environment.network_b.delay(round_trip_ms=600, window_bytes=100_000)
            time.sleep(6)
            grown = sample(flow.process.pid, 0).total_bytes - before
            assert grown < 150e6, f"{grown / 1e6:.0f} MB more while the target was slow"
            environment.network_b.heal()
        replicated.judge().assert_exactly_once()
