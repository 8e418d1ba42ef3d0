"""One running flow and one Chromium for all tests of a module; forbidden requests and console messages are checked after each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.chromium import chromium
from tests.browser.dashboard_flow import PATIENCE_S, DashboardFlow, start_dashboard_flow

expect.set_options(timeout=PATIENCE_S * 1000 / 3)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardFlow]:
    """A running flow with data for all pages."""
    with start_dashboard_flow(tmp_path_factory.mktemp("shop")) as shop:
        yield shop


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserContext]:
    """An empty browser."""
    profile: Path = tmp_path_factory.mktemp("chromium")
    with chromium(profile) as context:
        context.set_default_timeout(PATIENCE_S * 1000)
        yield context


@pytest.fixture
def page(context: BrowserContext, shop: DashboardFlow) -> Iterator[Page]:
    """An empty page. Afterwards checks that it sent requests only to the process, and that its console has no error."""
    asked: list[str] = []
    errors: list[str] = []
    page = context.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.on("websocket", lambda socket: asked.append(socket.url.replace("ws://", "http://")))
    page.on("console", lambda message: errors.append(message.text) if message.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    page.close()
    elsewhere = [url for url in asked if not url.startswith((shop.url, "data:", "blob:"))]
    assert not elsewhere
    assert asked
    assert not errors
