"""The dedicated process: one herder per flow, on the flow's target (spec mirrormaker §9; Kafka's MirrorMaker).

Deviations: `scheduled.rebalance.max.delay.ms` is 0 unless the target sets it, so that the work of a process that died
goes on elsewhere at once rather than after five minutes; classes, patterns, intervals and client settings of all
connectors are tried out before anything starts; connectors and tasks that fail are started again (`restarts`); a target that does not answer is given five seconds; a stored connector
configuration is compared as written, with its provider references, so a new leader does not restart connectors for
nothing.
"""

from __future__ import annotations

import functools
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

import structlog

from mm2.config.configdef import ConfigException
from mm2.config.mirror_keys import CHECKPOINT_CONNECTOR, CONNECTOR_CLASSES, HEARTBEAT_CONNECTOR, SOURCE_CONNECTOR
from mm2.config.mirrormaker import MirrorMakerConfig, SourceAndTarget
from mm2.config.providers import ConfigTransformer
from mm2.config.worker_keys import WorkerConfig
from mm2.connect.api import ConnectError, Connector, Converter, HeaderConverter, Task
from mm2.connect.errors import NotLeader
from mm2.connect.group.protocol import URL_NOT_USED
from mm2.connect.herder.answers import Created
from mm2.connect.herder.distributed import DistributedHerder
from mm2.connect.node import Node
from mm2.connect.plugins import Plugins
from mm2.connect.stores.config_state import RestartRequest
from mm2.copy.driver.engine import CopyEngine
from mm2.kafka.errors import ConnectFailure, KafkaFailure
from mm2.mirror.checkpoint_connector import MirrorCheckpointConnector
from mm2.mirror.checkpoint_task import MirrorCheckpointTask
from mm2.mirror.connector import MirrorConnector
from mm2.mirror.heartbeat import MirrorHeartbeatConnector, MirrorHeartbeatTask
from mm2.mirror.plugins import JAVA_PACKAGE
from mm2.mirror.rest import FlowsRest, serves_rest
from mm2.mirror.restarts import Restarts
from mm2.mirror.source_connector import MirrorSourceConnector
from mm2.mirror.source_task import COPY_RESOURCE, MirrorSourceTask

log = structlog.get_logger(__name__)

REBALANCE_DELAY_KEY: Final = "scheduled.rebalance.max.delay.ms"
CONVERTER_KEYS: Final = ("key.converter", "value.converter", "header.converter")
CONNECTORS: Final[Mapping[str, type[MirrorConnector]]] = {
    SOURCE_CONNECTOR: MirrorSourceConnector,
    HEARTBEAT_CONNECTOR: MirrorHeartbeatConnector,
    CHECKPOINT_CONNECTOR: MirrorCheckpointConnector,
}

_TARGET_PATIENCE_S: Final = 5.0
_TRY_S: Final = 4.0
_BETWEEN_TRIES_S: Final = 0.5
_WATCH_S: Final = 0.5
_LOOK_FOR_FAILURES_S: Final = 5.0
_ENGINE_SHARE_S: Final = 3.0
_REST_SHARE_S: Final = 2.0
_CONFIGURE_AGAIN_S: Final = 10.0


class FlowFailed(Exception):
    """A flow's herder has ended by itself. `started`: it had worked before."""

    def __init__(self, message: str, *, started: bool) -> None:
        super().__init__(message)
        self.started = started


@dataclass(frozen=True)
class Flow:
    """One flow of this process: its herder on the target, and what its connectors shall be configured with."""

    pair: SourceAndTarget
    node: Node

    @property
    def herder(self) -> DistributedHerder:
        return self.node.herder


