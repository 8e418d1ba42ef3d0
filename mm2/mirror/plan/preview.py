"""Determines what starting a flow would change on its clusters, and what would prevent it, without changing anything.

Each step is requested by the code that performs it when the flow runs (`TopicSyncs`, `create_kept_topic`, `ensure`), with admin clients
that only validate it (`mm2.mirror.plan.rehearsal`); connector configurations are compared as by a new leader. The clusters are asked
for our permissions (KIP-430).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from mm2.config.configdef import AbstractConfig
from mm2.config.keys.difference import difference
from mm2.config.keys.mirror_keys import (
    CHECKPOINT_CONNECTOR,
    HEARTBEAT_CONNECTOR,
    MIRROR_SOURCE_CONFIG,
    SOURCE_CONNECTOR,
    is_job_on,
)
from mm2.config.keys.worker_keys import WorkerConfig, storage_topics
from mm2.config.mirrormaker import BYTE_ARRAY_CONVERTER, DEDICATED_WORKER_DEFAULTS, SourceAndTarget
from mm2.connect.api import ConnectError
from mm2.connect.stores.internal_topic import InternalTopic, ensure
from mm2.connect.stores.offset_survey import stored_configs
from mm2.copy.causes import shortened
from mm2.copy.progress.session import LedgerEntry
from mm2.copy.spec import ChangesSpec, PartitionSpec
from mm2.evidence import UNCOMPARED, counted
from mm2.kafka.admin import Admin
from mm2.kafka.admin.rights import Rights
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure, failures_in
from mm2.kafka.structs import (
    AclFilter,
    AclOperation,
    ResourceType,
    TopicInfo,
    TopicPartition,
)
from mm2.mirror.checkpoint_connector import kept_checkpoints
from mm2.mirror.common import plugins
from mm2.mirror.common.clients import MirrorClients, Side
from mm2.mirror.common.discovery import TOPICS_PER_REQUEST, TopicsSeen, chunks, see_topics, vanished
from mm2.mirror.common.internal_topics import KeptTopic, create_kept_topic
from mm2.mirror.common.syncs_topic import EMIT_SYNCS_KEY, kept_syncs, syncs_side, syncs_topic
from mm2.mirror.groups.followed_groups import FollowedGroups
from mm2.mirror.groups.target_logs import TargetLoss, target_losses
from mm2.mirror.groups.translator import Translator
from mm2.mirror.heartbeat import kept_heartbeats
from mm2.mirror.notes.ledgers import Ledgers, copied_topics
from mm2.mirror.plan.rehearsal import (
    NOT_ALLOWED,
    CollectedErrors,
    Rehearsal,
    RehearsedLedgers,
    RehearsingAdmin,
    Step,
    rehearsing,
)
from mm2.mirror.plan.required_acls import AclStatus, Names, RequiredAcl, Resource, features, required_acls
from mm2.mirror.plan.shared_topics import shared_topics
from mm2.mirror.plan.way_back import way_back
from mm2.mirror.preserved.preserved_offsets import PreservedOffsets
from mm2.mirror.process.plans import FlowPlan
from mm2.mirror.source.assigned_partitions import ASSIGNED_PARTITIONS_KEY, decode_partitions
from mm2.mirror.source.record_changes import CONVERTER_KEYS, changes_spec, changing_keys
from mm2.mirror.source.sample_records import try_samples
from mm2.mirror.source_connector import TOLERANCE_KEY, topic_selection
from mm2.mirror.topic_syncs import TopicSyncs
from mm2.mirror.topics.own_topics import is_own_topic, kept_dead_letters, kept_ledger
from mm2.mirror.topics.provenance import Provenance
from mm2.mirror.topics.topic_acls import GROUP_ACLS_KEY, TopicAcls, sentence
from mm2.mirror.topics.topic_configs import change_of

_PREFLIGHT_S: Final = 5.0
_READ_S: Final = 30.0
_STORES: Final = ("config.storage.", "offset.storage.", "status.storage.")
#: A pattern that looks like a literal topic name; a dot can be part of either.
_LITERAL: Final = re.compile(r"[A-Za-z0-9_.-]+")
_NAMES_SHOWN: Final = 10
_HOSTED: Final = "kafka-cluster"
_OFFSETS: Final = "__consumer_offsets"


@dataclass(frozen=True, slots=True)
class Preview:
    """The preview of one flow. ``errors`` and ``notes`` are messages.

    ``errors`` prevent a part of the flow from working, ``notes`` are informational. ``unreachable`` are the aliases
    of clusters that did not answer; nothing else is reported about them.
    """

    flow: str
    steps: tuple[Step, ...]
    rights: tuple[AclStatus, ...]
    errors: tuple[str, ...]
    notes: tuple[str, ...]
    unreachable: tuple[str, ...]

    def alias(self, side: Side) -> str:
        """The alias of one of the flow's clusters."""
        source, _, target = self.flow.partition("->")
        return source if side is Side.SOURCE else target

    @property
    def is_well(self) -> bool:
        """Whether no problem is known."""
        return not (
            self.errors
            or any(step.error for step in self.steps)
            or any(one.missing and not one.need.instead for one in self.rights)
        )


