"""The whole program on real brokers: started, stopped, killed, and with two processes.

One process with one file serves as many tests as possible; each test starts it unless it is running.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AclOperation

from mm2.sandbox.kafka import LocalKafka
from mm2.sandbox.ports import free_ports
from tests.integration.copy_flow import Traffic, create, producer_of
from tests.integration.mirror_flow import allow, commit
from tests.integration.mirror_process import (
    MirrorProcess,
    checkpoints,
    config_of,
    contents,
    doubled,
    ends,
    grow,
    has_all,
    heartbeats,
    is_running,
    partitions_of,
    records,
    statuses,
    syncs,
    table,
    topics_of,
    write_config,
)
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.timeout(240)

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CONNECTORS = ("MirrorSourceConnector", "MirrorCheckpointConnector", "MirrorHeartbeatConnector")
PER_SECOND = 500
FOREVER = str(2**63 - 1)
#: Topics and a group that exist before the first start, because finding new ones takes seconds.
TOPICS = {"life-plain": 2, "life-restart": 2, "life-kill": 2, "life-share": 4}
PLAIN_RECORDS = 100
GROUP = "life-group"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@dataclass
class MirrorMaker:
    """Flows east<->west between the pair, and late->west from a cluster that is down at first."""

    east: LocalKafka
    west: LocalKafka
    file: Path
    folder: Path
    ui: str
    started: list[MirrorProcess] = field(default_factory=list)

    def start(self) -> MirrorProcess:
        """Start another process with the same file."""
        log = self.folder / f"process-{len(self.started) + 1}.log"
        process = MirrorProcess(self.file, log, "east", "west")
        self.started.append(process)
        return process

    def running(self) -> MirrorProcess:
        """A running process that copies in both directions."""
        alive = [process for process in self.started if process.is_running]
        process = alive[-1] if alive else self.start()
        process.eventually(lambda: is_running(self.west, "east") and is_running(self.east, "west"), 90)
        return process

    def wait_until_copied(self, topic: str, timeout_s: float = 60) -> None:
        process = next(process for process in reversed(self.started) if process.is_running)
        process.eventually(lambda: has_all(self.east, topic, self.west, f"east.{topic}"), timeout_s)


@pytest.fixture(scope="module")
def third(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A broker that is not started yet; User:mirror needs ACLs, anonymous clients may do everything."""
    overrides = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": f'{PLAIN} user_mirror="secret";',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "true",
    }
    listeners = {"OPEN": "PLAINTEXT", "LOGIN": "SASL_PLAINTEXT"}
    broker = LocalKafka("C", tmp_path_factory.mktemp("third"), listeners=listeners, overrides=overrides, heap="384m")
    yield broker
    broker.stop()


@pytest.fixture(scope="module")
def mirror_maker(
    kafka_pair: tuple[LocalKafka, LocalKafka], third: LocalKafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MirrorMaker]:
    east, west = kafka_pair
    folder = tmp_path_factory.mktemp("mirror")
    (port,) = free_ports(1)
    props = {
        "clusters": "east, west, late",
        "east.bootstrap.servers": east.bootstrap,
        "west.bootstrap.servers": west.bootstrap,
        "late.bootstrap.servers": third.bootstrap,
        "east->west.enabled": "true",
        "west->east.enabled": "true",
        "late->west.enabled": "true",
        "late->east.emit.heartbeats.enabled": "false",
        "topics": ".*life-.*",
        "groups": "life-.*",
        # The minimum that a broker allows: the tasks of a killed process are reassigned after it.
        "east.session.timeout.ms": "6000",
        "west.session.timeout.ms": "6000",
        "east.heartbeat.interval.ms": "1500",
        "west.heartbeat.interval.ms": "1500",
        "west.offset.flush.interval.ms": "3000",
        "copy.batch.duration.ms": "8000",
        "spark.ui.enabled": "true",
        "spark.ui.port": str(port),
        "spark.app.name": "life",
        "spark.ui.retainedJobs": "77",
        "emit.checkpoint.interval.seconds": "5",  # a misspelled key
        "offset.storage.partitions": None,
        "status.storage.partitions": None,
    }
    file = write_config(folder / "mm2.properties", props)
    for topic, partitions in TOPICS.items():
        create(east, topic, partitions)
    producer = producer_of(east)
    for i in range(PLAIN_RECORDS):
        for partition in range(2):
            producer.produce("life-plain", b"%d" % i, partition=partition)
    assert producer.flush(30) == 0
    commit(east, GROUP, {("life-plain", 0): PLAIN_RECORDS, ("life-plain", 1): 40})
    made = MirrorMaker(east, west, file, folder, f"http://127.0.0.1:{port}/api/v1")
    yield made
    for process in made.started:
        process.clean_up()


