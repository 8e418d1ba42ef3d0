"""One broker and one worker for the tests of a module; a test that kills or reconfigures a worker starts its own."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from mm2.sandbox.kafka import LocalKafka
from tests.systems.workers import DistributedWorker, distributed_props


@pytest.fixture(scope="module")
def broker(kafka_pair: tuple[LocalKafka, LocalKafka]) -> LocalKafka:
    """Shared with all other tests: a test that stops a broker starts its own."""
    kafka_pair[1].check()
    return kafka_pair[1]


@pytest.fixture(scope="module")
def group(request: pytest.FixtureRequest) -> str:
    """``group.id`` of the module's worker, and the prefix of its internal topics."""
    name = re.sub(r"\W+", "-", request.node.name.removesuffix(".py").rpartition("/")[2])
    return f"{name}-{secrets.token_hex(3)}"


@pytest.fixture(scope="module")
def worker(broker: LocalKafka, group: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DistributedWorker]:
    """One of our distributed workers, ready for requests."""
    with DistributedWorker(tmp_path_factory.mktemp("worker"), distributed_props(broker.bootstrap, group)) as worker:
        yield worker


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder for a test's own workers and files."""
    return tmp_path
