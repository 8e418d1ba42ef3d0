"""Monitor the end offsets of a topic on the target while it is copied."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.errors import BenchFailed
from bench.preload import SENTINEL_KEY
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.readers.reader import BatchReader
from mm2.kafka.records.record import decode_batch
from mm2.kafka.structs import LATEST, TopicInfo, TopicPartition

_INTERVAL_S = 0.02
_LONGEST_INTERVAL_S = 0.1


@dataclass(frozen=True)
class Sight:
    """`records` were visible at `at_s` (time.monotonic)."""

    at_s: float
    records: int


class Arrivals:
    """The records of one topic as they become visible.

    With `committed`, to a consumer that reads committed records only. The markers of transactions have offsets too, so
    the end is then detected by the last record that `preload` writes to each partition, not by the number of offsets.
    """

    def __init__(self, cluster: Cluster, topic: str, partitions: int, *, committed: bool = False) -> None:
        self._cluster = cluster
        self._admin = Admin(cluster)
        self._topic = topic
        self._partitions = [TopicPartition(topic, index) for index in range(partitions)]
        self._committed = committed
        self._exists = False
        self._ended: set[int] = set()

    def ends(self) -> dict[int, int]:
        """End offset by partition; empty while the topic does not exist. Raises KafkaFailure when the broker is unreachable."""
        if not self._exists:
            found = self._cluster.metadata((self._topic,)).topics.get(self._topic)
            self._exists = found is not None and len(found.partitions) == len(self._partitions)
        if not self._exists:
            return {}
        isolation = "read_committed" if self._committed else "read_uncommitted"
        offsets = self._admin.list_offsets(dict.fromkeys(self._partitions, LATEST), isolation)
        return {tp.partition: info.offset for tp, info in offsets.items() if not isinstance(info, KafkaFailure)}

    def now(self) -> Sight:
        """Count the visible records. Raises KafkaFailure like `ends`."""
        ends = self.ends()
        return Sight(time.monotonic(), sum(ends.values()))

    def wait(self, records: int, patience_s: float, check: Callable[[], None], *, all_of_them: bool = False) -> Sight:
        """Return the first observation of that many records. `check` is called each time and raises to end the wait.

        `all_of_them`: they are all that there are. Looks every 20 ms when it matters. While the end is far it looks
        less often, because each look takes a millisecond from those it looks at. Raises BenchFailed after `patience_s`.
        """
        begin = self.now()
        while True:
            sight = self.now()
            if sight.records >= records and (not all_of_them or not self._committed or self._all_ended()):
                return sight
            check()
            if sight.at_s - begin.at_s > patience_s:
                raise BenchFailed(f"{sight.records:,} of {records:,} records are there after {patience_s:.0f} s.")
            time.sleep(self._interval_s(begin, sight, records))

    def count(self) -> int:
        """Read the whole topic and count its records without transaction markers. Raises KafkaFailure."""
        reader = self._reader()
        total = 0
        try:
            ends = {TopicPartition(self._topic, partition): end for partition, end in self.ends().items() if end}
            reader.positions.update(dict.fromkeys(ends, 0))
            while reader.positions:
                for batch in reader.poll(max_wait_ms=100):
                    total += batch.view.header.records_count if batch.view.header is not None else 0
                for tp in [tp for tp, position in reader.positions.items() if position >= ends[tp]]:
                    del reader.positions[tp]
        finally:
            reader.close()
        return total

    def _all_ended(self) -> bool:
        """The last record that is visible in each partition is the sentinel."""
        ends = {partition: end for partition, end in self.ends().items() if partition not in self._ended}
        reader = self._reader()
        try:
            # The last offset is a marker's, and the response starts with the batch that contains the requested offset.
            reader.positions.update({TopicPartition(self._topic, one): max(0, end - 2) for one, end in ends.items()})
            while ends and (batches := reader.poll(max_wait_ms=1)):
                last = {batch.topic_partition.partition: batch.view for batch in batches}
                self._ended |= {one for one, view in last.items() if decode_batch(view)[-1].key == SENTINEL_KEY}
                for batch in batches:
                    reader.positions.pop(batch.topic_partition, None)
        finally:
            reader.close()
        return len(self._ended) == len(self._partitions)

    def _reader(self) -> BatchReader:
        info = self._admin.describe_topics([self._topic])[self._topic]
        if not isinstance(info, TopicInfo):
            raise info
        return BatchReader(self._cluster, self._cluster.leader(self._topic, 0), {self._topic: info})

    @staticmethod
    def _interval_s(begin: Sight, sight: Sight, records: int) -> float:
        gained = sight.records - begin.records
        if gained <= 0:
            return _INTERVAL_S
        left_s = (records - sight.records) * (sight.at_s - begin.at_s) / gained
        return min(max(left_s / 4, _INTERVAL_S), _LONGEST_INTERVAL_S)
