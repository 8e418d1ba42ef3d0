"""A backlog of many records, copied by processes that are killed repeatedly with kill -9 at seeded times.

The bandwidth of the source is limited so that copying lasts until the last kill.
"""

from __future__ import annotations

import random
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from bench.arrivals import Arrivals
from bench.contenders import at_revision
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.settings.client_settings import ClientSettings
from tests.endurance.growth import Growth
from tests.endurance.positions import PositionSampler, Verdict, judge_positions
from tests.endurance.product import ProductFailed
from tests.endurance.sides import Side, replication_factors, start_side
from tests.endurance.traffic import Identity, TrafficFailed, decode
from tests.faults.environment import MirrorMaker, Topics, kill, members
from tests.faults.oracle import ClusterTopic, Judgment, Ledger, judge, judge_reasons
from tests.support.relay import Conditions

_REPOSITORY = Path(__file__).resolve().parents[2]
TOPIC, PARTITIONS = "backlog", 4
_VALUE_BYTES = 200
_STORED_BYTES = _VALUE_BYTES + 30
_LONGEST_WINDOW_S = 5.0
_MEAN_WINDOW_S = 3.5
_LEAST_RATE = 2e5
_LIVE_PATIENCE_S = 120.0
_ARRIVAL_PATIENCE_S = 600.0
_FLUSH_S = 300.0
_LAST_OFFSETS = 1000  # transaction markers follow a partition's last record

#: The shortest session timeout: a group whose only member was killed is empty after it.
SETTINGS = {"B.session.timeout.ms": "6000", "B.heartbeat.interval.ms": "1500", "copy.batch.duration.ms": "10000"}
EXACTLY_ONCE = {
    "B.exactly.once.source.support": "enabled",
    "A.consumer.isolation.level": "read_committed",
    "dedicated.mode.enable.internal.rest": "true",
}


@dataclass(frozen=True)
class Death:
    """One kill: the victims, when, the number of copied records, and the time until more were copied."""

    victims: str
    moment: str
    records: int
    recovery_s: float


class Backlog:
    """A run with `records` on the source; it starts the product."""

    def __init__(
        self, source: Side, target: Side, mirror: MirrorMaker, growth: Growth, sampler: PositionSampler, records: int
    ) -> None:
        self._source = source
        self._target = target
        self._sampler = sampler
        self._mirror = mirror
        self._growth = growth
        self._records = records
        self.succeeded = False

    def kill(self, seed: int, count: int, show: Callable[[str], None]) -> list[Death]:
        """Kill `count` times; leave a process running without a bandwidth limit. Raises ProductFailed."""
        rng = random.Random(seed)
        deaths = []
        self._limit_bandwidth(count)
        self._mirror.start()
        for number in range(count):
            left = count - number
            self._limit_bandwidth(left)
            show(
                f"Kill {number + 1} of {count}, {self._growth.latest.records:,} of {self._records:,} records are copied"
            )
            deaths.append(self._kill_once(rng))
        for network in self._source.networks:
            network.heal()
        return deaths

    @property
    def starts(self) -> int:
        """The number of processes that were started."""
        return self._mirror.starts

    @property
    def sampled(self) -> int:
        """Positions that were compared with a high watermark."""
        return self._sampler.sampled

    def judge_positions(self) -> Verdict:
        """To be called after `finish`. Raises KafkaException."""
        return judge_positions(self._sampler, self._source.bootstrap, self._target.bootstrap)

    def finish(self, ledger: bool) -> Judgment:
        """Wait for the remaining records, stop, and check the result. Raises ProductFailed."""
        source, target = self._source.bootstrap, self._target.bootstrap
        remote = self._mirror.remote(TOPIC)
        # Aborted transactions and markers have offsets too, so the end offset alone does not prove that all records arrived.
        if not self._growth.wait(
            lambda: self._growth.latest.records >= self._records and _has_ended(target, remote),
            _ARRIVAL_PATIENCE_S,
            self._check,
        ):
            raise ProductFailed(
                f"The target has {self._growth.latest.records:,} offsets for {self._records:,} records, and not every last record "
                f"can be read.\n{self._mirror.process.tail()}"
            )
        self._mirror.stop()
        time.sleep(1.0)  # the last positions
        self._sampler.halt()
        found = Ledger.read(target, self._mirror.alias) if ledger else None
        judgment = judge(ClusterTopic(source, TOPIC), ClusterTopic(target, remote), ledger=found)
        if found is not None:
            judge_reasons(judgment, ClusterTopic(source, TOPIC), found)
        return judgment

    def _kill_once(self, rng: random.Random) -> Death:
        began_s = time.monotonic()
        if rng.random() < 0.2:
            wait_s = rng.uniform(0, 6)  # possibly before any record is copied
            time.sleep(wait_s)
            moment = f"{wait_s:.1f} s after the last recovery"
        else:
            self._await_growth(began_s)
            wait_s = rng.uniform(0.1, _LONGEST_WINDOW_S)
            time.sleep(wait_s)
            moment = f"after {wait_s:.1f} s of copying"
        victims = rng.choices(["all processes", "driver", "executors", "Spark's JVM"], [4, 3, 3, 1])[0]
        process = self._mirror.process
        killed_s = time.monotonic()
        records = self._growth.latest.records
        if victims == "executors":
            kill(members(process, "worker"))
        elif victims == "Spark's JVM":
            kill(members(process, "jvm"))
        else:
            process.kill9(whole_family=victims == "all processes")
            self._mirror.start()
        self._await_growth(killed_s + 0.2)
        return Death(victims, moment, records, time.monotonic() - killed_s)

    def _limit_bandwidth(self, kills_to_come: int) -> None:
        left = max(0, self._records - self._growth.latest.records) * _STORED_BYTES
        rate = max(_LEAST_RATE, left / (_MEAN_WINDOW_S * (kills_to_come + 1)))
        for network in self._source.networks:
            network.set(Conditions(rate_down_bytes_s=rate / len(self._source.networks), window_bytes=1 << 20))

    def _await_growth(self, from_s: float) -> None:
        def grown() -> bool:
            before, now = self._growth.at(from_s).records, self._growth.latest.records
            return now > before or now >= self._records

        if not self._growth.wait(grown, _LIVE_PATIENCE_S, self._check):
            raise ProductFailed(f"Nothing was copied for {_LIVE_PATIENCE_S:.0f} s.\n{self._mirror.process.tail()}")

    def _check(self) -> None:
        process = self._mirror.process
        if not process.is_running:
            raise ProductFailed(f"The process ended unexpectedly with exit code {process.exit_code}:\n{process.tail()}")


