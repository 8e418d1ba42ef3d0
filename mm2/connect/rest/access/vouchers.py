"""Requests that a worker forwards for a client: the worker vouches for the client with the session key of the group.

Another worker cannot verify a token or a certificate that the first worker has verified. The voucher contains the
client, and what the request is: method, target, digest of the body, time. It is signed like other requests between
workers (KIP-507); workers of Java ignore it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.types import Message, Receive

from mm2.connect.request_signing import SessionKey, sign, verify
from mm2.connect.rest.access.principal import Kind, Principal, Role, WrongCredentials
from mm2.connect.rest.failures import RestFailure

VOUCHER_HEADER: Final = "X-Mm2-Voucher"
SIGNATURE_HEADER: Final = "X-Mm2-Voucher-Signature"
#: Time of both machines may differ by this much.
_LIFE_S: Final = 120.0
_CONTEXT: Final = b"mm2 voucher\n"
_FORBIDDEN: Final = 403


@dataclass(frozen=True)
class Voucher:
    """A client, its role at the first worker, and the digest of the body that it sent."""

    principal: Principal
    role: Role
    body_sha256: str


def voucher_headers(
    key: SessionKey, principal: Principal, role: Role, method: str, target: str, body: bytes
) -> dict[str, str]:
    """The headers of a forwarded request. ``target`` is path and query."""
    content = {
        "name": principal.name,
        "kind": str(principal.kind),
        "groups": sorted(principal.groups),
        "role": str(role),
        "method": method,
        "target": target,
        "sha256": hashlib.sha256(body).hexdigest(),
        "at_s": time.time(),
    }
    encoded = base64.b64encode(json.dumps(content).encode())
    signature = sign(key.key, _CONTEXT + encoded)
    return {VOUCHER_HEADER: encoded.decode(), SIGNATURE_HEADER: base64.b64encode(signature).decode()}


def voucher_of(headers: Headers, method: str, target: str, key: Callable[[], SessionKey | None]) -> Voucher | None:
    """The voucher of a request; None if it has none. Raises WrongCredentials."""
    encoded, signature = headers.get(VOUCHER_HEADER), headers.get(SIGNATURE_HEADER)
    if encoded is None or signature is None:
        return None
    found = key()
    if found is None:
        raise WrongCredentials("a request was forwarded, and this worker has no session key to verify it with")
    try:
        if not verify(found.key, _CONTEXT + encoded.encode(), base64.b64decode(signature, validate=True)):
            raise WrongCredentials("the signature of a forwarded request is not valid")
        content: Mapping[str, Any] = json.loads(base64.b64decode(encoded, validate=True))
        principal = Principal(content["name"], Kind(content["kind"]), frozenset(content["groups"]))
        voucher = Voucher(principal, Role.named(content["role"]), content["sha256"])
        is_this = (content["method"], content["target"]) == (method, target)
        is_new = abs(time.time() - content["at_s"]) < _LIFE_S
    except (binascii.Error, ValueError, KeyError, TypeError) as error:
        raise WrongCredentials("the voucher of a forwarded request cannot be read") from error
    if not is_this or not is_new:
        raise WrongCredentials("the voucher belongs to another request, or the clocks of two workers differ by minutes")
    return voucher


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
