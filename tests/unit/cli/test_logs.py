"""Levels of loggers that change while the program runs."""

from __future__ import annotations

import io
import json
import logging
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import structlog

from mm2.cli.logs import configure_logging
from mm2.config.withheld_logs import AUDIT, WITHHELD
from mm2.connect.errors import BadRequest
from mm2.connect.herder.loggers import Loggers
from mm2.connect.rest.access.audit import changed
from mm2.connect.rest.access.roles import Kind, Principal, Role

ROOT: Final = Path(__file__).parents[3]


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


#: Loggers of the modules before they moved into folders. Users set their levels by these names (`/admin/loggers`, log records).
LOGGER_NAMES: Final = (
    "mm2.cli.connect_mirror_maker",
    "mm2.cli.connect_process",
    "mm2.cli.connect_standalone",
    "mm2.cli.signals",
    "mm2.connect.converters.primitive",
    "mm2.connect.files",
    "mm2.connect.herder.base",
    "mm2.connect.herder.config_changes",
    "mm2.connect.herder.config_view",
    "mm2.connect.herder.connector_offsets",
    "mm2.connect.herder.distributed",
    "mm2.connect.herder.fencing",
    "mm2.connect.herder.lifecycle",
    "mm2.connect.herder.loggers",
    "mm2.connect.herder.rebalances",
    "mm2.connect.herder.reconfiguration",
    "mm2.connect.herder.request_queue",
    "mm2.connect.herder.standalone",
    "mm2.connect.herder.tick",
    "mm2.connect.override_policies",
    "mm2.connect.plugins.process.peer",
    "mm2.connect.plugins.process.remote",
    "mm2.connect.plugins.registry",
    "mm2.connect.plugins.scan",
    "mm2.connect.rest.access.oidc",
    "mm2.connect.rest.basic_auth",
    "mm2.connect.rest.binding",
    "mm2.connect.rest.connector_resources",
    "mm2.connect.rest.extensions",
    "mm2.connect.rest.failures",
    "mm2.connect.rest.forwarding",
    "mm2.connect.rest.limits",
    "mm2.connect.rest.local_processes",
    "mm2.connect.rest.server",
    "mm2.connect.rest.worker_resources",
    "mm2.connect.runtime.clients",
    "mm2.connect.runtime.connectors",
    "mm2.connect.runtime.error_reporters",
    "mm2.connect.runtime.exactly_once_settings",
    "mm2.connect.runtime.sending",
    "mm2.connect.runtime.task_building",
    "mm2.connect.runtime.tasks.base",
    "mm2.connect.runtime.tolerance",
    "mm2.connect.runtime.topic_creation",
    "mm2.connect.runtime.transformation_chain",
    "mm2.connect.runtime.worker",
    "mm2.connect.stores.config_state",
    "mm2.connect.stores.internal_topic",
    "mm2.connect.stores.kafka_offset_store",
    "mm2.connect.stores.kafka_status_store",
    "mm2.connect.stores.offset_store",
    "mm2.connect.stores.offset_table",
    "mm2.connect.stores.status_store",
    "mm2.connect.tls",
    "mm2.copy.driver.engine",
    "mm2.copy.driver.lane",
    "mm2.copy.driver.server",
    "mm2.copy.driver.slots",
    "mm2.copy.driver.spark",
    "mm2.copy.executor",
    "mm2.copy.executor.commits",
    "mm2.copy.executor.continued_sessions",
    "mm2.copy.executor.copier",
    "mm2.copy.executor.cursor",
    "mm2.copy.executor.dead_letters",
    "mm2.copy.executor.endpoints",
    "mm2.copy.executor.link",
    "mm2.copy.executor.losses",
    "mm2.copy.executor.new_sessions",
    "mm2.copy.executor.opening",
    "mm2.copy.executor.partition_events",
    "mm2.copy.executor.produce_outcomes",
    "mm2.copy.executor.progress_look_ups",
    "mm2.copy.executor.size_limits",
    "mm2.copy.executor.target_search",
    "mm2.copy.executor.target_watch",
    "mm2.copy.executor.window",
    "mm2.copy.ledger",
    "mm2.copy.written_positions",
    "mm2.kafka.ciphers",
    "mm2.kafka.connection",
    "mm2.kafka.consumer.consumer",
    "mm2.kafka.consumer.fetching",
    "mm2.kafka.log",
    "mm2.kafka.oauth",
    "mm2.kafka.tls",
    "mm2.mirror.checkpoint_connector",
    "mm2.mirror.checkpoint_inputs",
    "mm2.mirror.checkpoint_task",
    "mm2.mirror.client.freshness",
    "mm2.mirror.connector",
    "mm2.mirror.filters",
    "mm2.mirror.group_reasons",
    "mm2.mirror.group_sync",
    "mm2.mirror.heartbeat",
    "mm2.mirror.internal_topics",
    "mm2.mirror.leading_gaps",
    "mm2.mirror.maker",
    "mm2.mirror.policy",
    "mm2.mirror.provenance",
    "mm2.mirror.recurring_errors",
    "mm2.mirror.remote_topics",
    "mm2.mirror.rest",
    "mm2.mirror.scheduler",
    "mm2.mirror.source_connector",
    "mm2.mirror.source_task",
    "mm2.mirror.topic_acls",
    "mm2.mirror.topic_configs",
    "mm2.mirror.value_changes",
    "mm2.mirror.write_denials",
    "mm2.observer.long_term",
    "mm2.observer.observer",
    "mm2.observer.recorder",
    "mm2.observer.watch",
    "mm2.ui.dashboard",
    "mm2.ui.feed",
    "mm2.ui.sockets",
    "mm2.verify.driver",
)


def test_loggers_keep_their_names_when_modules_move() -> None:
    found: set[str] = set()
    for path in (ROOT / "mm2").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        found |= {module} if "get_logger(__name__)" in text else set()
        found |= set(re.findall(r'get_logger\("(mm2[\w.]*)"\)', text))
    assert set(LOGGER_NAMES) <= found
