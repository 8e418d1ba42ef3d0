"""Clients, the interface of what authenticates them, and which client has which role (``rest.role.*``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Final, Protocol

from cryptography import x509

from mm2.config.configdef import ConfigException
from mm2.config.keys.rest_keys import EVERYTHING, ROLE_PREFIX, STRANGERS_KEY

if TYPE_CHECKING:  # loaded at the start of a process, in which REST's libraries are loaded later
    from starlette.datastructures import Headers

_ANY: Final = "*"
#: Around a comma that separates two parts of a distinguished name.
_BLANKS: Final = re.compile(r"\s*(?<!\\),\s*")
_USER, _CERTIFICATE, _GROUP = "User", "Certificate", "Group"


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
    #: By the token file of the process (:mod:`mm2.connect.rest.access.authenticators`).
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
    #: When its token or certificate expires, in seconds since the epoch; None: never. No session or WebSocket
    #: of the client lasts longer.
    until_s: float | None = field(default=None, compare=False)


ANONYMOUS: Final = Principal("-", Kind.ANONYMOUS)


@dataclass(frozen=True)
class RequestPeer:
    """What the connection shows about a client, apart from headers."""

    #: The certificate that TLS has verified, as DER; None without one.
    certificate: bytes | None = field(default=None, repr=False)
    #: See `mm2.connect.rest.listeners.limits.peer_of`. Behind a proxy, all clients have the same. It gives no access.
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


_TYPES: Final = {
    Kind.PASSWORD: _USER,
    Kind.OIDC: _USER,
    Kind.EXTENSION: _USER,
    Kind.CERTIFICATE: _CERTIFICATE,
}
#: As in Kafka, which has no roles: these principals may do everything unless roles are configured.
_UNRESTRICTED: Final = frozenset({Kind.PASSWORD, Kind.CERTIFICATE, Kind.EXTENSION})
_GRANTED: Final = (Role.METRICS, Role.VIEWER, Role.OPERATOR, Role.ADMIN)


@dataclass(frozen=True)
class RoleMap:
    """The roles of principals. ``members``: pairs such as ``("User", "ada")``, empty without any ``rest.role.*``."""

    members: Mapping[Role, frozenset[tuple[str, str]]]
    unauthenticated: Role = Role.NONE

    @classmethod
    def of(cls, props: Mapping[str, str]) -> RoleMap:
        """From the settings of the process. Raises ConfigException."""
        given = {role: props[f"{ROLE_PREFIX}{role}"] for role in _GRANTED if f"{ROLE_PREFIX}{role}" in props}
        members = {role: _members(f"{ROLE_PREFIX}{role}", text) for role, text in given.items()}
        return cls(members, _unauthenticated(props.get(STRANGERS_KEY, str(Role.NONE)).strip()))

    @property
    def names_certificates(self) -> bool:
        """Whether a certificate alone gives a role."""
        return any(kind == _CERTIFICATE for members in self.members.values() for kind, _ in members)

    def role_of(self, principal: Principal) -> Role:
        """The highest role of a principal."""
        if principal.kind is Kind.LOCAL:
            return Role.ADMIN
        if principal.kind is Kind.ANONYMOUS:
            return self.unauthenticated
        if not self.members:
            return Role.ADMIN if principal.kind in _UNRESTRICTED else self.unauthenticated
        kind = _TYPES[principal.kind]
        names = {(kind, principal.name), (kind, _ANY), *((_GROUP, group) for group in principal.groups)}
        if kind == _CERTIFICATE:
            # Blanks around commas are not removed here: after a part that ends with an escaped blank, that would join two.
            names.add((kind, canonical_dn(principal.name)))
        own = [role for role, members in self.members.items() if names & members]
        return max([self.unauthenticated, *own])


def canonical_dn(name: str) -> str:
    """A distinguished name in one spelling; the text itself if it is none."""
    try:
        return x509.Name.from_rfc4514_string(name).rfc4514_string()
    except ValueError:
        return name


def _unauthenticated(text: str) -> Role:
    try:
        return Role.ADMIN if text == EVERYTHING else Role.named(text)
    except KeyError:
        raise ConfigException(STRANGERS_KEY, text, f"it must be one of {', '.join(map(str, Role))}") from None


def _members(key: str, text: str) -> frozenset[tuple[str, str]]:
    found = set()
    for part in filter(None, (part.strip() for part in text.split(";"))):
        kind, colon, name = (piece.strip() for piece in part.partition(":"))
        if not colon or not name or kind not in {_USER, _CERTIFICATE, _GROUP}:
            raise ConfigException(
                key, part, "each entry must be User:name, Certificate:subject or Group:name; separator ;"
            )
        if kind == _GROUP and name == _ANY:
            raise ConfigException(key, part, "* is possible for User and Certificate, not for Group")
        found.add((kind, canonical_dn(_BLANKS.sub(",", name)) if kind == _CERTIFICATE else name))
    return frozenset(found)
