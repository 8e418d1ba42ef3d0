"""Watches a topic fill up on the target, by its end offsets: what a consumer could read at that moment."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.errors import BenchFailed
from mm2.kafka.admin import Admin
from mm2.kafka.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import LATEST, TopicPartition

_INTERVAL_S = 0.02
_LONGEST_INTERVAL_S = 0.1


@dataclass(frozen=True)
class Sight:
    """`records` were visible at `at_s` (time.monotonic)."""

    at_s: float
    records: int


class Arrivals:
    """The records of one topic as they become visible."""

    def __init__(self, cluster: Cluster, topic: str, partitions: int) -> None:
        self._cluster = cluster
        self._admin = Admin(cluster)
        self._topic = topic
        self._partitions = [TopicPartition(topic, index) for index in range(partitions)]
        self._exists = False

    def ends(self) -> dict[int, int]:
        """End offset by partition; empty while the topic does not exist. Raises KafkaFailure when the broker is gone."""
        if not self._exists:
            found = self._cluster.metadata((self._topic,)).topics.get(self._topic)
            self._exists = found is not None and len(found.partitions) == len(self._partitions)
        if not self._exists:
            return {}
        offsets = self._admin.list_offsets(dict.fromkeys(self._partitions, LATEST))
        return {tp.partition: info.offset for tp, info in offsets.items() if not isinstance(info, KafkaFailure)}

    def now(self) -> Sight:
        """Counts what is there. Raises KafkaFailure as `ends`."""
        ends = self.ends()
        return Sight(time.monotonic(), sum(ends.values()))

    def wait(self, records: int, patience_s: float, check: Callable[[], None]) -> Sight:
        """Returns the first sight of that many records. `check` is called each time and raises when waiting is in vain.

        Looks every 20 ms when it matters. While the end is far it looks less often, because each look takes a
        millisecond from those it looks at. Raises BenchFailed after `patience_s`.
        """
        begin = self.now()
        while True:
            sight = self.now()
            if sight.records >= records:
                return sight
            check()
            if sight.at_s - begin.at_s > patience_s:
                raise BenchFailed(f"{sight.records:,} of {records:,} records are there after {patience_s:.0f} s.")
            time.sleep(self._interval_s(begin, sight, records))

    @staticmethod
    def _interval_s(begin: Sight, sight: Sight, records: int) -> float:
        gained = sight.records - begin.records
        if gained <= 0:
            return _INTERVAL_S
        left_s = (records - sight.records) * (sight.at_s - begin.at_s) / gained
        return min(max(left_s / 4, _INTERVAL_S), _LONGEST_INTERVAL_S)
