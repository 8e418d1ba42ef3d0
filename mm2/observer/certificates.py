"""Until when certificates hold: those of a flow's clients, and those of the process's own listeners."""

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
    """What ``look`` finds, looked at again at most once a minute: a certificate that is replaced is another file.

    A ConfigException of ``look`` leaves what was found before, which is what the clients and listeners still have.
    """

    def __init__(self, look: Callable[[], tuple[CertificateView, ...]]) -> None:
        self._look = look
        self._found: tuple[CertificateView, ...] = ()
        self._again_s = 0.0

    def now(self) -> tuple[CertificateView, ...]:
        """As they are, or were a minute ago."""
        now_s = time.monotonic()
        if now_s >= self._again_s:
            self._again_s = now_s + _AGAIN_S
            with contextlib.suppress(ConfigException):
                self._found = self._look()
        return self._found


def client_certificates(clients: FlowClients) -> tuple[CertificateView, ...]:
    """Those of a flow's clients on both sides. A store that cannot be read is left out: the clients say so themselves."""
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
    """Those that the process's own https listeners show and trust; ``rest`` are its settings for REST, resolved."""
    found: dict[str, int] = {}
    for key, prefix in (("listeners", LISTENERS_PREFIX), ("admin.listeners", ADMIN_LISTENERS_PREFIX)):
        if "https:" not in rest.get(key, "").lower():
            continue
        with contextlib.suppress(ConfigException):
            found |= {name: int(end.timestamp() * 1000) for name, end in expiries(tls_settings(rest, prefix)).items()}
    return tuple(CertificateView("", "", "", name, expires_ms) for name, expires_ms in found.items())
