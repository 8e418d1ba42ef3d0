"""The REST settings of a worker (Kafka's RestServerConfig), its listeners, and additional limits.

A listener is ``http://host:port`` (Kafka's RestServer.createConnector).
"""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from mm2.config.configdef import AbstractConfig, ConfigDef, ConfigException
from mm2.config.keys.rest_keys import REST_LIMITS_CONFIG
from mm2.config.keys.security_keys import TLS_CONFIG
from mm2.config.keys.worker_keys import REST_CONFIG, parse_response_headers
from mm2.connect.herder.interface import HEALTH_TIMEOUT_S, REQUEST_TIMEOUT_S

HTTP: Final = "http"
HTTPS: Final = "https"
_LISTENER: Final = re.compile(r"(.*)://\[?([0-9a-zA-Z\-%._:]*)\]?:(-?[0-9]+)")
_MAX_PORT: Final = 65535
_BACKLOG: Final = 1024


@dataclass(frozen=True)
class Listener:
    """One entry of ``listeners``. ``host`` "" = all interfaces, ``port`` 0 = any free one."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        return url_of(self.scheme, self.host, self.port)

    @classmethod
    def parse(cls, key: str, text: str) -> Listener:
        """Raises ConfigException with the key, its value and the expected form."""
        match = _LISTENER.fullmatch(text.strip())
        if match is None:
            raise ConfigException(key, text, "Listener doesn't have the right format (protocol://hostname:port).")
        scheme, host, port = match[1].lower(), match[2], int(match[3])
        if scheme not in {HTTP, HTTPS}:
            raise ConfigException(key, text, f'Listener protocol must be either "{HTTP}" or "{HTTPS}".')
        if not 0 <= port <= _MAX_PORT:
            raise ConfigException(key, text, f"the port must be between 0 and {_MAX_PORT}")
        return cls(scheme, host, port)

    def bind(self) -> socket.socket:
        """A listening socket. Raises OSError with a message that names the listener."""
        try:
            bound = _bind_everywhere(self.port) if not self.host else self._bind_to_host()
        except OSError as error:
            reason = error.strerror or str(error)
            if error.errno == errno.EADDRINUSE:  # Python's message for it repeats the address
                reason = f"{os.strerror(error.errno)}; set another port in listeners, or 0 for any free port"
            raise OSError(error.errno, f"Cannot listen on {self}: {reason}") from error
        # Accepted connections inherit TCP_NODELAY. asyncio sets it only on sockets that declare the TCP protocol, which
        # these do not. Without it the body of a response waits 40 ms for the acknowledgement of its header.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return bound

    def _bind_to_host(self) -> socket.socket:
        family, _, _, _, address = socket.getaddrinfo(
            self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)


def parse_listeners(key: str, texts: Iterable[str]) -> tuple[Listener, ...]:
    """All listeners of a list. Raises ConfigException."""
    return tuple(Listener.parse(key, text) for text in texts)


def url_of(scheme: str, host: str, port: int) -> str:
    """``scheme://host:port/``, an IPv6 address in brackets."""
    return f"{scheme}://{authority_of(host, port)}/"


def authority_of(host: str, port: int) -> str:
    """``host:port``, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a name or an address refers to this machine only."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return ((isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped) or address).is_loopback


def own_address() -> str:
    """The address of this machine's host name, like Java's InetAddress.getLocalHost; loopback if there is none."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


def _bind_everywhere(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG)
    return socket.create_server(("", port), backlog=_BACKLOG)


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
    #: Of all requests together.
    max_bodies_bytes: int = 64 * 1024 * 1024
    body_timeout_s: float = 30.0
    #: Of the TLS handshake, and of the header of each request.
    header_timeout_s: float = 10.0
    #: To each listener.
    max_connections: int = 400


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
                config.int("rest.bodies.max.bytes"),
                config.int("rest.body.timeout.ms") / 1000,
                config.int("rest.header.timeout.ms") / 1000,
                config.int("rest.connections.max"),
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
