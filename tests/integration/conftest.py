"""Shared fixtures of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mm2.copy.driver.engine import CopyEngine
from mm2.verify.driver import Verifier


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    """A Spark of `mm2 verify`, with two tasks side by side."""
    made = Verifier({}, 2)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def engine() -> Iterator[CopyEngine]:
    """The copy engine by itself, on a Spark of its own."""
    made = CopyEngine({})
    made.start()
    yield made
    made.stop()
