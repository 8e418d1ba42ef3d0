"""Typed, picklable settings of a Kafka client, read from Java-style keys.

Keys, defaults and ranges are those of `CommonClientConfigs`, `SslConfigs` and `SaslConfigs` of Kafka 4.3.0. Secrets are
part of the data (executors need them) and of `to_json`, but never of a `repr`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from mm2.config.configdef import ConfigException
from mm2.kafka.records.codec import DECOMPRESSION_MAX_BYTES
from mm2.kafka.settings.ciphers import check_suites, check_versions
from mm2.kafka.settings.sasl_settings import Sasl, read_sasl
from mm2.kafka.settings.typed_keys import TypedKeys, setting

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_DEFAULT_ENGINE = "org.apache.kafka.common.security.ssl.DefaultSslEngineFactory"
_MIB = 1024 * 1024
_INT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Tls:
    """The `ssl.*` keys.

    A store is a file (`…_location`) or PEM text; all None means no key and the system's trust store.

    `endpoint_identification` "" disables host name verification.
    """

    keystore_location: str | None = setting(TypedKeys.optional, "ssl.keystore.location")
    keystore_type: str = setting(TypedKeys.text, "ssl.keystore.type", "JKS")
    keystore_password: str | None = setting(TypedKeys.secret, "ssl.keystore.password")
    key_password: str | None = setting(TypedKeys.secret, "ssl.key.password")
    keystore_key: str | None = setting(TypedKeys.secret, "ssl.keystore.key")
    keystore_certificate_chain: str | None = setting(TypedKeys.secret, "ssl.keystore.certificate.chain")
    truststore_location: str | None = setting(TypedKeys.optional, "ssl.truststore.location")
    truststore_type: str = setting(TypedKeys.text, "ssl.truststore.type", "JKS")
    truststore_password: str | None = setting(TypedKeys.secret, "ssl.truststore.password")
    truststore_certificates: str | None = setting(TypedKeys.secret, "ssl.truststore.certificates")
    endpoint_identification: str = setting(TypedKeys.text, "ssl.endpoint.identification.algorithm", "https")
    enabled_protocols: tuple[str, ...] = setting(TypedKeys.names, "ssl.enabled.protocols", ("TLSv1.2", "TLSv1.3"))
    cipher_suites: tuple[str, ...] = setting(TypedKeys.names, "ssl.cipher.suites", ())

    @property
    def has_key(self) -> bool:
        """True when the client has a certificate of its own."""
        return bool(self.keystore_location or self.keystore_key)

    @property
    def has_trust(self) -> bool:
        """False when the system's trust store is used."""
        return bool(self.truststore_location or self.truststore_certificates)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Client settings of one cluster. Times in milliseconds, sizes in bytes; -1 as a buffer size is the OS default.

    ``api_timeout_ms`` limits an administrative call with all its retries; 0: ``request_timeout_ms``.
    ``decompression_max_bytes`` limits the memory of the decompressed records of one batch, and of their objects.
    """

    bootstrap: tuple[tuple[str, int], ...]
    client_id: str = ""
    security_protocol: str = "PLAINTEXT"
    request_timeout_ms: int = setting(TypedKeys.integer, "request.timeout.ms", 30_000, low=1)
    connection_setup_timeout_ms: int = setting(TypedKeys.integer, "socket.connection.setup.timeout.ms", 10_000, low=1)
    connection_setup_timeout_max_ms: int = setting(
        TypedKeys.integer, "socket.connection.setup.timeout.max.ms", 30_000, low=1
    )
    connections_max_idle_ms: int = setting(TypedKeys.integer, "connections.max.idle.ms", 540_000, low=-1)
    reconnect_backoff_ms: int = setting(TypedKeys.integer, "reconnect.backoff.ms", 50, low=0)
    reconnect_backoff_max_ms: int = setting(TypedKeys.integer, "reconnect.backoff.max.ms", 1_000, low=0)
    retry_backoff_ms: int = setting(TypedKeys.integer, "retry.backoff.ms", 100, low=0)
    retry_backoff_max_ms: int = setting(TypedKeys.integer, "retry.backoff.max.ms", 1_000, low=0)
    metadata_max_age_ms: int = setting(TypedKeys.integer, "metadata.max.age.ms", 300_000, low=0)
    rebootstrap: bool = True
    canonical_bootstrap: bool = False
    client_rack: str = setting(TypedKeys.text, "client.rack", "")
    send_buffer_bytes: int = setting(TypedKeys.integer, "send.buffer.bytes", -1, low=-1)
    receive_buffer_bytes: int = setting(TypedKeys.integer, "receive.buffer.bytes", -1, low=-1)
    api_timeout_ms: int = setting(TypedKeys.integer, "default.api.timeout.ms", 0, low=0)
    max_frame_bytes: int = 256 * _MIB
    decompression_max_bytes: int = setting(
        TypedKeys.integer, "decompression.max.bytes", DECOMPRESSION_MAX_BYTES, low=1, high=_INT_MAX
    )
    tls: Tls | None = None
    sasl: Sasl | None = None

    @classmethod
    def from_props(cls, props: Mapping[str, str], *, client_id: str | None = None) -> Self:
        """Settings from unprefixed Java keys; `client_id` replaces the key `client.id`. Unknown keys are ignored.

        Raises ConfigException naming the key and, unless it is a secret, the value.
        """
        keys = TypedKeys(props)
        security_protocol = keys.choice("security.protocol", "PLAINTEXT", SECURITY_PROTOCOLS, upper=True)
        return cls(
            bootstrap=_bootstrap(keys),
            client_id=client_id if client_id is not None else keys.text("client.id", ""),
            security_protocol=security_protocol,
            **keys.values_of(cls),
            rebootstrap=keys.choice("metadata.recovery.strategy", "rebootstrap", ("rebootstrap", "none"))
            == "rebootstrap",
            canonical_bootstrap=keys.choice(
                "client.dns.lookup", "use_all_dns_ips", ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only")
            )
            == "resolve_canonical_bootstrap_servers_only",
            tls=read_tls(keys) if security_protocol.endswith("SSL") else None,
            sasl=read_sasl(keys) if security_protocol.startswith("SASL") else None,
        )


def address_text(host: str, port: int) -> str:
    """ "host:port", an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bootstrap(keys: TypedKeys) -> tuple[tuple[str, int], ...]:
    key = "bootstrap.servers"
    servers = keys.names(key, ())
    if not servers:
        raise ConfigException(key, keys.optional(key), "at least one host:port is needed")
    return tuple(dict.fromkeys(_address(key, server) for server in servers))


