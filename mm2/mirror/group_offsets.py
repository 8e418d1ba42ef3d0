"""The places of groups on one cluster, whatever their type: committed offsets, of share groups the start offsets (KIP-932).

A share group may have settled records behind its start offset, out of order. Those come again from the copy, as they may from
their own cluster: what counts is that it starts at the first record that is not settled. Without a start offset it would begin
at the end of the copy (`share.auto.offset.reset`), past everything it has not read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from mm2.kafka.admin import Admin
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import OffsetAndMetadata, TopicPartition
from mm2.mirror.discovery import chunks
from mm2.reasons import OffsetReason, OffsetReasonCode

ASSIGNED_SHARE_GROUPS_KEY: Final = "task.assigned.share.groups"
"""Of a task: its share groups, in the form of ``task.assigned.groups``."""
GROUPS_PER_CALL: Final = 1000
BYTES_PER_COMMIT: Final = 400_000
"""What is committed at once becomes one batch of the coordinator's topic, which by default takes a million."""
_BYTES_BESIDE_TEXTS: Final = 100
SHARE: Final = "share"
"""The type of share groups, in lower case."""


class GroupOffsets:
    """Of one cluster. ``share_groups``: those that are share groups; all others commit.

    ``stable``: an offset that an open transaction is about to replace is waited for, which is right before it is written over.
    Otherwise the one from before counts: a group then reads again what the transaction has read, and one whose application died
    in the midst of a transaction holds up nobody.
    """

    def __init__(self, admin: Admin, share_groups: Collection[str] = (), *, stable: bool = True) -> None:
        self._admin = admin
        self._share_groups = frozenset(share_groups)
        self._stable = stable

    def read(self, groups: Iterable[str]) -> dict[str, dict[TopicPartition, OffsetAndMetadata] | KafkaFailure]:
        """By group, in as few requests as the brokers take; of a group that is nowhere yet nothing."""
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
        """Of a group without members; failure 25 or, for share groups, 68 when it has some."""
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


def of_another_copy(partition: TopicPartition, offset: int, end: int) -> OffsetReason | None:
    """Why no group may be put to an offset behind the end of a copy, None when it is not behind it.

    Offset syncs and checkpoints outlive the copy that they speak of: when the target is built anew, those of the old one still lie
    on the source, and a group would skip whatever is copied up to there.
    """
    if offset <= end:
        return None
    message = f"{offset} is told for it, but {partition} ends at {end}: that was another copy"
    return OffsetReason(OffsetReasonCode.ANOTHER_COPY, message)
