"""The log level of each request."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from mm2.connect.rest.listeners.middleware import is_routine
from tests.support.waiting import wait_until
from tests.unit.connect.rest.conftest import Start


def test_successful_probes_are_logged_at_debug_and_everything_else_at_info(start: Start) -> None:
    rest = start({"rest.health.timeout.ms": "200"})
    with capture_logs() as lines:
        for method, path in (("GET", "/health"), ("HEAD", "/health"), ("GET", "/connectors"), ("POST", "/health")):
            rest.ask(method, path)
        rest.herder.hang, rest.herder.ready = True, False
        rest.ask("GET", "/health")
        wait_until(lambda: len(lines) >= 5, 20)  # a line is logged when its response is complete
    logged = sorted((*line["event"].split('"')[1:3], line["log_level"]) for line in lines)
    assert [(request, int(rest.split()[0]), level) for request, rest, level in logged] == [
        ("GET /connectors HTTP/1.1", 200, "info"),
        ("GET /health HTTP/1.1", 200, "debug"),
        ("GET /health HTTP/1.1", 503, "info"),
        ("HEAD /health HTTP/1.1", 200, "debug"),
        ("POST /health HTTP/1.1", 405, "info"),
    ]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/metrics", True),
        ("/metrics/", True),
        ("/health", True),
        ("/A/B/health", True),
        ("/flows/A/B/health", True),
        ("/connectors/health", False),
        ("/A/B/connectors/metrics", False),
        ("/overview", False),
        ("/", False),
    ],
)
def test_scrapes_and_probes_are_recognized_by_their_paths(path: str, expected: bool) -> None:
    assert is_routine({"path": path, "method": "GET"}, 200) is expected
    assert not is_routine({"path": path, "method": "GET"}, 500)
    assert not is_routine({"path": path}, 101), "a WebSocket"
