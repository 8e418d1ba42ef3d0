"""The effect of each setting of a client, a consumer or a producer, compared with that of its default."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Producer as Independent
from kafka.protocol.consumer import FetchRequest, HeartbeatRequest, JoinGroupRequest
from kafka.protocol.metadata import MetadataRequest

from mm2.config.keys.mirror_keys import SOURCE_CONNECTOR
from mm2.config.keys.worker_keys import WorkerConfig
from mm2.config.mirrormaker import MirrorMakerConfig, SourceAndTarget
from mm2.connect.node import Node
from mm2.connect.plugins import Plugins
from mm2.kafka.client import pool as pools
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.client.connection import Connection
from mm2.kafka.consumer.consumer import Consumer
from mm2.kafka.consumer.membership import Topics
from mm2.kafka.consumer.settings import ConsumerSettings
from mm2.kafka.errors import BrokerFailure, KafkaFailure, TimeoutFailure
from mm2.kafka.producer.producer import Producer
from mm2.kafka.records.record import Record
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import Broker, TopicPartition
from mm2.mirror.common.clients import ClientKind, MirrorClients, Side
from mm2.sandbox.kafka import LocalKafka
from tests.integration.connect_reading import create_topic
from tests.integration.kafka.test_kafka_consumer import Silent
from tests.support.sent_requests import SentRequests, recorded
from tests.support.waiting import wait_until
from tests.unit.config.key_tests import keys_of

CLIENTS = "org.apache.kafka.clients.consumer"
UNUSUAL = {
    "client.rack": "rack-7",
    "fetch.max.bytes": "7654321",
    "fetch.max.wait.ms": "123",
    "fetch.min.bytes": "2",
    "group.instance.id": "instance-7",
    "heartbeat.interval.ms": "50",
    "isolation.level": "read_committed",
    "max.partition.fetch.bytes": "654321",
    "max.poll.interval.ms": "234567",
    "max.poll.records": "3",
    "partition.assignment.strategy": f"{CLIENTS}.RoundRobinAssignor",
    "session.timeout.ms": "34567",
}
COUNT = 20


@dataclass
class Watched:
    """A consumer of its own group and what it has done."""

    name: str
    consumer: Consumer
    sent: SentRequests
    polls: list[int] = field(default_factory=list)

    def poll(self) -> int:
        """Read once; the number of all records so far."""
        self.polls.append(len(self.consumer.poll(0.1)))
        return sum(self.polls)

    def last(self, kind: Any) -> Any:
        return self.sent.of(kind, self.name)[-1]


@dataclass
class Both:
    """Two consumers that read the same records, with and without unusual settings."""

    default: Watched
    unusual: Watched


def consumer_of(broker: LocalKafka, group: str, name: str, **more: str) -> ConsumerSettings:
    props = {"bootstrap.servers": broker.bootstrap, "group.id": group, "client.id": name, **more}
    return ConsumerSettings.from_props(props)


@pytest.fixture(scope="module")
def both(kafka_pair: tuple[LocalKafka, LocalKafka]) -> Iterator[Both]:
    broker, topic = kafka_pair[1], f"client-keys-{time.time_ns()}"
    create_topic(broker.bootstrap, topic)
    # One batch, which a consumer without a limit gets with one poll.
    writer = Independent({"bootstrap.servers": broker.bootstrap, "linger.ms": 1000})
    for number in range(COUNT):
        writer.produce(topic, b"%d" % number, partition=0)
    assert writer.flush(30) == 0
    earliest = {"auto.offset.reset": "earliest"}
    with recorded() as sent:
        made = Both(
            *(
                Watched(
                    name, Consumer(consumer_of(broker, f"{topic}-{name}", name, **earliest, **more), name="B"), sent
                )
                for name, more in (("keys-default", {}), ("keys-unusual", UNUSUAL))
            )
        )
        for one in (made.default, made.unusual):
            one.consumer.subscribe(Topics(frozenset({topic})), Silent())
        try:
            wait_until(lambda: [made.default.poll(), made.unusual.poll()] == [COUNT, COUNT], 60)
            wait_until(lambda: made.default.poll() and made.unusual.poll() and heartbeats(made.unusual) > 8, 60)
            yield made
        finally:
            for one in (made.default, made.unusual):
                one.consumer.close()


def heartbeats(one: Watched) -> int:
    return len(one.sent.of(HeartbeatRequest, one.name))


def joined_as(one: Watched) -> str:
    requests = [sent for sent in list(one.sent.all) if sent.api_key == JoinGroupRequest.API_KEY]
    group = one.consumer.settings.group_id
    return next(sent.client_id for sent in requests if sent.decoded(JoinGroupRequest).group_id == group)


def offered(one: Watched) -> list[str]:
    return [protocol.name for protocol in one.last(JoinGroupRequest).protocols]


OBSERVED: dict[str, tuple[Callable[[Watched], object], object]] = {
    "client.id": (joined_as, "keys-unusual"),
    "client.rack": (lambda one: one.last(FetchRequest).rack_id, "rack-7"),
    "fetch.max.bytes": (lambda one: one.last(FetchRequest).max_bytes, 7654321),
    "fetch.max.wait.ms": (lambda one: one.last(FetchRequest).max_wait_ms, 123),
    "fetch.min.bytes": (lambda one: one.last(FetchRequest).min_bytes, 2),
    "group.id": (lambda one: one.last(JoinGroupRequest).group_id.rpartition("-")[2], "unusual"),
    "group.instance.id": (lambda one: one.last(JoinGroupRequest).group_instance_id, "instance-7"),
    "isolation.level": (lambda one: one.last(FetchRequest).isolation_level, 1),
    "max.partition.fetch.bytes": (
        lambda one: one.sent.of(FetchRequest, one.name)[0].topics[0].partitions[0].partition_max_bytes,
        654321,
    ),
    "max.poll.interval.ms": (lambda one: one.last(JoinGroupRequest).rebalance_timeout_ms, 234567),
    "max.poll.records": (lambda one: max(one.polls), 3),
    "partition.assignment.strategy": (offered, ["roundrobin"]),
    "session.timeout.ms": (lambda one: one.last(JoinGroupRequest).session_timeout_ms, 34567),
}


@pytest.mark.parametrize("key", OBSERVED)
def test_a_setting_of_a_consumer_is_in_its_requests_or_its_polls(both: Both, key: str) -> None:
    observe, expected = OBSERVED[key]
    assert observe(both.unusual) == expected
    assert observe(both.default) != expected


def test_each_of_these_keys_has_a_case() -> None:
    keys = keys_of("test_a_setting_of_a_consumer_is_in_its_requests_or_its_polls")
    assert OBSERVED.keys() == {key for _, key in keys}


def test_a_consumer_sends_heartbeats_at_its_interval(both: Both) -> None:
    """Both are members for the same time; the default is 3 s."""
    assert heartbeats(both.unusual) > 3 * heartbeats(both.default)


# -- consumers that differ in one setting


def subscribed(broker: LocalKafka, topics: Topics, group: str, **more: str) -> Consumer:
    given = {key.replace("_", "."): value for key, value in more.items()}
    consumer = Consumer(consumer_of(broker, group, group, **given), name="B")
    consumer.subscribe(topics, Silent())
    return consumer


@pytest.mark.parametrize(("reset", "read"), [("earliest", [0, 1, 2]), ("latest", [2]), ("by_duration:PT1H", [1, 2])])
def test_without_a_committed_offset_reading_starts_where_auto_offset_reset_says(
    kafka_b: LocalKafka, unique: str, reset: str, read: list[int]
) -> None:
    create_topic(kafka_b.bootstrap, unique)
    now_ms = int(time.time() * 1000)
    writer, tp = Independent({"bootstrap.servers": kafka_b.bootstrap}), TopicPartition(unique, 0)
    writer.produce(unique, b"old", partition=0, timestamp=now_ms - 7_200_000)
    assert writer.flush(30) == 0  # a batch of its own
    writer.produce(unique, b"new", partition=0, timestamp=now_ms)
    assert writer.flush(30) == 0
    consumer, found = subscribed(kafka_b, Topics(frozenset({unique})), unique, auto_offset_reset=reset), list[int]()

    def has_read(*offsets: int) -> bool:
        found.extend(record.offset for record in consumer.poll(0.1))
        return set(offsets) <= set(found)

    try:
        wait_until(lambda: has_read() and tp in consumer.assignment() and consumer.position(tp) >= 0, 30)
        writer.produce(unique, b"later", partition=0, timestamp=now_ms)
        assert writer.flush(30) == 0
        wait_until(lambda: has_read(2), 30)
    finally:
        consumer.close()
    assert found == read


def test_a_missing_topic_is_requested_unless_allow_auto_create_topics_is_false(
    kafka_b: LocalKafka, unique: str
) -> None:
    create_topic(kafka_b.bootstrap, unique)
    missing = f"{unique}-missing"
    topics = Topics(frozenset({unique, missing}))
    with recorded() as sent:
        both = [
            subscribed(kafka_b, topics, f"{unique}-default", metadata_max_age_ms="100"),
            subscribed(kafka_b, topics, f"{unique}-off", metadata_max_age_ms="100", allow_auto_create_topics="false"),
        ]

        def asked(consumer: Consumer, *, creating: bool) -> int:
            requests = sent.of(MetadataRequest, consumer.settings.client.client_id)
            return sum(
                request.allow_auto_topic_creation is creating and missing in [topic.name for topic in request.topics]
                for request in requests
                if request.topics
            )

        def have_looked() -> bool:
            for consumer in both:
                consumer.poll(0.05)
            return all(asked(consumer, creating=False) > 2 for consumer in both)

        try:
            wait_until(have_looked, 30)
        finally:
            for consumer in both:
                consumer.close()
    assert asked(both[0], creating=True) > 0
    assert asked(both[1], creating=True) == 0


def test_a_pattern_matches_internal_topics_only_without_exclude_internal_topics(
    kafka_b: LocalKafka, unique: str
) -> None:
    create_topic(kafka_b.bootstrap, unique)
    matching = Topics(matches=lambda topic: topic in {unique, "__consumer_offsets"})
    both = [
        subscribed(kafka_b, matching, f"{unique}-default"),
        subscribed(kafka_b, matching, f"{unique}-all", exclude_internal_topics="false", metadata_max_age_ms="200"),
    ]

    def have_assignments() -> bool:
        for consumer in both:
            consumer.poll(0.05)
        return all(TopicPartition(unique, 0) in consumer.assignment() for consumer in both)

    try:
        wait_until(have_assignments, 30)
        wait_until(lambda: have_assignments() and len(both[1].assignment()) > 1, 30)
        assert {tp.topic for tp in both[1].assignment()} == {unique, "__consumer_offsets"}
        assert {tp.topic for tp in both[0].assignment()} == {unique}
    finally:
        for consumer in both:
            consumer.close()


def test_a_position_is_looked_up_for_the_time_of_default_api_timeout() -> None:
    """The default is a minute."""
    props = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "default.api.timeout.ms": "200"}
    consumer, tp = Consumer(ConsumerSettings.from_props(props), name="B"), TopicPartition("t", 0)
    consumer.subscribe(Topics(frozenset({"t"})), Silent())
    consumer._fetcher.assign([tp])
    began_s = time.monotonic()
    try:
        with pytest.raises(TimeoutFailure, match="was not found out"):
            consumer.position(tp)
        assert 0.2 <= time.monotonic() - began_s < 30
    finally:
        consumer.close()


# -- connections


BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
#: Connections with settings of a client, given without a prefix.
Origin = Callable[[Mapping[str, str]], Cluster]


def of_a_client(props: Mapping[str, str]) -> Cluster:
    return Cluster(ClientSettings.from_props(props), name="B")


def of_a_worker(props: Mapping[str, str]) -> Cluster:
    """The connections with which a Connect worker reads the config topic, from its file."""
    stores = {f"{store}.storage.topic": store for store in ("config", "offset", "status")}
    file = {"group.id": "g", "key.converter": BYTES, "value.converter": BYTES, **stores, **props}
    return Node(WorkerConfig(file), Plugins(), worker_id="w", cluster_name="B")._clusters["configs"]


def of_mirror_maker(props: Mapping[str, str]) -> Cluster:
    """The admin client of a mirror connector at the source, from MirrorMaker's file."""
    admin = {f"A.admin.{key}": value for key, value in props.items() if key != "bootstrap.servers"}
    servers = {"A.bootstrap.servers": props["bootstrap.servers"], "B.bootstrap.servers": "127.0.0.1:1"}
    config = MirrorMakerConfig({"clusters": "A,B", "A->B.enabled": "true", **servers, **admin})
    connector = config.connector_config(SourceAndTarget("A", "B"), SOURCE_CONNECTOR)
    return MirrorClients(connector).cluster(Side.SOURCE, ClientKind.ADMIN, "replication-source-admin")


