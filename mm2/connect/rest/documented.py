"""Descriptions of resources for the OpenAPI page."""

from __future__ import annotations

from typing import Any, Final

from pydantic import TypeAdapter

from mm2.connect.rest import shapes

#: The reason for each error status of the REST API.
REASONS: Final = {
    400: "The request or the configuration in it is wrong.",
    403: "Switched off at this worker, or a wrong signature.",
    404: "There is no such connector, task, plugin, logger or status.",
    405: "Not with this method.",
    406: "Answers are JSON.",
    408: "The body did not come in time.",
    409: "Not right now: it exists, or the workers are about to rebalance.",
    413: "The body is too large.",
    415: "Bodies are JSON.",
    500: "The body is malformed, the herder did not answer in time, or the connector failed.",
    503: "The worker has not started up that far.",
}


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error statuses of a resource, with their common shape."""
    return {
        status: {"model": shapes.Error, "description": REASONS[status]} for status in sorted({400, 405, 406, *statuses})
    }


def json_body(shape: Any, *, required: bool = True) -> dict[str, Any]:
    """`openapi_extra` for a body that the resource reads itself."""
    schema = TypeAdapter(shape).json_schema(ref_template="#/components/schemas/{model}")
    schema = _inlined(schema, schema.pop("$defs", {}))
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, dict):
        if "$ref" in schema:
            return _inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
        return {key: _inlined(value, definitions) for key, value in schema.items()}
    if isinstance(schema, list):
        return [_inlined(item, definitions) for item in schema]
    return schema
