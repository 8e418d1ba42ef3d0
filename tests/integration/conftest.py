"""Shared fixtures of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mm2.copy.driver.engine import CopyEngine
from mm2.verify.driver import Verifier


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    """A Spark session for `mm2 verify` that runs two tasks in parallel."""
    made = Verifier({}, 2)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def engine() -> Iterator[CopyEngine]:
    """The copy engine alone, with its own Spark session."""
    made = CopyEngine({})
    made.start()
    yield made
    made.stop()
