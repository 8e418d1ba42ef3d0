"""Checkpoints of one side from the offset syncs of the other, on plain Connect workers: Java's and ours.

Given two flows of the same topics. When Java's source connector copies one and our checkpoint connector follows it, and the other
one the other way round, while groups are at all kinds of places. Validates that no group skips a record, and that one at the end
reads nothing again. Then what a tombstone among the checkpoints does to either side.
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
PLACES = (0, 1, 7, RECORDS // 3, RECORDS // 2, RECORDS - 1, RECORDS)
LAG_MAX = 10
#: Aliases of source and target by whose checkpoint connector follows the other's source connector.
FLOWS = {"ours": ("acrossj", "acrossjt"), "java": ("acrosso", "acrossot")}
BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
NULL = {"failed": "java.lang.NullPointerException"}


@dataclass(frozen=True)
class Scene:
    """``workers`` by who they are; ``hole_places`` are offsets of the topic with aborted transactions, the last one its end."""

    east: LocalKafka
    west: LocalKafka
    workers: dict[str, WorkerProcess]
    hole_places: list[int]

    def checkpoint(self, who: str, group: str, topic: str = PLAIN) -> tuple[int, int]:
        """Offsets on the source and on the target; -1 for none."""
        source, _ = FLOWS[who]
        points = f"{source}.checkpoints.internal"
        found = checkpoints(self.west, points) if points in topics_of(self.west) else {}
        return found.get((group, f"{source}.{topic}", 0), (-1, -1, ""))[:2]

    def await_end(self, who: str, group: str) -> None:
        """Wait until a group at the end of the plain topic is at the end of its copy."""
        wait_until(lambda: self.checkpoint(who, group) == (RECORDS, RECORDS), 90, detail=self.tail)

    def tail(self) -> str:
        return "\n".join(worker.tail() for worker in self.workers.values())


def configs(source: LocalKafka, target: LocalKafka, who: str, kind: str) -> dict[str, str]:
    """Of one connector of the flow that ``who`` makes the checkpoints of."""
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
def scene(kafka_pair: tuple[LocalKafka, LocalKafka], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    east, west = kafka_pair
    create(east, PLAIN)
    create(east, HOLES)
    produce(east, PLAIN, 0, RECORDS)
    produce_transactions(east, HOLES, 60)
    dice = random.Random(9)
    end = read(east, HOLES, isolation="read_committed")[-1].offset + 2
    places = [*sorted(dice.randrange(end) for _ in range(8)), end]
    for place in PLACES:
        commit(east, f"across-at-{place}", {(PLAIN, 0): place})
    for place in places:
        commit(east, f"across-hole-{place}", {(HOLES, 0): place})
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
        yield Scene(east, west, workers, places)


@pytest.mark.parametrize("who", FLOWS)
def test_no_group_skips_a_record_because_of_the_other_flow_s_offset_syncs(scene: Scene, who: str) -> None:
    for topic, name, places in ((PLAIN, "at", list(PLACES)), (HOLES, "hole", scene.hole_places)):
        source = read(scene.east, topic, isolation="read_committed")

        def are_there(
            topic: str = topic, name: str = name, places: list[int] = places, last: int = len(source)
        ) -> bool:
            found = [scene.checkpoint(who, f"across-{name}-{place}", topic) for place in places]
            return [upstream for upstream, _ in found] == places and found[-1][1] >= last

        wait_until(are_there, 90, detail=scene.tail)
        target = read(scene.west, f"{FLOWS[who][0]}.{topic}", isolation="read_committed")
        assert values(target, 0) == values(source, 0)
        for place in places:
            _, found = scene.checkpoint(who, f"across-{name}-{place}", topic)
            left, read_on = values(source, place), values(target, found)
            assert left == read_on[len(read_on) - len(left) :], f"a group at {place} goes on at {found}"
        assert read_on == [], "who is at the end has nothing left to read"


def test_a_tombstone_stops_java_s_checkpoints_and_not_ours(scene: Scene) -> None:
    """Why `tombstone.dead.groups.enabled` is off by default."""
    gone, early, late = "across-gone", "across-new-early", "across-new-late"
    for who in FLOWS:
        scene.await_end(who, f"across-at-{RECORDS}")
    commit(scene.east, gone, {(PLAIN, 0): RECORDS})
    for who in FLOWS:
        scene.await_end(who, gone)
    before = {who: java_answers(scene, who) for who in FLOWS}
    for who, (translated, every, lines) in before.items():
        source = FLOWS[who][0]
        assert translated == {f"{source}.{PLAIN}-0": [RECORDS, ""]}
        assert gone in every
        assert len(lines) >= len(PLACES)
    for done in admin_of(scene.east).delete_consumer_groups([gone]).values():
        done.result(30)
    for source, _ in FLOWS.values():
        producer = producer_of(scene.west)
        producer.produce(
            f"{source}.checkpoints.internal", None, key_of("across-dead", f"{source}.{PLAIN}"), partition=0
        )
        assert producer.flush(30) == 0
    # Both come to tasks that begin, and read the checkpoints.
    commit(scene.east, early, {(PLAIN, 0): RECORDS // 2})
    commit(scene.east, late, {(PLAIN, 0): RECORDS})
    for who in FLOWS:
        scene.await_end(who, late)

    # Java's task takes the topic for unreadable, and so all but the newest offset sync for unusable.
    assert "Exception encountered loading checkpoints topic" in scene.workers["java"].log.read_text()
    assert scene.checkpoint("java", early) == (-1, -1)
    wait_until(lambda: scene.checkpoint("ours", early)[0] == RECORDS // 2, 30, detail=scene.tail)
    # Its clients and formatters fail, whatever group they are asked about.
    for who, (source, _) in FLOWS.items():
        assert java_answers(scene, who) == [NULL, NULL, NULL]
        with MirrorClient({"bootstrap.servers": scene.west.bootstrap}) as client:
            (place,) = client.remote_consumer_offsets(f"across-at-{RECORDS}", source).values()
            assert place.offset == RECORDS
    # So our tasks write none unless configured.
    points = table(scene.west, f"{FLOWS['ours'][0]}.checkpoints.internal")
    assert points[key_of(gone, f"{FLOWS['ours'][0]}.{PLAIN}")][0] is not None


def java_answers(scene: Scene, who: str) -> list[Any]:
    """A group's offsets, those of all groups, the lines of the console."""
    source, here = FLOWS[who][0], scene.west.bootstrap
    return java_says(
        ("translate", here, source, f"across-at-{RECORDS}"),
        ("translate-all", here, source, "across-.*"),
        ("format", here, f"{source}.checkpoints.internal", "Checkpoint"),
    )


def key_of(group: str, topic: str) -> bytes:
    strings = b"".join(struct.pack(">h", len(text)) + text.encode() for text in (group, topic))
    return strings + struct.pack(">i", 0)
