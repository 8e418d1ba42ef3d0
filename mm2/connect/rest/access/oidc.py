"""Authentication by bearer tokens of an OpenID Connect issuer: signed JWTs (RFC 7519) in ``Authorization: Bearer``.

The rules are those of RFC 8725 and RFC 9068: the signature has one of the algorithms that need a public key of the
issuer, and ``iss``, ``aud``, ``exp`` and ``nbf`` are checked. ID tokens and access tokens are accepted; tokens of other
types, such as logout tokens, and tokens that are bound to a key of the client (``cnf``) are not. A token in a URL is
ignored, since URLs are logged.

The keys of the issuer (JWKS, RFC 7517) are found by OpenID Connect Discovery or at a configured URL. They are read in a
thread: requests whose key is known never wait for the issuer. An unknown key id makes them be read again, since the
issuer may have replaced its keys, but not more often than ``jwks.endpoint.retry.backoff.max.ms``: anybody can send tokens
with unknown key ids. While the issuer is unreachable, the keys that are known stay in use until they have twice the age
of ``jwks.endpoint.refresh.ms``. Kafka's RefreshingHttpsJwks has no such limit; here a key that the issuer has revoked
must not stay valid because the issuer is kept unreachable.

The settings are in their own module, because the libraries that this one needs take time to load.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import jwt
import structlog
from cryptography.hazmat.primitives.asymmetric import rsa
from starlette.datastructures import Headers

from mm2.config.configdef import ConfigException
from mm2.connect.rest.access.authenticators import bearer_of
from mm2.connect.rest.access.oidc_settings import OidcSettings, discovery_url, url_failure
from mm2.connect.rest.access.roles import Kind, Principal, RequestPeer, WrongCredentials
from mm2.connect.rest.failures import RestFailure
from mm2.kafka.auth.bounded_http import NoDocument, read_document
from mm2.kafka.auth.tls import build_ssl_context
from mm2.kafka.settings.sasl_settings import shown_url

log = structlog.get_logger(__name__)

#: Time for both requests together, and for each step of a connection.
_TIMEOUT_S: Final = 10.0
_STEP_TIMEOUT_S: Final = 5.0
_MAX_DOCUMENT_BYTES: Final = 512 * 1024
_MAX_KEYS: Final = 100
_RSA_BITS: Final = range(2048, 8192 + 1)
_OK: Final = 200
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_ALGORITHMS: Final = {
    ("RSA", None): _RSA,
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}
ALGORITHMS: Final = frozenset(name for names in _ALGORITHMS.values() for name in names)
"""Signature algorithms with a public key; neither ``none`` nor HMAC."""
_PUBLIC_MEMBERS: Final = frozenset({"kty", "n", "e", "crv", "x", "y"})
_MAX_TOKEN_CHARS: Final = 16 * 1024
_MAX_NAME_CHARS: Final = 255
_TYPES: Final = frozenset({"jwt", "at+jwt", "application/at+jwt"})
_REQUIRED: Final = ["exp", "iss", "aud"]
_UNAVAILABLE: Final = 503
_REASONS: Final[Mapping[type[jwt.PyJWTError], str]] = {
    jwt.ExpiredSignatureError: "the token has expired",
    jwt.ImmatureSignatureError: "the token is not valid yet; the clocks may differ",
    jwt.InvalidAudienceError: "the token is for another audience",
    jwt.InvalidIssuerError: "the token is from another issuer",
    jwt.InvalidSignatureError: "the signature of the token is wrong",
    jwt.InvalidKeyError: "the key of the issuer cannot be used",
}


class KeysUnavailable(Exception):
    """The issuer's keys are not known now. The message is for the log and contains no secret."""


