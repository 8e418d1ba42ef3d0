"""Errors of Jetty, Jersey and Jackson before a resource is reached. Statuses and messages were recorded from Kafka 4.3.0's worker
with the same requests; where Jetty returns an HTML page, ours is JSON."""

from __future__ import annotations

import http.client
import json
import socket
import time

import pytest

from tests.unit.connect.rest.conftest import JSON, Running, Start

NOT_FOUND = (404, "HTTP 404 Not Found")
BAD_METHOD = (405, "HTTP 405 Method Not Allowed")
NOT_ACCEPTABLE = (406, "HTTP 406 Not Acceptable")
UNSUPPORTED = (415, "HTTP 415 Unsupported Media Type")


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/nope", NOT_FOUND),
        ("GET", "/CONNECTORS", NOT_FOUND),
        ("GET", "/connectors/c/nope", NOT_FOUND),
        ("GET", "/connectors/c/tasks/0", NOT_FOUND),
        ("GET", "/connectors/c/tasks-config", NOT_FOUND),
        ("GET", "/connectors/../x", (400, "Ambiguous URI path segment")),
        ("GET", "/admin", NOT_FOUND),
        ("GET", "/connector-plugins/x", NOT_FOUND),
        ("GET", "/connectors/c/tasks/x/status", NOT_FOUND),
        ("GET", "/connectors/c/tasks/99999999999/status", NOT_FOUND),
        ("POST", "/connectors/c/tasks/x/restart", NOT_FOUND),
        ("POST", "/", BAD_METHOD),
        ("PATCH", "/connectors", BAD_METHOD),
        ("FOO", "/connectors", BAD_METHOD),
        ("TRACE", "/", BAD_METHOD),
        ("GET", "/connectors/c/restart", BAD_METHOD),
        ("GET", "/connectors/c/fence", BAD_METHOD),
        ("POST", "/connectors/c/pause", BAD_METHOD),
        ("GET", "/connectors//", (400, "Ambiguous URI empty segment")),
        ("GET", "//connectors", (400, "Ambiguous URI empty segment")),
        ("GET", "/connectors/a%2Fb", (400, "Ambiguous URI path separator")),
        ("GET", "/connectors/a%2fb/status", (400, "Ambiguous URI path separator")),
        ("GET", "/connectors/%2e%2e/x", (400, "Ambiguous URI path segment")),
        ("GET", "/connectors/a%5Cb/status", (400, "Suspicious Path Character")),
        ("GET", "/connectors/%zz/status", (400, "Bad Request")),
        ("GET", "/connectors/a%00b/status", (400, "Bad Request")),
        ("GET", "/connectors/%ff/status", (400, "Bad UTF-8 encoding")),
        ("GET", "/connectors/a%20b/status", (404, "No status found for connector a b")),
        ("GET", "/connectors/a+b/status", (404, "No status found for connector a+b")),
        ("GET", "/connectors/%C3%A4/status", (404, "No status found for connector ä")),
        ("GET", "/connectors/a;b=c/status", (404, "No status found for connector a")),
        ("GET", "/connectors/a%3Bb/status", (404, "No status found for connector a;b")),
        ("GET", "/connectors/nope/", (404, "Connector nope not found")),
        ("GET", "HTTP://[", (400, "Bad Request: the URL is not valid")),
        ("GET", "x/connectors", (400, "Bad Request: the path must start with a slash")),
        ("GET", "file:///connectors", (400, "Bad Request: the path must start with a slash")),
        ("GET", "http://localhost/nope", NOT_FOUND),
    ],
)
def test_an_unknown_path_is_rejected_like_java(
    rest: Running, method: str, path: str, expected: tuple[int, str]
) -> None:
    answer = rest.ask(method, path)
    assert (answer.status, answer.message) == expected


@pytest.mark.parametrize("accept", ["text/html", "text/plain", "application/xml", "bogus"])
def test_a_client_that_does_not_accept_json_gets_406(rest: Running, accept: str) -> None:
    answer = rest.ask("GET", "/connectors", headers={"Accept": accept})
    assert (answer.status, answer.message) == NOT_ACCEPTABLE


