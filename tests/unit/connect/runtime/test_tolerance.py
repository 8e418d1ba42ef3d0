"""Retrying, tolerating and reporting failed steps."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from mm2.config.configdef import AbstractConfig
from mm2.config.keys.connector_keys import SOURCE_CONNECTOR_CONFIG
from mm2.connect.api import ConnectError, DataError, RetriableError
from mm2.connect.runtime.counters import ErrorCounters
from mm2.connect.runtime.tolerance import (
    Failed,
    Interrupted,
    ProcessingContext,
    ProcessingStage,
    RetryWithToleranceOperator,
    Tolerance,
)


class Noted:
    """A reporter."""

    def __init__(self, outcome: Future[None] | None = None) -> None:
        self.seen: list[tuple[str, str, str]] = []
        self.outcome = outcome
        self.closed = False

    def report(self, context: ProcessingContext[str]) -> Future[None] | None:
        self.seen.append((context.original, context.stage, repr(context.error)))
        return self.outcome

    def close(self) -> None:
        self.closed = True

    def abandon(self) -> None:
        self.closed = True


class Bench:
    def __init__(self, **tolerance: object) -> None:
        self.counters = ErrorCounters()
        self.stopping = threading.Event()
        self.noted = Noted()
        settings = Tolerance(**tolerance)  # type: ignore[arg-type]
        self.operator: RetryWithToleranceOperator[str] = RetryWithToleranceOperator(
            settings, self.counters, self.stopping
        )
        self.operator.add_reporter(self.noted)

    def run(self, step: Callable[[], object], stage: ProcessingStage = ProcessingStage.VALUE_CONVERTER) -> object:
        return self.operator.execute(ProcessingContext("record"), stage, "Some", step)


class Flaky:
    def __init__(self, failures: int, error: Exception) -> None:
        self.failures, self.error, self.calls = failures, error, 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error
        return "done"


def test_the_first_failure_is_reported_and_final_when_nothing_is_tolerated() -> None:
    bench = Bench()
    with pytest.raises(ConnectError, match="Tolerance exceeded in error handler") as raised:
        bench.run(Flaky(1, DataError("bad")))
    assert isinstance(raised.value.__cause__, DataError)
    assert bench.noted.seen == [("record", "VALUE_CONVERTER", "DataError('bad')")]
    assert (bench.counters.record_errors, bench.counters.records_skipped) == (1, 0)
    assert not bench.operator.within_tolerance_limits


def test_any_exception_of_a_converter_is_tolerated_but_elsewhere_only_retriable_ones() -> None:
    bench = Bench(tolerates_all=True)
    assert bench.run(Flaky(1, ValueError("odd"))) is None
    assert bench.run(Flaky(1, RetriableError("soon")), ProcessingStage.KAFKA_CONSUME) is None
    assert bench.counters.records_skipped == 2
    with pytest.raises(ConnectError, match="Unhandled exception in error handler"):
        bench.run(Flaky(1, ValueError("odd")), ProcessingStage.TASK_PUT)


def test_a_failed_record_is_not_processed_further() -> None:
    bench = Bench(tolerates_all=True)
    context = ProcessingContext("record")
    step = Flaky(9, ValueError("odd"))
    for stage in (ProcessingStage.KEY_CONVERTER, ProcessingStage.VALUE_CONVERTER):
        assert bench.operator.execute(context, stage, "Some", step) is None
    assert step.calls == 1
    assert len(bench.noted.seen) == 1
    assert context.stage is ProcessingStage.KEY_CONVERTER


def test_retriable_errors_are_retried_within_the_timeout_and_others_are_not() -> None:
    bench = Bench(retry_timeout_ms=5000, retry_delay_max_ms=20)
    step = Flaky(3, RetriableError("soon"))
    assert bench.run(step) == "done"
    assert (step.calls, bench.counters.retries, bench.counters.record_errors) == (4, 3, 0)
    with pytest.raises(ConnectError):
        bench.run(Flaky(1, ValueError("odd")))


def test_a_retriable_error_beyond_the_timeout_is_a_failure_also_without_tolerance() -> None:
    bench = Bench(retry_timeout_ms=60, retry_delay_max_ms=20)
    with pytest.raises(ConnectError, match="Tolerance exceeded"):
        bench.run(Flaky(10**9, RetriableError("never")))
    with pytest.raises(ConnectError, match="Tolerance exceeded"):
        Bench().run(Flaky(1, RetriableError("never")))


class Waits(threading.Event):
    """Notes the delays instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.delays_s: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.delays_s.append(timeout or 0.0)
        return False


