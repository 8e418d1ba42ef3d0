"""Every verb of `mm2` that shows or changes a flow, on one running process between two brokers with an authorizer.

The flow authenticates as `mirror`, the tests' own clients may do everything. Resources without ACLs are open to all principals,
so permissions can be revoked one by one.
"""

from __future__ import annotations

import json
import os
import pty
import re
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclBinding, AclBindingFilter, AclOperation, AclPermissionType, ResourcePatternType
from confluent_kafka.admin import ResourceType as Kind

from mm2.cli.mm2 import main
from mm2.sandbox.kafka import LocalKafka, start_pair
from tests.integration.asking import asked
from tests.integration.failover.test_failover_verbs import left_behind
from tests.integration.mirror_flow import admin, alter, config_of, create, write
from tests.integration.mirror_process import ROOT, MirrorProcess, grow, has_all, partitions_of, topics_of, write_config
from tests.support.waiting import PATIENCE, wait_until

PATIENCE_S = 30.0 * PATIENCE
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
PASSWORD = "mirror-secret"
ME = "User:mirror"
CONNECTORS = ("MirrorCheckpointConnector", "MirrorHeartbeatConnector", "MirrorSourceConnector")
Capsys = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalKafka, LocalKafka]]:
    overrides = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": f'{PLAIN} required user_mirror="{PASSWORD}";',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "true",
    }
    listeners = {"OPEN": "PLAINTEXT", "LOGIN": "SASL_PLAINTEXT"}
    with start_pair(tmp_path_factory.mktemp("verbs"), listeners=listeners, overrides=overrides) as pair:
        yield pair


@dataclass(frozen=True)
class Environment:
    """A flow with a unique source alias, its file, and two topics that it copies."""

    a: LocalKafka
    b: LocalKafka
    alias: str
    file: Path

    @classmethod
    def of(cls, pair: tuple[LocalKafka, LocalKafka], folder: Path, **more: str) -> Environment:
        alias = f"V{secrets.token_hex(3)}"
        props = {
            "clusters": f"{alias}, B",
            f"{alias}.bootstrap.servers": pair[0].address("LOGIN"),
            "B.bootstrap.servers": pair[1].address("LOGIN"),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{PLAIN} required username="mirror" password="{PASSWORD}";',
            f"{alias}->B.enabled": "true",
            f"{alias}->B.topics": f"{alias}-.*",
            f"B->{alias}.emit.heartbeats.enabled": "false",
            "heartbeats.replication.enabled": "false",
            **{key.replace("__", "."): value for key, value in more.items()},
        }
        env = cls(*pair, alias, write_config(folder / f"{alias}.properties", props))
        create(env.a, env.topic("orders"), 2, {"retention.ms": "123456789"})
        create(env.a, env.topic("quiet"), 1)
        return env

    @property
    def flow(self) -> str:
        return f"{self.alias}->B"

    def topic(self, name: str) -> str:
        return f"{self.alias}-{name}"

    def remote(self, name: str) -> str:
        return f"{self.alias}.{self.topic(name)}"

    def put(self, name: str, partition: int, count: int) -> None:
        write(self.a, self.topic(name), [(None, b"%d" % n) for n in range(count)], partition)

    def copied(self, name: str) -> bool:
        return has_all(self.a, self.topic(name), self.b, self.remote(name))

    def ask(self, capsys: Capsys, verb: str, *arguments: str) -> tuple[int, str, str]:
        return asked(capsys, verb, self.file, self.flow, *arguments)


