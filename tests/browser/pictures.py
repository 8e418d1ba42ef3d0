"""Pictures of every page of a real process, light and dark, on a desktop and on a phone.

    python -m tests.browser.pictures [--folder docs/img] [--seconds 90]

Two brokers, traffic, a group and a connector that has failed (tests/browser/shop.py). What is there is replaced; the last ones show
the first page after the source was killed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal

from playwright.sync_api import BrowserContext, Page

from tests.browser.chromium import chromium
from tests.browser.shop import FLOW, PATIENCE_S, Shop, open_shop

_VIEWS = {
    "flows": "",
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
_SETTLE_S = 1.5
_AFTER_KILL_S = 12


def take(context: BrowserContext, url: str, folder: Path, name: str) -> None:
    """One page in all four ways."""
    page = context.new_page()
    for size, (width, height) in _SIZES.items():
        page.set_viewport_size({"width": width, "height": height})
        for scheme in _SCHEMES:
            page.emulate_media(color_scheme=scheme)
            page.goto(url)
            _settle(page)
            page.screenshot(path=folder / f"{name}-{size}-{scheme}.png")
    page.close()


def _settle(page: Page) -> None:
    page.locator("main h1").first.wait_for(state="attached")
    time.sleep(_SETTLE_S)


def take_all(shop: Shop, context: BrowserContext, folder: Path, seconds: float) -> None:
    """Every page, then the first one once more, without the source."""
    first = context.new_page()
    first.goto(shop.ui)  # from now on there is a history
    time.sleep(seconds)
    shop.break_a_connector()
    time.sleep(3)
    for name, path in _VIEWS.items():
        take(context, shop.ui + path, folder, name)
    first.bring_to_front()
    shop.source.kill9()
    time.sleep(_AFTER_KILL_S)
    take(context, shop.ui, folder, "broken")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parents[2] / "docs" / "img")
    parser.add_argument("--seconds", type=float, default=90.0, help="of history before the first picture (90)")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mm2-pictures-") as scratch:
        profile, place = Path(scratch) / "chromium", Path(scratch) / "shop"
        profile.mkdir()
        place.mkdir()
        with open_shop(place) as shop, chromium(profile) as context:
            context.set_default_timeout(PATIENCE_S * 1000)
            take_all(shop, context, options.folder, options.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
