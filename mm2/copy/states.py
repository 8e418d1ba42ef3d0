"""The states of a partition, for status pages, metrics and alerts."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure

#: From this number of source offsets behind on, or with an older record that is not on the target, a partition is catching up.
BEHIND_OFFSETS: Final = 10_000
BEHIND_S: Final = 30.0


class PartitionState(StrEnum):
    """The state of one partition. Every state except RUNNING and CATCHING_UP is reported with a reason, an offset and
    a time.
    """

    RUNNING = "RUNNING"
    CATCHING_UP = "CATCHING_UP"
    PREPARING = (
        "PREPARING"  # not copied yet: a new topic, or preserved offsets before the first record are filled first
    )
    THROTTLED = "THROTTLED"
    BLOCKED_BY_OPEN_TXN = "BLOCKED_BY_OPEN_TXN"
    PAUSED = "PAUSED"
    UNREACHABLE = "UNREACHABLE"  # it has no leader, or the leader does not respond
    UNAUTHORIZED = "UNAUTHORIZED"
    CORRUPT = "CORRUPT"
    TOO_LARGE = "TOO_LARGE"
    OVER_LIMIT = "OVER_LIMIT"  # a batch needs more memory than decompression.max.bytes
    LOST_RANGE = "LOST_RANGE"  # records are missing on the source or on the target, and which they are, or what to do, is not known
    DELETED = "DELETED"
    RECREATED = "RECREATED"
    SOURCE_REPLACED = "SOURCE_REPLACED"  # the source is another cluster than the one that was copied
    INCONSISTENT = "INCONSISTENT"  # the target log contradicts the number of records copied to it
    DIVERGED = "DIVERGED"  # offsets are preserved, and the target has other records at the source's offsets
    TARGET_FULL = "TARGET_FULL"
    REFUSED = "REFUSED"  # by a broker, for any other reason
    FAILED = "FAILED"  # an internal error


#: States of a healthy partition.
HEALTHY: Final = frozenset({PartitionState.RUNNING, PartitionState.CATCHING_UP, PartitionState.PREPARING})

#: States that need no attention: a pause is deliberate.
WELL: Final = HEALTHY | {PartitionState.PAUSED}

#: States that require an action. With ``partition.error=fail`` they fail the task. DELETED is not one of them: the topic leaves the
#: assignment with the next topic refresh. A full disk and an unreachable broker are retried, as in Java's producer.
LASTING: Final = frozenset(
    {
        PartitionState.UNAUTHORIZED,
        PartitionState.CORRUPT,
        PartitionState.TOO_LARGE,
        PartitionState.OVER_LIMIT,
        PartitionState.LOST_RANGE,
        PartitionState.RECREATED,
        PartitionState.SOURCE_REPLACED,
        PartitionState.INCONSISTENT,
        PartitionState.DIVERGED,
        PartitionState.REFUSED,
        PartitionState.FAILED,
    }
)

#: In these states the position may be one in a log that does not exist any more.
OTHER_LOG: Final = frozenset({PartitionState.RECREATED, PartitionState.LOST_RANGE, PartitionState.SOURCE_REPLACED})

#: States that end only when the position is reset, by Connect's offsets endpoint or by a record in the offsets topic.
LASTS_UNTIL_RESET: Final = frozenset({PartitionState.INCONSISTENT, PartitionState.DIVERGED})

_OF_CODE: Final[Mapping[int, PartitionState]] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: PartitionState.UNAUTHORIZED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: PartitionState.UNAUTHORIZED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: PartitionState.UNAUTHORIZED,
    ErrorCode.MESSAGE_TOO_LARGE: PartitionState.TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE: PartitionState.TOO_LARGE,
    ErrorCode.KAFKA_STORAGE_ERROR: PartitionState.TARGET_FULL,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: PartitionState.DELETED,
    ErrorCode.UNKNOWN_TOPIC_ID: PartitionState.DELETED,
}


def healthy_state(lag: int | None, age_s: float | None = None) -> PartitionState:
    """The state of a partition that nothing prevents from being copied; None: not known."""
    is_behind = (lag or 0) > BEHIND_OFFSETS or (age_s or 0.0) > BEHIND_S
    return PartitionState.CATCHING_UP if is_behind else PartitionState.RUNNING


_LONGEST_REASON: Final = 2_000  # characters: at most 12 KB as JSON


def brief(reason: str) -> str:
    """The beginning of a reason or note, which is part of the ledger entry: the text of a plugin's error may have any
    length, and characters that cannot be encoded.
    """
    kept = reason[:_LONGEST_REASON].encode(errors="replace").decode()
    return kept if len(reason) <= _LONGEST_REASON else f"{kept}… ({len(reason) - _LONGEST_REASON} more characters)"


def state_of(failure: Exception) -> PartitionState:
    """The state of a partition after this error."""
    if not isinstance(failure, BrokerFailure):
        return PartitionState.UNREACHABLE
    found = _OF_CODE.get(failure.code)
    if found is not None:
        return found
    return PartitionState.UNREACHABLE if failure.retriable else PartitionState.REFUSED
