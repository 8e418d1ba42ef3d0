"""One connector on its own thread, its settings, and the listener for lifecycle events (WorkerConnector of Java)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import Enum, auto
from typing import Protocol

import structlog

from mm2.config.configdef import AbstractConfig
from mm2.config.keys.connector_keys import SINK_CONNECTOR_CONFIG, source_connector_config
from mm2.connect.api import ConnectError, Connector, SinkConnector
from mm2.connect.stores.config_state import ConnectorTaskId, TargetState

log = structlog.get_logger(__name__)

#: A connector's name or a task's id.
WorkId = str | ConnectorTaskId


class StatusListener(Protocol):
    """Lifecycle events of connectors and tasks (ConnectorStatus.Listener, TaskStatus.Listener). Any thread."""

    def on_startup(self, work: WorkId, version: str | None) -> None:
        """It runs for the first time."""

    def on_pause(self, work: WorkId, version: str | None) -> None:
        """It was paused by request."""

    def on_resume(self, work: WorkId, version: str | None) -> None:
        """It runs again."""

    def on_stop(self, work: WorkId, version: str | None) -> None:
        """A connector was stopped by request."""

    def on_shutdown(self, work: WorkId, version: str | None) -> None:
        """It no longer runs on this worker."""

    def on_failure(self, work: WorkId, error: BaseException, version: str | None) -> None:
        """It failed and stays failed until it is restarted."""


class TooManyTasks(ConnectError):
    """A connector has more tasks than ``tasks.max`` and ``tasks.max.enforce`` allow (KIP-1004)."""


def connector_config(props: Mapping[str, str], connector_class: type[Connector]) -> AbstractConfig:
    """The keys that all connectors of its kind share. Raises ConfigException."""
    is_sink = issubclass(connector_class, SinkConnector)
    return AbstractConfig(SINK_CONNECTOR_CONFIG if is_sink else source_connector_config(props), props)


def check_count(connector: str, count: int, config: AbstractConfig) -> None:
    """Raises TooManyTasks."""
    most = config.int("tasks.max")
    if count <= most:
        return
    message = (
        f"The connector {connector} has generated {count} tasks, which is greater than {most}, the maximum number of "
        "tasks it is configured to create."
    )
    if config.bool("tasks.max.enforce"):
        raise TooManyTasks(
            f"{message} This behaviour should be considered a bug and is disallowed. If necessary, it can be permitted by "
            "reconfiguring the connector with 'tasks.max.enforce' set to false; however, this option will be removed in a "
            "future release of Kafka Connect."
        )
    log.warning(
        "%s This behavior should be considered a bug and will be disallowed in future releases of Kafka Connect. Please report "
        "this to the maintainers of the connector and request that they adjust their connector's taskConfigs() method to "
        "respect the maxTasks parameter.",
        message,
    )


#: Called once per requested transition with the error, or with None when the state was reached.
OnTransition = Callable[[Exception | None], None]
#: A connector's task configs in the config topic.
StoredTaskConfigs = Callable[[], Sequence[Mapping[str, str | None]]]


class InstanceState(Enum):
    """State of the connector's instance."""

    INIT = auto()
    STARTED = auto()
    PAUSED = auto()
    STOPPED = auto()
    FAILED = auto()


class _Context:
    def __init__(
        self,
        worker_connector: WorkerConnector,
        request_reconfiguration: Callable[[], None],
        stored_task_configs: StoredTaskConfigs,
        group_id: str,
        worker_topics: frozenset[str],
    ) -> None:
        self.group_id = group_id
        self.worker_topics = worker_topics
        self._worker_connector = worker_connector
        self._request_reconfiguration = request_reconfiguration
        self._stored_task_configs = stored_task_configs

    def request_task_reconfiguration(self) -> None:
        self._request_reconfiguration()

    def stored_task_configs(self) -> list[dict[str, str]]:
        configs = self._stored_task_configs()
        return [{key: value for key, value in props.items() if value is not None} for props in configs]

    def raise_error(self, exc: Exception) -> None:
        self._worker_connector.fail(exc)


