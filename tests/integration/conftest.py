"""What several modules of this folder ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mm2.verify.driver import Verifier


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    """A Spark of `mm2 verify`, with two tasks side by side."""
    made = Verifier({}, 2)
    yield made
    made.stop()
