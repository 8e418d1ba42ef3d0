"""Resources of connectors, their tasks and offsets: ``/connectors``."""

from __future__ import annotations

import urllib.parse
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from mm2.connect.errors import BadRequest, NotFound
from mm2.connect.herder.answers import (
    ConnectorInfo,
    ConnectorOffsets,
    ConnectorStateInfo,
    Created,
    Message,
    TaskInfo,
    TaskStateInfo,
)
from mm2.connect.herder.interface import Herder
from mm2.connect.rest.access.roles import Role
from mm2.connect.rest.failures import JsonAnswer
from mm2.connect.rest.forwarding import RemoteAnswer, Requests, relayed, relayed_nothing
from mm2.connect.rest.request_values import (
    Flag,
    Forward,
    Name,
    TaskNumber,
    java_bool,
    java_int,
    parse_create_request,
    parse_offsets,
    parse_string_map,
    read_json,
)
from mm2.connect.rest.resources.dispatch import CONSUMES_JSON, needs
from mm2.connect.rest.resources.openapi import CREATE_CONNECTOR, NULLABLE_STRINGS, OFFSETS, STRINGS, json_body, refusals
from mm2.connect.stores.config_state import ConnectorTaskId, RestartRequest

log = structlog.get_logger("mm2.connect.rest.connector_resources")

_NAME = "name"
_LOGGED = 200  # characters of a text from a request
Expand = Annotated[list[str] | None, Query(json_schema_extra={"items": {"enum": ["status", "info"]}})]


def connectors_router(herder: Herder, requests: Requests) -> APIRouter:
    """Connectors, their tasks and offsets."""
    router = APIRouter(prefix="/connectors", tags=[CONSUMES_JSON])
    _add_reading(router, herder, requests)
    _add_creation(router, herder, requests)
    _add_modification(router, herder, requests)
    _add_states(router, herder, requests)
    _add_tasks(router, herder, requests)
    _add_topics(router, herder, requests)
    _add_offsets(router, herder, requests)
    return router


def _add_reading(router: APIRouter, herder: Herder, requests: Requests) -> None:
    @router.get("", response_model=list[str] | dict[str, dict[str, Any]], responses=refusals(415))
    @needs(Role.VIEWER)
    async def list_connectors(expand: Expand = None) -> Response:
        """Names of all connectors; with ``expand``, the requested details of each."""
        names = await requests.ask(herder.connectors)
        if expand is None:
            return JsonAnswer(names)
        return JsonAnswer(await requests.ask(_expanded, herder, names, expand))

    @router.get("/{connector}", response_model=ConnectorInfo, responses=refusals(404, 409, 415, 500))
    @needs(Role.VIEWER)
    async def get_connector(connector: Name) -> Response:
        """Configuration and tasks of a connector."""
        return JsonAnswer(await requests.complete(herder.connector_info, connector))

    @router.get("/{connector}/config", response_model=dict[str, str | None], responses=refusals(404, 409, 415, 500))
    @needs(Role.VIEWER)
    async def get_config(connector: Name) -> Response:
        """Configuration of a connector; references to secrets are not resolved."""
        config = await requests.complete(herder.connector_config, connector)
        return JsonAnswer(dict(config))

    @router.get("/{connector}/status", response_model=ConnectorStateInfo, responses=refusals(404, 415))
    @needs(Role.VIEWER)
    async def get_status(connector: Name) -> Response:
        """States of a connector and its tasks."""
        return JsonAnswer(await requests.ask(herder.connector_status, connector))


def _expanded(herder: Herder, names: list[str], expansions: list[str]) -> dict[str, dict[str, Any]]:
    answer: dict[str, dict[str, Any]] = {}
    known = set(expansions) & {"status", "info"}  # a URL can contain each of them hundreds of times
    if unknown := sorted(set(expansions) - known):
        log.info("unknown expansions ignored", expand=", ".join(unknown)[:_LOGGED])
    for name in names:
        details: dict[str, Any] = {}
        try:
            if "status" in known:
                details["status"] = herder.connector_status(name)
            if "info" in known:
                details["info"] = herder.known_connector_info(name)
        except NotFound:
            continue  # deleted meanwhile, or no status yet
        answer[name] = details
    return answer


