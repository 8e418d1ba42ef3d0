"""Source and target cluster with a fault-injecting proxy before each broker, and their replication settings."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mm2.sandbox.kafka import LocalKafka
from tests.faults.environment import LISTENERS
from tests.support.cluster import LocalCluster
from tests.support.proxy import Proxy
from tests.support.waiting import PATIENCE

#: With this number of brokers the target requires two in-sync replicas.
_REPLICATED = 3
_START_S = 240.0 * PATIENCE
_TOPICS = ("offset-syncs.topic", "checkpoints.topic", "heartbeats.topic", "ledger.topic")
_STORES = ("offset", "status", "config")
#: Preferred leaders are elected soon, so that no broker keeps all leaders.
_BALANCED = {"auto.leader.rebalance.enable": "true", "leader.imbalance.check.interval.seconds": "20"}
#: Eight JVMs on few CPUs: with 3 s brokers lose their sessions without a fault, and with 60 s some do not start.
_BUSY = {"broker.session.timeout.ms": "6000", "initial.broker.registration.timeout.ms": "600000"}
_SAFE = {"min.insync.replicas": "2", "transaction.state.log.min.isr": "2"}


@dataclass(frozen=True)
class Side:
    """One cluster with a proxy before each broker. `cluster` is None for a single broker."""

    name: str
    brokers: list[LocalKafka]
    networks: list[Proxy]
    cluster: LocalCluster | None = None

    @property
    def bootstrap(self) -> str:
        """Bootstrap servers of all clients except the product."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    @property
    def addresses(self) -> str:
        """Bootstrap servers of the product: the proxies."""
        return ",".join(network.address for network in self.networks)


def replication_factors(replicas: int) -> dict[str, str]:
    """Settings of a flow whose remote and internal topics have this number of replicas."""
    names = [f"{name}.replication.factor" for name in _TOPICS]
    names += [f"{name}.storage.replication.factor" for name in _STORES]
    return dict.fromkeys(["replication.factor", *names], str(replicas))


def broker_settings(name: str, brokers: int, replicas: int) -> dict[str, str]:
    """Broker settings of a cluster; A is the source, B the target.

    No record is deleted by age. The target checks every second for expired producers, whose newest record is older than a day.
    """
    found = {"log.retention.ms": "-1"}
    if name == "B":
        found["producer.id.expiration.check.interval.ms"] = "1000"
    if brokers > 1:
        factors = ("default", "offsets.topic", "transaction.state.log")
        found |= {f"{factor}.replication.factor": str(replicas) for factor in factors}
    if brokers >= _REPLICATED:
        found |= _BALANCED | _BUSY | (_SAFE if name == "B" else {})
    return found


def start_side(stack: ExitStack, folder: Path, name: str, brokers: int, replicas: int) -> Side:
    """Start a cluster and its proxies; the stack stops them. Raises SandboxError."""
    settings: Mapping[str, str] = broker_settings(name, brokers, replicas)
    how: dict[str, Any] = {"listeners": LISTENERS, "proxied": ["PROXIED"], "overrides": settings}
    cluster = None
    if brokers > 1:
        heap = "256m" if brokers >= _REPLICATED else "384m"
        cluster = LocalCluster(name, folder / name.lower(), size=brokers, heap=heap, **how)
        stack.callback(cluster.stop)
        nodes = cluster.start(_START_S).brokers
    else:
        nodes = [stack.enter_context(LocalKafka(name, folder / name.lower() / "1", **how))]
    return Side(name, nodes, [stack.enter_context(Proxy.before(node)) for node in nodes], cluster)