@pytest.mark.parametrize(
    ("given", "calls", "longest_s"),
    [
        ({}, 1, (0, 0)),
        ({"errors.retry.timeout": "600000"}, 5, (2.4, 2.4)),
        ({"errors.retry.timeout": "600000", "errors.retry.delay.max.ms": "20"}, 5, (0, 0.02)),
    ],
    ids=["default", "errors.retry.timeout", "errors.retry.delay.max.ms"],
)
def test_a_connector_s_settings_decide_on_retries(
    given: dict[str, str], calls: int, longest_s: tuple[float, float]
) -> None:
    waits, step = Waits(), Flaky(4, RetriableError("soon"))
    config = AbstractConfig(SOURCE_CONNECTOR_CONFIG, {"name": "c", "connector.class": "X", **given})
    operator: RetryWithToleranceOperator[str] = RetryWithToleranceOperator(Tolerance.of(config), ErrorCounters(), waits)
    with contextlib.suppress(ConnectError):
        operator.execute(ProcessingContext("record"), ProcessingStage.VALUE_CONVERTER, "Some", step)
    assert step.calls == calls
    assert longest_s[0] <= max(waits.delays_s, default=0) <= longest_s[1]


def test_stopping_ends_endless_retries_at_once_and_leaves_the_record_to_the_successor() -> None:
    bench = Bench(retry_timeout_ms=-1, tolerates_all=True)
    step = Flaky(10**9, RetriableError("never"))
    threading.Timer(0.1, bench.stopping.set).start()
    began = time.monotonic()
    with pytest.raises(Interrupted):
        bench.run(step)
    assert time.monotonic() - began < 60
    assert step.calls >= 2
    assert not bench.noted.seen
    assert bench.counters.records_skipped == 0


def test_an_external_failure_is_reported_and_finished_with_its_report() -> None:
    bench = Bench(tolerates_all=True)
    under_way: Future[None] = Future()
    bench.noted.outcome = under_way
    reported = bench.operator.execute_failed(
        ProcessingContext("r"), ProcessingStage.TASK_PUT, "SinkTask", ValueError("no")
    )
    assert not reported.done()
    under_way.set_result(None)
    assert reported.done()
    with pytest.raises(ConnectError):
        Bench().operator.execute_failed(ProcessingContext("r"), ProcessingStage.TASK_PUT, "SinkTask", ValueError("no"))


def test_reporters_are_closed_even_when_one_cannot_be() -> None:
    bench = Bench()

    class Stuck(Noted):
        def close(self) -> None:
            raise OSError("stuck")

    last = Noted()
    bench.operator.add_reporter(Stuck())
    bench.operator.add_reporter(last)
    bench.operator.close()
    assert bench.noted.closed
    assert last.closed


def test_a_first_attempt_that_was_made_elsewhere_counts_as_one() -> None:
    bench = Bench(retry_timeout_ms=5000)
    flaky = Flaky(0, RetriableError("again"))
    failed = Failed(ProcessingStage.VALUE_CONVERTER, RetriableError("at first"))
    assert bench.run(failed.before(flaky)) == bench.run(flaky)
    assert (flaky.calls, bench.counters.record_failures, bench.counters.retries) == (2, 1, 1)

    strict = Bench()
    with pytest.raises(ConnectError, match="Tolerance exceeded"):
        strict.run(Failed(ProcessingStage.VALUE_CONVERTER, DataError("bad")).before(flaky))
    assert flaky.calls == 2
