"""Container of the connectors and tasks that run here (org.apache.kafka.connect.runtime.Worker). Knows no cluster of workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import structlog

from mm2.config.configdef import AbstractConfig
from mm2.config.connector_keys import source_connector_config
from mm2.config.providers import ConfigTransformer, references
from mm2.config.worker_keys import WorkerConfig
from mm2.connect.api import (
    ConnectError,
    Connector,
    Converter,
    HeaderConverter,
    SourceTask,
    SourceTaskContext,
    Task,
    WorkerView,
)
from mm2.connect.group.protocol import ConnectorTaskId
from mm2.connect.plugins import Plugins
from mm2.connect.runtime.connectors import ConnectorState, OnTransition, StoredTaskConfigs, WorkerConnector
from mm2.connect.runtime.exactly_once import (
    ExactlyOnceSupport,
    Transactions,
    exactly_once_producer_props,
    preflight,
    task_transactional_id,
    transactions_of,
)
from mm2.connect.runtime.lifecycle import StatusListener
from mm2.connect.runtime.tasks.exactly_once import ExactlyOnceWorkerSourceTask
from mm2.connect.runtime.tasks.source import (
    AbstractWorkerSourceTask,
    Converters,
    OwnershipGuard,
    TaskSetup,
    WorkerSourceTask,
)
from mm2.connect.stores.config_state import Props, TargetState
from mm2.connect.stores.offset_store import ConnectorOffsetReader, OffsetStore
from mm2.kafka.admin import Admin
from mm2.kafka.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.producer import Producer, codec_and_acks
from mm2.kafka.settings import ClientSettings
from mm2.kafka.transactions import TransactionalProducer

log = structlog.get_logger(__name__)

#: How long connectors get to stop.
CONNECTOR_STOP_S = 5.0
#: How long the fencing of a connector's older tasks may take, as in Java.
FENCING_S = 90.0
_FENCE_AGAIN_S = 0.5
#: Keys that the runtime adds to what a connector says of its tasks.
TASK_CLASS = "task.class"
_COPIED_TO_TASKS = ("topics", "topics.regex")
# Java's Long.MAX_VALUE and Integer.MAX_VALUE, written as its worker writes them.
_FIXED_PRODUCER = {
    "acks": "all",
    "max.block.ms": str(2**63 - 1),
    "delivery.timeout.ms": str(2**31 - 1),
    "max.in.flight.requests.per.connection": "1",
    "enable.idempotence": "false",
    "key.serializer": "org.apache.kafka.common.serialization.ByteArraySerializer",
    "value.serializer": "org.apache.kafka.common.serialization.ByteArraySerializer",
}


@dataclass(frozen=True)
class TaskStart:
    """What a task is started with; configurations are raw."""

    id: ConnectorTaskId
    connector_raw: Props = field(repr=False)
    task_raw: Props = field(repr=False)
    #: Number of tasks its connector has.
    count: int
    state: TargetState
    listener: StatusListener
    on_topic: Callable[[str], None]
    #: Used with exactly-once only.
    guard: OwnershipGuard | None = None


class TooManyTasks(ConnectError):
    """A connector wants more tasks than ``tasks.max`` and ``tasks.max.enforce`` let it have (KIP-1004)."""


class Worker:
    """Starts and stops connectors and tasks. Thread-safe; calls that wait say for how long.

    ``resources`` are handed to every task; ``log_context`` is bound in every thread (e.g. ``flow="A->B"``).
    """

    def __init__(
        self,
        worker_id: str,
        config: WorkerConfig,
        plugins: Plugins,
        offset_store: OffsetStore,
        *,
        cluster_name: str,
        resources: Mapping[str, Any] | None = None,
        log_context: Mapping[str, str] | None = None,
    ) -> None:
        self.worker_id = worker_id
        self.config = config
        self.plugins = plugins
        self.log_context: Mapping[str, str] = MappingProxyType(dict(log_context or {}))
        self._offset_store = offset_store
        self._cluster_name = cluster_name
        self._resources: Mapping[str, Any] = MappingProxyType(dict(resources or {}))
        self._props = {key: str(value) for key, value in config.originals.items()}
        self._group_id = config.str("group.id")
        self._support = ExactlyOnceSupport.of(config)
        self._transformer = ConfigTransformer.from_props(self._props)
        self._lock = threading.Lock()
        self._connectors: dict[str, WorkerConnector] = {}
        self._tasks: dict[ConnectorTaskId, AbstractWorkerSourceTask] = {}
        self._stopping = threading.Event()
        self._committer: threading.Thread | None = None

    @property
    def exactly_once(self) -> bool:
        """Whether source tasks here write their records and offsets in transactions."""
        return self._support is ExactlyOnceSupport.ENABLED

    @property
    def transactional_leader(self) -> bool:
        """Whether a leader here writes the config topic in transactions."""
        return self._support is not ExactlyOnceSupport.DISABLED

    def start(self) -> None:
        """Load the source offsets. Raises ConnectError or KafkaFailure."""
        self._offset_store.start()
        self._committer = threading.Thread(target=self._commit_periodically, name="source-offset-commits", daemon=True)
        self._committer.start()

    def stop(self) -> None:
        """Stop whatever still runs, then the offset store."""
        connectors, tasks = self.connector_names(), self.task_ids()
        if connectors or tasks:
            log.warning("still running at stop", connectors=sorted(connectors), tasks=sorted(map(str, tasks)))
            self.stop_connectors(connectors)
            self.stop_tasks(tasks)
        self._stopping.set()
        if self._committer is not None:
            self._committer.join(self.config.int("offset.flush.timeout.ms") / 1000)
        self._offset_store.stop()

    def resolve(self, props: Props) -> dict[str, str]:
        """A raw configuration with its provider references replaced; keys without a value are left out."""
        return self._transformer.transform({key: value for key, value in props.items() if value is not None})

    # -- connectors

    def new_connector(self, props: Mapping[str, str]) -> Connector:
        """A fresh instance of ``connector.class``. Raises ConnectError."""
        return self.plugins.new(props.get("connector.class", ""), Connector, key="connector.class")

    def validate(self, raw: Props) -> list[tuple[str, str]]:
        """Everything wrong with a connector's configuration as (key, message) pairs. Raises ConnectError for its class."""
        props = self.resolve(raw)
        connector = self.new_connector(props)
        general = source_connector_config(props).validate(props)
        problems = [(key, message) for key, messages in general for message in messages]
        problems += preflight(connector, props, self._support)
        return list(dict.fromkeys([*problems, *connector.validate(props)]))

    def start_connector(
        self,
        name: str,
        raw: Props,
        *,
        listener: StatusListener,
        request_reconfiguration: Callable[[], None],
        stored_task_configs: StoredTaskConfigs,
        state: TargetState,
        on_transition: OnTransition,
    ) -> None:
        """Start a connector in the wanted state; the outcome goes to ``on_transition``, failures also to ``listener``."""
        try:
            props = self.resolve(raw)
            self._connector_config(props)
            connector = WorkerConnector(
                name,
                lambda: self.new_connector(props),
                props,
                listener,
                request_reconfiguration,
                stored_task_configs,
                self.log_context,
            )
            with self._lock:
                if name in self._connectors:
                    raise ConnectError(f"Connector {name} runs already on worker {self.worker_id}")
                self._connectors[name] = connector
        except Exception as error:
            log.exception("connector could not be started", connector=name)
            listener.on_failure(name, error, None)
            on_transition(error)
            return
        connector.start()
        connector.transition_to(state, on_transition)

    def stop_connectors(self, names: Iterable[str], timeout_s: float = CONNECTOR_STOP_S) -> None:
        """Stop connectors side by side; those that do not stop in time are abandoned."""
        with self._lock:
            found = [self._connectors[name] for name in names if name in self._connectors]
        for connector in found:
            connector.shutdown()
        deadline = time.monotonic() + timeout_s
        for connector in found:
            if not connector.await_shutdown(max(0.0, deadline - time.monotonic())):
                connector.cancel()
            with self._lock:
                self._connectors.pop(connector.name, None)

    def connector_names(self) -> set[str]:
        """Connectors that are here, in whatever state."""
        with self._lock:
            return set(self._connectors)

    def connector_state(self, name: str) -> ConnectorState | None:
        """State of a connector's instance, None when it is not here."""
        with self._lock:
            connector = self._connectors.get(name)
        return None if connector is None else connector.state

    def is_running(self, name: str) -> bool:
        """Whether a connector is here and started."""
        with self._lock:
            connector = self._connectors.get(name)
        return connector is not None and connector.is_running

    def set_target_state(self, name: str, state: TargetState, on_transition: OnTransition) -> None:
        """Move a connector and its tasks here to another state; ``on_transition`` hears of the connector if it is here."""
        with self._lock:
            connector = self._connectors.get(name)
            tasks = [task for task in self._tasks.values() if task.id.connector == name]
        if connector is not None:
            connector.transition_to(state, on_transition)
        for task in tasks:
            task.set_target_state(state)

    def task_configs(self, name: str, raw: Props) -> list[dict[str, str | None]]:
        """What the tasks of a connector that runs here shall be configured with, ready to be stored.

        Values that the connector got from a config provider are stored as the reference again, never as the secret.
        Raises TooManyTasks, or what the connector raises.
        """
        with self._lock:
            connector = self._connectors.get(name)
        if connector is None:
            raise ConnectError(f"Connector {name} does not run on worker {self.worker_id}")
        config = self._connector_config(self.resolve(raw))
        configs = connector.connector.task_configs(config.int("tasks.max"))
        self._check_count(name, len(configs), config)
        task_class = self.plugins.name_of(connector.connector.task_class(), Task)
        added = {TASK_CLASS: task_class, **{k: v for k in _COPIED_TO_TASKS if (v := raw.get(k)) is not None}}
        secret = {key: value for key, value in raw.items() if value is not None and references(value)}
        prepared: list[dict[str, str | None]] = []
        for props in configs:
            stored: dict[str, str | None] = {**props, **added}
            stored.update({key: value for key, value in secret.items() if key in stored})
            prepared.append(stored)
        return prepared

    # -- tasks

    def start_task(self, start: TaskStart) -> bool:
        """Start a task; False when that failed, which its listener hears of. Others are not affected."""
        try:
            task = self._new_task(start)
            with self._lock:
                if start.id in self._tasks:
                    raise ConnectError(f"Task {start.id} runs already on worker {self.worker_id}")
                self._tasks[start.id] = task
        except Exception as error:
            log.exception("task could not be started", task_id=str(start.id))
            start.listener.on_failure(start.id, error, None)
            return False
        task.start()
        return True

    def stop_tasks(self, ids: Iterable[ConnectorTaskId]) -> None:
        """Stop tasks side by side; those that take longer than task.shutdown.graceful.timeout.ms are cancelled."""
        with self._lock:
            found = [self._tasks[task_id] for task_id in ids if task_id in self._tasks]
        # A task's own stop() may take its time: none shall wait for another's.
        for task in found:
            threading.Thread(target=task.stop, name=f"stop-{task.id}", daemon=True).start()
        deadline = time.monotonic() + self.config.int("task.shutdown.graceful.timeout.ms") / 1000
        for task in found:
            if not task.await_stop(deadline - time.monotonic()):
                log.error("task did not stop in time and is cancelled", task_id=str(task.id))
                task.cancel()
            with self._lock:
                self._tasks.pop(task.id, None)

    def task_ids(self) -> set[ConnectorTaskId]:
        """Tasks that are here, failed ones included."""
        with self._lock:
            return set(self._tasks)

    def task_details(self) -> dict[ConnectorTaskId, dict[str, Any]]:
        """What the tasks here have reported of themselves."""
        with self._lock:
            return {task_id: dict(task.detail) for task_id, task in self._tasks.items()}

    def producer_props(self, task_id: ConnectorTaskId, connector_props: Mapping[str, str]) -> dict[str, str]:
        """Settings of a task's producer: fixed ones, the worker's ``producer.*``, the connector's ``producer.override.*``."""
        given = {
            **{key: str(value) for key, value in self.config.originals_with_prefix("producer.").items()},
            **_without_prefix(connector_props, "producer.override."),
        }
        props = {
            "bootstrap.servers": ",".join(self.config.list("bootstrap.servers")),
            **_FIXED_PRODUCER,
            "client.id": f"connector-producer-{task_id.connector}-{task_id.task}",
        }
        if not self.exactly_once:
            return {**props, **given}
        props.pop("enable.idempotence")  # ours, so nothing to warn of
        return exactly_once_producer_props({**props, **given}, self._group_id, task_id)

    def fence_zombies(self, connector: str, tasks: int, raw: Props) -> None:
        """Fence the producers of tasks 0 up to ``tasks`` of a connector, and wait for it. Raises ConnectError."""
        ids = [task_transactional_id(self._group_id, ConnectorTaskId(connector, number)) for number in range(tasks)]
        props = {
            **self._props,
            **_without_prefix(self._props, "admin."),
            **_without_prefix(self.resolve(raw), "admin.override."),
        }
        settings = ClientSettings.from_props(props, client_id=f"connector-worker-adminclient-{connector}")
        cluster = Cluster(settings, name=self._cluster_name)
        deadline = time.monotonic() + FENCING_S
        try:
            while True:
                answers = Admin(cluster).fence_producers(ids)
                failed = {key: answer for key, answer in answers.items() if isinstance(answer, KafkaFailure)}
                if not failed:
                    return
                key, failure = next(iter(failed.items()))
                if not failure.retriable or time.monotonic() > deadline or self._stopping.is_set():
                    raise ConnectError(
                        f"Producers of older tasks of connector {connector} were not fenced ({len(failed)} of {tasks}, "
                        f"the first is {key}): {failure}"
                    ) from failure
                ids = list(failed)
                self._stopping.wait(_FENCE_AGAIN_S)
        finally:
            cluster.close()

    def _new_task(self, start: TaskStart) -> AbstractWorkerSourceTask:
        task_id = start.id
        connector_props, task_props = self.resolve(start.connector_raw), self.resolve(start.task_raw)
        config = self._connector_config(connector_props)
        self._check_count(task_id.connector, start.count, config)
        task = self.plugins.new(task_props.get(TASK_CLASS, ""), Task, key=TASK_CLASS)
        if not isinstance(task, SourceTask):
            raise ConnectError(f"Class {type(task).__qualname__} of configuration {TASK_CLASS} is not a SourceTask")
        converters = Converters(
            self._converter("key.converter", connector_props, is_key=True),
            self._converter("value.converter", connector_props, is_key=False),
            self._header_converter(connector_props),
        )
        producer_props = self.producer_props(task_id, connector_props)
        transactions = transactions_of(config, self.config, producer_props) if self.exactly_once else None
        if transactions is not None:
            self._check_cluster(producer_props)
        cluster = Cluster(ClientSettings.from_props(producer_props), name=self._cluster_name)
        codec, acks = codec_and_acks(producer_props)
        max_request_bytes = int(producer_props.get("max.request.size", "1048576"))
        producer = Producer(cluster, acks=acks, codec=codec, max_request_bytes=max_request_bytes)
        transactional = None
        if transactions is not None and not task.produces_by_itself:
            producer = transactional = TransactionalProducer(
                cluster,
                task_transactional_id(self._group_id, task_id),
                transactions.timeout_ms,
                codec=codec,
                max_request_bytes=max_request_bytes,
            )
        reader = ConnectorOffsetReader(self._offset_store, task_id.connector)
        setup = TaskSetup(
            task_id,
            task,
            SourceTaskContext(
                connector=task_id.connector,
                task_id=task_id.task,
                configs=MappingProxyType(task_props),
                offset_reader=reader,
                worker=self._view(task_id, producer_props, transactions),
                resources=self._resources,
            ),
            converters=converters,
            offset_reader=reader,
            cluster=cluster,
            producer=producer,
            listener=start.listener,
            initial_state=start.state,
            on_topic=start.on_topic,
            tolerate_errors=config.str("errors.tolerance").lower() == "all",
            log_context=self.log_context,
            guard=start.guard if transactions is not None else None,
        )
        if transactional is not None and transactions is not None:
            return ExactlyOnceWorkerSourceTask(
                setup, transactional, transactions, offsets_topic=self._offset_store.topic
            )
        return WorkerSourceTask(
            setup, self._offset_store, flush_timeout_s=self.config.int("offset.flush.timeout.ms") / 1000
        )

    def _view(
        self, task_id: ConnectorTaskId, producer_props: Mapping[str, str], transactions: Transactions | None
    ) -> WorkerView:
        view = WorkerView(
            worker_props=MappingProxyType(self._props),
            group_id=self._group_id,
            offset_storage_topic=self._offset_store.topic,
            producer_props=MappingProxyType(producer_props),
            exactly_once=transactions is not None,
        )
        if transactions is None:
            return view
        return replace(
            view,
            transactional_id=task_transactional_id(self._group_id, task_id),
            transaction_boundary=transactions.boundary.value,
            transaction_interval_ms=transactions.interval_ms,
        )

    def _check_cluster(self, producer_props: Mapping[str, str]) -> None:
        """Records and offsets of a transaction are on one cluster, and the offsets topic is on the worker's."""
        here = {server.strip() for server in self.config.list("bootstrap.servers")}
        there = {server.strip() for server in producer_props["bootstrap.servers"].split(",")}
        if here != there:
            raise ConnectError(
                "With exactly-once a producer of its own cluster (producer.override.bootstrap.servers or "
                "producer.bootstrap.servers) would need an offsets topic there, which is not available in this version"
            )

    def _connector_config(self, props: Mapping[str, str]) -> AbstractConfig:
        config = AbstractConfig(source_connector_config(props), props)
        if config.list("transforms"):
            # Left out silently they would change what arrives.
            raise ConnectError("Transformations (configuration transforms) are not supported by this version")
        return config

    def _converter(self, key: str, connector_props: Mapping[str, str], *, is_key: bool) -> Converter:
        name, props = self._converter_props(key, connector_props)
        converter = self.plugins.new(name, Converter, key=key)
        converter.configure(props, is_key=is_key)
        return converter

    def _header_converter(self, connector_props: Mapping[str, str]) -> HeaderConverter:
        key = "header.converter"
        name, props = self._converter_props(key, connector_props)
        converter = self.plugins.new(name, HeaderConverter, key=key)
        converter.configure({**props, "converter.type": "header"})
        return converter

    def _converter_props(self, key: str, connector_props: Mapping[str, str]) -> tuple[str, dict[str, str]]:
        """The connector's converter if it names one, else the worker's, with the settings beside the name."""
        props = connector_props if connector_props.get(key) is not None else self._props
        return props.get(key) or self.config.str(key), _without_prefix(props, f"{key}.")

    @staticmethod
    def _check_count(connector: str, count: int, config: AbstractConfig) -> None:
        most = config.int("tasks.max")
        if count <= most:
            return
        message = (
            f"The connector {connector} has generated {count} tasks, which is greater than {most}, the maximum number of "
            "tasks it is configured to create (tasks.max)"
        )
        if config.bool("tasks.max.enforce"):
            raise TooManyTasks(message)
        log.warning(
            "too many tasks, allowed by tasks.max.enforce=false", connector=connector, tasks=count, tasks_max=most
        )

    def _commit_periodically(self) -> None:
        structlog.contextvars.bind_contextvars(**self.log_context)
        interval_s = self.config.int("offset.flush.interval.ms") / 1000
        due: dict[ConnectorTaskId, float] = {}
        while not self._stopping.wait(min(1.0, interval_s / 4)):
            with self._lock:
                tasks = dict(self._tasks)
            now = time.monotonic()
            due = {task_id: due.get(task_id, now + interval_s) for task_id in tasks}
            for task_id, task in tasks.items():
                if now >= due[task_id] and task.is_polling:
                    task.commit_offsets()
                    due[task_id] = time.monotonic() + interval_s


def _without_prefix(props: Mapping[str, str], prefix: str) -> dict[str, str]:
    """What follows ``prefix`` in keys, with the values."""
    return {key.removeprefix(prefix): value for key, value in props.items() if key.startswith(prefix) and key != prefix}
