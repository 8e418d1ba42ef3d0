"""Documents are read over HTTP within limits of size and time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from mm2.kafka.bounded_http import NoDocument, read_document

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


def test_a_server_without_an_answer_is_one_line() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused\nfor a reason", request=request)

    def wait(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("", request=request)

    with pytest.raises(NoDocument, match=r"^gave no answer: refused for a reason$"):
        read(refuse)
    with pytest.raises(NoDocument, match=r"^did not answer in time$"):
        read(wait)
