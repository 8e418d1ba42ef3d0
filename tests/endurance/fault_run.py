"""Run the product between two clusters behind fault-injecting proxies, and inject one fault after another under load.

At the end all of these are checked: each record of each topic, the ledger's reasons, every committed position against the
target's high watermark, memory, and whether each stall was reported while it lasted.
"""

from __future__ import annotations

import json
import random
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException

from bench.arrivals import Arrivals
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.settings.client_settings import ClientSettings
from tests.endurance.composition import Draw, Fault, Victim
from tests.endurance.footprint import sample
from tests.endurance.group import Committing, checkpoints, wrong
from tests.endurance.growth import Growth
from tests.endurance.positions import PositionSampler, Verdict, judge_positions
from tests.endurance.product import ProductFailed
from tests.endurance.same_offsets import shifted
from tests.endurance.sides import Side, replication_factors, start_side
from tests.endurance.traffic import Pace, Traffic, Transactions
from tests.faults.environment import COPYING_BLOCKED, COPYING_CONTINUES, MirrorMaker, Topics
from tests.faults.oracle import ClusterTopic, Judgment, Ledger, Reader, Rows, judge, judge_reasons
from tests.support.waiting import PATIENCE

PLAIN, TRANSACTIONAL = "chaos", "chaos-transactions"
PARTITIONS, TRANSACTIONAL_PARTITIONS = 4, 2
_LIVE_PATIENCE_S = 180.0 * PATIENCE
_RECOVERY_PATIENCE_S = 240.0 * PATIENCE
_ARRIVAL_PATIENCE_S = 300.0 * PATIENCE
_REPORTED_WITHIN_S = 30.0
_MOST_BYTES = 3 << 30
#: Logged by a worker that has lost its group coordinator for longer than the session timeout; no task is left to be blocked.
_ALL_STOPS = "group session expired; stopping all connectors and tasks"

_BATCHED = Pace(2)
_PROMPTLY = Pace(1, tick_ms=20.0, linger_ms=0.0)
#: Dead workers are detected soon.
SETTINGS = {
    "B.session.timeout.ms": "6000",
    "B.heartbeat.interval.ms": "1500",
    "copy.batch.duration.ms": "20000",  # hand-offs happen between faults and during faults
    "A.consumer.isolation.level": "read_committed",
    "tasks.max": "2",
}
EXACTLY_ONCE = {"B.exactly.once.source.support": "enabled", "dedicated.mode.enable.internal.rest": "true"}


@dataclass(frozen=True)
class Step:
    """One step: its faults, and how long it took until every partition was copied again after their end."""

    number: int
    at_s: float
    faults: tuple[Fault, ...]
    recovery_s: float
    pause_s: float
    """The longest pause of a partition since the begin of the faults."""

    def __str__(self) -> str:
        what = " + ".join(str(fault) for fault in self.faults)
        minutes, seconds = divmod(int(self.at_s), 60)
        return (
            f"{self.number:4}  {minutes:3}:{seconds:02}  recovered in {self.recovery_s:5.1f} s, "
            f"stalled {self.pause_s:5.1f} s  {what}"
        )


@dataclass
class Outcome:
    """The results; `problems` is empty after a successful run."""

    steps: list[Step] = field(default_factory=list)
    judgments: dict[str, Judgment] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    peak_bytes: int = 0
    checkpoints: int = 0
    positions: Verdict = field(default_factory=Verdict)
    sampled: int = 0
    """Positions that were compared with a high watermark."""
    unanswered: int = 0
    """Positions whose high watermark could not be read in time."""
    back: list[str] = field(default_factory=list)
    """Positions below their predecessor."""

    def number(self, what: str) -> int:
        """How many records (`lost`, `doubled`, …) of all topics."""
        judgments = self.judgments.values()
        return sum(one.numbers[what] if what in one.numbers else len(getattr(one, what)) for one in judgments)


