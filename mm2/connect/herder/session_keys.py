"""The session key that signs requests between workers: creation, rotation and verification (KIP-507)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from mm2.config.configdef import AbstractConfig
from mm2.connect import request_signing
from mm2.connect.errors import BadRequest, Forbidden, NotReady
from mm2.connect.herder.requests import NEVER
from mm2.connect.request_signing import RequestSignature, SessionKey
from mm2.connect.stores.status_store import now_ms

#: First version of the embedded protocol in which requests are signed.
_SESSIONED: Final = 2


class SessionKeys:
    """The worker's current key. ``stored`` returns that of the herder's view of the config topic. Thread-safe."""

    def __init__(self, config: AbstractConfig, stored: Callable[[], SessionKey | None]) -> None:
        self._algorithm = config.str("inter.worker.key.generation.algorithm")
        self._size_bits = config.get("inter.worker.key.size")
        self._ttl_ms = config.int("inter.worker.key.ttl.ms")
        self._accepted = config.list("inter.worker.verification.algorithms")
        self._stored = stored
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
        now = now_ms()
        due = request_signing.key_is_due(
            self.current, algorithm=self._algorithm, size_bits=self._size_bits, ttl_ms=self._ttl_ms, now_ms=now
        )
        return request_signing.generate_key(self._algorithm, self._size_bits, now) if due else None

    def due_s(self) -> float:
        """Monotonic time at which the current key expires."""
        key = self.current
        if key is None or self._ttl_ms <= 0:
            return NEVER
        return time.monotonic() + max(0, key.creation_timestamp_ms + self._ttl_ms - now_ms()) / 1000

    def verify(self, signature: RequestSignature | None, protocol_version: int) -> None:
        """Check an internal request. Groups whose protocol is older than sessioned do not sign.

        Raises BadRequest, NotReady or Forbidden.
        """
        if protocol_version < _SESSIONED:
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
