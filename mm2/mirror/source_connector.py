"""MirrorSourceConnector: finds topics of the source, creates remote topics, and assigns partitions to tasks.

Deviations from Java: a partition is assigned to a task only after its remote partition was seen on the target; failed
requests and creations are retried after seconds; a topic that could not be described keeps its known partitions;
configs and ACLs are written only where they differ.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

import structlog

from mm2.config.configdef import ConfigException
from mm2.config.keys.mirror_keys import MIRROR_SOURCE_CONFIG, PRESERVE_KEY, topic_throttles
from mm2.connect.api import ConnectError, RetriableError, Task
from mm2.copy.states import PartitionState
from mm2.kafka.errors import BrokerFailure, KafkaFailure, UnsupportedVersion
from mm2.kafka.producer.producer import Producer
from mm2.kafka.structs import TopicPartition
from mm2.mirror.common import plugins
from mm2.mirror.common.clients import SOURCE_ALIAS_KEY, TASK_INDEX_KEY, ClientKind, MirrorClients, Side
from mm2.mirror.common.connector import STOP_TIMEOUT_S, MirrorConnector
from mm2.mirror.common.discovery import TopicLists, see_topics, vanished
from mm2.mirror.common.internal_topics import create_compacted_topic, create_kept_topic
from mm2.mirror.common.offset_checks import Offsets, check_source_offsets
from mm2.mirror.common.scheduler import Scheduler
from mm2.mirror.common.syncs_topic import EMIT_SYNCS_KEY, kept_syncs, syncs_side
from mm2.mirror.filters import TOPICS_KEY, close_quietly
from mm2.mirror.notes.ledgers import Ledgers, copied_topics
from mm2.mirror.notes.preparation import Preparation, PreparationNote, since
from mm2.mirror.notes.source_answers import EVERY_S, AnswerNotes
from mm2.mirror.preserved.leading_gaps import LeadingGaps
from mm2.mirror.preserved.preserved_offsets import PreservedOffsets, check_preserved_offsets, denies_writes
from mm2.mirror.preserved.shared_topics import check_merges, configured_names
from mm2.mirror.source.assigned_partitions import ASSIGNED_PARTITIONS_KEY, decode_partitions, encode_partitions
from mm2.mirror.source.start_from import START_FROM_KEY, parse_start_from
from mm2.mirror.source.task_assignment import Shares, TaskAssignment
from mm2.mirror.topic_syncs import TopicSyncs
from mm2.mirror.topics.own_topics import kept_dead_letters, kept_ledger, reserved_topics
from mm2.mirror.topics.provenance import RENEW_S, Provenance
from mm2.mirror.topics.routing import NO_ROUTE, topic_route
from mm2.mirror.topics.selection import TopicSelection
from mm2.mirror.topics.topic_acls import GROUP_ACLS_KEY
from mm2.mirror.topics.topic_limits import LimitNote

log = structlog.get_logger(__name__)

EXACTLY_ONCE_KEY: Final = "exactly.once.support"
HEARTBEATS_REPLICATION_KEY: Final = "heartbeats.replication.enabled"
TOLERANCE_KEY: Final = "errors.tolerance"

LEAST_BETWEEN_DEALS_S: Final = 60.0
"""Shortest interval between two checks of the tasks' load.

