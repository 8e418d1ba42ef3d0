"""No loss, no duplicates and no reordering on a target of three brokers with min.insync.replicas=2.

One flow copies all topics. Followers are stopped, leaders are moved, requests are delivered late, and the process is
killed. Most records are 30 days old, so that a broker has forgotten their producer a second after it took them
(`producer.id.expiration.check.interval.ms`), and accepts any sequence from it afterwards (`ProducerAppendInfo`).
"""

from __future__ import annotations

import base64
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from mm2.sandbox.kafka import LocalKafka
from tests.faults.environment import LISTENERS, Addressed, MirrorMaker, Topics, kill, members, stopped
from tests.faults.replicated import Replica, lead
from tests.faults.test_rights import set_quota
from tests.faults.wire import Choice, Hold, Request, Wire, produces_to
from tests.support.cluster import LocalCluster, frozen
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ALIAS = "R"
PARTITIONS = 16
SEEDS = (1, 2)
#: Source topics: how many partitions, and the brokers of each remote partition, the preferred leader first.
TOPICS = {
    "refused-2": (PARTITIONS, [1, 2]),
    "refused-3": (PARTITIONS, [1, 2, 3]),
    "moved": (PARTITIONS, [2, 3, 1]),
    "hung": (PARTITIONS, [2, 3, 1]),
    **{f"mixed-{seed}": (PARTITIONS, [2, 3, 1]) for seed in SEEDS},
    "timed-out-2": (PARTITIONS, [1, 2]),
    "timed-out-3": (PARTITIONS, [1, 2, 3]),
    "resigned": (PARTITIONS, [1, 2, 3]),
    "crashed-new": (1, [1, 2]),
    "crashed-old": (1, [1, 2]),
    "late-after-a-crash": (1, [1, 2]),
    "late-after-a-retry": (1, [1, 2]),
    "late-batch-running": (1, [1, 2]),
    "late-batch-restarted": (1, [1, 2]),
}
FROZEN = {"frozen": (1, [1, 2])}
QUEUED = {"queued": (PARTITIONS, [1])}
#: A connection that exceeds it is throttled for several seconds.
_QUOTA_BYTES_S = 200.0
REQUEST_TIMEOUT_S = 4.0
_INTERNAL = ("offset-syncs", "checkpoints", "heartbeats", "ledger")
_STORES = ("offset", "status", "config")
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
    """The shared target; all brokers are running before and after the test."""
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
) -> Iterator[MirrorMaker]:
    folder = tmp_path_factory.mktemp("flow")
    with running(folder, ALIAS, source, shared_target, shared_wires, TOPICS, REQUEST_TIMEOUT_S) as flow:
        yield flow


@pytest.fixture
def flow(shared_flow: MirrorMaker) -> MirrorMaker:
    """The shared flow, with a running process."""
    if not shared_flow.process.is_running:
        shared_flow.start()
    return shared_flow


@contextmanager
def running(
    folder: Path,
    alias: str,
    source: LocalKafka,
    target: LocalCluster,
    wires: list[Wire],
    topics: Mapping[str, tuple[int, list[int]]],
    request_timeout_s: float,
) -> Iterator[MirrorMaker]:
    """A flow of these topics, which are created on both sides; its process reaches the target through the wires."""
    here, there = Topics(source), Topics(target)
    for topic, (partitions, brokers) in topics.items():
        here.create(topic, partitions=partitions, retention__ms="-1")
        there.create(
            f"{alias}.{topic}", assignment=[brokers] * partitions, min__insync__replicas="2", retention__ms="-1"
        )
    # Broker 1 is never stopped, so positions can be committed while followers are.
    there.create(offsets_topic(alias), assignment=[[1]] * 5, cleanup__policy="compact")
    there.create(ledger_topic(alias), assignment=[[1]], cleanup__policy="compact")
    flow = MirrorMaker(
        folder,
        alias,
        source.bootstrap,
        ",".join(wire.address for wire in wires),
        list(topics),
        settings(request_timeout_s),
    )
    try:
        flow.start()
        flow.process.await_log("Copying starts.", timeout_s=_START_S)
        yield flow
        flow.stop()
    finally:
        flow.clean_up()