origins = pytest.mark.parametrize("origin", [of_a_client, of_a_worker, of_mirror_maker])


@contextlib.contextmanager
def opened(origin: Origin, bootstrap: str, settings: Mapping[str, str]) -> Iterator[Cluster]:
    cluster = origin({"bootstrap.servers": bootstrap, **settings})
    try:
        yield cluster
    finally:
        cluster.close()


@origins
@pytest.mark.parametrize(
    ("settings", "host"),
    [({}, "127.0.0.1"), ({"client.dns.lookup": "resolve_canonical_bootstrap_servers_only"}, "localhost")],
    ids=["default", "canonical"],
)
def test_bootstrap_servers_are_dialled_by_their_canonical_name_if_configured(
    kafka_b: LocalKafka, monkeypatch: pytest.MonkeyPatch, origin: Origin, settings: dict[str, str], host: str
) -> None:
    monkeypatch.setattr(socket, "getnameinfo", lambda *_: ("localhost", "0"))  # the answer of the name server
    with opened(origin, kafka_b.bootstrap, settings) as cluster:
        connection = cluster.open_connection(None)
        assert connection.host == host
        connection.close()


@origins
@pytest.mark.parametrize(
    ("key", "option"), [("receive.buffer.bytes", socket.SO_RCVBUF), ("send.buffer.bytes", socket.SO_SNDBUF)]
)
def test_sockets_have_the_configured_buffers(kafka_b: LocalKafka, origin: Origin, key: str, option: int) -> None:
    found = []
    for settings in ({}, {key: "8192"}):
        with opened(origin, kafka_b.bootstrap, settings) as cluster:
            connection = cluster.open_connection(None)
            found.append(connection.sock.getsockopt(socket.SOL_SOCKET, option))
            connection.close()
    assert found[1] == 2 * 8192  # Linux doubles it
    assert found[0] > found[1]


