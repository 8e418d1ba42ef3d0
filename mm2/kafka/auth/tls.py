"""TLS contexts from Java-style stores. The format (PEM, PKCS12 or JKS) is detected by the first bytes.

The declared type (`ssl.keystore.type`) is ignored: since Java 9 `keytool` writes PKCS12, often to files that are
declared as JKS. Private keys are passed to OpenSSL through an anonymous memory file, never through the file system.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import structlog
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_private_key,
    load_pem_private_key,
    pkcs12,
)

from mm2.config.configdef import ConfigException
from mm2.config.files.regular_file import UnusableFile, read_regular_file
from mm2.kafka.settings.ciphers import set_ciphers
from mm2.kafka.settings.client_settings import Tls

log = structlog.get_logger("mm2.kafka.tls")

_JKS_MAGICS: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_DER_SEQUENCE: Final = b"\x30"
#: Of a store. A client of REST may name any file, for example a device without an end.
_MOST_BYTES: Final = 16 * 1024 * 1024

#: Of each file: time of the last change in ns, size in bytes, inode number.
Stamps = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class _Store:
    """Content of a store: `key_pem` with its `chain_pem`, and trusted certificates. All PEM, empty if absent."""

    key_pem: bytes = b""
    chain_pem: bytes = b""
    trusted_pem: str = ""


def build_ssl_context(tls: Tls) -> ssl.SSLContext:
    """Client context for the settings. Stores are read again when their files change, so rotation needs no restart.

    Raises ConfigException naming the key and the file when a store cannot be read or opened.
    """
    return _build(tls, store_stamps(tls))


def build_server_ssl_context(tls: Tls, client_certificates: ssl.VerifyMode) -> ssl.SSLContext:
    """Server context for the settings; ``client_certificates`` sets whether clients must present a trusted certificate.

    Raises ConfigException naming the key and the file when a store cannot be read or opened, or when there is no key.
    """
    if not tls.has_key:
        raise ConfigException(
            "ssl.keystore.location", None, "a listener for https needs a private key with a certificate"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    set_ciphers(context, tls.cipher_suites, tls.enabled_protocols)
    _set_key(context, tls)
    context.verify_mode = client_certificates
    if client_certificates is not ssl.CERT_NONE:
        _set_trust(context, tls)
    return context


def expiries(tls: Tls) -> Mapping[str, datetime]:
    """Expiry times of the certificates in the settings' stores: the client's own, and the earliest of the trusted ones.

    Indexed by file name without folder, or by the name of the setting that contains PEM. Raises ConfigException as
    `build_ssl_context` does.
    """
    return _expiries(tls, store_stamps(tls))


def store_stamps(tls: Tls) -> Stamps:
    """Values that differ after one of the stores' files has been changed or replaced. Raises ConfigException."""
    return tuple(_stamp(key, location) for key, location in _locations(tls))


@functools.lru_cache(maxsize=32)
def _expiries(tls: Tls, stamps: Stamps) -> Mapping[str, datetime]:
    del stamps  # only part of the cache key
    found: dict[str, datetime] = {}
    if tls.keystore_certificate_chain:
        chain = _pem_blocks(tls.keystore_certificate_chain, "CERTIFICATE")
        _note_expiry(found, "ssl.keystore.certificate.chain", chain.encode(), own=True)
    elif tls.keystore_location:
        store = _read_store("ssl.keystore.location", tls.keystore_location, tls.keystore_password, tls.key_password)
        _note_expiry(found, Path(tls.keystore_location).name, store.chain_pem, own=True)
    if tls.truststore_certificates:
        trusted = _pem_blocks(tls.truststore_certificates, "CERTIFICATE")
        _note_expiry(found, "ssl.truststore.certificates", trusted.encode(), own=False)
    elif tls.truststore_location:
        store = _read_store("ssl.truststore.location", tls.truststore_location, tls.truststore_password, None)
        _note_expiry(found, Path(tls.truststore_location).name, store.trusted_pem.encode(), own=False)
    return found


