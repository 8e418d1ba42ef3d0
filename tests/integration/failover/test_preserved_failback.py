"""Failover and failback with preserved offsets and equal topic names, in both directions, as in docs/how-to/failover.md.

Given flows A->B and B->A with `preserve.offsets` and identity naming; `orders`, of which A has records that were not copied when it
is unreachable, and `payments`, of which everything was copied. Both have gaps of transactions, and `orders` a trimmed log. When
`mm2 failover` runs, applications write both topics on B, A returns, and `mm2 failback` runs. Validates, by reading both clusters:

- the partitions stay PAUSED when the process is started again, although they have the records of applications;
- `failback` names the range of offsets that have other records on A, and changes nothing, also with `--divergent keep`;
- after `orders` is deleted on A, `failback` lets B->A create it again from its beginning and continue `payments` at its end, and both
  topics have the same records at the same offsets on both clusters;
- after the return to A, records that are written there have the same offsets on B.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mm2.copy.progress.ledger import ledger_topic
from mm2.kafka.structs import TopicPartition
from mm2.sandbox.kafka import LocalKafka, start_pair
from tests.integration.asking import asked
from tests.integration.copy.test_preserved_flow import trim, write
from tests.integration.copy_flow import create, delete_before, producer_of, read_all
from tests.integration.mirror_process import (
    MirrorProcess,
    delete,
    ends,
    is_running,
    partitions_of,
    table,
    topics_of,
    write_config,
)
from tests.support.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(int(900 * PATIENCE))]

PARTITIONS = 2
FIRST = 120_000
TAIL = 17
TOPICS = ("orders", "payments")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[LocalKafka, LocalKafka]]:
    with start_pair(tmp_path / "kafka", heap="384m") as brokers:
        yield brokers


def write_transactions(broker: LocalKafka, topic: str, count: int) -> None:
    """Transactions of one record in each partition, of which every third is aborted."""
    producer = producer_of(broker, transactional__id=f"shop-{topic}")
    producer.init_transactions(30 * PATIENCE)
    for number in range(count):
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(topic, b"%d" % number, b"t", partition=partition)
        producer.flush(30 * PATIENCE)
        if number % 3 == 1:
            producer.abort_transaction(30 * PATIENCE)
        else:
            producer.commit_transaction(30 * PATIENCE)


def write_all(broker: LocalKafka, topic: str, first: int, count: int) -> None:
    for partition in range(PARTITIONS):
        write(broker, topic, partition, first, count)


def contents(broker: LocalKafka, topic: str) -> dict[int, list[Any]]:
    """All records with their offsets, by partition."""
    return dict(read_all(broker, topic, range(PARTITIONS)))


def state(broker: LocalKafka, alias: str) -> tuple[Any, ...]:
    """The promotions of the flow from this alias, and the positions of the flow, without those of heartbeats."""
    notes = {key: value for key, (value, _) in table(broker, ledger_topic(alias)).items() if b"promot" in key}
    positions = table(broker, f"mm2-offsets.{alias}.internal")
    return notes, {key: value for key, value in positions.items() if b"heartbeat" not in key.lower()}


def test_offsets_stay_equal_through_failover_and_failback(
    pair: tuple[LocalKafka, LocalKafka], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = pair
    for topic in TOPICS:
        create(a, topic, PARTITIONS, retention__ms="-1")
    trim(a, TopicPartition("orders", 0), FIRST)
    file = write_config(
        tmp_path / "mm2.properties",
        {
            "clusters": "A, B",
            "A.bootstrap.servers": a.bootstrap,
            "B.bootstrap.servers": b.bootstrap,
            "A->B.enabled": "true",
            "B->A.enabled": "true",
            "topics": ", ".join(TOPICS),
            "groups": "none",
            "preserve.offsets": "true",
            "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
        },
    )

    def run(code: int, verb: str, flow: str, *arguments: str) -> dict[str, Any]:
        more = ("--yes",) if verb == "failover" else ()
        got, out, err = asked(capsys, verb, file, flow, *arguments, *more, "--json")
        assert got == code, f"{verb} {arguments}: {got} instead of {code}: {err}{out}\n{process.tail()}"
        return dict(json.loads(out))

    process = MirrorProcess(file, tmp_path / "first.log")
    try:
        process.eventually(lambda: is_running(b, "A") and is_running(a, "B"), 240)
        for topic in TOPICS:
            write_transactions(a, topic, 9)
            write_all(a, topic, 0, 200)
        delete_before(a, "orders", 20, partition=1)
        process.eventually(lambda: all(partitions_of(b, topic) == PARTITIONS for topic in TOPICS), 240)
        process.eventually(lambda: all(ends(b, topic) == ends(a, topic) for topic in TOPICS), 240)
    finally:
        process.clean_up()
    copied_to = ends(a, "orders")
    write(a, "orders", 0, 10_000, TAIL)  # after the process has ended: only A has them
    a.stop()

    report = run(0, "failover", "A->B")
    assert {row["topic"] for row in report["partitions"]} == set(TOPICS)
    for topic in TOPICS:
        write_transactions(b, topic, 6)
        write_all(b, topic, 20_000, 50)
    on_b = {topic: contents(b, topic) for topic in TOPICS}

    a.start()
    before = state(a, "B")
    process = MirrorProcess(file, tmp_path / "second.log")
    try:
        process.eventually(lambda: is_running(b, "A") and is_running(a, "B"), 240)
        ended = {topic: ends(a, topic) for topic in TOPICS}
        wanted = {
            "cluster": "A",
            "topic": "orders",
            "partition": 0,
            "first": copied_to[0],
            "last": copied_to[0] + TAIL - 1,
        }

        def states() -> set[str]:
            return {row["state"] for row in run(1, "failback", "A->B", "--dry-run")["partitions"]}

        process.eventually(lambda: states() == {"PAUSED"}, 120)
        for arguments in ((), ("--divergent", "keep"), ("--divergent", "keep", "--dry-run")):
            report = run(1, "failback", "A->B", *arguments)
            assert {row["state"] for row in report["partitions"]} == {"PAUSED"}, "this is no divergence"
            assert report["divergent"] == [wanted], arguments
            assert any("cannot give these records of B the same offsets on A" in one for one in report["problems"])
            assert state(a, "B") == before
            assert {topic: ends(a, topic) for topic in TOPICS} == ended

        delete(a, "orders")
        wait_until(lambda: "orders" not in topics_of(a), 60)
        report = run(0, "failback", "A->B")
        assert report["divergent"] == []
        for topic in TOPICS:
            process.eventually(lambda: partitions_of(a, topic) == PARTITIONS, 240)  # noqa: B023
            process.eventually(lambda: ends(a, topic) == ends(b, topic), 240)  # noqa: B023
            assert contents(b, topic) == on_b[topic], "nothing was written on B"
            assert contents(a, topic) == on_b[topic]

        run(0, "failover", "B->A", "--wait", "120")
        for topic in TOPICS:
            write_transactions(a, topic, 6)
            write_all(a, topic, 30_000, 50)
        run(0, "failback", "B->A")
        for topic in TOPICS:
            process.eventually(lambda: ends(b, topic) == ends(a, topic), 240)  # noqa: B023
            assert contents(b, topic) == contents(a, topic)
            assert [len(rows) - len(on_b[topic][index]) for index, rows in contents(b, topic).items()] == [56, 56]
        assert process.is_running
    finally:
        process.clean_up()
