"""A sink task's requests to the runtime (WorkerSinkTaskContext of Connect)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

import structlog

from mm2.connect.api import IllegalWorkerStateError
from mm2.kafka.structs import TopicPartition

if TYPE_CHECKING:
    from mm2.connect.runtime.errors.reporters import WorkerErrantRecordReporter
    from mm2.kafka.consumer.consumer import Consumer

log = structlog.get_logger(__name__)


class WorkerSinkTaskContext:
    """``configs`` resolves the task's configuration again; ``is_paused`` returns whether the whole task is paused.

    The attributes are for the runtime.
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
