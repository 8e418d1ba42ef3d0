"""ACLs, certificates, passwords and quotas change during replication (rows S of docs/reference/reliability.md)."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from kafka.protocol.admin import AlterClientQuotasRequest, AlterUserScramCredentialsRequest

from mm2.copy.driver.engine import CopyEngine
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import TopicPartition as Mm2TopicPartition
from mm2.sandbox.kafka import LocalKafka
from tests.faults.environment import (
    COPYING_BLOCKED,
    COPYING_CONTINUES,
    Environment,
    MirrorMaker,
    ReplicatedTopic,
    Topics,
    kill,
    members,
    running_mirror_maker,
)
from tests.integration.copy.test_copy_engine import numbered, write
from tests.integration.copy_flow import Flow, read
from tests.integration.spark_workers import workers
from tests.support import certificates
from tests.support.waiting import wait_until

_NOTICED_S = 30.0
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
RIGHT, WRONG = "mirror-secret", "not-the-secret"
GROUP = "S-group"


@dataclass(frozen=True)
class Guarded:
    """A source with authentication. `bootstrap` is its listener without, for the clients of the tests."""

    broker: LocalKafka
    folder: Path

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap

    def certify(self, server: certificates.Issued, authority: certificates.Issued) -> None:
        """Set the broker's certificate; it takes effect at the next start."""
        server.pkcs12(self.folder / "server.p12", authority)

    def set_password(self, password: str) -> None:
        credential = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
            name="mirror",
            mechanism=1,
            iterations=4096,
            salt=b"salt",
            salted_password=hashlib.pbkdf2_hmac("sha256", password.encode(), b"salt", 4096),
        )
        with cluster_of(self.bootstrap) as cluster:
            request = AlterUserScramCredentialsRequest(deletions=[], upsertions=[credential])
            assert [result.error_code for result in cluster.send(None, request).results] == [0]


@contextmanager
def cluster_of(bootstrap: str) -> Iterator[Cluster]:
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": bootstrap}), name="S")
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    authority = certificates.issue("First Authority")
    overrides = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.login.scram-sha-256.sasl.jaas.config": f"{SCRAM} required;",
        **certificates.key_settings(folder / "server.p12"),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "true",
    }
    listeners = {"OPEN": "PLAINTEXT", "LOGIN": "SASL_PLAINTEXT", "TLS": "SSL"}
    broker = LocalKafka("S", folder / "broker", listeners=listeners, overrides=overrides, heap="384m")
    made = Guarded(broker, folder)
    made.certify(certificates.issue("broker", authority, address="127.0.0.1"), authority)
    (folder / "trusted.pem").write_text(authority.certificate_pem)
    with broker:
        made.set_password(RIGHT)
        yield made


def login(alias: str, password: str) -> dict[str, str]:
    return {
        f"{alias}.security.protocol": "SASL_PLAINTEXT",
        f"{alias}.sasl.mechanism": "SCRAM-SHA-256",
        f"{alias}.sasl.jaas.config": f'{SCRAM} required username="mirror" password="{password}";',
        f"{alias}->B.groups": GROUP,
    }


@pytest.fixture(scope="module")
def mirror_maker(guarded: Guarded, shared_environment: Environment) -> Iterator[MirrorMaker]:
    environment = shared_environment
    through = (guarded.broker.address("LOGIN"), environment.b.bootstrap)
    with running_mirror_maker(
        environment.folder / "S",
        "S",
        source=guarded,
        target=environment.b,
        through=through,
        topics=6,
        settings=login("S", RIGHT),
    ) as flow:
        yield flow


@pytest.fixture
def replicated(environment: Environment, guarded: Guarded, mirror_maker: MirrorMaker) -> ReplicatedTopic:
    return ReplicatedTopic(guarded, environment.b, mirror_maker, mirror_maker.unused.pop(0), 2)


@pytest.fixture
def other(environment: Environment, guarded: Guarded, mirror_maker: MirrorMaker) -> ReplicatedTopic:
    return ReplicatedTopic(guarded, environment.b, mirror_maker, mirror_maker.unused.pop(0), 2)


@contextmanager
def denied(guarded: Guarded, kind: ResourceType, name: str, operations: Sequence[AclOperation]) -> Iterator[None]:
    """Deny User:mirror these operations inside the `with` block, and allow all others."""
    admin = AdminClient({"bootstrap.servers": guarded.bootstrap, "log_level": 0})
    rights = [(AclOperation.ALL, AclPermissionType.ALLOW)]  # the first ACL of a topic denies all other principals
    rights += [(operation, AclPermissionType.DENY) for operation in operations]
    bindings = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, "User:mirror", "*", operation, permission)
        for operation, permission in rights
    ]
    for done in admin.create_acls(bindings).values():
        done.result(30)
    try:
        yield
    finally:
        unset: Any = None
        everything = AclBindingFilter(
            kind, name, ResourcePatternType.LITERAL, unset, unset, AclOperation.ANY, AclPermissionType.ANY
        )
        for done in admin.delete_acls([everything]).values():
            done.result(30)


