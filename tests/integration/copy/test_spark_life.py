"""Copying when Spark itself does not start, crashes or hangs."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest
from structlog.testing import capture_logs

from mm2.copy.driver.engine import CopyEngine
from mm2.copy.driver.jvm import MODULE_OPTIONS
from mm2.copy.spec import Assignment
from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import Flow, Traffic
from tests.support.waiting import wait_until

_ENDED = "Spark's JVM ended with exit code 1 before it was running"


@contextlib.contextmanager
def engine_of(**props: str) -> Iterator[CopyEngine]:
    engine = CopyEngine({name.replace("__", "."): value for name, value in props.items()})
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


def pid_of(engine: CopyEngine) -> int:
    assert engine.spark.pid is not None
    return engine.spark.pid


def stops_within(engine: CopyEngine, seconds: float) -> None:
    pid = pid_of(engine)
    started = time.monotonic()
    engine.stop(5.0)
    took = time.monotonic() - started
    assert took < seconds, f"it took {took:.1f} s"
    assert not psutil.pid_exists(pid)


def sleep_in_a_task(context: Any) -> None:
    with contextlib.suppress(Exception):  # it ends with the context
        context.parallelize([60.0], 1).map(time.sleep).collect()


def test_spark_starts_silently_and_leaves_nothing_behind(capfd: pytest.CaptureFixture[str]) -> None:
    with engine_of() as engine:
        context = engine.spark.context(60)
        pid = pid_of(engine)
        options = context._jvm.org.apache.spark.launcher.JavaModuleOptions.defaultModuleOptions().split()
        assert set(options) - set(MODULE_OPTIONS) == {"--add-modules=jdk.incubator.vector"}
        assert set(MODULE_OPTIONS) <= set(options)
        assert context.parallelize([1, 2], 1).map(str).collect() == ["1", "2"]
        temporary = Path(context._temp_dir)
        assert temporary.is_dir()
        # A task that runs at the stop, as that which warms the workers up may.
        threading.Thread(target=sleep_in_a_task, args=(context,), daemon=True).start()
        wait_until(context.statusTracker().getActiveJobsIds)
        time.sleep(1)
    assert not psutil.pid_exists(pid)
    assert not temporary.exists()
    assert "PYSPARK_GATEWAY_SECRET" not in os.environ
    out, err = capfd.readouterr()
    assert err == ""
    assert [line for line in out.splitlines() if "Spark is up" not in line] == []


def test_a_killed_jvm_is_replaced_and_copying_continues(kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str) -> None:
    with engine_of() as engine, capture_logs() as logs:
        flow = Flow(engine, kafka_a, kafka_b, unique)
        topic = flow.topic()
        spec = flow.spec(topic)
        with Traffic(flow.source, topic, per_second=200) as traffic, flow.copying(spec) as job:
            wait_until(lambda: job.status()["records"] > 100, detail=job.status)
            pid = pid_of(engine)
            os.kill(pid, signal.SIGKILL)
            at = traffic.sent
            wait_until(lambda: sum(row.position for row in job.progress()) > at + 100, detail=job.status)
            traffic.finish()
            flow.wait_until_copied(job, spec)
            assert pid_of(engine) != pid
    lost = [line for line in logs if line["event"] == "Spark lost, restarting"]
    assert [line["reason"] for line in lost] == ["its JVM has died"]


@pytest.mark.slow
def test_a_frozen_jvm_blocks_neither_copying_nor_the_stop(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    with engine_of() as engine:
        flow = Flow(engine, kafka_a, kafka_b, unique)
        topic = flow.topic()
        spec = flow.spec(topic, batch_duration_ms=500)
        with Traffic(flow.source, topic, per_second=200) as traffic, flow.copying(spec) as job:
            wait_until(lambda: job.status()["records"] > 100, detail=job.status)
            os.kill(pid_of(engine), signal.SIGSTOP)
            at = traffic.sent
            wait_until(lambda: sum(row.position for row in job.progress()) > at + 200, detail=job.status)
            traffic.finish()
            stops_within(engine, 6.0)
        assert flow.committed(spec) == {part.source: job.progress()[0].position for part in spec.partitions}


@pytest.mark.slow
def test_an_unresponsive_jvm_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm2.copy.driver.spark._ANSWER_TIMEOUT_S", 0.5)
    with engine_of() as engine, capture_logs() as logs:
        context = engine.spark.context(60)
        pid = pid_of(engine)
        os.kill(pid, signal.SIGSTOP)
        engine.spark.check_jvm()
        assert engine.spark.context(60) is not context
        assert not psutil.pid_exists(pid)
    assert any("not responded" in line.get("reason", "") for line in logs)


@pytest.mark.slow
def test_a_python_worker_is_reused_unless_an_internal_error_occurred_in_it() -> None:
    def copied(sound: bool | None) -> Callable[[Iterable[str]], Iterator[tuple[int, str]]]:
        def job(assignments: Iterable[str]) -> Iterator[tuple[int, str]]:
            from mm2.copy.executor import task  # noqa: PLC0415

            class Copier:
                """The part of a copier that `run` uses."""

                def __init__(self, *_args: object) -> None:
                    self.healthy = sound

                async def run(self) -> str:
                    assert self.healthy is not None
                    return "over"

            setattr(task, "Copier", Copier)  # noqa: B010  (in Spark's worker, not here)
            return ((os.getpid(), json.loads(line)["state"]) for line in task.run(assignments))

        return job

    assignment = json.dumps(asdict(Assignment("batch", "127.0.0.1", 1, "")))
    with engine_of() as engine:
        context = engine.spark.context(60)
        for sound, state in ((True, "stopped"), (False, "stopped"), (True, "stopped"), (None, "failed")):
            ((pid, reported),) = context.parallelize([assignment], 1).mapPartitions(copied(sound)).collect()
            assert reported == state
            # Several idle workers may exist; they are used in turn.
            later = {context.parallelize([0], 1).map(lambda _: os.getpid()).collect()[0] for _ in range(4)}
            assert (pid in later) is bool(sound)


@pytest.mark.slow
def test_a_python_worker_keeps_no_memory_of_finished_micro_batches(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    def left(_: int) -> tuple[int, int, int]:
        from mm2.copy.executor.copier import Copier  # noqa: PLC0415

        frozen = gc.get_freeze_count()
        gc.unfreeze()  # frozen objects are not in gc.get_objects()
        return os.getpid(), frozen, sum(type(one) is Copier for one in gc.get_objects())

    with engine_of() as engine, capture_logs() as logs:
        flow = Flow(engine, kafka_a, kafka_b, unique)
        topic = flow.topic()
        spec = flow.spec(topic, batch_duration_ms=300)
        with Traffic(flow.source, topic, per_second=200) as traffic, flow.copying(spec) as job:
            wait_until(lambda: job.status()["records"] > 1_000, detail=job.status)
            traffic.finish()
            flow.wait_until_copied(job, spec)
        context = engine.spark.context(60)
        found = {context.parallelize([0], 1).map(left).collect()[0] for _ in range(6)}
    assert not [line for line in logs if line["log_level"] == "error"]
    assert {(frozen, copiers) for _, frozen, copiers in found} == {(0, 0)}, found


@pytest.mark.parametrize("when", ["starting", pytest.param("up", marks=pytest.mark.slow)])
def test_a_frozen_jvm_is_stopped_at_any_time(when: str) -> None:
    engine = CopyEngine({})
    engine.start()
    if when == "up":
        engine.spark.context(60)
    wait_until(lambda: engine.spark.pid)
    os.kill(pid_of(engine), signal.SIGSTOP)
    stops_within(engine, 6.0)


@pytest.mark.slow
def test_without_java_the_job_reports_it_and_starts_once_java_is_available(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = os.environ.get("JAVA_HOME")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with capture_logs() as logs, engine_of() as engine:
        flow = Flow(engine, kafka_a, kafka_b, unique)
        topic = flow.topic()
        spec = flow.spec(topic)
        with flow.copying(spec) as job:
            wait_until(lambda: job.status()["troubles"])
            wanted = f"Spark needs Java 17 or newer, but JAVA_HOME is {tmp_path} and {tmp_path}/bin/java cannot be run"
            assert job.status()["troubles"] == [f"Spark does not start: {wanted}"]
            monkeypatch.delenv("JAVA_HOME") if home is None else monkeypatch.setenv("JAVA_HOME", home)
            flow.wait_until_copied(job, spec)
            wait_until(lambda: not job.status()["troubles"], detail=job.status)
    reported = [line for line in logs if line["event"] == "Spark does not start"]
    assert reported
    assert all(line["retry_in_s"] <= 10 for line in reported)


@pytest.mark.parametrize(
    ("master", "sentence"),
    [
        ("nonsense", f"{_ENDED}: Master must either be yarn or start with spark, k8s, or local"),
        ("local[none]", "Could not parse Master URL: 'local[none]'"),
    ],
)
def test_an_unknown_spark_master_is_reported(master: str, sentence: str, capfd: pytest.CaptureFixture[str]) -> None:
    with capture_logs() as logs, engine_of(spark__master=master) as engine:
        wait_until(lambda: engine.down, 30)
        assert str(engine.down) == f"Spark does not start: {sentence}"
    assert next(line["error"] for line in logs if line["event"] == "Spark does not start") == sentence
    assert capfd.readouterr().err == "", "one sentence and no traces"


def test_an_idle_driver_runs_no_jobs() -> None:
    """Each would be one of the few that Spark's web interface keeps, and a line of its event log."""
    with engine_of() as engine:
        tracker = engine.spark.context(timeout_s=60).statusTracker()
        wait_until(lambda: tracker.getJobIdsForGroup("mm2"), 60, what="the warm-up")
        time.sleep(11)
        assert len(tracker.getJobIdsForGroup("mm2")) == 1
        assert not tracker.getJobIdsForGroup(None)


def test_lanes_share_the_slots_of_local_mode() -> None:
    """Spark would queue jobs without a slot for ever, behind those of lanes that never end."""
    with engine_of(spark__master="local[2]") as engine:
        engine.spark.context(timeout_s=60)
        assert engine.slots.count == 2
