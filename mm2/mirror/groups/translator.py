"""Translates a group's committed offset to the target: by the ledgers where they cover it, else by offset syncs.

A topic of the source is translated with the ledger of this flow. If the ledger does not cover the offset, because Java
wrote the copy or the offset is too old, MirrorMaker's algorithm is used (`mm2.mirror.groups.offset_sync_store`). A topic that
came from the target is translated back with the ledger of the opposite flow, which is on this flow's source: for
example, a group has consumed `A.t` on B and fails back to `t` on A.

A ledger entry applies to the topics it was written for: a topic that was deleted and recreated since has another id. Any client of
the source that may create topics there can forge the ledger of the opposite flow, so an entry of it is used only if it has the id
that its source topic, one of the target, has now: clients without rights on the target do not know it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from mm2.copy.progress.ledger import Ledger
from mm2.copy.progress.session import LedgerEntry
from mm2.copy.progress.translation import TranslatedOffset, Translation
from mm2.copy.states import PartitionState
from mm2.kafka.structs import TopicPartition
from mm2.mirror.common.formats import OffsetSync
from mm2.mirror.groups.offset_sync_store import OffsetSyncStore
from mm2.mirror.notes.kept_records import kept_records
from mm2.mirror.policy import ReplicationPolicy
from mm2.mirror.topics.routing import NO_ROUTE, TopicRoute
from mm2.reasons import OffsetReason, OffsetReasonCode

_OTHER_RECORDS: Final = frozenset({PartitionState.RECREATED, PartitionState.SOURCE_REPLACED})

TopicIds: TypeAlias = Mapping[str, str | None]
"""The id of each topic, None for one that does not exist; a topic that is missing here is not known."""


@dataclass(frozen=True, slots=True)
class Translated:
    """``topic`` is the name on the target. ``is_exact``: the group neither re-reads nor skips any record there.

    ``at_most``: with a later offset the group would skip a record; None: not known. ``not_copied``: the offsets, as (first, after), of the
    group's next records on the source, which no flow copies; None: there are none. ``alone``: the offset by this source partition
    alone, where another one with the same target partition has an earlier one, which is ``offset``; None: there is none.
    """

    topic: str
    offset: int
    is_exact: bool
    at_most: int | None = field(default=None, compare=False)
    alone: int | None = None
    not_copied: tuple[int, int] | None = None

    @property
    def unread(self) -> OffsetReason | None:
        """What the group does not read on the target; None: nothing that is known."""
        if self.not_copied is None:
            return None
        first, last = self.not_copied[0], self.not_copied[1] - 1
        where = f"at offset {first}" if first == last else f"at offsets {first} to {last}"
        message = f"its next records, {where}, are on the source only: the offset on the target is after them"
        return OffsetReason(OffsetReasonCode.NEXT_NOT_COPIED, message)


@dataclass(frozen=True, slots=True)
class Untranslated:
    """Why there is no offset on the target; the message has no subject.

    ``was_undone``: earlier translations are invalid too, since a topic was recreated. ``lies_before``: the offset is
    before all known offsets, which will not change; only the beginning of the copy is safe. ``at_most`` as in `Translated`.
    """

    reason: OffsetReason
    was_undone: bool = False
    lies_before: bool = False
    at_most: int | None = None


@dataclass(eq=False)
class Translator:
    """The translation of one flow.

    ``syncs`` is None while they cannot be read; ``ledger`` and ``home_ledger`` are None if they do not exist. Used by
    one thread; the ledgers may be updated by others.
    """

    _policy: ReplicationPolicy
    _source_alias: str
    _target_alias: str
    _route: TopicRoute = NO_ROUTE

    def __post_init__(self) -> None:
        self.syncs: OffsetSyncStore | None = None
        self.ledger: Ledger | None = None
        self.home_ledger: Ledger | None = None
        self._known: dict[tuple[bool, TopicPartition], tuple[int, LedgerEntry, Translation]] = {}

    @property
    def version(self) -> object:
        """A value that changes whenever a translation may have changed, other than by the ids of topics."""
        sources = self.ledger, self.home_ledger, self.syncs
        return tuple(None if one is None else one.changes for one in sources)

    def topic_on_target(self, topic: str) -> str:
        """The remote topic, or the topic's original if it came from the target."""
        home = self.home_of(topic)
        return self._route.of(self._policy.format_remote_topic(self._source_alias, topic)) if home is None else home

    def home_of(self, topic: str) -> str | None:
        """The target's topic that a source topic is a copy of, by its name; None if it is not a copy."""
        return self._policy.upstream_from(self._target_alias, topic)

    def routed_topics(self) -> set[str]:
        """The target's topics that transformations have named and that hold records of the source, by the ledger."""
        if self.ledger is None or not self._route:
            return set()
        entries = map(self.ledger.entry, self.ledger.partitions())
        return {entry.remote_topic for entry in entries if entry is not None}

    def came_under_its_name(self, partition: TopicPartition, on_target: TopicIds) -> bool:
        """Whether, under identity naming, the opposite flow copied this partition here and this flow does not.

        Also while the id of the target's topic is not known: then it has no translation, and no offset is committed.
        """
        if self.home_ledger is None or (self.ledger is not None and self.ledger.version(partition)):
            return False
        known = self._standing(self.home_ledger, partition, back=True)
        if known is None or known[0].remote_topic != partition.topic:
            return False
        return on_target.get(partition.topic, "") in {"", known[0].source_id}

    def translate(
        self, partition: TopicPartition, offset: int, on_source: TopicIds, on_target: TopicIds
    ) -> Translated | Untranslated:
        """Translate ``offset``, the group's next one on the source, to the next one on the target; never past one that is copied."""
        found = self._translate(partition, offset, on_source, on_target)
        if isinstance(found, Translated) and (run := self._not_copied(partition, offset, on_source, on_target)):
            return replace(found, is_exact=False, not_copied=run)
        return found

    def _not_copied(
        self, partition: TopicPartition, offset: int, on_source: TopicIds, on_target: TopicIds
    ) -> tuple[int, int] | None:
        """The offsets from ``offset`` on of records that no flow copies: those that were kept, and those that other producers wrote to
        the copy of a partition of the target, as far as the flow that made it has counted some.
        """
        kept = None if self.ledger is None else kept_records(self.ledger).get(partition)
        if kept is not None and kept.is_of(on_source.get(partition.topic) or ""):
            run = kept.at(offset)
            if run is not None:
                return offset, run.after
        home = TopicPartition(self.home_of(partition.topic) or partition.topic, partition.partition)
        known = self._standing(self.home_ledger, home, back=True)
        if known is None or known[0].remote_topic != partition.topic or not known[0].foreign:
            return None
        if _changed(known[0], on_target.get(home.topic, ""), on_source.get(partition.topic, "")):
            return None
        hole = known[1].hole_at(offset)
        # The marker of a transaction is one offset.
        if hole is None or (known[0].session is None and hole[1] - hole[0] == 1):
            return None
        return offset, hole[1]

    def _translate(
        self, partition: TopicPartition, offset: int, on_source: TopicIds, on_target: TopicIds
    ) -> Translated | Untranslated:
        home = partition.topic if self.came_under_its_name(partition, on_target) else self.home_of(partition.topic)
        if home is not None:
            return self._back(partition, home, offset, on_source, on_target)
        remote = self.topic_on_target(partition.topic)
        if on_target.get(remote, "") is None:
            return self._no_topic(remote)
        known = self._standing(self.ledger, partition, back=False)
        if known and known[0].remote_topic != remote:
            # The policy or the route has changed, so the offset syncs are those of the other topic, too.
            return Untranslated(_other_copy(partition.topic, known[0]))
        if known and (changed := _changed(known[0], on_source.get(partition.topic, ""), on_target.get(remote, ""))):
            return Untranslated(changed, was_undone=True)  # so are the offset syncs, which have no topic ids
        if known and (same := _with_same_offsets(known[0], offset)) is not None:
            return Translated(remote, same, is_exact=same == offset)
        found, reason = (None, None) if known is None else _by_ledger(known[1], offset)
        if found is not None and found.is_exact:
            return Translated(remote, found.offset, is_exact=True)
        back: Translated | Untranslated | None = None
        home_known = self._standing(self.home_ledger, partition, back=True) if remote == partition.topic else None
        if home_known:
            # Under identity naming the opposite flow copied it here while this flow did not copy it. If its ledger knows no record,
            # the offset syncs of this flow are more precise than the end of its copy.
            back = self._back(partition, partition.topic, offset, on_source, on_target)
            is_known = found is None and home_known[1].first_known is not None
            if isinstance(back, Translated) and (back.is_exact or is_known):
                return back
        first = None if known is None else known[1].first_known
        # Without `found` the group has read none of the records that the ledger knows. The syncs may be those of an earlier remote topic.
        before_all = None if first is None else first.target
        at_most = before_all if found is None else found.at_most
        by_syncs = self._by_syncs(partition, offset, None if known is None else known[0])
        if isinstance(by_syncs, int):
            # Both are safe, so the later one is better, but not past the next record that the ledger knows.
            later = by_syncs if found is None else max(found.offset, by_syncs)
            return Translated(
                remote, later if at_most is None else min(later, at_most), is_exact=False, at_most=at_most
            )
        if found is not None:
            return Translated(remote, found.offset, is_exact=False, at_most=at_most)
        if isinstance(back, Translated):
            return back
        are_read = self.syncs is not None and self.syncs.ready
        if reason is not None:
            # The ledger's reason is more precise, except if the offset is before all syncs.
            code = by_syncs.code if by_syncs.code is OffsetReasonCode.TOO_OLD else reason.code
            by_syncs = OffsetReason(code, f"{by_syncs}; {reason}")
        return Untranslated(by_syncs, lies_before=are_read, at_most=at_most)

    def translate_group(
        self, offsets: Mapping[TopicPartition, int], on_source: TopicIds, on_target: TopicIds
    ) -> dict[TopicPartition, Translated | Untranslated]:
        """Translate all offsets of a group. Where several source partitions are copied to one target partition, its position there is
        the smallest of theirs, so that it skips nothing.
        """
        found = {tp: self.translate(tp, offset, on_source, on_target) for tp, offset in offsets.items()}
        by_target: dict[TopicPartition, list[TopicPartition]] = {}
        for tp in sorted(offsets):
            by_target.setdefault(TopicPartition(self.topic_on_target(tp.topic), tp.partition), []).append(tp)
        for remote, several in by_target.items():
            if len(several) > 1:
                answers = {tp: self._or_empty(tp, offsets[tp], found[tp], remote.topic) for tp in several}
                found |= _smallest(remote, answers)
        return found

    def _or_empty(
        self, partition: TopicPartition, offset: int, found: Translated | Untranslated, remote: str
    ) -> Translated | Untranslated:
        """The translation; of a partition of which nothing was copied, where its first record will be, or the beginning."""
        if isinstance(found, Translated) or found.reason.code is not OffsetReasonCode.NOT_COPIED:
            return found
        known = self._standing(self.ledger, partition, back=False)
        start = None if known is None else known[1].to_target(offset)
        return Translated(remote, 0 if start is None else start.offset, is_exact=start is not None and start.is_exact)

    def _no_topic(self, topic: str) -> Untranslated:
        message = f"topic {topic} does not exist on {self._target_alias}"
        return Untranslated(OffsetReason(OffsetReasonCode.NO_TOPIC, message), was_undone=True)

    # -- the methods

    def _by_syncs(self, partition: TopicPartition, offset: int, entry: LedgerEntry | None) -> int | OffsetReason:
        """The offset by offset syncs, or why there is none.

        A sync does not name the remote topic. If there has been another one, only those are used that lie in what the
        ledger knows to be in the current one.
        """
        if self.syncs is None or not self.syncs.ready:
            return OffsetReason(OffsetReasonCode.NO_SYNC, "the offset syncs have not been read")

        def is_valid(sync: OffsetSync) -> bool:
            if entry is None or entry.former is None:
                return True
            is_copied = entry.former.until <= sync.upstream_offset < entry.mark.source
            return is_copied and sync.downstream_offset < entry.mark.target

        found = self.syncs.translate(partition.topic, partition.partition, offset, is_valid)
        if found is None:
            return OffsetReason(OffsetReasonCode.NO_SYNC, "there is no offset sync for it")
        if found == OffsetSyncStore.TOO_OLD:
            message = f"its offset {offset} lies before every offset sync that is known"
            return OffsetReason(OffsetReasonCode.TOO_OLD, message)
        return found

    def _back(
        self, partition: TopicPartition, home: str, offset: int, on_source: TopicIds, on_target: TopicIds
    ) -> Translated | Untranslated:
        if on_target.get(home, "") is None:
            return self._no_topic(home)
        known = self._standing(self.home_ledger, TopicPartition(home, partition.partition), back=True)
        if known is None:
            flow = f"{self._target_alias}->{self._source_alias}"
            message = f"it came from {self._target_alias}, and there is no ledger of {flow} that knows it"
            return Untranslated(OffsetReason(OffsetReasonCode.NO_LEDGER, message))
        entry, translation = known
        if entry.remote_topic != partition.topic:
            return Untranslated(_other_copy(home, entry))
        # For the flow that copied it, the source is this flow's target.
        if changed := _changed(entry, on_target.get(home, ""), on_source.get(partition.topic, "")):
            return Untranslated(changed, was_undone=True)
        if not entry.source_id or on_target.get(home) != entry.source_id:
            flow = f"{self._target_alias}->{self._source_alias}"
            message = f"the ledger of {flow} does not have the id that topic {home} has on {self._target_alias}"
            return Untranslated(OffsetReason(OffsetReasonCode.NO_LEDGER, message))
        if _with_same_offsets(entry, offset) == offset:
            return Translated(home, offset, is_exact=True)
        found = translation.to_source(offset)
        if found is None:
            message = f"its offset {offset} lies before the copying that the ledger knows"
            return Untranslated(OffsetReason(OffsetReasonCode.TOO_OLD, message), lies_before=True)
        return Translated(home, found.offset, found.is_exact)

    def _standing(
        self, ledger: Ledger | None, source: TopicPartition, *, back: bool
    ) -> tuple[LedgerEntry, Translation] | None:
        """The entry and the translation of a partition in a ledger; rebuilt only when the ledger has changed."""
        if ledger is None:
            return None
        version = ledger.version(source)
        known = self._known.get((back, source))
        if known is None or known[0] != version:
            entry = ledger.entry(source)
            if entry is None:
                return None
            known = (version, entry, Translation(ledger.chunks(source), entry.mark, entry.end))
            self._known[back, source] = known
        return known[1], known[2]


