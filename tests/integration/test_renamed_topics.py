"""Flows whose transformations rename their topics: compared with Java's MirrorMaker 2, and when the process is killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mm2.cli.mm2 import main
from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import Traffic, create
from tests.integration.java_mirror import JavaMirrorProcess
from tests.integration.mirror_flow import commit, committed
from tests.integration.mirror_process import (
    MirrorProcess,
    config_of,
    contents,
    ends,
    partitions_of,
    records,
    topics_of,
    write_config,
)
from tests.integration.record_chains import write_random
from tests.integration.test_record_changes import PARTITIONS, assert_same, await_equal, file_of
from tests.support.waiting import PATIENCE, wait_until

RENAME = {
    "transforms": "r",
    "transforms.r.type": "org.apache.kafka.connect.transforms.RegexRouter",
    "transforms.r.regex": r"([^.]*)\.(.*)",
    "transforms.r.replacement": "$2-of-$1",
}


@pytest.mark.timeout(int(600 * PATIENCE))
def test_records_are_copied_to_the_topics_to_which_java_sends_them(
    kafka_a: LocalKafka, kafka_b: LocalKafka, tmp_path: Path, unique: str
) -> None:
    """Given flows that rename their topics, with and without a predicate on the name; validates that the renamed topics are
    equal to those of Java's MirrorMaker 2, and that they were created with the configs of their source topic.
    """
    topic, tag = f"{unique}-renamed", f"r{unique[-6:]}x"
    create(kafka_a, topic, PARTITIONS, retention__ms="-1", max__message__bytes="700000")
    wait_until(lambda: partitions_of(kafka_a, topic) == PARTITIONS)
    write_random(kafka_a, topic, PARTITIONS, 1_500, seed=1)
    by_name = RENAME | {"transforms.r.predicate": "p", "predicates": "p", "predicates.p.pattern": rf".*\.{topic}"}
    by_name |= {"predicates.p.type": "org.apache.kafka.connect.transforms.predicates.TopicNameMatches"}
    other_name = by_name | {"predicates.p.pattern": "nothing"}
    chains = {f"{tag}0": RENAME, f"{tag}1": by_name, f"{tag}2": other_name}
    topics = [f"{topic}-of-{tag}0", f"{topic}-of-{tag}1", f"{tag}2.{topic}"]
    for name in topics[:2]:
        create(kafka_b, name, PARTITIONS, retention__ms="-1")  # brokers would create them with one partition for Java
    java = JavaMirrorProcess(file_of(tmp_path / "java", kafka_a, kafka_b, topic, chains), tmp_path / "java.log", "T")
    try:
        ours = MirrorProcess(file_of(tmp_path / "ours", kafka_a, kafka_a, topic, chains), tmp_path / "ours.log", "T")
        try:
            await_equal(java, kafka_b, ours, kafka_a, topics)
            for name in topics:
                assert_same({"topic": name}, contents(kafka_b, name), contents(kafka_a, name))
                assert config_of(kafka_a, name, "max.message.bytes") == "700000"
            assert f"{tag}0.{topic}" not in topics_of(kafka_a)
        finally:
            ours.clean_up()
    finally:
        java.clean_up()


@pytest.mark.timeout(int(600 * PATIENCE))
@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["disabled", "enabled"])
def test_no_kill_loses_or_doubles_records_of_a_renamed_topic(
    kafka_a: LocalKafka,
    kafka_b: LocalKafka,
    tmp_path: Path,
    unique: str,
    mode: str,
    kills: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Given a flow that renames its topic; when the process and its executors are killed again and again; validates that
    each record is on the target once, in order, and that the offset of a group is that of the renamed topic.
    """
    alias, topic, group = f"k{unique[-6:]}", f"{unique}-killed", f"{unique}-group"
    remote = f"{topic}-of-{alias}"
    create(kafka_a, topic, PARTITIONS)
    wait_until(lambda: partitions_of(kafka_a, topic) == PARTITIONS)
    flow = {"enabled": "true", "topics": topic, "groups": group, "sync.group.offsets.enabled": "true"}
    flow |= {"sync.group.offsets.interval.seconds": "1", "heartbeats.replication.enabled": "false"}
    # Transformations of all connectors would rename the checkpoints topic, too.
    props = {f"{alias}->B.{key}": value for key, value in (flow | RENAME).items()}
    props |= {"clusters": f"{alias}, B", f"B->{alias}.enabled": "false", "emit.heartbeats.enabled": "false"}
    props |= {f"{alias}.bootstrap.servers": kafka_a.bootstrap, "B.bootstrap.servers": kafka_b.bootstrap}
    props["B.exactly.once.source.support"] = mode
    file = write_config(tmp_path / "mm2.properties", props)
    process = MirrorProcess(file, tmp_path / "0.log", "B")
    try:
        with Traffic(kafka_a, topic, PARTITIONS, per_second=1_000) as traffic:
            for number in range(1, kills + 1):
                before = sum(ends(kafka_b, remote))
                process.eventually(lambda before=before: sum(ends(kafka_b, remote)) > before + 200)  # type: ignore[misc]
                process.kill9(whole_family=True)
                process = MirrorProcess(file, tmp_path / f"{number}.log", "B")
            traffic.finish()
        wanted = contents(kafka_a, topic)
        process.eventually(lambda: sum(map(len, records(kafka_b, remote))) >= sum(map(len, wanted)), 120)
        assert contents(kafka_b, remote) == wanted
        commit(kafka_a, group, {(topic, 0): len(wanted[0]) // 2})
        process.eventually(lambda: (committed(kafka_b, group, remote) or 0) >= len(wanted[0]) // 2, 60)
        assert process.stop()[0] == 0
    finally:
        process.clean_up()
    assert main(["gaps", str(file), f"{alias}->B", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["totals"] == {}
    print(f"{mode}: {kills} kills, {traffic.sent} records")  # noqa: T201


def test_a_flow_that_is_renamed_later_continues_at_its_position(
    kafka_a: LocalKafka, kafka_b: LocalKafka, tmp_path: Path, unique: str
) -> None:
    """Given a flow that has copied records; when it is restarted with a router; validates that the renamed topic gets each
    later record once, as with Java, and the old remote topic none.
    """
    alias, topic = f"k{unique[-6:]}", f"{unique}-later"
    create(kafka_a, topic, PARTITIONS)
    wait_until(lambda: partitions_of(kafka_a, topic) == PARTITIONS)
    props = {"clusters": f"{alias}, B", f"B->{alias}.enabled": "false", "emit.heartbeats.enabled": "false"}
    props |= {f"{alias}.bootstrap.servers": kafka_a.bootstrap, "B.bootstrap.servers": kafka_b.bootstrap}
    props |= {f"{alias}->B.enabled": "true", f"{alias}->B.topics": topic}
    props[f"{alias}->B.heartbeats.replication.enabled"] = "false"
    before: list[int] = []
    for number, more in enumerate(({}, {f"{alias}->B.{key}": value for key, value in RENAME.items()})):
        remote = f"{topic}-of-{alias}" if more else f"{alias}.{topic}"
        file = write_config(tmp_path / f"{number}.properties", props | more)
        process = MirrorProcess(file, tmp_path / f"{number}.log", "B")
        try:
            with Traffic(kafka_a, topic, PARTITIONS, per_second=500) as traffic:
                process.eventually(lambda remote=remote: sum(ends(kafka_b, remote)) > 500)  # type: ignore[misc]
                traffic.finish()
            copied = [end - first for end, first in zip(ends(kafka_a, topic), before or [0, 0], strict=True)]
            process.eventually(lambda remote=remote, copied=copied: ends(kafka_b, remote) == copied)  # type: ignore[misc]
            assert process.stop()[0] == 0
        finally:
            process.clean_up()
        if more:
            rows = contents(kafka_a, topic)
            assert contents(kafka_b, remote) == [rows[index][before[index] :] for index in range(PARTITIONS)]
            assert ends(kafka_b, f"{alias}.{topic}") == before
        before = before or ends(kafka_a, topic)
