"""Java's MirrorMaker 2 beside this project between two clusters of three brokers: how long each fault interrupts them.

Both copy the same topic at the same time, under source aliases of their own, so each fault hits both.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from subprocess import Popen

from bench.arrivals import Arrivals
from bench.conditions import Conditions
from bench.contenders import JAVA_DEFAULT, OURS, Flow, fetch_jars
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.sandbox.process import end
from tests.endurance.broker_faults import BrokerFault, broker_faults
from tests.endurance.growth import Growth
from tests.endurance.product import ProductFailed
from tests.endurance.sides import replication_factors, start_side
from tests.endurance.traffic import Pace, Traffic
from tests.faults.environment import MirrorMaker, Topics
from tests.faults.oracle import ClusterTopic, Judgment, Ledger, judge
from tests.support.cluster import LocalCluster
from tests.support.waiting import PATIENCE

TOPIC, PARTITIONS = "pauses", 6
_BROKERS = 3
_OURS, _JAVAS = "A", "J"
_RECOVERY_PATIENCE_S = 300.0 * PATIENCE
_SETTLED_S = 5.0
_STOP_PATIENCE_S = 60.0
_SETTINGS = {"tasks.max": "2"}


@dataclass(frozen=True)
class Pause:
    """The longest time in which a partition of the remote topic did not grow, in seconds, from the begin of the fault until
    all partitions grew again; None: not all of them did, and the process was restarted.
    """

    fault: BrokerFault
    ours_s: float | None
    javas_s: float | None


@dataclass
class PauseRun:
    """Everything that runs."""

    source: LocalCluster
    target: LocalCluster
    traffic: Traffic
    growths: dict[str, Growth]
    ours: MirrorMaker
    javas: JavaProcess
    succeeded: bool = False
    problems: list[str] = field(default_factory=list)

    def await_live(self) -> None:
        """Wait until both copy every partition. Raises ProductFailed."""
        began_s = time.monotonic()
        for alias, growth in self.growths.items():
            if not growth.wait(partial(growth.all_grown_since, began_s), _RECOVERY_PATIENCE_S):
                raise ProductFailed(f"{alias}: not every partition is copied after {_RECOVERY_PATIENCE_S:.0f} s.")

    def faults(self) -> list[BrokerFault]:
        """The faults of these clusters."""
        stores = [f"mm2-ledger.{_OURS}.internal", *(f"mm2-offsets.{alias}.internal" for alias in self.growths)]
        return broker_faults(self.source, self.target, (TOPIC, f"{_OURS}.{TOPIC}"), stores)

    def inject(self, fault: BrokerFault) -> Pause:
        """One fault, and the recovery from it."""
        began_s = time.monotonic()
        fault.begin()
        time.sleep(fault.lasts_s)
        fault.end()
        ended_s = time.monotonic()
        pauses: dict[str, float | None] = {}
        for alias, growth in self.growths.items():
            grown = growth.wait(partial(growth.all_grown_since, ended_s), _RECOVERY_PATIENCE_S)
            pauses[alias] = max(growth.pauses_s(began_s).values(), default=None) if grown else None
        if pauses[_OURS] is None or not self.ours.process.is_running:
            raise ProductFailed(f"Nothing is copied after: {fault.name} ({fault.cluster}).\n{self.ours.tail()}")
        if pauses[_JAVAS] is None:
            self.javas.restart()
        self.await_live()
        time.sleep(_SETTLED_S)
        return Pause(fault, pauses[_OURS], pauses[_JAVAS])

    def finish(self) -> dict[str, Judgment]:
        """Stop the traffic, wait for the last records, and compare both remote topics with the source topic."""
        self.traffic.finish()
        deadline = time.monotonic() + _RECOVERY_PATIENCE_S
        while any(growth.latest.records < self.traffic.records for growth in self.growths.values()):
            if time.monotonic() > deadline:
                break
            time.sleep(0.5)
        time.sleep(_SETTLED_S)
        self.ours.stop()
        self.javas.stop()
        ledgers = {_OURS: Ledger.read(self.target.bootstrap, _OURS), _JAVAS: None}
        found = {
            alias: judge(
                ClusterTopic(self.source.bootstrap, TOPIC),
                ClusterTopic(self.target.bootstrap, f"{alias}.{TOPIC}"),
                ledger=ledger,
            )
            for alias, ledger in ledgers.items()
        }
        ours = found[_OURS]
        if not (ours.exactly_once and ours.explained) or ours.source_records < self.traffic.records:
            self.problems.append(str(ours))
        return {"ours": ours, "Java": found[_JAVAS]}


class JavaProcess:
    """Java's MirrorMaker 2, one process after another."""

    def __init__(self, flow: Flow, folder: Path) -> None:
        self._flow = flow
        self._folder = folder
        self._starts = 0
        self._process: Popen[bytes] | None = None

    def start(self) -> None:
        self._starts += 1
        self._process = JAVA_DEFAULT.launch(self._flow, self._folder / str(self._starts))

    def stop(self) -> None:
        if self._process is not None:
            end(self._process, patience_s=_STOP_PATIENCE_S)
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()


