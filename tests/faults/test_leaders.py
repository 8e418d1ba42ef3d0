"""Clean and unclean leader elections on the source and on the target (rows L of docs/RELIABILITY.md).

The cluster has two brokers and two replicas of each partition. One flow reads from it, another one writes to it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mm2.sandbox.kafka import LocalKafka
from tests.faults.oracle import Judgment, Ledger, Place, Reader, Rows, Snapshot, compare
from tests.faults.stage import Addressed, Play, Stage, Topics
from tests.faults.stage import mirror as running_mirror
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
    factors = ("replication.factor", "offset-syncs.topic.replication.factor", "ledger.topic.replication.factor")
    return {**short, **dict.fromkeys(factors, str(replicas))}


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster("Q", tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def cluster(shared_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """All of it runs, before and after."""
    _mend(shared_cluster)
    yield shared_cluster
    _mend(shared_cluster)


def _mend(cluster: LocalCluster) -> None:
    for node in cluster.nodes:
        if not node.is_running:
            node.start()


def await_leader(cluster: LocalCluster, topic: str, leader: int, in_sync: set[int]) -> None:
    def there() -> bool:
        return Topics(cluster).leader(topic) == (leader, in_sync)

    wait_until(there, _ELECTED_S, what=f"{topic} led by {leader}, {in_sync} in sync")


def lose_the_end(cluster: LocalCluster, topic: str, fill: Callable[[], None]) -> None:
    """What `fill` brings about is acknowledged by broker 1 alone, and broker 2 is elected without it."""
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


def judged(before: Rows, after: list[Rows], play: Play) -> Judgment:
    """The replica has what was there before, and then each of the others."""
    judgment = Judgment()
    wanted = sum(after, before)
    reader = Reader(play.target.bootstrap, "read_committed")
    try:
        compare(judgment, 0, wanted, Rows.of(reader.messages(play.remote, 0)), {})
    finally:
        reader.close()
    return judgment


def rows(broker: Addressed, topic: str) -> Rows:
    return Snapshot.of(Place(broker.bootstrap, topic)).partitions[0][0]


def test_l1_clean_elections_cause_no_loss_or_duplicate(cluster: LocalCluster, stage: Stage, tmp_path: Path) -> None:
    Topics(cluster).create("L1-0", assignment=[[1, 2]])
    with running_mirror(
        tmp_path, "L1", source=cluster, target=stage.b, topics=1, partitions=1, settings=settings("L1", 1)
    ) as flow:
        play = Play(cluster, stage.b, flow, "L1-0", 1)
        with play.load():
            play.await_flow()
            for _ in range(2):
                cluster.broker(1).stop()
                await_leader(cluster, "L1-0", 2, {2})
                play.await_flow(_ELECTED_S)
                cluster.broker(1).start()
                await_leader(cluster, "L1-0", 2, {1, 2})
                cluster.elect({"L1-0": [0]})
                await_leader(cluster, "L1-0", 1, {1, 2})
                play.await_flow(_ELECTED_S)
        play.judge().assert_exactly_once()


@pytest.mark.parametrize("meanwhile", ["running", "down"])
def test_l2_an_unclean_election_on_the_source_is_reported_with_the_lost_range(
    cluster: LocalCluster, stage: Stage, tmp_path: Path, meanwhile: str
) -> None:
    alias = f"L2{meanwhile}"
    topic = f"{alias}-0"
    Topics(cluster).create(topic, assignment=[[1, 2]], unclean__leader__election__enable="true")
    with running_mirror(
        tmp_path, alias, source=cluster, target=stage.b, topics=1, partitions=1, settings=settings(alias, 1)
    ) as flow:
        play = Play(cluster, stage.b, flow, topic, 1)
        with play.load():
            play.await_flow()
        play.judge().assert_exactly_once()
        kept = play.arrived()
        before = Rows()

        def ghosts() -> None:
            nonlocal before
            write(cluster, topic, 0, numbered("ghost", 300))
            wait_until(lambda: play.arrived() == kept + 300, 30, what="copying of ghosts", why=flow.tail)
            time.sleep(1.5)  # and their positions
            before = rows(cluster, topic)
            if meanwhile == "down":
                flow.stop()

        lose_the_end(cluster, topic, ghosts)
        write(cluster, topic, 0, numbered("new", 500))  # more than were lost: the end alone would tell nothing
        if meanwhile == "down":
            flow.start()
        wait_until(lambda: flow.lines("source log truncated"), _NOTICED_S, what="telling", why=flow.tail)
        cluster.broker(1).start()
        new = rows(cluster, topic)
        new.offsets, new.digests = new.offsets[kept:], new.digests[kept:]
        assert len(new) == 500
        wait_until(lambda: play.arrived() == kept + 800, _NOTICED_S, what="copying of new records", why=flow.tail)
        judged(before, [new], play).assert_exactly_once()

        def written_down() -> bool:
            entry = Ledger.read(stage.b.bootstrap, alias).entries[topic, 0]
            return [row[:3] for row in entry["lost"]] == [[kept, kept + 300, "truncated"]]

        wait_until(written_down, 10, what="the range in the ledger", why=flow.tail)


def test_l3_records_that_the_target_lost_in_an_unclean_election_are_sent_again(
    cluster: LocalCluster, stage: Stage, tmp_path: Path
) -> None:
    Topics(cluster).create("L3.L3-0", assignment=[[1, 2]], unclean__leader__election__enable="true")
    with running_mirror(
        tmp_path, "L3", source=stage.a, target=cluster, topics=1, partitions=1, settings=settings("L3", 2)
    ) as flow:
        play = Play(stage.a, cluster, flow, "L3-0", 1)
        with play.load():
            play.await_flow()
        play.judge().assert_exactly_once()
        kept = play.arrived()

        def acknowledged() -> None:
            write(stage.a, "L3-0", 0, numbered("acknowledged", 300))
            wait_until(lambda: play.arrived() == kept + 300, 60, what="copying", why=flow.tail)
            wait_until(lambda: marked() == kept + 300, 60, what="the ledger entry", why=flow.tail)

        def marked() -> int:
            return int(Ledger.read(cluster.bootstrap, "L3").entries["L3-0", 0]["mark"][1])

        lose_the_end(cluster, "L3.L3-0", acknowledged)
        cluster.broker(1).start()  # the product's own topics are there, and led by it
        with play.load():
            wait_until(
                lambda: flow.lines("target lost acknowledged records"), _NOTICED_S, what="telling", why=flow.tail
            )
        play.judge(patience_s=120).assert_exactly_once()


def test_l4_a_source_restored_to_an_older_state_is_reported_with_the_lost_range(stage: Stage, tmp_path: Path) -> None:
    """Records that are on the target were never written, as far as the source knows, and no epoch tells."""
    with (
        LocalKafka("O", tmp_path / "o", heap="384m") as old,
        running_mirror(
            tmp_path, "L4", source=old, target=stage.b, topics=1, partitions=1, settings=settings("L4", 1)
        ) as flow,
    ):
        play = Play(old, stage.b, flow, "L4-0", 1)
        with play.load():
            play.await_flow()
        play.judge().assert_exactly_once()
        kept = play.arrived()
        old.stop()
        shutil.copytree(old.folder / "data", tmp_path / "backup")
        old.start()
        write(old, "L4-0", 0, numbered("forgotten", 200))
        wait_until(lambda: play.arrived() == kept + 200, 60, what="copying", why=flow.tail)
        time.sleep(1.5)
        before = rows(old, "L4-0")
        old.stop()
        shutil.rmtree(old.folder / "data")
        shutil.copytree(tmp_path / "backup", old.folder / "data")
        old.start()
        wait_until(lambda: flow.lines("source log truncated"), _NOTICED_S, what="telling", why=flow.tail)
        write(old, "L4-0", 0, numbered("new", 100))
        new = rows(old, "L4-0")
        new.offsets, new.digests = new.offsets[kept:], new.digests[kept:]
        wait_until(lambda: play.arrived() == kept + 300, _NOTICED_S, what="copying of new records", why=flow.tail)
        judged(before, [new], play).assert_exactly_once()
        entry = Ledger.read(stage.b.bootstrap, "L4").entries["L4-0", 0]
        assert [row[:3] for row in entry["lost"]] == [[kept, kept + 200, "truncated"]]
        assert values(stage.b, play.remote)[-1] == b"new 99"
