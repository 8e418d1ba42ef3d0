"""Git's hooks and `bin/test` run the same quick checks, and names of classes are unique."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
TOOLS = ("ruff", "mypy", "lint-imports")


def quick_checks() -> set[str]:
    """Commands of bin/test that check without running tests."""
    lines = (ROOT / "bin" / "test").read_text().splitlines()
    commands = (line.partition(" #")[0].partition(" ||")[0].removesuffix(" &") for line in lines)
    return {command for command in commands if command.partition(" ")[0] in TOOLS}


def test_the_hooks_run_the_quick_checks_of_bin_test() -> None:
    repos = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    hooks = [hook for repo in repos for hook in repo["hooks"]]
    assert {hook["entry"].removeprefix(".venv/bin/") for hook in hooks} == quick_checks()
    assert not [hook["id"] for hook in hooks if hook["pass_filenames"]], "a check covers all files, as in bin/test"


def test_no_two_classes_have_the_same_name() -> None:
    """A name in a log or a traceback identifies its class."""
    texts = (path.read_text() for path in (ROOT / "mm2").rglob("*.py"))
    names = Counter(name for text in texts for name in re.findall(r"^ *class (\w+)", text, re.MULTILINE))
    assert not [name for name, count in names.items() if count > 1]
