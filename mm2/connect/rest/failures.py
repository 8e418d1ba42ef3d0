"""Errors of HTTP requests, as status and JSON ``{"error_code", "message"}`` (Kafka's ConnectExceptionMapper)."""

from __future__ import annotations

import http
import json
from typing import Any, Final

import structlog
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from mm2.codec import encode
from mm2.connect.errors import RequestError

log = structlog.get_logger(__name__)

SERVER_ERROR: Final = 500
_BAD_REQUEST: Final = 400


class RestFailure(Exception):
    """Ends a request with this status; the message is for the caller. ``headers`` are added to the response."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}

    @classmethod
    def plain(cls, status: int, headers: dict[str, str] | None = None) -> RestFailure:
        """The default message of Java's framework for a status: ``HTTP 404 Not Found``."""
        return cls(status, f"HTTP {status} {http.HTTPStatus(status).phrase}", headers)


class JsonAnswer(Response):
    """JSON as Jackson writes it: compact, non-ASCII characters unescaped, bytes as base64."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The body."""
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=encode)
        # A plugin's message may contain an unpaired surrogate, which must not make the whole response fail.
        return text.encode("utf-8", errors="replace")


def failure_answer(error: BaseException) -> Response:
    """The response for an exception; unexpected exceptions are logged with a stack trace."""
    if isinstance(error, RestFailure):
        return error_answer(error.status, str(error), error.headers)
    if isinstance(error, RequestError):
        return error_answer(error.status, str(error))
    if isinstance(error, ClientDisconnect):  # no client receives this response
        return error_answer(_BAD_REQUEST, "The client has closed the connection before the end of its request")
    log.error("REST request failed", exc_info=error)
    return error_answer(SERVER_ERROR, str(error) or type(error).__name__)


def error_answer(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """``{"error_code": status, "message": message}``."""
    return JsonAnswer({"error_code": status, "message": message}, status_code=status, headers=headers)
