"""Requests from one worker to another over REST, signed with the session key (KIP-507)."""

from __future__ import annotations

import json
import ssl
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from mm2.connect import request_signing
from mm2.connect.api import ConnectError
from mm2.connect.request_signing import SessionKey
from mm2.connect.stores.config_state import Props
from mm2.connect.tls import client_context

_TIMEOUT_S = 100.0


class RequestRefused(ConnectError):
    """Another worker responded with an error. ``status`` is the HTTP status, None when there was no response."""

    def __init__(self, message: str, status: int | None) -> None:
        super().__init__(message)
        self.status = status


class InternalRequests:
    """Requests of a worker to the leader. Thread-safe; connections are not kept open.

    ``namespace`` is the prefix of the leader's paths: source and target alias in MirrorMaker's dedicated mode.
    ``props`` are the worker's, for the TLS settings that verify a leader's https (:mod:`mm2.connect.tls`).
    """

    def __init__(self, props: Mapping[str, str], *, namespace: Sequence[str] = (), algorithm: str) -> None:
        self._props = dict(props)
        self._namespace = tuple(namespace)
        self._algorithm = algorithm

    def fence(self, leader_url: str, connector: str, key: SessionKey | None) -> None:
        """Request the leader to fence older tasks of a connector; returns when it has. Raises RequestRefused."""
        self._send("PUT", leader_url, ["connectors", connector, "fence"], None, key)

    def put_task_configs(
        self, leader_url: str, connector: str, configs: Sequence[Props], key: SessionKey | None
    ) -> None:
        """Request the leader to publish the task configs of a connector that runs here. Raises RequestRefused."""
        body = json.dumps([dict(props) for props in configs], ensure_ascii=False, separators=(",", ":")).encode()
        self._send("POST", leader_url, ["connectors", connector, "tasks"], body, key)

    def _send(
        self, method: str, leader_url: str, path: Sequence[str], body: bytes | None, key: SessionKey | None
    ) -> None:
        """``key`` None: the group does not sign."""
        parts = [urllib.parse.quote(part, safe="") for part in (*self._namespace, *path)]
        url = f"{leader_url.rstrip('/')}/{'/'.join(parts)}"
        headers = {
            "Accept": "application/json",
            "Content-Type": "application/json",
            "User-Agent": "kafka-connect",
            **({} if key is None else request_signing.signature_headers(key, body, self._algorithm)),
        }
        try:
            response = httpx.request(
                method,
                url,
                content=body,
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
        return client_context(self._props) if url.startswith("https:") else True


def _message(response: httpx.Response) -> str:
    try:
        answer: Any = response.json()
    except ValueError:
        return ""
    message = answer.get("message") if isinstance(answer, Mapping) else None
    return f": {message}" if isinstance(message, str) else ""
