"""Prevents replication loops where topic names do not show where a topic came from.

Under the default policy a topic's name contains the clusters it has passed. Under `IdentityReplicationPolicy`, under a
custom policy, when transformations name remote topics, or when one cluster has two aliases, neither the names nor the records show it, and Java's MirrorMaker
replicates in an endless loop. Each flow therefore stores in its ledger, on its target, which topics it writes there and
through which clusters, by cluster id, they have come (a *claim*). Before it copies a topic, it reads the ledgers on its
source. Records are never changed.

A claim is a list of paths. A path is a list of hops, oldest first: the cluster a flow reads from, and the time in ms
since which that flow has its claim. If the target of a flow is on a path of its source topic, the hops from there on
and the flow's own hop form a loop. All flows of the loop see the same values and therefore agree on the youngest claim;
the flow with that claim does not copy the topic. Claims are valid while their flow renews its lease, and for a week
after. Sending a topic back to the target would duplicate its records, so a process that is down, a paused connector or a
source topic that is not listed any more does not invalidate them. `mm2.failover` reverses the direction of a topic.

A flow writes its claim before it reads the other claims for the last time. Of two flows that start at the same time, at
least one therefore sees the other. A flow with a new claim that sees a loop waits until the other flow has decided.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from mm2.copy.progress.ledger import note_record
from mm2.kafka.admin import Admin
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.readers.log import in_log
from mm2.kafka.structs import TopicInfo
from mm2.mirror.common.discovery import TopicLists, vanished
from mm2.mirror.common.recurring_errors import RecurringErrors
from mm2.mirror.notes.ledgers import PROVENANCE_NOTE, Ledgers, Notes
from mm2.mirror.notes.promotions import PROMOTED_NOTE, Promotion, promoted, promotions
from mm2.mirror.topics.selection import TopicSelection

log = structlog.get_logger("mm2.mirror.provenance")

LEASE_MS: Final = 7 * 24 * 3_600_000
RENEW_S: Final = 15.0
_SETTLE_S: Final = 1.0

Hop = tuple[str, int]
"""Cluster id, and the time (ms) since which the flow that reads from it has its claim."""
Path = tuple[Hop, ...]


def extended(paths: Iterable[Path], source_id: str, target_id: str, since_ms: int) -> tuple[Path, ...]:
    """A flow's claim on a topic that came over `paths`; paths that would close a loop are left out."""
    own = (source_id, since_ms)
    onwards = [path for path in paths if not {source_id, target_id} & {cluster for cluster, _ in path}]
    return ((own,), *((*path, own) for path in onwards))


def loops(paths: Iterable[Path], target_id: str) -> list[Path]:
    """For each path that contains the target, its hops from the target to the flow's source."""
    found = []
    for path in paths:
        clusters = [cluster for cluster, _ in path]
        if target_id in clusters:
            found.append(path[clusters.index(target_id) :])
    return found


def gives_way(loop: Path, own: Hop) -> bool:
    """Whether the flow with the hop `own` has the youngest claim of the loop that it closes."""
    return all((own[1], own[0]) > (since_ms, cluster) for cluster, since_ms in loop)


