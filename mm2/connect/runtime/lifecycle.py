"""Listener for state changes of connectors and tasks."""

from __future__ import annotations

from typing import Protocol

from mm2.connect.stores.config_state import ConnectorTaskId

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
