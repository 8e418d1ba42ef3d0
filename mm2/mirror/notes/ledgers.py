"""Reads ledgers and writes to the flow's own, for the leader of a flow. Tasks follow their ledgers themselves.

Any client of the source that may create topics there can create one with the name of a ledger. Such a ledger is *proven* if it has
something that clients without access to the target do not know: the target's cluster id, or the id of a topic of the target.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mm2.copy.progress.ledger import LEDGER_NAMES, Ledger, LedgerLog
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import BrokerFailure, KafkaFailure, value_of
from mm2.kafka.producer.producer import Producer
from mm2.kafka.records.record import Record
from mm2.kafka.structs import LATEST, TopicInfo, TopicPartition
from mm2.mirror.common.clients import ClientKind, MirrorClients, Side
from mm2.mirror.common.discovery import vanished
from mm2.mirror.notes.promotions import PROMOTED_NOTE

ACL_NOTE: Final = "acl"
DENIAL_NOTE: Final = "denied-write"
PROVENANCE_NOTE: Final = "provenance"
#: With the properties of a remote topic before its leading gaps were filled; null: not set on the topic.
FILLING_NOTE: Final = "filling"

Notes = Mapping[tuple[str, ...], Mapping[str, Any]]
"""Notes of one kind, by name."""

_NOTED: Final = (ACL_NOTE, DENIAL_NOTE, PROVENANCE_NOTE, PROMOTED_NOTE)
_TIMEOUT_S: Final = 15.0
_FRESH_S: Final = 3600.0
#: Topics of a ledger whose ids are compared with the target's; one that is the same suffices.
_COMPARED: Final = 100


@dataclass(frozen=True)
class _Read:
    """A ledger as read at ``as_of_s`` (time.monotonic), up to these positions."""

    topic_id: str
    as_of_s: float
    ledger: Ledger
    positions: Mapping[int, int]


def write_to_ledger(clients: MirrorClients, records: Sequence[Record]) -> None:
    """Append to the ledger of the flow; returns when the records are acknowledged. Raises KafkaFailure."""
    if not records:
        return
    settings = clients.settings(Side.TARGET, ClientKind.PRODUCER, "ledger-producer")
    cluster = Cluster(settings, name=clients.target_alias)
    try:
        Producer(cluster).send(clients.ledger_topic, list(records), 0, timeout_s=_TIMEOUT_S)
    finally:
        cluster.close()


class Ledgers:
    """The ledgers of a flow. Used by one thread; `stop` may be called by another and aborts a read in progress."""

    def __init__(self, clients: MirrorClients, target_admin: Admin) -> None:
        self._clients = clients
        self._target_admin = target_admin
        self._lock = threading.Lock()
        self._reading: LedgerLog | None = None
        self._stopped = False
        self._own: _Read | None = None
        self._own_id = ""  # of the topic that was read last
        #: How often the flow's own ledger was deleted and created again, as far as `own` has seen: its notes are lost.
        self.losses = 0
        # By side and ledger topic: topic id and end offset at the last read, the notes by kind, and whether it is proven.
        self._read_before: dict[tuple[Side, str], tuple[tuple[str, int], dict[str, Notes], bool]] = {}

    def own(self) -> Ledger:
        """The flow's own ledger as it is now. Raises KafkaFailure, also if it does not exist.

        The ledger grows continuously, so only new records are read. These must include the tombstones written since the
        last read: they are kept for one day (`delete.retention.ms`), and a read older than one hour is not reused.
        """
        topic = self._clients.ledger_topic
        topic_id = self._topic_id(topic, self._target_admin)
        before, self._own = self._own, None
        if topic_id:
            self.losses += self._own_id not in {"", topic_id}
            self._own_id = topic_id
        now_s = time.monotonic()
        is_same = before is not None and before.topic_id == topic_id != "" and now_s - before.as_of_s < _FRESH_S
        known = (before.ledger, before.positions) if before is not None and is_same else None
        ledger, positions = self._read(Side.TARGET, topic, known)
        self._own = _Read(topic_id, now_s, ledger, positions)
        return ledger

    def was_recreated(self) -> bool:
        """Whether another topic has the name of the flow's own ledger since the last read. Raises KafkaFailure."""
        topic = self._clients.ledger_topic
        answer = self._target_admin.describe_topics([topic])[topic]
        if not self._own_id or vanished(answer):
            return False
        return value_of(answer).topic_id not in {"", self._own_id}

    def exists(self) -> bool:
        """Whether the flow's own ledger exists. Raises KafkaFailure if that is not known."""
        topic = self._clients.ledger_topic
        answer = self._target_admin.describe_topics([topic])[topic]
        if isinstance(answer, KafkaFailure) and not vanished(answer):
            raise answer
        return not isinstance(answer, KafkaFailure)

    def notes_of_source(self, kind: str, source_admin: Admin, *, proven: bool = False) -> Iterator[Notes]:
        """The notes of all readable ledgers of flows into the source, flow by flow. ``proven``: of proven ledgers only.

        Raises KafkaFailure if one cannot be read.
        """
        return self._notes(kind, Side.SOURCE, source_admin, (), proven=proven)

    def notes_of_others(self, kind: str) -> Iterator[Notes]:
        """The notes of all other flows into the target; see `notes_of_source`."""
        return self._notes(kind, Side.TARGET, self._target_admin, (self._clients.ledger_topic,))

    def _notes(
        self, kind: str, side: Side, admin: Admin, but: Collection[str], *, proven: bool = False
    ) -> Iterator[Notes]:
        """Yield the notes of each ledger; a ledger is read again only if records were added to it."""
        names = sorted(name for name in admin.list_topics() if LEDGER_NAMES.fullmatch(name) and name not in but)
        described = admin.describe_topics(names)
        ends = admin.list_offsets({TopicPartition(name, 0): LATEST for name in names})
        for name in names:
            info, end = described[name], ends[TopicPartition(name, 0)]
            if vanished(info):
                continue
            state = (value_of(info).topic_id, value_of(end).offset)
            before = self._read_before.get((side, name))
            if before is None or before[0] != state:
                ledger = self.read(side, name, admin)
                is_proven = side is Side.TARGET or self._is_proven(ledger)
                before = state, {noted: ledger.notes(noted) for noted in _NOTED}, is_proven
                self._read_before[side, name] = before
            if before[2] or not proven:
                yield before[1][kind]

    def _is_proven(self, ledger: Ledger) -> bool:
        """Whether this ledger on the source has an id that only clients of the target know. Raises KafkaFailure."""
        target_id = self._target_admin.describe_cluster().cluster_id
        if target_id and _names_cluster(ledger, target_id):
            return True
        # Entries of versions before 0.3 have no cluster id.
        entries = (entry for tp in ledger.partitions() if (entry := ledger.entry(tp)) is not None and entry.source_id)
        ids = dict(itertools.islice(((entry.topic, entry.source_id) for entry in entries), _COMPARED))
        answers = self._target_admin.describe_topics(sorted(ids)) if ids else {}
        return any(isinstance(one, TopicInfo) and one.topic_id == ids[topic] for topic, one in answers.items())

    def read(self, side: Side, topic: str, admin: Admin) -> Ledger:
        """A ledger on one of the clusters as it is now. Raises KafkaFailure, also if it does not exist."""
        self._topic_id(topic, admin)
        return self._read(side, topic, None)[0]

    @staticmethod
    def _topic_id(topic: str, admin: Admin) -> str:
        # A reader would wait for a missing topic.
        return value_of(admin.describe_topics([topic])[topic]).topic_id

    def _read(
        self, side: Side, topic: str, known: tuple[Ledger, Mapping[int, int]] | None
    ) -> tuple[Ledger, Mapping[int, int]]:
        reading = self._clients.ledger_log(side, topic, known)
        with self._lock:
            self._reading = reading
        try:
            if not self._stopped:
                reading.start(_TIMEOUT_S)
        finally:
            reading.stop()
            with self._lock:
                self._reading = None
        return reading.ledger, reading.positions

    def write(self, records: Sequence[Record]) -> None:
        """Append to the flow's own ledger; returns when the records are acknowledged. Raises KafkaFailure."""
        write_to_ledger(self._clients, records)

    def stop(self) -> None:
        """Abort the read in progress and prevent further ones."""
        self._stopped = True
        with self._lock:
            reading = self._reading
        if reading is not None:
            reading.stop()


def _names_cluster(ledger: Ledger, cluster_id: str) -> bool:
    """Whether a ledger is of a flow that reads from this cluster, or copies what has come from it."""
    if any(note.get("cluster") == cluster_id for note in ledger.notes(ACL_NOTE).values()):
        return True
    for note in ledger.notes(PROVENANCE_NOTE).values():
        with contextlib.suppress(TypeError):  # another client may have written anything
            if any(cluster_id in hop for path in note.get("paths", ()) for hop in path):
                return True
    entries = map(ledger.entry, ledger.partitions())
    return any(entry is not None and entry.copy_id.cluster == cluster_id for entry in entries)


def copied_topics(ledgers: Ledgers) -> dict[str, str]:
    """The remote topic of each topic that the flow has copied. Raises KafkaFailure; no ledger has no topics."""
    try:
        ledger = ledgers.own()
    except BrokerFailure as failure:
        if vanished(failure):
            return {}
        raise
    return copied_to(ledger)


def copied_to(ledger: Ledger) -> dict[str, str]:
    """The remote topic of each topic in a ledger."""
    return {tp.topic: entry.remote_topic for tp in ledger.partitions() if (entry := ledger.entry(tp)) is not None}
