"""Login of a browser: a link that can be used once gives it the cookie of a session.

``POST /ui/code`` creates the link for an authenticated client (`mm2 ui`), ``GET /ui/login`` exchanges its code for the
cookie, ``POST /ui/logout`` ends the session.
"""

from __future__ import annotations

import urllib.parse
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, Response
from starlette.types import Receive, Scope, Send

from mm2.connect.rest.access import audit
from mm2.connect.rest.access.authorization import Access
from mm2.connect.rest.access.roles import Role
from mm2.connect.rest.access.sessions import CODE_LIFE_S, SESSION_LIFE_S, Sessions
from mm2.connect.rest.failures import JsonAnswer, RestFailure
from mm2.connect.rest.paths import path_of

CODE_PATH, LOGIN_PATH, LOGOUT_PATH = "/ui/code", "/ui/login", "/ui/logout"
_METHODS: Final = {CODE_PATH: "POST", LOGIN_PATH: "GET", LOGOUT_PATH: "POST"}
#: The browser sends a cookie with SameSite=Strict only in requests that a page of this server causes. A redirect would be
#: part of the request of the program that has opened the link.
_PAGE: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=./">'
    '<title>MirrorMaker</title><p><a href="./">Dashboard</a></p></html>'
)
_NOT_STORED: Final = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}


async def answered_by_login(scope: Scope, receive: Receive, send: Send) -> bool:
    """Handle a request that belongs to the login; False for any other. Raises RestFailure."""
    path = path_of(scope)
    if scope["type"] != "http" or path not in _METHODS:
        return False
    access = Access.of(scope)
    if path == CODE_PATH:
        access.require(Role.VIEWER, scope)
    if scope["method"] != _METHODS[path]:
        raise RestFailure.plain(405, {"Allow": _METHODS[path]})
    if path == CODE_PATH and access.is_session:
        raise RestFailure(403, "A session cannot start another one, which would last longer: send other credentials.")
    sessions = None if access.control is None else access.control.sessions
    if sessions is None:
        raise RestFailure.plain(404)
    await _answer(path, scope, access, sessions)(scope, receive, send)
    return True


def _answer(path: str, scope: Scope, access: Access, sessions: Sessions) -> Response:
    if path == CODE_PATH:
        link = f"{LOGIN_PATH}?code={sessions.new_code(access.principal)}"
        audit.changed(access.principal, access.role, "POST", path, 200)
        return JsonAnswer({"path": link, "expires_s": CODE_LIFE_S}, headers=_NOT_STORED)
    if path == LOGOUT_PATH:
        sessions.end(Headers(scope=scope))
        answer = Response(status_code=204, headers=_NOT_STORED)
        answer.delete_cookie(sessions.cookie_name, path="/")
        return answer
    query = urllib.parse.parse_qs(scope["query_string"].decode("latin-1"))
    cookie = sessions.redeem(query.get("code", [""])[0])
    if cookie is None:
        audit.login_failed("-", "GET", path, 401, "the link was used or has expired")
        raise RestFailure(
            401, f"This link was used, or is older than {CODE_LIFE_S} s: mm2 ui prints a new one.", _NOT_STORED
        )
    page = HTMLResponse(_PAGE, headers=_NOT_STORED)
    page.set_cookie(
        sessions.cookie_name,
        cookie,
        max_age=SESSION_LIFE_S,
        path="/",
        secure=scope["scheme"] == "https",
        httponly=True,
        samesite="strict",
    )
    return page