def read_again(remote: TopicPartition, offsets: int) -> str:
    """What a group reads again of a target partition with the records of several source topics."""
    number = "1 more offset is" if offsets == 1 else f"{offsets} more offsets are"
    return f"{remote} has the records of several topics: {number} read again"


def _smallest(
    remote: TopicPartition, answers: Mapping[TopicPartition, Translated | Untranslated]
) -> dict[TopicPartition, Translated | Untranslated]:
    """The same position in one target partition for all of its source partitions."""
    known = {tp: answer for tp, answer in answers.items() if isinstance(answer, Translated)}
    for tp, answer in answers.items():
        if isinstance(answer, Untranslated):
            message = f"{remote} also has the records of {tp}, and its offset cannot be translated: {answer.reason}"
            reason = OffsetReason(answer.reason.code, message)
            return {**answers, **dict.fromkeys(known, Untranslated(reason))}
    lowest = min(known, key=lambda tp: (known[tp].offset, tp))
    offset = known[lowest].offset
    limits = [answer.at_most for answer in known.values() if answer.at_most is not None]
    is_exact = all(answer.is_exact and answer.offset == offset for answer in known.values())
    return {
        tp: Translated(
            answer.topic,
            offset,
            is_exact,
            min(limits, default=None),
            None if tp == lowest else answer.offset,
            answer.not_copied,
        )
        for tp, answer in known.items()
    }


