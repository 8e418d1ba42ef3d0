"""``/`` and ``/health``."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from mm2.connect.herder.interface import Herder
from mm2.connect.rest import shapes
from mm2.connect.rest.documented import refusals
from mm2.connect.rest.failures import JsonAnswer
from mm2.connect.rest.requests import Requests
from mm2.connect.rest.version import server_info


def root_router(herder: Herder, requests: Requests, health_timeout_s: float) -> APIRouter:
    """Version and health of the worker."""
    router = APIRouter(tags=["root"])

    @router.get("/", response_model=shapes.ServerInfo, responses=refusals())
    async def info() -> Response:
        """Version of the worker, and the id of its Kafka cluster."""
        return JsonAnswer(server_info(await requests.ask(lambda: herder.kafka_cluster_id)))

    @router.get(
        "/health",
        response_model=shapes.Health,
        responses=refusals()
        | {
            503: {"model": shapes.Health, "description": "The worker is starting."},
            500: {"model": shapes.Health, "description": "The herder does not answer."},
        },
    )
    async def health() -> Response:
        """Whether the worker has started and its herder responds."""
        answer = await requests.health(herder, health_timeout_s)
        return JsonAnswer(answer.to_json(), answer.http_status)

    return router
