"""Thousands of topics and groups on one flow: what starting, finding new topics and a round of checkpoints take.

Every figure comes from the same file for all contenders, `INTERVALS` included: Kafka's defaults of ten minutes would measure patience.
"""

import resource
import statistics
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import Popen

from confluent_kafka import Producer

from bench.cluster_pair import ClusterPair
from bench.contenders import Contender, Flow
from bench.errors import BenchFailed
from bench.outcome import Figure, Outcome
from bench.proctree import PeakMemory, tree_cpu_time
from bench.race import clean_up, log_tail, still_running
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.readers.reader import read_partition
from mm2.kafka.structs import LATEST, NewTopic, OffsetAndMetadata, OffsetInfo, TopicInfo, TopicPartition
from mm2.mirror.common.formats import Checkpoint
from mm2.sandbox.process import end

INTERVALS: Mapping[str, str] = {
    "refresh.topics.interval.seconds": "20",
    "refresh.groups.interval.seconds": "20",
    "emit.checkpoints.interval.seconds": "10",
}
NEW_TOPICS, DISCOVERIES = 10, 3

HEAP = "2g"
BROKER_SETTINGS: Mapping[str, str] = {
    # Two indexes a partition, each laid out in its full size of 10 MB: 200 GB of address space for nothing.
    "log.index.size.max.bytes": "65536",
}
_OTHER_FILES = 2000  # of a broker, beside one for each partition
_TOPICS_PER_REQUEST = 500

_PATIENCE_S = 900.0
_FLUSH_S = 120.0
_STOP_PATIENCE_S = 60.0
_CLEAN_UP_S = 600.0
_SETTLE_S = 20.0
_LOOK_S = 0.5
_TRAFFIC_PER_S = 100
_ANY_PARTITION = -1
_BETWEEN_S = 7.0  # no part of an interval, so that not all discoveries wait equally long for the next look

START = Figure("start → all copied s", 1)
"""From the start of the process until each partition has its one record on the target."""
READY = Figure("start → all groups s", 1)
"""From the start of the process until each group has a checkpoint for each of its partitions."""
CPU = Figure("CPU s/min", 2)
"""Of the replicator, all its processes, with the looks and rounds that fall into a minute, and nothing else to do."""
BROKER_CPU = Figure("broker CPU s/min", 2)
"""Of both brokers in that minute."""
NEW = Figure(f"{NEW_TOPICS} new topics s", 1)
"""From their creation until each of their partitions has its record on the target: the median of three times, waiting included."""
NEW_LONGEST = Figure(f"{NEW_TOPICS} new topics max s", 1)
ROUND = Figure("checkpoint p50 s", 1)
"""From a group's commit on the source until the last of its checkpoints could be read on the target, waiting included."""
ROUND_LONGEST = Figure("checkpoint max s", 1)
"""Of the last group of all, which have committed one after the other."""
MEMORY = Figure("peak RSS MB")

FIGURES = (START, READY, CPU, BROKER_CPU, NEW, NEW_LONGEST, ROUND, ROUND_LONGEST, MEMORY)


@dataclass(frozen=True)
class Many:
    """How many topics of how many partitions, how many groups (each has read one topic), how long it is looked on."""

    topics: int = 2000
    partitions: int = 5
    groups: int = 2000
    seconds: int = 60


