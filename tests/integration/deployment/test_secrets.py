"""A process with secrets in every configuration source, and with many errors: it discloses none of them.

One broker is source and target. Given passwords in the file itself, in the files of two config providers and in the environment, of
stores, of keys, of a token endpoint's client, in URLs, under undeclared keys, in connectors' configurations, of REST's users; some
of them wrong. When it copies, fails to authenticate, reads a changed file, and gets valid and invalid requests. Validates that none
is in the log (debug; and info of processes that fail to start), in any response, on any page, in the metrics, in any topic but the
config topic, on any command line, in the environment of child processes, or in any file that it leaves. The config topic contains
what Java's MirrorMaker writes there: the file's own passwords, and never those of a provider.
"""

from __future__ import annotations

import base64
import secrets
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pytest
from confluent_kafka.admin import AdminClient

from mm2.kafka.settings.assertion_settings import ALLOWED_URLS
from mm2.sandbox.kafka import LocalKafka
from mm2.sandbox.ports import free_ports
from tests.integration.copy_flow import create, producer_of, read_all
from tests.integration.mirror_process import (
    MirrorProcess,
    contents,
    has_all,
    partitions_of,
    refused,
    topics_of,
    write_config,
)
from tests.support import certificates

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
PROVIDERS = "org.apache.kafka.common.config.provider"
AUTH = "org.apache.kafka.connect.rest.basic.auth.extension"
TOPIC, REMOTE = "hush-orders", "here.hush-orders"
FLOW = "/here/there"


class Secrets(dict[str, str]):
    """Secrets by location; created at the first access."""

    def __missing__(self, place: str) -> str:
        self[place] = f"hush-{place}-{secrets.token_hex(6)}"
        return self[place]

    def found_in(self, what: bytes | str, *, but: frozenset[str] = frozenset()) -> dict[str, str]:
        """Locations of the secrets that the data contains, with their context."""
        data = what.encode() if isinstance(what, str) else what
        found = {}
        for place, secret in [*self.items(), ("key", "PRIVATE KEY-----"), ("store", certificates.PASSWORD)]:
            for form in (secret.encode(), *in_base64(secret)):
                at = data.find(form)
                if at >= 0 and place not in but:
                    found[place] = data[max(0, at - 200) : at + 40].decode(errors="replace")
        return found


def in_base64(secret: str) -> Iterator[bytes]:
    """Its base64 forms at every alignment within a longer text."""
    for before, affected in enumerate((0, 2, 3)):
        text = base64.b64encode(b"\0" * before + secret.encode())
        yield text[affected : len(text) - 4]


