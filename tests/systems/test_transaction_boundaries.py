"""Exactly-once sources with the three transaction boundaries, as a read_committed consumer sees them (KIP-618)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from mm2.sandbox.kafka import LocalKafka
from tests.integration.connect_reading import create_topic, read_committed
from tests.support.waiting import wait_until
from tests.systems.sink_events import BYTES
from tests.systems.task_toys import MODULE
from tests.systems.workers import DistributedWorker, distributed_props

SOURCE = f"{MODULE}.TransactionalConnector"


@pytest.fixture(scope="module")
def exact(broker: LocalKafka, group: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DistributedWorker]:
    props = {**distributed_props(broker.bootstrap, group), "exactly.once.source.support": "enabled"}
    with DistributedWorker(tmp_path_factory.mktemp("exact"), props) as worker:
        yield worker


@pytest.fixture
def topic(broker: LocalKafka, unique: str) -> str:
    create_topic(broker.bootstrap, unique)
    return unique


def props(topic: str, boundary: str, **more: str) -> dict[str, str]:
    return {
        "connector.class": SOURCE,
        "topic": topic,
        "transaction.boundary": boundary,
        "exactly.once.support": "required",
        "key.converter": BYTES,
        "value.converter": BYTES,
        **more,
    }


def seen(broker: LocalKafka, topic: str, isolation: str = "read_committed") -> list[int]:
    return [int(m.value()) for m in read_committed(broker.bootstrap, topic, isolation)]


def position(worker: DistributedWorker, name: str) -> int:
    offsets = worker.rest.offsets(name)
    return int(offsets[0]["offset"]["next"]) if offsets else 0


@pytest.mark.parametrize(("boundary", "interval_ms"), [("poll", "60000"), ("interval", "400")])
def test_numbers_have_neither_gaps_nor_duplicates_over_restarts(
    exact: DistributedWorker, broker: LocalKafka, topic: str, boundary: str, interval_ms: str
) -> None:
    def more_than(number: int) -> bool:
        return len(seen(broker, topic)) > number

    exact.rest.create(topic, props(topic, boundary, **{"transaction.boundary.interval.ms": interval_ms}))
    exact.rest.await_running(topic, 1)
    for target in (50, 150):
        wait_until(partial(more_than, target), 60, detail=exact.tail)
        exact.rest.ask("POST", f"/connectors/{topic}/tasks/0/restart", expect=204)
        exact.rest.await_running(topic, 1)
    exact.rest.stop(topic)
    written = seen(broker, topic)
    assert written == list(range(len(written)))
    assert position(exact, topic) == len(written)
    exact.rest.delete(topic)


def test_the_connector_s_batches_are_complete_and_offsets_of_aborted_ones_are_committed(
    exact: DistributedWorker, broker: LocalKafka, topic: str
) -> None:
    exact.rest.create(topic, props(topic, "connector", most="300"))
    exact.rest.await_running(topic, 1)
    wait_until(lambda: position(exact, topic) == 300, 60, detail=exact.tail)
    # Every third of the batches of five records is aborted.
    expected = [number for number in range(300) if (number // 5 + 1) % 3]
    assert seen(broker, topic) == expected
    assert seen(broker, topic, "read_uncommitted") == list(range(300))
    exact.rest.delete(topic)


def test_transactions_end_after_the_records_that_the_connector_names(
    exact: DistributedWorker, broker: LocalKafka, topic: str
) -> None:
    exact.rest.create(topic, props(topic, "connector", most="200", **{"per.record": "true"}))
    exact.rest.await_running(topic, 1)
    wait_until(lambda: position(exact, topic) == 200, 60, detail=exact.tail)
    assert seen(broker, topic) == [number for number in range(200) if number % 10 > 4]
    exact.rest.delete(topic)


def test_an_interval_withholds_records_until_it_ends_or_the_connector_is_paused(
    exact: DistributedWorker, broker: LocalKafka, topic: str
) -> None:
    exact.rest.create(topic, props(topic, "interval", **{"transaction.boundary.interval.ms": "30000", "most": "50"}))
    exact.rest.await_running(topic, 1)
    wait_until(lambda: len(seen(broker, topic, "read_uncommitted")) == 50, detail=exact.tail)
    time.sleep(1)
    assert seen(broker, topic) == []
    exact.rest.pause(topic)
    wait_until(lambda: seen(broker, topic) == list(range(50)), detail=exact.tail)
    exact.rest.delete(topic)


def test_offsets_in_a_topic_of_the_connector_s_own_are_copied_to_the_worker_s(
    exact: DistributedWorker, broker: LocalKafka, topic: str
) -> None:
    own = f"{topic}-own-offsets"
    exact.rest.create(topic, props(topic, "poll", most="100", **{"offsets.storage.topic": own}))
    exact.rest.await_running(topic, 1)
    wait_until(lambda: position(exact, topic) == 100, 60, detail=exact.tail)
    key = f'["{topic}",{{"task":"0"}}]'
    mine = [m.value() for m in read_committed(broker.bootstrap, own) if m.key().decode() == key]
    assert mine[-1] == b'{"next":100}'

    def shared() -> list[bytes]:
        records = read_committed(broker.bootstrap, exact.props["offset.storage.topic"])
        return [m.value() for m in records if m.key().decode() == key]

    wait_until(lambda: shared()[-1:] == [b'{"next":100}'], detail=exact.tail)
    # Without its own topic it continues at its position.
    exact.rest.configure(topic, props(topic, "poll", most="120"))
    wait_until(lambda: seen(broker, topic) == list(range(120)), 60, detail=exact.tail)
    exact.rest.delete(topic)


def test_offsets_are_looked_up_and_removed_where_the_records_are(
    exact: DistributedWorker, broker: LocalKafka, kafka_a: LocalKafka, topic: str
) -> None:
    create_topic(kafka_a.bootstrap, topic)
    elsewhere = {f"{client}.override.bootstrap.servers": kafka_a.bootstrap for client in ("producer", "admin")}
    key = f'["{topic}",{{"task":"0"}}]'

    def stored(cluster: LocalKafka) -> list[bytes | None]:
        records = read_committed(cluster.bootstrap, exact.props["offset.storage.topic"])
        return [m.value() for m in records if m.key().decode() == key]

    exact.rest.create(topic, props(topic, "poll", most="40", **elsewhere))
    exact.rest.await_running(topic, 1)
    wait_until(lambda: position(exact, topic) == 40, 60, detail=exact.tail)
    assert stored(kafka_a)[-1] == b'{"next":40}'
    wait_until(lambda: stored(broker)[-1:] == [b'{"next":40}'], detail=exact.tail)
    exact.rest.stop(topic)
    wait_until(lambda: exact.rest.http.delete(f"/connectors/{topic}/offsets").status_code == 200, 60, detail=exact.tail)
    assert exact.rest.offsets(topic) == []
    assert (stored(kafka_a)[-1], stored(broker)[-1]) == (None, None)
    exact.rest.resume(topic)
    wait_until(lambda: seen(kafka_a, topic) == [*range(40), *range(40)], 60, detail=exact.tail)
    exact.rest.delete(topic)


def test_a_task_that_writes_to_its_own_offsets_topic_fails_instead_of_waiting_for_itself(
    exact: DistributedWorker, topic: str
) -> None:
    exact.rest.create(topic, props(exact.props["offset.storage.topic"], "poll"))
    wait_until(lambda: exact.rest.states(topic) == ["RUNNING", "FAILED"], detail=exact.tail)
    assert "must not write to the topic of its own offsets" in exact.rest.status(topic)["tasks"][0]["trace"]
    exact.rest.delete(topic)


def end(broker: LocalKafka, topic: str, isolation: IsolationLevel) -> int:
    """The log end offset, or the last stable offset for READ_COMMITTED."""
    tp = TopicPartition(topic, 0)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    found = admin.list_offsets({tp: latest}, isolation_level=isolation)[tp].result(60)
    return int(found.offset)


def test_a_task_that_fails_in_a_transaction_blocks_no_reader(
    exact: DistributedWorker, broker: LocalKafka, unique: str
) -> None:
    create_topic(broker.bootstrap, unique, 1, **{"max.message.bytes": "4000"})
    settings = {"transaction.boundary.interval.ms": "50000", "large.at": "12", "pause.s": "0.5"}
    exact.rest.create(unique, props(unique, "interval", **settings))
    wait_until(lambda: exact.rest.states(unique) == ["RUNNING", "FAILED"], 60, detail=exact.tail)
    assert "MESSAGE_TOO_LARGE" in exact.rest.status(unique)["tasks"][0]["trace"]
    assert end(broker, unique, IsolationLevel.READ_UNCOMMITTED) >= 10
    # Its transaction would time out after a minute.
    wait_until(
        lambda: (
            end(broker, unique, IsolationLevel.READ_COMMITTED) == end(broker, unique, IsolationLevel.READ_UNCOMMITTED)
        ),
        10,
        detail=exact.tail,
    )
    assert seen(broker, unique) == []
    exact.rest.delete(unique)
