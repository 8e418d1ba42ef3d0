"""Network faults between the program and either cluster (rows N of docs/RELIABILITY.md).

One process runs all tests. Its clients have timeouts of 5 s where Kafka's default is 30 s.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mm2.kafka.cluster import Cluster
from mm2.kafka.settings import ClientSettings
from tests.endurance.footprint import sample
from tests.faults.stage import HELD_UP, LISTENERS, Mirror, Play, Stage, Topics
from tests.faults.stage import mirror as running_mirror
from tests.support.cluster import LocalCluster
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

SHORT = {
    f"{cluster}.{client}.request.timeout.ms": "5000"
    for cluster in ("N", "B")
    for client in ("consumer", "producer", "admin")
}
_RECOVERY_S = 30.0


@pytest.fixture(scope="module")
def mirror(shared_stage: Stage) -> Iterator[Mirror]:
    stage = shared_stage
    through = (stage.network_a.address, stage.network_b.address)
    with running_mirror(
        stage.folder / "N", "N", source=stage.a, target=stage.b, through=through, topics=14, settings=SHORT
    ) as flow:
        yield flow


@pytest.fixture(params=["source", "target"])
def network(request: pytest.FixtureRequest, stage: Stage) -> Proxy:
    return stage.network_a if request.param == "source" else stage.network_b


# Bytes that are gone make the connection to the target wait for its request.timeout.ms: half a minute.
@pytest.mark.parametrize("network", ["source", pytest.param("target", marks=pytest.mark.slow)], indirect=True)
def test_n1_copying_recovers_from_a_reported_network_outage(play: Play, mirror: Mirror, network: Proxy) -> None:
    _drop_everything(play, mirror, network, 8)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_n1_copying_recovers_from_a_network_outage_of_two_minutes(play: Play, mirror: Mirror, network: Proxy) -> None:
    _drop_everything(play, mirror, network, 120)


def _drop_everything(play: Play, mirror: Mirror, network: Proxy, seconds: float) -> None:
    with play.load():
        play.await_flow()
        told = len(mirror.lines(HELD_UP))
        network.black_hole()
        time.sleep(seconds)
        network.heal()
        wait_until(
            lambda: len(mirror.lines(HELD_UP)) > told,
            30 - seconds,
            what="telling that nothing is copied",
            why=mirror.tail,
        )
        play.await_flow(_RECOVERY_S)
    play.judge().assert_exactly_once()


def test_n2_connection_resets_within_responses_cause_no_loss_or_duplicate(play: Play, network: Proxy) -> None:
    with play.load(1000):
        play.await_flow()
        for size in (6, 30, 1000):
            if size == 1000 and network.look()["bytes_up"] > network.look()["bytes_down"]:
                continue  # nothing on the target answers at such length
            network.cut(after_bytes=size, times=3)
            wait_until(lambda: network.look()["cut"], 30, what="a cut answer")
            network.heal()
        for _ in range(5):
            network.reset()
            time.sleep(0.3)
        play.await_flow(_RECOVERY_S)
    play.judge().assert_exactly_once()


def test_n3_truncated_and_fragmented_responses_are_read_correctly(play: Play, network: Proxy) -> None:
    before = network.look()["cut"]
    with play.load(1000):
        play.await_flow()
        network.cut(after_bytes=30, times=5, by_fin=True)
        wait_until(lambda: network.look()["cut"] >= before + 5, 30, what="five cut answers")
        network.slice(97)
        play.await_flow(_RECOVERY_S, records=500)
        network.heal()
    play.judge().assert_exactly_once()


def test_n3_bits_flipped_in_transit_are_never_copied(play: Play, stage: Stage) -> None:
    with play.load(1000):
        play.await_flow()
        stage.network_a.corrupt(every_bytes=200_000)
        wait_until(lambda: stage.network_a.look()["flipped"] >= 5, 30, what="flipped bits")
        stage.network_a.heal()
        play.await_flow(_RECOVERY_S)
    play.judge().assert_exactly_once()


def test_n4_batches_written_without_an_acknowledgement_are_not_written_again(play: Play, stage: Stage) -> None:
    with play.load():
        play.await_flow()
        stage.network_b.half_open()
        time.sleep(1.5)
        stage.network_b.reset()
        stage.network_b.heal()
        play.await_flow(_RECOVERY_S)
        stage.network_b.half_open()
        time.sleep(1.5)
        stage.network_b.heal()  # no reset: the silence has to be noticed
        play.await_flow(_RECOVERY_S)
    play.judge().assert_exactly_once()


@pytest.mark.slow
def test_n5_a_lossy_network_slows_copying_and_is_not_an_error(play: Play, mirror: Mirror, stage: Stage) -> None:
    with play.load():
        play.await_flow()
        told = len(mirror.lines(HELD_UP))
        stage.network_a.disturb(loss=0.1, jitter_ms=300)
        stage.network_b.disturb(loss=0.1, jitter_ms=300)
        time.sleep(8)
        play.await_flow(_RECOVERY_S)
        assert len(mirror.lines(HELD_UP)) == told, mirror.lines(HELD_UP)[told:]
        stage.heal()
    play.judge().assert_exactly_once()


def test_n6_a_low_bandwidth_does_not_exhaust_memory_and_the_backlog_is_copied(
    play: Play, mirror: Mirror, network: Proxy
) -> None:
    with play.load(3000, size_bytes=2000):
        play.await_flow()
        before = sample(mirror.process.pid, 0).total_bytes
        network.limit(1e6)
        time.sleep(6)
        grown = sample(mirror.process.pid, 0).total_bytes - before
        assert grown < 150e6, f"{grown / 1e6:.0f} MB more while the line was thin"
        network.heal()
    play.judge().assert_exactly_once()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_n7_a_process_that_cannot_reach_its_group_coordinator_writes_no_duplicates(
    stage: Stage, tmp_path: Path
) -> None:
    """It could go on writing, as the leader of its partitions answers; another process is given its work meanwhile."""
    group = {"B.session.timeout.ms": "6000", "B.heartbeat.interval.ms": "1500", "tasks.max": "2"}
    with (
        LocalCluster("Q", tmp_path / "q", listeners=LISTENERS, proxied=["PROXIED"]) as cluster,
        Proxy.before(cluster.broker(1)) as before_1,
        Proxy.before(cluster.broker(2)) as before_2,
    ):
        networks = {1: before_1, 2: before_2}
        looking = Cluster(ClientSettings.from_props({"bootstrap.servers": cluster.bootstrap}), name="Q")
        coordinator = looking.coordinator("P-mm2")
        looking.close()
        other = 3 - coordinator
        Topics(cluster).create("P.P-0", assignment=[[other, coordinator]] * 2)
        through = (stage.a.bootstrap, f"{before_1.address},{before_2.address}")
        with running_mirror(
            tmp_path / "1", "P", source=stage.a, target=cluster, through=through, topics=1, settings=group
        ) as flow:
            second = Mirror(tmp_path / "2", "P", stage.a.bootstrap, cluster.bootstrap, ["P-0"], group)
            try:
                play = Play(stage.a, cluster, flow, "P-0", 2)
                with play.load():
                    play.await_flow()
                    second.start()
                    wait_until(lambda: second.lines("joined the group"), 60, what="joining", why=second.tail)
                    time.sleep(5)
                    networks[coordinator].black_hole()
                    time.sleep(25)
                    play.await_flow()
                    networks[coordinator].heal()
                    time.sleep(10)
                    play.await_flow()
                play.judge(settle_s=2.0).assert_exactly_once()
                second.stop()
            finally:
                second.clean_up()


def test_n8_repeated_responses_are_not_matched_to_other_requests(play: Play, network: Proxy) -> None:
    before = network.look()["repeated"]
    with play.load():
        play.await_flow()
        network.repeat(6)
        wait_until(lambda: network.look()["repeated"] >= before + 6, 40, what="repeated answers")
        network.heal()
        play.await_flow(_RECOVERY_S)
    play.judge().assert_exactly_once()
