"""What the end of a Spark job tells of its executor's lease. Spark is played by the test."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mm2.copy.driver.batch import MicroBatch
from mm2.copy.driver.engine import CopyEngine, CopyFailed, CopyJob
from mm2.copy.spec import PartitionSpec
from mm2.reasons import SparkDown, SparkDownCode
from tests.unit.copy.driver.test_lane import spec_of


@pytest.mark.parametrize(
    ("end", "has_ended"),
    [
        ({"state": "stopped", "reason": "the driver requested the stop"}, True),
        ({"state": "failed", "reason": "an error"}, True),
        ({"state": "refused", "reason": "Spark has lost the executor"}, False),
        ({}, False),
    ],
)
def test_a_job_that_ends_with_a_second_attempt_does_not_end_the_lease_of_the_first(
    monkeypatch: pytest.MonkeyPatch, end: dict[str, str], has_ended: bool
) -> None:
    monkeypatch.setattr("mm2.copy.driver.engine._FINAL_REPORT_TIMEOUT_S", 0.01)
    engine: Any = CopyEngine({})
    engine.spark = SimpleNamespace(context=lambda **_: None, doubt=lambda: None)
    engine._server = SimpleNamespace(expect=lambda _: None, forget=lambda _: None)
    engine._copied = lambda *_: end
    batch = MicroBatch("b", spec_of(1), lambda: None)
    batch.grant()
    engine._run_job("lane", batch)
    assert batch.finished.is_set()
    assert (batch.lease_ends_at == 0) == has_ended


def test_no_flow_can_copy_while_spark_is_down() -> None:
    """`/health` answers 503 with these reasons."""
    engine = cast(Any, CopyEngine({}))
    assert not engine.down, "it is not needed yet"
    assert engine.failing_lanes("A->B") == []
    down = SparkDown(SparkDownCode.JVM_DIED, "Spark is restarting, because its JVM has died")
    engine.spark = SimpleNamespace(down=down)
    assert engine.down == down
    assert engine.failing_lanes("A->B") == ["Spark is restarting, because its JVM has died"]


def test_a_cluster_without_executors_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = cast(Any, CopyEngine({"spark.master": "yarn"}))
    engine.spark = SimpleNamespace(down=None, is_up=True)
    assert not engine.down
    monkeypatch.setattr("mm2.copy.driver.lanes.slots._LATE_S", 0.0)
    assert engine.down.code == SparkDownCode.NO_EXECUTOR
    engine.slots.resize(2)
    assert not engine.down


def test_slots_are_counted_again_after_a_call_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A JVM that had no memory for one answer would otherwise have no slots for ever."""
    monkeypatch.setattr("mm2.copy.driver.engine._SLOTS_POLL_S", 0.0)
    engine: Any = CopyEngine({"spark.master": "yarn"})
    calls = itertools.count()
    counts = []

    def count(_profile: object) -> int:
        if next(calls) == 1:
            raise MemoryError
        counts.append(engine.slots.count)
        if len(counts) == 3:
            engine._stopped.set()
        return 4

    spark = SimpleNamespace(
        isStopped=lambda: False,
        maxNumConcurrentTasks=count,
        resourceProfileManager=lambda: SimpleNamespace(defaultResourceProfile=lambda: None),
    )
    context = SimpleNamespace(getConf=dict, _jsc=SimpleNamespace(sc=lambda: spark))
    engine.spark = SimpleNamespace(check_jvm=lambda: None, is_up=True)
    engine._counted = context
    engine._count_slots(context)
    assert counts == [0, 4, 4], "before the first one, and after the failure"


def test_a_stopped_context_has_no_slots_until_there_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm2.copy.driver.engine._SLOTS_POLL_S", 0.0)
    engine: Any = CopyEngine({"spark.master": "yarn"})
    engine.slots.resize(4)
    context = SimpleNamespace(getConf=dict, _jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: True)))
    checks = itertools.count()

    def check_jvm() -> None:
        engine.spark.is_up = False
        if next(checks) == 1:
            engine._counted = object()

    engine.spark = SimpleNamespace(check_jvm=check_jvm, is_up=True)
    engine._counted = context
    engine._count_slots(context)
    assert engine.slots.count == 0


FOUR = tuple(PartitionSpec("t", index, "A.t") for index in range(4))


@pytest.mark.parametrize("is_local", [True, False])
def test_lanes_that_cannot_be_started_fail_the_task_and_leave_none_behind(
    monkeypatch: pytest.MonkeyPatch, is_local: bool
) -> None:
    """They would copy the same partitions as those of the task's next attempt."""
    lanes: list[Any] = []

    def start(lane: Any) -> None:
        lanes.append(lane)
        if len(lanes) == 2:
            raise RuntimeError("can't start new thread")
        lane._thread.start()

    monkeypatch.setattr("mm2.copy.driver.lanes.lane.Lane.start", start)
    engine: Any = CopyEngine({} if is_local else {"spark.master": "yarn"})
    engine.start = lambda: None
    engine.slots.resize(4)
    engine.submit = lambda _lane, batch: None
    spec = replace(spec_of(60_000), lanes=2)
    if is_local:
        with pytest.raises(CopyFailed, match="can't start new thread"):
            engine.open(spec, lambda _: {})
    else:
        job = engine.open(replace(spec, partitions=FOUR), lambda _: {})
        engine.balancer.balance(0.0)
        with pytest.raises(CopyFailed, match="can't start new thread"):
            job.wait(0)
        assert job.stop(10)
    assert len(lanes) == 2
    assert all(lane.join(0) for lane in lanes)
    assert not engine._jobs


def test_a_task_without_lanes_has_the_reason() -> None:
    engine: Any = CopyEngine({"spark.master": "yarn"})
    job = CopyJob(engine, spec_of(1), lambda _: {})
    assert job.blocked_reasons() == []
    engine.spark = SimpleNamespace(down=SparkDown(SparkDownCode.STARTING, "Spark (yarn) is still starting"))
    assert job.blocked_reasons() == ["Spark (yarn) is still starting"]