@origins
def test_an_idle_connection_is_closed_after_connections_max_idle_ms(kafka_b: LocalKafka, origin: Origin) -> None:
    host, _, port = kafka_b.bootstrap.rpartition(":")
    for settings in ({}, {"connections.max.idle.ms": "20"}):
        with opened(origin, kafka_b.bootstrap, settings) as cluster:
            with cluster._pool.lease((host, int(port)), time.monotonic() + 30) as first:
                pass
            time.sleep(0.05)
            with cluster._pool.lease((host, int(port)), time.monotonic() + 30) as later:
                assert (later is first) is not bool(settings)
                assert first.closed is bool(settings)


@origins
def test_metadata_are_requested_again_after_metadata_max_age_ms(
    kafka_b: LocalKafka, unique: str, origin: Origin
) -> None:
    create_topic(kafka_b.bootstrap, unique)
    requests = []
    for settings in ({}, {"metadata.max.age.ms": "1"}):
        with recorded() as sent, opened(origin, kafka_b.bootstrap, settings) as cluster:
            for _ in range(5):
                cluster.leader(unique, 0)
                time.sleep(0.01)
        requests.append(len(sent.of(MetadataRequest)))
    assert requests == [1, 5]


@origins
@pytest.mark.parametrize("settings", [{}, {"metadata.recovery.strategy": "none"}], ids=["default", "none"])
def test_only_with_rebootstrap_are_the_bootstrap_servers_asked_again(
    kafka_b: LocalKafka, origin: Origin, settings: dict[str, str]
) -> None:
    with opened(origin, kafka_b.bootstrap, settings) as cluster:
        cluster.metadata(())
        cluster._brokers = {1: Broker(1, "127.0.0.1", 1)}  # all known brokers have moved
        if settings:
            with pytest.raises(KafkaFailure, match=r"127\.0\.0\.1:1"):
                cluster.metadata((), timeout_s=5)
        else:
            assert cluster.metadata(()).brokers


