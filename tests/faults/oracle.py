"""Compare a remote topic with its source topic.

Both clusters and the ledger are read with confluent-kafka, which shares no code with the tested program. The JSON of
the ledger is parsed here independently.

==== property ============================ how it is checked ==========================================================
  O1 exactly once, O2 order, O3 bytes      every source record is searched on the target by key, value, headers and time
  O4 every absent offset has a reason      source offsets without a record on the target are compared with the ledger
  O5 no aborted record                     the source is read with the flow's isolation level
  O11 the last record too                  both are read to their ends; acknowledged records must be on the source
=======================================================================================================================

O6 to O10 concern time, groups and memory; the tests that need them check them.
"""

import hashlib
import json
import time
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

_SHOWN = 5
_READ_PATIENCE_S = 60.0


@dataclass(frozen=True)
class ClusterTopic:
    """A topic of a cluster."""

    bootstrap: str
    topic: str


class Rows:
    """The records of one partition in order: the offset of each, and a 64-bit digest of its contents.

    16 bytes each, because a long run produces tens of millions.
    """

    def __init__(self, rows: Iterable[tuple[int, int]] = ()) -> None:
        self.offsets = array("q")
        self.digests = array("Q")
        for offset, digest in rows:
            self.offsets.append(offset)
            self.digests.append(digest)

    @classmethod
    def of(cls, messages: Iterable[Message], *, same_time: bool = True) -> "Rows":
        """Digests of `messages`; without their timestamps when `same_time` is False."""
        return cls((message.offset() or 0, digest(message, same_time=same_time)) for message in messages)

    def __len__(self) -> int:
        return len(self.offsets)

    def __add__(self, other: "Rows") -> "Rows":
        both = Rows()
        both.offsets, both.digests = self.offsets + other.offsets, self.digests + other.digests
        return both


@dataclass
class Judgment:
    """Result of a comparison: one sentence per defect, and as `gaps` the number of offsets that the ledger explains."""

    source_records: int = 0
    target_records: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    reordered: list[str] = field(default_factory=list)
    altered: list[str] = field(default_factory=list)
    """Records on the target that the source does not have, including those of other producers."""
    unexplained: list[str] = field(default_factory=list)
    """Source offsets that are not on the target and not in the ledger."""
    misexplained: list[str] = field(default_factory=list)
    """Source offsets that the ledger lists as missing although they are on the target."""
    gaps: Counter[str] = field(default_factory=Counter)
    holes: list[str] = field(default_factory=list)
    """Where the target continues without earlier records: they are lost, or copied later, out of order."""
    numbers: Counter[str] = field(default_factory=Counter)
    """How many records or offsets `lost`, `holes`, `unexplained` and `misexplained` are about."""

    @property
    def exactly_once(self) -> bool:
        return not (self.lost or self.doubled or self.reordered or self.altered)

    @property
    def at_least_once(self) -> bool:
        return not (self.lost or self.reordered or self.altered)

    @property
    def explained(self) -> bool:
        return not (self.unexplained or self.misexplained)

    def assert_exactly_once(self) -> None:
        assert self.exactly_once, str(self)
        assert self.source_records, "no record was written, so the test proves nothing"

    def assert_at_least_once(self) -> None:
        assert self.at_least_once, str(self)
        assert self.source_records, "no record was written, so the test proves nothing"

    def assert_explained(self) -> None:
        assert self.explained, str(self)

    def __str__(self) -> str:
        lines = [f"{self.source_records:,} records on the source, {self.target_records:,} on the target"]
        for what in ("lost", "doubled", "reordered", "altered", "holes", "unexplained", "misexplained"):
            sentences = getattr(self, what)
            lines += [f"{what}: {sentence}" for sentence in sentences[:_SHOWN]]
            if len(sentences) > _SHOWN:
                lines.append(f"{what}: and {len(sentences) - _SHOWN:,} more")
        if self.gaps:
            lines.append(f"missing with a reason: {dict(self.gaps)}")
        return "\n".join(lines)


