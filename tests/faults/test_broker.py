"""A broker is killed, frozen, moved, or not started yet (rows B of docs/reference/reliability.md)."""

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from mm2.sandbox.ports import free_ports
from tests.faults.environment import (
    COPYING_BLOCKED,
    COPYING_CONTINUES,
    Environment,
    MirrorMaker,
    ReplicatedTopic,
    Topics,
    running_mirror_maker,
)
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

_RECOVERY_S = 30.0
SHORT = {
    f"{cluster}.{client}.request.timeout.ms": "5000"
    for cluster in ("K", "B")
    for client in ("consumer", "producer", "admin")
}


@pytest.fixture(scope="module")
def mirror_maker(shared_environment: Environment) -> Iterator[MirrorMaker]:
    environment = shared_environment
    with running_mirror_maker(
        environment.folder / "K", "K", source=environment.a, target=environment.b, topics=6, settings=SHORT
    ) as flow:
        yield flow


@pytest.mark.parametrize("side", [pytest.param("b1-source", marks=pytest.mark.slow), "b2-target"])
def test_b1_b2_copying_resumes_after_a_broker_is_killed_and_restarted(
    replicated: ReplicatedTopic, mirror_maker: MirrorMaker, environment: Environment, side: str
) -> None:
    broker = environment.a if side == "b1-source" else environment.b
    with replicated.load():
        replicated.await_copied()
        broker.kill9()
        time.sleep(2)
        broker.start()
        assert replicated.await_copied(_RECOVERY_S) < _RECOVERY_S
    assert mirror_maker.process.is_running
    replicated.judge().assert_exactly_once()


@pytest.mark.slow
def test_b3_a_frozen_target_is_reported_and_copying_resumes_with_it(
    replicated: ReplicatedTopic, mirror_maker: MirrorMaker, environment: Environment
) -> None:
    _freeze(replicated, mirror_maker, environment, 8)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_b3_copying_resumes_after_the_target_was_frozen_for_a_minute(
    replicated: ReplicatedTopic, mirror_maker: MirrorMaker, environment: Environment
) -> None:
    _freeze(replicated, mirror_maker, environment, 60)


def _freeze(replicated: ReplicatedTopic, mirror_maker: MirrorMaker, environment: Environment, seconds: float) -> None:
    """O8: reported within 30 s of the stall, cleared within 30 s of the recovery."""
    with replicated.load():
        replicated.await_copied()
        blocked = len(mirror_maker.lines(COPYING_BLOCKED))
        environment.b.pause()
        time.sleep(seconds)
        continued = _continued(mirror_maker)
        environment.b.resume()
        wait_until(
            lambda: len(mirror_maker.lines(COPYING_BLOCKED)) > blocked,
            30 - min(seconds, 25),
            what="the message that copying is blocked",
            detail=mirror_maker.tail,
        )
        replicated.await_copied(_RECOVERY_S)
        wait_until(
            lambda: _continued(mirror_maker) > continued,
            30,
            what="the message that copying continues",
            detail=mirror_maker.tail,
        )
    replicated.judge().assert_exactly_once()


def _continued(mirror_maker: MirrorMaker) -> int:
    """How often the blocked task or its successor has logged that copying continues."""
    return len(mirror_maker.lines(COPYING_CONTINUES)) + len(mirror_maker.lines("Copying starts."))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_b4_a_broker_that_moves_to_another_port_is_found_by_another_bootstrap_address(environment: Environment) -> None:
    old, (new,) = environment.network_b.address, free_ports(1)
    through = (environment.a.bootstrap, f"{old},127.0.0.1:{new}")
    folder = environment.folder / "moved"
    try:
        with (
            running_mirror_maker(
                folder, "moved", source=environment.a, target=environment.b, through=through, topics=1
            ) as flow,
            ExitStack() as stack,
        ):
            replicated = ReplicatedTopic(environment.a, environment.b, flow, flow.unused.pop(), 2)
            with replicated.load():
                replicated.await_copied()
                environment.b.stop()
                environment.network_b.stop()
                environment.b.advertise("PROXIED", new)
                environment.b.start()
                proxy = Proxy(environment.b.address("PROXIED"), folder / "proxy.log", address=f"127.0.0.1:{new}")
                stack.enter_context(proxy)
                replicated.await_copied(_RECOVERY_S)
            replicated.judge().assert_exactly_once()
            flow.stop()  # while the new address is there
    finally:
        environment.b.stop()
        environment.b.advertise("PROXIED", int(old.rsplit(":", 1)[1]))
        environment.network_b.start()
        environment.heal()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_b5_a_source_that_is_unreachable_at_the_start_is_reported_and_copied_once_reachable(
    environment: Environment,
) -> None:
    Topics(environment.a).create("late-0", partitions=2)
    environment.a.kill9()
    flow = MirrorMaker(
        environment.folder / "late", "late", environment.a.bootstrap, environment.b.bootstrap, ["late-0"], SHORT
    )
    try:
        flow.start()
        flow.process.await_log("cluster late cannot be reached", timeout_s=30)
        environment.a.start()
        replicated = ReplicatedTopic(environment.a, environment.b, flow, "late-0", 2)
        with replicated.load():
            replicated.await_copied(60)
        replicated.judge().assert_exactly_once()
        flow.stop()
    finally:
        flow.clean_up()
