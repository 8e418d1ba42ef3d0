"""Reads and writes the offsets of groups of all types on one cluster.

For consumers these are the committed offsets, for share groups the start offsets (KIP-932). A share group may have
acknowledged records after its start offset, out of order. These are delivered again from the copy, as they may be on
the group's own cluster: the group starts at the first record that is not acknowledged. Without a start offset it would
start at the end of the copy (`share.auto.offset.reset`) and skip everything it has not read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from mm2.kafka.admin import Admin
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import GroupDescription, OffsetAndMetadata, TopicPartition
from mm2.mirror.common.discovery import chunks
from mm2.reasons import OffsetReason, OffsetReasonCode

ASSIGNED_SHARE_GROUPS_KEY: Final = "task.assigned.share.groups"
"""Task property with the share groups of a task, in the format of ``task.assigned.groups``."""
GROUPS_PER_CALL: Final = 1000
BYTES_PER_COMMIT: Final = 400_000
"""Largest commit.

Its offsets become one record batch of the coordinator's topic, by default at most one million bytes.
"""
_BYTES_BESIDE_TEXTS: Final = 100
SHARE: Final = "share"
"""The group type of share groups, in lower case."""


class GroupOffsets:
    """Group offsets of one cluster. ``share_groups`` are those that are share groups; all others commit offsets.

    ``stable``: wait for an offset that an open transaction is about to commit. This is required before the offset is
    overwritten. Otherwise the previous offset is returned: a group then reads the records of the transaction again, and
    a transaction that was abandoned by its application blocks nothing.
    """

    def __init__(self, admin: Admin, share_groups: Collection[str] = (), *, stable: bool = True) -> None:
        self._admin = admin
        self._share_groups = frozenset(share_groups)
        self._stable = stable

    def read(self, groups: Iterable[str]) -> dict[str, dict[TopicPartition, OffsetAndMetadata] | KafkaFailure]:
        """Offsets by group, in as few requests as the brokers allow; empty for a group without offsets."""
        wanted = list(groups)
        found: dict[str, dict[TopicPartition, OffsetAndMetadata] | KafkaFailure] = {}
        for some in chunks([group for group in wanted if group not in self._share_groups], GROUPS_PER_CALL):
            found.update(self._admin.list_group_offsets(some, require_stable=self._stable))
        for some in chunks([group for group in wanted if group in self._share_groups], GROUPS_PER_CALL):
            found.update(self._admin.list_share_group_offsets(some))
        return found

    def write(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, KafkaFailure | None]:
        """Set the offsets of a group without members; UNKNOWN_MEMBER_ID, or NON_EMPTY_GROUP for share groups, if it has members."""
        answers: dict[TopicPartition, KafkaFailure | None] = {}
        texts = max((len(tp.topic) + len(one.metadata or "") for tp, one in offsets.items()), default=0)
        at_once = max(1, BYTES_PER_COMMIT // (len(group) + texts + _BYTES_BESIDE_TEXTS))
        for some in map(dict, chunks(offsets.items(), at_once)):
            if group in self._share_groups:
                starts = {partition: committed.offset for partition, committed in some.items()}
                answers.update(self._admin.alter_share_group_offsets(group, starts))
            else:
                answers.update(self._admin.alter_group_offsets(group, some))
        return answers


def group_state(description: GroupDescription | KafkaFailure) -> str:
    """The state of a group in lower case; `dead` if it does not exist, `unknown` if the state is not known."""
    if isinstance(description, BrokerFailure) and description.code == ErrorCode.GROUP_ID_NOT_FOUND:
        return "dead"
    return "unknown" if isinstance(description, KafkaFailure) else description.state.lower()


def outside_of_log(partition: TopicPartition, offset: int, log: tuple[int, int] | None) -> OffsetReason | None:
    """The reason why consumers do not continue at an offset: the log does not have it, so `auto.offset.reset` applies. None: it has.

    ``log``: the log start and the log end offset, None if they are not known.
    """
    if log is None:
        return None
    start, end = log
    if offset < start:
        message = f"the offset {offset} is before the log start offset {start} of {partition}"
        return OffsetReason(OffsetReasonCode.OTHER, message)
    return of_another_copy(partition, offset, end)


def of_another_copy(partition: TopicPartition, offset: int, end: int) -> OffsetReason | None:
    """The reason why no group may be set to an offset beyond the end of a copy; None if it is not beyond it.

    Offset syncs and checkpoints outlive the copy they refer to. If the target is recreated, those of the old copy are
    still on the source, and a group would skip all records that are copied up to that offset.
    """
    if offset <= end:
        return None
    message = (
        f"the offset {offset} is beyond the end offset {end} of {partition}: it belongs to an earlier copy of the topic"
    )
    return OffsetReason(OffsetReasonCode.ANOTHER_COPY, message)
