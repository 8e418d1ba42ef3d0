"""Measures end-to-end replication latency on the target, by the heartbeats that arrive there.

The heartbeats of a flow X->Y are written to ``heartbeats`` on Y and replicated from there like every topic. In
``B.A.heartbeats`` on C the newest heartbeat of each flow shows how old the records are that came from A through B. Its
age is the time since it was written on A, by the clock of the writer, so it includes the difference between the two
clocks. The age is the replication latency over all hops plus up to one heartbeat interval (a second). The same
heartbeat in ``A.heartbeats`` on B shows the part of the first hop.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Final

import structlog

from mm2.codec import written_as
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure
from mm2.mirror.client.mirror_client import TIMEOUT_S, MirrorClient
from mm2.mirror.client.routes import route
from mm2.mirror.common.formats import FormatError, Heartbeat

log = structlog.get_logger(__name__)

#: A flow without heartbeats for longer than this is ignored.
WINDOW_S: Final = 86_400.0
#: Flows by topic that are kept, and characters of an alias: any client of a source may create and fill a topic ``x.heartbeats`` there.
_KEPT: Final = 1_000
_ALIAS_CHARACTERS: Final = 255


@written_as(
    "topic source=heartbeat.source target=heartbeat.target route hops timestamp_ms=heartbeat.timestamp_ms age_ms"
)
@dataclass(frozen=True, slots=True)
class Freshness:
    """The newest heartbeat of one flow in one heartbeats topic, read when it was ``age_ms`` old.

    ``route`` are the clusters that it came through, the nearest first; empty on the cluster where it was written.
    """

    topic: str
    route: tuple[str, ...]
    heartbeat: Heartbeat
    age_ms: int

    @property
    def flow(self) -> str:
        """``A->B``, the flow whose worker wrote the heartbeat."""
        return f"{self.heartbeat.source}->{self.heartbeat.target}"

    @property
    def hops(self) -> int:
        """How many times it was replicated."""
        return len(self.route)


class FreshnessWatch:
    """Polls the heartbeats of one cluster; each poll reads only the records since the last one.

    The first poll reads the last ``window_s`` seconds: a heartbeats topic is compacted when its segment is full, after
    days. Until then it has 86,400 records a day for each flow, which take 10 µs each.

    ``left_out`` is the number of heartbeats that were not kept: their aliases are too long, or there are too many flows. Those of the
    topics with the fewest flows are kept.
    """

    def __init__(self, client: MirrorClient, window_s: float = WINDOW_S) -> None:
        self._client = client
        self._begin_ms = int((time.time() - window_s) * 1000)
        self._next: dict[str, int] = {}
        self._newest: dict[tuple[str, str, str], Heartbeat] = {}
        self._flows: Counter[str] = Counter()  # in each topic
        self.left_out = 0

    def look(self, timeout_s: float = TIMEOUT_S) -> list[Freshness]:
        """All flows with heartbeats, by topic, the fewest hops first. Raises KafkaFailure.

        A topic that is deleted meanwhile is left out.
        """
        topics = self._client.heartbeat_topics()
        for topic in topics:
            try:
                self._read(topic, timeout_s)
            except BrokerFailure as failure:
                if failure.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
        now_ms = int(time.time() * 1000)
        policy = self._client.replication_policy()
        seen = [
            Freshness(topic, route(policy, topic), heartbeat, now_ms - heartbeat.timestamp_ms)
            for (topic, _, _), heartbeat in self._newest.items()
            if topic in topics
        ]
        return sorted(seen, key=lambda one: (one.hops, one.topic, one.flow))

    def _read(self, topic: str, timeout_s: float) -> None:
        if topic not in self._next:
            self._next[topic] = self._client.offset(topic, self._begin_ms)
        for record in self._client.read(topic, timeout_s, start=self._next[topic]):
            self._next[topic] = record.offset + 1
            try:
                heartbeat = Heartbeat.decode(record.key, record.value)
            except FormatError:
                continue
            key = (topic, heartbeat.source, heartbeat.target)
            known = self._newest.get(key)
            if known is None and not self._has_room(heartbeat, topic):
                self._leave_out(topic)
                continue
            # Compared by timestamp: an old heartbeat that was copied again is not newer. One from the future is not the newest: its
            # writer's clock was ahead, and has been corrected.
            is_ahead = known is not None and known.timestamp_ms > time.time() * 1000
            if known is None or is_ahead or known.timestamp_ms <= heartbeat.timestamp_ms:
                self._flows[topic] += known is None
                self._newest[key] = heartbeat

    def _has_room(self, heartbeat: Heartbeat, topic: str) -> bool:
        """Whether one more flow is kept, in place of one in the topic with the most flows if need be."""
        if max(len(heartbeat.source), len(heartbeat.target)) > _ALIAS_CHARACTERS:
            return False
        if len(self._newest) < _KEPT:
            return True
        most, flows = self._flows.most_common(1)[0]
        if self._flows[topic] + 1 >= flows:
            return False
        del self._newest[next(key for key in reversed(self._newest) if key[0] == most)]
        self._flows[most] -= 1
        self._leave_out(most)
        return True

    def _leave_out(self, topic: str) -> None:
        if not self.left_out:
            log.warning(
                "Some heartbeats are not shown: there are too many flows, or their aliases are too long.", topic=topic
            )
        self.left_out += 1