# -- copying -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_record_of_every_codec_is_identical_on_the_target(mirror_maker: MirrorMaker, unique: str) -> None:
    topic = f"life-{unique}"
    # The target accepts future timestamps only with a topic setting, which must be copied.
    create(
        mirror_maker.east, topic, len(CODECS), message__timestamp__after__max__ms=FOREVER, max__message__bytes="3000000"
    )
    headers: list[tuple[str, Any]] = [("a", b"1"), ("b", None), ("a", b"2"), ("", b""), ("ü", b"\xff")]
    for partition, codec in enumerate(CODECS):
        producer = producer_of(mirror_maker.east, compression__type=codec)
        for i in range(200):
            producer.produce(topic, b"value %d " % i * 9, b"k%d" % i, partition, headers=[("n", b"%d" % i)])
        for key, value in ((b"tombstone", None), (b"", b""), (None, None), (None, b"value only"), (b"", None)):
            producer.produce(topic, value, key, partition, headers=headers)
        producer.produce(topic, os.urandom(500_000) * 2, b"a megabyte", partition)
        producer.produce(topic, os.urandom(2_000_000), b"two of them", partition)
        for stamp in (1, 1_600_000_000_000, 4_102_444_800_000, 253_402_300_799_000):
            producer.produce(topic, b"%d" % stamp, b"odd", partition, timestamp=stamp)
        assert producer.flush(60) == 0
    mirror_maker.running()
    mirror_maker.wait_until_copied(topic)
    wanted = contents(mirror_maker.east, topic)
    assert [len(partition) for partition in wanted] == [211] * len(CODECS)
    assert contents(mirror_maker.west, f"east.{topic}") == wanted


def test_new_topics_and_partitions_are_found_and_none_of_their_first_records_is_missed(
    mirror_maker: MirrorMaker, unique: str, record_property: Any
) -> None:
    topic = f"life-{unique}"
    mirror_maker.running()
    create(mirror_maker.east, topic)
    begin = time.monotonic()
    producer = producer_of(mirror_maker.east)
    for i in range(50):
        producer.produce(topic, b"first %d" % i, partition=0)
    assert producer.flush(30) == 0
    mirror_maker.wait_until_copied(topic, 30)
    topic_s = time.monotonic() - begin

    grow(mirror_maker.east, topic, 3)
    begin = time.monotonic()
    producer = producer_of(mirror_maker.east)
    for i in range(150):
        producer.produce(topic, b"more %d" % i, partition=i % 3)
    assert producer.flush(30) == 0
    mirror_maker.wait_until_copied(topic, 30)
    partitions_s = time.monotonic() - begin

    assert contents(mirror_maker.west, f"east.{topic}") == contents(mirror_maker.east, topic)
    record_property("topic_s", round(topic_s, 1))
    record_property("partitions_s", round(partitions_s, 1))
    print(f"a new topic took {topic_s:.1f} s, new partitions {partitions_s:.1f} s, refreshed every 2 s")  # noqa: T201


# -- records that MirrorMaker writes itself ----------------------------------------------------------------------------


