"""What a flow's two clusters are asked again and again, each kind on a thread of its own. Whatever comes is kept here.

Every question has a deadline of a few seconds, so a cluster that hangs is known to hang within them, and what was known before
stays what is known.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Mapping
from typing import Final

from mm2.copy.ledger import Ledger, LedgerLog, ledger_topic
from mm2.kafka.admin import Admin
from mm2.kafka.cluster import Cluster
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.log import KafkaBasedLog, LogRecord
from mm2.kafka.settings import ClientSettings
from mm2.kafka.structs import LATEST, OffsetAndMetadata, OffsetInfo, TopicPartition
from mm2.mirror.client.freshness import Freshness, FreshnessWatch
from mm2.mirror.client.mirror_client import MirrorClient
from mm2.mirror.clients import Kind, MirrorClients, Side
from mm2.mirror.discovery import vanished
from mm2.mirror.formats import Checkpoint, FormatError
from mm2.mirror.group_offsets import SHARE, GroupOffsets
from mm2.mirror.plugins import replication_policy
from mm2.observer.timestamps import BatchTimestamp, BatchTimestampReader

#: For one request. A question may take two, of the leader and then of whoever leads now, and silence is told within ten seconds.
ANSWER_S: Final = 3.0
_LEDGER_S: Final = 20.0
#: A heartbeat that is older is told once the flow's own data says so, too.
_HEARTBEATS_S: Final = 3_600.0
_GROUP_TYPES_AGAIN_S: Final = 60.0


class FlowClients:
    """Settings of the observer's connections to both sides of a flow; ``props`` are its source connector's, resolved."""

    def __init__(self, props: Mapping[str, str]) -> None:
        self.props = props
        self._clients = MirrorClients(props)
        self.source, self.target = self._clients.source_alias, self._clients.target_alias
        self.policy = replication_policy(dict(props))

    def settings(self, side: Side) -> ClientSettings:
        """With deadlines of a few seconds. Raises ConfigException."""
        found = self._clients.settings(side, Kind.ADMIN, f"observer-{side.value}")
        limit_ms = int(ANSWER_S * 1000)
        return dataclasses.replace(
            found,
            request_timeout_ms=min(found.request_timeout_ms, limit_ms),
            connection_setup_timeout_ms=min(found.connection_setup_timeout_ms, limit_ms),
            connection_setup_timeout_max_ms=min(found.connection_setup_timeout_max_ms, limit_ms),
        )

    def alias(self, side: Side) -> str:
        """Of the cluster on that side."""
        return self._clients.alias(side)

    def cluster(self, side: Side) -> Cluster:
        """Connections, nothing opened yet; the caller closes them."""
        return Cluster(self.settings(side), name=self._clients.alias(side))

    def mirror_client(self) -> MirrorClient:
        """Of the target; the caller closes it."""
        props = {**self.props, **self._clients.client_props(Side.TARGET, Kind.ADMIN, "observer-heartbeats")}
        for key in [key for key in props if key.startswith(("admin.", "consumer."))]:
            del props[key]
        limit_ms = int(ANSWER_S * 1000)
        props["request.timeout.ms"] = str(min(limit_ms, int(props.get("request.timeout.ms", limit_ms))))
        return MirrorClient(props)


class SourcePoll:
    """Where the source's partitions end, and when the oldest records that are missing on the target were written.

    ``partitions`` are those to be asked for, ``wanted`` the places whose timestamps are asked for: both are replaced by who looks.
    ``ends`` were asked for at ``ends_at_s`` (steady clock, 0: never yet); ``missing`` is what the source says of those it refuses.
    """

    def __init__(self, clients: FlowClients) -> None:
        self.partitions: frozenset[TopicPartition] = frozenset()
        self.wanted: tuple[tuple[TopicPartition, int], ...] = ()
        self.ends: Mapping[TopicPartition, int] = {}
        self.ends_at_s = 0.0
        self.missing: Mapping[TopicPartition, KafkaFailure] = {}
        self.stamps: Mapping[TopicPartition, BatchTimestamp] = {}
        self._cluster = clients.cluster(Side.SOURCE)
        self._admin = Admin(self._cluster)
        self._stamps = BatchTimestampReader(self._cluster, ANSWER_S)

    def __call__(self) -> None:
        """Ask. Raises KafkaFailure when the cluster as a whole does not answer."""
        wanted = self.partitions
        if not wanted:
            began_s = time.monotonic()
            self._cluster.preflight(ANSWER_S)
            self.ends_at_s = began_s
            return
        began_s = time.monotonic()
        answers = self._admin.list_offsets(dict.fromkeys(wanted, LATEST))
        ends = {tp: answer.offset for tp, answer in answers.items() if isinstance(answer, OffsetInfo)}
        failures = {tp: answer for tp, answer in answers.items() if isinstance(answer, KafkaFailure)}
        if failures and not ends:
            silent = [failure for failure in failures.values() if not isinstance(failure, BrokerFailure)]
            if silent:
                raise silent[0]
        # A broker that is away while others are there leaves its partitions as they were.
        self.ends = {**{tp: end for tp, end in self.ends.items() if tp in failures}, **ends}
        self.missing = failures
        self.ends_at_s = began_s
        # None is kept that is not asked for any more: what is missing later would seem to be as old as what has long been copied.
        places = self.wanted
        asked = {tp for tp, _ in places}
        stamps = {tp: stamp for tp, stamp in self.stamps.items() if tp in asked}
        # What has none yet comes first, then whatever was read longest ago.
        turns = {tp: turn for turn, tp in enumerate(stamps)}
        order = sorted(places, key=lambda place: turns.get(place[0], -1))
        fresh = self._stamps.read(order)
        for tp in fresh:
            stamps.pop(tp, None)
        self.stamps = {**stamps, **fresh}

    def close(self) -> None:
        """End what is under way."""
        self._stamps.close()
        self._cluster.close()


class LedgerPoll:
    """The flow's ledger, followed; ``ledger`` is None until it was found. ``is_missing``: the target answers and has none."""

    def __init__(self, clients: FlowClients) -> None:
        self.ledger: Ledger | None = None
        self.is_missing = False
        self._settings = clients.settings(Side.TARGET)
        self._topic, self._name = ledger_topic(clients.source), clients.target
        self._cluster = clients.cluster(Side.TARGET)
        self._admin = Admin(self._cluster)
        self._following: LedgerLog | None = None
        self._closed = False

    def __call__(self) -> None:
        """Be up to date with it. Raises KafkaFailure."""
        following = self._following
        if following is None:
            found = self._admin.describe_topics([self._topic])[self._topic]
            self.is_missing = vanished(found)
            if self.is_missing:
                return
            if isinstance(found, KafkaFailure):
                raise found
            following = LedgerLog(self._settings, self._topic, name=self._name)
            try:
                following.start(_LEDGER_S)
            except KafkaFailure:
                following.stop()
                raise
            self._following = following
            if self._closed:
                following.stop()
            self.ledger = following.ledger
            return
        following.read_to_end(ANSWER_S)

    def close(self) -> None:
        """End following."""
        self._closed = True
        following = self._following
        if following is not None:
            following.stop()
        self._cluster.close()


