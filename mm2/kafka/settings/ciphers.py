"""Cipher suites and versions of TLS (``ssl.cipher.suites``, ``ssl.enabled.protocols``).

Suites have their names of Java (IANA) or of OpenSSL. As in Java, an unknown name is an error: a list that is not applied
as it is written may permit what the operator has excluded.
"""

from __future__ import annotations

import functools
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from mm2.config.configdef import ConfigException

log = structlog.get_logger("mm2.kafka.ciphers")

_KEY: Final = "ssl.cipher.suites"
_PROTOCOLS_KEY: Final = "ssl.enabled.protocols"
_TLS_1_2, _TLS_1_3 = "TLSv1.2", "TLSv1.3"
#: Java knows these versions too. It has disabled them since 2021 (JDK-8202343); so does this program.
_OLD_PROTOCOLS: Final = frozenset({"SSLv2Hello", "SSLv3", "TLSv1", "TLSv1.1"})
_SUITES_1_3: Final = frozenset({"TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"})
#: Not a suite: the signal of RFC 5746, which Java lists among its suites. OpenSSL always sends it.
_SIGNAL: Final = "TLS_EMPTY_RENEGOTIATION_INFO_SCSV"
_EXCHANGE: Final = re.compile(r"(?:TLS|SSL)_(?P<exchange>\w+?)_WITH_(?P<cipher>\w+)")
_MIN_STRENGTH_BITS: Final = 112
#: How the server is authenticated. The others are anonymous, or need keys that no setting contains.
_AUTHENTICATED: Final = frozenset({"auth-rsa", "auth-ecdsa", "auth-dss"})


class SuiteNotAllowed(ssl.SSLError):
    """The handshake has chosen a cipher suite that is not in ``ssl.cipher.suites``."""

    def __init__(self, suite: str) -> None:
        super().__init__(ssl.SSL_ERROR_SSL, f"the cipher suite {suite} was chosen, which is not in {_KEY}")
        self.reason = self.library = ""  # attributes of every SSLError that OpenSSL reports


@dataclass(frozen=True)
class _Suites:
    """OpenSSL's names of the suites of a list, by version."""

    older: tuple[str, ...]
    newest: frozenset[str]


def check_versions(protocols: Sequence[str]) -> None:
    """Raises ConfigException for an unknown version, and if neither TLS 1.2 nor TLS 1.3 is enabled."""
    shown = ",".join(protocols)
    for protocol in protocols:
        if protocol not in {_TLS_1_2, _TLS_1_3, *_OLD_PROTOCOLS}:
            raise ConfigException(_PROTOCOLS_KEY, shown, f"{protocol} is not a version of TLS")
    if not {_TLS_1_2, _TLS_1_3}.intersection(protocols):
        raise ConfigException(
            _PROTOCOLS_KEY, shown, "must contain TLSv1.2 or TLSv1.3; older versions are not supported"
        )


def check_suites(suites: Sequence[str], protocols: Sequence[str]) -> None:
    """Raises ConfigException that names the first suite that cannot be used, or if no connection is possible."""
    if not suites:
        return
    parsed = _parsed(tuple(suites))
    if not (parsed.older and _TLS_1_2 in protocols) and not (parsed.newest and _TLS_1_3 in protocols):
        raise ConfigException(
            _KEY, ",".join(suites), f"none of these cipher suites belongs to the versions in {_PROTOCOLS_KEY}"
        )


