"""N: the network between the product and either cluster (spec field §4.4).

One product for all rows, its clients with timeouts of 5 s where Kafka's default is 30 s.
"""

import time
from collections.abc import Iterator

import pytest

from mm2.sandbox.proxy import Proxy
from tests.endurance.footprint import sample
from tests.faults.stage import HELD_UP, Mirror, Play, Stage, until
from tests.faults.stage import mirror as running_mirror

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


def test_n1_a_network_that_drops_everything_is_told_and_outlived(play: Play, mirror: Mirror, network: Proxy) -> None:
    _drop_everything(play, mirror, network, 8)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_n1_for_two_minutes(play: Play, mirror: Mirror, network: Proxy) -> None:
    _drop_everything(play, mirror, network, 120)


def _drop_everything(play: Play, mirror: Mirror, network: Proxy, seconds: float) -> None:
    with play.load():
        play.await_flow()
        told = len(mirror.lines(HELD_UP))
        network.black_hole()
        time.sleep(seconds)
        network.heal()
        until(lambda: len(mirror.lines(HELD_UP)) > told, "telling that nothing is copied", 30 - seconds, mirror)
        play.await_flow(_RECOVERY_S)
    play.judge().assert_exactly_once()


def test_n2_resets_in_the_midst_of_answers_lose_and_double_nothing(play: Play, network: Proxy) -> None:
    with play.load(1000):
        play.await_flow()
        for size in (6, 30, 1000):
            if size == 1000 and network.look()["bytes_up"] > network.look()["bytes_down"]:
                continue  # nothing on the target answers at such length
            network.cut(after_bytes=size, times=3)
            until(lambda: network.look()["cut"], "a cut answer")
            network.heal()
        for _ in range(5):
            network.reset()
            time.sleep(0.3)
        play.await_flow(_RECOVERY_S)
    play.judge().assert_exactly_once()


def test_n3_answers_that_end_early_or_come_in_slices_are_read_right(play: Play, network: Proxy) -> None:
    before = network.look()["cut"]
    with play.load(1000):
        play.await_flow()
        network.cut(after_bytes=30, times=5, by_fin=True)
        until(lambda: network.look()["cut"] >= before + 5, "five cut answers")
        network.slice(97)
        play.await_flow(_RECOVERY_S, records=500)
        network.heal()
    play.judge().assert_exactly_once()


def test_n3_flipped_bits_on_the_way_are_never_copied(play: Play, stage: Stage) -> None:
    with play.load(1000):
        play.await_flow()
        stage.network_a.corrupt(every_bytes=200_000)
        until(lambda: stage.network_a.look()["flipped"] >= 5, "flipped bits")
        stage.network_a.heal()
        play.await_flow(_RECOVERY_S)
    play.judge().assert_exactly_once()


def test_n4_what_was_written_and_not_acknowledged_is_not_written_again(play: Play, stage: Stage) -> None:
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


def test_n5_a_bad_line_slows_copying_and_is_no_trouble(play: Play, mirror: Mirror, stage: Stage) -> None:
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


def test_n6_a_thin_line_bounds_memory_and_the_backlog_arrives(play: Play, mirror: Mirror, network: Proxy) -> None:
    with play.load(3000, size_bytes=2000):
        play.await_flow()
        before = sample(mirror.process.pid, 0).total_bytes
        network.limit(1e6)
        time.sleep(6)
        grown = sample(mirror.process.pid, 0).total_bytes - before
        assert grown < 150e6, f"{grown / 1e6:.0f} MB more while the line was thin"
        network.heal()
    play.judge().assert_exactly_once()


def test_n8_answers_that_come_twice_are_not_taken_for_others(play: Play, network: Proxy) -> None:
    before = network.look()["repeated"]
    with play.load():
        play.await_flow()
        network.repeat(6)
        until(lambda: network.look()["repeated"] >= before + 6, "repeated answers", 40)
        network.heal()
        play.await_flow(_RECOVERY_S)
    play.judge().assert_exactly_once()
