"""Look-ups of batches whose outcome is unknown: how many records of a session are on the target.

The rules S3 and S6 of docs/explanation/copy-sessions.md apply. How a look-up is made: `target_progress`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from mm2.copy.executor.clusters.topic_ids import TargetTopicIds
from mm2.copy.executor.partition.outbox import Outbox
from mm2.copy.executor.producing.outbox_events import (
    ErrorChanged,
    LeadersOutdated,
    OutboxEvent,
    ResendUncertain,
    TargetInconsistent,
)
from mm2.copy.executor.producing.produce_outcomes import ProduceOutcomes
from mm2.copy.progress.target_progress import (
    LOOK_UP_REFUSED_S,
    InconsistentTarget,
    ProgressQuestion,
    TargetProgress,
)
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import TopicPartition

_RETRY_S: Final = 0.25

#: Looks up the progress of copy sessions on the target.
ProgressLookUp = Callable[
    [Mapping[TopicPartition, ProgressQuestion]],
    Awaitable[Mapping[TopicPartition, TargetProgress | KafkaFailure]],
]


@dataclass(eq=False)
class ProgressLookUps:
    """Outboxes whose progress is being looked up; they are paused until it is known.

    ``handle`` acts on what follows. Without ``look_up`` there are no copy sessions, and nothing is looked up.
    """

    _outcomes: ProduceOutcomes
    _cluster: str
    _loop: asyncio.AbstractEventLoop
    _look_up: ProgressLookUp | None
    _topic_ids: TargetTopicIds
    _handle: Callable[[Iterable[OutboxEvent]], None]

    def __post_init__(self) -> None:
        self._waiting: dict[Outbox, None] = {}  # in order
        self._refused_since: dict[Outbox, float] = {}
        self._is_running = False
        self._closed = False
        self._log = structlog.get_logger("mm2.copy.executor.progress_look_ups").bind(cluster=self._cluster)

    def close(self) -> None:
        """Make no further look-ups."""
        self._closed = True

    def add(self, outbox: Outbox) -> None:
        """Send nothing before the progress of this outbox is known."""
        outbox.paused = True
        self._waiting[outbox] = None
        if not self._is_running:
            self._is_running = True
            self._loop.create_task(self._look_up_all())

    async def _look_up_all(self) -> None:
        """Repeat the look-up until every outcome is known. Missing batches are resent with the sequences that they
        had.
        """
        look_up = self._look_up
        try:
            while self._waiting and look_up is not None and not self._closed:
                # One outbox of each target partition at a time: several may share one.
                asked = {outbox.partition: outbox for outbox in reversed(self._waiting)}
                answers = await look_up(self._questions(asked))
                for tp, answer in answers.items():
                    self._handle(self._apply(asked[tp], answer))
                again = [outbox for outbox in asked.values() if outbox in self._waiting]
                for outbox in again:
                    self._waiting[outbox] = self._waiting.pop(outbox)  # behind those that were not asked
                if again:
                    if any(outbox.address is None for outbox in again):
                        self._handle([LeadersOutdated()])
                    await asyncio.sleep(_RETRY_S)
        finally:
            self._is_running = False

    def _questions(self, asked: Mapping[TopicPartition, Outbox]) -> dict[TopicPartition, ProgressQuestion]:
        return {
            tp: ProgressQuestion(
                outbox.identity,
                outbox.acked,
                outbox.end_offset,
                outbox.floor,
                max(outbox.leader_epoch, -1 if outbox.verified_epoch is None else outbox.verified_epoch),
                self._topic_ids.get(tp.topic),
                () if outbox.acked else outbox.ended_sessions,
                outbox.is_preserved,
                None if outbox.shared is None else outbox.own_end,
            )
            for tp, outbox in asked.items()
            if outbox.identity is not None
        }

    def _apply(self, outbox: Outbox, answer: TargetProgress | KafkaFailure) -> Iterator[OutboxEvent]:
        if isinstance(answer, TargetProgress):
            del self._waiting[outbox]
            self._refused_since.pop(outbox, None)
            yield from self._outcomes.aligned(outbox, answer)
        elif isinstance(answer, InconsistentTarget):
            del self._waiting[outbox]
            yield TargetInconsistent(outbox, str(answer))
        elif answer.is_final and self._is_refused_for_long(outbox):
            # Rely on the broker's producer state.
            del self._waiting[outbox]
            # Or the next batch would be looked up, too, and none would be sent.
            outbox.is_unverified = outbox.is_cut_off = False
            outbox.verified_epoch = None
            note = f"at least once: an unanswered batch cannot be looked up on the target: {answer}"
            self._log.warning(note, partition=str(outbox.partition))
            yield ResendUncertain(outbox, note)
            yield from self._outcomes.retry(outbox, outbox.look_up_cause)
        else:
            outbox.last_error = answer
            yield ErrorChanged(outbox)
            if isinstance(answer, BrokerFailure) and answer.stale_metadata:
                yield LeadersOutdated()

    def _is_refused_for_long(self, outbox: Outbox) -> bool:
        since = self._refused_since.setdefault(outbox, time.monotonic())
        if time.monotonic() - since < LOOK_UP_REFUSED_S:
            return False
        del self._refused_since[outbox]
        return True