def test_all_connectors_run_and_write_like_java(mirror_maker: MirrorMaker) -> None:
    process = mirror_maker.running()
    mirror_maker.wait_until_copied("life-plain")

    process.eventually(lambda: "task-MirrorCheckpointConnector-0" in statuses(mirror_maker.west, "east"))
    process.eventually(lambda: is_running(mirror_maker.west, "east"))
    rows = statuses(mirror_maker.west, "east")
    assert {name for name in rows if name.startswith("connector-")} == {f"connector-{name}" for name in CONNECTORS}
    for name, row in rows.items():
        assert row["state"] == "RUNNING", name
        assert row["trace"] is None
        assert "/east->west/" in row["worker_id"]
        assert row["generation"] > 0

    started_ms = time.time() * 1000
    process.eventually(lambda: heartbeats(mirror_maker.west, "heartbeats").get(("east", "west"), 0) > started_ms)
    process.eventually(lambda: heartbeats(mirror_maker.east, "heartbeats").get(("west", "east"), 0) > started_ms)
    # Each cluster also gets the heartbeats that the opposite flow writes to the other one.
    process.eventually(lambda: heartbeats(mirror_maker.west, "east.heartbeats").get(("west", "east"), 0) > started_ms)
    process.eventually(lambda: heartbeats(mirror_maker.east, "west.heartbeats").get(("east", "west"), 0) > started_ms)

    checkpoints_topic = "east.checkpoints.internal"
    key = (GROUP, "east.life-plain", 0)
    process.eventually(lambda: key in checkpoints(mirror_maker.west, checkpoints_topic))
    upstream, downstream, metadata = checkpoints(mirror_maker.west, checkpoints_topic)[key]
    assert (upstream, metadata) == (PLAIN_RECORDS, "")
    assert 0 < downstream <= PLAIN_RECORDS, "never ahead of the group"

    found = syncs(mirror_maker.east, "mm2-offset-syncs.west.internal")
    for partition in range(2):
        up, down = found["life-plain", partition]
        assert up == down < PLAIN_RECORDS

    compacted = {"mm2-offsets.east.internal": 25, "mm2-status.east.internal": 5, "mm2-configs.east.internal": 1}
    for name, count in {**compacted, checkpoints_topic: 1, "heartbeats": 1}.items():
        assert (partitions_of(mirror_maker.west, name), config_of(mirror_maker.west, name, "cleanup.policy")) == (
            count,
            "compact",
        )
    name = "mm2-offset-syncs.west.internal"
    assert (partitions_of(mirror_maker.east, name), config_of(mirror_maker.east, name, "cleanup.policy")) == (
        1,
        "compact",
    )
    assert not [
        name for name in topics_of(mirror_maker.west) if name.startswith(("east.mm2-", "east.__", "east.west."))
    ]


def test_positions_have_javas_bytes_and_partition(mirror_maker: MirrorMaker, unique: str) -> None:
    process = mirror_maker.running()
    key = b'["MirrorSourceConnector",{"cluster":"east","partition":1,"topic":"life-plain"}]'
    offsets = "mm2-offsets.east.internal"
    process.eventually(lambda: table(mirror_maker.west, offsets).get(key, (None, 0))[0] == b'{"offset":99}')
    rows = table(mirror_maker.west, offsets)
    assert rows[key][1] == javas_partition(mirror_maker.west, f"{unique}-scratch", key, 25)
    beats = b'["MirrorHeartbeatConnector",{"sourceClusterAlias":"east","targetClusterAlias":"west"}]'
    # Connect commits the offsets of its own tasks every offset.flush.interval.ms, by default 60 s.
    process.eventually(lambda: table(mirror_maker.west, offsets).get(beats, (None, 0))[0] == b'{"offset":0}')


def javas_partition(broker: LocalKafka, scratch: str, key: bytes, count: int) -> int:
    """The partition of a key by librdkafka's own murmur2."""
    create(broker, scratch, count)
    landed: list[int] = []

    def delivered(_error: object, message: Message) -> None:
        landed.append(message.partition() or 0)

    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2"})
    producer.produce(scratch, b"", key, on_delivery=delivered)
    assert producer.flush(30) == 0
    return landed[0]


