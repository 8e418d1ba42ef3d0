"""Authentication by the client certificate of a TLS connection."""

from __future__ import annotations

from functools import lru_cache

from cryptography import x509
from starlette.datastructures import Headers

from mm2.connect.rest.access.principal import Kind, Principal, RequestPeer


class CertificateAuthenticator:
    """The principal is the subject of the certificate, which TLS has verified (``ssl.client.auth``)."""

    @property
    def challenge(self) -> str | None:
        """None: HTTP has no challenge for certificates."""
        return None

    async def authenticate(self, headers: Headers, peer: RequestPeer) -> Principal | None:
        """See Authenticator."""
        return None if peer.certificate is None else _principal(peer.certificate)


@lru_cache(maxsize=256)
def _principal(certificate: bytes) -> Principal | None:
    """The subject in the form of RFC 4514, as X500Principal.getName: ``CN=ada,O=Example``.

    None for a certificate with alternative names only, which identifies no client here, as in Kafka.
    """
    found = x509.load_der_x509_certificate(certificate)
    subject = found.subject.rfc4514_string()
    return Principal(subject, Kind.CERTIFICATE, until_s=found.not_valid_after_utc.timestamp()) if subject else None