@dataclass(frozen=True)
class VerificationKey:
    """A public key of the issuer and the algorithms that it may be used with."""

    kid: str | None
    algorithms: tuple[str, ...]
    key: Any = field(repr=False)

    @classmethod
    def of(cls, jwk: Any) -> VerificationKey | None:
        """A member of a JWKS; None for one that cannot verify signatures, as RFC 7517, section 5, requires."""
        if not isinstance(jwk, Mapping) or not _is_for_signatures(jwk):
            return None
        kid, kty, curve, named = (jwk.get(name) for name in ("kid", "kty", "crv", "alg"))
        if not all(value is None or isinstance(value, str) for value in (kid, kty, curve, named)):
            return None
        fitting = _ALGORITHMS.get((kty or "", None if kty == "RSA" else curve), ())
        algorithms = fitting if named is None else tuple(name for name in fitting if name == named)
        if not algorithms:
            return None
        try:
            key = jwt.PyJWK({name: jwk[name] for name in _PUBLIC_MEMBERS & jwk.keys()}, algorithms[0]).key
        except (jwt.PyJWTError, TypeError, ValueError):
            return None
        if isinstance(key, rsa.RSAPublicKey) and key.key_size not in _RSA_BITS:
            return None
        return cls(kid, algorithms, key)


@dataclass(frozen=True)
class _KeySet:
    """Keys, and the time of the monotonic clock at which they were requested."""

    keys: tuple[VerificationKey, ...]
    since_s: float

    def select(self, kid: str | None, algorithm: str) -> list[VerificationKey]:
        """The keys of an id. Without an id, the only key (OpenID Connect Core, section 10.1)."""
        fitting = [key for key in self.keys if algorithm in key.algorithms]
        if kid is None:
            return fitting if len(fitting) == 1 else []
        return [key for key in fitting if key.kid == kid]