def test_s1_a_topic_without_read_permission_is_reported_and_the_others_continue(
    replicated: ReplicatedTopic, other: ReplicatedTopic, mirror_maker: MirrorMaker, guarded: Guarded
) -> None:
    with replicated.load(), other.load():
        replicated.await_copied()
        with denied(guarded, ResourceType.TOPIC, replicated.topic, [AclOperation.READ]):
            wait_until(
                lambda: mirror_maker.lines(COPYING_BLOCKED, reason="TOPIC_AUTHORIZATION_FAILED"),
                _NOTICED_S,
                what="the log message",
                detail=mirror_maker.tail,
            )
            assert any(replicated.topic in line["reason"] for line in mirror_maker.lines(COPYING_BLOCKED))
            other.await_copied()  # meanwhile, what had been fetched before arrives
            stopped = replicated.arrived()
            other.await_copied()
            assert replicated.arrived() == stopped
        replicated.await_copied()
        wait_until(
            lambda: mirror_maker.lines(COPYING_CONTINUES),
            _NOTICED_S,
            what="the message that copying continues",
            detail=mirror_maker.tail,
        )
    for each in (replicated, other):
        each.judge().assert_exactly_once()


@pytest.mark.slow
def test_s1_without_read_permission_on_the_target_at_least_once_is_reported_before_any_crash(
    engine: CopyEngine, environment: Environment, guarded: Guarded, unique: str
) -> None:
    flow = Flow(engine, environment.a, guarded.broker, unique)
    topic = flow.topic()
    tp = Mm2TopicPartition(topic, 0)
    target = ClientSettings.from_props(
        {
            "bootstrap.servers": guarded.broker.address("LOGIN"),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.jaas.config": f'{SCRAM} required username="mirror" password="{RIGHT}";',
        },
        client_id="copy-target",
    )
    spec = replace(flow.spec(topic), target=target)

    def note() -> str:
        entry = flow.ledger().entry(tp)
        return "" if entry is None else entry.note

    write(flow.source, topic, numbered(0, 50))
    with denied(guarded, ResourceType.TOPIC, flow.remote(topic), [AclOperation.READ]), flow.copying(spec) as job:
        wait_until(lambda: flow.committed(spec) == {tp: 50}, detail=job.progress)
        wait_until(lambda: note().startswith("at least once: "), detail=job.progress)
        assert f"{flow.remote(topic)}-0" in note()
        # Progress is reported with a delay: the first report may say that a coordinator is still loading.
        wait_until(
            lambda: [(row.state, row.reason) for row in job.progress()] == [("RUNNING", note())], detail=job.progress
        )
        batches = job.status()["batches"]
        kill(workers())
        write(flow.source, topic, numbered(50, 50))
        wait_until(lambda: job.status()["batches"] > batches, detail=job.progress)
        flow.wait_until_copied(job, spec)
        wait_until(lambda: note().startswith("at least once: "), detail=job.progress)
    got = [record.content for record in read(guarded.broker, flow.remote(topic))]
    assert list(dict.fromkeys(got)) == [record.content for record in read(flow.source, topic)]
    with flow.copying(spec) as job:  # the permission has been granted again
        wait_until(lambda: job.progress() and not note(), detail=job.progress)
        assert job.status()["troubles"] == []


def test_s2_a_group_without_describe_permission_is_reported_and_records_are_copied(
    replicated: ReplicatedTopic, mirror_maker: MirrorMaker, guarded: Guarded
) -> None:
    consumer = Consumer({"bootstrap.servers": guarded.bootstrap, "group.id": GROUP, "enable.auto.commit": False})
    with replicated.load():
        replicated.await_copied()
        wait_until(
            lambda: committed(consumer, TopicPartition(replicated.topic, 0, 20)), 30, what="a commit"
        )  # the first commit creates the offsets topic
        consumer.close()
        wait_until(
            lambda: mirror_maker.lines("Consumer groups have changed.", new=[GROUP]),
            30,
            what="the group to be found",
            detail=mirror_maker.tail,
        )
        with denied(guarded, ResourceType.GROUP, GROUP, [AclOperation.DESCRIBE, AclOperation.READ]):
            wait_until(
                lambda: (
                    mirror_maker.lines("Consumer groups have changed.", gone=[GROUP])
                    or mirror_maker.lines(GROUP, level="warning")
                ),
                _NOTICED_S,
                what="the group in a log message",
                detail=mirror_maker.tail,
            )
            replicated.await_copied()
        replicated.await_copied()
    replicated.judge().assert_exactly_once()