@pytest.mark.parametrize("accept", ["*/*", "application/*", "application/json", "text/html, */*;q=0.1"])
def test_a_client_that_accepts_json_among_others_gets_json(rest: Running, accept: str) -> None:
    assert rest.ask("GET", "/connectors", headers={"Accept": accept}).status == 200


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("application/vnd.api+json", 415),
        ("application/*", 415),
        ("*/*", 415),
        ("bogus", 400),
        ("", 400),
        ("application/json; charset=utf-8", 400),  # read, and found to have no connector type
        ("Application/JSON", 400),
    ],
)
def test_only_json_bodies_are_accepted(rest: Running, content_type: str, status: int) -> None:
    answer = rest.ask("POST", "/connectors", '{"name":"x","config":{}}', {"Content-Type": content_type})
    assert answer.status == status
    assert answer.message


def test_a_body_without_a_content_type_is_rejected(rest: Running) -> None:
    assert rest.ask("POST", "/connectors", '{"name":"x","config":{}}', {}).status == 415
    # resources without a body ignore it
    rest.herder.configs["c"] = {}
    assert rest.ask("PUT", "/connectors/c/pause", "{}", {}).status == 202
    assert rest.ask("PUT", "/connectors/c/pause", "x", {"Content-Type": "text/plain"}).status == 415


@pytest.mark.parametrize(
    "body",
    [
        "", "{", "[]", "null", '"x"', "1", "true", "{}", '{"name":"x"}', '{"name":"x","config":null}',
        '{"name":"x","config":[]}', '{"name":"x","config":"s"}', '{"name":"x","config":{},"bogus":1}',
        '{"NAME":"x","config":{}}', '{"name":"x","config":{"a":{}}}', '{"name":"x","config":{"a":[1]}}',
        '{"name":"x","config":{},"initial_state":"BOGUS"}', '{"name":"x","config":{},"initial_state":5}',
        '{"name":"x","config":{},"initial_state":"destroyed"}', '{"name":"x","config":{}} trailing', "{'name':1}",
        '{"name":"x",}', '{"name":"a\nb","config":{}}', "nan", '{"name":NaN,"config":{}}', '{"name":{},"config":{}}',
        '{"name":"\\ud800","config":{}}', "[" * 100_000, '{"config":{"a":' + "9" * 5000 + "}}",
    ],
)  # fmt: skip
def test_a_malformed_body_is_500_and_its_values_are_not_repeated(rest: Running, body: str) -> None:
    answer = rest.ask("POST", "/connectors", body)
    if answer.status == 400:  # the number with 5000 digits is a string where strings are wanted
        assert "999" in body
        return
    assert answer.status == 500, answer.body
    assert "bogus" not in answer.message.replace("'bogus'", "")
    assert not rest.herder.configs


def test_bytes_that_are_not_text_return_500(rest: Running) -> None:
    for body in (b"\xff\xfe{}", b'{"name":"\xff","config":{}}'):
        assert rest.ask("POST", "/connectors", body, JSON).status == 500


def test_scalars_are_converted_to_strings_where_expected(rest: Running) -> None:
    body = '{"name":5,"config":{"connector.class":"X","a":1,"b":true,"c":1.50,"d":null,"e":1e3}}'
    assert rest.ask("POST", "/connectors", body).status == 201
    name = rest.herder.calls[-1][1]
    config = rest.herder.calls[-1][2]
    assert name == "5"
    assert config == {"connector.class": "X", "a": "1", "b": "true", "c": "1.50", "d": None, "e": "1e3", "name": "5"}
    assert all(type(value) in {str, type(None)} or isinstance(value, str) for value in config.values())


def test_the_last_of_equal_fields_counts_and_a_byte_order_mark_is_ignored(rest: Running) -> None:
    body = '\ufeff{"name":"x","name":"y","config":{"connector.class":"X"}}'
    assert rest.ask("POST", "/connectors", body).status == 201
    assert rest.ask("GET", "/connectors").json == ["y"]