class ManyTopics:
    """A pair of clusters with all topics, one record in each partition, and groups that commit."""

    def __init__(self, pair: ClusterPair, many: Many) -> None:
        self._pair = pair
        self._many = many
        self._runs = 0
        self._topics = [f"many-{index:05}" for index in range(many.topics)]
        *read, self._trickle = self._topics
        self._groups = {f"readers-{index:05}": read[index % len(read)] for index in range(many.groups)}

    def prepare(self) -> None:
        """Creates and fills the topics. Raises BenchFailed or KafkaFailure."""
        needed = self._many.topics * self._many.partitions + _OTHER_FILES
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if resource.RLIM_INFINITY != allowed < needed:
            raise BenchFailed(
                f"A broker needs {needed:,} open files for this, and {allowed:,} are allowed (ulimit -Hn)."
            )
        self._create(self._topics)

    def run(self, contender: Contender, folder: Path) -> Outcome:
        """What takes longer than 15 minutes is left out and noted. Raises BenchFailed, with the end of its log, when the contender
        dies or does not even copy."""
        self._runs += 1
        place = folder / f"run-{self._runs}"
        flow = replace(self._pair.flow(self._runs, "many-.*"), more=INTERVALS)
        self._commit(0)
        figures: dict[str, float] = {}
        notes: list[str] = []
        if contender.is_java:
            # In one request of more than 10,000 records for the controller's log, which refuses it each time: it would copy nothing.
            make_topics(self._pair.clusters[1], [flow.remote(topic) for topic in self._topics], self._many.partitions)
            notes.append(
                "Its remote topics were made for it, as it asks for all of them at once, which the controller refuses."
            )
        began = time.monotonic()
        process = contender.launch(flow, place)
        try:
            with PeakMemory(process.pid).watching() as memory:
                checkpoints = _Checkpoints(self._pair.clusters[1], flow, still_running(process))
                figures[START.name] = self._await_copies(flow, self._topics, process) - began
                steps: Sequence[Callable[[], dict[str, float]]] = (
                    lambda: {READY.name: self._await_groups(checkpoints) - began},
                    lambda: self._look_on(process),
                    lambda: self._discover(flow, process),
                    lambda: self._round(checkpoints),
                )
                for step in steps:
                    try:
                        figures |= step()
                    except _TookTooLong as exc:
                        notes.append(str(exc))
                figures[MEMORY.name] = memory.peak_bytes / 1e6
        except BenchFailed as exc:
            raise BenchFailed(f"{contender.title}: {exc}\n{log_tail(place)}") from exc
        finally:
            end(process, patience_s=_STOP_PATIENCE_S)
            clean_up(self._pair, keep=self._topics, patience_s=_CLEAN_UP_S)
        return Outcome(contender.name, figures, notes)

    # -- what is measured

    def _await_groups(self, checkpoints: "_Checkpoints") -> float:
        with self._traffic():
            return max(checkpoints.wait(self._partitions(), 0).values())

    def _look_on(self, process: Popen[bytes]) -> dict[str, float]:
        time.sleep(_SETTLE_S)
        cpu, brokers = tree_cpu_time(process.pid), self._pair.broker_cpu_time()
        time.sleep(self._many.seconds)
        still_running(process)()
        minutes = self._many.seconds / 60
        return {
            CPU.name: (tree_cpu_time(process.pid) - cpu).total_s / minutes,
            BROKER_CPU.name: (self._pair.broker_cpu_time() - brokers).total_s / minutes,
        }

    def _discover(self, flow: Flow, process: Popen[bytes]) -> dict[str, float]:
        took = []
        for number in range(DISCOVERIES):
            new = [f"many-new-{self._runs}-{number}-{index}" for index in range(NEW_TOPICS)]
            began = time.monotonic()
            self._create(new)
            took.append(self._await_copies(flow, new, process) - began)
            time.sleep(_BETWEEN_S)
        return {NEW.name: statistics.median(took), NEW_LONGEST.name: max(took)}

    def _round(self, checkpoints: "_Checkpoints") -> dict[str, float]:
        committed = self._commit(1)
        seen = checkpoints.wait(self._partitions(), 1)
        took = [seen[group] - committed[group] for group in committed]
        return {ROUND.name: statistics.median(took), ROUND_LONGEST.name: max(took)}

    # -- what is done for that

    def _traffic(self) -> AbstractContextManager[None]:
        """A trickle on the topic that no group reads, the same for all contenders.

        Java has at most ten offset syncs under way, and sends those that it has put off when it has copied another record: of
        ten thousand partitions with one record each it would have synced ten a minute.
        """
        return traffic(self._pair.brokers[0].bootstrap, [(self._trickle, _ANY_PARTITION)], _TRAFFIC_PER_S, b"one")

    def _partitions(self) -> dict[str, int]:
        """How many partitions each group reads."""
        return dict.fromkeys(self._groups, self._many.partitions)

    def _create(self, topics: Sequence[str]) -> None:
        """On the source, with one record in each partition."""
        make_topics(self._pair.clusters[0], topics, self._many.partitions)
        fill_topics(self._pair.brokers[0].bootstrap, topics, self._many.partitions)

    def _commit(self, offset: int) -> dict[str, float]:
        """Have every group commit that offset; when each had done it."""
        admin = Admin(self._pair.clusters[0])
        done: dict[str, float] = {}
        for group, topic in self._groups.items():
            places = [TopicPartition(topic, partition) for partition in range(self._many.partitions)]
            for answer in admin.alter_group_offsets(group, dict.fromkeys(places, OffsetAndMetadata(offset))).values():
                if isinstance(answer, KafkaFailure):
                    raise answer
            done[group] = time.monotonic()
        return done

    def _await_copies(self, flow: Flow, topics: Collection[str], process: Popen[bytes]) -> float:
        """When each partition of these topics was first seen to have a record on the target."""
        waiting = {
            TopicPartition(flow.remote(topic), index) for topic in topics for index in range(self._many.partitions)
        }
        return await_copies(self._pair.clusters[1], waiting, 1, still_running(process))


