"""Steps of record processing that may fail, be retried and be tolerated (RetryWithToleranceOperator of Connect)."""

from __future__ import annotations

import random
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, Protocol, TypeVar

import structlog

from mm2.config.configdef import AbstractConfig, ConfigException
from mm2.connect.api import (
    ConnectError,
    DataError,
    IllegalWorkerStateError,
    RetriableError,
    SchemaBuilderError,
    SchemaProjectorError,
)
from mm2.connect.runtime.counters import ErrorCounters

log = structlog.get_logger(__name__)

_ERRORS: Final = "org.apache.kafka.connect.errors"
_NAMES: Final[Mapping[type[BaseException], str]] = {
    ConnectError: f"{_ERRORS}.ConnectException",
    DataError: f"{_ERRORS}.DataException",
    IllegalWorkerStateError: f"{_ERRORS}.IllegalWorkerStateException",
    RetriableError: f"{_ERRORS}.RetriableException",
    SchemaBuilderError: f"{_ERRORS}.SchemaBuilderException",
    SchemaProjectorError: f"{_ERRORS}.SchemaProjectorException",
    ConfigException: "org.apache.kafka.common.config.ConfigException",
}


def java_name(error: BaseException) -> str:
    """The name of the corresponding Java class; the dotted Python name if there is none."""
    kind = type(error)
    return _NAMES.get(kind) or (
        kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    )


def stack_trace(error: BaseException) -> str:
    """A trace like Java's: the first line has name and message, then follow the locations."""
    return f"{java_name(error)}: {error}\n" + "".join(traceback.format_exception(error))


T = TypeVar("T")
Result = TypeVar("Result")

_LEAST_DELAY_MS: Final = 300


class ProcessingStage(StrEnum):
    """The step that processes a record (org.apache.kafka.connect.runtime.errors.Stage)."""

    TASK_POLL = "TASK_POLL"
    TASK_PUT = "TASK_PUT"
    TRANSFORMATION = "TRANSFORMATION"
    KEY_CONVERTER = "KEY_CONVERTER"
    VALUE_CONVERTER = "VALUE_CONVERTER"
    HEADER_CONVERTER = "HEADER_CONVERTER"
    KAFKA_PRODUCE = "KAFKA_PRODUCE"
    KAFKA_CONSUME = "KAFKA_CONSUME"


#: In these stages any exception can be tolerated; in all others only a RetriableError.
_TOLERABLE: Final = frozenset(
    {
        ProcessingStage.TRANSFORMATION,
        ProcessingStage.KEY_CONVERTER,
        ProcessingStage.VALUE_CONVERTER,
        ProcessingStage.HEADER_CONVERTER,
    }
)


class Interrupted(Exception):
    """The task must stop while a step is still being retried: the record has neither failed nor been processed."""


class ProcessingContext(Generic[T]):
    """One record while it is processed: its original form, and its error."""

    __slots__ = ("attempt", "error", "executing_class", "original", "reported", "stage")

    def __init__(self, original: T) -> None:
        self.original = original
        self.stage = ProcessingStage.TASK_POLL
        #: Name of the class that processes it, the Java name if it has one.
        self.executing_class = ""
        self.attempt = 0
        self.error: BaseException | None = None
        #: Completes when all reporters have handled the error.
        self.reported: Future[None] | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """A step whose first attempt was made outside of the operator and failed."""

    stage: ProcessingStage
    error: Exception

    def before(self, operation: Callable[[], Result]) -> Callable[[], Result]:
        """An operation whose first attempt raises this error, for `RetryWithToleranceOperator.execute`."""
        errors = [self.error]

        def attempt() -> Result:
            if errors:
                raise errors.pop()
            return operation()

        return attempt


