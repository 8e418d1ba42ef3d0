"""Every route of a MirrorMaker process, with every role and every kind of client: real server, toy herder."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from fastapi.routing import APIRoute
from structlog.testing import capture_logs

from mm2.config.mirrormaker import SourceAndTarget
from mm2.connect.herder.interface import Herder
from mm2.connect.metrics import ConnectMetrics
from mm2.connect.plugins import Plugins
from mm2.connect.rest.access.roles import Role
from mm2.connect.rest.app import application, metrics_app, worker_resources
from mm2.connect.rest.assembly import LocalAccess
from mm2.connect.rest.binding import Binding
from mm2.connect.rest.extensions import load_extensions
from mm2.connect.rest.forwarding import Requests, RestClient
from mm2.connect.rest.listeners.server import RestServer
from mm2.connect.rest.resources.dispatch import Dispatch, needs, role_of
from mm2.connect.rest.settings import RestSettings
from mm2.copy.driver.engine import CopyEngine
from mm2.metrics.exposition import Exposition
from mm2.mirror.rest.flow_resources import FlowResources
from mm2.mirror.rest.redaction import RedactedHerder
from mm2.observer.observer import Observer
from mm2.observer.shown.resources import overview_app
from mm2.observer.views import Snapshot
from mm2.ui.dashboard import Dashboard
from mm2.ui.source import PageData, Settings
from tests.support import certificates
from tests.support.access import as_admin
from tests.support.passwords import basic, password_settings
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until
from tests.unit.connect.rest.toy_herder import ToyHerder

TOKEN = "mm2_the-token"
USERS = {str(role): f"word of {role}" for role in Role}
PAIR = SourceAndTarget("a", "b")
VALUES = {"connector": "c", "task": "0", "plugin": "Toy", "logger": "root", "source": "a", "target": "b", "topic": "t"}
#: What a client sends that wants to pass for a local or an authenticated one.
FORGED = {
    "X-Forwarded-For": "127.0.0.1",
    "Forwarded": "for=127.0.0.1;proto=https;host=localhost",
    "X-Real-IP": "127.0.0.1",
    "X-Forwarded-User": "admin",
    "X-Remote-User": "admin",
    "X-SSL-Client-S-DN": "CN=admin",
}
WEBSOCKET = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
SOCKET = "/ui/_nicegui_ws/socket.io/?EIO=4&transport=websocket"


@dataclass(frozen=True)
class Route:
    """A method and a path of the process, and the role that its declaration names."""

    method: str
    path: str
    role: Role | None


class Process:
    """The REST interface of a process with one flow, `a->b`, with all applications of a real one."""

    def __init__(self, props: Mapping[str, str]) -> None:
        self.herder = ToyHerder()
        self.herder.configs["c"] = {"name": "c"}
        self.binding = Binding(RestSettings.of({"listeners": "http://127.0.0.1:0", **props}))
        self.observer = Observer(list, lambda: CopyEngine({}))
        pages = PageData(lambda: Snapshot(int(time.time() * 1000), "1", ()), lambda: Settings({}))
        self.resources = FlowResources(
            {PAIR: self.herder},
            self.binding.settings,
            internal=True,
            apps={
                "metrics": lambda _: metrics_app(Exposition(ConnectMetrics(list))),
                "overview": lambda _: overview_app(self.observer, lambda _flow, _records: None),
                "ui": lambda rest: Dashboard(pages, rest),
            },
            local=LocalAccess(TOKEN, self.binding.main[0].number),
        )
        self.server = RestServer(self.binding)
        self.server.serve(self.resources.main, self.resources.admin)
        self.address = f"127.0.0.1:{self.binding.main[0].number}"

    def close(self) -> None:
        self.server.stop(1.0)
        self.resources.requests.close()
        self.observer.stop()

    def routes(self) -> list[Route]:
        """The routes of all applications that dispatch by a table."""
        apps = self.resources._apps
        places = [("", apps._own), ("/a/b", apps.flows[PAIR]), *(("", one) for one in apps.more.values())]
        return [
            Route(method, prefix + re.sub(r"\{(\w+)\}", lambda match: VALUES[match[1]], route.path), role_of(route))
            for prefix, app in places
            if isinstance(app, Dispatch)
            for route in app._fastapi.routes
            if isinstance(route, APIRoute)
            for method in sorted(route.methods or ())
        ]

    def ask(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, address: str = ""
    ) -> tuple[int, Any]:
        host, _, port = (address or self.address).rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        sent = None if method == "GET" else "{}"
        kind = {} if sent is None else {"Content-Type": "application/json"}
        connection.request(method, path, sent, {"Host": self.address, **kind, **(headers or {})})
        response = connection.getresponse()
        if response.status == http.client.SWITCHING_PROTOCOLS:
            connection.close()
            return response.status, None
        text = response.read()
        connection.close()
        try:
            return response.status, json.loads(text) if text else None
        except ValueError:
            return response.status, text.decode()

    def status(self, method: str, path: str, headers: Mapping[str, str] | None = None, address: str = "") -> int:
        return self.ask(method, path, headers, address)[0]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    roles = {f"rest.role.{role}": f"User:{role}" for role in Role if role is not Role.NONE}
    made = Process({**password_settings(tmp_path_factory.mktemp("users"), USERS), **roles})
    yield made
    made.close()


def login(role: Role) -> dict[str, str]:
    return basic(str(role), USERS[str(role)])


OPERATIONS = re.compile(r"/(pause|resume|stop|restart|reset|throttle)$|/admin/loggers/")
SIGNED = re.compile(r"/connectors/c/(tasks|fence)$")


def expected(route: Route) -> Role:
    """The role by the meaning of a route."""
    if route.path == "/health" or (route.method != "GET" and SIGNED.search(route.path)):
        return Role.NONE
    if route.path == "/metrics" or route.path.endswith("/health"):
        return Role.METRICS
    if route.method == "GET":
        return Role.VIEWER
    return Role.OPERATOR if OPERATIONS.search(route.path) else Role.ADMIN


def test_each_route_declares_the_role_that_fits_its_meaning(process: Process) -> None:
    routes = process.routes()
    assert len(routes) > 40
    for route in routes:
        assert route.role is expected(route), route


def test_each_route_is_open_to_its_role_only(process: Process) -> None:
    for route in process.routes():
        assert route.role is not None
        process.herder.configs["c"] = {"name": "c"}
        for role in Role:
            status = process.status(route.method, route.path, login(role))
            assert (status in {401, 403}) is (role < route.role), (route, role, status)
        process.herder.configs["c"] = {"name": "c"}
        status = process.status(route.method, route.path, {"Authorization": f"Bearer {TOKEN}"})
        assert status not in {401, 403}, (route, "token")


def test_no_address_and_no_header_is_an_identity(process: Process, tmp_path: Path) -> None:
    with Proxy(process.address, tmp_path / "proxy.log") as forwarder:
        for route in process.routes():
            status = 401 if route.role is not Role.NONE else None
            for headers, address in (({}, ""), (FORGED, ""), ({}, forwarder.address), (FORGED, forwarder.address)):
                answer = process.status(route.method, route.path, headers, address)
                assert (answer == 401) is (status == 401), (route, answer, headers, address)
                assert answer != 403, route


@pytest.mark.parametrize("path", ["/ui/", "/ui", "/ui/partitions", "/ui/no-such-page", "/ui/_nicegui/x.js"])
def test_the_dashboard_needs_a_viewer(process: Process, path: str) -> None:
    assert process.status("GET", path) == 401
    assert process.status("GET", path, FORGED) == 401
    assert process.status("GET", path, login(Role.METRICS)) == 403
    # The other paths load NiceGUI, which a process can do once: the tests with a browser open them.
    if path == "/ui":
        assert process.status("GET", path, login(Role.VIEWER)) == 307


def test_the_sockets_of_the_dashboard_need_a_viewer(process: Process) -> None:
    for path, headers in ((SOCKET, WEBSOCKET), (SOCKET.replace("websocket", "polling"), {})):
        assert process.status("GET", path, headers) == 401
        assert process.status("GET", path, {**headers, **login(Role.METRICS)}) == 403
    assert process.status("GET", "/a/b/connectors", WEBSOCKET) == 401


def test_unknown_paths_and_methods_tell_nothing_to_clients_without_a_role(process: Process) -> None:
    for method, path in (("GET", "/x/y/connectors"), ("GET", "/nope"), ("DELETE", "/health"), ("OPTIONS", "/flows")):
        assert process.status(method, path) == 401, path
        assert process.status(method, path, login(Role.METRICS)) in {200, 404, 405}, path


@pytest.mark.parametrize(
    "path",
    [
        "/ui/_nicegui_ws/socket.io/x/../../../connectors/x/tasks",
        "/ui/_nicegui_ws/socket.io/x/%2e%2e/../a/b/connectors",
        "/health/../a/b/connectors",
        "/a/b/connectors/c/tasks/../config",
        "/./health",
        "/health/.",
        "/health/..;/a/b/connectors",
        "//health",
        "/a//b/connectors",
        "/ui//x",
        "/a/b/connectors/c%2f..%2fd",
    ],
)
def test_a_path_with_dot_segments_or_empty_ones_is_refused(process: Process, path: str) -> None:
    """It would be authorized as one path and dispatched as another."""
    for method in ("GET", "POST"):
        for headers in ({}, {"Authorization": f"Bearer {TOKEN}"}):
            assert process.status(method, path, headers) == 400


def test_a_signed_request_of_a_worker_has_no_other_way_in(process: Process) -> None:
    before = len(process.herder.calls)
    for path in (
        "/a/b/connectors/c/tasks/",
        "/a/b/connectors/c/tasks;x=y",
        "/a/b/connectors/c/fence",
        "/a/b/connectors/c/%74asks",
    ):
        assert process.status("PATCH", path) == 401
    assert process.status("PUT", "/a/b/connectors/c/config;/fence") == 401
    assert process.status("PUT", "/a/b/connectors/c%3B/config") == 401
    assert process.status("PUT", "/a/b/connectors/fence") == 401
    assert len(process.herder.calls) == before


def test_details_of_the_health_need_the_role_metrics(process: Process) -> None:
    status, body = process.ask("GET", "/health")
    assert (status, set(body)) == (200, {"status", "message"})
    assert set(process.ask("GET", "/health", login(Role.METRICS))[1]["flows"]) == {"a->b"}


def test_a_route_without_a_rule_is_denied_even_to_administrators() -> None:
    app = application([])

    @app.get("/open")
    async def forgotten() -> str:
        return "secret"

    @app.get("/ruled")
    @needs(Role.VIEWER)
    async def ruled() -> str:
        return "well"

    binding = Binding(RestSettings.of({"listeners": "http://127.0.0.1:0"}))
    server = RestServer(binding)
    server.serve(as_admin(Dispatch(app)))
    try:
        for path, status in (("/open", 403), ("/ruled", 200)):
            connection = http.client.HTTPConnection("127.0.0.1", binding.main[0].number, timeout=60)
            connection.request("GET", path)
            assert connection.getresponse().status == status
            connection.close()
    finally:
        server.stop(1.0)


def test_the_audit_log_names_client_role_request_and_result(process: Process) -> None:
    with capture_logs() as lines:
        assert process.status("PUT", "/a/b/connectors/c/pause?password=hunter2", login(Role.OPERATOR)) == 202
        assert process.status("PUT", "/a/b/connectors/nope/pause", login(Role.ADMIN)) == 404
        assert process.status("PUT", "/a/b/connectors/c/pause", login(Role.VIEWER)) == 403
        assert process.status("GET", "/a/b/connectors") == 401
        assert process.status("GET", "/a/b/connectors", basic("admin", "hunter2")) == 401
        assert process.status("GET", "/a/b/connectors", login(Role.VIEWER)) == 200
        wait_until(lambda: len([line for line in lines if "result" in line]) >= 5, 20)
    events = [
        (
            line["principal"],
            line.get("kind"),
            line.get("role"),
            line["method"],
            line["path"],
            line["status"],
            line["result"],
        )
        for line in lines
        if line.get("logger") == "mm2.audit"
    ]
    assert events == [
        ("operator", "password", "operator", "PUT", "/a/b/connectors/c/pause", 202, "done"),
        ("admin", "password", "admin", "PUT", "/a/b/connectors/nope/pause", 404, "failed"),
        ("viewer", "password", "viewer", "PUT", "/a/b/connectors/c/pause", 403, "denied"),
        ("-", "anonymous", "none", "GET", "/a/b/connectors", 401, "denied"),
        ("admin", None, None, "GET", "/a/b/connectors", 401, "rejected"),
    ]
    assert "hunter2" not in str([line for line in lines if line.get("logger") == "mm2.audit"])


def test_a_refusal_says_what_is_needed_and_how_to_get_it(process: Process) -> None:
    status, body = process.ask("PUT", "/a/b/connectors/c/pause")
    assert status == 401
    assert "PUT /a/b/connectors/c/pause needs authentication and the role operator" in body["message"]
    assert "mm2 token" in body["message"]
    status, body = process.ask("PUT", "/a/b/connectors/c/pause", login(Role.VIEWER))
    assert status == 403
    assert "viewer has the role viewer, and PUT /a/b/connectors/c/pause needs the role operator" in body["message"]
    assert "rest.role.operator" in body["message"]


def test_a_link_of_the_dashboard_logs_in_once(process: Process) -> None:
    assert process.status("POST", "/ui/code") == 401
    assert process.status("POST", "/ui/code", login(Role.METRICS)) == 403
    assert process.status("GET", "/ui/code", login(Role.VIEWER)) == 405
    _, link = process.ask("POST", "/ui/code", login(Role.OPERATOR))
    connection = http.client.HTTPConnection(process.address, timeout=60)
    connection.request("GET", link["path"])
    answer = connection.getresponse()
    page = answer.read().decode()
    assert (answer.status, 'content="0; url=./"' in page) == (200, True)
    cookie = str(answer.headers["Set-Cookie"])
    flags = {flag.strip().lower().partition("=")[0]: flag.strip().partition("=")[2] for flag in cookie.split(";")[1:]}
    assert {"httponly", "samesite", "max-age", "path"} <= set(flags)
    assert (flags["samesite"], flags["path"], "secure" in flags) == ("strict", "/", False)
    connection.close()
    assert process.status("GET", link["path"]) == 401
    session = {"Cookie": cookie.partition(";")[0]}
    assert process.status("PUT", "/a/b/connectors/c/pause", session) == 202
    assert process.status("DELETE", "/a/b/connectors/c", session) == 403
    assert process.status("POST", "/ui/code", session) == 403, "its user would never have to log in again"
    assert process.status("GET", "/ui", session) == 307
    # Another site cannot use the cookie, even if the browser sent it.
    assert process.status("PUT", "/a/b/connectors/c/pause", {**session, "Origin": "http://bad.example"}) == 403
    assert process.status("POST", "/ui/logout", session) == 204
    assert process.status("GET", "/a/b/connectors", session) == 401


def test_secrets_of_pages_are_not_in_the_access_log(process: Process) -> None:
    with capture_logs() as lines:
        process.status("GET", "/ui/login?code=hunter2")
        process.status(
            "GET", f"{SOCKET}&sid=hunter2&client_id=hunter3&%73id=hunter2", {"Referer": "http://x/?code=hunter2"}
        )
        wait_until(lambda: len([line for line in lines if "HTTP/1.1" in line["event"]]) >= 2, 20)
    assert "hunter" not in str(lines)


def test_wrong_passwords_are_throttled_and_other_credentials_are_not(tmp_path: Path) -> None:
    process = Process(password_settings(tmp_path, USERS))
    try:
        statuses = [process.status("GET", "/flows", basic("admin", "guess")) for _ in range(8)]
        assert statuses[:5] == [401] * 5
        assert statuses[-1] == 429
        connection = http.client.HTTPConnection(process.address, timeout=60)
        connection.request("GET", "/flows", headers=login(Role.ADMIN))
        answer = connection.getresponse()
        assert (answer.status, int(answer.headers["Retry-After"]) > 0) == (429, True)
        connection.close()
        assert process.status("GET", "/flows", login(Role.VIEWER)) == 200
        assert process.status("GET", "/flows", {"Authorization": f"Bearer {TOKEN}"}) == 200
    finally:
        process.close()


def test_a_viewer_cannot_have_a_module_imported(process: Process) -> None:
    path = "/a/b/connector-plugins/{}/config"
    for listed in ("Sink", "a.Sink", "Sank"):  # the toy herder knows the first of these
        assert process.status("GET", path.format(listed), login(Role.VIEWER)) in {200, 404}, listed
    for other in ("this.Zen", "socket.socket", "this%2EZen", "mm2.cli.connect_process.Program"):
        assert process.status("GET", path.format(other), login(Role.VIEWER)) == 403, other
        assert process.status("GET", path.format(other), login(Role.OPERATOR)) == 403, other
        assert process.status("GET", path.format(other), login(Role.ADMIN)) == 404, other


@pytest.mark.parametrize(
    ("access", "role"),
    [
        ("none", Role.NONE),
        ("metrics", Role.METRICS),
        ("viewer", Role.VIEWER),
        ("operator", Role.OPERATOR),
        ("all", Role.ADMIN),
    ],
)
def test_clients_without_credentials_have_the_configured_role(access: str, role: Role) -> None:
    process = Process({"rest.unauthenticated.access": access})
    try:
        for method, path, needed in (
            ("GET", "/metrics", Role.METRICS),
            ("GET", "/a/b/connectors", Role.VIEWER),
            ("PUT", "/a/b/connectors/c/pause", Role.OPERATOR),
            ("PUT", "/a/b/connector-plugins/Toy/config/validate", Role.ADMIN),
        ):
            assert (process.status(method, path) == 401) is (role < needed), path
    finally:
        process.close()


class Clients:
    """Clients with and without a certificate of an authority that the listener trusts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = certificates.issue("Authority")
        own = certificates.issue("worker", self._authority, address="127.0.0.1")
        own.pkcs12(folder / "worker.p12", self._authority)
        (folder / "trusted.pem").write_text(self._authority.certificate_pem)
        tls = {
            "ssl.client.auth": "requested",
            "ssl.keystore.location": str(folder / "worker.p12"),
            "ssl.keystore.password": certificates.PASSWORD,
            "ssl.truststore.location": str(folder / "trusted.pem"),
            "ssl.truststore.type": "PEM",
        }
        prefixed = {f"listeners.https.{key}": value for key, value in tls.items()}
        self.settings = {"listeners": "https://127.0.0.1:0", **prefixed}

    def ask(self, process: Process, name: str, method: str, path: str, headers: Mapping[str, str] | None = None) -> int:
        """The status for a client with a certificate of this name; "" for none."""
        context = ssl.create_default_context(cafile=str(self._folder / "trusted.pem"))
        if name:
            issued = certificates.issue(name, self._authority)
            (self._folder / "client.pem").write_text(issued.key_pem() + issued.certificate_pem)
            context.load_cert_chain(self._folder / "client.pem")
        connection = http.client.HTTPSConnection(process.address, timeout=60, context=context)
        connection.request(method, path, headers=dict(headers or {}))
        status = connection.getresponse().status
        connection.close()
        return status


