"""The REST settings of a worker (Kafka's RestServerConfig) and additional limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mm2.config.configdef import AbstractConfig, ConfigDef, ConfigException
from mm2.config.rest_keys import REST_LIMITS_CONFIG
from mm2.config.security_keys import TLS_CONFIG
from mm2.config.worker_keys import REST_CONFIG, parse_response_headers
from mm2.connect.herder.interface import HEALTH_TIMEOUT_S, REQUEST_TIMEOUT_S
from mm2.connect.rest.listener import HTTP, HTTPS, Listener, parse_listeners

#: (action, name, value); action is set, add, setDate or addDate; the latter two have milliseconds from now as value.
HeaderRule = tuple[str, str, str]


@dataclass(frozen=True)
class Limits:
    """Limits on durations and sizes."""

    request_timeout_s: float = REQUEST_TIMEOUT_S
    health_timeout_s: float = HEALTH_TIMEOUT_S
    max_body_bytes: int = 16 * 1024 * 1024
    #: Between two bytes of a request or a response.
    idle_timeout_s: float = 30.0


@dataclass(frozen=True)
class RestSettings:
    """The settings of the REST server. Created with :meth:`of`."""

    listeners: tuple[Listener, ...]
    #: None: admin resources are on the other listeners; empty: nowhere.
    admin_listeners: tuple[Listener, ...] | None
    advertised_host: str | None
    advertised_port: int | None
    #: "http" or "https".
    advertised_scheme: str
    allowed_origins: tuple[str, ...]
    allowed_methods: tuple[str, ...]
    response_headers: tuple[HeaderRule, ...]
    extension_classes: tuple[str, ...]
    #: "none", "requested" or "required".
    client_auth: str
    limits: Limits
    #: The worker's settings, provider references resolved, for TLS and for extensions.
    props: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, props: Mapping[str, str]) -> RestSettings:
        """Raises ConfigException, one sentence that names key and value."""
        config = AbstractConfig(ConfigDef(REST_CONFIG, REST_LIMITS_CONFIG, TLS_CONFIG), dict(props))
        listeners = parse_listeners("listeners", config.list("listeners"))
        admin = config.values["admin.listeners"]
        admin_listeners = (
            None if admin is None else tuple(text for text in config.list("admin.listeners") if text.strip())
        )
        return cls(
            listeners=listeners,
            admin_listeners=None if admin_listeners is None else parse_listeners("admin.listeners", admin_listeners),
            advertised_host=config.values["rest.advertised.host.name"] or None,
            advertised_port=config.values["rest.advertised.port"],
            advertised_scheme=_advertised_scheme(config, listeners),
            allowed_origins=_items(config.str("access.control.allow.origin")),
            allowed_methods=_items(config.str("access.control.allow.methods")),
            response_headers=_header_rules(config.str("response.http.headers.config")),
            extension_classes=tuple(config.list("rest.extension.classes")),
            client_auth=config.str("ssl.client.auth"),
            limits=Limits(
                config.int("rest.request.timeout.ms") / 1000,
                config.int("rest.health.timeout.ms") / 1000,
                config.int("rest.request.max.bytes"),
                config.int("rest.idle.timeout.ms") / 1000,
            ),
            props=dict(props),
        )


def _advertised_scheme(config: AbstractConfig, listeners: tuple[Listener, ...]) -> str:
    wanted = config.values["rest.advertised.listener"]
    if wanted:
        scheme = str(wanted).strip().lower()
        if scheme not in {HTTP, HTTPS}:
            raise ConfigException("rest.advertised.listener", wanted, f"it must be {HTTP} or {HTTPS}")
        return scheme
    return HTTP if any(listener.scheme == HTTP for listener in listeners) else HTTPS


def _header_rules(text: str) -> tuple[HeaderRule, ...]:
    if not text.strip():
        return ()
    rules = tuple(parse_response_headers(text))
    for action, name, value in rules:
        if action.lower().endswith("date") and not value.lstrip("-").isdigit():
            raise ConfigException(
                "response.http.headers.config",
                f"{action} {name}:{value}",
                "the value of a date rule is a number of milliseconds from now",
            )
    return rules


def _items(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())
