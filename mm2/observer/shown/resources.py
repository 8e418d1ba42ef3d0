"""``/overview``: the snapshot as JSON for programs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from fastapi.responses import Response
from starlette.types import ASGIApp

from mm2.codec import encode
from mm2.config.mirrormaker import SourceAndTarget
from mm2.connect.errors import BadRequest, NotFound
from mm2.connect.rest.access.roles import Role
from mm2.connect.rest.app import application
from mm2.connect.rest.failures import JsonAnswer
from mm2.connect.rest.request_values import Name
from mm2.connect.rest.resources.dispatch import Dispatch, needs
from mm2.connect.rest.resources.openapi import refusals
from mm2.observer.observer import Observer
from mm2.observer.shown.shapes import chosen_groups, chosen_partitions, flow_json, page_json
from mm2.observer.shown.topic_resources import LedgerWriter, add_topic_resources
from mm2.observer.views import FlowView, Snapshot

PATH: Final = "overview"
_MOST: Final = 1000

Search = Annotated[str, Query(description="what the name has to contain")]
Offset = Annotated[int, Query(ge=0)]
Limit = Annotated[int, Query(ge=1, le=_MOST)]
Descending = Annotated[bool, Query()]


def overview_router(observer: Observer, write: LedgerWriter | None = None) -> APIRouter:
    """The resources that return the snapshot of ``observer``; ``write`` None: without those that change topics."""
    router = APIRouter(prefix=f"/{PATH}", tags=["overview"])

    async def snapshot() -> Snapshot:
        return await asyncio.to_thread(observer.snapshot)

    async def flow_of(source: str, target: str) -> FlowView:
        name = str(SourceAndTarget(source, target))
        found = (await snapshot()).flow(name)
        if found is None:
            raise NotFound(f"No flow {name} is in this process")
        return found

    @router.get("", response_model=dict[str, Any], responses=refusals())
    @needs(Role.VIEWER)
    async def overview() -> Response:
        """All flows of the process: state, sentence, what is at risk, totals, latencies, tasks; Spark."""
        now = await snapshot()
        whole = {
            "at_ms": now.at_ms,
            "version": now.version,
            "flows": [flow_json(flow) for flow in now.flows],
            "spark": encode(now.spark),
            "reloads": encode(now.reloads),
            "certificates": encode(now.certificates),
        }
        return JsonAnswer(whole)

    @router.get("/{source}/{target}", response_model=dict[str, Any], responses=refusals(404))
    @needs(Role.VIEWER)
    async def one_flow(source: Name, target: Name) -> Response:
        """One flow, as in the list of all."""
        return JsonAnswer(flow_json(await flow_of(source, target)))

    _add_pages(router, flow_of)
    add_topic_resources(router, flow_of, write)
    return router


def _add_pages(router: APIRouter, flow_of: Callable[[str, str], Awaitable[FlowView]]) -> None:
    """Add the resources that return a part of the rows of one flow."""

    @router.get("/{source}/{target}/partitions", response_model=dict[str, Any], responses=refusals(400, 404))
    @needs(Role.VIEWER)
    async def partitions(
        source: Name,
        target: Name,
        search: Search = "",
        state: Annotated[list[str] | None, Query(description="one of these states")] = None,
        order: str = "topic",
        *,
        descending: Descending = False,
        offset: Offset = 0,
        limit: Limit = 100,
    ) -> Response:
        """Partitions of the source: ``{"total", "offset", "rows"}``."""
        flow = await flow_of(source, target)
        try:
            rows = chosen_partitions(flow, search, state or (), order, descending=descending)
        except ValueError as error:
            raise BadRequest(str(error)) from error
        return JsonAnswer(page_json(rows, offset, limit))

    @router.get("/{source}/{target}/groups", response_model=dict[str, Any], responses=refusals(400, 404))
    @needs(Role.VIEWER)
    async def groups(
        source: Name,
        target: Name,
        search: Search = "",
        order: str = "group",
        *,
        descending: Descending = False,
        offset: Offset = 0,
        limit: Limit = 100,
    ) -> Response:
        """Places of groups, by partition of the source: ``{"total", "offset", "rows"}``."""
        flow = await flow_of(source, target)
        try:
            rows = chosen_groups(flow, search, order, descending=descending)
        except ValueError as error:
            raise BadRequest(str(error)) from error
        return JsonAnswer(page_json(rows, offset, limit))


def overview_app(observer: Observer, write: LedgerWriter | None = None) -> ASGIApp:
    """`overview_router` as a separate application."""
    return Dispatch(application([overview_router(observer, write)], prefix="/"))
