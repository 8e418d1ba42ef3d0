"""A REST server over a toy herder, on a free port of 127.0.0.1."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from mm2.connect.rest.app import worker_resources
from mm2.connect.rest.binding import Binding
from mm2.connect.rest.extensions import ConnectRestExtension
from mm2.connect.rest.forwarding import Requests, RestClient
from mm2.connect.rest.listeners.server import RestServer
from mm2.connect.rest.settings import RestSettings
from tests.support.access import OPEN
from tests.unit.connect.rest.answers import Answer
from tests.unit.connect.rest.toy_herder import ToyHerder

JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Running:
    """A server and the herder behind it."""

    server: RestServer
    herder: ToyHerder

    @property
    def port(self) -> int:
        return self.server.binding.main[0].number

    def ask(
        self, method: str, path: str, body: bytes | str | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send one request on its own connection with an unchanged path. A body is JSON unless `headers` set another type."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            sent = {} if headers is None else dict(headers)
            if body is not None and headers is None:
                sent |= JSON
            connection.request(method, path, body.encode() if isinstance(body, str) else body, sent)
            response = connection.getresponse()
            return Answer.of(response)
        finally:
            connection.close()


Start = Callable[..., Running]


@contextmanager
def starting() -> Iterator[Start]:
    running: list[tuple[RestServer, Requests]] = []

    def make(props: Mapping[str, str] | None = None, *extensions: ConnectRestExtension) -> Running:
        access = {} if any(extension.authenticators() for extension in extensions) else OPEN
        settings = RestSettings.of({"listeners": "http://127.0.0.1:0", **access, **(props or {})})
        server = RestServer(Binding(settings))
        timeout_s = settings.limits.request_timeout_s
        requests = Requests(RestClient(settings.props, timeout_s), timeout_s)
        running.append((server, requests))
        herder = ToyHerder()
        resources = worker_resources(herder, settings, requests, extensions)
        server.serve(resources.main, resources.admin)
        return Running(server, herder)

    yield make
    for server, requests in running:
        server.stop(1.0)
        requests.close()


@pytest.fixture
def start() -> Iterator[Start]:
    """Start servers with the given worker settings and extensions."""
    with starting() as make:
        yield make


@pytest.fixture(scope="package")
def with_defaults() -> Iterator[Running]:
    with starting() as make:
        yield make()


@pytest.fixture
def rest(with_defaults: Running) -> Running:
    """A shared server with default settings and a reset herder; starting one takes longer than most tests."""
    with_defaults.herder.forget()
    return with_defaults
