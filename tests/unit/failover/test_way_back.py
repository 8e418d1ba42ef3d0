"""What a file lacks for the way back after a failover."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mm2.cli import plan as plan_verb
from mm2.cli.mm2 import main
from mm2.config.mirrormaker import SourceAndTarget
from mm2.failover.failover import way_back_advice
from mm2.mirror.preview import Preview

PAIR = SourceAndTarget("A", "B")
DISABLED = "no enabled flow copies what is written on B to A: for the way back set B->A.enabled = true and run a process with --clusters A"
NEVER_RUN = "B->A is enabled and has never run, which the way back requires: run a process with --clusters A"


def test_the_flow_in_the_opposite_direction_has_to_be_enabled_and_to_have_run() -> None:
    assert way_back_advice(PAIR, is_enabled=False) == [DISABLED]
    assert way_back_advice(PAIR, is_enabled=False, has_run=False) == [DISABLED]
    assert way_back_advice(PAIR, is_enabled=True, has_run=False) == [NEVER_RUN]
    assert way_back_advice(PAIR, is_enabled=True) == []


@pytest.mark.parametrize(("reverse", "hints"), [("", 1), ("B->A.enabled = true\n", 0)])
def test_a_plan_prints_that_the_way_back_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], reverse: str, hints: int
) -> None:
    """As a note of the flow that copies, which does not change the exit code; not for one with heartbeats only."""
    file = tmp_path / "mm2.properties"
    file.write_text(
        "clusters = A, B\nA.bootstrap.servers = a:1\nB.bootstrap.servers = b:1\nA->B.enabled = true\n" + reverse
    )

    def unchanged(pair: SourceAndTarget, _: Any) -> Preview:
        return Preview(str(pair), (), (), (), (), ())

    monkeypatch.setattr(plan_verb, "preview", unchanged)
    assert main(["plan", str(file)]) == 0
    out = capsys.readouterr().out
    sentence = f"- After a failover: {DISABLED}.\n"
    assert (out.count(sentence), out.count("After a failover")) == (hints, hints)
