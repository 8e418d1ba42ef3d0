"""REST keys that Kafka does not have, and the REST keys of MirrorMaker's file at the top level."""

from __future__ import annotations

import re
import urllib.parse
from typing import Final

from mm2.config.configdef import ConfigDef, ConfigException, Importance, Type, at_least, between, distinct, one_of
from mm2.config.definitions.validators import Check
from mm2.config.definitions.values import Password
from mm2.config.keys.worker_keys import REST_CONFIG

LOGIN_CONFIG_KEY: Final = "java.security.auth.login.config"

STRANGERS_KEY: Final = "rest.unauthenticated.access"
EVERYTHING: Final = "all"
"""An older name of the role admin in `STRANGERS_KEY`."""

WORKER_SECRET_KEY: Final = "rest.inter.worker.secret"  # noqa: S105 - a name
ROLE_PREFIX: Final = "rest.role."
ROLES: Final = ("metrics", "viewer", "operator", "admin")
"""Roles of clients, each of which includes those before it (`mm2.connect.rest.access`)."""
_MEMBERS: Final = (
    "Separator ;, each entry User:name (of a password or a token), Certificate:subject or Group:name (of a token); User:* and "
    "Certificate:* are all of them."
)

OIDC_PREFIX: Final = "rest.oauthbearer."
PROMETHEUS_PREFIX: Final = "dashboard.prometheus."
LISTENER_PREFIXES: Final = ("listeners.https.", "admin.listeners.https.", OIDC_PREFIX, PROMETHEUS_PREFIX)
"""Prefixes of the TLS keys of listeners, and of the connections to the issuer of tokens and to Prometheus."""

REST_LIMITS_CONFIG: Final = (
    ConfigDef()
    .define(
        "rest.request.timeout.ms",
        Type.INT,
        90_000,
        at_least(1),
        Importance.LOW,
        "How long a REST request may wait for the herder. (Java: always 90 s.)",
    )
    .define(
        "rest.health.timeout.ms",
        Type.INT,
        10_000,
        at_least(1),
        Importance.LOW,
        "How long GET /health waits for the herder. (Java: always 10 s.)",
    )
    .define(
        "rest.request.max.bytes",
        Type.INT,
        16 * 1024 * 1024,
        at_least(1),
        Importance.LOW,
        "Maximum size of a REST request body; larger requests are rejected with status 413.",
    )
    .define(
        "rest.bodies.max.bytes",
        Type.INT,
        64 * 1024 * 1024,
        at_least(1),
        Importance.LOW,
        "Maximum size of all REST request bodies that are being received or processed, together; beyond that, requests are "
        "rejected with status 503. A quarter of it is for requests between workers, whose signature is verified afterwards. One "
        "address gets three quarters of both parts.",
    )
    .define(
        "rest.body.timeout.ms",
        Type.INT,
        30_000,
        at_least(1),
        Importance.LOW,
        "How long a client may take to send the body of a REST request; slower requests are rejected with status 408.",
    )
    .define(
        "rest.header.timeout.ms",
        Type.INT,
        10_000,
        at_least(1),
        Importance.LOW,
        "How long a client may take for the TLS handshake, and again to send the header of a request; slower connections are closed.",
    )
    .define(
        "rest.connections.max",
        Type.INT,
        400,
        at_least(1),
        Importance.LOW,
        "Maximum number of connections to each listener, three quarters of them from one address. A further connection replaces "
        "one that waits for its client, of the address with the most connections. If all have requests in progress, it is "
        "rejected with status 503.",
    )
    .define(
        "rest.idle.timeout.ms",
        Type.INT,
        30_000,
        at_least(1),
        Importance.LOW,
        "A connection without progress for this long during a request is closed.",
    )
    .define(
        LOGIN_CONFIG_KEY,
        Type.STRING,
        None,
        None,
        Importance.LOW,
        "Java's login configuration for BasicAuthSecurityRestExtension; can also be set in the environment variable KAFKA_OPTS.",
    )
    .define(
        STRANGERS_KEY,
        Type.STRING,
        "none",
        one_of("none", *ROLES, EVERYTHING),
        Importance.MEDIUM,
        "The role of clients without credentials: none has access to the status of /health only. all is the same as admin. "
        "(Java: always admin, unless rest.extension.classes or ssl.client.auth require a login.)",
    )
    .define(
        WORKER_SECRET_KEY,
        Type.PASSWORD,
        None,
        None,
        Importance.LOW,
        "A secret of at least 32 characters that all workers of a group share. With it, a worker vouches for the client of a "
        "request that it forwards, so that tokens of a process and sessions are valid at every worker. Without "
        "it, only passwords, tokens of an identity provider and certificates are.",
    )
    .define(
        f"{ROLE_PREFIX}metrics",
        Type.STRING,
        None,
        None,
        Importance.MEDIUM,
        f"Clients that may read /metrics and the details of /health. {_MEMBERS}",
    )
    .define(
        f"{ROLE_PREFIX}viewer",
        Type.STRING,
        None,
        None,
        Importance.MEDIUM,
        f"Clients that may also read everything else, without secrets, and see the dashboard. {_MEMBERS}",
    )
    .define(
        f"{ROLE_PREFIX}operator",
        Type.STRING,
        None,
        None,
        Importance.MEDIUM,
        "Clients that may also pause, resume, restart and stop connectors and tasks, pause, resume and limit topics, and change log "
        f"levels. {_MEMBERS}",
    )
    .define(
        f"{ROLE_PREFIX}admin",
        Type.STRING,
        None,
        None,
        Importance.MEDIUM,
        "Clients that may also create, change, validate and delete configurations and offsets. Without any of the keys "
        f"rest.role.*, every user with a password or a trusted certificate has this role, as in Java. {_MEMBERS}",
    )
)
"""Keys that in Java are constants, unlimited, or JVM properties."""