def _add_creation(router: APIRouter, herder: Herder, requests: Requests) -> None:
    @router.post(
        "",
        status_code=201,
        response_model=ConnectorInfo,
        responses=refusals(408, 409, 413, 415, 500),
        openapi_extra=json_body(CREATE_CONNECTOR),
    )
    @needs(Role.ADMIN)
    async def create_connector(request: Request, forward: Forward = None) -> Response:
        """Create a connector."""
        wanted = await read_json(request, parse_create_request)
        config = _named(wanted.name, wanted.config)
        outcome = await requests.complete_or_forward(
            request,
            herder.put_connector_config,
            wanted.name,
            config,
            allow_replace=False,
            target_state=wanted.initial_state,
        )
        answer = relayed(outcome, 201, lambda created: created.info)
        answer.headers["Location"] = _location(request, wanted.name)
        return answer

    @router.put(
        "/{connector}/config",
        response_model=ConnectorInfo,
        responses=refusals(408, 409, 413, 415, 500) | {201: {"model": ConnectorInfo}},
        openapi_extra=json_body(STRINGS),
    )
    @needs(Role.ADMIN)
    async def put_config(connector: Name, request: Request, forward: Forward = None) -> Response:
        """Create a connector, or replace its configuration."""
        config = _named(connector, await read_json(request, parse_string_map, "configuration"))
        outcome: Created | RemoteAnswer = await requests.complete_or_forward(
            request, herder.put_connector_config, connector, config, allow_replace=True
        )
        is_new = outcome.status == 201 if isinstance(outcome, RemoteAnswer) else outcome.created
        answer = relayed(outcome, 201 if is_new else 200, lambda created: created.info)
        if is_new:
            answer.headers["Location"] = _location(request, connector)
        return answer


def _add_modification(router: APIRouter, herder: Herder, requests: Requests) -> None:
    @router.patch(
        "/{connector}/config",
        response_model=ConnectorInfo,
        responses=refusals(404, 408, 409, 413, 415, 500),
        openapi_extra=json_body(NULLABLE_STRINGS),
    )
    @needs(Role.ADMIN)
    async def patch_config(connector: Name, request: Request, forward: Forward = None) -> Response:
        """Change parts of a configuration; null removes a key (KIP-477)."""
        patch = await read_json(request, parse_string_map, "configuration")
        outcome = await requests.complete_or_forward(request, herder.patch_connector_config, connector, patch)
        return relayed(outcome, 200, lambda created: created.info)

    @router.delete("/{connector}", status_code=204, responses=refusals(404, 409, 415, 500))
    @needs(Role.ADMIN)
    async def delete_connector(connector: Name, request: Request, forward: Forward = None) -> Response:
        """Delete a connector. Its offsets are kept."""
        return relayed_nothing(await requests.complete_or_forward(request, herder.delete_connector_config, connector))


def _add_states(router: APIRouter, herder: Herder, requests: Requests) -> None:
    @router.put("/{connector}/pause", status_code=202, response_class=Response, responses=refusals(404, 415, 500))
    @needs(Role.OPERATOR)
    async def pause(connector: Name) -> Response:
        """Pause a connector and its tasks."""
        await requests.complete(herder.pause_connector, connector)
        return Response(status_code=202)

    @router.put("/{connector}/resume", status_code=202, response_class=Response, responses=refusals(404, 415, 500))
    @needs(Role.OPERATOR)
    async def resume(connector: Name) -> Response:
        """Resume a paused or stopped connector."""
        await requests.complete(herder.resume_connector, connector)
        return Response(status_code=202)

    @router.put("/{connector}/stop", status_code=204, responses=refusals(404, 409, 415, 500))
    @needs(Role.OPERATOR)
    async def stop(connector: Name, request: Request, forward: Forward = None) -> Response:
        """Stop a connector and remove its tasks (KIP-875)."""
        return relayed_nothing(await requests.complete_or_forward(request, herder.stop_connector, connector))

    @router.post(
        "/{connector}/restart",
        status_code=202,
        response_model=ConnectorStateInfo,
        responses=refusals(404, 409, 415, 500)
        | {204: {"description": "The connector, without its tasks, has been restarted."}},
    )
    @needs(Role.OPERATOR)
    async def restart(
        connector: Name,
        request: Request,
        includeTasks: Flag = None,  # noqa: N803 - its name in the API
        onlyFailed: Flag = None,  # noqa: N803
        forward: Forward = None,
    ) -> Response:
        """Restart a connector, its tasks, or those of them that have failed (KIP-745)."""
        include_tasks = java_bool(includeTasks, default=False) is True
        only_failed = java_bool(onlyFailed, default=False) is True
        if not include_tasks and not only_failed:
            return relayed_nothing(await requests.complete_or_forward(request, herder.restart_connector, connector))
        plan = RestartRequest(connector, only_failed=only_failed, include_tasks=include_tasks)
        outcome = await requests.complete_or_forward(request, herder.restart_connector_and_tasks, plan)
        return relayed(outcome, 202, lambda states: states)