@dataclass
class FaultRun:
    """Everything that runs. `folder` is deleted at the end; logs are kept unless `succeeded` is set. `preserves`: records
    have the same offsets on both clusters.
    """

    folder: Path
    source: Side
    target: Side
    mirrors: list[MirrorMaker]
    traffic: Traffic
    transactions: Transactions
    group: Committing
    growth: Growth
    sampler: PositionSampler
    preserves: bool = False
    succeeded: bool = False
    outcome: Outcome = field(default_factory=Outcome)
    began_s: float = field(default_factory=time.monotonic)

    def await_live(self) -> None:
        """Wait until every partition is copied. Raises ProductFailed."""
        began_s = time.monotonic()
        if not self.growth.wait(lambda: self.growth.all_grown_since(began_s), _LIVE_PATIENCE_S, self.check):
            raise ProductFailed(f"Not every partition is copied after {_LIVE_PATIENCE_S:.0f} s.")

    def check(self) -> None:
        """Raise ProductFailed when a process ended unexpectedly."""
        for number, mirror in enumerate(self.mirrors, 1):
            if not mirror.process.is_running:
                raise ProductFailed(
                    f"Process {number} ended unexpectedly with exit code {mirror.process.exit_code}:\n{mirror.process.tail()}"
                )

    def inject(self, faults: list[Fault], show: Callable[[str], None]) -> Step:
        """Begin the faults, end each after its duration, and wait until all partitions are copied. Raises ProductFailed."""
        growth = self.growth
        began_s = time.monotonic()
        reports = [_reports(mirror) for mirror in self.mirrors]
        was_blocked = any(_is_blocked(mirror) for mirror in self.mirrors)  # by the fault before, which was reported
        number = len(self.outcome.steps) + 1
        show(f"{number}: " + " + ".join(str(fault) for fault in faults))
        begun: list[Fault] = []
        # Each fault ends in a thread of its own: a broker that starts again waits for a controller whose fault ends later.
        with ThreadPoolExecutor(len(faults)) as ends:
            ending: list[Future[object]] = []
            try:
                for fault in faults:
                    begun.append(fault)
                    fault.begin()
                while begun:
                    begun.sort(key=lambda fault: fault.lasts_s)
                    time.sleep(max(0.0, began_s + begun[0].lasts_s - time.monotonic()))
                    ending.append(ends.submit(begun.pop(0).end))
            finally:
                for fault in begun:
                    with suppress(Exception):  # something else is raised already
                        fault.end()
        for end in ending:
            end.result()
        ended_s = time.monotonic()
        for mirror in self.mirrors:
            self._watch_memory(mirror)
        # Records sent before a kill may still arrive just after it.
        if not growth.wait(lambda: growth.all_grown_since(ended_s + 0.3), _RECOVERY_PATIENCE_S, self.check):
            what = " + ".join(str(fault) for fault in faults)
            raise ProductFailed(f"Not every partition is copied {_RECOVERY_PATIENCE_S:.0f} s after: {what}.")
        recovered_s = time.monotonic()
        pause_s = max(growth.pauses_s(began_s).values(), default=0.0)
        step = Step(number, began_s - self.began_s, tuple(faults), recovered_s - ended_s, pause_s)
        self.outcome.steps.append(step)
        is_reported = was_blocked or [_reports(mirror) for mirror in self.mirrors] != reports
        if pause_s > _REPORTED_WITHIN_S and not is_reported and not any(fault.kills_process for fault in faults):
            self.outcome.problems.append(f"step {number}: stalled for {pause_s:.0f} s without a report")
        return step

    def finish(self, show: Callable[[str], None]) -> Outcome:
        """Stop the traffic, wait until all records have arrived, stop the product, and check the results."""
        show("Waiting for the last records")
        outcome = self.outcome
        self.group.halt()
        self.transactions.halt()
        self.traffic.finish()
        judgments = self._await_all(show)
        for number, mirror in enumerate(self.mirrors, 1):
            try:
                mirror.stop()
            except (AssertionError, subprocess.TimeoutExpired) as exc:
                outcome.problems.append(f"process {number} did not stop cleanly: {exc}")
                mirror.clean_up()
        time.sleep(1.0)  # the last positions
        until = self._behind()
        self.sampler.halt()
        judgments = {
            topic: self._judge(topic, until.get(topic)) for topic in judgments
        }  # records written during the stop count too
        outcome.judgments = judgments
        for topic, judgment in judgments.items():
            if topic in until:
                outcome.problems.append(f"{topic} is not copied to its end: {until[topic]} by partition")
            if not (judgment.exactly_once and judgment.explained and judgment.source_records):
                outcome.problems.append(f"{topic}: {judgment}")
            if self.preserves:
                there = ClusterTopic(self.target.bootstrap, f"A.{topic}")
                outcome.problems += shifted(ClusterTopic(self.source.bootstrap, topic), there)
        self._judge_positions()
        if judgments[
            PLAIN
        ].exactly_once:  # checkpoints are compared record by record, which needs each record once and in order
            outcome.checkpoints, skipping = self._judge_checkpoints()
            outcome.problems += skipping
        if outcome.peak_bytes > _MOST_BYTES:
            outcome.problems.append(f"{outcome.peak_bytes / 1e6:,.0f} MB of memory at the peak")
        if judgments[PLAIN].source_records < self.traffic.records:
            outcome.problems.append("the source lost acknowledged records: the run proves nothing")
        return outcome

    def _await_all(self, show: Callable[[str], None]) -> dict[str, Judgment]:
        """Wait until all records have arrived, the positions claim so, or the timeout; return the judgments so far."""
        deadline = time.monotonic() + _ARRIVAL_PATIENCE_S
        while self._behind() and time.monotonic() < deadline and self._all_run():
            time.sleep(0.5)
        time.sleep(2.0)
        while True:
            show("Reading everything back")
            ended = not self._behind() or not self._all_run()
            judgments = {topic: self._judge(topic) for topic in (PLAIN, TRANSACTIONAL)}
            waiting = any(judgment.lost or judgment.unexplained for judgment in judgments.values())
            if not waiting or ended or time.monotonic() > deadline:
                return judgments
            time.sleep(2.0)

    def _all_run(self) -> bool:
        return all(mirror.process.is_running for mirror in self.mirrors)

    def _behind(self) -> dict[str, dict[int, int]]:
        """Positions by topic and partition, of the topics that are not copied to their end."""
        behind = {}
        reader = Reader(self.source.bootstrap, "read_committed")
        try:
            for topic in (PLAIN, TRANSACTIONAL):
                partitions = reader.partitions(topic)
                positions = {number: self.sampler.latest.get((topic, number), 0) for number in partitions}
                if any(positions[number] < reader.range(topic, number)[1] for number in partitions):
                    behind[topic] = positions
        finally:
            reader.close()
        return behind

    def _judge_positions(self) -> None:
        outcome = self.outcome
        outcome.sampled, outcome.unanswered = self.sampler.sampled, self.sampler.unanswered
        outcome.back = list(self.sampler.back)
        outcome.positions = judge_positions(self.sampler, self.source.bootstrap, self.target.bootstrap)
        outcome.problems += [f"position above the high watermark: {sentence}" for sentence in outcome.positions.above]
        if not outcome.sampled:
            outcome.problems.append("no position could be compared with a high watermark")

    def _judge(self, topic: str, until: Mapping[int, int] | None = None) -> Judgment:
        mirror = self.mirrors[0]
        source, target = (
            ClusterTopic(self.source.bootstrap, topic),
            ClusterTopic(self.target.bootstrap, mirror.remote(topic)),
        )
        ledger = Ledger.read(target.bootstrap, mirror.alias)
        judgment = judge(source, target, isolation="read_committed", ledger=ledger, until=until)
        judge_reasons(judgment, source, ledger)
        return judgment

    def _judge_checkpoints(self) -> tuple[int, list[str]]:
        """The number of checkpoints, and the errors in them."""
        remote = self.mirrors[0].remote(PLAIN)
        points = checkpoints(self.target.bootstrap, self.mirrors[0].alias)
        problems: list[str] = []
        readers = Reader(self.source.bootstrap, "read_committed"), Reader(self.target.bootstrap, "read_committed")
        try:
            for partition in range(PARTITIONS):
                source, target = (
                    Rows.of(reader.messages(topic, partition))
                    for reader, topic in zip(readers, (PLAIN, remote), strict=True)
                )
                problems += wrong(points, remote, partition, source, target)
        finally:
            for reader in readers:
                reader.close()
        if not any(point.topic == remote for point in points):
            problems.append("no checkpoint was ever written for the group")
        return len(points), problems

    def _watch_memory(self, mirror: MirrorMaker) -> None:
        self.outcome.peak_bytes = max(self.outcome.peak_bytes, sample(mirror.process.pid, 0.0).total_bytes)


