"""connect-mirror-maker with exactly.once.source.support=enabled: killed repeatedly, then idle, then taken over."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from mm2.sandbox.kafka import LocalKafka
from tests.integration.asking import asked
from tests.integration.copy_flow import Traffic, create, end_offset, read, read_all
from tests.integration.mirror.test_record_changes import DroppedTraffic
from tests.integration.mirror_process import MirrorProcess, write_config
from tests.support.waiting import PATIENCE, wait_until

PARTITIONS = 3


def size(broker: LocalKafka, topic: str) -> int:
    return sum(end_offset(broker, topic, partition) for partition in range(PARTITIONS))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_after_repeated_kills_a_committed_reader_sees_every_record_once(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = f"{unique}-a", f"{unique}-b"
    create(kafka_a, unique, PARTITIONS, retention__ms="-1")
    remote = f"{source}.{unique}"
    create(kafka_b, remote, PARTITIONS, retention__ms="-1")
    props = {
        "clusters": f"{source}, {target}",
        f"{source}.bootstrap.servers": kafka_a.bootstrap,
        f"{target}.bootstrap.servers": kafka_b.bootstrap,
        f"{source}->{target}.enabled": "true",
        f"{source}->{target}.topics": unique,
        f"{target}->{source}.enabled": "false",
        f"{target}.exactly.once.source.support": "enabled",
        f"{source}.consumer.isolation.level": "read_committed",
    }
    file = write_config(tmp_path / "mm2.properties", props)
    random.seed(6)
    process = MirrorProcess(file, tmp_path / "log-0", target)
    try:
        with Traffic(kafka_a, unique, PARTITIONS, per_second=1000) as traffic:
            for start in range(1, 3):
                before = size(kafka_b, remote)
                wait_until(lambda: size(kafka_b, remote) > before + 500, 90, detail=process.tail)  # noqa: B023
                time.sleep(random.random())
                process.kill9(whole_family=bool(start % 2))
                process.clean_up()
                process = MirrorProcess(file, tmp_path / f"log-{start}", target)
            traffic.finish()
        for partition in range(PARTITIONS):
            wanted = [record.content for record in read(kafka_a, unique, partition)]

            def got(partition: int = partition) -> list[object]:
                return [record.content for record in read(kafka_b, remote, partition, isolation="read_committed")]

            wait_until(lambda: len(got()) >= len(wanted), 60, detail=process.tail)  # noqa: B023
            assert got() == wanted
        # No more records: the tasks' updates cannot wait for a transaction with records.
        flow = f"{source}->{target}"
        code, out, _ = asked(capsys, "failover", file, flow, "--wait", "60", "--yes", "--json")
        document = json.loads(out)
        assert (code, document["problems"]) == (0, []), out
        assert [(row["state"], row["missing"], row["others"]) for row in document["partitions"]] == [
            ("PAUSED", 0, 0)
        ] * PARTITIONS
        assert asked(capsys, "failback", file, flow)[0] == 0
        with Traffic(kafka_a, unique, PARTITIONS, per_second=1000) as traffic:
            time.sleep(1)
            traffic.finish()
        for partition in range(PARTITIONS):
            wanted = [record.content for record in read(kafka_a, unique, partition)]
            wait_until(lambda: len(got(partition)) >= len(wanted), 60, detail=process.tail)  # noqa: B023
            assert got(partition) == wanted
        assert process.stop()[0] == 0
    finally:
        process.clean_up()


@pytest.mark.slow
@pytest.mark.timeout(int(400 * PATIENCE))
@pytest.mark.parametrize("kills", [3, 10])
def test_a_committed_reader_sees_each_changed_record_once_after_kills(
    kafka_a: LocalKafka,
    kafka_b: LocalKafka,
    unique: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kills: int,
) -> None:
    """Given a chain that adds a header and drops a third; when the process, every second time with its executors, is killed
    within transactions; validates that a reader with read_committed sees each other record once, in order and with the
    header, and that dropped records are counted and are not missing.
    """
    source, target = f"a{unique[-6:]}", f"b{unique[-6:]}"
    flow, remote = f"{source}->{target}", f"{source}.{unique}"
    create(kafka_a, unique, PARTITIONS, retention__ms="-1")
    create(kafka_b, remote, PARTITIONS, retention__ms="-1")
    props = {
        "clusters": f"{source}, {target}",
        f"{source}.bootstrap.servers": kafka_a.bootstrap,
        f"{target}.bootstrap.servers": kafka_b.bootstrap,
        f"{flow}.enabled": "true",
        f"{flow}.topics": unique,
        f"{flow}.header.converter": "org.apache.kafka.connect.storage.StringConverter",
        f"{flow}.transforms": "mark, drop",
        f"{flow}.transforms.mark.type": "InsertHeader",
        f"{flow}.transforms.mark.header": "from",
        f"{flow}.transforms.mark.value.literal": source,
        f"{flow}.transforms.drop.type": "Filter",
        f"{flow}.transforms.drop.predicate": "marked",
        f"{flow}.predicates": "marked",
        f"{flow}.predicates.marked.type": "HasHeaderKey",
        f"{flow}.predicates.marked.name": "drop",
        f"{target}->{source}.enabled": "false",
        f"{target}.exactly.once.source.support": "enabled",
        "emit.heartbeats.enabled": "false",
        "heartbeats.replication.enabled": "false",
    }
    file = write_config(tmp_path / "mm2.properties", props)
    process = MirrorProcess(file, tmp_path / "log-0", target)
    try:
        with DroppedTraffic(kafka_a, unique, PARTITIONS, per_second=1_500 // kills) as traffic:
            for start in range(1, kills + 1):
                before = size(kafka_b, remote)
                process.eventually(lambda before=before: size(kafka_b, remote) > before + 200, 120)  # type: ignore[misc]
                process.kill9(whole_family=bool(start % 2))
                process.clean_up()
                process = MirrorProcess(file, tmp_path / f"log-{start}", target)
            traffic.finish()
        source_records = read_all(kafka_a, unique, range(PARTITIONS))
        wanted = {
            partition: [
                (row.timestamp, row.key, row.value, (*row.headers, ("from", source.encode())))
                for row in rows
                if not row.headers
            ]
            for partition, rows in source_records.items()
        }

        def got() -> dict[int, list[object]]:
            found = read_all(kafka_b, remote, range(PARTITIONS), isolation="read_committed")
            return {partition: [row.content for row in rows] for partition, rows in found.items()}

        process.eventually(lambda: all(len(rows) >= len(wanted[partition]) for partition, rows in got().items()), 120)
        assert got() == wanted
        code, out, _ = asked(capsys, "failover", file, flow, "--wait", "60", "--yes", "--json")
        document = json.loads(out)
        assert (code, document["problems"], document["records_at_risk"]) == (0, [], 0), out
        figures = [(row["copied_up_to"], row["missing"], row["to_be_dropped"]) for row in document["partitions"]]
        assert figures == [(len(source_records[partition]), 0, 0) for partition in range(PARTITIONS)]
        assert got() == wanted
        assert process.stop()[0] == 0
    finally:
        process.clean_up()
    dropped = sum(bool(row.headers) for rows in source_records.values() for row in rows)
    code, out, _ = asked(capsys, "gaps", file, flow, "--json")
    assert (code, json.loads(out)["totals"]) == (0, {"filtered": dropped})
    print(f"{kills} kills, {traffic.sent} records, {dropped} dropped")  # noqa: T201
