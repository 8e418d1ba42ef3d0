"""Documents are read over HTTP within limits of size and time."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

import mm2
from mm2.kafka.auth.bounded_http import NoDocument, exchange, read_document
from tests.support.certificates import issue

URL = "http://server.example/x"
Answer = Callable[[httpx.Request], httpx.Response]


class Endless(httpx.SyncByteStream):
    """A body that never ends, and how much of it was read."""

    def __init__(self) -> None:
        self.chunks = 0

    def __iter__(self) -> Iterator[bytes]:
        while True:
            self.chunks += 1
            yield b" " * 100


def read(answer: Answer, *, seconds: float = 60, max_bytes: int = 1_000) -> tuple[int, object]:
    with httpx.Client(transport=httpx.MockTransport(answer)) as client:
        return read_document(
            client, URL, max_bytes=max_bytes, deadline_s=time.monotonic() + seconds, params={"query": "a b"}
        )


def server_context(folder: Path) -> ssl.SSLContext:
    server = issue("server", address="127.0.0.1")
    (folder / "server.pem").write_text(server.key_pem() + server.certificate_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    return context


def test_the_document_is_requested_uncompressed() -> None:
    """Otherwise a small answer could become a large document."""
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, stream=httpx.ByteStream(b'{"a": 1}'))

    assert read(answer) == (200, {"a": 1})
    assert (seen[0].headers["Accept-Encoding"], seen[0].url.params["query"]) == ("identity", "a b")


@pytest.mark.parametrize("body", [b"<html>", b"[" * 900, b"\xff"])
def test_a_body_that_is_not_json_is_no_document(body: bytes) -> None:
    assert read(lambda _: httpx.Response(503, stream=httpx.ByteStream(body))) == (503, None)


def test_reading_ends_at_the_limit_of_size() -> None:
    body = Endless()
    with pytest.raises(NoDocument, match=r"^answered with more than 1000 bytes$"):
        read(lambda _: httpx.Response(200, stream=body))
    assert body.chunks == 11


def test_reading_ends_at_the_limit_of_time() -> None:
    body = Endless()
    with pytest.raises(NoDocument, match=r"^did not answer in time$"):
        read(lambda _: httpx.Response(200, stream=body), seconds=-1)
    assert body.chunks == 1


@pytest.mark.parametrize(
    "beginning",
    [b"", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n"],
    ids=["no answer", "header", "body without a length"],
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_answer_that_never_ends_is_given_up_at_the_deadline(scheme: str, beginning: bytes, tmp_path: Path) -> None:
    """Each read is in time: the server sends a byte again and again."""
    stopped = threading.Event()
    context = server_context(tmp_path) if scheme == "https" else None

    def serve() -> None:
        with contextlib.suppress(OSError):
            connection = server.accept()[0]
            with connection if context is None else context.wrap_socket(connection, server_side=True) as peer:
                peer.sendall(beginning)
                while not stopped.wait(0.02):
                    peer.sendall(b"1" if beginning else b"")

    with socket.create_server(("127.0.0.1", 0)) as server, httpx.Client(verify=False, timeout=600) as client:  # noqa: S501
        server.settimeout(60)
        thread = threading.Thread(target=serve)
        thread.start()
        url = f"{scheme}://127.0.0.1:{server.getsockname()[1]}/"
        try:
            with pytest.raises(httpx.ReadTimeout, match=r"^no complete response in time$"):
                exchange(client, "GET", url, max_bytes=1_000_000, deadline_s=time.monotonic() + 2)
        finally:
            stopped.set()
            thread.join()


def test_no_other_module_reads_an_answer_of_a_server_without_these_limits() -> None:
    """`forwarding` is asynchronous and has the same limits, `health` uses the standard library; `ui.actions` calls its own process."""
    calls = re.compile(
        r"httpx\.(?:get|post|put|patch|delete|head|options|request|stream|AsyncClient)\("
        r"|client\.(?:get|post|put|patch|delete|request|stream|send)\(|urlopen|urllib\.request|http\.client|aiohttp"
    )
    root = Path(mm2.__file__).parent
    found = {str(path.relative_to(root)) for path in root.rglob("*.py") if calls.search(path.read_text("utf-8"))}
    assert found == {
        "cli/health.py",
        "connect/rest/forwarding.py",
        "kafka/auth/bounded_http.py",
        "ui/elements/actions.py",
    }


def test_a_server_without_an_answer_is_one_line() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused\nfor a reason", request=request)

    def wait(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("", request=request)

    with pytest.raises(NoDocument, match=r"^gave no answer: refused for a reason$"):
        read(refuse)
    with pytest.raises(NoDocument, match=r"^did not answer in time$"):
        read(wait)
