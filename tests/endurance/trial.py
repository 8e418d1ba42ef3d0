"""Two clusters of two brokers, each behind a bad network; the product between them; records; and a fault after the other.

What is judged at the end is everything: each record of each topic, the ledger's reasons, memory, and whether a
standstill was told while it lasted.
"""

from __future__ import annotations

import random
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.arrivals import Arrivals
from mm2.kafka.cluster import Cluster
from mm2.kafka.settings import ClientSettings
from mm2.sandbox.cluster import LocalCluster
from mm2.sandbox.kafka import LocalKafka
from mm2.sandbox.proxy import Proxy
from tests.endurance.composition import Draw, Fault, Side
from tests.endurance.footprint import sample
from tests.endurance.group import Committing, checkpoints, wrong
from tests.endurance.growth import Growth
from tests.endurance.product import ProductFailed
from tests.endurance.traffic import Pace, Traffic, Transactions
from tests.faults.oracle import Judgment, Ledger, Place, Reader, Rows, judge
from tests.faults.stage import HELD_UP, LISTENERS, Mirror, Topics

PLAIN, TRANSACTIONAL = "chaos", "chaos-transactions"
PARTITIONS, TRANSACTIONAL_PARTITIONS = 4, 2
_LIVE_PATIENCE_S = 180.0
_RECOVERY_PATIENCE_S = 240.0
_ARRIVAL_PATIENCE_S = 300.0
_TOLD_WITHIN_S = 30.0
_MOST_BYTES = 3 << 30
#: What a worker says that has lost its group's coordinator for longer than its session: nothing is left that could be held up.
_ALL_STOPS = "the session has ended; all work stops, since others may have it"

_REPLICATED = ("offset-syncs.topic", "checkpoints.topic", "heartbeats.topic", "ledger.topic")
_STORES = ("offset", "status", "config")
_GATHERED = Pace(2)
_PROMPTLY = Pace(1, tick_ms=20.0, linger_ms=0.0)
#: Deaths are noticed soon.
SETTINGS = {
    "B.session.timeout.ms": "6000",
    "B.heartbeat.interval.ms": "1500",
    "copy.batch.duration.ms": "20000",  # hand-overs happen between faults, and during them
    "A.consumer.isolation.level": "read_committed",
    "tasks.max": "2",
}
EXACTLY_ONCE = {"B.exactly.once.source.support": "enabled", "dedicated.mode.enable.internal.rest": "true"}


@dataclass(frozen=True)
class Survived:
    """A step: what was done, and how long every partition needed to grow again after its end."""

    number: int
    at_s: float
    faults: tuple[Fault, ...]
    recovery_s: float
    pause_s: float
    """The longest standstill of a partition, from the begin of the faults on."""

    def __str__(self) -> str:
        what = " + ".join(str(fault) for fault in self.faults)
        minutes, seconds = divmod(int(self.at_s), 60)
        return (
            f"{self.number:4}  {minutes:3}:{seconds:02}  recovered in {self.recovery_s:5.1f} s, "
            f"stood still {self.pause_s:5.1f} s  {what}"
        )


@dataclass
class Outcome:
    """All that was found out; `problems` is empty when all is well."""

    steps: list[Survived] = field(default_factory=list)
    judgments: dict[str, Judgment] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    peak_bytes: int = 0
    checkpoints: int = 0