def _with_same_offsets(entry: LedgerEntry, offset: int) -> int | None:
    """The same offset, if the copy has the offsets of the source (`preserve.offsets`), or the end of a copy that has not
    reached it; None for any other copy.
    """
    return min(offset, entry.mark.target) if entry.is_preserved else None


def _other_copy(topic: str, entry: LedgerEntry) -> OffsetReason:
    return OffsetReason(OffsetReasonCode.OTHER, f"the copy of {topic} is {entry.remote_topic}")


def _by_ledger(translation: Translation, offset: int) -> tuple[TranslatedOffset | None, OffsetReason]:
    """The translated offset, or the reason why the ledger has none."""
    found, first = translation.to_target(offset), translation.first_known
    if first is None:
        # As in Java, a group has no checkpoint before the first record was copied.
        return None, OffsetReason(OffsetReasonCode.NOT_COPIED, "the ledger knows of no record that has been copied")
    return found, OffsetReason(OffsetReasonCode.TOO_OLD, f"the ledger knows the copy from offset {first.source} on")


def _changed(entry: LedgerEntry, source_id: str | None, target_id: str | None) -> OffsetReason | None:
    """Why a ledger entry refers to other topics than the current ones; None if it does not, or if this is not known."""
    if entry.condition is not None and entry.condition.state in _OTHER_RECORDS:
        return OffsetReason(OffsetReasonCode.RECREATED, entry.condition.reason)
    for now, then, name in (
        (source_id, entry.source_id, entry.topic),
        (target_id, entry.target_id, entry.remote_topic),
    ):
        if now and then and now != then:
            return OffsetReason(OffsetReasonCode.RECREATED, f"topic {name} was deleted and created again")
    return None
