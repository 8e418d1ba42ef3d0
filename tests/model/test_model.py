"""Each finding is a counterexample of the protocol as it was, and the new protocol has none within the bounds."""

import pytest

from tests.model.catalogue import (
    ASSUMED,
    FINDINGS,
    HOLDS,
    LARGE,
    NEEDED,
    NEEDED_BY_COMMITS,
    NEEDED_BY_ENDING,
    NEEDED_BY_READING,
    NEEDED_BY_REJECTING,
    SHORTCUT,
    without,
)
from tests.model.checker import Model, Result, check, render
from tests.model.reading import Reading


def _report(model: Model, result: Result) -> None:
    print(result)
    for found in (result.violation, result.stuck):
        if found is not None:
            print(render(model, found))


@pytest.mark.parametrize("finding", FINDINGS)
def test_the_original_protocol_has_the_known_counterexample(finding: str) -> None:
    model, step, invariant = FINDINGS[finding]
    result = check(model)
    _report(model, result)
    assert result.violation is not None
    assert result.violation.what.startswith(invariant)
    assert step in result.violation.labels


@pytest.mark.parametrize(
    "rule", [*NEEDED, *NEEDED_BY_COMMITS, *NEEDED_BY_READING, *NEEDED_BY_ENDING, *NEEDED_BY_REJECTING]
)
def test_each_rule_is_needed(rule: str) -> None:
    model = without(rule)
    result = check(model, progress=rule in NEEDED_BY_READING)
    _report(model, result)
    assert result.violation is not None or result.stuck is not None


@pytest.mark.parametrize("assumption", ASSUMED)
def test_each_assumption_of_reading_is_needed(assumption: str) -> None:
    model = Reading(ASSUMED[assumption])
    result = check(model)
    _report(model, result)
    assert result.violation is not None


def test_a_position_at_the_mark_can_hide_a_reset() -> None:
    """A late position of the newest commit always equals its mark, so the comparison alone does not decide (rule C8)."""
    result = check(SHORTCUT)
    _report(SHORTCUT, result)
    assert result.violation is not None
    assert result.violation.what.startswith("I5")


@pytest.mark.parametrize("model", HOLDS, ids=lambda model: model.name)
def test_the_new_protocol_has_no_counterexample(model: Model) -> None:
    result = check(model, progress=True)
    _report(model, result)
    assert result.complete
    assert result.violation is None
    assert result.stuck is None


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("model", LARGE, ids=lambda model: model.name)
def test_the_new_protocol_has_no_counterexample_within_larger_bounds(model: Model) -> None:
    result = check(model, progress=True)
    _report(model, result)
    assert result.complete
    assert result.violation is None
    assert result.stuck is None
