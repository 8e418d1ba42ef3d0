"""The dedicated MirrorMaker process: one herder per replication flow, on the flow's target (Kafka's MirrorMaker).

Deviations from Java:

- `scheduled.rebalance.max.delay.ms` is 0 unless the target sets it: the tasks of a dead process are reassigned at once,
  not after five minutes.
- Classes, patterns, intervals and client settings of all connectors are validated before anything starts.
- Connectors and tasks that fail are restarted (`restarts`).
- A target that does not answer within five seconds delays only its own flows, if another target answers. They start
  when it becomes reachable. So does a flow whose worker cannot load its internal topics from a target that is recovering.
- Stored connector configurations are compared as written, with their config provider references. A new leader therefore
  does not restart connectors without cause.
- A changed properties file is applied while the process runs.
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
from pathlib import Path
from typing import Any, Final, cast

import structlog

from mm2.config.configdef import ConfigException
from mm2.config.keys.difference import difference
from mm2.config.keys.worker_keys import WorkerConfig
from mm2.config.mirrormaker import (
    DEDICATED_WORKER_DEFAULTS,
    MirrorMakerConfig,
    SourceAndTarget,
)
from mm2.config.unread import unread_message
from mm2.connect.api import ConnectError
from mm2.connect.errors import NotLeader
from mm2.connect.group.protocol import URL_NOT_USED
from mm2.connect.herder.answers import Created
from mm2.connect.herder.distributed import DistributedHerder
from mm2.connect.herder.interface import Herder
from mm2.connect.node import Node
from mm2.connect.stores.config_state import RestartRequest
from mm2.connect.stores.config_store import PrivilegedWriteError
from mm2.connect.tls import ListenerTls
from mm2.copy.driver.engine import CopyEngine
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure, is_answer, is_unavailable
from mm2.mirror.common.plugins import connect_plugins, plugin_limits, plugin_props
from mm2.mirror.common.recurring_errors import RecurringErrors
from mm2.mirror.groups.checkpoint_latency import LATENCY_RESOURCE, CheckpointLatencies
from mm2.mirror.process.config_file import ConfigFile
from mm2.mirror.process.plans import Changes, FlowPlan, absent_connectors, plan_flows
from mm2.mirror.process.restarts import Restarts
from mm2.mirror.process.value_changes import restart_with_new_values
from mm2.mirror.rest.flow_paths import Apps
from mm2.mirror.rest.process_rest import FlowsRest, serves_rest
from mm2.mirror.rest.rest_rules import RestrictedHerder, RestRules
from mm2.mirror.source_task import COPY_RESOURCE

log = structlog.get_logger("mm2.mirror.maker")

_INTERNAL_REST: Final = "dedicated.mode.enable.internal.rest"
_TARGET_PATIENCE_S: Final = 5.0
_TRY_S: Final = 4.0
_BETWEEN_TRIES_S: Final = 0.5
#: How often an unreachable target is checked, and the timeout of the first check; no other events are handled meanwhile. Later ones
#: may take longer, up to `_TRY_S`: a login over a slow network takes several round trips.
_TARGET_AGAIN_S: Final = 5.0
_TARGET_CHECK_S: Final = 1.0
_WATCH_S: Final = 0.5
_DIFFERENCES_SHOWN: Final = 10
_LOOK_FOR_FAILURES_S: Final = 5.0
_ENGINE_SHARE_S: Final = 3.0
_REST_SHARE_S: Final = 2.0
_CONFIGURE_AGAIN_S: Final = 10.0
#: Delay before a flow is started again whose target answered, but could not be used.
_START_AGAIN_S: Final = 60.0
#: Delay before a file is retried if no target of its new flows was reachable.
_RELOAD_AGAIN_S: Final = 30.0
#: Time limit for stopping flows that the file removes or changes; the other flows continue meanwhile.
_STOP_FLOWS_S: Final = 30.0


class TargetUnavailable(ConnectError):
    """A target cluster does not answer; the error may be temporary."""


class FlowFailed(Exception):
    """The herder of a flow has ended by itself. `started`: the flow was running before."""

    def __init__(self, message: str, *, started: bool) -> None:
        super().__init__(message)
        self.started = started


@dataclass(frozen=True)
class Flow:
    """One flow of this process: its herder on the target, and the configurations of its connectors."""

    pair: SourceAndTarget
    node: Node
    configurer: Configurer
    #: What REST calls instead of the herder.
    rest_herder: Herder
    restarts: Restarts = field(default_factory=Restarts)

    @property
    def herder(self) -> DistributedHerder:
        return self.node.herder


class MirrorMaker:
    """All flows of one process whose targets are among `targets` (None: all).

    The constructor connects to the targets, never to a source, and creates nothing. It raises ConfigException or
    ConnectError for an invalid configuration, for a target that rejects the connection, and if no target can be
    reached. `stopping`, if given, ends the wait for a target; `apps` are served beside the resources of the flows.
    """

    def __init__(
        self,
        config: MirrorMakerConfig,
        targets: Sequence[str] | None = None,
        *,
        stopping: threading.Event | None = None,
        apps: Apps | None = None,
        file: Path | None = None,
        spark_context: Any = None,
    ) -> None:
        """``file`` is the properties file, by which commands find the process. ``spark_context`` is used instead of an own one."""
        self._config = config
        # Settings in effect, resolved once: their references may no longer exist when the next file is read.
        self._frozen = _frozen(config)
        self._ineffective = config.ineffective_keys(targets)
        self._targets = targets
        self._stopping = stopping or threading.Event()
        self._plugins = connect_plugins(plugin_props(config, targets))
        self._plugins.limit(plugin_limits(config))
        self._plans = plan_flows(config, targets, self._plugins)
        # Creating the engine is cheap, only its start is not; a flow that starts to copy later uses the same one.
        self._engine = CopyEngine(config.spark_props(), spark_context)
        self._rest = (
            FlowsRest(config, apps, file, failing=self._failing_lanes, progress=self._progress)
            if serves_rest(config)
            else None
        )
        self.checkpoint_latencies = CheckpointLatencies()
        self.flows: list[Flow] = []
        self._leaving: list[Flow] = []  # while they are being stopped
        self._waiting: set[SourceAndTarget] = set()  # flows that start when their target is reachable
        self._late: set[SourceAndTarget] = set()  # flows that were started after the others
        self._not_before_s: dict[str, float] = {}  # by target: no flow into it is started before (monotonic clock)
        self._check_s: dict[str, float] = {}  # by target: the timeout of the next check, if it is unreachable
        self._recurring = RecurringErrors()
        self._reloads: Counter[str] = Counter()
        try:
            self.flows.extend(self._flow(pair, plan) for pair, plan in self._plans.items())
            self._check_targets()
        except BaseException:
            self._close()
            raise

    @property
    def listeners(self) -> tuple[ListenerTls, ...]:
        """The TLS of the process's https listeners."""
        return () if self._rest is None else self._rest.binding.https

    def start(self) -> None:
        """Start Spark (in the background) and all herders; returns at once. Raises ConnectError if that fails."""
        log.info("MirrorMaker starts.", flows=[str(flow.pair) for flow in self.flows])
        self._start_engine()
        for flow in self.flows:
            flow.herder.start()
        if self._rest is not None:
            self._rest.serve({flow.pair: flow.rest_herder for flow in self.flows})

    def wait(self, stopping: threading.Event, file: ConfigFile | None = None) -> None:
        """Wait for `stopping`, apply new versions of `file`, and restart what fails.

        Raises FlowFailed if a herder has ended by itself and no other flow has to continue, as `_on_herder_ended` does, and if a Spark
        context has ended that this process does not replace.
        """
        next_look_s = next_try_s = next_check_s = 0.0
        unsettled = False
        while not stopping.wait(_WATCH_S):
            if (ended := self._engine.ended) is not None:
                raise FlowFailed(f"Nothing can be copied any more: {ended}", started=True)
            if self._waiting and time.monotonic() >= next_check_s:
                self._begin_where_target_has_come()
                next_check_s = time.monotonic() + _TARGET_AGAIN_S
            if file is not None and (file.changed() or (unsettled and time.monotonic() >= next_try_s)):
                unsettled = not self._reload(file)
                next_try_s = time.monotonic() + _RELOAD_AGAIN_S
            if time.monotonic() >= next_look_s:
                next_look_s = time.monotonic() + _LOOK_FOR_FAILURES_S
                for flow in self.flows:
                    flow.configurer.report_difference(flow.herder)
                    for name in flow.restarts.due(flow.herder.status(), time.monotonic()):
                        log.info("Failed connectors and tasks are restarted.", flow=str(flow.pair), connector=name)
                        flow.herder.restart_connector_and_tasks(
                            RestartRequest(name, only_failed=True, include_tasks=True)
                        )
            for flow in [flow for flow in self.flows if flow.herder.await_stopped(0)]:
                self._on_herder_ended(flow)

    @property
    def config(self) -> MirrorMakerConfig:
        """The configuration in effect."""
        return self._config

    @property
    def plans(self) -> Mapping[SourceAndTarget, FlowPlan]:
        """The plan of each flow, including flows that wait for their target; replaced, never changed."""
        return self._plans

    def _progress(self, pair: SourceAndTarget) -> list[dict[str, Any]]:
        return self._engine.queries.last_progress(str(pair))

    def _failing_lanes(self, pair: SourceAndTarget) -> list[str]:
        failing = self._engine.failing_lanes(str(pair))
        for flow in self.flows:
            if flow.pair == pair and flow.herder.is_ready:
                absent = absent_connectors(flow.herder.configs().connectors())
                failing += [absent] if absent else []
        return [self._config.disabled_message, *failing] if self._config.disabled_message else failing

    @property
    def engine(self) -> CopyEngine:
        """The copy engine."""
        return self._engine

    @property
    def reloads(self) -> Mapping[str, int]:
        """New versions of the file since the start, counted by outcome: applied or refused."""
        return dict(self._reloads)

    def status(self) -> dict[str, Any]:
        """The status of each flow's herder, as JSON-serializable values."""
        return {str(flow.pair): flow.herder.status() for flow in self.flows}

    def stop(self, timeout_s: float) -> None:
        """Stop all flows at the same time, tasks first, then Spark. Threads that hang are abandoned."""
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

    def _on_herder_ended(self, flow: Flow) -> None:
        """Postpone a flow whose herder has ended by itself, so that a cluster cannot end the flows into others.

        Raises FlowFailed if there is no flow that has to continue: one into another target, or one that runs. Also for a flow that
        cannot be started since the process was, unless its target could not be used yet.
        """
        started = flow.herder.await_ready(0)
        failure, target = flow.herder.failure, flow.pair.target
        others = [other for other in self.flows if other is not flow]
        is_alone = all(other.pair.target == target and not other.herder.await_ready(0) for other in others)
        what = "has failed" if started else "could not be started"
        if is_alone or not (started or flow.pair in self._late or _may_pass(failure)):
            raise FlowFailed(f"The flow {flow.pair} {what}: {failure}", started=started) from failure
        log.error("The flow %s %s and is started again: %s", flow.pair, what, failure)
        _stop_flows([flow], time.monotonic() + _STOP_FLOWS_S, unless=self._stopping)
        self.flows = others
        self._waiting.add(flow.pair)
        self._not_before_s[target] = time.monotonic() + _START_AGAIN_S
        self._join(())

    # -- a new version of the file

    def _reload(self, file: ConfigFile) -> bool:
        """Apply the new version of the file, or reject it with an error. False if a retry may succeed."""
        lines: list[str] = []
        try:
            props = file.load()
            old = self._config.originals
            config = MirrorMakerConfig(props)
            lines = difference(old, props, {*self._config.clusters, *config.clusters})
            self._plugins.limit(plugin_limits(config))
            plans = plan_flows(config, self._targets, self._plugins)
            frozen, ineffective = _frozen(config), config.ineffective_keys(self._targets)
        except Exception as error:  # noqa: BLE001 - a custom class may raise any exception
            self._refuse(file, error, lines)
            return True
        try:
            changes = Changes.between(self._plans, plans)
            fresh = self._fresh_flows(changes, plans)
        except (ConfigException, ConnectError, KafkaFailure) as error:
            self._plugins.limit(plugin_limits(self._config))
            log.error(  # noqa: TRY400
                "%s cannot be applied yet, the previous version stays in effect: %s", file.path, error, difference=lines
            )
            return False
        except Exception as error:  # noqa: BLE001 - the other flows continue
            self._refuse(file, error, lines)
            return True
        for key in sorted(frozen.keys() | self._frozen.keys()):
            if frozen.get(key) != self._frozen.get(key):
                log.warning("%s has changed in %s; the change takes effect after a restart.", key, file.path)
        known = dict(self._config.unread_keys())
        for key, nearest in config.unread_keys():
            if key not in known:
                log.warning("%s", unread_message(file.path, key, nearest))
        for one in ineffective:
            if one not in self._ineffective:
                log.warning("%s", one)
        self._ineffective = ineffective
        self._config, self._plans, self._frozen = config, plans, frozen
        self._waiting &= plans.keys()
        self._late &= plans.keys()
        self._apply(changes, fresh)
        self._reloads["applied"] += 1
        log.info("The new configuration is in effect.", file=str(file.path), difference=lines, **changes.to_json())
        return True

    def _refuse(self, file: ConfigFile, error: Exception, lines: Sequence[str]) -> None:
        self._plugins.limit(plugin_limits(self._config))
        trace = None if isinstance(error, (ConfigException, ConnectError)) else error
        sentence = "%s is rejected, the previous version stays in effect: %s"
        log.error(sentence, file.path, error, difference=lines, exc_info=trace)
        self._reloads["refused"] += 1

    def _fresh_flows(self, changes: Changes, plans: Mapping[SourceAndTarget, FlowPlan]) -> list[Flow]:
        """Create the flows to start and check their targets. Raises what the constructor raises."""
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
        self._late.update(flow.pair for flow in fresh)
        for flow in fresh:
            flow.herder.start()
        for flow in self.flows:
            flow.configurer.wanted = self._plans[flow.pair].connectors
            flow.configurer.bring_up(flow.herder, changes.reconfigured.get(flow.pair, ()))
            for name in changes.changed_values.get(flow.pair, ()):
                restart_with_new_values(flow.herder, name)
        self._join(fresh)

    def _join(self, fresh: Sequence[Flow]) -> None:
        self.flows.extend(fresh)
        if self._rest is not None:
            self._rest.change({flow.pair: flow.rest_herder for flow in self.flows})

    # -- parts of a flow

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
            rest_props=self._config.rest_props(),
            resources={COPY_RESOURCE: self._engine, LATENCY_RESOURCE: self.checkpoint_latencies},
            log_context={"flow": str(pair)},
            on_leader_ready=configurer,
            reports_keys=False,
        )
        rules = RestRules(
            lambda: self._plugins.limits.admitted if self._plugins.limits is not None else frozenset(),
            lambda: configurer.wanted,
            node.herder.worker.restricted_providers,
            lambda: list(self._config.originals.values()),  # of the current file
        )
        return Flow(pair, node, configurer, cast(Herder, RestrictedHerder(node.herder, rules)))

    def _check_targets(self) -> None:
        """Check all targets; flows whose target does not answer are postponed.

        Raises ConnectError if no target answers.
        """
        unavailable: dict[str, TargetUnavailable] = {}
        targets = {flow.pair.target: flow for flow in self.flows}
        for alias, flow in targets.items():
            try:
                self._check_target(flow, self._plans[flow.pair])
            except TargetUnavailable as error:
                unavailable[alias] = error
                if len(unavailable) == len(targets) or self._stopping.is_set():
                    raise
        for alias, failure in unavailable.items():
            late = [flow for flow in self.flows if flow.pair.target == alias]
            self.flows = [flow for flow in self.flows if flow not in late]
            self._waiting.update(flow.pair for flow in late)
            for flow in late:
                flow.node.stop()
            self._recurring.report(alias, f"{failure} Waiting flows: {', '.join(str(f.pair) for f in late)}.")

    def _begin_where_target_has_come(self) -> None:
        """Check the targets of waiting flows, and start the flows whose target answers."""
        for alias in sorted({pair.target for pair in self._waiting}):
            if time.monotonic() < self._not_before_s.get(alias, 0.0):
                continue
            pairs = [pair for pair in self._plans if pair in self._waiting and pair.target == alias]
            fresh = [self._flow(pair, self._plans[pair]) for pair in pairs]
            check_s = self._check_s.get(alias, _TARGET_CHECK_S)
            try:
                fresh[0].node.check(check_s)
            except KafkaFailure as failure:
                self._check_s[alias] = min(_TRY_S, 2 * check_s)
                if not failure.retriable:  # the target is reachable but rejects the connection
                    self._recurring.report(alias, f"The target cluster {alias} cannot be used yet: {failure}")
                for flow in fresh:
                    flow.node.stop()
                continue
            self._check_s.pop(alias, None)
            self._recurring.resolve(alias)
            log.info("Target cluster reachable; starting flows.", cluster=alias, flows=[str(pair) for pair in pairs])
            self._waiting.difference_update(pairs)
            self._late.update(pairs)
            for flow in fresh:
                flow.herder.start()
            self._join(fresh)

    def _check_target(self, flow: Flow, plan: FlowPlan) -> None:
        """Check the target of a flow.

        Raises ConnectError at once if the target rejects the connection, TargetUnavailable at once after an answer with an error
        code or that cannot be read, and after five seconds without an answer.
        """
        alias = flow.pair.target
        servers = plan.worker.get("bootstrap.servers")
        where = f"{alias} ({alias}.bootstrap.servers = {servers})"
        deadline = time.monotonic() + _TARGET_PATIENCE_S
        logged = False
        while True:
            try:
                cluster_id = flow.node.check(_TRY_S)
                log.info("The target cluster answers.", cluster=alias, cluster_id=cluster_id)
                return
            except KafkaFailure as failure:
                passing = is_unavailable(failure)
                if not passing or time.monotonic() > deadline or self._stopping.is_set():
                    refused = TargetUnavailable if passing or is_answer(failure) else ConnectError
                    raise refused(f"The target cluster {where} cannot be used: {failure}") from failure
                if not logged:
                    log.warning("The target cluster %s does not answer yet: %s", where, failure)
                    logged = True
            self._stopping.wait(_BETWEEN_TRIES_S)


