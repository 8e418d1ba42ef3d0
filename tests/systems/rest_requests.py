"""Valid and invalid requests to every endpoint: the same ones for Java's worker and ours."""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.unit.connect.rest.answers import Answer

JSON = {"Content-Type": "application/json"}
CLASS = "FileStreamSource"
SIGNED = {"X-Connect-Authorization": "AAAA", "X-Connect-Request-Signature-Algorithm": "HmacSHA256"}


@dataclass(frozen=True)
class Ask:
    """A request."""

    method: str
    path: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.method} {self.path} {dict(self.headers) or ''} {self.body!r}"


def ask(host: str, port: int, request: Ask) -> Answer:
    """Send one request on its own connection, without changing the path."""
    connection = http.client.HTTPConnection(host, port, timeout=100)
    try:
        connection.putrequest(request.method, request.path, skip_accept_encoding=True)
        for name, value in request.headers.items():
            connection.putheader(name, value)
        if request.body is not None:
            connection.putheader("Content-Length", str(len(request.body)))
        connection.endheaders(request.body)
        response = connection.getresponse()
        return Answer.of(response)
    finally:
        connection.close()


def with_json(method: str, path: str, *bodies: str) -> Iterator[Ask]:
    for body in bodies:
        yield Ask(method, path, body.encode(), JSON)


def requests(name: str) -> Iterator[Ask]:
    """The requests in order; `name` is an existing, stopped connector of :data:`CLASS`, ``nope`` and ``n1`` do not exist."""
    c = f"/connectors/{name}"
    yield from methods(c)
    yield from paths(c)
    yield from negotiation(c)
    yield from creations(name)
    yield from configurations(c)
    yield from offsets(c)
    yield from validations()
    yield from loggers()
    yield from internals(c)
    yield from states(c)


def methods(c: str) -> Iterator[Ask]:
    for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "TRACE", "FOO"):
        for path in ("/", "/connectors/nope", "/connectors/nope/pause", "/connector-plugins/x", f"{c}/offsets"):
            if not (method in {"PUT", "PATCH"} and path.endswith(("pause", "offsets"))):
                yield Ask(method, path)


def paths(c: str) -> Iterator[Ask]:
    for path in (
        *(
            "/nope",
            "/connectors",
            "/connectors/",
            "/connectors//",
            "//connectors",
            "/connectors/nope",
            "/connectors/nope/",
        ),
        *("/connectors/nope/x", "/connectors/nope/config", "/connectors/nope/status", "/connectors/nope/tasks"),
        *(
            "/connectors/nope/tasks/0/status",
            "/connectors/nope/tasks/x/status",
            "/connectors/nope/tasks/99999999999/status",
        ),
        *("/connectors/nope/topics", "/connectors/nope/offsets", "/connectors/nope/tasks-config"),
        *("/connectors/a%2Fb", "/connectors/a%20b/status", "/connectors/a+b/status", "/connectors/%C3%A4/status"),
        *("/connectors/%zz/status", "/connectors/%ff/status", "/connectors/a;b=c/status", "/connectors/a%3Bb/status"),
        *("/connectors/../x", "/connectors/%2e%2e/x", "/connectors/a%5Cb/status", "/connectors/a%00b/status"),
        *("/connectors?expand=status", "/connectors?expand=info", "/connectors?expand=bogus", "/connectors?expand"),
        *("/connectors?expand=info&expand=status", "/connector-plugins", "/connector-plugins/"),
        *(
            "/connector-plugins?connectorsOnly=bogus",
            "/connector-plugins?connectorsOnly=",
            "/connector-plugins/nope/config",
        ),
        *("/connector-plugins/FileStreamSource/config", "/connector-plugins/FileStreamSink/config"),
        *("/connector-plugins/FileStreamSource/config?version=%5B", "/connector-plugins/StringConverter/config"),
        *(
            "/connector-plugins/FileStreamSource",
            "/admin",
            "/admin/loggers/root",
            "/admin/loggers/nope.nope",
            "/health",
        ),
        *("/health/", "/application.wadl", "/favicon.ico", "/CONNECTORS", c, f"{c}/", f"{c}/config", f"{c}/status"),
        *(f"{c}/tasks", f"{c}/tasks/0/status", f"{c}/tasks/7/status", f"{c}/topics", f"{c}/offsets", f"{c}/tasks/0"),
        *(f"{c}/restart", f"{c}/pause", f"{c}/fence", f"{c}/tasks/0/restart", f"{c}/tasks-config"),
    ):
        yield Ask("GET", path)


