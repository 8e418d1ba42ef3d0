"""Faults and operations of clusters with three brokers, in a fixed order: killed, frozen, rolled, decommissioned brokers,
moved leaders, too few in-sync replicas, a restarted controller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka.admin import AdminClient
from kafka.protocol.admin import AlterPartitionReassignmentsRequest

from mm2.kafka.client.cluster import Cluster
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.sandbox.kafka import LocalKafka
from tests.faults.environment import Topics
from tests.support.cluster import LocalCluster
from tests.support.waiting import PATIENCE, wait_until

_KILLED_S = 20.0
_FROZEN_S = 15.0
_DECOMMISSIONED_S = 15.0
_TOO_FEW_IN_SYNC_S = 60.0
_START_S = 120.0 * PATIENCE
_MOVE_S = 120.0

#: Replicas by topic and partition, the preferred leader first.
Replicas = dict[tuple[str, int], list[int]]


@dataclass(frozen=True)
class BrokerFault:
    """`begin`, `lasts_s` seconds, `end`. The clusters are complete again after it."""

    name: str
    cluster: str
    begin: Callable[[], object]
    lasts_s: float
    end: Callable[[], object]


def broker_faults(
    source: LocalCluster, target: LocalCluster, topics: tuple[str, str], stores: Sequence[str]
) -> list[BrokerFault]:
    """All faults, of the source and of the target alternately.

    `topics`: a source topic and its remote topic, whose leaders are the victims. `stores`: topics of the target in which
    programs keep their positions.
    """
    sides = [("source", source, topics[0]), ("target", target, topics[1])]
    every = [
        kind(name, cluster, topic)
        for kind in (_killed, _frozen, _rolled, _decommissioned, _leaders_moved)
        for name, cluster, topic in sides
    ]
    return [
        *every,
        *(_controller_restarted(name, cluster) for name, cluster, _ in sides),
        _stores_killed(target, stores),
        _too_few_in_sync(target),
    ]


def _killed(name: str, cluster: LocalCluster, topic: str) -> BrokerFault:
    victim = _Victim(cluster, [topic])
    return BrokerFault("broker killed", name, victim.kill, _KILLED_S, victim.start)


def _frozen(name: str, cluster: LocalCluster, topic: str) -> BrokerFault:
    victim = _Victim(cluster, [topic])
    return BrokerFault("broker frozen", name, victim.pause, _FROZEN_S, victim.resume)


def _stores_killed(cluster: LocalCluster, stores: Sequence[str]) -> BrokerFault:
    victim = _Victim(cluster, stores)

    def begin() -> None:
        order = [broker.place.node_id for broker in cluster.brokers]
        replicas = replicas_of(cluster)
        move(cluster, {where: order for where in replicas if where[0] in stores}, elect=True)
        victim.kill()

    return BrokerFault("leader of ledger and positions killed", "target", begin, _KILLED_S, victim.start)


class _Victim:
    """The broker that leads partition 0 of the first of these topics when the fault begins."""

    def __init__(self, cluster: LocalCluster, topics: Sequence[str]) -> None:
        self._cluster = cluster
        self._topic = topics[0]
        self._broker: LocalKafka | None = None

    def kill(self) -> None:
        self._choose().kill9()

    def pause(self) -> None:
        self._choose().pause()

    def start(self) -> None:
        assert self._broker is not None
        _start(self._cluster, self._broker)

    def resume(self) -> None:
        assert self._broker is not None
        self._broker.resume()
        _await_in_sync(self._cluster)

    def _choose(self) -> LocalKafka:
        leader, _ = Topics(self._cluster).leader(self._topic)
        self._broker = self._cluster.broker(leader)
        return self._broker


def _rolled(name: str, cluster: LocalCluster, _topic: str) -> BrokerFault:
    def begin() -> None:
        for broker in cluster.brokers:
            broker.stop(_START_S)
            _start(cluster, broker)

    return BrokerFault("brokers rolled", name, begin, 0.0, lambda: None)


def _decommissioned(name: str, cluster: LocalCluster, _topic: str) -> BrokerFault:
    """Its replicas move to the other brokers; two are left, which is min.insync.replicas of the target."""
    leaving = cluster.brokers[0]
    before: Replicas = {}

    def begin() -> None:
        before.update(replicas_of(cluster))
        left = leaving.place.node_id
        fewer = {where: [node for node in nodes if node != left] for where, nodes in before.items()}
        move(cluster, fewer)
        leaving.stop(_START_S)

    def end() -> None:
        leaving.launch()
        leaving.wait_until_ready(_START_S)
        move(cluster, before, elect=True)

    return BrokerFault("broker decommissioned and added", name, begin, _DECOMMISSIONED_S, end)


def _leaders_moved(name: str, cluster: LocalCluster, _topic: str) -> BrokerFault:
    def begin() -> None:
        move(cluster, {where: nodes[1:] + nodes[:1] for where, nodes in replicas_of(cluster).items()}, elect=True)

    return BrokerFault("all leaders moved", name, begin, 0.0, lambda: None)


def _controller_restarted(name: str, cluster: LocalCluster) -> BrokerFault:
    def end() -> None:
        cluster.controller.launch()
        cluster.controller.wait_until_ready(_START_S)
        _await_in_sync(cluster)

    return BrokerFault("controller killed", name, cluster.controller.kill9, _KILLED_S, end)


def _too_few_in_sync(cluster: LocalCluster) -> BrokerFault:
    def begin() -> None:
        for broker in cluster.brokers[1:]:
            broker.pause()

    def end() -> None:
        for broker in cluster.brokers[1:]:
            broker.resume()
        _await_in_sync(cluster)

    return BrokerFault("fewer replicas in sync than required", "target", begin, _TOO_FEW_IN_SYNC_S, end)


def replicas_of(cluster: LocalCluster) -> Replicas:
    """The replicas of all partitions, internal topics included. Raises KafkaException."""
    found = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0}).list_topics(timeout=30).topics
    return {
        (name, index): [int(node) for node in partition.replicas]
        for name, topic in found.items()
        for index, partition in topic.partitions.items()
    }


def move(cluster: LocalCluster, replicas: Mapping[tuple[str, int], Sequence[int]], *, elect: bool = False) -> None:
    """Reassign partitions and wait until all replicas are in sync; `elect`: the first of each then becomes the leader."""
    request = AlterPartitionReassignmentsRequest
    rows = request.ReassignableTopic
    topics: dict[str, list[Any]] = {}
    for (name, index), nodes in replicas.items():
        topics.setdefault(name, []).append(rows.ReassignablePartition(partition_index=index, replicas=list(nodes)))
    wanted = [rows(name=name, partitions=partitions) for name, partitions in topics.items()]
    client = Cluster(ClientSettings.from_props({"bootstrap.servers": cluster.bootstrap}), name=cluster.name)
    try:
        answer = client.send(None, request(timeout_ms=60_000, topics=wanted), timeout_s=90)
    finally:
        client.close()
    codes = {row.error_code for result in answer.responses for row in result.partitions}
    assert codes <= {0}, f"reassignment in cluster {cluster.name}: error codes {codes}"
    wait_until(
        lambda: all(replicas_of(cluster).get(where) == list(nodes) for where, nodes in replicas.items()),
        _MOVE_S,
        what=f"reassignment in cluster {cluster.name}",
    )
    _await_in_sync(cluster)
    if elect:
        cluster.elect()


def _start(cluster: LocalCluster, broker: LocalKafka) -> None:
    broker.launch()
    broker.wait_until_ready(_START_S)
    _await_in_sync(cluster)


def _await_in_sync(cluster: LocalCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})

    def is_complete() -> bool:
        topics: Iterable[Any] = admin.list_topics(timeout=30).topics.values()
        partitions = [partition for topic in topics for partition in topic.partitions.values()]
        return bool(partitions) and all(set(one.isrs) == set(one.replicas) for one in partitions)

    wait_until(is_complete, _MOVE_S, what=f"all replicas of cluster {cluster.name} in sync")
