"""The lifecycle that source and sink tasks share (org.apache.kafka.connect.runtime.WorkerTask).

Calls of the status listener, all on the task's thread:

on_pause      it was started PAUSED (before any call of the plugin), or it was paused while running
on_startup    the plugin's ``start`` has returned
on_resume     it runs again after a pause
on_shutdown   it has ended by request, even if it raised an exception after that; the plugin's ``stop`` has returned
on_failure    it has ended because of an exception, and stays failed until it is restarted

A cancelled task makes no further calls: its work may run on another worker by then.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import structlog

from mm2.connect.api import Converter, HeaderConverter, Task
from mm2.connect.runtime.connectors import StatusListener
from mm2.connect.runtime.counters import TaskCounters
from mm2.connect.runtime.tolerance import RetryWithToleranceOperator
from mm2.connect.runtime.transformation_chain import TransformationChain
from mm2.connect.stores.config_state import ConnectorTaskId, TargetState

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Converters:
    """Converters between a task's records and bytes, with the class names for messages."""

    key: Converter
    value: Converter
    header: HeaderConverter
    key_class: str = ""
    value_class: str = ""
    header_class: str = ""

    def close(self) -> None:
        """Close all three."""
        for converter in (self.key, self.value, self.header):
            try:
                converter.close()
            except Exception:
                log.exception("converter could not be closed", converter=type(converter).__qualname__)


@dataclass(frozen=True)
class Equipment:
    """The parts that running source and sink tasks share."""

    id: ConnectorTaskId
    #: The task's configuration, provider references resolved.
    configs: Mapping[str, str] = field(repr=False)
    converters: Converters
    transformations: TransformationChain
    operator: RetryWithToleranceOperator[Any]
    counters: TaskCounters
    #: Set when the task must stop.
    stopping: threading.Event
    listener: StatusListener
    initial_state: TargetState
    #: Called with each topic that the task has written to or read from, once per batch or more often.
    on_topic: Callable[[str], None]
    log_context: Mapping[str, str]
    #: A block in which this thread uses the loader of the connector's plugin.
    as_plugin: Callable[[], AbstractContextManager[None]]
    #: Checked before each step with external effects; False is final.
    is_ours: Callable[[], bool] = lambda: True


