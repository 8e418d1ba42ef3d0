"""Connections, authentication and TLS with one broker that has a listener for each security protocol."""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Self

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from kafka.protocol.admin import AlterUserScramCredentialsRequest, CreateTopicsRequest
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest

from mm2.kafka.admin import Admin
from mm2.kafka.auth.oauth import unsecured_token
from mm2.kafka.client import pool as pools
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.client.connection import Connection
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import (
    AuthenticationFailure,
    BrokerFailure,
    DisconnectedFailure,
    KafkaFailure,
    RefusedFailure,
    TimeoutFailure,
    TlsFailure,
    UnsupportedVersion,
)
from mm2.kafka.settings.assertion_settings import ALLOWED_URLS
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.settings.sasl_settings import Sasl
from mm2.kafka.structs import (
    AclBinding,
    AclFilter,
    AclOperation,
    AclPermission,
    NewTopic,
    PatternType,
    ResourceType,
)
from mm2.sandbox.kafka import LocalKafka
from tests.integration.logins import usable
from tests.support import certificates
from tests.support.waiting import wait_until

LISTENERS = {
    "OPEN": "PLAINTEXT",
    "LOGIN": "SASL_PLAINTEXT",
    "OAUTH": "SASL_PLAINTEXT",
    "SHORT": "SASL_PLAINTEXT",
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "BOTH": "SASL_SSL",
    "MOVED": "SASL_SSL",
    "BARE": "SASL_PLAINTEXT",
}
#: The broker advertises an address of another program for these, as a malicious broker can.
MOVED = ("MOVED", "BARE")
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
PLAIN_USERS = f'{PLAIN_MODULE} required user_alice="alice-secret" user_bob="bob-secret";'
ALL_MECHANISMS = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
    "plain.sasl.jaas.config": PLAIN_USERS,
    "scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
    "oauthbearer.sasl.jaas.config": f'{OAUTH_MODULE} required unsecuredLoginStringClaim_sub="broker";',
}
#: Comma and equals sign must be escaped in SCRAM messages, and both occur in names from certificates.
SCRAM_USER = "CN=carol,O=x"


@dataclass(frozen=True)
class Secured:
    """The broker and the keystores of its clients."""

    broker: LocalKafka
    authority: certificates.Issued
    client: certificates.Issued
    folder: Path

    def props(self, listener: str, **more: str) -> dict[str, str]:
        """Settings for a listener; underscores in keys stand for dots."""
        return {
            "bootstrap.servers": self.broker.address(listener),
            "security.protocol": LISTENERS[listener],
            "request.timeout.ms": "5000",
            **{key.replace("_", "."): value for key, value in more.items()},
        }

    def open(self, props: Mapping[str, str], *, timeout_s: float = 5) -> Connection:
        settings = ClientSettings.from_props(props)
        return Connection.open(*settings.bootstrap[0], settings, timeout_s=timeout_s, cluster="S")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority = certificates.issue("Test Authority")
    server = certificates.issue("broker", authority, address="127.0.0.1")
    client = certificates.issue("client", authority)
    server.pkcs12(folder / "server.p12", authority)
    client.pkcs12(folder / "client.p12", authority)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        made = [
            threads.submit(certificates.to_jks, folder / "client.p12", folder / "client.jks"),
            threads.submit(certificates.truststore, authority, folder / "trust.jks", "JKS"),
            threads.submit(certificates.truststore, authority, folder / "trust.p12", "PKCS12"),
        ]
        for future in made:
            future.result()
    overrides = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.login.plain.sasl.jaas.config": PLAIN_USERS,
        "listener.name.login.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
        "listener.name.login.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE} required;",
        "listener.name.short.plain.sasl.jaas.config": PLAIN_USERS,
        "listener.name.short.plain.connections.max.reauth.ms": "1500",
        "listener.name.short.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.both.plain.sasl.jaas.config": PLAIN_USERS,
        "listener.name.both.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.oauth.oauthbearer.sasl.jaas.config": f'{OAUTH_MODULE} required unsecuredLoginStringClaim_sub="broker";',
        **{f"listener.name.{name.lower()}.{key}": value for name in MOVED for key, value in ALL_MECHANISMS.items()},
        "listener.name.mutual.ssl.client.auth": "required",
        **certificates.key_settings(folder / "server.p12"),
        "ssl.truststore.location": str(folder / "trust.p12"),
        "ssl.truststore.type": "PKCS12",
        "ssl.truststore.password": certificates.PASSWORD,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:alice",
        "allow.everyone.if.no.acl.found": "true",
    }
    with LocalKafka("S", folder / "broker", listeners=LISTENERS, overrides=overrides, proxied=MOVED) as broker:
        secured = Secured(broker, authority, client, folder)
        create_scram_user(secured, SCRAM_USER, "carol-secret")
        yield secured


