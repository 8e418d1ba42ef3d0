"""Pages between their request and their WebSocket.

The server keeps the elements of a page from its request on, and deletes a page without a WebSocket after a minute only.
So a client that requests pages and never connects would use any amount of memory.
"""

from __future__ import annotations

from typing import Final

from nicegui import Client

from mm2.connect.rest.access.roles import Principal
from mm2.connect.rest.access.sessions import oldest_of_greediest

#: A browser connects within a second.
MOST_WAITING: Final = 50


class WaitingPages:
    """At most ``limit`` pages. At the limit, the client with the most of them loses its oldest one, as with WebSockets."""

    def __init__(self, limit: int = MOST_WAITING) -> None:
        self._limit = limit
        #: Oldest first.
        self._waiting: dict[Client, Principal] = {}

    def add(self, page: Client, principal: Principal) -> None:
        """A page was requested by this client. A browser that has lost its page requests it again."""
        for one in [one for one in self._waiting if one.has_socket_connection]:
            del self._waiting[one]
        self._waiting[page] = principal
        page.on_delete(lambda: self._waiting.pop(page, None))
        if len(self._waiting) > self._limit:
            oldest_of_greediest(self._waiting).delete()