def preview(
    pair: SourceAndTarget,
    plan: FlowPlan,
    reverse: Mapping[str, str] | None = None,
    plans: Mapping[SourceAndTarget, FlowPlan] | None = None,
) -> Preview:
    """Preview a flow on its clusters as they are now. A failed request becomes an error or a note, never an exception.

    ``reverse`` are the settings of the source connector of the flow in the opposite direction, if it is enabled; ``plans`` are those
    of all flows of the file into the target.

    Raises ConfigException or ConnectError for settings that cannot be used.
    """
    with ExitStack() as stack:
        return _Previewer(pair, plan, stack, reverse, plans or {}).all()


class _Previewer:
    def __init__(
        self,
        pair: SourceAndTarget,
        plan: FlowPlan,
        stack: ExitStack,
        reverse: Mapping[str, str] | None,
        plans: Mapping[SourceAndTarget, FlowPlan],
    ) -> None:
        self._pair = pair
        self._reverse = reverse
        self._others = {
            other: one.resolved[_name(SOURCE_CONNECTOR)]
            for other, one in plans.items()
            if other != pair and other.target == pair.target and one.replicates
        }
        self._plan = plan
        self._props = plan.resolved[_name(SOURCE_CONNECTOR)]
        self._checkpoints = plan.resolved[_name(CHECKPOINT_CONNECTOR)]
        self._heartbeats = plan.resolved[_name(HEARTBEAT_CONNECTOR)]
        self._settings = AbstractConfig(MIRROR_SOURCE_CONFIG, self._props)
        self._worker = WorkerConfig({**DEDICATED_WORKER_DEFAULTS, **plan.worker})
        self._clients = MirrorClients(self._props)
        self._selection = topic_selection(self._props, storage_topics(plan.worker))
        self._rehearsal = Rehearsal()
        self._collected = CollectedErrors()
        self._errors: list[str] = []
        self._notes: list[str] = []
        self._unreachable: list[str] = []
        self._admins: dict[Side, RehearsingAdmin] = {}
        self._changes: ChangesSpec | None = None
        for side in Side:
            cluster, admin = self._clients.admin(side, f"plan-{side.value}-admin")
            stack.callback(cluster.close)
            alias = self._clients.alias(side)
            try:
                cluster.preflight(_PREFLIGHT_S)
                self._admins[side] = rehearsing(admin, self._rehearsal)
            except KafkaFailure as failure:
                servers = self._props.get(f"{side.value}.cluster.bootstrap.servers")
                self._unreachable.append(alias)
                self._errors.append(
                    f"Cluster {alias} cannot be used, so it was not checked ({alias}.bootstrap.servers = {servers}): {failure}"
                )

    def all(self) -> Preview:
        own = self._own_topics()
        self._record_changes()
        source = target = TopicsSeen({}, {})
        topics: set[str] = set()
        if self._plan.replicates and len(self._admins) == len(Side):
            try:
                source = self._seen(Side.SOURCE, self._selection.is_selected)
                remotes = set(map(self._selection.remote, source.partitions))
                target = self._seen(Side.TARGET, lambda topic: topic in remotes or self._selection.is_remote(topic))
                topics = self._topics_to_copy(source)
                self._nothing_selected(topics)
                self._other_names(topics, target)
                self._lost_copies(topics)
                self._remote_topics(topics, source, target)
                self._merges(topics, source)
                self._shared_topics(topics)
                self._samples({topic: source.partitions[topic] for topic in topics})
                self._topics_of_producers(topics)
            except KafkaFailure as failure:
                self._errors.append(str(failure))
        if self._plan.replicates:
            self._way_back(topics)
        self._connectors(topics)
        literal = self._literal_topics(source)
        names = Names(
            {
                **own,
                Resource.SELECTED_TOPICS: {*source.partitions, *source.unknown, *literal},
                Resource.REMOTE_TOPICS: {*map(self._selection.remote, topics)},
                Resource.GROUPS: self._groups(),
                Resource.SYNCS_TOPIC: {syncs_topic(self._props)},
            },
            syncs_side(self._props),
        )
        enabled = features(self._props, self._checkpoints, self._worker, replicates=self._plan.replicates)
        wanted = required_acls(enabled, self._worker.str("group.id"), names)
        steps = tuple(map(self._explained, self._rehearsal.steps()))
        return Preview(
            str(self._pair),
            steps,
            tuple(self._rights(wanted)),
            tuple(dict.fromkeys([*self._errors, *self._collected.errors])),
            tuple(dict.fromkeys([*self._notes, *self._collected.notes])),
            tuple(self._unreachable),
        )

    def _explained(self, step: Step) -> Step:
        """A step that would fail, with the reason of the code that requests it instead of among the errors."""
        if not step.error:
            return step
        subjects = f"topic {step.subject}", f"remote topic {step.subject}", change_of(step.subject)
        reasons = [reason for subject in subjects if (reason := self._collected.pop(subject, ""))]
        if step.action != "create topic" or not reasons:
            return step
        return replace(
            step, error=reasons[0].removeprefix(f"Topic {step.subject} on cluster {step.cluster} cannot be created: ")
        )

    def _record_changes(self) -> None:
        keys = changing_keys(self._props, self._plan.worker) if self._plan.replicates else []
        if not keys:
            return
        self._notes.append(
            f"{', '.join(keys)}: the records of all topics of the flow are decoded, changed and encoded one by one. This takes "
            "many times the processor time of copying batches as bytes."
        )
        found = self._changes = changes_spec(self._props, self._plan.worker, connector=_name(SOURCE_CONNECTOR), task=0)
        if found is not None and found.not_repeatable:
            self._notes.append(f"Delivery is at-least-once: {found.not_repeatable}.")

    def _samples(self, topics: Mapping[str, int]) -> None:
        """Run the transformations and converters on sample records, and report those that would fail."""
        if self._changes is None:
            return
        remote, named = self._selection.remote, self._selection.named_if_routed
        alias = self._pair.source
        found = try_samples(
            self._admins[Side.SOURCE],
            self._changes,
            topics,
            lambda tp: PartitionSpec(tp.topic, tp.partition, remote(tp.topic), named(tp.topic)),
        )
        for key, failed in found.failed.items():
            do = f"set {key} = {BYTE_ARRAY_CONVERTER}" if key in CONVERTER_KEYS else f"change {key or 'transforms'}"
            self._errors.append(
                f"{key or 'The record chain'} would stop {len(failed):,} of {len(found.partitions):,} partitions of {alias} from which "
                f"sample records were read: {do}, or errors.tolerance = all. First error: {shortened(found.examples[key])}"
            )
        if found.skipped:
            self._notes.append(
                f"{found.skipped:,} of {found.records:,} sample records of {alias} would be skipped (errors.tolerance = all)."
            )

    # -- internal topics

    def _own_topics(self) -> dict[Resource, set[str]]:
        """The names of those on the target."""
        stores = [InternalTopic.from_config(self._worker, prefix) for prefix in _STORES]
        kept = {Resource.HEARTBEATS_TOPIC: kept_heartbeats(self._heartbeats)}
        if self._plan.replicates:
            kept[Resource.LEDGER] = kept_ledger(self._clients)
            if self._settings.bool(EMIT_SYNCS_KEY):
                kept[Resource.SYNCS_TOPIC] = kept_syncs(self._props)
            if self._settings.str(TOLERANCE_KEY) == "all":
                kept[Resource.DEAD_LETTERS_TOPIC] = kept_dead_letters(self._props)
            if is_job_on(self._checkpoints, "emit.checkpoints"):
                kept[Resource.CHECKPOINTS_TOPIC] = kept_checkpoints(self._checkpoints)
        try:
            self._stores(stores)
            for topic in kept.values():
                self._kept(topic)
        except KafkaFailure as failure:
            self._errors.append(str(failure))
        own = {resource: {one.new.name} for resource, one in kept.items() if one.side is Side.TARGET}
        return {**own, Resource.STORES: {one.name for one in stores}}

    def _stores(self, topics: Iterable[InternalTopic]) -> None:
        admin = self._admins.get(Side.TARGET)
        if admin is None:
            return
        for topic in topics:
            try:
                ensure(admin, topic, self._pair.target, timeout_s=0, single_partition=topic.prefix == "config.storage.")
            except ConnectError as error:
                self._collected.report(
                    f"topic {topic.name}", str(error) if topic.name in admin.creatable else f"{error}."
                )

    def _kept(self, topic: KeptTopic) -> None:
        if (admin := self._admins.get(topic.side)) is not None:
            create_kept_topic(admin, topic, self._clients.alias(topic.side), self._collected)

    # -- topics to replicate

    def _seen(self, side: Side, wanted: Callable[[str], bool]) -> TopicsSeen:
        seen = see_topics(self._admins[side], wanted, {})
        alias = self._clients.alias(side)
        self._errors += [f"A topic of cluster {alias} cannot be described: {one}" for one in seen.unknown.values()]
        return seen

    @cached_property
    def _ledgers(self) -> Ledgers:
        return RehearsedLedgers(self._clients, self._admins[Side.TARGET])

    def _topics_to_copy(self, source: TopicsSeen) -> set[str]:
        source_admin, target_admin = self._admins[Side.SOURCE], self._admins[Side.TARGET]
        provenance = Provenance(
            source_admin, target_admin, self._selection, self._ledgers, self._collected, lambda _: False
        )
        preserved = PreservedOffsets.of(self._props).among(source.partitions)
        refused = self._selection.unroutable(source.partitions.keys(), preserved, lambda: copied_topics(self._ledgers))
        allowed = provenance.foreseen(source.partitions.keys() - refused.keys())
        self._errors += refused.values()
        self._notes += [
            f"Topic {topic} was failed over to cluster {self._pair.target} and is not copied."
            for topic in sorted(provenance.handed_over)
        ]
        return allowed - provenance.handed_over

    def _nothing_selected(self, topics: Collection[str]) -> None:
        """Report a flow that would copy nothing."""
        policy = self._selection.policy

        def is_of_applications(topic: str) -> bool:
            return not (
                policy.is_heartbeats_topic(topic)
                or policy.is_internal_topic(topic)
                or is_own_topic(topic)
                or self._selection.is_cycle(topic)
            )

        if any(map(is_of_applications, topics)):
            return
        alias = self._pair.source
        there = sorted(filter(is_of_applications, self._admins[Side.SOURCE].list_topics()))
        if not there:
            self._notes.append(f"Nothing is copied yet: cluster {alias} has no topics that this client may describe.")
        elif not any(map(self._selection.should_replicate, there)):
            self._errors.append(
                f"Nothing would be copied: topics and topics.exclude select no topic of cluster {alias}, which has {_first_of(there)}."
            )

    def _copied(self, topics: Collection[str]) -> list[LedgerEntry]:
        """The ledger's entries of these topics; none if it cannot be read, which is reported elsewhere."""
        try:
            ledger = self._ledgers.own()
        except KafkaFailure:
            return []
        entries = (ledger.entry(tp) for tp in ledger.partitions() if tp.topic in topics)
        return [entry for entry in entries if entry is not None]

    def _lost_copies(self, topics: Collection[str]) -> None:
        """Report remote topics that do not have what the ledger has as copied: a start does not change the ledger's positions."""
        entries = [one for one in self._copied(topics) if one.remote_topic == self._selection.remote(one.topic)]
        found = target_losses(self._admins[Side.TARGET], entries) if entries else {}
        alias = self._pair.target
        lost = [(tp, loss) for tp, loss in found.items() if isinstance(loss, TargetLoss)]
        unread = list(failures_in(found).values())
        if lost:
            where = f"{counted(len(lost), 'partition')}, first {lost[0][0]}: {lost[0][1]}"
            self._errors.append(f"Cluster {alias} does not have all records that were copied to it, in {where}.")
        if unread:
            why, partitions = str(unread[0]).rstrip("."), counted(len(unread), "partition")
            self._notes.append(UNCOMPARED(is_known=False, target=alias, partitions=partitions, why=why))

    def _other_names(self, topics: Collection[str], target: TopicsSeen) -> None:
        """Report remote topics to which the replication policy or the transformations now give other names than when they
        were copied.
        """
        names = {(entry.remote_topic, self._selection.remote(entry.topic)) for entry in self._copied(topics)}
        renamed = sorted((before, now) for before, now in names if before != now)
        if not renamed:
            return
        existing = sorted({now for _, now in renamed if now in target.partitions})
        self._notes.append(
            f"Remote topics get other names: {_first_of([f'{before} -> {now}' for before, now in renamed])}. Copying continues at "
            "the current positions, in the topics with the new names. Records that have been copied so far remain in the topics "
            "with the old names."
        )
        if existing:
            self._notes.append(f"Topics with the new names exist already, records are appended: {_first_of(existing)}.")

    def _remote_topics(self, topics: Collection[str], source: TopicsSeen, target: TopicsSeen) -> None:
        """What the source connector creates and changes for these topics, in its order."""
        syncs = TopicSyncs(
            self._settings,
            self._clients,
            self._selection,
            (
                plugins.config_property_filter(self._props),
                plugins.group_filter(self._props) if self._settings.bool(GROUP_ACLS_KEY) else None,
            ),
            self._admins,
            self._ledgers,
            self._collected,
            lambda _: False,
        )
        creatable = {
            topic: source.partitions[topic] for topic in topics if self._selection.remote(topic) not in target.unknown
        }
        after = {**target.partitions, **syncs.remote_topics.request(creatable, target.partitions)}
        ready = syncs.existing(source.partitions, topics, after)
        self._preserved_offsets(syncs, ready)
        if is_job_on(self._props, "sync.topic.configs"):
            syncs.sync_configs(sorted(topics), topics, target.partitions)
        if is_job_on(self._props, "sync.topic.acls"):
            self._acls(syncs.topic_acls, topics, source)

    def _merges(self, topics: Collection[str], source: TopicsSeen) -> None:
        """Report what the remote topics of several topics get of each of them."""
        alias, here = self._pair.target, self._pair.source
        for remote, several in sorted(self._selection.merges(topics).items()):
            acls = "the ACLs of all of them" if self._settings.bool("sync.topic.acls.enabled") else "no ACLs"
            count = max(source.partitions[topic] for topic in several)
            self._notes.append(
                f"Topics {', '.join(several)} of cluster {here} are copied to the same topic {remote} on {alias}: it gets {count} "
                f"partitions, as the one with the most has, the configs of {several[0]}, and {acls}. Groups continue there at the "
                "smallest of their positions, so they read some records again. mm2 verify does not compare such topics."
            )

    def _shared_topics(self, topics: Collection[str]) -> None:
        """Report remote topics that other flows copy to, too."""
        admin = self._admins[Side.TARGET]
        by_flows: dict[str, list[str]] = {}
        try:
            shared = shared_topics(self._clients, admin, self._selection, topics, self._others)
        except KafkaFailure as failure:
            self._errors.append(
                f"Whether other flows copy to the same topics is not known, so no group offsets are synced: {failure}"
            )
            return
        for remote, flows in shared.items():
            by_flows.setdefault(", ".join(sorted(flows)), []).append(remote)
        for names, remotes in sorted(by_flows.items()):
            self._notes.append(
                f"Other flows ({names}) copy to the same topics on {self._pair.target}: {_first_of(sorted(remotes))}. Groups continue there at the "
                "smallest of their positions, so they read some records again, and those without a checkpoint in one of these flows "
                "before its first record."
            )

    def _topics_of_producers(self, topics: Collection[str]) -> None:
        """Report which topics producers would not find on the target after a failover, because remote topics have other names."""
        if not self._selection.names_show_origin:
            return
        policy = self._selection.policy
        names = sorted(topic for topic in topics if not policy.is_heartbeats_topic(topic))
        # Not by a list: it has only topics that the flow may describe, and the flow needs no right on these.
        described = {
            name: answer
            for some in chunks(names, TOPICS_PER_REQUEST)
            for name, answer in self._admins[Side.TARGET].describe_topics(some).items()
        }
        missing = [name for name in names if vanished(described[name])]
        if missing:
            alias = self._pair.target
            self._notes.append(
                f"After a failover: producers need these topics on {alias}, which do not exist there: {_first_of(missing)}. "
                "Create them before, unless the brokers create topics automatically."
            )

    def _way_back(self, topics: Collection[str]) -> None:
        """Report what would not be copied back after a failover."""
        policy, remote = self._selection.policy, self._selection.remote
        found = way_back(
            self._pair,
            self._reverse,
            {topic: remote(topic) for topic in topics if not policy.is_heartbeats_topic(topic)},
            source=self._admins.get(Side.SOURCE),
            target=self._admins.get(Side.TARGET),
        )
        self._notes += [f"After a failover: {one}." for one in found.sentences(copied=False)]

    def _preserved_offsets(self, syncs: TopicSyncs, partitions: Sequence[TopicPartition]) -> None:
        """Remote partitions that only the flow may write to, and what is filled before the first record."""
        alias, remote = self._pair.target, self._selection.remote
        try:
            syncs.deny_writes(partitions)
        except ConnectError as refusal:
            self._errors.append(f"{refusal}.")
        preserved = syncs.preserved.among(tp.topic for tp in partitions)
        if not preserved:
            return
        self._notes.append(
            f"Records have the offsets of {self._pair.source} on {alias}: {_first_of(preserved)}. Where offsets have no record (compacted or "
            f"transactional topics), {alias} has transaction markers with the time of copying. A search by time may find them before "
            "older records, and retention.ms keeps their segments from then on. Search by time on "
            f"{self._pair.source}: the offsets are the same."
        )
        for gap in syncs.leading_gaps.planned([tp for tp in partitions if tp.topic in preserved], remote):
            if gap.error:
                self._errors.append(
                    f"{gap.target} on cluster {alias} cannot have the offsets of its source: {gap.error}"
                )
            else:
                self._rehearsal.add(Step(alias, "fill offsets", str(gap.target), gap.details))
        if own := syncs.write_denials.own:
            self._notes.append(
                f"Only {', '.join(sorted(own))} and super users may write to the remote topics on {alias} until mm2 failover or promote: "
                f"{_first_of([remote(topic) for topic in preserved])}."
            )

    def _acls(self, acls: TopicAcls, topics: Collection[str], source: TopicsSeen) -> None:
        try:
            acls.sync(sorted(topics), source.partitions.keys() - topics)
        except KafkaFailure as failure:
            self._errors.append(f"ACLs cannot be synced (sync.topic.acls.enabled=false disables this): {failure}")
        if acls.lacks_authorizer:
            self._notes.append("A cluster has no authorizer, so there are no ACLs to sync.")
        self._notes += [
            f"{sentence(acl)} is not copied to cluster {self._pair.target}, where only MirrorMaker may write."
            for acl in acls.eased
        ]

    # -- connectors

    def _connectors(self, topics: Collection[str]) -> None:
        """The configurations that a new leader would write, see `mm2.mirror.process.maker.Configurer`, and what they stop."""
        admin = self._admins.get(Side.TARGET)
        if admin is None:
            return
        topic, alias = self._worker.str("config.storage.topic"), self._pair.target
        stored: Mapping[str, Mapping[str, str | None]] = {}
        found = admin.describe_topics([topic])[topic]
        try:
            if isinstance(found, TopicInfo):
                state = stored_configs(admin.cluster, topic, _READ_S)
                stored = state.connector_configs
                self._stopped(state.all_task_configs(_name(SOURCE_CONNECTOR)), topics)
            elif not vanished(found):
                raise found
        except KafkaFailure as failure:
            self._errors.append(f"The connector configurations that are stored cannot be read: {failure}")
            return
        for name, wanted in self._plan.connectors.items():
            before = stored.get(name)
            if before is None:
                self._rehearsal.add(Step(alias, "write connector config", name, {"": "new"}))
            elif before != wanted:
                old = {key: value for key, value in before.items() if value is not None}
                changed = (line.partition(": ") for line in difference(old, wanted, ()))
                self._rehearsal.add(
                    Step(alias, "write connector config", name, {key: value for key, _, value in changed})
                )

    def _stopped(self, tasks: Iterable[Mapping[str, str | None]], topics: Collection[str]) -> None:
        """Topics that the stored tasks copy and that the file does not select any more. Promoted ones are reported already."""
        copied: set[str] = set()
        for task in tasks:
            text = task.get(ASSIGNED_PARTITIONS_KEY)
            try:
                copied |= {tp.topic for tp in decode_partitions(text)} if text else set()
            except ValueError as error:
                self._notes.append(f"The topics that are copied now are not known: {error}")
                return
        for topic in sorted(copied - set(topics)):
            if not self._plan.replicates:
                reason = f"{self._pair}.enabled=false"
            elif not self._selection.is_selected(topic):
                reason = "topics and topics.exclude do not select it"
            elif self._selection.has_reserved_name(topic):
                reason = f"its remote topic would be the internal topic {self._selection.remote(topic)}"
            else:
                continue
            self._rehearsal.add(Step(self._pair.target, "stop copying", topic, {"": reason}))

    # -- permissions

    def _literal_topics(self, source: TopicsSeen) -> set[str]:
        """Topics that the file names but that were not found: they do not exist, or we may not describe them."""
        admin = self._admins.get(Side.SOURCE)
        if admin is None or not self._plan.replicates:
            return set()
        named = {name.strip() for name in self._props.get("topics", "").split(",")}
        missing = sorted(
            name for name in named if _LITERAL.fullmatch(name) and name not in {*source.partitions, *source.unknown}
        )
        hidden = set()
        for name, answer in (admin.describe_topics(missing) if missing else {}).items():
            if _code(answer) in NOT_ALLOWED:
                hidden.add(name)
            elif vanished(answer) and not any(re.fullmatch(name, topic) for topic in source.partitions):
                self._notes.append(f"Cluster {self._pair.source} has no topic {name}, which is listed in topics.")
        return hidden

    def _groups(self) -> set[str]:
        admin = self._admins.get(Side.SOURCE)
        if admin is None or not self._plan.replicates or not is_job_on(self._checkpoints, "emit.checkpoints"):
            return set()
        props, clients = self._checkpoints, self._clients
        translator = Translator(self._selection.policy, clients.source_alias, clients.target_alias)
        followed = FollowedGroups(plugins.group_filter(props), plugins.topic_filter(props), translator)
        try:
            selected = followed.selected(admin.list_groups())
            selected.pop("", None)
            # A group whose offsets cannot be read lacks a right, which is reported.
            return {group for group, answer in followed.with_offsets(admin, selected).items() if answer}
        except KafkaFailure as failure:
            self._errors.append(f"The groups of cluster {self._pair.source} cannot be listed: {failure}")
            return set()

    def _rights(self, wanted: Iterable[RequiredAcl]) -> Iterator[AclStatus]:
        by_side: dict[Side, list[RequiredAcl]] = {}
        for need in wanted:
            by_side.setdefault(need.side, []).append(need)
        for side, some in by_side.items():
            admin = self._admins.get(side)
            if admin is None:
                yield from (AclStatus(need, unknown=need.names, note="the cluster does not answer") for need in some)
                continue
            if self._without_authorizer(side, admin):
                yield from (AclStatus(need, note="the cluster has no authorizer") for need in some)
                continue
            known = _KnownAcls(admin, some, admin.creatable)
            for need in some:
                yield known.judged(need)

    def _without_authorizer(self, side: Side, admin: Admin) -> bool:
        try:
            admin.describe_acls(AclFilter(resource_type=ResourceType.CLUSTER))
        except KafkaFailure as failure:
            if _code(failure) == ErrorCode.SECURITY_DISABLED:
                self._notes.append(f"Cluster {self._clients.alias(side)} has no authorizer: everything is allowed.")
                return True
        return False


