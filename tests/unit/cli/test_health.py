"""Exit codes of mm2-health with a server of the standard library that responds like the process.

tests/integration/deployment/test_image.py uses the process itself.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from mm2.cli.health import main
from mm2.sandbox.ports import free_ports

HEALTHY = {"status": "healthy", "message": "Worker has completed startup and is ready to handle requests."}
STARTING = {"status": "starting", "message": "Worker is still starting up."}


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/health"
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    ("status", "flow", "code", "alive"), [(200, HEALTHY, 0, 0), (503, STARTING, 1, 0), (500, STARTING, 1, 1)]
)
def test_only_the_liveness_check_accepts_a_starting_process(
    status: int, flow: dict[str, str], code: int, alive: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(status, json.dumps({**flow, "flows": {"A->B": flow}}).encode()) as url:
        assert (main([url]), main([url, "--alive"])) == (code, alive)
    output = capsys.readouterr().out.splitlines()
    assert output == [flow["message"] if status == 200 else f"A->B: {flow['message']}"] * 2


def test_an_invalid_response_is_unhealthy(capsys: pytest.CaptureFixture[str]) -> None:
    unused = f"http://127.0.0.1:{free_ports(1)[0]}/health"
    assert (main([unused]), main([unused, "--alive"])) == (1, 1)
    assert "No response from" in capsys.readouterr().out
    with answering(401, b"<html>") as url:
        assert (main([url]), main([url, "--alive"])) == (1, 0)
    assert capsys.readouterr().out == "HTTP 401.\n" * 2