class HeartbeatsPoll:
    """The newest heartbeats on the target; ``seen_ms`` is when they were looked at."""

    def __init__(self, clients: FlowClients) -> None:
        self.seen: list[Freshness] = []
        self.seen_ms = 0
        self._client = clients.mirror_client()
        self._watch = FreshnessWatch(self._client, _HEARTBEATS_S)

    def __call__(self) -> None:
        """Look. Raises KafkaFailure."""
        self.seen = self._watch.look(ANSWER_S)
        self.seen_ms = int(time.time() * 1000)

    def close(self) -> None:
        """Close its connections."""
        self._client.close()


@dataclasses.dataclass(frozen=True, slots=True)
class PolledGroups:
    """Places of groups: checkpoints by group and partition of the target, and what is committed on either side."""

    checkpoints: Mapping[str, Mapping[TopicPartition, Checkpoint]] = dataclasses.field(default_factory=dict)
    source: Mapping[str, Mapping[TopicPartition, OffsetAndMetadata]] = dataclasses.field(default_factory=dict)
    target: Mapping[str, Mapping[TopicPartition, OffsetAndMetadata]] = dataclasses.field(default_factory=dict)


class GroupsPoll:
    """Groups with checkpoints, and those that the ledger has reasons for (``reasoned``, replaced by who looks)."""

    def __init__(self, clients: FlowClients) -> None:
        self.seen = PolledGroups()
        self.reasoned: frozenset[str] = frozenset()
        self._topic = clients.policy.checkpoints_topic(clients.source)
        self._clusters = {side: clients.cluster(side) for side in Side}
        self._admins = {side: Admin(cluster) for side, cluster in self._clusters.items()}
        self._lock = threading.Lock()
        self._checkpoints: dict[tuple[str, str, int], Checkpoint] = {}
        self._log: KafkaBasedLog | None = None
        self._share_groups: frozenset[str] = frozenset()
        self._types_at_s: float | None = None

    def __call__(self) -> None:
        """Ask. Raises KafkaFailure; of a side that does not answer what was known is kept."""
        self._follow()
        with self._lock:
            newest = list(self._checkpoints.values())
        checkpoints: dict[str, dict[TopicPartition, Checkpoint]] = {}
        for one in newest:
            checkpoints.setdefault(one.group, {})[TopicPartition(one.topic, one.partition)] = one
        groups = sorted(checkpoints.keys() | self.reasoned)
        self.seen = dataclasses.replace(self.seen, checkpoints=checkpoints)
        target = self._offsets(Side.TARGET, groups)
        self.seen = dataclasses.replace(self.seen, target=target)
        source = self._offsets(Side.SOURCE, groups)
        self.seen = dataclasses.replace(self.seen, source=source)

    def close(self) -> None:
        """End following and asking."""
        log = self._log
        if log is not None:
            log.stop()
        for cluster in self._clusters.values():
            cluster.close()

    def _follow(self) -> None:
        if self._log is not None:
            self._log.read_to_end(ANSWER_S)
            return
        found = self._admins[Side.TARGET].describe_topics([self._topic])[self._topic]
        if vanished(found):
            return
        if isinstance(found, KafkaFailure):
            raise found
        log = KafkaBasedLog(self._clusters[Side.TARGET], self._topic, on_record=self._take)
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

    def _offsets(self, side: Side, groups: list[str]) -> dict[str, Mapping[TopicPartition, OffsetAndMetadata]]:
        if not groups:
            return {}
        self._learn_types()
        answers = GroupOffsets(self._admins[side], self._share_groups).read(groups)
        failures = [answer for answer in answers.values() if isinstance(answer, KafkaFailure)]
        if failures and len(failures) == len(answers):
            raise failures[0]
        return {group: answer for group, answer in answers.items() if not isinstance(answer, KafkaFailure)}

    def _learn_types(self) -> None:
        """Share groups have their places elsewhere (KIP-932); which ones are is the source's to say."""
        now_s = time.monotonic()
        if self._types_at_s is None or now_s - self._types_at_s > _GROUP_TYPES_AGAIN_S:
            listed = self._admins[Side.SOURCE].list_groups()
            self._share_groups = frozenset(one.group_id for one in listed if one.group_type.lower() == SHARE)
            self._types_at_s = now_s
