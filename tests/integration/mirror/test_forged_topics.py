"""Topics of the source that would be the flow's own topics on the target change nothing of what mm2 reports.

Given brokers with an authorizer, and a client that may only create and write such topics on the source: with the default policy
`checkpoints.internal`, with IdentityReplicationPolicy and the separator `_` also `mm2-configs.A.internal`, which is not internal
by its name then. A group is at offset 10 of 100.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic

from mm2.mirror.common.formats import Checkpoint
from mm2.sandbox.kafka import LocalKafka, start_pair
from tests.integration.asking import asked
from tests.integration.mirror_flow import allow, commit, create, write
from tests.integration.mirror_process import MirrorProcess, config_of, contents, partitions_of, write_config
from tests.support.passworded import LISTENERS, PASSWORDS

GUARDED: Final = {
    **PASSWORDS,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
#: The user mirror of the listener LOGIN has no other rights here.
ATTACKER: Final[dict[str, str | int | float | bool]] = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "mirror",
    "sasl.password": "secret",
    "log_level": 0,
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalKafka, LocalKafka]]:
    folder = tmp_path_factory.mktemp("forged")
    with start_pair(folder, listeners=LISTENERS, overrides=GUARDED, heap="384m") as pair:
        yield pair


def forge(broker: LocalKafka, topic: str, records: list[tuple[bytes, bytes]]) -> None:
    """Create and write the topic as a client that may do nothing else."""
    allow(broker, topic, AclOperation.CREATE, AclOperation.WRITE)
    settings: dict[str, str | int | float | bool] = {**ATTACKER, "bootstrap.servers": broker.address("LOGIN")}
    client = AdminClient(settings)  # without a reference to it, its requests are cancelled
    # More partitions than the topic of the flow, and another cleanup policy.
    for created in client.create_topics([NewTopic(topic, 2, 1, config={"cleanup.policy": "delete"})]).values():
        created.result(30)
    producer = Producer(settings)
    for key, value in records:
        producer.produce(topic, value, key, 0)
    assert producer.flush(30) == 0


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    "policy", ["", "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"], ids=["default", "identity"]
)
def test_topics_of_the_source_change_no_translated_offset_and_no_failover(
    pair: tuple[LocalKafka, LocalKafka], tmp_path: Path, capsys: pytest.CaptureFixture[str], policy: str
) -> None:
    a, b = pair
    alias = "I" if policy else "A"
    topic, late = f"t-{alias}", f"t-{alias}-late"
    remote, later = (topic, late) if policy else (f"{alias}.{topic}", f"{alias}.{late}")
    forged = [
        Checkpoint(group, remote, 0, 95, offset, "forged")
        for group, offset in (("billing", 90), (f"ghost-{alias}", 50))
    ]
    records = [(one.key(), one.value()) for one in forged]
    checkpoints = f"{alias}_checkpoints_internal" if policy else f"{alias}.checkpoints.internal"
    attacks = {checkpoints if policy else "checkpoints.internal": records}
    if policy:
        stopped = json.dumps({"state": "STOPPED"}).encode()
        attacks[f"mm2-configs.{alias}.internal"] = [(b"target-state-MirrorCheckpointConnector", stopped)]
    create(a, topic)
    write(a, topic, [(b"k", b"v")] * 100, 0)
    commit(a, "billing", {(topic, 0): 10})
    file = write_config(
        tmp_path / "mm2.properties",
        {
            "clusters": f"{alias}, B",
            f"{alias}.bootstrap.servers": a.bootstrap,
            "B.bootstrap.servers": b.bootstrap,
            f"{alias}->B.enabled": "true",
            f"B->{alias}.emit.heartbeats.enabled": "false",
            "topics": f"t-{alias}.*,.*internal",  # the name of the topic itself is refused at the start
            "topics.exclude": "nothing",
            "groups": "billing,ghost.*",
            "sync.topic.configs.interval.seconds": "1",
            **({"replication.policy.class": policy, "replication.policy.separator": "_"} if policy else {}),
        },
    )

    def translated() -> tuple[int, str, str]:
        return asked(capsys, "client", "translate-offsets", file, alias, "--groups", ".*", "--cluster", "B", "--csv")

    def reported() -> tuple[Any, ...]:
        """What both commands print, without times."""
        code, out, err = asked(capsys, "failover", file, f"{alias}->B", "--dry-run", "--json")
        return translated(), code, err, json.loads(out)["groups"]

    process = MirrorProcess(file, tmp_path / "log")
    try:
        process.eventually(lambda: partitions_of(b, checkpoints) and contents(b, checkpoints)[0], 90)
        process.eventually(lambda: f"billing,{remote},0,10" in translated()[1].split())
        before = reported()
        for name, written in attacks.items():
            forge(a, name, written)
        create(a, late)  # its records arrive after the refresh that has found the forged topics
        write(a, late, [(b"k", b"v")] * 5, 0)
        process.eventually(lambda: partitions_of(b, later) and len(contents(b, later)[0]) == 5)
        process.eventually(lambda: config_of(b, later, "cleanup.policy") == "delete")
        assert reported() == before
        commit(a, "billing", {(topic, 0): 20})  # the connector of the checkpoints is still running
        process.eventually(lambda: translated()[1].split() == [f"billing,{remote},0,20"])
        assert process.stop()[0] == 0
    finally:
        process.clean_up()
    internal = (checkpoints, f"mm2-configs.{alias}.internal")
    assert [config_of(b, name, "cleanup.policy") for name in internal] == ["compact", "compact"]
    assert [partitions_of(b, name) for name in internal] == [1, 1]
