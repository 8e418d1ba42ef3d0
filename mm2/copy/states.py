"""What can be said of one partition's copying, for status pages, metrics and alarms."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure


class PartitionState(StrEnum):
    """Each comes with a reason, an offset and a time; one that is not RUNNING or CATCHING_UP needs somebody to know."""

    RUNNING = "RUNNING"
    CATCHING_UP = "CATCHING_UP"
    THROTTLED = "THROTTLED"
    BLOCKED_BY_OPEN_TXN = "BLOCKED_BY_OPEN_TXN"
    PAUSED = "PAUSED"
    UNREACHABLE = "UNREACHABLE"  # no broker leads it, or its leader does not answer
    UNAUTHORIZED = "UNAUTHORIZED"
    CORRUPT = "CORRUPT"
    TOO_LARGE = "TOO_LARGE"
    LOST_RANGE = "LOST_RANGE"  # the source no longer has what was to be copied, and the policy is to stop
    DELETED = "DELETED"
    RECREATED = "RECREATED"
    INCONSISTENT = "INCONSISTENT"  # the target's log contradicts what was counted there
    TARGET_FULL = "TARGET_FULL"
    REFUSED = "REFUSED"  # by a broker, for a reason that is none of the above
    FAILED = "FAILED"  # an error of ours


#: Those in which nothing is wrong.
WELL: Final = frozenset({PartitionState.RUNNING, PartitionState.CATCHING_UP})

#: Those that last until somebody mends something: with ``partition.error=fail`` they fail the task. A topic that is DELETED
#: is dealt to nobody soon, and a full disk or a silent broker is waited for, as Java's producer does.
LASTING: Final = frozenset(
    {
        PartitionState.UNAUTHORIZED,
        PartitionState.CORRUPT,
        PartitionState.TOO_LARGE,
        PartitionState.LOST_RANGE,
        PartitionState.RECREATED,
        PartitionState.INCONSISTENT,
        PartitionState.REFUSED,
        PartitionState.FAILED,
    }
)

#: Those that only a reset of the position ends, by Connect's offsets endpoint or by a record in the offsets topic.
LASTS_UNTIL_RESET: Final = frozenset({PartitionState.INCONSISTENT})

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


def state_of(failure: Exception) -> PartitionState:
    """The state that a broker's error puts a partition in."""
    if not isinstance(failure, BrokerFailure):
        return PartitionState.UNREACHABLE
    found = _OF_CODE.get(failure.code)
    if found is not None:
        return found
    return PartitionState.UNREACHABLE if failure.retriable else PartitionState.REFUSED
