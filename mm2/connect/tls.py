"""TLS of the REST server and of requests to other workers: the same settings for both (Kafka's SSLUtils)."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Mapping
from datetime import datetime
from typing import Final

import structlog

from mm2.config.configdef import ConfigException
from mm2.kafka.auth.tls import Stamps, build_server_ssl_context, build_ssl_context, expiries, store_stamps
from mm2.kafka.settings.client_settings import ClientSettings, Tls

log = structlog.get_logger(__name__)

LISTENERS_PREFIX: Final = "listeners.https."
ADMIN_LISTENERS_PREFIX: Final = "admin.listeners.https."

_CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


class ListenerTls:
    """The TLS of an https listener. Its stores are read again when their files change; any thread.

    Until the changed stores can be used, the previous ones remain in use.
    """

    def __init__(self, props: Mapping[str, str], prefix: str, client_auth: str) -> None:
        """Raises ConfigException naming key and file. A prefixed ``ssl.client.auth`` overrides ``client_auth``."""
        self._settings = tls_settings(props, prefix)
        self._client_certificates = _client_certificates(props, prefix, client_auth)
        if self._client_certificates is not ssl.CERT_NONE and not self._settings.has_trust:
            raise ConfigException(
                f"{prefix}ssl.truststore.location",
                None,
                "ssl.client.auth needs a trust store with the authorities of the clients' certificates",
            )
        self._lock = threading.Lock()
        self._problem = ""
        self._stamps: Stamps | None = None
        self._read(store_stamps(self._settings))

    @property
    def demands_certificate(self) -> bool:
        """Whether clients need a certificate that the listener trusts (``ssl.client.auth=required``)."""
        return self._client_certificates is ssl.CERT_REQUIRED

    @property
    def is_stale(self) -> bool:
        """Whether :meth:`context` would read the stores."""
        return self._now() != self._stamps

    def context(self) -> ssl.SSLContext:
        """The context for the next connection."""
        self._refresh()
        return self._context

    def expiries(self) -> Mapping[str, datetime]:
        """The expiry times of the certificates in use, by file (see :func:`mm2.kafka.auth.tls.expiries`)."""
        self._refresh()
        return self._expiries

    @property
    def problem(self) -> str:
        """Why the stores, which have changed, are not in use; empty otherwise."""
        return self._problem

    def _now(self) -> Stamps | None:
        try:
            return store_stamps(self._settings)
        except ConfigException:  # reported by _refresh
            return None

    def _refresh(self) -> None:
        with self._lock:
            now = self._now()
            if now == self._stamps:
                return
            self._stamps = now  # a store that cannot be used is not read again until it changes
            try:
                self._read(store_stamps(self._settings))
            except ConfigException as error:
                self._problem = str(error)
                log.error("certificates not reloaded, the previous ones remain in use", reason=self._problem)  # noqa: TRY400
                return
            self._problem = ""
            log.info("certificates of https listeners reloaded", files=sorted(self._expiries))

    def _read(self, stamps: Stamps) -> None:
        context = build_server_ssl_context(self._settings, self._client_certificates)
        self._expiries = expiries(self._settings)
        self._context, self._stamps = context, stamps


def _client_certificates(props: Mapping[str, str], prefix: str, client_auth: str) -> ssl.VerifyMode:
    key = f"{prefix}ssl.client.auth"
    given = props.get(key, client_auth)
    try:
        return _CLIENT_AUTH[given.strip().lower()]
    except KeyError:
        raise ConfigException(key, given, f"must be one of {', '.join(_CLIENT_AUTH)}") from None


def client_context(props: Mapping[str, str]) -> ssl.SSLContext:
    """The TLS context of requests to the https listener of another worker. Raises ConfigException."""
    return build_ssl_context(tls_settings(props, LISTENERS_PREFIX))


def tls_settings(props: Mapping[str, str], prefix: str) -> Tls:
    """TLS settings: keys with the prefix if there is at least one, otherwise the worker's own ``ssl.*``."""
    own = {key.removeprefix(prefix): value for key, value in props.items() if key.startswith(prefix)}
    chosen = own or {key: value for key, value in props.items() if key.startswith("ssl.")}
    known = {key: value for key, value in chosen.items() if key != "ssl.client.auth"}
    settings = ClientSettings.from_props({**known, "bootstrap.servers": "localhost:1", "security.protocol": "SSL"})
    return settings.tls or Tls()
