"""Migration from Strimzi's KafkaMirrorMaker2: a flow continues where its connectors have stopped, and copies nothing again.

The operator itself is not run. Given a worker of Kafka Connect 4.3.0 (Java) and connectors as the operator configures them for the
resource in docs/how-to/migration.md: the worker's defaults of KafkaMirrorMaker2Configuration, and the connectors' names and settings of
KafkaMirrorMaker2Connectors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mm2.sandbox.kafka import LocalKafka
from tests.integration.asking import asked
from tests.integration.mirror_flow import commit, committed, create, write
from tests.integration.mirror_process import (
    MirrorProcess,
    checkpoints,
    contents,
    ends,
    has_all,
    partitions_of,
    table,
    write_config,
)
from tests.support.waiting import PATIENCE, wait_until
from tests.systems.workers import JavaDistributedWorker

BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
PACKAGE = "org.apache.kafka.connect.mirror"
Capsys = pytest.CaptureFixture[str]


def worker_props(target: LocalKafka, group: str) -> dict[str, str]:
    """What the operator's defaults are with the group mirrormaker2-cluster. It is unique here, since tests share the brokers."""
    return {
        "bootstrap.servers": target.bootstrap,
        "group.id": group,
        **{f"{kind}.storage.topic": f"{group}-{kind}{'' if kind == 'status' else 's'}" for kind in STORES},
        **{f"{kind}.storage.replication.factor": "-1" for kind in STORES},
        "key.converter": BYTES,
        "value.converter": BYTES,
        "header.converter": BYTES,
    }


STORES = ("config", "offset", "status")


def connector(kind: str, a: LocalKafka, b: LocalKafka, alias: str, **more: str) -> dict[str, str]:
    return {
        "connector.class": f"{PACKAGE}.Mirror{kind}Connector",
        "tasks.max": "2",
        "source.cluster.alias": alias,
        "source.cluster.bootstrap.servers": a.bootstrap,
        "source.cluster.security.protocol": "PLAINTEXT",
        "target.cluster.alias": "B",
        "target.cluster.bootstrap.servers": b.bootstrap,
        "target.cluster.security.protocol": "PLAINTEXT",
        "topics": f"{alias}-.*",
        "heartbeats.replication.enabled": "false",  # tests share the brokers
        "groups": f"{alias}-.*",
        **{key.replace("__", "."): value for key, value in more.items()},
    }


def our_file(folder: Path, a: LocalKafka, b: LocalKafka, alias: str, **more: str) -> Path:
    props = {
        "clusters": f"{alias}, B",
        f"{alias}.bootstrap.servers": a.bootstrap,
        "B.bootstrap.servers": b.bootstrap,
        f"{alias}->B.enabled": "true",
        f"{alias}->B.topics": f"{alias}-.*",
        f"{alias}->B.groups": f"{alias}-.*",
        f"B->{alias}.emit.heartbeats.enabled": "false",
        **more,
    }
    return write_config(folder / "mm2.properties", props)


def positions(broker: LocalKafka, topic: str, connector_name: str) -> dict[tuple[str, int], int]:
    """The last copied offset by partition, decoded independently."""
    found = {}
    for key, (value, _) in table(broker, topic).items():
        name, where = json.loads(key)
        if name == connector_name and value is not None:
            found[where["topic"], where["partition"]] = json.loads(value)["offset"]
    return found


@pytest.mark.slow
@pytest.mark.timeout(int(400 * PATIENCE))
def test_a_flow_continues_where_strimzis_connectors_have_stopped(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path, capsys: Capsys
) -> None:
    alias = f"s{unique[-6:]}"
    orders, small, group = f"{alias}-orders", f"{alias}-small", f"{alias}-billing"
    strimzi = f"{alias}-mirrormaker2-cluster"
    create(kafka_a, orders, 3)
    create(kafka_a, small)
    for partition in range(3):
        write(kafka_a, orders, [(b"k", b"%d" % number) for number in range(500 + partition)], partition)
    write(kafka_a, small, [(None, b"1")] * 7, 0)
    with JavaDistributedWorker(tmp_path / "java", worker_props(kafka_b, strimzi)) as worker:
        for kind, more in (("Source", {"replication__factor": "1"}), ("Checkpoint", {})):
            factors = {f"{name}__topic__replication__factor": "1" for name in ("offset-syncs", "checkpoints")}
            quick = {"emit__checkpoints__interval__seconds": "1", "refresh__groups__interval__seconds": "1"}
            name = f"{alias}->B.Mirror{kind}Connector"
            worker.rest.create(name, connector(kind, kafka_a, kafka_b, alias, **factors, **quick, **more))
        wait_until(lambda: all(has_all(kafka_a, topic, kafka_b, f"{alias}.{topic}") for topic in (orders, small)), 120)
        commit(kafka_a, group, {(orders, partition): 500 + partition for partition in range(3)})
        wait_until(lambda: len(checkpoints_of(kafka_b, alias, group)) == 3, 60)
        file = our_file(tmp_path, kafka_a, kafka_b, alias, **{f"{alias}->B.sync.group.offsets.enabled": "true"})
        origin = ("--from-group", strimzi, "--from-topic", f"{strimzi}-offsets")
        code, out, err = asked(capsys, "offsets", "adopt", file, f"{alias}->B", *origin)
        assert (code, out) == (2, "")
        assert f"1 workers are in the group {strimzi} on cluster B: stop them first" in err
        worker.stop()
    before = {topic: contents(kafka_b, f"{alias}.{topic}") for topic in (orders, small)}
    code, out, err = asked(capsys, "offsets", "adopt", file, f"{alias}->B", *origin, "--json")
    assert (code, err) == (0, "")
    wanted = positions(kafka_b, f"{strimzi}-offsets", f"{alias}->B.MirrorSourceConnector")
    assert wanted == {(orders, 0): 499, (orders, 1): 500, (orders, 2): 501, (small, 0): 6}
    assert {(row["topic"], row["partition"]): row["offset"] for row in json.loads(out)["positions"]} == wanted
    assert positions(kafka_b, f"mm2-offsets.{alias}.internal", "MirrorSourceConnector") == wanted
    code, out, _ = asked(capsys, "offsets", "adopt", file, f"{alias}->B", *origin)
    assert code == 0
    assert out.count("there already") == 4
    # Records that arrive between the two, and after the start.
    write(kafka_a, orders, [(b"k", b"between")] * 20, 1)
    process = MirrorProcess(file, tmp_path / "log", "B")
    try:
        process.eventually(lambda: ends(kafka_b, f"{alias}.{orders}") == ends(kafka_a, orders), 120)
        write(kafka_a, small, [(None, b"after")] * 5, 0)
        process.eventually(lambda: ends(kafka_b, f"{alias}.{small}") == ends(kafka_a, small), 120)
        commit(kafka_a, group, {(orders, 1): 521})
        process.eventually(lambda: checkpoints_of(kafka_b, alias, group).get(1) == (521, 521), 60)
        process.eventually(lambda: committed(kafka_b, group, f"{alias}.{orders}", 1) == 521, 60)
        assert process.stop()[0] == 0
    finally:
        process.clean_up()
    for topic in (orders, small):
        here, there = contents(kafka_a, topic), contents(kafka_b, f"{alias}.{topic}")
        assert there == here, "each record once"
        assert [rows[: len(first)] for rows, first in zip(there, before[topic], strict=True)] == before[topic]


