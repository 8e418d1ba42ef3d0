"""The API that source and sink connectors and their tasks share (org.apache.kafka.connect.connector)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from mm2.config.configdef import ConfigDef

UNDEFINED_VERSION: Final = "undefined"
"""The version of a plugin that reports none; REST does not show it."""


class ConnectorContext(Protocol):
    """What a running connector may request from the runtime. Thread-safe."""

    def request_task_reconfiguration(self) -> None:
        """Request another call of ``task_configs``; tasks restart only if the result has changed."""

    def stored_task_configs(self) -> list[dict[str, str]]:
        """The task configs published last, by any worker; empty when there are none."""

    def raise_error(self, exc: Exception) -> None:
        """Fail the connector (state FAILED, the exception as trace); its tasks keep running."""


class Connector(ABC):
    """Divides the work into task configurations; does not copy data itself."""

    context: ConnectorContext

    @abstractmethod
    def version(self) -> str:
        """Version shown in statuses and plugin lists."""

    def initialize(self, ctx: ConnectorContext) -> None:
        """Called once, before :meth:`start`."""
        self.context = ctx

    @abstractmethod
    def start(self, props: dict[str, str]) -> None:
        """Start with the connector's configuration, provider references resolved. Raising fails the connector."""

    @abstractmethod
    def stop(self) -> None:
        """Stop and release all resources. A stopped instance is not started again."""

    @abstractmethod
    def task_class(self) -> type[Task]:
        """The class of this connector's tasks."""

    @abstractmethod
    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        """One map per task, at most ``max_tasks`` of them. The result must be equal as long as nothing has changed."""

    @abstractmethod
    def config(self) -> ConfigDef:
        """The definition of the connector's configuration."""

    def validate(self, props: Mapping[str, str]) -> list[tuple[str, str]]:
        """All errors in ``props`` as (key, message) pairs; empty when the connector can be started."""
        return [(name, message) for name, messages in self.config().validate(dict(props)) for message in messages]


class Task(ABC):
    """One unit of a connector's work, run by its own thread."""

    @abstractmethod
    def version(self) -> str:
        """Version shown in statuses."""

    @abstractmethod
    def start(self, props: dict[str, str]) -> None:
        """Start with this task's configuration. Raising fails the task."""

    @abstractmethod
    def stop(self) -> None:
        """Make ``poll`` return soon, and release the task's resources.

        Called exactly once after ``start`` was called. Java calls it on the task's own thread after the last ``poll``.
        Here, if ``poll`` is in progress, the thread that stops the task calls it, so that a blocking ``poll`` can end
        early. Anything that must not happen during ``poll`` belongs after its return.
        """
