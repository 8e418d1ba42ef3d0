"""Monitor of arriving replicas: records, bytes per second, latency, and heartbeats."""

import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.readers.reader import Batch, BatchReader
from mm2.kafka.records.batch import HEADER_BYTES
from mm2.kafka.records.record import decode_batch
from mm2.kafka.structs import TopicInfo, TopicPartition

HEARTBEATS = "heartbeats"

_LOOK_FOR_TOPICS_S = 1.0
_WINDOW_S = 3.0


@dataclass(frozen=True)
class Arrival:
    """One observed batch. `latency_ms` is measured from the timestamp of its newest record."""

    at_s: float
    records: int
    size_bytes: int
    latency_ms: float


@dataclass(frozen=True)
class ArrivalRates:
    """Measurements of the last seconds; None without any."""

    records: int
    """Since the start of the watch."""
    records_per_s: float
    bytes_per_s: float
    """As stored, compressed."""
    latency_p50_ms: float | None
    latency_p99_ms: float | None
    heartbeat_age_s: float | None


class TopicReader:
    """Reads `topics` of one broker from their beginning; topics that do not exist yet are added once they do."""

    def __init__(self, cluster: Cluster, topics: Iterable[str]) -> None:
        self._cluster = cluster
        self._wanted = {*topics, HEARTBEATS}
        self._positions: dict[TopicPartition, int] = {}
        self._lock = threading.Lock()
        self._recent: deque[Arrival] = deque()
        self._records = 0
        self._heartbeat_ms: int | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(5)

    def sight(self) -> ArrivalRates:
        """The current measurements; thread-safe."""
        now = time.monotonic()
        with self._lock:
            while self._recent and self._recent[0].at_s < now - _WINDOW_S:
                self._recent.popleft()
            recent = list(self._recent)
            records, heartbeat_ms = self._records, self._heartbeat_ms
        # All records of a batch arrive at the same time, and each counts.
        latencies = sorted((arrival.latency_ms, arrival.records) for arrival in recent)
        return ArrivalRates(
            records=records,
            records_per_s=sum(arrival.records for arrival in recent) / _WINDOW_S,
            bytes_per_s=sum(arrival.size_bytes for arrival in recent) / _WINDOW_S,
            latency_p50_ms=_quantile(latencies, 0.50),
            latency_p99_ms=_quantile(latencies, 0.99),
            heartbeat_age_s=max(0.0, time.time() - heartbeat_ms / 1000) if heartbeat_ms is not None else None,
        )

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._follow()
            except KafkaFailure:
                # Topics are being created, or the broker is stopping: the next round retries.
                self._stopping.wait(0.5)

    def _follow(self) -> None:
        found = self._find_topics()
        if not found:
            self._stopping.wait(0.3)
            return
        leader = next(iter(found.values())).partitions[0].leader
        reader = BatchReader(self._cluster, leader, found)
        try:
            reader.positions.update(
                {
                    tp: self._positions.get(tp, 0)
                    for info in found.values()
                    for tp in (TopicPartition(info.name, index) for index in info.partitions)
                }
            )
            look_at = time.monotonic() + _LOOK_FOR_TOPICS_S
            complete = found.keys() == self._wanted
            while not self._stopping.is_set() and (complete or time.monotonic() < look_at):
                for batch in reader.poll(max_wait_ms=200):
                    self._saw(batch)
                self._positions.update(reader.positions)
        finally:
            reader.close()

    def _find_topics(self) -> dict[str, TopicInfo]:
        topics = self._cluster.metadata(self._wanted).topics
        return {
            name: info
            for name, info in topics.items()
            if info.partitions and all(partition.leader >= 0 for partition in info.partitions.values())
        }

    def _saw(self, batch: Batch) -> None:
        header = batch.view.header
        if header is None:
            return
        if batch.topic_partition.topic == HEARTBEATS:
            newest = max((record.timestamp or 0 for record in decode_batch(batch.view)), default=None)
            with self._lock:
                self._heartbeat_ms = newest
            return
        latency_ms = max(0.0, time.time() * 1000 - header.max_timestamp)
        size_bytes = len(batch.view.data) - HEADER_BYTES
        with self._lock:
            self._records += header.records_count
            self._recent.append(Arrival(time.monotonic(), header.records_count, size_bytes, latency_ms))


def _quantile(weighted: list[tuple[float, int]], share: float) -> float | None:
    total = sum(weight for _, weight in weighted)
    seen = 0
    for value, weight in weighted:
        seen += weight
        if seen >= share * total:
            return value
    return None
