"""What connectors and tasks of both directions have (org.apache.kafka.connect.connector)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from mm2.config.configdef import ConfigDef

UNDEFINED_VERSION: Final = "undefined"
"""The version of a plugin that tells none; REST does not show it."""


class ConnectorContext(Protocol):
    """What a running connector may ask of the runtime. Safe to call from any thread."""

    def request_task_reconfiguration(self) -> None:
        """Have ``task_configs`` called again soon; tasks restart only if the answer differs from the stored one."""

    def stored_task_configs(self) -> list[dict[str, str]]:
        """The task configs that were published last, by whichever worker; empty when there are none."""

    def raise_error(self, exc: Exception) -> None:
        """Fail the connector (state FAILED, the exception as trace); its tasks keep running."""


class Connector(ABC):
    """Decides what has to be done and cuts it into task configurations; does not move data itself."""

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
        """Stop and release everything. A stopped instance is not started again."""

    @abstractmethod
    def task_class(self) -> type[Task]:
        """The class of this connector's tasks."""

    @abstractmethod
    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        """One map per task, at most ``max_tasks`` of them. Must be the same again when nothing has changed."""

    @abstractmethod
    def config(self) -> ConfigDef:
        """The definition of the configuration this connector reads."""

    def validate(self, props: Mapping[str, str]) -> list[tuple[str, str]]:
        """Everything wrong with ``props`` as (key, message) pairs; empty when it can be started."""
        return [(name, message) for name, messages in self.config().validate(dict(props)) for message in messages]


class Task(ABC):
    """One unit of a connector's work, run by a thread of its own."""

    @abstractmethod
    def version(self) -> str:
        """Version shown in statuses."""

    @abstractmethod
    def start(self, props: dict[str, str]) -> None:
        """Start with this task's configuration. Raising fails the task."""

    @abstractmethod
    def stop(self) -> None:
        """Make ``poll`` return soon, and give up what the task holds.

        Called exactly once after ``start`` was called. Unlike in Java, which calls it on the task's own thread after
        the last ``poll``, it is called from the thread that stops the task when ``poll`` is in progress, so that a
        blocking ``poll`` can end early. What must not happen under a running ``poll`` belongs behind its return.
        """
