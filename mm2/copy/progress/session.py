"""Copy sessions: the sequence number is the position. Pure.

Within a session the n-th record copied to a target partition has sequence n (modulo 2^31) of the session's producer.
The copied records follow from the source alone, so exactly one record belongs to each sequence. Where the source has
changed, or a record was rejected, the session ends before a sequence could get another record (rule S9 of
docs/explanation/copy-sessions.md). A retry, an executor that was frozen and a successor send the same record with the same
sequence, and the target appends it once. A successor continues with the same producer id and epoch. The producer's last
sequence on the target shows how far its predecessor got.

==== what is written, and when ================================================================================
  1  ledger          previous = the position in Connect's offsets topic, mark = where the copying is now
  2  offsets topic   {"offset": mark.source - 1}, as MM2 does
  3  continue with 1
===============================================================================================================

After a crash at any point the offsets topic contains ``previous`` or ``mark.source``. Any other position was written
by Java or by a user; it is used, and the session ends. A user may also set the position back to ``previous``, or
remove it after the first commit. Therefore step 1 is repeated once while nothing moves, with both positions equal.

An unanswered write may be appended at any later time, and a process that was frozen may write when it resumes. So
entries and positions identify their writer (rule C2 of docs/explanation/copy-sessions.md): both contain a `Lease`, a
position in the record header `POSITION_HEADER`, which Java ignores. The entry with the larger lease is valid,
whichever comes later in the log. A position whose lease is not larger than the entry's was not written by a user.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from mm2.codec import decode, decode_fields, encode, encode_fields, read_json, stored
from mm2.copy.progress.segments import SegmentChunk, Trail, UnwrittenChunks
from mm2.kafka.records.batch import LAST_BASE_OFFSET
from mm2.kafka.structs import ProducerIdentity, TopicPartition
from mm2.reasons import OriginCode

SEQUENCES: Final = 1 << 31
#: `LedgerEntry.shared_until` where the end is not known yet.
UNBOUNDED: Final = (1 << 63) - 1
#: Largest producer epoch, a 16-bit number of the record batch.
_LAST_PRODUCER_EPOCH: Final = (1 << 15) - 1
#: Number of newest lost ranges that an entry lists. Older ranges are counted, and their offsets are in the gap totals.
LOST_KEPT: Final = 100


#: Name of the record header of a position that was written by a copy session (`PositionHeader`).
POSITION_HEADER: Final = "mm2.copy"

_OPTIONAL: Final = stored(omits_default=True)
_SEEN: Final = stored(parts=("seen", "seen_in"))


class Lease(NamedTuple):
    """Orders the writes of a partition. ``epoch`` grows with every takeover, ``commit`` with every commit in it."""

    epoch: int = 0
    commit: int = 0

    def taken_over(self, now_ms: int) -> Lease:
        """The lease of a successor. The time keeps it above the leases of a lost ledger."""
        return Lease(max(self.epoch + 1, now_ms))

    def following(self) -> Lease:
        """The lease of the next commit."""
        return Lease(self.epoch, self.commit + 1)


class Seen(NamedTuple):
    """An offset of a partition of an offsets topic, of which all records before it are known (-1: none is).

    ``place`` identifies the partition, see `mm2.copy.progress.written_positions.offsets_ends` ("": unknown, in records of older versions).
    Offsets of different places cannot be compared: the topic may have been recreated, or Connect may use another one.
    """

    offset: int = -1
    place: str = ""

    def at(self, place: str) -> int:
        """The offset in this place; 0 in any other: none of its records is known."""
        return self.offset if not (place and self.place) or self.place == place else min(self.offset, 0)


class Mark(NamedTuple):
    """A position on both sides: next source offset, next target offset (-1: unknown), records copied so far."""

    source: int
    target: int
    records: int


class EpochStart(NamedTuple):
    """The source offset from which on batches of a leader epoch were read."""

    epoch: int
    start: int


class Lost(NamedTuple):
    """Source offsets that will never be copied, when this was detected (ms), and why."""

    first: int
    after: int
    reason: str
    at_ms: int


class CopyId(NamedTuple):
    """The connector that a durable record belongs to, by name and Connect group, and the id of its source cluster; "": not known.

    Aliases do not identify a copy: two connectors, and two source clusters, may have the same one.
    """

    group: str = ""
    connector: str = ""
    cluster: str = ""

    def is_other(self, other: CopyId) -> bool:
        """Whether both are known and are different connectors. The same connector may read from another cluster since."""
        return bool(self.connector and other.connector) and self[:2] != other[:2]


class CopyOrigin(NamedTuple):
    """How copying of a partition began without an entry (`mm2.reasons.OriginCode`, "": the remote partition was empty, or this is not
    known), and the log end offset of the remote partition at that time.
    """

    code: str = ""
    target: int = -1

    @property
    def note(self) -> str:
        """See `OriginCode.note`; "" also for the code of a later version."""
        return OriginCode(self.code).note if self.code in set(OriginCode) else ""


class FormerTopic(NamedTuple):
    """The remote topic of a partition before the replication policy gave it another name. Records from source offset
    ``until`` on are in the topic with the current name.
    """

    topic: str
    until: int


class PartitionCondition(NamedTuple):
    """A `mm2.copy.states.PartitionState` with its reason, the source offset where it began and since when (ms); -1:
    unknown.
    """

    state: str
    reason: str
    offset: int
    since_ms: int


class EndedSession(NamedTuple):
    """A session that has ended at ``mark`` because the rules have changed. ``known_epoch`` is that of the `LedgerEntry`."""

    producer: ProducerIdentity
    start: Mark
    rules: str
    mark: Mark
    known_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Session:
    """``start`` is the mark at which its count was 0. Where offsets are preserved, and its source offset is after its target
    offset, the offsets between them were filled before the first record. ``rules`` decide which records are counted, see `Rules`; ""
    in sessions of old versions. ``after`` are the sessions that ended before it, oldest first: until a record of this
    session is acknowledged, records of theirs may still appear on the target (rule R3). ``reserved`` is the largest epoch of
    its producer that a later session has had, if this one continues (-1: none).
    """

    producer: ProducerIdentity
    start: Mark
    rules: str = field(default="", metadata=_OPTIONAL)
    after: tuple[EndedSession, ...] = field(default=(), metadata=_OPTIONAL)
    reserved: int = field(default=-1, metadata=_OPTIONAL)

    @property
    def successor(self) -> ProducerIdentity | None:
        """The producer of a session that follows: its first batch fences what is still in flight of this one (rule S9).
        None when there are no more epochs.
        """
        newest = max(self.producer.producer_epoch, self.reserved)
        return ProducerIdentity(self.producer.producer_id, newest + 1) if newest < _LAST_PRODUCER_EPOCH else None

    def at(self, mark: Mark) -> Session:
        """The session as it is written with a mark: ``after`` only until a record is counted."""
        return dataclasses.replace(self, after=()) if self.after and mark.records else self


@dataclass(frozen=True, slots=True)
class PositionHeader:
    """The writer of a position in Connect's offsets topic, and its session.

    ``seen`` is what the writer knew of the partition that contains the position.
    ``epochs`` are `LedgerEntry.source_epoch`, `LedgerEntry.known_epoch` and `LedgerEntry.target_epoch` at the mark;
    None in headers of older versions. ``remote_topic`` is that of the session; in headers of older versions "" if there has
    been no other one. ``copy_id`` wrote it.
    """

    lease: Lease
    mark: Mark
    session: Session | None = field(default=None, metadata=_OPTIONAL)
    seen: Seen = field(default=Seen(), metadata=_SEEN)
    epochs: tuple[int, int, int] | None = field(default=None, metadata=_OPTIONAL)
    remote_topic: str = field(default="", metadata=stored("topic", omits_default=True))
    copy_id: CopyId = field(default=CopyId(), metadata=stored("copy", omits_default=True))

    @classmethod
    def of(cls, entry: LedgerEntry) -> Self:
        """The header of a position that is written after this entry."""
        epochs = (entry.source_epoch, entry.known_epoch, entry.target_epoch)
        return cls(
            entry.lease,
            entry.mark,
            entry.session,
            entry.seen,
            epochs,
            entry.remote_topic,
            entry.copy_id,
        )

    def to_bytes(self) -> bytes:
        """The value of the record header."""
        data = encode(self)
        if self.session is not None and self.session.after:
            data["session"] = encode(self.session.at(self.mark))
        return json.dumps(data, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> Self:
        """The inverse of `to_bytes`. ValueError for anything else."""
        return decode(cls, read_json(value))


class PreviousCommit(NamedTuple):
    """The state of a partition at the previous commit.

    In exactly-once mode an entry is written while its transaction is open. If the transaction is not committed, this
    state is valid. ``extent`` is that of the newest chunk of segments (`mm2.copy.progress.segments.SegmentChunk.extent`),
    ``lost`` the number of lost ranges that the entry added. ``entry`` is the entry of that time, of which `LedgerEntry.undone` takes
    what belongs to the log and the session that were read; None where it is unknown: in entries of older versions, and where nothing
    was committed.
    """

    mark: Mark
    gaps: dict[str, int]
    chunk: int
    extent: tuple[int, int, int]
    lost: int
    entry: LedgerEntry | None = None


#: Fields of an entry that belong to the log and the session that were read, and to the remote topic.
_OF_SOURCE: Final = ("source_id", "source_epoch", "known_epoch", "end", "retired", "session")
_OF_TARGET: Final = ("remote_topic", "target_id", "former", "written_by")


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The ledger's entry of one partition.

    ``source_id`` and ``target_id`` are topic ids ("": unknown). ``source_epoch`` is the leader epoch of the last
    batch that was read (-1: unknown); it shows whether the source was truncated. ``session`` is None in exactly-once
    mode and where no session could be kept. ``previous`` is the position in Connect's offsets topic, None for none.
    ``gaps`` counts source offsets that are not on the target by reason, ``foreign`` counts records of other producers
    on the target, ``rate`` is the recent rate in bytes per second, ``chunk`` the number of the newest chunk of
    segments. ``note`` is a message about reduced guarantees, for instance at-least-once; it stops nothing. ``end`` is
    the source's end offset when the entry was written (-1: unknown). ``lost_before`` counts ranges that ``lost`` no
    longer lists. ``target_epoch`` is the leader epoch of the target partition (-1: unknown). ``lease`` orders the
    entries of one partition; it is 0 in entries of old versions. ``seen`` is that of `PositionHeader`.
    ``known_epoch`` is the highest source leader epoch of which a batch can have been copied without a newer election
    (-1: unknown): a successor counts no batch of a higher epoch. ``retired`` are topic ids of both sides that were
    replaced by newer ones; metadata with such an id is stale. ``source_epochs`` are the newest leader epochs of what was
    read before the mark, oldest first; nothing is known of what lies before the first one. ``former`` is the remote topic
    before this one, if the replication policy or a router has changed (None: none has). ``is_preserved``: the copied records
    have the source's offsets. ``fills_by_transactions``: transactions that fill gaps may be open on the target.
    ``shared_until`` is a source offset: requests of an earlier holder with records from before it
    may be unanswered (rule S9; -1: there are none after the mark). ``copy_id`` is the connector that the entry belongs to.
    ``written_by`` is the producer id of the record before the mark's target offset, if it was written in a transaction (-1: it was not,
    or is unknown).
    ``is_unbegun``: the partition stopped before copying began, so the
    entry shows its ``condition`` and nothing else is known. ``origin`` is that of the first entry, or of a later loss of positions.
    """

    topic: str
    partition: int
    remote_topic: str = field(metadata=stored("target.topic"))
    mark: Mark
    previous: int | None = None
    source_id: str = field(default="", metadata=stored("source.id"))
    target_id: str = field(default="", metadata=stored("target.id"))
    source_epoch: int = field(default=-1, metadata=stored("source.epoch"))
    session: Session | None = field(default=None, metadata=_OPTIONAL)
    gaps: dict[str, int] = field(default_factory=dict)
    lost: tuple[Lost, ...] = ()
    foreign: int = 0
    rate: int = 0
    chunk: int = 0
    condition: PartitionCondition | None = field(default=None, metadata=stored("trouble", omits_default=True))
    note: str = field(default="", metadata=_OPTIONAL)
    before: PreviousCommit | None = field(default=None, metadata=_OPTIONAL)
    end: int = field(default=-1, metadata=_OPTIONAL)
    lost_before: int = field(default=0, metadata=_OPTIONAL)
    target_epoch: int = field(default=-1, metadata=stored("target.epoch"))
    lease: Lease = Lease()  # noqa: RUF009  (immutable)
    known_epoch: int = field(default=-1, metadata=stored("source.known", same_as="source_epoch"))
    seen: Seen = field(default=Seen(), metadata=_SEEN)
    retired: tuple[str, ...] = field(default=(), metadata=_OPTIONAL)
    source_epochs: tuple[EpochStart, ...] = field(default=(), metadata=stored("source.epochs", omits_default=True))
    former: FormerTopic | None = field(default=None, metadata=_OPTIONAL)
    is_preserved: bool = field(default=False, metadata=stored("preserved", omits_default=True))
    fills_by_transactions: bool = field(default=False, metadata=stored("gap_transactions", omits_default=True))
    shared_until: int = field(default=-1, metadata=stored("shared", omits_default=True))
    copy_id: CopyId = field(default=CopyId(), metadata=stored("copy", omits_default=True))
    is_unbegun: bool = field(default=False, metadata=stored("unbegun", omits_default=True))
    written_by: int = field(default=-1, metadata=_OPTIONAL)
    origin: CopyOrigin = field(default=CopyOrigin(), metadata=_OPTIONAL)

    @property
    def lost_ranges(self) -> int:
        """The number of lost ranges, including those that are no longer listed."""
        return self.lost_before + len(self.lost)

    @property
    def source(self) -> TopicPartition:
        """The source partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def target(self) -> TopicPartition:
        """The target partition."""
        return TopicPartition(self.remote_topic, self.partition)

    @property
    def ended_sessions(self) -> tuple[EndedSession, ...]:
        """Sessions before this one of which records may still appear on the target, oldest first."""
        return () if self.session is None else self.session.at(self.mark).after

    def continuing(self, ended: EndedSession) -> Self:
        """The entry of one of the `ended_sessions`, as it ended."""
        before = self.ended_sessions[: self.ended_sessions.index(ended)]
        later = self.session
        is_same = later is not None and later.producer.producer_id == ended.producer.producer_id
        reserved = max(later.producer.producer_epoch, later.reserved) if later is not None and is_same else -1
        session = Session(ended.producer, ended.start, ended.rules, before, reserved)
        return self.replace(session=session, mark=ended.mark, known_epoch=ended.known_epoch)

    def is_replaced_by(self, topic_id: str) -> bool:
        """Whether this is the id of another source topic than the one that was copied ("": unknown). A retired id is that of stale
        metadata.
        """
        return bool(self.source_id) and topic_id not in {"", self.source_id, *self.retired}

    def is_undone(self, committed: int | None) -> bool:
        """Whether the position in Connect's offsets topic shows that this entry's transaction was not committed."""
        return self.before is not None and committed == self.previous and committed != self.mark.source

    def undone(self) -> Self:
        """The entry before its transaction, as far as it counts what was copied."""
        before = self.before
        if before is None:
            return self
        lost = self.lost[: len(self.lost) - before.lost]
        # Epochs of the current log do not apply to an earlier mark if the log was truncated between the two.
        entry = self.replace(
            mark=before.mark,
            gaps=before.gaps,
            chunk=before.chunk,
            lost=lost,
            before=None,
            source_epochs=(),
            written_by=-1,
        )
        if before.entry is None:
            return entry
        # The position belongs to the topic and the log of that time.
        names = (*_OF_SOURCE, *(_OF_TARGET if before.entry.remote_topic else ()))
        return entry.replace(**{name: getattr(before.entry, name) for name in names})

    def replace(self, **changes: Any) -> Self:
        """The same entry with other values."""
        return dataclasses.replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """As in the ledger, and in the progress channel."""
        before = self.before
        known = None if before is None else before.entry
        shown = self if before is None or known is None else self.replace(before=before._replace(entry=None))
        # The lease is at this place, because `lease_of` parses it there.
        data = {"version": 1, "lease": list(self.lease), **encode_fields(shown)}
        if self.session is not None and self.session.after:
            data["session"] = encode(self.session.at(self.mark))
        if before is not None:
            data["before"].pop()  # older versions read five values
        if known is not None:
            data["before_state"] = _state_of(known)
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_json`. Raises ValueError, TypeError, KeyError, IndexError or AttributeError for anything else."""
        if data.get("before") is not None:
            state = data.get("before_state")
            if state is not None:
                topic, target_id = state.get("target", ("", ""))  # older versions write none
                names = {"topic": data["topic"], "partition": data["partition"], "mark": data["before"][0]}
                state = {**state, **names, "source": state, "target": {"topic": topic, "id": target_id}}
            data = {**data, "before": [*data["before"], state]}
        entry = decode_fields(cls, data)
        numbers = (entry.mark.source, entry.mark.target, entry.written_by, entry.origin.target)
        if not all(-1 <= number <= LAST_BASE_OFFSET for number in numbers):
            message = f"no log has these offsets and producer: {numbers}"
            raise ValueError(message)
        return entry


