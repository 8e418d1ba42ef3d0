"""A flow with preserved offsets, run by the process: leading gaps, growing topics, and consumer groups."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, value_of
from mm2.kafka.producer.filler import is_filler, produce_filler
from mm2.kafka.readers.reader import BatchReader
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import EARLIEST, TopicPartition
from mm2.sandbox.kafka import LocalKafka, start_pair
from tests.integration.copy_flow import create, delete_before, end_offset, producer_of, read
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


def offset_at(broker: LocalKafka, topic: str, when: int) -> int:
    """What ListOffsets returns for a timestamp, or for -2, the log start."""
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": broker.bootstrap}), name="offsets")
    try:
        partition = TopicPartition(topic, 0)
        return value_of(Admin(cluster).list_offsets({partition: when})[partition]).offset
    finally:
        cluster.close()


def start_offset(broker: LocalKafka, topic: str) -> int:
    return offset_at(broker, topic, EARLIEST)


def write(broker: LocalKafka, topic: str, partition: int, first: int, count: int) -> None:
    producer = producer_of(broker)
    for number in range(first, first + count):
        producer.produce(topic, b"%d" % number, b"k%d" % number, partition=partition)
    assert producer.flush(60) == 0


def flow_props(source: LocalKafka, target: LocalKafka, topics: str, **changes: str) -> dict[str, str | None]:
    props: dict[str, str | None] = {
        "clusters": "A, B",
        "A.bootstrap.servers": source.bootstrap,
        "B.bootstrap.servers": target.bootstrap,
        "A->B.enabled": "true",
        "B->A.enabled": "false",
        "A->B.topics": topics,
        "A->B.preserve.offsets": "true",
        "refresh.topics.interval.seconds": "1",
        "replication.factor": "1",
    }
    return {**props, **{name.replace("__", "."): value for name, value in changes.items()}}


def trim(broker: LocalKafka, partition: TopicPartition, first: int) -> None:
    """Let the log of an empty partition start at this offset."""
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": broker.bootstrap}), name="trim")
    try:
        at = 0
        while at < first:
            count = min(1_000_000, first - at)
            assert produce_filler(cluster, partition, at, count, 60) == at
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
    changes = {
        "A->B.groups": "shop",
        "A->B.sync.group.offsets.enabled": "true",
        "A->B.sync.group.offsets.interval.seconds": "1",
        "A->B.emit.checkpoints.interval.seconds": "1",
        "A->B.refresh.groups.interval.seconds": "1",
    }
    props = flow_props(source, target, "orders", **changes)
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


@pytest.mark.slow
def test_a_crash_while_offsets_are_filled_leaves_neither_fillers_nor_another_configuration(
    pair: tuple[LocalKafka, LocalKafka], tmp_path: Path
) -> None:
    """The broker replaces the timestamps of the fillers, and the remote topic has a configuration of its own."""
    source, target = pair
    first = 10_000_000
    own: dict[str, Any] = {
        "message.timestamp.type": "LogAppendTime",
        "cleanup.policy": "compact",
        "retention.ms": "123456789000",
    }
    create(source, "stamped", retention__ms="-1")
    create(target, "A.stamped", 1, **own)
    trim(source, TopicPartition("stamped", 0), first)
    write(source, "stamped", 0, 0, 200)
    props = flow_props(source, target, "stamped", **{"A->B.sync.topic.configs.enabled": "false"})
    file = write_config(tmp_path / "mm2.properties", props)
    killed = MirrorProcess(file, tmp_path / "first.log")
    try:
        killed.eventually(lambda: end_offset(target, "A.stamped") >= 1_000_000, 180)
        killed.kill9(whole_family=True)
    finally:
        killed.clean_up()
    assert end_offset(target, "A.stamped") < first
    process = MirrorProcess(file, tmp_path / "second.log")
    try:
        process.eventually(lambda: end_offset(target, "A.stamped") == first + 200, 180)
        records = read(target, "A.stamped")
        assert [(one.offset, one.key) for one in records] == [(first + n, b"k%d" % n) for n in range(200)]
        assert start_offset(target, "A.stamped") == first
        assert {name: config_of(target, "A.stamped", name) for name in own} == own
        found = json.loads(mm2("status", str(file), "A->B", "--json", "--topic", "stamped"))
        assert "LOST" not in json.dumps(found)
    finally:
        process.clean_up()


@pytest.mark.slow
def test_a_search_by_time_finds_the_same_offsets_after_a_short_leading_gap(
    pair: tuple[LocalKafka, LocalKafka], tmp_path: Path
) -> None:
    """Markers in its place would have the time of copying."""
    source, target = pair
    long_ago = 1_600_000_000_000
    create(source, "aged", retention__ms="-1")
    producer = producer_of(source)
    for number in range(3000):
        producer.produce("aged", b"%d" % number, b"k", partition=0, timestamp=long_ago + 1000 * number)
    assert producer.flush(60) == 0
    delete_before(source, "aged", 1000)
    process = MirrorProcess(
        write_config(tmp_path / "mm2.properties", flow_props(source, target, "aged")), tmp_path / "log"
    )
    try:
        process.eventually(lambda: end_offset(target, "A.aged") == 3000, 120)
        found = {
            topic: [offset_at(broker, topic, long_ago + 1000 * number) for number in (0, 1200, 1800, 2400)]
            for broker, topic in ((source, "aged"), (target, "A.aged"))
        }
        assert found == {"aged": [1000, 1200, 1800, 2400], "A.aged": [1000, 1200, 1800, 2400]}
        assert start_offset(target, "A.aged") == 1000
    finally:
        process.clean_up()


def test_a_filler_is_recognized_whatever_the_broker_changes_and_appended_once(
    pair: tuple[LocalKafka, LocalKafka],
) -> None:
    _, target = pair
    configs: dict[str, Any] = {"message.timestamp.type": "LogAppendTime", "compression.type": "gzip"}
    create(target, "fillers", 1, **configs)
    partition = TopicPartition("fillers", 0)
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": target.bootstrap}), name="fillers")
    try:
        for _ in range(2):  # the second one as a request whose answer was lost
            assert produce_filler(cluster, partition, 0, 10, 60) == 0
        assert end_offset(target, "fillers") == 10
        reader = BatchReader(cluster, cluster.leader(*partition), cluster.metadata(["fillers"]).topics)
        reader.positions = {partition: 0}
        (batch,) = reader.poll(max_wait_ms=1_000)
        reader.close()
        header = batch.view.header
        assert header is not None
        assert header.is_log_append_time
        assert header.codec == 1, "gzip"
        assert is_filler(header)
        write(target, "fillers", 0, 0, 1)
        with pytest.raises(BrokerFailure) as failure:
            produce_filler(cluster, partition, 11, 10, 60)
        assert failure.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert end_offset(target, "fillers") == 11
    finally:
        cluster.close()
