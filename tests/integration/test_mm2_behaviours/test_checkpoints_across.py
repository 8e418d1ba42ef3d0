"""Checkpoints of one implementation from the offset syncs of the other, on plain Connect workers: Java's and ours.

Given two flows of the same topics. When Java's source connector copies one and our checkpoint connector follows it, and the other
one the other way round, while groups have different committed offsets. Validates that no group skips a record, and that one at the end
reads nothing again. Also tests the effect of a tombstone among the checkpoints on both implementations.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from mm2.mirror.client import MirrorClient
from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import admin_of, create, producer_of, read
from tests.integration.java_mirror import java_says
from tests.integration.mirror_flow import commit, flow_props
from tests.integration.mirror_process import checkpoints, table, topics_of
from tests.integration.test_mm2_behaviours.test_groups import produce, produce_transactions, values
from tests.support.waiting import wait_until
from tests.systems.workers import DistributedWorker, JavaDistributedWorker, WorkerProcess, distributed_props

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PLAIN, HOLES = "across-plain", "across-holes"
RECORDS = 2_000
GROUP_OFFSETS = (0, 1, 7, RECORDS // 3, RECORDS // 2, RECORDS - 1, RECORDS)
LAG_MAX = 10
#: Aliases of source and target by whose checkpoint connector follows the other's source connector.
FLOWS = {"ours": ("acrossj", "acrossjt"), "java": ("acrosso", "acrossot")}
BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
NULL = {"failed": "java.lang.NullPointerException"}


@dataclass(frozen=True)
class Environment:
    """``workers`` by implementation; ``hole_offsets``: offsets of the topic with aborted transactions, the last one its end."""

    east: LocalKafka
    west: LocalKafka
    workers: dict[str, WorkerProcess]
    hole_offsets: list[int]

    def checkpoint(self, who: str, group: str, topic: str = PLAIN) -> tuple[int, int]:
        """Source and target offset of the checkpoint; -1 without one."""
        source, _ = FLOWS[who]
        points = f"{source}.checkpoints.internal"
        found = checkpoints(self.west, points) if points in topics_of(self.west) else {}
        return found.get((group, f"{source}.{topic}", 0), (-1, -1, ""))[:2]

    def await_end(self, who: str, group: str) -> None:
        """Wait until a group at the end of the plain topic has a checkpoint at the end of its copy."""
        wait_until(lambda: self.checkpoint(who, group) == (RECORDS, RECORDS), 90, detail=self.tail)

    def tail(self) -> str:
        return "\n".join(worker.tail() for worker in self.workers.values())


def configs(source: LocalKafka, target: LocalKafka, who: str, kind: str) -> dict[str, str]:
    """Configuration of one connector of the flow whose checkpoints ``who`` writes."""
    here, there = FLOWS[who]
    return flow_props(kind, source, target) | {
        "name": f"{here}-{kind}",
        "source.cluster.alias": here,
        "target.cluster.alias": there,
        "topics": f"{PLAIN},{HOLES}",
        "groups": "across-.*",
        "offset.lag.max": str(LAG_MAX),
        "heartbeats.replication.enabled": "false",
        "sync.topic.acls.enabled": "false",
        "source.consumer.isolation.level": "read_committed",
        "key.converter": BYTES,
        "value.converter": BYTES,
    }


@pytest.fixture(scope="module")
def env(kafka_pair: tuple[LocalKafka, LocalKafka], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    east, west = kafka_pair
    create(east, PLAIN)
    create(east, HOLES)
    produce(east, PLAIN, 0, RECORDS)
    produce_transactions(east, HOLES, 60)
    dice = random.Random(9)
    end = read(east, HOLES, isolation="read_committed")[-1].offset + 2
    group_offsets = [*sorted(dice.randrange(end) for _ in range(8)), end]
    for group_offset in GROUP_OFFSETS:
        commit(east, f"across-at-{group_offset}", {(PLAIN, 0): group_offset})
    for group_offset in group_offsets:
        commit(east, f"across-hole-{group_offset}", {(HOLES, 0): group_offset})
    kinds: dict[str, type[WorkerProcess]] = {"java": JavaDistributedWorker, "ours": DistributedWorker}
    with ExitStack() as stack:
        workers = {
            who: kind(tmp_path_factory.mktemp(who), distributed_props(west.bootstrap, f"across-{who}")).launch()
            for who, kind in kinds.items()
        }
        for worker in workers.values():
            stack.push(worker)
        for who, worker in workers.items():
            worker.await_healthy()
            (other,) = workers.keys() - {who}
            for kind, flow in (("MirrorSourceConnector", other), ("MirrorCheckpointConnector", who)):
                props = configs(east, west, flow, kind)
                worker.rest.create(props["name"], props)
        yield Environment(east, west, workers, group_offsets)


@pytest.mark.parametrize("who", FLOWS)
def test_no_group_skips_a_record_because_of_the_other_flow_s_offset_syncs(env: Environment, who: str) -> None:
    for topic, name, group_offsets in ((PLAIN, "at", list(GROUP_OFFSETS)), (HOLES, "hole", env.hole_offsets)):
        source = read(env.east, topic, isolation="read_committed")

        def are_there(
            topic: str = topic, name: str = name, group_offsets: list[int] = group_offsets, last: int = len(source)
        ) -> bool:
            found = [env.checkpoint(who, f"across-{name}-{group_offset}", topic) for group_offset in group_offsets]
            return [upstream for upstream, _ in found] == group_offsets and found[-1][1] >= last

        wait_until(are_there, 90, detail=env.tail)
        target = read(env.west, f"{FLOWS[who][0]}.{topic}", isolation="read_committed")
        assert values(target, 0) == values(source, 0)
        for group_offset in group_offsets:
            _, found = env.checkpoint(who, f"across-{name}-{group_offset}", topic)
            left, read_on = values(source, group_offset), values(target, found)
            assert left == read_on[len(read_on) - len(left) :], f"a group at {group_offset} continues at {found}"
        assert read_on == [], "who is at the end has nothing left to read"


def test_a_tombstone_stops_java_s_checkpoints_and_not_ours(env: Environment) -> None:
    """Why `tombstone.dead.groups.enabled` is off by default."""
    gone, early, late = "across-gone", "across-new-early", "across-new-late"
    for who in FLOWS:
        env.await_end(who, f"across-at-{RECORDS}")
    commit(env.east, gone, {(PLAIN, 0): RECORDS})
    for who in FLOWS:
        env.await_end(who, gone)
    before = {who: java_answers(env, who) for who in FLOWS}
    for who, (translated, every, lines) in before.items():
        source = FLOWS[who][0]
        assert translated == {f"{source}.{PLAIN}-0": [RECORDS, ""]}
        assert gone in every
        assert len(lines) >= len(GROUP_OFFSETS)
    for done in admin_of(env.east).delete_consumer_groups([gone]).values():
        done.result(30)
    for source, _ in FLOWS.values():
        producer = producer_of(env.west)
        producer.produce(
            f"{source}.checkpoints.internal", None, key_of("across-dead", f"{source}.{PLAIN}"), partition=0
        )
        assert producer.flush(30) == 0
    # Both are read by tasks that start.
    commit(env.east, early, {(PLAIN, 0): RECORDS // 2})
    commit(env.east, late, {(PLAIN, 0): RECORDS})
    for who in FLOWS:
        env.await_end(who, late)

    # Java's task treats the topic as unreadable, and so uses only the newest offset sync.
    assert "Exception encountered loading checkpoints topic" in env.workers["java"].log.read_text()
    assert env.checkpoint("java", early) == (-1, -1)
    wait_until(lambda: env.checkpoint("ours", early)[0] == RECORDS // 2, 30, detail=env.tail)
    # Its clients and formatters fail for every group.
    for who, (source, _) in FLOWS.items():
        assert java_answers(env, who) == [NULL, NULL, NULL]
        with MirrorClient({"bootstrap.servers": env.west.bootstrap}) as client:
            (group_offset,) = client.remote_consumer_offsets(f"across-at-{RECORDS}", source).values()
            assert group_offset.offset == RECORDS
    # So our tasks write none unless configured.
    points = table(env.west, f"{FLOWS['ours'][0]}.checkpoints.internal")
    assert points[key_of(gone, f"{FLOWS['ours'][0]}.{PLAIN}")][0] is not None


def java_answers(env: Environment, who: str) -> list[Any]:
    """A group's offsets, those of all groups, the lines of the console."""
    source, here = FLOWS[who][0], env.west.bootstrap
    return java_says(
        ("translate", here, source, f"across-at-{RECORDS}"),
        ("translate-all", here, source, "across-.*"),
        ("format", here, f"{source}.checkpoints.internal", "Checkpoint"),
    )


def key_of(group: str, topic: str) -> bytes:
    strings = b"".join(struct.pack(">h", len(text)) + text.encode() for text in (group, topic))
    return strings + struct.pack(">i", 0)