@dataclass
class Site:
    """The broker, the process and the secrets. ``answers`` are all REST response bodies by request."""

    folder: Path
    port: int
    hush: Secrets = field(default_factory=Secrets)
    answers: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        authority = certificates.issue("Hush Authority")
        certificates.issue("broker", authority, address="127.0.0.1").pkcs12(self.folder / "server.p12", authority)
        (self.folder / "trusted.pem").write_text(authority.certificate_pem)
        client = certificates.issue("mirror", authority)
        (self.folder / "client.pem").write_text(client.key_pem(self.hush["key"]) + client.certificate_pem)
        client.pkcs12(self.folder / "client.p12", authority)
        (self.folder / "passwords").write_text(f"key={self.hush['key']}\nlogin={self.hush['file']}\n")
        (self.folder / "users").write_text(f"ada={self.hush['user']}\n")
        module = f"{AUTH}.PropertyFileLoginModule"
        (self.folder / "login").write_text(f'KafkaConnect {{ {module} required file="{self.folder}/users"; }};')
        users = f'user_inline="{self.hush["inline"]}" user_file="{self.hush["file"]}"'
        self.broker = LocalKafka(
            "S",
            self.folder / "S",
            listeners={"OPEN": "PLAINTEXT", "LOGIN": "SASL_PLAINTEXT", "MUTUAL": "SSL"},
            overrides={
                # The second one so that authentication with it gets as far as the token request.
                "listener.name.login.sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
                "listener.name.login.oauthbearer.sasl.jaas.config": f'{OAUTH} unsecuredLoginStringClaim_sub="broker";',
                "listener.name.login.plain.sasl.jaas.config": f"{PLAIN} {users};",
                "ssl.client.auth": "required",
                **certificates.key_settings(self.folder / "server.p12"),
                **certificates.trust_settings(self.folder / "trusted.pem"),
            },
        )

    # -- the file

    def props(self) -> dict[str, str]:
        hush, login = self.hush, self.broker.address("LOGIN")
        trust = certificates.trust_settings(self.folder / "trusted.pem")
        clusters: dict[str, dict[str, str]] = {
            "here": {
                "bootstrap.servers": login,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": _plain("inline", hush["inline"]),
                # Credentials of a consumer, from a provider and inside a text.
                "consumer.sasl.jaas.config": _plain("file", f"${{file:{self.folder}/passwords:login}}"),
            },
            "there": {
                "bootstrap.servers": self.broker.address("MUTUAL"),
                "security.protocol": "SSL",
                "ssl.keystore.location": str(self.folder / "client.pem"),
                "ssl.keystore.type": "PEM",
                "ssl.key.password": "${env:HUSH_KEY}",
                **trust,
            },
            # Three clusters that reject us, or whose configuration fails.
            "wrong": {
                "bootstrap.servers": login,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": _plain("inline", hush["wrong"]),
            },
            "cloud": {
                "bootstrap.servers": login,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": f"http://ada:{hush['url']}@127.0.0.1:1/token",
                "sasl.jaas.config": f'{OAUTH} clientId="mirror" clientSecret="{hush["client"]}";',
            },
            "locked": {
                "bootstrap.servers": self.broker.address("MUTUAL"),
                "security.protocol": "SSL",
                "ssl.keystore.location": str(self.folder / "client.p12"),
                "ssl.keystore.type": "PKCS12",
                "ssl.keystore.password": hush["keystore"],
                **trust,
            },
        }
        props = {f"{alias}.{key}": value for alias, rows in clusters.items() for key, value in rows.items()}
        for source in ("here", "wrong", "cloud", "locked"):
            props |= {f"{source}->there.enabled": "true", f"{source}->there.topics": f"{TOPIC}.*"}
        return props | {
            "clusters": ", ".join(clusters),
            "emit.heartbeats.enabled": "false",
            "here->there.emit.heartbeats.enabled": "true",
            "here->there.my.filter.token": hush["undeclared"],
            "here->there.my.filter.url": f"https://ada:{hush['undeclared-url']}@filters.example/",
            "config.providers": "file, env",
            "config.providers.file.class": f"{PROVIDERS}.FileConfigProvider",
            "config.providers.env.class": f"{PROVIDERS}.EnvVarConfigProvider",
            "offset.storage.partitions": "1",
            "status.storage.partitions": "1",
            # Four workers in one process start slowly on a busy machine.
            "there.session.timeout.ms": "45000",
            "there.heartbeat.interval.ms": "9000",
            "there.plugin.path": "libs/connect-file-4.3.0.jar",
            "plugin.allowed.classes": "org.apache.kafka.connect.file.FileStreamSourceConnector",
            "listeners": f"http://127.0.0.1:{self.port}",
            "rest.extension.classes": f"{AUTH}.BasicAuthSecurityRestExtension",
            "java.security.auth.login.config": str(self.folder / "login"),
            "rest.unauthenticated.access": "none",
        }

    def write_file(self, **more: str) -> Path:
        return write_config(self.folder / "mm2.properties", self.props() | more)

    def shake_hands(self) -> None:
        """Wait for a TLS handshake: the first of a JVM takes longer on a busy machine than a process waits for its target."""
        place: dict[str, str | int | float | bool] = {
            "bootstrap.servers": self.broker.address("MUTUAL"),
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.folder / "trusted.pem"),
            "ssl.keystore.location": str(self.folder / "client.p12"),
            "ssl.keystore.password": certificates.PASSWORD,
        }
        AdminClient(place).list_topics(timeout=60)

    def start(self) -> None:
        (self.folder / "left").mkdir()
        variables = {
            "MM2_LOG_LEVEL": "debug",
            "HUSH_KEY": self.hush["key"],
            "KAFKA_OPTS": f"-D{ALLOWED_URLS}=http://127.0.0.1:1/token",
            "TMPDIR": str(self.folder / "left"),
            "XDG_STATE_HOME": str(self.folder / "left"),
            "SPARK_LOCAL_DIRS": str(self.folder / "left"),
        }
        self.process = MirrorProcess(self.write_file(), self.folder / "log", variables=variables, executed=True)

    def await_log(self, words: str) -> None:
        self.process.eventually(lambda: words in self.process.log.read_text(errors="replace"), 120)

    # -- requests

    def ask(self, method: str, path: str, *, password: str | None = None, **how: object) -> httpx.Response:
        answer = httpx.request(
            method,
            f"http://127.0.0.1:{self.port}{path}",
            auth=("ada", self.hush["user"] if password is None else password),
            timeout=60,
            trust_env=False,
            **how,  # type: ignore[arg-type]
        )
        reported = "\n".join(f"{name}: {value}" for name, value in answer.headers.items()).encode()
        self.answers[f"{len(self.answers)} {method} {path} {answer.status_code}"] = reported + b"\n" + answer.content
        return answer


