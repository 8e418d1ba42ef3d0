"""TLS of the REST server and of requests to other workers: the same settings for both (Kafka's SSLUtils)."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Final

from mm2.kafka.settings import ClientSettings, Tls
from mm2.kafka.tls import build_server_ssl_context, build_ssl_context

LISTENERS_PREFIX: Final = "listeners.https."
ADMIN_LISTENERS_PREFIX: Final = "admin.listeners.https."

_CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


def server_context(props: Mapping[str, str], prefix: str, client_auth: str) -> ssl.SSLContext:
    """The TLS context of an https listener. Raises ConfigException naming key and file."""
    settings = tls_settings(props, prefix)
    # A prefixed ssl.client.auth takes precedence over ``client_auth``.
    wanted = props.get(f"{prefix}ssl.client.auth", client_auth).strip().lower()
    return build_server_ssl_context(settings, _CLIENT_AUTH[wanted])


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
