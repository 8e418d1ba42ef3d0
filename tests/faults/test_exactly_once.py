"""The flow's own transactions with exactly.once.source.support=enabled (rows W2, T5 and T6 of docs/RELIABILITY.md)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from tests.faults import segments
from tests.faults.environment import Environment, MirrorMaker, ReplicatedTopic, kill, members, running_mirror_maker
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
def mirror_maker(shared_environment: Environment) -> Iterator[MirrorMaker]:
    environment = shared_environment
    through = (environment.network_a.address, environment.network_b.address)
    with running_mirror_maker(
        environment.folder / "X",
        "X",
        source=environment.a,
        target=environment.b,
        through=through,
        topics=4,
        settings=SETTINGS,
    ) as flow:
        yield flow


@pytest.mark.slow
def test_w2_a_transaction_counts_once_when_the_process_is_killed_before_the_commit_response(
    replicated: ReplicatedTopic, mirror_maker: MirrorMaker, environment: Environment
) -> None:
    with replicated.load():
        for wait_s in (0.2, 0.5, 1.0):
            replicated.await_copied()
            environment.network_b.half_open()  # requests are executed and their responses are lost
            time.sleep(wait_s)
            kill(members(mirror_maker.process, "worker"))
            environment.network_b.reset()
            environment.network_b.heal()
        replicated.await_copied()
    replicated.judge().assert_exactly_once()
    written = segments.batches(environment.b, replicated.remote)
    assert all(batch.is_transactional for batch in written), "a batch was not written in a transaction"


def test_t5_a_second_process_with_the_same_transactional_id_fences_the_first_without_duplicates(
    replicated: ReplicatedTopic, mirror_maker: MirrorMaker, environment: Environment
) -> None:
    with replicated.load():
        replicated.await_copied()
        clone = Producer(
            {
                "bootstrap.servers": environment.b.bootstrap,
                "transactional.id": "X-mm2-MirrorSourceConnector-0",
                "log_level": 0,
            }
        )
        clone.init_transactions(30)
        clone.begin_transaction()
        clone.produce(replicated.remote, b"from the clone", partition=0)
        clone.flush(10)
        wait_until(
            lambda: mirror_maker.lines("micro-batch lost", reason="a newer producer uses the same id"),
            _NOTICED_S,
            what="the log message",
            detail=mirror_maker.tail,
        )
        replicated.await_copied(60)
    replicated.judge().assert_exactly_once()


@pytest.mark.slow
def test_t6_a_transaction_that_times_out_on_a_slow_target_is_repeated_once(
    replicated: ReplicatedTopic, mirror_maker: MirrorMaker, environment: Environment
) -> None:
    with replicated.load():
        replicated.await_copied()
        environment.network_b.freeze()
        time.sleep(_TIMEOUT_S + 2)
        environment.network_b.heal()
        replicated.await_copied(60)
    replicated.judge().assert_exactly_once()
