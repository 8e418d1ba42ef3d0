"""Common behaviour of all verbs of `mm2`: invalid numbers, a closed output pipe, Ctrl-C."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from mm2.cli import version
from mm2.cli.flow import CommandError, pair_of
from mm2.cli.mm2 import parser
from mm2.config.mirrormaker import MirrorMakerConfig
from mm2.config.properties import load_properties
from tests.integration.asking import asked

SAMPLE = Path(__file__).parents[3] / "conf" / "connect-mirror-maker.properties"
CONFIG = MirrorMakerConfig(load_properties(SAMPLE))


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "soon"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("status", "f", "--watch"),
        ("lag", "f", "--timeout"),
        ("pause", "f", "A->B", "--timeout"),
        ("heartbeats", "f", "--max-age"),
        ("verify", "f", "A->B", "--every"),
        ("verify", "f", "A->B", "--patience"),
        ("client", "translate-offsets", "f", "A", "g", "--timeout"),
        ("demo", "--seconds"),
    ],
    ids=lambda arguments: "-".join((arguments[0], arguments[-1])),
)
def test_an_invalid_number_of_seconds_is_rejected(
    arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args([*arguments, text])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"argument {arguments[-1]}: {text!r} is not a number of seconds\n")


def test_a_closed_output_pipe_prints_no_stack_trace() -> None:
    command = [sys.executable, "-P", "-m", "mm2.cli.mm2", "config", str(SAMPLE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert (process.stderr.read(), process.wait(60)) == ("", 2)


def test_an_interrupted_verb_ends_with_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_options: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(version, "run", interrupted)
    assert asked(capsys, "version") == (130, "", "mm2: interrupted\n")


def test_a_mistyped_verb_is_reported_with_the_closest_one(capsys: pytest.CaptureFixture[str]) -> None:
    for typed, sentence in (("statsu", "did you mean status?"), ("xyzzy", "choose from client, completion, config")):
        with pytest.raises(SystemExit) as ended:
            parser().parse_args([typed])
        assert ended.value.code == 2
        assert f"invalid choice: '{typed}'; {sentence}" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["A->B", "A -> B", "A/B", "A:B"])
def test_a_flow_has_several_spellings(name: str) -> None:
    assert str(pair_of(CONFIG, SAMPLE, name)) == "A->B"


def test_an_arrow_that_the_shell_has_taken_for_a_redirection_is_recognized() -> None:
    with pytest.raises(CommandError, match="Delete that file, and write the flow in quotes, 'A->B', or with a slash"):
        pair_of(CONFIG, SAMPLE, "A-")
    with pytest.raises(CommandError, match=r"has no flow C->B; its flows are A->B, B->A\."):
        pair_of(CONFIG, SAMPLE, "C->B")
    with pytest.raises(CommandError, match="has no flow C-; its flows are"):
        pair_of(CONFIG, SAMPLE, "C-")


def test_a_key_that_no_setting_has_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = asked(capsys, "config", SAMPLE, "--key", "replication.factr")
    assert (code, out, err) == (2, "", "mm2: No setting has a key that contains replication.factr.\n")