def settings(request_timeout_s: float) -> dict[str, str]:
    clients = ("consumer", "producer", "admin")
    internal = ("offset-syncs.topic", "checkpoints.topic", "heartbeats.topic", "status.storage", "config.storage")
    return {
        **{f"B.{client}.request.timeout.ms": str(int(request_timeout_s * 1000)) for client in clients},
        **{f"{name}.replication.factor": "3" for name in internal},
        "offset-syncs.topic.location": "target",
        "replication.factor": "3",
        # Spark kills a lost Python worker after two seconds, which it cannot do to one on a machine that is frozen.
        "spark.python.task.killTimeout": "300s",
        # So that the group detects the failure of a process sooner; 6 s is the minimum that a broker allows.
        "B.session.timeout.ms": "6000",
        "B.heartbeat.interval.ms": "1500",
    }


def offsets_topic(alias: str) -> str:
    return f"mm2-offsets.{alias}.internal"


def ledger_topic(alias: str) -> str:
    return f"mm2-ledger.{alias}.internal"


def _restart(cluster: LocalCluster) -> None:
    for node in cluster.nodes:
        if not node.is_running:
            node.start(_START_S)


def await_in_sync(target: Addressed, topic: str, in_sync: set[int]) -> None:
    """Wait until all partitions of a topic have exactly these in-sync replicas."""
    topics = Topics(target)

    def reached() -> bool:
        return all(topics.leader(topic, index)[1] == in_sync for index in range(topics.partitions(topic)))

    wait_until(reached, _ISR_S, what=f"replicas {in_sync} of {topic} in sync")


def writes_to(target: Addressed, topic: str, about: str | None) -> Choice:
    """Produce requests to a topic of the target whose records contain the name of another topic."""
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    (found,) = admin.describe_topics(TopicCollection([topic])).values()
    identifier = base64.urlsafe_b64decode(f"{found.result(30).topic_id}==")
    return produces_to(topic, identifier, about="" if about is None else f'"{about}"')


def hold(wires: list[Wire], held: Hold) -> Hold:
    for wire in wires:
        wire.hold(held)
    return held


def await_quiet(wires: list[Wire], choice: Choice, quiet_s: float = 2.0) -> None:
    """Wait until no such request was sent for `quiet_s`: the entry that follows a committed position is in the ledger."""
    newest_s = time.monotonic()

    def note(request: Request) -> bool:
        nonlocal newest_s
        if choice(request):
            newest_s = time.monotonic()
        return False

    hold(wires, Hold(note))
    wait_until(lambda: time.monotonic() - newest_s > quiet_s, 60, what="an end of writes")


def crash(flow: MirrorMaker) -> None:
    """Kill all processes of the flow (kill -9) and start it again."""
    flow.process.kill9(whole_family=True)
    flow.start()


