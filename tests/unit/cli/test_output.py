"""Documents as JSON and YAML."""

from __future__ import annotations

import argparse
import io
import json
import random
from typing import Any

import pytest
import yaml

from mm2.cli.output import OutputFormat, write_document, yaml_text

#: Strings that a reader of YAML could take for something else, and characters that it would reject.
TEXTS = [
    *(
        "",
        " ",
        "-",
        "- x",
        "a: b",
        "a #b",
        "yes",
        "NO",
        "null",
        "~",
        "1",
        "1e3",
        "0x1f",
        "2026-01-01",
        "&a",
        "*a",
        "!t",
    ),
    *(
        "{}",
        "[",
        "|",
        ">",
        "%",
        "@",
        "`",
        "?",
        ",",
        "'",
        '"',
        "\\",
        "a\nb",
        "\t",
        "A->B",
        "orders.a_b-c",
        "é",
        "日本",
        "\x85",
    ),
    *("\u2028", "\x1b[31m", "\x7f", "\ufeff", "\U000e0001", "\U0001f600", "\x00", "<<", "=", "_", "a/b", "."),
]


def made_up(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(8 if depth < 4 else 5)
    if kind < 2:
        return chance.choice(TEXTS)
    if kind < 5:
        return chance.choice([None, True, False, 0, -7, 10**18, 1.5, 1e-7, 2e22, -0.0])
    if kind < 6:
        return [made_up(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {chance.choice(TEXTS): made_up(chance, depth + 1) for _ in range(chance.randrange(4))}


def test_yaml_has_the_same_content_as_json() -> None:
    chance = random.Random(26)
    for _ in range(500):
        value = made_up(chance)
        assert yaml.safe_load(yaml_text(value)) == value


def test_yaml_is_in_block_style() -> None:
    document = {"flow": "A->B", "rows": [{"topic": "orders", "lag": None, "states": {"RUNNING": 2}}, [1, [2]], [], {}]}
    assert yaml_text(document).splitlines() == [
        "flow: A->B",
        "rows:",
        "  - topic: orders",
        "    lag: null",
        "    states:",
        "      RUNNING: 2",
        "  - - 1",
        "    - - 2",
        "  - []",
        "  - {}",
    ]


@pytest.mark.parametrize("number", [float("inf"), float("-inf")])
def test_infinite_numbers_are_those_of_yaml(number: float) -> None:
    assert yaml.safe_load(yaml_text([number])) == [number]


def test_repeated_documents_are_separated() -> None:
    out = io.StringIO()
    for count in range(2):
        write_document(argparse.Namespace(output=OutputFormat.YAML), {"n": count}, out, is_one_of_many=True)
    assert list(yaml.safe_load_all(out.getvalue())) == [{"n": 0}, {"n": 1}]


def test_sets_are_sorted_lists() -> None:
    out = io.StringIO()
    write_document(argparse.Namespace(output=OutputFormat.JSON), {"names": {"b", "a"}}, out)
    assert json.loads(out.getvalue()) == {"names": ["a", "b"]}
