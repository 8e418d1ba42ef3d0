"""Offset preservation while brokers and processes die, and without rights, on brokers of its own."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from mm2.copy.driver.engine import CopyEngine
from mm2.copy.spec import CopySpec, PartitionProgress
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import TopicPartition
from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy.test_copy_engine import numbered, write
from tests.integration.copy.test_preserved_offsets import assert_same, preserving, transactions
from tests.integration.copy_flow import Flow, Traffic, admin_of, create, delete_before, end_offset, read, rows_of
from tests.integration.spark_workers import workers
from tests.support.cluster import LocalCluster
from tests.support.passworded import LISTENERS, PASSWORDS, RIGHTS, login
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def replicated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster("B", tmp_path_factory.mktemp("replicated"), size=3, heap="256m") as made:
        yield made


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    folder = tmp_path_factory.mktemp("guarded")
    with LocalKafka("B", folder, listeners=LISTENERS, overrides={**PASSWORDS, **RIGHTS}, heap="384m") as broker:
        yield broker


def replicated_flow(engine: CopyEngine, source: LocalKafka, target: LocalCluster, name: str) -> tuple[Flow, str]:
    """A flow with a topic of one partition; everything on the target has three replicas."""
    flow = Flow(engine, source, cast("LocalKafka", target), name)
    topic = f"{name}-t"
    create(source, topic, retention__ms="-1")
    create(source, flow.syncs_topic, cleanup__policy="compact")
    safe = {"min.insync.replicas": "2"}
    compact = {"cleanup.policy": "compact", **safe}
    topics = [
        NewTopic(flow.remote(topic), 1, 3, config={"retention.ms": "-1", **safe}),
        NewTopic(flow.offsets_topic, 5, 3, config=compact),
        NewTopic(flow.ledger_topic, 1, 3, config=compact),
    ]
    for done in admin_of(flow.target).create_topics(topics).values():
        done.result(30 * PATIENCE)
    return flow, topic


def leader_of(target: LocalCluster, topic: str) -> int:
    found = admin_of(cast("LocalKafka", target)).list_topics(topic, timeout=30).topics[topic]
    return int(found.partitions[0].leader)


@pytest.mark.timeout(600)
def test_offsets_stay_equal_while_leaders_of_the_target_die(
    engine: CopyEngine, kafka_a: LocalKafka, replicated: LocalCluster, unique: str
) -> None:
    flow, topic = replicated_flow(engine, kafka_a, replicated, unique)
    spec = preserving(flow, topic)
    with flow.copying(spec, stop_s=60) as job:
        for _ in range(2):
            before = job.status()["records"]
            with Traffic(flow.source, topic, per_second=1000):
                transactions(flow.source, topic, 10)
                wait_until(lambda: job.status()["records"] > before + 200, detail=job.status)  # noqa: B023
                broker = replicated.broker(leader_of(replicated, flow.remote(topic)))
                broker.kill9()
                transactions(flow.source, topic, 20)
            broker.start()
            flow.wait_until_copied(job, spec, 120)
    assert_same(flow, topic)


@pytest.mark.timeout(900)
def test_twenty_kills_also_within_a_long_gap_shift_no_offset(
    engine: CopyEngine, kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    flow = Flow(engine, kafka_a, kafka_b, unique)
    topic = flow.topic()
    spec = preserving(flow, topic)
    chance = random.Random(24)
    write(flow.source, topic, numbered(0, 5))
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
    for at in range(0, 60_000, 2_000):
        write(flow.source, topic, numbered(at, 2_000))
    delete_before(flow.source, topic, 60_000)
    with flow.copying(spec) as job:
        for number in range(20):
            end = end_offset(flow.target, flow.remote(topic))
            transactions(flow.source, topic, 3)
            wait_until(lambda: end_offset(flow.target, flow.remote(topic)) > end, 60, detail=job.progress)  # noqa: B023
            time.sleep(chance.random() * (0.3 if number < 10 else 1.0))
            for worker in workers():
                worker.send_signal(signal.SIGKILL)
        flow.wait_until_copied(job, spec, 120)
        assert rows_of(job)[TopicPartition(topic, 0)].state in {"RUNNING", "CATCHING_UP"}
    kept = [record for record in read(flow.target, flow.remote(topic)) if record.offset >= 60_000]
    assert kept == read(flow.source, topic)
    assert end_offset(flow.target, flow.remote(topic)) == end_offset(flow.source, topic)


def granted_to_other(
    kind: ResourceType, name: str, pattern: ResourcePatternType, operation: AclOperation
) -> AclBinding:
    """An ACL for another user: without any ACL, every user has all rights."""
    return AclBinding(kind, name, pattern, "User:other", "*", operation, AclPermissionType.ALLOW)


CLUSTER_ACTION = granted_to_other(
    ResourceType.BROKER, "kafka-cluster", ResourcePatternType.LITERAL, AclOperation.CLUSTER_ACTION
)
TRANSACTIONS = granted_to_other(
    ResourceType.TRANSACTIONAL_ID, "mm2-gaps-", ResourcePatternType.PREFIXED, AclOperation.WRITE
)


def grant(broker: LocalKafka, *acls: AclBinding) -> None:
    for done in admin_of(broker).create_acls([*acls]).values():
        done.result(30)


def withdraw(broker: LocalKafka, *acls: AclBinding) -> None:
    for done in admin_of(broker).delete_acls([_filter(acl) for acl in acls]).values():
        done.result(30)


def as_mirror(guarded: LocalKafka, spec: CopySpec) -> CopySpec:
    """The same job as the user mirror."""
    props = {"bootstrap.servers": guarded.address("LOGIN"), **login()}
    return replace(spec, target=ClientSettings.from_props(props, client_id="copy-target"))


@pytest.mark.timeout(600)
def test_without_the_right_to_write_markers_gaps_are_filled_with_transactions(
    engine: CopyEngine, kafka_a: LocalKafka, guarded: LocalKafka, unique: str
) -> None:
    flow = Flow(engine, kafka_a, guarded, unique)
    topic = flow.topic(partitions=2)
    grant(guarded, CLUSTER_ACTION)
    spec = as_mirror(guarded, preserving(flow, topic, 2))
    for partition in range(2):
        write(flow.source, topic, numbered(0, 600), partition=partition)
    delete_before(flow.source, topic, 500)
    try:
        with flow.copying(spec) as job:
            for _ in range(3):
                transactions(flow.source, topic, 3)
                for worker in workers():
                    worker.send_signal(signal.SIGKILL)
            flow.wait_until_copied(job, spec, 120)
            assert all("empty transactions" in row.reason for row in rows_of(job).values())
            assert job.tally().filled.keys() == {"transactions"}
        transactions(flow.source, topic, 3)
    finally:
        withdraw(guarded, CLUSTER_ACTION)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec, 120)
        assert job.tally().filled.keys() == {"markers"}
    for partition in range(2):
        assert_same(flow, topic, partition)


@pytest.mark.timeout(300)
def test_without_any_right_to_fill_gaps_they_wait_with_a_reason(
    engine: CopyEngine, kafka_a: LocalKafka, guarded: LocalKafka, unique: str
) -> None:
    flow = Flow(engine, kafka_a, guarded, unique)
    topic = flow.topic()
    grant(guarded, CLUSTER_ACTION, TRANSACTIONS)
    spec = as_mirror(guarded, preserving(flow, topic))
    write(flow.source, topic, numbered(0, 10))
    transactions(flow.source, topic, 1)
    with flow.copying(spec) as job:

        def row() -> str:
            found = rows_of(job).get(TopicPartition(topic, 0))
            return "" if found is None else f"{found.state} {found.reason}"

        wait_until(lambda: "CLUSTER_ACTION" in row() and "mm2-gaps-" in row(), detail=row)
        assert row().startswith("UNAUTHORIZED")
        assert len(read(guarded, flow.remote(topic))) == 15, "batches before the gap are copied"
        withdraw(guarded, CLUSTER_ACTION, TRANSACTIONS)
        flow.wait_until_copied(job, spec)
    assert_same(flow, topic)


@pytest.mark.timeout(300)
def test_transactions_that_a_killed_process_has_left_open_are_ended_before_markers_are_written(
    engine: CopyEngine, kafka_a: LocalKafka, guarded: LocalKafka, unique: str
) -> None:
    """CLUSTER_ACTION is granted, and WRITE on transactional ids is taken away, while the offsets before the first record are
    filled.
    """
    flow = Flow(engine, kafka_a, guarded, unique)
    topic = flow.topic()
    grant(guarded, CLUSTER_ACTION)
    spec = as_mirror(guarded, preserving(flow, topic))
    write(flow.source, topic, numbered(0, 3_000))
    delete_before(flow.source, topic, 2_990)

    def state(row: PartitionProgress | None) -> str:
        return "" if row is None else f"{row.state} {row.reason}"

    try:
        with flow.copying(spec) as job:

            def row() -> PartitionProgress | None:
                return rows_of(job).get(TopicPartition(topic, 0))

            wait_until(lambda: end_offset(flow.target, flow.remote(topic)) > 200, 60, detail=job.progress)
            withdraw(guarded, CLUSTER_ACTION)
            grant(guarded, TRANSACTIONS)
            for worker in workers():
                worker.send_signal(signal.SIGKILL)
            wait_until(lambda: "may still be open" in state(row()), 60, detail=job.progress)
            assert state(row()).startswith("UNAUTHORIZED")
            withdraw(guarded, TRANSACTIONS)
            flow.wait_until_copied(job, spec, 120)
            found = row()
            assert found is not None
            assert (found.gaps, found.lost) == ({}, 0), (
                "the offsets before the first record are neither counted nor lost"
            )
    finally:
        withdraw(guarded, CLUSTER_ACTION, TRANSACTIONS)
    assert_same(flow, topic)


def _filter(acl: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        acl.restype,
        acl.name,
        acl.resource_pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission_type,
    )
