"""Requests from one worker to another over REST, signed with the session key (KIP-507, spec connect B.5)."""

from __future__ import annotations

import ssl
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from mm2.connect.api import ConnectError
from mm2.connect.herder import sessions
from mm2.connect.herder.sessions import SessionKey
from mm2.kafka.settings import ClientSettings
from mm2.kafka.tls import build_ssl_context

_TIMEOUT_S = 100.0


class RequestRefused(ConnectError):
    """Another worker answered with an error. ``status`` is that of HTTP, None when there was no answer."""

    def __init__(self, message: str, status: int | None) -> None:
        super().__init__(message)
        self.status = status


class InternalRequests:
    """What a worker may ask the leader for. Thread-safe; nothing is kept open.

    ``namespace`` is what a leader's paths begin with: source and target alias in MirrorMaker's dedicated mode.
    ``props`` are the worker's, for the ``ssl.*`` settings with which a leader's https is checked (``listeners.https.``
    wins, as for the listener itself).
    """

    def __init__(self, props: Mapping[str, str], *, namespace: Sequence[str] = (), algorithm: str) -> None:
        self._props = dict(props)
        self._namespace = tuple(namespace)
        self._algorithm = algorithm

    def fence(self, leader_url: str, connector: str, key: SessionKey) -> None:
        """Have the leader fence older tasks of a connector; returns when it has. Raises RequestRefused."""
        parts = [*self._namespace, "connectors", connector, "fence"]
        path = "/".join(urllib.parse.quote(part, safe="") for part in parts)
        self._put(f"{leader_url.rstrip('/')}/{path}", key)

    def _put(self, url: str, key: SessionKey) -> None:
        headers = {
            "Accept": "application/json",
            "Content-Type": "application/json",
            "User-Agent": "kafka-connect",
            **sessions.signature_headers(key, None, self._algorithm),
        }
        try:
            response = httpx.put(
                url,
                headers=headers,
                timeout=_TIMEOUT_S,
                verify=self._trust(url),
                follow_redirects=False,
                trust_env=False,
            )
        except httpx.HTTPError as error:
            raise RequestRefused(f"{url} gave no answer: {error or type(error).__name__}", None) from error
        if not response.is_success:
            raise RequestRefused(f"{url} answered {response.status_code}{_message(response)}", response.status_code)

    def _trust(self, url: str) -> ssl.SSLContext | bool:
        if not url.startswith("https:"):
            return True
        prefix = "listeners.https."
        own = {key.removeprefix(prefix): value for key, value in self._props.items() if key.startswith(prefix)}
        settings = ClientSettings.from_props({**self._props, **own, "security.protocol": "SSL"})
        return build_ssl_context(settings.tls) if settings.tls is not None else True


def _message(response: httpx.Response) -> str:
    try:
        answer: Any = response.json()
    except ValueError:
        return ""
    message = answer.get("message") if isinstance(answer, Mapping) else None
    return f": {message}" if isinstance(message, str) else ""
