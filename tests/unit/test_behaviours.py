"""docs/reference/behaviours.md lists all 36 behaviours, and its tests exist; docs/reference/compatibility.md covers all weaknesses of MirrorMaker 2.

Each attacker in docs/how-to/security.md has a test.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_behaviour_lists_existing_tests_and_marks_slow_ones() -> None:
    text = (ROOT / "docs" / "reference" / "behaviours.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (\d+) \|", text, re.MULTILINE) == [str(number) for number in range(1, 37)]
    named = re.findall(r"`(?:(tests/\w+)/)?(test_\w+\.py)::(test_\w+)`( \(slow\))?", text)
    assert len(named) > 36
    wrong = []
    for folder, file, test, slow in named:
        source = (ROOT / (folder or "tests/integration/test_mm2_behaviours") / file).read_text("utf-8")
        found = re.search(rf"^((?:@.*\n)*)def {test}\(", source, re.MULTILINE)
        is_slow = found and (
            "mark.slow\n" in found[1] or re.search(r"^pytestmark = .*mark\.slow", source, re.MULTILINE)
        )
        if found is None or bool(is_slow) != bool(slow):
            wrong.append(f"{file}::{test}")
    assert wrong == []


def test_each_weakness_has_one_decision() -> None:
    text = (ROOT / "docs" / "reference" / "compatibility.md").read_text(encoding="utf-8")
    assert sorted(map(int, re.findall(r"^\| (\d\d?) \|", text, re.MULTILINE))) == list(range(1, 33))


def test_each_attacker_has_existing_tests() -> None:
    text = (ROOT / "docs" / "how-to" / "security.md").read_text(encoding="utf-8")
    section = text.partition("### Attackers and tests\n")[2].partition("\n## ")[0]
    rows = [row.split(" | ") for row in section.splitlines() if row.startswith("| ")][2:]
    assert len(rows) > 20
    for attacker, _, _, tests in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", tests)
        assert named, attacker
        for file, test in named:
            source = (ROOT / file).read_text(encoding="utf-8")
            assert re.search(rf"^def {test}\(", source, re.MULTILINE), f"{file}::{test}"
