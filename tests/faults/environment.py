"""Environment of the fault tests: two brokers behind fault-injecting proxies, connect-mirror-maker, and test traffic.

Clients of the tests connect to the brokers directly; only connect-mirror-maker connects through the proxies.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from bench.arrivals import Arrivals
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.sandbox.kafka import LocalKafka, start_pair
from tests.endurance.footprint import role_of
from tests.endurance.growth import Growth
from tests.endurance.traffic import Pace, Traffic
from tests.faults.oracle import ClusterTopic, Judgment, Ledger, Snapshot, judge
from tests.integration.mirror_process import MirrorProcess, write_config
from tests.support.proxy import Proxy
from tests.support.waiting import PATIENCE, wait_until

LISTENERS = {"PLAINTEXT": "PLAINTEXT", "PROXIED": "PLAINTEXT"}
COPYING_BLOCKED, COPYING_CONTINUES = "Copying is blocked.", "Copying continues."
COPYING_CONTINUES_WITH_NOTE = "Copying continues with a note."
_ARRIVAL_PATIENCE_S = 90.0


class Addressed(Protocol):
    """A broker or a cluster with bootstrap servers."""

    @property
    def bootstrap(self) -> str: ...


@dataclass(frozen=True)
class Environment:
    """Source broker A and target broker B, each behind a proxy that injects no fault between tests."""

    folder: Path
    a: LocalKafka
    b: LocalKafka
    network_a: Proxy
    network_b: Proxy

    def heal(self) -> None:
        """Resume or start the brokers and remove all network faults."""
        for broker in (self.a, self.b):
            if broker.is_running:
                broker.resume()
            else:
                broker.start()
        for network in (self.network_a, self.network_b):
            network.heal()


@contextmanager
def running_environment(folder: Path, **options: Any) -> Iterator[Environment]:
    """Start both brokers with `options`, and their proxies; stop them at the end of the `with` block."""
    with (
        start_pair(folder, listeners=LISTENERS, proxied=["PROXIED"], **options) as (a, b),
        Proxy.before(a) as network_a,
        Proxy.before(b) as network_b,
    ):
        yield Environment(folder, a, b, network_a, network_b)


class MirrorMaker:
    """connect-mirror-maker for one replication flow; its process can be stopped, killed and started again.

    The names of the internal topics and of the worker group contain the source's alias, so flows with different aliases
    are independent. `unused` holds the topics that no test has taken yet. `variables` are added to the environment of
    the process, those of `every_second` to that of the second, fourth, ... process only.
    """

    def __init__(
        self,
        folder: Path,
        alias: str,
        source: str,
        target: str,
        topics: Sequence[str],
        settings: Mapping[str, str],
        variables: Mapping[str, str] | None = None,
        every_second: Mapping[str, str] | None = None,
    ) -> None:
        self.alias = alias
        self._variables = variables
        self._every_second = every_second
        self.unused = list(topics)
        self._folder = folder
        self._starts = 0
        self._processes: list[MirrorProcess] = []
        flow = f"{alias}->B"
        folder.mkdir(parents=True, exist_ok=True)
        self.file = write_config(
            folder / "mm2.properties",
            {
                "clusters": f"{alias}, B",
                f"{alias}.bootstrap.servers": source,
                "B.bootstrap.servers": target,
                f"{flow}.enabled": "true",
                f"{flow}.topics": ", ".join(topics),
                f"B->{alias}.enabled": "false",
                f"B->{alias}.emit.heartbeats.enabled": "false",
                **settings,
            },
        )

    @property
    def process(self) -> MirrorProcess:
        """The process that was started last."""
        return self._processes[-1]

    def tail(self) -> str:
        """The end of the log of the newest process; empty before the first start."""
        return self._processes[-1].tail() if self._processes else ""

    def start(self) -> MirrorProcess:
        """Start another process; earlier ones may still be running."""
        self._starts += 1
        log = self._folder / f"{self._starts}.log"
        variables = self._variables
        if self._every_second is not None and self._starts % 2 == 0:
            variables = {**(variables or {}), **self._every_second}
        process = MirrorProcess(self.file, log, "B", variables=variables)
        self._processes.append(process)
        return process

    @property
    def starts(self) -> int:
        """The number of processes that were started."""
        return self._starts

    def restart(self) -> None:
        """Start another process, as a callback without a result."""
        self.start()

    def stop(self) -> None:
        """Stop the process that was started last; fails unless it exits with code 0."""
        code, _ = self.process.stop()
        assert code == 0, f"exit code {code}: {self.process.tail()}"

    def clean_up(self) -> None:
        for process in self._processes:
            for member in process.family():
                with suppress(psutil.Error):
                    member.send_signal(signal.SIGCONT)
            process.clean_up()

    def remote(self, topic: str) -> str:
        return f"{self.alias}.{topic}"

    def lines(self, event: str, **wanted: object) -> list[dict[str, Any]]:
        """Log lines of all processes started so far."""
        return [line for process in self._processes for line in process.lines(event=event, **wanted)]


@contextmanager
def running_mirror_maker(
    folder: Path,
    alias: str,
    *,
    source: Addressed,
    target: Addressed,
    through: tuple[str, str] | None = None,
    topics: int,
    partitions: int = 2,
    replicas: int = 1,
    settings: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
) -> Iterator[MirrorMaker]:
    """Run connect-mirror-maker for `topics` new topics. `through`: its bootstrap servers, by default the clusters'."""
    names = [f"{alias}-{number}" for number in range(topics)]
    Topics(source).create(*names, partitions=partitions, replicas=replicas)
    addresses = through or (source.bootstrap, target.bootstrap)
    flow = MirrorMaker(folder, alias, *addresses, names, settings or {}, variables)
    try:
        flow.start()
        there = Topics(target)
        remote = [flow.remote(name) for name in names]
        wait_until(
            lambda: all(there.partitions(name) for name in remote),
            60,
            what="creation of remote topics",
            detail=flow.tail,
        )
        flow.process.await_log("Copying starts.")
        yield flow
        flow.stop()
    finally:
        flow.clean_up()


