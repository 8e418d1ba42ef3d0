"""One sink connector whose tasks run on a worker of Java and on ours: their consumers are members of one group."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from mm2.sandbox.kafka import LocalKafka
from tests.integration.connect_reading import create_topic
from tests.support.waiting import wait_until
from tests.systems.sink_events import committed, produce
from tests.systems.workers import DistributedWorker, JavaDistributedWorker, WorkerProcess, distributed_props

CLIENTS = "org.apache.kafka.clients.consumer"


@pytest.mark.slow
@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    ("first", "overrides"),
    [
        (JavaDistributedWorker, {}),
        (DistributedWorker, {"partition.assignment.strategy": f"{CLIENTS}.CooperativeStickyAssignor"}),
        (DistributedWorker, {"group.protocol": "consumer"}),
    ],
    ids=["java leads, range", "we lead, cooperative", "the coordinator assigns"],
)
def test_java_s_and_our_members_share_a_group(
    broker: LocalKafka, unique: str, folder: Path, first: type[WorkerProcess], overrides: dict[str, str]
) -> None:
    create_topic(broker.bootstrap, unique, 4)
    out, name = folder / "out", f"{unique}-sink"
    config = {"connector.class": "FileStreamSink", "topics": unique, "tasks.max": "2", "file": str(out)}
    config |= {f"consumer.override.{key}": value for key, value in overrides.items()}
    second = DistributedWorker if first is JavaDistributedWorker else JavaDistributedWorker
    by_coordinator = "group.protocol" in overrides
    props = distributed_props(broker.bootstrap, f"{unique}-workers", by_coordinator=by_coordinator)
    wanted: list[str] = []

    def more(text: str) -> None:
        for number in range(40):
            wanted.append(f"{text} {number}")
            produce(broker.bootstrap, unique, wanted[-1:], partition=number % 4)

    def arrived() -> Counter[str]:
        return Counter(out.read_text().split("\n")[:-1]) if out.exists() else Counter()

    with first(folder / "first", props) as one:
        one.rest.create(name, config)
        one.rest.await_running(name, 2)
        more("alone")
        wait_until(lambda: arrived() == Counter(wanted), 60, detail=one.tail)
        with second(folder / "second", props) as two:
            wait_until(
                lambda: len({task["worker_id"] for task in one.rest.status(name)["tasks"]}) == 2, 90, detail=two.tail
            )
            one.rest.await_running(name, 2)
            more("together")
            wait_until(lambda: set(arrived()) == set(wanted), 90, detail=two.tail)
            wait_until(
                lambda: committed(broker.bootstrap, f"connect-{name}") == {f"{unique}-{p}": 20 for p in range(4)}, 60
            )
            two.stop()
        one.rest.await_running(name, 2)
        more("alone again")
        wait_until(lambda: set(arrived()) == set(wanted), 90, detail=one.tail)
    assert arrived() == Counter(wanted)
