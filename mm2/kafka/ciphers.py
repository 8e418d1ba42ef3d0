"""Cipher suites of TLS connections (``ssl.cipher.suites``), by their names in Java or in OpenSSL."""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence
from typing import Final

import structlog

from mm2.config.configdef import ConfigException

log = structlog.get_logger(__name__)

_KEY: Final = "ssl.cipher.suites"
_TLS_1_3: Final = frozenset({"TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"})
_EXCHANGE: Final = re.compile(r"(?:TLS|SSL)_(?P<exchange>\w+?)_WITH_(?P<cipher>\w+)")


def set_ciphers(context: ssl.SSLContext, suites: Sequence[str]) -> None:
    """Offer only ``suites``; none: the defaults. Raises ConfigException if no connection is possible with them.

    Python cannot select among the suites of TLS 1.3: with one of them, all three are offered. With none of them, TLS
    1.3 is disabled, since it has no suite in common with the list.
    """
    if not suites:
        return
    newest = [suite for suite in suites if suite in _TLS_1_3]
    older, unknown = _known([suite for suite in suites if suite not in _TLS_1_3])
    if unknown:
        log.warning("cipher suites ignored, OpenSSL does not have them", key=_KEY, suites=unknown)
    if older:
        context.set_ciphers(":".join(older))
    if not newest:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    elif not older:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if newest and len(newest) < len(_TLS_1_3):
        log.warning("all cipher suites of TLS 1.3 are offered, Python cannot select among them", key=_KEY)
    if not (newest or older) or context.minimum_version > context.maximum_version:
        raise ConfigException(
            _KEY, ",".join(suites), "OpenSSL has none of these cipher suites for the versions in ssl.enabled.protocols"
        )


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


def _known(suites: Sequence[str]) -> tuple[list[str], list[str]]:
    """OpenSSL's names of the suites that it has, and the other suites as given."""
    probe = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    known, unknown = [], []
    for suite in suites:
        try:
            probe.set_ciphers(openssl_name(suite))
        except ssl.SSLError:
            unknown.append(suite)
        else:
            known.append(openssl_name(suite))
    return known, unknown
