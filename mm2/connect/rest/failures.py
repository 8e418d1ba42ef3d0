"""What goes wrong in an HTTP request, as status and the JSON ``{"error_code", "message"}`` (Kafka's ConnectExceptionMapper)."""

from __future__ import annotations

import base64
import http
import json
from typing import Any, Final

import structlog
from starlette.responses import Response

from mm2.connect.errors import RequestError

log = structlog.get_logger(__name__)

SERVER_ERROR: Final = 500


class RestFailure(Exception):
    """A request that ends with this status; the message is for the caller. ``headers`` go with the answer."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}

    @classmethod
    def plain(cls, status: int, headers: dict[str, str] | None = None) -> RestFailure:
        """The sentence that Java's framework says for a status: ``HTTP 404 Not Found``."""
        return cls(status, f"HTTP {status} {http.HTTPStatus(status).phrase}", headers)


class JsonAnswer(Response):
    """JSON as Jackson writes it: compact, non-ASCII as it is, bytes as base64."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The body."""
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
        # What a plugin says may hold half a surrogate pair; it must not cost the whole answer.
        return text.encode("utf-8", errors="replace")


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(value)).decode("ascii")
    raise TypeError(f"{type(value).__name__} has no JSON form")


def failure_answer(error: BaseException) -> Response:
    """The answer that an exception becomes; what nobody has foreseen is logged with its trace."""
    if isinstance(error, RestFailure):
        return error_answer(error.status, str(error), error.headers)
    if isinstance(error, RequestError):
        return error_answer(error.status, str(error))
    log.error("A REST request failed.", exc_info=error)
    return error_answer(SERVER_ERROR, str(error) or type(error).__name__)


def error_answer(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """``{"error_code": status, "message": message}``."""
    return JsonAnswer({"error_code": status, "message": message}, status_code=status, headers=headers)
