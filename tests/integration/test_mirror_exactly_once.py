"""connect-mirror-maker with exactly.once.source.support=enabled: killed repeatedly, then idle, then taken over."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from mm2.sandbox.kafka import LocalKafka
from tests.integration.asking import asked
from tests.integration.copy_flow import Traffic, create, end_offset, read
from tests.integration.mirror_process import MirrorProcess, write_config
from tests.support.waiting import wait_until

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
