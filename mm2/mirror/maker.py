"""The dedicated process: one herder per flow, on the flow's target (spec mirrormaker §9; Kafka's MirrorMaker).

Deviations: `scheduled.rebalance.max.delay.ms` is 0 unless the target sets it, so that the work of a process that died
goes on elsewhere at once rather than after five minutes; classes, patterns, intervals and client settings of all
connectors are tried out before anything starts; connectors and tasks that fail are started again (`restarts`); a target
that does not answer is given five seconds, and where another one does, its flows begin when it comes; a stored connector
configuration is compared as written, with its provider references, so a new leader does not restart connectors for nothing;
a file that changes is applied while the process runs.
"""

from __future__ import annotations

import functools
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from mm2.config.configdef import ConfigException
from mm2.config.difference import difference
from mm2.config.mirror_keys import CHECKPOINT_CONNECTOR, HEARTBEAT_CONNECTOR, SOURCE_CONNECTOR
from mm2.config.mirrormaker import DEDICATED_WORKER_DEFAULTS, MirrorMakerConfig, SourceAndTarget
from mm2.config.worker_keys import WorkerConfig
from mm2.connect.api import ConnectError, Connector, Task
from mm2.connect.errors import NotLeader
from mm2.connect.group.protocol import URL_NOT_USED
from mm2.connect.herder.answers import Created
from mm2.connect.herder.distributed import DistributedHerder
from mm2.connect.node import Node
from mm2.connect.plugins import Plugins
from mm2.connect.stores.config_state import RestartRequest
from mm2.connect.stores.config_store import PrivilegedWriteError
from mm2.copy.driver.engine import CopyEngine
from mm2.kafka.errors import ConnectFailure, KafkaFailure
from mm2.mirror.checkpoint_connector import MirrorCheckpointConnector
from mm2.mirror.checkpoint_latency import LATENCY_RESOURCE, CheckpointLatencies
from mm2.mirror.checkpoint_task import MirrorCheckpointTask
from mm2.mirror.config_file import ConfigFile
from mm2.mirror.connector import MirrorConnector
from mm2.mirror.heartbeat import MirrorHeartbeatConnector, MirrorHeartbeatTask
from mm2.mirror.plans import Changes, FlowPlan, plan_flows
from mm2.mirror.plugins import JAVA_PACKAGE
from mm2.mirror.recurring_errors import RecurringErrors
from mm2.mirror.rest import Apps, FlowsRest, serves_rest
from mm2.mirror.restarts import Restarts
from mm2.mirror.source_connector import MirrorSourceConnector
from mm2.mirror.source_task import COPY_RESOURCE, MirrorSourceTask

log = structlog.get_logger(__name__)

_INTERNAL_REST: Final = "dedicated.mode.enable.internal.rest"
CONNECTORS: Final[Mapping[str, type[MirrorConnector]]] = {
    SOURCE_CONNECTOR: MirrorSourceConnector,
    HEARTBEAT_CONNECTOR: MirrorHeartbeatConnector,
    CHECKPOINT_CONNECTOR: MirrorCheckpointConnector,
}

_TARGET_PATIENCE_S: Final = 5.0
_TRY_S: Final = 4.0
_BETWEEN_TRIES_S: Final = 0.5
#: How often a target that was away is looked for, and how long each time; nothing else is watched meanwhile.
_TARGET_AGAIN_S: Final = 5.0
_TARGET_GLANCE_S: Final = 1.0
_WATCH_S: Final = 0.5
_LOOK_FOR_FAILURES_S: Final = 5.0
_ENGINE_SHARE_S: Final = 3.0
_REST_SHARE_S: Final = 2.0
_CONFIGURE_AGAIN_S: Final = 10.0
#: Until a file whose new flows had no target to go to is tried again.
_RELOAD_AGAIN_S: Final = 30.0
#: For flows that the file ends or changes; the others go on meanwhile.
_STOP_FLOWS_S: Final = 30.0


class TargetAway(ConnectError):
    """A target does not answer, which may pass."""


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
    configurer: Configurer
    restarts: Restarts = field(default_factory=Restarts)

    @property
    def herder(self) -> DistributedHerder:
        return self.node.herder


