"""Copies that share an alias, and states of the target that change while nothing is copied.

Three copies of each topic are on the target, all with the alias A: by a MirrorMaker process (``A.t``), and by two connectors of one Connect
worker (``routed.t`` and ``t``). A round has topics of its own, one fault, and ends with a count of the numbered records in
each copy. What `mm2 status` and `mm2 verify` state about the process's copy is compared with that count.
"""

from __future__ import annotations

import json
import random
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from mm2.copy.states import HEALTHY
from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import admin_of, create, producer_of, read
from tests.integration.mirror_process import MirrorProcess, topics_of, write_config
from tests.support.waiting import wait_until
from tests.systems.workers import DistributedWorker, distributed_props

_FLOW: Final = "A->B"
_FIRST, _MORE, _FOREIGN = 4_000, 1_500, 700
_PATIENCE_S: Final = 120.0
_QUIET_S: Final = 12.0
_BYTES: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"
_IDENTITY: Final = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"
_CONNECTORS: Final[Mapping[str, Mapping[str, str]]] = {
    "routed": {
        "transforms": "route",
        "transforms.route.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "transforms.route.regex": r"A\.(.*)",
        "transforms.route.replacement": "routed.$1",
    },
    "identity": {"replication.policy.class": _IDENTITY},
}


class Fault(StrEnum):
    """What happens in a round after its first records have been copied."""

    KILL = "all processes are killed while they copy"
    RESTORED = "the directory of the remote partition is put back to an earlier state"
    RESTORED_WRITTEN = "the same, and an application appends as many records as were lost, and more"
    DELETED = "the remote topic is deleted while nothing is copied"
    RECREATED = "the remote topic is deleted and created again while nothing is copied"
    FOREIGN = "an application appends to the remote topic while it is written"


@dataclass(frozen=True)
class Count:
    """Records of a copy, of those that were sent; ``foreign`` are those of others."""

    missing: int
    doubled: int
    foreign: int

    @property
    def is_whole(self) -> bool:
        return not self.missing and not self.doubled


@dataclass(frozen=True)
class Round:
    """The result of a round; ``state`` is that of the process's partition in `mm2 status`, ``verify`` the exit code of `mm2 verify`."""

    number: int
    fault: Fault
    counts: Mapping[str, Count]
    state: str
    verify: int

    @property
    def problems(self) -> list[str]:
        """Losses and duplicates that nothing explains, and statements that the count contradicts."""
        found = []
        for name, count in self.counts.items():
            is_reported = name.startswith("A.") and self.state not in HEALTHY
            if count.doubled or (count.missing and not is_reported):
                found.append(f"round {self.number} ({self.fault}): {name}: {count}, state {self.state}")
        own = next(count for name, count in self.counts.items() if name.startswith("A."))
        if own.missing and self.verify == 0:
            found.append(
                f"round {self.number} ({self.fault}): mm2 verify reports equality, and {own.missing} records are missing"
            )
        if own.is_whole and not own.foreign and self.verify == 1:
            found.append(
                f"round {self.number} ({self.fault}): mm2 verify reports differences, and no record is missing or doubled"
            )
        return found

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {one.missing}/{one.doubled}/{one.foreign}" for name, one in self.counts.items())
        return (
            f"round {self.number}: {self.fault}; missing/doubled/foreign: {counts}; {self.state}, verify {self.verify}"
        )