def _add_tasks(router: APIRouter, herder: Herder, requests: Requests) -> None:
    @router.get("/{connector}/tasks", response_model=list[TaskInfo], responses=refusals(404, 409, 415, 500))
    @needs(Role.VIEWER)
    async def get_tasks(connector: Name) -> Response:
        """Configurations of the tasks of a connector."""
        tasks = await requests.complete(herder.task_configs, connector)
        return JsonAnswer(tasks)

    @router.get("/{connector}/tasks/{task}/status", response_model=TaskStateInfo, responses=refusals(404, 415))
    @needs(Role.VIEWER)
    async def get_task_status(connector: Name, task: TaskNumber) -> Response:
        """State of a task."""
        state = await requests.ask(herder.task_status, ConnectorTaskId(connector, java_int(task)))
        return JsonAnswer(state)

    @router.post("/{connector}/tasks/{task}/restart", status_code=204, responses=refusals(404, 409, 415, 500))
    @needs(Role.OPERATOR)
    async def restart_task(connector: Name, task: TaskNumber, request: Request, forward: Forward = None) -> Response:
        """Restart a task."""
        task_id = ConnectorTaskId(connector, java_int(task))
        return relayed_nothing(await requests.complete_or_forward(request, herder.restart_task, task_id))


def _add_topics(router: APIRouter, herder: Herder, requests: Requests) -> None:
    @router.get("/{connector}/topics", response_model=dict[str, dict[str, list[str]]], responses=refusals(403, 415))
    @needs(Role.VIEWER)
    async def get_topics(connector: Name) -> Response:
        """Topics that a connector has used (KIP-558)."""
        return JsonAnswer(await requests.ask(herder.connector_topics, connector))

    @router.put(
        "/{connector}/topics/reset", status_code=202, response_class=Response, responses=refusals(403, 415, 500)
    )
    @needs(Role.OPERATOR)
    async def reset_topics(connector: Name) -> Response:
        """Reset the topics that a connector has used."""
        await requests.ask(herder.reset_connector_topics, connector)
        return Response(status_code=202)


def _add_offsets(router: APIRouter, herder: Herder, requests: Requests) -> None:
    @router.get("/{connector}/offsets", response_model=ConnectorOffsets, responses=refusals(404, 409, 415, 500))
    @needs(Role.VIEWER)
    async def get_offsets(connector: Name) -> Response:
        """Offsets of a connector (KIP-875)."""
        return JsonAnswer(await requests.complete(herder.connector_offsets, connector))

    @router.patch(
        "/{connector}/offsets",
        response_model=Message,
        responses=refusals(404, 408, 409, 413, 415, 500),
        openapi_extra=json_body(OFFSETS),
    )
    @needs(Role.ADMIN)
    async def alter_offsets(connector: Name, request: Request, forward: Forward = None) -> Response:
        """Change offsets of a stopped connector; an offset of null removes the offset of a partition."""
        offsets = await read_json(request, parse_offsets)
        outcome = await requests.complete_or_forward(request, herder.alter_connector_offsets, connector, offsets)
        return relayed(outcome, 200, lambda message: message)

    @router.delete("/{connector}/offsets", response_model=Message, responses=refusals(404, 409, 415, 500))
    @needs(Role.ADMIN)
    async def reset_offsets(connector: Name, request: Request, forward: Forward = None) -> Response:
        """Reset the offsets of a stopped connector."""
        outcome = await requests.complete_or_forward(request, herder.reset_connector_offsets, connector)
        return relayed(outcome, 200, lambda message: message)


def _named(name: str, config: dict[str, str | None]) -> dict[str, str | None]:
    """The configuration with its name added. Raises BadRequest when it contains a different name."""
    included = config.get(_NAME)
    if included is None:
        return {**config, _NAME: name}
    if included != name:
        raise BadRequest(f"Connector name configuration ({included}) doesn't match connector name in the URL ({name})")
    return config


def _location(request: Request, name: str) -> str:
    before = request.scope["raw_path"].decode("latin-1").partition("/connectors")[0]
    return f"{before}/connectors/{urllib.parse.quote(name, safe='')}"