OIDC_CONFIG: Final = (
    ConfigDef()
    .define(
        f"{OIDC_PREFIX}expected.issuer",
        Type.STRING,
        None,
        None,
        Importance.MEDIUM,
        "Issuer of the tokens (OpenID Connect) that are accepted as Authorization: Bearer; an https URL. Empty = none.",
    )
    .define(
        f"{OIDC_PREFIX}expected.audience",
        Type.LIST,
        [],
        distinct(),
        Importance.MEDIUM,
        "Accepted audiences of a token, at least one with an issuer.",
    )
    .define(
        f"{OIDC_PREFIX}sub.claim.name",
        Type.STRING,
        "sub",
        None,
        Importance.LOW,
        "Claim with the user, or a path as for the groups.",
    )
    .define(
        f"{OIDC_PREFIX}groups.claim.name",
        Type.STRING,
        "groups",
        None,
        Importance.MEDIUM,
        "Claim with the groups of the user, a list or one string. A value that begins with / is a path into the claims (JSON "
        "pointer): /realm_access/roles.",
    )
    .define(
        f"{OIDC_PREFIX}clock.skew.seconds",
        Type.INT,
        30,
        between(0, 600),
        Importance.LOW,
        "Accepted difference between the clocks of the issuer and of this machine.",
    )
    .define(
        f"{OIDC_PREFIX}jwks.endpoint.url",
        Type.STRING,
        None,
        None,
        Importance.LOW,
        "URL of the issuer's keys. Default: the one in <issuer>/.well-known/openid-configuration.",
    )
    .define(
        f"{OIDC_PREFIX}jwks.endpoint.refresh.ms",
        Type.LONG,
        3_600_000,
        at_least(1000),
        Importance.LOW,
        "Age at which the issuer's keys are read again. Keys of twice this age are no longer used.",
    )
    .define(
        f"{OIDC_PREFIX}jwks.endpoint.retry.backoff.ms",
        Type.LONG,
        100,
        at_least(1),
        Importance.LOW,
        "Initial delay after a failed read of the keys.",
    )
    .define(
        f"{OIDC_PREFIX}jwks.endpoint.retry.backoff.max.ms",
        Type.LONG,
        10_000,
        at_least(1),
        Importance.LOW,
        "Maximum delay after failed reads, and minimum time between reads because of unknown keys.",
    )
)
"""Bearer tokens for REST. The names are those of Kafka's keys for brokers, with another prefix than sasl.oauthbearer."""


