"""Resources of the worker: ``/``, ``/health``, ``/connector-plugins``, ``/admin/loggers`` and ``/metrics``.

Also the worker-to-worker requests below ``/connectors``, which are signed with the session key (KIP-507).
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import structlog
from fastapi import APIRouter, Query, Request
from fastapi.responses import PlainTextResponse, Response

from mm2 import KAFKA_VERSION, __version__
from mm2.config.definitions.config_infos import ConfigInfos, ConfigKeyInfo
from mm2.connect.errors import BadRequest, NotFound
from mm2.connect.herder.answers import HealthInfo, LoggerLevel, PluginInfo
from mm2.connect.herder.interface import Herder
from mm2.connect.herder.loggers import LEVELS
from mm2.connect.request_signing import RequestSignature
from mm2.connect.rest.access.authorization import Access
from mm2.connect.rest.access.roles import Role
from mm2.connect.rest.failures import JsonAnswer
from mm2.connect.rest.forwarding import Requests, relayed_nothing
from mm2.connect.rest.listeners.limits import Body
from mm2.connect.rest.request_values import (
    Flag,
    Forward,
    Name,
    java_bool,
    parse_string_map,
    parse_string_maps,
    read_json,
)
from mm2.connect.rest.resources.dispatch import CONSUMES_JSON, needs
from mm2.connect.rest.resources.openapi import SET_LEVEL, STRING_MAPS, STRINGS, json_body, refusals

if TYPE_CHECKING:
    from mm2.metrics.exposition import Exposition

log = structlog.get_logger("mm2.connect.rest.worker_resources")


@dataclass(frozen=True)
class ServerInfo:
    """Version of the worker; ``commit`` identifies the actual program."""

    version: str
    commit: str
    kafka_cluster_id: str


def server_info(kafka_cluster_id: str) -> dict[str, Any]:
    """``{"version", "commit", "kafka_cluster_id"}``."""
    return asdict(ServerInfo(KAFKA_VERSION, f"mm2-{__version__}", kafka_cluster_id))


@dataclass(frozen=True)
class HealthRules:
    """``role``: who may read the status. ``complete`` adds what the herder does not know."""

    timeout_s: float
    role: Role = Role.NONE
    complete: Callable[[HealthInfo], HealthInfo] = lambda health: health


def root_router(herder: Herder, requests: Requests, rules: HealthRules) -> APIRouter:
    """Version and health of the worker."""
    router = APIRouter(tags=["root"])

    @router.get("/", response_model=ServerInfo, responses=refusals())
    @needs(Role.VIEWER)
    async def info() -> Response:
        """Version of the worker, and the id of its Kafka cluster."""
        return JsonAnswer(server_info(await requests.ask(lambda: herder.kafka_cluster_id)))

    @router.get(
        "/health",
        response_model=HealthInfo,
        responses=refusals()
        | {
            503: {"model": HealthInfo, "description": "The worker is starting."},
            500: {"model": HealthInfo, "description": "The herder does not respond."},
        },
    )
    @needs(rules.role)
    async def health(request: Request) -> Response:
        """Whether the worker has started and its herder responds."""
        answer = rules.complete(await requests.health(herder, rules.timeout_s))
        return JsonAnswer(shown_health(answer, request), answer.http_status)

    return router


def shown_health(health: HealthInfo, request: Request) -> HealthInfo:
    """What the client of a request may see: details name clusters and connectors."""
    return health if Access.of(request.scope).role >= Role.METRICS else health.without_details()


_ALIAS_SUFFIX = "Connector"
_CONNECTOR_CLASS = "connector.class"


def plugins_router(herder: Herder, requests: Requests) -> APIRouter:
    """The plugins of the worker."""
    router = APIRouter(prefix="/connector-plugins", tags=[CONSUMES_JSON])

    @router.get("", response_model=list[PluginInfo], responses=refusals(415))
    @needs(Role.VIEWER)
    async def list_plugins(connectorsOnly: Flag = None) -> Response:  # noqa: N803 - its name in the API
        """All connectors; with ``connectorsOnly=false`` also transformations, predicates and converters."""
        only = java_bool(connectorsOnly, default=True)
        plugins = await requests.ask(herder.connector_plugins, connectors_only=only is True)
        return JsonAnswer(plugins)

    @router.get("/{plugin}/config", response_model=list[ConfigKeyInfo], responses=refusals(404, 415, 500))
    @needs(Role.VIEWER)
    async def plugin_config(
        plugin: Name,
        request: Request,
        version: Annotated[str | None, Query(description="A version or range; latest if absent.")] = None,
    ) -> Response:
        """Definitions of the keys of a plugin. A class that is not in the list of plugins needs the role admin."""
        # The herder imports the module of such a class and creates an object of it, which may have any effect.
        if "." in plugin and not Access.of(request.scope).allows(Role.ADMIN):
            listed = await requests.ask(herder.connector_plugins, connectors_only=False)
            if plugin not in {one.name for one in listed}:
                Access.of(request.scope).require(Role.ADMIN, request.scope)
        return JsonAnswer(await requests.ask(herder.plugin_config, plugin, version))

    @router.put(
        "/{plugin}/config/validate",
        response_model=ConfigInfos,
        responses=refusals(408, 413, 415, 500),
        openapi_extra=json_body(STRINGS),
    )
    @needs(Role.ADMIN)
    async def validate(plugin: Name, request: Request) -> Response:
        """Validate a configuration without storing it."""
        config = await read_json(request, parse_string_map, "configuration")
        named = config.get(_CONNECTOR_CLASS)
        if named is not None and not _pruned(named).endswith(_pruned(plugin)):
            raise BadRequest(f"Included connector type {named} does not match request type {plugin}")
        infos = await requests.complete(herder.validate_connector_config, config)
        return JsonAnswer(infos)

    return router


def _pruned(name: str) -> str:
    return name.removesuffix(_ALIAS_SUFFIX) if name != _ALIAS_SUFFIX else name


_CLUSTER, _WORKER = "cluster", "worker"

Scope = Annotated[str | None, Query(json_schema_extra={"enum": [_WORKER, _CLUSTER]})]


def loggers_router(herder: Herder, requests: Requests) -> APIRouter:
    """Levels of the loggers of this worker, or of all workers."""
    router = APIRouter(prefix="/admin/loggers", tags=[CONSUMES_JSON])

    @router.get("", response_model=dict[str, LoggerLevel], responses=refusals(415))
    @needs(Role.VIEWER)
    async def list_loggers() -> Response:
        """Loggers with their own level."""
        loggers = await requests.ask(herder.all_loggers)
        return JsonAnswer(loggers)

    @router.get("/{logger}", response_model=LoggerLevel, responses=refusals(404, 415))
    @needs(Role.VIEWER)
    async def get_logger(logger: Name) -> Response:
        """Level of a logger, inherited from the nearest parent when it has none of its own."""
        level = await requests.ask(herder.logger_level, logger)
        if level is None:
            raise NotFound(f"Logger {logger} not found.")
        return JsonAnswer(level)

    @router.put(
        "/{logger}",
        response_model=list[str],
        responses=refusals(404, 408, 413, 415, 500) | {204: {"description": "The level is set on all workers."}},
        openapi_extra=json_body(SET_LEVEL),
    )
    @needs(Role.OPERATOR)
    async def set_level(logger: Name, request: Request, scope: Scope = None) -> Response:
        """Set the level of a logger and of those below it, on this worker or (``scope=cluster``) on all workers."""
        level = (await read_json(request, parse_string_map, "level")).get("level")
        if level is None:
            raise BadRequest("Desired 'level' parameter was not specified in request.")
        if level.upper() not in LEVELS:
            raise NotFound(f"invalid log level '{level}'.")
        if scope is not None and scope.lower() == _CLUSTER:
            await requests.complete(herder.set_cluster_logger_level, logger, level)
            return Response(status_code=204)
        if scope is None or scope.lower() != _WORKER:
            log.warning("logger level set on this worker only, unknown or missing scope", scope=scope)
        return JsonAnswer(await requests.ask(herder.set_worker_logger_level, logger, level))

    return router


def metrics_router(exposition: Exposition) -> APIRouter:
    """The metrics of ``exposition``."""
    router = APIRouter(tags=["metrics"])

    @router.get("/metrics", response_class=PlainTextResponse, responses=refusals())
    @needs(Role.METRICS)
    async def metrics(request: Request) -> Response:
        """All metrics, in Prometheus's text format, or as OpenMetrics if the client accepts it."""
        # Writing metrics of thousands of partitions takes time and must not block other requests.
        body, content_type = await asyncio.to_thread(exposition.answer, request.headers.get("accept"))
        return Response(body, headers={"Content-Type": content_type, "Cache-Control": "no-store"})

    return router


