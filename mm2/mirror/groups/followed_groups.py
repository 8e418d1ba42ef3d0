"""Which groups of the source a flow follows: by their type, by the group filter, and by the topics of their offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from mm2.kafka.admin import Admin
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import GroupListing
from mm2.mirror.filters import GroupFilter, TopicFilter
from mm2.mirror.groups.group_offsets import SHARE, GroupOffsets
from mm2.mirror.groups.translator import Translator

# Brokers before 3.8 report no group type: it is "". Groups of Kafka Streams commit offsets as consumers do (KIP-1071).
_GROUP_TYPES: Final = frozenset({"", "classic", "consumer", "streams", SHARE})
_PROTOCOL_TYPES: Final = frozenset({"", "consumer", "streams", SHARE})


@dataclass(frozen=True)
class FollowedGroups:
    """The rules of one flow."""

    groups: GroupFilter
    topics: TopicFilter
    translator: Translator

    def selected(self, listings: Iterable[GroupListing]) -> dict[str, bool]:
        """Those of the listed groups that the flow may follow, and whether they are share groups.

        The group with the empty id may be among them. The connector does not follow it, since the list of groups that Java reads
        cannot represent it (KIP-289).
        """
        return {
            group.group_id: is_share_group(group)
            for group in listings
            if group.group_type.lower() in _GROUP_TYPES
            and group.protocol_type in _PROTOCOL_TYPES
            and self.groups.should_replicate_group(group.group_id)
        }

    def with_offsets(self, admin: Admin, selected: Mapping[str, bool]) -> dict[str, bool | KafkaFailure]:
        """Whether each of the selected groups has offsets of topics that are replicated; the failure if they cannot be read."""
        shared = [group for group, is_shared in selected.items() if is_shared]
        answers = GroupOffsets(admin, shared, stable=False).read(sorted(selected))
        return {
            group: offsets
            if isinstance(offsets, KafkaFailure)
            else any(is_wanted(tp.topic, self.topics, self.translator) for tp in offsets)
            for group, offsets in answers.items()
        }


def is_share_group(group: GroupListing) -> bool:
    """Whether a group is a share group (KIP-932)."""
    return group.group_type.lower() == SHARE


def is_wanted(topic: str, topics: TopicFilter, translator: Translator) -> bool:
    """Whether offsets of this source topic are translated: it is replicated, or it is a copy of a replicated topic."""
    home = translator.home_of(topic)
    return topics.should_replicate_topic(topic) or (home is not None and topics.should_replicate_topic(home))