def set_ciphers(context: ssl.SSLContext, suites: Sequence[str], protocols: Sequence[str]) -> None:
    """Use only the versions in ``protocols`` and the suites in ``suites`` (none: the defaults). Raises ConfigException.

    Python cannot select among the suites of TLS 1.3 before version 3.15: OpenSSL offers all three of them. A connection
    for which one outside the list is chosen fails at the end of its handshake, before any data is sent: see
    :class:`SuiteNotAllowed`. A version without a suite in the list is disabled.
    """
    check_versions(protocols)
    check_suites(suites, protocols)
    parsed = _parsed(tuple(suites))
    old = _TLS_1_2 in protocols and (not suites or bool(parsed.older))
    new = _TLS_1_3 in protocols and (not suites or bool(parsed.newest))
    context.minimum_version = ssl.TLSVersion.TLSv1_2 if old else ssl.TLSVersion.TLSv1_3
    context.maximum_version = ssl.TLSVersion.TLSv1_3 if new else ssl.TLSVersion.TLSv1_2
    if parsed.older and old:
        context.set_ciphers(":".join(parsed.older))
    if suites and new and parsed.newest != _SUITES_1_3:
        _enforce(context, frozenset({*parsed.older, *parsed.newest}))


def openssl_name(suite: str) -> str:
    """OpenSSL's name of a suite of TLS 1.2 or older; one that is not a name of Java (IANA) is returned unchanged."""
    named = _EXCHANGE.fullmatch(suite)
    if named is None:
        return suite
    exchange, cipher = named["exchange"].replace("_", "-"), named["cipher"]
    cipher = cipher.replace("3DES_EDE_CBC", "DES_CBC3").replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    cipher = re.sub(r"(?<=\d)_CBC(?=_SHA)", "", cipher)
    cipher = re.sub(r"_8$", "8", re.sub(r"^(AES|ARIA|CAMELLIA)_", r"\1", cipher))
    # OpenSSL omits the key exchange RSA.
    return "-".join(([] if exchange == "RSA" else [exchange]) + [cipher.replace("_", "-")])


def _enforce(context: ssl.SSLContext, allowed: frozenset[str]) -> None:
    """Fail handshakes of this context that choose another suite, in sockets and in asyncio alike."""

    def check(chosen: tuple[str, str, int] | None) -> None:
        if chosen is None or chosen[0] not in allowed:
            raise SuiteNotAllowed(chosen[0] if chosen else "-")

    class CheckedSocket(ssl.SSLSocket):
        def do_handshake(self, block: bool = False) -> None:
            super().do_handshake(block)
            check(self.cipher())

    class CheckedObject(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            check(self.cipher())

    context.sslsocket_class = CheckedSocket
    context.sslobject_class = CheckedObject


@functools.lru_cache(maxsize=32)
def _parsed(suites: tuple[str, ...]) -> _Suites:
    named = [suite for suite in suites if suite != _SIGNAL]
    older = tuple(_available(suite, suites) for suite in named if suite not in _SUITES_1_3)
    newest = frozenset(suite for suite in named if suite in _SUITES_1_3)
    if newest and newest != _SUITES_1_3:
        log.warning(
            "OpenSSL offers all cipher suites of TLS 1.3; connections that choose one outside the list are closed",
            key=_KEY,
            suites=sorted(newest),
        )
    return _Suites(older, newest)


def _available(suite: str, suites: Sequence[str]) -> str:
    """OpenSSL's name of a suite. Raises ConfigException if OpenSSL does not have it, or if it is too weak to be used."""
    name = openssl_name(suite)
    probe = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        probe.set_ciphers(name)
    except ssl.SSLError:
        found = []
    else:
        found = [cipher for cipher in probe.get_ciphers() if cipher["name"] not in _SUITES_1_3]
    # set_ciphers also accepts expressions such as ALL or HIGH:!aNULL, which are no names.
    if [cipher["name"] for cipher in found] != [name]:
        raise ConfigException(_KEY, ",".join(suites), f"OpenSSL does not have the cipher suite {suite}")
    if found[0]["strength_bits"] < _MIN_STRENGTH_BITS or found[0]["auth"] not in _AUTHENTICATED:
        raise ConfigException(
            _KEY, ",".join(suites), f"the cipher suite {suite} is not secure: it has weak encryption or no certificates"
        )
    return name
