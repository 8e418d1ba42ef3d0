"""Which principal has which role: ``rest.role.*`` and ``rest.unauthenticated.access``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cryptography import x509

from mm2.config.configdef import ConfigException
from mm2.config.rest_keys import EVERYTHING, ROLE_PREFIX, STRANGERS_KEY
from mm2.connect.rest.access.principal import Kind, Principal, Role

_ANY: Final = "*"
#: Around a comma that separates two parts of a distinguished name.
_BLANKS: Final = re.compile(r"\s*(?<!\\),\s*")
_USER, _CERTIFICATE, _GROUP = "User", "Certificate", "Group"
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
