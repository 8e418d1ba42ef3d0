"""The periodic requests to a flow's two clusters, each kind on its own thread, and their results.

Each request has a deadline of a few seconds, so an unresponsive cluster is detected within that time. The previous
results are then kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final

from mm2.copy.progress.ledger import Ledger, LedgerLog
from mm2.copy.progress.session import LedgerEntry
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure, UnsupportedVersion, check_answered, value_of
from mm2.kafka.readers.log import KafkaBasedLog, LogRecord
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import EARLIEST, LATEST, OffsetAndMetadata, OffsetInfo, TopicPartition
from mm2.mirror.client.freshness import Freshness, FreshnessWatch
from mm2.mirror.client.mirror_client import MirrorClient
from mm2.mirror.common.clients import ClientKind, MirrorClients, Side
from mm2.mirror.common.discovery import vanished
from mm2.mirror.common.formats import Checkpoint, FormatError
from mm2.mirror.common.plugins import replication_policy
from mm2.mirror.groups.group_offsets import SHARE, GroupOffsets
from mm2.mirror.groups.target_logs import TargetLoss, target_losses
from mm2.observer.polling.timestamps import LOOKS, BatchTimestamp, BatchTimestampReader

#: Timeout of one request. A poll may take two (to the leader, then to a new leader); an error is reported within ten
#: seconds.
ANSWER_S: Final = 3.0
_LEDGER_S: Final = 20.0
#: How far back the first poll reads heartbeats. If they are older, the flow's own data already show the delay.
_HEARTBEATS_S: Final = 3_600.0
_GROUP_TYPES_AGAIN_S: Final = 60.0
#: Copying detects a recreated topic at once; this is for flows that do not copy.
_TOPIC_IDS_AGAIN_S: Final = 60.0


class FlowClients:
    """Settings of the observer's connections to both clusters; ``props`` are the source connector's, resolved."""

    def __init__(self, props: Mapping[str, str]) -> None:
        self.props = props
        self.mirror = MirrorClients(props)
        self.source, self.target = self.mirror.source_alias, self.mirror.target_alias
        self.policy = replication_policy(dict(props))

    def settings(self, side: Side) -> ClientSettings:
        """Client settings with deadlines of a few seconds. Raises ConfigException."""
        found = self.mirror.settings(side, ClientKind.ADMIN, f"observer-{side.value}")
        limit_ms = int(ANSWER_S * 1000)
        return dataclasses.replace(
            found,
            request_timeout_ms=min(found.request_timeout_ms, limit_ms),
            api_timeout_ms=0,
            connection_setup_timeout_ms=min(found.connection_setup_timeout_ms, limit_ms),
            connection_setup_timeout_max_ms=min(found.connection_setup_timeout_max_ms, limit_ms),
        )

    def alias(self, side: Side) -> str:
        """The alias of the cluster on that side."""
        return self.mirror.alias(side)

    def cluster(self, side: Side) -> Cluster:
        """Connections, nothing opened yet; the caller closes them."""
        return Cluster(self.settings(side), name=self.mirror.alias(side))

    def mirror_client(self) -> MirrorClient:
        """A MirrorClient of the target; the caller closes it."""
        props = {**self.props, **self.mirror.client_props(Side.TARGET, ClientKind.ADMIN, "observer-heartbeats")}
        for key in [key for key in props if key.startswith(("admin.", "consumer."))]:
            del props[key]
        limit_ms = int(ANSWER_S * 1000)
        props["request.timeout.ms"] = str(min(limit_ms, int(props.get("request.timeout.ms", limit_ms))))
        return MirrorClient(props)


@dataclass(frozen=True, slots=True)
class SourceLogs:
    """What is known of the source's logs.

    ``ends`` were requested at ``ends_at_s`` (monotonic clock, 0: never yet), or later; ``missing`` are the errors of partitions. ``stamps``
    are those of the oldest records that are missing on the target, ``starts`` log start offsets. ``topic_ids`` are less than two minutes
    old while the source answers.
    """

    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    ends_at_s: float = 0.0
    missing: Mapping[TopicPartition, KafkaFailure] = field(default_factory=dict)
    stamps: Mapping[TopicPartition, BatchTimestamp] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)


class SourcePoll:
    """End offsets of the source's partitions, and timestamps of the oldest records that are missing on the target.

    ``partitions`` are those to request, ``wanted`` the offsets whose timestamps are requested, ``other_logs`` the partitions whose log
    start offsets are requested: the reader replaces all three. ``polls`` is the number of successful polls that have ended.
    """

    def __init__(self, clients: FlowClients) -> None:
        self.partitions: frozenset[TopicPartition] = frozenset()
        self.wanted: Sequence[tuple[TopicPartition, int]] = ()
        self.other_logs: AbstractSet[TopicPartition] = frozenset()
        self.logs = SourceLogs()
        self.polls = 0
        self._ids_at_s: float | None = None
        self._cluster = clients.cluster(Side.SOURCE)
        self._admin = Admin(self._cluster)
        self._stamps = BatchTimestampReader(self._cluster, ANSWER_S)
        self._unread: dict[TopicPartition, int] = {}  # the last poll that has not returned a timestamp

    def __call__(self) -> None:
        """Send the requests. Raises KafkaFailure if the cluster as a whole does not answer."""
        wanted = self.partitions
        if not wanted:
            began_s = time.monotonic()
            self._cluster.preflight(ANSWER_S)
            self._note(ends_at_s=began_s)
            self.polls += 1
            return
        began_s = time.monotonic()
        answers = self._admin.list_offsets(dict.fromkeys(wanted, LATEST))
        ends = {tp: answer.offset for tp, answer in answers.items() if isinstance(answer, OffsetInfo)}
        failures = check_answered(answers)
        # If only some brokers are unreachable, their partitions keep the previous values.
        known = {tp: end for tp, end in self.logs.ends.items() if tp in failures}
        self._note(ends={**known, **ends}, missing=failures)
        self._read_logs(began_s)
        self._note(ends_at_s=began_s)
        # Timestamps that are no longer requested are dropped: a later missing record would seem as old as one copied
        # long ago.
        wanted_offsets = dict(self.wanted)
        stamps = {tp: stamp for tp, stamp in self.logs.stamps.items() if tp in wanted_offsets}
        # Partitions without a timestamp come first, then those whose timestamps are the oldest. Those that could not be read
        # come last, or they would take the places of all others again and again.
        new = [(tp, offset) for tp, offset in wanted_offsets.items() if tp not in stamps]
        moved = [(tp, wanted_offsets[tp]) for tp, stamp in stamps.items() if not stamp.holds(wanted_offsets[tp])]
        order = sorted(new + moved, key=lambda place: self._unread.get(place[0], -1))
        fresh = self._stamps.read(order)
        unread = dict.fromkeys((tp for tp, _ in order[:LOOKS] if tp not in fresh), self.polls)
        self._unread = {
            tp: poll for tp, poll in {**self._unread, **unread}.items() if tp in wanted_offsets and tp not in fresh
        }
        for tp in fresh:
            stamps.pop(tp, None)
        self._note(stamps={**stamps, **fresh})
        self.polls += 1

    def _read_logs(self, now_s: float) -> None:
        """Read which topics these are, and where the logs begin to which positions do not belong. Raises KafkaFailure."""
        if self._ids_at_s is None or now_s - self._ids_at_s > _TOPIC_IDS_AGAIN_S:
            topics = {tp.topic for tp in self.partitions}
            # The first answer is that of `list_offsets`.
            known = self._cluster.metadata(topics, max_age_s=_TOPIC_IDS_AGAIN_S).topics
            self._note(topic_ids={name: info.topic_id for name, info in known.items()})
            self._ids_at_s = now_s
        wanted = self.other_logs & self.partitions
        answers = self._admin.list_offsets(dict.fromkeys(wanted, EARLIEST)) if wanted else {}
        starts = {tp: answer.offset for tp, answer in answers.items() if isinstance(answer, OffsetInfo)}
        self._note(starts={**{tp: start for tp, start in self.logs.starts.items() if tp in wanted}, **starts})

    def _note(self, **changes: Any) -> None:
        self.logs = dataclasses.replace(self.logs, **changes)

    def close(self) -> None:
        """Abort the requests in flight."""
        self._stamps.close()
        self._cluster.close()


class LedgerPoll:
    """Follows the flow's ledger; ``ledger`` is None until it was found.

    ``is_missing``: the target answers and has no ledger.
    """

    def __init__(self, clients: FlowClients) -> None:
        self.ledger: Ledger | None = None
        self.is_missing = False
        self._settings = clients.settings(Side.TARGET)
        self._topic, self._name = clients.mirror.ledger_topic, clients.target
        self._cluster = clients.cluster(Side.TARGET)
        self._admin = Admin(self._cluster)
        self._following: LedgerLog | None = None
        self._closed = False

    def __call__(self) -> None:
        """Read the ledger to its end. Raises KafkaFailure."""
        following = self._following
        if following is None:
            found = self._admin.describe_topics([self._topic])[self._topic]
            self.is_missing = vanished(found)
            if self.is_missing:
                return
            value_of(found)
            following = LedgerLog(self._settings, self._topic, name=self._name)
            following.start(_LEDGER_S)
            self._following = following
            if self._closed:
                following.stop()
            self.ledger = following.ledger
            return
        following.read_to_end(ANSWER_S)

    def close(self) -> None:
        """Stop following."""
        self._closed = True
        following = self._following
        if following is not None:
            following.stop()
        self._cluster.close()


class TargetLogsPoll:
    """Compares the topic ids and log end offsets of the remote partitions with the ledger, which it reads first.

    ``losses``: what this shows of each source partition with an entry; None: nothing is missing up to the position. Partitions for which
    the target has returned an error are absent, and ``error`` is one of these errors. ``read_at_s`` (monotonic clock): when the newest
    comparison began, 0: there was none yet.
    """

    def __init__(self, clients: FlowClients, ledger: Callable[[], Ledger | None]) -> None:
        self.losses: Mapping[TopicPartition, TargetLoss | None] = {}
        self.error = ""
        self.read_at_s = 0.0
        self._ledger = ledger
        self._entries: dict[TopicPartition, tuple[int, LedgerEntry | None]] = {}
        self._cluster = clients.cluster(Side.TARGET)
        self._admin = Admin(self._cluster)

    def __call__(self) -> None:
        """Send the requests. Raises KafkaFailure if the cluster as a whole does not answer."""
        ledger = self._ledger()
        if ledger is None:
            return
        known = self._entries
        self._entries = {
            tp: found if (found := known.get(tp)) is not None and found[0] == version else (version, ledger.entry(tp))
            for tp, version in ledger.versions().items()
        }
        began_s = time.monotonic()
        entries = [entry for _, entry in self._entries.values() if entry is not None]
        answers = target_losses(self._admin, entries) if entries else {}
        failures = check_answered(answers)
        losses = {tp: answer for tp, answer in answers.items() if not isinstance(answer, KafkaFailure)}
        if losses != self.losses:
            self.losses = losses
        self.error = str(next(iter(failures.values()), ""))
        self.read_at_s = began_s

    def close(self) -> None:
        """Abort the requests in flight."""
        self._cluster.close()


class HeartbeatsPoll:
    """The newest heartbeats on the target."""

    def __init__(self, clients: FlowClients) -> None:
        self.seen: list[Freshness] = []
        self._read_at_s: dict[tuple[str, str, int], float] = {}  # of each of them; replaced, never changed
        self._client = clients.mirror_client()
        self._watch = FreshnessWatch(self._client, _HEARTBEATS_S)

    def __call__(self) -> None:
        """Read new heartbeats. Raises KafkaFailure."""
        seen, now_s = self._watch.look(ANSWER_S), time.monotonic()
        self._read_at_s = {_heartbeat_key(one): self._read_at_s.get(_heartbeat_key(one), now_s) for one in seen}
        self.seen = seen

    def read_at_s(self, one: Freshness) -> float:
        """When a heartbeat was read (monotonic clock)."""
        return self._read_at_s.get(_heartbeat_key(one), time.monotonic())

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def _heartbeat_key(one: Freshness) -> tuple[str, str, int]:
    return one.topic, one.flow, one.heartbeat.timestamp_ms


@dataclasses.dataclass(frozen=True, slots=True)
class PolledGroups:
    """Group offsets: checkpoints by group and partition of the target, and committed offsets on both sides.

    ``target_logs``: the first and the end offset of partitions of the target with a checkpoint or a committed offset.
    """

    checkpoints: Mapping[str, Mapping[TopicPartition, Checkpoint]] = dataclasses.field(default_factory=dict)
    source: Mapping[str, Mapping[TopicPartition, OffsetAndMetadata]] = dataclasses.field(default_factory=dict)
    target: Mapping[str, Mapping[TopicPartition, OffsetAndMetadata]] = dataclasses.field(default_factory=dict)
    target_logs: Mapping[TopicPartition, tuple[int, int]] = dataclasses.field(default_factory=dict)


class GroupsPoll:
    """Polls the groups that have checkpoints or reasons in the ledger (``reasoned``) in ``remote_topics``; the reader replaces both.

    ``is_missing``: the target answers and has no topic of checkpoints. ``has_target``: offsets on the target have been read at least once, most recently at ``read_at_s`` (monotonic clock). ``failed_on``: the cluster on which the last failure occurred.
    """

    def __init__(self, clients: FlowClients) -> None:
        self.seen = PolledGroups()
        self.reasoned: frozenset[str] = frozenset()
        self.remote_topics: frozenset[str] = frozenset()
        self.is_missing = False
        self.has_target = False
        self.read_at_s: float | None = None
        self.failed_on = Side.TARGET
        self.topic = clients.policy.checkpoints_topic(clients.source)
        self._clusters = {side: clients.cluster(side) for side in Side}
        self._admins = {side: Admin(cluster) for side, cluster in self._clusters.items()}
        self._lock = threading.Lock()
        self._checkpoints: dict[tuple[str, str, int], Checkpoint] = {}
        self._log: KafkaBasedLog | None = None
        self._share_groups: frozenset[str] = frozenset()
        self._types_at_s: float | None = None

    def __call__(self) -> None:
        """Read the offsets. Raises KafkaFailure, also if single groups cannot be read; a cluster that does not answer keeps its previous
        results.
        """
        try:
            self._follow()
        except KafkaFailure:
            self.failed_on = Side.TARGET
            raise
        with self._lock:
            newest = list(self._checkpoints.values())
        checkpoints: dict[str, dict[TopicPartition, Checkpoint]] = {}
        for one in newest:
            checkpoints.setdefault(one.group, {})[TopicPartition(one.topic, one.partition)] = one
        groups = sorted(checkpoints.keys() | self.reasoned)
        self.seen = dataclasses.replace(self.seen, checkpoints=checkpoints)
        target_failure, target = self._offsets(Side.TARGET, groups)
        if target is not None:
            offsets = (*target.values(), *checkpoints.values())
            self.seen = dataclasses.replace(self.seen, target=target, target_logs=self._target_logs(offsets))
            self.has_target, self.read_at_s = True, time.monotonic()
        source_failure, source = self._offsets(Side.SOURCE, groups)
        if source is not None:
            self.seen = dataclasses.replace(self.seen, source=source)
        failure = target_failure or source_failure
        if failure is not None:
            self.failed_on = Side.SOURCE if target_failure is None else Side.TARGET
            raise failure

    def close(self) -> None:
        """Stop following and polling."""
        log = self._log
        if log is not None:
            log.stop()
        for cluster in self._clusters.values():
            cluster.close()

    def _follow(self) -> None:
        if self._log is not None:
            self._log.read_to_end(ANSWER_S)
            return
        found = self._admins[Side.TARGET].describe_topics([self.topic])[self.topic]
        self.is_missing = vanished(found)
        if self.is_missing:
            return
        value_of(found)
        log = KafkaBasedLog(self._clusters[Side.TARGET], self.topic, on_record=self._take)
        log.start(_LEDGER_S)
        self._log = log

    def _take(self, record: LogRecord) -> None:
        with contextlib.suppress(FormatError):
            key = Checkpoint.decode_key(record.key)
            with self._lock:
                if record.value is None:
                    self._checkpoints.pop(key, None)
                else:
                    self._checkpoints[key] = Checkpoint.decode(record.key, record.value)

    def _offsets(
        self, side: Side, groups: list[str]
    ) -> tuple[KafkaFailure | None, dict[str, Mapping[TopicPartition, OffsetAndMetadata]] | None]:
        """The first failure, and the offsets of the groups that could be read; None if none could be."""
        if not groups:
            return None, {}
        self._learn_types()
        try:
            answers = GroupOffsets(self._admins[side], self._share_groups).read(groups)
        except KafkaFailure as failure:
            return failure, None
        found: dict[str, Mapping[TopicPartition, OffsetAndMetadata]] = {}
        failures = []
        for group, answer in answers.items():
            if isinstance(answer, BrokerFailure) and answer.code == ErrorCode.GROUP_ID_NOT_FOUND:
                found[group] = {}  # it is not on this cluster
            elif isinstance(answer, UnsupportedVersion) and side is Side.TARGET and group in self._share_groups:
                found[group] = {}  # a target without share groups
            elif isinstance(answer, KafkaFailure):
                failures.append(answer)
            else:
                found[group] = answer
        return (failures[0], found or None) if failures else (None, found)

    def _target_logs(self, offsets: Iterable[Mapping[TopicPartition, object]]) -> dict[TopicPartition, tuple[int, int]]:
        """Where the logs begin and end to which the offsets may not belong. Read after these, so no offset is later than its log."""
        wanted = {tp for of_group in offsets for tp in of_group if tp.topic in self.remote_topics}
        if not wanted:
            return {}
        admin = self._admins[Side.TARGET]
        with contextlib.suppress(KafkaFailure):  # without them, offsets are compared with checkpoints only
            starts, ends = (admin.list_offsets(dict.fromkeys(wanted, when)) for when in (EARLIEST, LATEST))
            return {
                tp: (start.offset, end.offset)
                for tp in wanted
                if isinstance(start := starts[tp], OffsetInfo) and isinstance(end := ends[tp], OffsetInfo)
            }
        return {}

    def _learn_types(self) -> None:
        """Find the share groups, whose offsets are read by another API (KIP-932).

        The source reports the types; while it does not answer, the types known before apply.
        """
        now_s = time.monotonic()
        if self._types_at_s is None or now_s - self._types_at_s > _GROUP_TYPES_AGAIN_S:
            with contextlib.suppress(KafkaFailure):
                listed = self._admins[Side.SOURCE].list_groups()
                self._share_groups = frozenset(one.group_id for one in listed if one.group_type.lower() == SHARE)
            self._types_at_s = now_s
