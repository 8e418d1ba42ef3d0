"""A worker is killed, frozen, or stopped (rows W of docs/RELIABILITY.md).

A worker is an executor (Spark's Python worker) or a whole process of connect-mirror-maker. The worker group of the flow
replaces it.
"""

import random
import time
from collections.abc import Iterator

import pytest

from tests.faults.stage import Mirror, Play, Stage, kill, members, stopped
from tests.faults.stage import mirror as running_mirror
from tests.support.waiting import wait_until

SEED = 4
_LEASE_S = 5.0
_SILENCE_S = 2 * _LEASE_S
_GAP_S = 10.0
# Shorter than the default of 10 s, so that the group notices a death sooner; the least that a broker allows.
GROUP = {"B.session.timeout.ms": "6000", "B.heartbeat.interval.ms": "1500"}


@pytest.fixture(scope="module")
def mirror(shared_stage: Stage) -> Iterator[Mirror]:
    stage = shared_stage
    with running_mirror(stage.folder / "W", "W", source=stage.a, target=stage.b, topics=8, settings=GROUP) as flow:
        yield flow


@pytest.fixture
def flow(mirror: Mirror) -> Mirror:
    """Exactly one process, the newest, is alive."""
    if not mirror.process.is_running:
        mirror.start()
    return mirror


def test_w1_an_executor_killed_within_a_batch_is_replaced_without_loss_or_duplicate(play: Play, flow: Mirror) -> None:
    rng = random.Random(SEED)
    with play.load(1000):
        play.await_flow()
        for _ in range(3):
            time.sleep(rng.random())
            # What was on its way is seen to arrive before there is another one.
            wait_until(lambda: kill(members(flow.process, "worker")), _GAP_S, what="an executor", why=flow.tail)
            assert play.await_flow(_GAP_S) < _GAP_S
    play.judge().assert_exactly_once()


def test_w1_a_process_killed_within_a_batch_continues_without_loss_or_duplicate(play: Play, flow: Mirror) -> None:
    rng = random.Random(SEED)
    with play.load(1000):
        for whole_tree in (True, False):
            play.await_flow()
            time.sleep(rng.random())
            flow.process.kill9(whole_family=whole_tree)
            flow.start()
        play.await_flow()
    play.judge().assert_exactly_once()


def test_w3_a_frozen_executor_writes_no_duplicates_after_it_resumes(play: Play, flow: Mirror) -> None:
    with play.load():
        play.await_flow()
        with stopped(*members(flow.process, "worker")):
            wait_until(
                lambda: len(members(flow.process, "worker")) > 1,
                _SILENCE_S + 10,
                what="another executor",
                why=flow.tail,
            )
            play.await_flow()
        time.sleep(1.0)  # awake, it has a full window to send
    play.judge(settle_s=1.0).assert_exactly_once()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_w3_a_process_frozen_for_90_s_resumes_after_another_took_over(play: Play, flow: Mirror) -> None:
    with play.load():
        play.await_flow()
        frozen = flow.process
        flow.start()
        wait_until(lambda: flow.process.lines(event="joined the group"), 60, what="joining", why=flow.tail)
        time.sleep(5)
        with stopped(*frozen.family()):
            time.sleep(90)
            play.await_flow()
        time.sleep(10)
        assert frozen.is_running
        play.await_flow()
    judgment = play.judge(settle_s=2.0)
    code, _ = frozen.stop()
    assert code == 0
    judgment.assert_exactly_once()


def test_w4_repeated_kills_of_executors_cause_no_pause_of_ten_seconds(play: Play, flow: Mirror) -> None:
    with play.load(), play.watched() as growth:
        play.await_flow()
        began_s = time.monotonic()
        for _ in range(4):
            kill(members(flow.process, "worker"))
            time.sleep(1.5)
        play.await_flow(_GAP_S)
        pauses = growth.pauses_s(began_s)
    assert max(pauses.values()) < _GAP_S, pauses
    play.judge().assert_exactly_once()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_w4_w5_one_of_two_processes_is_killed_and_the_other_takes_over(play: Play, flow: Mirror) -> None:
    with play.load(), play.watched() as growth:
        play.await_flow()
        for _ in range(3):
            leader = flow.process
            flow.start()
            wait_until(lambda: flow.process.lines(event="joined the group"), 60, what="joining", why=flow.tail)
            time.sleep(5)
            began_s = time.monotonic()
            leader.kill9(whole_family=True)
            play.await_flow(30)
            time.sleep(3)
            pauses = growth.pauses_s(began_s)
            assert max(pauses.values()) < _GAP_S, pauses
    play.judge().assert_exactly_once()


def test_w6_sigterm_under_load_drains_and_a_restart_continues_at_the_next_record(play: Play, flow: Mirror) -> None:
    with play.load(1000):
        play.await_flow()
        flow.stop()
        play.judge_so_far().assert_exactly_once()
        flow.start()
        play.await_flow()
    play.judge().assert_exactly_once()
