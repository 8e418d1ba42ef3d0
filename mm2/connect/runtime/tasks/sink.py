"""One sink task: poll its consumer, convert, transform, put; commit offsets of processed records (WorkerSinkTask).

Offsets are those of the consumed partitions, regardless of transformations of topic and partition.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from mm2.config.definitions.java_regex import PatternError, compile_java
from mm2.config.definitions.values import split_list
from mm2.config.keys.connector_keys import check_sink_topics
from mm2.connect.api import ConnectError, RetriableError, SinkTask
from mm2.connect.runtime.error_reporters import PendingReports, WorkerErrantRecordReporter
from mm2.connect.runtime.tasks.base import Equipment, WorkerTask
from mm2.connect.runtime.tasks.sink_offsets import SinkCommits, WorkerSinkTaskContext
from mm2.connect.runtime.tasks.sink_records import SinkBatch, SinkRecordConverter, original_of
from mm2.connect.runtime.tolerance import Interrupted
from mm2.connect.stores.config_state import TargetState
from mm2.kafka.consumer.consumer import Consumer
from mm2.kafka.consumer.membership import Topics
from mm2.kafka.consumer.records import ConsumerRecord
from mm2.kafka.errors import KafkaFailure, TimeoutFailure
from mm2.kafka.structs import TopicPartition

_POLL_S: Final = 1.0


@dataclass(frozen=True)
class SinkSetup:
    """The parts of a sink task in addition to those of all tasks."""

    task: SinkTask
    consumer: Consumer
    topics: Topics
    #: Resolves the task's configuration again.
    fresh_configs: Callable[[], Mapping[str, str]]
    #: Whether the task may report records.
    reports_errors: bool
    commit_interval_ms: int
    commit_timeout_ms: int


class _Stopping(Exception):
    """The task must stop while it waits for brokers."""


class WorkerSinkTask(WorkerTask):
    """All methods of the plugin are called on the task's thread, those of rebalances within the consumer's poll."""

    def __init__(self, equipment: Equipment, setup: SinkSetup) -> None:
        super().__init__(equipment, setup.task)
        self.task = setup.task
        self._consumer = setup.consumer
        self._topics = setup.topics
        assert equipment.counters.sink is not None  # noqa: S101 - made so by the worker
        self._sink_counters = equipment.counters.sink
        pending_reports = PendingReports()
        self._record_converter = SinkRecordConverter(
            self._converters,
            self._transformations,
            self._operator,
            pending_reports,
            keep_consumed=setup.reports_errors,
            on_topic=self._note_topic,
        )
        self._reporter = (
            WorkerErrantRecordReporter(
                self._operator, original=original_of, rebuild=self._record_converter.rebuild, pending=pending_reports
            )
            if setup.reports_errors
            else None
        )
        self._context = WorkerSinkTaskContext(
            self._consumer, setup.fresh_configs, lambda: self._announced_pause, self._reporter
        )
        self._batch = SinkBatch()
        self._commits = SinkCommits(
            self.task,
            self._consumer,
            self._context,
            self._batch,
            pending_reports,
            self.counters,
            self._sink_counters,
            self._log,
            interval_s=setup.commit_interval_ms / 1000,
            timeout_s=setup.commit_timeout_ms / 1000,
            is_cancelled=lambda: self._cancelled,
        )
        self._paused_for_redelivery = False
        #: The target state may have changed since; all pauses of partitions follow this, and `_follow_target`.
        self._announced_pause = False
        self._plugin_stopped = False
        self._topics_of_batch: set[str] = set()

    # -- lifecycle

    def _prepare(self) -> bool:
        return True

    def _start_plugin(self) -> None:
        self._consumer.subscribe(self._topics, self)
        self._start_called = True
        self.task.initialize(self._context)
        self.task.start(dict(self._configs))

    def _wake(self) -> None:
        self._consumer.wakeup()

    def _interrupt(self) -> None:
        # It may be waiting for brokers. While the plugin is busy the task stays in the group until
        # max.poll.interval.ms, as in Java: its partitions are not reassigned before that.
        self._consumer.give_up()
        # It may also be waiting for the brokers of the dead letter queue.
        self._operator.abandon()

    def _work(self) -> None:
        failed = True
        try:
            while not self._is_stopping:
                self._iterate()
            failed = False
        finally:
            self._close_partitions_at_the_end(failed=failed)

    def _iterate(self) -> None:
        self._commits.run_due()
        self._follow_target()
        if not self._is_stopping:
            self._poll()

    def _follow_target(self) -> None:
        """Pause or resume if requested; `put` is still called, without records."""
        paused = self._target is TargetState.PAUSED
        if paused is self._announced_pause:
            return
        self._announced_pause = paused
        if paused:
            self._consumer.pause(self._consumer.assignment())
            self._report_paused()
            self._context.commit_requested = True
        else:
            if not self._paused_for_redelivery:
                self._resume_all()
            self._report_resumed()

    def _close_partitions_at_the_end(self, *, failed: bool) -> None:
        try:
            self._close_partitions(self._commits.partitions, lost=False)
        except Exception:
            if not failed:
                raise
            self._log.exception("partitions of the failed task could not be closed")

    def _close(self, *, failed: bool) -> None:
        self._plugin_stopped = True
        if self._start_called:
            try:
                self.task.stop()
            except Exception:  # noqa: BLE001 - the task must end anyway
                self._log.exception("stop() of the task failed")
        self._sink_counters.partitions = 0
        self._consumer.close()
        self._transformations.close()
        self._converters.close()
        self._operator.close()

    # -- records

    def _poll(self) -> None:
        self._rewind()
        timeout_s = self._commits.due_in_s()
        if self._context.timeout_ms is not None and self._context.timeout_ms > 0:
            timeout_s = min(timeout_s, self._context.timeout_ms / 1000)
        self._context.timeout_ms = None
        try:
            records = self._consumer.poll(timeout_s)
        except _Stopping:
            return
        except KafkaFailure as failure:
            if self._cancelled:
                return  # its connections were closed
            raise ConnectError(f"Task {self.id} cannot continue reading: {failure}") from failure
        self._sink_counters.read += len(records)
        if self._is_stopping and not records:
            return
        try:
            self._convert_all(records)
        except Interrupted:
            return  # nothing of this batch is put; the successor consumes it again
        self._deliver()

    def _convert_all(self, records: list[ConsumerRecord]) -> None:
        if not records:
            return
        self._topics_of_batch.clear()
        for record in records:
            self._batch.add(record, self._record_converter.convert(record))
        self._commits.count_active()

    def _note_topic(self, topic: str) -> None:
        if topic not in self._topics_of_batch:
            self._topics_of_batch.add(topic)
            self._on_topic(topic)

    def _deliver(self) -> None:
        """Pass the batch to the task; it may be a retry."""
        batch = list(self._batch.records)
        began_s = time.monotonic()
        try:
            self.task.put(batch)
            if self._reporter is not None:
                self._reporter.raise_error()
        except RetriableError as error:
            self._log.error("RetriableException from SinkTask", reason=str(error), records=len(batch))
            if not self._paused_for_redelivery:
                # No new records until the retry; polling continues, to stay in the group and to keep the task's
                # timeout.
                self._paused_for_redelivery = True
                self._consumer.pause(self._consumer.assignment())
            return
        except Exception as error:
            self._log.error(
                "Task threw an uncaught and unrecoverable exception. Task is being killed and will not recover until "
                "manually restarted",
                reason=str(error),
            )
            raise ConnectError("Exiting WorkerSinkTask due to unrecoverable exception.") from error
        self._sink_counters.put_ms.add((time.monotonic() - began_s) * 1000)
        self._sink_counters.sent += len(batch)
        self.counters.batch.add(len(batch))
        self._commits.accept(self._batch.offsets)
        self._batch.clear()
        if self._paused_for_redelivery:
            self._paused_for_redelivery = False
            if not self._announced_pause:
                self._resume_all()

    def _resume_all(self) -> None:
        """Resume all partitions that the task has not paused itself."""
        self._consumer.resume(self._consumer.assignment() - self._context.paused)

    def _rewind(self) -> None:
        """Seek to the offsets that the task has requested."""
        wanted, self._context.offsets = self._context.offsets, {}
        for tp, offset in wanted.items():
            try:
                self._consumer.seek(tp, offset)
            except KeyError:
                self._log.warning("cannot rewind a partition that is not assigned", partition=str(tp), offset=offset)
                continue
            self._log.debug("rewound", partition=str(tp), offset=offset)
            self._commits.start_at(tp, offset)

    # -- rebalances, within the consumer's poll

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """See `mm2.kafka.consumer.consumer.ConsumerRebalanceListener`."""
        for tp in sorted(partitions):
            self._commits.start_at(tp, self._position(tp))
        was_paused, assignment = self._paused_for_redelivery, self._consumer.assignment()
        self._paused_for_redelivery = was_paused and bool(self._batch.records)
        if self._paused_for_redelivery:
            self._consumer.pause(assignment)
        else:
            if was_paused:
                self._resume_all()
            self._context.paused &= assignment
            self._consumer.pause(assignment if self._announced_pause else self._context.paused)
        self._sink_counters.partitions = len(assignment)
        if partitions:
            self.task.open(sorted(partitions))
            self._rewind()

    def _position(self, tp: TopicPartition) -> int:
        """The consumer's starting position; waits while brokers are unreachable."""
        while True:
            try:
                return self._consumer.position(tp, _POLL_S)
            except TimeoutFailure:
                if self._is_stopping:
                    raise _Stopping from None

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """See `mm2.kafka.consumer.consumer.ConsumerRebalanceListener`."""
        self._give_up(partitions, lost=False)

    def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """See `mm2.kafka.consumer.consumer.ConsumerRebalanceListener`."""
        self._give_up(partitions, lost=True)

    def _give_up(self, partitions: frozenset[TopicPartition], *, lost: bool) -> None:
        if self._plugin_stopped or not partitions:
            return
        self._close_partitions(partitions, lost=lost)
        # The next owner starts at the committed offsets.
        self._batch.drop(partitions)

    def _close_partitions(self, partitions: frozenset[TopicPartition], *, lost: bool) -> None:
        if not lost:
            self._commits.commit(partitions, closing=True)
        else:
            self.task.close(sorted(partitions))
        self._commits.forget(partitions)
        self._sink_counters.partitions = len(self._consumer.assignment() - partitions)


def topics_of(configs: Mapping[str, str]) -> Topics:
    """The topics in a sink connector's configuration. Raises ConfigException or ConnectError."""
    check_sink_topics(configs)
    named = [name for name in split_list(configs.get("topics", "")) if name]
    if named:
        return Topics(frozenset(named))
    pattern = configs["topics.regex"]
    try:
        matches = compile_java(pattern).fullmatch
    except PatternError as error:
        raise ConnectError(f"Invalid value {pattern} for configuration topics.regex: {error}") from error
    return Topics(matches=lambda topic: matches(topic) is not None)
