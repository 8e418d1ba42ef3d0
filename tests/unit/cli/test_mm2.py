"""Common behaviour of all verbs of `mm2`: invalid numbers, a closed output pipe, Ctrl-C."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import NoReturn

import pytest
import yaml

from mm2.cli import mm2 as mm2_cli
from mm2.cli.common.flow import CommandError, pair_of
from mm2.cli.common.output import is_wide
from mm2.cli.mm2 import parser
from mm2.cli.show import version
from mm2.config.files.properties import load_properties
from mm2.config.mirrormaker import MirrorMakerConfig
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


def test_an_unexpected_error_is_not_taken_for_a_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, which Python has for it, is that of mm2 verify for different records."""

    def fails(_options: object) -> NoReturn:
        raise RuntimeError("a defect")

    monkeypatch.setattr(version, "run", fails)
    code, out, err = asked(capsys, "version")
    assert (code, out) == (2, "")
    assert err.endswith("RuntimeError: a defect\n")


@pytest.mark.parametrize("verb", ["failover", "failback", "promote"])
@pytest.mark.parametrize("error", [RuntimeError, BrokenPipeError])
def test_a_verb_that_may_have_changed_something_does_not_end_with_the_code_for_nothing_changed(
    verb: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report of mm2 failover is piped into head, for example."""
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    options = parser().parse_args([verb, str(SAMPLE), "A->B"])

    def fails(_options: object) -> NoReturn:
        raise error

    options.run = fails
    with Path(os.devnull).open("w") as out, redirect_stdout(out):
        assert mm2_cli._run(options) == 1


def test_a_mistyped_verb_is_reported_with_the_closest_one(capsys: pytest.CaptureFixture[str]) -> None:
    for typed, sentence in (
        ("statsu", "did you mean status?"),
        ("xyzzy", "choose from accept-source, client, completion"),
    ):
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


# -- the file argument and its default


def config_of(*arguments: object) -> tuple[Path, str | None]:
    found = parser().parse_args(["config", *map(str, arguments)])
    return found.config, found.flow


def test_the_file_may_be_omitted_where_the_environment_has_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.touch()
    monkeypatch.setenv("MM2_FILE", str(SAMPLE))
    assert config_of() == (SAMPLE, None)
    assert config_of("A->B") == (SAMPLE, "A->B")
    assert config_of("--key", "A->B", "A/B", "--given") == (SAMPLE, "A/B"), "an option may have the same value"
    assert config_of(other, "A->B") == (other, "A->B")
    assert config_of("absent.properties") == (Path("absent.properties"), None)
    heartbeats = parser().parse_args(["heartbeats", "B", "A"])
    assert (heartbeats.config, heartbeats.clusters) == (SAMPLE, ["B", "A"])
    throttle = parser().parse_args(["throttle", "A->B", "20MB", "--topic", "t"])
    assert (throttle.config, throttle.flow, throttle.limit) == (SAMPLE, "A->B", "20MB")
    assert parser().parse_args(["client", "remote-topics", "absent"]).config == Path("absent"), "its only argument"


def test_options_may_stand_between_the_file_and_an_optional_flow() -> None:
    assert config_of(SAMPLE, "--given", "A->B") == (SAMPLE, "A->B")


def test_a_wrong_default_file_is_reported_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("MM2_FILE", str(tmp_path / "absent"))
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["status", "A->B"])
    assert ended.value.code == 2
    assert (
        f"the environment variable MM2_FILE is '{tmp_path / 'absent'}', and there is no such file"
        in capsys.readouterr().err
    )
    monkeypatch.setenv("MM2_FILE", str(SAMPLE))
    code, out, err = asked(capsys, "config", "A->C")
    assert (code, out) == (2, "")
    assert err.endswith(f"({SAMPLE} is the value of MM2_FILE.)\n")
    assert "MM2_FILE" not in asked(capsys, "config", SAMPLE, "A->C")[2]


def test_a_mistyped_file_is_never_replaced_by_the_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MM2_FILE", str(SAMPLE))
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["failover", "prod", "A->B"])
    assert ended.value.code == 2
    assert "unrecognized arguments: A->B" in capsys.readouterr().err


def test_the_output_is_wide_only_where_a_table_has_more_columns(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in (["status", "f"], ["lag", "f"], ["topics", "f"], ["groups", "f", "A->B"]):
        assert is_wide(parser().parse_args([*verb, "--output", "wide"]))
    for arguments, sentence in (
        (["plan", "f", "--output", "wide"], "choose from table, json, yaml"),
        (["plan", "f", "--output", "jsn"], "did you mean json?"),
        (["plan", "f", "--json", "--output", "yaml"], "not allowed with argument --json"),
    ):
        with pytest.raises(SystemExit) as ended:
            parser().parse_args(arguments)
        assert ended.value.code == 2
        assert sentence in capsys.readouterr().err


def test_json_is_a_synonym_and_yaml_has_the_same_content(capsys: pytest.CaptureFixture[str]) -> None:
    _, text, _ = asked(capsys, "config", SAMPLE, "--json")
    assert text == asked(capsys, "config", SAMPLE, "--output", "json")[1]
    shown = asked(capsys, "config", SAMPLE, "-o", "yaml")[1]
    assert yaml.safe_load(shown) == json.loads(text)
    assert shown.startswith("file: ")
