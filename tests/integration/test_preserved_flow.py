"""A flow with preserved offsets, run by the process: leading gaps, growing topics, and consumer groups."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mm2.kafka.admin import Admin
from mm2.kafka.cluster import Cluster
from mm2.kafka.filler import produce_filler
from mm2.kafka.settings import ClientSettings
from mm2.kafka.structs import TopicPartition
from mm2.sandbox.kafka import LocalKafka, start_pair
from tests.integration.copy_flow import create, end_offset, producer_of, read
from tests.integration.docs_blocks import ROOT
from tests.integration.mirror_flow import commit, committed
from tests.integration.mirror_process import MirrorProcess, config_of, ends, grow, partitions_of, write_config

FIRST = 2_500_000


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalKafka, LocalKafka]]:
    with start_pair(tmp_path_factory.mktemp("preserved")) as brokers:
        yield brokers


def mm2(*arguments: str) -> str:
    """The output of a command that succeeds."""
    command = [sys.executable, "-P", "-m", "mm2.cli.mm2", *arguments]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def write(broker: LocalKafka, topic: str, partition: int, first: int, count: int) -> None:
    producer = producer_of(broker)
    for number in range(first, first + count):
        producer.produce(topic, b"%d" % number, b"k%d" % number, partition=partition)
    assert producer.flush(60) == 0


def trim(broker: LocalKafka, partition: TopicPartition, first: int) -> None:
    """Let the log of an empty partition start at this offset."""
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": broker.bootstrap}), name="trim")
    try:
        at = 0
        while at < first:
            count = min(1_000_000, first - at)
            assert produce_filler(cluster, partition, count, 60) == at
            at += count
        assert Admin(cluster).delete_records({partition: first}) == {partition: first}
    finally:
        cluster.close()


@pytest.mark.slow
def test_a_flow_keeps_the_offsets_of_trimmed_growing_topics_and_of_groups(
    pair: tuple[LocalKafka, LocalKafka], tmp_path: Path
) -> None:
    source, target = pair
    create(source, "orders", 2, retention__ms="-1")
    trim(source, TopicPartition("orders", 0), FIRST)
    write(source, "orders", 0, 0, 200)
    write(source, "orders", 1, 0, 100)
    props: dict[str, str | None] = {
        "clusters": "A, B",
        "A.bootstrap.servers": source.bootstrap,
        "B.bootstrap.servers": target.bootstrap,
        "A->B.enabled": "true",
        "B->A.enabled": "false",
        "A->B.topics": "orders",
        "A->B.groups": "shop",
        "A->B.preserve.offsets": "true",
        "A->B.sync.group.offsets.enabled": "true",
        "A->B.sync.group.offsets.interval.seconds": "1",
        "A->B.emit.checkpoints.interval.seconds": "1",
        "A->B.refresh.groups.interval.seconds": "1",
        "refresh.topics.interval.seconds": "1",
        "replication.factor": "1",
    }
    file = write_config(tmp_path / "mm2.properties", props)
    commit(source, "shop", {("orders", 0): FIRST + 150, ("orders", 1): 100})
    planned = mm2("plan", str(file), "A->B")
    assert f"fill offsets A.orders-0: offsets=0..{FIRST - 1}, by=filler records, which are deleted" in planned
    first = MirrorProcess(file, tmp_path / "first.log")
    try:
        first.await_log("Filling offsets before the first record.")
        first.kill9(whole_family=True)
    finally:
        first.clean_up()
    process = MirrorProcess(file, tmp_path / "second.log")
    try:
        process.eventually(lambda: partitions_of(target, "A.orders") == 2, 120)
        process.eventually(lambda: end_offset(target, "A.orders", 0) == FIRST + 200, 180)
        process.eventually(lambda: end_offset(target, "A.orders", 1) == 100)
        assert config_of(target, "A.orders", "retention.ms") == "-1"
        grow(source, "orders", 3)
        write(source, "orders", 2, 0, 50)
        process.eventually(lambda: partitions_of(target, "A.orders") == 3)
        process.eventually(lambda: ends(target, "A.orders") == [FIRST + 200, 100, 50])
        process.eventually(lambda: committed(target, "shop", "A.orders", 0) == FIRST + 150)
        process.eventually(lambda: committed(target, "shop", "A.orders", 1) == 100)
        for partition in range(3):
            assert read(target, "A.orders", partition) == read(source, "orders", partition)
        assert "equal. 350 records of 3 partitions" in mm2("verify", str(file), "A->B", "--topic", "orders")
    finally:
        process.clean_up()
