"""Request bodies as received."""

from __future__ import annotations

from starlette.requests import Request

from mm2.connect.rest.failures import RestFailure


async def body_of(request: Request) -> bytes:
    """The body of a request for a resource that reads JSON. Raises RestFailure 415 unless the content type is JSON."""
    body = await request.body()
    if body and "*" in request.headers.get("content-type", "*/*").partition(";")[0]:
        raise RestFailure.plain(415)
    return body