def _frozen(config: MirrorMakerConfig) -> dict[str, str]:
    """The resolved settings that apply only at start of the process.

    Raises ConfigException for a reference without a value.
    """
    return {**config.spark_props(), **config.rest_props(), _INTERNAL_REST: str(config.internal_rest)}


def worker_id(pair: SourceAndTarget) -> str:
    """A worker id that is unique per process (KAFKA-18843): `<host>/S->T/<uuid>`."""
    return "/".join(part for part in (_host(), str(pair), str(uuid.uuid4())) if part)


@functools.cache
def _host() -> str:
    """Canonical name of this host. Cached, since each lookup is slow while the name server is unreachable."""
    try:
        return socket.getfqdn()
    except OSError:
        return ""


class Configurer:
    """Updates the stored connector configurations to those of the file, when this process becomes the flow's leader.

    A write that the cluster rejected is retried: otherwise the flow would do nothing until the next leader election.
    """

    def __init__(self, pair: SourceAndTarget, wanted: Mapping[str, Mapping[str, str]]) -> None:
        self._pair = pair
        #: By connector name; replaced as a whole when the file changes.
        self.wanted = wanted
        self._seen = self._reported = ""  # the difference of the last check, and the one that was logged

    def report_difference(self, herder: DistributedHerder) -> None:
        """Log once that this process, which does not lead the flow, has a file with another configuration than the stored one.

        Only a difference of two checks: when the file is changed on all machines, the leader may be the last one to read it.
        """
        lines: list[str] = []
        if not herder.is_leader and herder.is_ready:
            configs = herder.configs()
            for name, wanted in self.wanted.items():
                stored = configs.connector_config(name)
                if stored is not None and stored != wanted:
                    old = {key: value for key, value in stored.items() if value is not None}
                    lines += [f"{name}: {line}" for line in difference(old, wanted, ())]
        found = "; ".join(lines[:_DIFFERENCES_SHOWN])
        if found and found == self._seen and found != self._reported:
            log.warning(
                "The file of this process differs from the stored configuration of the flow, which its leader or a REST request has "
                "written. The stored one applies until this process leads the flow.",
                flow=str(self._pair),
                differences=found,
                count=len(lines),
            )
            self._reported = found
        elif not found:
            self._reported = ""
        self._seen = found

    def __call__(self, herder: DistributedHerder) -> None:
        self.bring_up(herder, self.wanted)

    def bring_up(self, herder: DistributedHerder, names: Iterable[str]) -> None:
        """Update these connectors; a worker that is not the leader leaves this to the leader."""
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
                # The cluster rejected the write, or an older leader must be fenced first: neither means that the
                # configuration is invalid.
                again = threading.Timer(_CONFIGURE_AGAIN_S, self._bring_up, (herder, name))
                again.daemon = True
                again.start()


def _may_pass(failure: BaseException | None) -> bool:
    """Whether the internal topics of a worker may be usable later. A cluster that starts has too few brokers for a while."""
    cause = failure.__cause__ if isinstance(failure, ConnectError) else failure
    if isinstance(cause, BrokerFailure) and cause.code == ErrorCode.INVALID_REPLICATION_FACTOR:
        return True
    return isinstance(cause, KafkaFailure) and (cause.retriable or is_answer(cause))


def _stop_flows(flows: Sequence[Flow], deadline: float, *, unless: threading.Event | None = None) -> None:
    """Stop flows in parallel, until ``deadline`` (monotonic clock) or until ``unless`` is set.

    Threads that hang are abandoned.
    """
    threads = [threading.Thread(target=flow.node.stop, name=f"stop-{flow.pair}", daemon=True) for flow in flows]
    for thread in threads:
        thread.start()
    for flow, thread in zip(flows, threads, strict=True):
        while thread.is_alive() and time.monotonic() < deadline and not (unless is not None and unless.is_set()):
            thread.join(min(_WATCH_S, max(0.0, deadline - time.monotonic())))
        if thread.is_alive():
            log.warning("A flow did not stop in time.", flow=str(flow.pair))