@dataclass
class Provenance:
    """The claims of one flow. `pause` sleeps and returns False at stop. Used by one thread."""

    source_admin: Admin
    target_admin: Admin
    selection: TopicSelection
    ledgers: Ledgers
    recurring: RecurringErrors
    pause: Callable[[float], bool]
    handed_over: set[str] = field(default_factory=set, init=False)
    """Promoted topics among those of the last call (`mm2.mirror.notes.promotions`)."""
    _claims: dict[str, tuple[Path, ...]] | None = field(default=None, init=False)  # by remote topic
    # Claims in the ledger, as far as known.
    _noted: dict[str, tuple[Path, ...]] = field(default_factory=dict, init=False)
    _until_ms: int = field(default=0, init=False)
    _promotions: dict[str, Promotion] = field(default_factory=dict, init=False)
    _losses: int = field(default=0, init=False)  # of the ledger, when its promotions were read
    _copies: TopicLists = field(
        default_factory=TopicLists, init=False
    )  # remote topics of which the source topic is missing

    def allowed(self, topics: Collection[str]) -> tuple[set[str], bool]:
        """The topics of the source that may be copied, and whether the decision is final for now.

        Raises KafkaFailure if a ledger on the source cannot be read: then there is no decision, and the current topics
        are still copied.
        """
        source_id = self.source_admin.describe_cluster().cluster_id
        target_id = self.target_admin.describe_cluster().cluster_id
        named = self.selection.names_show_origin
        self.handed_over = self._promoted(must_know=not named) & set(topics)
        if not source_id or not target_id or (named and source_id != target_id):
            return set(topics), True
        claims = self._load()
        established = set(claims)
        origins = self._origins()
        kept = self._kept(topics, claims)
        # Promoted topics stay assigned to their tasks, which do not copy them, and are part of no loop.
        topics = set(topics) - self.handed_over - self._not_turned(topics)
        wanted = self._wanted(topics, claims, origins, source_id, target_id) | kept
        self._write(wanted)
        if wanted.keys() - established:
            self.pause(_SETTLE_S)
            origins = self._origins()
        allowed, waiting = set(self.handed_over), False
        for topic in topics:
            remote = self.selection.remote(topic)
            found = loops(origins.get(topic, ()), target_id)
            if remote not in wanted or any(gives_way(loop, wanted[remote][0][0]) for loop in found):
                wanted.pop(remote, None)
                self._report_loop(topic, remote)
            elif found and remote not in established:
                waiting = True
            else:
                allowed.add(topic)
        self.recurring.keep_only("loop of topic ", {f"loop of topic {topic}" for topic in set(topics) - allowed})
        self._write(wanted)
        return allowed, not waiting

    def foreseen(self, topics: Collection[str]) -> set[str]:
        """The topics that `allowed` would return now. Writes nothing; reports the topics that are refused.

        Raises KafkaFailure if a ledger on the source cannot be read.
        """
        source_id = self.source_admin.describe_cluster().cluster_id
        target_id = self.target_admin.describe_cluster().cluster_id
        named = self.selection.names_show_origin
        self.handed_over = self._promoted(must_know=False, restores=False) & set(topics)
        if not source_id or not target_id or (named and source_id != target_id):
            return set(topics)
        topics = set(topics) - self.handed_over - self._not_turned(topics)
        claims: dict[str, tuple[Path, ...]] = {}
        with contextlib.suppress(KafkaFailure):  # no ledger, no claims
            notes = self.ledgers.own().notes(PROVENANCE_NOTE)
            claims = _claims(notes) if _now_ms() < _lease(notes) else {}
        wanted = self._wanted(topics, claims, self._origins(), source_id, target_id)
        allowed = {topic for topic in topics if self.selection.remote(topic) in wanted}
        for topic in topics - allowed:
            self._report_loop(topic, self.selection.remote(topic))
        return allowed | self.handed_over

    def _wanted(
        self,
        topics: Collection[str],
        claims: Mapping[str, tuple[Path, ...]],
        origins: Mapping[str, list[Path]],
        source_id: str,
        target_id: str,
    ) -> dict[str, tuple[Path, ...]]:
        """The claims, by remote topic, for topics that this flow may copy with regard to loops."""
        wanted: dict[str, tuple[Path, ...]] = {}
        over: set[str] = set()
        for topic in sorted(topics):
            upstream, remote = origins.get(topic, ()), self.selection.remote(topic)
            since_ms = claims[remote][0][0][1] if remote in claims else _after(upstream)
            refused = any(gives_way(loop, (source_id, since_ms)) for loop in loops(upstream, target_id))
            if refused or (topic == remote and source_id == target_id):
                over.add(remote)
            else:
                # Several topics may have the same remote topic, which then has come over the paths of all of them.
                paths = extended(upstream, source_id, target_id, since_ms)
                wanted[remote] = tuple(dict.fromkeys((*wanted.get(remote, ()), *paths)))
        return {remote: paths for remote, paths in wanted.items() if remote not in over}

    def _kept(self, topics: Collection[str], claims: Mapping[str, tuple[Path, ...]]) -> dict[str, tuple[Path, ...]]:
        """The claims on remote topics whose source topics are missing: deleted, or not listed for lack of the right DESCRIBE.

        What was copied stays on the target. Without the claims the opposite flow would copy it back, into a topic that may
        still exist. Raises KafkaFailure if the ledger cannot be read now but may be soon.
        """
        if not claims:
            return {}
        try:
            ledger = self.ledgers.own()
        except KafkaFailure as failure:
            self._do_without(failure)
            return {}
        missing = [tp for tp in ledger.partitions() if tp.topic not in topics and tp.topic not in self._promotions]
        copies = {
            entry.remote_topic: entry.target_id
            for tp in missing
            if self.selection.should_replicate(tp.topic)
            and (entry := ledger.entry(tp)) is not None
            and entry.remote_topic in claims
            and entry.remote_topic == self.selection.remote(tp.topic)
        }
        if not copies:
            return {}
        answers = self.target_admin.describe_topics(copies)
        existing = {
            remote: 1
            for remote, answer in answers.items()
            if not vanished(answer)
            and not (isinstance(answer, TopicInfo) and copies[remote] and answer.topic_id not in {"", copies[remote]})
        }
        kept = existing.keys() | self._copies.doubtful(dict.fromkeys(copies, 1), existing)
        return {remote: claims[remote] for remote in kept}

    def renew(self) -> bool:
        """Extend the lease of the claims. False if it has expired, or the ledger was recreated: then `allowed` must be called."""
        if not self._claims:
            return True
        if _now_ms() >= self._until_ms or self.ledgers.was_recreated():
            return False
        self._write(self._claims)
        return True

    def _promoted(self, *, must_know: bool, restores: bool = True) -> set[str]:
        """The promoted topics in the flow's ledger. Raises KafkaFailure if they cannot be read now but may be soon.

        ``restores``: write those that a recreated ledger has lost.
        """
        try:
            found = promoted(self.ledgers.own())
            if restores and self._losses != self.ledgers.losses:
                # The next process would copy the topics again, into those that applications write to.
                lost = {topic: one for topic, one in self._promotions.items() if topic not in found}
                self.ledgers.write([one.record() for one in lost.values()])
                found |= lost
            self._promotions, self._losses = found, self.ledgers.losses
            return set(found)
        except KafkaFailure as failure:
            if must_know:
                self._do_without(failure)
            return self.handed_over

    def _not_turned(self, topics: Collection[str]) -> set[str]:
        """Topics that came from the target, were promoted on this cluster, and have no start offsets yet.

        Copying them completely would duplicate on the target the records that came from there. `mm2 failback` stores
        the offsets to start from. A ledger that any client of the source may have created stops nothing.
        """
        waiting = set()
        for notes in self.ledgers.notes_of_source(PROMOTED_NOTE, self.source_admin, proven=True):
            waiting |= {one.remote_topic for one in promotions(notes).values() if not one.turned}
        waiting &= set(topics)
        source, target = self.selection.source_alias, self.selection.target_alias
        for topic in waiting:
            self.recurring.report(
                f"turn of topic {topic}",
                f"Topic {topic} was failed over from cluster {target} to {source} and is not copied back before "
                f"`mm2 failback FILE '{target}->{source}'` has set the start offset.",
            )
        self.recurring.keep_only("turn of topic ", {f"turn of topic {topic}" for topic in waiting})
        return waiting

    def _report_loop(self, topic: str, remote: str) -> None:
        source, target = self.selection.source_alias, self.selection.target_alias
        self.recurring.report(
            f"loop of topic {topic}",
            f"Topic {topic} of cluster {source} has come from cluster {target}, so it is not copied to {target} as {remote}: "
            "its records would be replicated in a loop. Exclude it from one of the flows with topics.exclude. To reverse its "
            "direction, use `mm2 failover` or `mm2 promote`; if the other flow has not run for a week, this flow takes over.",
        )

    def _load(self) -> dict[str, tuple[Path, ...]]:
        """Our valid claims. Expired claims are deleted, since other flows may have started to copy the topics."""
        try:
            notes = self.ledgers.own().notes(PROVENANCE_NOTE)
        except KafkaFailure as failure:
            if self._claims is None:
                self._do_without(failure)
                return {}
        else:
            # A ledger that was recreated has lost our claims. Without them the opposite flow would copy the topics back.
            self._noted = _claims(notes)
            if self._claims is None:
                self._until_ms = _lease(notes)
                self._claims = self._noted
        if self._claims and _now_ms() >= self._until_ms:
            self._write({})
            return {}
        return self._claims

    def _do_without(self, failure: KafkaFailure) -> None:
        """Continue without a ledger that is missing or not authorized; claims of others still apply.

        Raises temporary errors.
        """
        if not failure.is_final and not vanished(failure):
            raise failure
        self.recurring.report(
            "ledger of provenance",
            f"The ledger of the flow cannot be used, so other flows do not know where its topics come from: {failure}",
        )

    def _write(self, claims: Mapping[str, tuple[Path, ...]]) -> None:
        """Store these as our claims and extend the lease. Does nothing if the ledger could not be read."""
        if self._claims is None:
            return
        known = self._noted
        records = [note_record(PROVENANCE_NOTE, [remote], None) for remote in known if remote not in claims]
        records += [
            note_record(PROVENANCE_NOTE, [remote], {"paths": paths})
            for remote, paths in claims.items()
            if known.get(remote) != paths
        ]
        until_ms = _now_ms() + LEASE_MS
        if claims and (records or until_ms - self._until_ms > LEASE_MS / 6):
            records.append(note_record(PROVENANCE_NOTE, [], {"until.ms": until_ms}))
        else:
            until_ms = self._until_ms
        try:
            self.ledgers.write(records)
        except KafkaFailure as failure:
            self._do_without(failure)
            return
        if records:
            self.recurring.resolve("ledger of provenance")
        self._claims = self._noted = dict(claims)
        self._until_ms = until_ms

    def _origins(self) -> dict[str, list[Path]]:
        """The paths of the source's topics, from all flows into the source whose lease is valid."""
        origins: dict[str, list[Path]] = {}
        for notes in self.ledgers.notes_of_source(PROVENANCE_NOTE, self.source_admin):
            if _now_ms() < _lease(notes):
                for topic, paths in _claims(notes).items():
                    origins.setdefault(topic, []).extend(paths)
        return origins


def _lease(notes: Notes) -> int:
    """The time (ms) at which the lease of a ledger's claims ends."""
    until_ms = notes.get((), {}).get("until.ms", 0)
    return until_ms if isinstance(until_ms, int) else 0


def _claims(notes: Notes) -> dict[str, tuple[Path, ...]]:
    """Claims by remote topic; unreadable ones are left out."""
    claims = {}
    for name, value in notes.items():
        try:
            if len(name) == 1:
                claims[name[0]] = tuple(
                    tuple((str(cluster), int(since_ms)) for cluster, since_ms in path) for path in value["paths"]
                )
        except (KeyError, TypeError, ValueError) as error:
            log.warning(
                "A note of where a topic came from cannot be read.", topic=in_log(repr(name)), error=in_log(repr(error))
            )
    return claims


def _after(paths: Iterable[Path]) -> int:
    """The time of a new claim: now, but later than all claims it is based on, whatever the clocks show."""
    return max([_now_ms(), *(since_ms + 1 for path in paths for _, since_ms in path)])


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
