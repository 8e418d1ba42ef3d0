"""A short-lived certificate authority, and the key stores for sandbox brokers and their clients."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

from mm2.sandbox.errors import SandboxError

PASSWORD = "store-password"
KEY_PASSWORD = "key-password"


@dataclass(frozen=True)
class Issued:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def key_pem(self, password: str | None = None) -> str:
        """The key as PKCS8, encrypted when a password is given."""
        encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()

    def pkcs12(self, path: Path, authority: Issued) -> Path:
        """Write key, certificate and authority into a PKCS12 store with PASSWORD."""
        path.write_bytes(
            pkcs12.serialize_key_and_certificates(
                b"entry",
                self.key,
                self.certificate,
                [authority.certificate],
                BestAvailableEncryption(PASSWORD.encode()),
            )
        )
        return path


def issue(
    common_name: str,
    authority: Issued | None = None,
    *,
    address: str | None = None,
    hosts: Sequence[str] = (),
    is_expired: bool = False,
) -> Issued:
    """Issue a certificate for a name, one IP address and these hosts.

    The authority signs it (None: a new authority).
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    now = dt.datetime.now(dt.UTC) - dt.timedelta(days=60 if is_expired else 0)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.certificate.subject if authority else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), critical=True)
    )
    names: list[x509.GeneralName] = [x509.DNSName(host) for host in hosts]
    if address is not None:
        names.append(x509.IPAddress(ipaddress.ip_address(address)))
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    signer = authority.key if authority else key
    return Issued(builder.sign(signer, hashes.SHA256()), key)


def to_jks(source: Path, target: Path) -> Path:
    """Copy the key of a PKCS12 store into a real JKS store with its own key password, as the JDK writes it."""
    _keytool(
        *("-importkeystore", "-srckeystore", str(source), "-srcstoretype", "PKCS12", "-srcstorepass", PASSWORD),
        *("-destkeystore", str(target), "-deststoretype", "JKS", "-deststorepass", PASSWORD),
        *("-srcalias", "entry", "-destkeypass", KEY_PASSWORD),
    )
    return target


def truststore(authority: Issued, target: Path, store_type: str) -> Path:
    """Create a store of that type (PKCS12 or JKS) with only the authority, as `keytool -importcert` writes it."""
    pem = target.with_name(f"{target.name}.authority.pem")
    pem.write_text(authority.certificate_pem)
    _keytool(
        *("-importcert", "-noprompt", "-alias", "authority", "-file", str(pem)),
        *("-keystore", str(target), "-storetype", store_type, "-storepass", PASSWORD),
    )
    return target


def key_settings(store: Path) -> dict[str, str]:
    """Settings of a broker or a client that uses a store of `Issued.pkcs12` as its key store."""
    return {
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(store),
        "ssl.keystore.password": PASSWORD,
        "ssl.key.password": PASSWORD,
    }


def trust_settings(pem: Path) -> dict[str, str]:
    """Settings of a broker or a client that trusts the authorities in this file."""
    return {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(pem)}


def encrypted(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Settings for clients and for brokers on 127.0.0.1 to use TLS, with the files that they name."""
    authority = issue("Sandbox Authority")
    trusted = folder / "authority.pem"
    trusted.write_text(authority.certificate_pem)
    store = issue("broker", authority, address="127.0.0.1").pkcs12(folder / "broker.p12", authority)
    return {"security.protocol": "SSL", **trust_settings(trusted)}, key_settings(store)


def serving(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """The context of a server on 127.0.0.1 that uses TLS, and a file with the authority that its clients have to trust."""
    trusted, own = serving_files(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own)
    return trusted, context


def serving_files(folder: Path) -> tuple[Path, Path]:
    """Files of a server on 127.0.0.1: the authority that its clients have to trust, and its own key with the certificate."""
    authority = issue("Sandbox Authority")
    trusted, own = folder / "authority.pem", folder / "server.pem"
    trusted.write_text(authority.certificate_pem)
    server = issue("server", authority, address="127.0.0.1")
    own.write_text(server.key_pem() + server.certificate_pem)
    return trusted, own


def _keytool(*args: str) -> None:
    done = subprocess.run(["keytool", *args], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SandboxError(f"keytool failed: {done.stdout.strip() or done.stderr.strip()}")
