"""``/overview/{source}/{target}/topics``: the topics of a flow, and pauses and limits of single topics.

Pauses and limits are records in the flow's ledger, which the copying tasks follow, as those of `mm2 pause` and `mm2 throttle`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Final, TypeAlias

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from mm2.connect.errors import BadRequest, MalformedBody, NotFound
from mm2.connect.rest.access.authorization import Access
from mm2.connect.rest.access.roles import Role
from mm2.connect.rest.failures import JsonAnswer, RestFailure
from mm2.connect.rest.request_values import Name, parse_json, read_json
from mm2.connect.rest.resources.dispatch import needs
from mm2.connect.rest.resources.openapi import json_body, refusals
from mm2.copy.progress.ledger import Pause, pause_record, throttle_record
from mm2.copy.states import PartitionState
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.records.record import Record
from mm2.observer.shown.shapes import page_json
from mm2.observer.shown.topics import topic_views
from mm2.observer.views import FlowView, PartitionView

#: Writes records to the ledger of a flow ``A->B``. Raises KafkaFailure.
LedgerWriter: TypeAlias = Callable[[str, Sequence[Record]], None]
FlowOf: TypeAlias = Callable[[str, str], Awaitable[FlowView]]

_MOST_ROWS: Final = 1000
_MOST_REASON: Final = 500
_MOST_LIMIT: Final = 2**53
_REASON: Final = {"type": "object", "properties": {"reason": {"type": "string"}}}
_LIMIT: Final = {
    "type": "object",
    "properties": {"bytes_per_s": {"type": ["integer", "null"], "minimum": 0, "maximum": _MOST_LIMIT}},
    "required": ["bytes_per_s"],
}


def add_topic_resources(router: APIRouter, flow_of: FlowOf, write: LedgerWriter | None) -> None:
    """Add the resources; ``write`` None: only the list. ``flow_of`` raises NotFound."""
    _add_list(router, flow_of)
    if write is not None:
        _add_changes(router, flow_of, write)


def _add_changes(router: APIRouter, flow_of: FlowOf, write: LedgerWriter) -> None:

    async def changed(flow: FlowView, records: Sequence[Record]) -> Response:
        try:
            await asyncio.to_thread(write, flow.name, records)
        except KafkaFailure as failure:
            raise RestFailure(503, f"The ledger of {flow.name} could not be written: {failure}") from failure
        return Response(status_code=202)

    @router.put(
        "/{source}/{target}/topics/{topic}/pause",
        status_code=202,
        responses=refusals(400, 404, 503),
        openapi_extra=json_body(_REASON),
    )
    @needs(Role.OPERATOR)
    async def pause(source: Name, target: Name, topic: Name, request: Request) -> Response:
        """Stop copying a topic, until it is resumed; the body may have a reason."""
        reason = await read_json(request, _reason_of)
        flow = await _with_topic(flow_of, source, target, topic)
        by = Access.of(request.scope).principal.name
        return await changed(flow, [pause_record(topic, None, Pause(by, int(time.time() * 1000), reason))])

    @router.put("/{source}/{target}/topics/{topic}/resume", status_code=202, responses=refusals(404, 503))
    @needs(Role.OPERATOR)
    async def resume(source: Name, target: Name, topic: Name) -> Response:
        """Continue to copy a topic and all of its partitions."""
        flow = await _with_topic(flow_of, source, target, topic)
        paused = [one.partition for one in flow.partitions if one.topic == topic and _is_paused(one)]
        return await changed(flow, [pause_record(topic, partition, None) for partition in (None, *paused)])

    @router.put(
        "/{source}/{target}/topics/{topic}/throttle",
        status_code=202,
        responses=refusals(400, 404, 503),
        openapi_extra=json_body(_LIMIT),
    )
    @needs(Role.OPERATOR)
    async def throttle(source: Name, target: Name, topic: Name, request: Request) -> Response:
        """Limit a topic: bytes per second, 0 for no limit, null for the limit of the file."""
        limit = await read_json(request, _limit_of)
        flow = await _with_topic(flow_of, source, target, topic)
        return await changed(flow, [throttle_record(topic, limit)])


def _add_list(router: APIRouter, flow_of: FlowOf) -> None:
    @router.get("/{source}/{target}/topics", response_model=dict[str, Any], responses=refusals(400, 404))
    @needs(Role.VIEWER)
    async def topics(
        source: Name,
        target: Name,
        search: Annotated[str, Query(description="what the name has to contain")] = "",
        offset: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=_MOST_ROWS)] = 100,
    ) -> Response:
        """Topics of the source: ``{"total", "offset", "rows"}``."""
        flow = await flow_of(source, target)
        rows = [one for one in topic_views(flow.partitions) if search in one.topic]
        return JsonAnswer(page_json(rows, offset, limit))


async def _with_topic(flow_of: FlowOf, source: str, target: str, topic: str) -> FlowView:
    flow = await flow_of(source, target)
    if not any(one.topic == topic for one in flow.partitions):
        raise NotFound(f"{flow.name} has no topic {topic}")
    return flow


def _is_paused(view: PartitionView) -> bool:
    return view.state is PartitionState.PAUSED or view.pause is not None


def _reason_of(body: bytes) -> str:
    found = _object_of(body).get("reason", "") if body.strip() else ""
    if not isinstance(found, str) or len(found) > _MOST_REASON:
        raise BadRequest(f"reason is not a text of at most {_MOST_REASON} characters")
    return found


def _limit_of(body: bytes) -> int | None:
    found = _object_of(body)
    limit = found.get("bytes_per_s")
    if "bytes_per_s" not in found or isinstance(limit, bool) or not (limit is None or isinstance(limit, int)):
        raise BadRequest("bytes_per_s is not a number of bytes, or null")
    if limit is not None and not 0 <= limit <= _MOST_LIMIT:
        raise BadRequest(f"bytes_per_s is not from 0 to {_MOST_LIMIT}")
    return limit


def _object_of(body: bytes) -> dict[str, Any]:
    try:
        found = parse_json(body)
    except MalformedBody as error:
        raise BadRequest(str(error)) from None
    if not isinstance(found, dict):
        raise BadRequest("The body is not an object")
    return found
