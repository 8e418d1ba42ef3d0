"""Look-ups of batches whose outcome is unknown: how many records of a session are on the target.

The rules S3 and S6 of docs/explanation/copy-sessions.md apply. How a look-up is made: `target_progress`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

import structlog

from mm2.copy.executor.clusters.topic_ids import TargetTopicIds
from mm2.copy.executor.partition.outbox import Outbox, subject_of
from mm2.copy.progress.target_progress import (
    LOOK_UP_REFUSED_S,
    InconsistentTarget,
    ProgressQuestion,
    TargetProgress,
)
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import TopicPartition

_RETRY_S: Final = 0.25

#: Looks up the progress of copy sessions on the target.
ProgressLookUp = Callable[
    [Mapping[TopicPartition, ProgressQuestion]],
    Awaitable[Mapping[TopicPartition, TargetProgress | KafkaFailure]],
]


class LookUpOwner(Protocol):
    """Acts on what a look-up has found."""

    def retry(self, outbox: Outbox, failure: KafkaFailure | None) -> None:
        """Resend what is not on the target; ``failure`` is the reason for a delay."""

    def lose(self, outbox: Outbox, failure: KafkaFailure | None) -> None:
        """The producer cannot continue."""


class ProgressLookUps:
    """Outboxes whose progress is being looked up; they are paused until it is known.

    ``refresh(delay)`` looks up the leaders. Without ``look_up`` there are no copy sessions, and nothing is looked up.
    """

    def __init__(
        self,
        owner: LookUpOwner,
        cluster: str,
        loop: asyncio.AbstractEventLoop,
        look_up: ProgressLookUp | None,
        topic_ids: TargetTopicIds,
        refresh: Callable[[float], None],
    ) -> None:
        self._owner = owner
        self._cluster = cluster
        self._loop = loop
        self._look_up = look_up
        self._topic_ids = topic_ids
        self._refresh = refresh
        self._waiting: dict[Outbox, None] = {}  # in order
        self._refused_since: dict[Outbox, float] = {}
        self._is_running = False
        self._closed = False
        self._log = structlog.get_logger("mm2.copy.executor.progress_look_ups").bind(cluster=cluster)

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
                    self._apply(asked[tp], answer)
                again = [outbox for outbox in asked.values() if outbox in self._waiting]
                for outbox in again:
                    self._waiting[outbox] = self._waiting.pop(outbox)  # behind those that were not asked
                if again:
                    if any(outbox.address is None for outbox in again):
                        self._refresh(0.0)
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

    def _apply(self, outbox: Outbox, answer: TargetProgress | KafkaFailure) -> None:
        if isinstance(answer, TargetProgress):
            del self._waiting[outbox]
            self._refused_since.pop(outbox, None)
            self._align(outbox, answer)
        elif isinstance(answer, InconsistentTarget):
            del self._waiting[outbox]
            if outbox.on_inconsistent is not None:
                outbox.on_inconsistent(str(answer))
            else:
                self._owner.lose(outbox, answer)
        elif answer.is_final and self._is_refused_for_long(outbox):
            # Rely on the broker's producer state.
            del self._waiting[outbox]
            # Or the next batch would be looked up, too, and none would be sent.
            outbox.is_unverified = outbox.is_cut_off = False
            outbox.verified_epoch = None
            note = f"at least once: an unanswered batch cannot be looked up on the target: {answer}"
            self._log.warning(note, partition=str(outbox.partition))
            if outbox.on_uncertain is not None:
                outbox.on_uncertain(note)
            self._owner.retry(outbox, outbox.look_up_cause)
        else:
            outbox.last_error = answer
            if isinstance(answer, BrokerFailure) and answer.stale_metadata:
                self._refresh(0.0)

    def _is_refused_for_long(self, outbox: Outbox) -> bool:
        since = self._refused_since.setdefault(outbox, time.monotonic())
        if time.monotonic() - since < LOOK_UP_REFUSED_S:
            return False
        del self._refused_since[outbox]
        return True

    def _align(self, outbox: Outbox, progress: TargetProgress) -> None:
        """Deliver what is on the target, and resend the rest."""
        there, has_moved = progress.records, _has_moved(outbox, progress.end)
        outbox.last_error = None
        outbox.known = outbox.is_unverified = outbox.is_cut_off = False
        outbox.verified_epoch = progress.leader_epoch if progress.leader_epoch >= 0 else None
        if outbox.verified_epoch not in {None, outbox.leader_epoch}:
            self._refresh(0.0)
        if there < outbox.acked or progress.own_end < outbox.floor or has_moved:
            if outbox.on_truncated is not None:
                outbox.on_truncated(there, progress.own_end)
            return
        gained = False
        while outbox.queue and outbox.queue[0].at >= 0 and outbox.queue[0].end <= there:
            outgoing = outbox.queue.popleft()
            outbox.deliver(outgoing, progress.offset_of(outgoing.at, outgoing.count))
            gained = True
        if outbox.queue and 0 <= outbox.queue[0].at < there:
            whole = outbox.queue.popleft()
            count = there - whole.at
            rest = None if whole.without is None else whole.without(count, progress.offset_of(whole.at, count))
            if rest is None:
                self._owner.lose(outbox, BrokerFailure.of(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
                return
            whole.at = there
            outbox.restamp(whole, [rest])
            outbox.queue.appendleft(rest)
            outbox.acked, outbox.end_offset, outbox.own_end = there, progress.target_end, progress.target_end
            gained = True
        if there > outbox.next or progress.revived is not None:
            # Another executor has copied more than this one has read: it has taken over the partition. Or the session before
            # this one continues, in the next micro-batch.
            subject = subject_of(outbox, self._cluster)
            self._owner.lose(outbox, BrokerFailure.of(ErrorCode.PRODUCER_FENCED, subject=subject))
            return
        self._owner.retry(outbox, None if gained or not outbox.queue else outbox.look_up_cause)


def _has_moved(outbox: Outbox, end: int) -> bool:
    """Whether a target with preserved offsets does not end where it should: markers behind the last record may be lost alone,
    and before the first batch of a session late records of its predecessor may appear.
    """
    if not outbox.is_preserved:
        return False
    return end < outbox.end_offset or (outbox.is_unverified and end > outbox.end_offset)
