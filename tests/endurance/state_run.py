"""Copies that share an alias, merges, and states of the target that change while nothing is copied.

Each round has topics of its own: one of which three copies are made, all with the alias A, by a MirrorMaker process (``A.t``) and by two
connectors of one Connect worker (``routed.t`` and ``t``), and two that are merged twice, by the process (a policy names ``A.t-all``) and by a
third connector (``merged.t``). A round has one fault, and ends with a count of the numbered records in each copy. Whenever nothing
is being copied, what `mm2 status`, `gaps`, `lag` and `verify` state about the copies of the process is compared with the count.
A copy of the process that has stopped with a state is then repaired as the runbook of that state says, and counted again.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
from confluent_kafka import KafkaException

from mm2.copy.states import HEALTHY, LASTING
from mm2.sandbox.errors import SandboxError
from mm2.sandbox.kafka import LocalKafka
from mm2.sandbox.ports import free_ports
from tests.endurance.copy_counts import FOREIGN, Copy, Count, values_of
from tests.endurance.stated import Answer, Stated, Statement, commands, stated
from tests.integration.copy_flow import admin_of, create, producer_of
from tests.integration.mirror_process import MirrorProcess, topics_of, write_config
from tests.support.waiting import PATIENCE, wait_until
from tests.systems.workers import DistributedWorker, Rest, distributed_props

_FLOW: Final = "A->B"
_ROOT: Final = Path(__file__).parents[2]
_FIRST, _MORE, _FOREIGN = 4_000, 1_500, 700
#: Without MM2_TEST_PATIENCE, which multiplies both: for one step of a round, and without a change of any copy.
_STEP_S, _QUIET_S = 120.0, 30.0
_ATTEMPTS: Final = 3  # to compare statements with a count that does not change meanwhile
_BYTES: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"
_IDENTITY: Final = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"
_HEAP: Final = "256m"
_SINGLE, _MERGED = "round[0-9]+-[0-9a-f]+", "round[0-9]+-[0-9a-f]+-merge-.*"


def _routed(regex: str, replacement: str) -> dict[str, str]:
    router = {"type": "org.apache.kafka.connect.transforms.RegexRouter", "regex": regex, "replacement": replacement}
    return {"transforms": "route", **{f"transforms.route.{key}": value for key, value in router.items()}}


_CONNECTORS: Final[Mapping[str, Mapping[str, str]]] = {
    "routed": {"topics": _SINGLE, **_routed(r"A\.(.*)", "routed.$1")},
    "identity": {"topics": _SINGLE, "replication.policy.class": _IDENTITY},
    "merged": {"topics": _MERGED, **_routed(r"A\.(.*)-merge-.*", "merged.$1")},
}

#: What a step of a round fails with on a machine that is too slow, or while a broker does not answer.
_UNJUDGED: Final = (AssertionError, SandboxError, KafkaException, httpx.HTTPError, subprocess.TimeoutExpired)


class Fault(StrEnum):
    """What happens in a round after its first records have been copied."""

    KILL = "all processes are killed while they copy"
    RESTORED = "the directory of the remote partition is put back to an earlier state"
    RESTORED_WRITTEN = "the same, and an application appends as many records as were lost, fewer or more"
    DELETED = "the remote topic is deleted while nothing is copied"
    RECREATED = "the remote topic is deleted and created again while nothing is copied"
    FOREIGN = "an application appends to the remote topic while it is written"


class Case(NamedTuple):
    """A fault, and the number of the copy that it affects (`_copies`)."""

    fault: Fault
    copy: int = 0

    def __str__(self) -> str:
        return self.fault.name if self.fault is Fault.KILL else f"{self.fault.name} {_NAMES[self.copy]}"


_NAMES: Final = ("single", "merge", "routed", "identity", "merge by connector")
_OWN, _OWN_MERGE = 0, 1
_CASES: Final = (
    Case(Fault.KILL),
    *(Case(fault, copy) for fault in Fault if fault is not Fault.KILL for copy in (_OWN, _OWN_MERGE)),
    Case(Fault.FOREIGN, _NAMES.index("merge by connector")),
)

Counts = Mapping[Copy, Mapping[str, Count]]


def _copies(topic: str) -> list[Copy]:
    merged = (f"{topic}-merge-a", f"{topic}-merge-b")
    return [
        Copy(f"A.{topic}", (topic,), by_process=True),
        Copy(f"A.{topic}-all", merged, by_process=True),
        Copy(f"routed.{topic}", (topic,), by_process=False),
        Copy(topic, (topic,), by_process=False),
        Copy(f"merged.{topic}", merged, by_process=False),
    ]


@dataclass
class Round:
    """A round. ``statements`` are all that were compared; ``states`` are those of the process's partitions after the fault, ``counts``
    those at the end, after the remedy, if one was necessary. ``unjudged``: why there is no result.
    """

    number: int
    case: Case
    statements: list[Statement] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)
    counts: dict[Copy, Mapping[str, Count]] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    unjudged: str = ""
    sent: int = 0
    remedies: int = 0

    @property
    def false_statements(self) -> int:
        return sum(statement.is_false for statement in self.statements)

    @property
    def problems(self) -> list[str]:
        """Losses, duplicates and changes of order that nothing explains, and statements that a count contradicts."""
        return [f"round {self.number} ({self.case}): {finding}" for finding in self.findings]

    def number_of(self, what: str) -> int:
        """The sum of a field of all counts."""
        found = [count for counts in self.counts.values() for count in counts.values()]
        return sum(len(one.missing) if what == "missing" else int(getattr(one, what)) for one in found)

    def __str__(self) -> str:
        counts = ", ".join(
            f"{copy.remote} {' '.join(map(str, counts.values()))}" for copy, counts in self.counts.items()
        )
        stopped = ", ".join(f"{topic} {state}" for topic, state in self.states.items() if state not in HEALTHY)
        how = f"not judged: {self.unjudged}" if self.unjudged else f"missing/doubled/disordered/foreign: {counts}"
        remedies = f"; {stopped}, {self.remedies} repaired" if stopped else ""
        return (
            f"round {self.number}: {self.case}; {how}{remedies}; "
            f"{len(self.statements)} statements, {self.false_statements} false"
        )


@dataclass
class StateRun:
    """Brokers, a MirrorMaker process and a Connect worker; see the module."""

    folder: Path
    source: LocalKafka
    target: LocalKafka
    file: Path
    rest: Rest
    process: MirrorProcess | None = None
    rounds: list[Round] = field(default_factory=list)
    _starts: int = 0

    def __post_init__(self) -> None:
        self.worker = self._new_worker()

    def _new_worker(self) -> DistributedWorker:
        return DistributedWorker(self.folder / "worker", distributed_props(self.target.bootstrap, "connect"))

    def start(self) -> None:
        """Start both processes; the connectors are created once."""
        self._starts += 1
        self.process = MirrorProcess(self.file, self.folder / f"mm2-{self._starts}.log")
        self.worker.start(_STEP_S)
        for name, more in _CONNECTORS.items():
            if name not in self.worker.rest.get("/connectors"):
                self.worker.rest.create(name, self._connector(name, more))

    def stop(self) -> None:
        """Stop both cleanly."""
        assert self.process is not None
        self.process.stop()
        self.worker.stop(90 * PATIENCE)

    def kill(self) -> None:
        """SIGKILL the process with all that it has started, and the worker."""
        assert self.process is not None
        self.process.kill9(whole_family=True)
        self.worker.kill9()

    def clean_up(self) -> None:
        """Kill what is left."""
        if self.process is not None:
            self.process.clean_up()
        self.worker.__exit__()

    def round(self, case: Case, rng: random.Random) -> Round:
        """One round with topics of its own."""
        done = Round(len(self.rounds) + 1, case)
        self.rounds.append(done)
        topic = f"round{done.number}-{secrets.token_hex(2)}"
        try:
            self._run(done, topic, rng)
        except _UNJUDGED as exc:
            done.unjudged = " ".join(f"{type(exc).__name__}: {exc}".split())[:300]
            done.findings += self._ended()
            self._recover()
        with suppress(KafkaException):  # a round that could not be judged may have created none of them
            for deleted in admin_of(self.source).delete_topics(_sources(topic)).values():
                deleted.result(30 * PATIENCE)
        return done

    def _run(self, done: Round, topic: str, rng: random.Random) -> None:
        sources, copies = _sources(topic), _copies(topic)
        sent = dict.fromkeys(sources, 0)
        for source in sources:
            create(self.source, source)
        self._write(sent, _FIRST)
        counts = self._await_quiet(copies, sent)
        self._compare(done, copies, sent, "before the fault")
        if any(not count.is_whole for found in counts.values() for count in found.values()):
            done.findings.append(f"before the fault: {_text(counts)}; nothing has been copied for {_quiet_s():.0f} s")
        self._inject(done, copies, sent, rng)
        self._write(sent, _MORE)
        counts = self._await_quiet(copies, sent)
        answers = self._compare(done, copies, sent, "after the fault")
        done.states = {source: answers.state(source) for source in sources}
        stopped = [copy for copy in copies if copy.by_process and self._is_stopped(done, copy)]
        for copy in stopped:
            self._repair(copy)
            done.remedies += 1
        if stopped:
            counts = self._await_quiet(copies, sent)
            self._compare(done, copies, sent, "after the remedy")
        done.sent = sum(sent.values())
        done.counts = dict(counts)
        done.findings += self._ended()
        for copy, found in counts.items():
            if any(not count.is_whole for count in found.values()):
                done.findings.append(f"{copy.remote}: {_text({copy: found})}, states {done.states}")

    def _inject(self, done: Round, copies: Sequence[Copy], sent: dict[str, int], rng: random.Random) -> None:
        """Do it, and count the records that are sent meanwhile. Both processes run afterwards."""
        fault, copy = done.case.fault, copies[done.case.copy]
        match fault:
            case Fault.KILL:
                self._write(sent, _MORE)
                time.sleep(rng.uniform(0, 1.5))
                self.kill()
                self.start()
            case Fault.RESTORED | Fault.RESTORED_WRITTEN:
                kept = self._kept(copy.remote)
                self.start()
                self._write(sent, _MORE)
                self._await_quiet(copies, sent)
                self._put_back(copy.remote, kept)
                self._compare(done, copies, sent, "at rest")
                if fault is Fault.RESTORED_WRITTEN:
                    self._write_foreign(copy.remote, rng.choice([_MORE // 2, _MORE, 2 * _MORE, 4 * _MORE]))
                self.start()
            case Fault.DELETED | Fault.RECREATED:
                admin_of(self.target).delete_topics([copy.remote])[copy.remote].result(30 * PATIENCE)
                if fault is Fault.RECREATED:
                    wait_until(lambda: copy.remote not in topics_of(self.target), 30)
                    # The flow may have been faster.
                    with suppress(KafkaException):
                        create(self.target, copy.remote)
                time.sleep(rng.uniform(0, 20))
            case Fault.FOREIGN:
                self._write(sent, _MORE)
                self._write_foreign(copy.remote, _FOREIGN)

    def _is_stopped(self, done: Round, copy: Copy) -> bool:
        states = {done.states[source] for source in copy.sources}
        return not states <= HEALTHY | {"UNKNOWN"}

    def _repair(self, copy: Copy) -> None:
        """Delete the remote topic and remove the positions of its partitions (docs/how-to/runbooks/Mm2LostRange.md)."""
        connector = "MirrorSourceConnector"
        wait_until(lambda: self.rest.http.get("/connectors").status_code == 200, _STEP_S, detail=self._tail)
        self.rest.stop(connector)
        if copy.remote in topics_of(self.target):
            admin_of(self.target).delete_topics([copy.remote])[copy.remote].result(30 * PATIENCE)
            wait_until(lambda: copy.remote not in topics_of(self.target), 30)
        positions = [
            {"partition": {"cluster": "A", "topic": source, "partition": 0}, "offset": None} for source in copy.sources
        ]
        path, body = f"/connectors/{connector}/offsets", {"offsets": positions}
        # A rebalance rejects it.
        wait_until(lambda: self.rest.http.patch(path, json=body).status_code == 200, _STEP_S, detail=self._tail)
        self.rest.resume(connector)

    def _ended(self) -> list[str]:
        """The processes that ended by themselves."""
        return [
            f"{name} ended by itself with exit code {one.exit_code}: {one.tail()}"
            for name, one in (("the process", self.process), ("the worker", self.worker))
            if one is not None and one.exit_code not in {None, 0, -signal.SIGKILL}
        ]

    def _recover(self) -> None:
        """Have everything run again after a round that was left halfway."""
        with suppress(AssertionError):  # it has not ended after SIGTERM
            self.clean_up()
        for broker in (self.source, self.target):
            broker.start(60 * PATIENCE)
        self.worker = self._new_worker()
        self.start()

    def _kept(self, remote: str) -> Path:
        """A copy of the directory of a remote partition. Everything is stopped, and the broker runs again."""
        self.stop()
        self.target.stop(30 * PATIENCE)
        kept = self.folder / f"kept-{remote}"
        shutil.copytree(self._directory(remote), kept)
        self.target.start(60 * PATIENCE)
        return kept

    def _put_back(self, remote: str, kept: Path) -> None:
        self.stop()
        self.target.stop(30 * PATIENCE)
        directory = self._directory(remote)
        shutil.rmtree(directory)
        shutil.copytree(kept, directory)
        self.target.start(60 * PATIENCE)

    def _directory(self, topic: str) -> Path:
        (found,) = self.folder.glob(f"b/**/{topic}-0")
        return found

    def _write(self, sent: dict[str, int], records: int) -> None:
        """As many more of each source topic, those of different topics in turns."""
        producer = producer_of(self.source)
        for number in range(records):
            for topic, before in sent.items():
                producer.produce(topic, b"%s:%d" % (topic.encode(), before + number), partition=0)
        assert producer.flush(60 * PATIENCE) == 0
        for topic in sent:
            sent[topic] += records

    def _write_foreign(self, remote: str, records: int) -> None:
        producer = producer_of(self.target)
        for _ in range(records):
            producer.produce(remote, FOREIGN, partition=0)
        assert producer.flush(60 * PATIENCE) == 0

    def _await_quiet(self, copies: Sequence[Copy], sent: Mapping[str, int]) -> Counts:
        """Wait until all copies are whole, or none has changed for some time; returns the counts."""
        before: Counts = {}
        quiet_s, deadline_s = time.monotonic(), time.monotonic() + _STEP_S * PATIENCE
        while (passed_s := time.monotonic() - quiet_s) < _quiet_s():
            counts = self._count(copies, sent)
            partial = [
                (copy, source) for copy, found in counts.items() for source, one in found.items() if not one.is_whole
            ]
            if not partial:
                return counts
            if counts != before:
                before, quiet_s = counts, time.monotonic()
            elif passed_s > _quiet_s() / 3 and self._are_stopped(partial):
                return counts
            assert time.monotonic() < deadline_s, f"still being copied: {_text(counts)}"
            time.sleep(1)
        return before

    def _are_stopped(self, partial: Sequence[tuple[Copy, str]]) -> bool:
        """Whether these are copies of the process, which reports that none of these source topics continues by itself."""
        try:
            url = f"http://127.0.0.1:{self.rest.http.base_url.port}/overview/A/B/partitions"
            page = self.rest.http.get(url, params={"search": partial[0][1].partition("-merge-")[0]}).json()
            states = {row["topic"]: row["state"] for row in page["rows"]}
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return False
        return all(copy.by_process and states.get(source) in LASTING for copy, source in partial)

    def _count(self, copies: Sequence[Copy], sent: Mapping[str, int]) -> Counts:
        there = topics_of(self.target)
        values = values_of(self.target.bootstrap, [copy.remote for copy in copies if copy.remote in there])
        return {copy: copy.counts(values.get(copy.remote, ()), sent) for copy in copies}

    def _compare(self, done: Round, copies: Sequence[Copy], sent: Mapping[str, int], when: str) -> Stated:
        """Compare what `mm2` states with a count that is the same before and after. Raises AssertionError if there is none."""
        own = [copy for copy in copies if copy.by_process]
        topics = [source for copy in own for source in copy.sources]
        for _ in range(_ATTEMPTS):
            before = self._count(own, sent)
            answers = self._ask(topics)
            if self._count(own, sent) == before:
                for one in answers.statements(before):
                    done.statements.append(one)
                    if one.is_false:
                        counted = _text(before) or "nothing is missing"
                        done.findings.append(f"{when}: mm2 {one.verb} states: {one.text}; {counted}")
                return answers
        raise AssertionError("the copies have changed during each comparison with what mm2 states")

    def _ask(self, topics: Sequence[str]) -> Stated:
        lines = commands(str(self.file), _FLOW, topics)
        done = subprocess.run(
            [sys.executable, "-P", "-c", _MANY],
            input=json.dumps(lines),
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            capture_output=True,
            text=True,
            timeout=300 * PATIENCE,
            check=False,
            cwd=_ROOT,
        )
        answers = [Answer(*json.loads(line)) for line in done.stdout.splitlines()]
        assert len(answers) == len(lines), f"mm2 has ended with {done.returncode}: {done.stderr[-500:]}"
        return stated(topics, answers)

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
            "heartbeats.replication.enabled": "false",
            "replication.factor": "1",
            "offset-syncs.topic.replication.factor": "1",
            "refresh.topics.interval.seconds": "1",
            "sync.topic.acls.enabled": "false",
            **more,
        }


#: All commands in one process: starting Python for each of them takes too long.
_MANY: Final = """
import contextlib, io, json, sys
from mm2.cli.mm2 import main
for arguments in json.load(sys.stdin):
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = main(arguments)
    print(json.dumps([code, output.getvalue(), errors.getvalue()]), flush=True)