@dataclass
class Trial:
    """What runs. `folder` is deleted at the end, but for the product's logs when `succeeded` is not set."""

    folder: Path
    source: Side
    target: Side
    mirrors: list[Mirror]
    traffic: Traffic
    transactions: Transactions
    group: Committing
    growth: Growth
    succeeded: bool = False
    outcome: Outcome = field(default_factory=Outcome)
    began_s: float = field(default_factory=time.monotonic)

    def await_live(self) -> None:
        """Every partition is copied. Raises ProductFailed."""
        began_s = time.monotonic()
        if not self.growth.wait(lambda: self.growth.all_grown_since(began_s), _LIVE_PATIENCE_S, self.check):
            raise ProductFailed(f"Nothing, or not everything, is copied after {_LIVE_PATIENCE_S:.0f} s.")

    def check(self) -> None:
        """Raises ProductFailed when a process ended that nobody had ended."""
        for number, mirror in enumerate(self.mirrors, 1):
            if not mirror.process.is_running:
                raise ProductFailed(
                    f"Process {number} ended by itself with exit code {mirror.process.exit_code}:\n{mirror.process.tail()}"
                )

    def survive(self, faults: list[Fault], say: Callable[[str], None]) -> Survived:
        """Begins them, ends each when its time is over, and waits until all partitions grow. Raises ProductFailed."""
        growth = self.growth
        began_s = time.monotonic()
        told = [_told(mirror) for mirror in self.mirrors]
        number = len(self.outcome.steps) + 1
        say(f"{number}: " + " + ".join(str(fault) for fault in faults))
        for fault in faults:
            fault.begin()
        for fault in sorted(faults, key=lambda fault: fault.lasts_s):
            time.sleep(max(0.0, began_s + fault.lasts_s - time.monotonic()))
            fault.end()
        ended_s = time.monotonic()
        for mirror in self.mirrors:
            self._watch_memory(mirror)
        # What was sent before a kill may still be seen to arrive just after it.
        if not growth.wait(lambda: growth.all_grown_since(ended_s + 0.3), _RECOVERY_PATIENCE_S, self.check):
            what = " + ".join(str(fault) for fault in faults)
            raise ProductFailed(f"Not every partition is copied {_RECOVERY_PATIENCE_S:.0f} s after: {what}.")
        recovered_s = time.monotonic()
        pause_s = max(growth.pauses_s(began_s).values(), default=0.0)
        step = Survived(number, began_s - self.began_s, tuple(faults), recovered_s - ended_s, pause_s)
        self.outcome.steps.append(step)
        silent = all(_told(mirror) == before for mirror, before in zip(self.mirrors, told, strict=True))
        if pause_s > _TOLD_WITHIN_S and silent and not any(fault.kills_process for fault in faults):
            self.outcome.problems.append(f"step {number}: {pause_s:.0f} s of standstill, and nobody was told")
        return step

    def finish(self, say: Callable[[str], None]) -> Outcome:
        """Ends the traffic, waits until everything has arrived, stops the product, judges."""
        say("Waiting for the last records")
        self.group.halt()
        self.transactions.halt()
        self.traffic.finish()
        deadline = time.monotonic() + _ARRIVAL_PATIENCE_S
        while True:
            judgments = {topic: self._judge(topic) for topic in (PLAIN, TRANSACTIONAL)}
            waiting = any(judgment.lost or judgment.unexplained for judgment in judgments.values())
            if not waiting or time.monotonic() > deadline:
                break
            self.check()
            time.sleep(2.0)
        for mirror in self.mirrors:
            mirror.stop()
        judgments = {topic: self._judge(topic) for topic in judgments}  # what a stop writes counts too
        outcome = self.outcome
        outcome.judgments = judgments
        for topic, judgment in judgments.items():
            if not (judgment.exactly_once and judgment.explained and judgment.source_records):
                outcome.problems.append(f"{topic}: {judgment}")
        outcome.checkpoints, skipping = self._judge_checkpoints()
        outcome.problems += skipping
        if outcome.peak_bytes > _MOST_BYTES:
            outcome.problems.append(f"{outcome.peak_bytes / 1e6:,.0f} MB of memory at the worst moment")
        if judgments[PLAIN].source_records < self.traffic.records:
            outcome.problems.append("the source does not have all that it acknowledged: nothing was shown")
        return outcome

    def _judge(self, topic: str) -> Judgment:
        source, target = self.source.bootstrap, self.target.bootstrap
        mirror = self.mirrors[0]
        ledger = Ledger.read(target, mirror.alias)
        return judge(
            Place(source, topic), Place(target, mirror.remote(topic)), isolation="read_committed", ledger=ledger
        )

    def _judge_checkpoints(self) -> tuple[int, list[str]]:
        """How many there are, and what is wrong with them."""
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

    def _watch_memory(self, mirror: Mirror) -> None:
        self.outcome.peak_bytes = max(self.outcome.peak_bytes, sample(mirror.process.pid, 0.0).total_bytes)