def negotiation(c: str) -> Iterator[Ask]:
    for accept in ("text/html", "bogus", "application/*", "text/html, */*;q=0.1", "text/plain", "application/xml"):
        yield Ask("GET", "/connectors", headers={"Accept": accept})
    yield Ask("GET", "/", headers={"Accept": "text/html"})
    yield Ask("PUT", f"{c}/pause", headers={"Accept": "text/plain"})
    for content_type in (
        *(
            "text/plain",
            "application/x-www-form-urlencoded",
            "application/json; charset=utf-8",
            "bogus",
            "application/*",
        ),
        *("*/*", "application/vnd.api+json", ""),
    ):
        yield Ask("POST", "/connectors", b"{}", {"Content-Type": content_type})
    yield Ask("POST", "/connectors", b'{"name":"x","config":{}}')
    yield Ask("PUT", f"{c}/topics/reset", b"x", {"Content-Type": "text/plain"})
    yield Ask("POST", "/connectors/nope/restart", b"x", {"Content-Type": "text/plain"})


def creations(name: str) -> Iterator[Ask]:
    yield from with_json(
        "POST",
        "/connectors",
        *("", "{", "[]", "null", '"x"', "1", "true", "{}", '{"name":"x"}', '{"name":"x","config":null}'),
        *('{"name":"x","config":{}}', '{"name":"x","config":[]}', '{"name":"x","config":"s"}'),
        *('{"name":"x","config":{},"bogus":1}', '{"name":5,"config":{}}', '{"name":null,"config":{}}', '{"NAME":"x"}'),
        *('{"name":"","config":{}}', '{"name":"x","config":{"a":1,"b":true,"c":1.50,"d":null}}'),
        *('{"name":"x","config":{"a":{}}}', '{"name":"x","config":{"a":[1]}}', '{"name":"x","config":{"name":"y"}}'),
        *(
            '{"name":"x","config":{"connector.class":"nope"}}',
            f'{{"name":"x","config":{{"connector.class":"{CLASS}"}}}}',
        ),
        f'{{"name":"x","config":{{"connector.class":"{CLASS}","topic":"t","tasks.max":"zero"}}}}',
        f'{{"name":"x","config":{{"connector.class":"{CLASS}","topic":"t","tasks.max":"0"}}}}',
        f'{{"name":"\\u0001x","config":{{"connector.class":"{CLASS}","topic":"t"}}}}',
        f'{{"name":"{name}","config":{{"connector.class":"{CLASS}","topic":"t"}}}}',
        *('{"name":"x","config":{},"initial_state":"BOGUS"}', '{"name":"x","config":{},"initial_state":5}'),
        *('{"name":"x","config":{}} trailing', "{'name':1}", '{"name":"x",}', '{"name":"a\nb"}', "nan", '{"name":NaN}'),
    )
    yield Ask("POST", "/connectors", b'{"name":"\xff","config":{}}', JSON)
    for forward in ("bogus", "", "false", "true"):
        yield from with_json("POST", f"/connectors?forward={forward}", '{"name":"x","config":{}}')


def configurations(c: str) -> Iterator[Ask]:
    for path in ("/connectors/n1/config", f"{c}/config"):
        for method in ("PUT", "PATCH"):
            yield from with_json(
                method, path, "{", "[]", '"x"', "1", '{"a":{}}', '{"name":"other"}', '{"connector.class":"nope"}'
            )
    yield from with_json("PUT", "/connectors/n1/config", "", "null", "{}", '{"a":1}', '{"a":null}')
    yield from with_json("PATCH", "/connectors/n1/config", "{}", '{"a":1}', '{"a":null}')
    yield from with_json(
        "PATCH", f"{c}/config", "{}", '{"new":5}', '{"new":null}', '{"tasks.max":"zero"}', '{"topic":null}'
    )


