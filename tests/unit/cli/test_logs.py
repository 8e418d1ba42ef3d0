"""Levels of loggers that change while the program runs."""

from __future__ import annotations

import io
import json
import logging
import secrets
from collections.abc import Iterator

import pytest
import structlog

from mm2.cli.logs import configure_logging
from mm2.config.withheld_logs import AUDIT, WITHHELD
from mm2.connect.errors import BadRequest
from mm2.connect.herder.loggers import Loggers
from mm2.connect.rest.access.audit import changed
from mm2.connect.rest.access.roles import Kind, Principal, Role


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    configure_logging("json", "info", stream=stream)
    yield stream
    logging.captureWarnings(capture=False)


def events(out: io.StringIO) -> list[str]:
    found = [json.loads(line)["event"] for line in out.getvalue().splitlines()]
    out.seek(0)
    out.truncate()
    return found


def test_libraries_that_log_secrets_log_warnings_only_at_any_level(out: io.StringIO) -> None:
    """At DEBUG, uvicorn and websockets log cookies and tokens, py4j the secret of its gateway; a logger may be created later."""
    for namespace in ("root", "py4j"):
        Loggers().set_level(namespace, "DEBUG")
    names = [*WITHHELD, "websockets.created.later", "uvicorn.error"]
    events(out)
    for name in names:
        logging.getLogger(name).debug("< Cookie: secret")
        logging.getLogger(name).info("Command to send: secret")
        logging.getLogger(name).warning(name)
    assert events(out) == names
    found = Loggers().level("py4j")
    assert found is not None
    assert found.level == "WARN"
    assert logging.getLogger("some").isEnabledFor(logging.DEBUG)


@pytest.mark.parametrize("namespace", ["root", "mm2", "mm2.audit"])
def test_the_audit_log_cannot_be_switched_off_through_rest(out: io.StringIO, namespace: str) -> None:
    """An operator may set log levels, and must not hide what it does."""
    assert AUDIT not in Loggers().set_level(namespace, "OFF")
    events(out)
    changed(Principal("ann", Kind.PASSWORD), Role.OPERATOR, "PUT", "/admin/loggers/root", 200)
    assert events(out) == ["request"]


def test_the_loggers_that_requests_create_are_limited(out: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python keeps each of them, and one object for each dotted prefix of a name, until the process ends."""
    loggers, prefix = Loggers(), f"limited{secrets.token_hex(4)}"  # of this run only
    for name in (prefix + ".a" * 33, prefix + "x" * 256, prefix + ".a" * 3_400):
        for method in (loggers.set_level, loggers.check):
            with pytest.raises(BadRequest, match=r"^The name of a logger has at most 255 characters and 32 dots\.$"):
                method(name, "DEBUG")
    assert not [name for name in list(logging.root.manager.loggerDict) if name.startswith(prefix)]
    monkeypatch.setattr("mm2.connect.herder.loggers._MAX_CREATED", 2)
    loggers.set_level(prefix + ".a" * 32, "DEBUG")
    for _ in range(2):  # the second time it exists
        loggers.set_level(prefix.ljust(255, "x"), "DEBUG")
    with pytest.raises(BadRequest, match=f"^Logger {prefix}b does not exist"):
        loggers.set_level(f"{prefix}b", "DEBUG")
    assert loggers.level(f"{prefix}b") is None
    logging.getLogger(f"{prefix}b")
    loggers.set_level(f"{prefix}b", "DEBUG")


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
