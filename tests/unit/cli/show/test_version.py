"""`mm2 version` and `mm2 completion`, which need no cluster."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mm2
from mm2.cli.common.flow import flows_of_file
from tests.integration.asking import asked

ROOT = Path(mm2.__file__).parents[1]


def test_version_lists_its_dependencies(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = asked(capsys, "version", "--json")
    document = json.loads(out)
    assert (code, document["mm2"], document["kafka"]) == (0, mm2.__version__, "4.3.0")
    assert document["python"] == ".".join(map(str, sys.version_info[:3]))
    assert document["spark"] == document["dependencies"]["pyspark"]
    assert None not in document["dependencies"].values()
    assert "pytest" not in document["dependencies"], "what tests need is not needed"
    code, out, _ = asked(capsys, "version")
    assert (code, out.startswith(f"mm2 {mm2.__version__}, compatible with Kafka 4.3.0; Spark ")) == (0, True)
    assert f"  pyspark {document['spark']}\n" in out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_parse(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = asked(capsys, "completion", shell)
    assert (code, err) == (0, "")
    assert "mm2" in out
    found = shutil.which(shell)
    if found is not None:
        subprocess.run([found, "-n"], input=out, text=True, check=True, timeout=30)


def test_completion_offers_the_flows_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text("clusters = A, B\nA->B.enabled = true\n")

    class Parsed:
        config = file

    assert flows_of_file(Parsed()) == ["A->B", "B->A"]
    Parsed.config = tmp_path / "nowhere"
    assert flows_of_file(Parsed()) == []


def test_completion_runs_before_anything_else(tmp_path: Path) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text("clusters = A, B\nA->B.enabled = true\n")
    answers = tmp_path / "answers"

    def offered(line: str) -> set[str]:
        variables = {
            "_ARGCOMPLETE": "1",
            "_ARGCOMPLETE_IFS": "\n",
            "_ARGCOMPLETE_STDOUT_FILENAME": str(answers),
            "COMP_LINE": line,
            "COMP_POINT": str(len(line)),
            "PYTHONPATH": str(ROOT),
        }
        subprocess.run([sys.executable, "-P", "-m", "mm2.cli.mm2"], env=variables, check=True, timeout=100)
        return set(answers.read_text().split())

    assert {"status", "plan", "pause"} <= offered("mm2 ")
    assert r"A-\>B" in offered(f"mm2 status {file} ")
