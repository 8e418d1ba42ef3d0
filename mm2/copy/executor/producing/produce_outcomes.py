"""Outcomes of batches that were sent: acknowledged, rejected, or unknown because no response has arrived.

The rules S2 to S4 of docs/explanation/copy-sessions.md apply.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import structlog

from mm2.copy.executor.partition.outbox import Outbox, OutboxState, OutgoingBatch, subject_of
from mm2.copy.executor.producing.outbox_events import (
    Accepted,
    ErrorChanged,
    LeadersOutdated,
    LeaderUnknown,
    OutboxEvent,
    OutcomeUnknown,
    PauseEnds,
    ProducerLost,
    Rejected,
    RetryDue,
    TargetInconsistent,
    TargetTruncated,
)
from mm2.copy.progress.target_progress import TargetProgress
from mm2.copy.states import PartitionState, state_of
from mm2.kafka.backoff import Backoff
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.wire.produce import Produced

_REFUSED_RETRY_S: Final = 5.0
_TOO_LARGE: Final = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
_PRODUCER_LOST: Final = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_TXN_STATE,
)
#: Errors that exclude an append. After any other error the batch may be in the log (`ReplicaManager.appendRecords`,
#: `DelayedProduce`).
_NOT_APPENDED: Final = frozenset(
    {
        *_TOO_LARGE,
        *_PRODUCER_LOST,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.INVALID_RECORD,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)
#: Maximum number of consecutive sequence errors although the look-up finds the sequences correct.
MAX_SEQUENCE_ERRORS: Final = 3
#: Maximum number of resends in a transaction after an error that leaves the outcome unknown. A leader remembers producers with an
#: open transaction and detects a duplicate, so a batch that is still rejected was not appended.
_MAX_UNCERTAIN_RESENDS: Final = 3

Events = Iterator[OutboxEvent]


class ProduceOutcomes:
    """Delivers acknowledgements in order, and decides what is resent, looked up or reported after a failure.

    Without I/O: a method yields what has to be done, and continues after each event has been handled.
    """

    def __init__(self, cluster: str, backoff: Backoff) -> None:
        self._cluster = cluster
        self._backoff = backoff
        self._log = structlog.get_logger("mm2.copy.executor.produce_outcomes").bind(cluster=cluster)

    # -- responses -------------------------------------------------------------------------------------------------

    def answered(self, outbox: Outbox, outgoing: OutgoingBatch, result: Produced | None) -> Events:
        """The response to a batch in flight; None: it is missing in the response."""
        outgoing.under_way = False
        code = ErrorCode.UNKNOWN_SERVER_ERROR if result is None else result.error_code
        if result is not None and not code:
            outgoing.base_offset = result.base_offset
            outgoing.failure = 0
        else:
            outgoing.failure = code
            if code not in _NOT_APPENDED:
                outbox.doubt(outgoing)
            message = None if result is None else result.message or None
            subject = subject_of(outbox, self._cluster)
            failure = BrokerFailure.of(code, message, subject=subject, needed="WRITE")
            yield from self._failed(outbox, outgoing, failure)
        yield from self._settle(outbox)

    def unanswered(self, outgoing_batches: Iterable[tuple[Outbox, OutgoingBatch]]) -> Events:
        """The connection was closed before the responses to these batches."""
        touched: dict[Outbox, None] = {}  # in order
        for outbox, outgoing in outgoing_batches:
            outgoing.under_way = False
            outgoing.failure = 0
            outbox.doubt(outgoing)
            outbox.state = OutboxState.DRAINING
            touched[outbox] = None
        for outbox in touched:
            yield from self._settle(outbox)

    def _failed(self, outbox: Outbox, outgoing: OutgoingBatch, failure: BrokerFailure) -> Events:
        first = outbox.state is not OutboxState.DRAINING
        outbox.state = OutboxState.DRAINING
        if first or outbox.last_error is None:
            outbox.last_error = failure
            yield ErrorChanged(outbox)
        if failure.stale_metadata:
            outbox.address = None
            yield LeaderUnknown(outbox)
        elif failure.code == ErrorCode.REQUEST_TIMED_OUT:
            yield LeadersOutdated()  # a deposed leader may respond with this error
        if first:
            self._log.debug(
                "batch not acknowledged", partition=str(outbox.partition), at=outgoing.at, error=str(failure)
            )

    def _settle(self, outbox: Outbox) -> Events:
        """Deliver acknowledgements in order. When all requests of a failed outbox are answered, start over."""
        while outbox.sent and outbox.sent[0].base_offset is not None:
            outgoing = outbox.sent.popleft()
            outbox.failures = 0
            outbox.known = outbox.state is not OutboxState.DRAINING and outgoing.leader_epoch == outbox.leader_epoch
            outbox.acked_ms = outgoing.header.max_timestamp
            outbox.verified_epoch = None
            if outbox.last_error is not None:
                outbox.last_error = None
                yield Accepted(outbox)
            outbox.deliver(outgoing, outgoing.base_offset if outgoing.base_offset is not None else -1)
        if outbox.state is OutboxState.DRAINING and not any(outgoing.under_way for outgoing in outbox.sent):
            yield from self._start_over(outbox)

    # -- after a failure -------------------------------------------------------------------------------------------

    def _start_over(self, outbox: Outbox) -> Events:
        """All requests in flight are answered, and not all were acknowledged."""
        flight = list(outbox.sent)
        outbox.sent.clear()
        outbox.state, outbox.known = OutboxState.OPEN, False
        if not flight:
            return
        outbox.failures += 1
        cause = flight[0].failure  # the other failures may be consequences of it
        may_be_appended = any(
            outgoing.base_offset is None and outgoing.failure not in _NOT_APPENDED for outgoing in flight
        )
        overtaken = next((outgoing for outgoing in flight if outgoing.base_offset is not None), None)
        # The first sequence may be wrong because a late request of the predecessor has filled a part, in other batches.
        is_looked_up = outbox.looked_up and cause == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if overtaken is not None and not may_be_appended and not is_looked_up and outbox.identity is not None:
            yield self._overtaken(outbox, flight[0], overtaken)
            return
        if self._queue_again(outbox, flight, split=cause in _TOO_LARGE and not may_be_appended):
            cause = 0
        failure = BrokerFailure.of(cause, subject=subject_of(outbox, self._cluster), needed="WRITE") if cause else None
        outbox.look_up_cause = None if cause in _PRODUCER_LOST else failure
        is_old_format = cause == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT and not may_be_appended
        if is_old_format and outbox.identity is not None and not outbox.transactional:
            outbox.paused = True
            yield _lost(outbox, failure)
        elif outbox.identity is not None and cause in _PRODUCER_LOST:
            if not outbox.looked_up or outbox.failures > MAX_SEQUENCE_ERRORS:
                outbox.paused = True
                yield _lost(outbox, failure)
            else:
                yield OutcomeUnknown(outbox)
        elif outbox.looked_up and may_be_appended:
            yield OutcomeUnknown(outbox)
        elif (
            outbox.transactional
            and may_be_appended
            and failure is not None
            and outbox.failures <= _MAX_UNCERTAIN_RESENDS
        ):
            yield self._pause(outbox)
        else:
            yield from self.retry(outbox, failure)

    @staticmethod
    def _queue_again(outbox: Outbox, flight: list[OutgoingBatch], *, split: bool) -> bool:
        """Put batches back into the queue, except acknowledged ones that no look-up will find. ``split``: the first
        one, if possible; returns whether it was split.
        """
        acknowledged = [] if outbox.looked_up else [outgoing for outgoing in flight if outgoing.base_offset is not None]
        again = [outgoing for outgoing in flight if outgoing not in acknowledged]
        pieces = again[0].split() if split and again[0].split is not None else None
        if pieces:
            outbox.restamp(again[0], pieces)
            again[0:1] = pieces
        for outgoing in reversed(again):
            outgoing.failure = 0
            outgoing.base_offset = None
            outbox.queue.appendleft(outgoing)
        for outgoing in acknowledged:
            outbox.deliver(outgoing, outgoing.base_offset if outgoing.base_offset is not None else -1)
        return bool(pieces)

    def retry(self, outbox: Outbox, failure: KafkaFailure | None) -> Events:
        """Resend what is not on the target: immediately, after a backoff, or after `_REFUSED_RETRY_S`."""
        if failure is None:
            yield PauseEnds(outbox)
        elif not failure.retriable:
            outbox.paused = False
            yield from self._refuse(outbox, failure)
        else:
            yield self._pause(outbox)

    def aligned(self, outbox: Outbox, progress: TargetProgress) -> Events:
        """A look-up has found this progress: deliver what is on the target, and resend the rest."""
        found, has_moved = progress.records, _has_moved(outbox, progress.end)
        outbox.last_error = None
        yield ErrorChanged(outbox)
        outbox.known = outbox.is_unverified = outbox.is_cut_off = False
        outbox.verified_epoch = progress.leader_epoch if progress.leader_epoch >= 0 else None
        if outbox.verified_epoch not in {None, outbox.leader_epoch}:
            yield LeadersOutdated()
        if found < outbox.acked or progress.own_end < outbox.floor or has_moved:
            yield TargetTruncated(outbox, found, progress.own_end)
            return
        gained = False
        while outbox.queue and outbox.queue[0].at >= 0 and outbox.queue[0].end <= found:
            outgoing = outbox.queue.popleft()
            outbox.deliver(outgoing, progress.offset_of(outgoing.at, outgoing.count))
            gained = True
        if outbox.queue and 0 <= outbox.queue[0].at < found:
            whole = outbox.queue.popleft()
            count = found - whole.at
            rest = None if whole.without is None else whole.without(count, progress.offset_of(whole.at, count))
            if rest is None:
                yield ProducerLost(outbox, BrokerFailure.of(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
                return
            whole.at = found
            outbox.restamp(whole, [rest])
            outbox.queue.appendleft(rest)
            outbox.acked, outbox.end_offset, outbox.own_end = found, progress.target_end, progress.target_end
            gained = True
        if found > outbox.next or progress.reappeared is not None:
            # Another executor has copied more than this one has read: it has taken over the partition. Or the session before
            # this one continues, in the next micro-batch.
            subject = subject_of(outbox, self._cluster)
            yield ProducerLost(outbox, BrokerFailure.of(ErrorCode.PRODUCER_FENCED, subject=subject))
            return
        yield from self.retry(outbox, None if gained or not outbox.queue else outbox.look_up_cause)

    def _pause(self, outbox: Outbox) -> RetryDue:
        """Resend after a backoff."""
        outbox.paused = True
        return RetryDue(outbox, self._backoff.delay_s(min(outbox.failures, 10)))

    @staticmethod
    def _separate(outbox: Outbox) -> bool:
        """Split the first batch, if it was merged: the target may reject only one of its records."""
        whole = outbox.queue[0]
        pieces = whole.separate() if whole.separate is not None else None
        if not pieces:
            return False
        outbox.restamp(whole, pieces)
        outbox.queue.popleft()
        outbox.queue.extendleft(reversed(pieces))
        return True

    def _refuse(self, outbox: Outbox, failure: KafkaFailure) -> Events:
        if state_of(failure) is PartitionState.REFUSED and self._separate(outbox):
            yield PauseEnds(outbox)
            return
        if outbox.transactional:
            if max(outbox.acked, outbox.doubtful_to) > outbox.queue[0].end:
                # The transaction may contain a batch behind this one. Its positions cannot, so it must not be committed.
                outbox.stopped = True
                yield ProducerLost(outbox, failure)
                return
            outbox.doubtful_to = outbox.acked  # it was resent, so it was not appended
        outbox.state = OutboxState.REFUSED
        yield Rejected(outbox, failure)
        if outbox.refused:  # it is not being written to the dead letter topic
            yield RetryDue(outbox, _REFUSED_RETRY_S)

    def _overtaken(self, outbox: Outbox, refused: OutgoingBatch, acknowledged: OutgoingBatch) -> OutboxEvent:
        """A batch was appended although the one before it was rejected (rule S4): nothing more is sent."""
        outbox.paused = True
        failure = BrokerFailure.of(refused.failure, subject=subject_of(outbox, self._cluster), needed="WRITE")
        reason = (
            f"{outbox.partition} of cluster {self._cluster} appended the records from {acknowledged.at} on at offset "
            f"{acknowledged.base_offset}, although it had rejected those from {refused.at} on: {failure}"
        )
        return TargetInconsistent(outbox, reason) if outbox.looked_up else ProducerLost(outbox, failure)


def _lost(outbox: Outbox, failure: KafkaFailure | None) -> ProducerLost:
    return ProducerLost(outbox, failure or BrokerFailure.of(ErrorCode.UNKNOWN_PRODUCER_ID))


def _has_moved(outbox: Outbox, end: int) -> bool:
    """Whether a target with preserved offsets does not end where it should: markers behind the last record may be lost alone,
    and before the first batch of a session late records of its predecessor may appear.
    """
    if not outbox.is_preserved:
        return False
    return end < outbox.end_offset or (outbox.is_unverified and end > outbox.end_offset)