@origins
@pytest.mark.parametrize(
    ("settings", "delays_s"),
    [
        ({}, [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]),
        ({"reconnect.backoff.ms": "300"}, [0.3, 0.6, 1.0]),
        ({"reconnect.backoff.max.ms": "150"}, [0.05, 0.1, 0.15, 0.15]),
    ],
    ids=["default", "reconnect.backoff.ms", "reconnect.backoff.max.ms"],
)
def test_reconnects_wait_for_the_configured_backoff(
    monkeypatch: pytest.MonkeyPatch, origin: Origin, settings: dict[str, str], delays_s: list[float]
) -> None:
    with opened(origin, "127.0.0.1:1", settings) as cluster:
        pool, waits = cluster._pool, list[float]()
        now_s = time.monotonic()  # delays are counted from the failure before, which may be a while ago
        monkeypatch.setattr(pools, "time", SimpleNamespace(monotonic=lambda: now_s))
        monkeypatch.setattr(pool, "sleep", waits.append)
        for _ in range(len(delays_s) + 1):
            with pytest.raises(KafkaFailure, match="refused"):
                pool.open(("127.0.0.1", 1), now_s + 600)
    assert_delays(waits, delays_s)


def assert_delays(waits: list[float], delays_s: list[float]) -> None:
    """They have a jitter of 20 %."""
    assert len(waits) == len(delays_s)
    for waited_s, delay_s in zip(waits, delays_s, strict=True):
        assert 0.8 * delay_s <= waited_s <= 1.2 * delay_s


