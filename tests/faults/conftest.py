"""One pair of brokers behind bad networks for all rows that leave them whole; each module has a product of its own."""

from collections.abc import Iterator

import pytest

from tests.faults.stage import Mirror, Play, Stage
from tests.faults.stage import stage as make_stage
from tests.integration.conftest import engine

__all__ = ["engine"]


@pytest.fixture(scope="session")
def shared_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    # A transaction that has timed out is looked for every 10 s by default.
    soon = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000"}
    with make_stage(tmp_path_factory.mktemp("faults"), overrides=soon) as made:
        yield made


@pytest.fixture
def stage(shared_stage: Stage) -> Iterator[Stage]:
    """The shared one, healed before and after."""
    shared_stage.heal()
    yield shared_stage
    shared_stage.heal()


@pytest.fixture
def play(stage: Stage, mirror: Mirror) -> Play:
    """A topic that no other row of the module has, under the module's `mirror`."""
    return Play(stage.a, stage.b, mirror, mirror.unused.pop(0), 2)
