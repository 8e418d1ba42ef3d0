"""The ports of a worker, and warnings about what other machines can do there.

The ports are bound first, because the worker's name contains them.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from mm2.config.keys.rest_keys import OIDC_PREFIX, STRANGERS_KEY
from mm2.connect.api import ConnectError
from mm2.connect.rest.access.roles import Role, RoleMap
from mm2.connect.rest.settings import (
    HTTP,
    HTTPS,
    Listener,
    RestSettings,
    authority_of,
    is_loopback,
    own_address,
    url_of,
)
from mm2.connect.tls import ADMIN_LISTENERS_PREFIX, LISTENERS_PREFIX, ListenerTls

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Port:
    """A listening socket. ``tls`` is the TLS of https, None for http."""

    listener: Listener
    socket: socket.socket
    tls: ListenerTls | None

    @property
    def number(self) -> int:
        """The actual port number."""
        return int(self.socket.getsockname()[1])

    @property
    def is_loopback(self) -> bool:
        """Whether it accepts connections from this machine only."""
        return is_loopback(self.socket.getsockname()[0])

    @property
    def demands_certificate(self) -> bool:
        """Whether clients need a certificate that the listener trusts (``ssl.client.auth=required``)."""
        return self.tls is not None and self.tls.demands_certificate

    @property
    def url(self) -> str:
        """As configured, with the actual port number."""
        return url_of(self.listener.scheme, self.listener.host, self.number)


def exposed(ports: Iterable[Port]) -> list[str]:
    """URLs of ports that other machines reach without authentication by the listener."""
    return [port.url for port in ports if not (port.is_loopback or port.demands_certificate)]


class Binding:
    """All listeners of the settings, bound; connections wait until a server accepts them."""

    def __init__(self, settings: RestSettings) -> None:
        """Raises ConfigException when TLS cannot be set up, ConnectError when a listener cannot be bound."""
        self.settings = settings
        self.main: list[Port] = []
        self.admin: list[Port] = []
        try:
            for ports, listeners, prefix in (
                (self.main, settings.listeners, LISTENERS_PREFIX),
                (self.admin, settings.admin_listeners or (), ADMIN_LISTENERS_PREFIX),
            ):
                for listener in listeners:
                    tls = (
                        ListenerTls(settings.props, prefix, settings.client_auth) if listener.scheme == HTTPS else None
                    )
                    ports.append(Port(listener, listener.bind(), tls))
        except OSError as error:
            self.close()
            raise ConnectError(f"Unable to initialize REST server: {error.strerror or error}") from error
        except BaseException:
            self.close()
            raise
        log.info(
            "REST server listening.",
            listeners=[port.url for port in self.main],
            admin_listeners=[port.url for port in self.admin],
            advertised_url=self.advertised_url,
        )
        if self.advertised_host == "0.0.0.0":  # noqa: S104 - a warning about it
            log.warning(
                "advertised address is 0.0.0.0, which other workers cannot reach; set rest.advertised.host.name"
            )

    @property
    def advertised_host(self) -> str:
        """``rest.advertised.host.name``, else that of the advertised listener, else this machine's address."""
        return self.settings.advertised_host or self._advertised.listener.host or own_address()

    @property
    def advertised_port(self) -> int:
        """``rest.advertised.port``, otherwise that of the advertised listener."""
        return self.settings.advertised_port or self._advertised.number

    @property
    def advertised_url(self) -> str:
        """The URL that other workers use: ``http://host:port/``."""
        return url_of(self.settings.advertised_scheme, self.advertised_host, self.advertised_port)

    @property
    def local_url(self) -> str:
        """The URL for commands on this machine, which send the token there: an address of this machine, or https."""
        for port in self.main:
            if port.listener.scheme == HTTP:
                host = port.socket.getsockname()[0]
                is_any = ipaddress.ip_address(host.partition("%")[0]).is_unspecified
                return url_of(HTTP, "127.0.0.1" if is_any else host, port.number)
        return self.advertised_url

    @property
    def worker_id(self) -> str:
        """``host:port`` as advertised."""
        return authority_of(self.advertised_host, self.advertised_port)

    @property
    def _advertised(self) -> Port:
        # Without a listener of that scheme the worker is behind a proxy; use the first listener.
        same = [port for port in self.main if port.listener.scheme == self.settings.advertised_scheme]
        return (same or self.main)[0]

    @property
    def https(self) -> tuple[ListenerTls, ...]:
        """The TLS of all https listeners."""
        return tuple(port.tls for port in [*self.main, *self.admin] if port.tls is not None)

    def close(self) -> None:
        """Release all ports. May be called twice."""
        for port in [*self.main, *self.admin]:
            port.socket.close()


def warn_of_exposure(binding: Binding) -> None:
    """Log what clients without credentials may do, and where credentials are sent unencrypted. Raises ConfigException."""
    role = RoleMap.of(binding.settings.props).unauthenticated
    ports = [*binding.main, *binding.admin]
    urls = exposed(ports)
    if role >= Role.OPERATOR:
        log.warning(
            "Any client that reaches these addresses can change connectors without authentication: %s is %s.",
            STRANGERS_KEY,
            role,
            listeners=urls or [port.url for port in ports],
        )
    elif role > Role.NONE and urls:
        log.info("Clients without authentication have the role %s.", role, listeners=urls)
    in_clear = [port.url for port in ports if port.tls is None and not port.is_loopback]
    props = binding.settings.props
    if in_clear and (binding.settings.extension_classes or props.get(f"{OIDC_PREFIX}expected.issuer")):
        log.warning("Passwords and tokens are sent to these addresses unencrypted; use https.", listeners=in_clear)
