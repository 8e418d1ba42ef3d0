"""Output of `mm2 groups`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from mm2.cli.common.flow import ConfiguredFlow
from mm2.cli.show import groups
from mm2.copy.progress.ledger import Ledger
from mm2.observer.views import FlowState, FlowView, GroupView, Risk, Snapshot

GROUP = GroupView("billing", "t", 0, "A.t", 5, 5, 5)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mm2.properties"
    path.write_text("clusters = A, B\nA.bootstrap.servers = a:1\nB.bootstrap.servers = b:1\nA->B.enabled = true\n")
    return path


def run(monkeypatch: pytest.MonkeyPatch, file: Path, *views: GroupView, json: bool = False, **more: str) -> int:
    flow = FlowView("A", "B", FlowState.RUNNING, "", Risk(), groups=views, **more)  # type: ignore[arg-type]
    monkeypatch.setattr(ConfiguredFlow, "ledger", lambda _: Ledger())
    monkeypatch.setattr(groups, "observe_once", lambda *_, **__: Snapshot(1, "1", (flow,)))
    options = argparse.Namespace(config=file, flow="A->B", group=None, timeout=1.0, json=json, output="table")
    return groups.run(options)


def test_offsets_that_could_not_be_read_are_not_reported_as_well(
    monkeypatch: pytest.MonkeyPatch, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, file, GROUP) == 0
    assert "A->B: no reason for a missing offset is in the ledger" in capsys.readouterr().out
    assert run(monkeypatch, file, GROUP, groups_error="Group two: not authorized") == 2
    out, err = capsys.readouterr()
    assert "billing" in out, "what is known is shown"
    assert "no missing offsets" not in out
    assert err == "mm2: A->B: not all offsets of groups are known: Group two: not authorized\n"


def test_the_document_has_the_reason_why_offsets_are_not_known(
    monkeypatch: pytest.MonkeyPatch, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, file, groups_error="denied", json=True) == 2
    assert json.loads(capsys.readouterr().out)["groups_error"] == "denied"


def test_a_source_that_does_not_answer_is_reported_beside_its_previous_offsets(
    monkeypatch: pytest.MonkeyPatch, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, file, GROUP, source_error="A does not answer") == 0
    assert "A does not answer" in capsys.readouterr().err
