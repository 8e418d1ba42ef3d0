"""Translates group offsets to the other cluster, writes them, and verifies them.

The committed offsets are read from the source if it answers. If it does not, or not for a group, they are those of the last
checkpoints on the target. Both are translated with the final state of the ledger, which may be more recent than the last checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from mm2.config.definitions.java_regex import JavaPattern
from mm2.copy.progress.translation import Translation
from mm2.failover.evidence import FoundBy, GroupEvidence, Outcome, PartitionEvidence
from mm2.failover.sides import READ_S, Sides, check_leader
from mm2.kafka.admin import Admin
from mm2.kafka.errors import KafkaFailure, value_of
from mm2.kafka.readers.log import KafkaBasedLog, LogRecord
from mm2.kafka.structs import (
    EARLIEST,
    LATEST,
    GroupDescription,
    GroupListing,
    OffsetAndMetadata,
    OffsetInfo,
    TopicPartition,
)
from mm2.mirror.common import plugins
from mm2.mirror.common.clients import ClientKind, Side
from mm2.mirror.common.discovery import vanished
from mm2.mirror.common.formats import Checkpoint, FormatError, OffsetSync
from mm2.mirror.common.syncs_topic import syncs_side, syncs_topic
from mm2.mirror.groups.followed_groups import FollowedGroups, is_share_group, is_wanted
from mm2.mirror.groups.group_offsets import GroupOffsets, group_state, of_another_copy, outside_of_log
from mm2.mirror.groups.offset_sync_store import OffsetSyncStore
from mm2.mirror.groups.other_flows import OtherFlows
from mm2.mirror.groups.translator import TopicIds, Translated, Translator, Untranslated, read_again
from mm2.reasons import OffsetReason

SOURCE: Final = "source"
CHECKPOINT: Final = "checkpoint"
_IDLE: Final = frozenset({"empty", "dead"})


@dataclass(frozen=True)
class Choice:
    """The selected groups and topics; None selects all that the flow's filters accept."""

    topics: JavaPattern | None = None
    groups: JavaPattern | None = None

    def has_topic(self, topic: str) -> bool:
        return self.topics is None or self.topics.fullmatch(topic) is not None

    def has_group(self, group: str) -> bool:
        return self.groups is None or self.groups.fullmatch(group) is not None


class _Commit(NamedTuple):
    """A committed offset on the source, by the source or a checkpoint (``told_by``)."""

    offset: int
    told_by: str
    metadata: str = ""


_Commits = dict[str, dict[TopicPartition, _Commit]]
"""By group and source partition."""


