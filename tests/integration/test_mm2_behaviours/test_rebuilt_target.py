"""A target that is lost and rebuilt empty, while the source still has the offset syncs of the old copy."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import create, delete_before, end_offset, producer_of, read
from tests.integration.mirror_flow import commit, committed
from tests.integration.mirror_process import MirrorProcess, checkpoint_of, checkpoints, syncs, write_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SOURCE, TARGET, TOPIC, GROUP = "lasting", "rebuilt", "rebuilt-orders", "rebuilt-group"
GROUP_OFFSET = (GROUP, f"{SOURCE}.{TOPIC}", 0)
RECORDS, GONE, AT = 3_000, 2_000, 2_500
"""The source: its number of records, how many retention deletes before the rebuild, and the group's offset."""


def run(source: LocalKafka, target: LocalKafka, folder: Path, name: str) -> MirrorProcess:
    props = {
        "clusters": f"{SOURCE},{TARGET}",
        f"{SOURCE}.bootstrap.servers": source.bootstrap,
        f"{TARGET}.bootstrap.servers": target.bootstrap,
        f"{SOURCE}->{TARGET}.enabled": "true",
        f"{TARGET}->{SOURCE}.emit.heartbeats.enabled": "false",
        "topics": TOPIC,
        "groups": GROUP,
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
        "offset.lag.max": "0",
        "listeners": "",
    }
    return MirrorProcess(write_config(folder / f"{name}.properties", props), folder / f"{name}.log")


def fill(source: LocalKafka, numbers: range) -> None:
    producer = producer_of(source)
    for number in numbers:
        producer.produce(TOPIC, struct.pack(">q", number), partition=0)
    assert producer.flush(30) == 0


def test_groups_of_a_rebuilt_target_never_skip_unread_records(kafka_a: LocalKafka, tmp_path: Path) -> None:
    remote, checkpoints_topic = f"{SOURCE}.{TOPIC}", f"{SOURCE}.checkpoints.internal"
    create(kafka_a, TOPIC)
    # In batches, so that an offset sync exists shortly before the group's offset.
    for first in range(0, RECORDS, 100):
        fill(kafka_a, range(first, first + 100))
    commit(kafka_a, GROUP, {(TOPIC, 0): AT})
    with LocalKafka("old", tmp_path / "old") as old:
        process = run(kafka_a, old, tmp_path, "old")
        try:
            process.eventually(lambda: checkpoints(old, checkpoints_topic).get(GROUP_OFFSET, ())[:2] == (AT, AT), 150)
            process.eventually(lambda: end_offset(old, remote) == RECORDS)
            assert process.stop()[0] == 0
        finally:
            process.clean_up()
    known = syncs(kafka_a, f"mm2-offset-syncs.{TARGET}.internal")[TOPIC, 0]
    assert known[1] > RECORDS - GONE, "or this would show nothing"
    delete_before(kafka_a, TOPIC, GONE)
    with LocalKafka("new", tmp_path / "new") as new:
        process = run(kafka_a, new, tmp_path, "new")
        try:
            process.eventually(
                lambda: checkpoints(new, checkpoints_topic).get(GROUP_OFFSET, ())[:2] == (AT, AT - GONE), 150
            )
            process.eventually(lambda: committed(new, GROUP, remote) == AT - GONE)
            history = [checkpoint_of(row.key or b"", row.value or b"") for row in read(new, checkpoints_topic)]
            assert [group_offset for group_offset, _ in history] == [GROUP_OFFSET] * len(history)
            assert max(downstream for _, (_, downstream, _) in history) == AT - GONE, history
        finally:
            process.clean_up()
