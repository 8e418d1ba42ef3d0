"""Java's worker of Kafka 4.3.0, or of the newest release, and ours on the same internal topics: one after the other, and side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import create, producer_of, read
from tests.support.waiting import wait_until
from tests.systems.internal_topics import latest
from tests.systems.test_stores_on_kafka import file_source
from tests.systems.workers import (
    DistributedWorker,
    JavaDistributedWorker,
    NewestJavaWorker,
    WorkerProcess,
    distributed_props,
)

BOTH = [(DistributedWorker, JavaDistributedWorker), (JavaDistributedWorker, DistributedWorker)]
NEWEST = [(DistributedWorker, NewestJavaWorker), (NewestJavaWorker, DistributedWorker)]


def file_sink(file: Path, topic: str, tasks: int) -> dict[str, str]:
    return {"connector.class": "FileStreamSink", "tasks.max": str(tasks), "file": str(file), "topics": topic}


def write(broker: LocalKafka, topic: str, *values: str) -> None:
    """Write the values to the two partitions of a topic in turn."""
    producer = producer_of(broker)
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % 2)
    assert producer.flush(30) == 0


def lines(file: Path) -> list[str]:
    return sorted(file.read_text().splitlines()) if file.exists() else []


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("first_kind", "second_kind"),
    [
        pytest.param(*BOTH[0], id="java-after-ours", marks=pytest.mark.slow),
        pytest.param(*BOTH[1], id="ours-after-java"),
        pytest.param(*NEWEST[0], id="newest-java-after-ours", marks=pytest.mark.slow),
        pytest.param(*NEWEST[1], id="ours-after-newest-java", marks=pytest.mark.slow),
    ],
)
def test_each_implementation_reads_the_internal_topics_of_the_other(
    broker: LocalKafka,
    unique: str,
    folder: Path,
    first_kind: type[WorkerProcess],
    second_kind: type[WorkerProcess],
) -> None:
    """A running source and sink, a paused sink with two tasks, and a stopped one."""
    create(broker, unique)
    create(broker, f"{unique}-two", 2)
    # Their names are also names of consumer groups.
    snk, twins, off = (f"{name}-{unique[-6:]}" for name in ("snk", "two", "off"))
    source, sink, two = folder / "source.txt", folder / "sink.txt", folder / "two.txt"
    source.write_text("one\ntwo\n")
    write(broker, f"{unique}-two", "a", "b", "c")
    props = distributed_props(broker.bootstrap, unique)
    configs = {
        "src": file_source(source, unique),
        snk: file_sink(sink, unique, 1),
        twins: file_sink(two, f"{unique}-two", 2),
        off: file_sink(folder / "off.txt", unique, 1),
    }
    with first_kind(folder / "first", props) as first:
        for name, config in configs.items():
            first.rest.create(name, config)
        for name, tasks in (("src", 1), (snk, 1), (twins, 2), (off, 1)):
            first.rest.await_running(name, tasks)
        wait_until(lambda: lines(sink) == ["one", "two"], 60, detail=first.tail)
        wait_until(lambda: lines(two) == ["a", "b", "c"], 60, detail=first.tail)
        wait_until(lambda: [e["offset"] for e in first.rest.offsets("src")] == [{"position": 8}], 60, detail=first.tail)
        wait_until(
            lambda: [e["offset"] for e in first.rest.offsets(snk)] == [{"kafka_offset": 2}], 60, detail=first.tail
        )
        wait_until(lambda: sum(e["offset"]["kafka_offset"] for e in first.rest.offsets(twins)) == 3, 60)
        first.rest.pause(twins)
        wait_until(lambda: first.rest.states(twins) == ["PAUSED"] * 3, 60, detail=first.tail)
        first.rest.stop(off)
        served = {name: first.rest.get(f"/connectors/{name}/config") for name in configs}
        tasks_before = {name: first.rest.get(f"/connectors/{name}/tasks") for name in configs}
        assert [len(tasks_before[name]) for name in configs] == [1, 1, 2, 0]
        topics = {name: first.rest.get(f"/connectors/{name}/topics") for name in configs}
        assert topics["src"] == {"src": {"topics": [unique]}}
        first.kill9()
    assert latest(broker, f"{unique}-status")
    with source.open("a") as growing:
        growing.write("three\n")
    write(broker, f"{unique}-two", "d", "e")

    with second_kind(folder / "second", props) as second:
        for name in ("src", snk):
            second.rest.await_running(name, 1)
        # RUNNING may be a status of the previous worker in the status topic.
        wait_until(
            lambda: {task["worker_id"] for task in second.rest.status("src")["tasks"]} == {second.worker_id},
            60,
            detail=second.tail,
        )
        wait_until(lambda: second.rest.states(twins) == ["PAUSED"] * 3, 60, detail=second.tail)
        assert second.rest.states(off) == ["STOPPED"]
        assert {name: second.rest.get(f"/connectors/{name}/config") for name in configs} == served
        assert {name: second.rest.get(f"/connectors/{name}/tasks") for name in configs} == tasks_before
        assert {name: second.rest.get(f"/connectors/{name}/topics") for name in configs} == topics
        wait_until(lambda: lines(sink) == ["one", "three", "two"], 60, detail=second.tail)
        wait_until(lambda: second.rest.offsets("src")[0]["offset"] == {"position": 14}, 60, detail=second.tail)
        # Both write the same bytes for the same partition: no key of the offsets topic has two spellings.
        assert list(latest(broker, f"{unique}-offsets")) == [f'["src",{{"filename":"{source}"}}]']
        second.rest.resume(twins)
        second.rest.await_running(twins, 2)
        wait_until(lambda: lines(two) == ["a", "b", "c", "d", "e"], 60, detail=second.tail)
        for name in configs:
            second.rest.delete(name)
        # The statuses that the other worker wrote for them are deleted as well.
        wait_until(
            lambda: not latest(broker, f"{unique}-status"), 60, detail=lambda: latest(broker, f"{unique}-status")
        )
    assert [record.value for record in read(broker, unique)] == [b"one", b"two", b"three"]


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("leader_kind", "follower_kind"),
    [
        pytest.param(*BOTH[0], id="ours-leads"),
        pytest.param(*BOTH[1], id="java-leads", marks=pytest.mark.slow),
        pytest.param(*NEWEST[0], id="ours-leads-newest-java", marks=pytest.mark.slow),
        pytest.param(*NEWEST[1], id="newest-java-leads", marks=pytest.mark.slow),
    ],
)
def test_java_and_python_workers_share_one_group(
    broker: LocalKafka,
    unique: str,
    folder: Path,
    leader_kind: type[WorkerProcess],
    follower_kind: type[WorkerProcess],
) -> None:
    create(broker, unique, 4)
    props = distributed_props(broker.bootstrap, unique)
    file = folder / "sink.txt"
    snk = f"snk-{unique[-6:]}"

    def owners(worker: WorkerProcess) -> set[str]:
        return {task["worker_id"] for task in worker.rest.status(snk)["tasks"]}

    with leader_kind(folder / "leader", props) as leader, follower_kind(folder / "follower", props) as follower:
        follower.rest.create(snk, file_sink(file, unique, 4))  # forwarded
        wait_until(
            lambda: follower.rest.states(snk) == ["RUNNING"] * 5 and len(owners(follower)) == 2,
            90,
            detail=lambda: f"{follower.rest.status(snk)} {leader.tail(5)} {follower.tail(5)}",
        )
        write(broker, unique, "a", "b")
        wait_until(lambda: lines(file) == ["a", "b"], 60, detail=follower.tail)
        # The owner of the connector sends the task configs to the leader, in a signed request if the leader is another worker.
        for tasks in (6, 2):
            leader.rest.configure(snk, file_sink(file, unique, tasks))
            follower.rest.await_running(snk, tasks)
        follower.rest.pause(snk)
        wait_until(lambda: leader.rest.states(snk) == ["PAUSED"] * 3, 60, detail=lambda: leader.rest.status(snk))
        leader.rest.resume(snk)
        leader.rest.await_running(snk, 2)
        leader.kill9()
        wait_until(
            lambda: follower.rest.states(snk) == ["RUNNING"] * 3 and owners(follower) == {follower.worker_id},
            90,
            detail=lambda: f"{follower.rest.status(snk)} {follower.tail(8)}",
        )
        write(broker, unique, "c", "d")
        wait_until(lambda: {"c", "d"} <= set(lines(file)), 60, detail=follower.tail)
        follower.rest.delete(snk)