class TokenKeys:
    """The keys of one issuer; safe for use by several event loops."""

    def __init__(
        self,
        settings: OidcSettings,
        read: Callable[[OidcSettings], tuple[VerificationKey, ...]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``read`` replaces :func:`read_keys`, and ``clock`` returns seconds."""
        self._settings = settings
        self._read = read or read_keys
        self._clock = clock
        self._lock = threading.Lock()
        self._known: _KeySet | None = None
        self._failure: str | None = None
        self._failures = 0
        self._next_read_s = float("-inf")
        self._reading: Future[None] | None = None

    async def find(self, kid: str | None, algorithm: str) -> list[VerificationKey]:
        """The issuer's keys that a token may be signed with; [] if it has none of this id. Raises KeysUnavailable."""
        known = self._usable()
        if known is not None and (found := known.select(kid, algorithm)):
            if self._clock() - known.since_s > self._settings.refresh_s:
                self.refresh()
            return found
        reading = self.refresh()
        if reading is not None:
            try:
                await asyncio.wait_for(asyncio.wrap_future(reading), _TIMEOUT_S)
            except TimeoutError:
                raise KeysUnavailable(f"no answer within {_TIMEOUT_S:.0f} s") from None
        known = self._usable()
        found = [] if known is None else known.select(kid, algorithm)
        if not found and (known is None or self._failure is not None):
            raise KeysUnavailable(self._failure or "not read yet")
        return found

    def refresh(self) -> Future[None] | None:
        """Read the keys in the background unless this has just been done. The read that is running, or None."""
        with self._lock:
            if self._reading is None and self._clock() >= self._next_read_s:
                self._reading = Future()
                self._reading.set_running_or_notify_cancel()  # no waiting request can cancel it
                # A daemon, so that a slow issuer does not delay the end of the process.
                threading.Thread(target=self._update, args=(self._reading,), name="token-keys", daemon=True).start()
            return self._reading

    def _usable(self) -> _KeySet | None:
        known = self._known
        if known is None or self._clock() - known.since_s > 2 * self._settings.refresh_s:
            return None
        return known

    def _update(self, reading: Future[None]) -> None:
        """Runs in the thread."""
        began_s = self._clock()
        keys, failure = None, None
        try:
            keys = self._read(self._settings)
        except KeysUnavailable as error:
            failure = str(error)
        except Exception as error:
            log.exception("Keys of the issuer of tokens cannot be read.")
            failure = type(error).__name__
        with self._lock:
            if keys is not None:
                self._known = _KeySet(keys, began_s)
            before, self._failure = self._failure, failure
            self._failures = 0 if failure is None else self._failures + 1
            backoff = self._settings.backoff
            delay_s = backoff.max_ms / 1000 if failure is None else backoff.delay_s(self._failures - 1)
            self._next_read_s = self._clock() + delay_s
            self._reading = None
        if failure is not None and failure != before:
            log.warning(
                "Keys of the issuer of tokens cannot be read; unknown keys are not accepted.",
                issuer=self._settings.issuer,
                reason=failure,
            )
        elif failure is None and before is not None:
            log.info("Keys of the issuer of tokens have been read.", issuer=self._settings.issuer)
        reading.set_result(None)


def read_keys(settings: OidcSettings) -> tuple[VerificationKey, ...]:
    """Request the keys from the issuer; blocks up to some seconds. Raises KeysUnavailable."""
    deadline_s = time.monotonic() + _TIMEOUT_S
    try:
        verify: ssl.SSLContext = build_ssl_context(settings.tls)
    except ConfigException as error:
        raise KeysUnavailable(str(error)) from error
    # A redirect could lead to another host; TLS would authenticate that one instead. Without TLS, requests stay on this machine:
    # the proxy of the environment could replace the keys.
    with httpx.Client(
        verify=verify,
        timeout=_STEP_TIMEOUT_S,
        follow_redirects=False,
        mounts={"http://": httpx.HTTPTransport()},
    ) as client:
        url = settings.keys_url or _discovered(client, settings.issuer, deadline_s)
        document = _document(client, url, deadline_s)
    members = document.get("keys")
    if not isinstance(members, list) or len(members) > _MAX_KEYS:
        raise KeysUnavailable(f"{_shown(url)} is not a list of up to {_MAX_KEYS} keys (RFC 7517)")
    keys = tuple(key for key in map(VerificationKey.of, members) if key is not None)
    if not keys:
        raise KeysUnavailable(f"{_shown(url)} has no key for the signature algorithms {', '.join(sorted(ALGORITHMS))}")
    return keys


class OidcAuthenticator:
    """``Authorization: Bearer`` with a token of one issuer."""

    def __init__(self, settings: OidcSettings, keys: TokenKeys | None = None) -> None:
        """The keys are requested in the background, so that an unreachable issuer is in the log from the start."""
        self._settings = settings
        self._keys = keys or TokenKeys(settings)
        self._keys.refresh()

    @property
    def challenge(self) -> str | None:
        """See Authenticator (RFC 6750)."""
        return 'Bearer realm="Kafka Connect"'

    async def authenticate(self, headers: Headers, peer: RequestPeer) -> Principal | None:
        """See Authenticator. Also raises RestFailure 503 while the issuer's keys are not known."""
        token = bearer_of(headers)
        return None if token is None else _principal(self._settings, await self._claims(token))

    async def _claims(self, token: str) -> dict[str, Any]:
        kid, algorithm = _key_id(token)
        try:
            keys = await self._keys.find(kid, algorithm)
        except KeysUnavailable:
            raise RestFailure(
                _UNAVAILABLE,
                "The token cannot be verified now, because the keys of its issuer cannot be read.",
                {"Retry-After": "10"},
            ) from None
        failure = "the issuer has no key with the key id and the algorithm of the token"
        for key in keys:  # usually one; an issuer may use an id for several keys
            try:
                return self._verified(token, algorithm, key)
            except jwt.PyJWTError as error:
                failure = _REASONS.get(type(error), "a claim of the token is missing or has the wrong type")
        raise WrongCredentials(failure)

    def _verified(self, token: str, algorithm: str, key: VerificationKey) -> dict[str, Any]:
        """The claims of a valid token. Raises PyJWTError."""
        return jwt.decode(
            token,
            key.key,
            algorithms=[algorithm],  # one of the key's, see TokenKeys.find
            audience=self._settings.audiences,
            issuer=self._settings.issuer,
            leeway=self._settings.skew_s,
            options={"require": _REQUIRED, "enforce_minimum_key_length": True},
        )


def _discovered(client: httpx.Client, issuer: str, deadline_s: float) -> str:
    """The URL of the keys (OpenID Connect Discovery, section 4)."""
    url = discovery_url(issuer)
    document = _document(client, url, deadline_s)
    if document.get("issuer") != issuer:
        raise KeysUnavailable(f"{_shown(url)} is not about this issuer")
    found = document.get("jwks_uri")
    if not isinstance(found, str):
        raise KeysUnavailable(f"{_shown(url)} has no jwks_uri")
    return found


def _document(client: httpx.Client, url: str, deadline_s: float) -> dict[str, Any]:
    """A JSON object of limited size."""
    if reason := url_failure(url):
        raise KeysUnavailable(f"{_shown(url)} is not called: it {reason}")
    try:
        status, document = read_document(client, url, max_bytes=_MAX_DOCUMENT_BYTES, deadline_s=deadline_s)
    except NoDocument as failure:
        raise KeysUnavailable(f"{_shown(url)} {failure}") from failure
    if status != _OK:
        raise KeysUnavailable(f"{_shown(url)} answered with HTTP {status}")
    if not isinstance(document, dict):
        raise KeysUnavailable(f"{_shown(url)} did not answer with a JSON object")
    return document


def _is_for_signatures(jwk: Mapping[str, Any]) -> bool:
    operations = jwk.get("key_ops")
    return jwk.get("use", "sig") == "sig" and (
        operations is None or (isinstance(operations, list) and "verify" in operations)
    )


def _shown(url: str) -> str:
    """A URL without user, password and query."""
    try:
        return urllib.parse.urlsplit(shown_url(url))._replace(query="", fragment="").geturl()[:200]
    except ValueError:
        return "an invalid URL"


def _key_id(token: str) -> tuple[str | None, str]:
    """Key id and algorithm in the header of a token, which is not verified yet. Raises WrongCredentials."""
    if len(token) > _MAX_TOKEN_CHARS:
        raise WrongCredentials(f"the token has more than {_MAX_TOKEN_CHARS} characters")
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, UnicodeError):
        raise WrongCredentials("the token is not a signed JWT") from None
    algorithm, kind = header.get("alg"), header.get("typ", "JWT")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise WrongCredentials("the signature algorithm of the token is none of those with a public key")
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise WrongCredentials("the token is neither an access token nor an ID token")
    return header.get("kid"), algorithm


def _principal(settings: OidcSettings, claims: dict[str, Any]) -> Principal:
    """Raises WrongCredentials."""
    if "cnf" in claims:
        raise WrongCredentials("the token is bound to a key of the client (RFC 7800), which is not verified here")
    name = _claim(claims, settings.user_claim)
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME_CHARS or not name.isprintable():
        raise WrongCredentials("the claim with the user is missing or is not a printable text of up to 255 characters")
    groups = _claim(claims, settings.groups_claim)
    if isinstance(groups, str):
        groups = [groups]
    members = [one for one in groups if isinstance(one, str)] if isinstance(groups, list) else []
    return Principal(name, Kind.OIDC, frozenset(members), int(claims["exp"]) + settings.skew_s)


def _claim(claims: dict[str, Any], name: str) -> Any:
    """A claim by its name, or by a JSON pointer (RFC 6901); None if there is none."""
    if not name.startswith("/"):
        return claims.get(name)
    found: Any = claims
    for part in name.split("/")[1:]:
        if not isinstance(found, dict):
            return None
        found = found.get(part.replace("~1", "/").replace("~0", "~"))
    return found