def members(process: MirrorProcess, role: str) -> list[psutil.Process]:
    """The processes of connect-mirror-maker with that role, the oldest first."""
    found = []
    for member in process.family():
        with suppress(psutil.Error):
            if role_of(member, process.pid) == role:
                found.append(member)
    return sorted(found, key=psutil.Process.create_time)


@contextmanager
def stopped(*processes: psutil.Process) -> Iterator[None]:
    """SIGSTOP, and SIGCONT at the end for those that are still running."""
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            with suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)


def kill(processes: Iterable[psutil.Process]) -> int:
    """SIGKILL; returns how many of them were running."""
    killed = 0
    for process in processes:
        with suppress(psutil.Error):
            os.kill(process.pid, signal.SIGKILL)
            killed += 1
    return killed


class Topics:
    """Creates, changes and describes topics of one cluster."""

    def __init__(self, broker: Addressed) -> None:
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})

    def create(
        self,
        *names: str,
        partitions: int = 1,
        replicas: int = 1,
        assignment: list[list[int]] | None = None,
        **configs: str,
    ) -> None:
        """Create the topics that do not exist; return when metadata lists all. `__` in a config name stands for `.`.

        `assignment`: the replicas of each partition, the preferred leader first.
        """
        settings = {name.replace("__", "."): value for name, value in configs.items()}
        partitions = len(assignment) if assignment else partitions
        how: dict[str, Any] = {"replica_assignment": assignment} if assignment else {"replication_factor": replicas}
        new = [NewTopic(name, partitions, config=settings, **how) for name in names if not self.partitions(name)]
        for done in self._admin.create_topics(new).values() if new else ():
            done.result(30 * PATIENCE)
        wait_until(lambda: all(self.partitions(name) == partitions for name in names), 30, what=f"creation of {names}")

    def delete(self, name: str) -> None:
        """Delete the topic; return when metadata does not list it any more."""
        for done in self._admin.delete_topics([name]).values():
            done.result(30 * PATIENCE)
        wait_until(lambda: self.partitions(name) == 0, 30, what=f"deletion of {name}")

    def grow(self, name: str, partitions: int) -> None:
        for done in self._admin.create_partitions([NewPartitions(name, partitions)]).values():
            done.result(30 * PATIENCE)
        wait_until(lambda: self.partitions(name) == partitions, 30, what=f"growth of {name}")

    def delete_before(self, name: str, offsets: Mapping[int, int]) -> None:
        """Delete the records before an offset of each partition (DeleteRecords)."""
        wanted = [TopicPartition(name, partition, offset) for partition, offset in offsets.items()]
        for done in self._admin.delete_records(wanted).values():
            done.result(30 * PATIENCE)

    def leader(self, name: str, partition: int = 0) -> tuple[int, set[int]]:
        """Leader (-1: none) and in-sync replicas."""
        found = self._admin.list_topics(timeout=60).topics[name].partitions[partition]
        return int(found.leader), {int(node) for node in found.isrs}

    def partitions(self, name: str) -> int:
        """The number of partitions; 0 when the topic does not exist."""
        found = self._admin.list_topics(timeout=60).topics.get(name)
        return 0 if found is None or found.error else len(found.partitions)