# -- Spark -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sparks_rest_shows_the_streaming_query_and_the_settings_of_the_file(mirror_maker: MirrorMaker) -> None:
    process = mirror_maker.running()
    with httpx.Client(base_url=mirror_maker.ui, follow_redirects=True, timeout=30) as rest:
        application: dict[str, Any] = {}
        running: list[dict[str, Any]] = []

        def only_lanes_run() -> bool:
            """Also waits for Spark's start, and for its job that checks whether tasks start."""
            try:
                (found,) = rest.get("applications").json()
            except httpx.TransportError:
                return False
            jobs = rest.get(f"applications/{found['id']}/jobs").json()
            application.update(found)
            running[:] = [job for job in jobs if job["status"] == "RUNNING"]
            flows = {job["description"].split(" lane ")[0] for job in running}
            wanted = {"east->west MirrorSourceConnector-0", "west->east MirrorSourceConnector-0"}
            return wanted <= flows and all(" lane " in job["description"] for job in running)

        process.eventually(only_lanes_run, 90)
        assert application["name"] == "life"
        for job in running:
            assert " batch " in job["description"]
            assert job["jobGroup"]
        environment = rest.get(f"applications/{application['id']}/environment").json()
        settings = dict(environment["sparkProperties"])
        assert (settings["spark.ui.retainedJobs"], settings["spark.app.name"]) == ("77", "life")
    assert sum(member.name() == "java" for member in process.family()) == 1, "one Spark for all flows"
    (warning,) = process.lines(level="warning", event="Unknown key")
    assert "emit.checkpoint.interval.seconds" in warning["event"]
    assert "Did you mean emit.checkpoints.interval.seconds?" in warning["event"]


# -- a source that is unreachable at first -----------------------------------------------------------------------------


def test_a_source_unreachable_at_the_start_is_reported_and_copied_once_reachable(
    mirror_maker: MirrorMaker, third: LocalKafka, unique: str, record_property: Any
) -> None:
    if third.is_running:
        third.stop()
    process = mirror_maker.running()
    line = process.await_log("cluster late cannot be reached")
    assert line["flow"] == "late->west"
    assert third.bootstrap in line["event"]
    assert "Traceback" not in process.log.read_text()
    third.start()
    topic = f"life-{unique}"
    create(third, topic, 2)
    begin = time.monotonic()
    producer = producer_of(third)
    for i in range(100):
        producer.produce(topic, b"%d" % i, partition=i % 2)
    assert producer.flush(30) == 0
    process.eventually(lambda: has_all(third, topic, mirror_maker.west, f"late.{topic}"), 60)
    seconds = time.monotonic() - begin
    record_property("seconds", round(seconds, 1))
    print(f"a source that came late was copied {seconds:.1f} s later")  # noqa: T201
    assert contents(mirror_maker.west, f"late.{topic}") == contents(third, topic)


# -- stop, kill, share -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_clean_restart_under_load_continues_at_the_next_record(
    mirror_maker: MirrorMaker, record_property: Any
) -> None:
    topic = "life-restart"
    process = mirror_maker.running()
    with Traffic(mirror_maker.east, topic, 2, PER_SECOND):
        process.eventually(lambda: sum(ends(mirror_maker.west, f"east.{topic}")) > 100)
        code, seconds = process.stop()
        assert code == 0, process.tail()
        assert seconds < 15
        for broker, source in ((mirror_maker.west, "east"), (mirror_maker.east, "west")):
            left = {name: row for name, row in statuses(broker, source).items() if row["state"] != "UNASSIGNED"}
            assert not left
        assert not process.lines(level="error"), process.lines(level="error")
        assert "Traceback" not in process.log.read_text()
        wait_until(lambda: not process.family())
        at_stop = sum(ends(mirror_maker.west, f"east.{topic}"))
        again = mirror_maker.start()
        again.eventually(lambda: sum(ends(mirror_maker.west, f"east.{topic}")) > at_stop + 100)
    mirror_maker.wait_until_copied(topic)
    assert contents(mirror_maker.west, f"east.{topic}") == contents(mirror_maker.east, topic)
    record_property("stop_s", round(seconds, 1))
    print(f"stopped in {seconds:.1f} s")  # noqa: T201


