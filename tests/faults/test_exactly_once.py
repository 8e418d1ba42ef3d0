"""The flow's own transactions with exactly.once.source.support=enabled (rows W2, T5 and T6 of docs/RELIABILITY.md)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from tests.faults import segments
from tests.faults.stage import Mirror, Play, Stage, kill, members
from tests.faults.stage import mirror as running_mirror
from tests.support.waiting import wait_until

_TIMEOUT_S = 4
_NOTICED_S = 30.0
SETTINGS = {
    "B.exactly.once.source.support": "enabled",
    "X.consumer.isolation.level": "read_committed",
    "dedicated.mode.enable.internal.rest": "true",
    "B.producer.transaction.timeout.ms": str(_TIMEOUT_S * 1000),
    "tasks.max": "1",
}


@pytest.fixture(scope="module")
def mirror(shared_stage: Stage) -> Iterator[Mirror]:
    stage = shared_stage
    through = (stage.network_a.address, stage.network_b.address)
    with running_mirror(
        stage.folder / "X", "X", source=stage.a, target=stage.b, through=through, topics=4, settings=SETTINGS
    ) as flow:
        yield flow


def test_w2_a_transaction_counts_once_when_the_process_is_killed_before_the_commit_response(
    play: Play, mirror: Mirror, stage: Stage
) -> None:
    with play.load():
        for wait_s in (0.2, 0.5, 1.0):
            play.await_flow()
            stage.network_b.half_open()  # requests are executed and their responses are lost
            time.sleep(wait_s)
            kill(members(mirror.process, "worker"))
            stage.network_b.reset()
            stage.network_b.heal()
        play.await_flow()
    play.judge().assert_exactly_once()
    written = segments.batches(stage.b, play.remote)
    assert all(batch.is_transactional for batch in written), "this was to be shown in exactly-once mode"


def test_t5_a_second_process_with_the_same_transactional_id_fences_the_first_without_duplicates(
    play: Play, mirror: Mirror, stage: Stage
) -> None:
    with play.load():
        play.await_flow()
        clone = Producer(
            {
                "bootstrap.servers": stage.b.bootstrap,
                "transactional.id": "X-mm2-MirrorSourceConnector-0",
                "log_level": 0,
            }
        )
        clone.init_transactions(30)
        clone.begin_transaction()
        clone.produce(play.remote, b"a clone's", partition=0)
        clone.flush(10)
        wait_until(
            lambda: mirror.lines("micro-batch lost", reason="a newer producer uses the same id"),
            _NOTICED_S,
            what="telling",
            why=mirror.tail,
        )
        play.await_flow(60)
    play.judge().assert_exactly_once()


def test_t6_a_transaction_that_times_out_on_a_slow_target_is_repeated_once(
    play: Play, mirror: Mirror, stage: Stage
) -> None:
    with play.load():
        play.await_flow()
        stage.network_b.freeze()
        time.sleep(_TIMEOUT_S + 2)
        stage.network_b.heal()
        play.await_flow(60)
    play.judge().assert_exactly_once()
