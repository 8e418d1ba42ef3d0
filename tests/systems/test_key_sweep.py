"""Keys of the mirror connectors and of the worker, given to Java and to this project: see `key_sweep`."""

from __future__ import annotations

import pytest

from tests.systems.key_sweep import run

SAMPLE = 61
"""One of so many values, in the test that always runs; a prime, so that each sort of value and each way occurs."""


def unexplained(every: int) -> list[str]:
    return [
        f"{one.way} {one.definition} {one.key}={one.given}: {one.results}"
        for one in run(every)
        if one.verdict == "DIFFERENT"
    ]


@pytest.mark.timeout(300)
def test_values_of_every_sort_are_accepted_and_refused_as_in_java() -> None:
    assert unexplained(SAMPLE) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_each_value_of_each_key_is_accepted_and_refused_as_in_java() -> None:
    assert unexplained(1) == []
