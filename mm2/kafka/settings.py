"""Typed, picklable settings of a Kafka client, read from Java-style keys.

Keys, defaults and ranges are those of `CommonClientConfigs`, `SslConfigs` and `SaslConfigs` of Kafka 4.3.0. Secrets are
part of the data (executors need them) and of `to_json`, but never of a `repr`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from mm2.config.configdef import ConfigException
from mm2.kafka.jaas import JaasError, parse_jaas

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SASL_MECHANISMS = ("GSSAPI", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM")
_HIDDEN = "[hidden]"
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Tls:
    """The `ssl.*` keys.

    A store is a file (`…_location`) or PEM text; all None means no key and the system's trust store.

    `endpoint_identification` "" disables host name verification.
    """

    keystore_location: str | None = None
    keystore_type: str = "JKS"
    keystore_password: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    keystore_key: str | None = field(default=None, repr=False)
    keystore_certificate_chain: str | None = field(default=None, repr=False)
    truststore_location: str | None = None
    truststore_type: str = "JKS"
    truststore_password: str | None = field(default=None, repr=False)
    truststore_certificates: str | None = field(default=None, repr=False)
    endpoint_identification: str = "https"
    enabled_protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    cipher_suites: tuple[str, ...] = ()

    @property
    def has_key(self) -> bool:
        """True when the client has a certificate of its own."""
        return bool(self.keystore_location or self.keystore_key)


@dataclass(frozen=True, slots=True)
class Sasl:
    """The `sasl.*` keys. `options` are those of the login module in `sasl.jaas.config`, in the given order."""

    mechanism: str
    login_module: str = ""
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    kerberos_service_name: str | None = None
    token_endpoint_url: str | None = None
    oauth_client_id: str | None = None
    oauth_client_secret: str | None = field(default=None, repr=False)
    oauth_scope: str | None = None
    oauth_header_urlencode: bool = False
    oauth_sub_claim_name: str = "sub"
    oauth_scope_claim_name: str = "scope"
    login_connect_timeout_ms: int | None = None
    login_read_timeout_ms: int | None = None
    login_retry_backoff_ms: int = 100
    login_retry_backoff_max_ms: int = 10_000
    login_refresh_window_factor: float = 0.8
    login_refresh_window_jitter: float = 0.05
    login_refresh_min_period_s: int = 60
    login_refresh_buffer_s: int = 300

    def option(self, name: str) -> str | None:
        """Value of an option of the login module, None when it is not set."""
        return dict(self.options).get(name)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Client settings of one cluster. Times in milliseconds, sizes in bytes; -1 as a buffer size is the OS default.

    ``api_timeout_ms`` limits an administrative call with all its retries; 0: ``request_timeout_ms``.
    """

    bootstrap: tuple[tuple[str, int], ...]
    client_id: str = ""
    security_protocol: str = "PLAINTEXT"
    request_timeout_ms: int = 30_000
    connection_setup_timeout_ms: int = 10_000
    connection_setup_timeout_max_ms: int = 30_000
    connections_max_idle_ms: int = 540_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    metadata_max_age_ms: int = 300_000
    rebootstrap: bool = True
    canonical_bootstrap: bool = False
    client_rack: str = ""
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    api_timeout_ms: int = 0
    max_frame_bytes: int = 256 * _MIB
    tls: Tls | None = None
    sasl: Sasl | None = None

    @classmethod
    def from_props(cls, props: Mapping[str, str], *, client_id: str | None = None) -> Self:
        """Settings from unprefixed Java keys; `client_id` replaces the key `client.id`. Unknown keys are ignored.

        Raises ConfigException naming the key and, unless it is a secret, the value.
        """
        keys = _Keys(props)
        security_protocol = keys.choice("security.protocol", "PLAINTEXT", SECURITY_PROTOCOLS, upper=True)
        return cls(
            bootstrap=_bootstrap(keys),
            client_id=client_id if client_id is not None else keys.text("client.id", ""),
            security_protocol=security_protocol,
            request_timeout_ms=keys.integer("request.timeout.ms", 30_000, low=1),
            connection_setup_timeout_ms=keys.integer("socket.connection.setup.timeout.ms", 10_000, low=1),
            connection_setup_timeout_max_ms=keys.integer("socket.connection.setup.timeout.max.ms", 30_000, low=1),
            connections_max_idle_ms=keys.integer("connections.max.idle.ms", 540_000, low=-1),
            reconnect_backoff_ms=keys.integer("reconnect.backoff.ms", 50, low=0),
            reconnect_backoff_max_ms=keys.integer("reconnect.backoff.max.ms", 1_000, low=0),
            retry_backoff_ms=keys.integer("retry.backoff.ms", 100, low=0),
            retry_backoff_max_ms=keys.integer("retry.backoff.max.ms", 1_000, low=0),
            metadata_max_age_ms=keys.integer("metadata.max.age.ms", 300_000, low=0),
            rebootstrap=keys.choice("metadata.recovery.strategy", "rebootstrap", ("rebootstrap", "none"))
            == "rebootstrap",
            canonical_bootstrap=keys.choice(
                "client.dns.lookup", "use_all_dns_ips", ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only")
            )
            == "resolve_canonical_bootstrap_servers_only",
            client_rack=keys.text("client.rack", ""),
            send_buffer_bytes=keys.integer("send.buffer.bytes", -1, low=-1),
            receive_buffer_bytes=keys.integer("receive.buffer.bytes", -1, low=-1),
            api_timeout_ms=keys.integer("default.api.timeout.ms", 0, low=0),
            tls=_tls(keys) if security_protocol.endswith("SSL") else None,
            sasl=_sasl(keys) if security_protocol.startswith("SASL") else None,
        )

    def to_json(self) -> str:
        """One line of JSON that `from_json` parses to equal settings. It contains the secrets."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        data = json.loads(text)
        data["bootstrap"] = tuple((host, port) for host, port in data["bootstrap"])
        data["tls"] = Tls(**_with_tuples(data["tls"])) if data["tls"] is not None else None
        if data["sasl"] is not None:
            data["sasl"]["options"] = tuple((name, value) for name, value in data["sasl"]["options"])
            data["sasl"] = Sasl(**data["sasl"])
        return cls(**data)


def address_text(host: str, port: int) -> str:
    """ "host:port", an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _with_tuples(data: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}