def create_scram_user(secured: Secured, name: str, password: str) -> None:
    """Create SCRAM users as `kafka-configs --alter` does: the format tool accepts no name with a comma."""
    cluster = Cluster(ClientSettings.from_props(secured.props("OPEN")), name="S")
    for mechanism, digest in ((1, "sha256"), (2, "sha512")):
        credential = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
            name=name,
            mechanism=mechanism,
            iterations=4096,
            salt=b"salt",
            salted_password=hashlib.pbkdf2_hmac(digest, password.encode(), b"salt", 4096),
        )
        answer = cluster.send(None, AlterUserScramCredentialsRequest(deletions=[], upsertions=[credential]))
        assert [result.error_code for result in answer.results] == [0]
    cluster.close()


def jaas(module: str, username: str, password: str) -> str:
    return f'{module} required username="{username}" password="{password}";'


# -- connections


def test_open_negotiates_versions_with_the_broker(secured: Secured) -> None:
    connection = secured.open(secured.props("OPEN"))
    assert connection.version_of(ApiVersionsRequest) == 4
    assert connection.version_of(MetadataRequest, max_version=9) == 9
    assert connection.version_of(MetadataRequest(topics=None, max_version=5)) == 5
    usable(connection)


def test_version_below_the_brokers_minimum_is_unsupported(secured: Secured) -> None:
    connection = secured.open(secured.props("OPEN"))
    with pytest.raises(UnsupportedVersion, match=r"Broker 127\.0\.0\.1:\d+ of cluster S: .*CreateTopics") as raised:
        connection.version_of(CreateTopicsRequest, max_version=1)
    assert raised.value.code == ErrorCode.UNSUPPORTED_VERSION
    connection.close()


def test_responses_to_pipelined_requests_arrive_in_order(secured: Secured) -> None:
    connection = secured.open(secured.props("OPEN"))
    ids = [connection.send(MetadataRequest(topics=[], max_version=version)) for version in (13, 5, 9)]
    assert ids == sorted(ids)
    assert connection.in_flight == 3
    versions = [connection.receive(timeout_s=5).version for _ in range(3)]
    assert versions == [13, 5, 9]
    assert connection.in_flight == 0
    connection.close()


def test_a_raw_frame_is_sent_in_pieces_and_read_into_the_callers_buffer(secured: Secured) -> None:
    connection = secured.open(secured.props("OPEN"))
    request = ApiVersionsRequest[0]()
    correlation_id = connection.next_correlation_id()
    request.with_header(correlation_id=correlation_id, client_id="raw")
    frame = request.encode(header=True, framed=True)
    connection.send_buffers([frame[:3], memoryview(frame)[3:9], bytearray(frame[9:])])
    buffer = bytearray(2)
    view = connection.receive_frame(buffer, timeout_s=5)
    assert int.from_bytes(view[:4]) == correlation_id
    assert len(buffer) >= len(view) > 100
    connection.close()


def test_plaintext_client_at_a_tls_port_reports_tls(secured: Secured) -> None:
    props = secured.props("TLS", security_protocol="PLAINTEXT")
    with pytest.raises(TlsFailure, match="uses TLS on this port"):
        secured.open(props)


def test_tls_client_at_a_plaintext_port_reports_plaintext(secured: Secured) -> None:
    props = secured.props(
        "OPEN", security_protocol="SSL", ssl_truststore_certificates=secured.authority.certificate_pem
    )
    with pytest.raises(TlsFailure, match="listener without TLS"):
        secured.open(props)


def test_client_without_sasl_at_a_sasl_port_reports_sasl(secured: Secured) -> None:
    with pytest.raises(DisconnectedFailure, match="requires SASL"):
        Cluster(ClientSettings.from_props(secured.props("LOGIN", security_protocol="PLAINTEXT")), name="S").preflight(5)