@contextmanager
def trial(
    *,
    rate: float,
    processes: int = 1,
    brokers: int = 2,
    exactly_once: bool = False,
    size_bytes: int = 300,
    seed: int = 1,
    settings: Mapping[str, str] | None = None,
    promptly: bool = False,
) -> Iterator[Trial]:
    """Everything runs and records flow; the product has been started. `brokers` on each side, `settings` of the flow.

    `promptly`: records are not gathered before they are sent, so that their latency is that of those who copy them.
    """
    folder = Path(tempfile.mkdtemp(prefix="mm2-trial-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        source, target = (_side(stack, folder, name, brokers) for name in ("A", "B"))
        topics = Topics(source)
        topics.create(PLAIN, partitions=PARTITIONS, replicas=brokers)
        topics.create(TRANSACTIONAL, partitions=TRANSACTIONAL_PARTITIONS, replicas=brokers)
        factors = dict.fromkeys(
            (
                "replication.factor",
                *(f"{name}.replication.factor" for name in _REPLICATED),
                *(f"{name}.storage.replication.factor" for name in _STORES),
            ),
            str(brokers),
        )
        made_settings = {**SETTINGS, **factors, **(EXACTLY_ONCE if exactly_once else {}), **(settings or {})}
        mirrors = [
            Mirror(
                folder / f"mm2-{number}", "A", source.addresses, target.addresses, (PLAIN, TRANSACTIONAL), made_settings
            )
            for number in range(1, processes + 1)
        ]
        for mirror in mirrors:
            stack.callback(mirror.clean_up)
        looking = {"bootstrap.servers": target.bootstrap, "request.timeout.ms": "2000"}
        cluster = Cluster(ClientSettings.from_props(looking), name="B")
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
            pace=_PROMPTLY if promptly else _GATHERED,
        )
        transactions = Transactions(
            source.bootstrap, TRANSACTIONAL, TRANSACTIONAL_PARTITIONS, run=run, per_s=1.0, seed=seed
        )
        traffic.start()
        stack.callback(traffic.halt)
        transactions.start()
        stack.callback(transactions.halt)
        group = Committing(source.bootstrap, PLAIN, PARTITIONS)
        group.start()
        stack.callback(group.halt)
        made = Trial(folder, source, target, mirrors, traffic, transactions, group, growth)
        for mirror in mirrors:
            mirror.start()
        try:
            yield made
        finally:
            if not made.succeeded:
                stack.callback(_keep_logs, folder)


def compose(made: Trial, seed: int, minutes: float, say: Callable[[str], None], tell: Callable[[str], None]) -> None:
    """Faults by lot until the time is up; `tell` gets a line for each. Raises ProductFailed."""
    rng = random.Random(seed)
    draw = Draw(rng, made.source, made.target, made.mirrors)
    made.await_live()
    made.began_s = time.monotonic()
    while time.monotonic() < made.began_s + 60 * minutes:
        time.sleep(rng.uniform(0.5, 6))
        tell(str(made.survive(draw.draw(), say)))


def _told(mirror: Mirror) -> int:
    """How often it has said that nothing is copied."""
    return len(mirror.lines(HELD_UP)) + len(mirror.lines(_ALL_STOPS))


def _side(stack: ExitStack, folder: Path, name: str, size: int) -> Side:
    cluster = None
    if size > 1:
        cluster = LocalCluster(name, folder / name.lower(), size=size, listeners=LISTENERS, proxied=["PROXIED"])
        brokers = stack.enter_context(cluster).brokers
    else:
        alone = LocalKafka(name, folder / name.lower() / "1", listeners=LISTENERS, proxied=["PROXIED"])
        brokers = [stack.enter_context(alone)]
    return Side(name, brokers, [stack.enter_context(Proxy.before(broker)) for broker in brokers], cluster)


def _keep_logs(folder: Path) -> None:
    """Copies the logs of product and brokers to a folder that stays."""
    kept = Path(tempfile.mkdtemp(prefix="mm2-trial-logs-"))
    for log in [*folder.glob("mm2-*/*.log"), *folder.glob("*/*/broker.log")]:
        shutil.copyfile(log, kept / "-".join(log.relative_to(folder).parts))
    print(f"The logs of product and brokers are in {kept}.")  # noqa: T201 - the last line somebody looks for
