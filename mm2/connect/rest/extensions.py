"""The interfaces of REST extensions (KIP-285; org.apache.kafka.connect.rest).

An extension is named in ``rest.extension.classes``. It is created and configured with the worker's settings; it may
then add resources and filters to the REST interface and read the state of the cluster:

    class Hello(ConnectRestExtension):
        def register(self, context):
            router = APIRouter(prefix="/hello")

            @router.get("/{connector}")
            async def hello(connector: str):
                return context.cluster_state.connector_health(connector).connector_state.state

            context.configurable.register(router)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import structlog

from mm2.connect.errors import NotFound, RequestError
from mm2.connect.herder.answers import WorkState
from mm2.connect.herder.interface import Herder

if TYPE_CHECKING:  # the plugin registry imports the base class below and must not load the modules for REST
    from fastapi import APIRouter, FastAPI
    from starlette.types import ASGIApp

    from mm2.connect.rest.access.roles import Authenticator

    #: Wraps an ASGI application and sees each request before the resources. Starlette's middleware classes fit.
    Middleware = Callable[[ASGIApp], ASGIApp]

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class AbstractState:
    """State of a connector or task. ``trace_message`` is set only when it has failed."""

    state: str
    worker_id: str
    trace_message: str | None = None


@dataclass(frozen=True)
class ConnectorState(AbstractState):
    """State of a connector."""


@dataclass(frozen=True)
class TaskState(AbstractState):
    """State of a task."""

    task_id: int = 0


@dataclass(frozen=True)
class ConnectorHealth:
    """States of a connector and its tasks, by task number. ``type`` is source, sink or unknown."""

    name: str
    connector_state: ConnectorState
    tasks_state: Mapping[int, TaskState]
    type: str


@dataclass(frozen=True)
class ConnectClusterDetails:
    """The Kafka cluster of the worker."""

    kafka_cluster_id: str


class ConnectClusterState:
    """The cluster as this worker sees it.

    Its methods block: do not call them on the event loop (in an ``async def`` resource).
    """

    def __init__(self, herder: Herder, timeout_s: float) -> None:
        self._herder = herder
        self._timeout_s = timeout_s

    def connectors(self) -> list[str]:
        """Names of all connectors."""
        return self._herder.connectors()

    def connector_health(self, name: str) -> ConnectorHealth:
        """Raises NotFound for a connector without a status."""
        info = self._herder.connector_status(name)
        return ConnectorHealth(
            info.name,
            ConnectorState(*_state(info.connector)),
            {task.id: TaskState(*_state(task), task.id) for task in info.tasks},
            info.type.value,
        )

    def connector_config(self, name: str) -> Mapping[str, str | None]:
        """The configuration as stored. Raises NotFound, TimeoutError."""
        return dict(self._herder.connector_config(name).result(self._timeout_s))

    def cluster_details(self) -> ConnectClusterDetails:
        """Details that do not change."""
        return ConnectClusterDetails(self._herder.kafka_cluster_id)


@dataclass
class Configurable:
    """Registers an extension's resources and filters (JAX-RS's Configurable)."""

    routers: list[APIRouter] = field(default_factory=list)
    middlewares: list[Middleware] = field(default_factory=list)

    def register(self, component: APIRouter | Middleware) -> None:
        """Add a router or a middleware; middleware that is registered first sees requests first."""
        from fastapi import APIRouter  # noqa: PLC0415

        if isinstance(component, APIRouter):
            self.routers.append(component)
        else:
            self.middlewares.append(component)

    def add_routers(self, app: FastAPI) -> None:
        """Add the resources to an application."""
        for router in self.routers:
            app.include_router(router)

    def around(self, app: ASGIApp) -> ASGIApp:
        """The application wrapped in all filters."""
        for middleware in reversed(self.middlewares):
            app = middleware(app)
        return app


@dataclass(frozen=True)
class ConnectRestExtensionContext:
    """The objects that an extension receives."""

    configurable: Configurable
    cluster_state: ConnectClusterState


class ConnectRestExtension(ABC):
    """Base class of REST extensions. Created without arguments."""

    def configure(self, configs: Mapping[str, str]) -> None:  # noqa: B027 - most need nothing
        """The worker's settings, provider references resolved. Raises ConfigException."""

    @abstractmethod
    def register(self, context: ConnectRestExtensionContext) -> None:
        """Add resources and filters; called once, before the first request."""

    def authenticators(self) -> Sequence[Authenticator]:
        """What recognizes credentials of clients; ``rest.role.*`` give their principals a role.

        A filter can only reject requests in addition: it cannot give a client access.
        """
        return ()

    def close(self) -> None:  # noqa: B027 - most need nothing
        """The server has stopped."""

    def version(self) -> str:
        """Version shown in logs."""
        return "undefined"


class Finder(Protocol):
    """The part of :class:`mm2.connect.plugins.Plugins` that creates extensions."""

    def new(self, name: str, kind: type[ConnectRestExtension], *, key: str) -> ConnectRestExtension:
        """Raises ConnectError."""


def load_extensions(
    names: tuple[str, ...], finder: Finder, configs: Mapping[str, str]
) -> tuple[ConnectRestExtension, ...]:
    """Create and configure extensions in order. Raises ConnectError, ConfigException."""
    made = []
    for name in names:
        extension = finder.new(name, ConnectRestExtension, key="rest.extension.classes")
        extension.configure(dict(configs))
        log.info("REST extension added", extension=name, version=extension.version())
        made.append(extension)
    return tuple(made)


def close_extensions(extensions: tuple[ConnectRestExtension, ...]) -> None:
    """Close extensions; exceptions are logged."""
    for extension in extensions:
        try:
            extension.close()
        except Exception:
            log.exception("REST extension could not be closed", extension=type(extension).__name__)


def _state(state: WorkState) -> tuple[str, str, str | None]:
    return state.state, state.worker_id, state.trace or None


__all__ = [
    "AbstractState",
    "Configurable",
    "ConnectClusterDetails",
    "ConnectClusterState",
    "ConnectRestExtension",
    "ConnectRestExtensionContext",
    "ConnectorHealth",
    "ConnectorState",
    "NotFound",
    "RequestError",
    "TaskState",
]
