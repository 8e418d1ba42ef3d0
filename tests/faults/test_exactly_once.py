"""The flow's own transactions with exactly.once.source.support=enabled (rows W2, T5 and T6 of docs/reference/reliability.md)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import ResourceType

from mm2.copy.driver.engine import CopyEngine
from mm2.copy.spec import TransactionsSpec
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import TopicPartition
from mm2.sandbox.kafka import LocalKafka
from tests.faults import segments
from tests.faults.environment import (
    LISTENERS,
    Environment,
    MirrorMaker,
    ReplicatedTopic,
    kill,
    members,
    running_mirror_maker,
)
from tests.integration.copy.test_copy_engine import numbered, write
from tests.integration.copy_flow import Flow, alter, rows_of
from tests.support.proxy import Proxy
from tests.support.relay import Conditions
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


@pytest.mark.slow
def test_t7_a_transaction_contains_no_batch_behind_a_rejected_one(
    engine: CopyEngine, environment: Environment, tmp_path: Path, unique: str
) -> None:
    """Without verification (Kafka before 3.6) a broker accepts any sequence of a producer that it does not know."""
    old: dict[str, Any] = {
        "listeners": LISTENERS,
        "proxied": ["PROXIED"],
        "format_args": ["--feature", "transaction.version=1"],
        "overrides": {"transaction.partition.verification.enable": "false"},
    }
    with LocalKafka("old", tmp_path, **old) as broker, Proxy.before(broker) as network:
        flow = Flow(engine, environment.a, broker, unique)
        topic = flow.topic(partitions=2, target={"max__message__bytes": "100000"})
        bad, good = TopicPartition(topic, 0), TopicPartition(topic, 1)
        spec = replace(
            flow.spec(topic, partitions=2, read_committed=True),
            target=ClientSettings.from_props({"bootstrap.servers": network.address}, client_id="copy-target"),
            transactions=TransactionsSpec(f"{unique}-0", 30_000, None),
        )
        with flow.copying(spec) as job:
            write(flow.source, topic, numbered(0, 1), partition=1)
            wait_until(lambda: flow.committed(spec) == {bad: None, good: 1}, detail=job.status)
            network.set(Conditions(delay_down_ms=2000))  # the partition is added to the transaction after that time
            write(flow.source, topic, numbered(0, 1, size=150_000), partition=0)
            write(flow.source, topic, numbered(1, 3), partition=0)
            wait_until(lambda: rows_of(job)[bad].lag == 4, detail=job.progress)
            time.sleep(3)  # the batches arrive, and the responses are lost
            network.reset()
            network.heal()
            wait_until(lambda: rows_of(job)[bad].state == "TOO_LARGE", 30, detail=job.progress)
            write(flow.source, topic, numbered(1, 1), partition=1)
            wait_until(lambda: flow.committed(spec) == {bad: None, good: 2}, detail=job.status)
            alter(broker, ResourceType.TOPIC, flow.remote(topic), "max.message.bytes", "1000000")
            wait_until(lambda: flow.committed(spec) == {bad: 4, good: 2}, 60, detail=job.status)
        for partition in range(2):
            flow.assert_equal(topic, partition, isolation="read_committed")


def test_t8_a_rejected_record_does_not_cost_an_idle_task_its_micro_batches(
    engine: CopyEngine, environment: Environment, unique: str
) -> None:
    """The transaction of the rejected batch is ended before the coordinator aborts it and fences the task."""
    flow = Flow(engine, environment.a, environment.b, unique)
    topic = flow.topic(target={"max__message__bytes": "100000"})
    spec = replace(
        flow.spec(topic, read_committed=True), transactions=TransactionsSpec(f"{unique}-0", _TIMEOUT_S * 1000, None)
    )
    write(flow.source, topic, numbered(0, 1, size=150_000))
    with flow.copying(spec) as job:
        wait_until(lambda: [row.state for row in rows_of(job).values()] == ["TOO_LARGE"], 30, detail=job.progress)
        # A second one shows that the next offer was in a transaction of its own.
        wait_until(lambda: len(segments.batches(environment.b, flow.remote(topic))) >= 2, 30, detail=job.status)
        status = job.status()
        assert status["batches"] == 1, "the first micro-batch was lost"
        alter(environment.b, ResourceType.TOPIC, flow.remote(topic), "max.message.bytes", "1000000")
        wait_until(lambda: flow.committed(spec) == {TopicPartition(topic, 0): 1}, 30, detail=job.status)
    flow.assert_equal(topic, isolation="read_committed")


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
