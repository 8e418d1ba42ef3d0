"""Assembles the REST resources of one herder into an application."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mm2 import KAFKA_VERSION
from mm2.connect.errors import RequestError
from mm2.connect.herder.interface import Herder
from mm2.connect.rest.access.authorization import Access
from mm2.connect.rest.access.roles import Role
from mm2.connect.rest.assembly import LocalAccess, access_control
from mm2.connect.rest.extensions import (
    Configurable,
    ConnectClusterState,
    ConnectRestExtension,
    ConnectRestExtensionContext,
)
from mm2.connect.rest.failures import RestFailure, error_answer, failure_answer
from mm2.connect.rest.forwarding import Requests
from mm2.connect.rest.resources.connector_resources import connectors_router
from mm2.connect.rest.resources.dispatch import Dispatch
from mm2.connect.rest.resources.openapi import page_router
from mm2.connect.rest.resources.worker_resources import (
    HealthRules,
    internal_router,
    loggers_router,
    metrics_router,
    plugins_router,
    root_router,
)
from mm2.connect.rest.settings import RestSettings

if TYPE_CHECKING:
    from mm2.metrics.exposition import Exposition


@dataclass(frozen=True)
class Resources:
    """What the listeners serve; ``admin`` None: the admin listeners, if any, have no separate resources."""

    main: ASGIApp
    admin: ASGIApp | None


def worker_resources(
    herder: Herder,
    settings: RestSettings,
    requests: Requests,
    extensions: Sequence[ConnectRestExtension] = (),
    more: Sequence[APIRouter] = (),
    *,
    local: LocalAccess | None = None,
    redacted: Herder | None = None,
) -> Resources:
    """The complete REST interface of a worker, and ``more``. Raises ConfigException.

    ``redacted`` is the herder without secrets in its results, for clients that are not administrators; None: they see what
    administrators see.
    """
    configurable = Configurable()
    context = ConnectRestExtensionContext(configurable, ConnectClusterState(herder, settings.limits.request_timeout_s))
    for extension in extensions:
        extension.register(context)
    control = access_control(settings, extensions, local or LocalAccess(), lambda _path: herder.session_key)
    loggers = loggers_router(herder, requests)

    def served(shown: Herder) -> ASGIApp:
        app = application([*herder_routers(shown, requests, HealthRules(settings.limits.health_timeout_s)), *more])
        if settings.admin_listeners is None:
            app.routes.extend(loggers.routes)
        configurable.add_routers(app)
        return Dispatch(app)

    main = served(herder) if redacted is None else _ByRole(served(herder), served(redacted))
    admin = control.around(admin_resources([loggers], configurable)) if settings.admin_listeners else None
    return Resources(control.around(configurable.around(main)), admin)


def admin_resources(loggers: Sequence[APIRouter], configurable: Configurable) -> ASGIApp:
    """What separate admin listeners serve. Extensions apply to it, as in Kafka since 4.4."""
    app = application(loggers)
    configurable.add_routers(app)
    return configurable.around(Dispatch(app))


class _ByRole:
    """ASGI application: one for administrators, another for all other clients."""

    def __init__(self, complete: ASGIApp, redacted: ASGIApp) -> None:
        self._complete = complete
        self._redacted = redacted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_admin = Access.of(scope).role >= Role.ADMIN
        await (self._complete if is_admin else self._redacted)(scope, receive, send)


def herder_routers(
    herder: Herder, requests: Requests, health: HealthRules, *, internal: bool = True
) -> list[APIRouter]:
    """All resources of one herder except loggers, which are per process. ``internal``: worker-to-worker requests."""
    routers = [
        root_router(herder, requests, health),
        connectors_router(herder, requests),
        plugins_router(herder, requests),
    ]
    return [*routers, internal_router(herder, requests)] if internal else routers


def application(routers: Sequence[APIRouter], *, prefix: str = "") -> FastAPI:
    """A FastAPI application with Connect's error responses. ``prefix`` is its mount path, for its OpenAPI page."""
    app = FastAPI(
        title="Kafka Connect REST API",
        version=KAFKA_VERSION,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=_operation_id,
        servers=[{"url": prefix or "/"}],
    )
    app.add_exception_handler(Exception, _answer)
    for refusal in (RestFailure, RequestError):
        app.add_exception_handler(refusal, _answer)
    app.add_exception_handler(HTTPException, _framework_answer)
    app.add_exception_handler(RequestValidationError, _validation_answer)
    for router in [*routers, page_router(app)]:
        # Not include_router: it hides the routes, which Dispatch needs.
        app.routes.extend(router.routes)
    return app


def metrics_app(exposition: Exposition) -> ASGIApp:
    """`metrics_router` as an application of its own."""
    return Dispatch(application([metrics_router(exposition)]))


def _operation_id(route: APIRoute) -> str:
    return route.name


async def _answer(_request: Request, error: Exception) -> Response:
    return failure_answer(error)


async def _framework_answer(_request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        return failure_answer(error)
    return error_answer(error.status_code, str(error.detail), dict(error.headers or {}))


async def _validation_answer(_request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        return failure_answer(error)
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    return error_answer(400, f"{place}: {first['msg']}")
