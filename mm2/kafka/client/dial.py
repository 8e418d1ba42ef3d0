"""Connect to a host: address resolution, TCP and TLS, each with its own kind of failure."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import ssl
import threading
import time
from typing import Any, Final

from mm2.config.configdef import ConfigException
from mm2.kafka.auth.tls import build_ssl_context
from mm2.kafka.client.stream import Stream, remaining_ms, tls_reason
from mm2.kafka.errors import ConnectFailure, DnsFailure, RefusedFailure, TimeoutFailure, TlsFailure, TlsInterrupted
from mm2.kafka.settings.client_settings import ClientSettings

Address = tuple[Any, ...]
Target = tuple[socket.AddressFamily, Address]

_IN_PROGRESS: Final = (errno.EINPROGRESS, errno.EWOULDBLOCK)

#: Appended to a TLS failure of a client without a key: brokers only report "bad certificate" or "handshake failure".
NO_KEY_HINT: Final = " It may require a client certificate, and no ssl.keystore is set."


def dial(host: str, port: int, settings: ClientSettings, *, deadline: float, who: str, failures: int = 0) -> Stream:
    """Connect to the first address of the host that accepts, with TLS if the security protocol requires it.

    Each of the last `failures` moves on to the next address (ClusterConnectionStates): one may accept connections and not
    respond. `deadline` is a `time.monotonic()` value for all steps together; several addresses share the time. Raises
    DnsFailure, RefusedFailure, TimeoutFailure or TlsFailure.
    """
    found = resolve(host, port, deadline=deadline, who=who)
    first = failures % len(found)
    targets = found[first:] + found[:first]
    for position, target in enumerate(targets):
        left = len(targets) - position
        now = time.monotonic()
        share = now + max(0.0, deadline - now) / left
        try:
            sock = _connect(target, settings, share, who)
        except (RefusedFailure, TimeoutFailure):
            if left == 1:
                raise
            continue
        if settings.tls is None:
            return Stream(sock, who)
        try:
            return Stream(_handshake(sock, host, settings, deadline, who), who)
        except BaseException:
            sock.close()
            raise
    raise AssertionError(host)  # pragma: no cover - resolve never returns an empty list


def resolve(host: str, port: int, *, deadline: float, who: str) -> list[Target]:
    """All addresses of a host, in the order of the resolver. Raises DnsFailure, or TimeoutFailure at the deadline."""
    with contextlib.suppress(OSError):
        return _lookup(host, port, socket.AI_NUMERICHOST)
    # getaddrinfo has no timeout (an unreachable name server costs 5 s per try), so it runs in a thread that may be
    # abandoned.
    answer: list[list[Target] | OSError] = []

    def ask() -> None:
        try:
            answer.append(_lookup(host, port, 0))
        except OSError as error:
            answer.append(error)

    thread = threading.Thread(target=ask, name=f"resolve-{host}", daemon=True)
    thread.start()
    thread.join(max(0.0, deadline - time.monotonic()))
    if not answer:
        raise TimeoutFailure(f"The name server did not answer in time for the {who}.")
    if isinstance(answer[0], OSError):
        raise DnsFailure(f"The host name of the {who} has no address: {answer[0].strerror}.") from answer[0]
    return answer[0]


def canonical_names(host: str, port: int, *, deadline: float) -> list[str]:
    """The names of all addresses of a host (`client.dns.lookup=resolve_canonical_bootstrap_servers_only`)."""
    names: list[str] = []
    for _, address in resolve(host, port, deadline=deadline, who=f"bootstrap server {host}:{port}"):
        with contextlib.suppress(OSError):
            names.append(socket.getnameinfo(address, socket.NI_NUMERICSERV)[0])
    return list(dict.fromkeys(names)) or [host]


def _lookup(host: str, port: int, flags: int) -> list[Target]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=flags)
    except UnicodeError as error:
        raise OSError(errno.EINVAL, "invalid host name") from error
    return [(family, address) for family, _, _, _, address in found]


def _connect(target: Target, settings: ClientSettings, deadline: float, who: str) -> socket.socket:
    family, address = target
    try:
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    except OSError as error:
        raise RefusedFailure(f"The {who} cannot be reached: {error.strerror}.") from error
    try:
        _set_options(sock, settings)
        code = sock.connect_ex(address)
        if code in _IN_PROGRESS:
            if not _poll(sock, select.POLLOUT, deadline):
                raise TimeoutFailure(f"The {who} did not accept a connection before the timeout.")
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code == errno.ETIMEDOUT:
            raise TimeoutFailure(f"The {who} did not accept a connection before the timeout.")
        if code:
            reason = "connection refused" if code == errno.ECONNREFUSED else os.strerror(code).lower()
            raise RefusedFailure(f"The {who} cannot be reached: {reason}.")
    except BaseException:
        sock.close()
        raise
    return sock


def _set_options(sock: socket.socket, settings: ClientSettings) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if settings.send_buffer_bytes >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.send_buffer_bytes)
    if settings.receive_buffer_bytes >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.receive_buffer_bytes)


def _handshake(sock: socket.socket, host: str, settings: ClientSettings, deadline: float, who: str) -> ssl.SSLSocket:
    assert settings.tls is not None  # noqa: S101 - narrows the type for the one caller, which checked
    try:
        context = build_ssl_context(settings.tls)
    except ConfigException as error:
        # Stores may be replaced while the process runs, and not always atomically.
        reason = str(error).rstrip(".")
        raise TlsFailure(f"The TLS session with the {who} cannot be set up: {reason}.") from error
    try:
        tls_sock = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    except (ssl.SSLError, ValueError) as error:
        raise TlsFailure(f"The TLS session with the {who} cannot be set up: {error}.") from error
    while True:
        try:
            tls_sock.do_handshake()
            return tls_sock
        except ssl.SSLWantReadError:
            events = select.POLLIN
        except ssl.SSLWantWriteError:
            events = select.POLLOUT
        except OSError as error:
            raise _handshake_failure(error, who, has_key=settings.tls.has_key) from error
        if not _poll(tls_sock, events, deadline):
            raise TimeoutFailure(f"The {who} did not finish the TLS handshake before the timeout.")


def _handshake_failure(error: OSError, who: str, *, has_key: bool) -> ConnectFailure:
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsFailure(f"The certificate of the {who} is not trusted: {tls_reason(error)}.")
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ConnectionError):
        # A plaintext listener reads the TLS ClientHello as an impossible frame size and closes the connection.
        return TlsInterrupted(
            f"The {who} closed the connection during the TLS handshake, as a listener without TLS does: "
            "check the port and security.protocol."
        )
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or "").upper()
        if reason in {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}:
            return TlsFailure(f"The {who} does not use TLS on this port: check the port and security.protocol.")
        hint = "" if has_key else NO_KEY_HINT
        return TlsFailure(f"The TLS handshake with the {who} failed: {tls_reason(error)}.{hint}")
    return TlsInterrupted(f"The connection to the {who} broke during the TLS handshake: {error.strerror}.")


def _poll(sock: socket.socket, events: int, deadline: float) -> bool:
    poll = select.poll()
    poll.register(sock.fileno(), events)
    return bool(poll.poll(remaining_ms(deadline)))