def test_after_kill_9_under_load_nothing_is_lost_and_few_records_are_duplicated(
    mirror_maker: MirrorMaker, record_property: Any
) -> None:
    topic = "life-kill"
    process = mirror_maker.running()
    with Traffic(mirror_maker.east, topic, 2, PER_SECOND) as traffic:
        process.eventually(lambda: sum(ends(mirror_maker.west, f"east.{topic}")) > 300)
        process.kill9(whole_family=True)  # no process remains to commit its position
        killed = time.monotonic()
        at_death = sum(ends(mirror_maker.west, f"east.{topic}"))
        again = mirror_maker.start()
        again.eventually(lambda: sum(ends(mirror_maker.west, f"east.{topic}")) > at_death)
        back_s = time.monotonic() - killed
    mirror_maker.wait_until_copied(topic)
    twice = doubled(records(mirror_maker.east, topic), records(mirror_maker.west, f"east.{topic}"))
    record_property("twice", twice)
    record_property("back_s", round(back_s, 1))
    print(  # noqa: T201
        f"{twice} of {traffic.sent} records came twice, copied again after {back_s:.1f} s"
    )
    assert twice <= 2 * PER_SECOND


def test_two_processes_share_the_tasks_and_the_survivor_takes_all_over(
    mirror_maker: MirrorMaker, record_property: Any
) -> None:
    topic = "life-share"
    first = mirror_maker.running()
    second = mirror_maker.start()
    second.eventually(lambda: len(workers_of_tasks(mirror_maker)) == 2, 90)
    wait_until(lambda: is_running(mirror_maker.west, "east"), 30)
    with Traffic(mirror_maker.east, topic, 4, PER_SECOND):
        second.eventually(lambda: sum(ends(mirror_maker.west, f"east.{topic}")) > 100)
        first.kill9()  # it is the leader of the group, so the connectors must move as well
        killed = time.monotonic()
        wait_until(lambda: not first.family(), detail=first.family)
        gone_s = time.monotonic() - killed
        before = ends(mirror_maker.west, f"east.{topic}")
        second.eventually(
            lambda: all(
                now > then + 10 for now, then in zip(ends(mirror_maker.west, f"east.{topic}"), before, strict=True)
            )
        )
        taken_over_s = time.monotonic() - killed
    mirror_maker.wait_until_copied(topic)
    wait_until(lambda: len(workers_of_tasks(mirror_maker)) == 1 and is_running(mirror_maker.west, "east"), 30)
    twice = doubled(records(mirror_maker.east, topic), records(mirror_maker.west, f"east.{topic}"))
    # the survivor is also the leader: new topics are found
    create(mirror_maker.east, f"{topic}-later")
    producer = producer_of(mirror_maker.east)
    producer.produce(f"{topic}-later", b"found")
    assert producer.flush(30) == 0
    mirror_maker.wait_until_copied(f"{topic}-later", 40)
    record_property("taken_over_s", round(taken_over_s, 1))
    print(  # noqa: T201
        f"all processes of the first gone after {gone_s:.1f} s, taken over in {taken_over_s:.1f} s with a session timeout of "
        f"6 s; {twice} records came twice"
    )
    assert twice <= 2 * PER_SECOND


def workers_of_tasks(mirror_maker: MirrorMaker) -> set[str]:
    """The processes that run tasks of east->west."""
    rows = statuses(mirror_maker.west, "east")
    return {row["worker_id"] for name, row in rows.items() if name.startswith("task-") and row["state"] == "RUNNING"}


