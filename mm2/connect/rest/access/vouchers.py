"""What workers prove to each other before they forward requests of clients.

**Proofs.** The address of a leader comes from the Connect group, and a client with READ on the group can become its leader.
So a worker first sends a challenge, and nothing else. The other worker signs it, together with the URL that it advertises,
with the session key of the group (KIP-507), or with the workers' own secret.

**Vouchers.** With a secret of their own (``rest.inter.worker.secret``), a worker also vouches for a client that another worker
cannot authenticate: by a token of the process, a session or a certificate. The voucher contains the client, the worker that
it is for, and what the request is: method, target, digest of the body, time. It is accepted once; workers of Java ignore it.
The session key never authenticates a client: everyone who may read the config topic knows it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.types import Message, Receive

from mm2.connect.request_signing import SessionKey, sign, verify
from mm2.connect.rest.access.roles import Kind, Principal, Role, WrongCredentials
from mm2.connect.rest.failures import RestFailure

VOUCHER_HEADER: Final = "X-Mm2-Voucher"
SIGNATURE_HEADER: Final = "X-Mm2-Voucher-Signature"
#: Time of both machines may differ by this much.
_LIFE_S: Final = 120.0
_CONTEXT: Final = b"mm2 voucher\n"
CHALLENGE_HEADER: Final = "X-Mm2-Challenge"
PROOF_HEADER: Final = "X-Mm2-Proof"
_PROOF_CONTEXT: Final = b"mm2 proof\n"
_FORBIDDEN, _CONFLICT, _UNAVAILABLE = 403, 409, 503
#: A signature and its time take about 200 bytes. The next request is rejected.
_MOST_USED: Final = 20_000


def new_challenge() -> str:
    """A random challenge for another worker."""
    return secrets.token_urlsafe(32)


def proof(key: SessionKey, url: str, challenge: str) -> str:
    """The answer of the worker that advertises ``url``. Another process cannot use it: its URL differs."""
    return base64.b64encode(sign(key.key, _PROOF_CONTEXT + f"{url.rstrip('/')}\n{challenge}".encode())).decode()


@dataclass(frozen=True)
class Voucher:
    """A client, its role at the first worker, and the digest of the body that it sent."""

    principal: Principal
    role: Role
    body_sha256: str


def voucher_headers(
    key: SessionKey, principal: Principal, role: Role, to: str, method: str, target: str, body: bytes
) -> dict[str, str]:
    """The headers of a forwarded request. ``to`` is the URL that the other worker advertises, ``target`` path and query."""
    content = {
        "name": principal.name,
        "kind": str(principal.kind),
        "groups": sorted(principal.groups),
        "role": str(role),
        "to": to.rstrip("/"),
        "method": method,
        "target": target,
        "sha256": hashlib.sha256(body).hexdigest(),
        "at_s": time.time(),
        "nonce": secrets.token_urlsafe(16),
    }
    encoded = base64.b64encode(json.dumps(content).encode())
    signature = sign(key.key, _CONTEXT + encoded)
    return {VOUCHER_HEADER: encoded.decode(), SIGNATURE_HEADER: base64.b64encode(signature).decode()}


class Vouchers:
    """Verifies the vouchers that a worker receives. Each is accepted once, by the worker that it was made for."""

    def __init__(self, own_url: str = "", now_s: Callable[[], float] = time.time) -> None:
        """``own_url``: the advertised URL, to which other workers forward; empty: unknown, and not compared."""
        self._own_url = own_url.rstrip("/")
        self._now_s = now_s
        #: What was accepted before is not known.
        self._since_s = now_s()
        #: Signatures of accepted vouchers with the times until which they are remembered, oldest first.
        self._used: OrderedDict[bytes, float] = OrderedDict()

    def voucher_of(self, headers: Headers, method: str, target: str, key: SessionKey) -> Voucher | None:
        """The voucher of a request; None if it has none. Raises WrongCredentials, and RestFailure 409 or 503."""
        encoded, signature_text = headers.get(VOUCHER_HEADER), headers.get(SIGNATURE_HEADER)
        if encoded is None or signature_text is None:
            return None
        try:
            signature = base64.b64decode(signature_text, validate=True)
            if not verify(key.key, _CONTEXT + encoded.encode(), signature):
                raise WrongCredentials("the signature of a forwarded request is not valid")
            content: Mapping[str, Any] = json.loads(base64.b64decode(encoded, validate=True))
            principal = Principal(content["name"], Kind(content["kind"]), frozenset(content["groups"]))
            voucher = Voucher(principal, Role.named(content["role"]), content["sha256"])
            is_this = (content["method"], content["target"]) == (method, target)
            to = str(content["to"])
            now_s = self._now_s()
            self._since_s = min(self._since_s, now_s)  # the clock may have been set back
            is_new = abs(now_s - content["at_s"]) < _LIFE_S and content["at_s"] >= self._since_s
        except (binascii.Error, ValueError, KeyError, TypeError) as error:
            raise WrongCredentials("the voucher of a forwarded request cannot be read") from error
        if not is_this:
            raise WrongCredentials("the voucher belongs to another request")
        if self._own_url not in {"", to}:
            raise RestFailure(
                _CONFLICT,
                f"Cannot complete request because of a conflicting operation: it was forwarded to {to}, and this worker "
                f"advertises {self._own_url}. Check rest.advertised.host.name and rest.advertised.port of the workers.",
            )
        if not is_new:
            raise WrongCredentials(
                "the voucher is old, or was made before this worker started, or the clocks of two workers differ"
            )
        self._use(signature)
        return voucher

    def _use(self, signature: bytes) -> None:
        now_s = self._now_s()
        while self._used and next(iter(self._used.values())) <= now_s:
            self._used.popitem(last=False)
        if signature in self._used:
            raise WrongCredentials("the voucher of a forwarded request was used before")
        if len(self._used) >= _MOST_USED:
            raise RestFailure(
                _UNAVAILABLE,
                f"Too many requests were forwarded to this worker: {_MOST_USED} within {2 * _LIFE_S:.0f} s.",
                {"Retry-After": "10"},
            )
        self._used[signature] = now_s + 2 * _LIFE_S  # it may have been made by a clock that is fast


def checked_receive(receive: Receive, sha256: str) -> Receive:
    """``receive`` that raises RestFailure at the end of a body with another digest."""
    digest = hashlib.sha256()

    async def receive_checked() -> Message:
        message = await receive()
        if message["type"] == "http.request":
            digest.update(message.get("body", b""))
            if not message.get("more_body", False) and digest.hexdigest() != sha256:
                raise RestFailure(_FORBIDDEN, "The body of the forwarded request is not the one that was signed.")
        return message

    return receive_checked
