"""Access to REST for tests whose subject is not access."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from mm2.connect.rest.access.authorization import Access
from mm2.connect.rest.access.roles import Kind, Principal, Role
from mm2.connect.rest.local_processes import processes, token_of

#: Clients need no credentials.
OPEN: Final[Mapping[str, str]] = {"rest.unauthenticated.access": "admin"}


def token_header(port: int) -> dict[str, str]:
    """The header with the token of the process of this user that listens on a port."""
    (token,) = {token_of(process) for process in processes() if process.url.endswith(f":{port}/")}
    return {"Authorization": f"Bearer {token}"}


def as_admin(app: ASGIApp) -> ASGIApp:
    """An application that is called on behalf of an administrator."""

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        await app(Access(Principal("test", Kind.LOCAL), Role.ADMIN).within(scope), receive, send)

    return called