@contextmanager
def backlog(
    records: int,
    *,
    exactly_once: bool,
    age_days: float = 0.0,
    brokers: int = 1,
    replicas: int | None = None,
    beside: str | None = None,
    show: Callable[[str], None],
) -> Iterator[Backlog]:
    """Start the brokers and write the records. Raises TrafficFailed, and BenchFailed for an unknown revision.

    `age_days`: age of the record timestamps; the target expires the producer of old records within a second. `brokers` per cluster;
    `replicas` of each topic, None: the number of brokers. `beside`: every second process runs this project at that Git revision.
    """
    folder = Path(tempfile.mkdtemp(prefix="mm2-backlog-"))
    replicas = replicas or brokers
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        source, target = (start_side(stack, folder, name, brokers, replicas) for name in ("A", "B"))
        Topics(source).create(TOPIC, partitions=PARTITIONS, replicas=replicas, retention__ms="-1")
        show(f"Writing {records:,} records to the source")
        _write(source.bootstrap, records, age_days)
        settings = {**SETTINGS, **replication_factors(replicas), **(EXACTLY_ONCE if exactly_once else {})}
        earlier = None if beside is None else dict(at_revision(beside, _REPOSITORY, folder / "beside").environment)
        mirror = MirrorMaker(
            folder / "mm2", "A", source.addresses, target.addresses, [TOPIC], settings, every_second=earlier
        )
        stack.callback(mirror.clean_up)
        cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": target.bootstrap}), name="B")
        stack.callback(cluster.close)
        growth = Growth(Arrivals(cluster, mirror.remote(TOPIC), PARTITIONS), 0.05)
        growth.start()
        stack.callback(growth.stop)
        sampler = PositionSampler(target.bootstrap, mirror.alias)
        sampler.start()
        stack.callback(sampler.halt)
        made = Backlog(source, target, mirror, growth, sampler, records)
        try:
            yield made
        finally:
            if not made.succeeded:
                _keep_logs(folder)


def _write(bootstrap: str, records: int, age_days: float) -> None:
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 50,
            "batch.size": 64_000,
            "queue.buffering.max.messages": 200_000,
            "on_delivery": delivered,
        }
    )
    run = secrets.token_bytes(8)
    for index in range(records):
        partition, sequence = index % PARTITIONS, index // PARTITIONS
        is_last = index >= records - PARTITIONS
        time_ms = int((time.time() - 86_400 * age_days) * 1000)
        identity = Identity(run, 0, partition, sequence, time_ms, is_last)
        while True:
            try:
                producer.produce(
                    TOPIC, identity.encode(_VALUE_BYTES), identity.key, partition, timestamp=identity.time_ms
                )
                break
            except BufferError:
                producer.poll(0.1)
        if index % 1000 == 0:
            producer.poll(0)
    if producer.flush(_FLUSH_S) or failed:
        raise TrafficFailed(f"The source did not acknowledge all records: {failed[:1]}.")


def _has_ended(bootstrap: str, topic: str) -> bool:
    """Whether the last record of each partition is visible with read_committed."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "backlog",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    try:
        places = []
        for partition in range(PARTITIONS):
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
            places.append(TopicPartition(topic, partition, max(low, high - _LAST_OFFSETS)))
        consumer.assign(places)
        ended: set[int | None] = set()
        at_end: set[int | None] = set()
        while len(at_end) < PARTITIONS:
            message = consumer.poll(30)
            if message is None:
                return False
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                return False
            if error is not None:
                at_end.add(message.partition())
            elif (identity := decode(message.value() or b"")) is not None and identity.is_last:
                ended.add(message.partition())
        return len(ended) == PARTITIONS
    finally:
        consumer.close()


def _keep_logs(folder: Path) -> None:
    kept = Path(tempfile.mkdtemp(prefix="mm2-backlog-logs-"))
    for log in folder.glob("mm2/*.log"):
        shutil.copyfile(log, kept / log.name)
    print(f"The logs of the product are in {kept}.")  # noqa: T201 - for the user of the command
