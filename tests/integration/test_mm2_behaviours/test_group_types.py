"""Groups of all types that a broker lists: classic, consumer (KIP-848), share (KIP-932) and streams (KIP-1071).

One process copies `types-a` to `types-b` and writes the offsets of groups there. Members of share and streams groups are Java's
own (`java/GroupTypes.java`), on the source before the copy and on the target after it. Checks the offsets at which they continue.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Where
from confluent_kafka.admin import AdminClient

from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import BrokerFailure
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import OffsetAndMetadata, TopicPartition
from mm2.sandbox.kafka import LocalKafka
from tests.integration.asking import asked
from tests.integration.copy_flow import producer_of
from tests.integration.java_source import run_source
from tests.integration.mirror_flow import commit, committed, create
from tests.integration.mirror_process import MirrorProcess, checkpoints, write_config
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

SOURCE, TARGET = "typesa", "typesb"
TOPIC, QUIET = "types-topic", "types-quiet"
REMOTE = f"{SOURCE}.{TOPIC}"
RECORDS = 100
CLASSIC, CONSUMER, SHARE, STREAMS = (f"types-{kind}, 1" for kind in ("classic", "consumer", "share", "streams"))
GROUP_OFFSETS = {CLASSIC: 10, CONSUMER: 20, SHARE: 40, STREAMS: 30}


def run_java(*commands: tuple[object, ...]) -> list[Any]:
    """Results of one JVM for each request."""
    text = "\n".join("\t".join(map(str, command)) for command in commands)
    source = Path(__file__).parents[1] / "java" / "GroupTypes.java"
    lines = run_source(source, text=text).splitlines()
    return [json.loads(line.removeprefix("done: ")) for line in lines if line.startswith("done: ")]


def consumer_of(broker: LocalKafka, group: str) -> Consumer:
    """Consume as a member of a group with the KIP-848 protocol."""
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
        }
    )


def first_number(broker: LocalKafka, group: str, topic: str) -> int:
    """The offset at which a member with the KIP-848 protocol continues."""
    consumer = consumer_of(broker, group)
    consumer.subscribe([topic])
    try:
        found: list[int] = []

        def read() -> bool:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                found.append(struct.unpack(">q", message.value() or b"")[0])
            return bool(found)

        wait_until(read, 30, what="a record")
        return found[0]
    finally:
        consumer.close()


def fill(broker: LocalKafka, numbers: Iterable[int]) -> None:
    producer = producer_of(broker)
    for number in numbers:
        producer.produce(TOPIC, struct.pack(">q", number), partition=0)
    assert producer.flush(30) == 0


@dataclass
class Environment:
    source: LocalKafka
    target: LocalKafka
    file: Path
    process: MirrorProcess

    def checkpoint(self, group: str, topic: str = REMOTE) -> tuple[int, int] | None:
        """Source and target offset of the checkpoint."""
        found = checkpoints(self.target, f"{SOURCE}.checkpoints.internal").get((group, topic, 0))
        return found and found[:2]


@pytest.fixture(scope="module")
def env(kafka_pair: tuple[LocalKafka, LocalKafka], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    source, target = kafka_pair
    create(source, TOPIC)
    create(source, QUIET)
    fill(source, range(RECORDS))
    commit(source, CLASSIC, {(TOPIC, 0): GROUP_OFFSETS[CLASSIC], (QUIET, 0): 0})
    member = consumer_of(source, CONSUMER)
    member.subscribe([TOPIC])
    wait_until(lambda: member.poll(0.2) or member.assignment(), 30, what="a member of the consumer group")
    member.commit(offsets=[Where(TOPIC, 0, GROUP_OFFSETS[CONSUMER])], asynchronous=False)
    member.close()
    _, seen, before = run_java(
        ("share-from-start", source.bootstrap, SHARE),
        ("share", source.bootstrap, SHARE, TOPIC, GROUP_OFFSETS[SHARE], RECORDS),
        ("streams", source.bootstrap, STREAMS, TOPIC, GROUP_OFFSETS[STREAMS]),
    )
    assert (len(seen), before) == (RECORDS, None)
    file = write_config(
        tmp_path_factory.mktemp("types") / "mm2.properties",
        {
            "clusters": f"{SOURCE},{TARGET}",
            f"{SOURCE}.bootstrap.servers": source.bootstrap,
            f"{TARGET}.bootstrap.servers": target.bootstrap,
            f"{SOURCE}->{TARGET}.enabled": "true",
            f"{TARGET}->{SOURCE}.emit.heartbeats.enabled": "false",
            "topics": "types-.*",
            "groups": "types-.*",
            "sync.group.offsets.enabled": "true",
            "sync.group.offsets.interval.seconds": "1",
            "listeners": "",
        },
    )
    process = MirrorProcess(file, file.with_name("process.log"))
    try:
        process.eventually(lambda: all(checkpoints_of(target, group) for group in GROUP_OFFSETS), 120)
        yield Environment(source, target, file, process)
    finally:
        process.clean_up()


def checkpoints_of(target: LocalKafka, group: str) -> bool:
    return (group, REMOTE, 0) in checkpoints(target, f"{SOURCE}.checkpoints.internal")


def test_the_broker_supports_every_group_type(env: Environment) -> None:
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": env.source.bootstrap}), name="source")
    types = {listing.group_id: listing.group_type.lower() for listing in Admin(cluster).list_groups()}
    cluster.close()
    assert {group: types[group] for group in GROUP_OFFSETS} == {
        CLASSIC: "classic",
        CONSUMER: "consumer",
        SHARE: "share",
        STREAMS: "streams",
    }


def test_each_group_has_a_checkpoint_and_an_offset_on_the_target(env: Environment) -> None:
    env.process.eventually(
        lambda: {g: env.checkpoint(g) for g in GROUP_OFFSETS} == {g: (n, n) for g, n in GROUP_OFFSETS.items()}
    )
    wanted = {group: GROUP_OFFSETS[group] for group in (CLASSIC, CONSUMER, STREAMS)}
    env.process.eventually(lambda: {group: committed(env.target, group, REMOTE) for group in wanted} == wanted, 30)
    assert env.checkpoint(CLASSIC, f"{SOURCE}.{QUIET}") is None, "an empty topic has a checkpoint"


def test_members_of_each_group_type_continue_at_the_next_record_on_the_target(
    env: Environment, capsys: pytest.CaptureFixture[str]
) -> None:
    target = env.target
    env.process.eventually(lambda: committed(target, CONSUMER, REMOTE) == GROUP_OFFSETS[CONSUMER], 30)
    env.process.eventually(lambda: committed(target, STREAMS, REMOTE) == GROUP_OFFSETS[STREAMS], 30)
    env.process.eventually(lambda: starts(target, SHARE) == GROUP_OFFSETS[SHARE], 30)
    assert first_number(target, CONSUMER, REMOTE) == GROUP_OFFSETS[CONSUMER]
    start_offsets, seen, group_offset = run_java(
        ("share-starts", target.bootstrap, SHARE),
        # By default it would start at the log end offset and read nothing.
        ("share", target.bootstrap, SHARE, REMOTE, RECORDS, RECORDS),
        ("streams", target.bootstrap, STREAMS, REMOTE, GROUP_OFFSETS[STREAMS] + 1),
    )
    assert start_offsets == {f"{REMOTE}-0": GROUP_OFFSETS[SHARE]}
    assert seen == list(range(GROUP_OFFSETS[SHARE], RECORDS)), (
        "nothing skipped; what was settled out of order comes again"
    )
    assert group_offset == GROUP_OFFSETS[STREAMS]
    # It is ahead now and stays ahead. The coordinator is updated when the next record is acknowledged.
    fill(env.source, range(RECORDS, RECORDS + 1))
    more, settled = run_java(
        ("share", target.bootstrap, SHARE, REMOTE, RECORDS + 1, RECORDS + 1), ("share-starts", target.bootstrap, SHARE)
    )
    assert (more, settled) == ([RECORDS], {f"{REMOTE}-0": RECORDS})

    def reason() -> str:
        _, out, _ = asked(capsys, "groups", env.file, f"{SOURCE}->{TARGET}", "--json", "--group", SHARE)
        return str(json.loads(out)["offsets"])

    env.process.eventually(lambda: f"the group is ahead, at {RECORDS}" in reason(), 30)
    assert starts(target, SHARE) == RECORDS


def starts(broker: LocalKafka, group: str) -> int:
    """Start offset of a share group in the remote topic; -1 without one."""
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": broker.bootstrap}), name="broker")
    try:
        found = Admin(cluster).list_share_group_offsets([group])[group]
    finally:
        cluster.close()
    if isinstance(found, BrokerFailure):
        assert found.code == 69
        return -1
    assert isinstance(found, dict)
    return found.get(TopicPartition(REMOTE, 0), OffsetAndMetadata(-1)).offset


def test_a_consumer_group_is_synchronised_while_its_members_come_and_go(
    env: Environment, capsys: pytest.CaptureFixture[str]
) -> None:
    """A KIP-848 group: on the source its members change, and on the target a member stops the synchronisation."""
    group = "types-moving"

    members: list[Consumer] = []

    def join(broker: LocalKafka, topic: str) -> Consumer:
        member = consumer_of(broker, group)
        members.append(member)
        member.subscribe([topic])
        return member

    def leave(member: Consumer) -> None:
        members.remove(member)
        member.close()

    def size() -> int:
        admin = AdminClient({"bootstrap.servers": env.source.bootstrap})
        return len(admin.describe_consumer_groups([group])[group].result(60).members)

    def settled(member: Consumer) -> None:
        wait_until(lambda: member.poll(0.2) or member.assignment(), 60, what="an assignment")

    def move(member: Consumer, offset: int) -> None:
        member.commit(offsets=[Where(TOPIC, 0, offset)], asynchronous=False)

    def follows(offset: int) -> None:
        env.process.eventually(lambda: committed(env.target, group, REMOTE) == offset, 60)

    def reasons() -> str:
        _, out, _ = asked(capsys, "groups", env.file, f"{SOURCE}->{TARGET}", "--json", "--group", group)
        return str(json.loads(out)["offsets"])

    try:
        first = join(env.source, TOPIC)
        settled(first)
        move(first, 5)
        follows(5)
        second = join(env.source, TOPIC)
        # The topic has one partition: the second member has none until the first one leaves.
        wait_until(lambda: second.poll(0.2) or size() == 2, 60, what="a second member")
        move(first, 8)
        follows(8)
        leave(first)
        settled(second)
        move(second, 12)
        follows(12)
        on_target = join(env.target, REMOTE)
        settled(on_target)
        move(second, 15)
        env.process.eventually(lambda: "the group is in use" in reasons(), 60)
        assert committed(env.target, group, REMOTE) == 12
        leave(on_target)
        follows(15)
    finally:
        for member in members:
            member.close()
