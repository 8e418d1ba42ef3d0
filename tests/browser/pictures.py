"""Screenshots of every page of running flows, light and dark, on a desktop and on a phone.

    python -m tests.browser.pictures [--folder docs/img] [--seconds 150] [--only flows ...]

The flow of test_dashboard.py (dashboard_flow.py), and in addition failures: records that retention deleted before they were copied,
one that the target rejects, a failed connector, an unreachable cluster. Two processes share the tasks.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import httpx
from confluent_kafka.admin import ResourceType
from playwright.sync_api import BrowserContext

from mm2.sandbox.kafka import LocalKafka, start_all, stop_all
from mm2.sandbox.ports import free_ports
from tests.browser.chromium import chromium
from tests.browser.dashboard_flow import FLOW, PATIENCE_S, SOURCE, TARGET, DashboardFlow, start_dashboard_flow
from tests.integration.copy_flow import alter, create, delete_before, producer_of
from tests.integration.mirror_process import ROOT, MirrorProcess
from tests.support.waiting import wait_until

VIEWS = {
    "flows": "",
    "topics": f"topics?flow={FLOW}",
    "topic": f"topic?flow={FLOW}&topic=orders",
    "partitions": f"partitions?flow={FLOW}",
    "groups": "groups",
    "gaps": "gaps",
    "connectors": "connectors",
    "workers": "workers",
    "spark": "spark",
    "configuration": f"configuration?flow={FLOW}",
}
_SIZES = {"desktop": (1280, 860), "phone": (390, 780)}
_SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
_SETTLE_S = 2.5
#: A cluster that becomes unreachable, copied to the vault as well.
_DEPOT = "depot"
#: Groups by the number of consumed records of each partition of the orders.
_GROUPS = {"shipping": 35, "fraud": 50, "reporting": 5}


@contextmanager
def living(folder: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """A running process with all states that the screenshots show."""
    depot = LocalKafka(_DEPOT, folder / _DEPOT)
    with ExitStack() as stack:
        start_all((depot,), PATIENCE_S)
        stack.callback(stop_all, (depot,))
        create(depot, "invoices", 3)
        settings = {
            "clusters": f"{SOURCE}, {TARGET}, {_DEPOT}",
            f"{_DEPOT}.bootstrap.servers": depot.bootstrap,
            f"{_DEPOT}->{TARGET}.enabled": "true",
            f"{_DEPOT}->{TARGET}.topics": "invoices",
            # Three clusters are six flows, of which most would show nothing but heartbeats.
            f"{SOURCE}->{_DEPOT}.emit.heartbeats.enabled": "false",
            f"{_DEPOT}->{SOURCE}.emit.heartbeats.enabled": "false",
            "tasks.max": "3",
        }
        shop = stack.enter_context(start_dashboard_flow(folder, topics=("images", "returns"), settings=settings))
        stack.callback(_second(shop, folder).clean_up)
        _write(depot, "invoices", 300)

        def happen() -> None:
            _verify(shop)
            _lose_records(shop)
            _refuse_a_record(shop)
            shop.break_a_connector()
            depot.kill9()
            # Wait until all changes are displayed and rebalances have finished.
            wait_until(
                lambda: all(word in _overview(shop) for word in ("TOO_LARGE", f"{_DEPOT} has not answered")),
                60.0,
                detail=shop.process.tail,
            )

        for group, count in _GROUPS.items():
            shop.commit(count, group)
        # Charts should not show the start: wait until a second worker has joined and taken over its tasks.
        wait_until(lambda: _is_settled(shop), 300.0, detail=shop.process.tail)
        yield shop.ui, happen


def _second(shop: DashboardFlow, folder: Path) -> MirrorProcess:
    """Another process with the same file, but for its port."""
    file = folder / "second.properties"
    (port,) = free_ports(1)
    file.write_text(re.sub(r"(?m)^listeners = .*$", f"listeners = http://127.0.0.1:{port}", shop.file.read_text()))
    return MirrorProcess(file, folder / "second.log", variables={"XDG_STATE_HOME": str(folder)})


def _lose_records(shop: DashboardFlow) -> None:
    """Delete records before they are copied."""
    _mm2(shop, "pause", "--topic", "returns")
    _write(shop.source, "returns", 900)
    delete_before(shop.source, "returns", 630)
    _mm2(shop, "resume", "--topic", "returns")


def _refuse_a_record(shop: DashboardFlow) -> None:
    """Write a record that is larger than its remote topic allows."""
    alter(shop.target, ResourceType.TOPIC, f"{SOURCE}.images", "max.message.bytes", "2000")
    _write(shop.source, "images", 1, size=5_000)


def _verify(shop: DashboardFlow) -> None:
    """Record verified offsets for the pages."""
    command = [sys.executable, "-P", "-m", "mm2.cli.mm2", "verify", str(shop.file), FLOW, "--record"]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, timeout=PATIENCE_S * 10)


def _write(broker: LocalKafka, topic: str, count: int, size: int = 100) -> None:
    producer = producer_of(broker)
    for number in range(count):
        producer.produce(topic, b"%0*d" % (size, number))
    assert producer.flush(PATIENCE_S) == 0


def _mm2(shop: DashboardFlow, verb: str, *more: str) -> None:
    subprocess.run(
        [sys.executable, "-P", "-m", "mm2.cli.mm2", verb, str(shop.file), FLOW, *more, "--timeout", str(PATIENCE_S)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        timeout=PATIENCE_S * 2,
    )


def _is_settled(shop: DashboardFlow) -> bool:
    flows = [flow for flow in json.loads(_overview(shop))["flows"] if flow["target"] == TARGET]
    return all(len(flow["workers"]) == 2 and flow["state"] == "RUNNING" for flow in flows)


def _overview(shop: DashboardFlow) -> str:
    return httpx.get(f"{shop.url}/overview", trust_env=False, timeout=PATIENCE_S).text


def take(context: BrowserContext, url: str, folder: Path, name: str) -> None:
    """Save one page in all four variants."""
    page = context.new_page()
    for size, (width, height) in _SIZES.items():
        page.set_viewport_size({"width": width, "height": height})
        for scheme in _SCHEMES:
            page.emulate_media(color_scheme=scheme)
            page.goto(url)
            page.locator("main h1").first.wait_for(state="attached")
            page.get_by_text("Reading …").wait_for(state="hidden")
            time.sleep(_SETTLE_S)
            page.screenshot(path=folder / f"{name}-{size}-{scheme}.png")
    page.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "img")
    parser.add_argument("--seconds", type=float, default=150.0, help="of history before anything goes wrong (150)")
    parser.add_argument("--only", nargs="+", choices=VIEWS, default=list(VIEWS), help="these pages (all)")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mm2-pictures-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with living(folder) as (url, happen), chromium(folder / "chromium") as context:
            context.set_default_timeout(PATIENCE_S * 1000)
            first = context.new_page()
            first.goto(url)  # from now on there is a history
            time.sleep(options.seconds)
            happen()
            for view in options.only:
                take(context, url + VIEWS[view], options.folder, view)
    return 0


if __name__ == "__main__":
    sys.exit(main())
