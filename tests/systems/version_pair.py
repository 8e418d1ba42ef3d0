"""A flow between two brokers of different versions of Kafka, with everything on the source that can be replicated."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Where
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ConfigResource, ResourcePatternType
from confluent_kafka.admin import ResourceType as Kind

from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.records.record import Record
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import TopicPartition
from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import Read, admin_of, batches, producer_of, read_all
from tests.integration.mirror_flow import commit, create
from tests.integration.mirror_process import MirrorProcess, checkpoints, partitions_of, write_config
from tests.integration.verified_flow import numbered, write
from tests.support.versions import KafkaVersion
from tests.support.waiting import PATIENCE, wait_until

START_S: Final = 180.0 * PATIENCE
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
FAR_FUTURE_MS: Final = 32_503_680_000_000
"""The year 3000."""
CLASSIC, CONSUMER, SHARE, IN_HOLE = "v-classic", "v-consumer", "v-share", "v-in-hole"
GROUP_OFFSETS: Final = {CLASSIC: 37, CONSUMER: 53, SHARE: 71}
SMALL_SEGMENT: Final = "102400"
FORMATS: Final = {"magic0": "0.9.0", "magic1": "0.10.2"}
"""Topics whose records are stored in an old message format, and the version of that format."""


@dataclass
class VersionPair:
    """Both brokers and the process between them; topics of the source are named `v.<name>`, and `S` and `T` are the aliases."""

    here: KafkaVersion
    there: KafkaVersion
    source: LocalKafka
    target: LocalKafka
    folder: Path
    file: Path = field(init=False)
    process: MirrorProcess = field(init=False)
    hole: int = 0
    """An offset of `v.holes` that compaction has removed, with records after it."""

    @property
    def formats(self) -> Mapping[str, str]:
        """The old message formats that the source can store; since 3.0 only the current one (KIP-724)."""
        return {} if self.here.since(3, 0) else FORMATS

    @property
    def groups(self) -> list[str]:
        """The groups with a committed offset in `v.groups`."""
        return [CLASSIC, *([CONSUMER] if self.here.since(4, 0) else []), *([SHARE] if self.here.since(4, 2) else [])]

    def start(self, exactly_once: bool = False) -> None:
        """Start the process; in exactly-once mode as another flow, `X->Y`, which copies topics named `x.<name>`."""
        source, target, prefix = ("X", "Y", "x") if exactly_once else ("S", "T", "v")
        props = {
            "clusters": f"{source}, {target}",
            f"{source}.bootstrap.servers": self.source.bootstrap,
            f"{target}.bootstrap.servers": self.target.bootstrap,
            f"{source}->{target}.enabled": "true",
            "topics": f"{prefix}\\\\..*",
            "groups": "v-.*",
            f"{target}->{source}.emit.heartbeats.enabled": "false",
            f"{source}.consumer.isolation.level": "read_committed",
            "sync.topic.configs.interval.seconds": "1",
            "sync.topic.acls.enabled": "true",
            "sync.topic.acls.interval.seconds": "1",
            "sync.group.offsets.enabled": "true",
            "sync.group.offsets.interval.seconds": "1",
            # The copy is not compacted while it is compared.
            "config.properties.exclude": r"segment\\.ms, message\\.timestamp\\..*",
            "listeners": "",
        }
        if exactly_once:
            props[f"{target}.exactly.once.source.support"] = "enabled"
        self.file = write_config(self.folder / f"{source}.properties", props)
        number = len(list(self.folder.glob(f"{source}-*.log")))
        self.process = MirrorProcess(self.file, self.folder / f"{source}-{number}.log", target)

    def clean_up(self) -> None:
        """End the process that was started last."""
        self.process.clean_up()

    @property
    def flow(self) -> str:
        return "S->T"

    def records(self, name: str) -> tuple[list[list[Read]], list[list[Read]]]:
        """Committed records of a topic on both sides, by partition; none while the remote topic does not exist."""
        topic = f"v.{name}"
        return committed_records(self.source, topic), committed_records(self.target, f"S.{topic}")

    def await_equal(self, *names: str) -> None:
        """Wait until these topics have the same records on both sides, in order."""
        for name in names:
            self.process.eventually(lambda: counts(self.records(name)), 120)  # noqa: B023
            wanted, got = self.records(name)
            assert contents(got) == contents(wanted), name

    def checkpoint(self, group: str, name: str, partition: int = 0) -> tuple[int, int] | None:
        """Source and target offset of a checkpoint."""
        found = checkpoints(self.target, "S.checkpoints.internal").get((group, f"S.v.{name}", partition))
        return found and found[:2]

    def committed(self, group: str, topic: str) -> int | None:
        """The committed offset of a group on the target, or the start offset of a share group."""
        cluster, admin = admin_with(self.target)
        try:
            share = group == SHARE
            answers = admin.list_share_group_offsets([group]) if share else admin.list_group_offsets([group])
            found = answers[group]
            place = TopicPartition(topic, 0)
            return found[place].offset if isinstance(found, dict) and place in found else None
        finally:
            cluster.close()


def admin_with(broker: LocalKafka) -> tuple[Cluster, Admin]:
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": broker.bootstrap}), name="broker")
    return cluster, Admin(cluster)


def committed_records(broker: LocalKafka, topic: str) -> list[list[Read]]:
    """Committed records by partition; empty when the topic does not exist."""
    count = partitions_of(broker, topic)
    found = read_all(broker, topic, range(count), isolation="read_committed") if count else {}
    return [found[partition] for partition in range(count)]


def counts(both: tuple[list[list[Read]], list[list[Read]]]) -> bool:
    """Whether the target has as many records in each partition as the source, or more."""
    wanted, got = both
    return len(wanted) == len(got) and all(len(there) >= len(here) for here, there in zip(wanted, got, strict=True))


def contents(partitions: Sequence[Sequence[Read]]) -> list[list[tuple[Any, ...]]]:
    return [[record.content for record in rows] for rows in partitions]


def alter_configs(broker: LocalKafka, topic: str, configs: Mapping[str, str]) -> None:
    """Replace all configs of a topic, by the request that Kafka before 2.3 has too."""
    resource = ConfigResource(Kind.TOPIC, topic, set_config=dict(configs))
    for done in admin_of(broker).alter_configs([resource]).values():
        done.result(30 * PATIENCE)


# -- the records and groups of the source ------------------------------------------------------------------------------


def seed(pair: VersionPair) -> None:
    """Create the topics, records, ACLs and groups of the source."""
    source = pair.source
    steps: list[Callable[[VersionPair], None]] = [
        fill_codecs,
        fill_transactions,
        fill_holes,
        fill_groups,
        give_rights,
    ]
    for name, version in pair.formats.items():
        create(source, f"v.{name}", 1, {"retention.ms": "-1", "message.format.version": version})
        write_plain(source, f"v.{name}", 0, headers=False)
    # Since 4.1 a segment has at least 1 MiB, so that a newer target rejects this property.
    small = {} if pair.here.since(4, 1) else {"segment.bytes": SMALL_SEGMENT}
    create(source, "v.synced", 1, {"retention.ms": "123456789", "cleanup.policy": "delete", **small})
    create(source, "v.load", 3, {"retention.ms": "-1"})
    for step in steps:
        step(pair)


def fill_codecs(pair: VersionPair) -> None:
    """One partition for each codec with records of every kind, and a topic with LogAppendTime."""
    create(pair.source, "v.codecs", len(CODECS), {"retention.ms": "-1"})
    create(pair.source, "v.appended", 1, {"retention.ms": "-1", "message.timestamp.type": "LogAppendTime"})
    for partition, codec in enumerate(CODECS):
        write_plain(pair.source, "v.codecs", partition, codec=codec)
        edges = [
            Record(b"begin", b"of time", (), 0),
            Record(b"end", b"of time", (("", b""), ("twice", b"1"), ("twice", None)), FAR_FUTURE_MS),
        ]
        write(pair.source, "v.codecs", edges, partition, codec=codec)
    write_plain(pair.source, "v.appended", 0)


def write_plain(broker: LocalKafka, topic: str, partition: int, *, codec: str = "none", headers: bool = True) -> None:
    """200 small records, empty and missing keys and values, a tombstone and a large record, by librdkafka."""
    producer = producer_of(broker, compression__type=codec)
    for number in range(200):
        row: Any = [("number", b"%d" % number), ("null", None)] if headers else None
        producer.produce(topic, b"value %d " % number * 5, b"key %d" % number, partition, headers=row)
    odd: Iterable[tuple[bytes | None, bytes | None]] = (
        (b"tombstone", None),
        (b"", b""),
        (None, None),
        (None, b"value only"),
        (b"large", os.urandom(600_000)),
    )
    for key, value in odd:
        producer.produce(topic, value, key, partition)
    assert producer.flush(60 * PATIENCE) == 0


def fill_transactions(pair: VersionPair) -> None:
    """Six transactions of 20 records; two of them are aborted."""
    create(pair.source, "v.transactions", 1, {"retention.ms": "-1"})
    sender = producer_of(pair.source, transactional__id="v-sender")
    sender.init_transactions(60 * PATIENCE)
    for turn in range(6):
        sender.begin_transaction()
        for number in range(20):
            sender.produce("v.transactions", b"%d-%d" % (turn, number), b"key")
        if turn % 3 == 1:
            assert sender.flush(30 * PATIENCE) == 0  # otherwise the client drops unsent records
            sender.abort_transaction(30 * PATIENCE)
        else:
            sender.commit_transaction(30 * PATIENCE)


def fill_holes(pair: VersionPair) -> None:
    """A topic that was compacted, and a group whose offset is one of those that were removed."""
    topic, broker = "v.holes", pair.source
    compact = {"cleanup.policy": "compact", "delete.retention.ms": "0", "min.cleanable.dirty.ratio": "0.001"}
    create(broker, topic, 1, {**compact, "segment.ms": "200"})
    again = [record for record in numbered(40) if int(record.headers[0][1] or b"0") % 2]
    write(broker, topic, [*numbered(40), *again], codec="gzip")

    def has_holes() -> bool:
        if all(header.is_dense for header, _ in batches(broker, topic)):
            time.sleep(0.3)
            write(broker, topic, [Record(b"last", b"1")])  # rolls the segment: the active one is never cleaned
        return any(not header.is_dense for header, _ in batches(broker, topic))

    wait_until(has_holes, 90, what="compaction")
    alter_configs(broker, topic, {**compact, "min.compaction.lag.ms": "999999999999", "segment.ms": "600000"})
    before: list[list[Read]] = []

    def is_settled() -> bool:
        nonlocal before
        before, seen = committed_records(broker, topic), before
        return before == seen

    wait_until(is_settled, 60, what="the end of compaction", interval_s=1)
    present = {record.offset for record in before[0]}
    pair.hole = next(offset for offset in range(10, max(present)) if offset not in present)
    commit(broker, IN_HOLE, {(topic, 0): pair.hole})


def fill_groups(pair: VersionPair) -> None:
    """A hundred records, and a group of each type that the source has."""
    source = pair.source
    create(source, "v.groups", 1, {"retention.ms": "-1"})
    write(source, "v.groups", numbered(100))
    commit(source, CLASSIC, {("v.groups", 0): GROUP_OFFSETS[CLASSIC]})
    if CONSUMER in pair.groups:
        commit_as_consumer(source)
    if SHARE in pair.groups:
        cluster, admin = admin_with(source)
        try:
            answers = admin.alter_share_group_offsets(SHARE, {TopicPartition("v.groups", 0): GROUP_OFFSETS[SHARE]})
            assert set(answers.values()) == {None}, answers
        finally:
            cluster.close()


def commit_as_consumer(broker: LocalKafka) -> None:
    """Commit an offset as a member of a group with the protocol of KIP-848."""
    member = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": CONSUMER,
            "group.protocol": "consumer",
            "enable.auto.commit": False,
        }
    )
    try:
        member.subscribe(["v.groups"])
        wait_until(lambda: member.poll(0.2) or member.assignment(), 60, what="a member of the consumer group")
        member.commit(offsets=[Where("v.groups", 0, GROUP_OFFSETS[CONSUMER])], asynchronous=False)
    finally:
        member.close()


def give_rights(pair: VersionPair) -> None:
    """ACLs of a topic, one of them with WRITE, which is not replicated."""
    rights = [
        AclBinding(Kind.TOPIC, "v.groups", ResourcePatternType.LITERAL, "User:ann", "*", operation, permission)
        for operation, permission in (
            (AclOperation.READ, AclPermissionType.ALLOW),
            (AclOperation.WRITE, AclPermissionType.ALLOW),
            (AclOperation.DELETE, AclPermissionType.DENY),
        )
    ]
    for done in admin_of(pair.source).create_acls(rights).values():
        done.result(30 * PATIENCE)
