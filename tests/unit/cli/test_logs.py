"""Levels of loggers that change while the program runs."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from mm2.cli.logs import configure_logging
from mm2.connect.herder.loggers import Loggers


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    before = {name: logging.getLogger(name).level for name in ("", "kafka", "some", "some.part")}
    handlers = logging.root.handlers[:]
    configure_logging("json", "info", stream=stream)
    yield stream
    structlog.reset_defaults()
    logging.captureWarnings(capture=False)
    logging.root.handlers[:] = handlers
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


def events(out: io.StringIO) -> list[str]:
    found = [json.loads(line)["event"] for line in out.getvalue().splitlines()]
    out.seek(0)
    out.truncate()
    return found


def test_a_level_set_through_rest_applies_to_log_lines(out: io.StringIO) -> None:
    part, other = structlog.get_logger("some.part"), structlog.get_logger("other")
    part.debug("too fine")
    part.info("said")
    assert events(out) == ["said"]

    Loggers().set_level("some", "DEBUG")
    events(out)
    part.debug("fine")
    other.debug("still too fine")
    logging.getLogger("some.part").debug("of the standard library")
    assert events(out) == ["fine", "of the standard library"]

    Loggers().set_level("some", "ERROR")
    events(out)
    part.warning("not said")
    part.bind(key="value").error("said")
    try:
        raise ValueError("reason")
    except ValueError:
        part.exception("with a trace")
    assert events(out) == ["said", "with a trace"]

    Loggers().set_level("some", "OFF")
    part.critical("not said")
    assert events(out) == ["log level changes"]
