"""What each state means, whether it ends by itself, and the runbook for it. A test compares it with docs/how-to/runbooks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mm2.copy.states import PartitionState


@dataclass(frozen=True, slots=True)
class Meaning:
    """``ends`` is when copying resumes, ``do`` what to do. ``runbook`` is a page in docs/how-to/runbooks, "" for none."""

    text: str
    ends: str = ""
    do: str = ""
    runbook: str = ""


_BY_ITSELF: Final = "By itself"

MEANINGS: Final = {
    PartitionState.RUNNING: Meaning("Records are copied as they arrive."),
    PartitionState.CATCHING_UP: Meaning(
        "A backlog is being copied.", _BY_ITSELF, "Nothing, unless the lag grows.", "Mm2LagGrowing"
    ),
    PartitionState.PREPARING: Meaning(
        "Not copied yet: the topic is new, or offsets are preserved, and those before the first record are filled on the target first.",
        _BY_ITSELF,
        "Nothing. New topics are found after refresh.topics.interval.seconds; for offsets the reason shows the progress.",
    ),
    PartitionState.THROTTLED: Meaning(
        "A limit of the flow or a quota of a broker applies.",
        _BY_ITSELF,
        "Raise the limit (mm2 throttle), or the quota of the broker.",
        "Mm2ThrottledLong",
    ),
    PartitionState.BLOCKED_BY_OPEN_TXN: Meaning(
        "An open transaction on the source blocks readers with read_committed.",
        "When the transaction ends",
        "Find the producer with kafka-transactions, and abort a hanging transaction.",
        "Mm2BlockedByOpenTransaction",
    ),
    PartitionState.PAUSED: Meaning(
        "A user paused it, it is promoted by mm2 failover or mm2 promote, the flow no longer selects the topic, or nothing runs the flow.",
        "Not by itself",
        "As the reason says: mm2 resume after a pause, mm2 failback for a promoted topic, topics and topics.exclude for one that is not "
        "selected, or start the flow.",
        "Mm2PausedLong",
    ),
    PartitionState.UNREACHABLE: Meaning(
        "The partition has no leader, or the leader does not respond.",
        _BY_ITSELF,
        "Check the brokers of the cluster in the reason.",
        "Mm2PartitionUnreachable",
    ),
    PartitionState.UNAUTHORIZED: Meaning(
        "A right is missing.", "When it is granted", "mm2 plan shows the missing rights.", "Mm2PartitionUnauthorized"
    ),
    PartitionState.CORRUPT: Meaning(
        "A batch of the source cannot be read.",
        "Only if a leader with an intact batch is elected",
        "Check the disks of the source, or skip the batch.",
        "Mm2PartitionCorrupt",
    ),
    PartitionState.TOO_LARGE: Meaning(
        "A record is larger than the target accepts.",
        "When the limit is raised",
        "Raise max.message.bytes of the remote topic, or set errors.tolerance=all.",
        "Mm2RecordTooLarge",
    ),
    PartitionState.OVER_LIMIT: Meaning(
        "A batch needs more memory than decompression.max.bytes when it is decompressed.",
        "When the limit is raised",
        "Raise decompression.max.bytes if the batch is legitimate.",
        "Mm2PartitionOverLimit",
    ),
    PartitionState.LOST_RANGE: Meaning(
        "The source has lost records that the flow needs next, or the target records that were copied.",
        "Not by itself",
        "Lost on the source: set source.data.loss=continue, or reset the position. Lost on the target: reset the position.",
        "Mm2LostRange",
    ),
    PartitionState.DELETED: Meaning(
        "The topic does not exist on the source or on the target.",
        "A deleted source topic leaves the flow at the next refresh of topics",
        "Create the topic again, or exclude it.",
        "Mm2TopicDeleted",
    ),
    PartitionState.RECREATED: Meaning(
        "The topic was deleted and created again.",
        "Not by itself",
        "Decide whether its records are to be copied from the start.",
        "Mm2TopicDeleted",
    ),
    PartitionState.SOURCE_REPLACED: Meaning(
        "The source is another cluster than the one that was copied.",
        "If the cluster that was copied answers again",
        "Run mm2 accept-source, which decides where copying continues.",
        "Mm2SourceReplaced",
    ),
    PartitionState.INCONSISTENT: Meaning(
        "The log of the target contradicts the number of copied records.",
        "Not by itself",
        "Reset the position. A restart does not end it.",
        "Mm2PartitionInconsistent",
    ),
    PartitionState.DIVERGED: Meaning(
        "Offsets are preserved, and the target has another record at an offset of the source.",
        "Not by itself",
        "Delete the remote topic and reset the position.",
        "Mm2PartitionInconsistent",
    ),
    PartitionState.TARGET_FULL: Meaning(
        "Brokers of the target cannot write to their disks.",
        _BY_ITSELF,
        "Free disk space on the target.",
        "Mm2TargetFull",
    ),
    PartitionState.REFUSED: Meaning(
        "A broker rejects the requests for another reason.",
        "When the cause is removed",
        "Read the reason, and the log of the broker.",
        "Mm2PartitionRefused",
    ),
    PartitionState.FAILED: Meaning(
        "Its task has failed, or an internal error has stopped it.",
        "Only if the error does not recur",
        "Read the reason: that of the task is on the page Connectors. Report the stack trace of an internal error.",
        "Mm2PartitionRefused",
    ),
}


def meaning_page(state: str) -> str:
    """The address of the explanation of a state."""
    return f"states#{state}"
