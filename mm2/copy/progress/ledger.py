"""The ledger, ``mm2-ledger.S.internal`` on the target: state that MirrorMaker's own records cannot express.

A compacted topic with one partition and JSON records. Java neither reads nor replicates it. Without it, delivery is at-least-once.
Each source connector has a ledger of its own, see `ledger_topic`.

==== key ================================================== value ======================================================
  {"partition":0,"topic":"orders"}                          the partition's entry, see `mm2.copy.progress.session.LedgerEntry.to_json`
  {"chunk":3,"partition":0,"topic":"orders"}                segments and gaps, see `mm2.copy.progress.segments.SegmentChunk.to_json`, and
                                                            the "lease" of the entry in the same batch
  {"throttle":"orders"}, {"throttle":""} for the flow       {"bytes.per.sec":1000000}: replaces the configured limit
  {"pause":["orders"]}, {"pause":["orders",0]}              {"by":"ann@ops1","reason":"","since_ms":…}: paused by a user
  {"verified":["orders",0]}                                 {"offset":1000,"at_ms":…}: verified by `mm2 verify`, see `Verified`
  {"group":"billing"}                                       why offsets of a group are not on the target, see `group_record`
  {"note":["acl","TOPIC","A.orders",…]}                     a note of the flow's leader, by kind and name
========================================================================================================================
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import re
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import structlog

from mm2.codec import decode, json_bytes, read_json
from mm2.config.keys.mirror_keys import default_group
from mm2.copy.progress.segments import CHUNKS_KEPT, Segment, SegmentChunk, UnwrittenChunks
from mm2.copy.progress.session import Lease, LedgerEntry, Start, WrittenPosition, lease_of, start_of, written_start
from mm2.evidence import utc_time
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.readers.log import KafkaBasedLog, LogRecord, RecordWarnings, in_log
from mm2.kafka.records.record import Record
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import MAX_TOPIC_NAME, TopicPartition
from mm2.reasons import OffsetReason, OffsetReasonCode

log = structlog.get_logger("mm2.copy.ledger")

#: Configuration of a new ledger topic. Entries are rewritten every second, so the cleaner must keep up.
LEDGER_CONFIGS: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 << 20),
    "min.cleanable.dirty.ratio": "0.1",
    # A late entry of an earlier lease holder does not replace the newer one, which must still be readable then.
    "min.compaction.lag.ms": "120000",
    "compression.type": "producer",
}

#: In the JSON of entries with `LedgerEntry.is_unbegun`. Texts in the entry have backslashes before quotation marks.
_UNBEGUN: Final = b'"unbegun":true'
_RATE_HOLDS_MS: Final = 30_000
# Another client may write anything into the topic.
_CHUNK_BYTES: Final = 16 << 20  # a full chunk has some kilobytes
_KEY_BYTES: Final = 64 << 10  # names of groups and principals have up to 32 KB


_FLOW_CONNECTOR: Final = "MirrorSourceConnector"
#: Every name that `ledger_topic` returns.
LEDGER_NAMES: Final = re.compile(r"mm2-ledger(-[0-9a-f]{16})?\..+\.internal")


def ledger_topic(source_alias: str, group: str = "", connector: str = _FLOW_CONNECTOR) -> str:
    """Name of the ledger of a source connector in a Connect group, by default those of a flow of a MirrorMaker file.

    The alias does not identify a copy: a Connect cluster may have several connectors with one alias, and other Connect clusters may
    write to the same target. What one of them has copied says nothing about the others.
    """
    default = default_group(source_alias)
    if (group or default, connector) != (default, _FLOW_CONNECTOR):
        digest = hashlib.sha256(json.dumps([group, connector]).encode()).hexdigest()
        return f"mm2-ledger-{digest[:16]}.{source_alias}.internal"
    return f"mm2-ledger.{source_alias}.internal"


def is_ledger_of(topic: str, source_alias: str) -> bool:
    """Whether this is the name of a ledger of any connector with this source alias."""
    return LEDGER_NAMES.fullmatch(topic) is not None and topic.partition(".")[2] == f"{source_alias}.internal"


class Key(NamedTuple):
    """``chunk`` None = the partition's entry."""

    source: TopicPartition
    chunk: int | None