@origins
@pytest.mark.parametrize(
    ("settings", "delays_s"),
    [
        ({}, [0.1, 0.2, 0.4, 0.8, 1.0]),
        ({"retry.backoff.ms": "300"}, [0.3, 0.6, 1.0]),
        ({"retry.backoff.max.ms": "150"}, [0.1, 0.15, 0.15]),
    ],
    ids=["default", "retry.backoff.ms", "retry.backoff.max.ms"],
)
def test_retries_wait_for_the_configured_backoff(
    kafka_b: LocalKafka, origin: Origin, settings: dict[str, str], delays_s: list[float]
) -> None:
    """Of a write to a topic that does not exist."""
    waits: list[float] = []

    class Waits:
        """The event that ends the producer's waits."""

        def wait(self, delay_s: float) -> bool:
            waits.append(delay_s)
            return len(waits) == len(delays_s)

    with opened(origin, kafka_b.bootstrap, settings) as cluster:
        producer = Producer(cluster)
        producer._closed = cast(Any, Waits())
        with pytest.raises(BrokerFailure, match="UNKNOWN_TOPIC_OR_PARTITION"):
            producer.send("no-such-topic", [Record(b"k", b"v")])
    assert_delays(waits, delays_s)


@pytest.fixture
def unresponsive() -> Iterator[str]:
    """The address of a server that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@origins
def test_an_unanswered_request_ends_after_request_timeout_ms(unresponsive: str, origin: Origin) -> None:
    """The default is half a minute, of which a connection is set up for up to 10 s."""
    with opened(origin, unresponsive, {"request.timeout.ms": "200"}) as cluster:
        began_s = time.monotonic()
        with pytest.raises(TimeoutFailure):
            cluster.metadata(())
    assert 0.15 < time.monotonic() - began_s < 9


@origins
@pytest.mark.parametrize(
    ("settings", "limits_s"),
    [
        ({}, [10, 20, 30, 30]),
        ({"socket.connection.setup.timeout.ms": "200"}, [0.2, 0.4, 0.8]),
        ({"socket.connection.setup.timeout.max.ms": "12000"}, [10, 12, 12]),
    ],
    ids=["default", "socket.connection.setup.timeout.ms", "socket.connection.setup.timeout.max.ms"],
)
def test_a_connection_is_set_up_for_the_configured_time_which_doubles(
    unresponsive: str,
    monkeypatch: pytest.MonkeyPatch,
    origin: Origin,
    settings: dict[str, str],
    limits_s: list[float],
) -> None:
    host, _, port = unresponsive.rpartition(":")
    connect, given = Connection.open, list[float]()

    def connecting(
        host: str, port: int, client: ClientSettings, *, timeout_s: float, cluster: str, failures: int
    ) -> Connection:
        given.append(timeout_s)
        return connect(host, port, client, timeout_s=min(timeout_s, 0.05), cluster=cluster, failures=failures)

    monkeypatch.setattr(Connection, "open", connecting)
    with opened(origin, unresponsive, settings) as cluster:
        monkeypatch.setattr(cluster._pool, "sleep", lambda _delay_s: None)
        for _ in limits_s:
            with pytest.raises(TimeoutFailure):
                cluster._pool.open((host, int(port)), time.monotonic() + 600)
    assert given == limits_s