def _first_of(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more


class _KnownAcls:
    """Our permissions as the brokers of one cluster report them.

    ``creatable`` has, by missing topic, whether a validate-only creation was allowed.
    """

    def __init__(self, admin: Admin, wanted: Iterable[RequiredAcl], creatable: Mapping[str, bool]) -> None:
        self._creatable = creatable
        names: dict[ResourceType, set[str]] = {}
        for need in wanted:
            names.setdefault(need.kind, set()).update(need.names)
        self._rights: dict[tuple[ResourceType, str], Rights | KafkaFailure] = {}
        for some in chunks(sorted(names.get(ResourceType.TOPIC, ())), TOPICS_PER_REQUEST):
            self._take(ResourceType.TOPIC, admin.topic_rights(some))
        if _has_groups(admin):
            self._take(ResourceType.GROUP, admin.group_rights(sorted(names.get(ResourceType.GROUP, ()))))
        try:
            self._take(ResourceType.CLUSTER, {_HOSTED: admin.cluster_rights()})
        except KafkaFailure as failure:
            self._take(ResourceType.CLUSTER, {_HOSTED: failure})

    def _take(self, kind: ResourceType, answers: Mapping[str, Rights | KafkaFailure]) -> None:
        self._rights.update({(kind, name): answer for name, answer in answers.items()})

    def judged(self, need: RequiredAcl) -> AclStatus:
        if need.kind is ResourceType.TRANSACTIONAL_ID:
            return AclStatus(need, unknown=need.names, note="brokers do not report permissions on transactional ids")
        missing, unknown, notes = [], [], []
        for name in need.names:
            allowed, note = self._judge(need, name)
            if allowed is None:
                unknown.append(name)
                notes.append(note)
            elif not allowed:
                missing.append(name)
        note = need.instead if missing else next(iter(notes), "")
        return AclStatus(need, tuple(missing), tuple(unknown), note)

    def _judge(self, need: RequiredAcl, name: str) -> tuple[bool | None, str]:
        """Whether the operation is allowed; None and the reason if this cannot be known."""
        answer = self._rights.get((need.kind, name))
        if answer is None:
            return None, "brokers report permissions on groups only if they have groups"
        cluster = self._rights.get((ResourceType.CLUSTER, _HOSTED))
        if need.operation is AclOperation.CREATE:
            if name in self._creatable:
                return self._creatable[name], ""
            if not vanished(answer):
                return True, ""  # the topic exists
            return True if isinstance(
                cluster, frozenset
            ) and AclOperation.CREATE in cluster else None, "it was not checked"
        if isinstance(answer, frozenset):
            return need.operation in answer, ""
        if vanished(answer):
            return None, "brokers report permissions only for topics that exist"
        if isinstance(answer, BrokerFailure) and answer.code in (*NOT_ALLOWED, ErrorCode.GROUP_AUTHORIZATION_FAILED):
            return (
                (False, "")
                if need.operation is AclOperation.DESCRIBE
                else (None, "without permission to describe it, others are not reported")
            )
        return None, str(answer)


def _has_groups(admin: Admin) -> bool:
    """Whether the cluster has groups.

    Looking up a group's coordinator would create the offsets topic if it does not exist.
    """
    found = admin.describe_topics([_OFFSETS])[_OFFSETS]
    if isinstance(found, TopicInfo) or vanished(found):
        return isinstance(found, TopicInfo)
    try:
        return bool(admin.list_groups())
    except KafkaFailure:
        return False


def _name(java_class: str) -> str:
    return java_class.rpartition(".")[2]


def _code(failure: object) -> int | None:
    return failure.code if isinstance(failure, BrokerFailure) else None
