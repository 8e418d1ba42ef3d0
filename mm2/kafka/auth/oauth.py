"""Access tokens for OAUTHBEARER: from a token endpoint (KIP-768), from a file, or unsecured for tests (KIP-255)."""

from __future__ import annotations

import base64
import binascii
import functools
import json
import random
import ssl
import threading
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import structlog

from mm2.codec import read_json
from mm2.config.configdef import ConfigException
from mm2.config.files.regular_file import UnusableFile, read_text_file
from mm2.kafka.auth.assertion import AssertionFailure, assertion_text
from mm2.kafka.auth.bounded_http import AnswerTooLarge, exchange, one_line
from mm2.kafka.auth.tls import build_ssl_context
from mm2.kafka.backoff import Backoff
from mm2.kafka.settings.client_settings import read_tls
from mm2.kafka.settings.sasl_settings import Sasl, missing_extra, shown_url
from mm2.kafka.settings.typed_keys import TypedKeys

log = structlog.get_logger("mm2.kafka.oauth")

_CONNECT_TIMEOUT_S: Final = 10.0
#: A token that expires within this time is no longer used.
_LAST_MOMENT_S: Final = 5.0
#: Time limit of a refresh while the old token is valid, and the delay before the next attempt.
_GLANCE_S: Final = 2.0
_AGAIN_S: Final = 10.0
_JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_CLIENT_ASSERTION: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_UNSECURED: Final = "unsecuredLogin"
#: Of a token file, and of the answer of a token endpoint.
_MOST_BYTES: Final = 1024 * 1024
_FINAL_STATUSES: Final = frozenset(
    {400, 401, 402, 403, 404, 405, 406, 407, 409, 410, 411, 412, 413, 414, 415, 416, 417, 418}
)


class TokenError(Exception):
    """No token could be obtained. The message contains no secret."""


@dataclass(frozen=True, slots=True)
class AccessToken:
    """`text` is the compact JWS. `expires_at` is epoch seconds, None when the token has no `exp` claim."""

    text: str = field(repr=False)
    expires_at: float | None = None
    extensions: tuple[tuple[str, str], ...] = ()


class TokenSource:
    """Thread-safe source of a valid token. One thread fetches it, the others wait."""

    def __init__(self, sasl: Sasl) -> None:
        self._sasl = sasl
        self._lock = threading.Lock()
        self._token: AccessToken | None = None
        self._refresh_at = 0.0

    def token(self, *, timeout_s: float) -> AccessToken:
        """A token that need not be refreshed yet (`sasl.login.refresh.*`).

        If no new token can be obtained, the old one is returned as long as it is valid. Raises TokenError.
        """
        deadline = time.monotonic() + timeout_s
        if not self._lock.acquire(timeout=timeout_s):
            raise TokenError("the token endpoint did not answer in time")
        try:
            now = time.time()
            if self._token is None or now >= self._refresh_at:
                self._renew(now, deadline)
            if self._token is None:
                raise AssertionError("renewed, or raised")
            return self._token
        finally:
            self._lock.release()

    def _renew(self, now: float, deadline: float) -> None:
        old = self._token
        still_holds = old is not None and old.expires_at is not None and now < old.expires_at - _LAST_MOMENT_S
        if still_holds:
            # Leave most of the time to the login itself.
            deadline = min(deadline, time.monotonic() + _GLANCE_S)
        try:
            self._token = self._fetch(deadline)
        except TokenError as error:
            if not still_holds:
                raise
            log.warning("No new token could be obtained; the old one is still valid.", reason=str(error))
            self._refresh_at = now + _AGAIN_S
        else:
            self._refresh_at = (
                now if self._token.expires_at is None else _refresh_at(self._sasl, now, self._token.expires_at)
            )

    def _fetch(self, deadline: float) -> AccessToken:
        if self._sasl.msk_token:
            return _msk_token(self._sasl)
        url = self._sasl.token_endpoint_url
        if url is None:
            return unsecured_token(self._sasl, now_s=time.time())
        text = _from_file(url) if url.lower().startswith("file:") else _from_endpoint(url, self._sasl, deadline)
        extensions = tuple(
            (name.removeprefix("extension_"), value)
            for name, value in self._sasl.options
            if name.startswith("extension_")
        )
        return AccessToken(text, _expiry(text), extensions)


