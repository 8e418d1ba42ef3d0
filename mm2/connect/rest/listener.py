"""The listeners of the REST server: ``http://host:port``, and their sockets (Kafka's RestServer.createConnector)."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from mm2.config.configdef import ConfigException

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
                reason = f"{os.strerror(error.errno)}; name another port in listeners, or 0 for any that is free"
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