def test_the_subject_of_a_certificate_has_a_role(tmp_path: Path) -> None:
    clients = Clients(tmp_path)
    roles = {"rest.role.viewer": "Certificate:CN=ada", "rest.role.operator": "Certificate:CN=ops"}
    for settings, allowed in (
        (roles, {"": 401, "ada": 403, "ops": 202, "eve": 403}),
        ({}, {"": 401, "ada": 202}),
    ):
        process = Process({**clients.settings, **settings})
        try:
            for name, status in allowed.items():
                assert clients.ask(process, name, "PUT", "/a/b/connectors/c/pause") == status, name
            # A header of a proxy is no certificate.
            assert clients.ask(process, "", "GET", "/flows", FORGED) == 401
        finally:
            process.close()


def test_with_passwords_a_certificate_alone_is_not_sufficient_as_in_java(tmp_path: Path) -> None:
    clients = Clients(tmp_path)
    users = password_settings(tmp_path, USERS)
    process = Process({**clients.settings, **users})
    try:
        assert clients.ask(process, "ada", "GET", "/flows") == 401
        assert clients.ask(process, "ada", "GET", "/flows", login(Role.ADMIN)) == 200
    finally:
        process.close()
    process = Process({**clients.settings, **users, "rest.role.viewer": "Certificate:CN=ada"})
    try:
        assert clients.ask(process, "ada", "GET", "/flows") == 200
        assert clients.ask(process, "ada", "GET", "/flows", login(Role.ADMIN)) == 403
    finally:
        process.close()


