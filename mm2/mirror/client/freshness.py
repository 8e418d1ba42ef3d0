"""How fresh what arrives is, measured on the far side by the heartbeats that come with it.

The heartbeats of a flow X->Y lie in ``heartbeats`` on Y, and travel from there as every topic does. In ``B.A.heartbeats`` on
C the newest one of each flow says how old all is that came from A by way of B: the time since it was written on A, by the
clock of its writer, so two clocks that differ show up in it. Beside the interval of the heartbeats (a second) this is the time
that copying takes, over all hops; the same heartbeat in ``A.heartbeats`` on B says what the first hop has of it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure
from mm2.mirror.client.mirror_client import TIMEOUT_S, MirrorClient
from mm2.mirror.client.routes import route
from mm2.mirror.formats import FormatError, Heartbeat

#: A flow that was silent for longer is as good as one that was never there.
WINDOW_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Freshness:
    """The newest heartbeat of one flow in one heartbeats topic, looked at when it was ``age_ms`` old.

    ``route`` are the clusters that it came through, the nearest first; empty where it was written.
    """

    topic: str
    route: tuple[str, ...]
    heartbeat: Heartbeat
    age_ms: int

    @property
    def flow(self) -> str:
        """``A->B``, the flow whose worker has written the heartbeat."""
        return f"{self.heartbeat.source}->{self.heartbeat.target}"

    @property
    def hops(self) -> int:
        """How often it was copied."""
        return len(self.route)

    def to_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "source": self.heartbeat.source,
            "target": self.heartbeat.target,
            "route": list(self.route),
            "hops": self.hops,
            "timestamp_ms": self.heartbeat.timestamp_ms,
            "age_ms": self.age_ms,
        }


class FreshnessWatch:
    """Looks at the heartbeats of one cluster again and again; each look reads only what is new since the last one.

    The first one reads those of the last ``window_s`` seconds: a heartbeats topic is compacted when its segment is full, after
    days, and holds 86,400 records a day for each flow until then, at 10 µs each.
    """

    def __init__(self, client: MirrorClient, window_s: float = WINDOW_S) -> None:
        self._client = client
        self._begin_ms = int((time.time() - window_s) * 1000)
        self._next: dict[str, int] = {}
        self._newest: dict[tuple[str, str, str], Heartbeat] = {}

    def look(self, timeout_s: float = TIMEOUT_S) -> list[Freshness]:
        """Every flow that was heard of, by topic; the fewest hops first. Raises KafkaFailure.

        A topic that goes away meanwhile is left out.
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
            # By its own time: an old one that was copied once more says nothing.
            if known is None or known.timestamp_ms <= heartbeat.timestamp_ms:
                self._newest[key] = heartbeat
