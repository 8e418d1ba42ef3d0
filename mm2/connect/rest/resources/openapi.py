"""Description of the resources: ``/openapi.json``, and an HTML page of it without external resources (``/docs``)."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from fastapi.responses import HTMLResponse, Response

from mm2.connect.herder.loggers import LEVELS
from mm2.connect.rest.access.roles import Role
from mm2.connect.rest.failures import JsonAnswer
from mm2.connect.rest.request_values import INITIAL_STATES
from mm2.connect.rest.resources.dispatch import needs


def _object_of(properties: Mapping[str, Any], required: Iterable[str] | None = None) -> Mapping[str, Any]:
    """Schema of an object without other properties; by default all properties are required."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties if required is None else required),
        "additionalProperties": False,
    }


#: The reason for each error status of the REST API.
REASONS: Final = {
    400: "The request or the configuration in it is invalid.",
    403: "The feature is disabled on this worker, or the signature is invalid.",
    404: "The connector, task, plugin, logger or status does not exist.",
    405: "The resource does not support this method.",
    406: "The client does not accept JSON.",
    408: "The request body was not received in time.",
    409: "The connector already exists, or a rebalance is expected.",
    413: "The request body is too large.",
    415: "The request body is not JSON.",
    500: "The body is malformed, the herder did not respond in time, or the connector failed.",
    503: "The worker is still starting, or handles too many requests at the same time.",
}


@dataclass(frozen=True)
class ErrorBody:
    """Body of every response with an error."""

    #: The HTTP status.
    error_code: int
    message: str | None


# Request bodies. Resources read them themselves, as Jackson does, so no class is generated from them.
STRINGS: Final[Mapping[str, Any]] = {"type": "object", "additionalProperties": {"type": "string"}}
NULLABLE_STRINGS: Final[Mapping[str, Any]] = {"type": "object", "additionalProperties": {"type": ["string", "null"]}}
STRING_MAPS: Final[Mapping[str, Any]] = {"type": "array", "items": STRINGS}
CREATE_CONNECTOR: Final = _object_of(
    {
        "name": {"type": "string", "minLength": 1, "pattern": "^[A-Za-z0-9._-]+$"},
        "config": STRINGS,
        "initial_state": {"enum": [*INITIAL_STATES, None]},
    },
    required=("name", "config"),
)
#: An offset of null removes the offset of the partition.
OFFSETS: Final = _object_of(
    {
        "offsets": {
            "type": "array",
            "minItems": 1,
            "items": _object_of({"partition": {"type": "object"}, "offset": {"type": ["object", "null"]}}),
        }
    }
)
SET_LEVEL: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"level": {"type": "string", "enum": list(LEVELS)}},
    "required": ["level"],
}


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error statuses of a resource, with their common body."""
    of_all = {400, 405, 406, 503}
    return {status: {"model": ErrorBody, "description": REASONS[status]} for status in sorted(of_all.union(statuses))}


def json_body(schema: Mapping[str, Any]) -> dict[str, Any]:
    """`openapi_extra` for a body that the resource reads itself."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem}"
    "code{font-size:1.05em}h2{margin:2rem 0 0;font-size:1rem}.m{display:inline-block;min-width:4.5rem;font-weight:700}"
    "dl{margin:.2rem 0 0 4.5rem;display:grid;grid-template-columns:max-content 1fr;gap:0 1rem}dd{margin:0}"
    "p{margin:.1rem 0 0 4.5rem}"
)


def page_router(app: FastAPI) -> APIRouter:
    """Both resources for `app`. They are not part of the description."""
    router = APIRouter()

    @router.get("/openapi.json", include_in_schema=False)
    @needs(Role.VIEWER)
    async def openapi() -> Response:
        return JsonAnswer(app.openapi())

    @router.get("/docs", include_in_schema=False, response_class=HTMLResponse)
    @needs(Role.VIEWER)
    async def docs() -> Response:
        return HTMLResponse(page_of(app.openapi()))

    return router


def page_of(description: dict[str, Any]) -> str:
    """The description as a page: each operation with its parameters and statuses."""
    title = html.escape(f"{description['info']['title']} {description['info']['version']}")
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>",
        '<p style="margin:0">As JSON: <a href="openapi.json">openapi.json</a></p>',
    ]
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            parts.append(f"<h2><span class=m>{method.upper()}</span> <code>{html.escape(path)}</code></h2>")
            parts.append(f"<p>{html.escape(operation.get('description', ''))}</p><dl>")
            for parameter in operation.get("parameters", ()):
                text = html.escape(parameter.get("description") or parameter["in"])
                parts.append(f"<dt><code>{html.escape(parameter['name'])}</code></dt><dd>{text}</dd>")
            for status, answer in sorted(operation["responses"].items()):
                parts.append(f"<dt>{html.escape(status)}</dt><dd>{html.escape(answer.get('description', ''))}</dd>")
            parts.append("</dl>")
    return "".join(parts)
