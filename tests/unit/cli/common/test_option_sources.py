"""Where options come from: the command line, the environment, the user's file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mm2.cli import connect_distributed, connect_mirror_maker, connect_process, connect_standalone, mm2
from mm2.cli.common.option_sources import KEYS, SourcedParser, key_of, user_file, variable_of
from mm2.cli.reference import verbs
from tests.integration.asking import asked

SAMPLE = Path(__file__).parents[4] / "conf" / "connect-mirror-maker.properties"
PARSERS = [
    *(verb for _, verb, _ in verbs()),
    mm2.parser(),
    connect_mirror_maker.parser(),
    connect_process.parser(connect_distributed.PROGRAM),
    connect_process.parser(connect_standalone.PROGRAM),
]
ACTIONS = [action for parser in PARSERS for action in parser._actions if action.option_strings]

#: Options that confirm, or select what a command acts on, what it does or writes.
COMMAND_LINE_ONLY = {
    *("--yes", "--dry-run", "--force", "--divergent", "--leave-behind", "--create-acls", "--wait"),
    *("--keep-positions", "--from-start", "--from-topic", "--from-group", "--from-connector", "--reset", "--reason"),
    *("--topic", "--partition", "--group", "--groups", "--connector", "--task", "--cluster", "--source", "--pid"),
    *("--from", "--to", "--offsets", "--where", "--older-than", "--key"),
    *("--watch", "--continuous", "--record", "--html", "--csv", "--exact"),
    "--json",  # MM2_OUTPUT
    *("--help", "--version"),
}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No variables, and a user's file, which does not exist yet."""
    for name in [name for name in os.environ if name.startswith("MM2_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "mm2.conf"


def lag(*arguments: str) -> Any:
    return mm2.parser().parse_args(["lag", str(SAMPLE), *arguments])


def refused(parser: Any, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[Any, str]:
    """The exit code, and the last line without the program."""
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(arguments)
    return ended.value.code, capsys.readouterr().err.splitlines()[-1].partition(": ")[2]


# -- what is declared


def test_each_option_is_settable_or_listed_as_taken_from_the_command_line_only() -> None:
    names = {name for action in ACTIONS for name in action.option_strings if name.startswith("--")}
    assert COMMAND_LINE_ONLY.isdisjoint(KEYS)
    assert names == COMMAND_LINE_ONLY | KEYS.keys() - {"--file"}


def test_help_shows_the_sources_of_exactly_the_settable_options() -> None:
    formatter = SourcedParser()._get_formatter()
    for action in ACTIONS:
        shown, key = formatter._expand_help(action), key_of(action)
        assert ("[env: " in shown) == (key is not None)
        assert key is None or shown.endswith(f" [env: {variable_of(key)}, file: {key}]")


def test_help_describes_the_three_sources_of_a_program_that_has_options() -> None:
    for parser in PARSERS:
        has_options = any(key_of(action) for action in parser._actions)
        assert ("overrides the environment" in " ".join(parser.format_help().split())) == has_options, parser.prog


def test_known_variables_keep_their_names() -> None:
    assert {"MM2_FILE", "MM2_CLUSTERS", "MM2_LOG_FORMAT", "MM2_LOG_LEVEL", "MM2_DEMO_KEEP", "MM2_DEMO_RATE"} <= set(
        map(variable_of, KEYS.values())
    )
    assert not {"MM2_REST_PASSWORD", "MM2_REST_TOKEN", "MM2_REST_KEY_PASSWORD"} & set(map(variable_of, KEYS.values()))


# -- precedence


def test_the_command_line_overrides_the_environment_which_overrides_the_file(
    monkeypatch: pytest.MonkeyPatch, environment: Path
) -> None:
    assert lag().timeout == 15
    environment.write_text("timeout = 20\nlag-top = 5\n")
    assert (lag().timeout, lag().top) == (20, 5)
    monkeypatch.setenv("MM2_TIMEOUT", "30")
    assert (lag().timeout, lag().top) == (30, 5)
    assert lag("--timeout", "40").timeout == lag("--timeo=40").timeout == 40
    monkeypatch.setenv("MM2_TIMEOUT", "")
    assert lag().timeout == 20, "an empty variable is not set"
    environment.write_text("timeout =\n")
    assert lag().timeout == 15, "nor is an empty value"


@pytest.mark.parametrize(
    "given", [["--json"], ["--js"], ["--output", "json"], ["--out=json"], ["-o", "json"], ["-ojson"]]
)
def test_an_output_format_of_the_command_line_overrides_the_variable_however_it_is_written(
    given: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MM2_OUTPUT", "yaml")
    assert lag().output == "yaml"
    assert lag(*given).output == "json"


def test_flags_are_true_or_false(monkeypatch: pytest.MonkeyPatch, environment: Path) -> None:
    environment.write_text("plan-rights = true\n")
    assert mm2.parser().parse_args(["plan", str(SAMPLE)]).rights
    monkeypatch.setenv("MM2_PLAN_RIGHTS", "false")
    assert not mm2.parser().parse_args(["plan", str(SAMPLE)]).rights


def test_the_file_has_the_default_of_the_properties_file(
    monkeypatch: pytest.MonkeyPatch, environment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.write_text(f"file = {SAMPLE}\n")
    assert mm2.parser().parse_args(["status", "A->B"]).config == SAMPLE
    code, _, err = asked(capsys, "config", "A->C")
    assert code == 2
    assert err.endswith(f"({SAMPLE} is the value of file in {environment}.)\n")
    monkeypatch.setenv("MM2_FILE", str(environment))
    assert mm2.parser().parse_args(["status", "A->B"]).config == environment
    assert mm2.parser().parse_args(["status", str(SAMPLE), "A->B"]).config == SAMPLE
    monkeypatch.delenv("MM2_FILE")
    environment.write_text("file = /absent.properties\n")
    assert refused(mm2.parser(), capsys, "status", "A->B") == (
        2,
        f"file in {environment} is '/absent.properties', and there is no such file",
    )


def test_a_tilde_in_the_file_is_the_home(monkeypatch: pytest.MonkeyPatch, environment: Path) -> None:
    monkeypatch.setenv("HOME", str(SAMPLE.parent))
    environment.write_text(f"file = ~/{SAMPLE.name}\n")
    assert mm2.parser().parse_args(["status"]).config == SAMPLE


@pytest.mark.parametrize(
    "made",
    [
        connect_mirror_maker.parser,
        lambda: connect_process.parser(connect_distributed.PROGRAM),
        lambda: connect_process.parser(connect_standalone.PROGRAM),
    ],
)
def test_other_programs_read_the_same_file_and_ignore_keys_of_mm2(
    made: Any, monkeypatch: pytest.MonkeyPatch, environment: Path
) -> None:
    environment.write_text("log-level = debug\nlog-format = json\ntimeout = 3\nclusters = [A, B]\nfile = absent\n")
    options = made().parse_args(["f"])
    assert (options.log_level, options.log_format) == ("debug", "json")
    assert getattr(options, "clusters", ["A", "B"]) == ["A", "B"]
    monkeypatch.setenv("MM2_LOG_LEVEL", "error")
    assert made().parse_args(["f"]).log_level == "error"
    assert made().parse_args(["f", "--log-level", "info"]).log_level == "info"


# -- options taken from the command line only


@pytest.mark.parametrize(
    ("verb", "names"),
    [
        (["failover"], ["yes", "dry_run", "leave_behind", "topic", "group", "wait"]),
        (["promote"], ["yes", "dry_run", "leave_behind", "create_acls", "topic"]),
        (["failback"], ["divergent", "dry_run", "topic"]),
        (["offsets", "delete"], ["force", "dry_run", "connector", "where"]),
        (["stop"], ["connector"]),
    ],
)
def test_no_variable_confirms_or_selects(verb: list[str], names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    command = [*verb, str(SAMPLE), "A->B"]
    expected = mm2.parser().parse_args(command)
    values = {"divergent": "truncate", "topic": "t", "group": "g", "connector": "source", "wait": "1", "where": "a=b"}
    for name in names:
        assert hasattr(expected, name), f"{verb} has no option of that name"
        for prefix in ("MM2_", f"MM2_{verb[-1].upper()}_"):
            monkeypatch.setenv(prefix + name.upper(), values.get(name, "true"))
    found = mm2.parser().parse_args(command)
    assert {name: getattr(found, name) for name in names} == {name: getattr(expected, name) for name in names}


@pytest.mark.parametrize(
    "key", ["yes", "dry-run", "--yes", "force", "divergent", "topic", "rest-password", "rest-token"]
)
def test_no_file_confirms_selects_or_has_a_secret(
    key: str, environment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.write_text(f"{key} = true\n")
    code, message = refused(mm2.parser(), capsys, "failover", str(SAMPLE), "A->B")
    assert code == 2
    assert message.startswith(f"{environment} has the unknown key {key}")


# -- errors


@pytest.mark.parametrize(
    ("made", "code"),
    [(connect_mirror_maker.parser, 255), (lambda: connect_process.parser(connect_standalone.PROGRAM), 1)],
)
def test_an_unknown_key_is_a_usage_error_of_each_program(
    made: Any, code: int, environment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.write_text("# mine\nlog-levle = debug\n")
    assert refused(made(), capsys, "f") == (
        code,
        f"{environment} has the unknown key log-levle; did you mean log-level?",
    )


def test_a_wrong_value_is_reported_with_its_variable_or_file(
    monkeypatch: pytest.MonkeyPatch, environment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("lag", str(SAMPLE))
    wrong = "argument --timeout: 'soon' is not a number of seconds"
    environment.write_text("timeout = soon\n")
    assert refused(mm2.parser(), capsys, *command) == (2, f"{wrong} (the value of timeout in {environment})")
    monkeypatch.setenv("MM2_TIMEOUT", "soon")
    assert refused(mm2.parser(), capsys, *command) == (2, f"{wrong} (the value of MM2_TIMEOUT)")
    assert refused(mm2.parser(), capsys, *command, "--timeout", "soon") == (2, wrong)
    monkeypatch.setenv("MM2_TIMEOUT", "1")
    monkeypatch.setenv("MM2_OUTPUT", "jsn")
    assert refused(mm2.parser(), capsys, *command)[1].endswith("did you mean json? (the value of MM2_OUTPUT)")


def test_a_wrong_flag_or_list_is_reported_with_its_place(
    monkeypatch: pytest.MonkeyPatch, environment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.write_text("plan-rights = perhaps\n")
    assert f"for plan-rights in {environment}: 'perhaps'" in refused(mm2.parser(), capsys, "plan", str(SAMPLE))[1]
    environment.write_text("timeout = [1, 2]\n")
    assert f"timeout in {environment} can't be set to a list" in refused(mm2.parser(), capsys, "lag", str(SAMPLE))[1]
    monkeypatch.setenv("MM2_PLAN_RIGHTS", "perhaps")
    assert "for MM2_PLAN_RIGHTS: 'perhaps'" in refused(mm2.parser(), capsys, "plan", str(SAMPLE))[1]


def test_a_value_that_the_command_rejects_is_reported_with_its_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MM2_LAG_THRESHOLD", "many")
    code, _, err = asked(capsys, "lag", SAMPLE)
    assert code == 2
    assert err.endswith("(many is the value of MM2_LAG_THRESHOLD.)\n")
    assert "is the value of" not in asked(capsys, "lag", SAMPLE, "--threshold", "many")[2]


def test_unknown_clusters_are_reported_with_their_variable() -> None:
    environment = {**os.environ, "MM2_CLUSTERS": "Z"}
    command = [sys.executable, "-P", "-m", "mm2.cli.connect_mirror_maker", str(SAMPLE)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "(Z is the value of MM2_CLUSTERS.)" in ended.stderr


@pytest.mark.parametrize("content", [b"\xff\xfe = 1\n", None], ids=["not UTF-8", "a folder"])
def test_an_unreadable_file_is_an_error(
    content: bytes | None, environment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.mkdir() if content is None else environment.write_bytes(content)
    code, message = refused(mm2.parser(), capsys, "lag", str(SAMPLE))
    assert code == 2
    assert message.startswith(f"{environment} cannot be read: ")


# -- the user's file


def test_the_file_is_that_of_its_variable_else_of_xdg_else_of_the_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other [1].conf"
    other.write_text("timeout = 7\n")
    (tmp_path / "mm2.conf").write_text("timeout = 8\n")
    assert lag().timeout == 8
    monkeypatch.setenv("MM2_CONF", str(other))
    assert lag().timeout == 7
    monkeypatch.setenv("MM2_CONF", str(tmp_path / "absent"))
    assert refused(mm2.parser(), capsys, "lag", str(SAMPLE)) == (
        2,
        f"the environment variable MM2_CONF is '{tmp_path / 'absent'}', and there is no such file",
    )
    monkeypatch.setenv("MM2_CONF", os.devnull)
    assert lag().timeout == 15, "no file"
    monkeypatch.setenv("MM2_CONF", "")
    assert lag().timeout == 8
    monkeypatch.setenv("HOME", str(tmp_path))
    for base in ("", "relative"):
        monkeypatch.setenv("XDG_CONFIG_HOME", base)
        assert user_file() == tmp_path / ".config" / "mm2.conf"


def test_help_and_commands_without_options_do_not_read_the_file(
    environment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.write_text("no-such-key = 1\n")
    with pytest.raises(SystemExit) as ended:
        mm2.parser().parse_args(["lag", "--help"])
    assert ended.value.code == 0
    assert "--threshold" in capsys.readouterr().out
    assert mm2.parser().parse_args(["completion", "bash"]).shell == "bash"
