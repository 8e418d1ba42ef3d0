"""One pair of brokers behind proxies for all tests that keep the brokers intact; each module runs its own flow."""

from collections.abc import Iterator

import pytest

from tests.faults.environment import Environment, MirrorMaker, ReplicatedTopic, running_environment
from tests.integration.conftest import engine

__all__ = ["engine"]


@pytest.fixture(scope="package")
def shared_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    # By default a broker checks for timed-out transactions every 10 s.
    soon = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000"}
    with running_environment(tmp_path_factory.mktemp("faults"), overrides=soon) as made:
        yield made


@pytest.fixture
def environment(shared_environment: Environment) -> Iterator[Environment]:
    """The shared environment, without faults before and after the test."""
    shared_environment.heal()
    yield shared_environment
    shared_environment.heal()


@pytest.fixture
def replicated(environment: Environment, mirror_maker: MirrorMaker) -> ReplicatedTopic:
    """A topic of the module's `mirror_maker` that no other test uses."""
    return ReplicatedTopic(environment.a, environment.b, mirror_maker, mirror_maker.unused.pop(0), 2)
