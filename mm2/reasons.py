"""Reason codes.

A reason is a code and a message. Branches, metric labels, JSON fields and tests use the code; the message is for people, and its
words may change with any release. The codes of a stopped or delayed partition are `mm2.copy.states.PartitionState`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class OffsetReasonCode(StrEnum):
    """Why the committed offset of a consumer group is not on the target; also values of a metric's label."""

    NO_TOPIC = "no_topic"  # the remote topic does not exist
    RECREATED = "recreated"  # the topic was deleted and created again since it was copied
    TOO_OLD = "too_old"  # the offset lies before all that can be translated
    NOT_COPIED = "not_copied"  # no record of the partition has been copied
    NO_LEDGER = "no_ledger"  # of the flow in the other direction, which copied the topic
    NO_SYNC = "no_sync"  # no offset sync can be used
    IN_USE = "in_use"  # the group is active on the target
    AHEAD = "ahead"  # the group's offset on the target is a later one
    NEXT_NOT_COPIED = (
        "next_not_copied"  # it is there, and after records that are on the source only and that the group has not read
    )
    OTHER_FLOW = "other_flow"  # it is there, but earlier: another flow copies to the same partition and has no checkpoint of the group
    ANOTHER_COPY = "another_copy"  # the checkpoint lies behind the end of the remote partition
    OTHER = "other"


class MoveCode(StrEnum):
    """What the consumers of a group would do if they moved to the target now."""

    CONTINUES = "continues"  # the translated offset is committed there
    READS_AGAIN = "reads_again"  # an earlier one is: it was committed before, or offsets of groups are not synced
    AHEAD = "ahead"  # a later one is: the group has consumed there, or an offset of another copy was committed
    UNTRANSLATED = "untranslated"  # there is an offset, and none to compare it with
    NO_OFFSET = "no_offset"
    OUT_OF_RANGE = "out_of_range"  # there is one that the partition does not have: consumers apply auto.offset.reset


class TargetLossCode(StrEnum):
    """Why a remote partition does not have all that was copied to it."""

    DELETED = "deleted"  # there is no such topic or partition
    RECREATED = "recreated"  # it is another topic than the one that was copied to
    SHORTER = "shorter"  # its log ends before the offset up to which was copied
    STOPPED = "stopped"  # copying has stopped because the log contradicts what was copied: its end proves nothing


class OriginCode(StrEnum):
    """How copying of a partition began where records may have been copied before: the remote partition was not empty, and the ledger
    had no entry, or one with a later position.
    """

    OTHER_POSITION = "other_position"  # at a position that no copy session has written: Java's MirrorMaker, or a user
    OWN_POSITION = "own_position"  # at a position that a copy session of the flow has written: the ledger was lost
    START_FROM = "start_from"  # without a position, at an offset of start.from
    NO_POSITION = "no_position"  # without a position
    LOST_POSITION = (
        "lost_position"  # at a position before that of the ledger, which no user has set: the newer ones were lost
    )

    @property
    def note(self) -> str:
        """What this means for the records of the target; "" if Java's MirrorMaker explains it."""
        if self is OriginCode.OTHER_POSITION:
            return ""
        how = {
            OriginCode.OWN_POSITION: "without its ledger",
            OriginCode.START_FROM: "at an offset of start.from",
            OriginCode.LOST_POSITION: "at an older position, because newer ones were lost",
        }.get(self, "without a position")
        return f"copying began {how}, and the remote partition was not empty: what was copied before may be there twice (mm2 verify)"


class PauseCode(StrEnum):
    """Why a partition is PAUSED."""

    USER = "user"  # it, or its topic, was paused by a user
    FLOW = "flow"  # the source connector is paused or stopped, or does not run
    PROMOTED = "promoted"  # applications use the remote topic, until mm2 failback
    TURNED = "turned"  # after mm2 failback the flow in the opposite direction copies the topic, under the same name
    NOT_SELECTED = "not_selected"  # topics and topics.exclude do not select it any more


class WayBackCode(StrEnum):
    """Whether the flow in the opposite direction copies a topic back after a failover."""

    COPIED = "copied"  # as far as its configuration decides
    DISABLED = "disabled"  # the file does not enable it
    NEVER_RUN = "never_run"
    NOT_SELECTED = "not_selected"  # its filters or its replication policy leave the topic out
    LOOP = "loop"  # the topic came from where it would be copied to
    HELD = "held"  # a user has paused or stopped it
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class OffsetReason:
    """Why one committed offset is not on the target."""

    code: OffsetReasonCode
    message: str

    def __str__(self) -> str:
        return self.message


class SparkDownCode(StrEnum):
    """Why a process cannot start a Spark task; also values of fields in JSON and logs."""

    STARTING = "starting"  # for an unusually long time
    START_FAILED = "start_failed"  # it is retried
    JVM_DIED = "jvm_died"
    JVM_HANGS = "jvm_hangs"  # it does not respond
    APPLICATION_ENDED = "application_ended"
    NO_EXECUTOR = "no_executor"  # the cluster has not started one


@dataclass(frozen=True, slots=True)
class SparkDown:
    """Why a process cannot start a Spark task. The message is one sentence without a full stop."""

    code: SparkDownCode
    message: str

    def __str__(self) -> str:
        return self.message
