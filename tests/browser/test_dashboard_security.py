"""The dashboard behind TLS and a password, over HTTP and over WebSockets; the real REST server, and a flow with malicious names
and texts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from nicegui import Client
from playwright.sync_api import expect

from mm2.connect.rest.binding import Binding
from mm2.connect.rest.listeners.server import RestServer
from mm2.connect.rest.settings import RestSettings
from mm2.copy.states import PartitionState
from mm2.mirror.rest.flow_resources import FlowResources
from mm2.observer.views import (
    CertificateView,
    ConnectorView,
    FlowState,
    FlowView,
    GroupProcess,
    GroupView,
    LaneView,
    PartitionView,
    Risk,
    Snapshot,
    SparkView,
    TaskView,
)
from mm2.ui.dashboard import Dashboard
from mm2.ui.source import PageData, Settings
from mm2.ui.waiting_pages import MOST_WAITING
from tests.browser.chromium import chromium
from tests.support.certificates import PASSWORD, issue
from tests.support.passwords import password_settings

USER, GUEST, WORD = "admin", "guest", "open-sesame"
#: A name that a user can give to a group or a client, or a text of a broker.
NASTY = """<img src=x onerror="window.hurt = 1">' onfocus='window.hurt = 1' {{ 7 * 7 }}</pre><script>window.hurt = 1</script>"""
VIEWS = ("", "partitions", "groups", "gaps", "connectors", "workers", "spark")


