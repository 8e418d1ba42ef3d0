"""Where a group's committed offset lies on the target: by the ledgers where they know, else by offset syncs.

A topic of the source is translated with the ledger of this flow; where that says nothing, since Java wrote the copy or it
is too long ago, by MM2's rule (`mm2.mirror.offset_sync_store`). A topic that came from the target (a group has consumed
`A.t` on B, and goes home to `t` on A) is translated back with the ledger of the flow that brought it, which lies on this
flow's source.

What the ledgers say holds for the topics they were written for: a topic that was deleted and created anew since has
another id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from mm2.copy.ledger import Ledger
from mm2.copy.session import Entry
from mm2.copy.states import State
from mm2.copy.translation import Place, Translation
from mm2.kafka.structs import TopicPartition
from mm2.mirror.offset_sync_store import OffsetSyncStore
from mm2.mirror.policy import ReplicationPolicy
from mm2.reasons import OffsetReason, OffsetReasonCode

TopicIds: TypeAlias = Mapping[str, str | None]
"""Id of each topic, None for one that does not exist; what is not in it is not known."""


@dataclass(frozen=True, slots=True)
class Translated:
    """``topic`` is the name on the target. ``is_exact``: the group reads nothing again there, and skips nothing."""

    topic: str
    offset: int
    is_exact: bool


@dataclass(frozen=True, slots=True)
class Untranslated:
    """Why there is no offset for the target; the message is a sentence without its subject.

    ``was_undone``: what was said before does not hold any more either, since the topics are others now. ``lies_before``: it
    lies before all that is known, which is not going to change, so no place but the beginning of the copy is safe.
    """

    reason: OffsetReason
    was_undone: bool = False
    lies_before: bool = False


class Translator:
    """Of one flow. ``syncs`` None while they cannot be read; ``ledger`` and ``home_ledger`` None where there is none.

    Used by one thread; the ledgers may be fed by others.
    """

    def __init__(self, policy: ReplicationPolicy, source_alias: str, target_alias: str) -> None:
        self._policy = policy
        self._source_alias = source_alias
        self._target_alias = target_alias
        self.syncs: OffsetSyncStore | None = None
        self.ledger: Ledger | None = None
        self.home_ledger: Ledger | None = None
        self._known: dict[tuple[bool, TopicPartition], tuple[int, Entry, Translation]] = {}

    def topic_on_target(self, topic: str) -> str:
        """Its remote topic, or what it is a copy of when it came from there."""
        home = self.home_of(topic)
        return self._policy.format_remote_topic(self._source_alias, topic) if home is None else home

    def home_of(self, topic: str) -> str | None:
        """The topic of the target that a topic of the source is a copy of, by its name; None: it has not come from there."""
        return self._policy.upstream_from(self._target_alias, topic)

    def came_under_its_name(self, partition: TopicPartition) -> bool:
        """Under identity naming: the flow the other way has brought it, and this one does not copy it."""
        if self.home_ledger is None or (self.ledger is not None and self.ledger.version(partition)):
            return False
        known = self._standing(self.home_ledger, partition, back=True)
        return known is not None and known[0].remote_topic == partition.topic

    def translate(
        self, partition: TopicPartition, offset: int, on_source: TopicIds, on_target: TopicIds
    ) -> Translated | Untranslated:
        """The first offset that a group has yet to read, whose next one on the source is ``offset``; never past it."""
        home = partition.topic if self.came_under_its_name(partition) else self.home_of(partition.topic)
        if home is not None:
            return self._back(partition, home, offset, on_source, on_target)
        remote = self.topic_on_target(partition.topic)
        if on_target.get(remote, "") is None:
            return self._no_topic(remote)
        known = self._standing(self.ledger, partition, back=False)
        if known and (changed := _changed(known[0], on_source.get(partition.topic, ""), on_target.get(remote, ""))):
            return Untranslated(changed, was_undone=True)  # and so are the offset syncs, which do not know of it
        found, reason = (None, None) if known is None else _by_ledger(known[1], offset)
        if found is not None and found.is_exact:
            return Translated(remote, found.offset, is_exact=True)
        if remote == partition.topic and self._standing(self.home_ledger, partition, back=True):
            # Under identity naming the flow the other way has brought it here while this one did not copy it.
            back = self._back(partition, partition.topic, offset, on_source, on_target)
            if isinstance(back, Translated) and (found is None or back.is_exact):
                return back
        by_syncs = self._by_syncs(partition, offset)
        if isinstance(by_syncs, int):
            if found is None:
                return Translated(remote, by_syncs, is_exact=False)
            # Both are safe, so the later one is the better one; but not past where the ledger knows the next record.
            later = max(found.offset, by_syncs)
            return Translated(remote, later if found.at_most is None else min(later, found.at_most), is_exact=False)
        if found is not None:
            return Translated(remote, found.offset, is_exact=False)
        are_read = self.syncs is not None and self.syncs.ready
        if reason is not None:
            # The ledger's reason is the more exact one, except when the offset lies before all syncs.
            code = by_syncs.code if by_syncs.code is OffsetReasonCode.TOO_OLD else reason.code
            by_syncs = OffsetReason(code, f"{by_syncs}; {reason}")
        return Untranslated(by_syncs, lies_before=are_read)

    def _no_topic(self, topic: str) -> Untranslated:
        message = f"topic {topic} does not exist on {self._target_alias}"
        return Untranslated(OffsetReason(OffsetReasonCode.NO_TOPIC, message), was_undone=True)

    # -- by what

    def _by_syncs(self, partition: TopicPartition, offset: int) -> int | OffsetReason:
        """An offset, or why there is none."""
        if self.syncs is None or not self.syncs.ready:
            return OffsetReason(OffsetReasonCode.NO_SYNC, "the offset syncs have not been read")
        found = self.syncs.translate(partition.topic, partition.partition, offset)
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
            return Untranslated(OffsetReason(OffsetReasonCode.OTHER, f"the copy of {home} is {entry.remote_topic}"))
        # Seen from the flow that brought it, its source is this flow's target.
        if changed := _changed(entry, on_target.get(home, ""), on_source.get(partition.topic, "")):
            return Untranslated(changed, was_undone=True)
        found = translation.to_source(offset)
        if found is None:
            message = f"its offset {offset} lies before the copying that the ledger knows"
            return Untranslated(OffsetReason(OffsetReasonCode.TOO_OLD, message), lies_before=True)
        return Translated(home, found.offset, found.is_exact)

    def _standing(
        self, ledger: Ledger | None, source: TopicPartition, *, back: bool
    ) -> tuple[Entry, Translation] | None:
        """What a ledger says of a partition; made anew only when it says something else."""
        if ledger is None:
            return None
        version = ledger.version(source)
        known = self._known.get((back, source))
        if known is None or known[0] != version:
            entry = ledger.entry(source)
            if entry is None:
                return None
            known = (version, entry, Translation(ledger.chunks(source), entry.mark))
            self._known[back, source] = known
        return known[1], known[2]


def _by_ledger(translation: Translation, offset: int) -> tuple[Place | None, OffsetReason]:
    """A place, or what the ledger can say to explain that it has none."""
    found, first = translation.to_target(offset), translation.first_known
    if first is None:
        return None, OffsetReason(OffsetReasonCode.NOT_COPIED, "the ledger knows of no record that has been copied")
    return found, OffsetReason(OffsetReasonCode.TOO_OLD, f"the ledger knows the copy from offset {first.source} on")


def _changed(entry: Entry, source_id: str | None, target_id: str | None) -> OffsetReason | None:
    """Why a ledger's entry is about other topics than those of today; None when it is not, or when this is not known."""
    if entry.trouble is not None and entry.trouble.state == State.RECREATED:
        return OffsetReason(OffsetReasonCode.RECREATED, entry.trouble.reason)
    for now, then, name in (
        (source_id, entry.source_id, entry.topic),
        (target_id, entry.target_id, entry.remote_topic),
    ):
        if now and then and now != then:
            return OffsetReason(OffsetReasonCode.RECREATED, f"topic {name} was deleted and created again")
    return None