class MirrorMaker:
    """All flows of one process whose targets are among `targets` (None: all).

    The constructor connects to the targets, never to a source, and creates nothing. It raises ConfigException or
    ConnectError for a configuration that cannot work and for a target that cannot be reached or refuses us.
    `stopping`, when given, ends the wait for a target.
    """

    def __init__(
        self,
        config: MirrorMakerConfig,
        targets: Sequence[str] | None = None,
        *,
        stopping: threading.Event | None = None,
    ) -> None:
        self._config = config
        self._stopping = stopping or threading.Event()
        self._transformer = ConfigTransformer.from_props(config.originals)
        self._plugins = connect_plugins()
        pairs = chosen_pairs(config, targets)
        config.validate({pair.target for pair in pairs})
        for pair in pairs:
            self._rehearse(pair)
        if config.internal_rest and not serves_rest(config):
            raise ConfigException(
                "listeners",
                "",
                "dedicated.mode.enable.internal.rest = true needs a port for the other processes to reach",
            )
        self._rest = FlowsRest(config) if serves_rest(config) else None
        copying = any(self._replicates(pair) for pair in pairs)
        self._engine = CopyEngine(config.spark_props()) if copying else None
        self.flows: list[Flow] = []
        try:
            self.flows.extend(self._flow(pair) for pair in pairs)
            for flow in {flow.pair.target: flow for flow in self.flows}.values():
                self._check_target(flow)
        except BaseException:
            self._close()
            raise

    def start(self) -> None:
        """Start Spark (in the background) and all herders; returns at once. Raises ConnectError when that fails."""
        log.info("MirrorMaker starts.", flows=[str(flow.pair) for flow in self.flows])
        if self._engine is not None:
            self._engine.start()
        for flow in self.flows:
            flow.herder.start()
        if self._rest is not None:
            self._rest.serve({flow.pair: flow.herder for flow in self.flows})

    def wait(self, stopping: threading.Event) -> None:
        """Wait for `stopping`, having what fails started again. Raises FlowFailed when a herder has ended by itself."""
        restarts = {flow.pair: Restarts() for flow in self.flows}
        next_look_s = 0.0
        while not stopping.wait(_WATCH_S):
            if time.monotonic() >= next_look_s:
                next_look_s = time.monotonic() + _LOOK_FOR_FAILURES_S
                for flow in self.flows:
                    for name in restarts[flow.pair].due(flow.herder.status(), time.monotonic()):
                        log.info("What has failed is started again.", flow=str(flow.pair), connector=name)
                        flow.herder.restart_connector_and_tasks(
                            RestartRequest(name, only_failed=True, include_tasks=True)
                        )
            for flow in self.flows:
                if flow.herder.await_stopped(0):
                    started = flow.herder.await_ready(0)
                    what = "has failed" if started else "could not be started"
                    failure = flow.herder.failure
                    raise FlowFailed(f"The flow {flow.pair} {what}: {failure}", started=started) from failure

    def status(self) -> dict[str, Any]:
        """Status of every flow's herder, JSON-able."""
        return {str(flow.pair): flow.herder.status() for flow in self.flows}

    def stop(self, timeout_s: float) -> None:
        """Stop all flows at the same time, tasks first, then Spark; what hangs is left behind."""
        deadline = time.monotonic() + timeout_s
        if self._rest is not None:
            self._rest.stop(_REST_SHARE_S)
        threads = [
            threading.Thread(target=flow.node.stop, name=f"stop-{flow.pair}", daemon=True) for flow in self.flows
        ]
        for thread in threads:
            thread.start()
        for flow, thread in zip(self.flows, threads, strict=True):
            thread.join(max(0.0, deadline - _ENGINE_SHARE_S - time.monotonic()))
            if thread.is_alive():
                log.warning("A flow did not stop in time.", flow=str(flow.pair))
        if self._engine is not None:
            self._engine.stop(max(1.0, deadline - time.monotonic()))

    def _close(self) -> None:
        """Close what the constructor opened."""
        if self._rest is not None:
            self._rest.stop(0.0)
        for flow in self.flows:
            flow.node.stop()

    # -- what a flow needs

    def _replicates(self, pair: SourceAndTarget) -> bool:
        props = self._transformer.transform(self._config.connector_config(pair, SOURCE_CONNECTOR))
        return props["enabled"].strip().lower() == "true"

    def _rehearse(self, pair: SourceAndTarget) -> None:
        """Try out whatever a worker or connector of the flow would refuse later, when nobody looks any more."""
        try:
            worker = self._config.worker_config(pair)
            for java_class in CONNECTOR_CLASSES:
                props = self._transformer.transform(self._config.connector_config(pair, java_class))
                connector = self._plugins.new(props["connector.class"], Connector, key="connector.class")
                if isinstance(connector, MirrorConnector):
                    connector.rehearse(props)
                for key in CONVERTER_KEYS:
                    kind = HeaderConverter if key == "header.converter" else Converter
                    self._plugins.find(props.get(key, worker[key]), kind, key=key)
        except (ConfigException, ConnectError) as error:
            raise ConfigException(f"Flow {pair}: {error}") from error

    def _flow(self, pair: SourceAndTarget) -> Flow:
        worker = {REBALANCE_DELAY_KEY: "0", **self._config.worker_config(pair)}
        wanted = {
            java_class.rpartition(".")[2]: self._config.connector_config(pair, java_class)
            for java_class in CONNECTOR_CLASSES
        }
        internal = self._rest.binding if self._rest is not None and self._rest.internal else None
        node = Node(
            WorkerConfig(worker),
            self._plugins,
            worker_id=worker_id(pair) if internal is None else f"{internal.worker_id}/{pair}",
            cluster_name=pair.target,
            rest_url=URL_NOT_USED if internal is None else internal.advertised_url,
            rest_namespace=(pair.source, pair.target),
            resources={} if self._engine is None else {COPY_RESOURCE: self._engine},
            log_context={"flow": str(pair)},
            on_leader_ready=configurer(pair, wanted),
        )
        return Flow(pair, node)

    def _check_target(self, flow: Flow) -> None:
        """Raises ConnectError: at once when the target refuses us, after five seconds when it does not answer."""
        alias = flow.pair.target
        servers = self._config.worker_config(flow.pair).get("bootstrap.servers")
        where = f"{alias} ({alias}.bootstrap.servers = {servers})"
        deadline = time.monotonic() + _TARGET_PATIENCE_S
        said = False
        while True:
            try:
                cluster_id = flow.node.check(_TRY_S)
                log.info("The target cluster answers.", cluster=alias, cluster_id=cluster_id)
                return
            except KafkaFailure as failure:
                passing = isinstance(failure, ConnectFailure) and failure.retriable
                if not passing or time.monotonic() > deadline or self._stopping.is_set():
                    raise ConnectError(f"The target cluster {where} cannot be used: {failure}") from failure
                if not said:
                    log.warning("The target cluster %s does not answer yet: %s", where, failure)
                    said = True
            self._stopping.wait(_BETWEEN_TRIES_S)


