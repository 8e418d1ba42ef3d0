"""What a client may send on the WebSocket of a page: the events of NiceGUI that the dashboard needs.

NiceGUI takes what its own script sends for granted. Here a WebSocket shows one page, so that the limit of WebSockets is
one of pages, and no client writes to the log or uses up the memory. A page has the role of the client that has requested it:
only a WebSocket of the same client shows it, and only that WebSocket uses its buttons.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import urllib.parse
from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog
from nicegui import Client
from socketio import AsyncServer
from socketio.exceptions import ConnectionRefusedError as Refused
from socketio.packet import BINARY_ACK, BINARY_EVENT, Packet

from mm2.connect.rest.access.authorization import Access

log = structlog.get_logger(__name__)

#: Characters of an id. The script sends UUIDs.
_MOST_ID: Final = 64
_MOST_DIGITS: Final = 18
#: Packets. A page gets a few each second, and a client that does not respond is disconnected after 24 s.
MOST_UNSENT: Final = 500
_NAMESPACE: Final = "/"
_INVALID: Final = (AttributeError, KeyError, TypeError, ValueError)


class SendQueue(asyncio.Queue[Any]):
    """What a client has not received yet. The connection of one that reads nothing ends when it is full."""

    def __init__(self, server: Any) -> None:
        """``server`` is that of Engine.IO."""
        super().__init__()
        self._server = server

    async def put(self, item: Any) -> None:
        """See asyncio. None ends the task that sends."""
        if item is None or self.qsize() < MOST_UNSENT:
            await super().put(item)
            return
        for socket in [one for one in self._server.sockets.values() if one.queue is self]:
            await socket.close(wait=False, abort=True)


class TextPacket(Packet):  # type: ignore[misc]
    """A packet without binary attachments: a client could announce ten thousand million of 1 MB each."""

    def decode(self, encoded_packet: Any) -> Any:
        """See Packet. Raises ValueError."""
        count = super().decode(encoded_packet)
        if self.packet_type in {BINARY_EVENT, BINARY_ACK}:
            raise ValueError("a page sends no binary data")
        return count


def restrict(server: AsyncServer) -> None:
    """Check the events of all pages, and ignore those that the dashboard does not need."""
    known = server.handlers[_NAMESPACE]
    connect, handshake = known["connect"], known["handshake"]

    def may_open(sid: str, ids: Any) -> bool:
        # A page that is open on a WebSocket is one of its rooms; the first room is its own.
        return (
            _are_ids(ids) and len(server.rooms(sid)) <= 1 and _is_of_client(ids["client_id"], server.get_environ(sid))
        )

    def of_own_page(handler: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        async def called(sid: str, message: Any) -> Any:
            return handler(sid, message) if message["client_id"] in server.rooms(sid) else None

        return called

    async def connected(sid: str, environ: dict[str, Any], *_: Any) -> None:
        if environ is not server.get_environ(sid):
            return  # an event that the client has called "connect"
        query = {name: values[0] for name, values in urllib.parse.parse_qs(environ["QUERY_STRING"]).items()}
        if query.get("implicit_handshake") == "true" and not may_open(sid, query):
            raise Refused("Implicit handshake failed")
        await connect(sid, environ)

    async def opened(sid: str, ids: Any) -> bool:
        return may_open(sid, ids) and bool(await handshake(sid, ids))

    async def ignored(*_: Any) -> None: ...

    server.packet_class = TextPacket
    server.eio.create_queue = functools.partial(SendQueue, server.eio)
    server.on("connect", _checked("connect", connected))
    server.on("handshake", _checked("handshake", opened))
    server.on("log", ignored)
    for name in ("event", "javascript_response", "ack"):
        server.on(name, _checked(name, of_own_page(known[name])))
    # Both write a stack trace for each invalid packet of a client.
    for logger in (server.logger, server.eio.logger):
        logger.setLevel(logging.CRITICAL)


def _is_of_client(page: str, environ: Any) -> bool:
    """Whether the client of this WebSocket has requested the page.

    A page that was requested without credentials has no more rights than any client. Browsers send the cookie of a session on its
    WebSocket, but not in a request that another site has caused.
    """
    found = Client.instances.get(page)
    access = None if found is None else Access.of(found.request.scope)
    return access is not None and (access.is_anonymous or access == Access.of(environ["asgi.scope"]))


def _checked(name: str, handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The handler; what it cannot read is ignored."""

    @functools.wraps(handler)
    async def called(*args: Any) -> Any:
        try:
            return await handler(*args)
        except _INVALID as error:
            log.debug("invalid event of a dashboard page ignored", event_name=name, error=type(error).__name__)
            return False

    return called


def _are_ids(ids: Any) -> bool:
    """Whether the values of a handshake are as NiceGUI's script sends them."""
    if not isinstance(ids, dict):
        return False
    number = ids.get("next_message_id")
    return (
        all(_is_id(ids.get(name)) for name in ("client_id", "tab_id", "document_id"))
        and (ids.get("old_tab_id") is None or _is_id(ids["old_tab_id"]))
        and (number is None or (str(number).isdecimal() and len(str(number)) <= _MOST_DIGITS))
    )


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MOST_ID