# A reason may quote half a surrogate pair: it must not prevent the entry, and with it those of all other partitions.
_bytes: Final = functools.partial(json_bytes, errors="replace")


def key_bytes(key: Key) -> bytes:
    """A key as it is in the topic."""
    data: dict[str, Any] = {} if key.chunk is None else {"chunk": key.chunk}
    return _bytes({**data, "partition": key.source.partition, "topic": key.source.topic})


def parse_key(data: bytes) -> Key | None:
    """The inverse; None for any other key."""
    try:
        found = read_json(data)
        chunk = found.get("chunk")
        return Key(_partition(found["topic"], found["partition"]), None if chunk is None else int(chunk))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _topic(name: Any) -> str:
    """The name of a topic in a key. Raises ValueError if no topic can have it."""
    topic = str(name)
    if len(topic) > MAX_TOPIC_NAME:
        message = f"the name of a topic has {len(topic)} characters"
        raise ValueError(message)
    return topic


def _index(number: Any) -> int:
    """The number of a partition in a key. Raises ValueError or TypeError if none can have it."""
    index = int(number)
    if not 0 <= index < 1 << 31:
        message = f"there is no partition {index}"
        raise ValueError(message)
    return index


def _partition(topic: Any, number: Any) -> TopicPartition:
    return TopicPartition(_topic(topic), _index(number))


def throttle_record(topic: str, limit: int | None) -> Record:
    """Replace the configured limit (bytes per second, 0 for none) of a topic, or "" for the flow. None restores the
    configured limit.
    """
    return Record(_bytes({"throttle": topic}), None if limit is None else _bytes({"bytes.per.sec": limit}))


class Pause(NamedTuple):
    """A paused topic or partition: who paused it, since when (ms), and why (optional)."""

    by: str
    since_ms: int
    reason: str = ""

    def __str__(self) -> str:
        return f"paused by {self.by} at {utc_time(self.since_ms)}" + (f": {self.reason}" if self.reason else "")


Pauses = Mapping[tuple[str, int | None], Pause]
"""By topic of the source and partition, None for all of them."""


def pause_record(topic: str, partition: int | None, pause: Pause | None) -> Record:
    """Pause a partition of the source, or all of a topic; None: resume."""
    name = [topic] if partition is None else [topic, partition]
    return Record(_bytes({"pause": name}), None if pause is None else _bytes(pause._asdict()))


class Verified(NamedTuple):
    """How far `mm2 verify` has compared a partition, in source offsets: from ``first`` to before ``checked``, most
    recently at ``at_ms``. On the target this corresponds to offset ``target`` (-1: unknown).

    Before ``offset`` every difference has a reason. ``records`` were found on both sides, ``differences`` counts
    differences by kind (`mm2.verify.comparing.findings.DifferenceKind`). ``source_id`` and ``target_id`` are topic ids: the
    result is not valid for recreated topics.
    """

    first: int
    offset: int
    checked: int
    at_ms: int
    records: int = 0
    differences: Mapping[str, int] = MappingProxyType({})
    source_id: str = ""
    target_id: str = ""
    target: int = -1

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Verified:
        """The inverse of `_asdict`. Raises ValueError or TypeError."""
        row = [dict(one) if isinstance(one, Mapping) else one for one in cls(**fields)]
        return decode(cls, row)

    def is_of(self, source_id: str, target_id: str) -> bool:
        """False for topics that were recreated; unknown ids ("") are ignored."""
        pairs = (self.source_id, source_id), (self.target_id, target_id)
        return not any(then and now and then != now for then, now in pairs)


def verified_record(source: TopicPartition, verified: Verified | None) -> Record:
    """The result of a verification; None: delete it."""
    key = _bytes({"verified": [source.topic, source.partition]})
    if verified is None:
        return Record(key, None)
    return Record(key, _bytes({**verified._asdict(), "differences": dict(verified.differences)}))


def note_record(kind: str, name: Sequence[str], value: Mapping[str, Any] | None) -> Record:
    """A note of the flow's leader; None: delete it."""
    return Record(_bytes({"note": [kind, *name]}), None if value is None else _bytes(dict(value)))


