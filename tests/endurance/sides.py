"""The clusters of both sides, each broker behind a network that can be a bad one, and how what is on them is replicated."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mm2.sandbox.kafka import LocalKafka
from tests.faults.stage import LISTENERS
from tests.support.cluster import LocalCluster
from tests.support.proxy import Proxy
from tests.support.waiting import PATIENCE

#: From so many brokers on each side a record counts on the target when two have it.
_REPLICATED = 3
_START_S = 240.0 * PATIENCE
_TOPICS = ("offset-syncs.topic", "checkpoints.topic", "heartbeats.topic", "ledger.topic")
_STORES = ("offset", "status", "config")
#: Leaders return to the preferred brokers soon, so that no broker ends up with all of them.
_BALANCED = {"auto.leader.rebalance.enable": "true", "leader.imbalance.check.interval.seconds": "20"}
#: Eight JVMs on few processors: with 3 s, brokers lose their sessions without any fault, and with 60 s some do not start.
_BUSY = {"broker.session.timeout.ms": "6000", "initial.broker.registration.timeout.ms": "600000"}
#: The second compiler takes longer than it saves at some hundred records a second.
_JVM = ("-XX:TieredStopAtLevel=1",)
_SAFE = {"min.insync.replicas": "2", "transaction.state.log.min.isr": "2"}


@dataclass(frozen=True)
class Side:
    """One cluster, and the network before each of its brokers. `cluster` is None where there is one broker only."""

    name: str
    brokers: list[LocalKafka]
    networks: list[Proxy]
    cluster: LocalCluster | None = None

    @property
    def bootstrap(self) -> str:
        """Where everybody but the product connects."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    @property
    def addresses(self) -> str:
        """What the product is told."""
        return ",".join(network.address for network in self.networks)


def replication_factors(replicas: int) -> dict[str, str]:
    """Settings of a flow whose topics, remote and internal, have so many replicas."""
    names = [f"{name}.replication.factor" for name in _TOPICS]
    names += [f"{name}.storage.replication.factor" for name in _STORES]
    return dict.fromkeys(["replication.factor", *names], str(replicas))


def broker_settings(name: str, brokers: int, replicas: int) -> dict[str, str]:
    """Settings of the brokers of a side; A is the source, B the target.

    No record is deleted, however old. The target looks every second for producers that have expired, whose newest record is older than
    a day.
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
    """Starts the clusters and their networks, which the stack stops. Raises SandboxError."""
    settings: Mapping[str, str] = broker_settings(name, brokers, replicas)
    how: dict[str, Any] = {"listeners": LISTENERS, "proxied": ["PROXIED"], "overrides": settings}
    cluster = None
    if brokers > 1:
        heap = "256m" if brokers >= _REPLICATED else "384m"
        options = _JVM if brokers >= _REPLICATED else ()
        cluster = LocalCluster(name, folder / name.lower(), size=brokers, heap=heap, jvm_options=options, **how)
        stack.callback(cluster.stop)
        nodes = cluster.start(_START_S).brokers
    else:
        nodes = [stack.enter_context(LocalKafka(name, folder / name.lower() / "1", **how))]
    return Side(name, nodes, [stack.enter_context(Proxy.before(node)) for node in nodes], cluster)
