"""Extensions, and the one for HTTP basic authentication."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
from fastapi import APIRouter

from mm2.config.configdef import ConfigException
from mm2.config.files.java_options import system_property
from mm2.connect.plugins import Plugins
from mm2.connect.rest.basic_auth import LOGIN_MODULE, BasicAuthSecurityRestExtension, load_credentials
from mm2.connect.rest.extensions import ConnectRestExtension, ConnectRestExtensionContext, load_extensions
from tests.support.passwords import basic
from tests.unit.connect.rest.conftest import Start

JAVA_NAME = "org.apache.kafka.connect.rest.basic.auth.extension.BasicAuthSecurityRestExtension"


def login_file(folder: Path, credentials: str = "admin=a:b\nüser=p\n", entry: str | None = None) -> dict[str, str]:
    (folder / "credentials").write_text(credentials, encoding="latin-1")
    file = folder / "login.conf"
    file.write_text(
        entry
        or f'Other {{ some.Module required; }};\nKafkaConnect {{\n {LOGIN_MODULE} required\n file="{folder}/credentials";\n}};'
    )
    return {"java.security.auth.login.config": str(file)}


class Nested(ConnectRestExtension):
    """An extension with a nested router, whose close fails."""

    closed = False

    def register(self, context: ConnectRestExtensionContext) -> None:
        inner, outer = APIRouter(prefix="/inner"), APIRouter(prefix="/outer")

        @inner.get("/{name}")
        def state(name: str) -> str:
            return context.cluster_state.connector_health(name).connector_state.state

        outer.include_router(inner)
        context.configurable.register(outer)


def test_java_s_name_and_the_alias_select_the_extension(tmp_path: Path) -> None:
    for name in (JAVA_NAME, "BasicAuthSecurityRestExtension"):
        (made,) = load_extensions((name,), Plugins(), login_file(tmp_path))
        assert isinstance(made, BasicAuthSecurityRestExtension)


def test_only_valid_credentials_are_accepted(start: Start, tmp_path: Path) -> None:
    extension = BasicAuthSecurityRestExtension()
    extension.configure(login_file(tmp_path))
    rest = start(None, extension)
    refused: list[Mapping[str, str]] = [
        {}, basic("admin", "b"), basic("nobody", "a:b"), basic("", ""), {"Authorization": "Basic"},
        {"Authorization": "Basic %%%"}, {"Authorization": "Bearer x"}, {"Authorization": "Basic " + "/w=="},
    ]  # fmt: skip
    for headers in refused:
        answer = rest.ask("GET", "/connectors", headers=headers)
        assert answer.status == 401, headers
        assert answer.headers["www-authenticate"].startswith("Basic")
    assert rest.ask("GET", "/connectors", headers=basic("admin", "a:b")).status == 200
    assert rest.ask("GET", "/connectors", headers=basic("üser", "p")).status == 200
    # what is signed instead
    assert rest.ask("PUT", "/connectors/x/fence").status == 400
    assert rest.ask("POST", "/connectors/x/tasks", "[]").status == 400
    for path in ("/connectors/x/tasks;a", "/%63onnectors/x/fence"):
        assert rest.ask("PUT", path, "{}").status == 401, path
    assert rest.ask("PUT", "/connectors/x/tasks/../config", "{}").status == 400


def test_with_an_empty_file_no_client_can_log_in(start: Start, tmp_path: Path) -> None:
    extension = BasicAuthSecurityRestExtension()
    extension.configure(login_file(tmp_path, credentials="# nobody\n"))
    rest = start({"rest.unauthenticated.access": "none"}, extension)
    assert rest.ask("GET", "/connectors").status == 401
    assert rest.ask("GET", "/connectors", headers=basic("", "")).status == 401


def test_kafka_opts_can_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = login_file(tmp_path)["java.security.auth.login.config"]
    monkeypatch.setenv("KAFKA_OPTS", f"-Dx=y -Djava.security.auth.login.config={file}")
    assert asyncio.run(load_credentials({}).matches("admin", "a:b"))
    assert (
        system_property("java.security.auth.login.config", '"-Djava.security.auth.login.config=/with blank"')
        == "/with blank"
    )
    assert system_property("java.security.auth.login.config", "-Dother=1") is None


@pytest.mark.parametrize(
    ("entry", "output"),
    [
        ("Other { a.B required; };", "KafkaConnect"),
        ("KafkaConnect { a.LdapLoginModule required; };", "PropertyFileLoginModule"),
        (f"KafkaConnect {{ {LOGIN_MODULE} required; }};", "file="),
        (f'KafkaConnect {{ {LOGIN_MODULE} required file="/no/such/file"; }};', "/no/such/file"),
        (f'KafkaConnect {{ {LOGIN_MODULE} file="s3cret"; }};', "control flag"),
    ],
)
def test_an_invalid_login_configuration_stops_the_start(tmp_path: Path, entry: str, output: str) -> None:
    with pytest.raises(ConfigException, match=output) as raised:
        load_credentials(login_file(tmp_path, entry=entry))
    assert "s3cret" not in str(raised.value)
    with pytest.raises(ConfigException, match=r"java\.security\.auth\.login\.config"):
        load_credentials({})


def test_nested_routers_respond_and_reject_methods(start: Start) -> None:
    rest = start(None, Nested())
    rest.herder.configs["c"] = {}
    answer = rest.ask("GET", "/outer/inner/c")
    assert (answer.status, answer.json) == (200, "RUNNING")
    assert rest.ask("GET", "/outer/inner/nope").status == 404
    assert rest.ask("POST", "/outer/inner/c").status == 405
    assert rest.ask("GET", "/outer/other").status == 404
