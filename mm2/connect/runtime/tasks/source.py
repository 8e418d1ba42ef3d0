"""One source task on a thread of its own: poll, convert, produce, commit (AbstractWorkerSourceTask, spec connect G.2).

What it does at least once is here, too; `mm2.connect.runtime.tasks.exactly_once` does it exactly once.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from mm2.connect.api import (
    ConnectError,
    Converter,
    HeaderConverter,
    RetriableError,
    SourceRecord,
    SourceTask,
    SourceTaskContext,
)
from mm2.connect.group.protocol import ConnectorTaskId
from mm2.connect.runtime.lifecycle import StatusListener
from mm2.connect.runtime.tasks.submitted import SubmittedRecords
from mm2.connect.stores.config_state import TargetState
from mm2.connect.stores.offset_store import ConnectorOffsetReader, OffsetStore
from mm2.kafka.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.producer import Producer, RecordMetadata
from mm2.kafka.records.record import Record

log = structlog.get_logger(__name__)

#: Pause after a retriable failure of poll, or after a poll that came back at once with nothing.
_BACKOFF_S = 0.1
_NO_TIMESTAMP = -1

#: The records of a poll in order, each with what is written of it.
Converted = list[tuple[SourceRecord, Record]]


def by_target(batch: Converted) -> dict[tuple[str, int | None], list[int]]:
    """Places in a batch by topic and wanted partition: order within these is all the order that Kafka keeps."""
    places: dict[tuple[str, int | None], list[int]] = {}
    for place, (record, _) in enumerate(batch):
        places.setdefault((record.topic, record.partition), []).append(place)
    return places


@dataclass(frozen=True)
class Converters:
    """How a task's records become bytes."""

    key: Converter
    value: Converter
    header: HeaderConverter


@dataclass(frozen=True)
class OwnershipGuard:
    """What a task asks of the group under exactly-once. Both wait until ``stopping()``, and raise ConnectError."""

    #: Before its producer begins: have the producers of older task configs fenced.
    fence: Callable[[Callable[[], bool]], None]
    #: After that: is the task still this worker's, and are its task configs the newest.
    confirm: Callable[[Callable[[], bool]], None]


@dataclass(frozen=True)
class TaskSetup:
    """All that a running task is made of, whatever it guarantees."""

    id: ConnectorTaskId
    task: SourceTask
    context: SourceTaskContext
    converters: Converters
    offset_reader: ConnectorOffsetReader
    #: The task's own connections, opened with the first record.
    cluster: Cluster = field(repr=False)
    producer: Producer = field(repr=False)
    listener: StatusListener
    initial_state: TargetState
    on_topic: Callable[[str], None]
    tolerate_errors: bool
    log_context: Mapping[str, str]
    #: With exactly-once only.
    guard: OwnershipGuard | None = None