def offsets(c: str) -> Iterator[Ask]:
    bodies = (
        *("", "{", "[]", "null", '"x"', "1", "{}", '{"a":1}', '{"offsets":[]}', '{"offsets":null}', '{"offsets":{}}'),
        *('{"offsets":"x"}', '{"offsets":[{"partition":"x","offset":null}]}', '{"offsets":[null]}', '{"offsets":[1]}'),
        '{"offsets":[{"partition":{"a":1},"offset":null,"x":1}]}',
        '{"offsets":[{"partition":{"filename":"/f"},"offset":{"position":5}}]}',
    )
    for path in (f"{c}/offsets", "/connectors/nope/offsets"):
        yield from with_json("PATCH", path, *bodies)
    yield from with_json(
        "PATCH",
        f"{c}/offsets",
        '{"offsets":[{"partition":{"filename":"/f"},"offset":{"position":"x"}}]}',
        '{"offsets":[{"partition":{"filename":"/f"},"offset":{"position":-1}}]}',
        '{"offsets":[{"partition":{},"offset":{"position":1}}]}',
    )
    yield Ask("GET", f"{c}/offsets")
    yield Ask("DELETE", f"{c}/offsets")
    yield Ask("DELETE", f"{c}/offsets")
    yield Ask("GET", f"{c}/offsets")
    yield Ask("DELETE", "/connectors/nope/offsets")


def validations() -> Iterator[Ask]:
    for plugin in (CLASS, f"{CLASS}Connector", "nope"):
        yield from with_json(
            "PUT",
            f"/connector-plugins/{plugin}/config/validate",
            *("", "{", "[]", "null", '"x"', "1", '{"a":{}}', '{"connector.class":"nope"}', "{}", '{"a":1}'),
        )
    yield from with_json(
        "PUT",
        f"/connector-plugins/{CLASS}/config/validate",
        f'{{"connector.class":"{CLASS}"}}',
        f'{{"connector.class":"org.apache.kafka.connect.file.{CLASS}Connector","name":"v","topic":"t","tasks.max":"x"}}',
        f'{{"connector.class":"{CLASS}","name":"v","topic":"t","value.converter":"nope","transforms":"a,a"}}',
        f'{{"connector.class":"{CLASS}","name":"v","topic":"t","errors.tolerance":"some","unknown.key":"1"}}',
        '{"connector.class":"FileStreamSink","name":"v"}',
    )
    yield from with_json(
        "PUT",
        "/connector-plugins/FileStreamSink/config/validate",
        '{"connector.class":"FileStreamSink","name":"v"}',
        '{"connector.class":"FileStreamSink","name":"v","topics":"a","topics.regex":"b"}',
        '{"connector.class":"FileStreamSink","name":"v","topics":"a","file":"f"}',
    )


def loggers() -> Iterator[Ask]:
    yield from with_json(
        "PUT",
        "/admin/loggers/a.b",
        *("", "{", "[]", "null", "1", "{}", '{"a":1}', '{"level":"bogus"}', '{"level":5}', '{"level":null}'),
        *('{"level":"debug"}', '{"level":"INFO","x":"y"}'),
    )
    yield from with_json("PUT", "/admin/loggers/a.b?scope=bogus", '{"level":"WARN"}')
    yield from with_json("PUT", "/admin/loggers/a.b?scope=cluster", '{"level":"INFO"}', '{"level":"bogus"}')
    yield Ask("GET", "/admin/loggers/a.b")


def internals(c: str) -> Iterator[Ask]:
    for path in ("/connectors/nope", c):
        for headers in (
            SIGNED,
            {**SIGNED, "X-Connect-Request-Signature-Algorithm": "bogus"},
            {**SIGNED, "X-Connect-Request-Signature-Algorithm": "HmacMD5"},
            {**SIGNED, "X-Connect-Authorization": "%%%"},
            {"X-Connect-Authorization": "AAAA"},
            {},
        ):
            yield Ask("PUT", f"{path}/fence", None, headers)
            yield Ask("POST", f"{path}/tasks", b"[]", {**JSON, **headers})
        yield from with_json("POST", f"{path}/tasks", "{", "{}", "1", '[{"a":1}]', '[{"a":{}}]')
    yield Ask("POST", f"{c}/tasks", b"[]", {"Content-Type": "text/plain"})


def states(c: str) -> Iterator[Ask]:
    for path in ("/connectors/nope", c):
        yield Ask("PUT", f"{path}/pause")
        yield Ask("PUT", f"{path}/resume")
        yield Ask("PUT", f"{path}/topics/reset")
        yield Ask("PUT", f"{path}/stop?forward=bogus")
        yield Ask("PUT", f"{path}/stop")
        for flags in (
            "",
            "?includeTasks=true",
            "?includeTasks=bogus&onlyFailed=x",
            "?includeTasks=",
            "?onlyFailed=true",
        ):
            if path != c:
                yield Ask("POST", f"{path}/restart{flags}")
        for task in ("9", "x", "-1"):
            yield Ask("POST", f"{path}/tasks/{task}/restart")
    yield Ask("DELETE", "/connectors/nope")
    yield Ask("DELETE", c)
    yield Ask("DELETE", c)
