"""``/connector-plugins``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from mm2.connect.errors import BadRequest
from mm2.connect.herder.interface import Herder
from mm2.connect.rest import shapes
from mm2.connect.rest.bodies import parse_string_map
from mm2.connect.rest.dispatch import CONSUMES_JSON
from mm2.connect.rest.documented import json_body, refusals
from mm2.connect.rest.failures import JsonAnswer
from mm2.connect.rest.parameters import Flag, Name, java_bool
from mm2.connect.rest.received import body_of
from mm2.connect.rest.requests import Requests

_ALIAS_SUFFIX = "Connector"
_CONNECTOR_CLASS = "connector.class"


def plugins_router(herder: Herder, requests: Requests) -> APIRouter:
    """The plugins of the worker."""
    router = APIRouter(prefix="/connector-plugins", tags=[CONSUMES_JSON])

    @router.get("", response_model=list[shapes.PluginInfo], responses=refusals(415))
    async def list_plugins(connectorsOnly: Flag = None) -> Response:  # noqa: N803 - its name in the API
        """All connectors; with ``connectorsOnly=false`` also transformations, predicates and converters."""
        only = java_bool(connectorsOnly, default=True)
        plugins = await requests.ask(herder.connector_plugins, connectors_only=only is True)
        return JsonAnswer([plugin.to_json() for plugin in plugins])

    @router.get("/{plugin}/config", response_model=list[shapes.ConfigKeyInfo], responses=refusals(404, 415, 500))
    async def plugin_config(
        plugin: Name, version: Annotated[str | None, Query(description="A version or range; latest if absent.")] = None
    ) -> Response:
        """Definitions of the keys of a plugin."""
        return JsonAnswer(await requests.ask(herder.plugin_config, plugin, version))

    @router.put(
        "/{plugin}/config/validate",
        response_model=shapes.ConfigInfos,
        responses=refusals(408, 413, 415, 500),
        openapi_extra=json_body(shapes.Strings),
    )
    async def validate(plugin: Name, request: Request) -> Response:
        """Validate a configuration without storing it."""
        config = parse_string_map(await body_of(request), "configuration")
        named = config.get(_CONNECTOR_CLASS)
        if named is not None and not _pruned(named).endswith(_pruned(plugin)):
            raise BadRequest(f"Included connector type {named} does not match request type {plugin}")
        infos = await requests.complete(herder.validate_connector_config, config)
        return JsonAnswer(infos.as_json())

    return router


def _pruned(name: str) -> str:
    return name.removesuffix(_ALIAS_SUFFIX) if name != _ALIAS_SUFFIX else name
