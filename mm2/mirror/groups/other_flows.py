"""Other flows into the same target that copy to the same remote topics: identity naming, a policy or a router gives them one name.

What one flow translates says nothing about the records of the others. A group has read those of another flow that are before its checkpoint
in that flow. So its offset may be the smallest of the translations, and, because a checkpoint does not move while its flow is idle, whatever
follows there without a hole in this flow's own records. Without a checkpoint in another flow, nothing of that flow counts as read.

The evidence is on the target: ledgers name the remote topic of a partition before its first record is sent. Java's flows have none, so what
their checkpoints name counts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, Protocol

from mm2.copy.progress.ledger import LEDGER_NAMES, Ledger
from mm2.copy.progress.translation import Translation, end_of_run
from mm2.kafka.admin import Admin
from mm2.kafka.errors import value_of
from mm2.kafka.readers.log import KafkaBasedLog, LogRecord
from mm2.kafka.structs import LATEST, TopicPartition
from mm2.mirror.common.clients import ClientKind, MirrorClients, Side
from mm2.mirror.common.discovery import vanished
from mm2.mirror.common.formats import Checkpoint, FormatError
from mm2.mirror.policy import ReplicationPolicy
from mm2.reasons import OffsetReason, OffsetReasonCode

_READ_TIMEOUT_S: Final = 15.0
_FRESH_S: Final = 3600.0  # tombstones are kept for a day


@dataclass(frozen=True, slots=True)
class SharedOffset:
    """Where a group may be in a remote partition that other flows copy to, too. ``reason``: another flow has no checkpoint of the group."""

    offset: int
    reason: OffsetReason | None


class _Content(Protocol):
    def apply(self, key: bytes | None, value: bytes | None, /) -> None: ...


class _Checkpoints:
    """The newest checkpoints of one flow: of these ``groups`` (None: of all), and the target partitions of all."""

    def __init__(self, groups: Collection[str] | None) -> None:
        self._groups = None if groups is None else frozenset(groups)
        self.offsets: dict[tuple[str, TopicPartition], int] = {}
        self.partitions: set[TopicPartition] = set()

    def apply(self, key: bytes | None, value: bytes | None, /) -> None:
        """Apply one record."""
        try:
            group, topic, partition = Checkpoint.decode_key(key)
            tp = TopicPartition(topic, partition)
            if value is None:
                self.offsets.pop((group, tp), None)
                return
            self.partitions.add(tp)
            if self._groups is None or group in self._groups:
                self.offsets[group, tp] = Checkpoint.decode(key, value).downstream_offset
        except FormatError:
            return


@dataclass
class _Known:
    """A topic as it was read up to ``positions``."""

    content: _Content
    topic_id: str
    as_of_s: float
    positions: dict[int, int] = field(default_factory=dict)


@dataclass
class _OtherFlow:
    """One other flow. ``copied``: the topic ids of its target partitions, "" where they are not known; None: it has no ledger."""

    checkpoints: _Checkpoints
    copied: dict[TopicPartition, set[str]] | None

    def copies_to(self, remote: TopicPartition, topic_id: str) -> bool:
        """Whether it has copied to this partition of the topic with this id ("": not known)."""
        if self.copied is None:
            return remote in self.checkpoints.partitions
        ids = self.copied.get(remote, set())
        return bool(ids) and (not topic_id or not ids.isdisjoint({"", topic_id}))


class OtherFlows:
    """The other flows of one target, for the groups of one flow. Used by one thread; `stop` may be called by another.

    ``can_share``: False if the names of remote topics show their flow, so that no two flows have the same.
    """

    def __init__(
        self,
        clients: MirrorClients,
        admin: Admin,
        policy: ReplicationPolicy,
        *,
        can_share: bool,
        groups: Collection[str] | None = None,
    ) -> None:
        self._clients = clients
        self._admin = admin
        self._policy = policy
        self._can_share = can_share
        self._groups = groups
        self._known: dict[str, _Known] = {}
        self._flows: dict[str, _OtherFlow] = {}  # by alias of the source, or by checkpoints topic
        self._own: Ledger | None = None
        self._sources: dict[TopicPartition, list[TopicPartition]] = {}  # of this flow, by target partition
        self._runs: dict[TopicPartition, list[tuple[int, int]]] = {}
        self._lock = threading.Lock()
        self._reading: KafkaBasedLog | None = None
        self._is_stopped = False

    def read(self, own: Ledger | None) -> None:
        """Read what the other flows have written to the target since. ``own`` is the ledger of this flow. Raises KafkaFailure."""
        self._own, self._sources, self._runs = own, {}, {}
        if not self._can_share:
            return
        names = self._admin.list_topics()
        by_alias: dict[str, list[str]] = {}
        for name in sorted(filter(LEDGER_NAMES.fullmatch, names)):
            alias = name.partition(".")[2].removesuffix(".internal")
            if alias != self._clients.source_alias:
                by_alias.setdefault(alias, []).append(name)
        points = {self._policy.checkpoints_topic(alias): alias for alias in by_alias}
        own_points = self._policy.checkpoints_topic(self._clients.source_alias)
        for name in sorted(names):
            if self._policy.is_checkpoints_topic(name) and name != own_points:
                points.setdefault(name, name)
        self._refresh([*(name for some in by_alias.values() for name in some), *(points.keys() & names)])
        clusters = self._index_own() if points else set()
        self._flows = {
            flow: _OtherFlow(
                self._checkpoints_in(topic), self._copied(by_alias[flow], clusters) if flow in by_alias else None
            )
            for topic, flow in points.items()
        }

    def _index_own(self) -> set[str]:
        """Find this flow's partitions by target partition. Returns the ids of the clusters that it has copied from."""
        clusters = set()
        for tp in () if self._own is None else self._own.partitions():
            if self._own is not None and (entry := self._own.entry(tp)) is not None:
                self._sources.setdefault(entry.target, []).append(tp)
                clusters.add(entry.copy_id.cluster)
        return clusters - {""}

    def _copied(self, ledgers: Collection[str], own_clusters: Collection[str]) -> dict[TopicPartition, set[str]]:
        """What a flow has copied to, by its ledgers. A former alias of this flow's source has the same groups, so it does not count."""
        found: dict[TopicPartition, set[str]] = {}
        for name in ledgers:
            known = self._known.get(name)
            if known is not None and isinstance(ledger := known.content, Ledger):
                for entry in filter(None, map(ledger.entry, ledger.partitions())):
                    if entry.copy_id.cluster not in own_clusters:
                        found.setdefault(entry.target, set()).add(entry.target_id)
        return found

    def _checkpoints_in(self, topic: str) -> _Checkpoints:
        known = self._known.get(topic)
        return known.content if known and isinstance(known.content, _Checkpoints) else _Checkpoints(self._groups)

    def names_of(self, remote: TopicPartition, topic_id: str = "") -> list[str]:
        """The other flows that copy to a target partition."""
        target, suffix = self._clients.target_alias, self._policy.checkpoints_topic("")
        return [
            f"{name.removesuffix(suffix)}->{target}"
            for name, flow in self._flows.items()
            if flow.copies_to(remote, topic_id)
        ]

    def shared_offset(self, group: str, remote: TopicPartition, offset: int, topic_id: str) -> SharedOffset | None:
        """Where the group may be in a partition of the topic with this id, if this flow alone would place it at ``offset``.

        None: this flow copies there alone.
        """
        flows = {name: flow for name, flow in self._flows.items() if flow.copies_to(remote, topic_id)}
        if not flows:
            return None
        read_to = [flow.checkpoints.offsets.get((group, remote), -1) for flow in flows.values()]
        found = min(offset, end_of_run(self._runs_in(remote), max(0, min(read_to))))
        if min(read_to) >= 0:
            return SharedOffset(found, None)
        others = ", ".join(self.names_of(remote, topic_id))
        message = (
            f"{remote} has records of {others}, too, and not all of these flows have a checkpoint of the group: its offset is before the "
            "first record that it may not have read"
        )
        return SharedOffset(found, OffsetReason(OffsetReasonCode.OTHER_FLOW, message))

    def has_own(self, remote: TopicPartition, first: int, after: int) -> bool:
        """Whether this flow has copied a record to one of these offsets."""
        return any(max(first, start) < min(after, end) for start, end in self._runs_in(remote))

    def _runs_in(self, remote: TopicPartition) -> list[tuple[int, int]]:
        """The target offsets of this flow's records in a partition, as far as its ledger knows, as (first, after) in order."""
        if remote not in self._runs:
            runs: list[tuple[int, int]] = []
            for tp in self._sources.get(remote, ()):
                if self._own is not None and (entry := self._own.entry(tp)) is not None:
                    runs += Translation(self._own.chunks(tp), entry.mark, entry.end).on_target
            self._runs[remote] = sorted(runs)
        return self._runs[remote]

    # -- reading

    def _refresh(self, topics: Collection[str]) -> None:
        """Read these topics to their ends; what was read before is read on. Raises KafkaFailure."""
        described = self._admin.describe_topics(sorted(topics)) if topics else {}
        existing = {name: value_of(info) for name, info in described.items() if not vanished(info)}
        places = {name: [TopicPartition(name, index) for index in info.partitions] for name, info in existing.items()}
        wanted = {tp: LATEST for some in places.values() for tp in some}
        ends = {tp: value_of(end).offset for tp, end in self._admin.list_offsets(wanted).items()} if wanted else {}
        self._known = {name: known for name, known in self._known.items() if name in existing}
        for name, info in existing.items():
            known, now_s = self._known.get(name), time.monotonic()
            if known is None or known.topic_id != info.topic_id or now_s - known.as_of_s > _FRESH_S:
                content = Ledger() if LEDGER_NAMES.fullmatch(name) else _Checkpoints(self._groups)
                known = _Known(content, info.topic_id, now_s)
            if any(known.positions.get(tp.partition, 0) < ends[tp] for tp in places[name]):
                self._read_on(name, known)
            self._known[name] = known

    def _read_on(self, topic: str, known: _Known) -> None:
        def take(record: LogRecord) -> None:
            known.content.apply(record.key, record.value)

        cluster = self._clients.cluster(Side.TARGET, ClientKind.CONSUMER, "other-flows-consumer")
        reader = KafkaBasedLog(cluster, topic, on_record=take, begin=known.positions)
        with self._lock:
            self._reading = reader
        try:
            if not self._is_stopped:
                reader.start(_READ_TIMEOUT_S)
        finally:
            reader.stop()
            cluster.close()
            with self._lock:
                self._reading = None
        known.positions, known.as_of_s = reader.positions, time.monotonic()

    def stop(self) -> None:
        """Abort the read in progress and prevent further ones."""
        self._is_stopped = True
        with self._lock:
            reading = self._reading
        if reading is not None:
            reading.stop()
