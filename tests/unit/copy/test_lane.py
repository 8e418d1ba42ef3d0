"""One micro-batch after another: leases, hand-overs, losses. The executor's side of the channel is played by the test."""

from __future__ import annotations

import dataclasses
import queue
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from mm2.copy.driver.batch import Batch
from mm2.copy.driver.lane import Lane
from mm2.copy.spec import CopySpec, PartitionProgress, PartitionSpec
from mm2.kafka.settings import ClientSettings
from mm2.kafka.structs import TopicPartition

SETTINGS = ClientSettings.from_props({"bootstrap.servers": "localhost:1"}, client_id="c")
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def spec_of(duration_ms: int) -> CopySpec:
    return CopySpec(
        flow="A->B",
        connector="MirrorSourceConnector",
        task_id=0,
        source_alias="A",
        target_alias="B",
        source=SETTINGS,
        target=SETTINGS,
        partitions=(PartitionSpec("t", 0, "A.t"), PartitionSpec("t", 1, "A.t")),
        offsets_topic="offsets",
        batch_duration_ms=duration_ms,
    )


def row(tp: TopicPartition, position: int, **changes: Any) -> PartitionProgress:
    base = PartitionProgress(*tp, position, position, 100, "copying", "", max(0, position), 10 * position, {})
    return dataclasses.replace(base, **changes)


class Stage:
    """Batches as the lane submits them, in order, and what it did with them."""

    def __init__(self, duration_ms: int, start: dict[TopicPartition, int | None] | None = None) -> None:
        self.submitted: queue.Queue[Batch] = queue.Queue()
        self.cancelled: list[Batch] = []
        self.sent: dict[str, list[dict[str, Any]]] = {}
        self.lane = Lane(
            "A->B MirrorSourceConnector-0 lane 0",
            spec_of(duration_ms),
            start or {},
            submit=self._submit,
            cancel=self._cancel,
            on_news=lambda: None,
        )

    def _submit(self, batch: Batch) -> None:
        told = self.sent.setdefault(batch.id, [])
        batch._send = told.append  # type: ignore[assignment, method-assign]
        self.submitted.put(batch)

    def _cancel(self, batch: Batch) -> None:
        self.cancelled.append(batch)
        batch.ended("cancelled")

    def next(self) -> Batch:
        return self.submitted.get(timeout=10)

    def told(self, batch: Batch, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.sent[batch.id] if message["type"] == kind]

    def leased(self, batch: Batch) -> dict[TopicPartition, int | None]:
        wait(lambda: self.told(batch, "lease"))
        (lease,) = self.told(batch, "lease")
        return {TopicPartition(topic, partition): offset for topic, partition, offset in lease["offsets"]}

    def final(self, batch: Batch, *rows: PartitionProgress) -> None:
        wait(lambda: self.told(batch, "stop"))
        batch.received({"type": "final", "partitions": [item.to_row() for item in rows]})


