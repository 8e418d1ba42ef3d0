"""``/metrics``: metrics in Prometheus's format."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response
from starlette.types import ASGIApp

from mm2.connect.rest.app import application
from mm2.connect.rest.dispatch import Dispatch
from mm2.connect.rest.documented import refusals
from mm2.metrics.exposition import Exposition


def metrics_router(exposition: Exposition) -> APIRouter:
    """The metrics of ``exposition``."""
    router = APIRouter(tags=["metrics"])

    @router.get("/metrics", response_class=PlainTextResponse, responses=refusals())
    async def metrics(request: Request) -> Response:
        """All metrics, in Prometheus's text format, or as OpenMetrics if the client accepts it."""
        # Writing metrics of thousands of partitions takes time and must not block other requests.
        body, content_type = await asyncio.to_thread(exposition.answer, request.headers.get("accept"))
        return Response(body, headers={"Content-Type": content_type, "Cache-Control": "no-store"})

    return router


def metrics_app(exposition: Exposition) -> ASGIApp:
    """`metrics_router` as an application of its own."""
    return Dispatch(application([metrics_router(exposition)]))
