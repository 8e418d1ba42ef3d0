"""Why a partition is not copied at the moment, or not completely."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from mm2.copy.progress.session import PartitionCondition
from mm2.copy.states import PartitionState, brief, state_of
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BatchOverLimit, BrokerFailure, CorruptBatch
from mm2.kafka.structs import TopicPartition

_BLOCKED_AFTER_S: Final = 1.0
_THROTTLED_FOR_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class TooLargeRecord:
    """A record that the target rejects because of its size: its source offset, its bytes, and the remote topic with the
    config that sets the limit.
    """

    offset: int
    size: int
    topic: str
    limit_key: str

    @classmethod
    def of(cls, failure: Exception, offset: int, size: int, topic: str) -> TooLargeRecord:
        """``failure`` is the target's: the record exceeds the limit of batches, or the size of a log segment."""
        is_segment = isinstance(failure, BrokerFailure) and failure.code == ErrorCode.RECORD_LIST_TOO_LARGE
        return cls(offset, size, topic, "segment.bytes" if is_segment else "max.message.bytes")

    def sentence(self, limit: int | None) -> str:
        """What is too large, and what to do. ``limit`` is the value of the config, None if it could not be read."""
        accepted = "" if limit is None else f", and topic {self.topic} accepts {limit:,}"
        return (
            f"The record at source offset {self.offset} takes {self.size:,} bytes{accepted}. "
            f"Raise {self.limit_key} of topic {self.topic}, or set errors.tolerance=all to write it to the dead letter topic."
        )


@dataclass(slots=True, eq=False)
class Conditions:
    """``stop`` lasts for the micro-batch, ``paused`` until a user resumes the partition, ``read`` and ``write`` until
    the cluster accepts the partition again. ``note`` is a message about reduced guarantees; it stops nothing.
    """

    stop: PartitionCondition | None = None
    is_stopped_at_source: bool = False  # records that were read are still copied
    paused: PartitionCondition | None = None
    read: PartitionCondition | None = None
    write: PartitionCondition | None = None
    note: str = ""
    content_error: CorruptBatch | None = None  # of the batch that the target rejects
    too_large: TooLargeRecord | None = None  # the record whose size the target rejects
    size_limit: int | None = None  # of the remote topic when it last rejected a record, in bytes; None: not known
    _wait: PartitionCondition | None = None
    _blocked_since_s: float = 0.0
    _throttled_until_s: float = 0.0
    _throttled_by: str = ""

    def set_read(self, state: PartitionState, reason: str, offset: int) -> None:
        """The source rejects reads at the moment."""
        self.read = _continued(self.read, state, reason, offset)

    def set_write(self, failure: Exception, partition: TopicPartition, offset: int) -> None:
        """The target rejects the partition, perhaps because of `content_error`, or of the size of a record."""
        state, reason = state_of(failure), str(failure)
        if state is PartitionState.TOO_LARGE and self.too_large is not None:
            reason = f"{reason.rstrip('.')}. {self.too_large.sentence(self.size_limit)}"
        error = self.content_error
        if isinstance(error, BatchOverLimit):
            if state is PartitionState.TOO_LARGE:  # it is not split without being decompressed
                state, reason = PartitionState.OVER_LIMIT, f"{partition}: {error}, and {reason}"
        elif state is PartitionState.REFUSED and error is not None:
            state, reason = PartitionState.CORRUPT, f"{partition}: {error}, and {reason}"
        self.write = _continued(self.write, state, reason, offset)

    def throttled(self, by: str, for_s: float) -> None:
        """A limit or a quota prevents reading or writing for so many seconds; ``by`` is which one."""
        self._throttled_until_s = time.monotonic() + max(for_s, _THROTTLED_FOR_S)
        self._throttled_by = by

    def waiting(self, offset: int, end: int, last_stable: int | None) -> PartitionCondition | None:
        """What reading at ``offset`` waits for although there is no error; ``end`` is the high watermark, and
        ``last_stable`` None reads past open transactions.
        """
        now = time.monotonic()
        blocked = last_stable is not None and end > offset >= last_stable
        self._blocked_since_s = (self._blocked_since_s or now) if blocked else 0.0
        if blocked and now - self._blocked_since_s > _BLOCKED_AFTER_S:
            reason = (
                f"a transaction that began at source offset {last_stable} is neither committed nor aborted, "
                "and read_committed does not read past it"
            )
            self._set_wait(PartitionState.BLOCKED_BY_OPEN_TXN, reason, last_stable or 0)
        elif now < self._throttled_until_s and end > offset:
            self._set_wait(PartitionState.THROTTLED, self._throttled_by, offset)
        else:
            self._wait = None
        return self._wait

    def _set_wait(self, state: PartitionState, reason: str, offset: int) -> None:
        if self._wait is None or (self._wait.state, self._wait.reason) != (state, reason):
            self._wait = PartitionCondition(state, reason, offset, now_ms())


def _continued(known: PartitionCondition | None, state: PartitionState, reason: str, offset: int) -> PartitionCondition:
    """A condition that keeps its time while the state is the same."""
    reason = brief(reason)
    if known is None or known.state != state:
        return PartitionCondition(state, reason, offset, now_ms())
    return known._replace(reason=reason)


def now_ms() -> int:
    """The current time as a timestamp of a record."""
    return int(time.time() * 1000)
