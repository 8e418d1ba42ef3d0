"""A source of three brokers in three racks, read from the rack of the client (KIP-392).

Every reader gets at least 95 % of its bytes from its own rack. Nothing is lost or copied twice while the broker of this
rack is killed under load and comes back. A proxy in front of each broker counts the bytes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest

from mm2.kafka.client.channel import BufferPool
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.consumer.consumer import Consumer
from mm2.kafka.consumer.membership import Topics as Subscription
from mm2.kafka.consumer.settings import ConsumerSettings
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import TopicPartition
from mm2.sandbox.kafka import LocalKafka
from mm2.verify.pace import RateLimit
from mm2.verify.reading import RangeReader
from tests.faults.environment import LISTENERS, MirrorMaker, ReplicatedTopic, Topics, running_mirror_maker
from tests.integration.copy_flow import producer_of
from tests.support.cluster import LocalCluster
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # three brokers and two flows

RACKS = ("r1", "r2", "r3")
OWN = 2
PARTITIONS = 6
_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
#: Every partition on all brokers; each broker leads two.
ASSIGNMENT = [[1, 2, 3], [2, 3, 1], [3, 1, 2]] * 2


class RackedSource:
    """The brokers, and a proxy in front of each; clients of the tests connect to the brokers directly."""

    def __init__(self, cluster: LocalCluster, proxies: Sequence[Proxy]) -> None:
        self.cluster = cluster
        self.proxies = proxies
        self.through = ",".join(proxy.address for proxy in proxies)

    def bytes_read(self) -> list[int]:
        """The bytes that each broker has sent through its proxy."""
        return [proxy.counters()["bytes_down"] for proxy in self.proxies]

    @contextmanager
    def counting(self, least_mb: int) -> Iterator[None]:
        """At least 95 % of the bytes that are read inside the `with` block come from the own rack."""
        before = self.bytes_read()
        yield
        read = [after - earlier for after, earlier in zip(self.bytes_read(), before, strict=True)]
        assert sum(read) >= least_mb * 1_000_000, f"only {read} bytes were read"
        assert read[OWN - 1] >= 0.95 * sum(read), f"bytes from brokers 1, 2 and 3: {read}"

    def settings(self, **more: str) -> dict[str, str]:
        props = {"bootstrap.servers": self.through, "client.rack": RACKS[OWN - 1]}
        return props | {key.replace("__", "."): value for key, value in more.items()}


class Ignored:
    """A rebalance listener that does nothing."""

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None: ...

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None: ...

    def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None: ...


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RackedSource]:
    folder = tmp_path_factory.mktemp("racks")
    overrides = {"replica.selector.class": _SELECTOR}
    with ExitStack() as stack:
        cluster = stack.enter_context(
            LocalCluster(
                "S", folder, size=3, heap="256m", racks=RACKS, overrides=overrides, listeners=LISTENERS,
                proxied=["PROXIED"],
            )
        )  # fmt: skip
        proxies = [stack.enter_context(Proxy.before(broker)) for broker in cluster.brokers]
        yield RackedSource(cluster, proxies)


def filled(source: RackedSource, topic: str, megabytes: int) -> None:
    """Create a topic with so many MB."""
    Topics(source.cluster).create(topic, assignment=ASSIGNMENT)
    producer = producer_of(source.cluster.brokers[0])
    for number in range(megabytes * 100):
        producer.produce(topic, number.to_bytes(4, "big") * 2500, partition=number % PARTITIONS)
        producer.poll(0)
    assert producer.flush(60) == 0
    wait_until(lambda: in_sync(source, topic), 30, what="replicas in sync")


def in_sync(source: RackedSource, topic: str) -> bool:
    topics = Topics(source.cluster)
    return all(len(topics.leader(topic, index)[1]) == len(RACKS) for index in range(PARTITIONS))


def test_consumers_of_sinks_read_their_own_rack(source: RackedSource) -> None:
    filled(source, "sink", 12)
    settings = source.settings(group__id="sink", client__id="sink", auto__offset__reset="earliest")
    consumer = Consumer(ConsumerSettings.from_props(settings), name="S")
    taken = 0
    with source.counting(10):
        consumer.subscribe(Subscription(frozenset({"sink"})), Ignored())
        deadline = time.monotonic() + 60
        while taken < 1200 and time.monotonic() < deadline:
            taken += len(consumer.poll(1.0))
    consumer.close()
    assert taken == 1200


def test_verify_reads_its_own_rack(source: RackedSource) -> None:
    filled(source, "verify", 12)
    cluster = Cluster(ClientSettings.from_props(source.settings(), client_id="verify"), name="S")
    records = 0
    with source.counting(10):
        for index in range(PARTITIONS):
            reader = RangeReader(
                cluster, BufferPool(), TopicPartition("verify", index), 0, 200,
                read_committed=False, pace=RateLimit(0), patience_s=30, on_response=lambda: None,
            )  # fmt: skip
            while (view := reader.read()) is not None:
                records += view.header.records_count if view.header else 0
            assert reader.log_end >= 200
            reader.close()
    cluster.close()
    assert records == 1200


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    with LocalKafka("B", tmp_path_factory.mktemp("target"), heap="256m") as made:
        yield made


@pytest.fixture(scope="module")
def flow(source: RackedSource, target: LocalKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MirrorMaker]:
    with running_mirror_maker(
        tmp_path_factory.mktemp("flow"),
        "S",
        source=source.cluster,
        target=target,
        through=(source.through, target.bootstrap),
        topics=2,
        partitions=PARTITIONS,
        replicas=len(RACKS),
        settings={
            "S.consumer.client.rack": RACKS[OWN - 1],
            "S->B.offset-syncs.topic.location": "target",
            "replication.factor": "1",
        },
    ) as started:
        yield started


def test_a_flow_reads_its_own_rack(source: RackedSource, target: LocalKafka, flow: MirrorMaker) -> None:
    topic = ReplicatedTopic(source.cluster, target, flow, flow.unused.pop(0), PARTITIONS)
    with topic.load(200):
        topic.await_copied()
    with source.counting(5), topic.load(500, size_bytes=3000):
        time.sleep(8)
        topic.await_copied()
    topic.judge().assert_exactly_once()


def test_killing_the_broker_of_the_own_rack_loses_and_doubles_nothing(
    source: RackedSource, target: LocalKafka, flow: MirrorMaker
) -> None:
    topic = ReplicatedTopic(source.cluster, target, flow, flow.unused.pop(0), PARTITIONS)
    own = source.cluster.broker(OWN)
    with topic.load(500, size_bytes=3000):
        topic.await_copied()
        for _ in range(3):
            own.kill9()
            topic.await_copied(60, records=2000)  # from the leaders
            own.start()
            wait_until(lambda: in_sync(source, topic.topic), 60, what="replicas in sync")
            await_own_rack(source)
            with source.counting(5):
                time.sleep(10)
                topic.await_copied()
    topic.judge(settle_s=5).assert_exactly_once()


def await_own_rack(source: RackedSource) -> None:
    """Wait until the own rack is read again."""

    def is_read() -> bool:
        before = source.bytes_read()
        time.sleep(1.0)
        read = [after - earlier for after, earlier in zip(source.bytes_read(), before, strict=True)]
        return read[OWN - 1] > 0.95 * sum(read)

    wait_until(is_read, 60, what="reading from the own rack")