def paused(pauses: Pauses, partition: TopicPartition) -> Pause | None:
    """The pause that applies to a partition: that of its topic, or its own."""
    return pauses.get((partition.topic, None)) or pauses.get((partition.topic, partition.partition))


def entry_record(entry: LedgerEntry) -> Record:
    """The record of a partition's entry."""
    return Record(key_bytes(Key(entry.source, None)), _bytes(_without(entry.to_json(), "topic", "partition")))


def chunk_record(source: TopicPartition, chunk: SegmentChunk, lease: Lease | None = None) -> Record:
    """The record of one chunk of a partition's segments, in a commit with this lease (None: unknown)."""
    data = {} if lease is None else {"lease": list(lease)}  # first, because `lease_of` parses it there
    return Record(key_bytes(Key(source, chunk.number)), _bytes({**data, **_without(chunk.to_json(), "number")}))


def _without(data: dict[str, Any], *names: str) -> dict[str, Any]:
    """What the key of the record says is not in its value."""
    return {name: one for name, one in data.items() if name not in names}


def chunk_tombstone(source: TopicPartition, number: int) -> Record:
    """The tombstone of a chunk."""
    return Record(key_bytes(Key(source, number)), None)


def group_record(group: str, reasons: Mapping[TopicPartition, OffsetReason]) -> Record:
    """Why a group's offsets have no translation, or are not committed on the target.

    ``{"reasons":{"orders":{"0":"<message>"}},"codes":{"orders":{"0":"<code>"}}}``; a tombstone when there are none.
    Versions before 0.2 wrote no codes.
    """
    if not reasons:
        return Record(_bytes({"group": group}), None)
    messages: dict[str, dict[str, str]] = {}
    codes: dict[str, dict[str, str]] = {}
    for (topic, partition), reason in sorted(reasons.items()):
        messages.setdefault(topic, {})[str(partition)] = reason.message
        codes.setdefault(topic, {})[str(partition)] = str(reason.code)
    return Record(_bytes({"group": group}), _bytes({"reasons": messages, "codes": codes}))


def _reasons(value: Mapping[str, Any]) -> dict[TopicPartition, OffsetReason]:
    """The inverse, of a record's value. Raises KeyError, TypeError, ValueError or AttributeError."""
    codes = value.get("codes", {})
    return {
        _partition(topic, partition): OffsetReason(_code(codes.get(topic, {}).get(partition)), str(message))
        for topic, partitions in value["reasons"].items()
        for partition, message in partitions.items()
    }


def _code(name: Any) -> OffsetReasonCode:
    """OTHER for a record of an older version, and for a code of a newer one."""
    try:
        return OffsetReasonCode(name)
    except ValueError:
        return OffsetReasonCode.OTHER


def _limit_of(value: bytes) -> int:
    return max(0, int(read_json(value)["bytes.per.sec"]))


def _pause_name(key: Any) -> tuple[str, int | None]:
    topic, *partition = key
    return _topic(topic), _index(*partition) if partition else None


def _pause_of(value: bytes) -> Pause:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        fields = read_json(value)
        return Pause(str(fields["by"]), int(fields["since_ms"]), str(fields["reason"]))
    return Pause("", 0)  # a pause that is not readable is still a pause


def _note_name(key: Any) -> tuple[str, ...]:
    kind, *name = map(str, key)
    return kind, *name


def _verified_of(value: bytes) -> Verified:
    data = read_json(value)
    return Verified.of({name: data[name] for name in Verified._fields if name in data})


#: Records of neither an entry nor a chunk, by what their keys begin with: what messages call them, the name in the key, and the value
#: (None: as if the record were deleted). The functions raise ValueError, KeyError, TypeError or AttributeError.
_NAMED: Final[Mapping[str, tuple[str, Callable[[Any], Any], Callable[[bytes], Any]]]] = {
    "throttle": ("throttle", _topic, _limit_of),
    "pause": ("pause", _pause_name, _pause_of),
    "verified": ("record of a verification", lambda key: _partition(*key), _verified_of),
    "group": ("record of a group", str, lambda value: _reasons(read_json(value)) or None),
    "note": ("note", _note_name, bytes),
}
_KIND: Final = re.compile(rb'\{"(throttle|pause|verified|group|note)":')