def wait(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def report(batch: Batch, *rows: PartitionProgress) -> None:
    batch.received({"type": "progress", "partitions": [item.to_row() for item in rows]})


@contextmanager
def running(stage: Stage) -> Iterator[Lane]:
    stage.lane.start()
    try:
        yield stage.lane
    finally:
        stage.lane.signal_stop()
        while not stage.submitted.empty():
            stage.submitted.get().ended("the test is over")
        current = stage.lane._current
        if current is not None:
            current.ended("the test is over")
        assert stage.lane.join(10)


def test_nothing_is_leased_before_the_executor_is_ready() -> None:
    stage = Stage(60_000, {T0: 5})
    with running(stage):
        batch = stage.next()
        assert batch.name == "A->B MirrorSourceConnector-0 lane 0 batch 1"
        time.sleep(0.05)
        assert stage.sent[batch.id] == []
        batch.received({"type": "ready"})
        assert stage.leased(batch) == {T0: 5, T1: None}


def test_the_next_batch_is_leased_what_the_last_one_ended_with_and_not_before() -> None:
    stage = Stage(200)
    with running(stage) as lane:
        first = stage.next()
        first.received({"type": "ready"})
        second = stage.next()
        second.received({"type": "ready"})
        report(first, row(T0, 7), row(T1, 3))
        wait(lambda: stage.told(first, "stop"))
        time.sleep(0.05)
        assert not stage.told(second, "lease"), "never two with the right to write"
        stage.final(first, row(T0, 9), row(T1, 3, records=1))
        assert stage.leased(second) == {T0: 9, T1: 3}
        report(second, row(T0, 12, records=3))
        rows = {item.source: item for item in lane.progress()}
        assert (rows[T0].records, rows[T0].position, rows[T1].records) == (12, 12, 1)
        assert lane.batches == 2
        second.received({"type": "final", "partitions": []})


def test_a_running_batch_goes_on_until_the_next_is_ready() -> None:
    stage = Stage(100)
    with running(stage):
        first = stage.next()
        first.received({"type": "ready"})
        second = stage.next()
        time.sleep(0.3)
        assert not stage.told(first, "stop")
        second.received({"type": "ready"})
        wait(lambda: stage.told(first, "stop"))
        stage.final(first)
        second.received({"type": "final", "partitions": []})


def test_a_lost_batch_is_taken_up_from_its_last_report() -> None:
    stage = Stage(60_000)
    with capture_logs() as logs, running(stage) as lane:
        first = stage.next()
        first.received({"type": "ready"})
        stage.leased(first)
        report(first, row(T0, 40, gaps={"control": 2}), row(T1, 4))
        first.ended("the executor closed the progress channel")
        second = stage.next()
        assert stage.cancelled == [first]
        assert lane.trouble == "the executor closed the progress channel"
        second.received({"type": "ready"})
        assert stage.leased(second) == {T0: 40, T1: 4}
        wait(lambda: not lane.trouble)
        report(second, row(T0, 41, records=1, gaps={"control": 1}))
        assert {item.source: item.gaps for item in lane.progress()}[T0] == {"control": 3}
    warnings = [line for line in logs if line["log_level"] == "warning"]
    assert warnings[0]["reason"] == "the executor closed the progress channel"
    assert warnings[0]["batch"] == first.name


def test_batches_that_end_by_themselves_are_not_started_again_at_once() -> None:
    stage = Stage(60_000)
    with running(stage) as lane:
        for position in (5, 6, 7):
            batch = stage.next()
            batch.received({"type": "ready"})
            assert stage.leased(batch)[T0] == (position - 1 if position > 5 else None)
            rows = [row(T0, position).to_row()]
            batch.received({"type": "final", "reason": "an error of ours", "partitions": rows})
            wait(lambda: lane.trouble == "an error of ours")
        assert lane._losses == 3


def test_a_batch_that_was_stopped_before_it_had_a_position_moves_nothing() -> None:
    stage = Stage(60_000, {T0: 40})
    with running(stage):
        first = stage.next()
        first.received({"type": "ready"})
        stage.leased(first)
        first.received({"type": "final", "partitions": [row(T0, -1).to_row(), row(T1, -1).to_row()]})
        second = stage.next()
        second.received({"type": "ready"})
        assert stage.leased(second) == {T0: 40, T1: None}


def test_a_failed_partition_keeps_how_far_it_came() -> None:
    stage = Stage(60_000)
    with running(stage):
        first = stage.next()
        first.received({"type": "ready"})
        stage.leased(first)
        report(first, row(T0, 33, state="failed", reason="corrupt"), row(T1, 5))
        first.ended("gone")
        second = stage.next()
        second.received({"type": "ready"})
        assert stage.leased(second) == {T0: 33, T1: 5}


def test_a_cluster_that_is_away_is_the_trouble_shown() -> None:
    stage = Stage(60_000)
    with running(stage) as lane:
        batch = stage.next()
        batch.received({"type": "waiting", "reason": "B does not answer"})
        wait(lambda: lane.trouble == "B does not answer")
        batch.received({"type": "ready"})
        stage.leased(batch)
        wait(lambda: lane.trouble == "")


def test_a_lane_that_is_stopped_waits_for_the_last_word() -> None:
    stage = Stage(60_000)
    stage.lane.start()
    batch = stage.next()
    batch.received({"type": "ready"})
    stage.leased(batch)
    stage.lane.signal_stop()
    assert not stage.lane.join(0.1)
    stage.final(batch, row(T0, 8))
    assert stage.lane.join(10)
    assert [item.position for item in stage.lane.progress()] == [8]


def test_a_next_batch_that_spark_is_still_starting_does_not_hold_up_the_stop() -> None:
    stage = Stage(200)
    stage.lane.start()
    first = stage.next()
    first.ready.set()
    first._on_news()
    stage.leased(first)
    second = stage.next()
    started = time.monotonic()
    stage.lane.signal_stop()
    stage.final(first, row(T0, 5), row(T1, 5))
    assert stage.lane.join(10)
    assert time.monotonic() - started < 3, "it cannot hear us yet, so nobody waits for its answer"
    assert stage.cancelled == [second]


@pytest.mark.parametrize("kind", ["progress", "waiting"])
def test_every_report_is_answered_so_that_the_lease_lives(kind: str) -> None:
    batch = Batch("b", spec_of(1), lambda: None)
    told: list[dict[str, Any]] = []
    batch._send = told.append  # type: ignore[assignment, method-assign]
    batch.received({"type": kind, "partitions": [], "reason": "r"})
    assert told == [{"type": "go"}]


def test_an_executor_that_falls_silent_is_given_up_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm2.copy.driver.lane.SILENCE_S", 0.3)
    monkeypatch.setattr("mm2.copy.driver.lane.LEASE_TIMEOUT_S", 0.1)
    stage = Stage(60_000)
    with running(stage):
        frozen = stage.next()
        frozen.received({"type": "ready"})
        stage.leased(frozen)
        report(frozen, row(T0, 7))
        successor = stage.next()
        assert frozen in stage.cancelled
        successor.received({"type": "ready"})
        assert stage.leased(successor)[T0] == 7