def test_sasl_client_at_a_plaintext_port_reports_missing_sasl(secured: Secured) -> None:
    config = jaas(PLAIN_MODULE, "alice", "alice-secret")
    props = secured.props("OPEN", security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", sasl_jaas_config=config)
    with pytest.raises(AuthenticationFailure, match="does not use SASL"):
        secured.open(props)


def test_frozen_broker_is_a_timeout_at_the_deadline(secured: Secured) -> None:
    connection = secured.open(secured.props("OPEN"))
    secured.broker.pause()
    try:
        start = time.monotonic()
        with pytest.raises(TimeoutFailure, match="did not answer a Metadata request in time"):
            connection.request(MetadataRequest(topics=[]), timeout_s=0.3)
        assert 0.25 < time.monotonic() - start < 20, "the default is 30 s"
        assert connection.closed
        start = time.monotonic()
        with pytest.raises(TimeoutFailure):
            secured.open(secured.props("OPEN"), timeout_s=0.3)
        assert 0.25 < time.monotonic() - start < 20, "the default is 30 s"
    finally:
        secured.broker.resume()


# -- SASL


@pytest.mark.parametrize(
    ("listener", "mechanism", "config"),
    [
        ("LOGIN", "PLAIN", jaas(PLAIN_MODULE, "alice", "alice-secret")),
        ("LOGIN", "SCRAM-SHA-256", jaas(SCRAM_MODULE, SCRAM_USER, "carol-secret")),
        ("LOGIN", "SCRAM-SHA-512", jaas(SCRAM_MODULE, SCRAM_USER, "carol-secret")),
        ("OAUTH", "OAUTHBEARER", f'{OAUTH_MODULE} required unsecuredLoginStringClaim_sub="dave";'),
    ],
    ids=["plain", "scram-256", "scram-512", "oauth"],
)
def test_login_succeeds(secured: Secured, listener: str, mechanism: str, config: str) -> None:
    usable(secured.open(secured.props(listener, sasl_mechanism=mechanism, sasl_jaas_config=config)))


@pytest.mark.parametrize(
    ("listener", "mechanism", "config"),
    [
        ("LOGIN", "PLAIN", jaas(PLAIN_MODULE, "alice", "wrong")),
        ("LOGIN", "SCRAM-SHA-256", jaas(SCRAM_MODULE, SCRAM_USER, "wrong")),
        ("LOGIN", "SCRAM-SHA-512", jaas(SCRAM_MODULE, "nobody", "wrong")),
        (
            "OAUTH",
            "OAUTHBEARER",
            f'{OAUTH_MODULE} required unsecuredLoginStringClaim_sub="dave" unsecuredLoginLifetimeSeconds="-600";',
        ),
    ],
    ids=["plain", "scram-256", "scram-512", "oauth"],
)
def test_wrong_credentials_are_an_authentication_failure_and_not_tried_again(
    secured: Secured, listener: str, mechanism: str, config: str
) -> None:
    props = secured.props(listener, sasl_mechanism=mechanism, sasl_jaas_config=config)
    cluster = Cluster(ClientSettings.from_props(props), name="S")
    with pytest.raises(
        AuthenticationFailure, match=rf"SASL {mechanism} at the broker 127.* of cluster S failed: "
    ) as raised:
        cluster.preflight(600)  # longer than a test may take
    assert "wrong" not in str(raised.value)
    cluster.close()


def test_a_disabled_mechanism_is_reported_with_the_enabled_ones(secured: Secured) -> None:
    config = jaas(PLAIN_MODULE, "alice", "alice-secret")
    with pytest.raises(AuthenticationFailure, match="PLAIN, enabled there: OAUTHBEARER"):
        secured.open(secured.props("OAUTH", sasl_mechanism="PLAIN", sasl_jaas_config=config))


def test_token_from_a_file_logs_in(secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sasl = Sasl("OAUTHBEARER", options=(("unsecuredLoginStringClaim_sub", "dave"),))
    path = tmp_path / "token"
    path.write_text(unsecured_token(sasl, now_s=time.time()).text + "\n")
    monkeypatch.setenv("KAFKA_OPTS", f"-D{ALLOWED_URLS}={path.as_uri()}")
    props = secured.props(
        "OAUTH",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauthbearer_token_endpoint_url=path.as_uri(),
        sasl_jaas_config=f"{OAUTH_MODULE} required;",
    )
    usable(secured.open(props))


def test_session_is_renewed_on_the_open_connection(secured: Secured) -> None:
    config = jaas(PLAIN_MODULE, "alice", "alice-secret")
    connection = secured.open(secured.props("SHORT", sasl_mechanism="PLAIN", sasl_jaas_config=config))
    before = connection.fileno()
    # More than two lifetimes of 1.5 s, after which the broker closes the connection; re-authentication within a second is rejected.
    end = time.monotonic() + 3.4
    while time.monotonic() < end:
        connection.request(MetadataRequest(topics=[]))
        time.sleep(0.1)
    assert not connection.closed
    assert connection.fileno() == before
    connection.close()


# -- TLS


def trusted(secured: Secured, kind: str) -> dict[str, str]:
    if kind == "PEM text":
        return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": secured.authority.certificate_pem}
    if kind == "PEM file":
        path = secured.folder / "trust.pem"
        path.write_text(secured.authority.certificate_pem)
        return {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(path)}
    # The configured type is always wrong: JKS for PKCS12 and vice versa.
    file, declared = ("trust.p12", "JKS") if kind == "PKCS12" else ("trust.jks", "PKCS12")
    return {
        "ssl.truststore.type": declared,
        "ssl.truststore.location": str(secured.folder / file),
        "ssl.truststore.password": certificates.PASSWORD,
    }


def own_key(secured: Secured, kind: str) -> dict[str, str]:
    pem = secured.client.key_pem(certificates.KEY_PASSWORD)
    if kind == "PEM text":
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": pem,
            "ssl.keystore.certificate.chain": secured.client.certificate_pem,
            "ssl.key.password": certificates.KEY_PASSWORD,
        }
    if kind == "PEM file":
        path = secured.folder / "client.pem"
        path.write_text(pem + secured.client.certificate_pem)
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(path),
            "ssl.key.password": certificates.KEY_PASSWORD,
        }
    key_password = certificates.PASSWORD if kind == "PKCS12" else certificates.KEY_PASSWORD
    return {
        "ssl.keystore.location": str(secured.folder / ("client.p12" if kind == "PKCS12" else "client.jks")),
        "ssl.keystore.password": certificates.PASSWORD,
        "ssl.key.password": key_password,
    }