def _state_of(entry: LedgerEntry) -> dict[str, Any]:
    """What a later entry keeps of an entry: what `LedgerEntry.undone` takes."""
    data: dict[str, Any] = {
        "id": entry.source_id,
        "epoch": entry.source_epoch,
        "known": entry.known_epoch,
        "end": entry.end,
        "retired": entry.retired,
        "session": entry.session,
        "target": (entry.remote_topic, entry.target_id),
        "former": entry.former,
        "written_by": entry.written_by,
    }
    unwritten = {"session": None, "former": None, "written_by": -1}
    return {key: encode(value) for key, value in data.items() if key not in unwritten or value != unwritten[key]}


_LEASE: Final = re.compile(rb'\{(?:"version":1,)?"lease":\[(\d+),(\d+)\]')


def lease_of(value: bytes) -> Lease | None:
    """The lease of an entry or a chunk in the ledger, without parsing the rest; None for one of an old version."""
    found = _LEASE.match(value)
    return None if found is None else Lease(int(found[1]), int(found[2]))


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a partition's copying: ``position`` None = according to auto.offset.reset. ``committed`` is the
    position in Connect's offsets topic (None: none).

    ``entry`` is the known state of the partition; its session is None when a new one has to begin. ``chunk`` is the
    newest of its trail. ``clean``: nothing was written in this session since the entry's mark. ``moved``: the
    position is not the one in the ledger. ``seen`` is that of `PositionHeader`, for the entries of the new lease
    holder. ``unwritten`` are changes of the trail that the predecessor handed off without an acknowledged commit.
    ``origin``: copying begins where there is no entry, or goes back although no user has set the position.
    """

    position: int | None
    committed: int | None = None
    entry: LedgerEntry | None = None
    chunk: SegmentChunk | None = None
    clean: bool = False
    moved: bool = False
    seen: Seen = Seen()  # noqa: RUF009  (immutable)
    unwritten: UnwrittenChunks = UnwrittenChunks()  # noqa: RUF009  (immutable)
    origin: CopyOrigin = CopyOrigin()  # noqa: RUF009  (immutable)


def start_of(
    entry: LedgerEntry | None, chunk: SegmentChunk | None, committed: int | None, *, undone: bool = False
) -> Start:
    """The start, from the ledger and the position in Connect's offsets topic (next source offset).

    ``undone``: the entry is the one before a transaction that was not committed, and where that transaction began is
    unknown. After an entry with ``seen`` `written_start` decides instead.
    """
    if entry is None:
        return Start(committed, committed)
    if entry.session is None:
        if committed is None and entry.previous is None and entry.mark.source == 0 and not undone:
            # Connect's offsets topic cannot express the beginning of a log, and "latest" is another offset by now.
            return Start(0, committed, entry, chunk)
        # The mark may be ahead: in exactly-once mode it is valid only after the transaction is committed.
        return Start(committed, committed, entry, chunk, moved=committed not in {entry.previous, entry.mark.source})
    if committed is not None and committed in {entry.previous, entry.mark.source}:
        return Start(entry.mark.source, committed, entry, chunk)
    if committed is None and entry.previous is None:
        return Start(entry.mark.source, committed, entry, chunk)  # its first position was never written
    return Start(committed, committed, entry.replace(session=None), chunk, moved=True)


class WrittenPosition(NamedTuple):
    """The positions of one partition in an offsets topic, by writer (`mm2.copy.progress.written_positions`).

    ``own`` is the newest header of a copy session of this connector, by lease. ``foreign`` is the last position without a header, as
    the next source offset (None: removed), at offset ``foreign_at`` of the topic (-1: none). ``positions`` are all
    that were read, in the partition ``place`` (`Seen`). ``is_own_last``: this connector has written the last
    one. ``other_topic`` is the remote topic of the last one if a connector of another Connect group with the same name has written it,
    which uses the same offsets topic ("": none has). Records before the ``seen`` of the ledger's entry are left out: they decide
    nothing, unless the topic has lost its end.
    """

    own: PositionHeader | None = None
    foreign: int | None = None
    foreign_at: int = -1
    positions: frozenset[int | None] = frozenset()
    place: str = ""
    other_topic: str = ""
    is_own_last: bool = False

    def explains(self, committed: int | None, entry: LedgerEntry) -> bool:
        """Whether a position from another read is among these, or is that of an older ``entry``. Otherwise a deposed
        leader may have answered one of the two reads: both are repeated for a while before the position is used as it is.
        """
        return committed in self.positions or committed in {entry.previous, entry.mark.source}


def written_start(
    entry: LedgerEntry, chunk: SegmentChunk | None, committed: int | None, written: WrittenPosition
) -> Start:
    """The start, from the writers of the positions (rule C4 of docs/explanation/copy-sessions.md).

    A position without a header that the newest lease holder did not know was written by Java or by a user; it is
    used, whatever was appended after it. Otherwise the newer of ledger entry and header is used: a write of a
    predecessor may be appended late, and the ledger may have lost its newest entry.
    """
    header = written.own
    seen = max(entry.seen.at(written.place), -1 if header is None else header.seen.at(written.place))
    if written.foreign_at >= max(seen, 0):
        # A late position may lie behind the user's. The next entry names it, or its reader would not expect it (`explains`).
        return Start(written.foreign, committed, entry.replace(session=None), chunk, moved=True)
    unwritten = UnwrittenChunks()
    if header is not None and header.lease > entry.lease and header.session is not None:
        if header.remote_topic not in {"", entry.remote_topic}:
            # The ledger has lost the entry with which the session in the other remote topic began.
            former = FormerTopic(entry.remote_topic, header.session.start.source)
            entry = entry.replace(remote_topic=header.remote_topic, target_id="", former=former)
            trail = Trail(chunk)
            trail.restart()
            chunk, unwritten = trail.newest, trail.unwritten()
        entry = entry.replace(
            mark=header.mark, session=header.session, lease=header.lease, seen=header.seen, source_epochs=()
        )
        if header.epochs is not None:
            # Epochs of the mark; otherwise a clean election between the two would look like a truncation.
            source, known, target = header.epochs
            entry = entry.replace(source_epoch=source, known_epoch=known, target_epoch=target)
    return Start(entry.mark.source, committed, entry, chunk, unwritten=unwritten)


_RULES: Final = re.compile(r"isolation=read_(un)?committed(?:;changes=([0-9a-f]+))?")


class Rules(NamedTuple):
    """Which records the count of a session includes, and what they become.

    Control records never count. Records of aborted transactions count unless the source is read with
    ``read_committed``. ``changes`` is the digest of what changes or drops records (`mm2.copy.spec.ChangesSpec`); "":
    nothing does.
    """

    read_committed: bool
    changes: str = ""

    def __str__(self) -> str:
        """As in the ledger."""
        changes = f";changes={self.changes}" if self.changes else ""
        return f"isolation=read_{'' if self.read_committed else 'un'}committed{changes}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The inverse of ``str``; None for the rules of an unknown version."""
        found = _RULES.fullmatch(text)
        return None if found is None else cls(not found[1], found[2] or "")


def sequence_of(count: int) -> int:
    """The sequence of the record with index ``count`` in its session."""
    return count % SEQUENCES


def count_after(last_sequence: int, known: int) -> int:
    """The number of records of a session on the target, from its last sequence; ``known`` is a nearby count.

    Sequences wrap at 2^31, so the result is the matching count nearest to ``known``.
    """
    rest = (last_sequence + 1 - known) % SEQUENCES
    return known + (rest if rest < SEQUENCES // 2 else rest - SEQUENCES)