class MirrorMaker:
    """All flows of one process whose targets are among `targets` (None: all).

    The constructor connects to the targets, never to a source, and creates nothing. It raises ConfigException or
    ConnectError for a configuration that cannot work, for a target that refuses us, and when no target can be reached.
    `stopping`, when given, ends the wait for a target; `apps` are served beside the resources of the flows.
    """

    def __init__(
        self,
        config: MirrorMakerConfig,
        targets: Sequence[str] | None = None,
        *,
        stopping: threading.Event | None = None,
        apps: Apps | None = None,
    ) -> None:
        self._config = config
        # Of what is in effect; resolved once, since its references may be gone by the next file.
        self._frozen = _frozen(config)
        self._targets = targets
        self._stopping = stopping or threading.Event()
        self._plugins = connect_plugins()
        self._plans = plan_flows(config, targets, self._plugins)
        if config.internal_rest and not serves_rest(config):
            raise ConfigException(
                "listeners",
                "",
                "dedicated.mode.enable.internal.rest = true needs a port for the other processes to reach",
            )
        self._rest = FlowsRest(config, apps) if serves_rest(config) else None
        # What it starts costs something, not what it is; a flow that begins to copy later finds it here.
        self._engine = CopyEngine(config.spark_props())
        self.checkpoint_latencies = CheckpointLatencies()
        self.flows: list[Flow] = []
        self._leaving: list[Flow] = []  # while they are being stopped
        self._waiting: set[SourceAndTarget] = set()  # flows that begin when their target comes
        self._recurring = RecurringErrors()
        self._reloads: Counter[str] = Counter()
        try:
            self.flows.extend(self._flow(pair, plan) for pair, plan in self._plans.items())
            self._check_targets()
        except BaseException:
            self._close()
            raise

    def start(self) -> None:
        """Start Spark (in the background) and all herders; returns at once. Raises ConnectError when that fails."""
        log.info("MirrorMaker starts.", flows=[str(flow.pair) for flow in self.flows])
        self._start_engine()
        for flow in self.flows:
            flow.herder.start()
        if self._rest is not None:
            self._rest.serve({flow.pair: flow.herder for flow in self.flows})

    def wait(self, stopping: threading.Event, file: ConfigFile | None = None) -> None:
        """Wait for `stopping`, going over to new versions of `file` and having what fails started again.

        Raises FlowFailed when a herder has ended by itself.
        """
        next_look_s = next_try_s = next_glance_s = 0.0
        unsettled = False
        while not stopping.wait(_WATCH_S):
            if self._waiting and time.monotonic() >= next_glance_s:
                self._begin_where_target_has_come()
                next_glance_s = time.monotonic() + _TARGET_AGAIN_S
            if file is not None and (file.changed() or (unsettled and time.monotonic() >= next_try_s)):
                unsettled = not self._reload(file)
                next_try_s = time.monotonic() + _RELOAD_AGAIN_S
            if time.monotonic() >= next_look_s:
                next_look_s = time.monotonic() + _LOOK_FOR_FAILURES_S
                for flow in self.flows:
                    for name in flow.restarts.due(flow.herder.status(), time.monotonic()):
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

    @property
    def config(self) -> MirrorMakerConfig:
        """What is in effect."""
        return self._config

    @property
    def plans(self) -> Mapping[SourceAndTarget, FlowPlan]:
        """What is wanted of every flow, also of those that wait for their target; replaced, never changed."""
        return self._plans

    @property
    def engine(self) -> CopyEngine:
        """What copies."""
        return self._engine

    @property
    def reloads(self) -> Mapping[str, int]:
        """New versions of the file since the start, by what became of them: applied or refused."""
        return dict(self._reloads)

    def status(self) -> dict[str, Any]:
        """Status of every flow's herder, JSON-able."""
        return {str(flow.pair): flow.herder.status() for flow in self.flows}

    def stop(self, timeout_s: float) -> None:
        """Stop all flows at the same time, tasks first, then Spark; what hangs is left behind."""
        deadline = time.monotonic() + timeout_s
        if self._rest is not None:
            self._rest.stop(_REST_SHARE_S)
        _stop_flows([*self.flows, *self._leaving], deadline - _ENGINE_SHARE_S)
        self._engine.stop(max(1.0, deadline - time.monotonic()))

    def _close(self) -> None:
        """Close what the constructor opened."""
        if self._rest is not None:
            self._rest.stop(0.0)
        for flow in self.flows:
            flow.node.stop()

    def _start_engine(self) -> None:
        if any(plan.replicates for plan in self._plans.values()):
            self._engine.start()

    # -- a new version of the file

    def _reload(self, file: ConfigFile) -> bool:
        """Go over to what the file says now, or refuse it with a sentence. False when another try may do better."""
        lines: list[str] = []
        try:
            props = file.load()
            old = self._config.originals
            config = MirrorMakerConfig(props)
            lines = difference(old, props, {*self._config.clusters, *config.clusters})
            plans = plan_flows(config, self._targets, self._plugins)
            frozen = _frozen(config)
        except Exception as error:  # a class of the user's own may raise whatever it likes
            trace = None if isinstance(error, (ConfigException, ConnectError)) else error
            sentence = "%s is refused, the old one goes on: %s"
            log.error(sentence, file.path, error, difference=lines, exc_info=trace)  # noqa: TRY400
            self._reloads["refused"] += 1
            return True
        try:
            changes = Changes.between(self._plans, plans)
            fresh = self._fresh_flows(changes, plans)
        except (ConfigException, ConnectError, KafkaFailure) as error:
            log.error(  # noqa: TRY400
                "%s cannot be applied yet, the old one goes on: %s", file.path, error, difference=lines
            )
            return False
        for key in sorted(frozen.keys() | self._frozen.keys()):
            if frozen.get(key) != self._frozen.get(key):
                log.warning(
                    "%s has changed in %s, which takes effect when the process is started again.", key, file.path
                )
        known = dict(self._config.unread_keys())
        for key, nearest in config.unread_keys():
            if key not in known:
                log.warning(
                    "Nothing reads the key %s of %s.%s", key, file.path, f" Did you mean {nearest}?" if nearest else ""
                )
        self._config, self._plans, self._frozen = config, plans, frozen
        self._waiting &= plans.keys()
        self._apply(changes, fresh)
        self._reloads["applied"] += 1
        log.info("The file is in effect.", file=str(file.path), difference=lines, **changes.to_json())
        return True

    def _fresh_flows(self, changes: Changes, plans: Mapping[SourceAndTarget, FlowPlan]) -> list[Flow]:
        """The flows to be started, their targets asked. Raises what the constructor does."""
        fresh: list[Flow] = []
        try:
            for pair in (*changes.added, *(pair for pair in changes.restarted if pair not in self._waiting)):
                flow = self._flow(pair, plans[pair])
                fresh.append(flow)
                self._check_target(flow, plans[pair])
        except BaseException:
            for flow in fresh:
                flow.node.stop()
            raise
        return fresh

    def _apply(self, changes: Changes, fresh: Sequence[Flow]) -> None:
        self._leaving = [flow for flow in self.flows if flow.pair in {*changes.removed, *changes.restarted}]
        self.flows = [flow for flow in self.flows if flow not in self._leaving]
        _stop_flows(self._leaving, time.monotonic() + _STOP_FLOWS_S, unless=self._stopping)
        if self._stopping.is_set():
            return
        self._leaving = []
        self._start_engine()
        for flow in fresh:
            flow.herder.start()
        for flow in self.flows:
            flow.configurer.wanted = self._plans[flow.pair].connectors
            flow.configurer.bring_up(flow.herder, changes.reconfigured.get(flow.pair, ()))
            for name in changes.resolved_anew.get(flow.pair, ()):
                if flow.herder.is_leader:
                    flow.herder.restart_connector_and_tasks(RestartRequest(name, only_failed=False, include_tasks=True))
        self._join(fresh)

    def _join(self, fresh: Sequence[Flow]) -> None:
        self.flows.extend(fresh)
        if self._rest is not None:
            self._rest.change({flow.pair: flow.herder for flow in self.flows})

    # -- what a flow needs

    def _flow(self, pair: SourceAndTarget, plan: FlowPlan) -> Flow:
        internal = self._rest.binding if self._rest is not None and self._rest.internal else None
        configurer = Configurer(pair, plan.connectors)
        node = Node(
            WorkerConfig({**DEDICATED_WORKER_DEFAULTS, **plan.worker}),
            self._plugins,
            worker_id=worker_id(pair) if internal is None else f"{internal.worker_id}/{pair}",
            cluster_name=pair.target,
            rest_url=URL_NOT_USED if internal is None else internal.advertised_url,
            rest_namespace=(pair.source, pair.target),
            resources={COPY_RESOURCE: self._engine, LATENCY_RESOURCE: self.checkpoint_latencies},
            log_context={"flow": str(pair)},
            on_leader_ready=configurer,
        )
        return Flow(pair, node, configurer)

    def _check_targets(self) -> None:
        """Ask all targets; flows whose target does not answer are put off. Raises ConnectError when none does."""
        away: dict[str, TargetAway] = {}
        targets = {flow.pair.target: flow for flow in self.flows}
        for alias, flow in targets.items():
            try:
                self._check_target(flow, self._plans[flow.pair])
            except TargetAway as error:
                away[alias] = error
                if len(away) == len(targets) or self._stopping.is_set():
                    raise
        for alias, failure in away.items():
            late = [flow for flow in self.flows if flow.pair.target == alias]
            self.flows = [flow for flow in self.flows if flow not in late]
            self._waiting.update(flow.pair for flow in late)
            for flow in late:
                flow.node.stop()
            self._recurring.report(
                alias, f"{failure} Until it can, these wait: {', '.join(str(f.pair) for f in late)}."
            )

    def _begin_where_target_has_come(self) -> None:
        """Look for the targets of flows that wait, and start those whose target answers."""
        for alias in sorted({pair.target for pair in self._waiting}):
            pairs = [pair for pair in self._plans if pair in self._waiting and pair.target == alias]
            fresh = [self._flow(pair, self._plans[pair]) for pair in pairs]
            try:
                fresh[0].node.check(_TARGET_GLANCE_S)
            except KafkaFailure as failure:
                if not failure.retriable:  # it is there, and does not let us in
                    self._recurring.report(alias, f"The target cluster {alias} cannot be used yet: {failure}")
                for flow in fresh:
                    flow.node.stop()
                continue
            self._recurring.resolve(alias)
            log.info("The target cluster has come.", cluster=alias, flows=[str(pair) for pair in pairs])
            self._waiting.difference_update(pairs)
            for flow in fresh:
                flow.herder.start()
            self._join(fresh)

    def _check_target(self, flow: Flow, plan: FlowPlan) -> None:
        """Raises ConnectError: at once when the target refuses us, TargetAway after five seconds without an answer."""
        alias = flow.pair.target
        servers = plan.worker.get("bootstrap.servers")
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
                    refused = TargetAway if passing else ConnectError
                    raise refused(f"The target cluster {where} cannot be used: {failure}") from failure
                if not said:
                    log.warning("The target cluster %s does not answer yet: %s", where, failure)
                    said = True
            self._stopping.wait(_BETWEEN_TRIES_S)