class Ledger:
    """The gaps of one flow, read from its ledger topic: `gaps[topic, partition]` = [(first, after, reason), …]."""

    def __init__(self, gaps: Mapping[tuple[str, int], list[tuple[int, int, str]]], entries: Mapping[Any, Any]) -> None:
        self.gaps = gaps
        self.entries = entries

    @classmethod
    def read(cls, bootstrap: str, source_alias: str) -> "Ledger":
        """Raises KafkaException when the ledger topic does not exist."""
        newest: dict[bytes, bytes | None] = {}
        reader = Reader(bootstrap, "read_committed")
        try:
            for message in reader.messages(f"mm2-ledger.{source_alias}.internal", 0):
                key, value = _bytes(message.key()), message.value()
                if value is None or lease_of(_bytes(value)) >= lease_of(_bytes(newest.get(key))):
                    newest[key] = value
        finally:
            reader.close()
        gaps: dict[tuple[str, int], list[tuple[int, int, str]]] = {}
        entries: dict[tuple[str, int], dict[str, Any]] = {}
        for key, value in newest.items():
            if value is None:
                continue
            name, data = json.loads(key), json.loads(value)
            if "topic" not in name:
                continue  # a note of the flow's leader
            where = (name["topic"], name["partition"])
            if "chunk" in name:
                gaps.setdefault(where, []).extend(gaps_of(data))
            else:
                entries[where] = data
        return cls(gaps, entries)

    def total(self, topic: str) -> Counter[str]:
        """Number of missing offsets of a topic by reason, from the entries of the ledger."""
        found: Counter[str] = Counter()
        for (name, _), entry in self.entries.items():
            if name == topic:
                found.update(entry["gaps"])
        return found


class Reader:
    """Reads partitions to their ends. Not thread-safe."""

    def __init__(self, bootstrap: str, isolation: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "oracle",  # required by the client, never used
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": isolation,
                "check.crcs": True,
                "fetch.wait.max.ms": 20,
                "fetch.error.backoff.ms": 20,
                "log_level": 2,
            }
        )

    def messages(self, topic: str, partition: int) -> Iterator[Message]:
        """All records from the beginning to the current end. Raises KafkaException."""
        self._consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        last_record_s = time.monotonic()
        try:
            while True:
                for message in self._consumer.consume(2000, 0.1):
                    error = message.error()
                    if error is None:
                        last_record_s = time.monotonic()
                        yield message
                    elif error.code() == KafkaError._PARTITION_EOF:
                        return
                    else:
                        raise KafkaException(error)
                if time.monotonic() - last_record_s > _READ_PATIENCE_S:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{topic}-{partition} has no end"))
        finally:
            self._consumer.unassign()

    def partitions(self, topic: str) -> list[int]:
        """The partition numbers of a topic. Raises KafkaException when it does not exist."""
        found = self._consumer.list_topics(topic, timeout=30).topics[topic]
        if found.error is not None:
            raise KafkaException(found.error)
        return sorted(found.partitions)

    def range(self, topic: str, partition: int) -> tuple[int, int]:
        """Log start and log end offset. Raises KafkaException when no leader responds for a minute."""
        deadline = time.monotonic() + _READ_PATIENCE_S
        while True:
            try:
                low, high = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
                return int(low), int(high)
            except KafkaException:  # a leader election that the client has not noticed yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def close(self) -> None:
        self._consumer.close()


def judge(
    source: "ClusterTopic | Snapshot",
    target: ClusterTopic,
    *,
    isolation: str = "read_uncommitted",
    target_isolation: str = "read_committed",
    ledger: Ledger | None = None,
    same_time: bool = True,
    until: Mapping[int, int] | None = None,
) -> Judgment:
    """Compare all partitions of two topics as they are now. Raises KafkaException when one cannot be read.

    `isolation`: the flow's isolation level on the source. With a ledger, it must contain each source offset without a
    record on the target, and no other. `same_time` False: the target sets the timestamps. `until`: by partition, the
    source offset up to which the copy should be complete; records missing from there on do not count as lost.
    """
    reader = Reader(target.bootstrap, target_isolation)
    judgment = Judgment()
    try:
        there = set(reader.partitions(target.topic))
        for partition, wanted, offsets in _partitions(source, isolation, same_time):
            if partition not in there:
                judgment.lost.append(f"partition {partition} is not on the target")
                continue
            topic = source.topic
            gaps = [] if ledger is None else ledger.gaps.get((topic, partition), [])
            got = Rows.of(reader.messages(target.topic, partition), same_time=same_time)
            end = offsets.stop if until is None else min(until.get(partition, 0), offsets.stop)
            copied = compare(judgment, partition, wanted, got, reasons_of(gaps, offsets), end)
            if ledger is not None:
                claimed = range(offsets.start, max(offsets.start, end))
                below = copied if end >= offsets.stop else [offset for offset in copied if offset < end]
                explain(judgment, partition, claimed, below, reasons_of(gaps, claimed))
    finally:
        reader.close()
    return judgment


