"""The settings of the Prometheus that the dashboard reads, and what its answers may be."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import pytest

from mm2.config.configdef import ConfigException
from mm2.config.mirrormaker import MirrorMakerConfig
from mm2.observer.curves.prometheus import Prometheus, PrometheusFailure
from mm2.observer.curves.prometheus_settings import PrometheusSettings
from tests.support.web_server import WebServer

URL = "dashboard.prometheus.url"
AUTHORIZATION = "dashboard.prometheus.authorization"
MATCHERS = "dashboard.prometheus.matchers"
TIMES = range(1_000, 1_021, 10)


def settings(**given: str) -> PrometheusSettings | None:
    """As at the start of the process."""
    props = {f"dashboard.prometheus.{name.replace('_', '.')}": value for name, value in given.items()}
    config = MirrorMakerConfig({"clusters": "A,B", **props})
    return PrometheusSettings.of(config.rest_props())


def required(**given: str) -> PrometheusSettings:
    found = settings(**given)
    assert found is not None
    return found


def test_nothing_is_read_without_a_url() -> None:
    assert settings() is None


def test_a_slash_at_the_end_of_the_url_is_not_part_of_it() -> None:
    assert required(url="http://prometheus:9090/").url == "http://prometheus:9090"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("file:///etc/passwd", "must begin with http:// or https://"),
        ("gopher://prometheus:9090", "must begin with http:// or https://"),
        ("prometheus:9090", "must begin with http:// or https://"),
        ("http://", "must be a URL with a host"),
        ("http://user:secret@prometheus:9090", "without user, password, query and fragment"),
        ("http://prometheus:9090/?x=1", "without user, password, query and fragment"),
        ("http://prometheus:99999", "is not a URL"),
    ],
)
def test_a_url_that_cannot_be_that_of_prometheus_is_refused(url: str, reason: str) -> None:
    with pytest.raises(ConfigException) as caught:
        settings(url=url)
    assert URL in str(caught.value)
    assert reason in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("matchers", ["env", 'env="prod"}) or vector(1', 'env="prod', "env=prod", 'a="b",'])
def test_matchers_are_matchers(matchers: str) -> None:
    with pytest.raises(ConfigException, match="must be label matchers of PromQL"):
        settings(url="http://prometheus:9090", matchers=matchers)


def test_several_matchers_are_accepted() -> None:
    matchers = 'env="prod", job=~"mm2|other",x!="\\"y"'
    assert required(url="http://prometheus:9090", matchers=matchers).matchers == matchers


def test_a_secret_is_sent_over_tls_only_and_never_shown() -> None:
    with pytest.raises(ConfigException) as caught:
        settings(url="http://prometheus:9090", authorization="Bearer s3cret")
    assert URL in str(caught.value)
    assert "s3cret" not in str(caught.value)
    for url in ("https://prometheus:9090", "http://127.0.0.1:9090"):
        assert "s3cret" not in repr(required(url=url, authorization="Bearer s3cret"))
    with pytest.raises(ConfigException) as caught:
        settings(url="https://prometheus:9090", authorization="Bearer s3cret\nHost: other")
    assert AUTHORIZATION in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("key", ["authorization", "matchers", "ssl_truststore_location"])
def test_a_key_without_a_url_is_an_error(key: str) -> None:
    value = 'env="prod"' if key == "matchers" else "x"
    with pytest.raises(ConfigException, match=f"has no effect without {URL}"):
        settings(**{key: value})


def test_an_invalid_tls_key_is_named_with_its_prefix() -> None:
    with pytest.raises(ConfigException, match=r"dashboard\.prometheus\.ssl\.enabled\.protocols"):
        settings(url="https://prometheus:9090", ssl_enabled_protocols="TLSv7")


@contextmanager
def serving(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """The URL of a server, and the headers of the requests that it got."""
    seen: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(dict(self.headers.items()))
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    with WebServer(Handler) as server:
        yield server.url, seen


def respond(handler: BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def read(url: str, **more: str) -> list[tuple[int, float | None]]:
    found = Prometheus(required(url=url, **more)).read({"x": "up"}, TIMES, time.monotonic() + 30)
    return list(found["x"])


def matrix(*values: tuple[float, str]) -> bytes:
    series = [{"metric": {}, "values": values}] if values else []
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": series}}).encode()


def test_points_that_are_missing_or_no_numbers_are_unknown() -> None:
    body = matrix((1000, "1.5"), (1020, "NaN"))
    with serving(lambda handler: respond(handler, 200, body)) as (url, seen):
        assert read(url, authorization="Bearer s3cret") == [(1_000_000, 1.5), (1_010_000, None), (1_020_000, None)]
    assert seen[0]["Authorization"] == "Bearer s3cret"


def test_no_series_is_unknown_everywhere() -> None:
    with serving(lambda handler: respond(handler, 200, matrix())) as (url, _):
        assert {value for _, value in read(url)} == {None}


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (400, b'{"status":"error","error":"parse\\nerror"}', "answered with HTTP 400: parse error"),
        (503, b"<html>", "answered with HTTP 503"),
        (200, b"<html>", "did not answer with one series"),
        (200, b'{"data":{"result":[{"values":[[1,"x"]]}]}}', "did not answer with one series"),
        (200, b'{"data":{"result":[{"values":[]},{"values":[]}]}}', "did not answer with one series"),
        (200, b"[" * 100_000, "did not answer with one series"),
        (200, b" " * 300_000, "answered with more than 262144 bytes"),
    ],
)
def test_an_answer_of_another_kind_is_one_sentence(status: int, body: bytes, reason: str) -> None:
    with (
        serving(lambda handler: respond(handler, status, body)) as (url, _),
        pytest.raises(PrometheusFailure) as caught,
    ):
        read(url)
    assert str(caught.value) == reason


def test_a_redirect_is_not_followed() -> None:
    """It would send the credentials to another host, and let the server choose what the process requests."""
    with serving(lambda handler: respond(handler, 200, matrix())) as (other, seen_there):
        location = {"Location": f"{other}/api/v1/query_range"}
        with (
            serving(lambda handler: respond(handler, 302, b"", **location)) as (url, seen),
            pytest.raises(PrometheusFailure, match="answered with HTTP 302"),
        ):
            read(url, authorization="Bearer s3cret")
    assert (len(seen), seen_there) == (1, [])


def test_a_request_to_this_machine_does_not_use_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be http because it does not leave the machine."""
    with (
        serving(lambda handler: respond(handler, 200, matrix())) as (url, seen),
        serving(lambda handler: respond(handler, 200, matrix())) as (proxy, stolen),
    ):
        for name in ("http_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy)
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        read(url, authorization="Bearer s3cret")
    assert stolen == []
    assert [headers["Authorization"] for headers in seen] == ["Bearer s3cret"]


def test_a_server_that_does_not_answer_in_time_is_given_up() -> None:
    with (
        serving(lambda handler: respond(handler, 200, matrix())) as (url, seen),
        pytest.raises(PrometheusFailure, match="did not answer in time"),
    ):
        Prometheus(required(url=url)).read({"x": "up"}, TIMES, time.monotonic() - 1)
    assert seen == []


def test_an_unreachable_server_is_one_sentence_without_the_secret() -> None:
    with serving(lambda handler: respond(handler, 200, b"")) as (url, _):
        pass
    with pytest.raises(PrometheusFailure) as caught:
        read(url, authorization="Bearer s3cret")
    assert str(caught.value).startswith("gave no answer: ")
    assert "s3cret" not in str(caught.value)
