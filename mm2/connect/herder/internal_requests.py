"""Requests from one worker to another over REST, and the session key that signs them (KIP-507)."""

from __future__ import annotations

import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import httpx

from mm2.codec import json_bytes
from mm2.config.configdef import AbstractConfig
from mm2.connect import request_signing
from mm2.connect.api import ConnectError
from mm2.connect.errors import BadRequest, Conflict, Forbidden, NotReady
from mm2.connect.herder.request_queue import NEVER
from mm2.connect.request_signing import RequestSignature, SessionKey
from mm2.connect.stores.config_state import Props
from mm2.connect.stores.status_store import now_ms
from mm2.connect.tls import client_context
from mm2.kafka.auth.bounded_http import exchange


class SessionKeys:
    """The worker's current key. Thread-safe.

    ``stored`` returns the key of the herder's view of the config topic, ``signs`` whether the group signs requests: its
    protocol is sessioned.
    """

    def __init__(
        self, config: AbstractConfig, stored: Callable[[], SessionKey | None], signs: Callable[[], bool]
    ) -> None:
        self._algorithm = config.str("inter.worker.key.generation.algorithm")
        self._size_bits = config.get("inter.worker.key.size")
        self._ttl_ms = config.int("inter.worker.key.ttl.ms")
        self._accepted = config.list("inter.worker.verification.algorithms")
        self._stored = stored
        self._signs = signs
        self._lock = threading.Lock()
        self._newest: SessionKey | None = None

    @property
    def current(self) -> SessionKey | None:
        """The current key, None before there is one."""
        with self._lock:
            return self._newest or self._stored()

    def accept(self, key: SessionKey) -> None:
        """Use a key that was read from the config topic, or written to it."""
        with self._lock:
            self._newest = key

    def replacement(self) -> SessionKey | None:
        """For the leader: a new key if one is due. Write it, then call `accept`."""
        if not self._signs():
            return None
        now = now_ms()
        due = request_signing.key_is_due(
            self.current, algorithm=self._algorithm, size_bits=self._size_bits, ttl_ms=self._ttl_ms, now_ms=now
        )
        return request_signing.generate_key(self._algorithm, self._size_bits, now) if due else None

    def due_s(self) -> float:
        """Monotonic time at which the leader has to replace the current key."""
        key = self.current
        if key is None or self._ttl_ms <= 0 or not self._signs():
            return NEVER
        return time.monotonic() + max(0, key.creation_timestamp_ms + self._ttl_ms - now_ms()) / 1000

    def signing_key(self, url: str) -> SessionKey | None:
        """The key to sign a request to ``url`` with; None if the group does not sign.

        Raises RequestRefused when there is no key yet.
        """
        key = self.current
        if key is None and self._signs():
            raise RequestRefused(f"There is no session key yet to sign a request to {url} with", 503)
        return key

    def verify(self, signature: RequestSignature | None, *, is_permitted: bool) -> None:
        """Check an internal request. Raises BadRequest, Conflict, NotReady or Forbidden.

        ``is_permitted``: the client may send it unsigned while the group does not sign. Any member of the group can end the signing.
        """
        if not self._signs():
            if not is_permitted:
                raise Conflict("The group does not sign requests any more since this one was received; send it again.")
            return
        if signature is None:
            raise BadRequest("Internal request missing required signature")
        if signature.algorithm not in self._accepted:
            raise BadRequest(
                f"This worker does not support the '{signature.algorithm}' key signing algorithm used by other workers. "
                f"This worker is currently configured to use: [{', '.join(self._accepted)}]. Check that all workers' configuration "
                "files permit the same set of signature algorithms (inter.worker.verification.algorithms), and correct any "
                "misconfigured worker and restart it."
            )
        key = self.current
        if key is None:
            raise NotReady(
                "This worker is still starting up and has not been able to read a session key from the config topic yet"
            )
        if not signature.is_valid(key):
            raise Forbidden("Internal request contained invalid signature.")


