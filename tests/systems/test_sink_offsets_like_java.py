"""``PATCH`` and ``DELETE /connectors/{name}/offsets`` of a sink: the group's offsets change on a real broker, and requests are
rejected with the messages of Java's worker (A37, KIP-875)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from mm2.sandbox.kafka import LocalKafka
from tests.integration.connect_reading import create_topic
from tests.support.waiting import wait_until
from tests.systems.sink_events import committed, produce
from tests.systems.workers import DistributedWorker, JavaDistributedWorker, WorkerProcess, distributed_props

#: The reason, which Java only logs.
_REASON = re.compile(r"(Failed to (?:alter|reset|modify) [a-z ]*offsets for [a-z ]*connector [^ :]+): .*")

#: Our worker and Java's, each on its own broker, so that all names are equal.
Pair = tuple[tuple[WorkerProcess, LocalKafka], tuple[WorkerProcess, LocalKafka]]


@pytest.fixture(scope="module")
def pair(
    kafka_pair: tuple[LocalKafka, LocalKafka], group: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    first, second = kafka_pair
    ours = DistributedWorker(tmp_path_factory.mktemp("ours"), distributed_props(first.bootstrap, group))
    java = JavaDistributedWorker(tmp_path_factory.mktemp("java"), distributed_props(second.bootstrap, group))
    with ours, java:
        yield (ours, first), (java, second)


def offsets(*entries: tuple[Any, Any]) -> dict[str, Any]:
    return {"offsets": [{"partition": partition, "offset": offset} for partition, offset in entries]}


def partition_key(topic: Any, partition: Any) -> dict[str, Any]:
    return {"kafka_topic": topic, "kafka_partition": partition}


def at(offset: Any) -> dict[str, Any]:
    return {"kafka_offset": offset}


def bodies(topic: str) -> dict[str, Any]:
    """The requests to the stopped sink, in this order."""
    here = partition_key(topic, 0)
    return {
        "nothing": {},
        "no offsets": {"offsets": []},
        "no partition": offsets((None, at(1))),
        "half a partition": offsets(({"kafka_topic": topic}, at(1))),
        "no topic": offsets((partition_key(None, 0), at(1))),
        "no number": offsets((partition_key(topic, None), at(1))),
        "a text for a number": offsets((partition_key(topic, "one"), at(1))),
        "a fraction": offsets((partition_key(topic, 0.5), at(1))),
        "an offset without its key": offsets((here, {"offset": 1})),
        "a null for an offset": offsets((here, at(None))),
        "a text for an offset": offsets((here, at("far"))),
        "a negative offset": offsets((here, at(-1))),
        "a partition that is not there": offsets((partition_key(topic, 7), at(1))),
        "a topic that is not there": offsets((partition_key(f"{topic}-nope", 0), at(1))),
        "numbers as text": offsets((partition_key(topic, "0"), at("1"))),
        "moved": offsets((here, at(2)), (partition_key(topic, 1), at(1))),
        "one removed": offsets((partition_key(topic, 1), None)),
        "one removed again": offsets((partition_key(topic, 1), None)),
    }


def answer(worker: WorkerProcess, method: str, path: str, **how: Any) -> tuple[int, Any]:
    """HTTP status and message."""
    found = worker.rest.http.request(method, path, **how)
    body = found.json()
    return found.status_code, _REASON.sub(r"\1", body.get("message", str(body)))


def shown(worker: WorkerProcess, path: str) -> list[Any]:
    return sorted(worker.rest.get(path)["offsets"], key=lambda entry: int(entry["partition"]["kafka_partition"]))


def all_offsets(broker: LocalKafka, group: str) -> dict[str, int]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(60)
    return {f"{tp.topic}-{tp.partition}": tp.offset for tp in found.topic_partitions}


@pytest.fixture
def sink(pair: Pair, unique: str, tmp_path: Path) -> str:
    """A file sink with the same name on both workers that has read three records of each of two partitions."""
    for worker, broker in pair:
        create_topic(broker.bootstrap, unique, 2)
        for partition in (0, 1):
            produce(broker.bootstrap, unique, ["a", "b", "c"], partition=partition)
        file = tmp_path / str(worker.port)
        worker.rest.create(
            unique, {"connector.class": "FileStreamSink", "topics": unique, "file": str(file), "name": unique}
        )
        worker.rest.await_running(unique, 1)
        wanted = {f"{unique}-0": 3, f"{unique}-1": 3}
        wait_until(lambda b=broker, w=wanted: committed(b.bootstrap, f"connect-{unique}") == w, 60, detail=worker.tail)  # type: ignore[misc]
    return unique


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_every_request_has_java_s_response_and_effect(pair: Pair, sink: str) -> None:
    path, group = f"/connectors/{sink}/offsets", f"connect-{sink}"
    found: list[dict[str, Any]] = []
    for worker, broker in pair:
        results: dict[str, Any] = {}
        results["running PATCH"] = answer(worker, "PATCH", path, json=offsets((partition_key(sink, 0), at(1))))
        results["running DELETE"] = answer(worker, "DELETE", path)
        worker.rest.stop(sink)
        for what, body in bodies(sink).items():
            results[what] = (answer(worker, "PATCH", path, json=body), all_offsets(broker, group), shown(worker, path))
        for what in ("reset", "reset again"):
            results[what] = (answer(worker, "DELETE", path), all_offsets(broker, group), shown(worker, path))
        found.append(results)
    ours, java = found
    different = [f"{what}\n  ours {ours[what]}\n  java {java[what]}" for what in ours if ours[what] != java[what]]
    assert not different, "\n".join(different)
    assert ours["moved"][1] == {f"{sink}-0": 2, f"{sink}-1": 1}
    assert ours["one removed"][1] == {f"{sink}-0": 2}
    assert ours["reset"][1] == {}


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_a_group_with_a_member_returns_500_and_a_remedy(pair: Pair, sink: str) -> None:
    path, group = f"/connectors/{sink}/offsets", f"connect-{sink}"
    found = []
    for worker, broker in pair:
        worker.rest.stop(sink)
        zombie = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, "session.timeout.ms": 6000})
        zombie.subscribe([sink])
        try:
            wait_until(lambda z=zombie: z.poll(0.1) is None and len(z.assignment()) == 2, 60)  # type: ignore[misc]
            results = [
                answer(worker, "PATCH", path, json=offsets((partition_key(sink, 0), at(1)))),
                answer(worker, "DELETE", path),
            ]
            results.append(answer(worker, "PATCH", path, json=offsets((partition_key(sink, 0), None))))
            found.append(results)
            assert [tp.offset for tp in zombie.committed([TopicPartition(sink, 0)], timeout=20)] == [3]
        finally:
            zombie.close()
    assert found[0] == found[1]
    assert [status for status, _ in found[0]] == [500, 500, 500]


@pytest.mark.slow
def test_a_sink_continues_at_the_altered_offsets(pair: Pair, sink: str, tmp_path: Path) -> None:
    worker, broker = pair[0]
    file = tmp_path / str(worker.port)
    worker.rest.stop(sink)
    worker.rest.ask(
        "PATCH",
        f"/connectors/{sink}/offsets",
        json=offsets((partition_key(sink, 0), at(1)), (partition_key(sink, 1), at(2))),
    )
    before = file.read_text().splitlines()
    worker.rest.resume(sink)
    wait_until(lambda: len(file.read_text().splitlines()) == 9, detail=worker.tail)
    assert sorted(file.read_text().splitlines()[len(before) :]) == ["b", "c", "c"]
    wait_until(lambda: committed(broker.bootstrap, f"connect-{sink}") == {f"{sink}-0": 3, f"{sink}-1": 3})
