"""Reads JSON documents over HTTP within limits of size and time, from servers that are not trusted with either."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Final

import httpx

_MAX_REASON: Final = 200


class NoDocument(Exception):
    """No complete answer within the limits. The message continues a sentence about the server, and is for users."""


def read_document(
    client: httpx.Client, url: str, *, max_bytes: int, deadline_s: float, params: Mapping[str, str] | None = None
) -> tuple[int, Any]:
    """The status of the answer and its JSON document, None if it is not JSON.

    ``deadline_s`` is a time of the monotonic clock. A single read is limited by the timeout of the client. Raises NoDocument.
    """
    # Not compressed, so that the limit applies to what is stored.
    headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
    data = bytearray()
    try:
        with client.stream("GET", url, params=params, headers=headers) as answer:
            for chunk in answer.iter_raw():
                data += chunk
                if len(data) > max_bytes:
                    raise NoDocument(f"answered with more than {max_bytes} bytes")
                if time.monotonic() > deadline_s:
                    raise NoDocument("did not answer in time")
    except httpx.TimeoutException as error:
        raise NoDocument("did not answer in time") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise NoDocument(f"gave no answer: {one_line(str(error) or type(error).__name__)}") from error
    try:
        return answer.status_code, json.loads(bytes(data))
    except (ValueError, RecursionError):
        return answer.status_code, None


def one_line(text: str) -> str:
    """The beginning of a text of a server, on one line."""
    return "".join(char if char.isprintable() else " " for char in text[:_MAX_REASON])