def _note_expiry(found: dict[str, datetime], name: str, pem: bytes, *, own: bool) -> None:
    """``own``: use the first certificate, the client's own; the others are its issuers.

    Otherwise use the earliest expiry.
    """
    try:
        ends = [certificate.not_valid_after_utc for certificate in x509.load_pem_x509_certificates(pem)]
    except ValueError:
        return  # no certificate; reported where the store is used
    end = ends[0] if own else min(ends)
    found[name] = min(end, found.get(name, end))


def _locations(tls: Tls) -> Iterator[tuple[str, str]]:
    if tls.keystore_location:
        yield "ssl.keystore.location", tls.keystore_location
    if tls.truststore_location:
        yield "ssl.truststore.location", tls.truststore_location


def _stamp(key: str, location: str) -> tuple[int, int, int]:
    try:
        stat = Path(location).stat()
    except OSError as error:
        raise ConfigException(key, location, f"the file cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigException(key, location, "it is not the name of a file") from error
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


@functools.lru_cache(maxsize=32)
def _build(tls: Tls, stamps: Stamps) -> ssl.SSLContext:
    del stamps  # only part of the cache key
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = bool(tls.endpoint_identification)
    context.verify_mode = ssl.CERT_REQUIRED
    set_ciphers(context, tls.cipher_suites, tls.enabled_protocols)
    _set_trust(context, tls)
    _set_key(context, tls)
    return context


def _set_trust(context: ssl.SSLContext, tls: Tls) -> None:
    if tls.truststore_certificates:
        key, pem = "ssl.truststore.certificates", tls.truststore_certificates
    elif tls.truststore_location:
        key = "ssl.truststore.location"
        pem = _read_store(key, tls.truststore_location, tls.truststore_password, None).trusted_pem
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return
    shown = tls.truststore_location
    if "BEGIN CERTIFICATE" not in pem:
        raise ConfigException(key, shown, "there is no certificate in it")
    try:
        context.load_verify_locations(cadata=_pem_blocks(pem, "CERTIFICATE"))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigException(key, shown, "its certificates cannot be read") from error


def _set_key(context: ssl.SSLContext, tls: Tls) -> None:
    if tls.keystore_key and tls.keystore_certificate_chain:
        key, shown = "ssl.keystore.key", None
        store = _Store(
            _plain_key(key, shown, _pem_blocks(tls.keystore_key, "PRIVATE KEY").encode(), tls.key_password),
            _pem_blocks(tls.keystore_certificate_chain, "CERTIFICATE").encode(),
        )
    elif tls.keystore_location:
        key, shown = "ssl.keystore.location", tls.keystore_location
        store = _read_store(key, tls.keystore_location, tls.keystore_password, tls.key_password)
        if not store.key_pem or not store.chain_pem:
            raise ConfigException(key, shown, "there is no private key with a certificate in it")
    else:
        return
    try:
        with memory_file(store.key_pem + b"\n" + store.chain_pem) as path:
            context.load_cert_chain(path)
    except ssl.SSLError as error:
        raise ConfigException(key, shown, "key and certificate do not belong together or cannot be used") from error


@contextlib.contextmanager
def memory_file(data: bytes) -> Iterator[str]:
    """A path to bytes that are never stored on disk: OpenSSL loads keys by file name only."""
    descriptor = os.memfd_create("tls-key", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _read_store(key: str, location: str, password: str | None, key_password: str | None) -> _Store:
    try:
        data = read_regular_file(location, _MOST_BYTES)
    except OSError as error:
        raise ConfigException(key, location, f"the file cannot be read: {error.strerror}") from error
    except UnusableFile as error:
        raise ConfigException(key, location, f"the file {error}") from error
    if data[:4] in _JKS_MAGICS:
        return _read_jks(key, location, data, password, key_password)
    if data[:1] == _DER_SEQUENCE:
        return _read_pkcs12(key, location, data, password)
    if b"-----BEGIN " in data:
        return _read_pem(key, location, data, key_password or password)
    raise ConfigException(key, location, "the file is neither PEM nor PKCS12 nor JKS")


def _read_pem(key: str, location: str, data: bytes, key_password: str | None) -> _Store:
    text = data.decode("latin-1")
    certificates = _pem_blocks(text, "CERTIFICATE")
    if "PRIVATE KEY-----" not in text:
        return _Store(trusted_pem=certificates)
    key_pem = _plain_key(key, location, _pem_blocks(text, "PRIVATE KEY").encode("latin-1"), key_password)
    return _Store(key_pem, certificates.encode("latin-1"), certificates)


def _read_pkcs12(key: str, location: str, data: bytes, password: str | None) -> _Store:
    try:
        store = pkcs12.load_pkcs12(data, password.encode() if password is not None else None)
    except ValueError as error:
        raise ConfigException(key, location, f"the PKCS12 store cannot be opened{_password_hint(password)}") from error
    others = [entry.certificate for entry in store.additional_certs]
    own = [store.cert.certificate] if store.cert is not None else []
    key_pem = b""
    if store.key is not None:
        key_pem = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return _Store(key_pem, _as_pem(_chain(own, others)), _as_pem([*own, *others]).decode("ascii"))


def _read_jks(key: str, location: str, data: bytes, password: str | None, key_password: str | None) -> _Store:
    try:
        import jks  # noqa: PLC0415 - an optional dependency that only old stores need
    except ImportError as error:
        raise ConfigException(
            key,
            location,
            "reading a JKS store needs the package pyjks (pip install pyjks), or convert it to PKCS12",
        ) from error
    try:
        store: Any = jks.KeyStore.loads(data, password)
        trusted = [x509.load_der_x509_certificate(entry.cert) for entry in store.certs.values()]
        keys = sorted(store.private_keys.items())
        if not keys:
            return _Store(trusted_pem=_as_pem(trusted).decode("ascii"))
        _, entry = keys[0]
        if not entry.is_decrypted():
            entry.decrypt(key_password or password)
        private = load_der_private_key(entry.pkey_pkcs8, None)
        chain = [x509.load_der_x509_certificate(certificate) for _, certificate in entry.cert_chain]
    except (jks.util.KeystoreException, ValueError, TypeError) as error:
        raise ConfigException(key, location, f"the JKS store cannot be opened{_password_hint(password)}") from error
    key_pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return _Store(key_pem, _as_pem(chain), _as_pem([*trusted, *chain]).decode("ascii"))


def _password_hint(password: str | None) -> str:
    return ", its password is not set" if password is None else ", the password may be wrong"


def _plain_key(key: str, shown: str | None, data: bytes, password: str | None) -> bytes:
    """The PEM key without its encryption, as PKCS8."""
    try:
        try:
            private = load_pem_private_key(data, password.encode() if password else None)
        except TypeError:
            # A password was given (perhaps the store's) but the key is not encrypted, or the other way round.
            private = load_pem_private_key(data, None)
    except (ValueError, TypeError) as error:
        raise ConfigException(
            key, shown, "the private key cannot be read, ssl.key.password may be wrong or missing"
        ) from error
    return private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _pem_blocks(text: str, kind: str) -> str:
    """The PEM blocks whose label ends with `kind`, without anything between them.

    A block on one line, as in a properties file without backslashes at the line ends, gets its line breaks back.
    """
    blocks: list[str] = []
    for label, body in re.findall(rf"-----BEGIN ((?:[A-Z0-9]+ )*{kind})-----(.*?)-----END \1-----", text, re.DOTALL):
        lines = body.strip().splitlines()
        if len(lines) == 1:
            lines = lines[0].split()
        blocks.append("\n".join([f"-----BEGIN {label}-----", *map(str.rstrip, lines), f"-----END {label}-----", ""]))
    return "".join(blocks)


def _chain(own: Sequence[x509.Certificate], others: Sequence[x509.Certificate]) -> list[x509.Certificate]:
    """The certificate of the key followed by its issuers, as TLS sends them."""
    chain = list(own)
    while chain and chain[-1].issuer != chain[-1].subject:
        issuers = [certificate for certificate in others if certificate.subject == chain[-1].issuer]
        if not issuers or issuers[0] in chain:
            break
        chain.append(issuers[0])
    return chain


def _as_pem(certificates: Sequence[x509.Certificate]) -> bytes:
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)