@dataclass(frozen=True)
class Snapshot:
    """The contents of a topic at one moment: by partition its records and the range of its offsets."""

    topic: str
    partitions: Mapping[int, tuple[Rows, range]]

    @classmethod
    def of(cls, topic: ClusterTopic, isolation: str = "read_uncommitted") -> "Snapshot":
        """Read the topic now, before a test deletes some of its records."""
        return cls(topic.topic, {index: (rows, offsets) for index, rows, offsets in _partitions(topic, isolation)})


def _partitions(
    source: "ClusterTopic | Snapshot", isolation: str, same_time: bool = True
) -> Iterator[tuple[int, Rows, range]]:
    if isinstance(source, Snapshot):
        for index, (rows, offsets) in source.partitions.items():
            yield index, rows, offsets
        return
    reader = Reader(source.bootstrap, isolation)
    try:
        for index in reader.partitions(source.topic):
            rows = Rows.of(reader.messages(source.topic, index), same_time=same_time)
            yield index, rows, range(*reader.range(source.topic, index))
    finally:
        reader.close()


def reasons_of(gaps: Iterable[tuple[int, int, str]], offsets: range) -> dict[int, str]:
    """The reason of each of these offsets that is missing."""
    return {
        offset: reason
        for first, after, reason in gaps
        for offset in range(max(first, offsets.start), min(after, offsets.stop))
    }


def judge_reasons(judgment: Judgment, source: ClusterTopic, ledger: Ledger) -> None:
    """Add wrong reasons in the ledger to the judgment: `aborted` or `control` differs from what the source has.

    The source must have lost no record and must not be compacted: each missing offset is a control record or belongs to
    an aborted transaction, and the ledger may list no lost range. Raises KafkaException.
    """
    readers = Reader(source.bootstrap, "read_committed"), Reader(source.bootstrap, "read_uncommitted")
    try:
        for partition in readers[0].partitions(source.topic):
            committed, everything = (
                array("q", (message.offset() or 0 for message in reader.messages(source.topic, partition)))
                for reader in readers
            )
            offsets = range(*readers[0].range(source.topic, partition))
            reasons = reasons_of(ledger.gaps.get((source.topic, partition), []), offsets)
            compare_reasons(judgment, partition, absent(offsets, committed, everything), reasons)
    finally:
        for reader in readers:
            reader.close()
    for (topic, partition), entry in sorted(ledger.entries.items()):
        for first, after, reason, *_ in entry["lost"] if topic == source.topic else ():
            judgment.misexplained.append(
                f"partition {partition}, source offsets {first} to {after - 1}: listed as lost ({reason}), the source has lost none"
            )
            judgment.numbers["misexplained"] += after - first


def absent(offsets: range, committed: Sequence[int], everything: Sequence[int]) -> dict[int, str]:
    """Why source offsets have no record under read_committed: `aborted` or `control`. Both lists ascend."""
    there, all_there = set(committed), set(everything)
    return {offset: "aborted" if offset in all_there else "control" for offset in offsets if offset not in there}


def compare_reasons(judgment: Judgment, partition: int, true: Mapping[int, str], reasons: Mapping[int, str]) -> None:
    """Add wrong reasons to the judgment. `explain` handles offsets without any reason."""
    wrong: dict[tuple[str, str], list[int]] = {}
    for offset, reason in sorted(reasons.items()):
        really = true.get(offset, "")
        if really and reason != really:
            wrong.setdefault((reason, really), []).append(offset)
    for (reason, really), offsets in wrong.items():
        judgment.numbers["misexplained"] += len(offsets)
        judgment.misexplained += [
            f"partition {partition}, source offsets {first} to {last}: {reason} in the ledger, {really} on the source"
            for first, last in contiguous_ranges(offsets)
        ]