def _listeners_or_none() -> Check:
    def ensure(name: str, value: object) -> None:
        if not isinstance(value, list) or not all(str(item).strip() for item in value):
            raise ConfigException(f"Empty URL found when parsing {name} list.")

    return Check(ensure, "List of comma-separated URLs; empty = no REST server.")


_ONE_MATCHER: Final = r'[a-zA-Z_][a-zA-Z0-9_]*(?:=~|!~|!=|=)"(?:[^"\\\n]|\\.)*"'
_MATCHERS: Final = re.compile(rf"{_ONE_MATCHER}(?:,\s*{_ONE_MATCHER})*")


def _base_url() -> Check:
    def ensure(name: str, value: object) -> None:
        if value is None or value == "":
            return
        text = str(value)
        try:
            parts = urllib.parse.urlsplit(text)
            host, _ = parts.hostname, parts.port
        except ValueError:
            raise ConfigException(name, text, "is not a URL") from None
        if parts.scheme not in {"http", "https"}:
            raise ConfigException(name, text, "must begin with http:// or https://")
        if not host or "@" in parts.netloc or parts.query or parts.fragment or not text.isprintable() or " " in text:
            raise ConfigException(name, text, "must be a URL with a host, without user, password, query and fragment")

    return Check(ensure, "http or https URL")


def _label_matchers() -> Check:
    def ensure(name: str, value: object) -> None:
        if value is not None and value != "" and _MATCHERS.fullmatch(str(value)) is None:
            raise ConfigException(name, value, 'must be label matchers of PromQL, such as env="prod",job="mm2"')

    return Check(ensure, "label matchers of PromQL")


def _header_value() -> Check:
    def ensure(name: str, value: object) -> None:
        text = value.value if isinstance(value, Password) else ""
        if not text.isascii() or not text.isprintable():
            raise ConfigException(name, value, "must be one line of printable ASCII characters")

    return Check(ensure, "value of a header")


PROMETHEUS_CONFIG: Final = (
    ConfigDef()
    .define(
        f"{PROMETHEUS_PREFIX}url",
        Type.STRING,
        None,
        _base_url(),
        Importance.LOW,
        "Address of the HTTP API of a Prometheus that scrapes this process, without /api/v1: the dashboard then shows up to 90 "
        "days. Only the process sends requests to it.",
    )
    .define(
        f"{PROMETHEUS_PREFIX}authorization",
        Type.PASSWORD,
        None,
        _header_value(),
        Importance.LOW,
        "Value of the header Authorization of these requests: Bearer and a token, or Basic and base64 of user:password. Needs https, "
        "except on loopback.",
    )
    .define(
        f"{PROMETHEUS_PREFIX}matchers",
        Type.STRING,
        None,
        _label_matchers(),
        Importance.LOW,
        "Label matchers that are added to each query, where several deployments with the same aliases are scraped: "
        'env="prod",job="mm2".',
    )
)
"""Where the dashboard reads values that are older than its own history."""

CARDINALITY_KEY: Final = "metrics.cardinality"

MIRROR_REST_CONFIG: Final = (
    ConfigDef(REST_CONFIG, REST_LIMITS_CONFIG, OIDC_CONFIG, PROMETHEUS_CONFIG)
    .redefine("listeners", validator=_listeners_or_none())
    .define(
        CARDINALITY_KEY,
        Type.STRING,
        "full",
        one_of("full", "topic", "flow"),
        Importance.LOW,
        "Detail of GET /metrics for partitions and for groups: one series per partition, sums per topic, or sums per flow. "
        "Partitions that are not RUNNING are listed with each setting. Use topic with thousands of partitions: with full each "
        "of them has about 25 series.",
    )
)
"""REST keys of a MirrorMaker process. The list of listeners may be empty."""
