"""The two clusters of a flow for failover commands: the target must answer, the source may be unreachable."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

from mm2.config.configdef import ConfigException
from mm2.config.keys.mirror_keys import CHECKPOINT_CONNECTOR, SOURCE_CONNECTOR
from mm2.config.keys.worker_keys import storage_topics
from mm2.config.mirrormaker import MirrorMakerConfig, SourceAndTarget
from mm2.config.providers import ConfigTransformer
from mm2.connect.stores.config_state import ClusterConfigState, ConfigFold, TargetState
from mm2.copy.progress.ledger import Ledger, LedgerLog
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, ConnectFailure, KafkaFailure, TlsFailure, value_of
from mm2.kafka.producer.producer import Producer
from mm2.kafka.readers.log import KafkaBasedLog
from mm2.kafka.records.record import Record
from mm2.kafka.structs import TopicInfo, TopicPartition
from mm2.mirror.checkpoint_task import ASSIGNED_GROUPS_KEY, decode_groups
from mm2.mirror.common.clients import ClientKind, MirrorClients, Side
from mm2.mirror.common.discovery import vanished
from mm2.mirror.groups.group_offsets import ASSIGNED_SHARE_GROUPS_KEY, group_state
from mm2.mirror.notes.promotions import PROMOTED_NOTE
from mm2.mirror.notes.source_answers import EVERY_S, SourceAnswers, source_answers
from mm2.mirror.plan.way_back import WayBack, way_back
from mm2.mirror.source.assigned_partitions import ASSIGNED_PARTITIONS_KEY, decode_partitions
from mm2.mirror.source.record_changes import changing_keys
from mm2.mirror.source_connector import topic_selection

SOURCE_NAME: Final = "MirrorSourceConnector"
CHECKPOINT_NAME: Final = "MirrorCheckpointConnector"
PREFLIGHT_S: Final = 5.0
#: For the offsets of a source's partitions. A partition without a leader is asked for until then, each time.
OFFSETS_S: Final = 10.0
READ_S: Final = 60.0
WRITE_S: Final = 30.0
#: A process of an older version notes its last answer every 5 s, and every 25 s if it has 10,000 partitions.
_OLD_NOTES_S: Final = 7.0
_OLD_NOTES_S_PER_PARTITION: Final = 0.002
_POLL_S: Final = 0.3
_WORKING: Final = frozenset({"stable", "preparingrebalance", "completingrebalance"})


class Refused(Exception):
    """The command was rejected and nothing was changed; the message is for the user."""


@dataclass(frozen=True)
class FlowConfig:
    """The configuration of a flow, with references resolved. Contains secrets.

    ``reverse``: the flow in the opposite direction; None if the file does not enable it, or if its settings cannot be used
    (``reverse_error``).
    """

    pair: SourceAndTarget
    source_connector: dict[str, str]
    checkpoint_connector: dict[str, str]
    worker: dict[str, str]
    reverse: FlowConfig | None = None
    reverse_error: str = ""

    @classmethod
    def of(cls, config: MirrorMakerConfig, pair: SourceAndTarget) -> FlowConfig:
        """The flow's configuration from the file. Raises ConfigException."""
        made, opposite = cls._without_reverse(config, pair), SourceAndTarget(pair.target, pair.source)
        if opposite not in config.replicating_pairs():
            return made
        try:
            return replace(made, reverse=cls._without_reverse(config, opposite))
        except ConfigException as error:  # which must not prevent a failover
            return replace(made, reverse_error=str(error))

    @classmethod
    def _without_reverse(cls, config: MirrorMakerConfig, pair: SourceAndTarget) -> FlowConfig:
        transformer = ConfigTransformer.from_props(config.originals)
        for alias in (pair.source, pair.target):
            if not config.client_config(alias).get("bootstrap.servers"):
                raise ConfigException(f'Missing required configuration "{alias}.bootstrap.servers".')
        return cls(
            pair,
            transformer.transform(config.connector_config(pair, SOURCE_CONNECTOR)),
            transformer.transform(config.connector_config(pair, CHECKPOINT_CONNECTOR)),
            config.worker_config(pair),
        )

    @property
    def has_reverse(self) -> bool:
        """Whether the file enables the flow in the opposite direction."""
        return self.reverse is not None or bool(self.reverse_error)