def test_head_is_get_without_the_body(rest: Running) -> None:
    for path, status in (("/", 200), ("/connectors", 200), ("/connectors/nope", 404), ("/connectors/a/pause", 405)):
        answer = rest.ask("HEAD", path)
        assert (answer.status, answer.body) == (status, b"")
    whole = rest.ask("GET", "/")
    assert rest.ask("HEAD", "/").headers["content-length"] == whole.headers["content-length"]


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/", {"GET", "HEAD", "OPTIONS"}),
        ("/connectors", {"GET", "HEAD", "POST", "OPTIONS"}),
        ("/connectors/c", {"GET", "HEAD", "DELETE", "OPTIONS"}),
        ("/connectors/c/tasks", {"GET", "HEAD", "POST", "OPTIONS"}),
        ("/connectors/c/config", {"GET", "HEAD", "PUT", "PATCH", "OPTIONS"}),
    ],
)
def test_options_and_refusals_name_the_methods(rest: Running, path: str, allowed: set[str]) -> None:
    answer = rest.ask("OPTIONS", path)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain")
    assert set(answer.headers["allow"].split(",")) == allowed
    assert set(answer.body.decode().split(", ")) == allowed
    assert set(rest.ask("FOO", path).headers["allow"].split(",")) == allowed


def test_a_trailing_slash_is_ignored(rest: Running) -> None:
    for path in ("/connectors/", "/connector-plugins/", "/admin/loggers/", "/health/"):
        assert rest.ask("GET", path).status == 200


def test_a_body_that_is_too_large_returns_413(start: Start) -> None:
    rest = start({"rest.request.max.bytes": "1000"})
    answer = rest.ask("POST", "/connectors", "x" * 1001)
    assert answer.status == 413
    assert "rest.request.max.bytes = 1000" in answer.message

    # and so is one without a length
    with socket.create_connection(("127.0.0.1", rest.port)) as sock:
        sock.sendall(
            b"POST /connectors HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        sock.sendall((b"3e8\r\n" + b"x" * 1000 + b"\r\n") * 2)
        assert sock.recv(1000).startswith(b"HTTP/1.1 413")


def test_stalled_clients_are_disconnected(start: Start) -> None:
    rest = start({"rest.idle.timeout.ms": "500"})
    beginnings = {
        b"": b"",
        b"GET /conn": b"",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ": b"",
        b"POST /connectors HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{": b"HTTP/1.1 408",
    }
    for sent, expected in beginnings.items():
        with socket.create_connection(("127.0.0.1", rest.port), timeout=60) as sock:
            began_s = time.monotonic()
            sock.sendall(sent)
            received = b""
            try:
                while part := sock.recv(4096):
                    received += part
            except ConnectionResetError:
                pass
            assert received.startswith(expected)
            assert time.monotonic() - began_s < 8
    assert rest.ask("GET", "/").status == 200


def test_a_response_on_a_kept_connection_is_not_delayed_by_an_acknowledgement(rest: Running) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", rest.port, timeout=20)
    took_s = []
    for _ in range(60):
        began_s = time.monotonic()
        connection.request("GET", "/connectors")
        connection.getresponse().read()
        took_s.append(time.monotonic() - began_s)
    connection.close()
    # Linux acknowledges the first responses of a connection immediately, later ones after 40 ms.
    assert min(took_s[30:]) < 0.03


def test_invalid_http_is_rejected_with_json(rest: Running) -> None:
    for sent in (
        b"\x16\x03\x01 hello\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\nbad header\r\n\r\n",
        b"GET\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", rest.port), timeout=60) as sock:
            sock.sendall(sent)
            received = b""
            while part := sock.recv(4096):
                received += part
        assert received.startswith(b"HTTP/1.1 400 Bad Request")
        assert json.loads(received.partition(b"\r\n\r\n")[2])["error_code"] == 400
    with socket.create_connection(("127.0.0.1", rest.port), timeout=60) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 20_000)
        assert sock.recv(100).startswith(b"HTTP/1.1 4")


def test_forwarded_headers_are_ignored(rest: Running, capsys: pytest.CaptureFixture[str]) -> None:
    rest.ask("GET", "/", headers={"X-Forwarded-For": "6.6.6.6", "User-Agent": 'a"b\r\n'.strip()})
    assert "6.6.6.6" not in capsys.readouterr().out
