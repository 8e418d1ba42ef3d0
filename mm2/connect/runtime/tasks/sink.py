"""One sink task: poll its consumer, convert, transform, put; commit offsets of processed records (WorkerSinkTask).

Offsets are those of the consumed partitions, regardless of transformations of topic and partition.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Self, TypeVar

import structlog

from mm2.config.connector_keys import check_sink_topics
from mm2.config.java_regex import PatternError, compile_java
from mm2.config.values import split_list
from mm2.connect.api import (
    ConnectError,
    Headers,
    OffsetAndMetadata,
    RetriableError,
    SinkRecord,
    SinkTask,
    TimestampType,
)
from mm2.connect.data.record import NO_HEADERS, Header
from mm2.connect.data.schema import SchemaAndValue
from mm2.connect.runtime.errors.reporters import PendingReports, WorkerErrantRecordReporter
from mm2.connect.runtime.errors.tolerance import Failed, Interrupted, ProcessingContext, ProcessingStage
from mm2.connect.runtime.tasks.base import Equipment, WorkerTask
from mm2.connect.runtime.tasks.sink_context import WorkerSinkTaskContext
from mm2.connect.stores.config_state import TargetState
from mm2.kafka.consumer.consumer import Consumer
from mm2.kafka.consumer.membership import Topics
from mm2.kafka.consumer.records import ConsumerRecord
from mm2.kafka.errors import KafkaFailure, TimeoutFailure
from mm2.kafka.structs import TopicPartition

log = structlog.get_logger(__name__)

T = TypeVar("T")

_NO_TIMESTAMP: Final = -1
_POLL_S: Final = 1.0
Offsets = dict[TopicPartition, OffsetAndMetadata]


@dataclass(frozen=True)
class InternalSinkRecord(SinkRecord):
    """A record that keeps its consumed form through transformations."""

    read: ConsumerRecord | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(
        cls, record: ConsumerRecord, key: SchemaAndValue, value: SchemaAndValue, headers: Headers, *, keep: bool
    ) -> Self:
        """A record after conversion; ``keep``: keep the consumed record, too."""
        topic, partition = record.topic_partition
        has_timestamp = record.timestamp != _NO_TIMESTAMP
        made = object.__new__(cls)
        # The assignments that dataclass would generate, field by field, take three times as long.
        object.__setattr__(
            made,
            "__dict__",
            {
                "topic": topic,
                "partition": partition,
                "key": key.value,
                "value": value.value,
                "kafka_offset": record.offset,
                "headers": headers,
                "timestamp": record.timestamp if has_timestamp else None,
                "timestamp_type": _timestamp_type(record),
                "key_schema": key.schema,
                "value_schema": value.schema,
                "original_topic": topic,
                "original_kafka_partition": partition,
                "original_kafka_offset": record.offset,
                "read": record if keep else None,
            },
        )
        return made


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
    """The task must stop, so there is no need to wait any longer."""


class WorkerSinkTask(WorkerTask):
    """All methods of the plugin are called on the task's thread, those of rebalances within the consumer's poll."""

    def __init__(self, equipment: Equipment, setup: SinkSetup) -> None:
        super().__init__(equipment, setup.task)
        self.task = setup.task
        self._consumer = setup.consumer
        self._topics = setup.topics
        self._commit_interval_s = setup.commit_interval_ms / 1000
        self._commit_timeout_s = setup.commit_timeout_ms / 1000
        assert equipment.counters.sink is not None  # noqa: S101 - made so by the worker
        self._figures = equipment.counters.sink
        self._pending_reports = PendingReports()
        self._reporter = (
            WorkerErrantRecordReporter(
                self._operator, original=_original_of, rebuild=self._rebuilt, pending=self._pending_reports
            )
            if setup.reports_errors
            else None
        )
        self._context = WorkerSinkTaskContext(
            self._consumer, setup.fresh_configs, lambda: self._shall_pause, self._reporter
        )
        #: Records for the next ``put``.
        self._batch: list[SinkRecord] = []
        #: Position after the last record of the batch, by partition.
        self._batch_offsets: Offsets = {}
        #: Position after the last record that the task has accepted, and the committed offset.
        self._current: Offsets = {}
        self._last_committed: Offsets = {}
        self._paused_for_redelivery = False
        self._announced_pause = False
        self._subscribed = False
        self._plugin_stopped = False

        self._committing = False
        self._commit_sequence = 0
        self._commit_began_s = 0.0
        self._next_commit_s = time.monotonic() + self._commit_interval_s

    # -- lifecycle

    def _prepare(self) -> bool:
        return True

    def _start_plugin(self) -> None:
        self._consumer.subscribe(self._topics, self)
        self._subscribed = True
        self._start_called = True
        self.task.initialize(self._context)
        self.task.start(dict(self._configs))

    def _wake(self) -> None:
        self._consumer.wakeup()

    def _cut_off(self) -> None:
        # It may be waiting for brokers. While the plugin is busy the task stays in the group until
        # max.poll.interval.ms, as in Java: its partitions are not reassigned before that.
        self._consumer.give_up()
        # It may also be waiting for the brokers of the dead letter queue.
        self._operator.abandon()

    @property
    def _shall_pause(self) -> bool:
        return self._target is TargetState.PAUSED

    def _work(self) -> None:
        failed = True
        try:
            while not self._is_stopping:
                self._iterate()
            failed = False
        finally:
            self._close_partitions_at_the_end(failed=failed)

    def _iterate(self) -> None:
        now = time.monotonic()
        if not self._committing and (self._context.commit_requested or now >= self._next_commit_s):
            self._commit(now, self._consumer.assignment(), closing=False)
            self._next_commit_s = now + self._commit_interval_s
            self._context.commit_requested = False
        if self._committing and now >= self._commit_began_s + self._commit_timeout_s:
            self._log.warning("Commit of offsets timed out", sequence=self._commit_sequence)
            self.counters.committed(now - self._commit_began_s, failed=True)
            self._committing = False
        self._follow_target()
        if not self._is_stopping:
            self._poll(max(0.0, self._next_commit_s - time.monotonic()))

    def _follow_target(self) -> None:
        """Pause or resume if requested; `put` is still called, without records."""
        paused = self._shall_pause
        if paused is self._announced_pause:
            return
        self._announced_pause = paused
        if paused:
            self._consumer.pause(self._consumer.assignment())
            self._say_paused()
            self._context.commit_requested = True
        else:
            if not self._paused_for_redelivery:
                self._resume_all()
            self._say_resumed()

    def _close_partitions_at_the_end(self, *, failed: bool) -> None:
        try:
            self._close_partitions(frozenset(self._current), lost=False)
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
        self._figures.partitions = 0
        self._consumer.close()
        self._transformations.close()
        self._converters.close()
        self._operator.close()

    # -- records

    def _poll(self, timeout_s: float) -> None:
        self._rewind()
        if self._context.timeout_ms is not None and self._context.timeout_ms > 0:
            timeout_s = min(timeout_s, self._context.timeout_ms / 1000)
        self._context.timeout_ms = None
        if self._context.commit_requested and not self._committing:
            timeout_s = 0.0
        try:
            records = self._consumer.poll(timeout_s)
        except _Stopping:
            return
        except KafkaFailure as failure:
            if self._cancelled:
                return  # its connections were closed
            raise ConnectError(f"Task {self.id} cannot continue reading: {failure}") from failure
        self._figures.read += len(records)
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
        for record in records:
            converted = self._convert(record)
            self._batch_offsets[record.topic_partition] = OffsetAndMetadata(record.offset + 1)
            if converted is not None:
                self._batch.append(converted)
        self._count_active()

    def _convert(self, record: ConsumerRecord) -> SinkRecord | None:
        """The record for the task; None when it is filtered, or its conversion failed and that is tolerated."""
        topic, converters = record.topic_partition.topic, self._converters
        stage = ProcessingStage.KEY_CONVERTER
        try:
            key = converters.key.to_connect_data(topic, record.headers, record.key)
            stage = ProcessingStage.VALUE_CONVERTER
            value = converters.value.to_connect_data(topic, record.headers, record.value)
            stage = ProcessingStage.HEADER_CONVERTER
            headers = self._headers(topic, record) if record.headers else NO_HEADERS
        except Exception as error:  # noqa: BLE001 - plugins may raise any exception
            return self._convert_again(record, Failed(stage, error))
        made = self._made(record, key, value, headers)
        if not self._transformations.stages:
            return made
        context = ProcessingContext(record)
        return self._noted(context, self._transformations.apply(context, made))

    def _convert_again(self, record: ConsumerRecord, failed: Failed) -> SinkRecord | None:
        """Like `_convert`, after a failed first attempt."""
        topic, converters = record.topic_partition.topic, self._converters
        context = ProcessingContext(record)

        def execute(stage: ProcessingStage, executing_class: str, operation: Callable[[], T]) -> T | None:
            if failed.stage is stage:
                operation = failed.before(operation)
            return self._operator.execute(context, stage, executing_class, operation)

        key = execute(
            ProcessingStage.KEY_CONVERTER,
            converters.key_class,
            lambda: converters.key.to_connect_data(topic, record.headers, record.key),
        )
        value = execute(
            ProcessingStage.VALUE_CONVERTER,
            converters.value_class,
            lambda: converters.value.to_connect_data(topic, record.headers, record.value),
        )
        headers = execute(
            ProcessingStage.HEADER_CONVERTER,
            converters.header_class,
            lambda: self._headers(topic, record) if record.headers else NO_HEADERS,
        )
        if key is None or value is None or headers is None:
            return self._noted(context, None)
        return self._noted(context, self._transformations.apply(context, self._made(record, key, value, headers)))

    def _noted(self, context: ProcessingContext[ConsumerRecord], converted: SinkRecord | None) -> SinkRecord | None:
        """Return ``converted``; if its error report is incomplete, commits of later offsets wait for the report."""
        if converted is None and context.reported is not None and not context.reported.done():
            self._pending_reports.add(context.original.topic_partition, context.reported)
        return converted

    def _made(
        self, record: ConsumerRecord, key: SchemaAndValue, value: SchemaAndValue, headers: Headers
    ) -> InternalSinkRecord:
        if record.timestamp < _NO_TIMESTAMP:
            raise ConnectError(f"Invalid record timestamp {record.timestamp}")
        self._note_topic(record.topic_partition.topic)
        return InternalSinkRecord.of(record, key, value, headers, keep=self._reporter is not None)

    def _headers(self, topic: str, record: ConsumerRecord) -> Headers:
        convert = self._converters.header.to_connect_header
        headers = []
        for name, data in record.headers:
            found = convert(topic, name, data)
            headers.append(Header(name, found.value, found.schema))
        return Headers(headers)

    def _deliver(self) -> None:
        """Pass the batch to the task; it may be a retry."""
        batch = list(self._batch)
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
        self._figures.put_ms.add((time.monotonic() - began_s) * 1000)
        self._figures.sent += len(batch)
        self.counters.batch.add(len(batch))
        self._current.update(self._batch_offsets)
        self._drop_batch()
        if self._paused_for_redelivery:
            self._paused_for_redelivery = False
            if not self._shall_pause:
                self._resume_all()

    def _drop_batch(self) -> None:
        self._batch_offsets.clear()
        self._batch.clear()

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
            self._last_committed[tp] = self._current[tp] = OffsetAndMetadata(offset)

    # -- rebalances, within the consumer's poll

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """See `mm2.kafka.consumer.consumer.ConsumerRebalanceListener`."""
        for tp in sorted(partitions):
            self._last_committed[tp] = self._current[tp] = OffsetAndMetadata(self._position(tp))
        was_paused, assignment = self._paused_for_redelivery, self._consumer.assignment()
        self._paused_for_redelivery = was_paused and bool(self._batch)
        if self._paused_for_redelivery:
            self._consumer.pause(assignment)
        else:
            if was_paused:
                self._resume_all()
            self._context.paused &= assignment
            self._consumer.pause(assignment if self._shall_pause else self._context.paused)
        self._figures.partitions = len(assignment)
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
        self._drop_from_batch(partitions)

    def _drop_from_batch(self, partitions: Collection[TopicPartition]) -> None:
        self._batch = [
            record
            for record in self._batch
            if TopicPartition(record.original_topic, record.original_kafka_partition) not in partitions
        ]
        for tp in partitions:
            self._batch_offsets.pop(tp, None)

    def _close_partitions(self, partitions: frozenset[TopicPartition], *, lost: bool) -> None:
        if not lost:
            self._commit(time.monotonic(), partitions, closing=True)
        else:
            self.task.close(sorted(partitions))
        self._pending_reports.forget(partitions)
        for tp in partitions:
            self._current.pop(tp, None)
            self._last_committed.pop(tp, None)
        self._figures.partitions = len(self._consumer.assignment() - partitions)

    # -- commits

    def _commit(self, now: float, partitions: Collection[TopicPartition], *, closing: bool) -> None:
        """Commit the offsets that the task allows; ``closing``: the partitions are revoked afterwards."""
        # Committing past a record that is not yet written to the dead letter queue could lose it.
        incomplete = self._pending_reports.wait_for(partitions, self._commit_timeout_s)
        if incomplete:
            self._log.warning("offset commit waits for dead letters", partitions=_names(incomplete))
        offsets = {tp: offset for tp, offset in self._current.items() if tp in partitions}
        if not offsets:
            return
        self._committing = True
        self._commit_sequence += 1
        self._commit_began_s = now
        self._figures.commit_sequence = self._commit_sequence
        sequence = self._commit_sequence
        committed = {tp: offset for tp, offset in self._last_committed.items() if tp in partitions}
        provided = self._ask_task(offsets, committed, partitions, closing=closing)
        if provided is None:
            return
        to_commit = self._committable(provided, offsets, committed)
        to_commit |= {tp: offset for tp, offset in committed.items() if tp in incomplete}
        if not provided or to_commit == committed:
            self._log.debug("nothing to commit", sequence=sequence)
            self._committed(sequence, None, None)
        elif self._cancelled:
            self._log.info("no final offset commit, the task was cancelled")
        elif closing:
            self._commit_and_wait(sequence, to_commit)
        else:
            self._consumer.commit_async(
                to_commit, lambda failure: self._committed(sequence, failure, to_commit if failure is None else None)
            )

    def _ask_task(
        self, offsets: Offsets, committed: Offsets, partitions: Collection[TopicPartition], *, closing: bool
    ) -> Mapping[TopicPartition, OffsetAndMetadata] | None:
        """The offsets that the task allows to commit; None when the task raised an exception."""
        try:
            return self.task.pre_commit(dict(offsets))
        except Exception as error:  # noqa: BLE001 - a failed commit does not end the task
            if closing:
                self._log.warning("Offset commit failed during close", reason=repr(error))
            else:
                self._log.exception("Offset commit failed, rewinding to last committed offsets")
                for tp, offset in committed.items():
                    self._consumer.seek(tp, offset.offset)
                self._current.update(committed)
                # Records waiting for a retry are consumed again after the rewind; otherwise later offsets would be
                # committed before them. Java puts them immediately.
                self._drop_from_batch(committed)
            self._committed(self._commit_sequence, error, None)
            return None
        finally:
            if closing:
                self.task.close(sorted(partitions))

    def _committable(
        self,
        provided: Mapping[TopicPartition, OffsetAndMetadata],
        offsets: Offsets,
        committed: Offsets,
    ) -> Offsets:
        assignment = self._consumer.assignment()
        to_commit = dict(committed)
        for tp, offset in provided.items():
            if tp not in assignment:
                self._log.warning("Ignoring invalid task provided offset: partition not assigned", partition=str(tp))
            elif tp not in to_commit or tp not in offsets:
                self._log.debug("Ignoring invalid task provided offset: partition not requested", partition=str(tp))
            elif offset.offset <= offsets[tp].offset:
                to_commit[tp] = offset
            else:
                self._log.warning(
                    "Ignoring invalid task provided offset: not yet consumed",
                    partition=str(tp),
                    offset=offset.offset,
                    consumed=offsets[tp].offset,
                )
        return to_commit

    def _commit_and_wait(self, sequence: int, offsets: Offsets) -> None:
        try:
            self._consumer.commit_sync(offsets)
        except KafkaFailure as failure:
            self._committed(sequence, failure, None)
        else:
            self._committed(sequence, None, offsets)

    def _committed(self, sequence: int, error: BaseException | None, offsets: Offsets | None) -> None:
        """A commit has completed or failed; the result is ignored if a newer commit was started."""
        if sequence != self._commit_sequence:
            self._log.debug("commit response is outdated", sequence=sequence, newest=self._commit_sequence)
            self._figures.commits_skipped += 1
            return
        took_s = time.monotonic() - self._commit_began_s
        if error is not None:
            self._log.error("Commit of offsets failed", sequence=sequence, reason=str(error))
        elif offsets is not None:
            self._log.debug("offsets committed", sequence=sequence, partitions=len(offsets))
            self._last_committed.update({tp: offset for tp, offset in offsets.items() if tp in self._last_committed})
            self._figures.commits_completed += 1
            self._count_active()
        self.counters.committed(took_s, failed=error is not None)
        self._committing = False

    def _count_active(self) -> None:
        consumed = {**self._current, **self._batch_offsets}
        behind = sum(
            offset.offset - self._last_committed[tp].offset
            for tp, offset in consumed.items()
            if tp in self._last_committed
        )
        self._figures.active.add(max(0, behind))

    # -- records that the task reports

    def _rebuilt(self, record: SinkRecord) -> ConsumerRecord:
        """The bytes of a record that the task has made itself, or kept from an earlier batch."""
        topic, converters = record.topic, self._converters
        headers = [
            (header.key, converters.header.from_connect_header(topic, header.key, header.schema, header.value))
            for header in record.headers
        ]
        return ConsumerRecord(
            TopicPartition(record.original_topic, record.original_kafka_partition),
            record.original_kafka_offset,
            converters.key.from_connect_data(topic, headers, record.key_schema, record.key),
            converters.value.from_connect_data(topic, headers, record.value_schema, record.value),
            tuple(headers),
            _NO_TIMESTAMP if record.timestamp is None else record.timestamp,
            record.timestamp_type is TimestampType.LOG_APPEND_TIME,
        )


def _names(partitions: Iterable[TopicPartition]) -> list[str]:
    return sorted(map(str, partitions))


def _original_of(record: SinkRecord) -> ConsumerRecord | None:
    return record.read if isinstance(record, InternalSinkRecord) else None


def _timestamp_type(record: ConsumerRecord) -> TimestampType:
    if record.timestamp == _NO_TIMESTAMP:
        return TimestampType.NO_TIMESTAMP_TYPE
    return TimestampType.LOG_APPEND_TIME if record.is_log_append_time else TimestampType.CREATE_TIME


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