def internal_router(herder: Herder, requests: Requests) -> APIRouter:
    """``POST …/tasks`` and ``PUT …/fence``."""
    router = APIRouter(prefix="/connectors", tags=["internal"])

    @router.post(
        "/{connector}/tasks",
        status_code=204,
        responses=refusals(403, 404, 408, 409, 413, 500, 503),
        openapi_extra=json_body(STRING_MAPS),
    )
    @needs(Role.NONE)
    async def put_task_configs(connector: Name, request: Request, forward: Forward = None) -> Response:
        """Publish the task configurations of a connector that runs on another worker."""
        is_permitted = _check_signer(herder, request)
        signature = await _signature(request, herder, requests)
        parse = functools.partial(parse_string_maps, await request.body())
        return relayed_nothing(
            await requests.complete_or_forward(
                request, herder.put_task_configs, connector, parse, signature, is_permitted
            )
        )

    @router.put("/{connector}/fence", status_code=204, responses=refusals(403, 404, 408, 409, 413, 500, 503))
    @needs(Role.NONE)
    async def fence_zombies(connector: Name, request: Request, forward: Forward = None) -> Response:
        """Ensure that older tasks of a connector can no longer write."""
        is_permitted = _check_signer(herder, request)
        signature = await _signature(request, herder, requests)
        return relayed_nothing(
            await requests.complete_or_forward(request, herder.fence_zombies, connector, signature, is_permitted)
        )

    return router


def _check_signer(herder: Herder, request: Request) -> bool:
    """Whether the sender has the role that it needs in a group without signatures (``connect.protocol``). Raises RestFailure if it needs it.

    A member of the group can change this while the body is received, so the herder asks for one of both.
    """
    access = Access.of(request.scope)
    if not herder.verifies_signatures:
        access.require(Role.ADMIN, request.scope)
    return access.allows(Role.ADMIN)


async def _signature(request: Request, herder: Herder, requests: Requests) -> RequestSignature | None:
    """Receive the body, if the request is signed or need not be. Raises RequestError, RestFailure."""
    if RequestSignature.from_headers(b"", request.headers) is None:
        await requests.ask(herder.require_signature)
    if (body := Body.of(request.scope)) is not None:
        body.use_signed_budget()
    return RequestSignature.from_headers(await request.body(), request.headers)
