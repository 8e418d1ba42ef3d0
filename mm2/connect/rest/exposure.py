"""Warnings at the start about what other machines can do at the ports of a process."""

from __future__ import annotations

import structlog

from mm2.config.rest_keys import OIDC_PREFIX, STRANGERS_KEY
from mm2.connect.rest.access.principal import Role
from mm2.connect.rest.access.roles import RoleMap
from mm2.connect.rest.binding import Binding, exposed

log = structlog.get_logger(__name__)


def warn_of_exposure(binding: Binding) -> None:
    """Log what clients without credentials may do, and where credentials are sent unencrypted. Raises ConfigException."""
    role = RoleMap.of(binding.settings.props).unauthenticated
    ports = [*binding.main, *binding.admin]
    urls = exposed(ports)
    if role >= Role.OPERATOR:
        log.warning(
            "Any client that reaches these addresses can change connectors without authentication: %s is %s.",
            STRANGERS_KEY,
            role,
            listeners=urls or [port.url for port in ports],
        )
    elif role > Role.NONE and urls:
        log.info("Clients without authentication have the role %s.", role, listeners=urls)
    in_clear = [port.url for port in ports if port.tls is None and not port.is_loopback]
    props = binding.settings.props
    if in_clear and (binding.settings.extension_classes or props.get(f"{OIDC_PREFIX}expected.issuer")):
        log.warning("Passwords and tokens are sent to these addresses unencrypted; use https.", listeners=in_clear)