@pytest.mark.parametrize("replicas", [2, 3])
def test_batches_rejected_for_too_few_in_sync_replicas_are_copied_once_and_in_order(
    source: LocalKafka, target: LocalCluster, wires: list[Wire], flow: MirrorMaker, replicas: int
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
    source: LocalKafka, target: LocalCluster, wires: list[Wire], flow: MirrorMaker
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


def test_a_leader_that_resumes_after_another_was_elected_causes_no_loss_or_duplicate(
    source: LocalKafka, target: LocalCluster, flow: MirrorMaker
) -> None:
    """When the broker resumes, it still acts as leader and handles the requests in its socket buffers."""
    replica = Replica(source, target, flow, "hung", PARTITIONS)
    with replica.sampler:
        replica.records.write(2)
        replica.await_committed(_COMMIT_S)
        for _ in range(2):
            with replica.records.flowing(PARTITIONS * 10):
                with frozen(target.broker(2)):
                    time.sleep(2 * REQUEST_TIMEOUT_S)
                await_in_sync(target, replica.remote, {1, 2, 3})
                lead(target, replica.remote, PARTITIONS, [2, 3, 1])
                time.sleep(1)
            replica.await_committed(_COMMIT_S)
        replica.assert_whole()


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_batch_that_was_appended_and_timed_out_is_not_appended_again(
    source: LocalKafka, target: LocalCluster, flow: MirrorMaker, replicas: int
) -> None:
    """REQUEST_TIMED_OUT for a batch above the high watermark that is replicated when the followers resume."""
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
    source: LocalKafka, target: LocalCluster, flow: MirrorMaker
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
    source: LocalKafka, target: LocalCluster, flow: MirrorMaker
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
            wait_until(lambda: len(flow.lines("Copying starts.")) > starts, _START_S, what="a start", detail=flow.tail)
            time.sleep(5)
        for replica in both:
            replica.records.write(100)
        for replica in both:
            replica.await_committed(_COMMIT_S)
    time.sleep(1)
    defects = "\n".join(filter(None, (replica.defects() for replica in both)))
    assert not defects, defects


@pytest.mark.parametrize("overtaken_by", ["crash", "retry"])
def test_a_position_that_is_written_late_is_not_treated_as_a_reset(
    source: LocalKafka, target: LocalCluster, wires: list[Wire], flow: MirrorMaker, overtaken_by: str
) -> None:
    """A broker that did not respond delivers a Produce request to the offsets topic after newer positions were written,
    by a successor or on another connection."""
    replica = Replica(source, target, flow, f"late-after-a-{overtaken_by}", 1, age_ms=0)
    with replica.sampler:
        replica.records.write(50)
        replica.await_committed(_COMMIT_S)
        held = hold(wires, Hold(writes_to(target, offsets_topic(ALIAS), replica.topic)))
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


@pytest.mark.parametrize("seed", SEEDS)
def test_mixed_faults_in_a_seeded_order_cause_no_loss_or_duplicate(
    source: LocalKafka, target: LocalCluster, wires: list[Wire], flow: MirrorMaker, seed: int
) -> None:
    """Brokers, the process and its executors are stopped and killed while old records are copied."""
    rng = random.Random(seed)
    replica = Replica(source, target, flow, f"mixed-{seed}", PARTITIONS)

    def stop_brokers() -> None:
        with frozen(*rng.sample(target.brokers, rng.choice([1, 1, 2]))):
            time.sleep(rng.uniform(1, 8))

    def kill_broker() -> None:
        broker = rng.choice(target.brokers[1:])
        broker.kill9()
        time.sleep(rng.uniform(0, 4))
        broker.start(_START_S)

    def move_leaders() -> None:
        lead(target, replica.remote, PARTITIONS, rng.sample([1, 2, 3], 3))

    def stop_executors() -> None:
        with stopped(*members(flow.process, "worker")):
            time.sleep(rng.uniform(3, 13))

    def kill_executors() -> None:
        kill(members(flow.process, "worker"))

    faults = [stop_brokers, stop_brokers, kill_broker, move_leaders, move_leaders, stop_executors, kill_executors]
    with replica.sampler:
        replica.records.write(2)
        replica.await_committed(_COMMIT_S)
        with replica.records.flowing(PARTITIONS * 10):
            for fault in (*rng.sample(faults, 6), lambda: crash(flow), *rng.sample(faults, 6)):
                for wire in wires:
                    wire.delay_s = rng.choice([0.0, 0.0, 0.1])
                fault()
                time.sleep(rng.uniform(0, 3))
        for wire in wires:
            wire.delay_s = 0.0
        replica.await_committed(_START_S)
        replica.assert_whole(settle_s=3.0)


@pytest.mark.parametrize("noticed", ["running", "restarted"])
def test_a_batch_that_arrives_late_from_a_forgotten_producer_stops_its_partition(
    source: LocalKafka, target: LocalCluster, wires: list[Wire], flow: MirrorMaker, noticed: str
) -> None:
    """A predecessor's batch is delivered after its successor has written the same records. The leader has forgotten the
    producer and accepts it (docs/explanation/copy-sessions.md, assumptions): the partition stops, it does not continue."""
    replica = Replica(source, target, flow, f"late-batch-{noticed}", 1)
    with replica.sampler:
        replica.records.write(50)
        replica.await_committed(_COMMIT_S)
        held = hold(wires, Hold(writes_to(target, replica.remote, None)))
        replica.records.write(50)
        assert held.caught.wait(30), "no batch was sent"
        crash(flow)
        replica.await_committed(_START_S)
        time.sleep(2)  # the leader forgets the producer
        held.release()
        time.sleep(2)
        assert replica.defects(), "the late batch was rejected, so the test proves nothing"
        if noticed == "restarted":
            crash(flow)
        replica.records.write(50)
        wait_until(
            lambda: flow.lines("partition stopped", partition=replica.topic, state="INCONSISTENT"),
            _START_S,
            what="a typed state",
            detail=flow.tail,
        )


def test_a_batch_that_waits_behind_a_quota_is_not_appended_after_its_connection_was_closed(
    source: LocalKafka, target: LocalCluster, wires: list[Wire], tmp_path: Path
) -> None:
    """A broker responds to a request that exceeds a quota and reads nothing from its connection for a while (KIP-219).
    Then it also handles requests whose client has closed the connection meanwhile (`Selector`). Until then they are not in
    the log: the look-up of such a batch finds nothing, and a leader that has forgotten the producer appends it twice."""
    with running(tmp_path, "Q", source, target, wires, QUEUED, REQUEST_TIMEOUT_S) as flow:
        replica = Replica(source, target, flow, "queued", QUEUED["queued"][0])
        with replica.sampler:
            replica.records.write(1)
            replica.await_committed(_COMMIT_S)
            set_quota(target.broker(1).bootstrap, "producer_byte_rate", _QUOTA_BYTES_S)
            try:
                # The first requests exceed the quota for longer than the request timeout, the next ones wait behind them.
                for _ in range(5):
                    replica.records.write(4)
                    time.sleep(REQUEST_TIMEOUT_S / 2)
                time.sleep(2 * REQUEST_TIMEOUT_S)
            finally:
                set_quota(target.broker(1).bootstrap, "producer_byte_rate", None)
            replica.await_committed(_COMMIT_S)
            replica.records.write(1)
            replica.await_committed(_COMMIT_S)
        replica.assert_whole(settle_s=12.0)


def test_a_frozen_executor_that_resumes_writes_no_stale_position(
    source: LocalKafka, target: LocalCluster, wires: list[Wire], tmp_path: Path
) -> None:
    """It is stopped between the ledger's response and the write of the position, and resumes when its successor has
    committed a newer one. Its request timeout must be longer than that, or it closes the connection when it resumes."""
    with running(tmp_path, "F", source, target, wires, FROZEN, request_timeout_s=60.0) as flow:
        replica = Replica(source, target, flow, "frozen", 1, age_ms=0)
        with replica.sampler:
            replica.records.write(50)
            replica.await_committed(_COMMIT_S)
            written = writes_to(target, ledger_topic("F"), replica.topic)
            await_quiet(wires, written)
            held = hold(wires, Hold(written, responses=True))
            replica.records.write(50)
            assert held.caught.wait(30), "the ledger was not written"
            executors = members(flow.process, "worker")
            with stopped(*executors):
                held.release()
                wait_until(
                    lambda: len(members(flow.process, "worker")) > len(executors),
                    60,
                    what="another executor",
                    detail=flow.tail,
                )
                replica.records.write(50)
                replica.await_committed(_START_S)
                time.sleep(1.5)
            time.sleep(3)
            crash(flow)
            replica.records.write(50)
            replica.await_committed(_START_S)
            replica.assert_whole()
