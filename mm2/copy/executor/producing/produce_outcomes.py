"""ProduceOutcomes of batches that were sent: acknowledged, rejected, or unknown because no response has arrived.

The rules S2 to S4 of docs/explanation/copy-sessions.md apply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import structlog

from mm2.copy.executor.clusters.topic_ids import TargetTopicIds
from mm2.copy.executor.partition.outbox import Outbox, OutboxState, OutgoingBatch, subject_of
from mm2.copy.executor.producing.progress_look_ups import ProgressLookUp, ProgressLookUps
from mm2.copy.states import PartitionState, state_of
from mm2.kafka.backoff import Backoff
from mm2.kafka.client.cluster import Cluster
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


class Sender(Protocol):
    """Sends the batches of outboxes."""

    def wake(self, outbox: Outbox) -> None:
        """Schedule the outbox if it may send."""

    def end_pause(self, outbox: Outbox) -> None:
        """End a pause."""

    def offer_again(self, outbox: Outbox) -> None:
        """Resend a rejected batch, unless new batches are held back."""

    def find_leader(self, outbox: Outbox) -> None:
        """Look up the leader of an outbox that has none."""


class ProduceOutcomes:
    """Delivers acknowledgements in order, and decides what is resent, looked up or reported after a failure.

    ``look_ups`` has the outboxes with batches whose outcome is unknown. ``on_lost(outbox, failure)`` reports that a
    producer cannot continue, because the target's state of it contradicts ours, or because the target stores records in a
    message format without producer ids (UNSUPPORTED_FOR_MESSAGE_FORMAT). ``refresh(delay)`` looks up the
    leaders.
    """

    def __init__(
        self,
        sender: Sender,
        cluster: Cluster,
        loop: asyncio.AbstractEventLoop,
        look_up: ProgressLookUp | None,
        topic_ids: TargetTopicIds,
        refresh: Callable[[float], None],
        on_lost: Callable[[Outbox, KafkaFailure], None] | None,
    ) -> None:
        self.look_ups = ProgressLookUps(self, cluster.name, loop, look_up, topic_ids, refresh)
        self._sender = sender
        self._cluster = cluster.name
        self._loop = loop
        self._refresh = refresh
        self._on_lost = on_lost
        self._backoff = Backoff(cluster.settings.retry_backoff_ms, cluster.settings.retry_backoff_max_ms)
        self._log = structlog.get_logger("mm2.copy.executor.produce_outcomes").bind(cluster=cluster.name)

    # -- responses -------------------------------------------------------------------------------------------------

    def answered(self, outbox: Outbox, outgoing: OutgoingBatch, result: Produced | None) -> None:
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
            self._failed(outbox, outgoing, BrokerFailure.of(code, message, subject=subject, needed="WRITE"))
        self._settle(outbox)

    def unanswered(self, outgoing_batches: Iterable[tuple[Outbox, OutgoingBatch]]) -> None:
        """The connection was closed before the responses to these batches."""
        touched: dict[Outbox, None] = {}  # in order
        for outbox, outgoing in outgoing_batches:
            outgoing.under_way = False
            outgoing.failure = 0
            outbox.doubt(outgoing)
            outbox.state = OutboxState.DRAINING
            touched[outbox] = None
        for outbox in touched:
            self._settle(outbox)

    def _failed(self, outbox: Outbox, outgoing: OutgoingBatch, failure: BrokerFailure) -> None:
        first = outbox.state is not OutboxState.DRAINING
        outbox.state = OutboxState.DRAINING
        if first or outbox.last_error is None:
            outbox.last_error = failure
        if failure.stale_metadata:
            outbox.address = None
            self._sender.find_leader(outbox)
        elif failure.code == ErrorCode.REQUEST_TIMED_OUT:
            self._refresh(0.0)  # a deposed leader may respond with this error
        if first:
            self._log.debug(
                "batch not acknowledged", partition=str(outbox.partition), at=outgoing.at, error=str(failure)
            )

    def _settle(self, outbox: Outbox) -> None:
        """Deliver acknowledgements in order. When all requests of a failed outbox are answered, start over."""
        while outbox.sent and outbox.sent[0].base_offset is not None:
            outgoing = outbox.sent.popleft()
            outbox.failures = 0
            outbox.known = outbox.state is not OutboxState.DRAINING and outgoing.leader_epoch == outbox.leader_epoch
            outbox.acked_ms = outgoing.header.max_timestamp
            outbox.verified_epoch = None
            if outbox.last_error is not None:
                outbox.last_error = None
                if outbox.on_refused is not None:
                    outbox.on_refused(None)
            outbox.deliver(outgoing, outgoing.base_offset if outgoing.base_offset is not None else -1)
        if outbox.state is OutboxState.DRAINING and not any(outgoing.under_way for outgoing in outbox.sent):
            self._start_over(outbox)
        else:
            self._sender.wake(outbox)

    # -- after a failure -------------------------------------------------------------------------------------------

    def _start_over(self, outbox: Outbox) -> None:
        """All requests in flight are answered, and not all were acknowledged."""
        flight = list(outbox.sent)
        outbox.sent.clear()
        outbox.state, outbox.known = OutboxState.OPEN, False
        if not flight:
            self._sender.wake(outbox)
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
            self._overtaken(outbox, flight[0], overtaken)
            return
        if self._queue_again(outbox, flight, split=cause in _TOO_LARGE and not may_be_appended):
            cause = 0
        failure = BrokerFailure.of(cause, subject=subject_of(outbox, self._cluster), needed="WRITE") if cause else None
        outbox.look_up_cause = None if cause in _PRODUCER_LOST else failure
        is_old_format = cause == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT and not may_be_appended
        if is_old_format and outbox.identity is not None and not outbox.transactional:
            outbox.paused = True
            self.lose(outbox, failure)
        elif outbox.identity is not None and cause in _PRODUCER_LOST:
            if not outbox.looked_up or outbox.failures > MAX_SEQUENCE_ERRORS:
                outbox.paused = True
                self.lose(outbox, failure)
            else:
                self.look_ups.add(outbox)
        elif outbox.looked_up and may_be_appended:
            self.look_ups.add(outbox)
        elif (
            outbox.transactional
            and may_be_appended
            and failure is not None
            and outbox.failures <= _MAX_UNCERTAIN_RESENDS
        ):
            self._pause(outbox)
        else:
            self.retry(outbox, failure)

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

    def retry(self, outbox: Outbox, failure: KafkaFailure | None) -> None:
        """Resend what is not on the target: immediately, after a backoff, or after `_REFUSED_RETRY_S`."""
        if failure is None:
            self._sender.end_pause(outbox)
        elif not failure.retriable:
            outbox.paused = False
            self._refuse(outbox, failure)
        else:
            self._pause(outbox)

    def _pause(self, outbox: Outbox) -> None:
        """Resend after a backoff."""
        outbox.paused = True
        self._loop.call_later(self._backoff.delay_s(min(outbox.failures, 10)), self._sender.end_pause, outbox)

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

    def _refuse(self, outbox: Outbox, failure: KafkaFailure) -> None:
        if state_of(failure) is PartitionState.REFUSED and self._separate(outbox):
            self._sender.end_pause(outbox)
            return
        if outbox.transactional:
            if max(outbox.acked, outbox.doubtful_to) > outbox.queue[0].end:
                # The transaction may contain a batch behind this one. Its positions cannot, so it must not be committed.
                outbox.stopped = True
                self.lose(outbox, failure)
                return
            outbox.doubtful_to = outbox.acked  # it was resent, so it was not appended
        outbox.state = OutboxState.REFUSED
        if outbox.on_refused is not None:
            outbox.on_refused(failure)
        if outbox.refused:  # the callback may have handled it
            self._loop.call_later(_REFUSED_RETRY_S, self._sender.offer_again, outbox)

    def _overtaken(self, outbox: Outbox, refused: OutgoingBatch, acknowledged: OutgoingBatch) -> None:
        """A batch was appended although the one before it was rejected (rule S4): nothing more is sent."""
        outbox.paused = True
        failure = BrokerFailure.of(refused.failure, subject=subject_of(outbox, self._cluster), needed="WRITE")
        reason = (
            f"{outbox.partition} of cluster {self._cluster} appended the records from {acknowledged.at} on at offset "
            f"{acknowledged.base_offset}, although it had rejected those from {refused.at} on: {failure}"
        )
        if outbox.looked_up and outbox.on_inconsistent is not None:
            outbox.on_inconsistent(reason)
        else:
            self.lose(outbox, failure)

    def lose(self, outbox: Outbox, failure: KafkaFailure | None) -> None:
        """The producer cannot continue."""
        if self._on_lost is not None:
            self._on_lost(outbox, failure or BrokerFailure.of(ErrorCode.UNKNOWN_PRODUCER_ID))
