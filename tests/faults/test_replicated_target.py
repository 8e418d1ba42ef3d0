"""No loss, no duplicates and no reordering on a target of three brokers with min.insync.replicas=2.

One flow copies all topics. Followers are stopped, leaders are moved, requests are delivered late, and the process is
killed. Most records are 30 days old, so that a broker has forgotten their producer a second after it took them
(`producer.id.expiration.check.interval.ms`), and accepts any sequence from it afterwards (`ProducerAppendInfo`).
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from mm2.sandbox.cluster import LocalCluster, frozen
from mm2.sandbox.kafka import LocalKafka
from tests.faults.replicated import Replica, lead
from tests.faults.stage import LISTENERS, Addressed, Mirror, Topics, members, stopped, until
from tests.faults.wire import Choice, Hold, Wire, produces_to

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ALIAS = "R"
OFFSETS, LEDGER = f"mm2-offsets.{ALIAS}.internal", f"mm2-ledger.{ALIAS}.internal"
PARTITIONS = 16
#: Source topics: how many partitions, and the brokers of each remote partition, the preferred leader first.
TOPICS = {
    "refused-2": (PARTITIONS, [1, 2]),
    "refused-3": (PARTITIONS, [1, 2, 3]),
    "moved": (PARTITIONS, [2, 3, 1]),
    "timed-out-2": (PARTITIONS, [1, 2]),
    "timed-out-3": (PARTITIONS, [1, 2, 3]),
    "resigned": (PARTITIONS, [1, 2, 3]),
    "crashed-new": (1, [1, 2]),
    "crashed-old": (1, [1, 2]),
    "late-after-a-crash": (1, [1, 2]),
    "late-after-a-retry": (1, [1, 2]),
    "frozen": (1, [1, 2]),
}
REQUEST_TIMEOUT_S = 4.0
_INTERNAL = ("offset-syncs", "checkpoints", "heartbeats", "ledger")
_STORES = ("offset", "status", "config")
SETTINGS = {
    **{
        f"B.{client}.request.timeout.ms": str(int(REQUEST_TIMEOUT_S * 1000))
        for client in ("consumer", "producer", "admin")
    },
    **{f"{name}.topic.replication.factor": "3" for name in _INTERNAL},
    **{f"{name}.storage.replication.factor": "3" for name in _STORES},
    "offset-syncs.topic.location": "target",
    "replication.factor": "3",
    "offset.flush.interval.ms": "300",
    # What a broker that is killed with the process's connections takes to expel it; 6 s is the least it allows.
    "B.session.timeout.ms": "6000",
    "B.heartbeat.interval.ms": "1500",
}
_START_S = 180.0
_COMMIT_S = 150.0
_ISR_S = 60.0


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    with LocalKafka(ALIAS, tmp_path_factory.mktemp("source"), heap="256m") as made:
        yield made


@pytest.fixture(scope="module")
def shared_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("target")
    forgetful = {"producer.id.expiration.check.interval.ms": "1000"}
    with LocalCluster(
        "T", folder, size=3, heap="256m", overrides=forgetful, listeners=LISTENERS, proxied=["PROXIED"]
    ) as made:
        yield made


@pytest.fixture
def target(shared_target: LocalCluster) -> Iterator[LocalCluster]:
    """All brokers run, before and after."""
    _restart(shared_target)
    yield shared_target
    _restart(shared_target)


@pytest.fixture(scope="module")
def shared_wires(shared_target: LocalCluster) -> Iterator[list[Wire]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Wire.before(broker)) for broker in shared_target.brokers]


@pytest.fixture
def wires(shared_wires: list[Wire]) -> Iterator[list[Wire]]:
    yield shared_wires
    for wire in shared_wires:
        wire.heal()


@pytest.fixture(scope="module")
def shared_flow(
    source: LocalKafka, shared_target: LocalCluster, shared_wires: list[Wire], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mirror]:
    here, there = Topics(source), Topics(shared_target)
    for topic, (partitions, brokers) in TOPICS.items():
        here.create(topic, partitions=partitions, retention__ms="-1")
        there.create(
            f"{ALIAS}.{topic}", assignment=[brokers] * partitions, min__insync__replicas="2", retention__ms="-1"
        )
    # Broker 1 is never stopped: whoever commits while followers are stopped can write positions.
    there.create(OFFSETS, assignment=[[1]] * 5, cleanup__policy="compact")
    there.create(LEDGER, assignment=[[1]], cleanup__policy="compact")
    folder = tmp_path_factory.mktemp("flow")
    flow = Mirror(
        folder, ALIAS, source.bootstrap, ",".join(wire.address for wire in shared_wires), list(TOPICS), SETTINGS
    )
    try:
        flow.start()
        flow.process.says("Copying starts.", timeout_s=_START_S)
        yield flow
        flow.stop()
    finally:
        flow.clean_up()


@pytest.fixture
def flow(shared_flow: Mirror) -> Mirror:
    """A process of it is running."""
    if not shared_flow.process.is_running:
        shared_flow.start()
    return shared_flow


def _restart(cluster: LocalCluster) -> None:
    for node in cluster.nodes:
        if not node.is_running:
            node.start(_START_S)


def await_in_sync(target: Addressed, topic: str, in_sync: set[int]) -> None:
    """Until all partitions of a topic have exactly these replicas in sync."""
    topics = Topics(target)

    def reached() -> bool:
        return all(topics.leader(topic, index)[1] == in_sync for index in range(topics.partitions(topic)))

    until(reached, f"replicas {in_sync} of {topic} in sync", _ISR_S)


def writes_to(target: Addressed, topic: str, about: str) -> Choice:
    """Produce requests to a topic of the target with a record about another one."""
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    (found,) = admin.describe_topics(TopicCollection([topic])).values()
    identifier = base64.urlsafe_b64decode(f"{found.result(30).topic_id}==")
    return produces_to(topic, identifier, about=f'"{about}"')


def hold(wires: list[Wire], held: Hold) -> Hold:
    for wire in wires:
        wire.hold(held)
    return held


def crash(flow: Mirror) -> None:
    """kill -9 of all its processes, and another start."""
    flow.process.kill9(whole_family=True)
    flow.start()


@pytest.mark.parametrize("replicas", [2, 3])
def test_batches_that_were_refused_for_too_few_replicas_are_copied_once_and_in_order(
    source: LocalKafka, target: LocalCluster, wires: list[Wire], flow: Mirror, replicas: int
) -> None:
    """NOT_ENOUGH_REPLICAS for the first of five batches in flight, no error for the others: the producer is unknown."""
    replica = Replica(source, target, flow, f"refused-{replicas}", PARTITIONS)
    followers = set(range(2, replicas + 1))
    with replica.sampler:
        replica.records.write(2)
        replica.await_committed(_COMMIT_S)
        for _ in range(2):
            with ExitStack() as traffic:
                with frozen(*map(target.broker, followers)):
                    await_in_sync(target, replica.remote, {1})
                    for wire in wires:
                        wire.delay_s = 0.2  # so that the replicas recover between the batches of one window
                    traffic.enter_context(replica.records.flowing(PARTITIONS * 25))
                    time.sleep(3)
                await_in_sync(target, replica.remote, {1} | followers)
                time.sleep(2)
            for wire in wires:
                wire.delay_s = 0.0
            replica.await_committed(_COMMIT_S)
        replica.assert_whole()


def test_batches_in_flight_while_leaders_move_are_copied_once_and_in_order(
    source: LocalKafka, target: LocalCluster, wires: list[Wire], flow: Mirror
) -> None:
    """NOT_LEADER_OR_FOLLOWER for the first of five batches in flight, no error for the others."""
    replica = Replica(source, target, flow, "moved", PARTITIONS)
    with replica.sampler:
        replica.records.write(2)
        replica.await_committed(_COMMIT_S)
        for wire in wires:
            wire.delay_s = 0.1
        with replica.records.flowing(PARTITIONS * 25):
            for _ in range(8):
                lead(target, replica.remote, PARTITIONS, [3, 2, 1])
                time.sleep(0.4)
                lead(target, replica.remote, PARTITIONS, [2, 3, 1])
                time.sleep(0.4)
            target.broker(2).kill9()
            time.sleep(4)
            target.broker(2).start(_START_S)
            await_in_sync(target, replica.remote, {1, 2, 3})
            lead(target, replica.remote, PARTITIONS, [2, 3, 1])
            time.sleep(1)
        for wire in wires:
            wire.delay_s = 0.0
        replica.await_committed(_COMMIT_S)
        replica.assert_whole()


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_batch_that_was_appended_and_timed_out_is_not_appended_again(
    source: LocalKafka, target: LocalCluster, flow: Mirror, replicas: int
) -> None:
    """REQUEST_TIMED_OUT for a batch that is above the high watermark, and is there to stay when the followers resume."""
    replica = Replica(source, target, flow, f"timed-out-{replicas}", PARTITIONS)
    with replica.sampler:
        with replica.records.flowing(PARTITIONS * 10):
            time.sleep(2)
            with frozen(*map(target.broker, range(2, replicas + 1))):
                time.sleep(2 * REQUEST_TIMEOUT_S)
            time.sleep(2)
        replica.await_committed(_COMMIT_S)
        replica.assert_whole()


def test_a_batch_that_was_appended_before_its_leader_resigned_is_not_appended_again(
    source: LocalKafka, target: LocalCluster, flow: Mirror
) -> None:
    """NOT_LEADER_OR_FOLLOWER for a batch that the next leader has in its log already, above the high watermark."""
    replica = Replica(source, target, flow, "resigned", PARTITIONS)
    with replica.sampler:
        for _ in range(2):
            replica.records.write(2)
            replica.await_committed(_COMMIT_S)
            await_in_sync(target, replica.remote, {1, 2, 3})
            with frozen(target.broker(3)):
                replica.records.write(5)
                time.sleep(1.1)  # the next leader forgets the producer, broker 3 is in sync for a little longer
                lead(target, replica.remote, PARTITIONS, [2, 1, 3])
                time.sleep(2)
            await_in_sync(target, replica.remote, {1, 2, 3})
            lead(target, replica.remote, PARTITIONS, [1, 2, 3])
        replica.await_committed(_COMMIT_S)
        replica.assert_whole()


def test_a_successor_counts_only_what_is_below_the_high_watermark(
    source: LocalKafka, target: LocalCluster, flow: Mirror
) -> None:
    """The process dies with batches appended at the leader only, in one topic by a producer that the leader remembers
    (DescribeProducers includes them) and in one by a producer that it has forgotten (Fetch does not)."""
    known = Replica(source, target, flow, "crashed-new", 1, age_ms=0)
    forgotten = Replica(source, target, flow, "crashed-old", 1)
    with known.sampler, forgotten.sampler:
        both = known, forgotten
        for replica in both:
            replica.records.write(100)
        for replica in both:
            replica.await_committed(_COMMIT_S)
        time.sleep(1)
        with frozen(target.broker(2)):
            for replica in both:
                replica.records.write(100)
            time.sleep(0.5)
            starts = len(flow.lines("Copying starts."))
            crash(flow)
            until(lambda: len(flow.lines("Copying starts.")) > starts, "a start", _START_S, flow)
            time.sleep(5)
        for replica in both:
            replica.records.write(100)
        for replica in both:
            replica.await_committed(_COMMIT_S)
    for replica in both:
        replica.assert_whole()


@pytest.mark.parametrize("overtaken_by", ["crash", "retry"])
def test_a_position_that_is_written_late_is_not_taken_for_a_reset(
    source: LocalKafka, target: LocalCluster, wires: list[Wire], flow: Mirror, overtaken_by: str
) -> None:
    """A broker that did not respond delivers a Produce request to the offsets topic after newer positions were written,
    by a successor or on another connection."""
    replica = Replica(source, target, flow, f"late-after-a-{overtaken_by}", 1, age_ms=0)
    with replica.sampler:
        replica.records.write(50)
        replica.await_committed(_COMMIT_S)
        time.sleep(1)
        held = hold(wires, Hold(writes_to(target, OFFSETS, replica.topic)))
        replica.records.write(50)
        assert held.caught.wait(30), "no position was written"
        if overtaken_by == "crash":
            crash(flow)
        replica.records.write(50)
        replica.await_committed(_START_S)
        time.sleep(1.5)
        held.release()
        time.sleep(2)
        crash(flow)
        replica.records.write(50)
        replica.await_committed(_START_S)
        replica.assert_whole()


def test_a_frozen_executor_that_resumes_writes_no_stale_position(
    source: LocalKafka, target: LocalCluster, wires: list[Wire], flow: Mirror
) -> None:
    """It is stopped between the ledger's response and the write of the position, and resumes when its successor has
    committed a newer one."""
    replica = Replica(source, target, flow, "frozen", 1, age_ms=0)
    with replica.sampler:
        replica.records.write(50)
        replica.await_committed(_COMMIT_S)
        time.sleep(1)
        held = hold(wires, Hold(writes_to(target, LEDGER, replica.topic), responses=True))
        replica.records.write(50)
        assert held.caught.wait(30), "the ledger was not written"
        executors = members(flow.process, "worker")
        with stopped(*executors):
            held.release()
            until(lambda: len(members(flow.process, "worker")) > len(executors), "another executor", 60, flow)
            replica.records.write(50)
            replica.await_committed(_START_S)
            time.sleep(1.5)
        time.sleep(3)
        crash(flow)
        replica.records.write(50)
        replica.await_committed(_START_S)
        replica.assert_whole()
