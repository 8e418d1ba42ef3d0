"""The life cycle of a sink task, without Kafka."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import cast

import pytest

from mm2.connect.api import SinkRecord, SinkTask, TopicPartition
from mm2.connect.runtime.tasks.sink import SinkSetup, WorkerSinkTask
from mm2.connect.stores.config_state import TargetState
from mm2.kafka.consumer.consumer import Consumer
from mm2.kafka.consumer.membership import Topics
from mm2.kafka.consumer.records import ConsumerRecord
from tests.unit.connect.task_parts import RecordingListener, equipment

P = TopicPartition("t", 0)


class Assigned:
    """A consumer with one partition; each poll runs one of the ``steps``."""

    def __init__(self) -> None:
        self.paused: set[TopicPartition] = set()
        self.steps: list[Callable[[], None]] = []
        self.batches: list[list[ConsumerRecord]] = []
        self.done = threading.Event()
        self.listener: WorkerSinkTask

    def subscribe(self, _topics: Topics, listener: WorkerSinkTask) -> None:
        self.listener = listener

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset({P})

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self.paused |= set(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self.paused -= set(partitions)

    def position(self, _tp: TopicPartition, _timeout_s: float) -> int:
        return 0

    def poll(self, _timeout_s: float) -> list[ConsumerRecord]:
        if self.steps:
            self.steps.pop(0)()
        else:
            time.sleep(0.01)
        return self.batches.pop() if self.batches else []

    def rebalance(self) -> None:
        self.paused.clear()  # as for all partitions that are assigned anew
        self.listener.on_partitions_assigned(self.assignment())

    def wakeup(self) -> None: ...

    def close(self) -> None: ...


class Sink(SinkTask):
    """Calls functions of a test in ``open`` and ``put``."""

    def __init__(self) -> None:
        self.on_open: Callable[[], None] = lambda: None
        self.on_put: Callable[[], None] = lambda: None

    def version(self) -> str:
        return "1"

    def start(self, props: dict[str, str]) -> None: ...

    def open(self, partitions: Collection[TopicPartition]) -> None:
        self.on_open()

    def put(self, records: Collection[SinkRecord]) -> None:
        self.on_put()

    def stop(self) -> None: ...


def sink_task(
    task: SinkTask,
    consumer: Assigned,
    listener: RecordingListener,
    on_topic: Callable[[str], None] = lambda _topic: None,
) -> WorkerSinkTask:
    setup = SinkSetup(
        task,
        cast("Consumer", consumer),
        Topics(frozenset({"t"})),
        dict,
        False,
        commit_interval_ms=60_000,
        commit_timeout_ms=5000,
    )
    return WorkerSinkTask(equipment(listener, sink=True, on_topic=on_topic), setup)


@pytest.mark.parametrize(
    ("before", "meanwhile", "events", "paused"),
    [
        (TargetState.STARTED, TargetState.PAUSED, ["startup"], set()),
        (TargetState.PAUSED, TargetState.STARTED, ["startup", "pause"], {P}),
    ],
)
def test_partitions_have_the_state_of_their_task_after_a_quick_pause_and_resume_during_a_rebalance(
    before: TargetState, meanwhile: TargetState, events: list[str], paused: set[TopicPartition]
) -> None:
    """The second change arrives while the partitions are opened."""
    task, consumer, listener = Sink(), Assigned(), RecordingListener()
    running = sink_task(task, consumer, listener)

    def rebalance() -> None:
        running.set_target_state(meanwhile)
        consumer.rebalance()

    consumer.steps = [
        lambda: running.set_target_state(before),
        lambda: None,
        rebalance,
        lambda: None,
        consumer.done.set,
    ]
    task.on_open = lambda: running.set_target_state(before)
    running.start()
    assert consumer.done.wait(60)
    assert (listener.events, consumer.paused) == (events, paused)
    running.stop()
    assert running.await_stop(60)


def test_a_sink_whose_put_fails_while_it_is_being_stopped_has_not_failed() -> None:
    task, consumer, listener = Sink(), Assigned(), RecordingListener()
    running = sink_task(task, consumer, listener)
    putting, go_on = threading.Event(), threading.Event()

    def put() -> None:
        putting.set()
        assert go_on.wait(60)
        raise OSError("the connection is closed")

    task.on_put = put
    running.start()
    assert putting.wait(60)
    running.stop()
    go_on.set()
    assert running.await_stop(60)
    assert listener.events == ["startup", "shutdown"]


def test_a_sink_task_reports_the_topic_of_each_batch() -> None:
    """The record of topics in use may have been reset in between."""
    consumer, topics = Assigned(), list[str]()
    running = sink_task(Sink(), consumer, RecordingListener(), topics.append)
    batch = [ConsumerRecord(P, offset, None, None, (), 1, False) for offset in range(3)]
    consumer.steps = [consumer.rebalance, lambda: None, lambda: None, consumer.done.set]
    consumer.batches = [batch, batch]
    running.start()
    assert consumer.done.wait(60)
    running.stop()
    assert running.await_stop(60)
    assert topics == ["t", "t"]
