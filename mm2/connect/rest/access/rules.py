"""The role that each route needs; it is declared at the route."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from mm2.connect.rest.access.principal import Role

F = TypeVar("F", bound=Callable[..., Any])
_ATTRIBUTE: Final = "mm2_role"


def needs(role: Role) -> Callable[[F], F]:
    """Decorator of a resource: only clients with this role may call it."""

    def declare(resource: F) -> F:
        setattr(resource, _ATTRIBUTE, role)
        return resource

    return declare


def role_of(route: BaseRoute) -> Role | None:
    """The role that a route needs; None for a route of this project without a rule, which is always denied.

    Routes of extensions have no rule and need ADMIN.
    """
    if not isinstance(route, APIRoute):
        return Role.ADMIN
    found: Role | None = getattr(route.endpoint, _ATTRIBUTE, None)
    return found
