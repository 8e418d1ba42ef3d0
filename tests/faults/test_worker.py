"""A worker is killed, frozen, or stopped (rows W of docs/reference/reliability.md).

A worker is an executor (Spark's Python worker) or a whole process of connect-mirror-maker. The worker group of the flow
replaces it.
"""

import random
import time
from collections.abc import Iterator

import pytest

from tests.faults.environment import (
    Environment,
    MirrorMaker,
    ReplicatedTopic,
    kill,
    members,
    running_mirror_maker,
    stopped,
)
from tests.support.waiting import PATIENCE, wait_until

SEED = 4
_LEASE_S = 5.0
_UNRESPONSIVE_S = 2 * _LEASE_S
_GAP_S = 15.0 * PATIENCE
# Shorter than the default of 10 s, so that the group detects a failure sooner; the minimum that a broker allows.
GROUP = {"B.session.timeout.ms": "6000", "B.heartbeat.interval.ms": "1500"}


@pytest.fixture(scope="module")
def mirror_maker(shared_environment: Environment) -> Iterator[MirrorMaker]:
    environment = shared_environment
    with running_mirror_maker(
        environment.folder / "W", "W", source=environment.a, target=environment.b, topics=8, settings=GROUP
    ) as flow:
        yield flow


@pytest.fixture
def flow(mirror_maker: MirrorMaker) -> MirrorMaker:
    """The module's flow with exactly one running process, the newest."""
    if not mirror_maker.process.is_running:
        mirror_maker.start()
    return mirror_maker


@pytest.mark.slow
def test_w1_an_executor_killed_within_a_batch_is_replaced_without_loss_or_duplicate(
    replicated: ReplicatedTopic, flow: MirrorMaker
) -> None:
    rng = random.Random(SEED)
    with replicated.load(1000):
        replicated.await_copied()
        for _ in range(3):
            time.sleep(rng.random())
            # The batches in flight are appended before the next executor starts.
            wait_until(lambda: kill(members(flow.process, "worker")), _GAP_S, what="an executor", detail=flow.tail)
            assert replicated.await_copied(_GAP_S) < _GAP_S
    replicated.judge().assert_exactly_once()


@pytest.mark.slow
def test_w1_a_process_killed_within_a_batch_continues_without_loss_or_duplicate(
    replicated: ReplicatedTopic, flow: MirrorMaker
) -> None:
    rng = random.Random(SEED)
    with replicated.load(1000):
        for whole_tree in (True, False):
            replicated.await_copied()
            time.sleep(rng.random())
            flow.process.kill9(whole_family=whole_tree)
            flow.start()
        replicated.await_copied()
    replicated.judge().assert_exactly_once()


@pytest.mark.slow
def test_w3_a_frozen_executor_writes_no_duplicates_after_it_resumes(
    replicated: ReplicatedTopic, flow: MirrorMaker
) -> None:
    with replicated.load():
        replicated.await_copied()
        with stopped(*members(flow.process, "worker")):
            wait_until(
                lambda: len(members(flow.process, "worker")) > 1,
                _UNRESPONSIVE_S + 10,
                what="another executor",
                detail=flow.tail,
            )
            replicated.await_copied()
        time.sleep(1.0)  # after it resumes, it has a full window to send
    replicated.judge(settle_s=1.0).assert_exactly_once()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_w3_a_process_frozen_for_90_s_resumes_after_another_took_over(
    replicated: ReplicatedTopic, flow: MirrorMaker
) -> None:
    with replicated.load():
        replicated.await_copied()
        frozen = flow.process
        flow.start()
        wait_until(lambda: flow.process.lines(event="joined the group"), 60, what="joining", detail=flow.tail)
        time.sleep(5)
        with stopped(*frozen.family()):
            time.sleep(90)
            replicated.await_copied()
        time.sleep(10)
        assert frozen.is_running
        replicated.await_copied()
    judgment = replicated.judge(settle_s=2.0)
    code, _ = frozen.stop()
    assert code == 0
    judgment.assert_exactly_once()


@pytest.mark.slow
def test_w4_repeated_kills_of_executors_cause_no_pause_of_ten_seconds(
    replicated: ReplicatedTopic, flow: MirrorMaker
) -> None:
    with replicated.load(), replicated.measured() as growth:
        replicated.await_copied()
        began_s = time.monotonic()
        for _ in range(4):
            kill(members(flow.process, "worker"))
            time.sleep(1.5)
        replicated.await_copied(_GAP_S)
        pauses = growth.pauses_s(began_s)
    assert max(pauses.values()) < _GAP_S, pauses
    replicated.judge().assert_exactly_once()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_w4_w5_one_of_two_processes_is_killed_and_the_other_takes_over(
    replicated: ReplicatedTopic, flow: MirrorMaker
) -> None:
    with replicated.load(), replicated.measured() as growth:
        replicated.await_copied()
        for _ in range(3):
            leader = flow.process
            flow.start()
            wait_until(lambda: flow.process.lines(event="joined the group"), 60, what="joining", detail=flow.tail)
            time.sleep(5)
            began_s = time.monotonic()
            leader.kill9(whole_family=True)
            replicated.await_copied(30)
            time.sleep(3)
            pauses = growth.pauses_s(began_s)
            assert max(pauses.values()) < _GAP_S, pauses
    replicated.judge().assert_exactly_once()


@pytest.mark.slow
def test_w6_sigterm_under_load_drains_and_a_restart_continues_at_the_next_record(
    replicated: ReplicatedTopic, flow: MirrorMaker
) -> None:
    with replicated.load(1000):
        replicated.await_copied()
        flow.stop()
        replicated.judge_so_far().assert_exactly_once()
        flow.start()
        replicated.await_copied()
    replicated.judge().assert_exactly_once()
