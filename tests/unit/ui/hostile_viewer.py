"""A viewer who attacks the dashboard: ``python -m tests.unit.ui.hostile_viewer`` prints what came of it as JSON.

A program of its own, since a process can load NiceGUI once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

from nicegui import Client, core, ui
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mm2.connect.rest.access.authorization import Access
from mm2.connect.rest.access.roles import Kind, Principal, Role
from mm2.connect.rest.paths import CanonicalPath
from mm2.observer.views import ConnectorView, FlowState, FlowView, Risk, Snapshot
from mm2.ui.dashboard import Dashboard
from mm2.ui.elements.actions import ACTIONS, PAUSE, RESTART, STOP, Action
from mm2.ui.elements.parts import Element
from mm2.ui.source import PageData, Settings

ID = "0123456789abcdef"
UPGRADE = ((b"connection", b"upgrade"), (b"upgrade", b"websocket"))


class Written(logging.Handler):
    """The texts that were logged."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))


def scope_of(kind: str, path: str, query: bytes) -> dict[str, Any]:
    return {
        "type": kind,
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "root_path": "",
        "headers": [(b"host", b"localhost"), *(UPGRADE if kind == "websocket" else ())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "state": {},
    }


def flow() -> FlowView:
    """A flow with one connector."""
    connector = ConnectorView("MirrorSourceConnector", "source", "RUNNING", "w1:1", target_state="STARTED")
    return FlowView("A", "B", FlowState.RUNNING, "", Risk(), connectors=(connector,))


class Process:
    """The dashboard, and the REST requests that it has sent: client and path."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.dashboard = Dashboard(
            PageData(lambda: Snapshot(int(time.time() * 1000), "1", (flow(),)), lambda: Settings({})), self._rest
        )

    async def _rest(self, scope: Scope, receive: Receive, send: Send) -> None:
        access = Access.of(scope)
        access.require(Role.OPERATOR, scope)
        self.asked.append((access.principal.name, scope["path"]))
        await Response(status_code=204)(scope, receive, send)


class Viewer:
    """A client of the dashboard; ``has_ended`` is its session's."""

    def __init__(self, process: Process, name: str = "eve", role: Role = Role.VIEWER) -> None:
        self.has_ended = False
        access = Access(Principal(name, Kind.PASSWORD), role, has_ended=lambda: self.has_ended)
        self.app: ASGIApp = CanonicalPath(access.calling(process.dashboard))

    async def ask(self, method: str, path: str, **query: str) -> int:
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {**scope_of("http", path, urllib.parse.urlencode(query).encode()), "method": method}
        await self.app(scope, receive, send)
        return int(sent[0]["status"])

    async def page(self, path: str = "groups") -> str:
        """The id of a new page."""
        known = set(Client.instances)
        assert await self.ask("GET", f"/ui/{path}") == 200
        (made,) = Client.instances.keys() - known
        return made


class WebSocket:
    """A connection of socket.io."""

    def __init__(self, viewer: Viewer, query: str = "") -> None:
        self._in: asyncio.Queue[Message] = asyncio.Queue()
        self._out: asyncio.Queue[Message] = asyncio.Queue()
        self.is_reading = asyncio.Event()
        self.is_reading.set()
        scope = scope_of("websocket", "/ui/_nicegui_ws/socket.io/", f"EIO=4&transport=websocket{query}".encode())
        self._in.put_nowait({"type": "websocket.connect"})
        self.task = asyncio.create_task(self._run(viewer.app, {**scope, "subprotocols": []}))

    async def _run(self, app: ASGIApp, scope: dict[str, Any]) -> None:
        async def send(message: Message) -> None:
            await self.is_reading.wait()
            await self._out.put(message)

        await app(scope, self._in.get, send)

    async def open(self) -> str:
        """Connect; the answer of socket.io."""
        await self.until("0")
        self.say("40")
        return await self.until("4")

    def say(self, text: str) -> None:
        self._in.put_nowait({"type": "websocket.receive", "text": text})

    async def until(self, start: str) -> str:
        async with asyncio.timeout(20):
            while not (text := str((await self._out.get()).get("text", ""))).startswith(start):
                pass
        return text

    async def click(self, page: str, button: ui.element) -> None:
        """Send what NiceGUI's script sends for a button, if it does something."""
        for listener in button._event_listeners.values():
            message = {"client_id": page, "id": button.id, "listener_id": listener.id, "args": []}
            await self.ask("event", message)

    async def ask(self, *event: Any) -> Any:
        """Send an event; the answer of its handler."""
        self.say(f"421{json.dumps(event)}")
        return json.loads((await self.until("431")).removeprefix("431"))

    async def close(self) -> None:
        self._in.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await self.task


def ids(page: str, **others: Any) -> dict[str, Any]:
    return {"client_id": page, "tab_id": ID, "document_id": ID, "old_tab_id": None, "next_message_id": 0, **others}


def button_of(page: str, action: Action) -> ui.element:
    """The button of an action on the page of the connectors."""
    label = f"{action.name} MirrorSourceConnector of A->B"
    (found,) = (one for one in Client.instances[page].elements.values() if one.props.get("aria-label") == label)
    return found


def part_of(page: str, name: str) -> Element:
    """The button that confirms (first), or the message about the last action."""
    elements = Client.instances[page].elements.values()
    (found,) = (one for one in elements if isinstance(one, Element) and name in one.classes)
    return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the page has no event for it
            await asyncio.sleep(0.01)


async def act(socket: WebSocket, page: str, action: Action, *, has_effect: bool = True) -> None:
    """Click the button of an action, and confirm."""
    yes, message = part_of(page, "first"), part_of(page, "message")
    before = message.text
    await socket.click(page, button_of(page, action))
    if has_effect:
        await until(lambda: yes.text == action.name)
    await socket.click(page, yes)
    if has_effect:
        await until(lambda: message.text != before and not message.text.endswith("…"))


async def connected(viewer: Viewer, page: str) -> WebSocket:
    socket = WebSocket(viewer)
    await socket.open()
    assert await socket.ask("handshake", ids(page)) == [True]
    return socket


async def attack_pages(process: Process) -> dict[str, Any]:
    """Each action by each role, on the own page and on that of another client."""
    found = dict[str, Any]()
    for role in (Role.VIEWER, Role.OPERATOR, Role.ADMIN):
        viewer = Viewer(process, str(role), role)
        page = await viewer.page("connectors")
        socket = await connected(viewer, page)
        process.asked.clear()
        for action in ACTIONS:
            await act(socket, page, action, has_effect=role is not Role.VIEWER)
        found[f"by {role}"] = process.asked.copy()
        await socket.close()

    ada, eve = Viewer(process, "ada", Role.ADMIN), Viewer(process)
    page = await ada.page("connectors")
    socket = WebSocket(eve)
    await socket.open()
    found["page of another client"] = await socket.ask("handshake", ids(page))
    await socket.close()
    own, other = await connected(ada, page), await connected(eve, await eve.page("connectors"))
    process.asked.clear()
    await act(other, page, PAUSE, has_effect=False)
    await act(own, page, STOP)
    found["asked beside another client"] = process.asked.copy()
    ada.has_ended = True
    await act(own, page, RESTART)
    found["asked after the end"] = process.asked[1:]
    await own.close()
    await other.close()
    return found


async def attack() -> dict[str, Any]:
    process = Process()
    viewer, written, found = Viewer(process), Written(), dict[str, Any]()
    await viewer.ask("GET", "/ui/groups")
    logging.getLogger().addHandler(written)

    async def flood(times: int, method: str, path: str, **query: str) -> list[int]:
        before = len(Client.instances)
        try:
            status = [await viewer.ask(method, path, **query) for _ in range(times)][-1]
        except Exception:  # noqa: BLE001 - the answer was sent
            status = 500
        return [status, len(Client.instances) - before]

    found["static"] = await flood(5, "GET", "/ui/_nicegui/secret")
    found["post"] = await flood(5, "POST", "/ui/secret")
    found["page"] = await flood(1, "GET", "/ui/groups", page="9" * 5_000)
    found["topic"] = await flood(1, "GET", "/ui/topic", topic="\N{GRINNING FACE}", flow="A->B")

    # One page for each WebSocket.
    first, second = await viewer.page(), await viewer.page()
    socket = WebSocket(viewer)
    await socket.open()
    found["long id"] = await socket.ask("handshake", ids(first, tab_id="x" * 65))
    found["no id"] = await socket.ask("handshake", ids(first, tab_id=["x"]))
    found["no number"] = await socket.ask("handshake", ids(first, next_message_id="secret"))
    found["first page"] = await socket.ask("handshake", ids(first))
    found["second page"] = await socket.ask("handshake", ids(second))
    query = urllib.parse.urlencode({"implicit_handshake": "true", **ids(second, old_tab_id="null")})
    await socket.ask("connect", {"QUERY_STRING": query})
    found["second page by another event"] = Client.instances[second].has_socket_connection

    # Log lines, and events that cannot be read.
    socket.say(f"42{json.dumps(['log', {'client_id': first, 'level': 'error', 'message': 'secret'}])}")
    for event in ("event", "javascript_response", "ack"):
        socket.say(f"42{json.dumps([event, 'secret'])}")
        socket.say(f"42{json.dumps([event, {'client_id': ['secret']}])}")
        await socket.ask(event, {"client_id": first})
    # Attachments without end.
    socket.say('4599999999-["event",{"_placeholder":true,"num":0}]')
    found["answers after attachments"] = await socket.ask("handshake", ids(first))
    found["attachments"] = len(core.sio._binary_packet)
    await socket.close()

    # A page that has lost its connection, and one that connects for the first time.
    socket = WebSocket(viewer)
    await socket.open()
    found["reconnected"] = await socket.ask("handshake", ids(first))
    await socket.close()
    socket = WebSocket(viewer, f"&{query}")
    found["connected"] = (await socket.open())[:3], Client.instances[second].has_socket_connection
    await socket.close()
    socket = WebSocket(viewer, f"&{query.replace(ID, 'x' * 65)}")
    found["refused"] = (await socket.open())[:2]
    await socket.close()

    # Requests whose answers are never read.
    for name, text in (("unread answers", '421["handshake"]'), ("unread packets", "5")):
        known = set(core.sio.eio.sockets)
        socket = WebSocket(viewer)
        await socket.open()
        (connection,) = (core.sio.eio.sockets[one] for one in core.sio.eio.sockets.keys() - known)
        socket.is_reading.clear()
        for _ in range(20):
            for _ in range(100):
                socket.say(text)
            await asyncio.sleep(0.02)
        found[name] = connection.queue.qsize(), connection.closed
        socket.is_reading.set()
        await socket.close()

    # Pages that were connected once.
    for _ in range(60):
        socket = WebSocket(viewer)
        await socket.open()
        assert await socket.ask("handshake", ids(await viewer.page())) == [True]
        await socket.close()
    found["disconnected"] = len(Client.instances)
    found |= await attack_pages(process)
    found["tabs kept for"] = core.app.storage.max_tab_storage_age
    await asyncio.sleep(0.1)  # errors of tasks are logged when these are deleted
    found["logged"] = [text[:200] for text in written.texts if "secret" in text or "Traceback" in text]
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(attack())) + "\n")
    sys.stdout.flush()
    os._exit(0)  # the threads of NiceGUI