def nasty() -> Snapshot:
    """The flow's state at the current time."""
    flow = FlowView(
        "A",
        "B",
        FlowState.DEGRADED,
        NASTY,
        Risk(),
        source_error=NASTY,
        troubles=(NASTY,),
        gaps={NASTY: 3},
        states={PartitionState.FAILED: 1},
        partitions=[PartitionView("t", 0, NASTY, PartitionState.FAILED, NASTY, gaps={NASTY: 3}, note=NASTY)],
        groups=[GroupView(NASTY, "t", 0, NASTY, reason=NASTY)],
        connectors=[
            ConnectorView(NASTY, "source", "FAILED", NASTY, NASTY, tasks=(TaskView(0, "FAILED", NASTY, NASTY),))
        ],
        workers=[GroupProcess(NASTY, is_leader=True, is_this=True, connectors=1, tasks=1)],
    )
    spark = SparkView(False, NASTY, NASTY, NASTY, (LaneView(NASTY, 0, 1, None, 0, 1, NASTY),))
    certificate = CertificateView("A", "B", NASTY, NASTY, 1_795_327_951_000)
    well = FlowView("C", "D", FlowState.RUNNING, "If C dies now you lose nothing.", Risk(0.0, 0, 0))
    return Snapshot(int(time.time() * 1000), "1", (well, flow), spark, certificates=(certificate,))


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address. A process can load NiceGUI once."""
    tmp_path = tmp_path_factory.mktemp("door")
    authority = issue("an authority")
    issue("worker", authority, address="127.0.0.1").pkcs12(tmp_path / "worker.p12", authority)
    settings = RestSettings.of(
        {
            "listeners": "https://127.0.0.1:0",
            "listeners.https.ssl.keystore.location": str(tmp_path / "worker.p12"),
            "listeners.https.ssl.keystore.password": PASSWORD,
            "listeners.https.ssl.keystore.type": "PKCS12",
            **password_settings(tmp_path, {USER: WORD, GUEST: WORD}),
            "rest.role.viewer": f"User:{GUEST}",
            "rest.role.admin": f"User:{USER}",
        }
    )
    source = PageData(nasty, lambda: Settings({}))
    binding = Binding(settings)
    server = RestServer(binding)
    resources = FlowResources({}, settings, internal=False, apps={"ui": lambda rest: Dashboard(source, rest)})
    server.serve(resources.main, resources.admin)
    try:
        yield f"https://127.0.0.1:{binding.main[0].number}/ui/"
    finally:
        server.stop(2.0)
        resources.requests.close()


def test_password_and_tls_apply_to_pages_and_websockets_and_html_is_escaped(door: str, tmp_path: Path) -> None:
    socket = door + "_nicegui_ws/socket.io/?EIO=4&transport=websocket"
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    with httpx.Client(trust_env=False, verify=False, timeout=60) as client:  # noqa: S501 - of a certificate made above
        for url, headers in (
            (door, {}),
            (socket, upgrade),
            (door + "_nicegui_ws/socket.io/?EIO=4&transport=polling", {}),
        ):
            for auth in (None, (USER, "wrong")):
                with client.stream("GET", url, headers=headers, auth=auth) as answer:
                    assert answer.status_code == 401
        with client.stream("GET", socket, headers=upgrade, auth=(USER, WORD)) as answer:
            assert answer.status_code == 101
    profile = tmp_path / "profile"
    profile.mkdir()
    with chromium(profile, ignore_https_errors=True, http_credentials={"username": USER, "password": WORD}) as context:
        page = context.new_page()
        transports: list[str] = []
        page.on("websocket", lambda opened: transports.append(opened.url))
        page.goto(door)
        expect(page.get_by_role("region", name="A->B", exact=True)).to_be_visible()
        before = str(page.locator("#as-of").text_content())
        expect(page.locator("#as-of")).not_to_have_text(before, timeout=20_000)
        assert transports
        assert transports[0].startswith("wss://")
        # Above the blocks of several flows is the sentence of each, the worst first, with a link to its block.
        lines = page.locator(".index li")
        expect(lines.locator("a")).to_have_text(["A->B", "C->D"])
        expect(lines.first.locator(".message.bad")).to_have_text(NASTY)
        lines.get_by_role("link", name="C->D", exact=True).click()
        assert page.evaluate("() => document.querySelector(':target').textContent") == "C->D"
        # Rows show their flow while rows of several flows are shown.
        page.goto(f"{door}partitions")
        flow_name = page.locator("tbody .flow-name").first
        expect(flow_name).to_have_text("A->B")
        page.get_by_label("Flow", exact=True).select_option("A->B")
        expect(flow_name).to_be_hidden()
        for view in VIEWS:
            page.goto(f"{door}{view}")
            expect(
                page.locator("main").get_by_text(NASTY).first
            ).to_be_visible()  # the text is shown unchanged, without interpretation as HTML
            assert page.evaluate("() => window.hurt") is None, view
            assert page.locator("main img, main script").count() == 0, view


def test_pages_without_a_websocket_are_limited(door: str) -> None:
    """A client that requests pages, or connections by polling, and never opens a WebSocket must not use up the memory."""
    others = set(Client.instances)
    with httpx.Client(trust_env=False, verify=False, timeout=60, auth=(GUEST, WORD)) as client:  # noqa: S501 - see above
        for number in range(2 * MOST_WAITING):
            assert client.get(f"{door}partitions" if number % 2 else f"{door}no-such-page").status_code in {200, 404}
        assert len(Client.instances.keys() - others) <= MOST_WAITING
        polling = client.get(f"{door}_nicegui_ws/socket.io/?EIO=4&transport=polling")
        assert polling.status_code == 400, polling.text


@pytest.mark.parametrize(("user", "may_act"), [(GUEST, False), pytest.param(USER, True, marks=pytest.mark.slow)])
def test_a_link_logs_in_and_actions_need_the_role_operator(
    door: str, tmp_path: Path, user: str, *, may_act: bool
) -> None:
    """The link is opened by another program, and its cookie works for pages and for the socket."""
    with httpx.Client(trust_env=False, verify=False, timeout=60) as client:  # noqa: S501 - of a certificate made above
        code = client.post(f"{door}code", auth=(user, WORD)).raise_for_status().json()["path"]
    link = door.removesuffix("/ui/") + code
    profile = tmp_path / "profile"
    profile.mkdir()
    with chromium(profile, ignore_https_errors=True) as context:
        page = context.new_page()
        # As from a page of another program: the navigation that starts there has no cookies with SameSite=Strict.
        (tmp_path / "open.html").write_text(f'<a href="{link}">open</a>')
        page.goto((tmp_path / "open.html").as_uri())
        page.get_by_role("link", name="open").click()
        expect(page.get_by_role("region", name="A->B", exact=True)).to_be_visible(timeout=60_000)
        assert page.url == door
        before = str(page.locator("#as-of").text_content())
        expect(page.locator("#as-of")).not_to_have_text(before, timeout=60_000)
        (cookie,) = context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["secure"]) == (True, "Strict", True)
        page.goto(f"{door}connectors")
        buttons = page.locator(".connector .line button")
        expect(buttons.first).to_be_visible(timeout=60_000)
        assert [buttons.nth(number).is_enabled() for number in range(buttons.count())] == [may_act] * 4
        assert page.get_by_role("button", name="Restart", exact=True).count() == int(may_act)
        page.goto(link)
        assert "was used" in str(page.text_content("body"))
