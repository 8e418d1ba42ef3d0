"""One source task: poll, transform, convert, produce (AbstractWorkerSourceTask and WorkerSourceTask).

This module implements at-least-once; `mm2.connect.runtime.tasks.exactly_once` implements exactly-once.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog

from mm2.connect.api import (
    ConnectError,
    RetriableError,
    SourceRecord,
    SourceTask,
    SourceTaskContext,
)
from mm2.connect.runtime.sending import Outgoing, RecordSender, Sent, size_of
from mm2.connect.runtime.tasks.base import Equipment, WorkerTask
from mm2.connect.runtime.tasks.conversion import SourceRecordConverter
from mm2.connect.runtime.tasks.submitted import Committable, PartitionKey, Submitted, SubmittedRecords, key_of
from mm2.connect.runtime.tolerance import (
    ConversionFailed,
    Failed,
    Interrupted,
    ProcessingContext,
    ProcessingStage,
)
from mm2.connect.runtime.topic_creation import TopicCreation
from mm2.connect.stores import internal_json
from mm2.connect.stores.offset_store import FLUSH_S, ConnectorOffsetReader, OffsetStore
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.producer.producer import RecordMetadata
from mm2.kafka.records.record import Record

#: Pause after a retriable failure of poll or of a send, or after a poll that returned nothing immediately.
_BACKOFF_S: Final = 0.1
_CLOSE_S: Final = 30.0
#: Maximum number of records that are converted before the first of them is sent.
_RUN: Final = 1000
_PRODUCER: Final = "org.apache.kafka.clients.producer.KafkaProducer"


@dataclass(frozen=True)
class OwnershipGuard:
    """Checks of an exactly-once task in its group. Both wait until ``stopping()``, and raise ConnectError."""

    #: Before its producer starts: fence the producers of older task configs.
    fence: Callable[[Callable[[], bool]], None]
    #: After that: check that the task is still assigned to this worker and its task configs are the newest.
    confirm: Callable[[Callable[[], bool]], None]


@dataclass(frozen=True)
class SourceSetup:
    """The parts of a source task in addition to those of all tasks, for both guarantees."""

    task: SourceTask
    context: SourceTaskContext
    offset_store: OffsetStore
    #: Whether only this task uses the store, so that it is started and stopped with the task.
    owns_store: bool
    offset_reader: ConnectorOffsetReader
    #: The task's own connections, opened with the first record.
    cluster: Cluster = field(repr=False)
    sender: RecordSender = field(repr=False)
    #: None: topics are created by the brokers.
    topic_creation: TopicCreation | None = None
    #: Further connections that are closed with the task.
    other_clusters: tuple[Cluster, ...] = ()
    #: With exactly-once support only.
    guard: OwnershipGuard | None = None


class PluginStop:
    """Calls the plugin's ``stop`` once: on the thread that requests the stop during ``poll``, or on the task's thread."""

    def __init__(
        self,
        task: SourceTask,
        as_plugin: Callable[[], AbstractContextManager[None]],
        log_context: Mapping[str, Any],
        log: structlog.stdlib.BoundLogger,
    ) -> None:
        self._task = task
        self._as_plugin = as_plugin
        self._log_context = log_context
        self._log = log
        self._lock = threading.Lock()
        self._called = False
        self._done = threading.Event()

    def call(self) -> None:
        """Call it, or wait until an earlier call has returned."""
        with self._lock:
            first, self._called = not self._called, True
        if not first:
            self._done.wait()
            return
        try:
            with structlog.contextvars.bound_contextvars(**self._log_context), self._as_plugin():
                self._task.stop()
        except Exception:  # noqa: BLE001 - the task must end anyway
            self._log.exception("stop() of the task failed")
        finally:
            self._done.set()

    def await_call(self) -> None:
        """If it has been called, wait until it has returned."""
        with self._lock:
            called = self._called
        if called:
            self._done.wait()


class AbstractWorkerSourceTask(WorkerTask):
    """What source tasks of both guarantees share.

    The plugin's ``stop`` is called as soon as a stop is requested, even during ``poll``. Java calls it on the task's
    thread after ``poll`` has returned, so a long poll exceeds the grace period.
    """

    def __init__(self, equipment: Equipment, setup: SourceSetup) -> None:
        super().__init__(equipment, setup.task)
        self.task = setup.task
        self._context = replace(setup.context, report=self._report, confirm_ownership=self._confirm_ownership)
        self._store = setup.offset_store
        self._owns_store = setup.owns_store
        self._offset_reader = setup.offset_reader
        self._cluster = setup.cluster
        self._sender = setup.sender
        self._topic_creation = setup.topic_creation
        self._other_clusters = setup.other_clusters
        self._guard = setup.guard
        assert equipment.counters.source is not None  # noqa: S101 - made so by the worker
        self._source_counters = equipment.counters.source
        self._notifies_records = type(setup.task).commit_record is not SourceTask.commit_record
        self._to_send: list[SourceRecord] | None = None
        self._active = 0
        self._polling = False
        self._disconnecting = False
        self._plugin_stop = PluginStop(setup.task, self._as_plugin, self._log_context, self._log)
        self._record_converter = SourceRecordConverter(self._converters, self._operator)

    # -- specific to the guarantee, all on the task's thread except commit_offsets and _sent

    @abstractmethod
    def commit_offsets(self) -> bool:
        """Called by the worker every offset.flush.interval.ms; False when it failed (it is retried)."""

    @abstractmethod
    def _before_send(self, record: SourceRecord, topic: str) -> Submitted | None:
        """A record is about to be sent to ``topic``."""

    @abstractmethod
    def _before_run(self, submitted: Sequence[Submitted]) -> None:
        """Like `_before_send`, for several records that are sent together."""

    @abstractmethod
    def _run_sent(self, submitted: Sequence[Submitted], sent: Sent) -> None:
        """Like `_sent`, for several records that were sent together."""

    @abstractmethod
    def _sent(self, record: SourceRecord, submitted: Submitted | None, metadata: RecordMetadata) -> None:
        """A record was acknowledged; on the sender's thread."""

    @abstractmethod
    def _send_failed(
        self, context: ProcessingContext[SourceRecord], submitted: Submitted | None, failure: KafkaFailure
    ) -> None:
        """A record could not be written; on the sender's thread, or the task's, where an exception fails the task."""

    @abstractmethod
    def _dropped(self, record: SourceRecord) -> None:
        """A record is not sent: it was filtered, or it failed and that is tolerated. Its offset is not committed."""

    @abstractmethod
    def _final_commit(self, *, failed: bool) -> None:
        """Commit what has been sent, before the task stops."""

    def _not_sent(self, submitted: Submitted | None) -> None:
        """The record was not sent and will be retried."""
        return

    def _dispatched(self, record: SourceRecord) -> None:
        """A record was passed to the sender."""
        return

    def _sends_together(self, topic: str) -> bool:
        """Whether records for a topic may be sent together, without a step between them."""
        return True

    def _claim(self) -> None:
        """Initialize the producer, between fencing and the check that the task is still assigned here."""
        return

    def _enter_loop(self) -> None:
        """Called before the first poll, and before the first one after a pause."""
        return

    def _before_poll(self) -> None:
        """Raises the failures since the last poll."""
        return

    def _after_batch(self) -> None:
        """Called after a poll, when its records have been passed to the sender."""
        return

    # -- for the worker

    def stop(self) -> None:
        """Request it to stop; if ``poll`` was in progress, returns after the task's own ``stop``."""
        super().stop()
        with self._changed:
            polling = self._polling
        if polling:
            self._plugin_stop.call()

    def _interrupt(self) -> None:
        self._offset_reader.close()
        # It may be waiting for a missing topic, or for unreachable brokers.
        self._disconnect(0.0)

    @property
    def is_polling(self) -> bool:
        """Whether it has started and not ended yet, so that a commit is useful."""
        return self.is_running

    def _report(self, detail: dict[str, Any]) -> None:
        self.detail = dict(detail)

    # -- the task's thread

    def _prepare(self) -> bool:
        """Fence older tasks without fencing a newer one; False when the task must stop."""
        if self._guard is not None and not self._pass_guard(self._guard):
            return False
        if self._owns_store:
            self._store.start()
        return True

    def _pass_guard(self, guard: OwnershipGuard) -> bool:
        try:
            guard.fence(self._stop_requested)
            if self._is_stopping:
                # Its producer would fence those of its successors.
                return False
            self._claim()
            guard.confirm(self._stop_requested)
        except ConnectError:
            if not self._is_stopping:
                raise
        return not self._is_stopping

    def _start_plugin(self) -> None:
        self._start_called = True
        self.task.initialize(self._context)
        self.task.start(dict(self._configs))

    def _stop_requested(self) -> bool:
        return self._is_stopping

    def _confirm_ownership(self) -> None:
        """See SourceTaskContext.confirm_ownership."""
        if self._guard is not None:
            self._guard.confirm(self._stop_requested)
            if self._is_stopping:
                raise ConnectError(f"Task {self.id} is being stopped")

    def _work(self) -> None:
        self._enter_loop()
        while self._wait_while_paused(announce_resume=True):
            if self._to_send is None:
                self._before_poll()
                self._to_send = self._poll()
                if self._to_send is None:
                    self._after_batch()
                    continue
            try:
                sent = self._send()
            except Interrupted:
                return  # the successor polls the unsent records again
            if not sent:
                self._stop_asked.wait(_BACKOFF_S)

    def _before_pause(self) -> None:
        if self._started:
            self.task.pause()

    def _after_pause(self) -> None:
        if self._started:
            self.task.resume()
            self._enter_loop()

    def _poll(self) -> list[SourceRecord] | None:
        with self._changed:
            if self._is_stopping:
                return None
            self._polling = True
        began_s = time.monotonic()
        try:
            records = self.task.poll()
        except RetriableError as error:
            self._log.warning("poll failed, retrying", reason=str(error))
            records = None
            began_s = time.monotonic()
        except Exception:
            if not self._stop_requested():
                raise
            # Its `stop` may have closed what `poll` was using; what has been sent is still committed.
            self._log.warning("poll failed while the task was being stopped", exc_info=True)
            return None
        finally:
            with self._changed:
                self._polling = False
        took_s = time.monotonic() - began_s
        if records is not None:
            records = list(records)
            self._source_counters.polled += len(records)
            self._source_counters.poll_ms.add(took_s * 1000)
            self._count_active(len(records))
        if self._stop_requested() and self._cancelled:
            return None
        if self._cancel_if_reassigned():
            return None
        if not records and took_s < 0.001:
            # Avoid busy-waiting when a task has nothing to do.
            self._stop_asked.wait(_BACKOFF_S)
        return records

    def _send(self) -> bool:
        """Send the batch; False when the rest of it must be retried later.

        Consecutive records without special handling are sent together, all others individually.
        """
        batch, self._to_send = self._to_send or [], None
        self.counters.batch.add(len(batch))
        index = 0
        while index < len(batch):
            sent, failed = self._send_run(batch, index)
            index += sent
            if index == len(batch) or sent == _RUN:
                continue
            if not self._send_one(batch[index], failed):
                self._to_send = batch[index:]
                return False
            index += 1
        self._after_batch()
        return True

    def _send_run(self, batch: Sequence[SourceRecord], first: int) -> tuple[int, Failed | None]:
        """Send records from ``first`` on until one needs waiting, error handling or a transformation.

        Returns their number, and the failure of the next one if it failed.
        """
        room = self._sender.room_bytes
        run: list[Outgoing] = []
        topic, partition, failed = None, None, None
        try:
            for index in range(first, min(first + _RUN, len(batch))):
                record = batch[index]
                if record.topic != topic:
                    if not self._is_plain(record.topic):
                        break
                    topic = record.topic
                if record.source_partition is not partition:
                    internal_json.require_flat("partition", record.source_partition)
                    partition = record.source_partition
                internal_json.require_flat("offset", record.source_offset)
                converted = self._record_converter.convert_once(record)
                size = size_of(converted)
                if size > room:
                    break
                room -= size
                run.append(Outgoing(topic, record.partition, converted, self._run_settled, Submitted(record), size))
        except ConversionFailed as failure:
            failed = failure.failed
        except ConnectError:
            pass  # sending the record individually raises the error again
        if not run:
            return 0, failed
        self._before_run([outgoing.about for outgoing in run])
        sent = self._sender.send_at_once(run)
        for outgoing in reversed(run[sent:]):
            self._not_sent(outgoing.about)
        for record in batch[first : first + sent]:
            self._dispatched(record)
        return sent, failed if sent == len(run) else None

    def _is_plain(self, topic: str) -> bool:
        """Whether records for a topic only need to be converted and sent."""
        return (
            not self._transformations.stages
            and (self._topic_creation is None or self._topic_creation.knows(topic))
            and self._sender.is_ready(topic)
            and self._sends_together(topic)
        )

    def _run_settled(self, outgoing: Sequence[Outgoing], sent: Sent | None, failure: KafkaFailure | None) -> None:
        self._count_active(-len(outgoing))
        submitted: list[Submitted] = [one.about for one in outgoing]
        if sent is None:
            for one in submitted:
                self._send_failed(ProcessingContext(one.record), one, failure or _unknown_failure())
            return
        self._source_counters.written += len(outgoing)
        self._run_sent(submitted, sent)
        for topic in {one.topic for one in outgoing}:
            self._on_topic(topic)

    def _send_one(self, record: SourceRecord, failed: Failed | None) -> bool:
        """Send one record with all its steps; False when it must be retried later."""
        context = ProcessingContext(record)
        transformed = self._transformations.apply(context, record)
        converted = None if transformed is None else self._record_converter.convert(context, transformed, failed)
        if transformed is None or converted is None:
            self._count_active(-1)
            self._dropped(record)
            return True
        submitted = self._before_send(record, transformed.topic)
        try:
            self._pass_to_sender(context, record, transformed, converted, submitted)
        except (RetriableError, KafkaFailure) as error:
            if isinstance(error, KafkaFailure) and not error.retriable:
                self._send_failed(context, submitted, error)
                self._count_active(-1)
                self._dispatched(record)
                return True
            if self._cancelled:
                raise ConnectError("cancelled while records were being written") from error
            self._log.warning("record not sent, retrying", topic=transformed.topic, reason=str(error))
            self._not_sent(submitted)
            return False
        self._dispatched(record)
        return True

    def _pass_to_sender(
        self,
        context: ProcessingContext[SourceRecord],
        record: SourceRecord,
        transformed: SourceRecord,
        converted: Record,
        submitted: Submitted | None,
    ) -> None:
        topic = transformed.topic
        if self._topic_creation is not None:
            self._topic_creation.ensure(topic)

        def on_sent(metadata: RecordMetadata | None, failure: KafkaFailure | None) -> None:
            self._count_active(-1)
            if metadata is None:
                self._send_failed(context, submitted, failure or _unknown_failure())
                return
            self._source_counters.written += 1
            self._sent(record, submitted, metadata)
            self._on_topic(topic)

        self._sender.send(topic, transformed.partition, converted, on_sent, give_up=self._stop_requested)

    def _count_active(self, change: int) -> None:
        self._active += change
        self._source_counters.active.add(self._active)

    def _notify_record(self, record: SourceRecord, metadata: RecordMetadata | None) -> None:
        if not self._notifies_records:
            return
        try:
            with self._as_plugin():  # it may be the sender's thread
                self.task.commit_record(record, metadata)
        except Exception:  # noqa: BLE001 - as in Java, this never fails a task
            self._log.exception("commit_record() of the task failed")

    def _notify_commit(self) -> None:
        try:
            self.task.commit()
        except Exception:  # noqa: BLE001 - as in Java, this never fails a task
            self._log.exception("commit() of the task failed")

    def _close(self, *, failed: bool) -> None:
        try:
            if self._start_called:
                self._plugin_stop.await_call()
                if self._started and not self._cancelled:
                    self._commit_at_the_end(failed=failed)
        finally:
            if self._start_called:
                self._plugin_stop.call()
            self._offset_reader.close()
            self._disconnect(0.0 if self._cancelled else _CLOSE_S)
            if self._owns_store:
                if not self._cancelled:
                    self._store.flush(FLUSH_S)
                self._store.stop()
            self._transformations.close()
            self._converters.close()
            self._operator.close()

    def _commit_at_the_end(self, *, failed: bool) -> None:
        try:
            self._final_commit(failed=failed)
        except Exception:  # noqa: BLE001 - the first failure of the task is reported, a stopped one has not failed
            self._log.exception("offsets were not committed when the task ended")

    def _disconnect(self, timeout_s: float) -> None:
        """Close the task's connections, which ends any wait for a response."""
        self._disconnecting = True
        self._sender.close(timeout_s)
        self._cluster.close()
        for cluster in self._other_clusters:
            cluster.close()