@pytest.fixture(scope="module")
def _own_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """`mm2 processes` lists the processes of this module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="module")
def running(
    pair: tuple[LocalKafka, LocalKafka], tmp_path_factory: pytest.TempPathFactory, _own_processes: None
) -> Iterator[Environment]:
    folder = tmp_path_factory.mktemp("running")
    env = Environment.of(pair, folder)
    env.put("orders", 0, 5)
    env.put("orders", 1, 7)
    env.put("quiet", 0, 3)
    process = MirrorProcess(env.file, folder / "log")
    try:
        process.eventually(lambda: env.copied("orders") and env.copied("quiet"), 90.0)
        yield env
    finally:
        process.clean_up()


def parsed(answer: tuple[int, str, str]) -> tuple[int, Any]:
    return answer[0], json.loads(answer[1])


# -- plan: before anything runs


def steps(document: Any) -> dict[tuple[str, str], dict[str, Any]]:
    return {(step["action"], step["subject"]): step for step in document["flows"][0]["steps"]}


def test_plan_prints_what_a_start_would_do_and_does_nothing(
    pair: tuple[LocalKafka, LocalKafka], tmp_path: Path, capsys: Capsys
) -> None:
    env = Environment.of(pair, tmp_path, sync__topic__acls__enabled="true")
    create(env.a, env.topic("grown"), 3, {"cleanup.policy": "compact"})
    create(env.b, env.remote("grown"), 1, {"retention.ms": "5"})
    for operation in (AclOperation.READ, AclOperation.DESCRIBE_CONFIGS):
        put(env.a, env.topic("orders"), operation, ME)
    before = [topics_of(broker) for broker in pair]
    code, document = parsed(env.ask(capsys, "plan", "--json"))
    assert (code, document["flows"][0]["well"]) == (0, True)
    found = steps(document)
    own = {f"mm2-{kind}.{env.alias}.internal" for kind in ("configs", "offsets", "status", "ledger")}
    own |= {f"{env.alias}.checkpoints.internal", "heartbeats"} - before[1]
    created = {subject for action, subject in found if action == "create topic"}
    assert created == own | {"mm2-offset-syncs.B.internal", env.remote("orders"), env.remote("quiet")} - before[0]
    orders = found["create topic", env.remote("orders")]
    assert (orders["cluster"], orders["trouble"]) == ("B", None)
    assert orders["details"] == {"partitions": "2", "replication.factor": "1", "retention.ms": "123456789"}
    assert found["create topic", "mm2-offset-syncs.B.internal"]["cluster"] == env.alias
    assert found["add partitions", env.remote("grown")]["details"] == {"partitions": "1 -> 3"}
    assert found["alter configs", env.remote("grown")]["details"] == {
        "cleanup.policy": "compact",
        "retention.ms": "back to the default",
    }
    acls = [subject for action, subject in found if action == "create ACL"]
    assert sorted(acls) == [
        f"ACL {ME} from * ALLOW {operation} on TOPIC {env.remote('orders')}"
        for operation in ("DESCRIBE_CONFIGS", "READ")
    ]
    assert {subject for action, subject in found if action == "write connector config"} == {*CONNECTORS}
    assert [topics_of(broker) for broker in pair] == before, "nothing is made"
    assert (
        partitions_of(env.b, env.remote("grown")),
        config_of(env.b, env.remote("grown"), "retention.ms"),
    ) == (1, "5")
    rights = {
        (right["cluster"], right["operation"], right["resource"], right["purpose"])
        for right in document["flows"][0]["rights"]
    }
    assert (env.alias, "READ", "TOPIC", "copying") in rights
    assert ("B", "ALTER", "CLUSTER", "sync.topic.acls.enabled") in rights
    code, out, err = env.ask(capsys, "plan")
    assert (code, err) == (0, "")
    assert f"  B: add partitions {env.remote('grown')}: partitions=1 -> 3\n" in out
    assert out.splitlines()[-1].endswith(" not known; no problem was found in what the brokers report")


def put(broker: LocalKafka, topic: str, operation: AclOperation, user: str) -> None:
    grant(
        broker,
        AclBinding(Kind.TOPIC, topic, ResourcePatternType.LITERAL, user, "*", operation, AclPermissionType.ALLOW),
    )


def grant(broker: LocalKafka, acl: AclBinding) -> None:
    for done in admin(broker).create_acls([acl]).values():
        done.result(30)


def take_away(broker: LocalKafka, acl: AclBinding) -> None:
    place = (acl.restype, acl.name, acl.resource_pattern_type)
    gone = AclBindingFilter(*place, acl.principal, acl.host, acl.operation, acl.permission_type)
    for done in admin(broker).delete_acls([gone]).values():
        done.result(30)


def test_plan_prints_what_would_fail(pair: tuple[LocalKafka, LocalKafka], tmp_path: Path, capsys: Capsys) -> None:
    env = Environment.of(pair, tmp_path, replication__factor="3", config__storage__replication__factor="2")
    create(env.b, env.remote("wide"), 4)
    create(env.a, env.topic("wide"), 1)
    # The first ACL of a topic denies all other principals.
    put(env.a, env.topic("quiet"), AclOperation.DESCRIBE, ME)
    put(env.a, env.topic("quiet"), AclOperation.DESCRIBE_CONFIGS, ME)
    with env.file.open("a") as file:
        file.write(f"{env.flow}.topics = {env.alias}-.*, {env.alias}-hidden, {env.alias}-absent\n")
    create(env.a, env.topic("hidden"), 1)
    put(env.a, env.topic("hidden"), AclOperation.DESCRIBE, "User:ann")
    code, document = parsed(env.ask(capsys, "plan", "--json"))
    (flow,) = document["flows"]
    assert (code, flow["well"]) == (1, False)
    found = steps(document)
    assert (
        "replication.factor is 3, which the cluster rejects" in found["create topic", env.remote("orders")]["trouble"]
    )
    configs = found["create topic", f"mm2-configs.{env.alias}.internal"]
    assert "config.storage.replication.factor=2" in configs["trouble"]
    assert any("has 4 partitions and its source 1" in trouble for trouble in flow["troubles"])
    missing = {(right["operation"], *right["missing"]) for right in flow["rights"] if right["missing"]}
    assert missing == {
        ("READ", env.topic("quiet")),
        ("DESCRIBE", env.topic("hidden")),
    }
    assert any(f"no topic {env.topic('absent')}" in note for note in flow["notes"])
    code, out, _ = env.ask(capsys, "plan")
    assert code == 1
    assert "would fail: replication.factor is 3" in out
    assert "2 rights missing" in out


def test_plan_covers_the_reachable_cluster_when_the_other_is_unreachable(
    pair: tuple[LocalKafka, LocalKafka], tmp_path: Path, capsys: Capsys
) -> None:
    env = Environment.of(pair, tmp_path)
    with env.file.open("a") as file:
        file.write(f"{env.alias}.bootstrap.servers = 127.0.0.1:1\n")
    code, document = parsed(env.ask(capsys, "plan", "--json"))
    (flow,) = document["flows"]
    assert (code, flow["unreachable"]) == (2, [env.alias])
    assert "127.0.0.1:1" in flow["troubles"][0]
    assert ("create topic", f"mm2-configs.{env.alias}.internal") in steps(document)


# -- promote: authorization


def written_by_the_flow(env: Environment, topic: str) -> str:
    """The error of a record that `mirror` writes on B; empty when it is accepted."""
    settings = {
        "bootstrap.servers": env.b.address("LOGIN"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "mirror",
        "sasl.password": PASSWORD,
        "message.timeout.ms": 10_000,
    }
    printed: list[str] = []
    producer = Producer(settings)
    producer.produce(topic, b"1", on_delivery=lambda error, _: printed.append("" if error is None else error.name()))
    producer.flush(20)
    return printed[0]


def left_orders(env: Environment, records: int) -> str:
    """The topic orders as in `left_behind` on B; on A partition 0 has that many records, partition 1 has 50."""
    topic = env.topic("orders")
    left_behind(env.b, env.alias, env.remote("orders"), topic)
    write(env.a, topic, [(None, b"1")] * records, 0)
    write(env.a, topic, [(None, b"1")] * 50, 1)
    return topic


def test_promote_grants_the_write_permissions_of_the_source_and_no_others(
    pair: tuple[LocalKafka, LocalKafka], tmp_path: Path, capsys: Capsys
) -> None:
    env = Environment.of(pair, tmp_path)
    topic, remote = left_orders(env, 1_200), env.remote("orders")
    prefix, literal = ResourcePatternType.PREFIXED, ResourcePatternType.LITERAL
    allow, deny = AclPermissionType.ALLOW, AclPermissionType.DENY
    grant(env.a, AclBinding(Kind.TOPIC, f"{env.alias}-", prefix, ME, "*", AclOperation.ALL, allow))
    grant(env.a, AclBinding(Kind.TOPIC, f"{env.alias}-", prefix, "User:mallory", "*", AclOperation.WRITE, deny))
    grant(env.a, AclBinding(Kind.TOPIC, topic, literal, "User:ann", "10.0.0.1", AclOperation.WRITE, allow))
    grant(env.a, AclBinding(Kind.TOPIC, topic, literal, "User:reader", "*", AclOperation.READ, allow))
    # MirrorMaker copied the ACL for all; an administrator created the one for ann.
    grant(env.b, AclBinding(Kind.TOPIC, f"{env.alias}.", prefix, ME, "*", AclOperation.READ, allow))
    grant(env.b, AclBinding(Kind.TOPIC, f"{env.alias}.", prefix, "User:ann", "10.0.0.1", AclOperation.ALL, allow))
    wait_until(lambda: written_by_the_flow(env, remote) == "TOPIC_AUTHORIZATION_FAILED")
    wanted = [
        f"DENY User:mallory WRITE topic {remote} from host *",
        f"ALLOW {ME} WRITE topic {remote} from host *",
    ]
    code, document = parsed(env.ask(capsys, "promote", "--create-acls", "--dry-run", "--json"))
    assert (code, document["acls"]) == (0, wanted)
    code, document = parsed(env.ask(capsys, "promote", "--yes", "--json"))
    assert (code, document["acls"]) == (0, wanted)
    assert "2 ACLs missing on B; --create-acls creates them" in document["done"]
    assert written_by_the_flow(env, remote) == "TOPIC_AUTHORIZATION_FAILED", "nothing was created unasked"

    altering = AclBinding(Kind.BROKER, "kafka-cluster", literal, ME, "*", AclOperation.DESCRIBE, allow)
    grant(env.b, altering)  # and so not to alter
    try:
        code, document = parsed(env.ask(capsys, "promote", "--create-acls", "--yes", "--json"))
        assert code == 1
        assert [problem.partition(": ")[0] for problem in document["problems"]] == [f"ACL {acl}" for acl in wanted]
        assert all("CLUSTER_AUTHORIZATION_FAILED" in problem for problem in document["problems"])
    finally:
        take_away(env.b, altering)
    code, document = parsed(env.ask(capsys, "promote", "--create-acls", "--yes", "--json"))
    assert (code, document["acls"], document["problems"]) == (0, wanted, [])
    assert "2 ACLs created and verified" in document["done"]
    wait_until(lambda: written_by_the_flow(env, remote) == "")
    code, document = parsed(env.ask(capsys, "promote", "--create-acls", "--yes", "--json"))
    assert (code, document["acls"]) == (0, [])


def test_a_source_without_known_end_offsets_is_not_abandoned_by_accident(
    pair: tuple[LocalKafka, LocalKafka], tmp_path: Path, capsys: Capsys
) -> None:
    env = Environment.of(pair, tmp_path)
    topic = left_orders(env, 1_210)
    hidden = ResourcePatternType.LITERAL, ME, "*", AclOperation.DESCRIBE, AclPermissionType.DENY
    grant(env.a, AclBinding(Kind.TOPIC, topic, *hidden))
    printed = f"Cluster {env.alias} answers but does not return the end offsets of 2 partitions (first {topic}-0: "
    wait_until(lambda: printed in env.ask(capsys, "failover", "--dry-run")[1])
    for arguments in (("failover",), ("failover", "--wait", "1", "--yes"), ("promote",)):
        code, out, err = env.ask(capsys, *arguments)
        assert (code, out) == (2, ""), arguments
        assert err.startswith(f"mm2: {printed}"), err
        assert "TOPIC_AUTHORIZATION_FAILED" in err
    code, document = parsed(env.ask(capsys, "failover", "--leave-behind", "--yes", "--json"))
    assert (code, document["problems"]) == (0, [])
    assert all("TOPIC_AUTHORIZATION_FAILED" in row["source_end_trouble"] for row in document["partitions"])
    code, document = parsed(env.ask(capsys, "failback", "--json"))
    assert code == 1
    assert document["problems"][-1].startswith(printed), "what is on the source only is not known"
    take_away(env.a, AclBinding(Kind.TOPIC, topic, *hidden))


def test_a_flow_with_unknown_workers_is_not_reported_as_running(
    pair: tuple[LocalKafka, LocalKafka], tmp_path: Path, capsys: Capsys
) -> None:
    env = Environment.of(pair, tmp_path)
    left_orders(env, 1_200)
    configs = f"mm2-configs.{env.alias}.internal"
    for name in (configs, f"mm2-status.{env.alias}.internal"):
        create(env.b, name, config={"cleanup.policy": "compact"})
    literal, deny = ResourcePatternType.LITERAL, AclPermissionType.DENY
    hidden = AclBinding(Kind.TOPIC, configs, literal, ME, "*", AclOperation.READ, deny)
    grant(env.b, hidden)
    wait_until(lambda: "Its workers are not known: " in env.ask(capsys, "status")[1])
    code, out, _ = env.ask(capsys, "status")
    assert (code, out.split()[:2]) == (1, [env.flow, "DEGRADED"])
    assert "TOPIC_AUTHORIZATION_FAILED" in out
    take_away(env.b, hidden)


# -- a running flow


def test_plan_of_a_running_flow_is_empty(running: Environment, capsys: Capsys) -> None:
    wait_until(lambda: running.ask(capsys, "plan")[1].splitlines()[1] == "  nothing to create or change")
    assert running.ask(capsys, "plan")[0] == 0
    alter(running.a, running.topic("quiet"), "retention.ms", "777")
    code, document = parsed(running.ask(capsys, "plan", "--json"))
    assert (code, steps(document)["alter configs", running.remote("quiet")]["details"]) == (0, {"retention.ms": "777"})
    text = running.file.read_text()
    running.file.with_suffix(".new").write_text(f"{text}offset.lag.max = 7\n{running.flow}.of.a.plugin = the secret\n")
    code, out, err = asked(capsys, "plan", running.file.with_suffix(".new"), running.flow)
    assert (code, err) == (0, "")
    changed = "of.a.plugin=(none) -> [hidden], offset.lag.max=(none) -> 7"
    assert f"write connector config MirrorSourceConnector: {changed}\n" in out
    assert "the secret" not in out


def test_status_is_one_sentence_with_its_evidence(running: Environment, capsys: Capsys) -> None:
    answers: list[tuple[int, str, str]] = []
    wait_until(lambda: answers.append(running.ask(capsys, "status")) or answers[-1][0] == 0)  # type: ignore[func-returns-value]
    _, out, err = answers[-1]
    assert err == ""
    assert out.splitlines()[0] == f"{running.flow}  RUNNING  If {running.alias} dies now you lose nothing."
    assert f"{running.topic('orders')}-1  " in out
    code, out, _ = asked(capsys, "status", running.file)
    assert code == 0
    assert running.topic("orders") not in out, "partitions are for those who name a flow"
    code, document = parsed(asked(capsys, "status", running.file, "--json"))
    (flow,) = document["flows"]
    assert (code, flow["name"], flow["state"], flow["risk"]["records"]) == (0, running.flow, "RUNNING", 0)
    assert [(one["topic"], one["partition"], one["position"]) for one in flow["partitions"]] == [
        (running.topic("orders"), 0, 5),
        (running.topic("orders"), 1, 7),
        (running.topic("quiet"), 0, 3),
    ]
    assert {one["name"] for one in flow["connectors"]} == {*CONNECTORS}


def test_topics_are_listed_and_described(running: Environment, capsys: Capsys) -> None:
    orders = running.topic("orders")
    wait_until(lambda: asked(capsys, "topics", running.file)[0] == 0)
    code, document = parsed(asked(capsys, "topics", running.file, "--json"))
    assert code == 0
    assert [(one["flow"], one["topic"], one["partitions"], one["lag_records"]) for one in document["topics"]] == [
        (running.flow, orders, 2, 0),
        (running.flow, running.topic("quiet"), 1, 0),
    ]
    alter(running.b, running.remote("orders"), "min.insync.replicas", "2")
    alter(running.a, orders, "retention.bytes", "1000000")
    code, document = parsed(running.ask(capsys, "topics", "--topic", orders, "--json"))
    described = document["topic"]
    assert (code, described["remote_topic"], len(described["partitions"])) == (0, running.remote("orders"), 2)
    assert {"name": "min.insync.replicas", "source": "1", "target": "2", "is_synced": False} in described[
        "config_differences"
    ]
    found = next(one for one in described["config_differences"] if one["name"] == "retention.bytes")
    assert found == {"name": "retention.bytes", "source": "1000000", "target": "-1", "is_synced": True}
    _, out, _ = running.ask(capsys, "topics", "--topic", orders)
    assert f"{orders}-1  " in out
    assert "min.insync.replicas" in out
    code, out, err = running.ask(capsys, "topics", "--topic", "absent")
    assert (code, out) == (2, "")
    assert err == f"mm2: {running.flow} has no topic absent; mm2 topics without --topic lists those that it copies.\n"
    assert asked(capsys, "topics", running.file, "--topic", orders)[0] == 2, "which flow?"


def test_verify_that_is_interrupted_has_its_own_exit_code_and_prints_no_stack_trace(running: Environment) -> None:
    command = [sys.executable, "-P", "-m", "mm2.cli.mm2", "verify", str(running.file), running.flow]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    slow = ("--max-bytes-per-sec", "1")
    with subprocess.Popen(
        [*command, *slow], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    ) as verifying:
        try:
            wait_until(lambda: psutil.Process(verifying.pid).children(), PATIENCE_S)  # Spark starts
            verifying.send_signal(signal.SIGINT)
            out, err = verifying.communicate(timeout=PATIENCE_S)
        finally:
            verifying.kill()
    assert (verifying.returncode, out, err) == (130, "", "mm2: interrupted\n")


def test_status_watch_in_a_pipe_runs_until_it_is_interrupted(running: Environment) -> None:
    command = [sys.executable, "-P", "-m", "mm2.cli.mm2", "status", str(running.file), running.flow, "--watch", "0.2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
    try:
        assert watching.stdout is not None
        seen = 0
        for line in watching.stdout:
            assert "\x1b" not in line
            seen += line.startswith(f"{running.flow}  RUNNING")
            if seen == 2:
                break
        watching.send_signal(signal.SIGINT)
        assert watching.wait(PATIENCE_S) == 0
    finally:
        watching.kill()


def test_status_watch_on_a_terminal_updates_in_place(running: Environment) -> None:
    master, slave = pty.openpty()
    command = [sys.executable, "-P", "-m", "mm2.cli.mm2", "status", str(running.file), running.flow, "--watch", "0.2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "160", "LINES": "40"}
    watching = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    seen = ""

    def shown(times: int) -> None:
        nonlocal seen
        deadline = time.monotonic() + 3 * PATIENCE_S
        while seen.count(f"{running.flow}  ") < times:
            assert time.monotonic() < deadline, seen
            if select.select([master], [], [], 0.2)[0]:
                seen += os.read(master, 65536).decode(errors="replace")

    try:
        shown(2)
        assert re.search(r"\x1b\[[0-9;]*32mRUNNING", seen), seen
        first = len(seen)
        shown(4)
        # The output is overwritten, not appended: the cursor moves up by as many lines.
        assert re.search(r"\x1b\[\d*A", seen[first:]), seen[first:]
        watching.send_signal(signal.SIGINT)
        assert watching.wait(PATIENCE_S) == 0
    finally:
        watching.kill()
        os.close(master)


def test_lag_is_sorted_worst_first_and_compared_with_a_threshold(running: Environment, capsys: Capsys) -> None:
    wait_until(lambda: running.ask(capsys, "lag", "--threshold", "0")[0] == 0)
    code, out, err = running.ask(capsys, "lag", "--top", "1")
    assert (code, err, len(out.splitlines())) == (0, "", 4)
    assert out.splitlines()[-2].startswith(f"{running.flow}: looked at: logs of {running.alias} ")
    assert out.splitlines()[-1].startswith(f"{running.flow}: 3 partitions (2 more: --top 0), 0 records, ")
    assert running.ask(capsys, "pause", "--topic", running.topic("quiet"))[0] == 0
    try:
        running.put("quiet", 0, 4)
        code, document = parsed(running.ask(capsys, "lag", "--threshold", "3", "--json"))
        (flow,) = document["flows"]
        first = flow["partitions"][0]
        assert (code, flow["over_threshold"], flow["records"]) == (1, 1, 4)
        assert (first["topic"], first["records"], first["state"]) == (running.topic("quiet"), 4, "PAUSED")
    finally:
        assert running.ask(capsys, "resume", "--topic", running.topic("quiet"))[0] == 0
    wait_until(lambda: running.copied("quiet"))


def test_a_target_that_does_not_show_its_logs_is_no_evidence_of_a_complete_copy(
    running: Environment, capsys: Capsys
) -> None:
    """The user may read the ledger, and not describe one of the remote topics."""
    wait_until(lambda: running.ask(capsys, "lag", "--threshold", "0")[0] == 0)
    place = Kind.TOPIC, running.remote("quiet"), ResourcePatternType.LITERAL
    denial = AclBinding(*place, ME, "*", AclOperation.DESCRIBE, AclPermissionType.DENY)
    grant(running.b, denial)
    try:
        wait_until(lambda: running.ask(capsys, "gaps")[0] == 2)
        assert "; the logs of B were not compared with the ledger in 1 partition: " in running.ask(capsys, "gaps")[1]
        code, document = parsed(running.ask(capsys, "lag", "--json"))
        (flow,) = document["flows"]
        assert (code, flow["records"], flow["records_at_least"]) == (1, None, 0)
        sentence = running.ask(capsys, "status")[1].splitlines()[0]
        assert "you lose no record that is known here" in sentence
        assert "The logs of B were not compared with the ledger in 1 partition: " in sentence
    finally:
        take_away(running.b, denial)
    wait_until(lambda: running.ask(capsys, "lag", "--threshold", "0")[0] == 0)


def test_a_paused_topic_stops_the_others_continue_and_no_record_is_lost(running: Environment, capsys: Capsys) -> None:
    orders, quiet = running.topic("orders"), running.topic("quiet")
    wait_until(lambda: running.copied("orders"))
    code, out, err = running.ask(capsys, "pause", "--topic", orders, "--partition", "1", "--reason", "ticket 4711")
    assert (code, err) == (0, "")
    assert out.startswith(f"{orders}-1: paused by ")
    assert out.endswith(": ticket 4711\n")
    for partition in (0, 1):
        running.put("orders", partition, 20)
    running.put("quiet", 0, 5)
    wait_until(lambda: running.copied("quiet"))

    def ends() -> list[int]:
        _, document = parsed(running.ask(capsys, "status", "--json"))
        return [one["position"] for one in document["flows"][0]["partitions"] if one["topic"] == orders]

    stopped_at = ends()[1]
    wait_until(lambda: ends()[0] == stopped_at - 7 + 5 + 20)
    code, document = parsed(running.ask(capsys, "status", "--json"))
    (paused,) = [one for one in document["flows"][0]["partitions"] if one["state"] == "PAUSED"]
    assert (paused["topic"], paused["partition"], paused["position"]) == (orders, 1, stopped_at)
    assert "ticket 4711" in paused["reason"]
    # Restarted copiers read the pause before they read records.
    assert running.ask(capsys, "restart", "--connector", "source")[0] == 0
    running.put("orders", 0, 1)
    wait_until(lambda: ends()[0] == stopped_at - 7 + 5 + 21)
    assert ends()[1] == stopped_at
    code, out, err = running.ask(capsys, "pause", "--topic", orders, "--json")
    assert (code, [one["partition"] for one in json.loads(out)["paused"]]) == (0, [None, 1])
    code, out, err = running.ask(capsys, "resume", "--topic", orders, "--partition", "1")
    assert (code, out) == (2, "")
    assert f"All of {orders} is paused" in err
    code, out, err = running.ask(capsys, "resume", "--topic", orders)
    assert (code, sorted(out.splitlines())) == (0, [f"{orders}-1: resumed", f"{orders}: resumed"])
    wait_until(lambda: running.copied("orders"))
    assert running.ask(capsys, "resume", "--topic", quiet) == (0, f"{quiet}: was not paused\n", "")


def test_connectors_are_paused_resumed_stopped_and_restarted_through_the_process(
    running: Environment, capsys: Capsys
) -> None:
    code, out, err = running.ask(capsys, "pause")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == f"{running.flow} is paused"
    code, document = parsed(running.ask(capsys, "status", "--json"))
    assert (code, document["flows"][0]["state"]) == (1, "PAUSED")
    states = {one["name"]: one["state"] for one in document["flows"][0]["connectors"]}
    assert states == {name: "RUNNING" if "Heartbeat" in name else "PAUSED" for name in CONNECTORS}
    assert [one["is_counted"] and one["state"] for one in document["flows"][0]["partitions"]] == ["PAUSED"] * 3
    lines = running.ask(capsys, "status")[1].splitlines()
    header = next(index for index, line in enumerate(lines) if line.split()[:3] == ["FLOW", "PARTITIONS", "UNHEALTHY"])
    assert lines[header + 1].split()[2] == "0", "a deliberate pause is not unhealthy"
    code, document = parsed(running.ask(capsys, "resume", "--json"))
    assert (code, document["done"], [one["name"] for one in document["connectors"]]) == (0, True, [*CONNECTORS])
    assert {task["state"] for one in document["connectors"] for task in one["tasks"]} == {"RUNNING"}
    code, out, _ = running.ask(capsys, "stop", "--connector", "heartbeat")
    assert (code, out) == (0, "MirrorHeartbeatConnector: STOPPED, no tasks\n")
    assert running.ask(capsys, "resume", "--connector", "MirrorHeartbeatConnector")[0] == 0
    code, out, _ = running.ask(capsys, "restart", "--connector", "source", "--task", "0")
    assert (code, "task 0 RUNNING" in out) == (0, True)
    code, out, _ = asked(capsys, "processes", "--json")
    (process,) = json.loads(out)["processes"]
    assert running.ask(capsys, "restart", "--url", process["url"])[0] == 0
    wait_until(lambda: running.ask(capsys, "status")[0] == 0)
    # This file must not stop another user's flow of that name.
    other = running.file.with_suffix(".other")
    other.write_text(f"{running.file.read_text()}B.bootstrap.servers = elsewhere:9092\n")
    code, out, err = asked(capsys, "stop", other, running.flow)
    assert (code, out) == (2, "")
    assert (
        f" runs {running.flow} ({process['url']} runs a flow of that name between other clusters), or it has no" in err
    )


def test_paused_topics_are_named_when_the_flow_is_resumed(running: Environment, capsys: Capsys) -> None:
    quiet = running.topic("quiet")
    assert running.ask(capsys, "pause", "--topic", quiet)[0] == 0
    code, _, err = running.ask(capsys, "resume")
    assert (code, f"{quiet} stays paused by " in err) == (0, True)
    assert running.ask(capsys, "resume", "--topic", quiet)[0] == 0


def test_a_pause_without_a_running_process_is_reported(running: Environment, capsys: Capsys) -> None:
    assert running.ask(capsys, "stop", "--connector", "source")[0] == 0
    try:
        code, out, err = running.ask(capsys, "pause", "--topic", running.topic("quiet"), "--timeout", "0.5")
        assert (code, "paused by" in out) == (1, True)
        assert err == (
            "mm2: written to the ledger, but not applied after 0.5 s: "
            f"{running.topic('quiet')}-0; is the flow running?\n"
        )
    finally:
        running.ask(capsys, "resume", "--topic", running.topic("quiet"), "--timeout", "0")
        assert running.ask(capsys, "resume", "--connector", "source")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["pause", "--partition", "1"], "--partition requires --topic."),
        (["restart", "--task", "1"], "--task requires --connector."),
        (["pause", "--reason", "x"], "--reason requires --topic: Connect stores no reason for connectors."),
        (["pause", "--topic", "x", "--connector", "source"], "Use --connector or --topic, not both."),
        (["pause", "--topic", "absent"], "has no absent: no record of it was copied."),
        (["resume", "--topic", "absent"], "has no absent: no record of it was copied."),
        (
            ["pause", "--connector", "sink"],
            "There is no connector sink; write one of worker, source, heartbeat, checkpoint.",
        ),
        (["restart", "--connector", "source", "--task", "99"], "MirrorSourceConnector has no task 99; it has 0"),
        (["pause", "--url", "ftp://x"], "--url ftp://x: write it as http://host:8083."),
        (["pause", "--url", "http://me:pw@127.0.0.1:1"], "--url contains credentials"),
        (["pause", "--url", "http://127.0.0.1:1"], "No response from http://127.0.0.1:1: "),
        (["pause", "--user", "ann"], "The password of ann must be in the environment variable MM2_REST_PASSWORD."),
        (["lag", "--threshold", "fast"], "'fast' is not a lag; write for instance 1000 (records), 30s, 5m or 20MB."),
        (["lag", "--top", "-1"], "--top -1: write how many partitions, or 0 for all."),
    ],
)
def test_an_impossible_request_is_rejected_in_one_sentence(
    running: Environment, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str
) -> None:
    monkeypatch.delenv("MM2_REST_PASSWORD", raising=False)
    code, out, err = running.ask(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert sentence in err


@pytest.mark.parametrize("verb", ["status", "plan", "lag", "config", "pause", "resume", "restart", "stop"])
def test_every_verb_reports_a_missing_flow_or_file(
    running: Environment, capsys: Capsys, tmp_path: Path, verb: str
) -> None:
    code, out, err = asked(capsys, verb, running.file, "B->C")
    assert (code, out) == (2, "")
    assert f"has no flow B->C; its flows are {running.flow}" in err
    nowhere = tmp_path / "nowhere"
    assert asked(capsys, verb, nowhere, "A->B") == (2, "", f"mm2: Cannot read {nowhere}: No such file or directory.\n")
    with pytest.raises(SystemExit) as caught:
        main([verb])
    assert caught.value.code == 2


@pytest.mark.usefixtures("_own_processes")
def test_a_flow_without_a_process_can_be_shown_but_not_controlled(
    pair: tuple[LocalKafka, LocalKafka], tmp_path: Path, capsys: Capsys
) -> None:
    env = Environment.of(pair, tmp_path)
    code, out, err = env.ask(capsys, "pause")
    assert (code, out) == (2, "")
    assert f"None of your processes on this machine runs {env.flow}" in err
    code, out, err = env.ask(capsys, "status")
    assert (code, err) == (1, "")
    assert out.startswith(f"{env.flow}  STOPPED  Nothing is copied: ")
    with env.file.open("a") as file:
        file.write("B.bootstrap.servers = 127.0.0.1:1\n")
    code, out, _ = env.ask(capsys, "status", "--timeout", "6")
    assert code == 2
    assert "127.0.0.1:1" in out
    code, out, err = env.ask(capsys, "lag", "--timeout", "6")
    assert (code, "127.0.0.1:1" in err) == (2, True)


def test_an_added_partition_is_planned_and_then_copied(running: Environment, capsys: Capsys) -> None:
    grow(running.a, running.topic("quiet"), 2)
    running.put("quiet", 1, 2)
    wait_until(lambda: running.copied("quiet"))
    wait_until(lambda: running.ask(capsys, "status")[0] == 0)
