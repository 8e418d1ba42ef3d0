"""Clients, their roles, and the interface of what authenticates them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:  # loaded at the start of a process, in which REST's libraries are loaded later
    from starlette.datastructures import Headers


class Role(IntEnum):
    """What a client may do. Each role includes those before it."""

    #: ``/health`` without details, and signed requests between workers.
    NONE = 0
    #: ``/metrics``, and details of ``/health``.
    METRICS = 1
    #: Everything that is read, without secrets.
    VIEWER = 2
    #: Pause, resume, restart and stop; log levels.
    OPERATOR = 3
    #: Configurations and offsets: create, change, delete, validate.
    ADMIN = 4

    @classmethod
    def named(cls, name: str) -> Role:
        """The role of a name in lower case. Raises KeyError."""
        return cls[name.upper()]

    def __str__(self) -> str:
        return self.name.lower()


class Kind(StrEnum):
    """How a client was authenticated."""

    ANONYMOUS = "anonymous"
    #: By the token file of the process (:mod:`mm2.connect.rest.access.local_token`).
    LOCAL = "local"
    PASSWORD = "password"  # noqa: S105 - a name
    CERTIFICATE = "certificate"
    OIDC = "oidc"
    #: By an extension of the user.
    EXTENSION = "extension"


@dataclass(frozen=True)
class Principal:
    """An authenticated client. ``name`` is the user, or the subject of the certificate in the form of RFC 2253."""

    name: str
    kind: Kind
    groups: frozenset[str] = frozenset()
    #: When its token or certificate expires, in seconds since the epoch; None: never. A session does not last longer.
    until_s: float | None = field(default=None, compare=False)


ANONYMOUS: Final = Principal("-", Kind.ANONYMOUS)


@dataclass(frozen=True)
class RequestPeer:
    """What the connection shows about a client, apart from headers."""

    #: The certificate that TLS has verified, as DER; None without one.
    certificate: bytes | None = field(default=None, repr=False)
    #: See `mm2.connect.rest.connections.peer_of`. Behind a proxy, all clients have the same. It gives no access.
    address: str = ""


class WrongCredentials(Exception):
    """Credentials of this kind were sent and are not valid.

    The message is for the log, not for the client, and contains no secret. ``name`` is the user that they claim, if known.
    """

    def __init__(self, reason: str, name: str = "-") -> None:
        super().__init__(reason)
        self.name = name


class TooManyFailures(Exception):
    """Logins are rejected for ``retry_after_s`` without a check of the credentials."""

    def __init__(self, retry_after_s: int, name: str = "-") -> None:
        super().__init__(f"too many failed logins, next attempt in {retry_after_s} s")
        self.retry_after_s = retry_after_s
        self.name = name


class Authenticator(Protocol):
    """Recognizes one kind of credentials."""

    @property
    def challenge(self) -> str | None:
        """The value of ``WWW-Authenticate`` in responses with status 401; None if there is none."""

    async def authenticate(self, headers: Headers, peer: RequestPeer) -> Principal | None:
        """The client; None if the request has no credentials of this kind. Runs on the event loop: it must not block.

        Raises WrongCredentials, TooManyFailures.
        """