@contextmanager
def fault_run(
    *,
    rate: float,
    processes: int = 1,
    brokers: int = 2,
    replicas: int | None = None,
    age_days: float = 0.0,
    exactly_once: bool = False,
    preserves: bool = False,
    size_bytes: int = 300,
    seed: int = 1,
    settings: Mapping[str, str] | None = None,
    promptly: bool = False,
) -> Iterator[FaultRun]:
    """Run everything under load, with the product started. `brokers` per cluster, `settings` of the flow.

    `replicas` of every topic, as many as there are brokers if None; with three brokers and more the target needs two in sync.
    `age_days`: age of the record timestamps; the target expires the producer of old records within a second.
    `promptly`: producers do not linger, so that the measured latency is that of the replication.
    """
    replicas = replicas or brokers
    age_ms = int(age_days * 86_400_000)
    folder = Path(tempfile.mkdtemp(prefix="mm2-fault-run-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        source, target = (start_side(stack, folder, name, brokers, replicas) for name in ("A", "B"))
        topics = Topics(source)
        topics.create(PLAIN, partitions=PARTITIONS, replicas=replicas, retention__ms="-1")
        topics.create(TRANSACTIONAL, partitions=TRANSACTIONAL_PARTITIONS, replicas=replicas, retention__ms="-1")
        made_settings = {
            **SETTINGS,
            **replication_factors(replicas),
            **(EXACTLY_ONCE if exactly_once else {}),
            **({"preserve.offsets": "true"} if preserves else {}),
            **(settings or {}),
        }
        mirrors = [
            MirrorMaker(
                folder / f"mm2-{number}", "A", source.addresses, target.addresses, (PLAIN, TRANSACTIONAL), made_settings
            )
            for number in range(1, processes + 1)
        ]
        for mirror in mirrors:
            stack.callback(mirror.clean_up)
        client = {"bootstrap.servers": target.bootstrap, "request.timeout.ms": "2000"}
        cluster = Cluster(ClientSettings.from_props(client), name="B")
        stack.callback(cluster.close)
        growth = Growth(Arrivals(cluster, f"A.{PLAIN}", PARTITIONS), 0.1)
        growth.start()
        stack.callback(growth.stop)
        run = secrets.token_bytes(8)
        traffic = Traffic(
            source.bootstrap,
            PLAIN,
            PARTITIONS,
            run=run,
            rate=rate,
            size_bytes=size_bytes,
            pace=_PROMPTLY if promptly else _BATCHED,
            age_ms=age_ms,
        )
        transactions = Transactions(
            source.bootstrap, TRANSACTIONAL, TRANSACTIONAL_PARTITIONS, run=run, per_s=1.0, seed=seed, age_ms=age_ms
        )
        traffic.start()
        stack.callback(traffic.halt)
        transactions.start()
        stack.callback(transactions.halt)
        group = Committing(source.bootstrap, PLAIN, PARTITIONS)
        group.start()
        stack.callback(group.halt)
        sampler = PositionSampler(target.bootstrap, mirrors[0].alias)
        sampler.start()
        stack.callback(sampler.halt)
        made = FaultRun(folder, source, target, mirrors, traffic, transactions, group, growth, sampler, preserves)
        for mirror in mirrors:
            mirror.start()
        try:
            yield made
        finally:
            if not made.succeeded:
                stack.callback(_keep_logs, folder)
                with suppress(KafkaException, OSError):
                    _keep_evidence(made)


def compose(
    made: FaultRun,
    seed: int,
    minutes: float,
    show: Callable[[str], None],
    report: Callable[[str], None],
    victims: Sequence[Victim] | None = None,
) -> None:
    """Inject random faults until the time has passed; `report` gets a line for each. Raises ProductFailed when nothing is copied.

    A later failure is a problem of the outcome and ends the faults; the arrived records are still checked.
    """
    rng = random.Random(seed)
    draw = Draw(rng, made.source, made.target, made.mirrors, victims=victims)
    made.await_live()
    made.began_s = time.monotonic()
    try:
        while time.monotonic() < made.began_s + 60 * minutes:
            time.sleep(rng.uniform(0.5, 6))
            report(str(made.inject(draw.draw(), show)))
    except (ProductFailed, AssertionError, subprocess.TimeoutExpired) as exc:
        made.outcome.problems.append(str(exc))


def _reports(mirror: MirrorMaker) -> int:
    """The number of log lines so far that report blocked copying."""
    return len(mirror.lines(COPYING_BLOCKED)) + len(mirror.lines(_ALL_STOPS))


def _is_blocked(mirror: MirrorMaker) -> bool:
    """Whether a task has reported that copying is blocked and has not reported that it continues."""
    blocked: dict[object, bool] = {}
    for line in mirror.process.lines(event="Copying "):
        if line["event"] in {COPYING_BLOCKED, COPYING_CONTINUES}:
            blocked[line.get("task")] = line["event"] == COPYING_BLOCKED
    return any(blocked.values())


def _keep_logs(folder: Path) -> None:
    """Copy the logs of product and brokers to a folder that is kept."""
    kept = Path(tempfile.mkdtemp(prefix="mm2-fault-run-logs-"))
    for log in [*folder.glob("mm2-*/*.log"), *folder.glob("*/*/broker.log")]:
        shutil.copyfile(log, kept / "-".join(log.relative_to(folder).parts))
    print(f"The logs of product and brokers, and the evidence, are in {kept}.")  # noqa: T201 - for the user of the command


def _keep_evidence(made: FaultRun) -> None:
    """Write the evidence beside the logs: all messages in full, sampled positions, ledger and offsets topics."""
    outcome, alias = made.outcome, made.mirrors[0].alias
    lines = [*(str(step) for step in outcome.steps), *outcome.problems]
    for topic, judgment in outcome.judgments.items():
        for what in ("lost", "doubled", "reordered", "altered", "holes", "unexplained", "misexplained"):
            lines += [f"{topic} {what}: {sentence}" for sentence in getattr(judgment, what)]
    lines += [f"uncertain: {sentence}" for sentence in outcome.positions.uncertain]
    lines += [f"position went back: {sentence}" for sentence in outcome.back]
    lines += [f"sampler: {count} x {failure}" for failure, count in made.sampler.failures.most_common()]
    (made.folder / "mm2-1" / "verdict.log").write_text("\n".join(lines) + "\n")
    with (made.folder / "mm2-1" / "claims.log").open("w") as file:
        for claims in made.sampler.claims.values():
            file.writelines(json.dumps(claim._asdict()) + "\n" for claim in claims)
    with (made.folder / "mm2-1" / "checkpoints.log").open("w") as file:
        file.writelines(json.dumps(asdict(one)) + "\n" for one in checkpoints(made.target.bootstrap, alias))
    reader = Reader(made.target.bootstrap, "read_uncommitted")
    try:
        for topic in (f"mm2-ledger.{alias}.internal", f"mm2-offsets.{alias}.internal"):
            with (made.folder / "mm2-1" / f"{topic}.log").open("w") as file:
                for partition in reader.partitions(topic):
                    for message in reader.messages(topic, partition):
                        row = [
                            partition,
                            message.offset(),
                            message.timestamp()[1],
                            *map(_text, (message.key(), message.value())),
                        ]
                        file.write(json.dumps(row) + "\n")
    finally:
        reader.close()


def _text(data: object) -> str | None:
    return data.decode(errors="replace") if isinstance(data, bytes) else None