def checkpoints_of(broker: LocalKafka, alias: str, group: str) -> dict[int, tuple[int, int]]:
    """(upstream offset, downstream offset) by partition."""
    topic = f"{alias}.checkpoints.internal"
    rows = checkpoints(broker, topic) if partitions_of(broker, topic) else {}
    return {partition: (up, down) for (name, _, partition), (up, down, _) in rows.items() if name == group}


def strimzis_offsets(broker: LocalKafka, topic: str, rows: Mapping[tuple[str, str, str, int], Any]) -> None:
    """Write an offsets topic: the value by connector, cluster, topic and partition."""
    create(broker, topic, 2, {"cleanup.policy": "compact"})
    for (name, cluster, source, partition), value in rows.items():
        key = [name, {"cluster": cluster, "partition": partition, "topic": source}]
        record = (json.dumps(key, separators=(",", ":")).encode(), json.dumps(value).encode())
        write(broker, topic, [record], partition % 2)


def test_positions_are_adopted_only_where_they_are_certain(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path, capsys: Capsys
) -> None:
    alias = f"s{unique[-6:]}"
    flow, orders, offsets = f"{alias}->B", f"{alias}-orders", f"{alias}-cluster-offsets"
    file = our_file(tmp_path, kafka_a, kafka_b, alias)
    arguments = ("offsets", "adopt", file, flow, "--from-group", f"{alias}-cluster", "--from-topic", offsets)

    def refused(*more: str) -> str:
        code, out, err = asked(capsys, *arguments, *more)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert partitions_of(kafka_b, f"mm2-offsets.{alias}.internal") in {0, 3}
        return err

    assert refused() == f"mm2: Cluster B has no topic {offsets}.\n"
    mine = f"{flow}.MirrorSourceConnector"
    rows: dict[tuple[str, str, str, int], Any] = {
        (mine, alias, orders, 0): {"offset": 41},
        (mine, alias, orders, 1): {"offset": 7},
        (mine, "another", orders, 0): {"offset": 3},
        (f"{flow}.MirrorCheckpointConnector", alias, orders, 0): {"offset": 9},
    }
    strimzis_offsets(kafka_b, offsets, rows)
    assert refused("--from-connector", "x").startswith(
        f"mm2: Topic {offsets} has no positions of the connector x from {alias}. It has those of: {flow}.MirrorCheckpointConnector"
    )
    assert "has none of the remote topics" in refused(), "the replication policy differs, or nothing was copied"
    create(kafka_b, f"{alias}.{orders}", 2)
    code, out, err = asked(capsys, *arguments, "--dry-run")
    assert (code, err) == (0, "")
    assert f"2 positions of {mine} in {offsets} would be adopted in mm2-offsets.{alias}.internal\n" in out
    assert not partitions_of(kafka_b, f"mm2-offsets.{alias}.internal"), "a dry run changes nothing"
    assert asked(capsys, *arguments)[0] == 0
    wanted = {(orders, 0): 41, (orders, 1): 7}
    assert positions(kafka_b, f"mm2-offsets.{alias}.internal", "MirrorSourceConnector") == wanted
    write(kafka_b, offsets, [(key_of(mine, alias, orders, 1), b'{"offset":8}')], 1)
    message = refused()
    assert (
        f"has other positions of 1 partitions in mm2-offsets.{alias}.internal, first {orders}-1: 7 instead of 8"
        in message
    )
    assert positions(kafka_b, f"mm2-offsets.{alias}.internal", "MirrorSourceConnector") == wanted
    write(kafka_b, offsets, [(key_of(mine, alias, orders, 1), b'{"offset":"x"}')], 1)
    assert "is not an offset of a partition" in refused()


def key_of(name: str, cluster: str, topic: str, partition: int) -> bytes:
    return json.dumps(
        [name, {"cluster": cluster, "partition": partition, "topic": topic}], separators=(",", ":")
    ).encode()
