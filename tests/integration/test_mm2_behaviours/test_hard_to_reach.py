"""Authentication and unreachable clusters: one process with a flow for each authentication mechanism to either cluster; clusters
that are down at first or reject us, and certificates that are replaced while it runs.

One process and one pair of brokers for all tests. The tests depend on each other's duration but not on their results; the one
that replaces certificates is the last.
"""

from __future__ import annotations

import concurrent.futures
import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from mm2.kafka.settings.assertion_settings import ALLOWED_URLS
from mm2.sandbox.kafka import LocalKafka, start_all, stop_all
from tests.integration.copy_flow import admin_of, create
from tests.integration.mirror_flow import commit, committed
from tests.integration.mirror_process import (
    MirrorProcess,
    contents,
    has_all,
    heartbeats,
    is_running,
    refused,
    write_config,
)
from tests.integration.token_server import AUDIENCE, CLIENT_ID, TokenServer
from tests.support import certificates
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.timeout(int(300 * PATIENCE)), pytest.mark.slow]

LISTENERS = {
    "OPEN": "PLAINTEXT",
    "LOGIN": "SASL_PLAINTEXT",
    "UNSECURED": "SASL_PLAINTEXT",
    "TOKEN": "SASL_PLAINTEXT",
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "BOTH": "SASL_SSL",
    "EXPIRED": "SSL",
}
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
USER = "CN=mirror,O=x"  # comma and equals sign have to be escaped in SCRAM's messages
PLAIN_PASSWORD, SCRAM_PASSWORD, CLIENT_SECRET = "plain-pa55", "scram-pa55", "client-5ecret"
WRONG_PASSWORD, WRONG_SECRET = "not-the-pa55", "not-the-5ecret"
#: The broker closes a connection of the token listener that has not re-authenticated after this time.
SESSION_MS = 4_000
RECORDS, GROUP_OFFSET = 100, 40

#: Names of the flows; each name is also that of a topic, a group and part of both aliases.
WAYS = ("plain", "scram256", "scram512", "unsecured", "token", "tls", "mutual")
#: The flows whose certificates are in files.
BY_FILES = ("tls", "mutual")
SENTENCES = {
    "impostor": r"SASL SCRAM-SHA-256 at the broker 127\.0\.0\.1:\d+ of cluster impostor failed: ",
    "unknown": r"the token endpoint http://127\.0\.0\.1:\d+/token refused with HTTP 401, invalid_client",
    "untrusted": r"The certificate of the broker 127\.0\.0\.1:\d+ of cluster untrusted is not trusted: ",
}


