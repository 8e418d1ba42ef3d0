"""Fetch v7 to v17 with incremental sessions (KIP-227); records are views into the received frame.

Without a session a broker fills every small answer from the first partition; with one it rotates. Versions below 12 are
not flexible. From 13 on topics are named by id (KIP-516), which also distinguishes a recreated topic from the old one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kafka.protocol.consumer import FetchRequest

from mm2.kafka.errors import BrokerFailure, CorruptBatch
from mm2.kafka.structs import TopicPartition
from mm2.kafka.wire.primitives import INT32, Reader, array_head, request_header, string

API_KEY: Final = 1
REQUEST: Final = FetchRequest
MIN_VERSION: Final = 7
MAX_VERSION: Final = 17
RACK_FROM: Final = 11
FLEXIBLE_FROM: Final = 12
TOPIC_IDS_FROM: Final = 13

_LIMITS: Final = struct.Struct(">iiibii")  # max_wait, min_bytes, max_bytes, isolation, session id, session epoch
_PARTITION: Final = struct.Struct(">ihqqq")  # index, error, high watermark, last stable offset, log start
_EPOCH_AND_OFFSET: Final = struct.Struct(">iq")
_DIVERGING_EPOCH: Final = 0  # a tagged field of a partition
#: A broker returns the partitions that were requested, and the aborted transactions among the records.
_MORE_PARTITIONS: Final = 1_000
_MOST_ABORTED: Final = 1 << 18
FULL_SESSION: Final = (0, 0)


class Position(NamedTuple):
    """Position of the next Fetch for a partition.

    ``leader_epoch`` is the leader's epoch in the metadata: a broker that knows a newer epoch rejects the request.
    ``last_fetched_epoch`` is that of the last batch that was read (`BatchHeader.leader_epoch`), sent from v12 on: the
    broker answers with `Fetched.diverging` when its log never had that epoch at that offset (KIP-595;
    `Partition.readRecords` of Kafka checks it for consumers as well as for followers). -1: not known, no check.
    """

    offset: int
    leader_epoch: int
    max_bytes: int
    last_fetched_epoch: int = -1


class Fetched(NamedTuple):
    """One partition of a Fetch answer. ``records`` is a view into the frame; offsets are the broker's.

    ``diverging`` is (epoch, end offset) when the log does not contain the records read before. Of these, it contains
    only those before that offset, and among them only those of that epoch or an older one. The answer has no records
    then. ``preferred_replica`` is the broker to read from instead of the leader (KIP-392), -1 for none. The answer has
    no records then, and the leader has not compared ``last_fetched_epoch``.
    """

    topic_partition: TopicPartition
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]  # (producer id, first offset)
    records: memoryview
    diverging: tuple[int, int] | None = None
    preferred_replica: int = -1


@dataclass(slots=True)
class FetchSession:
    """State of one connection's fetch session: one per connection and broker, with one request in flight at a time.

    ``topic_ids`` maps names to 16-byte ids; a topic without one cannot be fetched from v13 on. ``throttle_ms`` is from
    the last answer: because of a quota, the broker reads nothing from this connection for that time (KIP-219).
    """

    topic_ids: Mapping[str, bytes]
    session_id: int = 0
    epoch: int = 0
    known: dict[TopicPartition, Position] = field(default_factory=dict)
    throttle_ms: int = 0
    forgotten: bool = False  # reset since the last request: the next answer does not belong to the current session
    _names: dict[bytes, str] = field(default_factory=dict)  # of ``topic_ids``, when an id was last missing

    def request(
        self,
        version: int,
        correlation_id: int,
        client_id: str,
        wanted: Mapping[TopicPartition, Position],
        *,
        max_wait_ms: int,
        min_bytes: int,
        max_bytes: int,
        read_committed: bool,
        touched: Iterable[TopicPartition] | None = None,
        rack: str = "",
    ) -> bytes:
        """The framed request that makes the broker's session equal to ``wanted``.

        ``rack`` is that of the client, from v11 on. Without it a leader names no preferred replica.

        ``touched`` may list, each once, the partitions that changed in ``wanted`` or were removed from it since the
        last request. With thousands of partitions and no traffic, comparing all of them costs most.
        """
        full = self.epoch == 0
        self.forgotten = False
        known = self.known
        if full:
            known.clear()
        if full or touched is None:
            changed = [tp for tp, position in wanted.items() if known.get(tp) != position]
            dropped = [tp for tp in known if tp not in wanted]
        else:
            changed = [tp for tp in touched if tp in wanted and known.get(tp) != wanted[tp]]
            dropped = [tp for tp in touched if tp in known and tp not in wanted]
        for tp in dropped:
            del known[tp]
        known.update((tp, wanted[tp]) for tp in changed)

        flexible = version >= FLEXIBLE_FROM
        out = bytearray(4)
        out += request_header(API_KEY, version, correlation_id, client_id, flexible=flexible)
        if version < 15:
            out += INT32.pack(-1)
        out += _LIMITS.pack(max_wait_ms, min_bytes, max_bytes, int(read_committed), self.session_id, self.epoch)
        self._write_topics(out, version, changed, wanted, flexible=flexible)
        self._write_forgotten(out, version, dropped, flexible=flexible)
        if version >= RACK_FROM:
            out += string(rack, compact=flexible)
        if flexible:
            out += b"\x00"
        INT32.pack_into(out, 0, len(out) - 4)
        return bytes(out)

    def _topic(self, version: int, name: str, *, flexible: bool) -> bytes:
        return self.topic_ids[name] if version >= TOPIC_IDS_FROM else string(name, compact=flexible)

    def _write_topics(
        self,
        out: bytearray,
        version: int,
        changed: Iterable[TopicPartition],
        wanted: Mapping[TopicPartition, Position],
        *,
        flexible: bool,
    ) -> None:
        by_topic = _by_topic(changed)
        out += array_head(len(by_topic), compact=flexible)
        for name, partitions in by_topic.items():
            out += self._topic(version, name, flexible=flexible)
            out += array_head(len(partitions), compact=flexible)
            for tp in partitions:
                position = wanted[tp]
                out += INT32.pack(tp.partition)
                if version >= 9:
                    out += INT32.pack(position.leader_epoch)
                out += struct.pack(">q", position.offset)
                if version >= 12:
                    out += INT32.pack(position.last_fetched_epoch)
                out += struct.pack(">qi", -1, position.max_bytes)
                if flexible:
                    out += b"\x00"
            if flexible:
                out += b"\x00"

    def _write_forgotten(
        self, out: bytearray, version: int, forgotten: Iterable[TopicPartition], *, flexible: bool
    ) -> None:
        by_topic = _by_topic(tp for tp in forgotten if version < TOPIC_IDS_FROM or tp.topic in self.topic_ids)
        out += array_head(len(by_topic), compact=flexible)
        for name, partitions in by_topic.items():
            out += self._topic(version, name, flexible=flexible)
            out += array_head(len(partitions), compact=flexible)
            for tp in partitions:
                out += INT32.pack(tp.partition)
            if flexible:
                out += b"\x00"

    def response(self, version: int, frame: memoryview) -> list[Fetched]:
        """Parse an answer (frame without size prefix, correlation id included) and update the session.

        Raises BrokerFailure for an error of the whole request (the session is reset: send again) and
        CorruptBatch when the frame does not parse.
        """
        try:
            error_code, fetched = self._parse(version, frame)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            message = f"a Fetch answer of {len(frame)} bytes does not parse: {error}"
            raise CorruptBatch(message) from error
        if error_code:
            self.reset()
            raise BrokerFailure.of(error_code)
        return fetched

    def reset(self) -> None:
        """Start a full session, on a new connection or after the broker has dropped the old session."""
        self.session_id, self.epoch = FULL_SESSION
        self.known.clear()
        self.forgotten = True

    def _parse(self, version: int, frame: memoryview) -> tuple[int, list[Fetched]]:
        flexible = version >= FLEXIBLE_FROM
        read = Reader(frame, 4)
        if flexible:
            read.tags()
        self.throttle_ms = read.int32()
        error_code = read.int16()
        session_id = read.int32()
        if error_code:
            return error_code, []
        if self.forgotten:
            pass
        elif self.epoch == 0 or session_id != self.session_id:
            self.session_id, self.epoch = session_id, (1 if session_id else 0)
        elif self.session_id:
            self.epoch = self.epoch + 1 if self.epoch < 0x7FFFFFFF else 1
        fetched = []
        left = len(self.known) + _MORE_PARTITIONS
        topics = read.length(compact=flexible)
        is_current = False
        if topics > left:
            message = f"{topics} topics for a session of {len(self.known)} partitions"
            raise IndexError(message)
        for _ in range(topics):
            if version >= TOPIC_IDS_FROM:
                topic_id = bytes(read.bytes_view(16))
                topic = self._names.get(topic_id)
                if not is_current and (topic is None or self.topic_ids.get(topic) != topic_id):
                    self._names = {known: name for name, known in self.topic_ids.items()}
                    topic, is_current = self._names.get(topic_id), True
            else:
                topic = read.string(compact=flexible)
            for _ in range(read.length(compact=flexible)):
                partition = _read_partition(read, version, topic or "", flexible=flexible)
                left -= 1
                if left < 0:
                    message = f"partitions beyond the {len(self.known)} of the session"
                    raise IndexError(message)
                if topic is not None:
                    fetched.append(partition)
            if flexible:
                read.tags()
        return 0, fetched


def _read_partition(read: Reader, version: int, topic: str, *, flexible: bool) -> Fetched:
    index, error_code, high_watermark, last_stable, log_start = read.fields(_PARTITION)
    aborted = []
    transactions = read.length(compact=flexible)
    if transactions > _MOST_ABORTED:
        message = f"{transactions} aborted transactions"
        raise IndexError(message)
    for _ in range(max(0, transactions)):
        aborted.append((read.int64(), read.int64()))
        if flexible:
            read.tags()
    preferred_replica = read.int32() if version >= RACK_FROM else -1
    size = read.length(compact=flexible)
    records = read.bytes_view(max(0, size))
    diverging: tuple[int, int] | None = None
    if flexible and (tagged := read.tags(_DIVERGING_EPOCH)) is not None:
        diverging = Reader(tagged).fields(_EPOCH_AND_OFFSET)
    tp = TopicPartition(topic, index)
    return Fetched(
        tp, error_code, high_watermark, last_stable, log_start, tuple(aborted), records, diverging, preferred_replica
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    by_topic: dict[str, list[TopicPartition]] = {}
    for tp in partitions:
        by_topic.setdefault(tp.topic, []).append(tp)
    return by_topic
