"""What the end of a Spark job tells of its executor's lease. Spark is played by the test."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mm2.copy.driver.batch import MicroBatch
from mm2.copy.driver.engine import CopyEngine
from mm2.reasons import SparkDown, SparkDownCode
from tests.unit.copy.test_lane import spec_of


@pytest.mark.parametrize(
    ("end", "has_ended"),
    [
        ({"state": "stopped", "reason": "the driver requested the stop"}, True),
        ({"state": "failed", "reason": "an error"}, True),
        ({"state": "refused", "reason": "a second attempt"}, False),
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
    down = SparkDown(SparkDownCode.EXECUTOR_STOPPED, "Spark is restarting, because its executor has stopped")
    engine.spark = SimpleNamespace(down=down)
    assert engine.down == down
    assert engine.failing_lanes("A->B") == ["Spark is restarting, because its executor has stopped"]


def test_a_cluster_without_executors_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = cast(Any, CopyEngine({"spark.master": "yarn"}))
    engine.spark = SimpleNamespace(down=None, is_up=True)
    assert not engine.down
    monkeypatch.setattr("mm2.copy.driver.slots._LATE_S", 0.0)
    assert engine.down.code == SparkDownCode.NO_EXECUTOR
    engine.slots.resize(2)
    assert not engine.down