def fill(broker: LocalKafka) -> None:
    producer = producer_of(broker)
    for number in range(100):
        producer.produce(TOPIC, b"%d" % number, partition=0)
    assert producer.flush(30) == 0


def _plain(user: str, password: str) -> str:
    return f'{PLAIN} username="{user}" password="{password}";'


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    (port,) = free_ports(1)
    made = Site(tmp_path_factory.mktemp("hush"), port)
    with made.broker:
        made.shake_hands()
        create(made.broker, TOPIC, 1)
        fill(made.broker)
        made.start()
        try:
            made.process.eventually(lambda: has_all(made.broker, TOPIC, made.broker, REMOTE), 200)
            assert contents(made.broker, REMOTE) == contents(made.broker, TOPIC)
            make_trouble(made)
            yield made
        finally:
            made.process.clean_up()


def make_trouble(site: Site) -> None:
    """Requests and errors that could make the process log or return secrets."""
    hush = site.hush
    for words in (
        "SASL PLAIN at the broker",
        "the token endpoint http://127.0.0.1:1/token gave no answer",
        "client.p12",
    ):
        site.await_log(words)
    connectors = f"{FLOW}/connectors"
    config = {
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "file": str(site.folder / "none"),
        "topic": "hush-file",
        "api.token": hush["api"],
        "producer.override.bootstrap.servers": site.broker.address("LOGIN"),
        "producer.override.security.protocol": "SASL_PLAINTEXT",
        "producer.override.sasl.mechanism": "PLAIN",
        "producer.override.sasl.jaas.config": _plain("inline", hush["override"]),
    }
    assert site.ask("PUT", f"{connectors}/f/config", json=config).status_code == 201
    broken = config | {"producer.override.sasl.jaas.config": f"{PLAIN} username=x password={hush['broken']}"}
    site.ask("PUT", f"{connectors}/g/config", json=broken)
    site.ask("PUT", f"{connectors}/h/config", json=config | {"connector.class": "Nope", "tasks.max": "many"})
    site.ask("PUT", f"{FLOW}/connector-plugins/FileStreamSource/config/validate", json=broken | {"tasks.max": "many"})
    site.ask("PATCH", f"{connectors}/f/config", json={"api.token": hush["patched"], "batch.size": "many"})
    site.ask("PATCH", f"{connectors}/f/config", json={"api.token": hush["patched"]})
    site.ask("POST", connectors, content=f'{{"name": "i", "config": {{"api.token": "{hush["body"]}"'.encode())
    site.ask("POST", connectors, json={"name": "i", "config": {"api.token": [hush["body"]]}})
    site.ask("PUT", f"{connectors}/f/config", json={**config, "sasl.jaas.config": {"a": hush["body"]}})
    assert site.ask("GET", connectors, password=hush["typed"]).status_code == 401
    site.ask("PUT", "/admin/loggers/root", json={"level": "TRACE"})
    # Changed twice: once to a configuration that is rejected.
    site.write_file(**{"here->there.my.filter.token": hush["changed"]})
    site.await_log("my.filter.token: [hidden] -> [hidden]")
    site.write_file(**{"here.sasl.jaas.config": f'{PLAIN} username="x" password="{hush["unfinished"]}'})
    site.await_log("is rejected, the previous version stays in effect")
    site.write_file()
    ask_everything(site)
    fill(site.broker)
    site.process.eventually(lambda: has_all(site.broker, TOPIC, site.broker, REMOTE), 120)