def test_separate_admin_listeners_and_connect_s_own_workers_have_the_same_rules(tmp_path: Path) -> None:
    users = password_settings(tmp_path, USERS)
    roles = {"rest.role.viewer": "User:viewer", "rest.role.admin": "User:admin"}
    settings = RestSettings.of(
        {"listeners": "http://127.0.0.1:0", "admin.listeners": "http://127.0.0.1:0", **users, **roles}
    )
    herder = ToyHerder()
    herder.configs["c"] = {"name": "c", "database.password": "hunter2"}
    requests = Requests(RestClient(settings.props, 20), 20)
    extensions = load_extensions(settings.extension_classes, Plugins(), settings.props)
    shown = cast(Herder, RedactedHerder(herder))
    resources = worker_resources(herder, settings, requests, extensions, local=LocalAccess(TOKEN), redacted=shown)
    server = RestServer(Binding(settings))
    server.serve(resources.main, resources.admin)
    main, admin = (ports[0].number for ports in (server.binding.main, server.binding.admin))

    def ask(port: int, path: str, headers: Mapping[str, str]) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", path, headers=dict(headers))
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, text

    try:
        token = {"Authorization": f"Bearer {TOKEN}"}
        for port, path in ((main, "/"), (main, "/connectors"), (main, "/docs"), (admin, "/admin/loggers")):
            assert ask(port, path, {})[0] == 401, path
            assert ask(port, path, login(Role.METRICS))[0] == 403, path
            assert ask(port, path, login(Role.VIEWER))[0] == 200, path
            assert ask(port, path, token)[0] == 200, path
        assert ask(main, "/health", {})[0] == 200
        assert "hunter2" not in ask(main, "/connectors/c/config", login(Role.VIEWER))[1]
        assert "hunter2" in ask(main, "/connectors/c/config", login(Role.ADMIN))[1]
    finally:
        server.stop(1.0)
        requests.close()
