"""Creates the access control of a process from its settings.

What only the access control itself needs is imported by `access_control`: it runs in parallel to the rest of the start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mm2.config.configdef import ConfigException
from mm2.config.keys.rest_keys import WORKER_SECRET_KEY
from mm2.connect.request_signing import SessionKey
from mm2.connect.rest import local_processes
from mm2.connect.rest.access.authenticators import CertificateAuthenticator, LocalToken, new_token
from mm2.connect.rest.access.oidc_settings import OidcSettings
from mm2.connect.rest.access.roles import Authenticator, RoleMap

if TYPE_CHECKING:
    from mm2.connect.rest.access.authorization import AccessControl, SessionKeyOf
    from mm2.connect.rest.binding import Binding
    from mm2.connect.rest.extensions import ConnectRestExtension
    from mm2.connect.rest.settings import RestSettings


_LEAST_SECRET: Final = 32


@dataclass(frozen=True)
class LocalAccess:
    """How the user of the process gets access on its machine. ``token`` None: it could not be published."""

    token: str | None = None
    #: Of the first listener; it distinguishes the cookies of several processes.
    port: int = 0
    #: The URL to which other workers forward requests; "" if unknown.
    url: str = ""

    @classmethod
    def publish(cls, binding: Binding) -> LocalAccess:
        """Create a token and write it to its file."""
        token = new_token()
        return cls(
            token if local_processes.write_token(token) else None, binding.main[0].number, binding.advertised_url
        )


def check_access(props: Mapping[str, str]) -> None:
    """Raises ConfigException for settings that `access_control` would reject."""
    RoleMap.of(props)
    OidcSettings.of(props)
    _worker_key(props)


def access_control(
    settings: RestSettings,
    extensions: Sequence[ConnectRestExtension],
    local: LocalAccess,
    session_key: SessionKeyOf,
) -> AccessControl:
    """The access control of all listeners. Raises ConfigException."""
    from mm2.connect.rest.access.authorization import AccessControl  # noqa: PLC0415
    from mm2.connect.rest.access.sessions import SHARE, Sessions, WebSockets  # noqa: PLC0415

    roles, sessions = RoleMap.of(settings.props), Sessions(local.port)
    logins = [one for extension in extensions for one in extension.authenticators()]
    authenticators: list[Authenticator] = [] if local.token is None else [LocalToken(local.token)]
    oidc = OidcSettings.of(settings.props)
    if oidc is not None:
        from mm2.connect.rest.access.oidc import OidcAuthenticator  # noqa: PLC0415 - its libraries take time to load

        authenticators.append(OidcAuthenticator(oidc))
    authenticators += [*logins, sessions]
    # With both, Java demands the password in addition to the certificate, unless a role is set for certificates.
    if not logins or roles.names_certificates:
        authenticators.append(CertificateAuthenticator())
    websockets = WebSockets(max(1, settings.limits.max_connections // SHARE))
    return AccessControl(
        authenticators,
        roles,
        sessions,
        session_key,
        own_url=local.url,
        worker_key=_worker_key(settings.props),
        websockets=websockets,
    )


def _worker_key(props: Mapping[str, str]) -> SessionKey | None:
    """The workers' own secret. Raises ConfigException for one that can be guessed."""
    secret = props.get(WORKER_SECRET_KEY, "")
    if secret and len(secret) < _LEAST_SECRET:
        raise ConfigException(WORKER_SECRET_KEY, "[hidden]", f"it must have at least {_LEAST_SECRET} characters")
    return SessionKey(secret.encode(), "HmacSHA256", 0) if secret else None
