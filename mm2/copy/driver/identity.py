"""The driver's TLS identity for executors on other machines: a key and a certificate, created when the process
starts.
"""

from __future__ import annotations

import datetime as dt
import ssl
from dataclasses import dataclass, field
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from mm2.copy.channel import fingerprint
from mm2.kafka.auth.tls import memory_file


@dataclass(frozen=True, slots=True)
class DriverIdentity:
    """``fingerprint`` (SHA-256, hex) is verified by executors. The key exists in memory only."""

    fingerprint: str
    context: ssl.SSLContext = field(repr=False)

    @classmethod
    def create(cls) -> Self:
        """Create an identity. Executors verify the fingerprint only, so the certificate's names and validity do not
        matter.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mm2 driver")])
        now = dt.datetime.now(dt.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=3650))
            .sign(key, hashes.SHA256())
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        with memory_file(pem + certificate.public_bytes(Encoding.PEM)) as path:
            context.load_cert_chain(path)
        return cls(fingerprint(certificate.public_bytes(Encoding.DER)), context)