def ask_everything(site: Site) -> None:
    pages = (f"/ui/{page}" for page in ("", "connectors", "configuration", "spark"))
    own = ("/", "/flows", "/health", "/metrics", "/overview", "/docs", "/openapi.json", "/admin/loggers", "/nope")
    for path in (*own, *pages):
        site.ask("GET", path)
    for flow in (f"/{source}/there" for source in ("here", "wrong", "cloud", "locked")):
        for path in (
            *("", "/health", "/docs", "/connectors", "/connectors?expand=info&expand=status", "/admin/loggers"),
            *("/connector-plugins?connectorsOnly=false", "/connector-plugins/MirrorSourceConnector/config"),
        ):
            site.ask("GET", flow + path)
        names = site.ask("GET", f"{flow}/connectors").json()
        for name in names if isinstance(names, list) else ():
            for part in ("", "/config", "/status", "/tasks", "/offsets", "/topics", "/tasks/0/status"):
                site.ask("GET", f"{flow}/connectors/{name}{part}")


def test_no_secret_is_in_the_log(site: Site) -> None:
    output = site.process.log.read_bytes()
    assert len(site.process.lines(level="debug")) > 10
    assert site.hush.found_in(output) == {}


def test_no_secret_is_in_a_response_a_page_or_the_metrics(site: Site) -> None:
    assert len(site.answers) > 60
    for asked, reported in site.answers.items():
        assert site.hush.found_in(reported) == {}, asked
    shown = site.ask("GET", f"{FLOW}/connectors/MirrorSourceConnector/config").json()
    assert shown["source.cluster.sasl.jaas.config"] == "[hidden]"
    assert shown["target.cluster.ssl.key.password"] == "${env:HUSH_KEY}"
    assert shown["source.cluster.bootstrap.servers"] == site.broker.address("LOGIN")


def test_an_admin_of_rest_cannot_have_a_secret_sent_to_another_address(site: Site) -> None:
    """The process knows the password that REST shows as hidden, and would authenticate with it at any address."""
    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.settimeout(3)
        address = f"127.0.0.1:{trap.getsockname()[1]}"
        for name, key in (
            ("MirrorSourceConnector", "source.admin.bootstrap.servers"),
            ("MirrorSourceConnector", "source.cluster.bootstrap.servers"),
            ("f", "producer.override.bootstrap.servers"),
        ):
            before = site.ask("GET", f"{FLOW}/connectors/{name}/config").json()
            refused_ = site.ask("PATCH", f"{FLOW}/connectors/{name}/config", json={key: address})
            assert refused_.status_code == 400, refused_.text
            assert key in refused_.json()["message"]
            assert site.ask("GET", f"{FLOW}/connectors/{name}/config").json() == before
        with pytest.raises(TimeoutError):
            trap.accept()