# -- three clusters, and permissions -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_three_clusters_in_a_ring_share_one_spark_without_loops_and_a_missing_acl_affects_one_topic(
    kafka_a: LocalKafka,
    kafka_b: LocalKafka,
    third: LocalKafka,
    mirror_maker: MirrorMaker,
    tmp_path: Path,
    record_property: Any,
) -> None:
    for process in mirror_maker.started:
        process.clean_up()  # two processes with Spark are enough for a small machine
    third.start()
    brokers = {"red": kafka_a, "green": kafka_b, "blue": third}
    for alias, broker in brokers.items():
        create(broker, "ring-t", 2)
        create(broker, "ring-locked")
        producer = producer_of(broker)
        for topic in ("ring-t", "ring-locked"):
            for i in range(50):
                producer.produce(topic, f"{alias} {i}".encode(), partition=0)
        assert producer.flush(30) == 0
    # All permissions except WRITE: allow.everyone.if.no.acl.found applies only to topics without any ACL.
    topic_rights = (
        AclOperation.READ,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.ALTER_CONFIGS,
    )
    allow(third, "green.ring-locked", *topic_rights)
    login = {
        "blue.security.protocol": "SASL_PLAINTEXT",
        "blue.sasl.mechanism": "PLAIN",
        "blue.sasl.jaas.config": f'{PLAIN} username="mirror" password="secret";',
    }
    props = {
        "clusters": "red, green, blue",
        **{f"{alias}.bootstrap.servers": broker.bootstrap for alias, broker in brokers.items()},
        "blue.bootstrap.servers": third.address("LOGIN"),
        **login,
        "red->green.enabled": "true",
        "green->blue.enabled": "true",
        "blue->red.enabled": "true",
        **{f"{flow}.emit.heartbeats.enabled": "false" for flow in ("green->red", "blue->green", "red->blue")},
        "topics": ".*ring-.*",
        "groups": "ring-.*",
        # Three flows stop at the same time, which takes longer than the default of 5 s on a busy machine.
        **{f"{alias}.task.shutdown.graceful.timeout.ms": "12000" for alias in brokers},
    }
    process = MirrorProcess(write_config(tmp_path / "mm2.properties", props), tmp_path / "log")
    try:
        begin = time.monotonic()
        process.eventually(lambda: has_all(kafka_b, "ring-t", third, "green.ring-t"), 90)
        line = process.await_log("Copying is blocked.", flow="green->blue", reason="green.ring-locked-0")
        assert line["level"] == "warning"
        assert line["reason"] == (
            "writing to green.ring-locked-0 of cluster blue: TOPIC_AUTHORIZATION_FAILED, "
            "the principal has no right to this topic; the right WRITE is missing."
        )
        assert ends(third, "green.ring-locked") == [0]
        allow(third, "green.ring-locked", AclOperation.WRITE)
        allowed = time.monotonic()

        process.eventually(lambda: has_all(kafka_a, "ring-t", kafka_b, "red.ring-t"))
        process.eventually(lambda: has_all(third, "ring-t", kafka_a, "blue.ring-t"))
        ring_s = time.monotonic() - begin
        for source, target in (("red", "green"), ("green", "blue"), ("blue", "red")):
            assert contents(brokers[target], f"{source}.ring-t") == contents(brokers[source], "ring-t")
        # two hops, and no third one back
        process.eventually(lambda: has_all(kafka_a, "ring-t", third, "green.red.ring-t"))
        assert contents(third, "green.red.ring-t") == contents(kafka_a, "ring-t")
        process.eventually(lambda: ("blue", "red") in heartbeats(third, "green.red.heartbeats"))
        process.eventually(lambda: ("red", "green") in heartbeats(kafka_a, "blue.green.heartbeats"))
        assert sum(member.name() == "java" for member in process.family()) == 1

        process.eventually(lambda: has_all(kafka_b, "ring-locked", third, "green.ring-locked"))
        healed_s = time.monotonic() - allowed
        assert contents(third, "green.ring-locked") == contents(kafka_b, "ring-locked")
        process.await_log("Copying continues.", flow="green->blue")
        assert len(process.lines(event="Copying is blocked.", reason="writing to green.ring-locked-0")) == 1, (
            "said once"
        )

        home = {"red": "blue.green.red.", "green": "red.blue.green.", "blue": "green.red.blue."}
        for alias, broker in brokers.items():
            assert not [name for name in topics_of(broker) if name.startswith(home[alias])]
            assert len(contents(broker, "ring-t")[0]) == 50
        code, stop_s = process.stop()
        assert code == 0
        assert stop_s < 15 * PATIENCE
        assert "secret" not in process.log.read_text()
        assert not process.lines(level="error"), process.lines(level="error")
    finally:
        process.clean_up()
    record_property("healed_s", round(healed_s, 1))
    print(f"the ring was closed in {ring_s:.1f} s, the right noticed in {healed_s:.1f} s, stopped in {stop_s:.1f} s")  # noqa: T201
