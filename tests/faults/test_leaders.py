"""Clean and unclean leader elections on the source and on the target (rows L of docs/reference/reliability.md).

The cluster has two brokers and two replicas of each partition. One flow reads from it, another one writes to it.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mm2.kafka.client.cluster import Cluster
from mm2.kafka.readers.log import KafkaBasedLog, LogRecord
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.sandbox.kafka import LocalKafka
from tests.faults.environment import Addressed, Environment, ReplicatedTopic, Topics, running_mirror_maker
from tests.faults.oracle import ClusterTopic, Judgment, Ledger, Reader, Rows, Snapshot, compare
from tests.faults.test_data import numbered, values, write
from tests.support.cluster import LocalCluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

_ELECTED_S = 30.0
_NOTICED_S = 60.0


def settings(alias: str, replicas: int) -> dict[str, str]:
    short = {
        f"{cluster}.{client}.request.timeout.ms": "5000"
        for cluster in (alias, "B")
        for client in ("consumer", "producer", "admin")
    }
    internal = ("offset-syncs.topic", "ledger.topic", "offset.storage", "config.storage", "status.storage")
    factors = [f"{topic}.replication.factor" for topic in internal]
    return {**short, **dict.fromkeys(["replication.factor", *factors], str(replicas))}


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster("Q", tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def cluster(shared_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """The shared cluster; all nodes are running before and after the test."""
    _restart(shared_cluster)
    yield shared_cluster
    _restart(shared_cluster)


def _restart(cluster: LocalCluster) -> None:
    for node in cluster.nodes:
        if not node.is_running:
            node.start()


def await_leader(cluster: LocalCluster, topic: str, leader: int, in_sync: set[int]) -> None:
    def elected() -> bool:
        return Topics(cluster).leader(topic) == (leader, in_sync)

    wait_until(elected, _ELECTED_S, what=f"{topic} led by {leader}, {in_sync} in sync")


def lose_the_end(cluster: LocalCluster, topic: str, fill: Callable[[], None]) -> None:
    """Elect broker 2 uncleanly after `fill` has written records that only broker 1 has acknowledged."""
    one, two = cluster.broker(1), cluster.broker(2)
    await_leader(cluster, topic, 1, {1, 2})
    two.kill9()
    await_leader(cluster, topic, 1, {1})
    fill()
    one.kill9()
    two.start()

    def elected() -> bool:
        cluster.elect({topic: [0]}, unclean=True)
        return Topics(cluster).leader(topic)[0] == 2

    wait_until(elected, _ELECTED_S, what="an unclean election")


def judged(before: Rows, after: list[Rows], replicated: ReplicatedTopic) -> Judgment:
    """Compare the remote topic with the rows `before` followed by each of `after`."""
    judgment = Judgment()
    wanted = sum(after, before)
    reader = Reader(replicated.target.bootstrap, "read_committed")
    try:
        compare(judgment, 0, wanted, Rows.of(reader.messages(replicated.remote, 0)), {})
    finally:
        reader.close()
    return judgment


def rows(broker: Addressed, topic: str) -> Rows:
    return Snapshot.of(ClusterTopic(broker.bootstrap, topic)).partitions[0][0]


def test_l1_clean_elections_cause_no_loss_or_duplicate(
    cluster: LocalCluster, environment: Environment, tmp_path: Path
) -> None:
    Topics(cluster).create("L1-0", assignment=[[1, 2]])
    with running_mirror_maker(
        tmp_path, "L1", source=cluster, target=environment.b, topics=1, partitions=1, settings=settings("L1", 1)
    ) as flow:
        replicated = ReplicatedTopic(cluster, environment.b, flow, "L1-0", 1)
        with replicated.load():
            replicated.await_copied()
            for _ in range(2):
                cluster.broker(1).stop()
                await_leader(cluster, "L1-0", 2, {2})
                replicated.await_copied(_ELECTED_S)
                cluster.broker(1).start()
                await_leader(cluster, "L1-0", 2, {1, 2})
                cluster.elect({"L1-0": [0]})
                await_leader(cluster, "L1-0", 1, {1, 2})
                replicated.await_copied(_ELECTED_S)
        replicated.judge().assert_exactly_once()


@pytest.mark.parametrize("meanwhile", ["running", "down"])
def test_l2_an_unclean_election_on_the_source_is_reported_with_the_lost_range(
    cluster: LocalCluster, environment: Environment, tmp_path: Path, meanwhile: str
) -> None:
    alias = f"L2{meanwhile}"
    topic = f"{alias}-0"
    Topics(cluster).create(topic, assignment=[[1, 2]], unclean__leader__election__enable="true")
    with running_mirror_maker(
        tmp_path, alias, source=cluster, target=environment.b, topics=1, partitions=1, settings=settings(alias, 1)
    ) as flow:
        replicated = ReplicatedTopic(cluster, environment.b, flow, topic, 1)
        with replicated.load():
            replicated.await_copied()
        replicated.judge().assert_exactly_once()
        kept = replicated.arrived()
        before = Rows()

        def ghosts() -> None:
            nonlocal before
            write(cluster, topic, 0, numbered("ghost", 300))
            wait_until(lambda: replicated.arrived() == kept + 300, 30, what="copying of ghosts", detail=flow.tail)
            time.sleep(1.5)  # until their positions are committed
            before = rows(cluster, topic)
            if meanwhile == "down":
                flow.stop()

        lose_the_end(cluster, topic, ghosts)
        write(
            cluster, topic, 0, numbered("new", 500)
        )  # more than were lost: the log end offset alone does not show the loss
        if meanwhile == "down":
            flow.start()
        wait_until(lambda: flow.lines("source log truncated"), _NOTICED_S, what="the log message", detail=flow.tail)
        cluster.broker(1).start()
        new = rows(cluster, topic)
        new.offsets, new.digests = new.offsets[kept:], new.digests[kept:]
        assert len(new) == 500
        wait_until(
            lambda: replicated.arrived() == kept + 800, _NOTICED_S, what="copying of new records", detail=flow.tail
        )
        judged(before, [new], replicated).assert_exactly_once()

        def recorded() -> bool:
            entry = Ledger.read(environment.b.bootstrap, alias).entries[topic, 0]
            return [row[:3] for row in entry["lost"]] == [[kept, kept + 300, "truncated"]]

        wait_until(recorded, 10, what="the range in the ledger", detail=flow.tail)


def test_l3_records_that_the_target_lost_in_an_unclean_election_are_sent_again(
    cluster: LocalCluster, environment: Environment, tmp_path: Path
) -> None:
    Topics(cluster).create("L3.L3-0", assignment=[[1, 2]], unclean__leader__election__enable="true")
    with running_mirror_maker(
        tmp_path, "L3", source=environment.a, target=cluster, topics=1, partitions=1, settings=settings("L3", 2)
    ) as flow:
        replicated = ReplicatedTopic(environment.a, cluster, flow, "L3-0", 1)
        with replicated.load():
            replicated.await_copied()
        replicated.judge().assert_exactly_once()
        kept = replicated.arrived()

        def acknowledged() -> None:
            write(environment.a, "L3-0", 0, numbered("acknowledged", 300))
            wait_until(lambda: replicated.arrived() == kept + 300, 60, what="copying", detail=flow.tail)
            wait_until(lambda: marked() == kept + 300, 60, what="the ledger entry", detail=flow.tail)

        def marked() -> int:
            return int(Ledger.read(cluster.bootstrap, "L3").entries["L3-0", 0]["mark"][1])

        lose_the_end(cluster, "L3.L3-0", acknowledged)
        cluster.broker(1).start()  # the only replica of the internal topics is on broker 1
        with replicated.load():
            wait_until(
                lambda: flow.lines("target lost acknowledged records"),
                _NOTICED_S,
                what="the log message",
                detail=flow.tail,
            )
        replicated.judge(patience_s=120).assert_exactly_once()


def test_l4_a_source_restored_to_an_older_state_is_reported_with_the_lost_range(
    environment: Environment, tmp_path: Path
) -> None:
    """The restored source never had records that are on the target, and no leader epoch shows it."""
    with (
        LocalKafka("O", tmp_path / "o", heap="384m") as old,
        running_mirror_maker(
            tmp_path, "L4", source=old, target=environment.b, topics=1, partitions=1, settings=settings("L4", 1)
        ) as flow,
    ):
        replicated = ReplicatedTopic(old, environment.b, flow, "L4-0", 1)
        with replicated.load():
            replicated.await_copied()
        replicated.judge().assert_exactly_once()
        kept = replicated.arrived()
        old.stop()
        shutil.copytree(old.folder / "data", tmp_path / "backup")
        old.start()
        write(old, "L4-0", 0, numbered("forgotten", 200))
        wait_until(lambda: replicated.arrived() == kept + 200, 60, what="copying", detail=flow.tail)
        time.sleep(1.5)
        before = rows(old, "L4-0")
        old.stop()
        shutil.rmtree(old.folder / "data")
        shutil.copytree(tmp_path / "backup", old.folder / "data")
        old.start()
        wait_until(lambda: flow.lines("source log truncated"), _NOTICED_S, what="the log message", detail=flow.tail)
        write(old, "L4-0", 0, numbered("new", 100))
        new = rows(old, "L4-0")
        new.offsets, new.digests = new.offsets[kept:], new.digests[kept:]
        wait_until(
            lambda: replicated.arrived() == kept + 300, _NOTICED_S, what="copying of new records", detail=flow.tail
        )
        judged(before, [new], replicated).assert_exactly_once()
        entry = Ledger.read(environment.b.bootstrap, "L4").entries["L4-0", 0]
        assert [row[:3] for row in entry["lost"]] == [[kept, kept + 200, "truncated"]]
        assert values(environment.b, replicated.remote)[-1] == b"new 99"


def test_l15_a_reader_of_an_internal_topic_reads_what_replaced_the_records_that_were_lost(
    cluster: LocalCluster,
) -> None:
    """The new leader has more records than were lost, before the reader asks it. The topic is read again from its start."""
    topic = "L15"
    Topics(cluster).create(topic, assignment=[[1, 2]], unclean__leader__election__enable="true")
    write(cluster, topic, 0, numbered("old", 100))
    seen: list[bytes] = []
    is_over = threading.Event()

    def take(record: LogRecord) -> None:
        seen.append(record.value or b"")
        if record.value == b"ghost 299":
            is_over.wait(_NOTICED_S)

    client = Cluster(ClientSettings.from_props({"bootstrap.servers": cluster.bootstrap}, client_id="log"), name="Q")
    log = KafkaBasedLog(client, topic, on_record=take)
    try:
        log.start(30)

        def ghosts() -> None:
            write(cluster, topic, 0, numbered("ghost", 300))
            wait_until(lambda: len(seen) == 400, 30, what="reading of ghosts")

        lose_the_end(cluster, topic, ghosts)
        write(cluster, topic, 0, numbered("new", 500))
        is_over.set()
        wait_until(lambda: len(seen) >= 1000, _NOTICED_S, what="reading of new records", detail=lambda: str(len(seen)))
        assert seen[400:] == numbered("old", 100) + numbered("new", 500)
    finally:
        is_over.set()
        log.stop()
        client.close()
