"""Failover drill: consumers on A, A is killed under load, they continue on B, A restarts, they fail back.

Given 20 groups that consume and commit on A as records come, some of them at rest. When A's broker is killed with SIGKILL,
each group continues at the offsets that `sync.group.offsets` has committed for it on B, consumes there to the end, and once A
runs again fails back to the checkpoints of the flow B->A. Validates that no record that is on B is skipped by any group, that
only records consumed shortly before the kill are read again, and none by idle groups; and after failback, that
no record of A is skipped.
"""

from __future__ import annotations

import random
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException

from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import TopicPartition as Mm2TopicPartition
from mm2.sandbox.kafka import LocalKafka, start_pair
from tests.integration.copy_flow import create, producer_of, read_all
from tests.integration.mirror_flow import commit
from tests.integration.mirror_process import MirrorProcess, checkpoints, is_running, write_config
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

GROUPS = 20
PARTITIONS = 4
TOPIC, REMOTE = "drill", "A.drill"
PER_SECOND = 400
LOAD_S = 20.0
#: A second each for the ledger, the checkpoint and the group sync, and a margin for a busy machine.
IN_FLIGHT_S = 12.0


@dataclass
class Group:
    """A consumer of A; `consumed` has the time of each record."""

    name: str
    rests_after_s: float
    consumed: dict[int, float] = field(default_factory=dict)

    def consume(self, broker: LocalKafka, stop: threading.Event) -> None:
        """Commit after every few records until the stop, the pause, or the failure of A."""
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": self.name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        consumer.subscribe([TOPIC])
        until = time.monotonic() + self.rests_after_s
        with suppress(KafkaException):
            while not stop.is_set() and time.monotonic() < until:
                messages = [message for message in consumer.consume(50, 0.3) if message.error() is None]
                if messages:
                    consumer.commit(asynchronous=False)
                    now = time.monotonic()
                    self.consumed.update((number(message.value()), now) for message in messages)
        if not stop.is_set():
            consumer.close()


def number(value: object) -> int:
    assert isinstance(value, bytes)
    return int(struct.unpack(">q", value)[0])


def everything(broker: LocalKafka, topic: str) -> dict[int, list[tuple[int, int]]]:
    """(offset, number) of each record, by partition."""
    found = read_all(broker, topic, range(PARTITIONS))
    return {partition: [(record.offset, number(record.value)) for record in rows] for partition, rows in found.items()}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[LocalKafka, LocalKafka]]:
    with start_pair(tmp_path / "kafka", heap="384m") as found:
        yield found


def test_groups_fail_over_and_fail_back_without_skipping_a_record(
    pair: tuple[LocalKafka, LocalKafka], tmp_path: Path
) -> None:
    a, b = pair
    create(a, TOPIC, PARTITIONS)
    file = write_config(
        tmp_path / "mm2.properties",
        {
            "clusters": "A,B",
            "A.bootstrap.servers": a.bootstrap,
            "B.bootstrap.servers": b.bootstrap,
            "A->B.enabled": "true",
            "B->A.enabled": "true",
            "topics": TOPIC,
            "groups": "drill-.*",
            "sync.group.offsets.enabled": "true",
            "sync.group.offsets.interval.seconds": "1",
            "listeners": "",
        },
    )
    dice = random.Random(8)
    groups = [Group(f"drill-{n}", 3.0 if n % 5 == 0 else dice.uniform(LOAD_S / 2, 600)) for n in range(GROUPS)]
    for group in groups:
        commit(a, group.name, {(TOPIC, 0): 0})
    process = MirrorProcess(file, tmp_path / "process.log")
    try:
        process.eventually(lambda: is_running(b, "A") and is_running(a, "B"), 120)
        stop = threading.Event()
        threads = [threading.Thread(target=group.consume, args=(a, stop), daemon=True) for group in groups]
        threads.append(threading.Thread(target=load, args=(a, stop), daemon=True))
        for thread in threads:
            thread.start()
        time.sleep(LOAD_S)
        killed = time.monotonic()
        a.kill9()
        stop.set()
        time.sleep(5)  # what the group sync still has to do; consumers that wait for an answer of A wait for ever

        on_b = everything(b, REMOTE)
        placed = offsets_of(b, groups)
        everywhere = {what for rows in on_b.values() for _, what in rows}
        assert len(everywhere) > LOAD_S * PER_SECOND / 4
        assert all(group.consumed for group in groups)
        for group in groups:
            group_offsets = placed[group.name]
            reads = {what for partition, rows in on_b.items() for at, what in rows if at >= group_offsets[partition]}
            skipped = everywhere - group.consumed.keys() - reads
            assert not skipped, (
                f"{group.name} continues at {group_offsets} and skips {len(skipped)}, such as {min(skipped)}"
            )
            again = [group.consumed[what] for what in reads & group.consumed.keys()]
            assert all(killed - at < IN_FLIGHT_S for at in again), f"{group.name} reads {len(again)} records again"

        # They consume B to its end and commit there.
        ends = {partition: rows[-1][0] + 1 for partition, rows in on_b.items() if rows}
        for group in groups:
            commit(b, group.name, {(REMOTE, partition): end for partition, end in ends.items()})
        a.start()
        wanted = {(group.name, TOPIC, partition) for group in groups for partition in ends}

        def home() -> dict[tuple[str, str, int], tuple[int, int, str]]:
            return checkpoints(a, "B.checkpoints.internal")

        def are_home() -> bool:
            found = home()
            return all(key in found and found[key][0] == ends[key[2]] for key in wanted)

        process.eventually(are_home, 120)
        on_a, found = everything(a, TOPIC), home()
        for name, _, partition in wanted:
            group_offset = found[name, TOPIC, partition][1]
            left = {what for at, what in on_a[partition] if at < group_offset}
            assert left <= everywhere, (
                f"{name} fails back to {group_offset} of {TOPIC}-{partition}, and records before it are on A only"
            )
            again_at_home = everywhere & {what for at, what in on_a[partition] if at >= group_offset}
            assert not again_at_home, f"{name} reads {len(again_at_home)} records of {TOPIC}-{partition} again at home"
        wait_until(lambda: process.is_running)
    finally:
        process.clean_up()


def offsets_of(broker: LocalKafka, groups: list[Group]) -> dict[str, dict[int, int]]:
    """Committed offsets of the remote topic, by group and partition; 0 without one."""
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": broker.bootstrap}), name="B")
    answers = Admin(cluster).list_group_offsets([group.name for group in groups])
    cluster.close()
    found = {}
    for name, offsets in answers.items():
        assert not isinstance(offsets, KafkaFailure), offsets
        found[name] = {
            partition: offsets[Mm2TopicPartition(REMOTE, partition)].offset
            if Mm2TopicPartition(REMOTE, partition) in offsets
            else 0
            for partition in range(PARTITIONS)
        }
    return found


def load(broker: LocalKafka, stop: threading.Event) -> None:
    """Write numbered records to all partitions."""
    producer = producer_of(broker, log_level=0)
    counted = 0
    while not stop.is_set():
        for _ in range(PER_SECOND // 10):
            producer.produce(TOPIC, struct.pack(">q", counted), partition=counted % PARTITIONS)
            counted += 1
        producer.poll(0)
        time.sleep(0.1)
    producer.purge()
