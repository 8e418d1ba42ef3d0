"""Expiry dates of certificates: those of a flow's clients, and those of the process's own listeners."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Final

from mm2.config.configdef import ConfigException
from mm2.connect.tls import ListenerTls
from mm2.kafka.auth.tls import expiries
from mm2.mirror.common.clients import Side
from mm2.observer.polling.polls import FlowClients
from mm2.observer.views import CertificateView

_AGAIN_S: Final = 60.0


class Certificates:
    """The certificates that ``read`` returns, refreshed at most once a minute: a certificate may be replaced.

    If ``read`` raises ConfigException, the previous result is kept, since the clients and listeners still use it.
    """

    def __init__(self, read: Callable[[], tuple[CertificateView, ...]]) -> None:
        self._read = read
        self._found: tuple[CertificateView, ...] = ()
        self._again_s = 0.0

    def now(self) -> tuple[CertificateView, ...]:
        """The certificates, at most one minute old."""
        now_s = time.monotonic()
        if now_s >= self._again_s:
            self._again_s = now_s + _AGAIN_S
            with contextlib.suppress(ConfigException):
                self._found = self._read()
        return self._found


def client_certificates(clients: FlowClients) -> tuple[CertificateView, ...]:
    """The certificates of a flow's clients on both sides.

    An unreadable store is left out; the clients report it themselves.
    """
    found = []
    for side in Side:
        tls = clients.settings(side).tls
        if tls is None:
            continue
        with contextlib.suppress(ConfigException):
            found += [
                CertificateView(clients.source, clients.target, clients.alias(side), name, int(end.timestamp() * 1000))
                for name, end in expiries(tls).items()
            ]
    return tuple(found)


def listener_certificates(listeners: Iterable[ListenerTls]) -> tuple[CertificateView, ...]:
    """The certificates and authorities that the process's own https listeners use now."""
    found: dict[str, CertificateView] = {}
    for tls in listeners:
        for name, end in tls.expiries().items():
            view = CertificateView("", "", "", name, int(end.timestamp() * 1000), tls.problem)
            if name not in found or view.expires_ms < found[name].expires_ms:
                found[name] = view
    return tuple(found.values())