@contextmanager
def pause_run(*, rate: float, exactly_once: bool = False) -> Iterator[PauseRun]:
    """Both programs run between two clusters of three brokers, with `rate` records per second."""
    fetch_jars()
    folder = Path(tempfile.mkdtemp(prefix="mm2-pauses-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        source, target = (_cluster(stack, folder, name) for name in ("A", "B"))
        Topics(source).create(TOPIC, partitions=PARTITIONS, replicas=_BROKERS, retention__ms="-1")
        traffic = Traffic(
            source.bootstrap, TOPIC, PARTITIONS, run=secrets.token_bytes(8), rate=rate, size_bytes=300, pace=Pace(2)
        )
        traffic.start()
        stack.callback(traffic.halt)
        settings = {**_SETTINGS, **replication_factors(_BROKERS)}
        if exactly_once:
            settings["dedicated.mode.enable.internal.rest"] = "true"
        conditions = Conditions(exactly_once=exactly_once)
        addresses = source.bootstrap, target.bootstrap
        javas = JavaProcess(Flow(_JAVAS, "B", *addresses, TOPIC, conditions, more=settings), folder / "java")
        flow = Flow(_OURS, "B", *addresses, TOPIC, conditions, more=settings)
        ours = MirrorMaker(folder / "mm2", _OURS, *addresses, (TOPIC,), OURS.properties(flow))
        cluster = Cluster(
            ClientSettings.from_props({"bootstrap.servers": target.bootstrap, "request.timeout.ms": "2000"}), name="B"
        )
        stack.callback(cluster.close)
        growths = {}
        for alias in (_OURS, _JAVAS):
            arrivals = Arrivals(cluster, f"{alias}.{TOPIC}", PARTITIONS, committed=exactly_once)
            growths[alias] = Growth(arrivals, 0.1)
            growths[alias].start()
            stack.callback(growths[alias].stop)
        ours.start()
        stack.callback(ours.clean_up)
        javas.start()
        stack.callback(javas.stop)
        yield PauseRun(source, target, traffic, growths, ours, javas)


def _cluster(stack: ExitStack, folder: Path, name: str) -> LocalCluster:
    cluster = start_side(stack, folder, name, _BROKERS, _BROKERS).cluster
    assert cluster is not None
    return cluster


def measure(made: PauseRun, show: Callable[[str], None], report: Callable[[str], None]) -> list[Pause]:
    """All faults, one after another; `report` gets a line for each. Raises ProductFailed when ours does not recover."""
    made.await_live()
    time.sleep(_SETTLED_S)
    pauses = []
    for fault in made.faults():
        show(f"{fault.name} ({fault.cluster})")
        pause = made.inject(fault)
        report(f"{fault.name} ({fault.cluster}): ours {seconds(pause.ours_s)}, Java {seconds(pause.javas_s)}")
        pauses.append(pause)
    return pauses


def seconds(pause_s: float | None) -> str:
    """The text of a pause."""
    return "does not continue" if pause_s is None else f"{pause_s:.1f} s"