def _address(key: str, text: str) -> tuple[str, int]:
    """Split "host:port"; a leading "PROTOCOL://" is allowed as in Kafka's `Utils.getHost`."""
    host, colon, port = text.rpartition("://")[2].rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigException(key, text, "Invalid url in bootstrap.servers, expected host:port")
    return host, int(port)


def read_tls(keys: TypedKeys) -> Tls:
    engine = keys.optional("ssl.engine.factory.class")
    if engine and engine != _DEFAULT_ENGINE:
        raise ConfigException(
            "ssl.engine.factory.class", engine, "a Java class cannot be used here, set the stores instead"
        )
    tls = Tls(**keys.values_of(Tls))
    if tls.endpoint_identification.lower() not in {"", "https"}:
        raise ConfigException(
            "ssl.endpoint.identification.algorithm", tls.endpoint_identification, "must be https or empty"
        )
    check_versions(tls.enabled_protocols)
    check_suites(tls.cipher_suites, tls.enabled_protocols)
    if bool(tls.keystore_key) != bool(tls.keystore_certificate_chain):
        missing = "ssl.keystore.certificate.chain" if tls.keystore_key else "ssl.keystore.key"
        raise ConfigException(missing, None, "a PEM key and its certificate chain must be given together")
    if tls.keystore_key and tls.keystore_location:
        raise ConfigException(
            "ssl.keystore.location", tls.keystore_location, "cannot be used together with ssl.keystore.key"
        )
    if tls.truststore_certificates and tls.truststore_location:
        raise ConfigException(
            "ssl.truststore.location",
            tls.truststore_location,
            "cannot be used together with ssl.truststore.certificates",
        )
    return tls
