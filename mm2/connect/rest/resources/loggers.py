"""``/admin/loggers`` (KIP-495, KIP-976)."""

from __future__ import annotations

from typing import Annotated

import structlog
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from mm2.connect.errors import BadRequest, NotFound
from mm2.connect.herder.interface import Herder
from mm2.connect.herder.loggers import LEVELS
from mm2.connect.rest import shapes
from mm2.connect.rest.bodies import parse_string_map
from mm2.connect.rest.dispatch import CONSUMES_JSON
from mm2.connect.rest.documented import json_body, refusals
from mm2.connect.rest.failures import JsonAnswer
from mm2.connect.rest.parameters import Name
from mm2.connect.rest.received import body_of
from mm2.connect.rest.requests import Requests

log = structlog.get_logger(__name__)

_CLUSTER, _WORKER = "cluster", "worker"

Scope = Annotated[str | None, Query(json_schema_extra={"enum": [_WORKER, _CLUSTER]})]


def loggers_router(herder: Herder, requests: Requests) -> APIRouter:
    """Levels of the loggers of this worker, or of all workers."""
    router = APIRouter(prefix="/admin/loggers", tags=[CONSUMES_JSON])

    @router.get("", response_model=dict[str, shapes.LoggerLevel], responses=refusals(415))
    async def list_loggers() -> Response:
        """Loggers with their own level."""
        loggers = await requests.ask(herder.all_loggers)
        return JsonAnswer({name: level.to_json() for name, level in loggers.items()})

    @router.get("/{logger}", response_model=shapes.LoggerLevel, responses=refusals(404, 415))
    async def get_logger(logger: Name) -> Response:
        """Level of a logger, inherited from the nearest parent when it has none of its own."""
        level = await requests.ask(herder.logger_level, logger)
        if level is None:
            raise NotFound(f"Logger {logger} not found.")
        return JsonAnswer(level.to_json())

    @router.put(
        "/{logger}",
        response_model=list[str],
        responses=refusals(404, 408, 413, 415, 500) | {204: {"description": "All workers have been told."}},
        openapi_extra=json_body(shapes.SetLevel),
    )
    async def set_level(logger: Name, request: Request, scope: Scope = None) -> Response:
        """Set the level of a logger and of those below it, on this worker or (``scope=cluster``) on all workers."""
        level = parse_string_map(await body_of(request), "level").get("level")
        if level is None:
            raise BadRequest("Desired 'level' parameter was not specified in request.")
        if level.upper() not in LEVELS:
            raise NotFound(f"invalid log level '{level}'.")
        if scope is not None and scope.lower() == _CLUSTER:
            await requests.complete(herder.set_cluster_logger_level, logger, level)
            return Response(status_code=204)
        if scope is None or scope.lower() != _WORKER:
            log.warning("A logger's level is set at this worker only; no other scope was asked for.", scope=scope)
        return JsonAnswer(await requests.ask(herder.set_worker_logger_level, logger, level))

    return router
