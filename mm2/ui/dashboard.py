"""The ASGI application for ``/ui``; nothing else is loaded before the first request."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any, Final

import structlog
from starlette.datastructures import MutableHeaders
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mm2.connect.rest.access.authorization import Access
from mm2.connect.rest.access.roles import Role
from mm2.ui.login import answered_by_login
from mm2.ui.source import PageData

log = structlog.get_logger(__name__)

PATH: Final = "/ui"
_SITE: Final = "mm2.ui.site"
_STATIC: Final = f"{PATH}/_nicegui/"

#: All content must come from this server. Vue compiles templates in the browser, hence unsafe-eval.
_POLICY: Final = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
#: The paths of NiceGUI's files contain its version.
_CACHE_FOREVER: Final = "public, max-age=31536000, immutable"


class Dashboard:
    """ASGI application below `PATH`; ``rest`` is the REST application of the process, which the buttons call."""

    def __init__(self, source: PageData, rest: ASGIApp) -> None:
        self._source = source
        self._rest = rest
        self._app: ASGIApp | None = None
        self._loading = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI request. Raises RestFailure."""
        if await answered_by_login(scope, receive, send):
            return
        Access.of(scope).require(Role.VIEWER, scope)
        if scope["path"] == PATH:
            # Relative, since a proxy may add a prefix.
            await RedirectResponse("ui/")(scope, receive, send)
            return
        app = self._app or await self._load()

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if headers.get("content-type", "").startswith("text/html"):
                    headers["Content-Security-Policy"] = _POLICY
                elif scope["path"].startswith(_STATIC) and message["status"] == 200:
                    headers["Cache-Control"] = _CACHE_FOREVER
            await send(message)

        await app(scope, receive, send_with_headers)

    async def _load(self) -> ASGIApp:
        async with self._loading:
            if self._app is None:
                # The import takes about a second; other resources must be served meanwhile.
                site: Any = await asyncio.to_thread(importlib.import_module, _SITE)
                self._app = await site.open_site(self._source, self._rest)
                log.info("dashboard loaded")
        return self._app
