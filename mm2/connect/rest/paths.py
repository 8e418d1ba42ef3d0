"""The path of a request: computed once, for authorization and for every application that dispatches on it.

Two interpretations of one path would let a client be authorized for one resource and reach another.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping
from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from mm2.connect.rest.failures import RestFailure

_KEY: Final = "mm2.path"
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL: Final = re.compile(r"%(?:[01][0-9A-Fa-f]|7[Ff])")


class CanonicalPath:
    """ASGI middleware in front of all others that use the path: replaces ``raw_path`` and ``path``. Raises RestFailure."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        path = canonical_path(_raw(scope))
        # A slash at the end matters to relative links of pages, and to nothing else.
        shown = f"{path}/" if path != "/" and _raw(scope).endswith("/") else path
        changed = {"raw_path": shown.encode("latin-1"), "path": urllib.parse.unquote(shown), _KEY: path}
        await self._app({**scope, **changed}, receive, send)


def path_of(scope: Mapping[str, Any]) -> str:
    """The canonical path of a request, percent-encoded, without a slash at its end. Raises RestFailure."""
    found = scope.get(_KEY)
    return canonical_path(_raw(scope)) if found is None else str(found)


def target_of(scope: Mapping[str, Any]) -> str:
    """Path and query of a request."""
    query = scope.get("query_string", b"")
    return _raw(scope) + (f"?{query.decode('latin-1')}" if query else "")


def canonical_path(raw: str) -> str:
    """The path to authorize and to match: without matrix parameters and a trailing slash, still percent-encoded.

    Raises RestFailure 400 for what Jetty 12 rejects (an encoded slash, backslash, dot segment or control character, an
    empty segment, and escapes that are not UTF-8), and for dot segments, which Jetty resolves. No client needs them: URL
    libraries resolve them before they send a request.
    """
    if not raw.startswith("/"):
        raw = _path_of_other_form(raw)
    if _BAD_ESCAPE.search(raw) or _CONTROL.search(raw):
        raise RestFailure(400, "Bad Request")
    try:
        urllib.parse.unquote(raw, errors="strict")
    except UnicodeDecodeError:
        raise RestFailure(400, "Bad UTF-8 encoding") from None
    lower = raw.lower()
    if "%2f" in lower:
        raise RestFailure(400, "Ambiguous URI path separator")
    if "%5c" in lower or "\\" in raw:
        raise RestFailure(400, "Suspicious Path Character")
    segments: list[str] = []
    given = raw.split("/")[1:]
    for position, whole in enumerate(given):
        segment = whole.partition(";")[0]
        if urllib.parse.unquote(segment) in {".", ".."}:
            raise RestFailure(400, "Ambiguous URI path segment")
        if segment:
            segments.append(segment)
        elif position < len(given) - 1:
            raise RestFailure(400, "Ambiguous URI empty segment")
    return "/" + "/".join(segments)


def _path_of_other_form(target: str) -> str:
    """The path of a target in absolute form, or of the asterisk (RFC 9112, 3.2). Raises RestFailure."""
    if target == "*":
        return "/"
    try:
        parts = urllib.parse.urlsplit(target)
    except ValueError:
        raise RestFailure(400, "Bad Request: the URL is not valid") from None
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        raise RestFailure(400, "Bad Request: the path must start with a slash")
    return parts.path or "/"


def _raw(scope: Mapping[str, Any]) -> str:
    raw: bytes = scope["raw_path"]
    return raw.decode("latin-1")
