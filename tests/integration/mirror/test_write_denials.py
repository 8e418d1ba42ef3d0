"""`preserve.offsets.deny.writes` on a target with an authorizer: who may write to a remote topic, and when."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from mm2.sandbox.kafka import LocalKafka, start_all, stop_all
from tests.integration.copy_flow import admin_of, create, end_offset, producer_of
from tests.integration.docs_blocks import ROOT
from tests.integration.mirror_process import MirrorProcess, statuses, write_config
from tests.support.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(int(600 * PATIENCE))]

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
USERS = ("mirror", "weak", "app", "late")
ALLOW, DENY = AclPermissionType.ALLOW, AclPermissionType.DENY
LITERAL, PREFIXED = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
NO_ALTER = "needs the rights DESCRIBE and ALTER on cluster B"
NO_AUTHORIZER = "needs an authorizer on cluster A"


def with_users(name: str, folder: Path, more: Mapping[str, str]) -> LocalKafka:
    users = " ".join(f'user_{user}="secret"' for user in USERS)
    login = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": f"{PLAIN} required {users};",
    }
    listeners = {"OPEN": "PLAINTEXT", "LOGIN": "SASL_PLAINTEXT"}
    return LocalKafka(name, folder, listeners=listeners, overrides={**login, **more}, heap="384m")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalKafka, LocalKafka]]:
    """A without an authorizer, and B with one; both have users."""
    authorizer = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    folder = tmp_path_factory.mktemp("denials")
    brokers = with_users("A", folder / "a", {}), with_users("B", folder / "b", authorizer)
    start_all(brokers, 60.0 * PATIENCE)
    try:
        everything = AclOperation.ALL
        kinds = (ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
        grants = [acl("*", everything, f"User:{user}", kind=kind) for user in ("mirror", "weak") for kind in kinds]
        grants.append(acl("*", everything, "User:mirror"))
        grants += [
            acl(prefix, everything, "User:weak", pattern=PREFIXED)
            for prefix in ("mm2-", "heartbeats", "A.checkpoints", "A.refused")
        ]
        grants.append(acl("kafka-cluster", everything, "User:mirror", kind=ResourceType.BROKER))
        grants.append(acl("kafka-cluster", AclOperation.DESCRIBE, "User:weak", kind=ResourceType.BROKER))
        grants += [
            acl("A.", operation, "User:app", pattern=PREFIXED) for operation in (AclOperation.WRITE, AclOperation.READ)
        ]
        # librdkafka's consumers always look for the coordinator of their group.
        grants += [
            acl("unused", AclOperation.READ, f"User:{user}", kind=ResourceType.GROUP) for user in ("app", "late")
        ]
        put(brokers[1], *grants)
        yield brokers
    finally:
        stop_all(brokers)


def acl(
    name: str,
    operation: AclOperation,
    user: str,
    *,
    pattern: ResourcePatternType = LITERAL,
    permission: AclPermissionType = ALLOW,
    kind: ResourceType = ResourceType.TOPIC,
) -> AclBinding:
    return AclBinding(kind, name, pattern, user, "*", operation, permission)


def put(broker: LocalKafka, *acls: AclBinding) -> None:
    for done in admin_of(broker).create_acls([*acls]).values():
        done.result(30 * PATIENCE)


def denied(broker: LocalKafka, topic: str) -> set[str]:
    """The principals to which an ACL for exactly this topic denies WRITE."""
    anything: Any = None
    matching = AclBindingFilter(ResourceType.TOPIC, topic, LITERAL, anything, anything, AclOperation.WRITE, DENY)
    return {found.principal for found in admin_of(broker).describe_acls(matching).result(30 * PATIENCE)}


def remove_denial(broker: LocalKafka, topic: str, user: str) -> None:
    matching = AclBindingFilter(ResourceType.TOPIC, topic, LITERAL, user, "*", AclOperation.WRITE, DENY)
    for done in admin_of(broker).delete_acls([matching]).values():
        done.result(30 * PATIENCE)


def login_of(user: str) -> dict[str, Any]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": "secret",
        "log_level": 0,
    }


def may_write(broker: LocalKafka, topic: str, user: str) -> bool:
    """Whether the user can write a record, which is then there."""
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": broker.address("LOGIN"), **login_of(user)})
    producer.produce(topic, b"foreign", partition=0, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(60 * PATIENCE) == 0
    (error,) = errors
    assert error is None or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, error
    return error is None


def may_read(broker: LocalKafka, topic: str, user: str) -> bool:
    settings = {"group.id": "unused", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": broker.address("LOGIN"), **login_of(user), **settings})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(30 * PATIENCE)
        assert message is not None, f"{user} has got no answer"
        error = message.error()
        assert error is None or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, error
        return error is None
    finally:
        consumer.close()


def write(broker: LocalKafka, topic: str, count: int) -> None:
    producer = producer_of(broker)
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(60 * PATIENCE) == 0


def settings(
    pair: tuple[LocalKafka, LocalKafka], flow: str, topic: str, user: str = "mirror", **more: str
) -> dict[str, str | None]:
    source, target = flow.split("->")
    by_name = dict(zip("AB", pair, strict=True))
    return {
        "clusters": "A, B",
        f"{source}.bootstrap.servers": by_name[source].bootstrap,
        f"{target}.bootstrap.servers": by_name[target].address("LOGIN"),
        f"{target}.security.protocol": "SASL_PLAINTEXT",
        f"{target}.sasl.mechanism": "PLAIN",
        f"{target}.sasl.jaas.config": f'{PLAIN} required username="{user}" password="secret";',
        f"{flow}.enabled": "true",
        f"{target}->{source}.enabled": "false",
        f"{flow}.topics": topic,
        f"{flow}.preserve.offsets": "true",
        f"{flow}.preserve.offsets.deny.writes": "true",
        "emit.heartbeats.enabled": "false",
        **more,
    }


def mm2(code: int, *arguments: str) -> str:
    """The output of a command that ends with this exit code."""
    command = [sys.executable, "-P", "-m", "mm2.cli.mm2", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_only_the_flow_may_write_until_a_failover(pair: tuple[LocalKafka, LocalKafka], tmp_path: Path) -> None:
    source, target = pair
    topic, remote = "orders", "A.orders"
    create(source, topic, retention__ms="-1")
    write(source, topic, 20)
    file = write_config(tmp_path / "mm2.properties", settings(pair, "A->B", topic))
    assert f"ACL User:app from * DENY WRITE on TOPIC {remote}" in mm2(0, "plan", str(file), "A->B")
    process = MirrorProcess(file, tmp_path / "first.log")
    try:
        process.eventually(lambda: denied(target, remote) == {"User:app"}, 120)
        process.kill9(whole_family=True)  # the partition may not have a task yet
    finally:
        process.clean_up()
    assert not may_write(target, remote, "app")
    process = MirrorProcess(file, tmp_path / "second.log")
    try:
        process.eventually(lambda: end_offset(target, remote) == 20, 120)
        assert not may_write(target, remote, "app")
        assert may_read(target, remote, "app")
        remove_denial(target, remote, "User:app")
        put(target, acl(remote, AclOperation.ALL, "User:late"))
        process.eventually(lambda: denied(target, remote) == {"User:app", "User:late"}, 90)
        assert not may_write(target, remote, "late")
        assert may_read(target, remote, "late")
        write(source, topic, 5)
        process.eventually(lambda: end_offset(target, remote) == 25)
        shown = mm2(0, "failover", str(file), "A->B", "--leave-behind", "--dry-run")
        assert "2 ACLs that deny WRITE on B would be deleted" in shown
        assert denied(target, remote) == {"User:app", "User:late"}
        assert "2 ACLs that denied WRITE on B are deleted" in mm2(
            0, "failover", str(file), "A->B", "--leave-behind", "--yes"
        )
        assert may_write(target, remote, "app")
        time.sleep(35)  # the denials are compared every 30 seconds
        assert may_write(target, remote, "late")
        report = json.loads(mm2(1, "failback", str(file), "A->B", "--json"))
        assert report["divergent"] == [
            {"cluster": "B", "topic": remote, "partition": 0, "first": 25, "last": 26},
        ]
        assert denied(target, remote) == set()
    finally:
        process.clean_up()


def test_denials_end_when_the_setting_is_removed(pair: tuple[LocalKafka, LocalKafka], tmp_path: Path) -> None:
    source, target = pair
    topic, remote = "payments", "A.payments"
    create(source, topic, retention__ms="-1")
    write(source, topic, 3)
    props = settings(pair, "A->B", topic)
    file = write_config(tmp_path / "mm2.properties", props)
    process = MirrorProcess(file, tmp_path / "log")
    try:
        process.eventually(lambda: end_offset_of(target, remote) == 3, 120)
        assert denied(target, remote) == {"User:app"}
        write_config(file, {**props, "A->B.preserve.offsets.deny.writes": "false"})
        process.eventually(lambda: not denied(target, remote), 120)
        assert may_write(target, remote, "app")
    finally:
        process.clean_up()


def end_offset_of(broker: LocalKafka, topic: str) -> int:
    """The end offset of a topic that may not exist yet."""
    return end_offset(broker, topic) if topic in admin_of(broker).list_topics(timeout=30).topics else -1


@pytest.mark.parametrize(("flow", "user", "words"), [("A->B", "weak", NO_ALTER), ("B->A", "mirror", NO_AUTHORIZER)])
def test_a_target_that_cannot_deny_writes_is_refused(
    pair: tuple[LocalKafka, LocalKafka], flow: str, user: str, words: str, tmp_path: Path
) -> None:
    brokers, topic = dict(zip("AB", pair, strict=True)), f"refused-{user}"
    source, target = flow.split("->")
    create(brokers[source], topic, retention__ms="-1")
    write(brokers[source], topic, 3)
    file = write_config(tmp_path / "mm2.properties", settings(pair, flow, topic, user))
    planned = mm2(1, "plan", str(file), flow)
    assert "preserve.offsets.deny.writes" in planned
    process = MirrorProcess(file, tmp_path / "log")

    def trace() -> str:
        row = statuses(brokers[target], source).get("connector-MirrorSourceConnector", {})
        return str(row.get("trace")) if row.get("state") == "FAILED" else ""

    try:
        process.eventually(lambda: words in trace(), 120)
        remote = f"{source}.{topic}"
        wait_until(lambda: end_offset_of(brokers[target], remote) == 0)
        time.sleep(5)
        assert end_offset_of(brokers[target], remote) == 0, "nothing is copied to a topic to which others may write"
    finally:
        process.clean_up()
