"""A MirrorMaker process whose file names an issuer of tokens and roles of groups; tokens of a real token server, over TLS."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from mm2.sandbox.kafka import LocalKafka
from mm2.sandbox.ports import free_ports
from tests.integration.mirror_process import ROOT, MirrorProcess, refused, write_config
from tests.integration.token_server import AUDIENCE, CLIENT_ID, TokenServer
from tests.support.certificates import serving, trust_settings

PREFIX = "rest.oauthbearer."
FLOW = "oidc-a->oidc-b"  # aliases that no other test uses on these brokers
PAUSE = "/oidc-a/oidc-b/connectors/MirrorHeartbeatConnector/pause"


@dataclass(frozen=True)
class Deployment:
    """A running process, the issuer of its clients' tokens, and its file."""

    process: MirrorProcess
    issuer: TokenServer
    file: Path
    url: str

    def ask(self, method: str, path: str, authorization: str | None = None) -> httpx.Response:
        headers = {} if authorization is None else {"Authorization": authorization}
        return httpx.request(method, f"{self.url}{path}", headers=headers, timeout=60, trust_env=False)

    def status(self, method: str, path: str, **claims: object) -> int:
        """The status of a request with a token."""
        return self.ask(method, path, f"Bearer {self.issuer.token(**claims)}").status_code


@pytest.fixture(scope="module")
def deployment(
    kafka_pair: tuple[LocalKafka, LocalKafka], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("oidc")
    trusted, context = serving(folder)
    (port,) = free_ports(1)
    with TokenServer("secret", lifetime_s=3_600, tls=context) as issuer:
        props: dict[str, str | None] = {
            "clusters": "oidc-a, oidc-b",
            "oidc-a.bootstrap.servers": kafka_pair[0].bootstrap,
            "oidc-b.bootstrap.servers": kafka_pair[1].bootstrap,
            f"{FLOW}.enabled": "true",
            f"{FLOW}.topics": "none-of-them",
            "listeners": f"http://127.0.0.1:{port}",
            f"{PREFIX}expected.issuer": issuer.url,
            f"{PREFIX}expected.audience": AUDIENCE,
            **{f"{PREFIX}{key}": value for key, value in trust_settings(trusted).items()},
            "rest.unauthenticated.access": None,  # the default
            "rest.role.metrics": "Group:scrapers",
            "rest.role.viewer": "Group:viewers",
            "rest.role.operator": f"Group:operators; User:{CLIENT_ID}-operator",
        }
        file = write_config(folder / "mm2.properties", props)
        process = MirrorProcess(file, folder / "log")
        try:
            made = Deployment(process, issuer, file, f"http://127.0.0.1:{port}")
            process.await_log("MirrorMaker starts.", timeout_s=240)
            process.eventually(lambda: made.status("GET", "/flows", groups=["viewers"]) == 200, 120)
            yield made
        finally:
            process.clean_up()


def test_groups_of_a_token_decide_what_its_user_may_do(deployment: Deployment) -> None:
    wanted = {
        ("GET", "/metrics"): {"scrapers": 200, "viewers": 200, "operators": 200, "others": 403},
        ("GET", "/flows"): {"scrapers": 403, "viewers": 200, "operators": 200, "others": 403},
        ("PUT", PAUSE): {"scrapers": 403, "viewers": 403, "operators": 202, "others": 403},
        ("DELETE", PAUSE.rpartition("/")[0]): {"scrapers": 403, "viewers": 403, "operators": 403, "others": 403},
    }
    for (method, path), expected in wanted.items():
        found = {group: deployment.status(method, path, groups=[group]) for group in expected}
        assert found == expected, (method, path)
    assert deployment.status("PUT", PAUSE, sub=f"{CLIENT_ID}-operator") == 202
    assert deployment.status("GET", "/metrics") == 403, "a user without groups"


def test_without_a_valid_token_nothing_is_accessible(deployment: Deployment) -> None:
    issuer, groups = deployment.issuer, {"groups": ["operators"]}
    wrong = [
        None,
        "Bearer",
        "Bearer x",
        f"Basic {issuer.token(**groups)}",
        f"Bearer {issuer.token(exp=1, **groups)}",
        f"Bearer {issuer.token(aud='other', **groups)}",
        f"Bearer {issuer.token(iss='https://other.example', **groups)}",
        f"Bearer {issuer.token({'alg': 'none'}, **groups)}",
        f"Bearer {issuer.token({'kid': 'other'}, **groups)}",
    ]
    for authorization in wrong:
        for method, path in (("GET", "/metrics"), ("GET", "/flows"), ("PUT", PAUSE)):
            answer = deployment.ask(method, path, authorization)
            assert answer.status_code == 401, (authorization, path)
            assert "Bearer" in answer.headers["WWW-Authenticate"]


def test_no_token_is_logged(deployment: Deployment) -> None:
    token = deployment.issuer.token(groups=["operators"])
    assert deployment.ask("PUT", PAUSE, f"Bearer {token}").status_code == 202
    assert deployment.ask("PUT", PAUSE, f"Bearer {token}x").status_code == 401
    assert deployment.ask("GET", f"/metrics?access_token={token}").status_code == 401
    text = deployment.process.log.read_text()
    assert CLIENT_ID in text, "the user"
    assert not [part for part in token.split(".") if part in text]


def test_mm2_sends_a_token_from_its_environment(deployment: Deployment) -> None:
    def pause(**claims: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "mm2.cli.mm2", "pause", deployment.file, FLOW, "--url", deployment.url],
            env={**os.environ, "PYTHONPATH": str(ROOT), "MM2_REST_TOKEN": deployment.issuer.token(**claims)},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    done = pause(groups=["operators"])
    assert done.returncode == 0, done.stderr
    denied = pause(groups=["viewers"])
    assert denied.returncode != 0
    assert "operator" in denied.stderr


def test_an_issuer_that_does_not_respond_opens_nothing(deployment: Deployment) -> None:
    """Known keys stay valid. Last, because it stops the answers of the issuer."""
    deployment.issuer.answers["/keys"] = (500, b"")
    before = deployment.issuer.token(groups=["viewers"])
    deployment.issuer.rotate()

    def answer() -> httpx.Response:
        return deployment.ask("GET", "/flows", f"Bearer {deployment.issuer.token(groups=['viewers'])}")

    # At first the key is unknown, because the keys have been read a moment ago.
    deployment.process.eventually(lambda: answer().status_code == 503, 60)
    assert "keys of its issuer" in answer().json()["message"]
    assert deployment.ask("GET", "/flows", f"Bearer {before}").status_code == 200
    deployment.issuer.answers.clear()
    deployment.process.eventually(lambda: answer().status_code == 200, 60)
    assert deployment.ask("GET", "/flows", f"Bearer {before}").status_code == 401


def test_wrong_settings_end_the_start_with_exit_code_2(tmp_path: Path) -> None:
    base = {"clusters": "A, B", "A.bootstrap.servers": "x:1", "B.bootstrap.servers": "x:1", "A->B.enabled": "true"}
    cases = {
        "needed": {f"{PREFIX}expected.issuer": "https://id.example"},
        "must begin with https://": {
            f"{PREFIX}expected.issuer": "http://id.example",
            f"{PREFIX}expected.audience": "mm2",
        },
        "has no effect without": {f"{PREFIX}expected.audience": "mm2"},
    }
    files = [
        write_config(tmp_path / f"{number}.properties", {**base, **props})
        for number, props in enumerate(cases.values())
    ]
    for (code, output), reason in zip(refused([[str(file)] for file in files]), cases, strict=True):
        assert code == 2, output
        assert reason in output
        assert PREFIX in output