class AbstractWorkerSourceTask(ABC):
    """Life of one source task: (pause) → start → poll … → stop. A failure is final until the task is restarted.

    ``stop`` of the task is called as soon as stopping is asked for, also while ``poll`` runs; Java calls it on the
    task's thread after ``poll`` has returned, so that a long poll misses its grace period.
    """

    def __init__(self, setup: TaskSetup) -> None:
        self.id = setup.id
        self.task = setup.task
        self.version = setup.task.version()
        self.detail: dict[str, Any] = {}
        self.failure: BaseException | None = None
        self._context = replace(setup.context, report=self._report, confirm_ownership=self._confirm_ownership)
        self._converters = setup.converters
        self._cluster = setup.cluster
        self._producer = setup.producer
        self._guard = setup.guard
        self._offset_reader = setup.offset_reader
        self._listener = setup.listener
        self._on_topic = setup.on_topic
        self._topics_seen: set[str] = set()
        self._tolerate_errors = setup.tolerate_errors
        self._log_context = {**setup.log_context, "connector": self.id.connector, "task": self.id.task}
        self._log = log.bind(task_id=str(self.id))

        self._changed = threading.Condition()
        self._target = setup.initial_state
        self._stopping = False
        self._cancelled = False
        self._polling = False
        self._start_called = False
        self._started = False
        self._stop_called = False
        self._stop_done = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"task-thread-{self.id.connector}-{self.id.task}", daemon=True
        )

    # -- what differs with the guarantee, all on the task's thread except commit_offsets

    @abstractmethod
    def commit_offsets(self) -> bool:
        """Called by the worker every offset.flush.interval.ms; False when it failed (it is tried again)."""

    @abstractmethod
    def _send(self, batch: Converted) -> None:
        """Produce what a poll has brought."""

    @abstractmethod
    def _final_commit(self, *, failed: bool) -> None:
        """Commit what has been sent, before the task stops."""

    def _claim(self) -> None:
        """Get the producer ready, between the fencing and the confirmation that the task is still ours."""
        return

    def _enter_loop(self) -> None:
        """The first poll is next."""
        return

    def _after_poll(self) -> None:
        """A poll is over and what it brought is sent."""
        return

    def _before_pause(self) -> None:
        """The task does nothing for a while."""
        return

    # -- for the worker

    def start(self) -> None:
        """Let the thread run."""
        self._thread.start()

    def set_target_state(self, state: TargetState) -> None:
        """Pause or resume; STOPPED ends the task. Returns at once."""
        with self._changed:
            self._target = state
            self._changed.notify_all()
        if state is TargetState.STOPPED:
            threading.Thread(target=self.stop, name=f"stop-{self.id}", daemon=True).start()

    def stop(self) -> None:
        """Ask it to end; returns when the task's own ``stop`` has, if ``poll`` was under way."""
        with self._changed:
            self._stopping = True
            polling = self._polling
            self._changed.notify_all()
        if polling:
            self._stop_task_once()

    def await_stop(self, timeout_s: float) -> bool:
        """Whether the thread has ended within ``timeout_s``."""
        return self._ended.wait(max(0.0, timeout_s))

    def cancel(self) -> None:
        """Give up on it: cut its connections; from now on it changes no status and commits no offset."""
        self._cancelled = True
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._offset_reader.close()
        self._disconnect()

    @property
    def is_polling(self) -> bool:
        """Whether it has started and not ended, so that committing makes sense."""
        return self._started and not self._ended.is_set() and not self._cancelled

    def _report(self, detail: dict[str, Any]) -> None:
        self.detail = dict(detail)

    # -- the task's thread

    def _run(self) -> None:
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(**self._log_context)
        try:
            self._live()
        except Exception as error:  # noqa: BLE001 - any exception of a task is its failure
            self.failure = error
            if self._cancelled:
                self._log.warning("the abandoned task ended with an error", reason=repr(error))
            else:
                self._log.exception("the task failed and will not recover until it is restarted")
                self._listener.on_failure(self.id, error, self.version)
        else:
            if not self._cancelled:
                self._listener.on_shutdown(self.id, self.version)
        finally:
            self._ended.set()

    def _live(self) -> None:
        failed = True
        try:
            if not self._wait_while_paused(announce_resume=False) or not self._prepare():
                failed = False
                return
            self.task.initialize(self._context)
            self._start_called = True
            self.task.start(dict(self._context.configs))
            self._started = True
            if not self._cancelled:  # its work may run elsewhere by now
                self._listener.on_startup(self.id, self.version)
            self._work()
            failed = False
        finally:
            self._close(failed=failed)

    def _prepare(self) -> bool:
        """See that no older task can write any more, nor a newer one is hindered by this one; False when it shall end."""
        if self._guard is None:
            return True
        try:
            self._guard.fence(self._is_stopping)
            if self._is_stopping():
                # Its producer would fence those of its successors.
                return False
            self._claim()
            self._guard.confirm(self._is_stopping)
        except ConnectError:
            if not self._is_stopping():
                raise
        return not self._is_stopping()

    def _confirm_ownership(self) -> None:
        """See SourceTaskContext.confirm_ownership."""
        if self._guard is not None:
            self._guard.confirm(self._is_stopping)
            if self._is_stopping():
                raise ConnectError(f"Task {self.id} is being stopped")

    def _is_stopping(self) -> bool:
        return self._stopping

    def _work(self) -> None:
        self._enter_loop()
        while self._wait_while_paused(announce_resume=True):
            records = self._poll()
            if records:
                self._send(self._converted(records))
            self._after_poll()

    def _wait_while_paused(self, *, announce_resume: bool) -> bool:
        """Sleep as long as the task shall be paused; False when it shall end."""
        paused = False
        while True:
            with self._changed:
                if self._stopping or self._target is TargetState.STOPPED:
                    return False
                if self._target is TargetState.STARTED:
                    break
                if paused:
                    self._changed.wait()
                    continue
            paused = True
            self._before_pause()
            if self._started:
                self.task.pause()
            self._listener.on_pause(self.id, self.version)
        if paused and self._started:
            self.task.resume()
        if paused and announce_resume:
            self._listener.on_resume(self.id, self.version)
        return True

    def _poll(self) -> list[SourceRecord] | None:
        with self._changed:
            if self._stopping:
                return None
            self._polling = True
        began_s = time.monotonic()
        try:
            records = self.task.poll()
        except RetriableError as error:
            self._log.warning("poll failed and is tried again", reason=str(error))
            records = None
            began_s = time.monotonic()
        finally:
            with self._changed:
                self._polling = False
        if records is None and time.monotonic() - began_s < 0.001:
            with self._changed:
                # A task with nothing to do must not spin.
                self._changed.wait_for(lambda: self._stopping, _BACKOFF_S)
        return records

    def _converted(self, records: list[SourceRecord]) -> Converted:
        batch: Converted = []
        for record in records:
            converted = self._convert(record)
            if converted is None:
                self._dropped(record)
            else:
                batch.append((record, converted))
        return batch

    def _dropped(self, record: SourceRecord) -> None:
        """A record is not sent because it could not be converted; its offset does not count."""
        self._tell(record, None)

    def _produce(self, topic: str, partition: int | None, records: list[Record]) -> list[RecordMetadata]:
        """Raises KafkaFailure."""
        written = self._producer.send(topic, records, partition)
        if topic not in self._topics_seen:
            self._topics_seen.add(topic)
            self._on_topic(topic)
        return written

    def _convert(self, record: SourceRecord) -> Record | None:
        """The record as bytes; None when it cannot be and errors are tolerated."""
        try:
            topic, converters = record.topic, self._converters
            headers = tuple(
                (header.key, converters.header.from_connect_header(topic, header.key, header.schema, header.value))
                for header in record.headers
            )
            key = converters.key.from_connect_data(topic, headers, record.key_schema, record.key)
            value = converters.value.from_connect_data(topic, headers, record.value_schema, record.value)
            timestamp = None if record.timestamp == _NO_TIMESTAMP else record.timestamp
            if timestamp is not None and timestamp < 0:
                raise ConnectError(f"Invalid record timestamp {timestamp}")
            return Record(key, value, headers, timestamp)
        except Exception as error:
            if not self._tolerate_errors:
                raise ConnectError(f"A record for topic {record.topic} could not be converted: {error}") from error
            self._log.error("record skipped", topic=record.topic, reason=str(error))
            return None

    def _tell(self, record: SourceRecord, metadata: RecordMetadata | None) -> None:
        try:
            self.task.commit_record(record, metadata)
        except Exception:  # noqa: BLE001 - as in Java, this never fails a task
            self._log.exception("commit_record() of the task failed")

    def _tell_commit(self) -> None:
        try:
            self.task.commit()
        except Exception:  # noqa: BLE001 - as in Java, this never fails a task
            self._log.exception("commit() of the task failed")

    def _close(self, *, failed: bool) -> None:
        try:
            if self._start_called:
                if self._stop_called:
                    self._stop_done.wait()
                if self._started and not self._cancelled:
                    self._final_commit(failed=failed)
        finally:
            if self._start_called:
                self._stop_task_once()
            self._offset_reader.close()
            self._disconnect()

    def _disconnect(self) -> None:
        """Cut the task's connections, ending whatever waits for an answer."""
        self._producer.close()
        self._cluster.close()

    def _stop_task_once(self) -> None:
        with self._changed:
            first, self._stop_called = not self._stop_called, True
        if not first:
            self._stop_done.wait()
            return
        try:
            with structlog.contextvars.bound_contextvars(**self._log_context):
                self.task.stop()
        except Exception:  # noqa: BLE001 - it has to end all the same
            self._log.exception("stop() of the task failed")
        finally:
            self._stop_done.set()