class WorkerTask(ABC):
    """One task with its thread. All public methods may be called from any thread."""

    def __init__(self, equipment: Equipment, task: Task) -> None:
        self.id = equipment.id
        self.version = task.version()
        self.counters = equipment.counters
        self.detail: dict[str, Any] = {}
        self.failure: BaseException | None = None
        self._plugin = task
        self._configs = equipment.configs
        self._converters = equipment.converters
        self._transformations = equipment.transformations
        self._operator = equipment.operator
        self._listener = equipment.listener
        self._on_topic = equipment.on_topic
        self._as_plugin = equipment.as_plugin
        self._is_ours = equipment.is_ours
        self._log_context = {**equipment.log_context, "connector": self.id.connector, "task": self.id.task}
        self._log = log.bind(task_id=str(self.id))

        self._changed = threading.Condition()
        self._target = equipment.initial_state
        self._stop_asked = equipment.stopping
        self._cancelled = False
        self._start_called = False
        self._started = False
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"task-thread-{self.id.connector}-{self.id.task}", daemon=True
        )

    # -- for the worker

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def set_target_state(self, state: TargetState) -> None:
        """Pause or resume; STOPPED ends the task. Returns immediately."""
        with self._changed:
            if self._stop_asked.is_set():
                return
            self._target = state
            self._changed.notify_all()
        if state is TargetState.STOPPED:
            threading.Thread(target=self.stop, name=f"stop-{self.id}", daemon=True).start()
        else:
            self._wake()

    def stop(self) -> None:
        """Request it to stop."""
        with self._changed:
            self._stop_asked.set()
            self._changed.notify_all()
        self._wake()

    def await_stop(self, timeout_s: float) -> bool:
        """Whether the thread has ended within ``timeout_s``."""
        return self._ended.wait(max(0.0, timeout_s))

    def cancel(self) -> None:
        """Cancel it: from now on it changes no status and commits no offset."""
        self._cancelled = True
        with self._changed:
            self._stop_asked.set()
            self._changed.notify_all()
        self._interrupt()

    @property
    def is_running(self) -> bool:
        """Whether it has started and not ended yet."""
        return self._started and not self._ended.is_set() and not self._cancelled

    # -- specific to sources or sinks, all on the task's thread except _wake and _interrupt

    @abstractmethod
    def _prepare(self) -> bool:
        """Prepare for the plugin's ``start``; False when the task must stop instead."""

    @abstractmethod
    def _start_plugin(self) -> None:
        """Call ``initialize`` and ``start``; sets `_start_called` before the first of them."""

    @abstractmethod
    def _work(self) -> None:
        """Run until the task must stop."""

    @abstractmethod
    def _close(self, *, failed: bool) -> None:
        """Commit offsets if possible, stop the plugin and release all resources."""

    def _wake(self) -> None:
        """The target state has changed, or the task must stop."""
        return

    def _interrupt(self) -> None:
        """It did not stop in time: interrupt what it may be waiting for."""
        return

    def _before_pause(self) -> None:
        """The task is about to pause."""
        return

    # -- the task's thread

    def _run(self) -> None:
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(**self._log_context)
        try:
            with self._as_plugin():
                self._run_to_end()
        except BaseException as error:  # noqa: BLE001 - any exception of a task is its failure
            self.failure = error
            if self._cancelled:
                self._log.warning("abandoned task ended with an error", reason=repr(error))
            else:
                self._log.exception("task failed and will not recover until it is restarted")
                self.counters.enter("failed")
                self._listener.on_failure(self.id, error, self.version)
        else:
            self.counters.enter("unassigned")
            if not self._cancelled:
                self._listener.on_shutdown(self.id, self.version)
        finally:
            self._ended.set()

    def _run_to_end(self) -> None:
        failed = True
        try:
            if not self._wait_while_paused(announce_resume=False) or not self._prepare():
                failed = False
                return
            self._start_plugin()
            self._started = True
            self._report_started()
            self._work()
            failed = False
        except BaseException:
            # The plugin may have raised it because of the stop. As in Java, this is no failure.
            if not self._is_stopping or self._cancelled:
                raise
            self._log.warning("task raised an exception while it was being stopped", exc_info=True)
        finally:
            self._stop_asked.set()
            self._close(failed=failed)

    def _report_started(self) -> None:
        if not self._cancelled:  # its work may run on another worker
            self.counters.enter("running")
            self._listener.on_startup(self.id, self.version)

    def _report_paused(self) -> None:
        if not self._cancelled:
            self.counters.enter("paused")
            self._listener.on_pause(self.id, self.version)

    def _report_resumed(self) -> None:
        if not self._cancelled:
            self.counters.enter("running")
            self._listener.on_resume(self.id, self.version)

    @property
    def _is_stopping(self) -> bool:
        self._cancel_if_reassigned()
        return self._stop_asked.is_set() or self._target is TargetState.STOPPED

    def _cancel_if_reassigned(self) -> bool:
        """Whether the task is cancelled; cancels it if another worker may run it.

        This may be so after this process was frozen, for example.
        """
        if not self._cancelled and not self._is_ours():
            self._log.warning("task abandoned, it may run on another worker")
            self._cancelled = True
            self._stop_asked.set()
        return self._cancelled

    def _wait_while_paused(self, *, announce_resume: bool) -> bool:
        """Wait while the task is paused; False when it must stop."""
        paused = False
        while True:
            with self._changed:
                if self._is_stopping:
                    return False
                if self._target is TargetState.STARTED:
                    break
                if paused:
                    self._changed.wait()
                    continue
            paused = True
            self._before_pause()
            self._report_paused()
        if paused:
            self._after_pause()
        if paused and announce_resume:
            self._report_resumed()
        return True

    def _after_pause(self) -> None:
        """The task resumes after a pause."""
        return
