"""The topics of a flow, summed up from the views of their partitions; and how the configs of a remote topic differ. No I/O but `config_differences`."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mm2.config.keys.mirror_keys import is_job_on
from mm2.copy.states import PartitionState
from mm2.kafka.admin import Admin
from mm2.kafka.errors import value_of
from mm2.mirror.common import plugins
from mm2.mirror.common.clients import Side
from mm2.mirror.topics.config_sync import ConfigDifference, ConfigSync
from mm2.observer.flow import WatchedFlow
from mm2.observer.partitions import by_topic
from mm2.observer.polling.polls import FlowClients
from mm2.observer.sums import sum_if_known
from mm2.observer.views import PartitionView

#: States by severity, worst first: broken ones, those that end by themselves, those that a user has requested, healthy ones.
_LESS_SEVERE: Final = (
    PartitionState.BLOCKED_BY_OPEN_TXN,
    PartitionState.THROTTLED,
    PartitionState.PAUSED,
    PartitionState.PREPARING,
    PartitionState.CATCHING_UP,
    PartitionState.RUNNING,
)
SEVERITY: Final[Mapping[PartitionState, int]] = {
    state: rank
    for rank, state in enumerate([*(one for one in PartitionState if one not in _LESS_SEVERE), *_LESS_SEVERE])
}


@dataclass(frozen=True, slots=True)
class TopicView:
    """One source topic.

    ``state`` is the worst of its partitions, ``states`` are their numbers by state. Sums are None if a part is not known.
    ``lag_seconds`` is the highest known one. ``is_lag_exact``: see `PartitionView`. Lags are those of the partitions that the flow is to
    copy, if there are some: of others, the source may not know any more.
    """

    topic: str
    remote_topic: str
    state: PartitionState
    partitions: int
    unhealthy: int
    states: Mapping[PartitionState, int] = field(default_factory=dict)
    lag_records: int | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    records_per_s: float | None = None
    bytes_per_s: float | None = None
    lost_ranges: int = 0
    foreign_records: int = 0
    is_lag_exact: bool = True


def topic_views(partitions: Sequence[PartitionView]) -> tuple[TopicView, ...]:
    """The topics of these partitions, in the same order."""
    return tuple(topic_view(topic, views) for topic, views in by_topic(tuple(partitions)).items())


def topic_view(topic: str, views: Sequence[PartitionView]) -> TopicView:
    """The sum of a topic's partitions, at least one."""
    states = Counter([one.state for one in views])
    counted = [one for one in views if one.is_counted] or views
    ages = [one.lag_seconds for one in counted if one.lag_seconds is not None]
    return TopicView(
        topic,
        next((one.remote_topic for one in views if one.remote_topic), ""),
        min(states, key=SEVERITY.__getitem__),
        len(views),
        sum(one.is_unhealthy for one in views),
        dict(states),
        sum_if_known(one.lag_records for one in counted),
        sum_if_known(one.lag_bytes for one in counted),
        max(ages, default=None),
        sum_if_known(one.records_per_s for one in views),
        sum_if_known(one.bytes_per_s for one in views),
        sum([one.lost_ranges for one in views]),
        sum([one.foreign_records for one in views]),
        all(one.is_lag_exact for one in counted),
    )


def config_differences(props: Mapping[str, str], topic: str, remote_topic: str) -> Sequence[ConfigDifference]:
    """How the configs of a remote topic differ from those of its source topic.

    ``props`` are the source connector's, resolved. Sends one DescribeConfigs request to each cluster. Raises KafkaFailure.
    """
    clients = FlowClients(props)
    found = [_configs(clients, side, name) for side, name in ((Side.SOURCE, topic), (Side.TARGET, remote_topic))]
    rules = plugins.config_property_filter(dict(props))
    try:
        return ConfigSync(rules).differences(*found, is_enabled=is_job_on(props, "sync.topic.configs"))
    finally:
        rules.close()


def _configs(clients: FlowClients, side: Side, topic: str) -> Any:
    cluster = clients.cluster(side)
    try:
        return value_of(Admin(cluster).describe_configs([topic])[topic])
    finally:
        cluster.close()


class ConfigComparisons:
    """The differences that pages show, kept for a while, so that the number of readers does not matter. Thread-safe."""

    def __init__(self, keep_s: float = 30.0) -> None:
        self._keep_s = keep_s
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str], tuple[float, Sequence[ConfigDifference]]] = {}

    def of(self, flow: WatchedFlow, topic: str, remote_topic: str) -> Sequence[ConfigDifference]:
        """See `config_differences`. Raises KafkaFailure."""
        name, now_s = (str(flow.pair), topic), time.monotonic()
        with self._lock:
            kept = {one: found for one, found in self._found.items() if now_s - found[0] < self._keep_s}
            self._found = kept
            if name in kept:
                return kept[name][1]
        found = config_differences(flow.props, topic, remote_topic)
        with self._lock:
            self._found[name] = (now_s, found)
        return found
