"""docs/reference/commands.md matches the parsers, and the help texts are complete."""

from __future__ import annotations

import functools
import shlex
from pathlib import Path
from typing import Any

import pytest

from mm2.cli.common.verbs import examples, examples_of
from mm2.cli.mm2 import parser
from mm2.cli.reference import reference
from mm2.cli.reference import verbs as all_verbs

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "commands.md"
LEAVES = [(name, verb) for name, verb, _ in all_verbs() if verb.get_default("run") is not None]


@functools.cache
def the_parser() -> Any:
    return parser()


def test_the_page_is_generated_from_the_parsers() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "python -m mm2.cli.reference > docs/reference/commands.md"


@pytest.mark.parametrize(("name", "verb"), LEAVES, ids=[name for name, _ in LEAVES])
def test_every_verb_has_a_description_exit_codes_and_a_usage(name: str, verb: Any) -> None:
    output = " ".join(verb.description.split())
    assert "xit code" in output
    shown = examples_of(verb.epilog)
    assert shown
    assert f"{name} " in verb.format_help(), "examples are not wrapped"
    for _, command in shown:
        words = shlex.split(command.removeprefix('eval "$(').removesuffix(')"').split("    #")[0])
        ours = words[1 : next((at for at, word in enumerate(words) if word in {"|", ">", ">>", "<"}), len(words))]
        assert words[0] == "mm2"
        assert the_parser().parse_args(ours).run is not None


def test_every_argument_has_a_description() -> None:
    for name, verb in LEAVES:
        for action in verb._actions:
            assert action.help, f"{name}: {action.dest}"


def test_a_verb_without_arguments_is_rejected_with_its_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parser().parse_args([])
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("usage: mm2 ")


def test_examples_parse() -> None:
    rows = [("why", "mm2 do 'A->B'"), ("because", "mm2 be | jq .")]
    assert examples_of(examples(*rows)) == rows
    assert examples_of(None) == []
