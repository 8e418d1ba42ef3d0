"""Writes statuses of this worker's connectors and tasks; listens to their lifecycle (AbstractHerder's on… methods)."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable

from mm2.connect.runtime.connectors import WorkId
from mm2.connect.runtime.counters import StartCounters
from mm2.connect.stores.config_state import ClusterConfigState, ConnectorTaskId
from mm2.connect.stores.status_store import State, Status, StatusStore, TopicStatus, now_ms


class StatusReports:
    """Writes statuses with ``worker_id`` and the group's current ``generation``. Any thread.

    ``hide`` removes secrets from a text about the connector or task.
    """

    def __init__(
        self,
        store: StatusStore,
        worker_id: str,
        generation: Callable[[], int],
        *,
        track_topics: bool,
        hide: Callable[[WorkId, str], str] = lambda _work, text: text,
    ) -> None:
        self._store = store
        self._worker_id = worker_id
        self._generation = generation
        self._track_topics = track_topics
        self._hide = hide
        #: Results of the starts of connectors and of tasks.
        self.connector_starts, self.task_starts = StartCounters(), StartCounters()
        self._started: set[WorkId] = set()

    # -- StatusListener

    def on_startup(self, work: WorkId, version: str | None) -> None:
        """See StatusListener."""
        self._starts(work).succeeded += 1
        self._started.add(work)
        self._put(work, State.RUNNING, version)

    def on_resume(self, work: WorkId, version: str | None) -> None:
        """See StatusListener."""
        self._put(work, State.RUNNING, version)

    def on_pause(self, work: WorkId, version: str | None) -> None:
        """See StatusListener."""
        self._put(work, State.PAUSED, version)

    def on_stop(self, work: WorkId, version: str | None) -> None:
        """See StatusListener."""
        self._put(work, State.STOPPED, version)

    def on_shutdown(self, work: WorkId, version: str | None) -> None:
        """See StatusListener."""
        self._started.discard(work)
        self._store.put_safe(self._status(work, State.UNASSIGNED, version))

    def on_failure(self, work: WorkId, error: BaseException, version: str | None) -> None:
        """See StatusListener."""
        if work in self._started:
            self._started.discard(work)  # it was running, so this is not a failed start
        else:
            self._starts(work).failed += 1
        trace = self._hide(work, "".join(traceback.format_exception(error)))
        self._store.put_safe(self._status(work, State.FAILED, version, trace))

    # -- for herders

    def restarting(self, work: WorkId) -> None:
        """Work was stopped and will be started again."""
        self._put(work, State.RESTARTING, None)

    def destroyed(self, work: WorkId) -> None:
        """Work is no longer configured."""
        self._put(work, State.DESTROYED, None)

    def clean_up(self, configs: ClusterConfigState) -> None:
        """Remove the statuses of everything that is no longer configured. For the leader."""
        for name in self._store.connectors():
            tasks = set(configs.tasks(name))
            for status in self._store.tasks(name):
                if status.id not in tasks:
                    self.destroyed(status.id)
            if name not in configs and self._store.connector(name) is not None:
                self.destroyed(name)

    def used_topic(self, topic: str, task: ConnectorTaskId) -> None:
        """A task has read from or written to a topic."""
        if self._track_topics and self._store.topic(task.connector, topic) is None:
            self._store.put_topic(TopicStatus(topic, task.connector, task.task, now_ms()))

    def forget_topics(self, connectors: Iterable[str]) -> None:
        """Remove the record of topics that connectors have used."""
        if not self._track_topics:
            return
        for name in connectors:
            for topic in self._store.topics(name):
                self._store.delete_topic(name, topic)

    def _starts(self, work: WorkId) -> StartCounters:
        return self.task_starts if isinstance(work, ConnectorTaskId) else self.connector_starts

    def _put(self, work: WorkId, state: State, version: str | None) -> None:
        self._store.put(self._status(work, state, version))

    def _status(self, work: WorkId, state: State, version: str | None, trace: str | None = None) -> Status:
        return Status(work, state, self._worker_id, self._generation(), trace, version)
