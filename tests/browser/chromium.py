"""Debian's Chromium driven by Playwright, without network access beyond this machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import BrowserContext, sync_playwright

_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


def chromium_path() -> str:
    """The program. Raises RuntimeError with what to install."""
    found = shutil.which("chromium")
    if found is None:
        raise RuntimeError("Chromium is missing: tests/tools/debian-packages chromium")
    return found


@contextmanager
def chromium(profile: Path, *, width: int = 1280, height: int = 900, **options: object) -> Iterator[BrowserContext]:
    """A browser with an empty profile in that folder. ``options`` are Playwright's of launch_persistent_context."""
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile,
            executable_path=chromium_path(),
            headless=True,
            args=list(_FLAGS),
            viewport={"width": width, "height": height},
            timezone_id="Asia/Kathmandu",  # five hours and 45 minutes from UTC, in which pages show all times
            **options,  # type: ignore[arg-type]
        )
        try:
            yield context
        finally:
            context.close()
