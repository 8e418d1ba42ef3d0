"""Commits translated offsets for groups on the target (`sync.group.offsets.enabled`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

import structlog

from mm2.kafka.admin import Admin
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure, failures_in
from mm2.kafka.structs import OffsetAndMetadata, OffsetInfo, TopicPartition
from mm2.mirror.common.clients import MirrorClients
from mm2.mirror.common.discovery import chunks
from mm2.mirror.common.formats import Checkpoint
from mm2.mirror.common.recurring_errors import RecurringErrors
from mm2.mirror.groups.checkpoint_store import CheckpointStore, offsets_to_sync
from mm2.mirror.groups.group_offsets import GROUPS_PER_CALL, GroupOffsets, group_state
from mm2.mirror.groups.group_reasons import GroupReasons
from mm2.mirror.groups.other_flows import OtherFlows, SharedOffset
from mm2.mirror.groups.target_logs import TargetLogs, topic_ids
from mm2.mirror.groups.translator import TopicIds, Translator
from mm2.mirror.notes.promotions import promoted
from mm2.mirror.policy import ReplicationPolicy
from mm2.reasons import OffsetReason, OffsetReasonCode

log = structlog.get_logger("mm2.mirror.group_sync")

#: States of a group whose offsets may be written: it does not exist, or has no members.
_WITHOUT_MEMBERS: Final = frozenset({"dead", "empty"})


@dataclass(eq=False)
class GroupOffsetSync:
    """Commits checkpoints as offsets of groups that are idle or do not exist on the target.

    Runs on the scheduler's thread. ``reasons`` receives the reasons why other offsets are not committed.
    """

    _admin: Admin
    _share_groups: Collection[str]
    _clients: MirrorClients
    _policy: ReplicationPolicy
    _translator: Translator
    _checkpoints: CheckpointStore
    _others: OtherFlows
    _reasons: GroupReasons
    _recurring: RecurringErrors

    def __post_init__(self) -> None:
        self._offsets = GroupOffsets(self._admin, self._share_groups)
        self._logs = TargetLogs(self._admin, self._clients.target_alias)
        self._source_alias = self._clients.source_alias
        self._target_alias = self._clients.target_alias

    def run(self) -> None:
        """Commit the offsets of all groups. Raises KafkaFailure."""
        checkpoints = {group: self._checkpoints.of(group) for group in self._checkpoints.groups()}
        # After the checkpoints: what other flows have written before their offsets is in their ledgers by now.
        self._others.read(self._translator.ledger)
        for some in chunks(checkpoints, GROUPS_PER_CALL):
            self._sync({group: checkpoints[group] for group in some})
        self._reasons.write()

    def _sync(self, checkpoints: Mapping[str, Mapping[TopicPartition, Checkpoint]]) -> None:
        groups = list(checkpoints)
        partitions = {partition for found in checkpoints.values() for partition in found}
        ids = topic_ids(self._admin, {partition.topic for partition in partitions})
        current = {partition for partition in partitions if self._checkpoints.refers_to(partition.topic, ids)}
        ends = self._logs.ends(current)
        promoted_topics, routed = self._promoted_topics(), self._translator.routed_topics()
        # The group states are read last, as close as possible to the commit.
        described = self._admin.describe_groups(groups)
        states = {group: group_state(described[group]) for group in groups}
        committed = self._offsets.read([group for group in groups if states[group] == "empty"])
        for group in groups:
            state = states[group]
            present = {} if state == "dead" else committed.get(group)
            wanted = {
                tp: found
                for tp, found in checkpoints[group].items()
                if tp in current and self._is_remote(tp, routed, ids) and tp.topic not in promoted_topics
            }
            if state not in _WITHOUT_MEMBERS or present is None or isinstance(present, KafkaFailure):
                reason = self._not_synced(group, state, present or described[group])
                self._reasons.not_synced[group] = dict.fromkeys(wanted, reason)
                continue
            shared = {
                tp: found
                for tp, one in wanted.items()
                if (found := self._others.shared_offset(group, tp, one.downstream_offset, ids.get(tp.topic) or ""))
            }
            left_out = {
                tp: promoted_topics[tp.topic] for tp in checkpoints[group] if tp.topic in promoted_topics
            } | self._ahead(wanted, shared, present)
            left_out |= {tp: one.reason for tp, one in shared.items() if one.reason is not None and tp not in left_out}
            offsets = offsets_to_sync(self._placed(wanted, shared), present)
            self._reasons.not_synced[group] = left_out | self._move(group, offsets, ends)

    def _placed(
        self, wanted: Mapping[TopicPartition, Checkpoint], shared: Mapping[TopicPartition, SharedOffset]
    ) -> dict[TopicPartition, Checkpoint]:
        """The checkpoints, with the offsets of shared partitions, which the log has at least from its start on."""
        earlier = {tp: one.offset for tp, one in shared.items() if one.offset < wanted[tp].downstream_offset}
        placed = {tp: one for tp, one in wanted.items() if tp not in earlier}
        for tp, start in self._logs.starts(earlier).items():
            if isinstance(start, OffsetInfo):  # else the next run commits it
                offset = min(max(earlier[tp], start.offset), wanted[tp].downstream_offset)
                placed[tp] = replace(wanted[tp], downstream_offset=offset)
        return placed

    def _not_synced(self, group: str, state: str, answer: object) -> OffsetReason:
        """The reason why no offset of a group is committed; ``answer`` is a failure if its state or offsets are unknown."""
        if isinstance(answer, KafkaFailure):
            self._recurring.report(f"sync of {group}", f"The offsets of group {group} are not synced: {answer}")
            return OffsetReason(OffsetReasonCode.OTHER, str(answer))
        return OffsetReason(OffsetReasonCode.IN_USE, f"the group is in use on {self._target_alias} ({state})")

    def _ahead(
        self,
        wanted: Mapping[TopicPartition, Checkpoint],
        shared: Collection[TopicPartition],
        present: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> dict[TopicPartition, OffsetReason]:
        """Offsets that are later on the target. In a shared partition another flow may have written it: records of this flow count."""
        return {
            tp: OffsetReason(
                OffsetReasonCode.AHEAD, f"on {self._target_alias} the group is ahead, at {present[tp].offset}"
            )
            for tp, found in wanted.items()
            if tp in present
            and present[tp].offset > found.downstream_offset
            and (tp not in shared or self._others.has_own(tp, found.downstream_offset, present[tp].offset))
        }

    def _move(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        ends: Mapping[TopicPartition, OffsetInfo | KafkaFailure],
    ) -> dict[TopicPartition, OffsetReason]:
        """Commit the offsets that exist on the target. Returns the reasons why others were not committed."""
        rejected = {
            tp: reason
            for tp, to in offsets.items()
            if (reason := self._logs.rejection(tp, to.offset, ends[tp])) is not None
        }
        accepted = {tp: to for tp, to in offsets.items() if tp not in rejected}
        return rejected | (self._commit(group, accepted) if accepted else {})

    def _commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, OffsetReason]:
        """Commit offsets. Returns the reasons why some of them could not be written."""
        failures = failures_in(self._offsets.write(group, offsets))
        if not failures:
            self._recurring.resolve(f"sync of {group}")
            log.debug("Synced group offsets.", group=group, partitions=len(offsets))
            return {}
        partition, failure = next(iter(failures.items()))
        sentence = f"Offsets of group {group} for {len(failures)} partitions, first {partition}, cannot be written on "
        sentence += f"{self._target_alias}: {failure}"
        if isinstance(failure, BrokerFailure) and failure.code in {
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.NON_EMPTY_GROUP,
        }:
            sentence += " Consumers of the target are probably using this group."
        self._recurring.report(f"sync of {group}", sentence)
        return {tp: OffsetReason(OffsetReasonCode.OTHER, str(answer)) for tp, answer in failures.items()}

    def _promoted_topics(self) -> dict[str, OffsetReason]:
        """Reasons why no offsets are written for remote topics that were failed over or promoted.

        Their groups now commit on the target.
        """
        ledger = self._translator.ledger
        if ledger is None:
            return {}
        return {
            one.remote_topic: OffsetReason(OffsetReasonCode.OTHER, str(one.pause)) for one in promoted(ledger).values()
        }

    def _is_remote(self, partition: TopicPartition, routed: Collection[str], ids: TopicIds) -> bool:
        """Whether offsets of groups are written for this partition; ``routed`` are remote topics with any name, ``ids`` those of the target.

        Topics that came back from the target get checkpoints only: a group's offset on the source may be the one that
        the opposite flow has committed. Writing it back would revert commits made on the target since.
        """
        is_from_source = partition.topic in routed or self._policy.came_from(self._source_alias, partition.topic)
        return is_from_source and not self._translator.came_under_its_name(partition, ids)
