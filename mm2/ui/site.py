"""Sets up and serves the pages; the first module that needs NiceGUI."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from fastapi import FastAPI, Request
from nicegui import Client, ui
from starlette.types import ASGIApp

from mm2.connect.rest.access.control import Access
from mm2.observer.views import Snapshot
from mm2.ui.actions import Actions
from mm2.ui.dashboard import PATH
from mm2.ui.feed import UpdateStream
from mm2.ui.parts import Element, within
from mm2.ui.source import PageData
from mm2.ui.views import View
from mm2.ui.views.configuration import ConfigurationView
from mm2.ui.views.connectors import ConnectorsView
from mm2.ui.views.flows import FlowsView
from mm2.ui.views.gaps import GapsView
from mm2.ui.views.groups import GroupsView
from mm2.ui.views.partitions import PartitionsView
from mm2.ui.views.spark import SparkPage
from mm2.ui.views.workers import WorkersView
from mm2.ui.wording import clock

_HERE: Final = Path(__file__).parent
_NAME: Final = "MirrorMaker"
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
        "": ("Flows", lambda _: FlowsView(feed.history)),
        "partitions": ("Partitions", lambda request: PartitionsView(feed.snapshot, request.query_params)),
        "groups": ("Groups", lambda request: GroupsView(feed.snapshot, request.query_params)),
        "gaps": ("Gaps", lambda request: GapsView(feed.snapshot, request.query_params)),
        "connectors": ("Connectors", lambda request: ConnectorsView(actions, Access.of(request.scope))),
        "workers": ("Workers", lambda _: WorkersView()),
        "spark": ("Spark", lambda _: SparkPage()),
        "configuration": ("Configuration", lambda request: ConfigurationView(source.settings, request.query_params)),
    }
    style, script = (_HERE / name for name in ("dashboard.css", "dashboard.js"))
    ui.add_head_html(
        f"<style>{style.read_text('utf-8')}</style><script>{script.read_text('utf-8')}</script>", shared=True
    )
    for path, (title, make) in views.items():
        _page(path, title, make, feed, {name: label for name, (label, _) in views.items()})
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


def _page(path: str, title: str, make: Callable[[Request], View], feed: UpdateStream, titles: dict[str, str]) -> None:
    @ui.page(f"/{path}", title=f"{title} · {_NAME}")
    async def page(request: Request, client: Client) -> None:
        await feed.ensure_running()
        Element("a", "Skip to the content", "skip", href="#content")
        within("div", "alarm", id="alarm", role="alert", hidden=True)
        with within("div", "frame"):
            with within("header", "top"):
                Element("span", _NAME, "name")
                as_of = Element("span", "", "as-of", id="as-of")
                within("button", "link-button", id="theme", type="button", title="Light or dark")
            with within("nav", aria_label="Views"):
                for name, label in titles.items():
                    current = "page" if name == path else False
                    Element("a", label, href=name or "./", aria_current=current)
            with within("div", id="content", tabindex="-1"):  # inside the one main element of NiceGUI
                view = make(request)

        def show(snapshot: Snapshot) -> None:
            as_of.show(f"{clock(snapshot.at_ms)} UTC")
            as_of.attribute("data_at", str(snapshot.at_ms))
            as_of.attribute("data_clock", clock(snapshot.at_ms))
            view.show(snapshot)

        feed.show(client, show)