class Ledger:
    """The newest record of every key. Thread-safe. `LedgerLog` or the caller supplies the records."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._warnings = RecordWarnings(log)
        self._entries: dict[TopicPartition, bytes] = {}
        self._unbegun: dict[TopicPartition, bytes] = {}  # entries of partitions whose copying has not begun
        self._chunks: dict[TopicPartition, dict[int, bytes]] = {}
        self._throttles: dict[str, int] = {}
        self._pauses: dict[tuple[str, int | None], Pause] = {}
        self._groups: dict[str, dict[TopicPartition, OffsetReason]] = {}
        self._notes: dict[str, dict[tuple[str, ...], bytes]] = {}  # by kind: tasks ask for one once a second
        self._note_records: Counter[str] = Counter()
        self._verified: dict[TopicPartition, Verified] = {}
        self._named: dict[str, dict[Any, Any]] = {
            "throttle": self._throttles,
            "pause": self._pauses,
            "verified": self._verified,
            "group": self._groups,
        }
        self._written_ms: dict[TopicPartition, int] = {}
        self._versions: dict[TopicPartition, int] = {}
        self._changes = 0
        self._late: dict[TopicPartition, set[int]] = {}

    def apply(self, key: bytes | None, value: bytes | None, written_ms: int = -1) -> None:
        """Apply one record; ``written_ms`` is its timestamp. A key that names no possible topic, or is too long, is not kept."""
        if key is not None and len(key) > _KEY_BYTES:
            self._warnings.warning("ledger record with a key that is too long", key=in_log(key))
            return
        kind = None if key is None else _KIND.match(key)
        if key is not None and kind is not None:
            self._apply_named(str(kind[1], "ascii"), key, value)
            return
        named = None if key is None else parse_key(key)
        if named is None:
            self._warnings.warning("ledger record with an unknown key", key=in_log(key))
            return
        with self._lock:
            self._changes += 1
            self._versions[named.source] = self._versions.get(named.source, 0) + 1
            if named.chunk is None:
                self._unbegun.pop(named.source, None)
                if value is None:
                    self._entries.pop(named.source, None)
                elif _UNBEGUN in value:
                    self._unbegun[named.source] = value
                elif self._is_late(named.source, value):
                    self._warnings.warning(
                        "ignored late ledger entry of an earlier lease holder", partition=str(named.source)
                    )
                else:
                    self._entries[named.source] = value
                    self._written_ms[named.source] = written_ms
            elif value is not None and self._is_late(named.source, value):
                self._late.setdefault(named.source, set()).add(named.chunk)
                self._warnings.warning("ignored late ledger chunk of an earlier commit", partition=str(named.source))
            else:
                self._apply_chunk(named.source, named.chunk, value)

    def _apply_chunk(self, source: TopicPartition, number: int, value: bytes | None) -> None:
        late = self._late.get(source)
        if late is not None:
            late.discard(number)
            if not late:
                del self._late[source]
        if value is None:
            self._chunks.get(source, {}).pop(number, None)
            return
        chunks = self._chunks.setdefault(source, {})
        if (before := chunks.get(number - 1)) is not None:
            chunks[number - 1] = _compressed(before)  # it is full and does not change any more
        chunks[number] = value

    def _is_late(self, source: TopicPartition, value: bytes) -> bool:
        """Whether an entry or a chunk has a smaller lease than the newest entry.

        A commit writes both in one batch, with a larger lease than all earlier commits. A smaller one is from a write without a
        response that was appended after later commits.
        """
        known = self._entries.get(source)
        before, lease = lease_of(known) if known is not None else None, lease_of(value)
        return before is not None and lease is not None and lease < before

    def _apply_named(self, kind: str, key: bytes, value: bytes | None) -> None:
        store: dict[Any, Any]
        what, name_of, value_of = _NAMED[kind]
        try:
            name, found = name_of(read_json(key)[kind]), None if value is None else value_of(value)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._warnings.warning(f"ledger {what} not readable", key=in_log(key), error=in_log(repr(error)))
            return
        with self._lock:
            if kind == "note":
                self._note_records[name[0]] += 1
                store, name = self._notes.setdefault(name[0], {}), name[1:]
            else:
                store = self._named[kind]
            if found is None:
                store.pop(name, None)
            else:
                store[name] = found

    def group_reasons(self) -> dict[str, dict[TopicPartition, OffsetReason]]:
        """Why offsets of groups are not on the target, by group and source partition."""
        with self._lock:
            return {group: dict(reasons) for group, reasons in self._groups.items()}

    def throttles(self) -> dict[str, int]:
        """Limits that replace the configured ones: bytes per second by topic, "" for the flow."""
        with self._lock:
            return dict(self._throttles)

    def pauses(self) -> dict[tuple[str, int | None], Pause]:
        """The pauses written by `mm2 pause`."""
        with self._lock:
            return dict(self._pauses)

    def verifications(self) -> dict[TopicPartition, Verified]:
        """`verified` of all partitions that have one."""
        with self._lock:
            return dict(self._verified)

    def verified(self, source: TopicPartition) -> Verified | None:
        """How far `mm2 verify` has compared a partition; None when nothing is recorded."""
        with self._lock:
            return self._verified.get(source)

    def notes(self, kind: str) -> dict[tuple[str, ...], dict[str, Any]]:
        """The leader's notes of a kind, by name. Notes that are not readable are logged and left out."""
        with self._lock:
            notes = dict(self._notes.get(kind, {}))
        found: dict[tuple[str, ...], dict[str, Any]] = {}
        for name, value in notes.items():
            try:
                found[name] = dict(read_json(value))
            except (ValueError, KeyError, TypeError) as error:
                log.warning(
                    "ledger note not readable", kind=in_log(kind), name=in_log(repr(name)), error=in_log(repr(error))
                )
        return found

    def note_records(self, kind: str) -> int:
        """The number of records of notes of a kind so far, also of those that were deleted since."""
        with self._lock:
            return self._note_records[kind]

    def partitions(self) -> list[TopicPartition]:
        """All source partitions that have an entry, in order."""
        with self._lock:
            return sorted(self._entries)

    @property
    def changes(self) -> int:
        """The number of records of partitions so far: without a new one, no `version` has changed."""
        with self._lock:
            return self._changes

    def version(self, source: TopicPartition) -> int:
        """A number that changes with every record of a partition."""
        with self._lock:
            return self._versions.get(source, 0)

    def versions(self) -> dict[TopicPartition, int]:
        """`version` of all partitions at once."""
        with self._lock:
            return dict(self._versions)

    def written_ms(self, source: TopicPartition) -> int:
        """When a partition's entry was written; -1 when there is none."""
        with self._lock:
            return self._written_ms.get(source, -1)

    def entry(self, source: TopicPartition) -> LedgerEntry | None:
        """A partition's entry; None when there is none, also because copying has not begun, or when it is not readable (logged)."""
        with self._lock:
            value = self._entries.get(source)
        return None if value is None else self._entry(source, value)

    def unbegun(self) -> list[LedgerEntry]:
        """The entries of partitions that stopped before copying began: they have only a condition."""
        with self._lock:
            values = {source: value for source, value in self._unbegun.items() if source not in self._entries}
        entries = (self._entry(source, value) for source, value in sorted(values.items()))
        return [entry for entry in entries if entry is not None]

    @staticmethod
    def _entry(source: TopicPartition, value: bytes) -> LedgerEntry | None:
        try:
            data = {**read_json(value), "topic": source.topic, "partition": source.partition}
            return LedgerEntry.from_json(data)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            log.warning("ledger entry not readable", partition=str(source), error=in_log(repr(error)))
            return None

    def chunks(self, source: TopicPartition) -> list[SegmentChunk]:
        """A partition's segments and gaps, oldest first; the last segment reaches to the entry's mark."""
        with self._lock:
            values = dict(self._chunks.get(source, {}))
        read = (_chunk(source, number, values[number]) for number in sorted(values)[-CHUNKS_KEPT:])
        chunks = [chunk for chunk in read if chunk is not None]
        entry = self.entry(source)
        if entry is not None:
            # Newer ones belong to a transaction that was not committed.
            chunks = [chunk for chunk in chunks if chunk.number <= entry.chunk]
            extend(chunks, entry)
        return chunks

    def newest_chunk(self, source: TopicPartition) -> SegmentChunk | None:
        """The chunk of segments that a successor continues; None when there is no entry."""
        entry, chunks = self.entry(source), self.chunks(source)
        if entry is None:
            return None
        return chunks[-1] if chunks and chunks[-1].number == entry.chunk else SegmentChunk(entry.chunk + 1)

    def start(self, source: TopicPartition, committed: int | None, written: WrittenPosition | None = None) -> Start:
        """Where a partition's copying continues, for this position in Connect's offsets topic (next source offset).

        ``written`` contains its writers, from `seen` on.
        """
        return self.with_late_chunks(source, self._start(source, committed, written))

    def _start(self, source: TopicPartition, committed: int | None, written: WrittenPosition | None) -> Start:
        entry = self.entry(source)
        if entry is not None and written is not None:
            return written_start(entry, self.newest_chunk(source), committed, written)
        if entry is None or not entry.is_undone(committed):
            return start_of(entry, self.newest_chunk(source), committed)
        undone = entry.undone()
        with self._lock:
            value = self._chunks.get(source, {}).get(undone.chunk)
        found = None if value is None else _chunk(source, undone.chunk, value)
        chunk = found or SegmentChunk(undone.chunk)
        if entry.before is not None:
            chunk = chunk.shortened(entry.before.extent, undone.mark.source)
        extend([chunk], undone)
        return start_of(undone, chunk, committed, undone=entry.before is None or entry.before.entry is None)

    def late(self) -> set[TopicPartition]:
        """Partitions of which a late chunk is the last record of its key in the topic, see `with_late_chunks`."""
        with self._lock:
            return set(self._late)

    def with_late_chunks(self, source: TopicPartition, start: Start) -> Start:
        """The start, with the chunks that late writes have replaced: they have to be written again, because compaction
        removes the record before.

        The same start if not everything that its predecessor wrote has been read yet.
        """
        entry = self.entry(source)
        with self._lock:
            numbers = sorted(self._late.get(source, ()))
            values = {number: self._chunks.get(source, {}).get(number) for number in numbers}
        if not values or entry is None or start.entry is None or start.chunk is None or entry.lease < start.entry.lease:
            return start
        changed = {chunk.number: chunk for chunk in start.unwritten.changed}
        deleted = []
        for number, value in values.items():
            if number in changed or number > start.chunk.number:
                continue
            if value is None:
                if number < start.chunk.number:
                    deleted.append(number)
            elif (chunk := _chunk(source, number, value)) is not None:
                changed[number] = chunk
        forgotten = (*start.unwritten.forgotten, *deleted)
        unwritten = UnwrittenChunks(tuple(changed[number] for number in sorted(changed)), forgotten)
        return dataclasses.replace(start, unwritten=unwritten)

    def unwritten(self, source: TopicPartition, start: Start) -> UnwrittenChunks:
        """All chunks of a partition that starts in this way, to be written to another ledger."""
        if start.chunk is None:
            return start.unwritten
        kept = {chunk.number: chunk for chunk in self.chunks(source) if chunk.number < start.chunk.number}
        kept |= {chunk.number: chunk for chunk in start.unwritten.changed} | {start.chunk.number: start.chunk}
        return UnwrittenChunks(tuple(kept[number] for number in sorted(kept)))

    def seen(self, source: TopicPartition, place: str) -> int | None:
        """The offset of this partition of the offsets topic (`Seen`) from which it has to be read to find the writer of a position
        (`mm2.copy.progress.session.written_start`); None where the position alone decides.
        """
        entry = self.entry(source)
        return (
            entry.seen.at(place) if entry is not None and entry.session is not None and entry.seen.offset >= 0 else None
        )

    def rates(self) -> dict[TopicPartition, float]:
        """Bytes per second of each partition, as last measured.

        0 for a partition whose entry is more than 30 s older than the newest one: entries are written every second
        while records arrive.
        """
        found = {}
        with self._lock:
            written_ms = dict(self._written_ms)
        idle_before_ms = max(written_ms.values(), default=0) - _RATE_HOLDS_MS
        for source in self.partitions():
            entry = self.entry(source)
            if entry is not None:
                found[source] = float(entry.rate) if written_ms.get(source, 0) >= idle_before_ms else 0.0
        return found