def _refresh_at(sasl: Sasl, now: float, expires_at: float) -> float:
    """When a token that was obtained ``now`` is refreshed (Kafka's ExpiringCredentialRefreshingLogin). Epoch seconds.

    Within the window of its lifetime, but neither in the buffer before its expiry nor before the minimum period has
    passed. A token whose lifetime is shorter than these two together is refreshed by the window alone.
    """
    share = sasl.login_refresh_window_factor + random.random() * sasl.login_refresh_window_jitter
    proposed = now + (expires_at - now) * share
    if now + sasl.login_refresh_min_period_s + sasl.login_refresh_buffer_s > expires_at:
        return proposed
    latest = expires_at - sasl.login_refresh_buffer_s
    return max(now + sasl.login_refresh_min_period_s, min(proposed, latest))


@functools.lru_cache(maxsize=64)
def token_source(sasl: Sasl) -> TokenSource:
    """The source for these settings, one per process, so that connections share their token."""
    return TokenSource(sasl)


def _msk_token(sasl: Sasl) -> AccessToken:
    try:
        from mm2.kafka.auth.msk import AwsLoginError, msk_token  # noqa: PLC0415 - needs an extra
    except ImportError:
        raise TokenError(missing_extra("aws", "a token for Amazon MSK")) from None
    try:
        return AccessToken(*msk_token(sasl.options))
    except AwsLoginError as error:
        raise TokenError(str(error)) from error


def unsecured_token(sasl: Sasl, *, now_s: float) -> AccessToken:
    """An unsigned JWS with the claims of the `unsecuredLogin…` options.

    As Kafka's OAuthBearerUnsecuredLoginCallbackHandler.
    """
    options = dict(sasl.options)
    claims: dict[str, Any] = {}
    for name, value in options.items():
        if name.startswith(f"{_UNSECURED}StringClaim_"):
            claims[name.split("_", 1)[1]] = value
        elif name.startswith(f"{_UNSECURED}NumberClaim_"):
            claims[name.split("_", 1)[1]] = _number(name, value)
        elif name.startswith(f"{_UNSECURED}ListClaim_"):
            # The first character is the separator.
            claims[name.split("_", 1)[1]] = value[1:].split(value[0]) if value else []
    principal_claim = options.get(f"{_UNSECURED}PrincipalClaimName") or "sub"
    if not claims.get(principal_claim):
        raise TokenError(f"the login module has no value for the claim {principal_claim}")
    lifetime_s = _number("unsecuredLoginLifetimeSeconds", options.get(f"{_UNSECURED}LifetimeSeconds", "3600"))
    claims.setdefault("iat", int(now_s))
    claims.setdefault("exp", int(now_s + lifetime_s))
    header = _base64url(json.dumps({"alg": "none"}).encode())
    body = _base64url(json.dumps(claims).encode())
    extensions = tuple(
        (name.removeprefix(f"{_UNSECURED}Extension_"), value)
        for name, value in options.items()
        if name.startswith(f"{_UNSECURED}Extension_")
    )
    return AccessToken(f"{header}.{body}.", float(claims["exp"]), extensions)


def _number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise TokenError(f"option {name} of the login module is not a number") from None


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _from_file(url: str) -> str:
    path = Path(urllib.parse.unquote(urllib.parse.urlparse(url).path))
    try:
        return read_text_file(path, _MOST_BYTES)
    except UnicodeDecodeError as error:
        raise TokenError(f"the token file {path} is not text") from error
    except UnusableFile as error:
        raise TokenError(f"the token file {path} {error}") from error


def _from_endpoint(url: str, sasl: Sasl, deadline: float) -> str:
    """A request for a token (RFC 6749 §4.4, RFC 7523), with back-off between attempts while the endpoint fails temporarily."""
    backoff = Backoff(sasl.login_retry_backoff_ms, sasl.login_retry_backoff_max_ms)
    attempt = 0
    while True:
        try:
            return _ask_endpoint(url, sasl, deadline)
        except _PassingError as error:
            delay_s = backoff.delay_s(attempt)
            if time.monotonic() + delay_s >= deadline:
                raise TokenError(str(error)) from error
            attempt += 1
            time.sleep(delay_s)


class _PassingError(Exception):
    """A temporary failure of the endpoint."""