"""


def _sources(topic: str) -> list[str]:
    return [topic, f"{topic}-merge-a", f"{topic}-merge-b"]


def _quiet_s() -> float:
    return _QUIET_S * PATIENCE


def _text(counts: Counts) -> str:
    return ", ".join(
        f"{copy.remote} of {source}: {count}"
        for copy, found in counts.items()
        for source, count in found.items()
        if not count.is_whole
    )


@contextmanager
def state_run() -> Iterator[StateRun]:
    """Everything started; stopped and deleted at the end."""
    folder = Path(tempfile.mkdtemp(prefix="mm2-state-run-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        source, target = (LocalKafka(name, folder / name.lower(), heap=_HEAP) for name in ("A", "B"))
        for broker in (source, target):
            stack.callback(broker.stop)
            broker.start(60 * PATIENCE)
        (port,) = free_ports(1)
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
            "replication.policy.class": "tests.endurance.merging_policy.MergingPolicy",
            "listeners": f"http://127.0.0.1:{port}",
        }
        file = write_config(folder / "mm2.properties", props)
        made = StateRun(folder, source, target, file, Rest(f"http://127.0.0.1:{port}/A/B"))
        stack.callback(made.clean_up)
        made.start()
        yield made


def rounds(made: StateRun, seed: int, minutes: float, report: Callable[[str], None]) -> list[str]:
    """Rounds until the time has passed, every case once first; returns the problems."""
    rng = random.Random(seed)
    until_s = time.monotonic() + 60 * minutes
    cases: list[Case] = []
    while time.monotonic() < until_s:
        if not cases:
            cases = rng.sample(_CASES, len(_CASES))
        done = made.round(cases.pop(), rng)
        report(str(done))
        for problem in done.problems:
            report(f"  {problem}")
    return [problem for one in made.rounds for problem in one.problems]


def summary(made: StateRun, seed: int) -> str:
    """The figures of a run in one line."""
    judged = [one for one in made.rounds if not one.unjudged]
    cases = ", ".join(f"{case} {count}" for case, count in sorted(Counter(str(one.case) for one in judged).items()))
    figures = {name: sum(one.number_of(name) for one in judged) for name in ("missing", "doubled", "disordered")}
    statements = sum(len(one.statements) for one in made.rounds)
    false = sum(one.false_statements for one in made.rounds)
    unjudged = ", ".join(f"round {one.number} {one.case}" for one in made.rounds if one.unjudged)
    return (
        f"seed {seed}: {len(judged)} rounds ({cases}), {sum(one.sent for one in judged):,} records sent, "
        + ", ".join(f"{count:,} {name}" for name, count in figures.items())
        + f", {statements:,} statements compared, {false:,} false, "
        + (f"not judged: {unjudged}." if unjudged else "all judged.")
    )