def make_topics(cluster: Cluster, topics: Sequence[str], partitions: int) -> None:
    """Creates topics. Raises KafkaFailure."""
    admin = Admin(cluster)
    for at in range(0, len(topics), _TOPICS_PER_REQUEST):
        some = [NewTopic(name, partitions, 1) for name in topics[at : at + _TOPICS_PER_REQUEST]]
        for made in admin.create_topics(some).values():
            if isinstance(made, KafkaFailure):
                raise made


def fill_topics(bootstrap: str, topics: Sequence[str], partitions: int) -> None:
    """Writes one record to each partition. Raises BenchFailed."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 100, "log_level": 0})
    lost: list[object] = []

    def delivered(error: object, _record: object) -> None:
        if error is not None:
            lost.append(error)

    for topic in topics:
        for partition in range(partitions):
            producer.produce(topic, b"one", partition=partition, on_delivery=delivered)
        producer.poll(0)
    if left := producer.flush(_FLUSH_S) + len(lost):
        raise BenchFailed(f"{left} records could not be written to the source: {lost[:1]}")


@contextmanager
def traffic(bootstrap: str, places: Sequence[tuple[str, int]], rate: int, value: bytes) -> Iterator[None]:
    """Single records to these topics and partitions in turn, so many a second."""
    over = threading.Event()
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0})

    def run() -> None:
        sent, began = 0, time.monotonic()
        while not over.wait(0.01):
            due = int((time.monotonic() - began) * rate)
            while sent < due:
                topic, partition = places[sent % len(places)]
                producer.produce(topic, value, partition=partition)
                sent += 1
            producer.poll(0)

    thread = threading.Thread(target=run, name="traffic")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        producer.flush(_FLUSH_S)


def await_copies(target: Cluster, places: Collection[TopicPartition], records: int, check: Callable[[], None]) -> float:
    """When each of these partitions was first seen to have so many records on the target. Raises BenchFailed after 15 minutes."""
    waiting, deadline = set(places), time.monotonic() + _PATIENCE_S
    while True:
        there = target.metadata({place.topic for place in waiting}).topics
        led = [place for place in waiting if _has_leader(there.get(place.topic), place.partition)]
        offsets = Admin(target).list_offsets(dict.fromkeys(led, LATEST)) if led else {}
        waiting -= {place for place, info in offsets.items() if isinstance(info, OffsetInfo) and info.offset >= records}
        now = time.monotonic()
        if not waiting:
            return now
        check()
        if now > deadline:
            raise _TookTooLong(
                f"{len(waiting):,} partitions have fewer than {records} records on the target after {_PATIENCE_S:.0f} s."
            )
        time.sleep(_LOOK_S)


class _TookTooLong(BenchFailed):
    """What is waited for has not come."""


class _Checkpoints:
    """The checkpoints topic of a flow, read on and on."""

    def __init__(self, target: Cluster, flow: Flow, check: Callable[[], None]) -> None:
        self._target = target
        self._topic = f"{flow.source}.checkpoints.internal"
        self._check = check
        self._next = 0

    def wait(self, groups: Mapping[str, int], offset: int) -> dict[str, float]:
        """When each group was first seen to have checkpoints of that upstream offset for so many partitions."""
        found: dict[str, set[tuple[str, int]]] = {group: set() for group in groups}
        seen: dict[str, float] = {}
        deadline = time.monotonic() + _PATIENCE_S
        while len(seen) < len(groups):
            for checkpoint in self._read():
                partitions = found.get(checkpoint.group)
                if partitions is not None and checkpoint.upstream_offset == offset:
                    partitions.add((checkpoint.topic, checkpoint.partition))
                    if len(partitions) == groups[checkpoint.group]:
                        seen.setdefault(checkpoint.group, time.monotonic())
            self._check()
            if time.monotonic() > deadline:
                missing = len(groups) - len(seen)
                raise _TookTooLong(
                    f"{missing:,} groups have no checkpoint of offset {offset} after {_PATIENCE_S:.0f} s."
                )
            time.sleep(_LOOK_S)
        return seen

    def _read(self) -> Iterator[Checkpoint]:
        admin, place = Admin(self._target), TopicPartition(self._topic, 0)
        info = admin.describe_topics([self._topic])[self._topic]
        if isinstance(info, KafkaFailure):
            return
        last = admin.list_offsets({place: LATEST})[place]
        if isinstance(last, KafkaFailure):
            return
        first, self._next = self._next, max(self._next, last.offset)
        for record in read_partition(self._target, info, 0, start=first, end=last.offset):
            yield Checkpoint.decode(record.key, record.value)


def _has_leader(info: TopicInfo | None, partition: int) -> bool:
    return info is not None and partition in info.partitions and info.partitions[partition].leader >= 0
