"""Worker-to-worker requests, signed with the session key (KIP-507)."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from mm2.connect.herder.interface import Herder
from mm2.connect.request_signing import RequestSignature
from mm2.connect.rest import shapes
from mm2.connect.rest.bodies import parse_string_maps
from mm2.connect.rest.documented import json_body, refusals
from mm2.connect.rest.parameters import Forward, Name
from mm2.connect.rest.requests import Requests, relayed_nothing


def internal_router(herder: Herder, requests: Requests) -> APIRouter:
    """``POST …/tasks`` and ``PUT …/fence``."""
    router = APIRouter(prefix="/connectors", tags=["internal"])

    @router.post(
        "/{connector}/tasks",
        status_code=204,
        responses=refusals(403, 404, 408, 409, 413, 500, 503),
        openapi_extra=json_body(list[shapes.Strings]),
    )
    async def put_task_configs(connector: Name, request: Request, forward: Forward = None) -> Response:
        """Publish the task configurations of a connector that runs on another worker."""
        body = await request.body()
        configs = parse_string_maps(body)
        signature = RequestSignature.from_headers(body, request.headers)
        return relayed_nothing(
            await requests.complete_or_forward(request, herder.put_task_configs, connector, configs, signature)
        )

    @router.put("/{connector}/fence", status_code=204, responses=refusals(403, 404, 408, 409, 413, 500, 503))
    async def fence_zombies(connector: Name, request: Request, forward: Forward = None) -> Response:
        """Ensure that older tasks of a connector can no longer write."""
        signature = RequestSignature.from_headers(await request.body(), request.headers)
        return relayed_nothing(await requests.complete_or_forward(request, herder.fence_zombies, connector, signature))

    return router
