"""The invariants, checked at every step that can break one.

A record's value contains its partition and a serial number. For each partition the oracle tracks the records of the source and
those of the target below the high watermark.

==== invariant ==== checked =================================================================================
  I1 order, gaps     when the target's high watermark moves, and at the end
  I1 duplicates      when the target's high watermark moves
  I2 positions       when a position is appended to the offsets topic
  I4 lease           when a Produce request is handed to a socket
  I5 user's reset    at the end: the records from the reset on were copied again
  I6 typed stops     at the end: a stopped partition has a state that the faults of this run justify
  reasons            at the end: each source offset that is not on the target has a reason in the ledger, and no other has
=============================================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from mm2.copy.progress.ledger import Ledger
from mm2.copy.states import PartitionState
from mm2.kafka.structs import TopicPartition
from tests.simulation.cluster import Cluster
from tests.simulation.storage import Batch, Replica


class Violation(AssertionError):
    """An invariant is violated; ``kind`` is its name."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


def record_value(partition: int, serial: int, aborted: bool) -> bytes:
    return b"%d:%d:%d" % (partition, serial, aborted)


@dataclass(slots=True)
class Seen:
    """The records of one partition on the target below the high watermark."""

    offsets: dict[str, int] = field(default_factory=dict)  # by remote topic
    serials: list[int] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)
    topics: set[tuple[str, int]] = field(default_factory=set)  # remote topic and serial
    again_from: int = 0  # source offset from which records may be in another remote topic, too
    batches: list[Batch] = field(default_factory=list)
    cursor: int = 0  # index in the source's log of the next expected record
    free: bool = False  # order and gaps are only checked at the end
    verified: int = 0  # source offset up to which positions were verified
    unchecked: list[tuple[str, int]] = field(
        default_factory=list
    )  # where records arrived while the source had no leader


class Reset(NamedTuple):
    """A source position that a user has set while the committed one was ``end``."""

    position: int
    end: int


@dataclass(slots=True)
class Excuses:
    """Deviations that the faults of a run allow; by default none."""

    resets: dict[int, list[Reset]] = field(default_factory=dict)  # by partition, in order
    source_cut: set[int] = field(default_factory=set)  # partitions of which the source lost the end
    #: (epoch, serials in the log of its leader at the beginning) of each leader of a source partition
    source_leaders: dict[int, list[tuple[int, set[int]]]] = field(default_factory=dict)
    target_cut: set[int] = field(default_factory=set)  # and the target
    aborted: bool = False  # records of aborted transactions may be on the target, once each
    stops: dict[int, set[str]] = field(default_factory=dict)  # states that a partition may stop in


