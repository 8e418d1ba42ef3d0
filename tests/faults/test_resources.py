"""Full and slow disks (rows K of docs/RELIABILITY.md)."""

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
from tests.faults.stage import HELD_UP, Play, Stage, kill, members
from tests.faults.stage import mirror as running_mirror
from tests.support.waiting import wait_until

_MB = 1 << 20


class SmallDisk:
    """A file system of its own where one may be mounted. Where not, `room` limits the files of a process instead."""

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
        """What a full disk is to that process, where none could be mounted: no file may become longer."""
        if not self.is_real:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size_mb * _MB, size_mb * _MB))


@contextmanager
def full(disk: SmallDisk) -> Iterator[None]:
    """Not a byte is left inside the `with` block."""
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
    stage: Stage, tmp_path: Path
) -> None:
    with SmallDisk(tmp_path / "disk", 60) as disk:
        target = LocalKafka("F", disk.folder / "f", heap="384m")
        with (
            target,
            running_mirror(tmp_path / "K1", "K1", source=stage.a, target=target, topics=1) as flow,
        ):
            play = Play(stage.a, target, flow, "K1-0", 2)
            with play.load(500, size_bytes=20_000):
                play.await_flow()
                disk.limit(target.pid, 20)
                wait_until(lambda: not target.is_running, 60, what="the end of a broker without room", why=flow.tail)
                wait_until(lambda: flow.lines(HELD_UP), 30, what="telling", why=flow.tail)
                time.sleep(3)
            disk.grow(400)
            target.start()
            play.await_flow(60)
            play.judge().assert_exactly_once()


def test_k2_a_worker_with_a_full_disk_continues_to_copy_and_reports_a_failed_restart(
    stage: Stage, tmp_path: Path
) -> None:
    """Its log, its temporary files and Spark's are all on that disk. A Spark job needs a file to begin."""
    with SmallDisk(tmp_path / "disk", 30) as disk:
        temporary = disk.folder / "tmp"
        temporary.mkdir()
        variables = {"TMPDIR": str(temporary), "SPARK_LOCAL_DIRS": str(temporary)}
        with running_mirror(
            tmp_path / "K2", "K2", source=stage.a, target=stage.b, topics=1, variables=variables
        ) as flow:
            play = Play(stage.a, stage.b, flow, "K2-0", 2)
            with play.load():
                play.await_flow()
                with full(disk):
                    play.await_flow()
                    kill(members(flow.process, "worker"))
                    if disk.is_real:
                        wait_until(
                            lambda: flow.lines("", reason="No space left on device"), 30, what="telling", why=flow.tail
                        )
                play.await_flow(60)
            play.judge().assert_exactly_once()


def test_k2_a_log_file_that_cannot_be_written_blocks_nothing(stage: Stage, tmp_path: Path) -> None:
    with (
        SmallDisk(tmp_path / "disk", 30) as disk,
        running_mirror(disk.folder / "K4", "K4", source=stage.a, target=stage.b, topics=1) as flow,
    ):
        play = Play(stage.a, stage.b, flow, "K4-0", 2)
        with play.load():
            play.await_flow()
            with full(disk):
                kill(members(flow.process, "worker"))
                play.await_flow(60)
        play.judge().assert_exactly_once()


def test_k3_a_slow_target_does_not_exhaust_memory_and_the_backlog_is_copied(stage: Stage, tmp_path: Path) -> None:
    through = (stage.a.bootstrap, stage.network_b.address)
    with running_mirror(tmp_path / "K3", "K3", source=stage.a, target=stage.b, through=through, topics=1) as flow:
        play = Play(stage.a, stage.b, flow, "K3-0", 2)
        with play.load(3000, size_bytes=2000):
            play.await_flow()
            before = sample(flow.process.pid, 0).total_bytes
            stage.network_b.delay(round_trip_ms=600, window_bytes=100_000)
            time.sleep(6)
            grown = sample(flow.process.pid, 0).total_bytes - before
            assert grown < 150e6, f"{grown / 1e6:.0f} MB more while the target was slow"
            stage.network_b.heal()
        play.judge().assert_exactly_once()
