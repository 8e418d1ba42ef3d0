"""Offsets of a sink task: those that it requests, those that it has accepted, and those that are committed.

Each commit has a number, and only the answer to the last one counts: an answer may arrive after the commit has timed
out or after a rebalance.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet

import structlog

from mm2.connect.api import IllegalWorkerStateError, OffsetAndMetadata, SinkTask
from mm2.connect.runtime.counters import SinkCounters, TaskCounters
from mm2.connect.runtime.error_reporters import PendingReports, WorkerErrantRecordReporter
from mm2.connect.runtime.tasks.sink_records import Offsets, SinkBatch
from mm2.kafka.consumer.consumer import Consumer
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import TopicPartition


class WorkerSinkTaskContext:
    """A sink task's requests to the runtime (WorkerSinkTaskContext of Connect).

    ``configs`` resolves the task's configuration again; ``is_paused`` returns whether the whole task is paused. The
    attributes are for the runtime.
    """

    def __init__(
        self,
        consumer: Consumer,
        configs: Callable[[], Mapping[str, str]],
        is_paused: Callable[[], bool],
        reporter: WorkerErrantRecordReporter | None,
    ) -> None:
        self._consumer = consumer
        self._configs = configs
        self._is_paused = is_paused
        self._reporter = reporter
        #: Requested offsets that have not been applied yet.
        self.offsets: dict[TopicPartition, int] = {}
        #: Milliseconds to wait before the next retry; None: not set.
        self.timeout_ms: int | None = None
        #: Partitions paused by the task, independent of the runtime.
        self.paused: set[TopicPartition] = set()
        self.commit_requested = False

    def configs(self) -> Mapping[str, str]:
        return self._configs()

    def offset(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.offsets.update({TopicPartition(*tp): offset for tp, offset in offsets.items()})

    def timeout(self, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms

    def assignment(self) -> AbstractSet[TopicPartition]:
        return self._consumer.assignment()

    def pause(self, *partitions: TopicPartition) -> None:
        self._check(partitions, "pause")
        self.paused.update(TopicPartition(*tp) for tp in partitions)
        if not self._is_paused():
            self._consumer.pause(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self._check(partitions, "resume")
        self.paused.difference_update(TopicPartition(*tp) for tp in partitions)
        if not self._is_paused():
            self._consumer.resume(partitions)

    def request_commit(self) -> None:
        self.commit_requested = True

    def errant_record_reporter(self) -> WorkerErrantRecordReporter | None:
        return self._reporter

    def _check(self, partitions: tuple[TopicPartition, ...], what: str) -> None:
        foreign = sorted(str(TopicPartition(*tp)) for tp in set(partitions) - self._consumer.assignment())
        if foreign:
            raise IllegalWorkerStateError(
                f"SinkTasks may not {what} partitions that are not currently assigned to them: {', '.join(foreign)}"
            )


class SinkCommits:
    """Commits the offsets of one task, on the task's thread; answers arrive within the consumer's poll."""

    def __init__(
        self,
        task: SinkTask,
        consumer: Consumer,
        context: WorkerSinkTaskContext,
        batch: SinkBatch,
        pending_reports: PendingReports,
        counters: TaskCounters,
        sink_counters: SinkCounters,
        log: structlog.stdlib.BoundLogger,
        *,
        interval_s: float,
        timeout_s: float,
        is_cancelled: Callable[[], bool],
    ) -> None:
        self._task = task
        self._consumer = consumer
        self._context = context
        self._batch = batch
        self._pending_reports = pending_reports
        self._counters = counters
        self._sink_counters = sink_counters
        self._log = log
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._is_cancelled = is_cancelled
        #: Position after the last record that the task has accepted, by partition.
        self._current: Offsets = {}
        self._committed_offsets: Offsets = {}

        self._committing = False
        self._commit_sequence = 0
        self._commit_began_s = 0.0
        self._next_commit_s = time.monotonic() + interval_s

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions whose offsets are known."""
        return frozenset(self._current)

    def start_at(self, partition: TopicPartition, offset: int) -> None:
        """Consumption of a partition starts at ``offset``, or continues there after a seek."""
        self._committed_offsets[partition] = self._current[partition] = OffsetAndMetadata(offset)

    def accept(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """The task has accepted the records before these offsets."""
        self._current.update(offsets)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """These partitions are revoked."""
        self._pending_reports.forget(partitions)
        for tp in partitions:
            self._current.pop(tp, None)
            self._committed_offsets.pop(tp, None)

    def run_due(self) -> None:
        """Commit if it is due or requested; give up a commit that takes too long."""
        now = time.monotonic()
        if not self._committing and (self._context.commit_requested or now >= self._next_commit_s):
            self.commit(self._consumer.assignment(), closing=False)
            self._next_commit_s = now + self._interval_s
            self._context.commit_requested = False
        if self._committing and now >= self._commit_began_s + self._timeout_s:
            self._log.warning("Commit of offsets timed out", sequence=self._commit_sequence)
            self._counters.committed(now - self._commit_began_s, failed=True)
            self._committing = False

    def due_in_s(self) -> float:
        """Seconds until `run_due` has to be called again."""
        if self._context.commit_requested and not self._committing:
            return 0.0
        return max(0.0, self._next_commit_s - time.monotonic())

    def commit(self, partitions: Collection[TopicPartition], *, closing: bool) -> None:
        """Commit the offsets that the task allows; ``closing``: the partitions are revoked afterwards."""
        now = time.monotonic()
        # Committing past a record that is not yet written to the dead letter queue could lose it.
        incomplete = self._pending_reports.wait_for(partitions, self._timeout_s)
        if incomplete:
            self._log.warning("offset commit waits for dead letters", partitions=_names(incomplete))
        offsets = {tp: offset for tp, offset in self._current.items() if tp in partitions}
        if not offsets:
            return
        self._committing = True
        self._commit_sequence += 1
        self._commit_began_s = now
        self._sink_counters.commit_sequence = self._commit_sequence
        sequence = self._commit_sequence
        committed = {tp: offset for tp, offset in self._committed_offsets.items() if tp in partitions}
        provided = self._ask_task(offsets, committed, partitions, closing=closing)
        if provided is None:
            return
        to_commit = self._committable(provided, offsets, committed)
        to_commit |= {tp: offset for tp, offset in committed.items() if tp in incomplete}
        if not provided or to_commit == committed:
            self._log.debug("nothing to commit", sequence=sequence)
            self._on_committed(sequence, None, None)
        elif self._is_cancelled():
            self._log.info("no final offset commit, the task was cancelled")
        elif closing:
            self._commit_and_wait(sequence, to_commit)
        else:
            self._consumer.commit_async(
                to_commit, lambda failure: self._on_committed(sequence, failure, to_commit if failure is None else None)
            )

    def _ask_task(
        self, offsets: Offsets, committed: Offsets, partitions: Collection[TopicPartition], *, closing: bool
    ) -> Mapping[TopicPartition, OffsetAndMetadata] | None:
        """The offsets that the task allows to commit; None when the task raised an exception."""
        try:
            return self._task.pre_commit(dict(offsets))
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
                self._batch.drop(committed)
            self._on_committed(self._commit_sequence, error, None)
            return None
        finally:
            if closing:
                self._task.close(sorted(partitions))

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
            self._on_committed(sequence, failure, None)
        else:
            self._on_committed(sequence, None, offsets)

    def _on_committed(self, sequence: int, error: BaseException | None, offsets: Offsets | None) -> None:
        """A commit has completed or failed; the result is ignored if a newer commit was started."""
        if sequence != self._commit_sequence:
            self._log.debug("commit response is outdated", sequence=sequence, newest=self._commit_sequence)
            self._sink_counters.commits_skipped += 1
            return
        took_s = time.monotonic() - self._commit_began_s
        if error is not None:
            self._log.error("Commit of offsets failed", sequence=sequence, reason=str(error))
        elif offsets is not None:
            self._log.debug("offsets committed", sequence=sequence, partitions=len(offsets))
            self._committed_offsets.update(
                {tp: offset for tp, offset in offsets.items() if tp in self._committed_offsets}
            )
            self._sink_counters.commits_completed += 1
            self.count_active()
        self._counters.committed(took_s, failed=error is not None)
        self._committing = False

    def count_active(self) -> None:
        """Count the records that were consumed and are not committed yet."""
        consumed = {**self._current, **self._batch.offsets}
        behind = sum(
            offset.offset - self._committed_offsets[tp].offset
            for tp, offset in consumed.items()
            if tp in self._committed_offsets
        )
        self._sink_counters.active.add(max(0, behind))


def _names(partitions: Iterable[TopicPartition]) -> list[str]:
    return sorted(map(str, partitions))