class ConversionFailed(Exception):
    """The first attempt to convert a record has failed."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed)
        self.failed = failed


class ErrorReporter(Protocol[T]):
    """Reports records that failed."""

    def report(self, context: ProcessingContext[T]) -> Future[None] | None:
        """The future of an asynchronous report, or None when it is complete; must not raise."""

    def close(self) -> None:
        """No more reports follow."""

    def abandon(self) -> None:
        """The task is cancelled: stop waiting. Any thread."""


@dataclass(frozen=True)
class Tolerance:
    """``errors.*`` of a connector; times in milliseconds."""

    retry_timeout_ms: int = 0
    retry_delay_max_ms: int = 60_000
    tolerates_all: bool = False
    log_enable: bool = False
    log_include_messages: bool = False

    @classmethod
    def of(cls, config: AbstractConfig) -> Tolerance:
        """The settings of a connector."""
        return cls(
            config.int("errors.retry.timeout"),
            config.int("errors.retry.delay.max.ms"),
            config.str("errors.tolerance").lower() == "all",
            config.bool("errors.log.enable"),
            config.bool("errors.log.include.messages"),
        )


class RetryWithToleranceOperator(Generic[T]):
    """Runs the steps of one task. Thread-safe.

    Deviations from Java: a RetriableError that remains after `errors.retry.timeout` counts as a failure like any other.
    Java drops the record silently even when no errors are tolerated. A task that is stopped during retries leaves the
    record to its successor; Java drops the record and commits its offset.
    """

    def __init__(self, tolerance: Tolerance, counters: ErrorCounters, stopping: threading.Event) -> None:
        self.tolerance = tolerance
        self._counters = counters
        self._stopping = stopping
        self._lock = threading.Lock()
        self._failures = 0
        self._reporters: list[ErrorReporter[T]] = []

    def add_reporter(self, reporter: ErrorReporter[T]) -> None:
        """Add a reporter."""
        self._reporters.append(reporter)

    @property
    def within_tolerance_limits(self) -> bool:
        """Whether the task may continue after the failures so far."""
        return self.tolerance.tolerates_all or not self._failures

    def execute(
        self,
        context: ProcessingContext[T],
        stage: ProcessingStage,
        executing_class: str,
        operation: Callable[[], Result],
    ) -> Result | None:
        """The result of ``operation``; None when it failed and that is tolerated, or when the record has failed before.

        Raises ConnectError when the failure is not tolerated; it has been reported then. Raises Interrupted.
        """
        if context.error is not None:
            return None
        context.stage, context.executing_class = stage, executing_class
        try:
            return operation()
        except RetriableError as error:
            if self.tolerance.retry_timeout_ms == 0:
                self._failed(context, error)
                return None
        except Exception as error:  # noqa: BLE001 - plugins may raise any exception
            self._failed(context, error)
            return None
        return self._repeat(context, operation)

    def execute_failed(
        self, context: ProcessingContext[T], stage: ProcessingStage, executing_class: str, error: BaseException
    ) -> Future[None]:
        """Report a failure outside of the operator; completes with all reports.

        Raises ConnectError when it is not tolerated.
        """
        context.stage, context.executing_class, context.error = stage, executing_class, error
        self._mark()
        self._counters.record_failures += 1
        reported = self._report(context)
        if not self.within_tolerance_limits:
            self._counters.record_errors += 1
            raise ConnectError("Tolerance exceeded in error handler") from error
        return reported

    def close(self) -> None:
        """Close the reporters."""
        for reporter in self._reporters:
            try:
                reporter.close()
            except Exception:
                log.exception("error reporter could not be closed")
        self._reporters.clear()

    def abandon(self) -> None:
        """The task is cancelled: reporters stop waiting. Any thread."""
        for reporter in list(self._reporters):
            reporter.abandon()

    def _repeat(self, context: ProcessingContext[T], operation: Callable[[], Result]) -> Result | None:
        """Retry after the first attempt has failed with a RetriableError."""
        timeout_ms = self.tolerance.retry_timeout_ms
        deadline = float("inf") if timeout_ms < 0 else time.monotonic() + timeout_ms / 1000
        context.attempt = 1
        while True:
            self._counters.record_failures += 1
            self._back_off(context.attempt, deadline)
            self._counters.retries += 1
            context.attempt += 1
            try:
                return operation()
            except RetriableError as error:
                if time.monotonic() >= deadline:
                    self._failed(context, error)
                    return None
                if self._stopping.is_set():
                    raise Interrupted from error
            except Exception as error:  # noqa: BLE001 - plugins may raise any exception
                self._failed(context, error)
                return None

    def _back_off(self, attempt: int, deadline: float) -> None:
        delay_ms: float = _LEAST_DELAY_MS << min(attempt - 1, 40)
        if delay_ms > self.tolerance.retry_delay_max_ms:
            delay_ms = random.uniform(0, self.tolerance.retry_delay_max_ms)
        self._stopping.wait(max(0.0, min(delay_ms / 1000, deadline - time.monotonic())))

    def _failed(self, context: ProcessingContext[T], error: Exception) -> None:
        context.error = error
        self._mark()
        self._counters.record_failures += 1
        self._counters.record_errors += 1
        context.reported = self._report(context)
        if context.stage not in _TOLERABLE and not isinstance(error, RetriableError):
            raise ConnectError("Unhandled exception in error handler") from error
        if not self.within_tolerance_limits:
            raise ConnectError("Tolerance exceeded in error handler") from error
        self._counters.records_skipped += 1

    def _mark(self) -> None:
        with self._lock:
            self._failures += 1
            self._counters.last_error_ms = int(time.time() * 1000)

    def _report(self, context: ProcessingContext[T]) -> Future[None]:
        pending = [future for reporter in self._reporters if (future := reporter.report(context)) is not None]
        if len(pending) == 1:
            return pending[0]
        all_done: Future[None] = Future()
        wait(pending)
        all_done.set_result(None)
        return all_done
