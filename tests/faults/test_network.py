"""Network faults between the program and either cluster (rows N of docs/reference/reliability.md).

One process runs all tests. Its clients have timeouts of 5 s where Kafka's default is 30 s.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mm2.kafka.client.cluster import Cluster
from mm2.kafka.settings.client_settings import ClientSettings
from tests.endurance.footprint import sample, typical
from tests.faults.environment import (
    COPYING_BLOCKED,
    LISTENERS,
    Environment,
    MirrorMaker,
    ReplicatedTopic,
    Topics,
    running_mirror_maker,
)
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
def mirror_maker(shared_environment: Environment) -> Iterator[MirrorMaker]:
    environment = shared_environment
    through = (environment.network_a.address, environment.network_b.address)
    with running_mirror_maker(
        environment.folder / "N",
        "N",
        source=environment.a,
        target=environment.b,
        through=through,
        topics=18,
        settings=SHORT,
    ) as flow:
        yield flow


@pytest.fixture(params=["source", "target"])
def network(request: pytest.FixtureRequest, environment: Environment) -> Proxy:
    return environment.network_a if request.param == "source" else environment.network_b


# After the outage the connection to the target waits for request.timeout.ms: half a minute.
@pytest.mark.parametrize("network", ["source", "target"], indirect=True)
@pytest.mark.slow
def test_n1_copying_recovers_from_a_reported_network_outage(
    replicated: ReplicatedTopic, mirror_maker: MirrorMaker, network: Proxy
) -> None:
    _drop_everything(replicated, mirror_maker, network, 8)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_n1_copying_recovers_from_a_network_outage_of_two_minutes(
    replicated: ReplicatedTopic, mirror_maker: MirrorMaker, network: Proxy
) -> None:
    _drop_everything(replicated, mirror_maker, network, 120)


def _drop_everything(replicated: ReplicatedTopic, mirror_maker: MirrorMaker, network: Proxy, seconds: float) -> None:
    with replicated.load():
        replicated.await_copied()
        reported = len(mirror_maker.lines(COPYING_BLOCKED))
        network.black_hole()
        time.sleep(seconds)
        network.heal()
        wait_until(
            lambda: len(mirror_maker.lines(COPYING_BLOCKED)) > reported,
            30 - seconds,
            what="the message that copying is blocked",
            detail=mirror_maker.tail,
        )
        replicated.await_copied(_RECOVERY_S)
    replicated.judge().assert_exactly_once()


def test_n2_connection_resets_within_responses_cause_no_loss_or_duplicate(
    replicated: ReplicatedTopic, network: Proxy
) -> None:
    with replicated.load(1000):
        replicated.await_copied()
        for size in (6, 30, 1000):
            if size == 1000 and network.counters()["bytes_up"] > network.counters()["bytes_down"]:
                continue  # no response of the target is that long
            network.cut(after_bytes=size, times=3)
            wait_until(lambda: network.counters()["cut"], 30, what="a cut answer")
            network.heal()
        for _ in range(5):
            network.reset()
            time.sleep(0.3)
        replicated.await_copied(_RECOVERY_S)
    replicated.judge().assert_exactly_once()


def test_n3_truncated_and_fragmented_responses_are_read_correctly(replicated: ReplicatedTopic, network: Proxy) -> None:
    before = network.counters()["cut"]
    with replicated.load(1000):
        replicated.await_copied()
        network.cut(after_bytes=30, times=5, by_fin=True)
        wait_until(lambda: network.counters()["cut"] >= before + 5, 30, what="five cut answers")
        network.slice(97)
        replicated.await_copied(_RECOVERY_S, records=500)
        network.heal()
    replicated.judge().assert_exactly_once()


def test_n3_bits_flipped_in_transit_are_never_copied(replicated: ReplicatedTopic, environment: Environment) -> None:
    with replicated.load(1000):
        replicated.await_copied()
        environment.network_a.corrupt(every_bytes=200_000)
        wait_until(lambda: environment.network_a.counters()["flipped"] >= 5, 30, what="flipped bits")
        environment.network_a.heal()
        replicated.await_copied(_RECOVERY_S)
    replicated.judge().assert_exactly_once()


def test_n4_batches_written_without_an_acknowledgement_are_not_written_again(
    replicated: ReplicatedTopic, environment: Environment
) -> None:
    with replicated.load():
        replicated.await_copied()
        environment.network_b.half_open()
        time.sleep(1.5)
        environment.network_b.reset()
        environment.network_b.heal()
        replicated.await_copied(_RECOVERY_S)
        environment.network_b.half_open()
        time.sleep(1.5)
        environment.network_b.heal()  # no reset: the client must detect the dead connection
        replicated.await_copied(_RECOVERY_S)
    replicated.judge().assert_exactly_once()


@pytest.mark.slow
def test_n5_a_lossy_network_slows_copying_and_is_not_an_error(
    replicated: ReplicatedTopic, mirror_maker: MirrorMaker, environment: Environment
) -> None:
    with replicated.load():
        replicated.await_copied()
        reported = len(mirror_maker.lines(COPYING_BLOCKED))
        environment.network_a.disturb(loss=0.1, jitter_ms=300)
        environment.network_b.disturb(loss=0.1, jitter_ms=300)
        time.sleep(8)
        replicated.await_copied(_RECOVERY_S)
        assert len(mirror_maker.lines(COPYING_BLOCKED)) == reported, mirror_maker.lines(COPYING_BLOCKED)[reported:]
        environment.heal()
    replicated.judge().assert_exactly_once()


def memory_of(mirror_maker: MirrorMaker) -> float:
    """In bytes, over four seconds: at a hand-off, the executors of two micro-batches run for a moment."""
    samples = []
    for _ in range(20):
        samples.append(sample(mirror_maker.process.pid, 0))
        time.sleep(0.2)
    return typical(samples)["total"]


@pytest.mark.slow
def test_n6_a_low_bandwidth_does_not_exhaust_memory_and_the_backlog_is_copied(
    replicated: ReplicatedTopic, mirror_maker: MirrorMaker, network: Proxy
) -> None:
    with replicated.load(3000, size_bytes=2000):
        replicated.await_copied()
        before = memory_of(mirror_maker)
        network.limit(1e6)
        time.sleep(6)
        grown = memory_of(mirror_maker) - before
        assert grown < 150e6, f"{grown / 1e6:.0f} MB more while the bandwidth was low"
        network.heal()
    replicated.judge().assert_exactly_once()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_n7_a_process_that_cannot_reach_its_group_coordinator_writes_no_duplicates(
    environment: Environment, tmp_path: Path
) -> None:
    """The leader of its partitions still responds to it, while its tasks are reassigned to another process."""
    group = {"B.session.timeout.ms": "6000", "B.heartbeat.interval.ms": "1500", "tasks.max": "2"}
    with (
        LocalCluster("Q", tmp_path / "q", listeners=LISTENERS, proxied=["PROXIED"]) as cluster,
        Proxy.before(cluster.broker(1)) as before_1,
        Proxy.before(cluster.broker(2)) as before_2,
    ):
        networks = {1: before_1, 2: before_2}
        client = Cluster(ClientSettings.from_props({"bootstrap.servers": cluster.bootstrap}), name="Q")
        coordinator = client.coordinator("P-mm2")
        client.close()
        other = 3 - coordinator
        Topics(cluster).create("P.P-0", assignment=[[other, coordinator]] * 2)
        through = (environment.a.bootstrap, f"{before_1.address},{before_2.address}")
        with running_mirror_maker(
            tmp_path / "1", "P", source=environment.a, target=cluster, through=through, topics=1, settings=group
        ) as flow:
            second = MirrorMaker(tmp_path / "2", "P", environment.a.bootstrap, cluster.bootstrap, ["P-0"], group)
            try:
                replicated = ReplicatedTopic(environment.a, cluster, flow, "P-0", 2)
                with replicated.load():
                    replicated.await_copied()
                    second.start()
                    wait_until(lambda: second.lines("joined the group"), 60, what="joining", detail=second.tail)
                    time.sleep(5)
                    networks[coordinator].black_hole()
                    time.sleep(25)
                    replicated.await_copied()
                    networks[coordinator].heal()
                    time.sleep(10)
                    replicated.await_copied()
                replicated.judge(settle_s=2.0).assert_exactly_once()
                second.stop()
            finally:
                second.clean_up()


def test_n8_repeated_responses_are_not_matched_to_other_requests(replicated: ReplicatedTopic, network: Proxy) -> None:
    before = network.counters()["repeated"]
    with replicated.load():
        replicated.await_copied()
        network.repeat(6)
        wait_until(lambda: network.counters()["repeated"] >= before + 6, 40, what="repeated answers")
        network.heal()
        replicated.await_copied(_RECOVERY_S)
    replicated.judge().assert_exactly_once()
