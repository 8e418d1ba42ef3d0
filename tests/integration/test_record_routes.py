"""Transformations that send records to other topics: compared with Java's MirrorMaker 2, and when the process is killed."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from mm2.cli.mm2 import main
from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import Traffic, create
from tests.integration.java_mirror import JavaMirrorProcess
from tests.integration.mirror_process import (
    MirrorProcess,
    config_of,
    contents,
    ends,
    partitions_of,
    records,
    write_config,
)
from tests.integration.record_chains import write_random
from tests.integration.test_record_changes import PARTITIONS, assert_same, await_equal, file_of
from tests.support.waiting import PATIENCE, wait_until

MARK = "moved"
DAY = "yyyyMMdd-HH"


def hours_of(rows: list[list[Any]]) -> set[str]:
    """The hour (UTC) of each record, as in the names of topics."""
    times = (row.timestamp / 1000 for part in rows for row in part)
    return {dt.datetime.fromtimestamp(one, dt.UTC).strftime("%Y%m%d-%H") for one in times}


@pytest.mark.timeout(int(600 * PATIENCE))
def test_records_are_sent_to_the_topics_to_which_java_sends_them(
    kafka_a: LocalKafka, kafka_b: LocalKafka, tmp_path: Path, unique: str
) -> None:
    """Given flows whose transformations rename all topics, those of some records, or by the hour; validates that each topic
    is equal to that of Java's MirrorMaker 2, and that it was created with the partitions and configs of the remote topic.
    """
    topic, tag = f"{unique}-routed", f"r{unique[-6:]}x"
    create(kafka_a, topic, PARTITIONS, retention__ms="-1", max__message__bytes="700000")
    wait_until(lambda: partitions_of(kafka_a, topic) == PARTITIONS)
    write_random(kafka_a, topic, PARTITIONS, 1_500, seed=1)
    rename = {"transforms": "r", "transforms.r.type": "org.apache.kafka.connect.transforms.RegexRouter"}
    rename |= {"transforms.r.regex": r"([^.]*)\.(.*)", "transforms.r.replacement": "$1-all-$2"}
    some = rename | {"transforms.r.replacement": "$1-some-$2", "transforms.r.predicate": "p", "predicates": "p"}
    some |= {"predicates.p.type": "org.apache.kafka.connect.transforms.predicates.HasHeaderKey"}
    some |= {"predicates.p.name": "a"}
    hourly = {"transforms": "h", "transforms.h.type": "org.apache.kafka.connect.transforms.TimestampRouter"}
    hourly |= {"transforms.h.timestamp.format": DAY}
    chains = {f"{tag}0": rename, f"{tag}1": some, f"{tag}2": hourly}
    hours = hours_of(records(kafka_a, topic))
    assert len(hours) > 1
    topics = [f"{tag}0-all-{topic}", f"{tag}1-some-{topic}", f"{tag}1.{topic}"]
    topics += [f"{tag}2.{topic}-{hour}" for hour in sorted(hours)]
    for name in topics:
        create(
            kafka_b, name, PARTITIONS, retention__ms="-1"
        )  # Java's producer does not create them with two partitions
    java = JavaMirrorProcess(file_of(tmp_path / "java", kafka_a, kafka_b, topic, chains), tmp_path / "java.log", "T")
    try:
        ours = MirrorProcess(file_of(tmp_path / "ours", kafka_a, kafka_a, topic, chains), tmp_path / "ours.log", "T")
        try:
            await_equal(java, kafka_b, ours, kafka_a, topics)
            for name in topics:
                assert_same({"topic": name}, contents(kafka_b, name), contents(kafka_a, name))
                assert config_of(kafka_a, name, "max.message.bytes") == "700000"
            assert sum(ends(kafka_a, f"{tag}0.{topic}")) == 0
        finally:
            ours.clean_up()
    finally:
        java.clean_up()


class MarkedTraffic(Traffic):
    """Every third record has the header by which the flow sends it to another topic."""

    def _headers(self, number: int) -> list[tuple[str, str | bytes | None]]:
        return [(MARK, b"")] if number // PARTITIONS % 3 == 0 else []


@pytest.mark.timeout(int(600 * PATIENCE))
@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["disabled", "enabled"])
def test_no_kill_loses_records_that_are_sent_to_another_topic(
    kafka_a: LocalKafka,
    kafka_b: LocalKafka,
    tmp_path: Path,
    unique: str,
    mode: str,
    kills: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Given a flow that sends a third of the records to another topic; when the process and its executors are killed again
    and again; validates that both topics have all of their records in order: the remote topic once, the other topic at
    least once, and once in exactly-once mode.
    """
    alias, topic = f"k{unique[-6:]}", f"{unique}-killed"
    remote, other = f"{alias}.{topic}", f"{alias}-{topic}"
    create(kafka_a, topic, PARTITIONS)
    wait_until(lambda: partitions_of(kafka_a, topic) == PARTITIONS)
    flow = {
        "enabled": "true",
        "topics": topic,
        "transforms": "move",
        "transforms.move.type": "RegexRouter",
        "transforms.move.regex": r"([^.]*)\.(.*)",
        "transforms.move.replacement": "$1-$2",
        "transforms.move.predicate": "marked",
        "predicates": "marked",
        "predicates.marked.type": "HasHeaderKey",
        "predicates.marked.name": MARK,
    }
    props = {f"{alias}->B.{key}": value for key, value in flow.items()}
    props |= {"clusters": f"{alias}, B", f"B->{alias}.enabled": "false", "emit.heartbeats.enabled": "false"}
    props["heartbeats.replication.enabled"] = "false"  # other tests write heartbeats to the source
    props |= {f"{alias}.bootstrap.servers": kafka_a.bootstrap, "B.bootstrap.servers": kafka_b.bootstrap}
    props["B.exactly.once.source.support"] = mode
    file = write_config(tmp_path / "mm2.properties", props)
    process = MirrorProcess(file, tmp_path / "0.log", "B")
    try:
        with MarkedTraffic(kafka_a, topic, PARTITIONS, per_second=1_000) as traffic:
            for number in range(1, kills + 1):
                before = sum(ends(kafka_b, other))
                process.eventually(lambda before=before: sum(ends(kafka_b, other)) > before + 100)  # type: ignore[misc]
                process.kill9(whole_family=True)
                process = MirrorProcess(file, tmp_path / f"{number}.log", "B")
            traffic.finish()
        source = records(kafka_a, topic)
        kept = [[row.content for row in rows if not row.headers] for rows in source]
        moved = [[row.content for row in rows if row.headers] for rows in source]
        count = sum(map(len, kept))
        process.eventually(lambda: sum(map(len, records(kafka_b, remote))) >= count, 120)
        last = {rows[-1] for rows in moved}
        process.eventually(lambda: last == {rows[-1] for rows in contents(kafka_b, other) if rows}, 120)
        assert process.stop()[0] == 0
    finally:
        process.clean_up()
    assert contents(kafka_b, remote) == kept
    found = contents(kafka_b, other)
    assert [list(dict.fromkeys(rows)) for rows in found] == moved
    if mode == "enabled":
        assert found == moved
    assert main(["gaps", str(file), f"{alias}->B", "--json"]) == 0
    totals = json.loads(capsys.readouterr().out)["totals"]
    assert totals.pop("routed") == sum(map(len, moved))
    assert not totals
    again = sum(map(len, found)) - sum(map(len, moved))
    print(f"{mode}: {kills} kills, {traffic.sent} records, {again} of the other topic twice")  # noqa: T201