def _compressed(value: bytes) -> bytes:
    """A chunk compressed for memory: 64 chunks take 0.3 MB per partition with transactions, compressed a tenth of it."""
    return zlib.compress(value, 1) if value.startswith(b"{") else value


def _decompressed(value: bytes) -> bytes:
    """A chunk that `_compressed` has returned. Raises ValueError or zlib.error for any other bytes."""
    if value.startswith(b"{"):
        return value
    unpacker = zlib.decompressobj()
    plain = unpacker.decompress(value, _CHUNK_BYTES)
    if not unpacker.eof:
        message = f"more than {_CHUNK_BYTES} bytes"
        raise ValueError(message)
    return plain


def _chunk(source: TopicPartition, number: int, value: bytes) -> SegmentChunk | None:
    """A chunk; None, logged, when it is not readable."""
    try:
        return SegmentChunk.from_json({**read_json(_decompressed(value)), "number": number})
    except (ValueError, KeyError, TypeError, IndexError, zlib.error) as error:
        log.warning("ledger chunk not readable", partition=str(source), chunk=number, error=in_log(repr(error)))
        return None


def extend(chunks: list[SegmentChunk], entry: LedgerEntry) -> None:
    """Extend the newest segment to the mark: its chunk is not rewritten while the segment only grows.

    Only where the growth is certain: the mark must be on the segment's line, and a session that began after its end
    began after records of another producer.
    """
    newest = next((chunk for chunk in reversed(chunks) if chunk.segments), None)
    last = None if newest is None or newest.number != entry.chunk else newest.open_segment
    if newest is None or last is None or entry.mark.target <= last.target_end:
        return
    is_straight = entry.mark.source - last.source == entry.mark.target - last.target
    # A hole in the source and a marker on the target cancel each other out.
    is_straight = is_straight and not any(
        gap.first < entry.mark.source and gap.after > last.source_end for gap in newest.gaps
    )
    if is_straight and (entry.session is None or entry.session.start.target <= last.target_end):
        newest.segments[-1] = Segment(last.source, last.target, entry.mark.target - last.target)


