"""Routes requests to resources by the rules of Jetty and Jersey instead of Starlette's; each route declares its role."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from mm2.connect.rest.access.authorization import PREFLIGHT_KEY, Access, audited
from mm2.connect.rest.access.roles import Role
from mm2.connect.rest.failures import RestFailure
from mm2.connect.rest.paths import path_of

#: Tag of resources that accept only JSON.
CONSUMES_JSON: Final = "json"
JSON_TYPE: Final = "application/json"
_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_MEDIA_TYPE: Final = re.compile(rf"\s*({_WORD})/({_WORD})\s*(?:;.*)?", re.DOTALL)
#: For paths and methods that do not exist: others than authenticated clients do not learn which do.
_ANY_ROLE: Final = Role.METRICS
#: Of the function of a resource, with the role that it needs.
_ATTRIBUTE: Final = "mm2_role"

F = TypeVar("F", bound=Callable[..., Any])


class Dispatch:
    """ASGI application around a FastAPI application with the resources."""

    def __init__(self, app: FastAPI) -> None:
        self._app: ASGIApp = app
        self._fastapi = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI. Raises RestFailure."""
        if scope["type"] != "http":
            Access.of(scope).require(_ANY_ROLE, scope)
            raise RestFailure.plain(404)
        path = scope["path"] if scope.get("path_is_raw") else path_of(scope)
        scope = {**scope, "path": path, "path_is_raw": True}
        methods = self._methods(scope)
        method = scope["method"]
        if "GET" in methods:
            methods.setdefault("HEAD", methods["GET"])
        if not scope.get(PREFLIGHT_KEY):
            needed = role_of(methods[method]) if method in methods else _ANY_ROLE
            Access.of(scope).require(needed, scope)
        if not methods:
            raise RestFailure.plain(404)
        if method == "OPTIONS" and "OPTIONS" not in methods:
            allowed = [*sorted(methods), "OPTIONS"]
            answer = PlainTextResponse(", ".join(allowed), headers={"Allow": ",".join(allowed)})
            await answer(scope, receive, send)
            return
        if method not in methods:
            raise RestFailure.plain(405, {"Allow": ",".join([*sorted(methods), "OPTIONS"])})
        headers = Headers(scope=scope)
        route = methods[method]
        check_content_type(headers, json_only=isinstance(route, APIRoute) and CONSUMES_JSON in route.tags)
        if isinstance(route, APIRoute) and _speaks_json(route):
            check_accept(headers)
        if method == "HEAD":
            scope["method"] = "GET"  # the server omits the body
        await audited(self._app, scope, receive, send)

    def _methods(self, scope: Scope) -> dict[str, BaseRoute]:
        """The methods that a path supports, and the routes that handle them."""
        methods: dict[str, BaseRoute] = {}
        for route in self._fastapi.routes:
            found: Iterable[str]
            if isinstance(route, APIRoute):
                found = route.methods or () if route.path_regex.fullmatch(scope["path"]) else ()
            else:  # a route of an extension, whose structure is unknown
                found = [name for name in _METHODS if route.matches({**scope, "method": name})[0] is Match.FULL]
            for name in found:
                methods.setdefault(name, route)
        return methods


def check_content_type(headers: Headers, *, json_only: bool) -> None:
    """Raises RestFailure: 400 for an invalid content type, 415 for one that the resource does not accept."""
    content_type = headers.get("content-type")
    if content_type is None:
        return
    match = _MEDIA_TYPE.fullmatch(content_type)
    if match is None:
        raise RestFailure(400, "Bad Request: the header Content-Type is not a media type")
    main, sub = match[1].lower(), match[2].lower()
    if json_only and not (main in {"application", "*"} and sub in {"json", "*"}):
        raise RestFailure.plain(415)


def check_accept(headers: Headers) -> None:
    """Raises RestFailure 406 when no accepted type is JSON."""
    accepted = headers.getlist("accept")
    if not accepted:
        return
    ranges = [item.partition(";")[0].strip().lower() for value in accepted for item in value.split(",")]
    if not any(item in {"*/*", "*", "application/*", JSON_TYPE} for item in ranges):
        raise RestFailure.plain(406)


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


def _speaks_json(route: APIRoute) -> bool:
    response_class: Any = route.response_class
    # None is a response without a body, which Java declares as JSON, too.
    return getattr(getattr(response_class, "value", response_class), "media_type", None) in {None, JSON_TYPE}
