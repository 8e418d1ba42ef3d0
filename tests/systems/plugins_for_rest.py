"""A REST extension, written like that of a plugin author."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mm2.connect.rest.extensions import ConnectRestExtension, ConnectRestExtensionContext


class StateExtension(ConnectRestExtension):
    """Returns the data of a connector that an extension can access."""

    def configure(self, configs: Mapping[str, str]) -> None:
        self.greeting = configs.get("test.greeting", "")

    def register(self, context: ConnectRestExtensionContext) -> None:
        router = APIRouter(prefix="/integration-test-rest-extension")
        state = context.cluster_state

        @router.get("/connector/{connector}/state")
        def connector_state(connector: str) -> dict[str, Any]:
            health = state.connector_health(connector)
            return {
                "greeting": self.greeting,
                "connectors": state.connectors(),
                "state": health.connector_state.state,
                "worker": health.connector_state.worker_id,
                "tasks": {number: task.state for number, task in health.tasks_state.items()},
                "type": health.type,
                "config": dict(state.connector_config(connector)),
                "cluster": state.cluster_details().kafka_cluster_id,
            }

        @router.post("/echo")
        async def echo(request: Request) -> Response:
            return Response(await request.body(), media_type="text/plain")

        context.configurable.register(router)
        context.configurable.register(NoTea)


class NoTea:
    """A filter that rejects requests for tea."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (b"x-tea", b"yes") in scope["headers"]:
            await Response("no tea", status_code=418)(scope, receive, send)
        else:
            await self.app(scope, receive, send)
