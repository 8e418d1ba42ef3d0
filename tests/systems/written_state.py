"""State on both clusters as a version of this project has left it: `python -m tests.systems.written_state VERSION` writes it.

The program of that version runs three flows on two brokers, and is killed. The data of both brokers are the state: topics with their
ids, and the producers that brokers remember. A new release adds a row to `RELEASED` and its file.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mm2.sandbox.kafka import LocalKafka, start_all, stop_all
from tests.integration.copy_flow import producer_of
from tests.integration.mirror_flow import commit, committed, create
from tests.integration.mirror_process import ROOT, MirrorProcess, write_config
from tests.support.access import OPEN
from tests.support.waiting import PATIENCE
from tests.systems.version_pair import committed_records, contents

FOLDER: Final = Path(__file__).parent / "written_state"
GROUP: Final = "shop"
_FOR_EVER: Final = str((1 << 31) - 1)
_KEEP: Final = {
    # The files are older than what brokers keep by default.
    "log.retention.ms": "-1",
    "offsets.retention.minutes": _FOR_EVER,
    "producer.id.expiration.ms": _FOR_EVER,
    "transactional.id.expiration.ms": _FOR_EVER,
}


@dataclass(frozen=True)
class FlowMode:
    """A flow with one guarantee: its aliases, the topic that it copies, and its settings."""

    source: str
    target: str
    topic: str
    props: Mapping[str, str]

    @property
    def remote(self) -> str:
        return f"{self.source}.{self.topic}"


SESSIONS: Final = FlowMode("S", "T", "s.orders", {})
EXACTLY_ONCE: Final = FlowMode("X", "Y", "x.orders", {"Y.exactly.once.source.support": "enabled"})
PRESERVED: Final = FlowMode("P", "Q", "p.orders", {"preserve.offsets": "true"})


@dataclass(frozen=True)
class Released:
    """A version: the revision that wrote its file, and the modes that it has."""

    version: str
    revision: str
    modes: tuple[FlowMode, ...]

    @property
    def file(self) -> Path:
        return FOLDER / f"{self.version}.tar.xz"


RELEASED: Final = (
    # 0.1.0 was not released. This is its code before sessions had rules and leases.
    Released("0.1.0", "783007bb", (SESSIONS, EXACTLY_ONCE)),
    Released("0.2.0", "5d8f550b", (SESSIONS, EXACTLY_ONCE)),
    # The development version, before records of the ledger named their copy.
    Released("0.2.1", "545ac3bf", (SESSIONS, EXACTLY_ONCE, PRESERVED)),
)


@dataclass(frozen=True)
class StatePair:
    """Both brokers, and a folder for files and logs."""

    source: LocalKafka
    target: LocalKafka
    folder: Path

    def file_of(self, mode: FlowMode) -> Path:
        """The properties file of a flow."""
        return write_config(
            self.folder / f"{mode.source}.properties",
            {
                "clusters": f"{mode.source}, {mode.target}",
                f"{mode.source}.bootstrap.servers": self.source.bootstrap,
                f"{mode.target}.bootstrap.servers": self.target.bootstrap,
                f"{mode.source}->{mode.target}.enabled": "true",
                f"{mode.target}->{mode.source}.emit.heartbeats.enabled": "false",
                "topics": mode.topic,
                "groups": GROUP,
                f"{mode.source}.consumer.isolation.level": "read_committed",
                "sync.group.offsets.enabled": "true",
                "sync.group.offsets.interval.seconds": "1",
                "tasks.max": "1",
                "listeners": "",
                **dict.fromkeys(OPEN),  # without the port nothing needs it, and 0.2.0 had other roles
                **mode.props,
            },
        )

    @contextmanager
    def running(self, mode: FlowMode, code: Path = ROOT) -> Iterator[MirrorProcess]:
        """A process of the flow, of the program in the folder `code`."""
        number = len(list(self.folder.glob(f"{mode.source}-*.log")))
        log = self.folder / f"{mode.source}-{number}.log"
        process = MirrorProcess(
            self.file_of(mode), log, mode.target, variables={"PYTHONPATH": str(code)}, executed=code != ROOT
        )
        try:
            yield process
        finally:
            process.clean_up()

    def await_copied(self, mode: FlowMode, process: MirrorProcess) -> None:
        """Wait until the target has as many records as the source."""
        process.eventually(lambda: self._has_all(mode), 120)

    def await_group(self, mode: FlowMode, process: MirrorProcess, offsets: Mapping[int, int]) -> None:
        """Commit these offsets on the source, and wait until the group reads on at the same records on the target."""
        commit(self.source, GROUP, {(mode.topic, partition): offset for partition, offset in offsets.items()})
        wanted = {partition: _from(self.source, mode.topic, partition, offset) for partition, offset in offsets.items()}

        def has_moved() -> bool:
            found = {partition: committed(self.target, GROUP, mode.remote, partition) for partition in offsets}
            return min(found.values()) >= 0 and wanted == {
                partition: _from(self.target, mode.remote, partition, offset) for partition, offset in found.items()
            }

        process.eventually(has_moved, 120)

    def _has_all(self, mode: FlowMode) -> bool:
        wanted, got = committed_records(self.source, mode.topic), committed_records(self.target, mode.remote)
        return len(wanted) == len(got) and sum(map(len, got)) >= sum(map(len, wanted))

    def check_equal(self, mode: FlowMode) -> None:
        """Every committed record once, in order; with the source's offsets where they are preserved."""
        wanted, got = committed_records(self.source, mode.topic), committed_records(self.target, mode.remote)
        assert contents(got) == contents(wanted)
        if mode is PRESERVED:
            assert [[row.offset for row in rows] for rows in got] == [[row.offset for row in rows] for rows in wanted]

    def write(self, mode: FlowMode, first: int, count: int = 60) -> None:
        """As many records in each partition; in the second one in three transactions, of which the second is aborted."""
        plain = producer_of(self.source)
        for number in range(first, first + count):
            plain.produce(mode.topic, b"%d" % number, b"k", partition=0)
        assert plain.flush(60 * PATIENCE) == 0
        sender = producer_of(self.source, transactional__id=f"writer-{mode.topic}")
        sender.init_transactions(60 * PATIENCE)
        for turn in range(3):
            sender.begin_transaction()
            for number in range(count // 3):
                sender.produce(mode.topic, b"%d %d %d" % (first, turn, number), b"k", partition=1)
            if turn == 1:
                assert sender.flush(60 * PATIENCE) == 0
                sender.abort_transaction(60 * PATIENCE)
            else:
                sender.commit_transaction(60 * PATIENCE)


def _from(broker: LocalKafka, topic: str, partition: int, offset: int) -> list[tuple[Any, ...]]:
    """The first record that a group with this offset reads; none at the end."""
    rows = committed_records(broker, topic)[partition]
    return [row.content for row in rows if row.offset >= offset][:1]


def _pair(folder: Path) -> StatePair:
    source, target = (LocalKafka(name, folder / name, overrides=_KEEP) for name in ("source", "target"))
    return StatePair(source, target, folder)


@contextmanager
def restored(released: Released, folder: Path) -> Iterator[StatePair]:
    """The brokers with the state of that version, running inside the `with` block."""
    with tarfile.open(released.file) as archive:
        archive.extractall(folder, filter="data")
    pair = _pair(folder)
    start_all((pair.source, pair.target))
    try:
        yield pair
    finally:
        stop_all((pair.source, pair.target))


def unpack(revision: str, folder: Path) -> Path:
    """The program of a Git revision in a folder; it runs with the libraries of today. Raises CalledProcessError."""
    folder.mkdir()
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", revision, "mm2"], stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed.stdout, check=True)
    return folder


def make(released: Released) -> None:
    """Write the file of a version: 60 records are copied before a clean stop, 60 before a kill, and 60 wait on the source."""
    with tempfile.TemporaryDirectory() as scratch:
        pair = _pair(Path(scratch))
        code = unpack(released.revision, pair.folder / "code")
        start_all((pair.source, pair.target))
        try:
            for mode in released.modes:
                create(pair.source, mode.topic, 2, {"retention.ms": "-1"})
                pair.write(mode, 0)
                with pair.running(mode, code) as process:
                    pair.await_copied(mode, process)
                    pair.await_group(mode, process, {0: 30, 1: 25})
                    assert process.stop()[0] == 0
                pair.write(mode, 60)
                with pair.running(mode, code) as process:
                    pair.await_copied(mode, process)
                    pair.await_group(mode, process, {0: 70, 1: 75})
                    process.kill9(whole_family=True)
                pair.check_equal(mode)
                pair.write(mode, 120)
        finally:
            stop_all((pair.source, pair.target), 60)
        FOLDER.mkdir(exist_ok=True)
        with tarfile.open(released.file, "w:xz", preset=9) as archive:
            for name in ("source", "target"):
                archive.add(pair.folder / name / "data", f"{name}/data")


def main(versions: Sequence[str]) -> None:
    """Write the files of these versions."""
    for released in RELEASED:
        if released.version in versions:
            make(released)


if __name__ == "__main__":
    main(sys.argv[1:])