def _frozen(config: MirrorMakerConfig) -> dict[str, str]:
    """What counts only when the process starts, resolved. Raises ConfigException where a reference stands for nothing."""
    return {**config.spark_props(), **config.rest_props(), _INTERNAL_REST: str(config.internal_rest)}


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


class Configurer:
    """What a new leader of the flow does: bring the stored connector configurations up to those of its file.

    A write that the cluster did not take is tried again: without it the flow would do nothing until the next leader.
    """

    def __init__(self, pair: SourceAndTarget, wanted: Mapping[str, Mapping[str, str]]) -> None:
        self._pair = pair
        #: By connector name; replaced as a whole when the file says otherwise.
        self.wanted = wanted

    def __call__(self, herder: DistributedHerder) -> None:
        self.bring_up(herder, self.wanted)

    def bring_up(self, herder: DistributedHerder, names: Iterable[str]) -> None:
        """These connectors; a worker that does not lead leaves it to the one that does."""
        for name in names:
            self._bring_up(herder, name)

    def _bring_up(self, herder: DistributedHerder, name: str) -> None:
        wanted = self.wanted[name]
        if herder.configs().connector_config(name) == wanted:
            log.info("Connector is configured already.", connector=name)
            return
        written = herder.put_connector_config(name, dict(wanted), allow_replace=True)
        written.add_done_callback(lambda future: self._report(herder, name, future))

    def _report(self, herder: DistributedHerder, name: str, future: Future[Created]) -> None:
        error = future.exception()
        if error is None:
            log.info("Connector is configured.", flow=str(self._pair), connector=name)
        elif isinstance(error, NotLeader):
            log.info("Another process leads this flow now and configures it.", flow=str(self._pair), connector=name)
        else:
            log.error("Failed to configure the connector %s for %s: %s", name, self._pair, error)
            if isinstance(error, PrivilegedWriteError) or isinstance(error.__cause__, KafkaFailure):
                # The cluster did not take it, or a zombie of an older leader has to be fenced first: that says nothing against
                # the configuration.
                again = threading.Timer(_CONFIGURE_AGAIN_S, self._bring_up, (herder, name))
                again.daemon = True
                again.start()


def _stop_flows(flows: Sequence[Flow], deadline: float, *, unless: threading.Event | None = None) -> None:
    """All at the same time, until ``deadline`` (of the steady clock) or ``unless`` is set; what hangs is left behind."""
    threads = [threading.Thread(target=flow.node.stop, name=f"stop-{flow.pair}", daemon=True) for flow in flows]
    for thread in threads:
        thread.start()
    for flow, thread in zip(flows, threads, strict=True):
        while thread.is_alive() and time.monotonic() < deadline and not (unless is not None and unless.is_set()):
            thread.join(min(_WATCH_S, max(0.0, deadline - time.monotonic())))
        if thread.is_alive():
            log.warning("A flow did not stop in time.", flow=str(flow.pair))
