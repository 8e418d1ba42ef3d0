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
        # A certificate with alternative names only identifies no client here, as in Kafka.
        subject = "" if peer.certificate is None else subject_of(peer.certificate)
        return Principal(subject, Kind.CERTIFICATE) if subject else None


@lru_cache(maxsize=256)
def subject_of(certificate: bytes) -> str:
    """The distinguished name of the subject in the form of RFC 4514, as X500Principal.getName: ``CN=ada,O=Example``."""
    return x509.load_der_x509_certificate(certificate).subject.rfc4514_string()