@dataclass
class StateRun:
    """Brokers, a MirrorMaker process and a Connect worker; see the module."""

    folder: Path
    source: LocalKafka
    target: LocalKafka
    worker: DistributedWorker
    file: Path
    process: MirrorProcess | None = None
    rounds: list[Round] = field(default_factory=list)
    succeeded: bool = False
    _starts: int = 0

    def start(self) -> None:
        """Start both processes; the connectors are created once."""
        self._starts += 1
        self.process = MirrorProcess(self.file, self.folder / f"mm2-{self._starts}.log")
        self.worker.start(_PATIENCE_S)
        for name, more in _CONNECTORS.items():
            if name not in self.worker.rest.get("/connectors"):
                self.worker.rest.create(name, self._connector(name, more))

    def stop(self) -> None:
        """Stop both cleanly."""
        assert self.process is not None
        self.process.stop()
        self.worker.stop(90)

    def kill(self) -> None:
        """SIGKILL both with all that they have started."""
        assert self.process is not None
        self.process.kill9(whole_family=True)
        self.worker.kill9()

    def clean_up(self) -> None:
        """Kill what is left."""
        if self.process is not None:
            self.process.clean_up()
        self.worker.__exit__()

    def round(self, fault: Fault, rng: random.Random) -> Round:
        """One round with topics of its own."""
        number = len(self.rounds) + 1
        topic = f"round{number}-{secrets.token_hex(2)}"
        remote = f"A.{topic}"
        create(self.source, topic)
        self._write(topic, 0, _FIRST)
        remotes = (remote, f"routed.{topic}", topic)
        for name in remotes:
            wait_until(lambda name=name: self._has(name, _FIRST), _PATIENCE_S, detail=self._tail)  # type: ignore[misc]
        sent = self._inject(fault, topic, remote, rng)
        self._write(topic, sent, sent + _MORE)
        sent += _MORE
        self._await_quiet(remotes, sent)
        counts = {name: self._count(name, sent) for name in remotes}
        done = Round(number, fault, counts, self._state(topic), self._mm2("verify", "--topic", topic).returncode)
        self.rounds.append(done)
        admin_of(self.source).delete_topics([topic])[topic].result(30)
        return done

    def _inject(self, fault: Fault, topic: str, remote: str, rng: random.Random) -> int:
        """Do it; returns the number of records sent so far. Both processes run afterwards."""
        match fault:
            case Fault.KILL:
                self._write(topic, _FIRST, _FIRST + _MORE)
                time.sleep(rng.uniform(0, 1.5))
                self.kill()
                self.start()
                return _FIRST + _MORE
            case Fault.RESTORED | Fault.RESTORED_WRITTEN:
                kept = self._kept(remote)
                self.start()
                self._write(topic, _FIRST, _FIRST + _MORE)
                wait_until(lambda: self._has(remote, _FIRST + _MORE), _PATIENCE_S, detail=self._tail)
                self._put_back(remote, kept)
                if fault is Fault.RESTORED_WRITTEN:
                    self._write_foreign(remote, rng.choice([_MORE // 2, _MORE, 2 * _MORE]))
                self.start()
                return _FIRST + _MORE
            case Fault.DELETED | Fault.RECREATED:
                admin_of(self.target).delete_topics([remote])[remote].result(30)
                if fault is Fault.RECREATED:
                    wait_until(lambda: remote not in topics_of(self.target), 30)
                    create(self.target, remote)
                time.sleep(rng.uniform(0, 20))
                return _FIRST
            case Fault.FOREIGN:
                self._write_foreign(remote, _FOREIGN)
                return _FIRST

    def _kept(self, remote: str) -> Path:
        """A copy of the directory of a remote partition. Everything is stopped, and the broker runs again."""
        self.stop()
        self.target.stop()
        kept = self.folder / f"kept-{remote}"
        shutil.copytree(self._directory(remote), kept)
        self.target.start()
        return kept

    def _put_back(self, remote: str, kept: Path) -> None:
        self.stop()
        self.target.stop()
        directory = self._directory(remote)
        shutil.rmtree(directory)
        shutil.copytree(kept, directory)
        self.target.start()

    def _directory(self, topic: str) -> Path:
        (found,) = self.folder.glob(f"b/**/{topic}-0")
        return found

    def _write(self, topic: str, first: int, after: int) -> None:
        producer = producer_of(self.source)
        for number in range(first, after):
            producer.produce(topic, b"%d" % number, partition=0)
        assert producer.flush(60) == 0

    def _write_foreign(self, remote: str, records: int) -> None:
        producer = producer_of(self.target)
        for _ in range(records):
            producer.produce(remote, b"foreign", partition=0)
        assert producer.flush(60) == 0

    def _has(self, topic: str, end: int) -> bool:
        return topic in topics_of(self.target) and len(read(self.target, topic)) >= end

    def _await_quiet(self, remotes: tuple[str, ...], sent: int) -> None:
        """Wait until all copies are whole, or nothing has changed for some seconds."""
        before: object = None
        quiet_s, deadline_s = time.monotonic(), time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline_s and time.monotonic() - quiet_s < 3 * _QUIET_S:
            counts = [self._count(name, sent) for name in remotes]
            if all(count.is_whole for count in counts):
                time.sleep(2)
                return
            if counts != before:
                before, quiet_s = counts, time.monotonic()
            time.sleep(1)

    def _count(self, topic: str, sent: int) -> Count:
        if topic not in topics_of(self.target):
            return Count(sent, 0, 0)
        found = Counter(record.value for record in read(self.target, topic))
        foreign = found.pop(b"foreign", 0)
        return Count(sent - len(found), sum(found.values()) - len(found), foreign)

    def _state(self, topic: str) -> str:
        """The state that `mm2 status` has for the partition; UNKNOWN: the command states none."""
        document = json.loads(self._mm2("status", "--json").stdout or "{}")
        flows = document.get("flows", [document])
        rows = [row for flow in flows for row in flow.get("partitions", ()) if row.get("topic") == topic]
        return str(rows[0]["state"]) if rows else "UNKNOWN"

    def _mm2(self, verb: str, *options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "mm2.cli.mm2", verb, str(self.file), _FLOW, *options]
        root = Path(__file__).parents[2]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=root)

    def _tail(self) -> str:
        return f"{self.process.tail() if self.process is not None else ''}\n{self.worker.tail()}"

    def _connector(self, name: str, more: Mapping[str, str]) -> dict[str, Any]:
        return {
            "name": name,
            "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
            "tasks.max": "1",
            **dict.fromkeys(("key.converter", "value.converter", "header.converter"), _BYTES),
            "source.cluster.alias": "A",
            "target.cluster.alias": "B",
            "source.cluster.bootstrap.servers": self.source.bootstrap,
            "target.cluster.bootstrap.servers": self.target.bootstrap,
            "topics": "round.*",
            "heartbeats.replication.enabled": "false",
            "replication.factor": "1",
            "offset-syncs.topic.replication.factor": "1",
            "refresh.topics.interval.seconds": "1",
            "sync.topic.acls.enabled": "false",
            **more,
        }


@contextmanager
def state_run() -> Iterator[StateRun]:
    """Everything started; stopped and deleted at the end."""
    folder = Path(tempfile.mkdtemp(prefix="mm2-state-run-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        source = stack.enter_context(LocalKafka("A", folder / "a"))
        target = stack.enter_context(LocalKafka("B", folder / "b"))
        props = {
            "clusters": "A, B",
            "A.bootstrap.servers": source.bootstrap,
            "B.bootstrap.servers": target.bootstrap,
            "A->B.enabled": "true",
            "A->B.topics": "round.*",
            "A->B.heartbeats.replication.enabled": "false",
            "B->A.enabled": "false",
            "emit.heartbeats.enabled": "false",
            "refresh.topics.interval.seconds": "1",
        }
        file = write_config(folder / "mm2.properties", props)
        worker = DistributedWorker(folder / "worker", distributed_props(target.bootstrap, "connect"))
        made = StateRun(folder, source, target, worker, file)
        stack.callback(made.clean_up)
        made.start()
        yield made


def rounds(made: StateRun, seed: int, minutes: float, report: Callable[[str], None]) -> list[str]:
    """Rounds until the time has passed, every fault once first; returns the problems."""
    rng = random.Random(seed)
    until_s = time.monotonic() + 60 * minutes
    faults: list[Fault] = []
    while time.monotonic() < until_s:
        if not faults:
            faults = list(Fault)
            rng.shuffle(faults)
        report(str(made.round(faults.pop(), rng)))
    return [problem for one in made.rounds for problem in one.problems]
