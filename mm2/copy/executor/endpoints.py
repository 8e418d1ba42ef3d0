"""The clusters of one micro-batch, with what reads from and writes to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import structlog

from mm2.copy.empty_transactions import EmptyTransactions
from mm2.copy.executor.clusters.discovery import connections_per_broker
from mm2.copy.executor.commit.syncs import Syncs
from mm2.copy.executor.fetching.fetch_selector import FetchLimits
from mm2.copy.executor.fetching.source import Source
from mm2.copy.executor.fetching.throttle import Throttle
from mm2.copy.executor.producing.marker_sender import MarkerSender
from mm2.copy.executor.producing.outbox_events import ReportedEvent
from mm2.copy.executor.producing.progress_look_ups import ProgressLookUp
from mm2.copy.executor.producing.sink import Sink
from mm2.copy.spec import CopySpec
from mm2.kafka.client.channel import BufferPool
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.settings.client_settings import ClientSettings

_CALL_THREADS: Final = 4
_ROUND_TRIP_TIMEOUT_S: Final = 5.0
_CHANGED_BYTES: Final = 1 << 20


class Endpoints:
    """The source, the sink of the target, the sinks of Connect's offsets topic and of offset syncs."""

    def __init__(self, spec: CopySpec) -> None:
        self._spec = spec
        self._background = ThreadPoolExecutor(_CALL_THREADS, thread_name_prefix="copier")
        self.source_cluster = Cluster(spec.source, name=spec.source_alias)
        self.target_cluster = Cluster(spec.target, name=spec.target_alias)
        self._clusters = [self.source_cluster, self.target_cluster]
        self._opened: list[Source | Sink | MarkerSender | EmptyTransactions] = []
        self._pool = BufferPool()
        self.throttle = Throttle(spec.throttle, spec.throttle_topics)
        self.syncs: Syncs | None = None
        self._log = structlog.get_logger(__name__)

    async def open(
        self,
        *,
        room: Callable[[], bool],
        look_up: ProgressLookUp | None,
        report: Callable[[ReportedEvent], None],
        may_send: Callable[[], bool],
    ) -> None:
        """Open them, with the number of connections per broker that the round-trip time requires.

        ``room``: whether more may be read; the other arguments are those of `Sink`.
        """
        spec, loop = self._spec, asyncio.get_running_loop()
        source_connections, target_connections = await asyncio.gather(
            *(self._connections_to(cluster) for cluster in self._clusters)
        )
        self.sink = Sink(
            self.target_cluster,
            loop,
            self._background,
            self._pool,
            connections=target_connections,
            look_up=look_up,
            report=report,
            may_send=may_send,
        )
        self.source = Source(
            self.source_cluster,
            loop,
            self._background,
            self._pool,
            _fetch_limits(spec),
            read_committed=spec.read_committed,
            room=room,
            throttle=self.throttle,
            send=self.sink.send_scheduled,
            connections=source_connections,
        )
        self._opened += [self.source, self.sink]
        self.offsets_cluster, self.offsets_sink = self._sink_of(spec.offsets, "worker", may_send)
        if spec.syncs is not None:
            _, sink = self._sink_of(spec.syncs.settings, spec.source_alias, may_send)
            self.syncs = Syncs(sink, spec.syncs.topic, spec.syncs.lag_max)

    def marker_sender(self, may_send: Callable[[], bool]) -> MarkerSender:
        """What sends transaction markers to the target."""
        sender = MarkerSender(
            self.target_cluster, asyncio.get_running_loop(), self._background, self._pool, may_send=may_send
        )
        self._opened.append(sender)
        return sender

    def empty_transactions(self, may_send: Callable[[], bool]) -> EmptyTransactions:
        """What takes up target offsets without transaction markers of its own."""
        made = EmptyTransactions(self.target_cluster, self._spec.flow, may_send)
        self._opened.append(made)
        return made

    def close(self) -> None:
        """Close all connections."""
        for side in self._opened:
            side.close()
        self._background.shutdown(wait=False, cancel_futures=True)
        for cluster in self._clusters:
            cluster.close()

    async def call(self, call: Any, *args: Any) -> Any:
        """Run a blocking function on another thread."""
        return await asyncio.get_running_loop().run_in_executor(self._background, lambda: call(*args))

    def _sink_of(
        self, settings: ClientSettings | None, name: str, may_send: Callable[[], bool]
    ) -> tuple[Cluster, Sink]:
        """The cluster with these settings and its sink: those of the target, unless it is another cluster."""
        if settings is None or settings.bootstrap == self._spec.target.bootstrap:
            return self.target_cluster, self.sink
        cluster = Cluster(settings, name=name)
        self._clusters.append(cluster)
        sink = Sink(cluster, asyncio.get_running_loop(), self._background, self._pool, may_send=may_send)
        self._opened.append(sink)
        return cluster, sink

    async def _connections_to(self, cluster: Cluster) -> int:
        """The number of connections to each broker; one when the round trip cannot be measured now."""
        try:
            found: int = await asyncio.wait_for(self.call(connections_per_broker, cluster), _ROUND_TRIP_TIMEOUT_S)
        except (TimeoutError, KafkaFailure) as error:
            self._log.info("round trip to cluster could not be measured", cluster=cluster.name, error=str(error))
            return 1
        return found


def _fetch_limits(spec: CopySpec) -> FetchLimits:
    """Where records are changed, what is not changed in time is fetched again, so less is fetched at once."""
    most = spec.fetch_max_bytes if spec.changes is None else min(spec.fetch_max_bytes, _CHANGED_BYTES)
    return FetchLimits(
        most, min(most, spec.fetch_partition_bytes), spec.fetch_max_wait_ms, min(most, spec.fetch_min_bytes)
    )
