"""Verbs that send requests to a process with TLS client or password authentication, or both: the real REST server, no Kafka."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from mm2.cli.common.rest import KEY_PASSWORD_VARIABLE, PASSWORD_VARIABLE
from mm2.config.keys.mirror_keys import CONNECTOR_NAMES
from mm2.config.mirrormaker import SourceAndTarget
from mm2.connect.rest.binding import Binding
from mm2.connect.rest.listeners.server import RestServer
from mm2.connect.rest.settings import RestSettings
from mm2.mirror.rest.flow_resources import FlowResources
from tests.integration.asking import asked
from tests.support.certificates import issue, key_settings, trust_settings
from tests.unit.connect.rest.toy_herder import ToyHerder

AUTH = "org.apache.kafka.connect.rest.basic.auth.extension"
WORD, KEY_WORD = "open-sesame", "key-word"
Capsys = pytest.CaptureFixture[str]


class Door:
    """A process that requires a client certificate and a password. ``own``: the TLS settings of its own file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        authority, untrusted = issue("an authority"), issue("an untrusted one")
        issue("worker", authority, address="127.0.0.1").pkcs12(folder / "worker.p12", authority)
        client = issue("ann", authority)
        for name, text in {
            "authority.pem": authority.certificate_pem,
            "untrusted.pem": untrusted.certificate_pem,
            "ann.pem": client.key_pem(KEY_WORD) + client.certificate_pem,
            "credentials": f"ann={WORD}\n",
            "login": f'KafkaConnect {{ {AUTH}.PropertyFileLoginModule required file="{folder}/credentials"; }};',
            "mm2.properties": "clusters = A, B\nA.bootstrap.servers = a:1\nB.bootstrap.servers = b:1\nA->B.enabled = true\n",
        }.items():
            (folder / name).write_text(text)
        tls = key_settings(folder / "worker.p12") | trust_settings(folder / "authority.pem")
        self.own = {f"listeners.https.{key}": value for key, value in tls.items()}
        props = {
            "listeners": "https://127.0.0.1:0",
            "listeners.https.ssl.client.auth": "required",
            "rest.extension.classes": f"{AUTH}.BasicAuthSecurityRestExtension",
            "java.security.auth.login.config": str(folder / "login"),
            **self.own,
        }
        self.herder = ToyHerder()
        self.herder.configs.update({name: {"connector.class": "x"} for name in CONNECTOR_NAMES})
        settings = RestSettings.of(props)
        binding = Binding(settings)
        self.url = f"https://127.0.0.1:{binding.main[0].number}"
        self._server = RestServer(binding)
        self._resources = FlowResources({SourceAndTarget("A", "B"): self.herder}, settings, internal=False)
        self._server.serve(self._resources.main, self._resources.admin)

    def close(self) -> None:
        self._server.stop(1.0)
        self._resources.requests.close()

    def ask(self, capsys: Capsys, *arguments: str, file: str = "mm2.properties") -> tuple[int, str, str]:
        return asked(capsys, "restart", self.folder / file, "A->B", "--url", self.url, *arguments)

    def files(self, cert: str = "ann.pem", authority: str = "authority.pem") -> tuple[str, ...]:
        return "--cacert", str(self.folder / authority), "--cert", str(self.folder / cert)


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    made = Door(tmp_path_factory.mktemp("door"))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, WORD)
    monkeypatch.setenv(KEY_PASSWORD_VARIABLE, KEY_WORD)


@pytest.fixture(autouse=True)
def _logged_elsewhere() -> None:
    """The server's thread logs a request after its response, possibly during the next test: that is not command output."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(io.StringIO()))


def test_a_certificate_and_a_login_are_sent(door: Door, capsys: Capsys) -> None:
    code, out, err = door.ask(capsys, "--user", "ann", *door.files())
    assert (code, err, "A->B is restarted" in out) == (0, "", True)


def test_a_flow_without_connectors_is_not_changed(door: Door, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door.herder, "configs", {})
    code, out, err = door.ask(capsys, "--user", "ann", *door.files())
    assert (code, out) == (2, "")
    assert err.startswith("mm2: A->B has no connectors to restart yet: ")


def test_the_key_stores_of_the_process_file_are_used(door: Door, capsys: Capsys) -> None:
    reported = (door.folder / "mm2.properties").read_text()
    (door.folder / "own.properties").write_text(
        reported + "\n".join(f"{key} = {value}" for key, value in door.own.items())
    )
    assert door.ask(capsys, "--user", "ann", file="own.properties")[0] == 0


@pytest.mark.parametrize(
    ("files", "user", "sentence"),
    [
        (
            {},
            "",
            "requires authentication; set --user, and the password in MM2_REST_PASSWORD, or a token in MM2_REST_TOKEN.",
        ),
        (
            {},
            "bob",
            "requires authentication; set --user, and the password in MM2_REST_PASSWORD, or a token in MM2_REST_TOKEN.",
        ),
        ({"authority": "untrusted.pem"}, "ann", "check --cacert and --cert."),
        ({"authority": "none.pem"}, "ann", "none.pem"),
    ],
)
def test_a_rejected_login_is_reported_with_its_reason_and_remedy(
    door: Door, capsys: Capsys, files: dict[str, str], user: str, sentence: str
) -> None:
    code, out, err = door.ask(capsys, *door.files(**files), *(("--user", user) if user else ()))
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert sentence in err
    assert WORD not in err
    assert KEY_WORD not in err


def test_a_missing_client_certificate_is_reported_with_the_option(door: Door, capsys: Capsys) -> None:
    code, out, err = door.ask(capsys, "--user", "ann", "--cacert", str(door.folder / "authority.pem"))
    assert (code, out, err.count("\n")) == (2, "", 1), err
    # Reported by a TLS alert if it arrives before the connection is closed.
    assert (
        f"{door.url} closed the connection: it requires a client certificate" in err
        or f"The TLS handshake with {door.url} failed: " in err
    )
    assert "--cert" in err


def test_a_wrong_key_password_is_reported_without_the_password(
    door: Door, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_PASSWORD_VARIABLE, "wrong-word")
    code, out, err = door.ask(capsys, "--user", "ann", *door.files())
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert "ann.pem" in err
    assert "wrong-word" not in err


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:99999", "http://x:port", "http://[::1", "x:8083"])
def test_an_address_that_is_not_one_is_rejected(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text("clusters = A, B\nA.bootstrap.servers = a:1\nB.bootstrap.servers = b:1\n")
    code, out, err = asked(capsys, "pause", file, "A->B", "--url", url)
    assert (code, out, err) == (2, "", f"mm2: --url {url}: write it as http://host:8083.\n")
