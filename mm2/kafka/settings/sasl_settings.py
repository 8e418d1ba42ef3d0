"""Settings of SASL logins, read from Java-style keys (`SaslConfigs` of Kafka 4.3.0)."""

from __future__ import annotations

import importlib.util
import urllib.parse
from dataclasses import dataclass, field
from typing import Final

from mm2.config.configdef import ConfigException
from mm2.kafka.settings.assertion_settings import Assertion, read_assertion, require_allowed_url
from mm2.kafka.settings.jaas import JaasError, parse_jaas
from mm2.kafka.settings.typed_keys import TypedKeys, setting

SASL_MECHANISMS = ("GSSAPI", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM")
_HIDDEN = "[hidden]"
#: Built-in token retrievers; any other class would be Java code, which cannot run here.
_JWT_RETRIEVERS = ("DefaultJwtRetriever", "ClientCredentialsJwtRetriever", "FileJwtRetriever", "JwtBearerJwtRetriever")

MSK_HANDLER: Final = "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler"
_EXTRAS: Final = {"aws": "botocore", "kerberos": "gssapi"}


def missing_extra(extra: str, user: str) -> str:
    """The message for a feature whose optional package is not installed."""
    return f"{user} needs the Python package {_EXTRAS[extra]}: pip install 'mm2[{extra}]'"


def _require_extra(extra: str, user: str, key: str, value: str) -> None:
    if importlib.util.find_spec(_EXTRAS[extra]) is None:
        raise ConfigException(key, value, missing_extra(extra, user))


@dataclass(frozen=True, slots=True)
class Sasl:
    """The `sasl.*` keys. `options` are those of the login module in `sasl.jaas.config`, in the given order.

    `msk_token`: the token for OAUTHBEARER is signed with AWS credentials, for Amazon MSK. `jwt_grant`: the assertion is exchanged
    for a token (RFC 7523 §2.1); otherwise it is the client's authentication (§2.2).
    """

    mechanism: str
    login_module: str = ""
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    kerberos_service_name: str | None = setting(TypedKeys.optional, "sasl.kerberos.service.name")
    token_endpoint_url: str | None = setting(TypedKeys.optional, "sasl.oauthbearer.token.endpoint.url")
    msk_token: bool = False
    oauth_client_id: str | None = setting(TypedKeys.optional, "sasl.oauthbearer.client.credentials.client.id")
    oauth_client_secret: str | None = setting(TypedKeys.secret, "sasl.oauthbearer.client.credentials.client.secret")
    oauth_scope: str | None = setting(TypedKeys.optional, "sasl.oauthbearer.scope")
    jwt_grant: bool = False
    assertion: Assertion | None = None
    oauth_header_urlencode: bool = setting(TypedKeys.boolean, "sasl.oauthbearer.header.urlencode", False)
    oauth_sub_claim_name: str = setting(TypedKeys.text, "sasl.oauthbearer.sub.claim.name", "sub")
    oauth_scope_claim_name: str = setting(TypedKeys.text, "sasl.oauthbearer.scope.claim.name", "scope")
    login_connect_timeout_ms: int | None = setting(TypedKeys.optional_integer, "sasl.login.connect.timeout.ms")
    login_read_timeout_ms: int | None = setting(TypedKeys.optional_integer, "sasl.login.read.timeout.ms")
    login_retry_backoff_ms: int = setting(TypedKeys.integer, "sasl.login.retry.backoff.ms", 100, low=0)
    login_retry_backoff_max_ms: int = setting(TypedKeys.integer, "sasl.login.retry.backoff.max.ms", 10_000, low=0)
    login_refresh_window_factor: float = setting(
        TypedKeys.decimal, "sasl.login.refresh.window.factor", 0.8, low=0.5, high=1.0
    )
    login_refresh_window_jitter: float = setting(
        TypedKeys.decimal, "sasl.login.refresh.window.jitter", 0.05, low=0.0, high=0.25
    )
    login_refresh_min_period_s: int = setting(TypedKeys.integer, "sasl.login.refresh.min.period.seconds", 60, low=0)
    login_refresh_buffer_s: int = setting(TypedKeys.integer, "sasl.login.refresh.buffer.seconds", 300, low=0)

    def option(self, name: str) -> str | None:
        """Value of an option of the login module, None when it is not set."""
        return dict(self.options).get(name)


def read_sasl(keys: TypedKeys) -> Sasl:
    mechanism = keys.text("sasl.mechanism", "GSSAPI")
    if mechanism not in SASL_MECHANISMS:
        raise ConfigException("sasl.mechanism", mechanism, f"must be one of {', '.join(SASL_MECHANISMS)}")
    jaas = keys.secret("sasl.jaas.config")
    try:
        entry = parse_jaas(jaas) if jaas else None
    except JaasError as error:
        raise ConfigException("sasl.jaas.config", _HIDDEN, str(error)) from None
    retriever = keys.text("sasl.oauthbearer.jwt.retriever.class", _JWT_RETRIEVERS[0])
    if mechanism == "OAUTHBEARER" and retriever.rpartition(".")[2] not in _JWT_RETRIEVERS:
        raise ConfigException(
            "sasl.oauthbearer.jwt.retriever.class", retriever, f"built in are {', '.join(_JWT_RETRIEVERS)}"
        )
    handler = keys.text("sasl.login.callback.handler.class", "") if mechanism == "OAUTHBEARER" else ""
    jwt_grant = retriever.rpartition(".")[2] == "JwtBearerJwtRetriever"
    oauth = mechanism == "OAUTHBEARER" and handler != MSK_HANDLER
    sasl = Sasl(
        mechanism=mechanism,
        login_module=entry.module if entry else "",
        options=tuple(entry.options.items()) if entry else (),
        **keys.values_of(Sasl),
        msk_token=handler == MSK_HANDLER,
        jwt_grant=jwt_grant,
        assertion=read_assertion(keys, is_required=jwt_grant) if oauth else None,
    )
    _check_credentials(sasl)
    return sasl


def _check_credentials(sasl: Sasl) -> None:
    """Check that the credentials that the mechanism needs are present. Messages never contain their values."""
    names = {name for name, value in sasl.options if value}
    if sasl.mechanism == "PLAIN" or sasl.mechanism.startswith("SCRAM"):
        if missing := [name for name in ("username", "password") if name not in names]:
            raise ConfigException(
                "sasl.jaas.config",
                _HIDDEN if sasl.login_module else None,
                f"the login module needs {' and '.join(missing)} for {sasl.mechanism}",
            )
    elif sasl.mechanism == "GSSAPI":
        _require_extra("kerberos", sasl.mechanism, "sasl.mechanism", sasl.mechanism)
        if (sasl.option("useKeyTab") or "").lower() == "true" and "keyTab" not in names:
            raise ConfigException("sasl.jaas.config", _HIDDEN, "useKeyTab needs keyTab, the path of the key table")
    elif sasl.mechanism == "AWS_MSK_IAM":
        _require_extra("aws", sasl.mechanism, "sasl.mechanism", sasl.mechanism)
        _check_msk_options(names)
    elif sasl.msk_token:
        _require_extra("aws", "a token for Amazon MSK", "sasl.login.callback.handler.class", MSK_HANDLER)
        _check_msk_options(names)
    elif sasl.mechanism == "OAUTHBEARER":
        _check_oauth(sasl, names)


def _check_oauth(sasl: Sasl, names: set[str]) -> None:
    key, url = "sasl.oauthbearer.token.endpoint.url", sasl.token_endpoint_url
    if url is None:
        if sasl.jwt_grant or not any(name.startswith("unsecuredLogin") for name in names):
            raise ConfigException(
                key,
                None,
                "OAUTHBEARER needs a token endpoint, a file: URL, or unsecuredLoginStringClaim_sub in sasl.jaas.config",
            )
        return
    if not url.lower().startswith(("http://", "https://", "file:")):
        raise ConfigException(key, url, "must be an http, https or file URL")
    require_allowed_url(key, shown_url(url))
    if url.lower().startswith("file:") or sasl.assertion:
        return
    client = "sasl.oauthbearer.client.credentials.client"
    if not (sasl.oauth_client_id or "clientId" in names):
        raise ConfigException(f"{client}.id", None, "is needed for the token endpoint")
    if not (sasl.oauth_client_secret or "clientSecret" in names):
        raise ConfigException(f"{client}.secret", None, "is needed for the token endpoint")


def shown_url(url: str) -> str:
    """The URL without user and password."""
    parts = urllib.parse.urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _check_msk_options(names: set[str]) -> None:
    if "awsMskRegionProvider" in names:
        raise ConfigException(
            "sasl.jaas.config",
            _HIDDEN,
            "awsMskRegionProvider names a Java class, which cannot be used here: set AWS_REGION in the environment",
        )