class _Keys:
    """Typed reads from a property map; a blank or missing value is the default, as null and "" usually are in Java."""

    def __init__(self, props: Mapping[str, str]) -> None:
        self._props = props

    def text(self, key: str, default: str) -> str:
        value = self._props.get(key)
        return default if value is None else str(value).strip()

    def optional(self, key: str) -> str | None:
        return self.text(key, "") or None

    def secret(self, key: str) -> str | None:
        """A password as written, including blanks; a `Password` object of the config package is unwrapped."""
        value: Any = self._props.get(key)
        if value is None:
            return None
        return str(getattr(value, "value", value)) or None

    def choice(self, key: str, default: str, allowed: tuple[str, ...], *, upper: bool = False) -> str:
        value = self.text(key, default)
        known = value.upper() if upper else value
        if known not in allowed:
            raise ConfigException(key, value, f"must be one of {', '.join(allowed)}")
        return known

    def integer(self, key: str, default: int, *, low: int) -> int:
        value = self.text(key, "")
        if not value:
            return default
        try:
            number = int(value)
        except ValueError:
            raise ConfigException(key, value, "Not a number of type INT or LONG") from None
        if number < low:
            raise ConfigException(key, value, f"Value must be at least {low}")
        return number

    def optional_integer(self, key: str) -> int | None:
        return self.integer(key, 0, low=0) if self.text(key, "") else None

    def decimal(self, key: str, default: float, *, low: float, high: float) -> float:
        value = self.text(key, "")
        if not value:
            return default
        try:
            number = float(value)
        except ValueError:
            raise ConfigException(key, value, "Not a number of type DOUBLE") from None
        if not low <= number <= high:
            raise ConfigException(key, value, f"Value must be between {low} and {high}")
        return number

    def boolean(self, key: str, default: bool) -> bool:
        value = self.text(key, "").lower()
        if not value:
            return default
        if value not in {"true", "false"}:
            raise ConfigException(key, value, "Expected value to be either true or false")
        return value == "true"

    def names(self, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        value = self._props.get(key)
        if value is None:
            return default
        return tuple(part for part in (part.strip() for part in str(value).split(",")) if part)


def _bootstrap(keys: _Keys) -> tuple[tuple[str, int], ...]:
    key = "bootstrap.servers"
    servers = keys.names(key, ())
    if not servers:
        raise ConfigException(key, keys.optional(key), "at least one host:port is needed")
    return tuple(dict.fromkeys(_address(key, server) for server in servers))


def _address(key: str, text: str) -> tuple[str, int]:
    """Split "host:port"; a leading "PROTOCOL://" is allowed as in Kafka's `Utils.getHost`."""
    host, colon, port = text.rpartition("://")[2].rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigException(key, text, "Invalid url in bootstrap.servers, expected host:port")
    return host, int(port)


#: Built-in token retrievers; any other class would be Java code, which cannot run here.
_JWT_RETRIEVERS = ("DefaultJwtRetriever", "ClientCredentialsJwtRetriever", "FileJwtRetriever")


def _tls(keys: _Keys) -> Tls:
    if engine := keys.optional("ssl.engine.factory.class"):
        raise ConfigException(
            "ssl.engine.factory.class", engine, "a Java class cannot be used here, set the stores instead"
        )
    tls = Tls(
        keystore_location=keys.optional("ssl.keystore.location"),
        keystore_type=keys.text("ssl.keystore.type", "JKS"),
        keystore_password=keys.secret("ssl.keystore.password"),
        key_password=keys.secret("ssl.key.password"),
        keystore_key=keys.secret("ssl.keystore.key"),
        keystore_certificate_chain=keys.secret("ssl.keystore.certificate.chain"),
        truststore_location=keys.optional("ssl.truststore.location"),
        truststore_type=keys.text("ssl.truststore.type", "JKS"),
        truststore_password=keys.secret("ssl.truststore.password"),
        truststore_certificates=keys.secret("ssl.truststore.certificates"),
        endpoint_identification=keys.text("ssl.endpoint.identification.algorithm", "https"),
        enabled_protocols=keys.names("ssl.enabled.protocols", ("TLSv1.2", "TLSv1.3")),
        cipher_suites=keys.names("ssl.cipher.suites", ()),
    )
    if tls.endpoint_identification.lower() not in {"", "https"}:
        raise ConfigException(
            "ssl.endpoint.identification.algorithm", tls.endpoint_identification, "must be https or empty"
        )
    if not {"TLSv1.2", "TLSv1.3"}.intersection(tls.enabled_protocols):
        raise ConfigException(
            "ssl.enabled.protocols",
            ",".join(tls.enabled_protocols),
            "must contain TLSv1.2 or TLSv1.3; older versions are not supported",
        )
    if bool(tls.keystore_key) != bool(tls.keystore_certificate_chain):
        missing = "ssl.keystore.certificate.chain" if tls.keystore_key else "ssl.keystore.key"
        raise ConfigException(missing, None, "a PEM key and its certificate chain must be given together")
    if tls.keystore_key and tls.keystore_location:
        raise ConfigException(
            "ssl.keystore.location", tls.keystore_location, "cannot be used together with ssl.keystore.key"
        )
    if tls.truststore_certificates and tls.truststore_location:
        raise ConfigException(
            "ssl.truststore.location",
            tls.truststore_location,
            "cannot be used together with ssl.truststore.certificates",
        )
    return tls


def _sasl(keys: _Keys) -> Sasl:
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
    sasl = Sasl(
        mechanism=mechanism,
        login_module=entry.module if entry else "",
        options=tuple(entry.options.items()) if entry else (),
        kerberos_service_name=keys.optional("sasl.kerberos.service.name"),
        token_endpoint_url=keys.optional("sasl.oauthbearer.token.endpoint.url"),
        oauth_client_id=keys.optional("sasl.oauthbearer.client.credentials.client.id"),
        oauth_client_secret=keys.secret("sasl.oauthbearer.client.credentials.client.secret"),
        oauth_scope=keys.optional("sasl.oauthbearer.scope"),
        oauth_header_urlencode=keys.boolean("sasl.oauthbearer.header.urlencode", False),
        oauth_sub_claim_name=keys.text("sasl.oauthbearer.sub.claim.name", "sub"),
        oauth_scope_claim_name=keys.text("sasl.oauthbearer.scope.claim.name", "scope"),
        login_connect_timeout_ms=keys.optional_integer("sasl.login.connect.timeout.ms"),
        login_read_timeout_ms=keys.optional_integer("sasl.login.read.timeout.ms"),
        login_retry_backoff_ms=keys.integer("sasl.login.retry.backoff.ms", 100, low=0),
        login_retry_backoff_max_ms=keys.integer("sasl.login.retry.backoff.max.ms", 10_000, low=0),
        login_refresh_window_factor=keys.decimal("sasl.login.refresh.window.factor", 0.8, low=0.5, high=1.0),
        login_refresh_window_jitter=keys.decimal("sasl.login.refresh.window.jitter", 0.05, low=0.0, high=0.25),
        login_refresh_min_period_s=keys.integer("sasl.login.refresh.min.period.seconds", 60, low=0),
        login_refresh_buffer_s=keys.integer("sasl.login.refresh.buffer.seconds", 300, low=0),
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
    elif sasl.mechanism == "OAUTHBEARER":
        if sasl.token_endpoint_url is None:
            if not any(name.startswith("unsecuredLogin") for name in names):
                raise ConfigException(
                    "sasl.oauthbearer.token.endpoint.url",
                    None,
                    "OAUTHBEARER needs a token endpoint, a file: URL, or unsecuredLoginStringClaim_sub in sasl.jaas.config",
                )
        elif not sasl.token_endpoint_url.lower().startswith(("http://", "https://", "file:")):
            raise ConfigException(
                "sasl.oauthbearer.token.endpoint.url", sasl.token_endpoint_url, "must be an http, https or file URL"
            )
        elif not sasl.token_endpoint_url.lower().startswith("file:"):
            if not (sasl.oauth_client_id or "clientId" in names):
                raise ConfigException(
                    "sasl.oauthbearer.client.credentials.client.id", None, "is needed for the token endpoint"
                )
            if not (sasl.oauth_client_secret or "clientSecret" in names):
                raise ConfigException(
                    "sasl.oauthbearer.client.credentials.client.secret", None, "is needed for the token endpoint"
                )
