"""docs/reference/systems.md lists every system once, with its module and its test."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ROWS = [
    [cell.strip() for cell in line.strip("|\n ").split("|")]
    for line in (ROOT / "docs" / "reference" / "systems.md").read_text().splitlines()
    if line.startswith("| A")
]


@cache
def functions(file: Path) -> frozenset[str]:
    return frozenset(node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef))


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_all_fifty_one_rows_are_listed_in_order() -> None:
    assert [row[0] for row in ROWS] == [f"A{number}" for number in range(1, 52)]


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_modules_and_tests_exist(row: list[str]) -> None:
    number, _, modules, tests = row
    assert quoted(modules), f"{number} has no module"
    for module in quoted(modules):
        assert (ROOT / module).exists(), f"{number}: there is no {module}"
    assert quoted(tests), f"{number} has no test"
    for test in quoted(tests):
        file, _, name = test.partition("::")
        assert not file.startswith("tests/unit"), f"{number}: {test} does not look from outside"
        assert (ROOT / file).exists(), f"{number}: there is no {file}"
        assert name in functions(ROOT / file), f"{number}: {file} has no {name}"
    names = [test.partition("::")[2] for test in quoted(tests)]
    assert any(f"a{int(number[1:]):02}_" in name for name in names), f"{number} is in the name of none of its tests"