@pytest.mark.parametrize("kind", ["PEM text", "PEM file", "PKCS12", "JKS"])
def test_tls_with_client_certificate_from_every_kind_of_store(secured: Secured, kind: str) -> None:
    usable(secured.open({**secured.props("MUTUAL"), **trusted(secured, kind), **own_key(secured, kind)}))


def test_missing_client_certificate_is_a_tls_failure(secured: Secured) -> None:
    with pytest.raises(TlsFailure, match="may require a client certificate"):
        usable(secured.open({**secured.props("MUTUAL"), **trusted(secured, "PEM text")}))


def test_sasl_over_tls(secured: Secured) -> None:
    config = jaas(PLAIN_MODULE, "alice", "alice-secret")
    props = secured.props("BOTH", sasl_mechanism="PLAIN", sasl_jaas_config=config)
    usable(secured.open({**props, **trusted(secured, "PKCS12")}))


def test_unknown_authority_is_a_tls_failure_that_names_it(secured: Secured) -> None:
    untrusted = certificates.issue("Somebody Else").certificate_pem
    with pytest.raises(TlsFailure, match=r"certificate of the broker .* is not trusted"):
        secured.open(secured.props("TLS", ssl_truststore_certificates=untrusted))


def test_host_name_is_checked_unless_switched_off(secured: Secured) -> None:
    port = secured.broker.address("TLS").rpartition(":")[2]
    props = {**secured.props("TLS", bootstrap_servers=f"localhost:{port}"), **trusted(secured, "PEM text")}
    with pytest.raises(TlsFailure, match="localhost"):
        secured.open(props)
    usable(secured.open({**props, "ssl.endpoint.identification.algorithm": ""}))