class Groups:
    """The groups of one flow. All methods raise KafkaFailure if the target does not answer."""

    def __init__(self, sides: Sides, choice: Choice) -> None:
        self._sides = sides
        self._choice = choice
        self._filter = plugins.group_filter(sides.config.checkpoint_connector)
        self._translator = Translator(sides.policy, sides.pair.source, sides.pair.target, sides.selection.route)
        self._translator.ledger = sides.ledger
        self._translator.home_ledger = sides.reverse_ledger
        self.problems: list[str] = []  # groups whose offsets cannot be read
        self.notes: list[str] = []
        self._translator.syncs = self._syncs()
        self._routed = _routed_topics(sides)
        self._merged = _merged_topics(sides)
        can_share = not sides.selection.names_show_origin
        self._others = OtherFlows(sides.clients, sides.target, sides.policy, can_share=can_share)
        self._shared: frozenset[str] = frozenset()
        self._untyped: frozenset[str] = frozenset()  # it is not known whether they are share groups
        self._logs: dict[TopicPartition, tuple[int, int]] = {}  # start and end of the target's, as far as known

    def found(self, partitions: Sequence[PartitionEvidence] = ()) -> list[GroupEvidence]:
        """All selected groups in all partitions with their offsets on the target; nothing is written.

        ``partitions``: what was copied of them, with the records that are on the source only.
        """
        foreign = {one.source: one for one in partitions if one.foreign_on_source}
        checkpoints = self._checkpoints()
        commits = self._of_checkpoints(checkpoints)
        if self._sides.source is None:
            self._shared = self._share_groups(commits.keys())
            commits = {group: offsets for group, offsets in commits.items() if group not in self._untyped}
        else:
            commits = self._of_source(self._sides.source, commits)
        topics = {tp.topic for offsets in commits.values() for tp in offsets}
        on_source = {} if self._sides.source is None else _topic_ids(self._sides.source, topics)
        on_target = _topic_ids(self._sides.target, {self._translator.topic_on_target(topic) for topic in topics})
        remote_partitions = {
            TopicPartition(remote, tp.partition)
            for offsets in commits.values()
            for tp in offsets
            if on_target.get(remote := self._translator.topic_on_target(tp.topic)) is not None
        } | {remote for _, remote in checkpoints if remote.topic in self._merged}
        starts, ends = (
            self._sides.target.list_offsets(dict.fromkeys(remote_partitions, when)) for when in (EARLIEST, LATEST)
        )
        self._logs = {
            tp: (start.offset, end.offset)
            for tp, start in starts.items()
            if isinstance(start, OffsetInfo) and isinstance(end := ends[tp], OffsetInfo)
        }
        rows = []
        for group, offsets in sorted(commits.items()):
            committed = {tp: commit.offset for tp, commit in offsets.items()}
            found = self._translator.translate_group(committed, on_source, on_target)
            for tp, commit in sorted(offsets.items()):
                row = self._evidence(group, tp, commit.offset, checkpoints, found[tp])
                row = _not_past(row, found[tp], foreign.get(tp))
                rows.append(replace(row, offset_source=commit.told_by, metadata=commit.metadata))
        if self._sides.source is None:
            rows += self._of_merged(checkpoints)
        # After the translations: what other flows have written before these offsets is in their ledgers by now.
        self._others.read(self._sides.ledger)
        return self._compare([self._among_others(row, on_target.get(row.remote_topic) or "") for row in rows])

    def _among_others(self, row: GroupEvidence, topic_id: str) -> GroupEvidence:
        """The row with an offset before the first record of another flow that the group may not have read."""
        if row.translated is None:
            return row
        shared = self._others.shared_offset(row.group, row.target, row.translated, topic_id)
        if shared is None or shared.offset >= row.translated:
            return row
        start, _ = self._logs.get(row.target, (0, 0))
        offset = min(max(shared.offset, start), row.translated)
        flows = ", ".join(self._others.names_of(row.target, topic_id))
        why = f"{row.target} has records of {flows}, too: the group may not have read those from offset {offset} on"
        if shared.reason is not None:
            why = shared.reason.message
        reason = f"{row.reason}; {why}" if row.reason else why
        return replace(row, translated=offset, found=FoundBy.CONSERVATIVE, reason=reason)

    def write(self, rows: Sequence[GroupEvidence]) -> list[GroupEvidence]:
        """Commit the offsets, read them back, and return the outcomes.

        Each group is compared again right before, since this command may have been frozen meanwhile.
        """
        target = GroupOffsets(self._sides.target, self._shared)
        answers: dict[tuple[str, TopicPartition], KafkaFailure | None] = {}
        changed: dict[tuple[str, str, TopicPartition], GroupEvidence] = {}
        for group, planned in _by_group(rows, Outcome.TO_WRITE).items():
            now = [self._unchanged(before, row) for before, row in zip(planned, self._compare(planned), strict=True)]
            changed.update({(group, row.topic, row.target): row for row in now})
            wanted = _by_group(now, Outcome.TO_WRITE).get(group, ())
            offsets = {row.target: OffsetAndMetadata(row.translated or 0, row.metadata) for row in wanted}
            answers.update({(group, tp): answer for tp, answer in target.write(group, offsets).items()})
        rows = [changed.get((row.group, row.topic, row.target), row) for row in rows]
        back = target.read(sorted({row.group for row in rows}))
        return [self._verify(row, answers, back) for row in rows]

    @staticmethod
    def _unchanged(planned: GroupEvidence, row: GroupEvidence) -> GroupEvidence:
        if row.outcome is not Outcome.TO_WRITE or row.before == planned.before:
            return row
        reason = (
            f"another client has committed {row.before} instead of {planned.before} meanwhile; run the command again"
        )
        return replace(row, outcome=Outcome.FAILED, reason=reason)

    # -- offsets on the source

    def _of_source(self, source: Admin, by_checkpoint: _Commits) -> _Commits:
        """The committed offsets on the source, for the groups that the flow includes.

        A broker lists only the groups that it coordinates. A group with a checkpoint that is not listed, or not readable, may have no
        coordinator at the moment: it gets its last checkpoint, unless its coordinator reports that it does not exist.
        """
        listed, others = self._listed(source)
        unlisted = by_checkpoint.keys() - listed - others
        self._shared |= self._share_groups(unlisted)
        unlisted -= self._untyped
        answers = GroupOffsets(source, self._shared).read(sorted(listed | unlisted))
        dead = self._dead(source, {group for group in unlisted if answers[group] == {}})
        found: _Commits = {}
        for group, offsets in answers.items():
            if isinstance(offsets, KafkaFailure):
                self._report_unreadable(group, offsets, has_checkpoint=group in by_checkpoint)
            elif offsets or group in listed or group in dead:
                wanted = {
                    tp: _Commit(one.offset, SOURCE, one.metadata)
                    for tp, one in offsets.items()
                    if self._is_chosen(tp, one.offset)
                }
                if wanted:
                    found[group] = wanted
                continue
            if group in by_checkpoint:
                found[group] = by_checkpoint[group]
        return found

    def _listed(self, source: Admin) -> tuple[set[str], set[str]]:
        """The groups on the source that the flow includes, and all others."""
        try:
            listings = source.list_groups()
        except KafkaFailure as failure:
            self.problems.append(
                f"not all groups of {self._sides.pair.source} can be listed, so those without a checkpoint are not moved: {failure}"
            )
            return set(), set()
        followed = FollowedGroups(self._filter, self._sides.selection.topic_filter, self._translator)
        included = set(filter(self._choice.has_group, followed.selected(listings)))
        self._shared = _share_groups(listings)
        return included, {group.group_id for group in listings} - included

    def _share_groups(self, groups: Collection[str]) -> frozenset[str]:
        """Those of groups that the source does not list that are share groups, which do not commit offsets.

        The flow notes the types of the groups that it follows in the configurations of its tasks. Of all others, the target knows the
        type. A group that neither of them knows commits offsets: tasks of older versions, and of Java, follow no others.
        """
        if not groups:
            return frozenset()
        committing, shared = self._sides.assigned_groups()
        if unknown := set(groups) - committing - shared:
            try:
                listed = self._sides.target.list_groups()
            except KafkaFailure as failure:
                self._untyped = frozenset(unknown)
                self.problems.append(
                    f"whether {', '.join(sorted(unknown))} are share groups is not known, so they are not moved: not all groups of "
                    f"{self._sides.pair.target} can be listed: {failure}"
                )
                listed = []
            shared |= unknown & _share_groups(listed)
        return frozenset(shared & set(groups))

    @staticmethod
    def _dead(source: Admin, groups: Collection[str]) -> set[str]:
        """The groups without offsets of which their coordinators report that they do not exist."""
        described = source.describe_groups(sorted(groups))
        return {group for group, found in described.items() if group_state(found) == "dead"}

    def _report_unreadable(self, group: str, failure: KafkaFailure, *, has_checkpoint: bool) -> None:
        sentence = f"the offsets of group {group} cannot be read on {self._sides.pair.source}"
        if has_checkpoint:
            self.notes.append(f"{sentence}, so its last checkpoint is used: {failure}")
        else:
            self.problems.append(f"{sentence}: {failure}")

    def _of_checkpoints(self, checkpoints: Mapping[tuple[str, TopicPartition], Checkpoint]) -> _Commits:
        """The committed offsets by the newest checkpoints on the target, by source partition."""
        found: _Commits = {}
        for (group, remote), checkpoint in checkpoints.items():
            tp = TopicPartition(self._on_source(remote.topic), remote.partition)
            is_included = self._choice.has_group(group) and self._filter.should_replicate_group(group)
            if remote.topic not in self._merged and is_included and self._is_chosen(tp, checkpoint.upstream_offset):
                found.setdefault(group, {})[tp] = _Commit(checkpoint.upstream_offset, CHECKPOINT, checkpoint.metadata)
        return found

    def _on_source(self, remote: str) -> str:
        """The name on the source of a target topic that has checkpoints."""
        policy, pair = self._sides.policy, self._sides.pair
        if remote in self._routed:
            return self._routed[remote]
        if policy.came_from(pair.source, remote):
            return policy.upstream_from(pair.source, remote) or remote
        copied_back = policy.format_remote_topic(pair.target, remote)
        # Under identity naming the name is the same on both clusters.
        return copied_back if policy.came_from(pair.target, copied_back) else remote

    def _is_chosen(self, tp: TopicPartition, offset: int) -> bool:
        original = self._translator.home_of(tp.topic)
        # The position in a remote topic with the records of several topics depends on all of them.
        topics = {tp.topic, original, *self._merged.get(self._translator.topic_on_target(tp.topic), ())}
        selected = any(topic is not None and self._choice.has_topic(topic) for topic in topics)
        return offset >= 0 and selected and is_wanted(tp.topic, self._sides.selection.topic_filter, self._translator)

    # -- offsets on the target

    def _of_merged(self, checkpoints: Mapping[tuple[str, TopicPartition], Checkpoint]) -> list[GroupEvidence]:
        """The groups in remote topics with the records of several topics, by their checkpoints: these do not name the source topic."""
        rows = []
        for (group, remote), checkpoint in sorted(checkpoints.items()):
            topics = self._merged.get(remote.topic, ())
            is_included = self._choice.has_group(group) and self._filter.should_replicate_group(group)
            if not (topics and is_included and any(map(self._choice.has_topic, topics)) and group not in self._untyped):
                continue
            row = GroupEvidence(
                group, ", ".join(topics), remote.partition, remote.topic, checkpoint.upstream_offset, CHECKPOINT
            )
            row = replace(row, metadata=checkpoint.metadata)
            if rejection := self._rejection(remote, checkpoint.downstream_offset):
                rows.append(replace(row, reason=rejection.message))
            else:
                rows.append(replace(row, translated=checkpoint.downstream_offset, found=FoundBy.CHECKPOINT))
        return rows

    def _evidence(
        self,
        group: str,
        tp: TopicPartition,
        offset: int,
        checkpoints: Mapping[tuple[str, TopicPartition], Checkpoint],
        found: Translated | Untranslated,
    ) -> GroupEvidence:
        row = GroupEvidence(group, tp.topic, tp.partition, self._translator.topic_on_target(tp.topic), offset, SOURCE)
        if isinstance(found, Translated):
            row = replace(row, remote_topic=found.topic, translated=found.offset, found=FoundBy.CONSERVATIVE)
            # The target may also have lost its end since the ledger was written.
            if rejection := self._rejection(row.target, found.offset):
                row = replace(row, translated=None, found=FoundBy.NOTHING, reason=rejection.message)
            elif found.is_exact:
                return replace(row, found=FoundBy.EXACT)
            elif found.unread is not None:
                return replace(row, reason=found.unread.message)
            if found.alone is not None and not row.reason:
                return replace(row, reason=read_again(row.target, found.alone - found.offset))
        elif found.was_undone or row.remote_topic in self._merged:
            return replace(row, reason=found.reason.message)
        elif (end := self._start_of_empty_copy(tp, offset)) is not None:
            return replace(row, translated=end, found=FoundBy.EXACT)
        else:
            row = replace(row, reason=found.reason.message)
        known = checkpoints.get((group, row.target))
        if row.remote_topic in self._merged:
            return row  # the checkpoint may have the offset of another source topic
        if known is None or known.upstream_offset > offset or self._rejection(row.target, known.downstream_offset):
            return row
        # The checkpoint was safe when it was written, and the group has not gone back since. But the target may have lost records, and
        # later ones of the source took their place.
        safe = known.downstream_offset if found.at_most is None else min(known.downstream_offset, found.at_most)
        return (
            row
            if safe <= (row.translated or -1)
            else replace(row, translated=safe, found=FoundBy.CHECKPOINT, reason="")
        )

    def _rejection(self, remote: TopicPartition, offset: int) -> OffsetReason | None:
        """Why an offset is not a translation; None if it can be one."""
        log = self._logs.get(remote)
        return None if log is None else of_another_copy(remote, offset, log[1])

    def _invalid(self, what: str, row: GroupEvidence, offset: int) -> str:
        """Why consumers do not continue at an offset of the group on the target; "" if they do."""
        log = self._logs.get(row.target)
        rejection = outside_of_log(row.target, offset, log)
        if rejection is None or (log is not None and offset < log[0] and row.group in self._shared):
            return ""  # the broker moves a share group to the log start offset
        place = f"{what} on {self._sides.pair.target}"
        return f"{place} is not valid, so its consumers would start as auto.offset.reset says: {rejection.message}"

    def _start_of_empty_copy(self, tp: TopicPartition, offset: int) -> int | None:
        """The offset on the target of the partition's first record to copy, if that is the group's next one.

        Checkpoints do not have it: as in Java, there are none before the first record was copied.
        """
        entry = self._sides.ledger.entry(tp)
        if entry is None or entry.remote_topic != self._translator.topic_on_target(tp.topic):
            return None  # the remote topic has got another name since
        known = Translation(self._sides.ledger.chunks(tp), entry.mark, entry.end)
        found = None if known.first_known is not None else known.to_target(offset)
        return found.offset if found is not None and found.is_exact else None

    def _compare(self, rows: Sequence[GroupEvidence]) -> list[GroupEvidence]:
        """Compare with the committed offsets on the target to determine what to write."""
        groups = sorted({row.group for row in rows})
        described = self._sides.target.describe_groups(groups)
        present = GroupOffsets(self._sides.target, self._shared).read(groups)
        return [self._with_outcome(row, described[row.group], present[row.group]) for row in rows]

    def _with_outcome(
        self,
        row: GroupEvidence,
        described: GroupDescription | KafkaFailure,
        present: Mapping[TopicPartition, OffsetAndMetadata] | KafkaFailure,
    ) -> GroupEvidence:
        target = self._sides.pair.target
        if isinstance(present, KafkaFailure):
            return replace(row, outcome=Outcome.FAILED, reason=f"its offsets on {target} cannot be read: {present}")
        before = present[row.target].offset if row.target in present else None
        row = replace(row, before=before, after=before)
        is_kept = before is not None and (row.translated is None or before >= row.translated)
        if is_kept and (reason := self._invalid("its committed offset", row, before or 0)):
            return replace(row, outcome=Outcome.FAILED, reason=f"{reason}. {self._what_to_do(row, before or 0)}")
        if row.translated is None:
            return row
        if before is not None and before >= row.translated:
            ahead = before > row.translated
            reason = f"its committed offset on {target} is {before}, and it is not rewound" if ahead else ""
            reason = f"{row.reason}; {reason}" if row.reason and reason else reason or row.reason
            return replace(row, outcome=Outcome.AHEAD if ahead else Outcome.ALREADY_COMMITTED, reason=reason)
        if reason := self._invalid("its translated offset", row, row.translated):
            reason = f"{reason}. {self._what_to_do(row, row.translated)}"
            return replace(row, outcome=Outcome.FAILED, reason=reason)
        state = group_state(described)
        if isinstance(described, KafkaFailure) and state not in _IDLE:
            reason = f"whether it has members on {target} is not known: {described}"
            return replace(row, outcome=Outcome.FAILED, reason=reason)
        if state not in _IDLE:
            return replace(row, outcome=Outcome.IN_USE, reason=f"it has members on {target} ({state}): stop them first")
        return replace(row, outcome=Outcome.TO_WRITE)

    def _what_to_do(self, row: GroupEvidence, offset: int) -> str:
        """About an offset that is not in the log."""
        start, _ = self._logs[row.target]
        if offset < start:
            return (
                f"Set it there to {start} or later (kafka-consumer-groups --reset-offsets), and run the command again"
            )
        return "Delete it there, and run the command again"

    def _verify(
        self,
        row: GroupEvidence,
        answers: Mapping[tuple[str, TopicPartition], KafkaFailure | None],
        back: Mapping[str, Mapping[TopicPartition, OffsetAndMetadata] | KafkaFailure],
    ) -> GroupEvidence:
        if row.outcome is not Outcome.TO_WRITE:
            return row
        failure = answers.get((row.group, row.target))
        read = back[row.group]
        if failure is None and isinstance(read, KafkaFailure):
            failure = read
        if failure is not None or isinstance(read, KafkaFailure):
            return replace(row, outcome=Outcome.FAILED, reason=str(failure))
        after = read[row.target].offset if row.target in read else None
        if after != row.translated:
            reason = f"{row.translated} was written, {after} was read back: another client commits offsets of the group"
            return replace(row, after=after, outcome=Outcome.FAILED, reason=reason)
        return replace(row, after=after, outcome=Outcome.WRITTEN)

    # -- inputs

    def _checkpoints(self) -> dict[tuple[str, TopicPartition], Checkpoint]:
        """The newest checkpoint of each group and target partition."""
        newest: dict[tuple[str, TopicPartition], Checkpoint] = {}

        def take(record: LogRecord) -> None:
            try:
                group, topic, partition = Checkpoint.decode_key(record.key)
                key = (group, TopicPartition(topic, partition))
                if record.value is None:
                    newest.pop(key, None)
                else:
                    newest[key] = Checkpoint.decode(record.key, record.value)
            except FormatError:
                return

        topic = self._sides.policy.checkpoints_topic(self._sides.pair.source)
        if not vanished(self._sides.target.describe_topics([topic])[topic]):
            self._read(Side.TARGET, topic, take)
        return newest

    def _syncs(self) -> OffsetSyncStore | None:
        """The offset syncs; None if they cannot be read: the source is unreachable or has no leader for them, or none are emitted."""
        props = self._sides.config.source_connector
        side, topic = syncs_side(props), syncs_topic(props)
        admin = self._sides.target if side is Side.TARGET else self._sides.source
        found = None if admin is None else admin.describe_topics([topic])[topic]
        if found is None or vanished(found):
            return None
        # The target's checkpoints prevent that a group goes back to an older offset by these syncs.
        store = OffsetSyncStore(must_read_to_end=False)

        def take(record: LogRecord) -> None:
            try:
                store.update(OffsetSync.decode(record.key, record.value))
            except FormatError:
                return

        try:
            check_leader(value_of(found))
            self._read(side, topic, take)
        except KafkaFailure as failure:
            self.notes.append(f"the offset syncs cannot be read, so groups may read more records again: {failure}")
            return None
        store.first_read_done()
        return store

    def _read(self, side: Side, topic: str, take: Callable[[LogRecord], None]) -> None:
        with self._sides.client(side, ClientKind.CONSUMER) as cluster:
            log = KafkaBasedLog(cluster, topic, on_record=take, partitions=(0,))
            try:
                log.start(READ_S)
            finally:
                log.stop()