class LedgerLog:
    """Follows the ledger topic of one source in the background. ``ledger`` is its content."""

    def __init__(
        self,
        settings: ClientSettings,
        topic: str,
        *,
        name: str,
        known: tuple[Ledger, Mapping[int, int]] | None = None,
    ) -> None:
        """``name`` is the target cluster's, for messages. ``known`` is an earlier ledger with the `positions` up to
        which it was read. Nothing connects before `start`.
        """
        self.ledger, begin = known or (Ledger(), {})
        self._cluster = Cluster(settings, name=name)
        self._log = KafkaBasedLog(self._cluster, topic, on_record=self._on_record, begin=begin)

    @property
    def positions(self) -> dict[int, int]:
        """The next offset to be read, by partition."""
        return self._log.positions

    def start(self, timeout_s: float) -> None:
        """Read all records. Raises KafkaFailure, also when the topic does not exist, and when none was read for ``timeout_s``; it is
        stopped then.
        """
        try:
            self._log.start(timeout_s)
        except BaseException:
            self.stop()
            raise

    def read_to_end(self, timeout_s: float) -> None:
        """Wait until everything written before this call has been read. Raises KafkaFailure."""
        self._log.read_to_end(timeout_s)

    def stop(self) -> None:
        """Stop reading."""
        self._log.stop()
        self._cluster.close()

    def _on_record(self, record: LogRecord) -> None:
        self.ledger.apply(record.key, record.value, record.timestamp)