It is otherwise checked at each refresh of topics. A new assignment restarts all tasks.
"""
_BETWEEN_DEALS_S: Final = 600.0
_DENIALS_S: Final = 30.0


class MirrorSourceConnector(MirrorConnector):
    """The connector; see the module docstring."""

    DEFINITION = MIRROR_SOURCE_CONFIG

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._source: dict[str, int] = {}
        self._lists = TopicLists()
        self._target: dict[str, int] = {}
        self._allowed: set[str] = set()  # topics of the source without a replication loop
        self._handed_over: set[str] = set()  # of these, the promoted ones
        # Partitions whose remote partition exists; None until both clusters have been read once.
        self._ready: tuple[TopicPartition, ...] | None = None
        self._assignment = TaskAssignment(self._stored_shares, self._target_of)
        self._ledgers: Ledgers | None = None
        self._answering: Scheduler | None = None
        self._leading_gaps: LeadingGaps | None = None
        self._is_refused = False
        # Not copied: others may write to them, or the target refuses to create them.
        self._refusals: dict[TopicPartition, Preparation] = {}

    def task_class(self) -> type[Task]:
        # Imported late, so that listing topics does not load Spark and the copy engine.
        from mm2.mirror.source_task import MirrorSourceTask  # noqa: PLC0415

        return MirrorSourceTask

    def _active(self) -> bool:
        return self._settings.bool("enabled")

    def _schedule(self, scheduler: Scheduler) -> None:
        self._selection = topic_selection(self._props, self._worker_topics())
        self._closing(self._selection.topic_filter)
        check_own_keys(self._props)
        refresh_s = self._interval_s("refresh.topics")
        acls_s = self._interval_s("sync.topic.acls")
        self._configs_s = configs_s = self._interval_s("sync.topic.configs")
        self._create_parts(scheduler)
        self._schedule_internal_topics(scheduler)
        refresh = self._reaching(self._refresh, self._source_admin, self._target_admin)
        if refresh_s < 0:
            scheduler.once("Loading topics", refresh)
        scheduler.every(refresh_s, "Refreshing topics", refresh)
        # Only the target must be reachable. A source that is unreachable for longer than a lease must not find, when it
        # recovers, that the opposite flow has taken over its topics.
        hold = self._reaching(self._hold_provenance, self._target_admin)
        scheduler.every(RENEW_S, "Renewing the provenance of topics", hold, delay_s=RENEW_S)
        if denies_writes(self._props):
            deny = self._reaching(self._hold_denials, self._target_admin)
            scheduler.every(_DENIALS_S, "Denying writes", deny, delay_s=_DENIALS_S)
        both = self._source_admin, self._target_admin
        scheduler.every(acls_s, "Syncing topic ACLs", self._reaching(self._sync_acls, *both))
        scheduler.every(configs_s, "Syncing topic configs", self._reaching(self._sync_configs, *both))
        weigh_s = max(refresh_s, LEAST_BETWEEN_DEALS_S) if refresh_s >= 0 else _BETWEEN_DEALS_S
        weigh = self._reaching(self._weigh, self._target_admin)
        scheduler.every(weigh_s, "Comparing the load of the tasks", weigh, delay_s=weigh_s)
        # On a thread of its own: a refresh of many topics takes longer than the interval.
        self._answering = answering = Scheduler(
            f"answers-{self._clients.flow}", context={"flow": self._clients.flow, "connector": self._props.get("name")}
        )
        answering.every(EVERY_S, "Recording the end offsets of the source", self._record_answers)
        answering.every(EVERY_S, "Recording what is not copied yet", self._record_preparations)

    def _create_parts(self, scheduler: Scheduler) -> None:
        """Create the admin clients, and what reads and changes the topics of both clusters with them."""
        self._source_admin = self._admin(Side.SOURCE, "replication-source-admin")
        self._target_admin = self._admin(Side.TARGET, "replication-target-admin")
        self._ledgers = ledgers = Ledgers(self._clients, self._target_admin)
        group_acls = self._settings.bool(GROUP_ACLS_KEY)
        self._syncs = TopicSyncs(
            self._settings,
            self._clients,
            self._selection,
            (
                self._closing(plugins.config_property_filter(self._props)),
                self._closing(plugins.group_filter(self._props)) if group_acls else None,
            ),
            {Side.SOURCE: self._source_admin, Side.TARGET: self._target_admin},
            ledgers,
            self._recurring,
            scheduler.pause,
        )
        self._leading_gaps = self._syncs.leading_gaps
        ledger = self._clients.cluster(Side.TARGET, ClientKind.PRODUCER, "ledger-producer")
        self._clusters.append(ledger)
        producer, topic = Producer(ledger), self._clients.ledger_topic
        self._answers = AnswerNotes(self._admin(Side.SOURCE, "replication-answers-admin"), producer, topic)
        self._preparation_note = PreparationNote(producer, topic, lambda: ledgers.losses)
        self._limit_note = LimitNote(self._ledgers, self._recurring)
        self._provenance = Provenance(
            self._source_admin,
            self._target_admin,
            self._selection,
            self._ledgers,
            self._recurring,
            scheduler.pause,
        )

    def _schedule_internal_topics(self, scheduler: Scheduler) -> None:
        """Schedule the creation of the flow's internal topics."""
        if self._settings.bool(EMIT_SYNCS_KEY):
            side = syncs_side(self._props)
            self._syncs_admin = self._admin(side, f"offset-syncs-{side.value}-admin")
            scheduler.once(
                "Creating the offset-syncs topic", self._reaching(self._create_syncs_topic, self._syncs_admin)
            )
        scheduler.once("Creating the ledger topic", self._reaching(self._create_ledger, self._target_admin))
        if self._settings.str(TOLERANCE_KEY) == "all":
            create_dead_letters = self._reaching(self._create_dead_letters, self._target_admin)
            scheduler.once("Creating the dead-letter topic", create_dead_letters)

    def start(self, props: dict[str, str]) -> None:
        super().start(props)
        if self._answering is not None:
            self._answering.start()

    def stop(self) -> None:
        gaps = self._leading_gaps
        if gaps is not None:
            gaps.stop(0)
        if self._ledgers is not None:
            self._ledgers.stop()
        answering, self._answering = self._answering, None
        if answering is not None:
            answering.stop(0)
        super().stop()
        if gaps is not None and not gaps.stop(STOP_TIMEOUT_S):
            log.warning("A request that fills offsets did not end in time and is abandoned.", flow=self._clients.flow)
        if answering is not None and not answering.stop(STOP_TIMEOUT_S):
            log.warning("A job did not end in time and is abandoned.", flow=self._clients.flow)

    def _record_answers(self) -> bool:
        """Paused, blocked and promoted partitions are included: no copier knows their end offsets."""
        with self._lock:
            ready = self._ready
        return ready is None or self._answers.update(ready)

    def _record_preparations(self) -> bool:
        gaps = self._leading_gaps
        filled = [] if gaps is None else gaps.preparations()
        found = {TopicPartition(one.topic, one.partition): one for one in filled}
        with self._lock:
            found.update(self._refusals)
        return self._preparation_note.update(found.values())

    def _create_syncs_topic(self) -> bool:
        topic = kept_syncs(self._props)
        return create_compacted_topic(self._syncs_admin, topic, self._clients.alias(topic.side), self._recurring)

    def _create_ledger(self) -> bool:
        topic = kept_ledger(self._clients)
        return create_compacted_topic(self._target_admin, topic, self._clients.target_alias, self._recurring)

    def _create_dead_letters(self) -> bool:
        topic = kept_dead_letters(self._props)
        return create_kept_topic(self._target_admin, topic, self._clients.target_alias, self._recurring)

    def _refresh(self) -> bool:
        """Read both clusters, update the target, and assign partitions that are ready. False = retry soon."""
        seen_source = see_topics(self._source_admin, self._selection.is_selected, self._source)
        doubtful = self._lists.doubtful(self._source, seen_source.partitions)
        source = {**seen_source.partitions, **{topic: self._source[topic] for topic in doubtful}}
        remotes = set(map(self._selection.remote, source))
        seen_target = see_topics(
            self._target_admin, lambda topic: topic in remotes or self._selection.is_remote(topic), self._target
        )
        for side, seen in ((Side.SOURCE, seen_source), (Side.TARGET, seen_target)):
            cluster = self._clients.alias(side)
            subjects = {f"{side.value} topic {name}": failure for name, failure in seen.unknown.items()}
            for subject, failure in subjects.items():
                self._recurring.report(subject, f"A topic of cluster {cluster} cannot be described: {failure}")
            self._recurring.keep_only(f"{side.value} topic ", subjects)
        self._log_changes(source)
        first, new = self._ready is None, sorted(source.keys() - self._source.keys())
        unroutable = self._unroutable(source.keys())
        allowed, decided = self._provenance.allowed(source.keys() - unroutable.keys())
        # A topic that cannot be described on the target may exist: leave it unchanged until this is known.
        creatable = {
            topic: count
            for topic, count in source.items()
            if topic in allowed
            and topic not in self._provenance.handed_over
            and self._selection.remote(topic) not in seen_target.unknown
        }
        target = self._syncs.remote_topics.ensure(creatable, seen_target.partitions)
        self._report_recreated(target.keys() - seen_target.partitions.keys())
        is_noted = self._limit_note.update(self._syncs.remote_topics.over_limit)
        ready = self._syncs.existing(source, allowed, target)
        problems, unready = self._deny_writes(ready), self._syncs.unready(ready)  # filled offsets are records, too
        opened = {tp: problems[tp.topic] for tp in ready if tp.topic in problems}
        refused = opened | self._not_created(creatable, target)
        refused |= {
            TopicPartition(topic, partition): reason
            for topic, reason in unroutable.items()
            for partition in range(source[topic])
        }
        ready = tuple(tp for tp in ready if tp not in unready and tp not in opened)
        with self._lock:
            changed = ready != self._ready
            self._source, self._target, self._allowed, self._ready = source, target, allowed, ready
            self._refusals = {
                tp: since(self._refusals.get(tp), self._refused(tp, reason)) for tp, reason in refused.items()
            }
            self._handed_over = self._provenance.handed_over
        if changed:
            log.info(
                "Partitions to replicate have changed.", partitions=len(ready), topics=len({tp.topic for tp in ready})
            )
            self.context.request_task_reconfiguration()
        if new and not first and self._configs_s >= 0:
            # Remote topics that existed before their sources get the configs now, not an interval later.
            self._sync_configs_of([topic for topic in new if topic in allowed - self._provenance.handed_over])
        ours = allowed - self._provenance.handed_over
        # Topics over a limit are checked at the next refresh, not soon: nothing but the configuration changes that.
        wanted = {topic for topic in ours if self._selection.remote(topic) not in self._syncs.remote_topics.over_limit}
        complete = sum(tp.topic in wanted for tp in ready) == sum(source[topic] for topic in wanted)
        return decided and complete and is_noted and not (doubtful or seen_source.unknown or seen_target.unknown)

    def _target_of(self, partition: TopicPartition) -> TopicPartition:
        return TopicPartition(self._selection.remote(partition.topic), partition.partition)

    def _unroutable(self, topics: AbstractSet[str]) -> Mapping[str, str]:
        """The topics whose remote topic is not possible, with a message each, which is reported."""
        ledgers = self._ledgers
        refused = self._selection.unroutable(
            topics, self._syncs.preserved.among(topics), lambda: {} if ledgers is None else copied_topics(ledgers)
        )
        for topic, message in refused.items():
            self._recurring.report(f"route of topic {topic}", message)
        self._recurring.keep_only("route of topic ", {f"route of topic {topic}" for topic in refused})
        return refused

    def _report_recreated(self, created: Collection[str]) -> None:
        """Report remote topics that the ledger has and that were created just now: they were deleted. The copier stops them."""
        if not created or self._ledgers is None:
            return
        try:
            copied = copied_topics(self._ledgers)
        except KafkaFailure as failure:
            log.info("The ledger is not readable.", error=str(failure))  # what is stopped has its state in any case
            return
        if recreated := sorted(set(copied.values()).intersection(created)):
            log.error(
                "Remote topics were deleted and are created again, empty. Reset the positions of their partitions to copy them again.",
                topics=recreated[:20],
                count=len(recreated),
            )

    def _not_created(self, source: Mapping[str, int], target: Mapping[str, int]) -> dict[TopicPartition, str]:
        """The partitions that the target refuses to create, and why. Without a note, nothing but the log of this process shows them."""
        reasons = {topic: self._syncs.remote_topics.refused.get(self._selection.remote(topic)) for topic in source}
        return {
            TopicPartition(topic, partition): reason
            for topic, reason in reasons.items()
            if reason is not None
            for partition in range(target.get(self._selection.remote(topic), 0), source[topic])
        }

    def _refused(self, tp: TopicPartition, reason: str) -> Preparation:
        remote, since_ms = self._selection.remote(tp.topic), time.time_ns() // 1_000_000
        return Preparation(tp.topic, tp.partition, remote, PartitionState.REFUSED, reason, since_ms)

    def _deny_writes(self, partitions: Iterable[TopicPartition]) -> Mapping[str, str]:
        """The topics with preserved offsets to which others may write although this is to be denied, and why they may."""
        try:
            return self._syncs.deny_writes(partitions)
        except ConnectError as refusal:
            if not self._is_refused:  # once; `Restarts` starts the connector again
                self._is_refused = True
                self.context.raise_error(refusal)
            raise

    def _hold_denials(self) -> bool:
        """Deny writes to those who got the right since, and to topics that are copied again after a failback."""
        with self._lock:
            copied = None if self._ready is None else {tp.topic for tp in self._ready}
        return (
            copied is None or not self._deny_writes([TopicPartition(topic, 0) for topic in copied]) or self._refresh()
        )

    def _hold_provenance(self) -> bool:
        return self._provenance.renew() or self._refresh()

    def _log_changes(self, source: Mapping[str, int]) -> None:
        new = [topic for topic in source if source[topic] > self._source.get(topic, 0)]
        gone = [topic for topic in self._source if topic not in source]
        if new:
            log.info("Found new topics or partitions on the source.", count=len(new), topics=sorted(new)[:20])
        if gone:
            log.warning(
                "Topics have disappeared from the source; their remote topics stay.", count=len(gone), topics=gone[:20]
            )

    def _sync_configs(self) -> bool:
        with self._lock:
            if self._ready is None:
                return False
            topics = sorted(self._allowed - self._handed_over)
        return self._sync_configs_of(topics)

    def _sync_configs_of(self, topics: Iterable[str]) -> bool:
        try:
            return self._syncs.sync_configs(topics, self._allowed - self._handed_over, self._target)
        except UnsupportedVersion as failure:
            self.context.raise_error(failure)
            return False

    def _sync_acls(self) -> bool:
        with self._lock:
            if self._ready is None:
                return False
            topics = sorted(self._allowed - self._handed_over)
            refused = self._source.keys() - set(topics)
        return self._syncs.topic_acls.sync(topics, refused)

    def _weigh(self) -> None:
        """Compare the load of the tasks; request a new assignment if one task has far too much."""
        if self._ledgers is None or self._assignment.tasks < 2:
            return
        try:
            # Read on demand rather than followed: every partition writes to it every second.
            rates = self._ledgers.own().rates()
        except BrokerFailure as failure:
            if vanished(failure):
                return
            raise
        if moved := self._assignment.weigh(rates):
            log.info("The load of the tasks is uneven; reassigning partitions.", moved=moved)
            self.context.request_task_reconfiguration()

    def _stored_shares(self) -> Shares:
        """The shares that the tasks have from the previous leader, which may be Java."""
        try:
            stored = self.context.stored_task_configs()
            return [decode_partitions(props[ASSIGNED_PARTITIONS_KEY]) for props in stored]
        except (KeyError, ValueError) as error:
            log.warning("The stored task configs cannot be read; reassigning all partitions.", error=repr(error))
            return []

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        """Assign the partitions as in `mm2.mirror.source.task_assignment`. RetriableError while the partitions are not known."""
        if not self._settings.bool("enabled"):
            return []
        with self._lock:
            ready = self._ready
        if ready is None:
            raise RetriableError(f"The topics of the flow {self._clients.flow} have not been loaded yet.")
        # Only Java's keys: if workers of both share a flow, each worker that gets the connector would otherwise rewrite
        # the task configs, which restarts all tasks.
        return [
            {**self._props, ASSIGNED_PARTITIONS_KEY: encode_partitions(share), TASK_INDEX_KEY: str(index)}
            for index, share in enumerate(self._assignment.shares(ready, max_tasks))
        ]

    def validate(self, props: Mapping[str, str]) -> list[tuple[str, str]]:
        errors = super().validate(props)
        if props.get(EXACTLY_ONCE_KEY) == "required" and not self.exactly_once_support(props):
            reason = (
                "MirrorSourceConnector can only provide exactly-once guarantees when its source consumer is configured with "
                "isolation.level set to 'read_committed'; otherwise, records from aborted and uncommitted transactions will be "
                "replicated from the source cluster to the target cluster."
            )
            errors.append((EXACTLY_ONCE_KEY, reason))
        try:
            check_own_keys(props)
        except ConfigException as error:
            errors.append((error.name or START_FROM_KEY, str(error)))
        except ConnectError as error:
            if plugins.POLICY_KEY not in dict(errors):
                errors.append((plugins.POLICY_KEY, str(error)))
        else:
            errors += _refused_merges(props)
        if props.get(EMIT_SYNCS_KEY) == "false" and any(
            key.startswith(("offset-syncs-", "offset-syncs.topic.")) for key in props
        ):
            reason = f"MirrorSourceConnector can't setup offset-syncs feature while {EMIT_SYNCS_KEY} set to false"
            errors.append((EMIT_SYNCS_KEY, reason))
        return errors or _reserved_names(props, self._worker_topics())

    def exactly_once_support(self, props: Mapping[str, str]) -> bool:
        consumer = MirrorClients({"source.cluster.alias": "", **props}).client_props(
            Side.SOURCE, ClientKind.CONSUMER, ""
        )
        return consumer.get("isolation.level") == "read_committed"

    def alter_offsets(self, props: Mapping[str, str], offsets: Offsets) -> bool:
        check_source_offsets(offsets)
        return True


