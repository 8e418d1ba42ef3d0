"""Sets up and serves the pages; the first module that needs NiceGUI."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from fastapi import FastAPI, Request, Response
from nicegui import Client, core, ui
from nicegui import app as nicegui_app
from starlette.types import ASGIApp

from mm2.connect.rest.access.authorization import Access
from mm2.observer.views import Snapshot
from mm2.ui.dashboard import PATH
from mm2.ui.elements.actions import Actions
from mm2.ui.elements.parts import Element, within
from mm2.ui.elements.wording import clock
from mm2.ui.feed import UpdateStream
from mm2.ui.sockets import restrict
from mm2.ui.source import PageData
from mm2.ui.views import View
from mm2.ui.views.configuration import ConfigurationView
from mm2.ui.views.connectors import ConnectorsView
from mm2.ui.views.flows import FlowsView
from mm2.ui.views.gaps import GapsView
from mm2.ui.views.groups import GroupsView
from mm2.ui.views.partitions import PartitionsView
from mm2.ui.views.spark import SparkPage
from mm2.ui.views.states import StatesView
from mm2.ui.views.topic import TopicPage
from mm2.ui.views.topics import TopicsView
from mm2.ui.views.workers import WorkersView
from mm2.ui.waiting_pages import WaitingPages

V = TypeVar("V")
_HERE: Final = Path(__file__).parent
_NAME: Final = "MirrorMaker"
#: Pages without a link of their own, and the pages to which they belong.
_PARENTS: Final = {"topic": "topics", "states": "partitions"}
_MOST_PATH: Final = 100
#: A page that was disconnected for longer than this reloads itself.
_RECONNECT_S: Final = 20.0


async def open_site(source: PageData, rest: ASGIApp) -> ASGIApp:
    """The application below `PATH`; called once per process, on the event loop it will use.

    Raises what the source raises.
    """
    feed = UpdateStream(source)
    await feed.ensure_running()
    actions = Actions(rest)
    views: dict[str, tuple[str, Callable[[Request], View]]] = {
        "": ("Flows", lambda request: FlowsView(source, feed.heartbeats, request.query_params)),
        "topics": ("Topics", lambda request: TopicsView(feed.snapshot, source.history, request.query_params)),
        "topic": (
            "Topic",
            lambda request: TopicPage(feed.snapshot, source, request.query_params, actions, Access.of(request.scope)),
        ),
        "partitions": ("Partitions", lambda request: PartitionsView(feed.snapshot, request.query_params)),
        "groups": ("Groups", lambda request: GroupsView(feed.snapshot, request.query_params)),
        "gaps": ("Gaps", lambda request: GapsView(feed.snapshot, request.query_params)),
        "connectors": ("Connectors", lambda request: ConnectorsView(actions, Access.of(request.scope))),
        "states": ("States", lambda _: StatesView()),
        "workers": ("Workers", lambda _: WorkersView()),
        "spark": ("Spark", lambda _: SparkPage()),
        "configuration": ("Configuration", lambda request: ConfigurationView(source.settings, request.query_params)),
    }
    style, script = (_HERE / name for name in ("dashboard.css", "dashboard.js"))
    ui.add_head_html(
        f"<style>{style.read_text('utf-8')}</style><script>{script.read_text('utf-8')}</script>", shared=True
    )
    titles = {name: label for name, (label, _) in views.items() if name not in _PARENTS}
    waiting = WaitingPages()
    for path, (title, make) in views.items():
        _page(path, title, make, feed, titles, waiting)
    _error_pages(titles, waiting)
    # The limits of WebSockets do not hold for the connections that socket.io emulates by requests ("polling").
    nicegui_app.config.socket_io_js_transports = ["websocket"]
    core.sio.eio.transports = ["websocket"]
    restrict(core.sio)
    # The dashboard keeps nothing there. NiceGUI would keep an entry for each id that a client sends for 30 days.
    nicegui_app.storage.max_tab_storage_age = 0.0
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    ui.run_with(
        app,
        mount_path=PATH,
        title=_NAME,
        favicon=(_HERE / "favicon.svg").read_text("utf-8"),
        language="en-US",
        dark=None,
        tailwind=False,
        binding_refresh_interval=None,
        reconnect_timeout=_RECONNECT_S,
        show_welcome_message=False,
    )
    # The REST server has no lifespan protocol, so it is started here. It ends with the event loop.
    await app.router.lifespan_context(app).__aenter__()
    return app


def _page(
    path: str,
    title: str,
    make: Callable[[Request], View],
    feed: UpdateStream,
    titles: dict[str, str],
    waiting: WaitingPages,
) -> None:
    current = _PARENTS.get(path, path)

    @ui.page(f"/{path}", title=f"{title} · {_NAME}")
    async def page(request: Request, client: Client) -> None:
        waiting.add(client)
        await feed.ensure_running()
        as_of, view = _frame(current, titles, lambda: make(request))

        def show(snapshot: Snapshot) -> None:
            as_of.show(f"{clock(snapshot.at_ms)} UTC")
            as_of.attribute("data_at", str(snapshot.at_ms))
            as_of.attribute("data_clock", clock(snapshot.at_ms))
            view.show(snapshot)

        feed.show(client, show)


def _frame(current: str | None, titles: dict[str, str], content: Callable[[], V], above: str = "") -> tuple[Element, V]:
    """The parts that all pages have, around ``content``; returns the element of the time, and what ``content`` returns.

    ``above``: the relative path of the first page. Links are relative, since a proxy may add a prefix.
    """
    Element("a", "Skip to the content", "skip", href="#content")
    within("div", "alarm", id="alarm", role="alert", hidden=True)
    with within("div", "frame"):
        with within("header", "top"):
            Element("span", _NAME, "name")
            as_of = Element("span", "", "as-of", id="as-of")
            within("button", "link-button", id="theme", type="button", title="Light or dark")
        with within("nav", aria_label="Views"):
            for name, label in titles.items():
                Element("a", label, href=above + name or "./", aria_current="page" if name == current else False)
        with within("div", id="content", tabindex="-1"):  # inside the one main element of NiceGUI
            return as_of, content()


def _error_pages(titles: dict[str, str], waiting: WaitingPages) -> None:
    """Answer requests for unknown pages with one that has the links to all others, and other errors without a page."""

    async def answer(request: Request, _exception: Exception) -> Response:
        path = request.url.path
        if request.method != "GET" or "/_nicegui" in path:
            return Response(status_code=404)

        def content() -> None:
            Element("h1", "There is no such page")
            Element(
                "p", f"The dashboard has no page {path[:_MOST_PATH]}. The links above lead to all of its pages.", "lead"
            )

        with Client(ui.page(""), request=request) as client:
            waiting.add(client)
            client.title = f"Not found · {_NAME}"
            _frame(None, titles, content, "../" * path.partition(f"{PATH}/")[2].count("/"))
        return client.build_response(request, 404)

    async def failed(_request: Request, _exception: Exception) -> Response:
        return Response("The page could not be shown. The log of the process has the reason.", 500)

    # NiceGUI's own handlers keep a page for each error, and log the whole URL.
    nicegui_app.exception_handlers[404] = answer
    nicegui_app.exception_handlers[Exception] = failed
