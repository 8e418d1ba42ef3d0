"""Authentication by bearer tokens of an OpenID Connect issuer: signed JWTs (RFC 7519) in ``Authorization: Bearer``.

The rules are those of RFC 8725 and RFC 9068: the signature has one of the algorithms that need a public key of the
issuer, and ``iss``, ``aud``, ``exp`` and ``nbf`` are checked. ID tokens and access tokens are accepted; tokens of other
types, such as logout tokens, and tokens that are bound to a key of the client (``cnf``) are not. A token in a URL is
ignored, since URLs are logged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import jwt
from starlette.datastructures import Headers

from mm2.connect.rest.access.local_token import bearer_of
from mm2.connect.rest.access.oidc_settings import OidcSettings
from mm2.connect.rest.access.principal import Kind, Principal, RequestPeer, WrongCredentials
from mm2.connect.rest.access.token_keys import ALGORITHMS, KeysUnavailable, TokenKeys, VerificationKey
from mm2.connect.rest.failures import RestFailure

_MAX_TOKEN_CHARS: Final = 16 * 1024
_MAX_NAME_CHARS: Final = 255
_TYPES: Final = frozenset({"jwt", "at+jwt", "application/at+jwt"})
_REQUIRED: Final = ["exp", "iss", "aud"]
_UNAVAILABLE: Final = 503
_REASONS: Final[Mapping[type[jwt.PyJWTError], str]] = {
    jwt.ExpiredSignatureError: "the token has expired",
    jwt.ImmatureSignatureError: "the token is not valid yet; the clocks may differ",
    jwt.InvalidAudienceError: "the token is for another audience",
    jwt.InvalidIssuerError: "the token is from another issuer",
    jwt.InvalidSignatureError: "the signature of the token is wrong",
    jwt.InvalidKeyError: "the key of the issuer cannot be used",
}


class OidcAuthenticator:
    """``Authorization: Bearer`` with a token of one issuer."""

    def __init__(self, settings: OidcSettings, keys: TokenKeys | None = None) -> None:
        """The keys are requested in the background, so that an unreachable issuer is in the log from the start."""
        self._settings = settings
        self._keys = keys or TokenKeys(settings)
        self._keys.refresh()

    @property
    def challenge(self) -> str | None:
        """See Authenticator (RFC 6750)."""
        return 'Bearer realm="Kafka Connect"'

    async def authenticate(self, headers: Headers, peer: RequestPeer) -> Principal | None:
        """See Authenticator. Also raises RestFailure 503 while the issuer's keys are not known."""
        token = bearer_of(headers)
        return None if token is None else _principal(self._settings, await self._claims(token))

    async def _claims(self, token: str) -> dict[str, Any]:
        kid, algorithm = _key_id(token)
        try:
            keys = await self._keys.find(kid, algorithm)
        except KeysUnavailable:
            raise RestFailure(
                _UNAVAILABLE,
                "The token cannot be verified now, because the keys of its issuer cannot be read.",
                {"Retry-After": "10"},
            ) from None
        failure = "the issuer has no key with the key id and the algorithm of the token"
        for key in keys:  # usually one; an issuer may use an id for several keys
            try:
                return self._verified(token, algorithm, key)
            except jwt.PyJWTError as error:
                failure = _REASONS.get(type(error), "a claim of the token is missing or has the wrong type")
        raise WrongCredentials(failure)

    def _verified(self, token: str, algorithm: str, key: VerificationKey) -> dict[str, Any]:
        """The claims of a valid token. Raises PyJWTError."""
        return jwt.decode(
            token,
            key.key,
            algorithms=[algorithm],  # one of the key's, see TokenKeys.find
            audience=self._settings.audiences,
            issuer=self._settings.issuer,
            leeway=self._settings.skew_s,
            options={"require": _REQUIRED, "enforce_minimum_key_length": True},
        )


def _key_id(token: str) -> tuple[str | None, str]:
    """Key id and algorithm in the header of a token, which is not verified yet. Raises WrongCredentials."""
    if len(token) > _MAX_TOKEN_CHARS:
        raise WrongCredentials(f"the token has more than {_MAX_TOKEN_CHARS} characters")
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, UnicodeError):
        raise WrongCredentials("the token is not a signed JWT") from None
    algorithm, kind = header.get("alg"), header.get("typ", "JWT")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise WrongCredentials("the signature algorithm of the token is none of those with a public key")
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise WrongCredentials("the token is neither an access token nor an ID token")
    return header.get("kid"), algorithm


def _principal(settings: OidcSettings, claims: dict[str, Any]) -> Principal:
    """Raises WrongCredentials."""
    if "cnf" in claims:
        raise WrongCredentials("the token is bound to a key of the client (RFC 7800), which is not verified here")
    name = _claim(claims, settings.user_claim)
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME_CHARS or not name.isprintable():
        raise WrongCredentials("the claim with the user is missing or is not a printable text of up to 255 characters")
    groups = _claim(claims, settings.groups_claim)
    if isinstance(groups, str):
        groups = [groups]
    members = [one for one in groups if isinstance(one, str)] if isinstance(groups, list) else []
    return Principal(name, Kind.OIDC, frozenset(members), int(claims["exp"]) + settings.skew_s)


def _claim(claims: dict[str, Any], name: str) -> Any:
    """A claim by its name, or by a JSON pointer (RFC 6901); None if there is none."""
    if not name.startswith("/"):
        return claims.get(name)
    found: Any = claims
    for part in name.split("/")[1:]:
        if not isinstance(found, dict):
            return None
        found = found.get(part.replace("~1", "/").replace("~0", "~"))
    return found