def compare(
    judgment: Judgment,
    partition: int,
    wanted: Rows,
    got: Rows,
    reasons: Mapping[int, str],
    end: int | None = None,
) -> Sequence[int]:
    """Add the differences of one partition to the judgment, and return the source offsets that are on the target.

    Source offsets in `reasons`, and those from `end` on, may be missing.
    """
    judgment.source_records += len(wanted)
    judgment.target_records += len(got)
    if wanted.digests == got.digests:
        return wanted.offsets
    indexes: dict[int, list[int]] = {}
    for index, value in enumerate(wanted.digests):
        indexes.setdefault(value, []).append(index)
    seen = bytearray(len(wanted))
    newest = -1
    for offset, value in zip(got.offsets, got.digests, strict=True):
        candidates = indexes.get(value)
        where = f"partition {partition}, target offset {offset}"
        if candidates is None:
            judgment.altered.append(f"{where}: the source has no such record")
            continue
        # Equal records are distinguished by their order only: the first unseen one is used.
        at = bisect_left(candidates, newest + 1)
        index = next((one for one in (*candidates[at:], *candidates[:at]) if not seen[one]), -1)
        if index < 0:
            judgment.doubled.append(f"{where}: source offset {wanted.offsets[candidates[-1]]} again")
            continue
        if index < newest:
            after = wanted.offsets[newest]
            judgment.reordered.append(f"{where}: source offset {wanted.offsets[index]} after {after}")
        if index > newest + 1:
            passed = [wanted.offsets[one] for one in range(newest + 1, index)]
            passed = [one for one in passed if one not in reasons]
            if passed:
                judgment.holes.append(
                    f"{where}: source offset {wanted.offsets[index]}, without {passed[0]} to {passed[-1]}, "
                    f"{len(passed):,} records"
                )
                judgment.numbers["holes"] += len(passed)
        seen[index] = 1
        newest = max(newest, index)
    missing = (
        index
        for index, there in enumerate(seen)
        if not there and wanted.offsets[index] not in reasons and (end is None or wanted.offsets[index] < end)
    )
    for first, last in contiguous_ranges(missing):
        judgment.numbers["lost"] += last - first + 1
        judgment.lost.append(
            f"partition {partition}, source offsets {wanted.offsets[first]} to {wanted.offsets[last]}, "
            f"{last - first + 1:,} records"
        )
    return array("q", (offset for offset, there in zip(wanted.offsets, seen, strict=True) if there))


def explain(
    judgment: Judgment, partition: int, offsets: range, copied: Sequence[int], reasons: Mapping[int, str]
) -> None:
    """Compare the source offsets that are not on the target with the ledger. `copied`: those that are, ascending."""
    unexplained: list[int] = []
    after = offsets.start
    for end in (*copied, offsets.stop) if len(copied) < len(offsets) else ():
        for offset in range(after, end):
            if offset in reasons:
                judgment.gaps[reasons[offset]] += 1
            else:
                unexplained.append(offset)
        after = max(after, end + 1)
    misexplained = [offset for offset in copied if offset in reasons] if reasons else []
    for what, found in ((judgment.unexplained, unexplained), (judgment.misexplained, misexplained)):
        what += [f"partition {partition}, source offsets {first} to {last}" for first, last in contiguous_ranges(found)]
    judgment.numbers["unexplained"] += len(unexplained)
    judgment.numbers["misexplained"] += len(misexplained)


def digest(message: Message, *, same_time: bool = True) -> int:
    """Digest of what must be equal on both clusters: key, value, headers in order, timestamp."""
    headers: Any = message.headers() or []
    kind, stamp = message.timestamp()
    parts: list[Any] = [message.key(), message.value()]
    parts += [part for name, value in headers for part in (name.encode(), value)]
    summed = hashlib.blake2b(b"%d" % (stamp if same_time and kind else -1), digest_size=8)
    for part in parts:
        summed.update(b"-" if part is None else b"%d:%b" % (len(part), part))
    return int.from_bytes(summed.digest(), "big")


def lease_of(value: bytes) -> tuple[int, ...]:
    """Lease epoch and commit number of a ledger entry or of a position's header; the largest is valid.

    Empty for records without a lease, such as tombstones and entries of older versions.
    """
    try:
        return tuple(int(part) for part in json.loads(value)["lease"])
    except (ValueError, KeyError, TypeError):
        return ()


def gaps_of(data: Mapping[str, Any]) -> list[tuple[int, int, str]]:
    """Gaps in a chunk of the ledger: first offset, offset after the last, reason; delta-encoded in the topic."""
    found, at = [], 0
    for step, length, reason in data["gaps"]:
        found.append((at + step, at + step + length, str(data["reasons"][reason])))
        at += step + length
    return found


def contiguous_ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Ascending numbers as (first, last) of each contiguous range."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else b""
