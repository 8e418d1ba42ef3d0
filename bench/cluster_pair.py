"""The brokers of a comparison, connected as the conditions require."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.conditions import WINDOW_BYTES, Conditions
from bench.contenders import Flow
from bench.proctree import CpuTime, cpu_time
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.sandbox.kafka import LocalKafka, start_pair
from tests.support import certificates
from tests.support.proxy import Proxy

_NEAR, _CONTENDERS, _FAR = "PLAINTEXT", "CONTENDERS", "PROXIED"
#: The JVM options of Kafka's own script: pauses of another garbage collector would be measured as latency.
_KAFKAS_OWN = ("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
_BROKER_SETTINGS = {
    # Replicas of earlier runs must be deleted before the next run starts.
    "log.segment.delete.delay.ms": "500",
    # No record of the source may be deleted while it is being read.
    "log.retention.ms": "-1",
}


@dataclass(frozen=True)
class ClusterPair:
    """Source and target. `clusters` are the benchmark's own clients: without latency and encryption."""

    brokers: tuple[LocalKafka, LocalKafka]
    clusters: tuple[Cluster, Cluster]
    conditions: Conditions
    bootstraps: tuple[str, str]
    """Bootstrap servers for the contenders."""
    client: Mapping[str, str]
    """Settings that every client of a contender needs."""

    def flow(self, number: int, topic: str) -> Flow:
        """A flow with unused aliases."""
        return Flow(f"A{number}", f"B{number}", *self.bootstraps, topic, self.conditions, self.client)

    def broker_cpu_time(self) -> CpuTime:
        """CPU time of both brokers since their start."""
        total = CpuTime()
        for broker in self.brokers:
            total += cpu_time(psutil.Process(broker.pid))
        return total


@contextmanager
def open_cluster_pair(
    folder: Path, conditions: Conditions, *, heap: str = "1g", settings: Mapping[str, str] | None = None
) -> Iterator[ClusterPair]:
    """Starts the brokers, with `settings` beside the usual ones, and the proxy when the target is far. Raises SandboxError."""
    protocol = "SSL" if conditions.tls else "PLAINTEXT"
    client, tls_settings = certificates.encrypted(folder) if conditions.tls else ({}, {})
    with ExitStack() as stack:
        source, target = stack.enter_context(
            start_pair(
                folder / "brokers",
                heap=heap,
                jvm_options=_KAFKAS_OWN,
                listeners={_NEAR: "PLAINTEXT", _CONTENDERS: protocol, _FAR: protocol},
                proxied=[_FAR],
                overrides={**_BROKER_SETTINGS, **tls_settings, **(settings or {})},
            )
        )
        bootstraps = source.address(_CONTENDERS), target.address(_CONTENDERS)
        if conditions.rtt_ms:
            proxy = stack.enter_context(Proxy.before(target, _FAR))
            proxy.delay(round_trip_ms=conditions.rtt_ms, window_bytes=WINDOW_BYTES)
            bootstraps = source.address(_CONTENDERS), proxy.address
        clusters = _cluster(stack, source), _cluster(stack, target)
        yield ClusterPair((source, target), clusters, conditions, bootstraps, client)


def _cluster(stack: ExitStack, kafka: LocalKafka) -> Cluster:
    settings = ClientSettings.from_props({"bootstrap.servers": kafka.bootstrap}, client_id="bench")
    cluster = Cluster(settings, name=kafka.name)
    stack.callback(cluster.close)
    return cluster