def committed(consumer: Consumer, offset: TopicPartition) -> bool:
    try:
        return bool(consumer.commit(offsets=[offset], asynchronous=False))
    except KafkaException:
        return False


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_s3_certificates_that_expire_or_change_their_authority_are_reported_and_reloaded(
    guarded: Guarded, environment: Environment, tmp_path: Path
) -> None:
    first = certificates.issue("Another First Authority")
    second = certificates.issue("Second Authority")
    trusted = tmp_path / "trusted.pem"

    def restart(server: certificates.Issued, authority: certificates.Issued) -> None:
        guarded.broker.stop()
        guarded.certify(server, authority)
        guarded.broker.start()

    trusted.write_text(first.certificate_pem)
    restart(certificates.issue("broker", first, address="127.0.0.1"), first)
    tls = {
        "T.security.protocol": "SSL",
        "T.ssl.truststore.type": "PEM",
        "T.ssl.truststore.location": str(trusted),
    }
    through = (guarded.broker.address("TLS"), environment.b.bootstrap)
    with running_mirror_maker(
        tmp_path / "T", "T", source=guarded, target=environment.b, through=through, topics=1, settings=tls
    ) as flow:
        replicated = ReplicatedTopic(guarded, environment.b, flow, "T-0", 2)
        with replicated.load():
            replicated.await_copied()
            restart(certificates.issue("broker", first, address="127.0.0.1", is_expired=True), first)
            wait_until(
                lambda: flow.lines(COPYING_BLOCKED, reason="expired"),
                _NOTICED_S,
                what="the log message",
                detail=flow.tail,
            )
            restart(certificates.issue("broker", second, address="127.0.0.1"), second)
            wait_until(
                lambda: flow.lines(COPYING_BLOCKED, reason="is not trusted"),
                _NOTICED_S,
                what="the log message",
                detail=flow.tail,
            )
            trusted.write_text(first.certificate_pem + second.certificate_pem)
            replicated.await_copied()
        replicated.judge().assert_exactly_once()


@pytest.mark.slow
def test_s4_a_password_that_was_changed_is_reported_and_retried(
    replicated: ReplicatedTopic, mirror_maker: MirrorMaker, guarded: Guarded
) -> None:
    with replicated.load():
        replicated.await_copied()
        guarded.set_password(WRONG)
        try:
            kill(members(mirror_maker.process, "worker"))  # authentication is valid for the lifetime of the connection
            wait_until(
                lambda: mirror_maker.lines("", reason="SCRAM") or mirror_maker.lines("", reason="uthentication"),
                40,
                what="the log message",
                detail=mirror_maker.tail,
            )
            time.sleep(3)
            lines = len(mirror_maker.process.log.read_text().splitlines())
            time.sleep(3)
            assert len(mirror_maker.process.log.read_text().splitlines()) - lines < 40, "too many log messages"
        finally:
            guarded.set_password(RIGHT)
        replicated.await_copied(60)
    replicated.judge().assert_exactly_once()
    assert RIGHT not in mirror_maker.process.log.read_text()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_s4_a_wrong_password_at_the_start_is_reported_and_fixed_without_a_restart(
    guarded: Guarded, environment: Environment, tmp_path: Path
) -> None:
    Topics(guarded).create("V-0", partitions=2)
    addresses = (guarded.broker.address("LOGIN"), environment.b.bootstrap)
    flow = MirrorMaker(tmp_path / "V", "V", *addresses, ["V-0"], login("V", WRONG))
    try:
        flow.start()
        wait_until(lambda: flow.lines("uthentication"), _NOTICED_S, what="the log message", detail=flow.tail)
        assert flow.process.is_running
        assert "Traceback" not in flow.process.log.read_text()
        guarded.set_password(WRONG)
        replicated = ReplicatedTopic(guarded, environment.b, flow, "V-0", 2)
        with replicated.load():
            replicated.await_copied()
        replicated.judge().assert_exactly_once()
        flow.stop()
    finally:
        guarded.set_password(RIGHT)
        flow.clean_up()


@pytest.mark.slow
@pytest.mark.parametrize("side", ["source", "target"])
def test_s5_quotas_slow_copying_and_are_not_an_error(
    replicated: ReplicatedTopic, mirror_maker: MirrorMaker, guarded: Guarded, environment: Environment, side: str
) -> None:
    reported = len(mirror_maker.lines(COPYING_BLOCKED))
    broker, key = (guarded, "consumer_byte_rate") if side == "source" else (environment.b, "producer_byte_rate")
    with replicated.load(1000):
        replicated.await_copied()
        set_quota(broker.bootstrap, key, 60_000)
        try:
            time.sleep(6)
            assert replicated.arrived() < replicated.written - 1000, "the quota had no effect"
            assert mirror_maker.lines(COPYING_BLOCKED)[reported:] == []
        finally:
            set_quota(broker.bootstrap, key, None)
    replicated.judge().assert_exactly_once()


def set_quota(bootstrap: str, key: str, rate: float | None) -> None:
    """Set the quota of the default client id; None removes it."""
    entry = AlterClientQuotasRequest.EntryData
    request = AlterClientQuotasRequest(
        entries=[
            entry(
                entity=[entry.EntityData(entity_type="client-id", entity_name=None)],
                ops=[entry.OpData(key=key, value=rate or 0.0, remove=rate is None)],
            )
        ],
        validate_only=False,
    )
    with cluster_of(bootstrap) as cluster:
        assert [row.error_code for row in cluster.send(None, request).entries] == [0]
