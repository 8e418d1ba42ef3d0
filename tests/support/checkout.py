"""The programs of bin/ for tests, without bin/setup: they run in the environment of this checkout and never change it.

`.venv` may be a link to the environment of another checkout. bin/setup would install this checkout into it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]


def checkout(folder: Path) -> Path:
    """Fill a folder with the programs and with links to everything else that they need; returns it."""
    folder.mkdir(exist_ok=True)
    shutil.copytree(ROOT / "bin", folder / "bin")
    (folder / "bin" / "setup").write_text("#!/bin/sh\n")
    for name in ("docs", "mm2", ".venv"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def environment(**more: str) -> dict[str, str]:
    """The variables with which these programs run the code of this checkout."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}
