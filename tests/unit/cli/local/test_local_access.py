"""Commands find the process of their user and authenticate with its token: the real REST server, no Kafka."""

from __future__ import annotations

import io
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest
import structlog

from mm2.cli.common.rest import PASSWORD_VARIABLE, TOKEN_VARIABLE, RestLogin
from mm2.config.files.properties import load_properties
from mm2.config.keys.mirror_keys import CONNECTOR_NAMES
from mm2.config.mirrormaker import MirrorMakerConfig, SourceAndTarget
from mm2.connect.rest import local_processes
from mm2.mirror.rest.process_rest import FlowsRest
from mm2.observer.views import Snapshot
from mm2.ui.dashboard import Dashboard
from mm2.ui.source import PageData, Settings
from tests.integration.asking import asked
from tests.support.passwords import password_settings
from tests.support.waiting import wait_until
from tests.unit.connect.rest.toy_herder import ToyHerder

Capsys: TypeAlias = pytest.CaptureFixture[str]
Start: TypeAlias = Callable[..., tuple[Path, FlowsRest]]
FILE = """clusters = A, B
A.bootstrap.servers = a:1
B.bootstrap.servers = b:1
A->B.enabled = true
listeners = http://127.0.0.1:0
"""


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(io.StringIO()))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start the REST interface of a process with one flow, and return its file."""
    with ExitStack() as stack:

        def make(**settings: str) -> tuple[Path, FlowsRest]:
            file = tmp_path / "mm2.properties"
            lines = [f"{key.replace('_', '.')} = {value}\n" for key, value in settings.items()]
            file.write_text(FILE + "".join(lines))
            pages = PageData(lambda: Snapshot(0, "1", ()), lambda: Settings({}))
            apps = {"ui": lambda rest: Dashboard(pages, rest)}
            rest = FlowsRest(MirrorMakerConfig(load_properties(file)), apps, file)
            herder = ToyHerder()
            clusters = {"source.cluster.bootstrap.servers": "a:1", "target.cluster.bootstrap.servers": "b:1"}
            herder.configs.update({name: {"connector.class": name, **clusters} for name in CONNECTOR_NAMES})
            rest.serve({SourceAndTarget("A", "B"): herder})
            stack.callback(rest.stop, 1.0)
            url = f"{rest.binding.local_url}health"
            wait_until(lambda: httpx.get(url, trust_env=False, timeout=60).status_code == 200)
            return file, rest

        yield make


def test_commands_on_the_machine_of_the_process_need_no_password(start: Start, capsys: Capsys) -> None:
    file, rest = start()
    url = f"{rest.binding.local_url}A/B/connectors"
    assert httpx.get(url, trust_env=False, timeout=60).status_code == 401
    code, out, err = asked(capsys, "restart", file, "A->B")
    assert (code, err, "A->B is restarted" in out) == (0, "", True)
    code, out, err = asked(capsys, "token", file)
    assert (code, err) == (0, "")
    answer = httpx.get(url, headers={"Authorization": f"Bearer {out.strip()}"}, trust_env=False, timeout=60)
    assert sorted(answer.json()) == sorted(CONNECTOR_NAMES)
    rest.stop(1.0)
    assert asked(capsys, "token", file)[0] == 2


def test_a_link_opens_the_dashboard(start: Start, capsys: Capsys) -> None:
    file, rest = start()
    code, out, err = asked(capsys, "ui", file)
    assert (code, err) == (0, "")
    link = out.strip()
    assert link.startswith(f"{rest.binding.local_url}ui/login?code=")
    with httpx.Client(trust_env=False, timeout=60) as browser:
        assert browser.get(f"{rest.binding.local_url}ui").status_code == 401
        assert browser.get(link).status_code == 200
        assert browser.get(f"{rest.binding.local_url}ui").status_code == 307  # to its first page
    assert httpx.get(link, trust_env=False, timeout=60).status_code == 401


def test_a_token_is_not_sent_to_another_server(start: Start, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    file, _ = start()
    (process,) = local_processes.processes()
    local_processes.write("http://127.0.0.1:1/", ["A->B"], file)
    code, _, err = asked(capsys, "restart", file, "A->B", "--url", process.url.rstrip("/"))
    assert (code, "requires authentication" in err) == (2, True)
    # Credentials that are given have priority.
    local_processes.write(process.url, ["A->B"], file)
    monkeypatch.setenv(TOKEN_VARIABLE, "mm2_wrong")
    assert asked(capsys, "restart", file, "A->B")[0] == 2


def test_the_name_localhost_is_not_resolved_to_send_a_token(
    start: Start, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may resolve to ::1, where another user listens on the same port."""
    file, _ = start()
    (process,) = local_processes.processes()
    named = process.url.replace("127.0.0.1", "localhost").rstrip("/")
    resolved, resolve = list[Any](), socket.getaddrinfo

    def resolving(host: Any, *arguments: Any, **options: Any) -> Any:
        resolved.append(host)
        return resolve(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolving)
    assert asked(capsys, "restart", file, "A->B", "--url", named)[0] == 0
    assert "localhost" not in resolved
    # Another loopback address, port or scheme is another server.
    for other in ("http://[::1]:8083", "http://127.0.0.2:8083", "http://localhost:8084", "https://localhost:8083"):
        login = RestLogin(None, [replace(process, url="http://127.0.0.1:8083/")])
        assert (login.published(other), login.headers(other)) == (other, {})
    assert login.headers(login.published("http://localhost:8083")) != {}


def test_a_user_of_the_process_has_the_role_of_the_file(
    start: Start, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file, _ = start(
        **password_settings(tmp_path, {"ann": "w0rd", "ben": "w0rd"}),
        **{"rest.role.operator": "User:ann", "rest.role.viewer": "User:ben"},
    )
    monkeypatch.setenv(PASSWORD_VARIABLE, "w0rd")
    assert asked(capsys, "restart", file, "A->B", "--user", "ann")[0] == 0
    code, _, err = asked(capsys, "restart", file, "A->B", "--user", "ben")
    assert code == 2
    assert "ben has the role viewer" in err
    assert "w0rd" not in err


def test_the_process_is_selected_by_its_file(start: Start, capsys: Capsys, tmp_path: Path) -> None:
    file, _ = start()
    assert asked(capsys, "token")[1] == asked(capsys, "token", file)[1]
    code, _, err = asked(capsys, "token", tmp_path / "other.properties")
    assert (code, "No process of yours on this machine runs with" in err, str(file) in err) == (2, True, True)
    assert "mm2/processes: run the command as the user of the process, with the same HOME" in err


def test_the_answer_of_a_process_has_a_limit(start: Start, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any server may answer at the URL that is given."""
    file, rest = start()
    monkeypatch.setattr("mm2.cli.common.rest._MOST_BYTES", 2)
    for command in (("restart", file, "A->B", "--url", rest.binding.local_url), ("ui", file)):
        code, out, err = asked(capsys, *command)
        assert (code, out, "the response has more than 2 bytes" in err) == (2, "", True)
