"""Pictures of every page, light and dark, on a desktop and on a phone, of flows that are made up (bench/dashboard.py).

    python -m tests.browser.pictures [--folder docs/img] [--seconds 150]

Made up, so that they are the same on every machine but for the clock, and show what one hopes never to see. That a real process
fills the same pages is what test_dashboard.py is for.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal

from playwright.sync_api import BrowserContext

from bench.dashboard import MadeUp, served
from tests.browser.chromium import chromium

VIEWS = {
    "flows": "",
    "partitions": "partitions?flow=A->B",
    "groups": "groups",
    "gaps": "gaps",
    "connectors": "connectors",
    "workers": "workers",
    "spark": "spark",
    "configuration": "configuration?flow=A->B",
}
_SIZES = {"desktop": (1280, 860), "phone": (390, 780)}
_SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
_PARTITIONS, _GROUPS = 400, 60
_SETTLE_S = 2.5
_PATIENCE_MS = 300_000


def take(context: BrowserContext, url: str, folder: Path, name: str) -> None:
    """One page in all four ways."""
    page = context.new_page()
    for size, (width, height) in _SIZES.items():
        page.set_viewport_size({"width": width, "height": height})
        for scheme in _SCHEMES:
            page.emulate_media(color_scheme=scheme)
            page.goto(url)
            page.locator("main h1").first.wait_for(state="attached")
            time.sleep(_SETTLE_S)
            page.screenshot(path=folder / f"{name}-{size}-{scheme}.png")
    page.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parents[2] / "docs" / "img")
    parser.add_argument("--seconds", type=float, default=150.0, help="of history before the first picture (150)")
    parser.add_argument("--only", nargs="+", choices=VIEWS, default=list(VIEWS), help="these pages (all)")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="mm2-pictures-", ignore_cleanup_errors=True) as profile,
        served(MadeUp(_PARTITIONS, _GROUPS)) as url,
        chromium(Path(profile)) as context,
    ):
        context.set_default_timeout(_PATIENCE_MS)
        first = context.new_page()
        first.goto(url)  # from now on there is a history
        time.sleep(options.seconds)
        for name in options.only:
            take(context, url + VIEWS[name], options.folder, name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