@pytest.mark.parametrize(
    ("settings", "version", "cipher"),
    [
        ({}, "TLSv1.3", "TLS_AES_256_GCM_SHA384"),
        ({"ssl.enabled.protocols": "TLSv1.2"}, "TLSv1.2", "ECDHE-{0}-AES256-GCM-SHA384"),
        ({"ssl.cipher.suites": "TLS_ECDHE_{0}_WITH_AES_128_GCM_SHA256"}, "TLSv1.2", "ECDHE-{0}-AES128-GCM-SHA256"),
        ({"ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"}, "TLSv1.3", "TLS_AES_256_GCM_SHA384"),
    ],
    ids=["default", "ssl.enabled.protocols", "ssl.cipher.suites", "a suite of TLS 1.3"],
)
def test_sessions_have_an_enabled_version_and_a_configured_cipher(
    secured: Secured, settings: dict[str, str], version: str, cipher: str
) -> None:
    """Without a suite of TLS 1.3, that version is disabled."""
    kind = "ECDSA" if isinstance(secured.authority.certificate.public_key(), ec.EllipticCurvePublicKey) else "RSA"
    settings = {key: value.format(kind) for key, value in settings.items()}
    connection = secured.open({**secured.props("TLS"), **trusted(secured, "PEM text"), **settings})
    assert isinstance(connection.sock, ssl.SSLSocket)
    found = connection.sock.cipher()
    assert found is not None
    assert (connection.sock.version(), found[0]) == (version, cipher.format(kind))
    usable(connection)


def test_a_session_with_a_cipher_suite_outside_the_list_is_not_used(secured: Secured) -> None:
    """The broker chooses AES 256 among the suites of TLS 1.3 that OpenSSL always offers."""
    settings = {"ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"}
    with pytest.raises(TlsFailure, match=r"TLS_AES_256_GCM_SHA384 was chosen, which is not in ssl\.cipher\.suites"):
        secured.open({**secured.props("TLS"), **trusted(secured, "PEM text"), **settings})


def test_wrong_store_password_names_the_file(secured: Secured) -> None:
    for file in ("trust.jks", "trust.p12"):
        path = str(secured.folder / file)
        props = secured.props("TLS", ssl_truststore_location=path, ssl_truststore_password="wrong")
        with pytest.raises(TlsFailure, match="password may be wrong") as raised:
            secured.open(props)
        assert path in str(raised.value)


def test_large_frames_pass_through_tls_in_both_directions(secured: Secured) -> None:
    settings = ClientSettings.from_props({**secured.props("TLS"), **trusted(secured, "PEM text")})
    cluster = Cluster(settings, name="S")
    # Names of 20,000 topics that do not exist: a request of half a megabyte, and a larger response.
    names = [f"no-such-topic-{number:010d}" for number in range(20_000)]
    metadata = cluster.metadata(names)
    assert len(metadata.errors) == 20_000
    cluster.close()


# -- authorization


def test_acls_are_described_as_created_and_a_denied_topic_is_an_error_of_its_own(secured: Secured, unique: str) -> None:
    cluster = Cluster(ClientSettings.from_props(secured.props("OPEN")), name="S")
    admin = Admin(cluster)
    denied, open_topic = f"{unique}-denied", f"{unique}-open"
    assert admin.create_topics([NewTopic(denied, 1), NewTopic(open_topic, 1)]) == {denied: None, open_topic: None}
    binding = AclBinding(
        ResourceType.TOPIC, denied, PatternType.LITERAL, "User:bob", "*", AclOperation.ALL, AclPermission.DENY
    )
    assert admin.create_acls([binding]) == {binding: None}
    matching = AclFilter(resource_type=ResourceType.TOPIC, resource_name=denied, pattern_type=PatternType.LITERAL)
    wait_until(lambda: admin.describe_acls(matching) == [binding], what="the ACL")
    cluster.close()

    config = jaas(PLAIN_MODULE, "bob", "bob-secret")
    props = secured.props("LOGIN", sasl_mechanism="PLAIN", sasl_jaas_config=config)
    cluster = Cluster(ClientSettings.from_props(props), name="S")
    bob = Admin(cluster)
    for answers in (bob.describe_topics([denied, open_topic]), bob.describe_configs([denied, open_topic])):
        failure = answers[denied]
        assert isinstance(failure, BrokerFailure)
        assert failure.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert not isinstance(answers[open_topic], KafkaFailure)
    assert denied not in bob.list_topics()
    cluster.close()


