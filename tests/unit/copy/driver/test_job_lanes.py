"""Lanes follow the slots: real lanes, jobs and slots; executors are played by the test."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from mm2.codec import decode, encode
from mm2.copy.driver.batch import MicroBatch
from mm2.copy.driver.engine import CopyEngine, CopyJob
from mm2.copy.driver.lanes.job_lanes import STABLE_S, Balancer
from mm2.copy.progress.session import Start
from mm2.copy.spec import CopySpec, PartitionProgress, PartitionSpec
from mm2.kafka.backoff import Backoff
from mm2.kafka.structs import TopicPartition
from tests.support.waiting import wait_until
from tests.unit.copy.driver.test_lane import spec_of


class Executors:
    """Run each micro-batch that gets a slot. A batch copies ten records of each of its partitions before its final report.

    ``copying`` has the batch that copies a partition: never two. A start that was handed off is the end of the batch before.
    """

    def __init__(self, slots: int) -> None:
        engine: Any = CopyEngine({"spark.master": "yarn"})
        engine.start = lambda: None
        engine.submit = self._submit
        engine.cancel = self._cancel
        self.engine = engine
        self.engine.slots.resize(slots)
        self.engine.balancer = Balancer(self.engine.slots, self.engine._open_jobs)
        self.now_s = 0.0
        self.copying: dict[TopicPartition, MicroBatch] = {}
        self.positions: dict[TopicPartition, int] = {}
        self.read: list[TopicPartition] = []  # of the ledger
        self.throttles: dict[MicroBatch, float] = {}
        self.faults: list[str] = []
        self.running: list[MicroBatch] = []
        self.is_ready = True
        self._lock = threading.RLock()

    def open(self, spec: CopySpec) -> CopyJob:
        job: CopyJob = self.engine.open(spec, self._starts)
        return job

    def balance(self, passed_s: float = 0.0) -> None:
        """One step of the balancer, after so many seconds."""
        self.now_s += passed_s
        self.engine.balancer.balance(self.now_s)
        for job in self.engine._jobs:
            for lane in job.division.all:
                lane._backoff = Backoff(1, 1)

    def resize(self, count: int) -> None:
        self.engine.slots.resize(count)

    def settle(self, *jobs: CopyJob) -> None:
        """Balance until nothing moves and everything is copied."""

        def is_settled() -> bool:
            self.balance(STABLE_S)
            time.sleep(0.01)
            held = {tp for job in jobs for lane in job.division.all for tp in lane.sources}
            with self._lock:
                return not any(job.division.is_moving for job in jobs) and held == self.copying.keys()

        self.balance()  # notices what is new
        wait_until(is_settled, 30, detail=lambda: ([job.lanes() for job in jobs], self.copying, self.faults))
        assert self.faults == []

    def kill(self, batch: MicroBatch) -> None:
        with self._lock:
            self._leave(batch)
        batch.ended("killed", dead=True)

    def _starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Start]:
        wanted = list(partitions)
        self.read += wanted
        return {tp: Start(self.positions.get(tp, 0)) for tp in wanted}

    def _submit(self, lane: str, batch: MicroBatch) -> None:
        threading.Thread(target=self._run, args=(lane, batch), daemon=True).start()

    def _run(self, lane: str, batch: MicroBatch) -> None:
        slots = self.engine.slots
        handler: Any = lambda message: self._on_message(batch, message)  # noqa: E731
        batch._send = handler  # type: ignore[method-assign]
        if not slots.enter(batch.id, lane, batch.finished, lambda _: None):
            return
        self.running.append(batch)
        while not self.is_ready and not batch.finished.is_set():
            time.sleep(0.01)
        batch.received({"type": "ready"})
        batch.finished.wait()
        slots.leave(batch.id)
        self.running.remove(batch)

    def _cancel(self, batch: MicroBatch) -> None:
        self.kill(batch)

    def _on_message(self, batch: MicroBatch, message: dict[str, Any]) -> None:
        match message["type"]:
            case "lease":
                batch.received({"type": "claimed"})
            case "throttle":
                self.throttles[batch] = message["rate"]
            case "start":
                with self._lock:
                    for topic, partition, row in message["starts"]:
                        tp = TopicPartition(topic, partition)
                        if tp in self.copying:
                            self.faults.append(f"{batch.name} copies {tp} beside {self.copying[tp].name}")
                        if tp not in batch.sources or decode(Start, row).position != self.positions.get(tp, 0):
                            self.faults.append(f"{tp} begins at {row} instead of {self.positions.get(tp)}")
                        self.copying[tp] = batch
            case "stop":
                batch.received({"type": "final", **self._final(batch)})

    def _final(self, batch: MicroBatch) -> dict[str, Any]:
        with self._lock:
            copied = self._leave(batch)
            for tp in copied:
                self.positions[tp] = self.positions.get(tp, 0) + 10
            rows = [list(row(tp, self.positions[tp])) for tp in copied]
            return {"partitions": rows, "starts": [[*tp, encode(Start(self.positions[tp]))] for tp in copied]}

    def _leave(self, batch: MicroBatch) -> list[TopicPartition]:
        copied = [tp for tp, other in self.copying.items() if other is batch]
        for tp in copied:
            del self.copying[tp]
        return copied


def row(tp: TopicPartition, position: int) -> PartitionProgress:
    return PartitionProgress(*tp, position, position, 100, "RUNNING", "", -1, -1, False, 10, 100, {}, 0, 0)


def job_of(partitions: int, task: int = 0, **changes: Any) -> CopySpec:
    parts = tuple(PartitionSpec(f"t{task}", index, f"A.t{task}") for index in range(partitions))
    return replace(spec_of(600_000), partitions=parts, task_id=task, **changes)


@pytest.fixture
def made() -> Iterator[list[Executors]]:
    made: list[Executors] = []
    yield made
    for executors in made:
        jobs = list(executors.engine._jobs)
        executors.is_ready = True
        for job in jobs:
            job.signal_stop()
        for batch in list(executors.running):
            batch.ended("the test is over", dead=True)
        for job in jobs:
            assert job.stop(30)
        assert executors.faults == []


@pytest.fixture
def executors(made: list[Executors]) -> Executors:
    made.append(Executors(2))
    return made[0]


def sizes(job: CopyJob) -> list[int]:
    return sorted(lane.partitions for lane in job.lanes())


def test_the_first_lanes_start_as_soon_as_there_is_an_executor(executors: Executors) -> None:
    executors.resize(0)
    job = executors.open(job_of(8))
    executors.balance(100)
    assert job.lanes() == []
    executors.resize(2)
    executors.balance()
    assert sizes(job) == [8], "others may register seconds later"
    executors.settle(job)


def test_lanes_grow_with_the_slots_and_each_partition_continues_where_it_was(executors: Executors) -> None:
    job = executors.open(job_of(8, throttle=12.0))
    executors.settle(job)
    executors.resize(4)
    executors.balance()
    executors.balance(STABLE_S - 1)
    assert len(job.lanes()) == 1
    executors.read.clear()
    with capture_logs() as logs:
        executors.settle(job)
    assert sizes(job) == [2, 3, 3]
    assert executors.read == [], "from final reports, not from the ledger"
    assert set(executors.positions.values()) == {10}, "one hand-off of each partition"
    assert {executors.throttles[batch] for batch in executors.copying.values()} == {4.0}
    assert sum(item.records for item in job.progress()) == 80
    (line,) = [line for line in logs if line["event"] == "partitions move to other lanes"]
    assert (line["cause"], line["slots"], line["lanes"], line["partitions"]) == ("slots", 4, 3, 5)
    assert job.division.moves == executors.engine.flow_status("A->B").moves == 5


def test_slots_that_come_and_go_move_nothing(executors: Executors) -> None:
    job = executors.open(job_of(8))
    executors.settle(job)
    for _ in range(10):
        for count in (4, 2):
            executors.resize(count)
            executors.balance(STABLE_S - 1)
    assert (len(job.lanes()), job.division.moves) == (1, 0)


def test_the_lanes_that_are_left_take_over_the_partitions_of_lost_executors(executors: Executors) -> None:
    executors.resize(4)
    job = executors.open(job_of(8, throttle=12.0))
    executors.settle(job)
    assert len(job.lanes()) == 3
    batches = job.status()["batches"]
    executors.resize(2)
    for batch in executors.running[:2]:
        executors.kill(batch)
    executors.settle(job)
    assert sizes(job) == [8]
    assert {executors.throttles[batch] for batch in executors.copying.values()} == {12.0}
    assert job.status()["batches"] > batches, "those of lanes that have ended are still counted"
    assert executors.engine.flow_status("A->B").micro_batches == {0: job.status()["batches"]}


def test_lanes_end_first_where_no_slot_is_left_to_take_over_from_them(executors: Executors) -> None:
    """As when an executor is being decommissioned: it has no slots any more, and its tasks continue."""
    executors.resize(4)
    job = executors.open(job_of(8))
    executors.settle(job)
    executors.resize(2)
    executors.read.clear()
    executors.settle(job)
    assert sizes(job) == [8]
    assert executors.read == [], "nothing was lost"


def test_a_lane_leaves_an_executor_that_is_being_decommissioned(executors: Executors) -> None:
    executors.resize(5)
    job = executors.open(job_of(4, lanes=1))
    executors.settle(job)
    executors.balance(STABLE_S)
    (before,) = executors.running
    executors.resize(3)
    executors.settle(job)
    wait_until(lambda: executors.running and before not in executors.running)


def test_a_partition_is_copied_until_the_other_lane_is_ready(executors: Executors) -> None:
    job = executors.open(job_of(8))
    executors.settle(job)
    executors.is_ready = False
    executors.resize(4)
    for _ in range(10):
        executors.balance(STABLE_S)
        time.sleep(0.02)
    assert sizes(job) == [0, 0, 8]
    assert len(executors.copying) == 8
    executors.is_ready = True
    executors.settle(job)
    assert sizes(job) == [2, 3, 3]


def test_what_a_lost_lane_was_to_give_is_read_from_the_ledger(executors: Executors) -> None:
    job = executors.open(job_of(8))
    executors.settle(job)
    (donor,) = executors.running
    donor._send = lambda message: None  # type: ignore[method-assign]  # it does not stop
    executors.resize(4)
    executors.read.clear()

    def is_ready() -> bool:
        executors.balance(STABLE_S)
        return len(executors.running) == 4

    wait_until(is_ready)
    executors.kill(donor)
    executors.settle(job)
    assert sizes(job) == [2, 3, 3]
    assert len(executors.read) >= 5


def test_jobs_that_open_and_close_share_the_slots(executors: Executors) -> None:
    executors.resize(9)
    first = executors.open(job_of(40))
    executors.settle(first)
    assert len(first.lanes()) == 8
    others = [executors.open(job_of(count, task)) for task, count in ((1, 40), (2, 20), (3, 4))]
    executors.balance()
    assert [len(job.lanes()) for job in others] == [1, 1, 1], "at once"
    executors.settle(first, *others)
    assert [len(job.lanes()) for job in (first, *others)] == [3, 3, 1, 1]
    assert executors.engine.slots.missing == 0
    for job in others:
        assert job.stop(30)
    executors.settle(first)
    assert sizes(first) == [5] * 8


def test_a_job_with_transactions_keeps_its_lane(executors: Executors) -> None:
    from mm2.copy.spec import TransactionsSpec  # noqa: PLC0415

    executors.resize(9)
    job = executors.open(job_of(40, transactions=TransactionsSpec("id")))
    executors.settle(job)
    assert sizes(job) == [40]


def test_a_stopped_job_gets_no_lanes(executors: Executors) -> None:
    job = executors.open(job_of(8))
    executors.settle(job)
    job.signal_stop()
    executors.resize(9)
    executors.balance(STABLE_S)
    executors.balance(STABLE_S)
    assert len(job.lanes()) == 1


@pytest.mark.parametrize("seed", range(6))
def test_every_partition_is_copied_by_one_lane_whatever_happens(executors: Executors, seed: int) -> None:
    """Executors come, go and die while partitions move, jobs open and close."""
    chance = random.Random(seed)
    jobs = [executors.open(job_of(chance.randint(1, 30), task)) for task in range(2)]
    for _ in range(60):
        match chance.randrange(6):
            case 0:
                executors.resize(chance.randint(2, 9))
            case 1 if executors.running:
                with contextlib.suppress(IndexError):
                    executors.kill(chance.choice(executors.running))
            case 2 if len(jobs) < 4:
                jobs.append(executors.open(job_of(chance.randint(1, 30), len(jobs) + 100)))
            case 3 if len(jobs) > 1 and chance.random() < 0.3:
                assert jobs.pop().stop(30)
        executors.balance(chance.choice([0.0, 1.0, STABLE_S]))
        time.sleep(chance.random() * 0.03)
    executors.resize(9)
    executors.settle(*jobs)
    for job in jobs:
        used = sizes(job)
        assert used[-1] - used[0] <= 1
        assert sum(used) == job.division.size(4).groups
