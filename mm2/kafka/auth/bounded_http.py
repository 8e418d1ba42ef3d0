"""Requests over HTTP within limits of size and time, to servers that are not trusted with either.

All requests of the project use it except those of `mm2.connect.rest.forwarding`, which is asynchronous and has the same limits,
of `mm2.cli.health`, which uses the standard library only, and of botocore.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

import httpx

_MAX_REASON: Final = 200
_TOO_LATE: Final = "no complete response in time"
_NEW_SOCKET: Final = (".connect_tcp.complete", ".start_tls.complete")


class NoDocument(Exception):
    """No complete answer within the limits. The message continues a sentence about the server, and is for users."""


class AnswerTooLarge(httpx.HTTPError):
    """The answer has more bytes than permitted."""


@dataclass(frozen=True)
class HttpAnswer:
    """A complete answer. ``reason`` is the phrase of its status."""

    status: int
    reason: str
    content: bytes = field(repr=False)

    @property
    def is_success(self) -> bool:
        """Whether the status is 2xx."""
        return httpx.codes.is_success(self.status)

    def document(self) -> Any:
        """The JSON document, None if it is not JSON."""
        try:
            return json.loads(self.content)
        except (ValueError, RecursionError):
            return None


def exchange(
    client: httpx.Client,
    method: str,
    url: str,
    *,
    max_bytes: int,
    deadline_s: float,
    headers: Mapping[str, str] | None = None,
    **sent: Any,
) -> HttpAnswer:
    """Send a request and read its answer. ``sent`` are further arguments of `httpx.Client.stream`.

    ``deadline_s`` is a time of the monotonic clock. A single read is limited by the timeout of the client. Raises
    AnswerTooLarge, other httpx.HTTPError or httpx.InvalidURL.
    """
    # Not compressed, so that the limit applies to what is stored. A connection of its own: see `_Deadline`.
    own = {"Accept": "application/json", **(headers or {}), "Accept-Encoding": "identity", "Connection": "close"}
    data = bytearray()
    with _Deadline(deadline_s) as deadline:
        try:
            with client.stream(method, url, headers=own, extensions={"trace": deadline.trace}, **sent) as answer:
                for chunk in answer.iter_raw():
                    data += chunk
                    if len(data) > max_bytes:
                        raise AnswerTooLarge(f"the response has more than {max_bytes} bytes")
                    if time.monotonic() > deadline_s:
                        break
        except httpx.TransportError as error:
            if deadline.is_over:
                raise httpx.ReadTimeout(_TOO_LATE) from error
            raise
    # The end of the connection may look like the end of the answer.
    if deadline.is_over or time.monotonic() > deadline_s:
        raise httpx.ReadTimeout(_TOO_LATE)
    return HttpAnswer(answer.status_code, answer.reason_phrase, bytes(data))


def read_document(
    client: httpx.Client, url: str, *, max_bytes: int, deadline_s: float, params: Mapping[str, str] | None = None
) -> tuple[int, Any]:
    """The status of the answer to a GET and its JSON document, None if it is not JSON.

    The limits are those of `exchange`. Raises NoDocument.
    """
    try:
        answer = exchange(client, "GET", url, max_bytes=max_bytes, deadline_s=deadline_s, params=params)
    except AnswerTooLarge as error:
        raise NoDocument(f"answered with more than {max_bytes} bytes") from error
    except httpx.TimeoutException as error:
        raise NoDocument("did not answer in time") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise NoDocument(f"gave no answer: {one_line(str(error) or type(error).__name__)}") from error
    return answer.status, answer.document()


class _Deadline:
    """Ends the connection of a request when its time is over.

    The timeouts of httpx are those of a single read, so that a header which arrives byte by byte has no limit of time.
    """

    def __init__(self, deadline_s: float) -> None:
        self.is_over = False
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._timer = threading.Timer(max(0.0, deadline_s - time.monotonic()), self._end)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """See the extension "trace" of httpcore: notes the socket of the connection."""
        if event.endswith(_NEW_SOCKET):
            with self._lock:
                self._socket = info["return_value"].get_extra_info("socket")
                self._shut()

    def _end(self) -> None:
        with self._lock:
            self.is_over = True
            self._shut()

    def _shut(self) -> None:
        if self.is_over and self._socket is not None:
            with contextlib.suppress(OSError):
                # Not that of SSLSocket, which would also change what the reading thread uses.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def one_line(text: str) -> str:
    """The beginning of a text of a server, on one line."""
    return "".join(char if char.isprintable() else " " for char in text[:_MAX_REASON])
