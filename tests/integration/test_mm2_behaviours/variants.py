"""The variants in which Kafka's own integration tests run its behaviours, each as one process between two clusters.

A variant has unique names, so that all can use the same brokers. `p` and `b` are Kafka's primary and backup; `q` -> `c`
and `r` -> `d` are flows between the same clusters with other settings (`FURTHER`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Where
from confluent_kafka.admin import AdminClient

from mm2.sandbox.kafka import LocalKafka
from mm2.sandbox.ports import free_ports
from tests.integration.copy_flow import Read, producer_of, read_all
from tests.integration.mirror_flow import create
from tests.integration.mirror_process import MirrorProcess, checkpoints, contents, ends, write_config
from tests.support import certificates
from tests.systems.workers import Rest

PARTITIONS = 10
PER_PARTITION = 10
SOURCE, CHECKPOINT, HEARTBEAT = (f"Mirror{kind}Connector" for kind in ("Source", "Checkpoint", "Heartbeat"))


@dataclass(frozen=True)
class Variant:
    """A variant; `short` is the prefix of all its names."""

    name: str
    short: str
    both_ways: bool = True
    identity: bool = False
    exactly_once: bool = False
    tls: bool = False
    transactional: bool = False

    def __str__(self) -> str:
        return self.name


DEFAULT = Variant("default", "vd")
IDENTITY = Variant("identity", "vi", both_ways=False, identity=True)
EXACTLY_ONCE = Variant("exactly-once", "ve", exactly_once=True)
TLS = Variant("tls", "vs", tls=True)
TRANSACTIONAL = Variant("transactional", "vt", transactional=True)
VARIANTS = (DEFAULT, IDENTITY, EXACTLY_ONCE, TLS, TRANSACTIONAL)
ALL_AT_ONCE = Variant(
    "all-at-once", "va", both_ways=False, identity=True, exactly_once=True, tls=True, transactional=True
)
"""The settings of one process that differ from the defaults."""


@dataclass
class Environment:
    """A running variant. `a` is the cluster of `p`, `q` and `r`, `b` that of `b`, `c` and `d`."""

    variant: Variant
    a: LocalKafka
    b: LocalKafka
    folder: Path
    #: Client settings of the process for `b`.
    client: Mapping[str, str]
    port: int
    process: MirrorProcess = field(init=False)
    _serial: Iterator[int] = field(default_factory=itertools.count)

    def alias(self, letter: str) -> str:
        return f"{self.variant.short}{letter}"

    def topic(self, name: str) -> str:
        return f"{self.variant.short}-{name}"

    def remote(self, topic: str, letter: str = "p") -> str:
        """The remote topic of a topic of the cluster of `letter`."""
        return topic if self.variant.identity else f"{self.alias(letter)}.{topic}"

    def flow(self, there: str = "p", here: str = "b") -> str:
        return f"{self.alias(there)}->{self.alias(here)}"

    @functools.cached_property
    def rest(self) -> Rest:
        """The main flow's value."""
        return Rest(f"http://127.0.0.1:{self.port}/{self.alias('p')}/{self.alias('b')}")

    # -- records

    def fill(
        self,
        topic: str,
        count: int = PER_PARTITION,
        partitions: Sequence[int] = range(PARTITIONS),
        *,
        at_b: bool = False,
    ) -> None:
        """Write `count` unique records to each partition; in one transaction in the variant of transactions."""
        transactional = self.variant.transactional and not at_b
        settings = {"transactional__id": f"{topic}-{next(self._serial)}"} if transactional else {}
        producer = producer_of(self.b if at_b else self.a, **settings)
        if transactional:
            producer.init_transactions(30)
            producer.begin_transaction()
        for partition in partitions:
            for _ in range(count):
                number = next(self._serial)
                producer.produce(topic, b"%d of %s" % (number, topic.encode()), b"%d" % number, partition)
        if transactional:
            producer.commit_transaction(30)
        else:
            assert producer.flush(30) == 0

    def create(self, name: str, partitions: int = PARTITIONS, **configs: str) -> str:
        """Create a topic on `a`; returns its full name."""
        config = {key.replace("__", "."): value for key, value in configs.items()}
        create(self.a, self.topic(name), partitions, config)
        return self.topic(name)

    def contents(self, topic: str, letter: str = "p") -> list[list[tuple[Any, ...]]]:
        """The records of its remote topic on `b`, by partition; empty while the topic does not exist or has no leader."""
        remote = self.remote(topic, letter)
        return [] if -1 in ends(self.b, remote) else contents(self.b, remote)

    def is_copied(self, topic: str, letter: str = "p") -> bool:
        """Whether `b` has exactly its records, each once and in order."""
        return self.contents(topic, letter) == contents(self.a, topic)

    def checkpoints(self, group: str, topic: str, letter: str = "p") -> dict[int, tuple[int, int]]:
        """Source and target offsets of the checkpoints, by partition."""
        found = checkpoints(self.b, f"{self.alias(letter)}.checkpoints.internal")
        remote = self.remote(topic, letter)
        return {
            number: row[:2] for (one, topic_name, number), row in found.items() if (one, topic_name) == (group, remote)
        }

    def skips_and_repeats_nothing(
        self, topic: str, group_offsets: Mapping[int, tuple[int, int]], letter: str = "p"
    ) -> bool:
        """Whether a consumer at the second offset on `b` reads the records that follow the first offset on `a`: none is skipped,
        and none is repeated."""
        here = read_all(self.a, topic, group_offsets, isolation="read_committed")
        there = read_all(self.b, self.remote(topic, letter), group_offsets, isolation="read_committed")
        return all(
            _values(there[partition], at_b) == _values(here[partition], at_a)
            for partition, (at_a, at_b) in group_offsets.items()
        )

    def group_offsets(self, broker: LocalKafka, group: str, topic: str, partitions: int = PARTITIONS) -> dict[int, int]:
        """Committed offsets of a group, by partition; without uncommitted ones."""
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, "log_level": 0})
        try:
            found = consumer.committed([Where(topic, number) for number in range(partitions)], timeout=20)
            return {where.partition: where.offset for where in found if where.offset >= 0}
        finally:
            consumer.close()

    # -- the process

    def start(self, further: Mapping[str, str] | None = None) -> None:
        """Run the process with further settings; `{letter}` in a key or value stands for an alias."""
        there, back = self.flow(), self.flow("b", "p")
        letters = "pbqcrd" if further else "pb"
        sources, targets = letters[::2], letters[1::2]
        props = {
            "clusters": ", ".join(map(self.alias, letters)),
            **{f"{self.alias(letter)}.bootstrap.servers": self.a.bootstrap for letter in sources},
            "topics": f"{self.topic('main')}.*",
            "groups": f"{self.variant.short}-.*",
            # Otherwise each pair of clusters would have a flow for heartbeats.
            "emit.heartbeats.enabled": "false",
            f"{there}.enabled": "true",
            f"{there}.emit.heartbeats.enabled": "true",
            f"{back}.emit.heartbeats.enabled": "true",
            f"{there}.offset.lag.max": "10",
            f"{there}.sync.group.offsets.enabled": "true",
            f"{there}.sync.group.offsets.interval.seconds": "1",
            "refresh.topics.interval.seconds": "1",
            "sync.topic.configs.interval.seconds": "1",
            "config.properties.exclude": r"delete\\.retention\\..*",
            "listeners": f"http://127.0.0.1:{self.port}",
        }
        for letter in targets:
            props |= {f"{self.alias(letter)}.{key}": value for key, value in self.client.items()}
        variant = self.variant
        if variant.both_ways:
            copies = (self.remote(self.topic("main"), letter) for letter in "pb")
            props[f"{back}.enabled"] = "true"
            props["topics"] += "".join(f", {copy}.*" for copy in copies)
        if variant.identity:
            props["replication.policy.class"] = "IdentityReplicationPolicy"
        if variant.exactly_once:
            props |= {f"{self.alias(letter)}.exactly.once.source.support": "enabled" for letter in letters}
        if variant.exactly_once or variant.transactional:
            props |= {f"{self.alias(letter)}.consumer.isolation.level": "read_committed" for letter in letters}
        aliases = {letter: self.alias(letter) for letter in letters}
        for key, value in (further or {}).items():
            props[key.format(**aliases)] = value.format(short=variant.short, **aliases)
        file = write_config(self.folder / "mm2.properties", props)
        # Without a prefix it would also apply to the flow without offset syncs; the brokers' default factor is equal.
        file.write_text("".join(line for line in file.open() if not line.startswith("offset-syncs.")))
        self.process = MirrorProcess(file, self.folder / "process.log")