class ReplicatedTopic:
    """One source topic of a test: writes traffic to it and compares its remote topic with it."""

    def __init__(
        self, source: Addressed, target: Addressed, mirror_maker: MirrorMaker, topic: str, partitions: int
    ) -> None:
        self.topic = topic
        self.partitions = partitions
        self.target = target
        self._mirror_maker = mirror_maker
        self._source = source
        self._traffic: Traffic | None = None
        # Only to follow the progress: the oracle compares the records, with a different client.
        props = {"bootstrap.servers": target.bootstrap, "request.timeout.ms": "3000"}
        self._arrivals = Arrivals(Cluster(ClientSettings.from_props(props), name="B"), self.remote, partitions)
        self._ends: dict[int, int] = {}

    @property
    def remote(self) -> str:
        return self._mirror_maker.remote(self.topic)

    @property
    def written(self) -> int:
        return self.traffic.records

    @property
    def traffic(self) -> Traffic:
        assert self._traffic is not None, "no traffic was started"
        return self._traffic

    @contextmanager
    def load(self, rate: float = 400.0, *, size_bytes: int = 300, producers: int = 1) -> Iterator[Traffic]:
        """Write records inside the `with` block, and sentinels at its end."""
        traffic = self._traffic = Traffic(
            self._source.bootstrap,
            self.topic,
            self.partitions,
            run=secrets.token_bytes(8),
            rate=rate,
            size_bytes=size_bytes,
            pace=Pace(producers),
        )
        traffic.start()
        try:
            yield traffic
        except BaseException:
            traffic.halt()
            raise
        traffic.finish()

    def ends(self) -> dict[int, int]:
        """Last known log end offset of each partition of the remote topic."""
        with suppress(KafkaFailure):
            self._ends.update(self._arrivals.ends())
        return dict(self._ends)

    def arrived(self) -> int:
        """The sum of the log end offsets of the remote topic."""
        return sum(self.ends().values())

    @contextmanager
    def measured(self, interval_s: float = 0.05) -> Iterator[Growth]:
        """Sample the log end offsets of the remote topic inside the `with` block."""
        cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": self.target.bootstrap}), name="B")
        growth = Growth(Arrivals(cluster, self.remote, self.partitions), interval_s)
        growth.start()
        try:
            yield growth
        finally:
            growth.stop()
            cluster.close()

    def await_copied(self, patience_s: float = _ARRIVAL_PATIENCE_S, *, records: int = 100) -> float:
        """Wait until that many more records have been copied; returns the seconds it took."""
        began_s, before = time.monotonic(), self.arrived()
        wait_until(
            lambda: self.arrived() >= before + records,
            patience_s,
            what=f"copying of {self.topic}",
            detail=self._mirror_maker.tail,
        )
        return time.monotonic() - began_s

    def judge_so_far(self) -> Judgment:
        """Compare what is on the target now; records that have not been copied yet do not count as lost."""
        source, target = (
            ClusterTopic(self._source.bootstrap, self.topic),
            ClusterTopic(self.target.bootstrap, self.remote),
        )
        judgment = judge(source, target)
        judgment.lost.clear()
        return judgment

    def judge(
        self,
        *,
        isolation: str = "read_uncommitted",
        patience_s: float = _ARRIVAL_PATIENCE_S,
        ledger: bool = False,
        settle_s: float = 0.0,
        source: Snapshot | None = None,
    ) -> Judgment:
        """Wait until everything has been copied, then compare. `settle_s`: how long to wait for late duplicates.

        `source`: the earlier contents of the source topic, if they have been deleted since. With `ledger`, records may
        be missing if the ledger has a reason.
        """
        target = ClusterTopic(self.target.bootstrap, self.remote)
        wanted = source or ClusterTopic(self._source.bootstrap, self.topic)

        def compare_now() -> Judgment:
            found = Ledger.read(self.target.bootstrap, self._mirror_maker.alias) if ledger else None
            return judge(wanted, target, isolation=isolation, ledger=found)

        deadline = time.monotonic() + patience_s
        if self._traffic is not None and not ledger:  # a full read takes long: wait until enough has been copied
            while self.arrived() < self._traffic.records and time.monotonic() < deadline:
                time.sleep(0.1)
        judgment = compare_now()
        while (judgment.lost or judgment.unexplained) and time.monotonic() < deadline:
            time.sleep(1.0)
            judgment = compare_now()
        if settle_s:
            time.sleep(settle_s)
            judgment = compare_now()
        if self._traffic is not None and source is None:
            assert judgment.source_records >= self._traffic.records, "the source does not have what it acknowledged"
        return judgment
