"""Session keys and signatures of worker-to-worker requests (KIP-507).

The leader distributes a random key through the config topic; any client that can read that topic can sign requests.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mm2.codec import written_as
from mm2.connect.api import ConnectError
from mm2.connect.errors import BadRequest

#: HTTP headers of a signed request.
SIGNATURE_HEADER: Final = "X-Connect-Authorization"
ALGORITHM_HEADER: Final = "X-Connect-Request-Signature-Algorithm"

# Java accepts these names in any case. Key sizes are the defaults of its KeyGenerator.
_DIGESTS = {
    "HmacMD5": ("md5", 64),
    "HmacSHA1": ("sha1", 64),
    "HmacSHA224": ("sha224", 28),
    "HmacSHA256": ("sha256", 32),
    "HmacSHA384": ("sha384", 48),
    "HmacSHA512": ("sha512", 64),
}
_NAMES = {name.lower(): name for name in _DIGESTS}


@written_as("key algorithm creation-timestamp=creation_timestamp_ms")
@dataclass(frozen=True)
class SessionKey:
    """A session key as stored in the config topic."""

    key: bytes = field(repr=False)
    algorithm: str
    creation_timestamp_ms: int

    @classmethod
    def from_json(cls, value: Any) -> SessionKey:
        """Read the value of a ``session-key`` record. Raises ConnectError naming the invalid field."""
        if not isinstance(value, dict):
            raise ConnectError("A session key record must contain a map")
        key, algorithm, created = value.get("key"), value.get("algorithm"), value.get("creation-timestamp")
        if not isinstance(key, str):
            raise ConnectError("A session key record needs a string field 'key'")
        if not isinstance(algorithm, str):
            raise ConnectError("A session key record needs a string field 'algorithm'")
        if not isinstance(created, int) or isinstance(created, bool):
            raise ConnectError("A session key record needs an integer field 'creation-timestamp'")
        try:
            raw = base64.b64decode(key, validate=True)
        except binascii.Error:
            raise ConnectError("Field 'key' of a session key record is not base64") from None
        return cls(raw, algorithm, created)


def _java_name(algorithm: str) -> str:
    try:
        return _NAMES[algorithm.lower()]
    except KeyError:
        known = ", ".join(_DIGESTS)
        raise ConnectError(f"Unknown MAC algorithm {algorithm!r}; known are {known}") from None


def generate_key(algorithm: str, size_bits: int | None, now_ms: int) -> SessionKey:
    """A new random key with Java's name of the algorithm. ``size_bits`` None selects the algorithm's default.

    Raises ConnectError when the algorithm is unknown.
    """
    name = _java_name(algorithm)
    size_bytes = _DIGESTS[name][1] if size_bits is None else (size_bits + 7) // 8
    return SessionKey(secrets.token_bytes(size_bytes), name, now_ms)


def key_is_due(current: SessionKey | None, *, algorithm: str, size_bits: int | None, ttl_ms: int, now_ms: int) -> bool:
    """Whether the leader has to distribute a new key: none, expired, or not of the configured algorithm.

    ``ttl_ms`` 0 disables rotation by age. Algorithm names are compared case-insensitively. Java compares the user's
    spelling with its own and would write a new key in every tick.
    """
    if current is None:
        return True
    if ttl_ms > 0 and now_ms >= current.creation_timestamp_ms + ttl_ms:
        return True
    if current.algorithm.lower() != algorithm.lower():
        return True
    return size_bits is not None and len(current.key) != (size_bits + 7) // 8


def sign(key: bytes, body: bytes, algorithm: str = "HmacSHA256") -> bytes:
    """The MAC of the exact bytes of a request's body; of no bytes when there is no body."""
    digest, _ = _DIGESTS[_java_name(algorithm)]
    return hmac.new(key, body, getattr(hashlib, digest)).digest()


def signature_headers(key: SessionKey, body: bytes | None, algorithm: str = "HmacSHA256") -> dict[str, str]:
    """The two headers that a signed request carries."""
    signature = sign(key.key, body or b"", algorithm)
    return {SIGNATURE_HEADER: base64.b64encode(signature).decode("ascii"), ALGORITHM_HEADER: algorithm}


def verify(key: bytes, body: bytes, signature: bytes, algorithm: str = "HmacSHA256") -> bool:
    """Whether the signature is valid; compares in constant time."""
    return hmac.compare_digest(sign(key, body, algorithm), signature)


@dataclass(frozen=True)
class RequestSignature:
    """The signature of a received request, and the bytes that it signs."""

    body: bytes = field(repr=False)
    algorithm: str
    signature: bytes = field(repr=False)

    @classmethod
    def from_headers(cls, body: bytes, headers: Mapping[str, str]) -> RequestSignature | None:
        """The signature of a request, None when it has none.

        ``headers`` must be case-insensitive, like those of Starlette. Raises BadRequest for an unknown algorithm and
        for invalid base64.
        """
        algorithm, encoded = headers.get(ALGORITHM_HEADER), headers.get(SIGNATURE_HEADER)
        if algorithm is None or encoded is None:
            return None
        try:
            _java_name(algorithm)
        except ConnectError as error:
            raise BadRequest(str(error)) from None
        try:
            signature = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            raise BadRequest(f"The header {SIGNATURE_HEADER} of the request is not base64") from None
        return cls(body, algorithm, signature)

    def is_valid(self, key: SessionKey) -> bool:
        """Whether it was made with ``key``."""
        return verify(key.key, self.body, self.signature, self.algorithm)