#: 19, 24 and 26; 18. A connector without offset syncs is rejected when a key configures them.
FURTHER = {
    **{
        f"{{q}}->{{c}}.{key}": value
        for key, value in {
            "enabled": "true",
            "topics": "{short}-side.*",
            "heartbeats.replication.enabled": "false",
            "offset-syncs.topic.location": "target",
            "offset.lag.max": "0",
            "use.defaults.from": "source",
            "consumer.auto.offset.reset": "latest",
        }.items()
    },
    **{
        f"{{r}}->{{d}}.{key}": value
        for key, value in {
            "enabled": "true",
            "topics": "{short}-bare.*",
            "heartbeats.replication.enabled": "false",
            "emit.offset-syncs.enabled": "false",
        }.items()
    },
}


def _values(records: list[Read], offset: int) -> list[bytes | None]:
    return [record.value for record in records if record.offset >= offset]


@contextmanager
def staged(variant: Variant, pair: tuple[LocalKafka, LocalKafka], folder: Path) -> Iterator[Environment]:
    """An environment whose process has not been started; with TLS its target is a separate broker."""
    with ExitStack() as stack:
        target, client = pair[1], {"bootstrap.servers": pair[1].bootstrap}
        if variant.tls:
            target, client = _with_tls(stack, folder)
        (port,) = free_ports(1)
        env = Environment(variant, pair[0], target, folder, client, port)
        try:
            yield env
        finally:
            if hasattr(env, "process"):
                env.process.clean_up()


def _with_tls(stack: ExitStack, folder: Path) -> tuple[LocalKafka, dict[str, str]]:
    client, own = certificates.encrypted(folder)
    broker = LocalKafka("tls", folder / "broker", listeners={"NEAR": "PLAINTEXT", "TLS": "SSL"}, overrides=own)
    stack.enter_context(broker)
    # Wait for the first TLS handshake of the JVM: on a busy machine it takes longer than the process waits for its target.
    AdminClient(
        {
            "bootstrap.servers": broker.address("TLS"),
            "security.protocol": "SSL",
            "ssl.ca.location": client["ssl.truststore.location"],
        }
    ).list_topics(timeout=60)
    return broker, {"bootstrap.servers": broker.address("TLS"), **client}
