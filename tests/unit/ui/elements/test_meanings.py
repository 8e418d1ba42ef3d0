"""The explanations of states."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mm2.copy.states import HEALTHY, PartitionState
from mm2.ui.elements.charts import sparkline
from mm2.ui.elements.meanings import MEANINGS

RUNBOOKS = Path(__file__).parents[4] / "docs" / "how-to" / "runbooks"
TABLE = (RUNBOOKS / "README.md").read_text()


@pytest.mark.parametrize("state", PartitionState)
def test_every_state_is_explained_and_its_runbook_is_the_documented_one(state: PartitionState) -> None:
    meaning = MEANINGS[state]
    row = re.search(rf"^\| {state}(?: \*)? \|.*$", TABLE, re.MULTILINE)
    assert row is not None
    assert (f"({meaning.runbook}.md)" in row[0]) if meaning.runbook else state in HEALTHY
    assert meaning.text
    if state not in HEALTHY:
        assert meaning.ends
        assert meaning.do
        assert (RUNBOOKS / f"{meaning.runbook}.md").is_file()


def test_a_sparkline_has_gaps_and_no_curve_without_values() -> None:
    assert sparkline([]) == sparkline([None, None]) == ""
    drawn = sparkline([0.0, 10.0, None, 5.0], 30, 10)
    assert 'd="M0 9.0L10 1.0M30 5.0"' in drawn
    assert 'd="M0 9.0L30 9.0"' in sparkline([0.0, 0.0], 30, 10)