@dataclass
class Site:
    """Brokers A and B with a listener for each mechanism, a broker L that is down at first, and the process between them."""

    folder: Path
    tokens: TokenServer
    first: certificates.Issued = field(default_factory=lambda: certificates.issue("First Authority"))
    second: certificates.Issued = field(default_factory=lambda: certificates.issue("Second Authority"))

    def __post_init__(self) -> None:
        self.a, self.b = (self._broker(name) for name in "AB")
        self.late = LocalKafka("L", self.folder / "L", heap="320m")

    def _broker(self, name: str) -> LocalKafka:
        validator = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
        token = "listener.name.token.oauthbearer"
        overrides = {
            "listener.name.login.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.login.plain.sasl.jaas.config": f'{PLAIN} user_mirror="{PLAIN_PASSWORD}";',
            "listener.name.login.scram-sha-256.sasl.jaas.config": f"{SCRAM};",
            "listener.name.both.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.both.scram-sha-512.sasl.jaas.config": f"{SCRAM};",
            "listener.name.unsecured.sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.unsecured.oauthbearer.sasl.jaas.config": f'{OAUTH} unsecuredLoginStringClaim_sub="broker";',
            "listener.name.token.sasl.enabled.mechanisms": "OAUTHBEARER",
            f"{token}.sasl.jaas.config": f"{OAUTH};",
            f"{token}.sasl.server.callback.handler.class": validator,
            f"{token}.sasl.oauthbearer.jwks.endpoint.url": self.tokens.keys_url,
            f"{token}.sasl.oauthbearer.expected.audience": AUDIENCE,
            f"{token}.sasl.oauthbearer.expected.issuer": self.tokens.url,
            f"{token}.connections.max.reauth.ms": str(SESSION_MS),
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.expired.ssl.keystore.location": str(self.folder / "expired.p12"),
            **certificates.key_settings(self.folder / "server.p12"),
            **certificates.trust_settings(self.folder / "clients.pem"),
        }
        return LocalKafka(
            name,
            self.folder / name,
            listeners=LISTENERS,
            overrides=overrides,
            heap="384m",
            jvm_options=[f"-D{ALLOWED_URLS}={self.tokens.keys_url}"],
        )

    def certify(self, authority: certificates.Issued) -> None:
        """Set the brokers' certificates and truststores; they take effect at the next start."""
        certificates.issue("broker", authority, address="127.0.0.1").pkcs12(self.folder / "server.p12", authority)
        expired = certificates.issue("broker", authority, address="127.0.0.1", is_expired=True)
        expired.pkcs12(self.folder / "expired.p12", authority)
        (self.folder / "clients.pem").write_text(authority.certificate_pem)

    def equip(self, authority: certificates.Issued) -> None:
        """Set the certificates and truststores of the process by atomic replacement of the files."""
        fresh = self.folder / f"for-{authority.certificate.serial_number}"
        fresh.mkdir()
        client = certificates.issue("mirror", authority)
        client.pkcs12(fresh / "client.p12", authority)
        (fresh / "client.pem").write_text(client.key_pem(certificates.KEY_PASSWORD) + client.certificate_pem)
        (fresh / "trusted.pem").write_text(authority.certificate_pem)
        with concurrent.futures.ThreadPoolExecutor() as threads:
            kinds = ("JKS", "PKCS12")
            list(
                threads.map(
                    lambda kind: certificates.truststore(authority, fresh / f"trusted.{kind.lower()}", kind), kinds
                )
            )
        for file in ("client.p12", "client.pem", "trusted.pem", "trusted.jks", "trusted.pkcs12"):
            (fresh / file).rename(self.folder / file)

    # -- settings of the mechanisms

    def sides(self, way: str) -> tuple[dict[str, str], dict[str, str]]:
        """Settings of the flow's source and target without the protocol, with different key spellings where possible."""
        if way == "plain":
            login = {"sasl.mechanism": "PLAIN", "sasl.jaas.config": _login(PLAIN, "mirror", PLAIN_PASSWORD)}
            return login, login
        if way == "scram256":
            login = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": _login(SCRAM, USER, SCRAM_PASSWORD)}
            return login, login
        if way == "scram512":
            login = {
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.jaas.config": _login(SCRAM, USER, SCRAM_PASSWORD),
                "ssl.truststore.type": "PEM",
                # Both authorities, as where files cannot be replaced.
                "ssl.truststore.certificates": self.first.certificate_pem + self.second.certificate_pem,
            }
            return login, login
        if way == "unsecured":
            claims = f'{OAUTH} unsecuredLoginStringClaim_sub="mirror" unsecuredLoginLifetimeSeconds="60";'
            login = {"sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": claims}
            return login, login
        if way == "token":
            endpoint = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": self.tokens.token_url}
            by_module = f'{OAUTH} clientId="{CLIENT_ID}" clientSecret="{CLIENT_SECRET}" scope="copy";'
            return endpoint | self.client(CLIENT_SECRET), endpoint | {"sasl.jaas.config": by_module}
        password = {"ssl.truststore.password": certificates.PASSWORD}
        if way == "tls":
            return (
                {"ssl.truststore.location": str(self.folder / "trusted.jks"), "ssl.truststore.type": "JKS", **password},
                {
                    "ssl.truststore.location": str(self.folder / "trusted.pkcs12"),
                    "ssl.truststore.type": "PKCS12",
                    **password,
                },
            )
        trust = certificates.trust_settings(self.folder / "trusted.pem")
        return (
            {
                "ssl.keystore.location": str(self.folder / "client.p12"),
                "ssl.keystore.type": "PKCS12",
                "ssl.keystore.password": certificates.PASSWORD,
                **trust,
            },
            {
                "ssl.keystore.location": str(self.folder / "client.pem"),
                "ssl.keystore.type": "PEM",
                "ssl.key.password": certificates.KEY_PASSWORD,
                **trust,
            },
        )

    @staticmethod
    def client(secret: str) -> dict[str, str]:
        """The keys of KIP-1139 for the client at the token endpoint."""
        return {
            "sasl.jaas.config": f"{OAUTH};",
            "sasl.oauthbearer.client.credentials.client.id": CLIENT_ID,
            "sasl.oauthbearer.client.credentials.client.secret": secret,
        }

    def refusals(self) -> dict[str, tuple[str, dict[str, str]]]:
        """A listener and wrong settings for it, by kind of error."""
        trust = {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": self.first.certificate_pem}
        endpoint = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": self.tokens.token_url}
        impostor = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": _login(SCRAM, USER, WRONG_PASSWORD)}
        untrusted = certificates.issue("Somebody Else").certificate_pem
        return {
            "impostor": ("LOGIN", impostor),
            "unknown": ("TOKEN", endpoint | self.client(WRONG_SECRET)),
            "untrusted": ("TLS", {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": untrusted}),
            "expired": ("EXPIRED", trust),
            "misnamed": ("TLS", trust),
            "keyless": ("MUTUAL", trust),
            "locked": (
                "TLS",
                {
                    "ssl.truststore.location": str(self.folder / "trusted.pkcs12"),
                    "ssl.truststore.password": WRONG_PASSWORD,
                },
            ),
        }

    # -- the process

    def start(self) -> None:
        """Create all topics and records, then start the process."""
        for index, way in enumerate(WAYS):
            create(self.a, topic_of(way), 2)
            write(self.a, topic_of(way), index)
            commit(self.a, group_of(way), {(topic_of(way), 0): GROUP_OFFSET})
        create(self.a, "to-late", 1)
        write(self.a, "to-late", 0, partitions=1)
        flows: dict[tuple[str, str], str] = {(f"{way}A", f"{way}B"): f"{way}-.*" for way in WAYS}
        flows |= {("late", "plainB"): "from-late", ("plainA", "late"): "to-late"}
        flows |= {(wrong, "plainB"): "nothing" for wrong in SENTENCES}
        props = {"late.bootstrap.servers": self.late.bootstrap}
        for way in WAYS:
            for broker, settings in zip((self.a, self.b), self.sides(way), strict=True):
                props |= _cluster(f"{way}{broker.name}", broker.address(_LISTENER[way]), _LISTENER[way], settings)
        for wrong in SENTENCES:
            listener, settings = self.refusals()[wrong]
            props |= _cluster(wrong, self.a.address(listener), listener, settings)
        for (source, target), topics in flows.items():
            flow = f"{source}->{target}"
            props |= {f"{flow}.enabled": "true", f"{flow}.topics": topics, f"{flow}.groups": topics}
            props[f"{flow}.emit.heartbeats.enabled"] = str(source not in SENTENCES).lower()
            # That many workers in one process start slowly on a busy machine.
            props |= {f"{target}.session.timeout.ms": "45000", f"{target}.heartbeat.interval.ms": "9000"}
        common = {
            "clusters": ",".join(sorted({alias for flow in flows for alias in flow})),
            "emit.heartbeats.enabled": "false",
            "sync.group.offsets.enabled": "true",
            "sync.group.offsets.interval.seconds": "1",
            "offset.storage.partitions": "1",
            "status.storage.partitions": "1",
            "tasks.max": "1",
        }
        file = write_config(
            self.folder / "mm2.properties", {key: _text(value) for key, value in (common | props).items()}
        )
        self.process = MirrorProcess(file, self.folder / "log", variables={"MM2_LOG_LEVEL": "debug"})

    def await_copied(self, way: str, timeout_s: float = 200) -> None:
        """Assert that all records of the mechanism's topic were copied once and unchanged."""
        topic, remote = topic_of(way), f"{way}A.{topic_of(way)}"
        self.process.eventually(lambda: has_all(self.a, topic, self.b, remote), timeout_s)
        assert contents(self.b, remote) == contents(self.a, topic)

    def await_word(self, words: str) -> None:
        """Whether a log line contains the words, for example in its reason."""
        self.process.eventually(lambda: words in self.process.log.read_text(errors="replace"))

    def beat(self, way: str) -> int:
        """Time of the flow's newest heartbeat on the target in ms; 0 without one."""
        return heartbeats(self.b, "heartbeats").get((f"{way}A", f"{way}B"), 0)


_LISTENER: Mapping[str, str] = {
    "plain": "LOGIN",
    "scram256": "LOGIN",
    "scram512": "BOTH",
    "unsecured": "UNSECURED",
    "token": "TOKEN",
    "tls": "TLS",
    "mutual": "MUTUAL",
}


def topic_of(way: str) -> str:
    return f"{way}-orders"


def group_of(way: str) -> str:
    return f"{way}-billing"


def _login(module: str, user: str, password: str) -> str:
    return f'{module} username="{user}" password="{password}";'


def _cluster(alias: str, address: str, listener: str, settings: Mapping[str, str]) -> dict[str, str]:
    props = {"bootstrap.servers": address, "security.protocol": LISTENERS[listener], **settings}
    return {f"{alias}.{key}": value for key, value in props.items()}


def _text(value: str) -> str:
    """Escape a value for a properties file."""
    return value.replace("\n", "\\n")


def write(broker: LocalKafka, topic: str, seed: int, partitions: int = 2) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for i in range(partitions * RECORDS):
        producer.produce(topic, b"%d %d" % (seed, i), b"%d" % i, i % partitions)
    assert producer.flush(30) == 0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with TokenServer(CLIENT_SECRET, lifetime_s=10) as tokens, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KAFKA_OPTS", f"-D{ALLOWED_URLS}={tokens.token_url}")
        made = Site(tmp_path_factory.mktemp("site"), tokens)
        made.certify(made.first)
        made.equip(made.first)
        start_all([made.a, made.b])
        try:
            for broker in (made.a, made.b):
                for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
                    info = ScramCredentialInfo(mechanism, 4096)
                    user = UserScramCredentialUpsertion(USER, info, SCRAM_PASSWORD.encode())
                    for done in admin_of(broker).alter_user_scram_credentials([user]).values():
                        done.result(30)
            made.start()
            try:
                yield made
            finally:
                made.process.clean_up()
        finally:
            stop_all([made.a, made.b])
            made.late.stop()


@pytest.mark.parametrize("way", WAYS)
def test_records_groups_and_heartbeats_are_replicated(site: Site, way: str) -> None:
    site.await_copied(way)
    remote = f"{way}A.{topic_of(way)}"
    site.process.eventually(lambda: committed(site.b, group_of(way), remote) == GROUP_OFFSET)
    site.process.eventually(lambda: site.beat(way))


def test_tokens_are_refreshed_and_expired_sessions_block_nothing(site: Site) -> None:
    site.await_copied("token")

    def held_up() -> int:
        return len(site.process.lines(event="Copying is blocked.", flow="tokenA->tokenB"))

    tokens, troubles = len(site.tokens.issued), held_up()
    for seed in range(3):
        time.sleep(SESSION_MS / 2000)
        write(site.a, topic_of("token"), seed)
        site.await_copied("token")
    site.process.eventually(lambda: len(site.tokens.issued) > tokens)
    assert held_up() == troubles, "the end of a session is no trouble"


@pytest.mark.parametrize("wrong", SENTENCES)
def test_a_source_that_rejects_the_login_is_reported_in_one_sentence(site: Site, wrong: str) -> None:
    def reasons() -> list[str]:
        found = []
        for line in site.process.lines(flow=f"{wrong}->plainB"):
            if line["level"] in {"warning", "error"}:
                assert "exception" not in line, line
                found.append(str(line["event"]))
        return found

    site.process.eventually(lambda: any(re.search(SENTENCES[wrong], sentence) for sentence in reasons()))
    time.sleep(3)  # it is retried meanwhile
    # Not logged at each retry. On a busy machine it is logged again after a timeout or a lost session.
    begun = 1 + len(site.process.lines(event="group session expired", flow=f"{wrong}->plainB"))
    assert max(Counter(reasons()).values()) <= 1 + begun


def test_unreachable_clusters_are_awaited_while_the_others_continue(site: Site) -> None:
    process = site.process
    process.await_log("cannot be reached: connection refused", flow="late->plainB")
    waiting = "Waiting flows: plainA->late."
    assert "The target cluster late" in process.await_log(waiting)["event"]
    since = site.beat("plain")
    process.eventually(lambda: site.beat("plain") > since)
    site.late.start()
    create(site.late, "from-late", 1)
    write(site.late, "from-late", 0, partitions=1)
    for source, topic, target, alias in (
        (site.late, "from-late", site.b, "late"),
        (site.a, "to-late", site.late, "plainA"),
    ):
        process.eventually(lambda row=(source, topic, target, f"{alias}.{topic}"): has_all(*row), 120)  # type: ignore[misc]
        assert contents(target, f"{alias}.{topic}") == contents(source, topic)
    assert len(process.lines(event=waiting)) == 1
    process.await_log("Target cluster reachable; starting flows.", cluster="late")


EXPECTED = {
    "impostor": ("SASL SCRAM-SHA-256 at the broker 127.0.0.1:", "of cluster B failed: "),
    "unknown": ("the token endpoint http://127.0.0.1:", "refused with HTTP 401, invalid_client"),
    "untrusted": ("The certificate of the broker 127.0.0.1:", "of cluster B is not trusted: "),
    "expired": ("The certificate of the broker 127.0.0.1:", "expired"),
    "misnamed": ("The certificate of the broker localhost:", "of cluster B is not trusted: ", "localhost"),
    "keyless": ("The broker 127.0.0.1:", " TLS ", "may require a client certificate"),
    "locked": ("ssl.truststore.location", "trusted.pkcs12", "the password may be wrong"),
}


@pytest.fixture(scope="module")
def words(site: Site, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Exit code and error output of a process that cannot authenticate to its target."""
    cases = []
    for wrong, (listener, settings) in site.refusals().items():
        address = site.b.address(listener).replace("127.0.0.1", "localhost" if wrong == "misnamed" else "127.0.0.1")
        props = {"clusters": "A,B", "A.bootstrap.servers": "127.0.0.1:1", "A->B.enabled": "true"}
        props |= {key: _text(value) for key, value in _cluster("B", address, listener, settings).items()}
        file = write_config(tmp_path_factory.mktemp("refused") / "mm2.properties", props)
        cases.append([str(file), "--clusters", "B", "--log-level", "debug"])
    return dict(zip(site.refusals(), refused(cases), strict=True))


@pytest.mark.parametrize("wrong", EXPECTED)
def test_a_target_that_rejects_the_login_ends_the_process_with_one_sentence(
    words: dict[str, tuple[int, str]], wrong: str
) -> None:
    code, text = words[wrong]
    assert code == 2, text
    (error,) = [json.loads(line)["event"] for line in text.splitlines() if '"level": "error"' in line]
    assert error.startswith("The target cluster B (B.bootstrap.servers = ")
    for word in EXPECTED[wrong]:
        assert word in error
    assert_no_secret(text)


def test_replaced_certificates_are_used_without_a_restart(site: Site) -> None:
    """The brokers stop trusting the old authority at their restart; the process gets the new one some time later."""
    process = site.process
    for way in BY_FILES:
        site.await_copied(way)
    site.certify(site.second)
    stop_all([site.a, site.b])
    start_all([site.a, site.b])
    for seed, way in enumerate(WAYS):
        write(site.a, topic_of(way), 100 + seed)
    for way in BY_FILES:
        # At least an error of the target: without it the worker stops its tasks and does not connect to the source.
        site.await_word(f"of cluster {way}B is not trusted")
    # An operator replaces the files one after the other, the first of them not atomically.
    whole = (site.folder / "trusted.pem").read_bytes()
    (site.folder / "trusted.pem").write_bytes(whole[: len(whole) // 2])
    site.await_word("ssl.truststore.location: there is no certificate in it")
    site.equip(site.second)
    replaced_ms = time.time() * 1000
    for way in WAYS:
        site.await_copied(way)
    for way in BY_FILES:
        process.eventually(lambda way=way: site.beat(way) > replaced_ms)  # type: ignore[misc]
        process.eventually(lambda way=way: is_running(site.b, f"{way}A"))  # type: ignore[misc]
    for way in BY_FILES:
        # The producer of heartbeats waited; its task has not failed.
        again = process.lines(event="Failed connectors and tasks are restarted.", flow=f"{way}A->{way}B")
        assert [line for line in again if line["connector"] == "MirrorHeartbeatConnector"] == []
    assert process.lines(event="failed unexpectedly") == []
    assert process.lines(event="There is no ledger: delivery is at-least-once.") == []


def test_no_secret_is_in_the_logs_of_these_tests(site: Site) -> None:
    text = site.process.log.read_text(errors="replace")
    assert len(site.process.lines(level="debug")) > 10
    assert_no_secret(text)
    for token in site.tokens.issued:
        assert token.rpartition(".")[2] not in text


#: Prefix of tokens: `{"alg":` in base64.
_TOKENS = "eyJhbGciOi"


def assert_no_secret(text: str) -> None:
    secrets = (PLAIN_PASSWORD, SCRAM_PASSWORD, CLIENT_SECRET, WRONG_PASSWORD, WRONG_SECRET)
    for secret in (*secrets, certificates.PASSWORD, certificates.KEY_PASSWORD, "PRIVATE KEY", _TOKENS):
        found = text.find(secret)
        assert found < 0, text[max(0, found - 300) : found]
