"""Expiry dates of certificates: those of a flow's clients, and those of the process's own listeners."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Final

from mm2.config.configdef import ConfigException
from mm2.connect.tls import ADMIN_LISTENERS_PREFIX, LISTENERS_PREFIX, tls_settings
from mm2.kafka.tls import expiries
from mm2.mirror.clients import Side
from mm2.observer.polls import FlowClients
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


def listener_certificates(rest: Mapping[str, str]) -> tuple[CertificateView, ...]:
    """The certificates and CAs of the process's own https listeners; ``rest`` are its resolved REST settings."""
    found: dict[str, int] = {}
    for key, prefix in (("listeners", LISTENERS_PREFIX), ("admin.listeners", ADMIN_LISTENERS_PREFIX)):
        if "https:" not in rest.get(key, "").lower():
            continue
        with contextlib.suppress(ConfigException):
            found |= {name: int(end.timestamp() * 1000) for name, end in expiries(tls_settings(rest, prefix)).items()}
    return tuple(CertificateView("", "", "", name, expires_ms) for name, expires_ms in found.items())