# -- the pool


def test_requests_of_many_threads_share_few_connections(secured: Secured) -> None:
    cluster = Cluster(ClientSettings.from_props(secured.props("OPEN")), name="S")
    cluster.preflight(5)
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: cluster.metadata(()).cluster_id, range(64)))
    assert set(answers) == {secured.broker.cluster_id}
    cluster.close()


def test_idle_connection_is_closed_after_the_idle_timeout(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(ClientSettings.from_props(secured.props("OPEN", connections_max_idle_ms="600000")), name="S")
    pool = cluster._pool
    address = ("127.0.0.1", int(secured.broker.address("OPEN").rpartition(":")[2]))
    with pool.lease(address, time.monotonic() + 5) as first:
        pass
    with pool.lease(address, time.monotonic() + 5) as again:
        assert again is first
    monkeypatch.setattr(pools, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 601))
    with pool.lease(address, time.monotonic() + 700) as later:
        assert later is not first
        assert first.closed
    cluster.close()


def test_a_timed_out_request_does_not_affect_the_pool(secured: Secured) -> None:
    cluster = Cluster(ClientSettings.from_props(secured.props("OPEN")), name="S")
    cluster.preflight(5)
    secured.broker.pause()
    try:
        with pytest.raises(TimeoutFailure):
            cluster.send(None, MetadataRequest(topics=[]), timeout_s=0.2)
    finally:
        secured.broker.resume()
    for _ in range(3):
        assert cluster.metadata(()).cluster_id == secured.broker.cluster_id
    cluster.close()


def test_an_unsupported_version_does_not_close_a_connection(secured: Secured) -> None:
    cluster = Cluster(ClientSettings.from_props(secured.props("OPEN")), name="S")
    cluster.preflight(5)
    pool = cluster._pool
    address = ("127.0.0.1", int(secured.broker.address("OPEN").rpartition(":")[2]))
    with pool.lease(address, time.monotonic() + 5) as first:
        pass
    with pytest.raises(UnsupportedVersion):
        cluster.send(None, CreateTopicsRequest(topics=[], max_version=1))
    with pool.lease(address, time.monotonic() + 5) as again:
        assert again is first
    cluster.close()


def test_close_ends_a_wait_in_another_thread_immediately(secured: Secured) -> None:
    cluster = Cluster(ClientSettings.from_props(secured.props("OPEN")), name="S")
    cluster.preflight(5)
    ends: list[BaseException | float] = []

    def wait() -> None:
        try:
            cluster.send(None, MetadataRequest(topics=[]), timeout_s=600)
        except KafkaFailure as failure:
            ends.append(failure)

    secured.broker.pause()
    try:
        waiter = threading.Thread(target=wait)
        waiter.start()
        time.sleep(0.2)
        cluster.close()
        waiter.join(60)
    finally:
        secured.broker.resume()
    (failure,) = ends
    assert isinstance(failure, DisconnectedFailure)
    with pytest.raises(DisconnectedFailure, match="client of cluster S is closed"):
        cluster.send(None, MetadataRequest(topics=[]))


@pytest.mark.slow
def test_a_restarted_broker_is_reconnected_and_refusals_are_reported_meanwhile(secured: Secured) -> None:
    """Last in this file: it restarts the broker."""
    cluster = Cluster(ClientSettings.from_props(secured.props("OPEN")), name="S")
    node = next(iter(cluster.metadata(()).brokers))
    secured.broker.kill9()
    with pytest.raises((RefusedFailure, DisconnectedFailure)):
        cluster.send(node, MetadataRequest(topics=[]), timeout_s=5)
    with pytest.raises(RefusedFailure, match=r"of cluster S cannot be reached: connection refused"):
        cluster.send(None, MetadataRequest(topics=[]), timeout_s=600)  # longer than a test may take
    secured.broker.start()
    assert json.dumps(cluster.send(node, MetadataRequest(topics=[]), timeout_s=10).cluster_id)
    cluster.close()


# -- brokers that name other hosts