_HTTPS = "https:"
_TIMEOUT_S = 100.0
#: Of the leader's response: it has no body, or a message.
_MOST_BYTES = 1 << 20


class RequestRefused(ConnectError):
    """Another worker responded with an error. ``status`` is the HTTP status, None when there was no response."""

    def __init__(self, message: str, status: int | None) -> None:
        super().__init__(message)
        self.status = status


class InternalRequests:
    """Requests of a worker to the leader. Thread-safe; connections are not kept open.

    ``namespace`` is the prefix of the leader's paths: source and target alias in MirrorMaker's dedicated mode.
    ``props`` are those of the REST server, for the TLS settings of requests to a leader's https (:mod:`mm2.connect.tls`).
    ``own_url`` is the URL of this worker. If it is https, nothing is sent by http: any client with READ on the group can name a URL.
    """

    def __init__(
        self, props: Mapping[str, str], *, namespace: Sequence[str] = (), algorithm: str, own_url: str = ""
    ) -> None:
        self._props = dict(props)
        self._namespace = tuple(namespace)
        self._algorithm = algorithm
        self._needs_tls = own_url.startswith(_HTTPS)

    @classmethod
    def of(
        cls, config: AbstractConfig, rest_props: Mapping[str, str] | None, *, namespace: Sequence[str], own_url: str
    ) -> Self:
        """With the settings of a worker, which are also those of its REST server unless ``rest_props`` is given."""
        props = {key: str(value) for key, value in (config.originals if rest_props is None else rest_props).items()}
        algorithm = config.str("inter.worker.signature.algorithm")
        return cls(props, namespace=namespace, algorithm=algorithm, own_url=own_url)

    def fence(self, leader_url: str, connector: str, key: SessionKey | None) -> None:
        """Request the leader to fence older tasks of a connector; returns when it has. Raises RequestRefused."""
        self._send("PUT", leader_url, ["connectors", connector, "fence"], None, key)

    def put_task_configs(
        self, leader_url: str, connector: str, configs: Sequence[Props], key: SessionKey | None
    ) -> None:
        """Request the leader to publish the task configs of a connector that runs here. Raises RequestRefused."""
        body = json_bytes([dict(props) for props in configs])
        self._send("POST", leader_url, ["connectors", connector, "tasks"], body, key)

    def _send(
        self, method: str, leader_url: str, path: Sequence[str], body: bytes | None, key: SessionKey | None
    ) -> None:
        """``key`` None: the group does not sign."""
        if self._needs_tls and not leader_url.startswith(_HTTPS):
            raise RequestRefused(
                f"Nothing is sent to the leader at {leader_url}, which uses no TLS, and this worker does. Serve https on all workers.",
                None,
            )
        parts = [urllib.parse.quote(part, safe="") for part in (*self._namespace, *path)]
        url = f"{leader_url.rstrip('/')}/{'/'.join(parts)}"
        headers = {
            "Accept": "application/json",
            "Content-Type": "application/json",
            "User-Agent": "kafka-connect",
            **({} if key is None else request_signing.signature_headers(key, body, self._algorithm)),
        }
        try:
            with httpx.Client(
                timeout=_TIMEOUT_S, verify=self._trust(url), follow_redirects=False, trust_env=False
            ) as client:
                answer = exchange(
                    client,
                    method,
                    url,
                    max_bytes=_MOST_BYTES,
                    deadline_s=time.monotonic() + _TIMEOUT_S,
                    headers=headers,
                    content=body,
                )
        except httpx.HTTPError as error:
            raise RequestRefused(f"No response from {url}: {error or type(error).__name__}", None) from error
        if not answer.is_success:
            raise RequestRefused(f"{url} answered {answer.status}{_message(answer.document())}", answer.status)

    def _trust(self, url: str) -> ssl.SSLContext | bool:
        return client_context(self._props) if url.startswith("https:") else True


def _message(answer: Any) -> str:
    message = answer.get("message") if isinstance(answer, Mapping) else None
    return f": {message}" if isinstance(message, str) else ""