class WorkerConnector:
    """Runs ``start`` and ``stop`` of a connector on ``connector-thread-<name>``.

    A blocking connector therefore does not block others. Requested transitions are executed in order; a newer one
    replaces one that has not begun. Resuming creates a new instance, because a stopped one is not started again.
    ``as_plugin`` returns a block in which a thread uses the loader of the connector's plugin.
    """

    def __init__(
        self,
        name: str,
        new_connector: Callable[[], Connector],
        props: Mapping[str, str],
        listener: StatusListener,
        request_reconfiguration: Callable[[], None],
        stored_task_configs: StoredTaskConfigs,
        log_context: Mapping[str, str],
        as_plugin: Callable[[], AbstractContextManager[None]] = nullcontext,
        *,
        group_id: str = "",
        worker_topics: frozenset[str] = frozenset(),
    ) -> None:
        self.name = name
        self.props = dict(props)
        self._new_connector = new_connector
        self._listener = listener
        self._context = _Context(self, request_reconfiguration, stored_task_configs, group_id, worker_topics)
        self._log_context = dict(log_context)
        self._as_plugin = as_plugin
        self._changed = threading.Condition()
        self._wanted: tuple[TargetState, OnTransition] | None = None
        #: Reported from outside of `start` and `stop`, and not processed yet.
        self._failure: Exception | None = None
        self._stopping = False
        self._cancelled = False
        self._ended = threading.Event()
        self.state = InstanceState.INIT
        #: Whether the plugin's `start` has returned and its `stop` has not been called, in any state.
        self._is_started = False
        self.connector = new_connector()
        self.version = self.connector.version()
        self._thread = threading.Thread(target=self._run, name=f"connector-thread-{name}", daemon=True)

    def start(self) -> None:
        """Start to process transitions."""
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether it is running, so that its task configs can be requested."""
        return self.state is InstanceState.STARTED and not self._stopping and self._failure is None

    def transition_to(self, state: TargetState, on_transition: OnTransition) -> None:
        """Request a transition to another state, in order with earlier requests."""
        with self._changed:
            replaced, self._wanted = self._wanted, (state, on_transition)
            self._changed.notify_all()
        if replaced is not None:
            replaced[1](ConnectError(f"Connector {self.name}: replaced by a newer request to be {state.value}"))

    def fail(self, error: Exception) -> None:
        """Fail the connector, for an error that it reports or because of its task configs. Any thread."""
        with self._changed:
            if self._failure is None:
                self._failure = error
            self._changed.notify_all()

    def shutdown(self) -> None:
        """Request it to stop permanently."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def await_shutdown(self, timeout_s: float) -> bool:
        """Whether it has stopped within ``timeout_s``."""
        return self._ended.wait(timeout_s)

    def cancel(self) -> None:
        """Cancel it: its thread may continue, but its results are ignored."""
        self._cancelled = True
        log.warning("connector did not stop in time and is abandoned", connector=self.name)
        self._listener.on_shutdown(self.name, self.version)

    def _run(self) -> None:
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(**self._log_context, connector=self.name)
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._stopping or self._failure is not None or self._wanted is not None
                    )
                    if self._stopping:
                        break
                    failure = self._failure
                    wanted, self._wanted = self._wanted, None
                if failure is not None:
                    log.error("connector has failed", connector=self.name, exc_info=failure)
                    self._fail(failure)
                    with self._changed:
                        self._failure = None
                if wanted is not None:
                    self._transition(*wanted)
            self._end()
        finally:
            self._ended.set()

    def _transition(self, target: TargetState, on_transition: OnTransition) -> None:
        try:
            if self.state is InstanceState.FAILED and target is not TargetState.STOPPED:
                raise ConnectError(
                    f"Connector {self.name} cannot become {target.value} since it has failed; restart it first"
                )
            if target is TargetState.STARTED:
                self._start_connector()
            else:
                self._suspend(target)
        except Exception as error:
            log.exception("connector could not change its state", connector=self.name, target=target.value)
            self._fail(error)
            on_transition(error)
            return
        on_transition(None)

    def _fail(self, error: Exception) -> None:
        """The first failure stays the reported one."""
        if self.state is not InstanceState.FAILED:
            self.state = InstanceState.FAILED
            if not self._cancelled:
                self._listener.on_failure(self.name, error, self.version)

    def _start_connector(self) -> None:
        if self.state is InstanceState.STARTED:
            return
        first = self.state is InstanceState.INIT
        if not first:
            self.connector = self._new_connector()
        with self._as_plugin():
            self.connector.initialize(self._context)
            self.connector.start(dict(self.props))
        self._is_started = True
        self.state = InstanceState.STARTED
        if not self._cancelled:
            (self._listener.on_startup if first else self._listener.on_resume)(self.name, self.version)

    def _suspend(self, target: TargetState) -> None:
        reached = InstanceState.PAUSED if target is TargetState.PAUSED else InstanceState.STOPPED
        if self.state is reached:
            return
        if self._is_started:
            try:
                self._stop_connector()
            except Exception:
                if reached is not InstanceState.STOPPED:
                    raise
                log.exception("connector failed to stop; it counts as stopped", connector=self.name)
        self.state = reached
        if not self._cancelled:
            (self._listener.on_pause if target is TargetState.PAUSED else self._listener.on_stop)(
                self.name, self.version
            )

    def _stop_connector(self) -> None:
        self._is_started = False
        with self._as_plugin():
            self.connector.stop()

    def _end(self) -> None:
        with self._changed:
            replaced, self._wanted = self._wanted, None
        if replaced is not None:
            replaced[1](ConnectError(f"Connector {self.name} is being stopped and cannot become {replaced[0].value}"))
        try:
            if self._is_started:
                self._stop_connector()
        except Exception as error:
            log.exception("connector failed to stop", connector=self.name)
            if self.state is not InstanceState.FAILED:
                self._fail(error)
                return
        self.state = InstanceState.STOPPED
        if not self._cancelled:
            self._listener.on_shutdown(self.name, self.version)
