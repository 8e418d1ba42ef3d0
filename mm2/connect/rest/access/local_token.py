"""Authentication by the token file of the process, for commands of the same user on the same machine."""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING, Final

from mm2.connect.rest.access.principal import Kind, Principal, RequestPeer, WrongCredentials

if TYPE_CHECKING:  # see mm2.connect.rest.access.principal
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


def _bearer(authorization: str) -> str | None:
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None
