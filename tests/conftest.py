"""Shared fixtures. One pair of real brokers per run is started when the first test requests it."""

import gc
import logging
import os
import re
import secrets
from collections.abc import Iterator

import hypothesis
import pytest
import structlog

from mm2.mirror.common import plugins
from mm2.sandbox.kafka import LocalKafka, start_all, stop_all
from tests.support.waiting import PATIENCE

# Slow examples show a busy machine, and pytest-timeout ends a test that hangs. The examples are the same in each run, so
# that a change is judged by its own faults; bin/test --all explores others.
hypothesis.settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("explore", hypothesis.settings.get_profile("repeatable"), derandomize=False)
hypothesis.settings.load_profile("repeatable")

# The user's own file has no influence, also on programs that tests start.
os.environ["MM2_CONF"] = os.devnull

# What is imported and collected stays until the end of the process: looking for garbage in it takes a fifth of the collection.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Reset the logging configuration, so that a test does not inherit that of the previous test."""
    root, handlers, levels = logging.root, list(logging.root.handlers), _own_levels()
    structlog.reset_defaults()
    # structlog's default without local variables in tracebacks: formatting those takes a second or more.
    plain = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], plain])
    yield
    root.handlers[:] = handlers
    for logger in _own_levels():
        logger.setLevel(levels.get(logger, logging.NOTSET))
    for logger, level in levels.items():
        logger.setLevel(level)


@pytest.fixture(autouse=True)
def _classes_as_they_were() -> Iterator[None]:
    """Commands limit the classes that their process may load (`mm2 plan`), which later tests of this process must not inherit."""
    before = plugins._process
    yield
    plugins.use(before)


def _own_levels() -> dict[logging.Logger, int]:
    """The loggers that do not inherit their level. Iterates over a copy: a thread may create one meanwhile."""
    named = [one for one in list(logging.root.manager.loggerDict.values()) if isinstance(one, logging.Logger)]
    return {one: one.level for one in (logging.root, *named) if one.level != logging.NOTSET}


@pytest.fixture(scope="session", autouse=True)
def _state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Processes publish their addresses and tokens here, and commands find them, instead of in the user's folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def kafka_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalKafka, LocalKafka]]:
    # By default no group of KIP-848 may have a session timeout below 45 s, even if it is configured for this group only.
    short = {"group.consumer.min.session.timeout.ms": "6000", "group.consumer.min.heartbeat.interval.ms": "1000"}
    folder = tmp_path_factory.mktemp("kafka")
    pair = LocalKafka("A", folder / "a", overrides=short), LocalKafka("B", folder / "b", overrides=short)
    start_all(pair, 60.0 * PATIENCE)
    try:
        yield pair
    finally:
        stop_all(pair)


@pytest.fixture
def kafka_a(kafka_pair: tuple[LocalKafka, LocalKafka]) -> LocalKafka:
    """The source cluster of most tests. Shared: a test that stops or overloads a broker starts its own."""
    kafka_pair[0].check()
    return kafka_pair[0]


@pytest.fixture
def kafka_b(kafka_pair: tuple[LocalKafka, LocalKafka]) -> LocalKafka:
    """The target cluster of most tests; shared like `kafka_a`."""
    kafka_pair[1].check()
    return kafka_pair[1]


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> str:
    """A unique name for topics and groups, to be used as it is or as a prefix."""
    test = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)[:40].strip("-")
    return f"{test}-{secrets.token_hex(3)}"
