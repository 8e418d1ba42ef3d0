"""What it costs to have many partitions assigned when nothing happens."""

import time
from dataclasses import dataclass
from pathlib import Path

from bench.cluster_pair import ClusterPair
from bench.contenders import Contender
from bench.errors import BenchFailed
from bench.outcome import Figure, Outcome
from bench.proctree import PeakMemory, tree_cpu_time
from bench.race import clean_up, log_tail, still_running
from mm2.kafka.admin import Admin
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.producer.producer import Producer
from mm2.kafka.records.record import Record
from mm2.kafka.structs import LATEST, NewTopic, TopicPartition
from mm2.sandbox.process import end

TOPICS, PARTITIONS = 100, 10
_START_PATIENCE_S = 180.0
_SETTLE_S = 20.0

CPU = Figure("idle CPU s/min", 2)
"""Of the replicator, all its processes."""
BROKER_CPU = Figure("broker CPU s/min", 2)
"""Of both brokers."""
START = Figure("start → all copied s", 2)
"""From the start of the process until each of the topics has its one record on the target."""
MEMORY = Figure("peak RSS MB")

FIGURES = (CPU, BROKER_CPU, START, MEMORY)


@dataclass(frozen=True)
class Idleness:
    """How long is looked on."""

    seconds: int


class Waiting:
    """A pair of clusters with 100 topics of ten partitions each and one record in each topic."""

    def __init__(self, pair: ClusterPair) -> None:
        self._pair = pair
        self._runs = 0
        self._topics = [f"idle-{index:03}" for index in range(TOPICS)]

    def prepare(self) -> None:
        """Creates the topics. Raises KafkaFailure."""
        source = self._pair.clusters[0]
        for made in Admin(source).create_topics([NewTopic(name, PARTITIONS, 1) for name in self._topics]).values():
            if isinstance(made, KafkaFailure):
                raise made
        producer = Producer(source)
        for topic in self._topics:
            producer.send(topic, [Record(None, b"one")], 0, timeout_s=30)
        producer.close()

    def run(self, contender: Contender, idleness: Idleness, folder: Path) -> Outcome:
        """Raises BenchFailed, with the end of its log, when the contender dies or does not copy."""
        self._runs += 1
        place = folder / f"run-{self._runs}"
        flow = self._pair.flow(self._runs, "idle-.*")
        began = time.monotonic()
        process = contender.launch(flow, place)
        try:
            with PeakMemory(process.pid).watching() as memory:
                wanted = [TopicPartition(flow.remote(topic), 0) for topic in self._topics]
                while self._arrived(wanted) < len(wanted):
                    still_running(process)()
                    if time.monotonic() - began > _START_PATIENCE_S:
                        raise BenchFailed(f"{self._arrived(wanted)} of {len(wanted)} topics are there.")
                    time.sleep(0.2)
                started_s = time.monotonic() - began
                time.sleep(_SETTLE_S)
                cpu, brokers = tree_cpu_time(process.pid), self._pair.broker_cpu_time()
                time.sleep(idleness.seconds)
                still_running(process)()
                cpu, brokers = tree_cpu_time(process.pid) - cpu, self._pair.broker_cpu_time() - brokers
        except BenchFailed as exc:
            raise BenchFailed(f"{contender.title}: {exc}\n{log_tail(place)}") from exc
        finally:
            end(process, patience_s=20.0)
            clean_up(self._pair, keep=self._topics)
        minutes = idleness.seconds / 60
        figures = {
            CPU: cpu.total_s / minutes,
            BROKER_CPU: brokers.total_s / minutes,
            START: started_s,
            MEMORY: memory.peak_bytes / 1e6,
        }
        return Outcome(contender.name, {figure.name: value for figure, value in figures.items()})

    def _arrived(self, wanted: list[TopicPartition]) -> int:
        target = self._pair.clusters[1]
        there = target.metadata({tp.topic for tp in wanted}).topics
        present = [tp for tp in wanted if tp.topic in there and len(there[tp.topic].partitions) == PARTITIONS]
        if len(present) < len(wanted):
            return 0
        offsets = Admin(target).list_offsets(dict.fromkeys(present, LATEST))
        return sum(not isinstance(info, KafkaFailure) and info.offset > 0 for info in offsets.values())