def chosen_pairs(config: MirrorMakerConfig, targets: Sequence[str] | None) -> list[SourceAndTarget]:
    """Flows to run. Raises ConfigException for an alias that `clusters` does not name, and when there are none."""
    known = ", ".join(config.clusters) or "none"
    if unknown := config.unknown_clusters(targets or ()):
        raise ConfigException(f"--clusters names {', '.join(unknown)}, but the clusters of the file are {known}.")
    pairs = config.cluster_pairs()
    chosen = [pair for pair in pairs if targets is None or pair.target in targets]
    if not chosen:
        there = ", ".join(map(str, pairs)) or "none"
        given = "" if targets is None else f", --clusters {' '.join(targets)} given"
        raise ConfigException(
            f"No source->target replication flows: clusters = {known}{given}, flows that are on: {there}. "
            "Switch one on with SOURCE->TARGET.enabled = true."
        )
    return chosen


def connect_plugins() -> Plugins:
    """The classes a worker of a flow looks up by name."""
    plugins = Plugins()
    for java_class, connector in CONNECTORS.items():
        plugins.register(java_class, connector, kind=Connector)
    for task in (MirrorSourceTask, MirrorHeartbeatTask, MirrorCheckpointTask):
        plugins.register(f"{JAVA_PACKAGE}.{task.__name__}", task, kind=Task)
    return plugins


def worker_id(pair: SourceAndTarget) -> str:
    """Unique per process (KAFKA-18843): `<host>/S->T/<uuid>`."""
    return "/".join(part for part in (_host(), str(pair), str(uuid.uuid4())) if part)


@functools.cache
def _host() -> str:
    """Canonical name of this host; asked for once, since a name server that is away makes every try slow."""
    try:
        return socket.getfqdn()
    except OSError:
        return ""


def configurer(pair: SourceAndTarget, wanted: Mapping[str, Mapping[str, str]]) -> Callable[[DistributedHerder], None]:
    """What a new leader of the flow does: bring the stored connector configurations up to those of its file.

    A write that the cluster did not take is tried again: without it the flow would do nothing until the next leader.
    """

    def configure(herder: DistributedHerder) -> None:
        for name in wanted:
            bring_up(herder, name)

    def bring_up(herder: DistributedHerder, name: str) -> None:
        if herder.configs().connector_config(name) == wanted[name]:
            log.info("Connector is configured already.", connector=name)
            return
        written = herder.put_connector_config(name, dict(wanted[name]), allow_replace=True)
        written.add_done_callback(lambda future: report(herder, name, future))

    def report(herder: DistributedHerder, name: str, future: Future[Created]) -> None:
        error = future.exception()
        if error is None:
            log.info("Connector is configured.", flow=str(pair), connector=name)
        elif isinstance(error, NotLeader):
            log.info("Another process leads this flow now and configures it.", flow=str(pair), connector=name)
        else:
            log.error("Failed to configure the connector %s for %s: %s", name, pair, error)
            if isinstance(error.__cause__, KafkaFailure):
                # The cluster did not take it, which says nothing against the configuration.
                again = threading.Timer(_CONFIGURE_AGAIN_S, bring_up, (herder, name))
                again.daemon = True
                again.start()

    return configure