def _reserved_names(props: Mapping[str, str], worker: frozenset[str]) -> list[tuple[str, str]]:
    """Errors for the topics in the properties whose remote topics would be internal topics. ``worker`` are those of the worker."""
    try:
        selection = topic_selection(props, worker)
    except (ConfigException, ConnectError):  # reported when the connector is started
        return []
    try:
        names = sorted(configured_names(props))
        named = [name for name in names if selection.is_selected(name) and selection.has_reserved_name(name)]
        return [(TOPICS_KEY, message) for message in selection.unroutable(set(named), (), dict).values()]
    finally:
        close_quietly(selection.topic_filter)


def check_own_keys(props: Mapping[str, str]) -> None:
    """Checks that the ConfigDef cannot express. Raises ConfigException."""
    topic_throttles(props)
    parse_start_from(props.get(START_FROM_KEY, ""), source_alias=props.get(SOURCE_ALIAS_KEY))
    check_preserved_offsets(props)


def _refused_merges(props: Mapping[str, str]) -> list[tuple[str, str]]:
    """Topics with preserved offsets that have the same remote topic, as far as the configuration names them."""
    preserved = PreservedOffsets.of(props)
    if preserved.pattern is None:
        return []
    try:
        selection = topic_selection({SOURCE_ALIAS_KEY: "", **props})
    except (ConfigException, ConnectError):
        return []  # reported by the validation of its own keys
    try:
        check_merges(selection, preserved, configured_names(props))
    except ConfigException as error:
        return [(PRESERVE_KEY, str(error))]
    finally:
        close_quietly(selection.topic_filter)
    return []


def topic_selection(props: Mapping[str, str], worker: frozenset[str] = frozenset()) -> TopicSelection:
    """Naming and filtering rules from a connector's properties. ``worker`` are the topics of its worker, where they are known.

    Raises ConnectError if a class cannot be loaded, ConfigException if it rejects the properties.
    """
    clients = MirrorClients(props)
    is_enabled = props.get("enabled", "true").strip().lower() != "false"
    replicate_heartbeats = props.get(HEARTBEATS_REPLICATION_KEY, "true").strip().lower() == "true"
    policy = plugins.replication_policy(props)
    return TopicSelection(
        policy,
        plugins.topic_filter(props),
        clients.source_alias,
        clients.target_alias,
        replicate_heartbeats,
        topic_route(props) if is_enabled else NO_ROUTE,
        reserved_topics(policy, props, worker),
    )
