"""A task does not commit an offset while the record before it could still be lost.

The record may await a retry, its dead letter, or its redelivery by ``put``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mm2.sandbox.kafka import LocalKafka
from tests.integration.connect_reading import create_topic, read_all
from tests.support.waiting import wait_until
from tests.systems.sink_events import committed, events_of, produce, put, sink_props
from tests.systems.task_toys import MODULE
from tests.systems.workers import DistributedWorker, distributed_props

INTEGER = "org.apache.kafka.connect.converters.IntegerConverter"


@pytest.fixture
def topic(broker: LocalKafka, unique: str) -> str:
    create_topic(broker.bootstrap, unique)
    return unique


def test_a_record_in_retry_when_its_task_was_stopped_is_read_again(
    worker: DistributedWorker, broker: LocalKafka, topic: str, folder: Path
) -> None:
    events, unless = folder / "events", folder / "continue"
    config = sink_props(topic, topic, events, errors__tolerance="all", errors__retry__timeout="-1") | {
        "transforms": "later",
        "transforms.later.type": f"{MODULE}.Later",
        "transforms.later.unless": str(unless),
    }
    worker.rest.create(topic, config)
    worker.rest.await_running(topic, 1)
    produce(broker.bootstrap, topic, ["first"])
    wait_until(lambda: put(events) == ["'first'"], detail=worker.tail)
    produce(broker.bootstrap, topic, ["later", "last"])
    time.sleep(2)  # it is being retried
    worker.rest.stop(topic)
    unless.touch()
    worker.rest.resume(topic)
    wait_until(lambda: "'last'" in put(events), detail=worker.tail)
    assert put(events) == ["'first'", "'later'", "'last'"]
    worker.rest.delete(topic)


@pytest.fixture
def dead_letter_broker(tmp_path: Path) -> Iterator[LocalKafka]:
    """The broker of the dead letters, which a test can pause."""
    broker = LocalKafka("letters", tmp_path / "letters", heap="384m")
    try:
        yield broker.start(120)
        broker.resume()
    finally:
        broker.stop()


def dead_letters(topic: str, dead_letter_broker: LocalKafka) -> dict[str, str]:
    create_topic(dead_letter_broker.bootstrap, f"{topic}-dlq")
    return {
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": f"{topic}-dlq",
        "admin.override.bootstrap.servers": dead_letter_broker.bootstrap,
        "producer.override.bootstrap.servers": dead_letter_broker.bootstrap,
    }


@pytest.mark.timeout(240)
def test_offsets_wait_for_the_dead_letters_of_records_that_failed_conversion(
    broker: LocalKafka, dead_letter_broker: LocalKafka, topic: str, folder: Path
) -> None:
    events, group = folder / "events", f"connect-{topic}"
    config = sink_props(topic, topic, events, value__converter=INTEGER) | dead_letters(topic, dead_letter_broker)
    good = (7).to_bytes(4, "big")
    with DistributedWorker(folder / "one", distributed_props(broker.bootstrap, f"{topic}-workers")) as worker:
        worker.rest.create(topic, config)
        worker.rest.await_running(topic, 1)
        produce(broker.bootstrap, topic, [b"the first"])
        wait_until(lambda: committed(broker.bootstrap, group) == {f"{topic}-0": 1}, detail=worker.tail)
        dead_letter_broker.pause()
        produce(broker.bootstrap, topic, [b"bad", good])
        wait_until(lambda: len(put(events)) == 1, detail=worker.tail)
        time.sleep(8)  # longer than the commit interval
        assert committed(broker.bootstrap, group) == {f"{topic}-0": 1}
        worker.kill9()
    dead_letter_broker.resume()
    with DistributedWorker(folder / "two", distributed_props(broker.bootstrap, f"{topic}-workers")) as worker:
        wait_until(lambda: committed(broker.bootstrap, group) == {f"{topic}-0": 3}, 90, detail=worker.tail)
        assert {letter.value() for letter in read_all(dead_letter_broker.bootstrap, f"{topic}-dlq")} == {
            b"the first",
            b"bad",
        }


@pytest.mark.timeout(240)
@pytest.mark.slow
def test_a_task_that_cannot_write_dead_letters_fails_and_commits_no_later_offset(
    broker: LocalKafka, dead_letter_broker: LocalKafka, topic: str, folder: Path
) -> None:
    events, group = folder / "events", f"connect-{topic}"
    config = sink_props(topic, topic, events) | dead_letters(topic, dead_letter_broker)
    with DistributedWorker(folder / "one", distributed_props(broker.bootstrap, f"{topic}-workers")) as worker:
        worker.rest.create(topic, config)
        worker.rest.await_running(topic, 1)
        produce(broker.bootstrap, topic, ["bad, the first"])
        wait_until(lambda: committed(broker.bootstrap, group) == {f"{topic}-0": 1}, detail=worker.tail)
        dead_letter_broker.pause()
        produce(broker.bootstrap, topic, ["bad", "one"])
        wait_until(lambda: put(events) == ["'one'"], detail=worker.tail)
        worker.rest.stop(topic)
        wait_until(lambda: bool(events_of(events, "stop")), 40, detail=worker.tail)
        assert committed(broker.bootstrap, group).get(f"{topic}-0", 0) <= 1
        dead_letter_broker.resume()
        worker.rest.resume(topic)
        wait_until(lambda: committed(broker.bootstrap, group) == {f"{topic}-0": 3}, 90, detail=worker.tail)
        assert {letter.value() for letter in read_all(dead_letter_broker.bootstrap, f"{topic}-dlq")} == {
            b"bad, the first",
            b"bad",
        }


@pytest.mark.timeout(240)
def test_records_of_a_failed_flush_are_put_again_before_a_later_offset_is_committed(
    broker: LocalKafka, topic: str, folder: Path
) -> None:
    events = folder / "events"
    props = {**distributed_props(broker.bootstrap, f"{topic}-workers"), "offset.flush.interval.ms": "600000"}
    with DistributedWorker(folder / "one", props) as worker:
        worker.rest.create(topic, sink_props(topic, topic, events))
        worker.rest.await_running(topic, 1)
        produce(broker.bootstrap, topic, ["one"])
        wait_until(lambda: put(events) == ["'one'"], detail=worker.tail)
        produce(broker.bootstrap, topic, ["hold"])
        wait_until(lambda: bool(events_of(events, "flush failed")), detail=worker.tail)
        time.sleep(1)  # it puts the record that it rejected before
        worker.rest.stop(topic)
        behind = committed(broker.bootstrap, f"connect-{topic}").get(f"{topic}-0", 0)
        kinds = [event.get("value", event["event"]) for event in events_of(events, "put", "flush failed")]
        again = kinds[kinds.index("flush failed") + 1 :]
        assert behind == 0 or "'one'" in again, (behind, kinds)
