"""Pages without a WebSocket: those that are not connected yet, and those that have lost their connection.

The server keeps the elements of a page from its request on, and deletes a page without a WebSocket after a while only.
So a client that requests pages, and does not connect or disconnects at once, would use any amount of memory.
"""

from __future__ import annotations

import asyncio
from typing import Final

from nicegui import Client

from mm2.connect.rest.access.authorization import Access
from mm2.connect.rest.access.sessions import oldest_of_greediest

#: A browser connects within a second.
MOST_WAITING: Final = 50


class WaitingPages:
    """At most `MOST_WAITING` pages. At the limit, the client with the most of them loses its oldest one, as with WebSockets."""

    def add(self, page: Client) -> None:
        """A page was requested. A browser that has lost its page requests it again."""
        page.on_disconnect(self._on_disconnect)
        self._delete_excess()

    def _on_disconnect(self) -> None:
        # Afterwards, since NiceGUI continues with the page that was disconnected.
        asyncio.get_running_loop().call_soon(self._delete_excess)

    def _delete_excess(self) -> None:
        """Also of pages that NiceGUI has made itself, to show an error."""
        waiting = {
            page: Access.of(page.request.scope).principal
            for page in Client.instances.values()  # oldest first
            if not page.has_socket_connection
        }
        while len(waiting) > MOST_WAITING:
            page = oldest_of_greediest(waiting)
            del waiting[page]
            for task in page._delete_tasks.values():  # noqa: SLF001 - they would delete the page again
                task.cancel()
            page.delete()
