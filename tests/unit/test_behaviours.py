"""docs/BEHAVIOURS.md lists all 36, and the tests that it names exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_behaviour_is_listed_with_tests_that_are_there() -> None:
    text = (ROOT / "docs" / "BEHAVIOURS.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (\d+) \|", text, re.MULTILINE) == [str(number) for number in range(1, 37)]
    named = re.findall(r"`(?:(tests/\w+)/)?(test_\w+\.py)::(test_\w+)`", text)
    assert len(named) > 36
    missing = [
        f"{file}::{test}"
        for folder, file, test in named
        if f"\ndef {test}("
        not in (ROOT / (folder or "tests/integration/test_mm2_behaviours") / file).read_text("utf-8")
    ]
    assert missing == []