class WorkerSourceTask(AbstractWorkerSourceTask):
    """At least once: records are written as they come, offsets of what has arrived follow from time to time.

    Also for tasks that produce by themselves, which have nothing to send.
    """

    def __init__(self, setup: TaskSetup, offset_store: OffsetStore, *, flush_timeout_s: float) -> None:
        super().__init__(setup)
        self._offset_store = offset_store
        self._flush_timeout_s = flush_timeout_s
        self._submitted = SubmittedRecords()
        self._commit_lock = threading.Lock()
        self._uncommitted: dict[frozenset[tuple[str, Any]], tuple[dict[str, Any], dict[str, Any]]] = {}

    def commit_offsets(self) -> bool:
        """Commit the acknowledged prefix of every partition, then tell the task."""
        with self._commit_lock:
            for partition, offset in self._submitted.take_committable():
                self._uncommitted[frozenset(partition.items())] = (partition, offset)
            if self._uncommitted:
                try:
                    self._offset_store.write(self.id.connector, list(self._uncommitted.values()), self._flush_timeout_s)
                except ConnectError as error:
                    self._log.error("offsets not committed", count=len(self._uncommitted), reason=str(error))
                    return False
                self._uncommitted.clear()
        self._tell_commit()
        return True

    def _final_commit(self, *, failed: bool) -> None:
        self.commit_offsets()

    def _send(self, batch: Converted) -> None:
        if self._guard is not None:
            raise ConnectError(
                f"Task {self.id} returned records, but says that it produces by itself: with exactly-once they could not "
                "be written in its transactions"
            )
        submitted = [self._submitted.submit(record) for record, _ in batch]
        for (topic, partition), places in by_target(batch).items():
            sent = [submitted[place] for place in places]
            try:
                written = self._produce(topic, partition, [batch[place][1] for place in places])
            except KafkaFailure as failure:
                if self._cancelled:
                    raise ConnectError("cancelled while records were being written") from failure
                if not self._tolerate_errors:
                    raise ConnectError(f"Records for topic {topic} could not be written: {failure}") from failure
                self._log.error("records skipped", topic=topic, count=len(sent), reason=str(failure))
                for each in sent:
                    self._submitted.ack(each)
                    self._tell(each.record, None)
                continue
            for each, metadata in zip(sent, written, strict=True):
                self._submitted.ack(each)
                self._tell(each.record, metadata)