def _ask_endpoint(url: str, sasl: Sasl, deadline: float) -> str:
    # User and password in the URL are ignored, as in Java; httpx would prefer them to the client's credentials.
    url = shown_url(url)
    place = f"token endpoint {urllib.parse.urlsplit(url)._replace(query='', fragment='').geturl()}"
    form, headers = _request(sasl)
    left_s = max(0.1, deadline - time.monotonic())
    timeout = httpx.Timeout(
        min(left_s, (sasl.login_read_timeout_ms or 1000 * left_s) / 1000),
        connect=min(left_s, (sasl.login_connect_timeout_ms or 1000 * _CONNECT_TIMEOUT_S) / 1000),
    )
    try:
        # No proxy of the environment, as in Java: over http it would see the client's secret.
        with httpx.Client(timeout=timeout, verify=_trust(url, sasl), follow_redirects=False, trust_env=False) as client:
            response = exchange(
                client,
                "POST",
                url,
                max_bytes=_MOST_BYTES,
                deadline_s=time.monotonic() + left_s,
                headers=headers,
                data=form,
            )
    except AnswerTooLarge as error:
        raise TokenError(f"the {place} answered with more than {_MOST_BYTES} bytes") from error
    except httpx.HTTPError as error:
        raise _PassingError(f"the {place} gave no answer: {error or type(error).__name__}") from error
    answer = response.document()
    if response.status in _FINAL_STATUSES:
        raise TokenError(f"the {place} refused with HTTP {response.status}{_reason(answer)}")
    if not response.is_success:
        raise _PassingError(f"the {place} failed with HTTP {response.status}")
    if answer is None:
        raise TokenError(f"the {place} did not answer with JSON")
    token = (answer.get("access_token") or answer.get("id_token")) if isinstance(answer, Mapping) else None
    if not isinstance(token, str) or not token:
        raise TokenError(f"the answer of the {place} has no access_token")
    return token


def _request(sasl: Sasl) -> tuple[dict[str, str], dict[str, str]]:
    """Form and headers: client credentials with a secret or an assertion, or an assertion as the grant (KIP-1139)."""
    headers = {"Accept": "application/json"}
    scope = sasl.oauth_scope or (None if sasl.jwt_grant else sasl.option("scope"))
    form = {"scope": scope} if scope else {}
    if sasl.assertion is None:
        headers["Authorization"] = _basic(sasl)
        return {"grant_type": "client_credentials", **form}, headers
    try:
        assertion = assertion_text(sasl.assertion)
    except AssertionFailure as error:
        raise TokenError(str(error)) from error
    if sasl.jwt_grant:
        return {"grant_type": _JWT_BEARER, "assertion": assertion, **form}, headers
    if client_id := sasl.oauth_client_id or sasl.option("clientId"):
        form["client_id"] = client_id
    proof = {"client_assertion_type": _CLIENT_ASSERTION, "client_assertion": assertion}
    return {"grant_type": "client_credentials", **proof, **form}, headers


def _trust(url: str, sasl: Sasl) -> ssl.SSLContext | bool:
    """TLS to the endpoint: the `ssl.*` options of the login module, as Kafka's JaasOptionsUtils."""
    if not url.lower().startswith("https:"):
        return True
    try:
        return build_ssl_context(read_tls(TypedKeys(dict(sasl.options))))
    except ConfigException as error:
        raise TokenError(f"the login module's TLS options: {error}") from error


def _basic(sasl: Sasl) -> str:
    client_id = sasl.oauth_client_id or sasl.option("clientId") or ""
    secret = sasl.oauth_client_secret or sasl.option("clientSecret") or ""
    if sasl.oauth_header_urlencode:
        client_id, secret = urllib.parse.quote_plus(client_id), urllib.parse.quote_plus(secret)
    return "Basic " + base64.b64encode(f"{client_id}:{secret}".encode()).decode("ascii")


def _reason(answer: Any) -> str:
    """The `error` of an OAuth error response (RFC 6749 §5.2), which contains no secret."""
    error = answer.get("error") if isinstance(answer, Mapping) else None
    return f", {one_line(error)}" if isinstance(error, str) else ""


def _expiry(token: str) -> float | None:
    """The `exp` claim, unverified: the broker validates tokens; the client only schedules the refresh."""
    parts = token.split(".")
    if len(parts) < 2:
        return None
    try:
        claims = read_json(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (ValueError, KeyError, TypeError, binascii.Error):
        return None
