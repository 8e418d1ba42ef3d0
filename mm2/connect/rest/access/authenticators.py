"""Authentication that every process has: by its token file, and by the client certificate of a TLS connection."""

from __future__ import annotations

import hmac
import secrets
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from cryptography import x509

from mm2.connect.rest.access.roles import Kind, Principal, RequestPeer, WrongCredentials

if TYPE_CHECKING:  # see mm2.connect.rest.access.roles
    from starlette.datastructures import Headers

#: Distinguishes these tokens from others that are sent as Bearer.
PREFIX: Final = "mm2_"
_NAME: Final = "local"


def new_token() -> str:
    """256 random bits, as text."""
    return PREFIX + secrets.token_urlsafe(32)


class LocalToken:
    """``Authorization: Bearer mm2_…``. Only the user of the process can read its token, so this is this user, or root."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    @property
    def challenge(self) -> str | None:
        """See Authenticator."""
        return 'Bearer realm="mm2"'

    async def authenticate(self, headers: Headers, peer: RequestPeer) -> Principal | None:
        """See Authenticator."""
        given = bearer_of(headers)
        if given is None or not given.startswith(PREFIX):
            return None
        if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._token):
            raise WrongCredentials("the token is not that of this process; it has another one after each start", _NAME)
        return Principal(_NAME, Kind.LOCAL)


def bearer_of(headers: Headers) -> str | None:
    """The token of ``Authorization: Bearer``."""
    return _bearer(headers.get("authorization", ""))


def is_local_token(authorization: str) -> bool:
    """Whether a header ``Authorization`` contains the token of a process."""
    return (_bearer(authorization) or "").startswith(PREFIX)


class CertificateAuthenticator:
    """The principal is the subject of the certificate, which TLS has verified (``ssl.client.auth``)."""

    @property
    def challenge(self) -> str | None:
        """None: HTTP has no challenge for certificates."""
        return None

    async def authenticate(self, headers: Headers, peer: RequestPeer) -> Principal | None:
        """See Authenticator."""
        return None if peer.certificate is None else _subject_of(peer.certificate)


def _bearer(authorization: str) -> str | None:
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


@lru_cache(maxsize=256)
def _subject_of(certificate: bytes) -> Principal | None:
    """The subject in the form of RFC 4514, as X500Principal.getName: ``CN=ada,O=Example``.

    None for a certificate with alternative names only, which identifies no client here, as in Kafka.
    """
    found = x509.load_der_x509_certificate(certificate)
    subject = found.subject.rfc4514_string()
    return Principal(subject, Kind.CERTIFICATE, until_s=found.not_valid_after_utc.timestamp()) if subject else None
