"""The audit log: changes, denied requests and failed logins, as events of the logger ``mm2.audit``.

No event contains a query, a body or a credential.
"""

from __future__ import annotations

from typing import Final

import structlog

from mm2.config.withheld_logs import AUDIT
from mm2.connect.rest.access.roles import Principal, Role

LOGGER: Final = AUDIT
_MAX_NAME: Final = 200
_SUCCESS: Final = range(200, 400)

log = structlog.get_logger(LOGGER)


def changed(principal: Principal, role: Role, method: str, path: str, status: int) -> None:
    """A request that may change something was handled. ``status`` 0: the client got no response."""
    log.info(
        "request",
        result="done" if status in _SUCCESS else "failed",
        status=status,
        **_client(principal, role),
        method=method,
        path=path,
        logger=LOGGER,
    )


def denied(principal: Principal, role: Role, method: str, path: str, status: int, needed: str) -> None:
    """A request was rejected because of the client's role."""
    log.warning(
        "request denied",
        result="denied",
        status=status,
        **_client(principal, role),
        needed_role=needed,
        method=method,
        path=path,
        logger=LOGGER,
    )


def login_failed(name: str, method: str, path: str, status: int, reason: str) -> None:
    """Credentials were rejected. ``name`` is what they claim, and was not verified."""
    log.warning(
        "login failed",
        result="rejected",
        status=status,
        principal=printable(name),
        method=method,
        path=path,
        reason=reason,
        logger=LOGGER,
    )


def printable(name: str) -> str:
    """A name for logs: input of a client, which may be long or contain escape sequences."""
    shown = "".join(character if character.isprintable() else "?" for character in name[:_MAX_NAME])
    return shown if len(name) <= _MAX_NAME else f"{shown}…"


def _client(principal: Principal, role: Role) -> dict[str, str]:
    return {"principal": printable(principal.name), "kind": str(principal.kind), "role": str(role)}