class Elsewhere:
    """A program at the address that the broker advertises: it relays to the broker, and keeps what it has read.

    ``own``: its certificate; None: it does not use TLS.
    """

    def __init__(self, secured: Secured, listener: str, own: certificates.Issued | None) -> None:
        self.read = bytearray()
        self.connections = 0
        self._upstream = secured.broker.address("BARE").rpartition(":")
        self._context: ssl.SSLContext | None = None
        if own is not None:
            chain = secured.folder / "elsewhere.pem"
            chain.write_text(own.key_pem() + own.certificate_pem)
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(chain)
        host, _, port = secured.broker.advertised(listener).rpartition(":")
        self._listening = socket.create_server((host, int(port)))
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.enter_context(client)
            if self._context is not None:
                client = stack.enter_context(self._context.wrap_socket(client, server_side=True))
            broker = stack.enter_context(socket.create_connection((self._upstream[0], int(self._upstream[2]))))
            threading.Thread(target=self._answer, args=(broker, client), daemon=True).start()
            while piece := client.recv(65_536):
                self.read += piece
                broker.sendall(piece)

    def _answer(self, broker: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := broker.recv(65_536):
                client.sendall(piece)


#: Mechanism, JAAS configuration, and what it would be a loss to send.
CREDENTIALS = {
    "plain": ("PLAIN", jaas(PLAIN_MODULE, "alice", "alice-secret"), b"alice-secret"),
    "scram": ("SCRAM-SHA-256", jaas(SCRAM_MODULE, SCRAM_USER, "carol-secret"), b"carol-secret"),
    "oauth": ("OAUTHBEARER", f'{OAUTH_MODULE} required unsecuredLoginStringClaim_sub="dave";', b"Bearer "),
}


def follow(secured: Secured, listener: str, mechanism: str, config: str, **more: str) -> KafkaFailure | None:
    """Send a request to the broker that the metadata name; the failure, if it does not answer."""
    trusted = {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": secured.authority.certificate_pem}
    props = secured.props(listener, sasl_mechanism=mechanism, sasl_jaas_config=config, **more)
    cluster = Cluster(ClientSettings.from_props({**props, **(trusted if listener == "MOVED" else {})}), name="S")
    try:
        (node,) = cluster.metadata(()).brokers
        cluster.send(node, MetadataRequest(topics=[]), timeout_s=5)
    except KafkaFailure as failure:
        return failure
    finally:
        cluster.close()
    return None


@pytest.mark.parametrize("name", CREDENTIALS)
@pytest.mark.parametrize("own", ["no TLS", "an unknown authority", "another name"])
def test_a_host_of_the_metadata_gets_nothing_before_it_has_proved_its_name(
    secured: Secured, own: str, name: str
) -> None:
    mechanism, config, secret = CREDENTIALS[name]
    found = {
        "no TLS": None,
        "an unknown authority": certificates.issue("broker", address="127.0.0.1"),
        "another name": certificates.issue("elsewhere", secured.authority, hosts=["elsewhere.example"]),
    }[own]
    with Elsewhere(secured, "MOVED", found) as elsewhere:
        assert isinstance(follow(secured, "MOVED", mechanism, config), KafkaFailure)
        assert elsewhere.connections
        if own == "no TLS":
            assert elsewhere.read.startswith(b"\x16\x03"), "the TLS handshake"
            for word in (secret, mechanism.encode(), b"alice", b"carol", b"dave"):
                assert word not in elsewhere.read
        else:
            assert elsewhere.read == b""


@pytest.mark.parametrize("name", CREDENTIALS)
@pytest.mark.parametrize("listener", MOVED)
def test_without_a_check_of_its_name_a_host_of_the_metadata_gets_what_the_mechanism_sends(
    secured: Secured, listener: str, name: str
) -> None:
    """As with Java's clients: a password by PLAIN, a token by OAUTHBEARER, and by SCRAM only proofs of the password."""
    mechanism, config, secret = CREDENTIALS[name]
    own = certificates.issue("elsewhere", secured.authority, hosts=["elsewhere.example"])
    with Elsewhere(secured, listener, own if listener == "MOVED" else None) as elsewhere:
        assert follow(secured, listener, mechanism, config, ssl_endpoint_identification_algorithm="") is None
        assert mechanism.encode() in elsewhere.read
        assert (secret in elsewhere.read) == (name != "scram")
