"""The table of tests: for each key of Kafka that is honoured, at least in part, the test that observes its effect.

A test in ``key_tests.tsv`` fails if its key is ignored: it compares an effect with that of the default. The checks of
values, and of what is read from a file, are not enough.
"""

from __future__ import annotations

import ast
import csv
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
TABLE: Final = Path(__file__).with_name("key_tests.tsv")


def key_tests() -> list[tuple[tuple[str, str], str]]:
    """Place and key as in the table of effects, and the test as ``file::function``, in the order of the file."""
    with TABLE.open(encoding="utf-8", newline="") as opened:
        rows = list(csv.DictReader(opened, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [((row["place"], row["key"]), row["test"]) for row in rows]


def keys_of(function: str) -> set[tuple[str, str]]:
    """The keys whose test is this function, which has a case for each of them."""
    return {key for key, test in key_tests() if test.endswith(f"::{function}")}


def exists(test: str) -> bool:
    """Whether there is a function of that name in the file, which pytest runs."""
    file, _, name = test.partition("::")
    return name.startswith("test_") and name in _functions(ROOT / file)


@cache
def _functions(file: Path) -> frozenset[str]:
    if not file.is_file():
        return frozenset()
    module = ast.parse(file.read_text(encoding="utf-8"))
    return frozenset(node.name for node in module.body if isinstance(node, ast.FunctionDef))
