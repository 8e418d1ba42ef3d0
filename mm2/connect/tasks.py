"""One source task on a thread of its own: poll, convert, produce, commit (WorkerSourceTask, spec connect G.2)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from mm2.connect.api import ConnectError, RetriableError, SourceRecord, SourceTask, SourceTaskContext
from mm2.connect.converters import Converter
from mm2.connect.lifecycle import StatusListener
from mm2.connect.protocol import ConnectorTaskId
from mm2.connect.stores.config_state import TargetState
from mm2.connect.stores.offset_store import ConnectorOffsetReader, OffsetStore
from mm2.connect.submitted import Submitted, SubmittedRecords
from mm2.kafka.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.producer import Producer, RecordMetadata
from mm2.kafka.records.record import Record

log = structlog.get_logger(__name__)

#: Pause after a retriable failure of poll, or after a poll that came back at once with nothing.
_BACKOFF_S = 0.1
_NO_TIMESTAMP = -1


@dataclass(frozen=True)
class Converters:
    """How a task's records become bytes."""

    key: Converter
    value: Converter
    header: Converter


@dataclass(frozen=True)
class TaskProducer:
    """A task's own connection to Kafka, opened with the first record."""

    cluster: Cluster = field(repr=False)
    producer: Producer = field(repr=False)

    def close(self) -> None:
        """Cut it, ending whatever waits for an answer."""
        self.producer.close()
        self.cluster.close()


class WorkerSourceTask:
    """Life of one source task: (pause) → start → poll … → stop. A failure is final until the task is restarted.

    ``stop`` of the task is called as soon as stopping is asked for, also while ``poll`` runs; Java calls it on the
    task's thread after ``poll`` has returned, so that a long poll misses its grace period.
    """

    def __init__(
        self,
        task_id: ConnectorTaskId,
        task: SourceTask,
        context: SourceTaskContext,
        *,
        converters: Converters,
        producer: TaskProducer,
        offset_store: OffsetStore,
        offset_reader: ConnectorOffsetReader,
        listener: StatusListener,
        initial_state: TargetState,
        on_topic: Callable[[str], None],
        tolerate_errors: bool,
        flush_timeout_s: float,
        log_context: Mapping[str, str],
    ) -> None:
        self.id = task_id
        self.task = task
        self.version = task.version()
        self.detail: dict[str, Any] = {}
        self.failure: BaseException | None = None
        self._context = replace(context, report=self._report)
        self._converters = converters
        self._producer = producer
        self._offset_store = offset_store
        self._offset_reader = offset_reader
        self._listener = listener
        self._on_topic = on_topic
        self._topics_seen: set[str] = set()
        self._tolerate_errors = tolerate_errors
        self._flush_timeout_s = flush_timeout_s
        self._log_context = {**log_context, "connector": task_id.connector, "task": task_id.task}
        self._log = log.bind(task_id=str(task_id))

        self._changed = threading.Condition()
        self._target = initial_state
        self._stopping = False
        self._cancelled = False
        self._polling = False
        self._start_called = False
        self._started = False
        self._stop_called = False
        self._stop_done = threading.Event()
        self._ended = threading.Event()

        self._submitted = SubmittedRecords()
        self._commit_lock = threading.Lock()
        self._uncommitted: dict[frozenset[tuple[str, Any]], tuple[dict[str, Any], dict[str, Any]]] = {}
        self._thread = threading.Thread(
            target=self._run, name=f"task-thread-{task_id.connector}-{task_id.task}", daemon=True
        )

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
        self._producer.close()

    def commit_offsets(self) -> bool:
        """Commit the acknowledged prefix of every partition, then tell the task; False when it failed (it is tried again)."""
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
        try:
            self.task.commit()
        except Exception:  # noqa: BLE001 - as in Java, this never fails a task
            self._log.exception("commit() of the task failed")
        return True

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
        try:
            if not self._wait_while_paused(announce_resume=False):
                return
            self.task.initialize(self._context)
            self._start_called = True
            self.task.start(dict(self._context.configs))
            self._started = True
            if not self._cancelled:  # its work may run elsewhere by now
                self._listener.on_startup(self.id, self.version)
            self._work()
        finally:
            self._close()

    def _work(self) -> None:
        while self._wait_while_paused(announce_resume=True):
            records = self._poll()
            if records:
                self._send(records)

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
            self._listener.on_pause(self.id, self.version)
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

    def _send(self, records: list[SourceRecord]) -> None:
        """Produce a batch. Order is kept per topic and partition, which is all the order that Kafka has."""
        groups: dict[tuple[str, int | None], list[tuple[Submitted, Record]]] = {}
        for record in records:
            converted = self._convert(record)
            if converted is None:
                self._tell(record, None)
                continue
            groups.setdefault((record.topic, record.partition), []).append((self._submitted.submit(record), converted))
        for (topic, partition), group in groups.items():
            try:
                written = self._producer.producer.send(topic, [converted for _, converted in group], partition)
            except KafkaFailure as failure:
                if self._cancelled:
                    raise ConnectError("cancelled while records were being written") from failure
                if not self._tolerate_errors:
                    raise ConnectError(f"Records for topic {topic} could not be written: {failure}") from failure
                self._log.error("records skipped", topic=topic, count=len(group), reason=str(failure))
                for submitted, _ in group:
                    self._submitted.ack(submitted)
                    self._tell(submitted.record, None)
                continue
            for (submitted, _), metadata in zip(group, written, strict=True):
                self._submitted.ack(submitted)
                self._tell(submitted.record, metadata)
            if topic not in self._topics_seen:
                self._topics_seen.add(topic)
                self._on_topic(topic)

    def _convert(self, record: SourceRecord) -> Record | None:
        """The record as bytes; None when it cannot be and errors are tolerated."""
        try:
            headers = tuple(
                (name, self._converters.header.from_connect(record.topic, value)) for name, value in record.headers
            )
            key = self._converters.key.from_connect(record.topic, record.key)
            value = self._converters.value.from_connect(record.topic, record.value)
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

    def _close(self) -> None:
        if self._start_called:
            if self._stop_called:
                self._stop_done.wait()
            if self._started and not self._cancelled:
                self.commit_offsets()
            self._stop_task_once()
        self._offset_reader.close()
        self._producer.close()

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