def test_no_secret_is_in_a_topic_except_plain_ones_in_the_config_topic(site: Site) -> None:
    seen = 0
    # Values from the file or from REST are stored as they were written, as in Java.
    written = frozenset(
        {"inline", "wrong", "url", "client", "keystore", "undeclared", "undeclared-url", "changed"}
        | {"api", "patched", "override", "broken"}
    )
    for topic in sorted(topics_of(site.broker) - {"__consumer_offsets"}):
        allowed = written if topic.startswith("mm2-configs.") else frozenset()
        for rows in read_all(site.broker, topic, range(partitions_of(site.broker, topic))).values():
            seen += len(rows)
            for row in rows:
                held = b"\n".join(part or b"" for part in (row.key, row.value))
                assert site.hush.found_in(held, but=allowed) == {}, topic
    assert seen > 20


def test_no_secret_is_in_a_command_line_an_environment_or_a_remaining_file(site: Site) -> None:
    given = frozenset({"key"})  # in the environment of the main process, which its child processes inherit
    for process in site.process.family():
        with process.oneshot():
            try:
                line, variables = process.cmdline(), process.environ()
            except psutil.Error:
                continue
        assert site.hush.found_in("\n".join(line)) == {}
        reported = "\n".join(f"{name}={value}" for name, value in variables.items())
        assert site.hush.found_in(reported, but=given) == {}, line
    for file in (site.folder / "left").rglob("*"):
        if file.is_file():
            assert site.hush.found_in(file.read_bytes()) == {}, file


def test_no_secret_is_in_the_output_of_a_process_that_fails_to_start(site: Site, tmp_path: Path) -> None:
    hush = site.hush
    good = {"clusters": "here, there", "here.bootstrap.servers": "127.0.0.1:1", "here->there.enabled": "true"}
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    cases: Mapping[str, Mapping[str, str]] = {
        "no semicolon": login | {"sasl.jaas.config": f"{PLAIN} username=x password={hush['a']}"},
        "no end of the quotes": login | {"sasl.jaas.config": f'{PLAIN} username=x password="{hush["b"]};'},
        "no module": login | {"sasl.jaas.config": f"{hush['c']} username=x;"},
        "no key": {
            "security.protocol": "SSL",
            "ssl.keystore.key": hush["d"],
            "ssl.keystore.certificate.chain": hush["e"],
        },
        "no chain": {"security.protocol": "SSL", "ssl.keystore.key": hush["f"]},
        "no certificate": {"security.protocol": "SSL", "ssl.truststore.certificates": hush["g"]},
        "wrong password": {
            "security.protocol": "SSL",
            "ssl.keystore.location": str(site.folder / "client.pem"),
            "ssl.key.password": hush["h"],
        },
        "a URL of another kind": {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": f'{OAUTH} clientId="x" clientSecret="{hush["i"]}";',
            "sasl.oauthbearer.token.endpoint.url": f"ftp://ada:{hush['j']}@tokens.example/",
        },
        "no such reference": login | {"sasl.jaas.config": _plain(hush["k"], f"${{file:{site.folder}/passwords:nope}}")},
    }
    calls = []
    for number, (_, settings) in enumerate(cases.items()):
        props = good | {f"there.{key}": value for key, value in settings.items()}
        props |= {"there.bootstrap.servers": site.broker.address("MUTUAL")}
        props |= {"config.providers": "file", "config.providers.file.class": f"{PROVIDERS}.FileConfigProvider"}
        file = write_config(tmp_path / f"{number}.properties", props)
        calls += [[str(file), "--log-level", level] for level in ("info", "debug")]
    for (code, output), case in zip(refused(calls), [name for name in cases for _ in "12"], strict=True):
        assert (code, hush.found_in(output)) == (2, {}), case
