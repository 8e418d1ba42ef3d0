"""`mm2 config` for valid and invalid files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.asking import asked

FILE = """\
clusters = A, B
A.bootstrap.servers = a:1
B.bootstrap.servers = b:1
A->B.enabled = true
A->B.topics = orders
topics = everything
B.sasl.jaas.config = the secret
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "mm2.properties"
    file.write_text(FILE)
    return file


def test_a_part_of_a_flow_is_listed_with_the_origin_of_each_value(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = asked(capsys, "config", file, "A->B", "--connector", "source", "--given")
    assert (code, err) == (0, "")
    assert [" ".join(line.split()) for line in out.splitlines()] == [
        "A->B MirrorSourceConnector",
        "KEY VALUE FROM",
        "enabled true A->B.enabled (line 4)",
        "topics orders A->B.topics (line 5); overrides topics (line 6)",
        "source.cluster.bootstrap.servers a:1 A.bootstrap.servers (line 2)",
        "target.cluster.bootstrap.servers b:1 B.bootstrap.servers (line 3)",
        "target.cluster.sasl.jaas.config [hidden] B.sasl.jaas.config (line 7)",
    ]
    code, out, _ = asked(
        capsys, "config", file, "A -> B", "--connector", "MirrorSourceConnector", "--key", "offset.lag"
    )
    assert (code, out.split()) == (
        0,
        ["A->B", "MirrorSourceConnector", "KEY", "VALUE", "FROM", "offset.lag.max", "100", "default"],
    )


def test_json_contains_all_parts_of_all_flows(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = asked(capsys, "config", file, "--json")
    document = json.loads(out)
    assert (code, list(document["flows"]), document["unread"]) == (0, ["A->B", "B->A"], [])
    assert list(document["flows"]["A->B"]) == [
        "worker",
        "MirrorSourceConnector",
        "MirrorHeartbeatConnector",
        "MirrorCheckpointConnector",
    ]
    (topics,) = [one for one in document["flows"]["A->B"]["MirrorSourceConnector"] if one["key"] == "topics"]
    assert topics == {
        "key": "topics",
        "value": "orders",
        "level": "flow",
        "origin": "A->B.topics",
        "line": 5,
        "overrides": ["topics"],
    }
    (group,) = [one for one in document["flows"]["A->B"]["worker"] if one["key"] == "group.id"]
    assert (group["value"], group["level"], group["origin"]) == ("A-mm2", "derived", "")
    assert document["process"][0]["key"] == "clusters"
    assert "the secret" not in out


def test_unknown_keys_are_listed_and_change_the_exit_code(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(f"{FILE}topics.exlude = x\n")
    code, _, err = asked(capsys, "config", file)
    assert (code, err) == (
        1,
        f"mm2: {file}, line 8: unknown key topics.exlude. Did you mean topics.exclude?\n",
    )
    code, out, _ = asked(capsys, "config", file, "--json")
    assert (code, json.loads(out)["unread"]) == (1, [{"key": "topics.exlude", "line": 8, "nearest": "topics.exclude"}])


def test_an_unknown_key_forges_no_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(f"{FILE}x\\nforged.line\\u001b = x\n")
    _, _, err = asked(capsys, "config", file)
    assert err == f"mm2: {file}, line 8: unknown key x\\u000aforged.line\\u001b.\n"


def test_keys_without_effect_are_listed_with_the_reason(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(f"{FILE}B.producer.linger.ms = 5\n")
    code, _, err = asked(capsys, "config", file)
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith("mm2: Configuration B.producer.linger.ms has no effect: ")
    code, out, _ = asked(capsys, "config", file, "--json")
    assert (code, json.loads(out)["ineffective"]) == (0, [err.removeprefix("mm2: ").rstrip()])


def test_a_refused_key_is_reported(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(f"{FILE}A.consumer.interceptor.classes = com.example.Interceptor\n")
    code, out, err = asked(capsys, "config", file)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "A.consumer.interceptor.classes" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["A->C"], "has no flow A->C; its flows are A->B, B->A."),
        (["--connector", "sink"], "There is no connector sink; write one of worker, source, heartbeat, checkpoint."),
    ],
)
def test_a_missing_part_is_reported(
    file: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    code, out, err = asked(capsys, "config", file, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert sentence in err


def test_an_unreadable_file_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "nowhere.properties"
    assert asked(capsys, "config", file) == (2, "", f"mm2: Cannot read {file}: No such file or directory.\n")
    file.write_text("clusters = A, B\nx = \\u00g1\n")
    code, out, err = asked(capsys, "config", file)
    assert (code, out) == (2, "")
    assert f"{file}, line 2" in err