class Oracle:
    """``topic`` and ``remote`` are the names on source and target; ``former`` are remote topics before a change of the policy.

    Their records count together. Those that were not committed before a change may be in each topic, once.
    """

    def __init__(self, source: Cluster, target: Cluster, topic: str, remote: str, partitions: int) -> None:
        self.source = source
        self.target = target
        self.topic = topic
        self.remote = remote
        self.former: set[str] = set()
        self.partitions = partitions
        self.read_committed = False
        self.excuses = Excuses()
        self.seen = {index: Seen() for index in range(partitions)}
        self.visible: dict[int, set[int]] = {
            index: set() for index in range(partitions)
        }  # serials consumers could read
        self.checked = 0
        #: A violation of I1 does not end the run; the product must detect it and stop the partition as INCONSISTENT.
        self.alarm = False
        self.broken: dict[int, Violation] = {}

    # -- expected records

    def expected(self, partition: int) -> list[tuple[int, int]]:
        """(source offset, serial) of the records that the target should have, from the current source log."""
        leader = self.source.leader_replica((self.topic, partition))
        if leader is None:
            return []
        found = []
        for batch in leader.log:
            if batch.after > leader.high_watermark:
                break
            if batch.control is None:
                found += [
                    (record.offset, serial)
                    for record in batch.records
                    for serial, aborted in [parse(record.value)]
                    if not (aborted and self.read_committed)
                ]
        return found

    def source_advanced(self, _node: int, replica: Replica) -> None:
        """The source's high watermark has moved."""
        visible = self.visible[replica.partition]
        for batch in reversed(replica.log):
            if batch.after > replica.high_watermark:
                continue
            if batch.control is not None:
                continue
            serials = [parse(record.value)[0] for record in batch.records]
            if serials and serials[0] in visible:
                break
            visible.update(serials)

    def source_elected(self, replica: Replica, epoch: int) -> None:
        """The source elected another leader for a partition."""
        serials = {parse(record.value)[0] for batch in replica.log if batch.control is None for record in batch.records}
        self.excuses.source_leaders.setdefault(replica.partition, []).append((epoch, serials))

    def _has_returned(self, index: int, serial: int) -> bool:
        """Whether a lost record exists on the source again because a replica with an older log was elected."""
        leader = self.source.leader_replica((self.topic, index))
        epochs = [
            batch.epoch
            for batch in (leader.log if leader is not None else ())
            if batch.control is None and any(parse(record.value)[0] == serial for record in batch.records)
        ]
        return bool(epochs) and any(
            epoch > epochs[0] and serial not in serials for epoch, serials in self.excuses.source_leaders.get(index, ())
        )

    # -- the target

    def rename(self, remote: str) -> None:
        """The replication policy gives the remote topic another name."""
        self.former.add(self.remote)
        self.remote = remote
        for seen in self.seen.values():
            seen.again_from = seen.verified

    def target_advanced(self, _node: int, replica: Replica) -> None:
        """The target's high watermark has moved: I1."""
        topic = replica.topic
        if topic != self.remote and topic not in self.former:
            return
        index = replica.partition
        seen = self.seen[index]
        if index in self.excuses.target_cut:
            seen.free = True
            return
        for batch in replica.read(seen.offsets.get(topic, 0), replica.high_watermark, 1 << 30):
            if batch.base != seen.offsets.get(topic, 0):
                raise Violation("simulation", f"{topic}-{index} has a batch at {batch.base}, expected {seen.offsets}")
            seen.offsets[topic] = batch.after
            if batch.control is None:
                for record in batch.records:
                    self._arrived(topic, index, seen, parse(record.value))

    def _arrived(self, topic: str, index: int, seen: Seen, what: tuple[int, bool]) -> None:
        serial, aborted = what
        self.checked += 1
        if serial in seen.counts and (topic, serial) not in seen.topics and self._may_be_in_both(index, seen, serial):
            seen.topics.add((topic, serial))
            return
        seen.topics.add((topic, serial))
        seen.serials.append(serial)
        seen.counts[serial] = seen.counts.get(serial, 0) + 1
        if self.excuses.resets.get(index):
            return
        where = f"{topic}-{index} at target offset {seen.offsets[topic]}"
        if index in self.broken:
            return
        if seen.counts[serial] > 1 and self._has_returned(index, serial):
            seen.serials.remove(serial)  # from a source log that was replaced by an election
            return
        if seen.counts[serial] > 1:
            self._break(index, Violation("duplicate", f"{where}: record {serial} is there {seen.counts[serial]} times"))
            return
        if aborted and self.read_committed and not self.excuses.aborted:
            raise Violation("aborted", f"{where}: record {serial} of an aborted transaction")
        if seen.free or index in self.excuses.source_cut or self.excuses.aborted:
            return
        seen.unchecked.append((where, serial))
        leader = self.source.leader_replica((self.topic, index))
        if leader is None:
            return
        for place, found in seen.unchecked:
            self._follows(index, seen, leader, place, found)
        seen.unchecked.clear()

    def _may_be_in_both(self, index: int, seen: Seen, serial: int) -> bool:
        """Whether a record was not committed when the remote topic got another name."""
        leader = self.source.leader_replica((self.topic, index))
        rest = leader.read(seen.again_from, leader.end, 1 << 30) if leader is not None else ()
        records = (record for batch in rest if batch.control is None for record in batch.records)
        return leader is None or any(
            parse(record.value)[0] == serial and record.offset >= seen.again_from for record in records
        )

    def _follows(self, index: int, seen: Seen, leader: Replica, where: str, serial: int) -> None:
        """Check that a record on the target is the next one of the source."""
        while index not in self.broken:
            wanted = self._next(leader, seen)
            if wanted is None:
                raise Violation("unknown", f"{where}: record {serial} is not behind the last one on the source")
            if wanted[1] == serial:
                return
            if not (wanted[2] and (self.read_committed or self.excuses.aborted)):
                message = f"{where}: record {serial} follows, record {wanted[1]} at {wanted[0]} is missing"
                self._break(index, Violation("lost", message))

    def _break(self, index: int, violation: Violation) -> None:
        if not self.alarm:
            raise violation
        self.broken[index] = violation

    @staticmethod
    def _next(leader: Replica, seen: Seen) -> tuple[int, int, bool] | None:
        """(offset, serial, aborted) of the source record after the last expected one."""
        while (found := leader.read(seen.cursor, leader.end, 1)) and (batch := found[0]):
            if batch.control is None:
                for record in batch.records:
                    if record.offset >= seen.cursor:
                        seen.cursor = record.offset + 1
                        return record.offset, *parse(record.value)
            seen.cursor = max(seen.cursor, batch.after)
        return None

    # -- positions

    def position_written(self, partition: int, position: int) -> None:
        """A position was appended to the offsets topic: I2."""
        seen = self.seen[partition]
        excuses = self.excuses
        if (
            partition in self.broken
            or partition in excuses.source_cut
            or partition in excuses.target_cut
            or excuses.resets.get(partition)
        ):
            return
        leader = self.source.leader_replica((self.topic, partition))
        if leader is None or position <= seen.verified:
            return
        for batch in leader.read(seen.verified, position, 1 << 30):
            if batch.control is not None:
                continue
            for record in batch.records:
                serial, aborted = parse(record.value)
                if not seen.verified <= record.offset < position or (
                    aborted and (self.read_committed or excuses.aborted)
                ):
                    continue
                if serial not in seen.counts:
                    raise Violation(
                        "position",
                        f"{TopicPartition(self.topic, partition)}: position {position} was written, record {serial} at "
                        f"{record.offset} is not below the high watermark of the target",
                    )
        seen.verified = position

    # -- the end

    def finish(self, stopped: dict[int, tuple[str, str]]) -> None:
        """Check the end of a run without faults. ``stopped``: partition -> (state, reason) of stopped partitions."""
        for index in range(self.partitions):
            allowed = self.excuses.stops.get(index, set())
            state = stopped.get(index)
            if index in self.broken:
                if state is None or state[0] != PartitionState.INCONSISTENT:
                    raise Violation("silent", f"{self.topic}-{index} is {state}: {self.broken[index]}")
                continue
            if state is not None:
                if state[0] in allowed:
                    continue
                raise Violation(
                    "stopped", f"{self.topic}-{index} has stopped as {state[0]}, without a fault for it: {state[1]}"
                )
            self._compare(index)

    def explain(self, stopped: dict[int, tuple[str, str]], ledger: Ledger) -> None:
        """Compare the gaps of the ledger with the target, where the source and the rules stayed the same."""
        for index in range(self.partitions):
            excuses = self.excuses
            changed = index in excuses.source_cut or index in excuses.target_cut or index in excuses.resets
            leader = self.source.leader_replica((self.topic, index))
            if changed or excuses.aborted or index in stopped or index in self.broken or leader is None:
                continue
            if "note" in excuses.stops.get(index, set()):
                continue  # without a ledger for some time
            chunks = ledger.chunks(TopicPartition(self.topic, index))
            gaps = [gap for chunk in chunks for gap in chunk.gaps]
            first = 0
            if chunks and chunks[0].number > 0:  # earlier chunks were deleted
                rows = [*chunks[0].segments, *chunks[0].gaps]  # none after a change of the policy
                first = min((row[0] for row in rows), default=leader.high_watermark)
            explained = {offset for gap in gaps for offset in range(gap.first, gap.after) if offset >= first}
            copied = {offset for offset, _ in self.expected(index)}
            absent = set(range(first, leader.high_watermark)) - copied
            if explained != absent:
                raise Violation(
                    "reasons",
                    f"{self.topic}-{index}: without a reason {sorted(absent - explained)[:5]}, with one although copied "
                    f"{sorted(explained - absent)[:5]}, chunks {[(one.number, one.extent()) for one in chunks][-4:]}",
                )

    def _compare(self, index: int) -> None:
        seen = self.seen[index]
        if index in self.excuses.target_cut:
            return
        expected = self.expected(index)
        optional = set()
        if self.excuses.aborted:
            leader = self.source.leader_replica((self.topic, index))
            if leader is not None:
                for batch in leader.log:
                    if batch.control is None:
                        optional |= {
                            serial for record in batch.records for serial, gone in [parse(record.value)] if gone
                        }
        wanted = [serial for _, serial in expected if serial not in optional]
        resets = self.excuses.resets.get(index)
        known = {serial for _, serial in expected} | optional
        found = seen.serials
        if index in self.excuses.source_cut:
            strange = [serial for serial in found if serial not in known and serial not in self.visible[index]]
            if strange:
                raise Violation(
                    "unknown", f"{self.remote}-{index}: records {strange[:5]} were never readable on the source"
                )
            found = [serial for serial in found if serial in known]
        found = [serial for serial in found if serial not in optional]
        if resets:
            self._follow(index, [row for row in expected if row[1] not in optional], found, resets)
            return
        if found != wanted:
            missing = [serial for serial in wanted if serial not in set(found)]
            doubled = sorted({serial for serial in found if found.count(serial) > 1})
            place = next(
                (at for at, (one, two) in enumerate(zip(found, wanted, strict=False)) if one != two),
                min(len(found), len(wanted)),
            )
            kind = "duplicate" if doubled else "lost" if missing else "order"
            raise Violation(
                kind,
                f"{self.remote}-{index}: {len(wanted)} records expected, {len(found)} found, missing {missing[:5]} "
                f"({len(missing)}), more than once {doubled[:5]}, first difference at {place}: "
                f"{found[place : place + 3]} for {wanted[place : place + 3]}",
            )

    def _follow(self, index: int, expected: list[tuple[int, int]], found: list[int], resets: list[Reset]) -> None:
        """Check that the records are in the expected order, with a jump to each position that a user has set."""
        places = {serial: at for at, (_, serial) in enumerate(expected)}
        left = list(resets)
        at = 0
        for serial in found:
            place = places.get(serial)
            if place is None:
                raise Violation("unknown", f"{self.remote}-{index}: record {serial} is not on the source")
            while place != at:
                if not left:
                    raise Violation(
                        "order",
                        f"{self.remote}-{index}: record {serial} where {expected[at][1] if at < len(expected) else None} was due",
                    )
                reset = left.pop(0)
                at = next((at for at, (offset, _) in enumerate(expected) if offset >= reset.position), len(expected))
            at += 1
        # Where all records that were copied again belong to aborted transactions, and the rules changed, there is no jump.
        counts = self.seen[index].counts
        copied = [(offset, counts.get(serial, 0)) for offset, serial in expected]
        left = [
            reset
            for reset in left
            if next((count for offset, count in copied if reset.position <= offset < reset.end), 2) < 2
        ]
        if left:
            raise Violation("reset", f"{self.remote}-{index}: nothing was copied from {left}, which a user has set")
        if at != len(expected):
            raise Violation("lost", f"{self.remote}-{index}: {len(expected) - at} records at the end are missing")


def parse(value: bytes | None) -> tuple[int, bool]:
    """(serial, of an aborted transaction) of a record."""
    _, serial, aborted = (value or b"").split(b":")
    return int(serial), aborted == b"1"
