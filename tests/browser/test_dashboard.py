"""The dashboard of a process that copies between real brokers, in Debian's Chromium."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, Locator, Page, expect

from mm2.copy.progress.ledger import Verified
from mm2.kafka.structs import TopicPartition
from tests.browser.dashboard_flow import FLOW, GROUP, PATIENCE_S, SECRET, DashboardFlow
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(max(240, PATIENCE_S * 4))

ORDERS = f"topic?flow={FLOW}&topic=orders"
VIEWS = (
    "",
    "topics",
    ORDERS,
    "states",
    "partitions",
    "groups",
    "gaps",
    "connectors",
    "workers",
    "spark",
    "configuration",
)
HEARTBEAT = "MirrorHeartbeatConnector"
ALL = "19 partitions"  # heartbeats are copied, too


def mapped(shop: DashboardFlow, library: str) -> bool:
    """Whether a process has loaded an extension module."""
    return library in Path(f"/proc/{shop.process.pid}/maps").read_text()


def connector(page: Page, name: str, flow: str = FLOW) -> Locator:
    return page.get_by_role("region", name=f"{name} of {flow}", exact=True)


def row(page: Page, text: str) -> Locator:
    return page.locator("tbody tr:not(.hidden)").filter(has_text=text)


def test_the_dashboard_is_not_loaded_before_the_first_request(shop: DashboardFlow, page: Page) -> None:
    assert httpx.get(f"{shop.url}/health", trust_env=False, timeout=PATIENCE_S).is_success
    assert not mapped(shop, "multidict")  # which only NiceGUI uses
    page.goto(f"{shop.url}/ui")
    expect(page).to_have_url(shop.ui)
    expect(page).to_have_title("Flows · MirrorMaker")
    assert mapped(shop, "multidict")


def test_the_first_page_shows_what_would_be_lost(shop: DashboardFlow, page: Page) -> None:
    page.goto(shop.ui)
    flow = page.get_by_role("region", name=FLOW, exact=True)
    sentence = flow.locator(".sentence")
    expect(sentence).to_contain_text("If shop dies now you lose", timeout=PATIENCE_S * 1000)
    expect(flow.locator(".state").first).to_have_text(re.compile("RUNNING|CATCHING_UP"))
    expect(flow.locator("dd").first).to_have_text(re.compile(r"[\d,]+/s"), timeout=PATIENCE_S * 1000)
    links = flow.get_by_role("link", name=re.compile(r"\d+"))
    expect(links.first).to_have_attribute("href", re.compile("partitions"))
    expect(links.last).to_have_attribute("href", re.compile("gaps"))
    expect(page.locator(".index")).to_be_hidden()
    expect(links.last).to_have_text("0")
    assert font_px(sentence) == max(font_px(page.locator(one).first) for one in (".sentence", "h2", "dd", "nav a"))
    # Charts show lines, and heartbeats marks, without user actions.
    expect(flow.locator("figure").first.locator("svg path[d*=L]").first).to_be_attached(timeout=PATIENCE_S * 1000)
    expect(flow.locator(".strip i:not(.unrecorded):not(.missed)").first).to_be_attached(timeout=PATIENCE_S * 1000)
    expect(flow.locator(".legend")).to_have_text(["50 %", "95 %", "99 %"])
    expect(page.locator("#as-of")).not_to_have_text(str(page.locator("#as-of").text_content()), timeout=10_000)
    expect(page.get_by_role("alert")).to_be_hidden()


@pytest.mark.slow
def test_elements_are_kept_while_their_contents_are_updated(shop: DashboardFlow, page: Page) -> None:
    page.goto(shop.ui)
    expect(page.locator("figure svg").first).to_be_attached(timeout=PATIENCE_S * 1000)
    page.evaluate(
        "() => document.querySelectorAll('figure svg, .sentence, dd').forEach((part) => { part.dataset.mark = 'same'; })"
    )
    before = page.locator("#as-of").text_content()
    time.sleep(12)  # a new point each ten seconds
    assert page.locator("#as-of").text_content() != before
    assert page.evaluate("() => [...document.querySelectorAll('figure svg')].every((part) => part.dataset.mark)")
    assert page.evaluate("() => [...document.querySelectorAll('.sentence')].every((part) => part.dataset.mark)")


@pytest.mark.slow
def test_charts_show_utc_like_the_log(shop: DashboardFlow, page: Page) -> None:
    page.goto(shop.ui)
    label = page.locator("figure svg text").filter(has_text=re.compile(r"^\d\d:\d\d$")).last
    expect(label).to_be_attached(timeout=PATIENCE_S * 2000)  # a minute begins
    hour, minute = map(int, str(label.text_content()).split(":"))
    assert (time.time() / 60 - hour * 60 - minute) % (24 * 60) < 40, "what it shows is at most half an hour old"


@pytest.mark.slow
def test_topics_are_found_with_wildcards_and_their_search_is_in_the_address(shop: DashboardFlow, page: Page) -> None:
    page.goto(f"{shop.ui}topics?flow={FLOW}")
    count = page.locator(".tools .count")
    expect(count).to_contain_text("of 4 topics", timeout=PATIENCE_S * 1000)
    page.get_by_role("searchbox").fill("o*s")
    expect(count).to_contain_text("of 1 topics")
    page.get_by_role("button", name="Lag", exact=True).click()
    expect(page).to_have_url(re.compile(r"topics\?flow=.*&search=o\*s&sort=records&order=descending$"))
    page.reload()
    expect(count).to_contain_text("of 1 topics")
    expect(page.get_by_role("searchbox")).to_have_value("o*s")
    expect(row(page, "orders").locator(".drawing path")).to_be_attached(timeout=PATIENCE_S * 1000)
    row(page, "orders").get_by_role("link", name="orders", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("orders")


def test_a_topic_has_a_page_with_its_partitions_configuration_and_groups(shop: DashboardFlow, page: Page) -> None:
    page.goto(shop.ui + ORDERS)
    expect(page.locator(".lead").first).to_contain_text("Copied to shop.orders.", timeout=PATIENCE_S * 1000)
    expect(page.locator(".map i")).to_have_count(4)
    expect(page.locator("figure path[d*=L]").first).to_be_attached(timeout=PATIENCE_S * 1000)
    expect(
        page.get_by_text(
            "The configurations of orders and shop.orders are equal, apart from sensitive properties, whose values brokers do not return."
        )
    ).to_be_visible(timeout=PATIENCE_S * 1000)
    groups = page.get_by_role("table", name="Consumer groups of orders")
    expect(groups.get_by_role("cell", name="orders-1")).to_be_visible(timeout=PATIENCE_S * 1000)
    page.get_by_label("Time range").select_option("24h")
    expect(page).to_have_url(re.compile("range=24h$"))
    page.goto(f"{shop.ui}topic?flow={FLOW}&topic=absent")
    expect(page.get_by_text(f"no topic absent is copied by {FLOW}")).to_be_visible()


@pytest.mark.slow
def test_a_topic_is_limited_paused_and_resumed(shop: DashboardFlow, page: Page) -> None:
    page.goto(shop.ui + ORDERS.replace("orders", "clicks"))
    pause, resume, unlimit = (
        page.locator(".which").get_by_role("button", name=name, exact=True)
        for name in ("Pause", "Resume", "Remove limit")
    )
    expect(pause).to_be_enabled(timeout=PATIENCE_S * 1000)
    expect(resume).to_be_disabled()
    expect(unlimit).to_be_disabled()
    page.locator(".which").get_by_role("button", name="Limit", exact=True).click()
    dialog = page.get_by_role("alertdialog", name=f"Limit: topic clicks of {FLOW}")
    dialog.get_by_role("textbox").fill("20MB")
    dialog.get_by_role("button", name="Limit").click()
    expect(page.locator(".message.ok")).to_have_text(f"Topic clicks of {FLOW} is being limited.")
    expect(page.locator("dd").filter(has_text="20.0 MB/s")).to_be_visible(timeout=PATIENCE_S * 1000)
    unlimit.click()
    page.get_by_role("alertdialog").get_by_role("button", name="Remove limit").click()
    expect(unlimit).to_be_disabled(timeout=PATIENCE_S * 1000)
    pause.click()
    page.get_by_role("alertdialog").get_by_role("button", name="Pause").click()
    expect(page.locator(".which .state")).to_have_text("PAUSED", timeout=PATIENCE_S * 2000)
    expect(pause).to_be_disabled()
    resume.click()
    page.get_by_role("alertdialog").get_by_role("button", name="Resume").click()
    expect(page.locator(".which .state")).to_have_text(re.compile("RUNNING|CATCHING_UP"), timeout=PATIENCE_S * 2000)


def test_an_unknown_page_has_the_links_of_all_pages(shop: DashboardFlow, page: Page) -> None:
    answer = httpx.get(f"{shop.ui}nothing/here", trust_env=False, timeout=PATIENCE_S, follow_redirects=False)
    assert answer.status_code == 404
    assert "There is no such page" in answer.text
    assert "../topics" in answer.text
    page.goto(f"{shop.ui}states#TOO_LARGE")
    expect(page.locator("#TOO_LARGE")).to_be_in_viewport()
    expect(page.locator("#TOO_LARGE")).to_contain_text("docs/how-to/runbooks/Mm2RecordTooLarge.md")


@pytest.mark.slow
def test_partitions_are_found_filtered_and_sorted(shop: DashboardFlow, page: Page) -> None:
    page.goto(f"{shop.ui}partitions?flow={FLOW}")
    count = page.locator(".tools .count")
    expect(count).to_contain_text(ALL, timeout=PATIENCE_S * 1000)
    page.get_by_role("searchbox").fill("orders")
    expect(count).to_contain_text("1–4 of 4")  # noqa: RUF001
    expect(row(page, "orders-2").locator(".state")).to_have_text(re.compile("RUNNING|CATCHING_UP"))
    expect(row(page, "orders-2").locator("td").nth(7)).to_have_text(re.compile(r"\d"))
    page.get_by_role("searchbox").fill("")
    expect(count).to_contain_text(ALL)
    page.get_by_label("State").select_option("CORRUPT")
    expect(page.get_by_text("No partition matches.")).to_be_visible()
    page.get_by_label("State").select_option("")
    page.get_by_role("button", name="Topic and partition").click()
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Topic and partition")
    expect(page.locator("tbody tr").first).to_contain_text("payments-1")


@pytest.mark.slow
def test_on_a_phone_rows_are_sorted_without_a_table_header(shop: DashboardFlow, page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 780})
    page.goto(f"{shop.ui}partitions?flow={FLOW}")
    expect(page.get_by_role("button", name="Position", exact=True)).not_to_be_in_viewport()
    page.get_by_label("Order", exact=True).select_option("position")
    expect(page.locator("tbody tr").first).to_contain_text("orders-", timeout=PATIENCE_S * 1000)
    page.get_by_label("Order", exact=True).select_option("topic")
    expect(page.locator("tbody tr").first).to_contain_text("clicks-0")


@pytest.mark.slow
def test_groups_are_shown_for_both_clusters(shop: DashboardFlow, page: Page) -> None:
    page.goto(f"{shop.ui}groups")
    found = row(page, GROUP).filter(has_text="orders-1")
    expect(found.locator("td").nth(2)).to_have_text("20", timeout=PATIENCE_S * 1000)
    expect(found.locator("td").nth(3)).to_have_text(re.compile(r"\d+"), timeout=PATIENCE_S * 1000)


@pytest.mark.slow
def test_verified_offsets_are_shown_and_differences_are_red(shop: DashboardFlow, page: Page) -> None:
    place = TopicPartition("orders", 1)
    flow = page.get_by_role("region", name=FLOW, exact=True)
    for differences, up_to in (({"missing": 2}, "5"), ({}, "9")):
        shop.verified(place, Verified(0, int(up_to), 9, int(time.time() * 1000), 7, differences))
        page.goto(f"{shop.ui}partitions?flow={FLOW}&search=orders-1")
        expect(row(page, "orders-1").locator("td").nth(8)).to_have_text(up_to, timeout=PATIENCE_S * 1000)
        page.goto(shop.ui)
        expected = "vault differs from shop: 2 missing, found by mm2 verify."
        if differences:
            expect(flow.locator(".sentence.bad")).to_contain_text(expected, timeout=PATIENCE_S * 1000)
        else:
            expect(flow.locator(".sentence")).not_to_contain_text(expected, timeout=PATIENCE_S * 1000)


@pytest.mark.slow
def test_gaps_are_shown_with_their_reasons(shop: DashboardFlow, page: Page) -> None:
    page.goto(f"{shop.ui}gaps")
    expect(row(page, "aborted").first).to_be_visible(timeout=PATIENCE_S * 1000)
    expect(row(page, "control").first).to_contain_text("Transaction markers")
    expect(row(page, "control").first.locator(".state.ok")).to_be_visible()  # healthy
    expect(row(page, "payments-").first).to_contain_text(re.compile(r"\d+ (aborted|control)"))
    expect(page.get_by_text("No lost range is in the ledgers.")).to_be_visible()


@pytest.mark.slow
def test_workers_and_spark_are_shown(shop: DashboardFlow, page: Page) -> None:
    page.goto(f"{shop.ui}workers")
    expect(row(page, FLOW)).to_contain_text("leader · this process", timeout=PATIENCE_S * 1000)
    page.goto(f"{shop.ui}spark")
    expect(page.get_by_text("up", exact=True)).to_be_visible(timeout=PATIENCE_S * 1000)
    lane = row(page, "MirrorSourceConnector-0").first
    expect(lane.locator("td").nth(1)).to_have_text(re.compile(r"\d+"), timeout=PATIENCE_S * 1000)
    expect(lane.locator("td").nth(2)).to_have_text(re.compile(r"\d+ (ms|s|min)"), timeout=PATIENCE_S * 1000)


def test_every_setting_has_its_origin_and_no_secret_is_shown(shop: DashboardFlow, page: Page) -> None:
    page.goto(f"{shop.ui}configuration")
    page.get_by_role("searchbox").fill("isolation.level")
    found = row(page, "isolation.level").filter(has_text="read_committed").first
    expect(found).to_contain_text(re.compile(r"line \d+: shop\.consumer\.isolation\.level"))
    page.get_by_role("searchbox").fill("keystore.password")
    expect(row(page, "[hidden]").first).to_be_visible()
    expect(page.get_by_text("Unknown keys: worker.of.nobody")).to_be_visible()
    assert SECRET not in page.content()
    page.get_by_role("searchbox").fill("replication.policy.class")
    page.get_by_label("State").select_option("")
    expect(row(page, "default").first).to_be_visible()


@pytest.mark.slow
def test_stack_traces_of_failed_tasks_are_shown(shop: DashboardFlow, page: Page) -> None:
    shop.break_a_connector()
    page.goto(f"{shop.ui}connectors")
    broken = connector(page, "ArchiveSink")
    expect(broken.locator("td.state, td .state, .state.bad").first).to_have_text("FAILED", timeout=PATIENCE_S * 1000)
    page.get_by_role("link", name=f"Task 0 of ArchiveSink of {FLOW} has failed", exact=True).click()
    assert page.evaluate("() => document.querySelector(':target').ariaLabel") == f"ArchiveSink of {FLOW}"
    broken.get_by_text("Stack trace of task 0").click()
    expect(broken.locator("pre").last).to_contain_text("/nowhere/to/be/found")
    shop.ask("DELETE", "/connectors/ArchiveSink")
    expect(broken).to_be_hidden(timeout=PATIENCE_S * 500)


@pytest.mark.slow
def test_connectors_are_paused_resumed_restarted_and_stopped(shop: DashboardFlow, page: Page) -> None:
    page.goto(f"{shop.ui}connectors")
    block = connector(page, HEARTBEAT)
    expect(block.locator(".line .state")).to_have_text("RUNNING", timeout=PATIENCE_S * 1000)
    for verb, expected, state in (
        ("Pause", "is paused", "PAUSED"),
        ("Resume", "is resumed", "RUNNING"),
        ("Stop", "is stopped", "STOPPED"),
        ("Resume", "is resumed", "RUNNING"),
        ("Restart", "is being restarted", "RUNNING"),
    ):
        block.get_by_role("button", name=f"{verb} {HEARTBEAT}").click()
        dialog = page.get_by_role("alertdialog")
        expect(dialog).to_contain_text(f"{verb} {HEARTBEAT} of {FLOW}?")
        dialog.get_by_role("button", name=verb).click()
        expect(page.locator(".message")).to_have_text(f"{HEARTBEAT} of {FLOW} {expected}.")
        wait_for_state(shop, HEARTBEAT, state)
        expect(block.locator(".line .state")).to_have_text(state, timeout=PATIENCE_S * 500)
    asked = shop.process.lines(logger="mm2.audit", result="done", path=f"{HEARTBEAT}/")
    assert [line["path"].rpartition("/")[2] for line in asked] == ["pause", "resume", "stop", "resume", "restart"]


@pytest.mark.slow
def test_a_task_is_restarted(shop: DashboardFlow, page: Page) -> None:
    page.goto(f"{shop.ui}connectors")
    block = connector(page, HEARTBEAT)
    restarts = {"logger": "mm2.audit", "result": "done", "path": f"{HEARTBEAT}/tasks/0/restart"}
    before = len(shop.process.lines(**restarts))
    block.locator("tbody").get_by_role("button", name="Restart").click()
    page.get_by_role("alertdialog").get_by_role("button", name="Restart").click()
    expect(page.locator(".message")).to_have_text(f"Task 0 of {HEARTBEAT} of {FLOW} is being restarted.")
    assert len(shop.process.lines(**restarts)) == before + 1


@pytest.mark.slow
def test_an_action_that_is_not_confirmed_has_no_effect(shop: DashboardFlow, page: Page) -> None:
    page.goto(f"{shop.ui}connectors")
    dialog = page.get_by_role("alertdialog")
    for leave in ("Escape", "Cancel"):
        connector(page, HEARTBEAT).get_by_role("button", name="Stop").click()
        expect(dialog).to_be_visible()
        if leave == "Escape":
            page.keyboard.press("Escape")
        else:
            dialog.get_by_role("button", name="Cancel").click()
        expect(dialog).to_be_hidden()
    assert shop.state(HEARTBEAT) == "RUNNING"
    expect(page.locator(".message")).to_have_text("")


@pytest.mark.slow
def test_a_failed_action_is_reported(shop: DashboardFlow, page: Page) -> None:
    shop.break_a_connector()
    page.goto(f"{shop.ui}connectors")
    connector(page, "ArchiveSink").get_by_role("button", name="Pause").click(timeout=PATIENCE_S * 1000)
    dialog = page.get_by_role("alertdialog")
    expect(dialog).to_be_visible()
    assert shop.ask("DELETE", "/connectors/ArchiveSink").is_success
    dialog.get_by_role("button", name="Pause").click()
    expect(page.locator(".message.bad")).to_contain_text("Pause ArchiveSink")


def test_every_action_works_with_the_keyboard_only(shop: DashboardFlow, page: Page) -> None:
    page.goto(f"{shop.ui}connectors")
    expect(connector(page, HEARTBEAT)).to_be_visible(timeout=PATIENCE_S * 1000)
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    reached: list[str] = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(
            str(page.evaluate("() => document.activeElement.ariaLabel || document.activeElement.textContent"))
        )
        if reached[-1] == f"Pause {HEARTBEAT} of {FLOW}":
            break
    assert {"Theme: system", "Flows", "Partitions", "Groups", "Gaps", "Workers", "Spark"} <= set(reached)
    page.keyboard.press("Enter")
    cancel = page.get_by_role("alertdialog").get_by_role("button", name="Cancel")
    expect(cancel).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    wait_until(lambda: shop.state(HEARTBEAT) == "PAUSED", 60.0, detail=shop.process.tail)
    assert shop.ask("PUT", f"/connectors/{HEARTBEAT}/resume").is_success
    page.goto(f"{shop.ui}partitions")
    head = page.get_by_role("button", name="Lag", exact=True)
    head.focus()
    page.keyboard.press("Enter")
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Lag")


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 820, 1110, 1280])
def test_no_page_is_wider_than_its_window(shop: DashboardFlow, page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 780})
    for view in VIEWS:
        page.goto(f"{shop.ui}{view}")
        expect(page.locator("main")).to_be_visible()
        time.sleep(0.3)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width, view
        tallest = page.evaluate(
            "() => Math.max(0, ...[...document.querySelectorAll('td')].map((td) => td.offsetHeight))"
        )
        assert tallest < 200, f"{view}: a column is as narrow as a letter"
        unnamed = page.evaluate(
            "() => [...document.querySelectorAll('button, a, input, select')].filter("
            "(part) => !(part.ariaLabel || part.textContent.trim() || part.title)).length"
        )
        assert not unnamed, view


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_no_violation_on_any_page(shop: DashboardFlow, page: Page, scheme: str, width: int) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.set_viewport_size({"width": width, "height": 860})
    found = {}
    for view in (*VIEWS, "?range=6h", f"{ORDERS}&range=24h"):
        page.goto(f"{shop.ui}{view}")
        expect(page.locator("main")).to_be_visible()
        results = Axe().run(page)
        if results.violations_count:
            found[view] = results.generate_report()
    assert not found


@pytest.mark.slow
def test_light_and_dark_follow_the_system_and_can_be_chosen(shop: DashboardFlow, page: Page) -> None:
    def paper() -> str:
        return str(page.evaluate("() => getComputedStyle(document.body).backgroundColor"))

    page.emulate_media(color_scheme="light")
    page.goto(shop.ui)
    light = paper()
    page.emulate_media(color_scheme="dark")
    dark = paper()
    assert light != dark
    theme = page.get_by_role("button", name="Theme: system")
    theme.click()
    assert paper() == light
    page.reload()
    expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
    assert paper() == light
    page.emulate_media(color_scheme="light")
    page.get_by_role("button", name="Theme: light").click()
    assert paper() == dark
    page.get_by_role("button", name="Theme: dark").click()
    assert paper() == light


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_enough_contrast(shop: DashboardFlow, page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(shop.ui)
    ratios = page.evaluate(
        """() => {
          const names = ["ink", "muted", "ok", "busy", "warning", "bad", "curve-1", "curve-2", "curve-3"];
          const probe = document.body.appendChild(document.createElement("i"));
          const light = (name) => {
            probe.style.color = `var(--${name})`;
            const parts = getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255);
            const [r, g, b] = parts.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const paper = light("paper");
          return names.map((name) => {
            const [high, low] = [light(name), paper].sort((a, b) => b - a);
            return [name, (high + 0.05) / (low + 0.05)];
          });
        }"""
    )
    assert all(ratio >= 4.5 for _, ratio in ratios), ratios  # WCAG 2.2 AA


@contextmanager
def frozen(shop: DashboardFlow) -> Iterator[None]:
    os.kill(shop.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(shop.process.pid, signal.SIGCONT)


@pytest.mark.slow
def test_a_page_reports_that_its_data_are_stale(shop: DashboardFlow, context: BrowserContext) -> None:
    page = context.new_page()  # not the fixture's page: its console has an error about the lost connection
    page.goto(shop.ui)
    expect(page.locator(".sentence").first).to_be_visible()
    alarm = page.locator("#alarm")
    expect(alarm).to_be_hidden()
    with frozen(shop):
        expect(alarm).to_contain_text(re.compile("seconds old, as of .* UTC"), timeout=15_000)
    expect(alarm).to_be_hidden(timeout=PATIENCE_S * 1000)
    expect(page.locator(".sentence").first).to_be_visible()
    page.close()


def test_requests_of_other_origins_are_rejected(shop: DashboardFlow, page: Page) -> None:
    page.goto(shop.ui)
    host = shop.url.removeprefix("http://")
    handshake = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    socket = f"{shop.url}/ui/_nicegui_ws/socket.io/?EIO=4&transport=websocket"

    def answer(url: str, **headers: str) -> int:
        with (
            httpx.Client(trust_env=False, timeout=PATIENCE_S) as client,
            client.stream("GET", url, headers=headers) as got,
        ):
            return got.status_code

    assert answer(socket, **handshake, Origin="http://elsewhere.example") == 403
    assert answer(socket, **handshake, Origin=f"http://{host}") == 101
    assert answer(socket, **handshake, Origin="http://elsewhere.example", Host="elsewhere.example") == 421
    assert answer(shop.ui, Host="elsewhere.example") == 421
    policy = httpx.get(shop.ui, trust_env=False, timeout=PATIENCE_S).headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy


def test_a_flow_that_breaks_is_red_within_ten_seconds(shop: DashboardFlow, page: Page) -> None:
    page.goto(shop.ui)
    flow = page.get_by_role("region", name=FLOW, exact=True)
    expect(flow.locator(".sentence:not(.bad):not(.critical)")).to_be_visible(timeout=PATIENCE_S * 1000)
    shop.source.kill9()
    expect(flow.locator(".sentence.bad, .sentence.critical")).to_be_visible(timeout=10_000)
    expect(flow.locator(".state").first).to_have_text(re.compile("DEGRADED|STOPPED"))
    expect(flow.locator(".sentence")).to_contain_text("shop has not answered")
    color = flow.locator(".sentence").evaluate("(part) => getComputedStyle(part).color")
    red, green, blue = map(int, re.findall(r"\d+", color)[:3])
    assert red > 2 * max(green, blue)


@pytest.mark.slow
def test_open_pages_do_not_delay_the_shutdown(shop: DashboardFlow, context: BrowserContext) -> None:
    """The last test: it stops the process."""
    page = context.new_page()
    page.goto(shop.ui)
    expect(page.locator(".sentence").first).to_be_visible()
    code, _ = shop.process.stop()
    assert code == 0
    # The total time does not depend on pages: the previous test killed a broker, for which a stop waits.
    (stopped,) = shop.process.lines(event="REST server stopped.")
    assert stopped["in_time"]
    expect(page.locator("#alarm")).to_contain_text("Connection lost", timeout=PATIENCE_S * 1000)
    page.close()


def wait_for_state(shop: DashboardFlow, name: str, state: str) -> None:
    wait_until(lambda: shop.state(name) == state, 60.0, detail=shop.process.tail)


def font_px(part: Locator) -> float:
    return float(part.evaluate("(part) => parseFloat(getComputedStyle(part).fontSize)"))