def _share_groups(listings: Iterable[GroupListing]) -> frozenset[str]:
    return frozenset(group.group_id for group in listings if is_share_group(group))


def _not_past(
    row: GroupEvidence, found: Translated | Untranslated, partition: PartitionEvidence | None
) -> GroupEvidence:
    """The row, not as exact if the group's next records are on the source only, and without an offset in a topic that has none of them."""
    if partition is None or row.translated is None:
        return row
    if partition.is_never_copied:
        return replace(row, translated=None, found=FoundBy.NOTHING, reason=partition.missing_note)
    run = next((one for one in partition.foreign_on_source if one.first <= row.source_offset < one.after), None)
    if run is None or (isinstance(found, Translated) and found.unread is not None):
        return row
    unread = f"its next records, up to offset {run.after - 1}, are on the source only"
    return replace(row, found=FoundBy.CONSERVATIVE, reason=f"{row.reason}; {unread}" if row.reason else unread)


def _routed_topics(sides: Sides) -> dict[str, str]:
    """The source topics of the remote topics that transformations name, by the ledger; their names do not show it."""
    if not sides.selection.route:
        return {}
    entries = map(sides.ledger.entry, sides.ledger.partitions())
    return {entry.remote_topic: entry.topic for entry in entries if entry is not None}


def _merged_topics(sides: Sides) -> dict[str, tuple[str, ...]]:
    """The remote topics that have the records of several topics, by the ledger, each with those topics."""
    entries = map(sides.ledger.entry, sides.ledger.partitions())
    found: dict[str, set[str]] = {}
    for entry in entries:
        if entry is not None:
            found.setdefault(entry.remote_topic, set()).add(entry.topic)
    return {remote: tuple(sorted(topics)) for remote, topics in found.items() if len(topics) > 1}


def _by_group(rows: Iterable[GroupEvidence], outcome: Outcome) -> dict[str, list[GroupEvidence]]:
    found: dict[str, list[GroupEvidence]] = {}
    for row in rows:
        if row.outcome is outcome:
            found.setdefault(row.group, []).append(row)
    return found


def _topic_ids(admin: Admin, topics: Iterable[str]) -> TopicIds:
    """The ids of existing topics; None for those that do not exist."""
    found: dict[str, str | None] = {}
    for topic, answer in admin.describe_topics(sorted(set(topics))).items():
        if vanished(answer):
            found[topic] = None
        elif not isinstance(answer, KafkaFailure):
            found[topic] = answer.topic_id
    return found