class Sides:
    """The clusters of one flow, opened by `opened`.

    ``source`` is None if it does not answer, for the reason in ``source_error``. ``is_rejected``: it may be running, since the reason
    are the security settings of the client. ``ledger`` is that of the flow,
    ``reverse_ledger`` that of the opposite flow, None if there is none, or if it cannot be read (``reverse_error``). Both are followed; `refresh` waits for what has
    been written to them.
    """

    target: Admin
    _ledger_log: LedgerLog

    def __init__(self, config: FlowConfig) -> None:
        self.config = config
        self.pair = config.pair
        self.clients = MirrorClients(config.source_connector)
        self.selection = topic_selection(config.source_connector, storage_topics(config.worker))
        self.policy = self.selection.policy
        self.source: Admin | None = None
        self.source_error = ""
        self.is_rejected = False
        self.reverse_error = ""
        #: Why `workers` is not known.
        self.workers_error = ""
        self._is_reached: bool | None = None  # None: not known yet
        self._reverse_log: LedgerLog | None = None
        self._promotion_records = 0  # in the ledger, as far as this command has read or written them

    @classmethod
    @contextmanager
    def opened(cls, config: FlowConfig) -> Iterator[Sides]:
        """Open both clusters.

        Raises KafkaFailure if the target does not answer, Refused if nothing was ever copied there.
        """
        sides = cls(config)
        with ExitStack() as stack:
            cluster, sides.target = sides.clients.admin(Side.TARGET, "mm2-cli-target-admin")
            stack.callback(cluster.close)
            cluster.preflight(PREFLIGHT_S)
            source_cluster, source = sides.clients.admin(Side.SOURCE, "mm2-cli-source-admin")
            stack.callback(source_cluster.close)
            try:
                source_cluster.preflight(PREFLIGHT_S)
                sides.source = source
            except KafkaFailure as failure:
                sides.source_error = str(failure)
                sides.is_rejected = is_rejection(failure)
            ledger = sides._follow(Side.TARGET)
            if ledger is None:
                raise Refused(
                    f"Cluster {config.pair.target} has no ledger {sides.clients.ledger_topic}: nothing has been copied "
                    "there by this version yet, or the topic was deleted."
                )
            sides._ledger_log = ledger
            sides._promotion_records = ledger.ledger.note_records(PROMOTED_NOTE)
            stack.callback(ledger.stop)
            try:
                sides._reverse_log = sides._follow(Side.SOURCE)
            except KafkaFailure as failure:  # each offset that cannot be translated without it is reported
                sides.reverse_error = str(failure)
            if sides._reverse_log is not None:
                stack.callback(sides._reverse_log.stop)
            yield sides

    def _follow(self, side: Side) -> LedgerLog | None:
        """The ledger on one side, read to its end; None if there is none."""
        admin = self.target if side is Side.TARGET else self.source
        topic = self.clients.ledger_topic if side is Side.TARGET else self.clients.opposite_ledger_topic
        if admin is None:
            return None
        found = admin.describe_topics([topic])[topic]
        if vanished(found):
            return None  # a consumer would wait until it is created
        found = value_of(found)
        if side is Side.SOURCE:
            check_leader(found)
        log = self.clients.ledger_log(side, topic)
        log.start(READ_S)
        return log

    @property
    def ledger(self) -> Ledger:
        """The flow's ledger, as far as it has been read."""
        return self._ledger_log.ledger

    @property
    def reverse_ledger(self) -> Ledger | None:
        """The opposite flow's ledger, as far as it has been read."""
        return None if self._reverse_log is None else self._reverse_log.ledger

    def refresh(self) -> None:
        """Read both ledgers to their current ends. Raises KafkaFailure, except if the source has become unreachable."""
        self._ledger_log.read_to_end(READ_S)
        if self._reverse_log is not None:
            with suppress(KafkaFailure):
                self._reverse_log.read_to_end(PREFLIGHT_S)

    @property
    def is_undisturbed(self) -> bool:
        """Whether no other command has written or withdrawn promotions of the flow since this one began, as far as has been read.

        This one may have been frozen, for hours. Kafka has no write that depends on what was read: the promotions are read again right
        before each write, and after it.
        """
        return self.ledger.note_records(PROMOTED_NOTE) == self._promotion_records

    def write_ledger(self, records: Sequence[Record], *, promotions: int = 0) -> None:
        """Append to the flow's ledger and read it back; so many of the records are promotions. Raises KafkaFailure."""
        self._promotion_records += promotions
        with self.client(Side.TARGET, ClientKind.PRODUCER) as cluster:
            Producer(cluster).send(self.clients.ledger_topic, list(records), 0, timeout_s=WRITE_S)
        self.refresh()

    @contextmanager
    def client(self, side: Side, kind: ClientKind) -> Iterator[Cluster]:
        """Connections with the settings of a kind of client, closed at the end."""
        cluster = self.clients.cluster(side, kind, f"mm2-cli-{side.value}-{kind.value}")
        try:
            yield cluster
        finally:
            cluster.close()

    @property
    def workers(self) -> int | None:
        """The number of processes in the flow's worker group on the target; None if it is not known: the group has no coordinator
        at the moment, or a right is missing.
        """
        group = self.config.worker["group.id"]
        found = self.target.describe_groups([group])[group]
        if isinstance(found, KafkaFailure):
            self.workers_error = str(found)
            return 0 if group_state(found) == "dead" else None
        return len(found.members or ()) if group_state(found) in _WORKING else 0

    def is_reached_by_workers(self) -> bool:
        """Whether a process of the flow reaches a source that does not answer here. Waits for its next note. Raises KafkaFailure.

        No clocks are compared: a new note shows it.
        """
        if self._is_reached is None:
            known = source_answers(self.ledger)
            known_ms = known.answered_ms
            until_s = time.monotonic() + (self._next_note_s(known) if known_ms is not None and self.workers != 0 else 0)
            self._is_reached = False
            while not self._is_reached and time.monotonic() < until_s:
                time.sleep(_POLL_S)
                self._ledger_log.read_to_end(READ_S)
                self._is_reached = source_answers(self.ledger).answered_ms != known_ms
        return self._is_reached

    def _next_note_s(self, known: SourceAnswers) -> float:
        """How long to wait for the note that follows a note. One attempt of the process may fail."""
        if known.within_ms is None:
            return _OLD_NOTES_S + _OLD_NOTES_S_PER_PARTITION * len(self.ledger.partitions())
        return known.within_ms / 1000 + EVERY_S

    def assigned(self) -> set[TopicPartition]:
        """The partitions assigned to tasks of the source connector. Raises KafkaFailure.

        They are read from the flow's config topic; there are none while the connector is paused or stopped.
        """
        state = self._config_state()
        if state.target_state(SOURCE_NAME) not in {None, TargetState.STARTED}:
            return set()
        assigned = [task.get(ASSIGNED_PARTITIONS_KEY) for task in state.all_task_configs(SOURCE_NAME)]
        return {tp for text in assigned if text for tp in decode_partitions(text)}

    def assigned_groups(self) -> tuple[set[str], set[str]]:
        """The groups assigned to tasks of the checkpoint connector: those that commit offsets, and share groups. Raises KafkaFailure."""
        tasks = self._config_state().all_task_configs(CHECKPOINT_NAME)
        committing, shared = (
            {group for task in tasks if (text := task.get(key)) for group in decode_groups(text)}
            for key in (ASSIGNED_GROUPS_KEY, ASSIGNED_SHARE_GROUPS_KEY)
        )
        return committing, shared

    def way_back(self, topics: Mapping[str, str]) -> WayBack:
        """Whether the opposite flow copies these topics, with their remote topics, as far as the clusters answer."""
        reverse = self.config.reverse
        is_held = False
        if reverse is not None and self.source is not None and self.reverse_ledger is not None:
            with suppress(KafkaFailure):
                state = self._config_state(Side.SOURCE, reverse).target_state(SOURCE_NAME)
                is_held = state not in {None, TargetState.STARTED}
        return way_back(
            self.pair,
            None if reverse is None else reverse.source_connector,
            topics,
            source=self.source,
            target=self.target,
            # Whether it has run is only known if the source answers, which has its ledger.
            has_run=self.source is None or self.reverse_ledger is not None or bool(self.reverse_error),
            is_held=is_held,
            error=self.config.reverse_error,
        )

    def _config_state(self, side: Side = Side.TARGET, flow: FlowConfig | None = None) -> ClusterConfigState:
        """The configurations of a flow's connectors and tasks, on its target; empty without a config topic."""
        fold, topic = ConfigFold(), (flow or self.config).worker["config.storage.topic"]
        admin = self.source if side is Side.SOURCE else self.target
        if admin is None or vanished(admin.describe_topics([topic])[topic]):
            return fold.snapshot()  # a reader would wait for it
        with self.client(side, ClientKind.CONSUMER) as cluster:
            log = KafkaBasedLog(
                cluster,
                topic,
                on_record=lambda record: fold.apply(record.offset, record.key, record.value),
                read_committed=True,
            )
            try:
                log.start(READ_S, to_stable=True)
            finally:
                log.stop()
        return fold.snapshot()

    @property
    def changed_by(self) -> list[str]:
        """The keys of transformations and converters of the flow, which change or drop records."""
        return changing_keys(self.config.source_connector, self.config.worker)

    @property
    def reads_committed(self) -> bool:
        """Whether the flow reads the source with `isolation.level=read_committed`."""
        consumer = self.clients.client_props(Side.SOURCE, ClientKind.CONSUMER, "mm2-cli-source-consumer")
        return consumer.get("isolation.level", "").strip() == "read_committed"

    def is_same_name(self, topic: str) -> bool:
        """Whether the remote topic has the name of its source, which does not show where it came from."""
        return self.selection.remote(topic) == topic

    def known_partitions(self) -> list[TopicPartition]:
        """Source partitions in the ledger, without heartbeats."""
        return [tp for tp in self.ledger.partitions() if not self.policy.is_heartbeats_topic(tp.topic)]


def is_rejection(failure: KafkaFailure) -> bool:
    """Whether a failure to connect does not show that a cluster is down: it answered, or the client could not log in."""
    return isinstance(failure, TlsFailure) or not isinstance(failure, ConnectFailure)


def check_leader(topic: TopicInfo) -> None:
    """Raise BrokerFailure if the only partition of an internal topic has no leader. A reader would wait for one."""
    partition = topic.partitions.get(0)
    if partition is None or partition.leader < 0:
        raise BrokerFailure.of(ErrorCode.LEADER_NOT_AVAILABLE, subject=f"Partition {topic.name}-0")


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