def _unknown_failure() -> KafkaFailure:
    return KafkaFailure("not written, reason unknown")


class WorkerSourceTask(AbstractWorkerSourceTask):
    """At-least-once: writes records as polled and periodically commits offsets of acknowledged ones.

    Also for tasks that produce by themselves and return no records.
    """

    def __init__(self, equipment: Equipment, setup: SourceSetup, *, flush_timeout_s: float) -> None:
        super().__init__(equipment, setup)
        self._flush_timeout_s = flush_timeout_s
        self._submitted = SubmittedRecords()
        self._commit_lock = threading.Lock()
        self._uncommitted: dict[PartitionKey, Committable] = {}
        self._send_error: BaseException | None = None

    def commit_offsets(self) -> bool:
        """Commit the acknowledged prefix of every partition, then notify the task."""
        if self._cancelled or not self._is_ours():
            return False
        began_s = time.monotonic()
        with self._commit_lock:
            for partition, offset in self._submitted.take_committable():
                self._uncommitted[key_of(partition)] = (partition, offset)
            if self._uncommitted:
                try:
                    self._store.write(self.id.connector, list(self._uncommitted.values()), self._flush_timeout_s)
                except ConnectError as error:
                    self.counters.committed(time.monotonic() - began_s, failed=True)
                    self._log.error("offsets not committed", count=len(self._uncommitted), reason=str(error))
                    return False
                self._uncommitted.clear()
        self.counters.committed(time.monotonic() - began_s)
        with self._as_plugin():
            self._notify_commit()
        return True

    def _final_commit(self, *, failed: bool) -> None:
        if not self._submitted.await_all(self._flush_timeout_s):
            self._log.warning("records not acknowledged when the task ended", timeout_s=self._flush_timeout_s)
        self.commit_offsets()

    def _before_poll(self) -> None:
        self._raise_send_error()

    def _raise_send_error(self) -> None:
        if self._send_error is not None:
            raise ConnectError("Unrecoverable exception from producer send callback") from self._send_error

    def _before_send(self, record: SourceRecord, topic: str) -> Submitted | None:
        if self._guard is not None:
            raise ConnectError(
                f"Task {self.id} returned records, but declares that it produces records itself: with exactly-once they cannot "
                "be written in its transactions"
            )
        self._raise_send_error()
        return self._submitted.submit(record)

    def _sends_together(self, topic: str) -> bool:
        return self._guard is None

    def _before_run(self, submitted: Sequence[Submitted]) -> None:
        self._raise_send_error()
        self._submitted.submit_all(submitted)

    def _not_sent(self, submitted: Submitted | None) -> None:
        if submitted is not None:
            self._submitted.drop(submitted)

    def _run_sent(self, submitted: Sequence[Submitted], sent: Sent) -> None:
        if self._notifies_records:
            for one, metadata in zip(submitted, sent.metadata(), strict=True):
                self._notify_record(one.record, metadata)
        self._submitted.ack(*submitted)

    def _sent(self, record: SourceRecord, submitted: Submitted | None, metadata: RecordMetadata) -> None:
        self._notify_record(record, metadata)
        if submitted is not None:
            self._submitted.ack(submitted)

    def _dropped(self, record: SourceRecord) -> None:
        self._notify_record(record, None)

    def _send_failed(
        self, context: ProcessingContext[SourceRecord], submitted: Submitted | None, failure: KafkaFailure
    ) -> None:
        if self._cancel_if_reassigned() or self._disconnecting:
            return  # the successor polls the record again
        record = context.original
        on_own_thread = threading.current_thread() is self._thread
        if self._operator.tolerance.tolerates_all:
            # Report and skip the record, and count its offset; the next record may succeed.
            self._operator.execute_failed(context, ProcessingStage.KAFKA_PRODUCE, _PRODUCER, failure)
            self._notify_record(record, None)
            if submitted is not None:
                self._submitted.ack(submitted)
            return
        self._log.error("record could not be written", topic=record.topic, reason=str(failure))
        if on_own_thread:
            raise ConnectError(f"A record for topic {record.topic} could not be written: {failure}") from failure
        self._send_error = self._send_error or failure
