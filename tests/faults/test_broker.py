"""A broker is killed, frozen, moved, or not started yet (rows B of docs/RELIABILITY.md)."""

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from mm2.sandbox.ports import free_ports
from tests.faults.stage import GOES_ON, HELD_UP, Mirror, Play, Stage, Topics
from tests.faults.stage import mirror as running_mirror
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

_RECOVERY_S = 30.0
SHORT = {
    f"{cluster}.{client}.request.timeout.ms": "5000"
    for cluster in ("K", "B")
    for client in ("consumer", "producer", "admin")
}


@pytest.fixture(scope="module")
def mirror(shared_stage: Stage) -> Iterator[Mirror]:
    stage = shared_stage
    with running_mirror(stage.folder / "K", "K", source=stage.a, target=stage.b, topics=6, settings=SHORT) as flow:
        yield flow


@pytest.mark.parametrize("side", ["b1-source", "b2-target"])
def test_b1_b2_copying_resumes_after_a_broker_is_killed_and_restarted(
    play: Play, mirror: Mirror, stage: Stage, side: str
) -> None:
    broker = stage.a if side == "b1-source" else stage.b
    with play.load():
        play.await_flow()
        broker.kill9()
        time.sleep(2)
        broker.start()
        assert play.await_flow(_RECOVERY_S) < _RECOVERY_S
    assert mirror.process.is_running
    play.judge().assert_exactly_once()


def test_b3_a_frozen_target_is_reported_and_copying_resumes_with_it(play: Play, mirror: Mirror, stage: Stage) -> None:
    _freeze(play, mirror, stage, 8)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_b3_copying_resumes_after_the_target_was_frozen_for_a_minute(play: Play, mirror: Mirror, stage: Stage) -> None:
    _freeze(play, mirror, stage, 60)


def _freeze(play: Play, mirror: Mirror, stage: Stage, seconds: float) -> None:
    """O8: red within 30 s of the stall, green within 30 s of the recovery."""
    with play.load():
        play.await_flow()
        red = len(mirror.lines(HELD_UP))
        stage.b.pause()
        time.sleep(seconds)
        green = _green(mirror)
        stage.b.resume()
        wait_until(
            lambda: len(mirror.lines(HELD_UP)) > red,
            30 - min(seconds, 25),
            what="telling that nothing is copied",
            why=mirror.tail,
        )
        play.await_flow(_RECOVERY_S)
        wait_until(lambda: _green(mirror) > green, 30, what="telling that it goes on", why=mirror.tail)
    play.judge().assert_exactly_once()


def _green(mirror: Mirror) -> int:
    """How often the blocked task or its successor has logged that copying continues."""
    return len(mirror.lines(GOES_ON)) + len(mirror.lines("Copying starts."))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_b4_a_broker_that_moves_to_another_port_is_found_by_another_bootstrap_address(stage: Stage) -> None:
    old, (new,) = stage.network_b.address, free_ports(1)
    through = (stage.a.bootstrap, f"{old},127.0.0.1:{new}")
    folder = stage.folder / "moved"
    try:
        with (
            running_mirror(folder, "moved", source=stage.a, target=stage.b, through=through, topics=1) as flow,
            ExitStack() as stack,
        ):
            play = Play(stage.a, stage.b, flow, flow.unused.pop(), 2)
            with play.load():
                play.await_flow()
                stage.b.stop()
                stage.network_b.stop()
                stage.b.advertise("PROXIED", new)
                stage.b.start()
                proxy = Proxy(stage.b.address("PROXIED"), folder / "proxy.log", address=f"127.0.0.1:{new}")
                stack.enter_context(proxy)
                play.await_flow(_RECOVERY_S)
            play.judge().assert_exactly_once()
            flow.stop()  # while the new address is there
    finally:
        stage.b.stop()
        stage.b.advertise("PROXIED", int(old.rsplit(":", 1)[1]))
        stage.network_b.start()
        stage.heal()


@pytest.mark.timeout(180)
def test_b5_a_source_that_is_unreachable_at_the_start_is_reported_and_copied_once_reachable(stage: Stage) -> None:
    Topics(stage.a).create("late-0", partitions=2)
    stage.a.kill9()
    flow = Mirror(stage.folder / "late", "late", stage.a.bootstrap, stage.b.bootstrap, ["late-0"], SHORT)
    try:
        flow.start()
        flow.process.says("cluster late cannot be reached", timeout_s=30)
        stage.a.start()
        play = Play(stage.a, stage.b, flow, "late-0", 2)
        with play.load():
            play.await_flow(60)
        play.judge().assert_exactly_once()
        flow.stop()
    finally:
        flow.clean_up()
