"""Settings of bearer tokens for REST: the keys ``rest.oauthbearer.*``."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mm2.config.configdef import AbstractConfig, ConfigException
from mm2.config.keys.rest_keys import OIDC_CONFIG, OIDC_PREFIX
from mm2.connect.rest.settings import HTTP, HTTPS, is_loopback
from mm2.kafka.backoff import Backoff
from mm2.kafka.settings.assertion_settings import ALLOWED_URLS, require_allowed_url
from mm2.kafka.settings.client_settings import Tls, read_tls
from mm2.kafka.settings.typed_keys import TypedKeys

_ISSUER: Final = f"{OIDC_PREFIX}expected.issuer"
_AUDIENCE: Final = f"{OIDC_PREFIX}expected.audience"
_KEYS_URL: Final = f"{OIDC_PREFIX}jwks.endpoint.url"


@dataclass(frozen=True)
class OidcSettings:
    """One issuer and what is expected of its tokens."""

    issuer: str
    audiences: tuple[str, ...]
    user_claim: str
    groups_claim: str
    skew_s: int
    #: None: by discovery.
    keys_url: str | None
    refresh_s: float
    #: After failed reads of the keys; its maximum is the minimum time between reads because of unknown keys.
    backoff: Backoff
    tls: Tls

    @classmethod
    def of(cls, props: Mapping[str, str]) -> OidcSettings | None:
        """The settings in those of a worker; None without an issuer. Raises ConfigException naming key and value."""
        config = AbstractConfig(OIDC_CONFIG, dict(props))
        issuer = config.values[_ISSUER] or ""
        if not issuer:
            given = sorted(key for key in props if key.startswith(OIDC_PREFIX) and props[key])
            if given:
                raise ConfigException(given[0], props[given[0]], f"has no effect without {_ISSUER}")
            return None
        audiences = tuple(name for name in config.list(_AUDIENCE) if name)
        if not audiences:
            raise ConfigException(
                _AUDIENCE, None, "is needed: tokens of the issuer for other services would be accepted"
            )
        keys_url = config.values[_KEYS_URL] or None
        _check_url(_ISSUER, issuer, discovery_url(issuer) if not keys_url else None)
        if keys_url:
            _check_url(_KEYS_URL, keys_url, keys_url)
        claims = {name: config.str(f"{OIDC_PREFIX}{name}.claim.name") for name in ("sub", "groups")}
        for name, claim in claims.items():
            if not claim:
                raise ConfigException(f"{OIDC_PREFIX}{name}.claim.name", claim, "must be the name of a claim")
        return cls(
            issuer,
            audiences,
            claims["sub"],
            claims["groups"],
            config.int(f"{OIDC_PREFIX}clock.skew.seconds"),
            keys_url,
            config.int(f"{OIDC_PREFIX}jwks.endpoint.refresh.ms") / 1000,
            Backoff(
                config.int(f"{OIDC_PREFIX}jwks.endpoint.retry.backoff.ms"),
                config.int(f"{OIDC_PREFIX}jwks.endpoint.retry.backoff.max.ms"),
            ),
            _tls(props),
        )


def discovery_url(issuer: str) -> str:
    """Where the issuer describes itself (OpenID Connect Discovery, section 4)."""
    return f"{issuer.rstrip('/')}/.well-known/openid-configuration"


def url_failure(url: str) -> str:
    """Why a URL of the issuer must not be called; "" if it may be.

    It must be https. Without TLS only loopback is possible, and only URLs that the operator has allowed for OAuth
    (``org.apache.kafka.sasl.oauthbearer.allowed.urls``).
    """
    try:
        parts = urllib.parse.urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "is not a URL"
    if not host or parts.username is not None or parts.password is not None or not url.isprintable():
        return "must be a URL with a host, without user and password"
    if parts.scheme == HTTPS:
        return ""
    if parts.scheme != HTTP or not is_loopback(host):
        return "must begin with https://"
    try:
        require_allowed_url("", url)
    except ConfigException:
        return f"must begin with https://, or be allowed in KAFKA_OPTS=-D{ALLOWED_URLS}={url}"
    return ""


def _check_url(key: str, value: str, called: str | None) -> None:
    """``called``: the URL that is requested, None if none is."""
    parts = value.partition("?")[0].partition("#")[0]
    if key == _ISSUER and parts != value:
        raise ConfigException(key, value, "must not have a query or a fragment (OpenID Connect Discovery)")
    if called is not None and (reason := url_failure(called)):
        raise ConfigException(key, value, reason)


def _tls(props: Mapping[str, str]) -> Tls:
    prefix = f"{OIDC_PREFIX}ssl."
    own = {key.removeprefix(OIDC_PREFIX): value for key, value in props.items() if key.startswith(prefix)}
    try:
        return read_tls(TypedKeys(own))
    except ConfigException as error:
        raise ConfigException(f"{OIDC_PREFIX}{error.name}", error.value, error.reason) from None
