"""Runs connectors and tasks (org.apache.kafka.connect.runtime.Worker), independent of the group of workers."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import structlog

from mm2.config.files.provider_values import ProviderValues
from mm2.config.keys.key_effects import check_effects, connector_uses
from mm2.config.keys.worker_keys import WorkerConfig, storage_topics
from mm2.config.providers import ConfigTransformer, ConfigTransformerResult, references
from mm2.connect.api import ConnectError, Connector, Task
from mm2.connect.override_policies import POLICY_KEY, ConnectorClientConfigOverridePolicy
from mm2.connect.plugins import Plugins
from mm2.connect.runtime.clients import ClientProps
from mm2.connect.runtime.connectors import (
    OnTransition,
    StatusListener,
    StoredTaskConfigs,
    TooManyTasks,
    WorkerConnector,
    WorkId,
    check_count,
    connector_config,
)
from mm2.connect.runtime.counters import TaskCounters
from mm2.connect.runtime.exactly_once_settings import SUPPORT_KEY, ExactlyOnceSupport, task_transactional_id
from mm2.connect.runtime.task_building import TASK_CLASS, TaskBuilder, TaskStart
from mm2.connect.runtime.tasks.base import WorkerTask
from mm2.connect.runtime.tasks.source import AbstractWorkerSourceTask
from mm2.connect.stores.config_state import ConnectorTaskId, Props, TargetState
from mm2.connect.stores.offset_store import OffsetStore
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import failures_in
from mm2.kafka.settings.client_settings import ClientSettings

log = structlog.get_logger(__name__)


class SourceTaskOffsetCommitter:
    """One thread for all tasks, so that commits of a worker are spread out. ``tasks`` returns the current tasks."""

    def __init__(
        self,
        interval_ms: int,
        tasks: Callable[[], Mapping[ConnectorTaskId, AbstractWorkerSourceTask]],
        log_context: Mapping[str, str],
    ) -> None:
        self._interval_s = interval_ms / 1000
        self._tasks = tasks
        self._log_context = log_context
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="source-offset-commits", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Stop the thread; a commit in progress has ``timeout_s`` to complete."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        structlog.contextvars.bind_contextvars(**self._log_context)
        due: dict[int, float] = {}
        while not self._stopping.wait(min(1.0, self._interval_s / 4)):
            tasks = list(self._tasks().values())
            now = time.monotonic()
            # By instance: a restarted task is a new one.
            due = {id(task): due.get(id(task), now + self._interval_s) for task in tasks}
            for task in tasks:
                if now >= due[id(task)] and task.is_polling and not self._stopping.is_set():
                    self._commit(task)
                    due[id(task)] = time.monotonic() + self._interval_s

    @staticmethod
    def _commit(task: AbstractWorkerSourceTask) -> None:
        try:
            task.commit_offsets()
        except Exception:
            log.exception("unhandled error when committing offsets", task_id=str(task.id))


__all__ = ["CONNECTOR_STOP_S", "FENCING_S", "TASK_CLASS", "TaskStart", "TooManyTasks", "Worker"]


#: Timeout for stopping connectors.
CONNECTOR_STOP_S = 5.0
#: Timeout for fencing a connector's older tasks, as in Java.
FENCING_S = 90.0
_FENCE_RETRY_S = 0.5
#: Configurations of a connector, and of its tasks, whose provider values are kept out of texts.
_HIDDEN_CONFIGS = 8
_COPIED_TO_TASKS = ("topics", "topics.regex")


class Worker:
    """Starts and stops connectors and tasks. Thread-safe; methods that wait document their limit.

    Every task receives ``resources``; ``log_context`` is bound in every thread (e.g. ``flow="A->B"``).
    ``reports_keys`` False: the process reports the keys of connectors that have no effect itself.
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
        reports_keys: bool = True,
    ) -> None:
        self.worker_id = worker_id
        self.config = config
        self.plugins = plugins
        self.log_context: Mapping[str, str] = MappingProxyType(dict(log_context or {}))
        self._reports_keys = reports_keys
        self._offset_store = offset_store
        self._cluster_name = cluster_name
        self._props = {key: str(value) for key, value in config.originals.items()}
        self._group_id = self._props.get("group.id", "")
        # A standalone worker has no such setting.
        self._support = ExactlyOnceSupport.of(config) if SUPPORT_KEY in config.values else ExactlyOnceSupport.DISABLED
        self._transformer = ConfigTransformer.from_props(self._props, plugins.new_provider)
        self._policy = plugins.new(config.str(POLICY_KEY), ConnectorClientConfigOverridePolicy, key=POLICY_KEY)
        self._policy.configure(self._props)
        #: Settings of the clients of connectors and tasks.
        self.clients = ClientProps(config, self._policy)
        self._builder = TaskBuilder(
            config,
            plugins,
            self.clients,
            offset_store,
            resolve=self._resolved,
            hide=self.hide,
            exactly_once=self.exactly_once,
            cluster_name=cluster_name,
            resources=resources or {},
            log_context=self.log_context,
        )
        self._lock = threading.Lock()
        self._connectors: dict[str, WorkerConnector] = {}
        self._tasks: dict[ConnectorTaskId, WorkerTask] = {}
        #: By connector, of its newest configurations.
        self._provider_values: dict[str, deque[ProviderValues]] = {}
        self._stopping = threading.Event()
        self._committer = SourceTaskOffsetCommitter(
            config.int("offset.flush.interval.ms"), self._source_tasks, self.log_context
        )

    @property
    def exactly_once(self) -> bool:
        """Whether source tasks of this worker write their records and offsets in transactions."""
        return self._support is ExactlyOnceSupport.ENABLED

    @property
    def transactional_leader(self) -> bool:
        """Whether this worker, as the leader, writes to the config topic in transactions."""
        return self._support is not ExactlyOnceSupport.DISABLED

    def start(self) -> None:
        """Load the source offsets. Raises ConnectError or KafkaFailure."""
        self._offset_store.start()
        self._committer.start()

    def stop(self) -> None:
        """Stop all connectors and tasks that still run, then the offset store."""
        connectors, tasks = self.connector_names(), self.task_ids()
        if connectors or tasks:
            log.warning(
                "connectors or tasks still running at shutdown",
                connectors=sorted(connectors),
                tasks=sorted(map(str, tasks)),
            )
            self.stop_connectors(connectors)
            self.stop_tasks(tasks)
        self._stopping.set()
        self._committer.stop(self.config.int("offset.flush.timeout.ms") / 1000)
        self._offset_store.stop()
        self._policy.close()
        self._transformer.close()

    def resolve(self, props: Props) -> dict[str, str]:
        """A stored configuration with its provider references resolved; keys without a value are omitted."""
        return self.resolution(props).data

    def resolution(self, props: Props) -> ConfigTransformerResult:
        """As :meth:`resolve`, with the provider values that no text may contain, and their time to live."""
        return self._transformer.resolve({key: value for key, value in props.items() if value is not None})

    @property
    def restricted_providers(self) -> Mapping[str, bool]:
        """The config providers of this worker, and whether their parameters limit what they read."""
        return self._transformer.restricted

    def hide(self, work: WorkId, text: str) -> str:
        """A text about a connector of this worker or its task, with references in place of provider values."""
        name = work.connector if isinstance(work, ConnectorTaskId) else work
        with self._lock:
            configs = tuple(self._provider_values.get(name, ()))
        for values in configs:
            text = values.hide(text)
        return text

    def _resolved(self, connector: str, props: Props) -> dict[str, str]:
        """As :meth:`resolve`, for a connector that is started: its values are removed from the texts about it.

        Those of earlier configurations may still be in use, and stay hidden.
        """
        result = self.resolution(props)
        with self._lock:
            earlier = self._provider_values.setdefault(connector, deque(maxlen=_HIDDEN_CONFIGS))
            if result.values.settings and result.values not in earlier:
                earlier.append(result.values)
        return result.data

    # -- connectors

    def new_connector(self, props: Mapping[str, str]) -> Connector:
        """A new instance of ``connector.class``. Raises ConnectError."""
        return self.plugins.new_connector(props)

    def connector_class(self, props: Mapping[str, str]) -> type[Connector]:
        """The class for ``connector.class``, in the requested version. Raises ConnectError."""
        key = "connector.class"
        return self.plugins.find(
            props.get(key) or "", Connector, key=key, version=props.get("connector.plugin.version")
        )

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
        """Start a connector in the target state.

        The result goes to ``on_transition``, failures also to ``listener``.
        """
        try:
            props = self._resolved(name, raw)
            loader = self.plugins.connector_loader(props)
            connector_config(props, self.connector_class(props))
            ineffective = check_effects(connector_uses(props))
            if self._reports_keys:
                for one in ineffective:
                    log.warning("%s", one, connector=name)
            connector = WorkerConnector(
                name,
                lambda: self.new_connector(props),
                props,
                listener,
                request_reconfiguration,
                stored_task_configs,
                self.log_context,
                lambda: self.plugins.swap(loader),
                group_id=self._group_id,
                worker_topics=storage_topics(self._props),
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

    def stop_connectors(self, names: Iterable[str]) -> None:
        """Stop connectors in parallel; those that do not stop in time are cancelled."""
        with self._lock:
            found = [self._connectors[name] for name in names if name in self._connectors]
        for connector in found:
            connector.shutdown()
        deadline = time.monotonic() + CONNECTOR_STOP_S
        for connector in found:
            if not connector.await_shutdown(max(0.0, deadline - time.monotonic())):
                connector.cancel()
            with self._lock:
                self._connectors.pop(connector.name, None)

    def connector_names(self) -> set[str]:
        """Connectors on this worker, in any state."""
        with self._lock:
            return set(self._connectors)

    def is_running(self, name: str) -> bool:
        """Whether a connector is on this worker and running."""
        with self._lock:
            connector = self._connectors.get(name)
        return connector is not None and connector.is_running

    def set_target_state(self, name: str, state: TargetState, on_transition: OnTransition) -> None:
        """Change the target state of a connector and its tasks.

        ``on_transition`` is called if the connector is on this worker.
        """
        with self._lock:
            connector = self._connectors.get(name)
            tasks = [task for task in self._tasks.values() if task.id.connector == name]
        if connector is not None:
            connector.transition_to(state, on_transition)
        for task in tasks:
            task.set_target_state(state)

    def task_configs(self, name: str, raw: Props, resolved: Mapping[str, str]) -> list[dict[str, str | None]]:
        """The task configs of a connector that runs on this worker, ready to be stored.

        ``resolved`` is its configuration ``raw`` with the values of config providers.

        Values that the connector received from a config provider are stored as the reference again, never as the
        secret. Raises TooManyTasks, with which the connector fails, or the connector's exception.
        """
        with self._lock:
            connector = self._connectors.get(name)
        if connector is None:
            raise ConnectError(f"Connector {name} does not run on worker {self.worker_id}")
        instance = connector.connector
        config = connector_config(resolved, type(instance))
        with self.plugins.swap(self.plugins.loader_of(instance)):
            configs = instance.task_configs(config.int("tasks.max"))
            task_type = instance.task_class()
        try:
            check_count(name, len(configs), config)
        except TooManyTasks as error:
            connector.fail(error)
            raise
        task_class = self.plugins.name_of(task_type, Task)
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
        """Start a task; False when that failed. The listener receives the error; other tasks are not affected."""
        try:
            task = self._builder.build(start)
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
        """Stop tasks in parallel; those that take longer than task.shutdown.graceful.timeout.ms are cancelled."""
        with self._lock:
            found = [self._tasks[task_id] for task_id in ids if task_id in self._tasks]
        # A task's own stop() may take time: no task should wait for another's.
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
        """Tasks on this worker, including failed ones."""
        with self._lock:
            return set(self._tasks)

    def task_details(self) -> dict[ConnectorTaskId, dict[str, Any]]:
        """Details that the tasks of this worker have reported."""
        with self._lock:
            return {task_id: dict(task.detail) for task_id, task in self._tasks.items()}

    def task_counters(self) -> dict[ConnectorTaskId, TaskCounters]:
        """Counters of the tasks on this worker, including failed ones; the counters are live objects."""
        with self._lock:
            return {task_id: task.counters for task_id, task in self._tasks.items()}

    def producer_props(self, task_id: ConnectorTaskId, connector_props: Mapping[str, str]) -> dict[str, str]:
        """Settings of a task's producer: fixed ones, the worker's ``producer.*``, the connector's ``producer.override.*``."""
        connector_class = self.connector_class(connector_props)
        if self.exactly_once:
            return self.clients.exactly_once_producer(task_id, connector_props, connector_class)
        return self.clients.producer(
            task_id.connector, connector_props, connector_class, client_id=f"connector-producer-{task_id}"
        )

    def fence_zombies(self, connector: str, tasks: int, raw: Props) -> None:
        """Fence the producers of tasks 0 to ``tasks`` - 1 of a connector, and wait for it. Raises ConnectError."""
        ids = [task_transactional_id(self._group_id, ConnectorTaskId(connector, number)) for number in range(tasks)]
        connector_props = self.resolve(raw)
        client_id = f"connector-worker-adminclient-{connector}"
        props = self.clients.admin(
            connector, connector_props, self.connector_class(connector_props), client_id=client_id
        )
        settings = ClientSettings.from_props(props, client_id=client_id)
        cluster = Cluster(settings, name=self._cluster_name)
        deadline = time.monotonic() + FENCING_S
        try:
            while True:
                failed = failures_in(Admin(cluster).fence_producers(ids))
                if not failed:
                    return
                key, failure = next(iter(failed.items()))
                if not failure.retriable or time.monotonic() > deadline or self._stopping.is_set():
                    raise ConnectError(
                        f"Producers of older tasks of connector {connector} were not fenced ({len(failed)} of {tasks}, "
                        f"the first is {key}): {failure}"
                    ) from failure
                ids = list(failed)
                self._stopping.wait(_FENCE_RETRY_S)
        finally:
            cluster.close()

    def _source_tasks(self) -> dict[ConnectorTaskId, AbstractWorkerSourceTask]:
        with self._lock:
            tasks = dict(self._tasks)
        return {task_id: task for task_id, task in tasks.items() if isinstance(task, AbstractWorkerSourceTask)}
